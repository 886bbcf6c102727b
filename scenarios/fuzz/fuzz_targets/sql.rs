#![no_main]
use scenarios::fuzz::{Target, start};

libfuzzer_sys::fuzz_target!(
    init: start(Target::Sql).expect("seeds"),
    |input: &[u8]| Target::Sql.feed(input).expect("what the target needs")
);
