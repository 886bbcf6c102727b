#!/usr/bin/env bash
# Every test, as `make test` runs them: built once, then in three lanes at the same time and a last one alone (lane.sh). What two
# of them printed follows the third's. Exit status: 0 where all passed and left no process behind.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
began=$(date +%s)
$cargo test --locked --workspace --all-targets --no-run
echo "took: $(($(date +%s) - began)) s, building"
printed=$(mktemp)
# How far it is, for whoever waits at a terminal.
if [ -t 1 ]; then
    PROGRAMS=$($cargo test --locked --workspace --all-targets --no-run 2>&1 | grep -c Executable || true)
    TERMINAL=$(tty <&1 || true) PROGRESS=$printed.progress
    export TERMINAL PROGRESS PROGRAMS
fi
# The tests' own folder for temporary files, removed with all that is left in it. (Short, for the names of sockets.)
TMPDIR=$(mktemp -d /tmp/rmt.XXXXXX)
export TMPDIR
chmod 1777 "$TMPDIR" # as /tmp: tests act as other users, too
trap 'rm -rf "$printed" "$printed.rest" "$printed.progress" "$TMPDIR"' EXIT
lane() {
    LANE=$1 $cargo test --locked --workspace --all-targets --no-fail-fast --config "target.'cfg(unix)'.runner='$PWD/scripts/lane.sh'"
}
# (Each with all that it starts in a process group of its own, to be ended together.)
set -m
lane waiting >"$printed" 2>&1 &
waiting=$!
lane rest >"$printed.rest" 2>&1 &
rest=$!
set +m
trap 'kill -- "-$waiting" "-$rest" 2>/dev/null; exit 130' INT TERM
status=0
lane live || status=$?
wait "$rest" || status=$?
wait "$waiting" || status=$?
lane alone || status=$?
# Without the names of the programs that the other lanes ran.
echo "The waiting lane, and what is in none of the others:"
awk '/^     Running / {name = $0; next} name != "" && NF {print name; name = ""} {print}' "$printed" "$printed.rest"
left=$(scripts/left-behind.sh "$TMPDIR")
if [ -n "$left" ]; then
    echo "error: left behind by tests:"
    echo "$left"
    status=1
fi
echo "took: $(($(date +%s) - began)) s, in all"
exit "$status"
