//! Rows of stores pushed into a ClickHouse server that people already have, over HTTP. `client` speaks
//! to the server, `schema` is the script that makes its tables, `cursor` what was pushed, `push` pushes.

mod client;
mod cursor;
mod push;
mod schema;

pub use client::{Client, ClientError, Credentials};
pub use push::{PushError, Pushed, push};
pub use schema::script;
