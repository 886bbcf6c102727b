#!/bin/sh
# Licences, sources, duplicates and advisories of the dependencies, by cargo-deny and deny.toml.
#   deny.sh             fails without cargo-deny, and where the advisories cannot be had
#   deny.sh --if-there  for `make lint`: says so instead, and still fails on all that can be checked. (Licences and sources are
#                       looked at by scenarios/tests/supply.rs in any case.)
set -eu
cd "$(dirname "$0")/.."
if ! command -v cargo-deny >/dev/null; then
    echo "skipped: cargo-deny is not here (cargo install --locked cargo-deny): advisories are not checked" >&2
    [ "${1:-}" = --if-there ] && exit 0
    exit 1
fi
cargo deny --log-level error check bans licenses sources
# The database of advisories comes over the network; one that was fetched before is better than none.
said=$(mktemp)
trap 'rm -f "$said"' EXIT
if cargo deny fetch db >"$said" 2>&1; then
    cargo deny --log-level error --offline check advisories
elif cargo deny --log-level error --offline check advisories >>"$said" 2>&1; then
    echo "advisories ok, by the database that was fetched before: a newer one cannot be had now" >&2
elif grep -q '^error\[' "$said"; then
    cat "$said" >&2
    exit 1
else
    echo "the database of advisories cannot be fetched: they are not checked" >&2
    [ "${1:-}" = --if-there ] && exit 0
    tail -n 5 "$said" >&2
    exit 1
fi
