//! One value of a column: owned, or as it is read.

use serde::{Deserialize, Serialize};

/// One value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Scalar {
    /// NULL.
    Null,
    /// Integer.
    Integer(i64),
    /// Text.
    Text(Vec<u8>),
}

impl Scalar {
    /// As a cell.
    pub(crate) fn cell(&self) -> Cell<'_> {
        match self {
            Self::Null => Cell::Null,
            Self::Integer(value) => Cell::Integer(*value),
            Self::Text(text) => Cell::Text(text),
        }
    }
}

/// One cell as it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cell<'a> {
    /// NULL.
    Null,
    /// Integer.
    Integer(i64),
    /// Text.
    Text(&'a [u8]),
}

impl Cell<'_> {
    /// Bytes of a text.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Null | Self::Integer(_) => 0,
            Self::Text(text) => text.len(),
        }
    }
}
