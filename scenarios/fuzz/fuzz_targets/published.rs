#![no_main]
use scenarios::fuzz::{Target, start};

libfuzzer_sys::fuzz_target!(
    init: start(Target::Published).expect("seeds"),
    |input: &[u8]| Target::Published.feed(input).expect("what the target needs")
);
