#![no_main]
use scenarios::fuzz::{Target, start};

libfuzzer_sys::fuzz_target!(
    init: start(Target::Catalogs).expect("seeds"),
    |input: &[u8]| Target::Catalogs.feed(input).expect("what the target needs")
);
