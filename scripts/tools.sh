#!/bin/sh
# Programs of the registry that releases, checks and the documentation need, pinned, built once into target/tools (kept between runs).
#     tools.sh PROGRAM…       cargo-deny, cargo-about, cargo-cyclonedx, mdbook
# One that is on PATH in any version is taken as it is. Without optimisation: they build in a third of the time and run for seconds;
# but cargo-about compares many texts.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
tools=$root/target/tools
for program in "$@"; do
    optimise=0
    case $program in
    cargo-deny) version=0.20.2 features=--no-default-features ;;
    cargo-about) version=0.9.3 features="--no-default-features --features cli" optimise=2 ;;
    cargo-cyclonedx) version=0.5.9 features= ;;
    mdbook) version=0.5.4 features="--no-default-features --features search" ;;
    *) echo "tools.sh knows no $program" >&2; exit 2 ;;
    esac
    ! command -v "$program" >/dev/null 2>&1 || continue
    [ ! -x "$tools/bin/$program" ] || continue
    echo "building $program $version into target/tools, once" >&2
    # From /: the project's own settings for cargo are not these programs'.
    # shellcheck disable=SC2086
    (cd / && CARGO_TARGET_DIR=$tools/build CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_OPT_LEVEL=$optimise \
        ${CARGO:-cargo} install --quiet --locked --debug --root "$tools" \
        --version "$version" $features "$program" >&2)
done
