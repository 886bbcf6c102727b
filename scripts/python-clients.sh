#!/bin/sh
# Makes the Python that the tests' clients run in: a virtual environment with the packages of node/tests/python/requirements.txt,
# each named with the hashes of its files, from PyPI. Once; prints nothing when it is there. Needs python3 with venv, and the network.
set -eu
into=${1:-target/python-clients}
wanted=$(dirname "$0")/../node/tests/python/requirements.txt
mkdir -p "$into"
exec 9>"$into/lock"
flock 9
cmp -s "$wanted" "$into/installed.txt" && exit 0
echo "fetching the Python packages of node/tests/python/requirements.txt" >&2
rm -rf "$into/venv" "$into/installed.txt"
if ! python3 -m venv "$into/venv" >&2 ||
    ! "$into/venv/bin/pip" install -q --disable-pip-version-check --no-deps --only-binary :all: --require-hashes -r "$wanted" >&2; then
    rm -rf "$into/venv"
    echo "python-clients.sh: cannot make a virtual environment with packages from PyPI: this needs the network, and Debian's" \
        "python3-venv and python3-pip" >&2
    exit 1
fi
cp "$wanted" "$into/installed.txt"
