#![no_main]
use scenarios::fuzz::{Target, start};

libfuzzer_sys::fuzz_target!(
    init: start(Target::Csr).expect("seeds"),
    |input: &[u8]| Target::Csr.feed(input).expect("what the target needs")
);
