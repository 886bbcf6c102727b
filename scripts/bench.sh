#!/bin/bash
# `make bench NAME=…`: builds what is measured, and measures it. OPTIONS go to the program that does. Without a NAME: all names.
#     bench.sh [NAME]
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo} target=${CARGO_TARGET_DIR:-target}
binary=$(realpath -m "$target")/release/rankmesh
read -ra options <<<"${OPTIONS:-}"
bench() { # what scenarios/src/bin/bench does, as `bench NAME --help` says
    $cargo build --locked --release -p rankmesh -p scenarios --bin rankmesh --bin bench
    "$target/release/bench" "$@" "${options[@]}"
}
build() { $cargo build --locked --release -p rankmesh; }
tests() { RANKMESH_BINARY=$binary $cargo test --locked --workspace --test "$@"; }
python() { # a virtual environment below target/ with packages of PyPI
    [ -x "target/$1/bin/python" ] || python3 -m venv "target/$1"
    "target/$1/bin/python" -c "import $2" 2>/dev/null || "target/$1/bin/pip" install --quiet "${@:2}"
}
duckdb() { python duckdb duckdb || echo "DuckDB could not be installed: no comparison"; }
case ${1-} in
adhoc) #: 65 questions beside SQLite and DuckDB, and on three nodes (8 GB)
    duckdb
    bench adhoc
    ;;
capture) #: what recording costs calls, an MPI job and switches (root)
    bench capture ;;
cells) #: cells in virtual time: joining, deaths, halves (OPTIONS='10000 1 1')
    $cargo bench --locked -p gossip --bench cells -- "${options[@]:-10000}" ;;
chaos) #: 10,000 questions to hosts that are killed, stopped and parted
    bench chaos ;;
cost) #: what recording costs real programs (COST_PROGRAM, ROUNDS, COMMAND)
    build
    ROUNDS="${ROUNDS:-10}" COMMAND="${COMMAND:-}" scripts/bench-cost.py "$binary" ${COST_PROGRAM:-} ;;
crowd) #: 200 heavy questions at once beside ingest
    bench crowd ;;
day) #: stores of three hosts after a day, asked everything (20 GB)
    bench day ;;
explain) #: twelve causes of lateness (root; EXPLAIN_CAUSE, EXPLAIN_ROUNDS)
    scripts/deps.sh --test
    build
    tests explain_causes -- --ignored --nocapture
    for _ in $(seq "${EXPLAIN_ROUNDS:-5}"); do
        tests live_causes -- --exact packet_loss_to_one_host_is_named_with_its_flows --nocapture
    done ;;
files) #: 64 stores asked without agents (3 GB)
    [ -n "${OPTIONS:-}" ] || options=(--rows 680000)
    bench day --files 64 ;;
flow) #: ten million rows read at 1 MB/s: what everyone holds of them
    bench flow ;;
gossip) #: what membership costs at 10, 100, 400 and 1,000 nodes
    bench gossip ;;
history) #: a year of 64 nodes in an archive, asked for one hour (3 GB)
    bench history ;;
load) #: every call of a heavy load stored or counted as lost (root)
    bench load ;;
mesh) #: a question over many agents beside bare quinn, clush, pdsh, serf
    bench mesh ;;
page) #: the page with 8,192 ranks and 1,000 nodes in Chromium
    scripts/deps.sh --test
    $cargo test --locked --workspace --test page -- --ignored --nocapture ;;
push) #: 64 agents' rows pushed into ClickHouse's engine (from PyPI)
    python history chdb
    bench history --push target/history/bin/python ;;
real) #: programs, held (root; REAL_PROGRAM, REAL_ROUNDS, REAL_COMMAND)
    scripts/deps.sh --test
    build
    tests point_to_point -- --ignored --nocapture ;;
serve) #: what following requests costs nginx (root; ROUNDS, STREAMS for HTTP/2)
    build
    scripts/bench-serve.py "$binary" ;;
slurm) #: slurm up for 4 and 32 nodes; the MPI shim beside uprobes (root)
    scripts/deps.sh --test
    build
    scenarios/slurm/bench.sh "$binary" ;;
stacks) #: what twenty samples of a rank's stack cost it and its agent
    $cargo run --release --locked -p rankmesh-explain --example sampled ;;
standing) #: the standing verdict, live on Open MPI: time to verdict, cost
    scripts/deps.sh --test
    bench standing ;;
store) #: the trace store beside DuckDB on the same ten million rows
    duckdb
    bench store ;;
trust) #: revocation on live connections, renewal under load, what seals cost
    bench trust ;;
verdicts) #: verdicts on simulated jobs of known truth, also those that hang
    bench verdicts
    [ -n "${OPTIONS:-}" ] || bench verdicts --hangs ;;
*)
    [ -z "${1-}" ] || exec >&2
    [ -z "${1-}" ] || echo "there is no bench ${1@Q}"
    echo "make bench NAME=NAME [OPTIONS='…'], where NAME is one of:"
    sed -n 's/^\([a-z-]*\)) #: \(.*\)/  \1\t\2/p' scripts/bench.sh | expand -t 12
    [ -z "${1-}" ] || exit 2
    ;;
esac
