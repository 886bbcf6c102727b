#!/bin/sh
# Says before a build what it will take, where nothing is built yet: how many crates, and minutes by what two cores took.
#     expect.sh debug|release FOLDER
set -eu
cd "$(dirname "$0")/.."
[ ! -e "$2/$1/rankmesh" ] || exit 0
crates=$(grep -c '^name = ' Cargo.lock)
cores=$(nproc 2>/dev/null || echo 2)
case $1 in
debug) minutes=11 ;;   # of one core
release) minutes=50 ;;
esac
echo "Building $crates crates, once: about $(((minutes + cores - 1) / cores)) minutes on $cores cores. Later builds take seconds." >&2
