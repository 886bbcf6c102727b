#!/bin/sh
# Licences, sources, duplicates and advisories of the dependencies, by cargo-deny and deny.toml.
#   deny.sh             all of it; fails where the advisories cannot be had
#   deny.sh --if-there  for `make lint`: says so where advisories cannot be had, or where cargo-deny is neither on PATH nor built
#                       before (scripts/tools.sh cargo-deny); whatever can be checked fails it all the same.
#                       (Licences, sources and wildcards are checked by scenarios/tests/supply.rs in any case.)
set -eu
cd "$(dirname "$0")/.."
PATH=$PATH:$PWD/target/tools/bin
if [ "${1:-}" != --if-there ]; then
    scripts/tools.sh cargo-deny
elif ! command -v cargo-deny >/dev/null; then
    echo "skipped: cargo-deny is not here (scripts/tools.sh cargo-deny builds it): advisories are not checked; licences, sources and wildcards are, by a test" >&2
    exit 0
fi
cargo deny --log-level error check bans licenses sources
# The database of advisories comes over the network; one that was fetched before is better than none.
printed=$(mktemp)
trap 'rm -f "$printed"' EXIT
if cargo deny fetch db >"$printed" 2>&1; then
    cargo deny --log-level error --offline check advisories
elif cargo deny --log-level error --offline check advisories >>"$printed" 2>&1; then
    echo "advisories ok, by the database that was fetched before: a newer one cannot be had now" >&2
elif grep -q '^error\[' "$printed"; then
    cat "$printed" >&2
    exit 1
else
    echo "the database of advisories cannot be fetched: they are not checked" >&2
    [ "${1:-}" = --if-there ] && exit 0
    tail -n 5 "$printed" >&2
    exit 1
fi
