#!/bin/sh
# Whether an ELF file starts where glibc is so old, and needs no library that a bare system lacks.
#     check-symbols.sh FILE GLIBC
set -eu
file=$1
most=$2
newest=$(objdump -T "$file" | grep -o 'GLIBC_[0-9][0-9.]*' | cut -d_ -f2 | sort -uV | tail -n 1)
if [ "$(printf '%s\n%s\n' "${newest:-0}" "$most" | sort -V | tail -n 1)" != "$most" ]; then
    echo "$file needs glibc $newest, later than $most:" >&2
    objdump -T "$file" | grep "GLIBC_$newest" >&2
    exit 1
fi
strange=$(objdump -p "$file" | sed -n 's/^ *NEEDED *//p' | grep -vE '^(libc|libm|libdl|libpthread|librt|ld-linux-x86-64|ld-linux-aarch64)\.so' || true)
if [ -n "$strange" ]; then
    echo "$file needs libraries that are not everywhere: $strange" >&2
    exit 1
fi
echo "$file: glibc ${newest:-any} ($most allowed), nothing but glibc" >&2
