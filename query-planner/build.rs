//! Ends the build where SQLite would be compiled without the functions that this crate promises.
//!
//! The bundled SQLite leaves its math functions and percentiles out unless `LIBSQLITE3_FLAGS` asks
//! for them, and no crate can set that variable for another. This workspace sets it in
//! `.cargo/config.toml`, which a build started elsewhere does not read: it would lose `sqrt`, `ln`,
//! `percentile` and some thirty others, and a node that lacks a function answers fewer questions
//! than its peers.

/// What the bundled SQLite has to be compiled with.
const NEEDED: [&str; 2] = ["-DSQLITE_ENABLE_MATH_FUNCTIONS", "-DSQLITE_ENABLE_PERCENTILE"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=LIBSQLITE3_FLAGS");
    let flags = std::env::var("LIBSQLITE3_FLAGS").unwrap_or_default();
    let missing: Vec<&str> =
        NEEDED.into_iter().filter(|needed| !flags.split_whitespace().any(|f| f == *needed)).collect();
    if !missing.is_empty() {
        println!(
            "cargo::error=SQLite would be built without functions that questions may call. Set LIBSQLITE3_FLAGS=\"{}\" \
             in the environment or under [env] in .cargo/config.toml of the directory you build in (missing: {})",
            NEEDED.join(" "),
            missing.join(" ")
        );
    }
}
