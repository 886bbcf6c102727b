#!/bin/sh
# Copies what lies beside this script below PREFIX (/usr/local unless given), and nothing else: no user, no service, no network.
#     ./install.sh [PREFIX]
# What it copied stands in PREFIX/share/doc/rankmesh/FILES; to remove it: xargs rm < that file.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
prefix=${1:-/usr/local}
mkdir -p "$prefix/share/doc/rankmesh"
list=$prefix/share/doc/rankmesh/FILES
: >"$list.new"
(cd "$here" && find bin lib share -type f) | sort | while read -r file; do
    mkdir -p "$prefix/$(dirname "$file")"
    # A running program's file can be renamed over, not written to.
    cp "$here/$file" "$prefix/$file.new"
    if [ "$file" = lib/systemd/system/rankmesh.service ]; then
        sed "s|/usr/bin/rankmesh|$prefix/bin/rankmesh|" "$here/$file" >"$prefix/$file.new"
    fi
    mv "$prefix/$file.new" "$prefix/$file"
    echo "$prefix/$file" >>"$list.new"
done
echo "$list" >>"$list.new"
mv "$list.new" "$list"
echo "installed below $prefix; $prefix/bin/rankmesh check says what this host can record"
