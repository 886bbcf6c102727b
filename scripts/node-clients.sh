#!/bin/sh
# Makes the folder of Node's packages that the tests' clients run with: those of node/tests/node/package-lock.json, each named with
# the hash of its files, from npm's registry. Once; prints nothing when it is there. Needs npm, and the network.
set -eu
into=${1:-target/node-clients}
wanted=$(dirname "$0")/../node/tests/node
mkdir -p "$into"
exec 9>"$into/lock"
flock 9
cmp -s "$wanted/package-lock.json" "$into/installed.json" && exit 0
echo "fetching the packages of node/tests/node/package-lock.json" >&2
rm -rf "$into/node_modules" "$into/installed.json"
cp "$wanted/package.json" "$wanted/package-lock.json" "$into"
if ! (cd "$into" && npm ci --ignore-scripts --no-audit --no-fund >&2); then
    rm -rf "$into/node_modules"
    echo "node-clients.sh: cannot fetch packages from npm's registry: this needs the network, and npm" >&2
    exit 1
fi
cp "$wanted/package-lock.json" "$into/installed.json"
