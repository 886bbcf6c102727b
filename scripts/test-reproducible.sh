#!/bin/sh
# The x86_64 release binary of what is committed, built twice in clones of different names: the same bytes.
#     test-reproducible.sh DIR
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "${1:?usage: test-reproducible.sh DIR}"
dir=$(cd "$1" && pwd)
commit=$(git -C "$root" rev-parse HEAD)
for one in first second; do
    rm -rf "$dir/$one" "$dir/$one-out"
    # The same commit, whatever is committed meanwhile: the binary names it.
    git clone --quiet "$root" "$dir/$one"
    git -C "$dir/$one" checkout --quiet --detach "$commit"
    (cd "$dir/$one" && PACKAGES=no CARGO_TARGET_DIR= scripts/dist.sh "$dir/$one-out" x86_64)
done
(cd "$dir" && sha256sum ./*-out/rankmesh-*/bin/rankmesh)
cmp "$dir"/first-out/rankmesh-*/bin/rankmesh "$dir"/second-out/rankmesh-*/bin/rankmesh
echo "test-reproducible: the same bytes" >&2
