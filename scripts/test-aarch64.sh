#!/bin/sh
# The unit tests of what needs neither eBPF nor a rank, cross-built for aarch64 and run by qemu-user: planner, store, mesh, gossip,
# certificates, wire types, questions, verdicts, command line.
#     test-aarch64.sh WORK        WORK: a folder for the arm64 C library (that of test-kernels.sh has it, too)
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
mkdir -p "${1:?usage: test-aarch64.sh WORK}"
work=$(cd "$1" && pwd)
target=${CARGO_TARGET_DIR:-$root/target/dist}
. "$root/scripts/zig-env.sh"
command -v qemu-aarch64 >/dev/null 2>&1 || {
    echo "test-aarch64.sh needs qemu-aarch64: apt-get install qemu-user" >&2
    exit 1
}
suite=bookworm debian=arm64
. "$root/scripts/other-packages.sh"
sysroot=$work/libraries-aarch64
unpack "$sysroot" busybox-static libc6 libgcc-s1 libstdc++6
set --
for crate in query-planner certs gossip rankmesh-model rankmesh-store rankmesh-mesh rankmesh-query rankmesh-observed rankmesh-digest rankmesh-stats rankmesh-causes rankmesh-verdicts rankmesh-standing rankmesh-recorded rankmesh-front; do
    set -- "$@" -p "$crate"
done
built=$(mktemp)
trap 'rm -f "$built"' EXIT
# Features as in the release binary, so that what it was built of is used again.
zig_cargo test aarch64 -p rankmesh --features rankmesh/vendored "$@" --lib --no-run --message-format json >"$built"
python3 - "$built" <<'LIST' | while read -r package program; do
import json, os, sys
for line in open(sys.argv[1]):
    found = json.loads(line)
    if found.get("reason") == "compiler-artifact" and found["profile"]["test"] and found["target"]["kind"] == ["lib"]:
        print(os.path.dirname(found["manifest_path"]), found["executable"])
LIST
    echo "     Running $program" >&2
    # qemu-user's /proc/self/stat lacks fields, and a child of the test's own program needs the kernel to know of qemu.
    (cd "$package" && qemu-aarch64 -L "$sysroot" "$program" --skip an_argument_can_be_blotted_out \
        --skip a_killed_process_loses_at_most_one_commit) || echo "$program" >>"$built.failed"
done
if [ -s "$built.failed" ]; then
    echo "test-aarch64: failed: $(cat "$built.failed")" >&2
    rm -f "$built.failed"
    exit 1
fi
echo "test-aarch64: all good" >&2
