#![no_main]
use scenarios::fuzz::{Target, start};

libfuzzer_sys::fuzz_target!(
    init: start(Target::ForeignDb).expect("seeds"),
    |input: &[u8]| Target::ForeignDb.feed(input).expect("what the target needs")
);
