//! Values and column batches: the form in which rows travel between nodes and through the merge.

use serde::{Deserialize, Serialize};

/// One SQLite value, kept exactly: integers are 64-bit, text and blobs are raw bytes (SQLite text may hold NULs and
/// invalid UTF-8).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Value {
    /// SQL NULL.
    Null,
    /// 64-bit signed integer.
    Integer(i64),
    /// IEEE 754 double (never NaN: SQLite turns NaN into NULL).
    Real(f64),
    /// Text as SQLite holds it, UTF-8 by convention.
    Text(Vec<u8>),
    /// Bytes.
    Blob(Vec<u8>),
}

/// Some rows of one node part, column by column. Every column has `rows` values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct Batch {
    /// Number of rows.
    pub rows: u32,
    /// One vector of `rows` values for each column of the part.
    pub columns: Vec<Vec<Value>>,
}
