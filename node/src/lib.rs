//! node

pub mod store;
pub mod stragglers;
