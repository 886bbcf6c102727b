#!/bin/sh
# Fails where a binary, without its symbols, is larger than it may be. usage: check-size.sh BINARY [MB]
set -eu
binary=${1:?check-size.sh BINARY [MB]}
most=${2:-45}
bare=$(mktemp)
trap 'rm -f "$bare"' EXIT
strip -o "$bare" "$binary"
bytes=$(wc -c < "$bare")
echo "figure binary.stripped $((bytes / 1000)) kB aim <= ${most}000"
if [ "$bytes" -gt $((most * 1000000)) ]; then
    echo "check-size.sh: $binary has $bytes bytes stripped, more than $most MB" >&2
    exit 1
fi
