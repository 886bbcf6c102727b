#!/bin/sh
# Starts programs of an old distribution with the MPI shim and the NCCL plugin before them (root, network).
#     test-old-root.sh SHIM PLUGIN [SUITE]        SUITE: of Debian (bullseye: glibc 2.31)
set -eu
shim=${1:?usage: test-old-root.sh SHIM PLUGIN [SUITE]}
plugin=${2:?usage: test-old-root.sh SHIM PLUGIN [SUITE]}
suite=${3:-bullseye}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT INT TERM
debootstrap --variant=minbase "$suite" "$root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" > "$root.log" 2>&1 || {
    tail -n 5 "$root.log" >&2
    rm -f "$root.log"
    exit 1
}
rm -f "$root.log"
install -m 755 "$shim" "$root/pmpi.so"
install -m 755 "$plugin" "$root/nccl.so"
for library in pmpi nccl; do
    said=$(chroot "$root" env LD_BIND_NOW=1 LD_PRELOAD="/$library.so" /bin/sh -c '/usr/bin/env true && echo starts' 2>&1)
    [ "$said" = starts ] || { echo "$library: $said" >&2; exit 1; }
done
echo "$(chroot "$root" ldd --version | head -n 1): programs start with both libraries" >&2
