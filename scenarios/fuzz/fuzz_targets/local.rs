#![no_main]
use scenarios::fuzz::{Target, start};

libfuzzer_sys::fuzz_target!(
    init: start(Target::Local).expect("seeds"),
    |input: &[u8]| Target::Local.feed(input).expect("what the target needs")
);
