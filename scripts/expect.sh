#!/bin/sh
# Says before a build what it will take, where nothing is built yet: minutes by what two cores took.
#     expect.sh demo|release FOLDER
set -eu
cores=$(nproc 2>/dev/null || echo 2)
case $1 in
demo) folder=debug minutes=9 what="what the demo needs (no servers, no archives)" ;; # minutes of one core
release) folder=release minutes=50 what="$(grep -c '^name = ' "$(dirname "$0")/../Cargo.lock") crates" ;;
esac
[ ! -e "$2/$folder/rankmesh" ] || exit 0
echo "Building $what, once: about $(((minutes + cores - 1) / cores)) minutes on $cores cores. Later builds take seconds." >&2
