//! How far processes got, out of the stores: asked where ranks wait for long, for the whole of what
//! is kept, since the calls that say it may be older than any span.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use query_planner::Value;

use crate::names::Names;
use crate::observation::{COLUMNS, Observation, Process, Row};
use crate::payload::Payload;
use crate::progress::{Made, Pair, Progress, is_counted};

/// Communicators that are asked for, at most.
const MOST_COMMS: usize = 256;
/// Positions below the lowest that a rank reached, and above it, whose calls are compared.
const BELOW: u64 = 3;
const ABOVE: u64 = 4;

/// Gathers it.
#[derive(Debug, Default)]
pub struct Reaching {
    known: BTreeMap<(Process, u64), Progress>,
    names: Names,
}

/// The condition on communicators; empty is all.
fn of_comms(comms: &[u64]) -> String {
    let mut text = String::new();
    for (at, comm) in comms.iter().take(MOST_COMMS).enumerate() {
        let _ = write!(text, "{}{}", if at == 0 { " AND comm_hash IN (" } else { ", " }, comm.cast_signed());
    }
    if !text.is_empty() {
        text.push(')');
    }
    text
}

/// The question how far each process got on communicators, all where there are none, since a time;
/// its rows go to [`Reaching::reached`].
#[must_use]
pub fn reached_sql(comms: &[u64], since_ns: i64) -> String {
    format!(
        "SELECT node, pid, rank, max(nranks), comm_hash, func, count(*), count(comm_seq), max(comm_seq) FROM collectives \
         WHERE captured IS NOT 1 AND rank IS NOT NULL AND comm_hash IS NOT NULL AND ts_ns >= {since_ns}{} \
         GROUP BY node, pid, rank, comm_hash, func",
        of_comms(comms)
    )
}

/// The question how many sends and receives each process enqueued, by peer; its rows go to
/// [`Reaching::pair`].
#[must_use]
pub fn pairs_sql(comms: &[u64], since_ns: i64) -> String {
    format!(
        "SELECT node, pid, comm_hash, func, root, count(*), min(seq), max(seq) FROM collectives \
         WHERE tier = 0 AND captured IS NOT 1 AND func IN ('send', 'recv') AND root IS NOT NULL AND ts_ns >= {since_ns}{} \
         GROUP BY node, pid, comm_hash, func, root",
        of_comms(comms)
    )
}

fn integer(row: &[Value], at: usize) -> Option<i64> {
    match row.get(at) {
        Some(Value::Integer(value)) => Some(*value),
        _ => None,
    }
}

impl Reaching {
    fn process(&mut self, row: &[Value]) -> Option<Process> {
        let Some(Value::Text(node)) = row.first() else { return None };
        Some((self.names.keep(node), integer(row, 1)?))
    }

    fn func(&mut self, row: &[Value], at: usize) -> Option<Arc<str>> {
        match row.get(at) {
            Some(Value::Text(func)) => Some(self.names.keep(func)),
            _ => None,
        }
    }

    /// Takes in a row of [`reached_sql`]; what is none is left out.
    pub fn reached(&mut self, row: &[Value]) {
        let small = |at: usize| integer(row, at).and_then(|value| i32::try_from(value).ok());
        let (Some(process), Some(rank), Some(comm), Some(func)) =
            (self.process(row), small(2), integer(row, 4), self.func(row, 5))
        else {
            return;
        };
        let comm_hash = comm.cast_unsigned();
        let progress = self.known.entry((process.clone(), comm_hash)).or_insert_with(|| Progress {
            node: process.0,
            pid: process.1,
            rank,
            comm_hash,
            ..Progress::default()
        });
        progress.nranks = progress.nranks.max(small(3).filter(|n| *n > 0));
        progress.entered = progress.entered.max(integer(row, 8).and_then(|last| u64::try_from(last).ok()));
        progress.uncounted |= is_counted(&func) && integer(row, 6) != integer(row, 7);
    }

    /// Takes in a row of [`pairs_sql`], of a process and communicator that is known.
    pub fn pair(&mut self, row: &[Value]) {
        let (Some(process), Some(comm), Some(func)) = (self.process(row), integer(row, 2), self.func(row, 3)) else {
            return;
        };
        let peer = integer(row, 4).and_then(|peer| i32::try_from(peer).ok());
        let count = integer(row, 5).and_then(|count| u64::try_from(count).ok());
        let (Some(progress), Some(peer), Some(count)) =
            (self.known.get_mut(&(process, comm.cast_unsigned())), peer, count)
        else {
            return;
        };
        // Rows without numbers are of a communicator whose start was not seen.
        let Some(_) = integer(row, 6) else { return };
        let at = progress.pairs.iter().position(|pair| pair.peer == peer).unwrap_or_else(|| {
            progress.pairs.push(Pair { peer, ..Pair::default() });
            progress.pairs.len() - 1
        });
        match &*func {
            "send" => progress.pairs[at].sent = count,
            _ => progress.pairs[at].received = count,
        }
    }

    /// The question for the last calls of all on these communicators; its rows go to [`Self::call`].
    /// None where no positions are known.
    #[must_use]
    pub fn last_calls_sql(&self, comms: &[u64], since_ns: i64) -> Option<String> {
        let mut lowest: BTreeMap<u64, u64> = BTreeMap::new();
        for ((_, comm), progress) in self.known.iter().filter(|((_, comm), _)| comms.contains(comm)) {
            let Some(entered) = progress.entered else { continue };
            let low = lowest.entry(*comm).or_insert(entered);
            *low = entered.min(*low);
        }
        let mut places: Vec<String> = lowest
            .iter()
            .map(|(comm, low)| {
                let (from, to) = (low.saturating_sub(BELOW), low.saturating_add(ABOVE));
                format!("(comm_hash = {} AND comm_seq >= {from} AND comm_seq <= {to})", comm.cast_signed())
            })
            .collect();
        places.truncate(MOST_COMMS);
        (!places.is_empty()).then(|| {
            format!(
                "SELECT {}, comm_seq, bytes, datatype, reduce_op FROM collectives WHERE captured IS NOT 1 \
                 AND ts_ns >= {since_ns} AND ({})",
                COLUMNS.join(", "),
                places.join(" OR ")
            )
        })
    }

    /// Takes in a row of [`Self::last_calls_sql`].
    pub fn call(&mut self, row: &[Value]) {
        let width = COLUMNS.len();
        let (Some(of_all), Some(position)) = (row.get(..width), integer(row, width)) else { return };
        let read = Observation::from_row(of_all, &mut self.names);
        let (Ok(Row::Placed(seen) | Row::Unnumbered(seen)), Ok(position)) = (read, u64::try_from(position)) else {
            return;
        };
        let payload = Payload {
            bytes: integer(row, width + 1).and_then(|bytes| u64::try_from(bytes).ok()),
            datatype: self.func(row, width + 2),
            reduce_op: self.func(row, width + 3),
        };
        if let Some(progress) = self.known.get_mut(&((seen.node, seen.pid), seen.comm_hash)) {
            progress.made(Made { position, func: seen.func, root: seen.root, payload });
        }
    }

    /// How far each process got.
    #[must_use]
    pub fn progress(self) -> Vec<Progress> {
        self.known.into_values().collect()
    }

    /// The communicators.
    #[must_use]
    pub fn comms(&self) -> Vec<u64> {
        let mut comms: Vec<u64> = self.known.keys().map(|(_, comm)| *comm).collect();
        comms.sort_unstable();
        comms.dedup();
        comms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.as_bytes().to_vec())
    }

    fn row(pid: i64, func: &str, calls: i64, placed: i64, last: Option<i64>) -> Vec<Value> {
        let last = last.map_or(Value::Null, Value::Integer);
        let whole = [Value::Integer(pid), Value::Integer(pid), Value::Integer(2), Value::Integer(-2)];
        let mut row = vec![text("n0")];
        row.extend(whole);
        row.extend([text(func), Value::Integer(calls), Value::Integer(placed), last]);
        row
    }

    #[test]
    fn the_furthest_position_over_all_functions_counts() {
        let mut reaching = Reaching::default();
        for row in [row(0, "all_reduce", 9, 9, Some(8)), row(0, "barrier", 1, 1, Some(12)), row(1, "send", 5, 0, None)]
        {
            reaching.reached(&row);
        }
        reaching.reached(&row(2, "all_reduce", 9, 7, Some(8)));
        let sql = reaching.last_calls_sql(&[u64::MAX - 1], 5).unwrap();
        assert!(sql.contains("comm_hash = -2 AND comm_seq >= 5 AND comm_seq <= 12"), "{sql}");
        let found: Vec<_> = reaching.progress().iter().map(|p| (p.rank, p.entered, p.uncounted)).collect();
        assert_eq!(found, [(0, Some(12), false), (1, None, false), (2, Some(8), true)]);
    }

    #[test]
    fn no_communicator_is_all() {
        assert!(!reached_sql(&[], 7).contains("IN ("));
        assert!(reached_sql(&[1, u64::MAX], 7).contains(" AND ts_ns >= 7 AND comm_hash IN (1, -1) GROUP"));
    }
}
