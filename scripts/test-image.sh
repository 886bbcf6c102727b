#!/bin/bash
# Builds packaging/Containerfile and runs the agent in a container beside ranks on the host: it records them, answers inside and
# outside, and ends when it is stopped. The base image is made by debootstrap, so that no registry of images is asked.
#     test-image.sh BINARY RANKS DIR      BINARY: rankmesh; RANKS: the folder of nccl-ranks and libnccl.so.2; DIR: where the base is kept
# Root. Needs podman, runc and debootstrap. Capabilities that this host itself lacks are not given (and said).
set -euo pipefail
cd "$(dirname "$0")/.."
binary=$1 ranks=$(cd "$2" && pwd) dir=$3
for tool in podman runc debootstrap; do
    command -v $tool >/dev/null || { echo "test-image.sh needs $tool: apt-get install podman runc debootstrap" >&2; exit 1; }
done
export STORAGE_DRIVER=vfs
base=docker.io/library/debian:bookworm-slim
mkdir -p "$dir"
if ! podman image exists $base; then
    [ -e "$dir/base/etc/debian_version" ] || debootstrap --variant=minbase bookworm "$dir/base" "${MIRROR:-http://deb.debian.org/debian}" >"$dir/debootstrap.log"
    tar -C "$dir/base" -c . | podman import --quiet - $base >/dev/null
fi
work=$(mktemp -d)
podman=(podman --runtime runc --cgroup-manager cgroupfs)
name=rankmesh-test-$$
trap '"${podman[@]}" rm --force --time 1 $name >/dev/null 2>&1 || true; podman rmi --force $name >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
mkdir -p "$work/context/packaging" "$work/state" "$work/run"
cp packaging/Containerfile "$work/context/packaging/"
cp "$binary" "$work/context/rankmesh"
more=
# A release of `make dist` has libelf inside; a build of this host has not.
if ldd "$binary" | grep -q libelf; then
    more="RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends libelf1"
    sed -i "s|^COPY|$more\nCOPY|" "$work/context/packaging/Containerfile"
fi
podman build --quiet --network host --pull=never -f packaging/Containerfile --build-arg BINARY=rankmesh -t $name "$work/context" >/dev/null

# What Containerfile asks for, as far as this host has it.
wanted=$(sed -n 's/.*--cap-add=\([A-Z_,]*\).*/\1/p' packaging/Containerfile)
have=$((16#$(sed -n 's/^CapEff:\s*//p' /proc/self/status)))
caps=
number() { case $1 in SYS_PTRACE) echo 19 ;; SYS_ADMIN) echo 21 ;; SYS_RESOURCE) echo 24 ;; DAC_READ_SEARCH) echo 2 ;; SYSLOG) echo 34 ;; PERFMON) echo 38 ;; BPF) echo 39 ;; CHECKPOINT_RESTORE) echo 40 ;; esac; }
for cap in ${wanted//,/ }; do
    if ((have >> $(number "$cap") & 1)); then caps=$caps,$cap; else echo "not given: $cap, which this host lacks" >&2; fi
done
"${podman[@]}" run --detach --name $name --pid=host --network=host --cap-drop=all --cap-add="${caps#,}" \
    --security-opt apparmor=unconfined --security-opt seccomp=unconfined --ulimit nofile=4096:4096 --ulimit nproc=4096:4096 \
    -v /sys:/sys:ro -v "$work/state:/var/lib/rankmesh" -v "$work/run:/run/rankmesh" $name \
    up --identity /var/lib/rankmesh/identity --store /var/lib/rankmesh/trace.db --socket /run/rankmesh/agent.sock --listen 127.0.0.1:0 --name boxed >/dev/null

ask() { "$binary" query --socket "$work/run/agent.sock" --format csv "$1" 2>"$work/said" | tail -n +2; }
wait_until() { # what, seconds, command...
    local what=$1 until=$((SECONDS + $2))
    shift 2
    until "$@"; do
        ((SECONDS < until)) || { echo "$what: not within the time" >&2; cat "$work/said" >&2 || true; "${podman[@]}" logs $name >&2; exit 1; }
        sleep 0.2
    done
}
answers() { [ "$(ask 'SELECT 1')" = 1 ]; }
wait_until "the agent answers" 60 answers
LD_LIBRARY_PATH=$ranks "$ranks/nccl-ranks" --ranks 4 --iters 20 --work-ms 20 --start-ms 3000 >/dev/null &
job=$!
wait $job
all_there() {
    [ "$(ask "SELECT count(*) || '/' || count(DISTINCT pid) FROM collectives WHERE func = 'all_reduce' AND pid IN (SELECT pid FROM processes WHERE exe = '$ranks/nccl-ranks')")" = 80/4 ]
}
wait_until "80 calls of 4 ranks on the host" 30 all_there
"${podman[@]}" exec $name /usr/bin/rankmesh nodes | grep -q '^boxed (this node)'
"${podman[@]}" stop --time 10 $name >/dev/null
[ "$("${podman[@]}" inspect --format '{{.State.ExitCode}}' $name)" = 0 ] || { echo "it did not end well" >&2; "${podman[@]}" logs $name >&2; exit 1; }
[ "$("$binary" query --db "$work/state/trace.db" --format csv "SELECT count(*) FROM collectives" | tail -n 1)" -ge 80 ]
echo "the image: built, recorded 80 of 80 calls of ranks on the host, answered inside and outside, stopped, its store lies there"
