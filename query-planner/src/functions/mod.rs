//! The functions a question may call: SQLite's own (an allow-list), and the partial states that
//! carry aggregates from nodes to the merge. What an aggregate means over several nodes lives in
//! `rules/aggregate.rs`; arithmetic that must be exact lives in `exact.rs`, its SQL face in
//! `sum.rs`. Aggregates beyond SQLite's are listed in `state.rs`.

pub(crate) mod clock;
mod distinct;
mod edges;
mod exact;
mod fold;
mod histogram;
mod like;
mod moments;
mod patch;
mod quantile;
pub(crate) mod robust;
mod runs;
mod scalar;
mod state;
pub mod states;
mod sum;
mod text;

use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;

use crate::ast::{Call, unquote};
use crate::batch::Value;

pub(crate) use state::{TwoPhase, combining, two_phase};
pub(crate) use sum::{
    AVG_MERGE, COUNT_MERGE, EXACT_AVG, EXACT_SUM, EXACT_TOTAL, SUM_COMBINE, SUM_MERGE, SUM_STATE, TOTAL_MERGE,
};

/// The exact, order-free form of SQLite's `sum`, `total` or `avg`.
pub(crate) fn exact_sum(name: &str) -> Option<&'static str> {
    match name.to_ascii_lowercase().as_str() {
        "sum" => Some(EXACT_SUM),
        "total" => Some(EXACT_TOTAL),
        "avg" => Some(EXACT_AVG),
        _ => None,
    }
}

/// Whether these bytes are the state of a sum.
pub(crate) fn is_sum(bytes: &[u8]) -> bool {
    exact::ExactSum::from_bytes(bytes).is_some()
}

/// Whether these bytes are a state of this name.
///
/// # Errors
/// The reason, such as another version.
pub(crate) fn check_state(state: &str, bytes: &[u8]) -> Result<bool, String> {
    use self::state::Shipped;
    match state {
        "mesh_moments" => Shipped::<moments::Moments>::from_bytes(bytes).map(|_| true),
        "mesh_runs" => Shipped::<runs::Runs>::from_bytes(bytes).map(|_| true),
        "mesh_sketch" => Shipped::<quantile::Sketch>::from_bytes(bytes).map(|_| true),
        "mesh_hashes" => Shipped::<distinct::Hashes>::from_bytes(bytes).map(|_| true),
        "mesh_buckets" => Shipped::<histogram::Buckets>::from_bytes(bytes).map(|_| true),
        "mesh_first" => Shipped::<edges::Edge<false>>::from_bytes(bytes).map(|_| true),
        "mesh_last" => Shipped::<edges::Edge<true>>::from_bytes(bytes).map(|_| true),
        _ => Ok(false),
    }
}

/// The identity, with neither affinity nor collation: stands for a computed expression in merge
/// SQL.
pub(crate) const VALUE: &str = "mesh_value";

/// Aggregates that SQLite has as built here; [`state::TABLE`] has the added ones.
const AGGREGATES: &[&str] = &[
    "avg",
    "count",
    "group_concat",
    "json_group_array",
    "json_group_object",
    "jsonb_group_array",
    "jsonb_group_object",
    "string_agg",
    "sum",
    "total",
    "mesh_sum",
];

/// Functions whose result differs from call to call.
const VOLATILE: &[&str] = &["random", "randomblob"];

const SCALARS: &[&str] = &[
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "ceil",
    "ceiling",
    "char",
    "coalesce",
    "concat",
    "concat_ws",
    "cos",
    "cosh",
    "date",
    "datetime",
    "degrees",
    "exp",
    "floor",
    "format",
    "glob",
    "hex",
    "if",
    "ifnull",
    "iif",
    "instr",
    "json",
    "json_array",
    "json_array_insert",
    "json_array_length",
    "json_error_position",
    "json_extract",
    "json_insert",
    "json_object",
    "json_patch",
    "json_pretty",
    "json_quote",
    "json_remove",
    "json_replace",
    "json_set",
    "json_type",
    "json_valid",
    "jsonb",
    "jsonb_array",
    "jsonb_array_insert",
    "jsonb_extract",
    "jsonb_insert",
    "jsonb_object",
    "jsonb_patch",
    "jsonb_remove",
    "jsonb_replace",
    "jsonb_set",
    "julianday",
    "length",
    "like",
    "likelihood",
    "likely",
    "ln",
    "log",
    "log10",
    "log2",
    "lower",
    "ltrim",
    "max",
    "min",
    "mod",
    "nullif",
    "octet_length",
    "pi",
    "pow",
    "power",
    "printf",
    "quote",
    "radians",
    "replace",
    "round",
    "rtrim",
    "sign",
    "sin",
    "sinh",
    "soundex",
    "sqlite_version",
    "sqrt",
    "strftime",
    "subsec",
    "substr",
    "substring",
    "subtype",
    "tan",
    "tanh",
    "time",
    "timediff",
    "trim",
    "trunc",
    "typeof",
    "unhex",
    "unicode",
    "unistr",
    "unistr_quote",
    "unixepoch",
    "unlikely",
    "upper",
    "zeroblob",
    "->",
    "->>",
    "mesh_value",
    "current_date",
    "current_time",
    "current_timestamp",
];

/// Functions that give a value for any arguments, so that calling them on more rows than SQLite
/// would is unseen.
const TOTAL: &[&str] = &[
    "coalesce",
    "glob",
    "hex",
    "ifnull",
    "iif",
    "if",
    "instr",
    "length",
    "like",
    "likely",
    "lower",
    "ltrim",
    "max",
    "min",
    "nullif",
    "octet_length",
    "round",
    "rtrim",
    "sign",
    "substr",
    "substring",
    "trim",
    "typeof",
    "unicode",
    "unlikely",
    "upper",
    "date",
    "time",
    "datetime",
    "julianday",
    "unixepoch",
    clock::MESH_CLUSTER,
    clock::MESH_BOUND,
];

const WINDOWS: &[&str] = &[
    "cume_dist",
    "dense_rank",
    "first_value",
    "lag",
    "last_value",
    "lead",
    "nth_value",
    "ntile",
    "percent_rank",
    "rank",
    robust::NAME,
    "row_number",
];

/// Whether a question may call a function of this name.
pub(crate) fn is_allowed(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let name = name.as_str();
    [AGGREGATES, VOLATILE, SCALARS, WINDOWS].iter().any(|list| list.contains(&name))
        || [SUM_STATE, SUM_MERGE, AVG_MERGE, TOTAL_MERGE, COUNT_MERGE, EXACT_SUM, EXACT_TOTAL, EXACT_AVG]
            .contains(&name)
        || two_phase(name).is_some()
        || state::is_internal(name)
        || robust::is_internal(name)
        || clock::is_internal(name)
}

/// All names a question may call, for hints.
pub(crate) fn all_names() -> impl Iterator<Item = &'static str> {
    let ours = state::TABLE.iter().map(|entry| entry.name);
    let sqlite = [AGGREGATES, VOLATILE, SCALARS, WINDOWS].into_iter().flatten().copied();
    sqlite.chain(ours).filter(|name| !name.starts_with("mesh_"))
}

/// All functions that a question may call, `cluster_ns` and `clock_bound_ns` included, in order.
#[must_use]
pub fn function_names() -> Vec<&'static str> {
    let mut names: Vec<&str> = all_names().chain([clock::CLUSTER, clock::BOUND]).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Whether the call collapses rows (a window call does not).
pub(crate) fn is_aggregate(call: &Call) -> bool {
    let name = unquote(&call.name).to_ascii_lowercase();
    call.over.is_none()
        && (AGGREGATES.contains(&name.as_str())
            || [EXACT_SUM, EXACT_TOTAL, EXACT_AVG].contains(&name.as_str())
            || (matches!(name.as_str(), "min" | "max") && call.args.len() == 1)
            || two_phase(&name).is_some()
            || state::is_internal(&name))
}

/// Whether calling the function can neither fail nor differ from call to call.
pub(crate) fn never_fails(name: &str) -> bool {
    TOTAL.contains(&unquote(name).to_ascii_lowercase().as_str())
}

/// Whether it is one of SQLite's functions of dates and times: NULL comes of what is no time.
pub(crate) fn is_of_time(name: &str) -> bool {
    let name = unquote(name).to_ascii_lowercase();
    matches!(name.as_str(), "date" | "time" | "datetime" | "julianday" | "unixepoch" | "strftime")
}

/// Whether the function gives another value at each call.
pub(crate) fn is_volatile(name: &str) -> bool {
    VOLATILE.contains(&unquote(name).to_ascii_lowercase().as_str())
}

/// Registers what plans call in addition to SQLite's own functions, and what stands in for those of
/// SQLite's that look at no deadline.
///
/// # Errors
/// When SQLite has no memory for them.
pub(crate) fn register(conn: &Connection) -> Result<(), rusqlite::Error> {
    let pure = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
    conn.create_scalar_function(VALUE, 1, pure, |ctx| Ok(Value::from_sqlite(ctx.get_raw(0))))?;
    moments::register(conn)?;
    runs::register(conn)?;
    quantile::register(conn)?;
    distinct::register(conn)?;
    histogram::register(conn)?;
    edges::register(conn)?;
    robust::register(conn)?;
    clock::register(conn)?;
    text::register(conn)?;
    like::register(conn)?;
    patch::register(conn)?;
    sum::register(conn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_checked_by_its_own_kind() {
        let conn = Connection::open_in_memory().expect("memory");
        register(&conn).expect("functions");
        for entry in state::TABLE {
            let args = ["1.5", "2"][..entry.row_args].join(", ");
            let bytes: Vec<u8> =
                conn.query_row(&format!("SELECT {}({args})", entry.state), [], |row| row.get(0)).expect(entry.state);
            assert_eq!(check_state(entry.state, &bytes), Ok(true), "{}", entry.state);
            assert!(check_state(entry.state, &bytes[..bytes.len() - 1]).is_err(), "{}", entry.state);
            let others = state::TABLE.iter().filter(|other| other.state != entry.state);
            others.for_each(|other| assert!(check_state(other.state, &bytes).is_err(), "{}", other.state));
        }
        assert_eq!(check_state("load_extension", &[1, 2, 3]), Ok(false));
        let sum: Vec<u8> = conn.query_row("SELECT mesh_sum(1)", [], |row| row.get(0)).expect("a sum");
        assert!(is_sum(&sum) && !is_sum(&sum[1..]));
    }
}
