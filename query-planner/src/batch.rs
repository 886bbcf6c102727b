//! Values and column batches: the form in which rows travel between nodes and through the merge.

use rusqlite::ToSql;
use rusqlite::types::{ToSqlOutput, ValueRef};
use serde::{Deserialize, Serialize};

/// One SQLite value, kept exactly: integers are 64-bit, text and blobs are raw bytes (SQLite text
/// may hold NULs and invalid UTF-8).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Value {
    /// SQL NULL.
    Null,
    /// 64-bit signed integer.
    Integer(i64),
    /// IEEE 754 double (never NaN: SQLite turns NaN into NULL).
    Real(f64),
    /// Text as SQLite stores it, UTF-8 by convention.
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

/// What the allocator adds to a piece of memory, bytes.
const ALLOCATION_BYTES: usize = 16;

impl Value {
    /// Memory that the value takes, bytes: as much for NULL as for a number; for text and blobs
    /// also their bytes.
    pub fn size_bytes(&self) -> u64 {
        (size_of::<Value>() + self.heap_bytes()) as u64
    }

    fn heap_bytes(&self) -> usize {
        match self {
            Value::Null | Value::Integer(_) | Value::Real(_) => 0,
            Value::Text(bytes) | Value::Blob(bytes) if bytes.is_empty() => 0,
            Value::Text(bytes) | Value::Blob(bytes) => bytes.len() + ALLOCATION_BYTES,
        }
    }

    /// How much data it is, bytes, as budgets count it: 8; for text and blobs also their length.
    pub fn data_bytes(&self) -> u64 {
        let extra = match self {
            Value::Null | Value::Integer(_) | Value::Real(_) => 0,
            Value::Text(bytes) | Value::Blob(bytes) => bytes.len(),
        };
        8 + extra as u64
    }

    /// A value as SQLite stores it.
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
    #[serde(deserialize_with = "decode::columns")]
    pub columns: Vec<Vec<Value>>,
}

impl Batch {
    /// Values of one batch that can be read: 32 MiB of memory, and their text. What has more has to
    /// be cut in two.
    pub const MOST_VALUES: usize = 1 << 20;

    /// Memory that the rows take, bytes.
    pub fn size_bytes(&self) -> u64 {
        self.columns.iter().flatten().map(Value::size_bytes).sum()
    }

    /// How much data the rows are, bytes, as budgets count it.
    pub fn data_bytes(&self) -> u64 {
        self.columns.iter().flatten().map(Value::data_bytes).sum()
    }

    /// Whether the batch is complete: `width` columns, each of `rows` values.
    pub(crate) fn is_well_formed(&self, width: usize) -> bool {
        self.columns.len() == width && self.columns.iter().all(|column| column.len() == self.rows as usize)
    }
}

/// Reading columns that another node wrote. A NULL is one byte there and 32 here, so what is
/// declared is looked at before it is read, and counts as the memory of the question that the
/// thread works for.
mod decode {
    use std::fmt;

    use serde::Deserializer;
    use serde::de::{DeserializeSeed, Error, SeqAccess, Visitor};

    use super::{Batch, Value};
    use crate::memory::{Reservation, refused_here};

    /// More than SQLite allows in a result.
    const MOST_COLUMNS: usize = 2_000;
    /// Room that a column is given before its values have come.
    const FIRST_VALUES: usize = 4_096;

    pub(super) fn columns<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Vec<Value>>, D::Error> {
        from.deserialize_seq(Columns)
    }

    struct Columns;

    impl<'de> Visitor<'de> for Columns {
        type Value = Vec<Vec<Value>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("columns of values")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            let mut columns = Vec::new();
            let mut read = Read::default();
            while let Some(column) = items.next_element_seed(&mut read)? {
                if columns.len() == MOST_COLUMNS {
                    return Err(A::Error::custom(format!("rows of more than {MOST_COLUMNS} columns")));
                }
                columns.push(column);
            }
            Ok(columns)
        }
    }

    /// What has been read of one batch.
    #[derive(Default)]
    struct Read {
        values: usize,
        heap_bytes: usize,
        reservation: Reservation,
    }

    impl Read {
        fn hold<E: Error>(&mut self) -> Result<(), E> {
            if self.values > Batch::MOST_VALUES {
                return Err(E::custom(format!("more than {} values in one batch", Batch::MOST_VALUES)));
            }
            if self.reservation.try_resize(self.values * size_of::<Value>() + self.heap_bytes) {
                return Ok(());
            }
            let why = refused_here();
            Err(E::custom(why.map_or_else(|| "no memory for a batch".to_owned(), |why| why.to_string())))
        }
    }

    impl<'de> DeserializeSeed<'de> for &mut Read {
        type Value = Vec<Value>;

        fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
            from.deserialize_seq(self)
        }
    }

    impl<'de> Visitor<'de> for &mut Read {
        type Value = Vec<Value>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a column of values")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            let declared = items.size_hint().unwrap_or(0);
            self.values = self.values.saturating_add(declared);
            self.hold()?;
            let mut column = Vec::with_capacity(declared.min(FIRST_VALUES));
            while let Some(value) = items.next_element::<Value>()? {
                self.heap_bytes += value.heap_bytes();
                column.push(value);
            }
            // Where the format does not give their number.
            self.values += column.len().saturating_sub(declared);
            self.hold()?;
            Ok(column)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> impl bincode::config::Config {
        bincode::config::standard()
    }

    fn decoded(bytes: &[u8]) -> Result<Batch, String> {
        let read = bincode::serde::decode_from_slice::<Batch, _>(bytes, config());
        read.map(|(batch, _)| batch).map_err(|error| error.to_string())
    }

    #[test]
    fn what_declares_more_values_than_a_batch_may_have_is_not_read() {
        assert_eq!(size_of::<Value>(), 32);
        let column = vec![Value::Null; 1_000];
        let columns = |many: usize| Batch { rows: 1_000, columns: vec![column.clone(); many] };
        let encoded = |batch: &Batch| bincode::serde::encode_to_vec(batch, config()).expect("encoded");
        let fits = columns(Batch::MOST_VALUES / 1_000);
        assert_eq!(decoded(&encoded(&fits)).as_ref(), Ok(&fits));
        let more = decoded(&encoded(&columns(Batch::MOST_VALUES / 1_000 + 1))).expect_err("too many values");
        assert!(more.contains("more than 1048576 values"), "{more}");
        let wide = Batch { rows: 0, columns: vec![Vec::new(); 2_001] };
        assert!(decoded(&encoded(&wide)).expect_err("too wide").contains("more than 2000 columns"));
        // A column that declares two thousand million values, and has none.
        let claims = [&encoded(&Batch { rows: 1, columns: vec![] })[..1], &[1, 252, 0, 0, 0, 128]].concat();
        assert!(decoded(&claims).expect_err("a claim").contains("more than 1048576 values"));
    }

    #[test]
    fn what_is_read_counts_as_the_memory_of_the_thread_s_question() {
        let text = |bytes: usize| Value::Text(vec![b'a'; bytes]);
        let batch = Batch { rows: 1_000, columns: vec![vec![text(5_000); 1_000]] };
        let bytes = bincode::serde::encode_to_vec(&batch, config()).expect("encoded");
        {
            let _cap = crate::memory::cap(2 << 20);
            let refused = decoded(&bytes).expect_err("5 MB of text");
            assert!(refused.contains("more memory than one may have"), "{refused}");
        }
        let _cap = crate::memory::cap(8 << 20);
        assert_eq!(decoded(&bytes), Ok(batch));
    }
}
