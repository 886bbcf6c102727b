#!/bin/sh
# Capture on another kernel: boots one of Debian 12's, 6.1 (no uprobe.multi, no uprobe.session) or 6.12 (no uprobe.session), in
# qemu, without KVM, from a small initramfs with the binary, its libraries and the workloads, and runs scripts/kernel-init.sh there.
#     scripts/test-kernels.sh RANKMESH-BINARY [6.1|6.12]
# KERNEL=/boot/vmlinuz-… takes a kernel of yours instead (MODULES=DIR: where its null_blk.ko is). TIMEOUT_S: for the whole (600).
# A machine that does not come as far as its first process says nothing of us: that is told, and it is booted once more.
set -eu
binary=${1:?usage: test-kernels.sh RANKMESH-BINARY [6.1|6.12]}
series=${2:-6.1}
here=$(cd "$(dirname "$0")/.." && pwd)
work=${CARGO_TARGET_DIR:-$here/target}/kernels
mkdir -p "$work"

need() {
    command -v "$1" >/dev/null 2>&1 || { echo "test-kernels needs $1: apt-get install $2" >&2; exit 1; }
}
need qemu-system-x86_64 qemu-system-x86
need cpio cpio
need busybox busybox-static
[ "$(uname -m)" = x86_64 ] || { echo "test-kernels is written for x86_64" >&2; exit 1; }
if ldd "$(command -v busybox)" >/dev/null 2>&1; then
    echo "test-kernels needs a static busybox: apt-get install busybox-static" >&2
    exit 1
fi

if [ -z "${KERNEL:-}" ]; then
    need apt-get apt
    files=$work/debian-$series
    if ! ls "$files"/boot/vmlinuz-"$series".*-cloud-amd64 >/dev/null 2>&1; then
        pattern=$(echo "$series" | sed 's/\./\\./g')
        find_package() { apt-cache search --names-only "^linux-image-$pattern\\.[0-9].*-cloud-amd64\$" | sort -V | tail -n 1 | cut -d' ' -f1; }
        package=$(find_package)
        if [ -z "$package" ]; then
            apt-get update -qq >&2
            package=$(find_package)
        fi
        [ -n "$package" ] || { echo "apt knows no linux-image-$series.*-cloud-amd64 (Debian 12's); give KERNEL=FILE" >&2; exit 1; }
        echo "downloading $package" >&2
        (cd "$work" && apt-get download -qq "$package" && dpkg -x "$package"_*.deb debian.new && rm "$package"_*.deb)
        rm -rf "$files"
        mv "$work/debian.new" "$files"
    fi
    KERNEL=$(ls "$files"/boot/vmlinuz-"$series".*-cloud-amd64 | tail -n 1)
    MODULES=$files/lib/modules
fi

root=$work/root
rm -rf "$root"
mkdir -p "$root/bin" "$root/job" "$root/modules" "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root/etc"
cp "$(command -v busybox)" "$root/bin/busybox"
ln -s busybox "$root/bin/sh"
cp "$here/scripts/kernel-init.sh" "$root/init"
chmod 755 "$root/init"
make -sC "$here/scenarios" OUT="$work/workloads" >&2
cp "$work/workloads/libnccl.so.2" "$work/workloads/libcudart.so.12" "$work/workloads/nccl-ranks" "$work/workloads/host-events" "$root/job/"
cp "$binary" "$root/bin/rankmesh"
strip "$root/bin/rankmesh" 2>/dev/null || true
tools=""
for tool in setcap setpriv; do
    found=$(PATH=$PATH:/usr/sbin:/sbin command -v $tool || true)
    [ -z "$found" ] || cp "$found" "$root/bin/$tool"
    tools="$tools $found"
done
# What they are linked with, where they look for it.
# shellcheck disable=SC2086
ldd "$binary" $tools "$root/job/nccl-ranks" "$root/job/libnccl.so.2" "$root/job/libcudart.so.12" | grep -o '/[^ ]*\.so[^ ]*' | sort -u | while read -r library; do
    case $library in "$root"/*) continue ;; esac
    mkdir -p "$root$(dirname "$library")"
    [ -e "$root$library" ] || cp -L "$library" "$root$library"
done
for module in configfs null_blk; do
    found=$(find "${MODULES:-/nonexistent}" -name "$module.ko*" 2>/dev/null | head -n 1)
    case $found in
    "") ;;
    *.xz) xz -dc "$found" >"$root/modules/$module.ko" ;;
    *.zst) zstd -qdc "$found" >"$root/modules/$module.ko" ;;
    *) cp "$found" "$root/modules/$module.ko" ;;
    esac
done
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd.gz"

echo "booting $(basename "$KERNEL")" >&2
limit=${TIMEOUT_S:-600}
# Boots it; what its console said is in console.txt, as long as it ran, in console-failed.txt, too, when it did not come to its end.
# no_timer_check: on a busy host an emulated timer is late, and the kernel would panic ("IO-APIC + timer doesn't work").
boot() {
    began=$(date +%s)
    ended=0
    timeout "$limit" qemu-system-x86_64 -cpu max -smp 2 -m 1024 -nographic -no-reboot -net none -kernel "$KERNEL" \
        -initrd "$work/initrd.gz" -append "console=ttyS0 quiet panic=-1 no_timer_check" </dev/null >"$work/console.log" 2>&1 || ended=$?
    tr -d '\r' <"$work/console.log" | sed 's/\x1b\[[0-9;?=]*[A-Za-z]//g' >"$work/console.txt"
    cat "$work/console.txt"
    grep -q '^self-test: end' "$work/console.txt" && return 0
    cp "$work/console.txt" "$work/console-failed.txt"
    if [ $ended = 124 ]; then how="was stopped after $limit s (TIMEOUT_S)"; else how="ended by itself (qemu: $ended)"; fi
    last=$(grep . "$work/console.txt" | tail -n 1)
    echo "test-kernels: the machine $how after $(($(date +%s) - began)) s without coming to its end. Its last line: $last" >&2
    echo "test-kernels: all that it said: $work/console-failed.txt" >&2
    return 1
}
if ! boot; then
    grep -q '^self-test: begin' "$work/console-failed.txt" && exit 1
    echo "test-kernels: it did not come as far as its first process: once more" >&2
    boot || exit 1
fi
if grep -q '^self-test: FAILED' "$work/console.txt"; then
    echo "test-kernels: failed" >&2
    exit 1
fi
echo "test-kernels: $(grep -c '^self-test: ok' "$work/console.txt") checks passed on $(basename "$KERNEL")"
