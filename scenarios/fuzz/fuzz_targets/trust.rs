#![no_main]
use scenarios::fuzz::{Target, start};

libfuzzer_sys::fuzz_target!(
    init: start(Target::Trust).expect("seeds"),
    |input: &[u8]| Target::Trust.feed(input).expect("what the target needs")
);
