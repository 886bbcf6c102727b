#!/usr/bin/env bash
# Runs a test program where it belongs to this lane, and does nothing where it does not. Runs of `cargo test`, one for each lane,
# run every program once: at the same time those that mostly wait (named here, by what they take of a core), live verdicts on
# ranks (one after the other: those of two jobs at once, on a few cores, are of ranks that have no CPU) and all others; and
# afterwards alone those whose ranks take all the CPU that there is. Prints how long each took, and its share of a core: what
# takes little belongs to those that wait. Of what passing tests print, what they skip is shown. TERMINAL, where it is set, is told
# how far all lanes are: each program is a line of the file PROGRESS, of PROGRAMS in all.
#     LANE=waiting|live|rest|alone lane.sh PROGRAM [ARGUMENT...]
set -euo pipefail
name=$(basename "$1")
case ${name%-*} in
# certs to scenarios, in the order of the workspace: 1 to 30 % of a core, the last three of the first two lines half of one.
cluster | cuda | host_signals | nccl | starved | verbs | mesh | archive | serve | slurm) lane=waiting ;;
deadlines | harm | page | top | via) lane=waiting ;;
chaos | hostile_member | hosts | slt | tree | trust) lane=waiting ;;
enqueue | explain_causes | live | live_causes | point_to_point | slices | standing | tail) lane=live ;;
hangs) lane=alone ;;
*) lane=rest ;;
esac
[ "$lane" = "${LANE:?say which lane}" ] || exit 0
began=$(date +%s)
status=0
# (Through a file: what a test leaves behind would hold a pipe open.)
printed=$(mktemp)
trap 'rm -f "$printed"' EXIT
"$@" --show-output >"$printed" 2>&1 || status=$?
awk '
    /^successes:$/ {passed = 1}
    /^failures:$/ || /^test result:/ {passed = 0}
    !passed || /^skipped:/
' "$printed"
took=$(($(date +%s) - began))
# CPU of all processes that ended under this shell, in hundredths of a second (proc_pid_stat(5): cutime and cstime).
read -r stat <"/proc/$$/stat"
# shellcheck disable=SC2086 # fields
set -- ${stat##*) }
if [ -n "${TERMINAL:-}" ]; then
    echo "$name" >>"$PROGRESS"
    echo "$(wc -l <"$PROGRESS") of $PROGRAMS test programs are done: ${name%-*}, $took s" >"$TERMINAL" || true
fi
echo "took: $took s, ${name%-*} ($lane, $(((${14} + ${15}) / (took > 0 ? took : 1))) % of a core)"
exit "$status"
