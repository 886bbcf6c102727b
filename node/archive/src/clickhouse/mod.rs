//! Pushes rows of stores into an existing ClickHouse server, over HTTP. `client` sends requests,
//! `schema` is the script that makes the tables, `cursor` records which rows were pushed, `push`
//! pushes.

mod client;
mod cursor;
mod push;
mod schema;

pub use client::{Client, ClientError, Credentials};
pub use push::{PushError, Pushed, push};
pub use schema::script;
