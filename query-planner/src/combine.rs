//! The middle of a tree of nodes: rows that several nodes shipped for one fragment become the rows
//! that a single node with all their rows would have shipped, so that the coordinator merges as if
//! there were fewer nodes. It works for the partial states of groups (`rules/aggregate.rs`), whose
//! merging is associative.
//!
//! How a fragment's rows combine is a value of fixed shape, not SQL: it comes from another node.

use rusqlite::Connection;

use crate::api::NodeError;
use crate::batch::{Batch, Value};
use crate::exec::message;
use crate::functions;
use crate::merge_pool::MergePool;
use crate::names::quoted;
use crate::partial::{Combine, How};
use crate::plan::{MergeColumn, MergeTable};
use crate::run::{insert, insert_sql};
use crate::stop::Stop;

/// The table that the rows go into.
const TABLE: &str = "partials";
/// More columns than SQLite allows in a table.
const MOST_COLUMNS: usize = 2_000;
const COLLATIONS: [&str; 3] = ["BINARY", "NOCASE", "RTRIM"];
const AFFINITIES: [&str; 5] = ["", "TEXT", "NUM", "INT", "REAL"];
/// Those by which a whole number is stored as it is.
const INTEGERS_STAY: [&str; 3] = ["", "NUM", "INT"];

impl Combine {
    /// One row, made of the rows of `batches`, for each group in them.
    ///
    /// # Errors
    /// The rows are not of this shape, a state in them is damaged, or `stop` fired.
    pub fn combined(&self, batches: &[Batch], pool: &MergePool, stop: &Stop) -> Result<Batch, NodeError> {
        let failed = |error: &rusqlite::Error| match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::OperationInterrupted) => NodeError::Stopped("while combining".to_owned()),
            Some(rusqlite::ErrorCode::OutOfMemory) => NodeError::out_of_memory(),
            _ => NodeError::Failed(format!("combining rows: {}", message(error))),
        };
        let (table, sql) = self.statements().map_err(NodeError::Failed)?;
        if batches.iter().any(|batch| !batch.is_well_formed(self.columns.len())) {
            return Err(NodeError::Failed("a node sent a ragged batch".to_owned()));
        }
        if let Some(batch) = self.counted(batches) {
            return Ok(batch);
        }
        let tables = [table];
        let conn = pool.take(&tables, &[], stop).map_err(|error| failed(&error))?;
        let watched = stop.watch(&conn);
        let outcome = fill_and_read(&conn, &tables[0], batches, &sql, self.columns.len());
        drop(watched);
        let rows = batches.iter().map(|batch| u64::from(batch.rows)).sum();
        if outcome.is_ok() {
            pool.release(conn, &tables, &[], rows);
        }
        outcome.map_err(|error| failed(&error))
    }

    /// The same without SQLite where there are no keys and all values are whole numbers (or
    /// nothing, for extremes), which is most of what a dashboard asks: setting a database to work
    /// costs many times as much as looking at a few dozen numbers. None where it is not so.
    fn counted(&self, batches: &[Batch]) -> Option<Batch> {
        if batches.iter().all(|batch| batch.rows == 0) {
            return None;
        }
        let mut columns = Vec::with_capacity(self.columns.len());
        for (at, column) in self.columns.iter().enumerate() {
            if !INTEGERS_STAY.iter().any(|affinity| affinity.eq_ignore_ascii_case(&column.affinity)) {
                return None;
            }
            let mut found: Option<i64> = None;
            for value in batches.iter().filter_map(|batch| batch.columns.get(at)).flatten() {
                let value = match (value, &column.how) {
                    (Value::Integer(value), _) => *value,
                    (Value::Null, How::Min | How::Max) => continue,
                    _ => return None,
                };
                found = Some(match (found, &column.how) {
                    (found, How::Count) => found.unwrap_or(0).checked_add(value)?,
                    (found, How::Min) => found.map_or(value, |found| found.min(value)),
                    (found, How::Max) => found.map_or(value, |found| found.max(value)),
                    (_, How::Key | How::Sum | How::State(_)) => return None,
                });
            }
            columns.push(vec![found.map_or(Value::Null, Value::Integer)]);
        }
        Some(Batch { rows: 1, columns })
    }

    /// The table to fill and the SELECT over it.
    fn statements(&self) -> Result<(MergeTable, String), String> {
        if self.columns.is_empty() || self.columns.len() > MOST_COLUMNS {
            return Err(format!("a fragment of {} columns cannot be combined", self.columns.len()));
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
    insert(conn, &mut *conn.prepare_cached(&insert_sql(table))?, &all)?;
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
    use proptest::prelude::*;

    use super::*;
    use crate::partial::CombinedColumn;

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

    /// The row that SQLite makes of these.
    fn by_sqlite(combine: &Combine, batches: &[Batch]) -> Batch {
        let (table, sql) = combine.statements().unwrap();
        let tables = [table];
        let conn = MergePool::default().take(&tables, &[], &Stop::default()).unwrap();
        fill_and_read(&conn, &tables[0], batches, &sql, combine.columns.len()).unwrap()
    }

    fn few_integers() -> impl Strategy<Value = Value> {
        prop_oneof![4 => any::<i32>().prop_map(|value| Value::Integer(value.into())), 1 => Just(Value::Null)]
    }

    fn any_values() -> impl Strategy<Value = Value> {
        prop_oneof![
            20 => few_integers(),
            1 => Just(Value::Integer(i64::MAX)),
            1 => Just(Value::Real(0.5)),
            1 => Just(Value::Text(b"7".to_vec())),
        ]
    }

    proptest! {
        #[test]
        fn whole_numbers_combine_without_sqlite_as_with_it(
            counts in proptest::collection::vec(proptest::collection::vec(any::<u32>(), 0..4), 1..5),
            values in proptest::collection::vec(any_values(), 24),
            affinity in proptest::sample::select(AFFINITIES.to_vec()),
        ) {
            let how = |how: How| CombinedColumn { affinity: affinity.to_owned(), ..column(how, "BINARY") };
            let combine = Combine { columns: vec![column(How::Count, "BINARY"), how(How::Min), how(How::Max)] };
            let mut values = values.into_iter().cycle();
            let batches: Vec<Batch> = counts
                .iter()
                .map(|counts| {
                    let taken: Vec<Value> = values.by_ref().take(counts.len()).collect();
                    let counts: Vec<Value> = counts.iter().map(|count| Value::Integer((*count).into())).collect();
                    let rows = u32::try_from(counts.len()).unwrap();
                    Batch { rows, columns: vec![counts, taken.clone(), taken] }
                })
                .collect();
            let plain = combine.counted(&batches);
            let is_integer = |value: &Value| matches!(value, Value::Integer(_) | Value::Null);
            let are_integers = batches.iter().flat_map(|batch| &batch.columns[1]).all(is_integer);
            let some = batches.iter().any(|batch| batch.rows > 0);
            prop_assert_eq!(plain.is_some(), some && are_integers && !matches!(affinity, "TEXT" | "REAL"));
            if let Some(plain) = plain {
                prop_assert_eq!(plain, by_sqlite(&combine, &batches));
            }
        }
    }

    #[test]
    fn what_is_more_than_whole_numbers_is_left_to_sqlite() {
        let most = Batch { rows: 2, columns: vec![vec![Value::Integer(i64::MAX), Value::Integer(1)]] };
        let of = |how: How, batch: &Batch| {
            Combine { columns: vec![column(how, "BINARY")] }.counted(std::slice::from_ref(batch))
        };
        assert_eq!(of(How::Max, &most), Some(Batch { rows: 1, columns: vec![vec![Value::Integer(i64::MAX)]] }));
        assert_eq!(of(How::Count, &most), None, "it does not fit");
        assert_eq!(of(How::Key, &most), None);
        assert_eq!(of(How::Sum, &most), None);
        assert_eq!(of(How::Count, &Batch { rows: 1, columns: vec![vec![Value::Null]] }), None);
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
