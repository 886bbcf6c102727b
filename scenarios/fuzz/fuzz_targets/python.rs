#![no_main]
use scenarios::fuzz::{Target, start};

libfuzzer_sys::fuzz_target!(
    init: start(Target::Python).expect("seeds"),
    |input: &[u8]| Target::Python.feed(input).expect("what the target needs")
);
