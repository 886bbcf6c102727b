#!/bin/sh
# What `make fuzz` has cargo compile our crates with (RUSTC_WORKSPACE_WRAPPER): branches are counted, overflow and assertions
# checked. Not in build scripts, nor in the fuzzer's loop.
rustc=$1
shift
case " $* " in
*" --crate-name build_script_build "* | *" --crate-name fuzz "* | *" --print"* | *" -vV "*) exec "$rustc" "$@" ;;
esac
exec "$rustc" "$@" -Cdebug-assertions=on -Coverflow-checks=on -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=3 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
