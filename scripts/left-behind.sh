#!/bin/sh
# Prints the processes that a run of the tests has left: those that still use its folder for temporary files (in their command
# line or as their working directory) after half a minute's grace. (The folder itself is removed by whoever made it.)
#     left-behind.sh FOLDER
set -eu
folder=$1
processes() {
    for process in /proc/[0-9]*; do
        pid=${process#/proc/}
        [ "$pid" != "$$" ] || continue
        command=$({ tr '\0' ' ' <"$process/cmdline"; } 2>/dev/null) || continue
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
