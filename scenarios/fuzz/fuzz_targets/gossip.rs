#![no_main]
use scenarios::fuzz::{Target, start};

libfuzzer_sys::fuzz_target!(
    init: start(Target::Gossip).expect("seeds"),
    |input: &[u8]| Target::Gossip.feed(input).expect("what the target needs")
);
