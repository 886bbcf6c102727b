#!/bin/sh
# `make fuzz`: each target of scenarios/fuzz under libFuzzer for SECONDS, from its valid inputs and its saved ones.
# What took a new branch is kept in target/fuzz/TARGET; an input that does harm (a panic, a failed assertion, 60 s, 2 GiB) is saved
# in scenarios/fuzz/corpus/TARGET, where a test replays it for ever, and ends the run. On stable Rust: the flags are those that
# cargo-fuzz gives, without the sanitizers that need a nightly compiler, and without `cfg(fuzzing)`, which turns off checks in some libraries.
#     scripts/fuzz.sh SECONDS [TARGET…]
#     FUZZ_FLAGS="-seed=7" adds libFuzzer's own flags
set -eu
cd "$(dirname "$0")/.."
seconds=$1
shift
host=$(rustc -vV | sed -n 's/^host: //p')
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
CARGO_TARGET_DIR=target/fuzz-build ${CARGO:-cargo} build --locked --release --target "$host" --manifest-path scenarios/fuzz/Cargo.toml
[ $# -gt 0 ] || set -- $(ls scenarios/fuzz/fuzz_targets | sed 's/\.rs$//')
for target; do
    kept=target/fuzz/$target
    saved=scenarios/fuzz/corpus/$target
    mkdir -p "$kept" "$saved"
    echo "fuzz $target"
    # shellcheck disable=SC2086
    FUZZ_SEEDS=$kept "target/fuzz-build/$host/release/$target" -max_total_time="$seconds" -max_len=65536 -timeout=60 -print_final_stats=1 \
        -dict=scenarios/fuzz/words.dict -artifact_prefix="$saved/found-" ${FUZZ_FLAGS:-} "$kept" "$saved"
done
