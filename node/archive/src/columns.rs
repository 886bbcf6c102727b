//! Owns a node's archived rows as columns, for questions that are answered without SQLite's row
//! machine: each row group is a part, whose columns are read when they are asked for.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use store::{ColumnsElsewhere, Part, PartColumn, PartValues, StoreError};

use crate::parts::Node;
use crate::row_group::{Column, File, Values};

/// Bytes of small files that are kept in memory between opening them and reading their columns.
const KEPT_BYTES: usize = 16 << 20;

/// The columns of a node's archived hours.
pub(crate) struct Columns(pub(crate) Arc<Node>);

impl ColumnsElsewhere for Columns {
    fn parts(&self, table: &str, (first_ns, last_ns): (i64, i64)) -> Result<Option<Vec<Arc<dyn Part>>>, StoreError> {
        let range = first_ns..last_ns.saturating_add(1);
        let found = self.0.parts(table, &range).map_err(StoreError::External)?;
        // Rows of the node's store come through SQLite.
        if self.0.live.is_some() && !found.are_archived(&range) {
            return Ok(None);
        }
        let (mut parts, mut kept) = (Vec::<Arc<dyn Part>>::new(), 0);
        for of in &found.files {
            let Some(mut file) = self.0.open(table, of).map_err(StoreError::External)? else { continue };
            kept += file.kept_bytes();
            if kept > KEPT_BYTES {
                file.let_go();
            }
            let file = Arc::new(file);
            parts.extend((0..file.groups()).map(|group| Arc::new(RowGroup { file: Arc::clone(&file), group }) as _));
        }
        Ok(Some(parts))
    }
}

/// A row group of a file.
struct RowGroup {
    file: Arc<File>,
    group: usize,
}

impl fmt::Debug for RowGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.name())
    }
}

impl Part for RowGroup {
    fn rows(&self) -> usize {
        self.file.rows(self.group)
    }

    fn columns(&self) -> Vec<PartColumn> {
        self.file.known(self.group)
    }

    fn read(&self, column: &str) -> Result<PartValues, StoreError> {
        let failed = |why: &dyn fmt::Display| StoreError::External(format!("{}: {why}", self.file.name()));
        let read = self.file.read(self.group, &[Some(column)]).map_err(|error| failed(&error))?;
        let column = read.columns.into_iter().next().flatten().ok_or_else(|| failed(&"a column is missing"))?;
        values(column).ok_or_else(|| failed(&"a column is not what its table says"))
    }
}

/// A column's values, one for each row.
fn values(Column { values, places }: Column) -> Option<PartValues> {
    match values {
        Values::Integers(values) => Some(match places {
            None => PartValues::Integers(values, Vec::new()),
            Some(places) => {
                let value = |place: &u32| values.get(*place as usize).copied();
                let nulls = places.iter().map(|place| value(place).is_none()).collect();
                PartValues::Integers(places.iter().map(|place| value(place).unwrap_or(0)).collect(), nulls)
            }
        }),
        Values::Text(values) | Values::Blobs(values) => {
            let mut entries: Vec<Vec<u8>> = Vec::new();
            let mut known: HashMap<&[u8], i64> = HashMap::new();
            let mut last: Option<(&[u8], i64)> = None;
            let mut code = |bytes| match last {
                Some((same, code)) if same == bytes => code,
                _ => {
                    let next = entries.len() as i64;
                    let code = *known.entry(bytes).or_insert(next);
                    if code == next {
                        entries.push(bytes.to_vec());
                    }
                    last = Some((bytes, code));
                    code
                }
            };
            let codes: Vec<i64> = values.iter().map(|value| code(value.data())).collect();
            let null = entries.len() as i64;
            let codes = match places {
                None => codes,
                Some(places) => places.iter().map(|at| codes.get(*at as usize).copied().unwrap_or(null)).collect(),
            };
            Some(PartValues::Bytes(entries, codes))
        }
        Values::Reals(_) | Values::Any(_) => None,
    }
}
