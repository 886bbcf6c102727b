#![no_main]
use scenarios::fuzz::{Target, start};

libfuzzer_sys::fuzz_target!(
    init: start(Target::Verdicts).expect("seeds"),
    |input: &[u8]| Target::Verdicts.feed(input).expect("what the target needs")
);
