#!/bin/sh
# Builds the release before this one, once, and prints where its binary is: what `make check NAME=upgrade` runs beside this build's.
#     previous.sh [COMMIT]     else the newest tag v* before HEAD; where there is none yet, packaging/previous-release
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
from=${1:-}
[ -n "$from" ] || from=$(git describe --tags --abbrev=0 --match 'v[0-9]*' HEAD^ 2>/dev/null || sed -n 's/^\([0-9a-f]\{7,40\}\).*/\1/p' packaging/previous-release)
commit=$(git rev-parse --verify --quiet "$from^{commit}") || {
    echo "previous.sh: this clone does not have $from (a shallow one? git fetch --unshallow)" >&2
    exit 1
}
binary=$root/target/previous/$commit/rankmesh
if [ ! -x "$binary" ]; then
    echo "building $commit, once, into target/previous" >&2
    git worktree prune
    src=$root/target/previous/src
    [ ! -d "$src" ] || git worktree remove --force "$src"
    git worktree add --quiet --detach "$src" "$commit"
    (cd "$src" && CARGO_TARGET_DIR=$root/target/previous/build ${CARGO:-cargo} build --locked -p rankmesh >&2)
    git worktree remove --force "$src"
    mkdir -p "$(dirname "$binary")"
    cp "$root/target/previous/build/debug/rankmesh" "$binary"
    rm -rf "$root/target/previous/build"
fi
echo "$binary"
