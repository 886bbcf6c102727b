#!/usr/bin/env bash
# What README tells a new user, on fresh systems: Debian 12 and Ubuntu 24.04, each in a root that debootstrap makes and that is
# removed again, by root. What a person has before: git, curl, certificates, make, and cargo by rustup. Then from a clone
# `make demo`; and from files that were built before (`make dist`, `make wheel`), where there are some, the tarball's install.sh
# and `pip install` of the wheel, each followed by `rankmesh demo`. Prints the time of each step, and says what it could not do.
#     test-fresh.sh DIR [bookworm|noble|rocky…]
# BUILD=no leaves the clone out (two cores take some minutes for it, and 4 GB); BINARY=FILE runs that binary's demo, too;
# RUSTUP_INIT=URL is where rustup's installer comes from, MIRROR=URL where the packages do.
# Mounts are in a namespace of this script's own: nothing of them is left, however it ends.
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "test-fresh.sh needs root (chroot)" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "test-fresh.sh needs debootstrap: apt-get install debootstrap" >&2; exit 1; }
[ "${FRESH_NAMESPACE:-}" = own ] || FRESH_NAMESPACE=own exec unshare --mount --propagation private "$0" "$@"

mkdir -p "${1:?usage: test-fresh.sh DIR [bookworm|noble|rocky...]}"
dir=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- bookworm noble rocky
source=$(cd "$(dirname "$0")/.." && pwd)
root=$dir/root
status=0
job=""

remove() {
    [ -z "$job" ] || kill -- "-$job" 2>/dev/null || true
    # Whoever still runs in it, of a step that was interrupted.
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/root")" != "$root" ] || kill -9 "${process#/proc/}" 2>/dev/null || true
    done
    # (In the order in which they were made, last first; a lazy one ends with its last user.)
    awk -v below="$root/" 'index($5, below) == 1 {print $5}' /proc/self/mountinfo | tac | while read -r at; do umount -l "$at"; done
    rm -rf --one-file-system "$root"
}
trap remove EXIT
trap 'exit 130' INT TERM HUP

say() { echo "fresh: $*"; }
# Runs a command in the root, as a login of its own would.
in_root() {
    env -i HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive PATH=/root/.cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        "$(command -v chroot)" "$root" "$@"
}
# A step: its name, then the command. Its output is shown only where it fails. (In the background and a group of its own, so that
# a signal ends it at once.)
TIMEFORMAT='%U %S'
step() {
    local name=$1 began=$SECONDS user system
    shift
    set -m
    { time "$@" >"$dir/log" 2>&1; } 2>"$dir/cpu" &
    job=$!
    set +m
    if wait "$job"; then
        job=""
        read -r user system <"$dir/cpu"
        say "$suite: $name: $((SECONDS - began)) s (CPU ${user%.*} s, in the kernel ${system%.*} s)"
    else
        job=""
        tail -n 30 "$dir/log" >&2
        say "$suite: FAILED: $name, after $((SECONDS - began)) s"
        status=1
        return 1
    fi
}
demo() {
    step "$1" in_root bash -c "$2" || return 0
    say "$suite:   $(grep -m 1 -E '^(Live|Replay): ' "$dir/log")"
    say "$suite:   $(grep -m 1 ' holds up ' "$dir/log")"
    grep -q '^The verdict is what was injected' "$dir/log" || { say "$suite: FAILED: $1: another verdict"; status=1; }
}

make_root() {
    local options=(--variant=minbase) script=() mirror
    case $suite in
    bookworm) mirror=http://deb.debian.org/debian ;;
    noble)
        mirror=http://archive.ubuntu.com/ubuntu
        # Debian's debootstrap may be older than the suite, and without Ubuntu's keys.
        [ -e /usr/share/debootstrap/scripts/noble ] || script=(/usr/share/debootstrap/scripts/gutsy)
        [ -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ] || options+=(--no-check-gpg)
        options+=(--components=main,universe)
        ;;
    *) say "$suite: what is that?"; exit 2 ;;
    esac
    debootstrap "${options[@]}" "$suite" "$root" "${MIRROR:-$mirror}" "${script[@]}" && cp /etc/resolv.conf "$root/etc/resolv.conf"
}
# What a container has, too. (Not in a step: its mounts are in the namespace of this process either way.)
mounts() {
    mkdir -p "$root/dev/shm"
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount -t tmpfs none "$root/dev/shm"
}

# What a person has: tools, and the authorities that this network's certificates are signed by.
tools() {
    in_root apt-get update -qq &&
        in_root apt-get install -y -qq --no-install-recommends ca-certificates curl git make python3-venv &&
        cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
}
rustup() {
    local url=${RUSTUP_INIT:-https://static.rust-lang.org/rustup/dist/$(uname -m)-unknown-linux-gnu/rustup-init}
    in_root curl --proto =https -sSf -o /tmp/rustup-init "$url" && in_root bash -c 'chmod +x /tmp/rustup-init && /tmp/rustup-init -y --profile minimal'
}
# What is committed of this clone.
clone() {
    git -c safe.directory='*' clone --quiet --no-hardlinks "$(git -C "$source" rev-parse --path-format=absolute --git-common-dir)" \
        "$root/root/rankmesh" && git -C "$root/root/rankmesh" checkout --quiet --detach "$(git -C "$source" rev-parse HEAD)"
}

on_suite() {
    remove
    step "debootstrap" make_root || return 0
    mounts
    step "git, curl, make" tools || return 0
    if [ "${BUILD:-yes}" = yes ]; then
        step "rustup" rustup && step "git clone" clone && demo "make demo" 'cd ~/rankmesh && make demo'
    else
        say "$suite: not tried: make demo from a clone (BUILD=no)"
    fi
    local files=("$source"/target/release-files/rankmesh-*-"$(uname -m)".tar.gz) wheels=("$source"/target/wheels/*.whl)
    if [ -e "${files[-1]}" ]; then
        cp "${files[-1]}" "$root/root/"
        step "the tarball's install.sh" in_root bash -c 'cd && tar xf rankmesh-*.tar.gz && rm rankmesh-*.tar.gz && rankmesh-*/install.sh' &&
            demo "rankmesh demo, of the tarball" 'rankmesh demo'
    else
        say "$suite: not tried: the tarball (make dist makes it)"
    fi
    if [ -e "${wheels[-1]}" ]; then
        # (Built on this machine, with its libelf and zlib.)
        cp "${wheels[-1]}" "$root/root/"
        step "pip install of the wheel" in_root bash -c 'cd && python3 -m venv v && v/bin/pip install -q ./*.whl && v/bin/python -c "import rankmesh" &&
            apt-get install -y -qq --no-install-recommends libelf1 zlib1g' && demo "rankmesh demo, of the wheel" '~/v/bin/rankmesh demo'
    else
        say "$suite: not tried: the wheel (make wheel makes it)"
    fi
    if [ -n "${BINARY:-}" ]; then
        install -D -m 755 "$BINARY" "$root/usr/local/bin/rankmesh"
        step "libelf and zlib" in_root apt-get install -y -qq --no-install-recommends libelf1 zlib1g &&
            demo "rankmesh demo, of $BINARY" 'rankmesh demo'
    fi
}

# There is no debootstrap for it: a container, with the tarball.
on_rocky() {
    local engine tarball=("$source"/target/release-files/rankmesh-*-"$(uname -m)".tar.gz)
    engine=$(command -v podman || command -v docker) || { say "rocky: not tried: neither podman nor docker is here"; return; }
    "$engine" pull -q docker.io/library/rockylinux:9 >/dev/null 2>&1 || { say "rocky: not tried: no image of Rocky 9 can be fetched"; return; }
    [ -e "${tarball[-1]}" ] || { say "rocky: not tried: the tarball (make dist makes it)"; return; }
    step "the tarball's install.sh and rankmesh demo" "$engine" run --rm --privileged -v "${tarball[-1]}:/rankmesh.tar.gz:ro" rockylinux:9 \
        bash -c 'cd && tar xf /rankmesh.tar.gz && rankmesh-*/install.sh && rankmesh demo' || true
}

for suite in "$@"; do
    if [ "$suite" = rocky ]; then on_rocky; else on_suite; fi
done
exit "$status"
