//! Partial aggregates: how the rows of several nodes for one fragment become those of one. A value
//! of fixed shape, not SQL: it may come from another node. What is done by it: `combine.rs`.

use serde::{Deserialize, Serialize};

use crate::batch::Value;
use crate::functions;

/// How the rows of one fragment combine, column by column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Combine {
    /// The fragment's columns, in order.
    pub columns: Vec<CombinedColumn>,
}

/// A column of a fragment whose rows combine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CombinedColumn {
    /// What becomes of its values.
    pub how: How,
    /// Affinity by which its values compare; empty for none.
    pub affinity: String,
    /// Collating sequence by which they do.
    pub collation: String,
}

/// What becomes of the values of a column in one group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    /// They are the group: rows with equal keys are one.
    Key,
    /// Counts, added.
    Count,
    /// States of sums, added exactly.
    Sum,
    /// The least.
    Min,
    /// The greatest.
    Max,
    /// States that this function of the node made, merged.
    State(String),
}

impl How {
    /// Whether a value can be such a partial aggregate.
    pub(crate) fn check(&self, value: &Value) -> Result<(), String> {
        let is_sound = match (self, value) {
            (How::Key | How::Min | How::Max, _) => true,
            (How::Count, Value::Integer(count)) => *count >= 0,
            (How::Sum, Value::Blob(bytes)) => functions::is_sum(bytes),
            (How::State(state), Value::Blob(bytes)) => functions::check_state(state, bytes)?,
            (How::Count | How::Sum | How::State(_), _) => false,
        };
        if is_sound { Ok(()) } else { Err("a damaged partial aggregate".to_owned()) }
    }
}

impl Combine {
    /// What each column is, as [`crate::Fragment::partials`] has it.
    pub fn partials(&self) -> Vec<Option<How>> {
        self.columns.iter().map(|column| Some(column.how.clone())).collect()
    }
}
