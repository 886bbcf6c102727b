#!/bin/sh
# Every test, as `make test` runs them: built once, then in two lanes at the same time and a last one alone (lane.sh). What the
# waiting lane printed follows the other's. Exit status: 0 where both passed and left no process behind.
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
began=$(date +%s)
$cargo test --locked --workspace --all-targets --no-run
echo "took: $(($(date +%s) - began)) s, building"
printed=$(mktemp)
# The tests' own folder for temporary files, removed with all that is left in it. (Short, for the names of sockets.)
TMPDIR=$(mktemp -d /tmp/rmt.XXXXXX)
export TMPDIR
chmod 1777 "$TMPDIR" # as /tmp: tests act as other users, too
trap 'rm -rf "$printed" "$TMPDIR"' EXIT
lane() {
    LANE=$1 $cargo test --locked --workspace --all-targets --no-fail-fast --config "target.'cfg(unix)'.runner='$PWD/scripts/lane.sh'"
}
lane waiting >"$printed" 2>&1 &
waiting=$!
trap 'kill "$waiting" 2>/dev/null; rm -rf "$printed" "$TMPDIR"' INT TERM
status=0
lane rest || status=$?
wait "$waiting" || status=$?
lane alone || status=$?
echo "The waiting lane:"
# Without the names of the programs that the other lane ran.
awk '/^     Running / {name = $0; next} name != "" && NF {print name; name = ""} {print}' "$printed"
left=$(scripts/left-behind.sh "$TMPDIR")
if [ -n "$left" ]; then
    echo "error: left behind by tests:"
    echo "$left"
    status=1
fi
echo "took: $(($(date +%s) - began)) s, in all"
exit "$status"
