#!/bin/sh
# What idle agents of these binaries take: resident memory and what of it is written (the rest is the binary, which the page cache has) after a minute, three of each in turn. Fails where the
# first takes more than 5 % more private memory than the second. usage: idle-memory.sh BINARY BARE-BINARY
set -eu
at=$(mktemp -d)
pid=
trap 'if [ -n "$pid" ]; then kill "$pid"; fi; rm -rf "$at"' EXIT
private() { awk '/^Private_Dirty:/ { print $2 }' "/proc/$1/smaps_rollup"; }
measure() { # BINARY NAME
    rm -rf "$at/agent"
    mkdir "$at/agent"
    "$1" up --name idle --listen 127.0.0.1:0 --identity "$at/agent/id" --socket "$at/agent/s" --store "$at/agent/t.db" >"$at/agent/log" 2>&1 &
    pid=$!
    sleep "${SECONDS_IDLE:-60}"
    rss=$(awk '/^VmRSS:/ { print $2 }' "/proc/$pid/status")
    dirty=$(private "$pid")
    kill "$pid"
    wait "$pid" 2>/dev/null || true
    pid=
    echo "$2 $rss $dirty" >>"$at/all"
}
for _ in 1 2 3; do
    measure "$1" whole
    measure "$2" bare
done
median() { awk -v name="$1" -v column="$2" '$1 == name { print $column }' "$at/all" | sort -n | sed -n 2p; }
whole=$(median whole 3)
bare=$(median bare 3)
echo "figure idle.rss $(median whole 2) KiB aim <= $(median bare 2)"
echo "figure idle.private $whole KiB aim <= $((bare * 105 / 100))"
[ "$whole" -le $((bare * 105 / 100)) ]
