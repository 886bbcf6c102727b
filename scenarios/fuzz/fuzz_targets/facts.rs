#![no_main]
use scenarios::fuzz::{Target, start};

libfuzzer_sys::fuzz_target!(
    init: start(Target::Facts).expect("seeds"),
    |input: &[u8]| Target::Facts.feed(input).expect("what the target needs")
);
