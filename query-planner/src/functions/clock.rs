//! Times on the coordinator's clock: what `cluster_ns` and `clock_bound_ns` of a question have
//! become by the time that SQLite runs them (`crate::align` writes them so), and the literal that
//! carries the clocks.

use std::collections::HashMap;

use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Error, Result};

use crate::clocks::{Clocks, NodeClock};

/// As people call them.
pub(crate) const CLUSTER: &str = "cluster_ns";
pub(crate) const BOUND: &str = "clock_bound_ns";
/// As plans do.
pub(crate) const MESH_CLUSTER: &str = "mesh_cluster_ns";
pub(crate) const MESH_BOUND: &str = "mesh_clock_bound_ns";

pub(super) fn is_internal(name: &str) -> bool {
    name == MESH_CLUSTER || name == MESH_BOUND
}

pub(super) fn register(conn: &Connection) -> Result<()> {
    let pure = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
    conn.create_scalar_function(MESH_CLUSTER, 3, pure, |ctx| {
        let Some(ts_ns) = time(ctx.get_raw(0)) else { return Ok(None) };
        Ok(of_node(ctx, 1, 2)?.map(|clock| align(&clock, ts_ns)))
    })?;
    conn.create_scalar_function(MESH_BOUND, 3, pure, |ctx| {
        let ts_ns = time(ctx.get_raw(2));
        Ok(of_node(ctx, 0, 1)?.map(|clock| bound(&clock, ts_ns.map(|ts_ns| align(&clock, ts_ns)))))
    })
}

fn time(value: ValueRef<'_>) -> Option<i64> {
    match value {
        ValueRef::Integer(ns) => Some(ns),
        #[allow(clippy::cast_possible_truncation, reason = "nanoseconds in a double are whole")]
        ValueRef::Real(ns) => Some(ns as i64),
        _ => None,
    }
}

/// A time of the node's clock on the coordinator's.
fn align(clock: &NodeClock, node_ns: i64) -> i64 {
    let aligned = node_ns.saturating_sub(clock.offset_ns);
    aligned.saturating_sub(parts(clock.drift_ppb, aligned.saturating_sub(clock.at_ns)))
}

/// How far an aligned time may be wrong; without a time, at the measurement.
fn bound(clock: &NodeClock, aligned_ns: Option<i64>) -> i64 {
    let far = aligned_ns.map_or(0, |ns| i64::try_from(ns.abs_diff(clock.at_ns)).unwrap_or(i64::MAX));
    clock.bound_ns.saturating_add(parts(clock.drift_bound_ppb.saturating_abs(), far))
}

/// So many parts in a billion of a length.
fn parts(ppb: i64, length_ns: i64) -> i64 {
    i64::try_from(i128::from(length_ns) * i128::from(ppb) / 1_000_000_000).unwrap_or(0)
}

/// The clocks as a SQL literal: one line a node, its name and five numbers.
pub(crate) fn literal(clocks: &Clocks) -> String {
    let lines = clocks.iter().map(|(node, clock)| {
        let NodeClock { offset_ns, bound_ns, at_ns, drift_ppb, drift_bound_ppb } = clock;
        format!("{offset_ns} {bound_ns} {at_ns} {drift_ppb} {drift_bound_ppb} {node}")
    });
    format!("'{}'", lines.collect::<Vec<_>>().join("\n").replace('\'', "''"))
}

fn read(text: &str) -> Option<HashMap<String, NodeClock>> {
    text.lines()
        .map(|line| {
            let mut words = line.splitn(6, ' ');
            let mut number = || words.next()?.parse().ok();
            let clock = NodeClock {
                offset_ns: number()?,
                bound_ns: number()?,
                at_ns: number()?,
                drift_ppb: number()?,
                drift_bound_ppb: number()?,
            };
            Some((words.next()?.to_owned(), clock))
        })
        .collect()
}

/// The clock of the node that an argument names; none where it is not known.
fn of_node(ctx: &Context<'_>, node: usize, clocks: usize) -> Result<Option<NodeClock>> {
    let ValueRef::Text(name) = ctx.get_raw(node) else { return Ok(None) };
    let all = ctx.get_or_create_aux(i32::try_from(clocks).unwrap_or(0), |value| {
        let text = value.as_str().map_err(|error| Error::UserFunctionError(error.into()))?;
        read(text).ok_or_else(|| Error::UserFunctionError("damaged clock offsets".into()))
    })?;
    Ok(std::str::from_utf8(name).ok().and_then(|name| all.get(name)).copied())
}
