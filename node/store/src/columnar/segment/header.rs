//! Owns what a segment's header says of a column.

use serde::{Deserialize, Serialize};

use super::super::Kind;
use super::super::encode::{Form, Scalar};

/// A column of a segment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ColumnHeader {
    pub(in super::super) name: String,
    pub(in super::super) kind: Kind,
    pub(super) form: Form,
    /// Smallest and greatest integer.
    pub(in super::super) range: Option<(i64, i64)>,
    pub(super) bytes: u32,
    pub(super) check: u32,
}

impl ColumnHeader {
    /// The column's one value, when it has no other.
    pub(in super::super) fn constant(&self) -> Option<&Scalar> {
        match &self.form {
            Form::Constant(value) => Some(value),
            Form::Dictionary { .. } | Form::Packed { .. } => None,
        }
    }

    /// Whether a value is NULL.
    pub(in super::super) fn has_null(&self) -> bool {
        match &self.form {
            Form::Constant(value) => *value == Scalar::Null,
            Form::Dictionary { has_null, .. } | Form::Packed { has_null, .. } => *has_null,
        }
    }
}
