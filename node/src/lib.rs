//! node

pub mod mesh;
pub mod store;
pub mod stragglers;
