//! Tests of all front ends of `rankmesh serve` together: they open no connection except to the
//! agent and to receivers that the user names, they use TLS beyond this host, they report an agent of
//! an earlier release, and let nodes wait for who does not read.
#![cfg(all(feature = "mcp", feature = "otlp", feature = "postgres"))]

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod connections;
mod otlp;
mod tls;
mod unread;
