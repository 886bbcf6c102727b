//! What `make bench NAME=store` needs: made-up collectives (`generate`), DuckDB on the same rows
//! (`duck`), and the modes in which the benchmark runs itself as another process (`child`), so that
//! memory, processor time and kills are one store's alone. The figures and their order are in
//! `bin/bench/store.rs`.

pub mod child;
pub mod duck;
pub mod generate;
