#![no_main]
use scenarios::fuzz::{Target, start};

libfuzzer_sys::fuzz_target!(
    init: start(Target::Elf).expect("seeds"),
    |input: &[u8]| Target::Elf.feed(input).expect("what the target needs")
);
