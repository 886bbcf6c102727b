#!/bin/sh
# Makes the Python of `make check NAME=clients`: a virtual environment with clients of PostgreSQL's protocol from PyPI. Prints its path.
#     other-clients.sh DIR
set -eu
into=${1:?usage: other-clients.sh DIR}
# (The extension is built for one DuckDB.)
wanted="adbc-driver-postgresql==1.13.0 pyarrow pgcli==4.7.1 duckdb==1.4.4 duckdb-ext-postgres==1.4.4.20260205"
if [ "$(cat "$into/installed" 2>/dev/null)" != "$wanted" ]; then
    rm -rf "$into"
    mkdir -p "$into"
    # shellcheck disable=SC2086
    if ! python3 -m venv "$into/venv" >&2 ||
        ! "$into/venv/bin/pip" install -q --disable-pip-version-check --only-binary :all: $wanted >&2; then
        echo "other-clients.sh: cannot install $wanted from PyPI: this needs the network, and Debian's python3-venv and python3-pip" >&2
        exit 1
    fi
    echo "$wanted" >"$into/installed"
fi
echo "$(cd "$into" && pwd)/venv/bin/python"
