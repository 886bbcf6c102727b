#!/usr/bin/env bash
# Runs a command and lets it stand still at random moments, with all that it started, for half a second to six seconds: as a
# virtual machine that is paused, or a host with no processor to spare. `make check NAME=standstill` runs every test program so.
# Exit status: the command's. What it stopped and when goes to stderr where the command fails.
set -u
if [ $# -eq 0 ]; then
    echo "usage: $0 COMMAND [ARGUMENT...]" >&2
    exit 2
fi
mark="STANDSTILL=$$.$RANDOM$RANDOM"
env "$mark" "$@" &
command=$!
trap 'kill "$command" 2>/dev/null' INT TERM

# Everything with the mark in its environment that runs, which leaves alone what the command itself has stopped.
running() {
    local environ pid state
    for environ in /proc/[0-9]*/environ; do
        pid=${environ#/proc/}
        pid=${pid%/environ}
        grep -qzFx "$mark" "$environ" 2>/dev/null || continue
        state=$(sed -n 's/^State:\t\(.\).*/\1/p' "/proc/$pid/status" 2>/dev/null)
        case $state in '' | T | t | Z) ;; *) echo "$pid" ;; esac
    done
}

# Waits so many tenths of a second; fails when the command has ended.
pause() {
    local tenth
    for ((tenth = 0; tenth < $1; tenth++)); do
        kill -0 "$command" 2>/dev/null || return 1
        sleep 0.1
    done
}

pauses=(3 10 20 40 80 160)
lengths=(0.5 1 2 3 6)
began=$SECONDS
stood=()
while pause "${pauses[RANDOM % ${#pauses[@]}]}"; do
    length=${lengths[RANDOM % ${#lengths[@]}]}
    stopped=$(running)
    [ -n "$stopped" ] || continue
    # shellcheck disable=SC2086 # one word for each process
    kill -STOP $stopped 2>/dev/null
    sleep "$length"
    # shellcheck disable=SC2086
    kill -CONT $stopped 2>/dev/null
    stood+=("${length}s until $((SECONDS - began))s")
done
wait "$command"
status=$?
if [ "$status" -ne 0 ]; then
    echo "standstill: $1 ended with $status; it stood still for ${stood[*]:-no time}" >&2
fi
exit "$status"
