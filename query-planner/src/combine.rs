//! The middle of a tree of nodes: rows that several nodes shipped for one part become the rows that a single node with all
//! their rows would have shipped, so that whoever asked merges as if there were fewer nodes. It works for the partial
//! states of groups (`rules/aggregate.rs`), whose merging is associative.
//!
//! How a part's rows combine is a value of fixed shape, not SQL: it comes from another node.

use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use crate::api::{NodeError, Stop};
use crate::batch::{Batch, Value};
use crate::check::quoted;
use crate::exec::message;
use crate::functions;
use crate::merge_pool::MergePool;
use crate::plan::{MergeColumn, MergeTable};
use crate::run::{insert, insert_sql};

/// The table that the rows go into.
const TABLE: &str = "partials";
/// More columns than SQLite allows in a table.
const MOST_COLUMNS: usize = 2_000;
const COLLATIONS: [&str; 3] = ["BINARY", "NOCASE", "RTRIM"];
const AFFINITIES: [&str; 5] = ["", "TEXT", "NUM", "INT", "REAL"];

/// How the rows of one part combine, column by column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Combine {
    /// The part's columns, in order.
    pub columns: Vec<CombinedColumn>,
}

/// A column of a part whose rows combine.
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

impl Combine {
    /// One row, made of the rows of `batches`, for each group in them.
    ///
    /// # Errors
    /// The rows are not of this shape, a state in them is damaged, or `stop` fired.
    pub fn combined(&self, batches: &[Batch], pool: &MergePool, stop: &Stop) -> Result<Batch, NodeError> {
        let failed = |error: &rusqlite::Error| match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::OperationInterrupted) => NodeError::Stopped("while combining".to_owned()),
            _ => NodeError::Failed(format!("combining rows: {}", message(error))),
        };
        let (table, sql) = self.statements().map_err(NodeError::Failed)?;
        if batches.iter().any(|batch| !batch.is_whole(self.columns.len())) {
            return Err(NodeError::Failed("a node sent a ragged batch".to_owned()));
        }
        let tables = [table];
        let conn = pool.take(&tables, &[], stop).map_err(|error| failed(&error))?;
        let outcome = fill_and_read(&conn, &tables[0], batches, &sql, self.columns.len());
        let rows = batches.iter().map(|batch| u64::from(batch.rows)).sum();
        if outcome.is_ok() {
            pool.give_back(conn, &tables, &[], rows);
        }
        outcome.map_err(|error| failed(&error))
    }

    /// The table to fill and the SELECT over it.
    fn statements(&self) -> Result<(MergeTable, String), String> {
        if self.columns.is_empty() || self.columns.len() > MOST_COLUMNS {
            return Err(format!("a part of {} columns cannot be combined", self.columns.len()));
        }
        let mut columns = Vec::with_capacity(self.columns.len());
        let (mut outputs, mut keys) = (Vec::new(), Vec::new());
        for (at, column) in self.columns.iter().enumerate() {
            let known = |list: &[&str], word: &str| list.iter().any(|known| known.eq_ignore_ascii_case(word));
            if !known(&COLLATIONS, &column.collation) || !known(&AFFINITIES, &column.affinity) {
                return Err(format!("column {at} compares in a way that is not known here"));
            }
            let name = format!("c{at}");
            let output = match &column.how {
                How::Key => {
                    keys.push(name.clone());
                    name.clone()
                }
                How::Count => format!("{}({name})", functions::COUNT_MERGE),
                How::Sum => format!("{}({name})", functions::SUM_COMBINE),
                How::Min => format!("min({name})"),
                How::Max => format!("max({name})"),
                How::State(state) => {
                    let function = functions::combining(state).ok_or_else(|| format!("no state is called {state}"))?;
                    format!("{function}({name})")
                }
            };
            outputs.push(output);
            columns.push(MergeColumn {
                name,
                affinity: column.affinity.clone(),
                collation: column.collation.clone(),
                filled: true,
            });
        }
        let mut sql = format!("SELECT {} FROM {}", outputs.join(", "), quoted(TABLE));
        if !keys.is_empty() {
            sql.push_str(&format!(" GROUP BY {}", keys.join(", ")));
        }
        Ok((MergeTable { name: TABLE.to_owned(), columns }, sql))
    }
}

fn fill_and_read(
    conn: &Connection,
    table: &MergeTable,
    batches: &[Batch],
    sql: &str,
    width: usize,
) -> rusqlite::Result<Batch> {
    // In one piece: what a node ships is often a single row.
    let mut all = Batch { rows: 0, columns: vec![Vec::new(); width] };
    for batch in batches {
        all.rows += batch.rows;
        all.columns.iter_mut().zip(&batch.columns).for_each(|(all, column)| all.extend_from_slice(column));
    }
    insert(conn, &insert_sql(table), &all)?;
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.raw_query();
    let mut out = Batch { rows: 0, columns: vec![Vec::new(); width] };
    while let Some(row) = rows.next()? {
        for (at, column) in out.columns.iter_mut().enumerate() {
            column.push(Value::from_sqlite(row.get_ref(at)?));
        }
        out.rows += 1;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(how: How, collation: &str) -> CombinedColumn {
        CombinedColumn { how, affinity: String::new(), collation: collation.to_owned() }
    }

    fn batch(rows: &[(&str, i64, i64)]) -> Batch {
        let text = |text: &str| Value::Text(text.as_bytes().to_vec());
        Batch {
            rows: u32::try_from(rows.len()).unwrap(),
            columns: vec![
                rows.iter().map(|row| text(row.0)).collect(),
                rows.iter().map(|row| Value::Integer(row.1)).collect(),
                rows.iter().map(|row| Value::Integer(row.2)).collect(),
            ],
        }
    }

    #[test]
    fn groups_of_several_nodes_become_one_by_their_collation() {
        let combine = Combine {
            columns: vec![column(How::Key, "NOCASE"), column(How::Count, "BINARY"), column(How::Max, "BINARY")],
        };
        let pool = MergePool::default();
        for _ in 0..2 {
            let batches = [batch(&[("a", 1, 10), ("b", 2, 20)]), batch(&[("A", 3, 5)])];
            let out = combine.combined(&batches, &pool, &Stop::default()).unwrap();
            assert_eq!(
                out.columns[1..],
                [
                    vec![4, 2].into_iter().map(Value::Integer).collect(),
                    vec![10, 20].into_iter().map(Value::Integer).collect::<Vec<_>>()
                ]
            );
        }
    }

    #[test]
    fn what_another_node_made_up_is_refused() {
        let pool = MergePool::default();
        let refused = |columns: Vec<CombinedColumn>, batches: &[Batch]| {
            matches!(Combine { columns }.combined(batches, &pool, &Stop::default()), Err(NodeError::Failed(_)))
        };
        let key = || column(How::Key, "BINARY");
        assert!(refused(Vec::new(), &[]));
        assert!(refused(vec![column(How::Key, "BINARY); DROP TABLE x; --")], &[]));
        assert!(refused(vec![CombinedColumn { affinity: "INT CHECK(0)".to_owned(), ..key() }], &[]));
        assert!(refused(vec![column(How::State("load_extension".to_owned()), "BINARY")], &[]));
        assert!(refused(vec![key()], &[batch(&[("a", 1, 2)])]), "a batch of another width");
        let damaged = Batch { rows: 1, columns: vec![vec![Value::Blob(vec![9; 4])]] };
        assert!(refused(vec![column(How::State("mesh_moments".to_owned()), "BINARY")], std::slice::from_ref(&damaged)));
        assert!(refused(vec![column(How::Sum, "BINARY")], &[damaged]));
    }
}
