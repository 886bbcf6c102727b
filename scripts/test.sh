#!/bin/sh
# Every test, as `make test` runs them: built once, then in two lanes side by side (lane.sh). What the waiting lane printed follows the
# other's. Exit status: 0 where both passed.
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
$cargo test --locked --workspace --all-targets --no-run
waiting=$(mktemp)
trap 'rm -f "$waiting"' EXIT
lane() {
    LANE=$1 $cargo test --locked --workspace --all-targets --no-fail-fast --config "target.'cfg(unix)'.runner='$PWD/scripts/lane.sh'"
}
lane waiting >"$waiting" 2>&1 &
beside=$!
trap 'kill "$beside" 2>/dev/null; rm -f "$waiting"' INT TERM
status=0
lane rest || status=$?
wait "$beside" || status=$?
echo "Beside these:"
# Without the names of the programs that the other lane ran.
awk '/^     Running / {name = $0; next} name != "" && NF {print name; name = ""} {print}' "$waiting"
exit "$status"
