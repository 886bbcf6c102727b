//! Compiles the demo's workload (nccl-sim and its ranks) so that `demo` can carry it inside the
//! binary.

use std::path::Path;

#[path = "../scenarios/nccl-sim/build_support.rs"]
mod nccl_sim;

fn main() {
    let out = std::env::var_os("OUT_DIR").unwrap_or_else(|| panic!("cargo sets OUT_DIR"));
    if let Err(error) = nccl_sim::build(Path::new("../scenarios"), Path::new(&out)) {
        panic!("the demo's workload does not compile: {error}");
    }
}
