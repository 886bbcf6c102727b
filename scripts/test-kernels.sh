#!/bin/sh
# Capture on another kernel: boots one of Debian's in qemu, without KVM, from a small initramfs with the binary, its libraries and
# the workloads, and runs scripts/kernel-init.sh there.
#     scripts/test-kernels.sh RANKMESH-BINARY [SERIES] [ARCH]
# SERIES: 5.10 (Debian 11: no task storage, no cookies of probes), 6.1 (Debian 12: no uprobe.multi, no uprobe.session), 6.12 (no
# uprobe.session).
# ARCH: x86_64 (else aarch64, with a binary of `make dist`; workloads are cross-compiled by the same zig).
# KERNEL=/boot/vmlinuz-… takes a kernel of yours instead (MODULES=DIR: where its null_blk.ko is). TIMEOUT_S: for the whole (600).
# A machine that does not come as far as its first process says nothing about rankmesh: it is booted once more.
set -eu
binary=${1:?usage: test-kernels.sh RANKMESH-BINARY [5.10|6.1|6.12] [x86_64|aarch64]}
series=${2:-6.1}
arch=${3:-x86_64}
here=$(cd "$(dirname "$0")/.." && pwd)
work=${CARGO_TARGET_DIR:-$here/target}/kernels
mkdir -p "$work"

need() {
    command -v "$1" >/dev/null 2>&1 || { echo "test-kernels needs $1: apt-get install $2" >&2; exit 1; }
}
need cpio cpio
need apt-get apt
[ "$(uname -m)" = x86_64 ] || { echo "test-kernels is written for x86_64" >&2; exit 1; }
case $arch in
x86_64)
    need qemu-system-x86_64 qemu-system-x86
    need busybox busybox-static
    debian=amd64 console=ttyS0
    machine="qemu-system-x86_64 -cpu max"
    busybox=$(command -v busybox)
    if ldd "$busybox" >/dev/null 2>&1; then
        echo "test-kernels needs a static busybox: apt-get install busybox-static" >&2
        exit 1
    fi
    ;;
aarch64)
    need qemu-system-aarch64 qemu-system-arm
    debian=arm64 console=ttyAMA0
    # Without its checks of pointers (pauth), which cost an emulator most of its time.
    machine="qemu-system-aarch64 -machine virt -cpu max,pauth=off"
    ;;
*) echo "test-kernels knows no $arch" >&2; exit 2 ;;
esac
case $series in 5.10) suite=bullseye ;; *) suite=bookworm ;; esac
pattern=$(echo "$series" | sed 's/\./\\./g')'\.[0-9]'

. "$here/scripts/other-packages.sh"

if [ -z "${KERNEL:-}" ]; then
    files=$work/debian-$series-$arch
    if ! [ -e "$files" ]; then
        package=$(packages apt-cache search --names-only "^linux-image-$pattern.*-cloud-$debian\$" | sort -V | tail -n 1 | cut -d' ' -f1)
        [ -n "$package" ] || { echo "Debian $suite has no linux-image-$series.*-cloud-$debian; give KERNEL=FILE" >&2; exit 1; }
        unpack "$files" "$package"
    fi
    KERNEL=$(find "$files" -name 'vmlinuz*' -type f | tail -n 1)
    [ -n "$KERNEL" ] || { echo "test-kernels: no kernel in $files" >&2; exit 1; }
    MODULES=$(ls -d "$files"/lib/modules "$files"/usr/lib/modules 2>/dev/null | head -n 1)
fi

root=$work/root
rm -rf "$root"
mkdir -p "$root/bin" "$root/job" "$root/modules" "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root/etc"
if [ "$arch" = aarch64 ]; then
    unpack "$work/libraries-$arch" busybox-static libc6 libgcc-s1 libstdc++6
    busybox=$work/libraries-$arch/bin/busybox
    CC="${ZIG:-$here/target/dist-tools/bin/python-zig} cc -target aarch64-linux-gnu.2.28"
    export CC
fi
cp "$busybox" "$root/bin/busybox"
ln -s busybox "$root/bin/sh"
cp "$here/scripts/kernel-init.sh" "$root/init"
chmod 755 "$root/init"
workloads=
for name in libnccl.so.2 libcudart.so.12 nccl-ranks host-events; do workloads="$workloads $work/workloads-$arch/$name"; done
# shellcheck disable=SC2086
make -sC "$here/scenarios" OUT="$work/workloads-$arch" ${CC:+CC="$CC"} $workloads >&2
cp "$work/workloads-$arch/libnccl.so.2" "$work/workloads-$arch/libcudart.so.12" "$work/workloads-$arch/nccl-ranks" "$work/workloads-$arch/host-events" "$root/job/"
cp "$binary" "$root/bin/rankmesh"
strip "$root/bin/rankmesh" 2>/dev/null || true
tools=""
for tool in setcap setpriv; do
    [ "$arch" = x86_64 ] || continue
    found=$(PATH=$PATH:/usr/sbin:/sbin command -v $tool || true)
    [ -z "$found" ] || cp "$found" "$root/bin/$tool"
    tools="$tools $found"
done
# Python, with as much of its library as an isolated interpreter imports at its start.
python=$(readlink -f /usr/bin/python3 || true)
library=/usr/lib/$(basename "${python:-none}")
if [ "$arch" = x86_64 ] && [ -x "$python" ] && [ -d "$library/encodings" ]; then
    cp "$python" "$root/bin/python3"
    mkdir -p "$root$library/encodings"
    cp "$library"/encodings/*.py "$root$library/encodings/"
    cp "$library/os.py" "$root$library/"
    # It calls so often that a stack that is read from outside is torn.
    printf 'def more(n):\n    return n + 1\n\ndef busy():\n    n = 0\n    while True:\n        n = more(n)\n\nbusy()\n' >"$root/job/busy.py"
    tools="$tools $python"
else
    echo "test-kernels: no Python to take along: walks of its frames are not tried" >&2
fi
# What they are linked with, where they look for it.
if [ "$arch" = aarch64 ]; then
    mkdir -p "$root/lib/aarch64-linux-gnu"
    cp -L "$work/libraries-$arch"/lib/aarch64-linux-gnu/*.so* "$work/libraries-$arch"/usr/lib/aarch64-linux-gnu/libstdc++.so.6 "$root/lib/aarch64-linux-gnu/"
    ln -sf aarch64-linux-gnu/ld-linux-aarch64.so.1 "$root/lib/ld-linux-aarch64.so.1"
else
# shellcheck disable=SC2086
ldd "$binary" $tools "$root/job/nccl-ranks" "$root/job/libnccl.so.2" "$root/job/libcudart.so.12" | grep -o '/[^ ]*\.so[^ ]*' | sort -u | while read -r library; do
    case $library in "$root"/*) continue ;; esac
    mkdir -p "$root$(dirname "$library")"
    [ -e "$root$library" ] || cp -L "$library" "$root$library"
done
fi
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

echo "booting $(basename "$KERNEL") ($arch)" >&2
limit=${TIMEOUT_S:-600}
# Boots it; what its console said is in console.txt, as long as it ran, in console-failed.txt, too, when it did not come to its end.
# no_timer_check: on a busy host an emulated timer is late, and the kernel would panic ("IO-APIC + timer doesn't work").
boot() {
    began=$(date +%s)
    ended=0
    timeout "$limit" $machine -smp 2 -m 1024 -nographic -no-reboot -net none -kernel "$KERNEL" \
        -initrd "$work/initrd.gz" -append "console=$console quiet panic=-1 no_timer_check" </dev/null >"$work/console.log" 2>&1 || ended=$?
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
