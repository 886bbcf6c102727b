//! Owns grouping by what SQLite makes of an integer (`strftime('%H:%M', ts_ns / 1000000000, …)`):
//! rows are grouped by the integers, then groups whose integers give the same become one.

use query_planner::scan::{By, Groups};
use rusqlite::types::ValueRef;

use super::super::super::encode::Scalar;
use super::super::{Failure, StepAside, Work};
use super::states::State;
use crate::FastMap;

/// Values that are made between two looks at whether to stop.
const BETWEEN_LOOKS: usize = 1024;

/// What is made of grouping values.
pub(super) struct Made<'w> {
    work: &'w Work<'w>,
    /// Index of the grouping value, and the SQL.
    of: &'w [(usize, String)],
}

impl<'w> Made<'w> {
    /// Where a percentile looks at rows a second time, by groups as they are in segments, or the
    /// SQL gives what is no grouping value, SQLite does it all.
    pub(super) fn of(work: &'w Work<'w>, groups: &'w Groups, looks_twice: bool) -> Result<Self, Failure> {
        let made = Self { work, of: &groups.made };
        if !made.of.is_empty() && looks_twice {
            return Err(Failure::StepAside);
        }
        // Of what gives doubles it is better to know before all is grouped.
        for (_, sql) in made.of {
            made.value(sql, &Scalar::Integer(1))?;
        }
        Ok(made)
    }

    fn value(&self, sql: &str, of: &Scalar) -> Result<Scalar, Failure> {
        let integer = match of {
            Scalar::Integer(value) => Some(*value),
            Scalar::Null => None,
            Scalar::Text(_) => return Err(Failure::StepAside),
        };
        let made = || {
            let mut statement = self.work.conn.prepare_cached(&format!("SELECT {sql}"))?;
            if let Some(at) = statement.parameter_index(By::VALUE)? {
                statement.raw_bind_parameter(at, integer)?;
            }
            let mut rows = statement.raw_query();
            let row = rows.next()?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
            Ok::<_, rusqlite::Error>(match row.get_ref(0)? {
                ValueRef::Null => Some(Scalar::Null),
                ValueRef::Integer(value) => Some(Scalar::Integer(value)),
                ValueRef::Text(text) => Some(Scalar::Text(text.to_vec())),
                ValueRef::Real(_) | ValueRef::Blob(_) => None,
            })
        };
        // What fails, SQLite says in its own words.
        made().ok().flatten().ok_or_else(|| StepAside.into())
    }

    /// The groups by what is made of their integers.
    pub(super) fn regrouped(&self, mut state: State) -> Result<State, Failure> {
        if self.of.is_empty() {
            return Ok(state);
        }
        for (at, sql) in self.of {
            let mut known: FastMap<Scalar, Scalar> = FastMap::default();
            for key in state.found.keys.iter_mut().filter_map(|key| key.get_mut(*at)) {
                if let Some(made) = known.get(key) {
                    key.clone_from(made);
                    continue;
                }
                if known.len().is_multiple_of(BETWEEN_LOOKS) {
                    self.work.go_on()?;
                }
                let made = self.value(sql, key)?;
                known.insert(std::mem::replace(key, made.clone()), made);
            }
        }
        let mut made = state.empty()?;
        made.merge(state)?;
        Ok(made)
    }
}
