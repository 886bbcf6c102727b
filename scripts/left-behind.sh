#!/bin/sh
# Prints what a run of the tests has left: files in its folder for temporary files, and processes that still use that folder (in
# their command line or as their working directory) after half a minute's grace.
#     left-behind.sh FOLDER
set -eu
folder=$1
processes() {
    for process in /proc/[0-9]*; do
        pid=${process#/proc/}
        [ "$pid" != "$$" ] || continue
        command=$(tr '\0' ' ' <"$process/cmdline" 2>/dev/null) || continue
        case "$command $(readlink "$process/cwd" 2>/dev/null || true)" in
        *left-behind.sh*) ;;
        *"$folder"*) echo "process $pid: $command" ;;
        esac
    done
}
for _ in $(seq 30); do
    [ -n "$(processes)" ] || break
    sleep 1
done
processes
find "$folder" -mindepth 1 -maxdepth 1 -printf 'file %p, of %u, %t\n'
