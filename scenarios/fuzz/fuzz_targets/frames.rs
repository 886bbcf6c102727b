#![no_main]
use scenarios::fuzz::{Target, start};

libfuzzer_sys::fuzz_target!(
    init: start(Target::Frames).expect("seeds"),
    |input: &[u8]| Target::Frames.feed(input).expect("what the target needs")
);
