//! Which branches an input took: counters that the compiler puts into our crates when they are
//! built for fuzzing, and nothing in any other build. What is kept because of it is
//! [`super::Pool`]'s.
//!
//! `scripts/fuzz-rustc.sh` builds with LLVM's SanitizerCoverage, inline 8-bit counters
//! (clang.llvm.org/docs/SanitizerCoverage.html): each edge has a byte, which wraps; before `main`
//! the program is told where they lie. Buckets of counts are those of AFL.

use std::sync::{Mutex, PoisonError};

/// Start and end of the counters of each linked object.
static REGIONS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// Called by what the compiler put in, before `main`.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, end: *mut u8) {
    let region = (start as usize, end as usize);
    let mut regions = REGIONS.lock().unwrap_or_else(PoisonError::into_inner);
    if region.0 < region.1 && !regions.contains(&region) {
        regions.push(region);
    }
}

/// How many edges are counted; 0 where this was not built for fuzzing.
#[must_use]
pub fn edges() -> usize {
    REGIONS.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(start, end)| end - start).sum()
}

/// What was taken since the last call, and forgets it: edge times 8 plus the bucket of its count,
/// in order.
pub fn taken() -> Vec<u32> {
    let mut taken = Vec::new();
    let mut edge = 0_u32;
    for &(start, end) in REGIONS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        for address in start..end {
            let counter = std::ptr::with_exposed_provenance_mut::<u8>(address);
            // SAFETY: the compiler's own table of bytes, which lives as long as the program. Code
            // on other threads may count at the same time; volatile byte reads and writes can then
            // lose a count, nothing more.
            let count = unsafe { counter.read_volatile() };
            if count != 0 {
                // SAFETY: as above.
                unsafe { counter.write_volatile(0) };
                taken.push(edge * 8 + bucket(count));
            }
            edge += 1;
        }
    }
    taken
}

/// 1, 2, 3, 4-7, 8-15, 16-31, 32-127, more.
fn bucket(count: u8) -> u32 {
    match count {
        0 | 1 => 0,
        2 => 1,
        3 => 2,
        4..=7 => 3,
        8..=15 => 4,
        16..=31 => 5,
        32..=127 => 6,
        128.. => 7,
    }
}
