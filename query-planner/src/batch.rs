//! Values and column batches: the form in which rows travel between nodes and through the merge.

use rusqlite::ToSql;
use rusqlite::types::{ToSqlOutput, ValueRef};
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
    Text(#[serde(with = "whole_bytes")] Vec<u8>),
    /// Bytes.
    Blob(#[serde(with = "whole_bytes")] Vec<u8>),
}

/// Byte vectors as one piece: serde would walk them byte by byte. The encoding is the same.
mod whole_bytes {
    use std::fmt;

    use serde::de::{SeqAccess, Visitor};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;
        impl<'de> Visitor<'de> for Bytes {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }

            fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
                Ok(bytes)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<u8>, A::Error> {
                let mut bytes = Vec::new();
                while let Some(byte) = items.next_element()? {
                    bytes.push(byte);
                }
                Ok(bytes)
            }
        }
        from.deserialize_byte_buf(Bytes)
    }
}

impl Value {
    /// Approximate memory of the value in bytes.
    pub fn size_bytes(&self) -> u64 {
        let extra = match self {
            Value::Null | Value::Integer(_) | Value::Real(_) => 0,
            Value::Text(bytes) | Value::Blob(bytes) => bytes.len(),
        };
        8 + extra as u64
    }

    /// A value as SQLite holds it.
    #[must_use]
    pub fn from_sqlite(value: ValueRef<'_>) -> Value {
        match value {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(value) => Value::Integer(value),
            ValueRef::Real(value) => Value::Real(value),
            ValueRef::Text(bytes) => Value::Text(bytes.to_vec()),
            ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
        }
    }
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Value::Null => ValueRef::Null,
            Value::Integer(value) => ValueRef::Integer(*value),
            Value::Real(value) => ValueRef::Real(*value),
            Value::Text(bytes) => ValueRef::Text(bytes),
            Value::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

/// Some rows of one node part, column by column. Every column has `rows` values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct Batch {
    /// Number of rows.
    pub rows: u32,
    /// One vector of `rows` values for each column of the part.
    pub columns: Vec<Vec<Value>>,
}

impl Batch {
    /// Approximate memory in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.columns.iter().flatten().map(Value::size_bytes).sum()
    }

    /// Whether the batch is whole: `width` columns, each of `rows` values.
    pub(crate) fn is_whole(&self, width: usize) -> bool {
        self.columns.len() == width && self.columns.iter().all(|column| column.len() == self.rows as usize)
    }
}
