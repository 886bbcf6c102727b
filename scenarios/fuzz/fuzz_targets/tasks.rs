#![no_main]
use scenarios::fuzz::{Target, start};

libfuzzer_sys::fuzz_target!(
    init: start(Target::Tasks).expect("seeds"),
    |input: &[u8]| Target::Tasks.feed(input).expect("what the target needs")
);
