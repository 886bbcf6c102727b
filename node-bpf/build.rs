//! Compiles the BPF programs with clang for the target's argument-passing convention. libbpf-cargo supplies libbpf's
//! headers; the object is embedded by src/loader.rs.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    println!("cargo:rerun-if-changed=src/bpf");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("capture.bpf.o");
    // v3: atomics that return the old value (Linux 5.12).
    let built =
        SkeletonBuilder::new().source("src/bpf/capture.bpf.c").obj(&out).clang_args(["-mcpu=v3", "-Wall"]).build();
    if let Err(error) = built {
        eprintln!("node-bpf: the BPF programs do not compile: {error:?}");
        eprintln!("node-bpf: needed: apt-get install clang libelf-dev zlib1g-dev (clang 14 or later)");
        std::process::exit(1);
    }
}
