#![no_main]
use scenarios::fuzz::{Target, start};

libfuzzer_sys::fuzz_target!(
    init: start(Target::GossipStates).expect("seeds"),
    |input: &[u8]| Target::GossipStates.feed(input).expect("what the target needs")
);
