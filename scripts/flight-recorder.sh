#!/usr/bin/env bash
# Flight recorder dumps that the PyTorch of PyPI makes over gloo, on the CPU, and the report on each:
# `flight-recorder.sh VERSION...`. PyPI's PyTorch for x86-64 links to CUDA's libraries; empty
# stand-ins take their place. About 550 MB are loaded and 1.4 GB unpacked a version; deleted at the
# end. With KEEP=DIR the dumps of the first version are left there, as node/verdicts/recorded/data
# has them.
set -euo pipefail
cd "$(dirname "$0")/.."
here=scripts/flight-recorder
dir=target/flight-recorder
rankmesh=${RANKMESH:-target/debug/rankmesh}
declare -A says=(
    [healthy]='nothing hangs in these dumps: all 40 collectives'
    [skip]='Rank 2 has not entered all_reduce, the 6th collective'
    [extra]='rank 0 waits in all_reduce, the 6th collective'
    [size]='rank 1: all_reduce, Float, 240 bytes'
    [function]='rank 3: broadcast'
    [receive]='Rank 1 has not entered barrier, the 6th collective'
    [exchange]='Rank 2 has not entered barrier, the 6th collective'
    [subgroup]='Rank 1 has not entered all_reduce, the 2nd collective of communicator 1'
)
failed=0
for version in "${@:-2.15.0}"; do
    rm -rf "$dir"
    mkdir -p "$dir"
    python3 -m venv "$dir/venv"
    "$dir/venv/bin/pip" install -q --no-deps "torch==$version"
    "$dir/venv/bin/pip" install -q typing_extensions filelock sympy mpmath networkx jinja2 MarkupSafe fsspec numpy
    base=$("$dir/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    python3 "$here/stand_ins.py" "$base" "$dir/stand-ins" >"$dir/stand-ins.log"
    for case in "${!says[@]}"; do
        LD_LIBRARY_PATH=$dir/stand-ins timeout 300 "$dir/venv/bin/python" "$here/job.py" "$case" "$dir/dumps/$case" \
            >"$dir/$case.log" 2>&1 || { echo "torch $version, $case: the job failed"; tail -5 "$dir/$case.log"; failed=1; continue; }
        for form in pickle json; do
            report=$("$rankmesh" stragglers --recorded "$dir/dumps/$case/$form" | tr -s ' \n' ' ')
            if [[ $report == *"${says[$case]}"* ]]; then
                echo "torch $version, $case, $form: ok"
            else
                echo "torch $version, $case, $form: expected '${says[$case]}', got: $report"
                failed=1
            fi
        done
        if [[ -n ${KEEP:-} && $version == "${1:-2.15.0}" ]]; then
            mkdir -p "$KEEP/$case"
            cp "$dir/dumps/$case"/*/* "$KEEP/$case/"
        fi
    done
    rm -rf "$dir"
done
exit $failed
