#![no_main]
use scenarios::fuzz::{Target, start};

libfuzzer_sys::fuzz_target!(
    init: start(Target::Tokens).expect("seeds"),
    |input: &[u8]| Target::Tokens.feed(input).expect("what the target needs")
);
