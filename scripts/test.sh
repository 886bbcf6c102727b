#!/bin/sh
# Every test, as `make test` runs them: built once, then in two lanes at the same time (lane.sh). What the waiting lane printed
# follows the other's. Exit status: 0 where both passed.
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
$cargo test --locked --workspace --all-targets --no-run
printed=$(mktemp)
trap 'rm -f "$printed"' EXIT
lane() {
    LANE=$1 $cargo test --locked --workspace --all-targets --no-fail-fast --config "target.'cfg(unix)'.runner='$PWD/scripts/lane.sh'"
}
lane waiting >"$printed" 2>&1 &
waiting=$!
trap 'kill "$waiting" 2>/dev/null; rm -f "$printed"' INT TERM
status=0
lane rest || status=$?
wait "$waiting" || status=$?
echo "The waiting lane:"
# Without the names of the programs that the other lane ran.
awk '/^     Running / {name = $0; next} name != "" && NF {print name; name = ""} {print}' "$printed"
exit "$status"
