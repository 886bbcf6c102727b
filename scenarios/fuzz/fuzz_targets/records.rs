#![no_main]
use scenarios::fuzz::{Target, start};

libfuzzer_sys::fuzz_target!(
    init: start(Target::Records).expect("seeds"),
    |input: &[u8]| Target::Records.feed(input).expect("what the target needs")
);
