//! The coordinator's side: ask the nodes for the fragments, put their rows into an in-memory
//! SQLite, run the merge.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use rusqlite::{CachedStatement, Connection, ErrorCode, Statement};

use crate::api::{Answer, Budget, Fanout, NodeTask, Out, Round, RunError, Sink};
use crate::batch::{Batch, Value};
use crate::exec::{RAN, bind, message};
use crate::limits::{MAX_KEY_BYTES, MAX_KEYS};
use crate::memory::{self, Refused, SharedReservation};
use crate::merge_pool::MergePool;
use crate::names::quoted;
use crate::plan::{Fragment, Merge, MergeTable, Plan, ReducedByDriver, ReducedByRows, ReductionBy, Targets, ValueSet};
use crate::rules::values::{with_rows, with_sets};
use crate::stop::{self, Stop};

/// Rows of a merge that are handed on together.
const TOGETHER_ROWS: usize = 1_000;
const TOGETHER_BYTES: u64 = 256 << 10;

/// Ask and merge.
///
/// `now_unix_ns` is the instant that 'now' means everywhere in the question. `stop` is looked at
/// during the merge; the fan-out looks at its own.
///
/// # Errors
/// The budget, a stop, an error of the SQL that the union would raise too, or what the fan-out
/// returned.
pub fn run(
    plan: &Plan,
    fanout: &mut dyn Fanout,
    budget: &Budget,
    now_unix_ns: i64,
    stop: &Stop,
) -> Result<Answer, RunError> {
    run_with(plan, fanout, budget, now_unix_ns, stop, &MergePool::default(), None)
}

/// As [`run`], with merge databases that are kept between questions, for callers that ask the same
/// plans again. With `out` rows are handed to it as they come, so that an answer need not fit into
/// memory; the last ones may be left in the answer. After an error what was handed on is void.
///
/// # Errors
/// As [`run`], and what `out` returned.
pub fn run_with(
    plan: &Plan,
    fanout: &mut dyn Fanout,
    budget: &Budget,
    now_unix_ns: i64,
    stop: &Stop,
    pool: &MergePool,
    out: Option<Out<'_>>,
) -> Result<Answer, RunError> {
    match &plan.lazily {
        None => run_once(plan, None, fanout, budget, now_unix_ns, stop, pool, out),
        // Nothing may go on from a run that is perhaps made again.
        Some(lazily) => match run_once(plan, None, fanout, budget, now_unix_ns, stop, pool, None) {
            Err(RunError::Sql(_)) => run_once(lazily, None, fanout, budget, now_unix_ns, stop, pool, out),
            outcome => outcome,
        },
    }
}

#[allow(clippy::too_many_arguments)]
fn run_once(
    plan: &Plan,
    after: Option<Answer>,
    fanout: &mut dyn Fanout,
    budget: &Budget,
    now_unix_ns: i64,
    stop: &Stop,
    pool: &MergePool,
    mut out: Option<Out<'_>>,
) -> Result<Answer, RunError> {
    // After another plan's first round this one is asked in the second.
    let first = if after.is_some() { Round::Second } else { first_round(plan, out.is_some()) };
    // Rows of a second round are not handed on as they come: a node that is lost in between begins
    // again.
    if after.is_some() && matches!(plan.merge, Merge::Concat { .. }) {
        out = None;
    }
    let columns = plan.columns.clone();
    let mut answer = match after {
        Some(answer) => Answer { columns, ..answer },
        None => Answer { columns, notes: plan.notes.clone(), ..Answer::default() },
    };
    fanout.round(first);
    let mut meter = Meter {
        left: budget.coordinator_bytes,
        limit: budget.coordinator_bytes,
        memory: memory::account_here().as_ref().map(SharedReservation::of),
    };
    match &plan.merge {
        Merge::Concat { with_node } => {
            let mut rows = Vec::new();
            let width = plan.fragments.first().map_or(0, |fragment| fragment.columns as usize);
            let all = RoundFragments::all(plan);
            ask(&all, fanout, budget, now_unix_ns, stop, &mut answer, &mut |node, _, batch| {
                check_shape(&batch, width, node)?;
                let (bytes, memory_bytes) = (batch.data_bytes(), batch.size_bytes());
                let named = into_rows(batch.into_owned()).map(|mut row| {
                    if *with_node {
                        row.insert(0, Value::Text(node.as_bytes().to_vec()));
                    }
                    row
                });
                if let Some(out) = &mut out {
                    return out(named.collect());
                }
                meter.take(bytes, "the result")?;
                meter.reserve(memory_bytes)?;
                rows.extend(named);
                Ok(())
            })?;
            answer.rows = rows;
        }
        Merge::Sql { tables, setup, sql } => {
            let conn = pool.take(tables, setup, stop).map_err(|error| internal(&error))?;
            let watched = stop.watch(&conn);
            let mut rows = 0_u64;
            let inserts: Vec<(usize, String)> = tables.iter().map(|table| (filled(table), insert_sql(table))).collect();
            // Looked up once, not for each node's row or two.
            let mut statements: Vec<Option<CachedStatement<'_>>> = tables.iter().map(|_| None).collect();
            let mut sink = |node: &str, fragment: usize, batch: Cow<'_, Batch>| {
                let label = plan.fragments.get(fragment).map_or("", |fragment| fragment.table.as_str());
                meter.take(batch.data_bytes(), label)?;
                let no_table = || RunError::Internal(format!("no merge table {fragment}"));
                let (filled, sql) = inserts.get(fragment).ok_or_else(no_table)?;
                check_shape(&batch, *filled, node)?;
                rows += u64::from(batch.rows);
                let statement = statements.get_mut(fragment).ok_or_else(no_table)?;
                let statement = match statement {
                    Some(statement) => statement,
                    none => none.insert(conn.prepare_cached(sql).map_err(|error| internal(&error))?),
                };
                insert(&conn, statement, &batch).map_err(|error| internal(&error))
            };
            let first = RoundFragments::first(plan);
            ask(&first, fanout, budget, now_unix_ns, stop, &mut answer, &mut sink)?;
            if let Some(with_values) = &plan.with_values {
                let values: rusqlite::Result<Vec<_>> =
                    with_values.sets.iter().map(|set| set_values(&conn, set, MAX_KEYS, now_unix_ns)).collect();
                let values: Option<Vec<_>> = values.map_err(|error| runtime(&error))?.into_iter().collect();
                if let Some(filled) = values.and_then(|values| with_rows(with_values, &values)) {
                    drop(statements);
                    drop(watched);
                    pool.release(conn, tables, setup, rows);
                    let of = |fragment: &usize| fragment.to_string();
                    let first: Vec<String> = with_values.first.iter().map(of).collect();
                    let others = (0..plan.fragments.len()).filter(|i| !with_values.first.contains(i));
                    let others: Vec<&str> = others.map(|i| plan.fragments[i].table.as_str()).collect();
                    answer.chosen.push(format!(
                        "{rows} rows of fragment {} as values; otherwise every row of {} that passes its filter would have been shipped",
                        first.join(", "),
                        others.join(", ")
                    ));
                    return run_once(&filled, Some(answer), fanout, budget, now_unix_ns, stop, pool, out);
                }
            }
            if plan.with_values.is_some() {
                let why = "the rows of the first round are too many for values, or cannot be written so";
                answer.chosen.push(format!("every row of what waited: {why}"));
            }
            if !plan.reductions.is_empty() || plan.with_values.is_some() {
                fanout.round(Round::Second);
                let (nodes, chosen) = (answer.node_stats.len(), &mut answer.chosen);
                let second = RoundFragments::second(plan, &conn, tables, now_unix_ns, nodes, chosen)
                    .map_err(|error| internal(&error))?;
                let asked = ask(&second, fanout, budget, now_unix_ns, stop, &mut answer, &mut sink);
                if asked == Err(RunError::Pending) {
                    // For the run that follows.
                    drop(statements);
                    drop(watched);
                    pool.release(conn, tables, setup, rows);
                    return Err(RunError::Pending);
                }
                asked?;
            }
            drop(statements);
            let started = Instant::now();
            answer.rows = query(&conn, sql, now_unix_ns, &mut meter, out)?;
            answer.merge_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
            drop(watched);
            pool.release(conn, tables, setup, rows);
        }
    }
    answer.kept = meter.memory.map(Arc::new);
    Ok(answer)
}

/// The rows of a set of values; none where there are more than `most`.
fn set_values(
    conn: &Connection,
    set: &ValueSet,
    most: usize,
    now_unix_ns: i64,
) -> rusqlite::Result<Option<Vec<Vec<Value>>>> {
    let mut statement = conn.prepare_cached(&set.sql)?;
    let width = statement.column_count();
    bind(&mut statement, "", now_unix_ns)?;
    let mut found = statement.raw_query();
    let mut rows = Vec::new();
    while let Some(row) = found.next()? {
        if rows.len() == most {
            return Ok(None);
        }
        let values: rusqlite::Result<Vec<Value>> =
            (0..width).map(|at| row.get_ref(at).map(Value::from_sqlite)).collect();
        rows.push(values?);
    }
    Ok(Some(rows))
}

fn first_round(plan: &Plan, with_out: bool) -> Round {
    match plan.reductions.is_empty() && plan.with_values.is_none() {
        _ if with_out && plan.flows() => Round::Flowing,
        true => Round::Only,
        false => Round::First,
    }
}

/// What a run asks for at a time.
#[derive(Debug, Clone)]
pub struct RoundAsk {
    /// The round that it belongs to.
    pub round: Round,
    /// The task.
    pub task: NodeTask,
    /// For whom it is.
    pub targets: Targets,
}

impl RoundAsk {
    /// Whether this is what is asked for.
    #[must_use]
    pub fn is(&self, round: Round, task: &NodeTask, targets: &Targets) -> bool {
        self.round == round
            && self.targets == *targets
            && self.task.now_unix_ns == task.now_unix_ns
            && self.task.fragments == task.fragments
            && self.task.keys == task.keys
            && self.task.budget == task.budget
    }
}

/// What [`run_with`] is going to ask for first (`with_out`: with an `out`) with otherwise the same
/// arguments: for a fan-out that begins before the run does. None where no node is asked.
pub fn first_ask(plan: &Plan, with_out: bool, budget: &Budget, now_unix_ns: i64) -> Option<RoundAsk> {
    let asks = match &plan.merge {
        Merge::Concat { .. } => RoundFragments::all(plan),
        Merge::Sql { .. } => RoundFragments::first(plan),
    };
    let mut groups = asks.groups().into_iter().filter(|(targets, _)| *targets != Targets::Named(Vec::new()));
    let (targets, members) = groups.next()?;
    // A run that is perhaps made again hands nothing on.
    let round = first_round(plan, with_out && plan.lazily.is_none());
    Some(RoundAsk { round, task: asks.task(&members, budget, now_unix_ns), targets })
}

/// Whether a fragment is asked for in the second round.
fn waits(plan: &Plan, fragment: usize) -> bool {
    plan.reductions.iter().any(|reduction| reduction.fragment == fragment)
        || plan.with_values.as_ref().is_some_and(|with_values| !with_values.first.contains(&fragment))
}

/// Some fragments of a plan that are asked for together: index in the plan, the fragment, its keys.
struct RoundFragments {
    fragments: Vec<(usize, Fragment, Vec<Value>)>,
}

impl RoundFragments {
    fn of(plan: &Plan, is_in: impl Fn(usize) -> bool) -> RoundFragments {
        let fragments = plan.fragments.iter().enumerate().filter(|(i, _)| is_in(*i));
        RoundFragments { fragments: fragments.map(|(i, fragment)| (i, fragment.clone(), Vec::new())).collect() }
    }

    fn all(plan: &Plan) -> RoundFragments {
        RoundFragments::of(plan, |_| true)
    }

    /// All but the fragments that wait for keys, or perhaps are not needed.
    fn first(plan: &Plan) -> RoundFragments {
        RoundFragments::of(plan, |i| !waits(plan, i))
    }

    /// The fragments that waited, reduced by what the first round brought where that is little
    /// (`rules/semijoin.rs`, `rules/correlated.rs`); `nodes` have answered it.
    fn second(
        plan: &Plan,
        conn: &Connection,
        tables: &[MergeTable],
        now_unix_ns: i64,
        nodes: usize,
        chosen: &mut Vec<String>,
    ) -> rusqlite::Result<RoundFragments> {
        let mut round = RoundFragments::of(plan, |i| waits(plan, i));
        let mut left_bytes = MAX_KEY_BYTES;
        for (i, fragment, values) in &mut round.fragments {
            let Some(reduction) = plan.reductions.iter().find(|reduction| reduction.fragment == *i) else { continue };
            match &reduction.by {
                ReductionBy::Driver(by) => {
                    let Some(table) = tables.get(by.driver) else { continue };
                    let (sql, why) = by_driver(by, fragment, conn, &table.name, values, &mut left_bytes)?;
                    fragment.sql = sql.unwrap_or_else(|| std::mem::take(&mut fragment.sql));
                    chosen.push(why);
                }
                ReductionBy::Rows(by) => {
                    let (sql, why) = by_rows(by, fragment, conn, tables, now_unix_ns, nodes, &mut left_bytes)?;
                    fragment.sql = sql.unwrap_or_else(|| std::mem::take(&mut fragment.sql));
                    chosen.push(why);
                }
            }
        }
        Ok(round)
    }

    /// Whom to ask for what: indices of these fragments by kind of target.
    fn groups(&self) -> Vec<(Targets, Vec<usize>)> {
        let mut groups: Vec<(Targets, Vec<usize>)> = Vec::new();
        // What some fragments ask of some nodes is sent with what others ask of all: one round, one
        // snapshot.
        let all = self.fragments.iter().any(|(_, fragment, _)| fragment.targets == Targets::All);
        let named: BTreeSet<String> = self
            .fragments
            .iter()
            .flat_map(|(_, fragment, _)| match &fragment.targets {
                Targets::Named(names) => names.clone(),
                Targets::All | Targets::AnyOne => Vec::new(),
            })
            .collect();
        for (at, (_, fragment, _)) in self.fragments.iter().enumerate() {
            let targets = match &fragment.targets {
                Targets::AnyOne => Targets::AnyOne,
                _ if all => Targets::All,
                _ => Targets::Named(named.iter().cloned().collect()),
            };
            match groups.iter_mut().find(|(other, _)| *other == targets) {
                Some((_, fragments)) => fragments.push(at),
                None => groups.push((targets, vec![at])),
            }
        }
        groups
    }

    /// The task of one group.
    fn task(&self, members: &[usize], budget: &Budget, now_unix_ns: i64) -> NodeTask {
        let members = || members.iter().filter_map(|at| self.fragments.get(*at));
        NodeTask {
            fragments: members().map(|(_, fragment, _)| fragment.clone()).collect(),
            keys: members().map(|(_, _, keys)| keys.clone()).collect(),
            now_unix_ns,
            budget: *budget,
            viewer: None,
        }
    }
}

/// The statement of a fragment that is reduced by its driver's keys, which become its `values`, and
/// by bounds, where either says something; and what was chosen.
fn by_driver(
    by: &ReducedByDriver,
    fragment: &Fragment,
    conn: &Connection,
    driver_table: &str,
    values: &mut Vec<Value>,
    left_bytes: &mut u64,
) -> rusqlite::Result<(Option<String>, String)> {
    let (table, driver) = (&fragment.table, by.driver);
    let mut conditions = Vec::new();
    for bound in &by.bounds {
        let value = conn.prepare_cached(&bound.sql)?.query_row([], |row| row.get_ref(0).map(Value::from_sqlite))?;
        let literal = match value {
            // No row of the driver has a value: no row of the fragment belongs to any.
            Value::Null => "NULL".to_owned(),
            // (The least integer has no literal.)
            Value::Integer(value) if value > i64::MIN => value.to_string(),
            _ => continue,
        };
        conditions.push(format!("{} {} {literal}", bound.column, bound.operator));
    }
    let bounds = if conditions.is_empty() { String::new() } else { format!(" that have {}", conditions.join(" AND ")) };
    let keys = match &by.keys {
        Some((column, driver_column)) => {
            keys(conn, driver_table, driver_column, left_bytes)?.map(|keys| (quoted(column), keys))
        }
        None => None,
    };
    let why = match &keys {
        Some((column, keys)) => {
            let marks = vec!["?"; keys.len()].join(", ");
            conditions.push(format!("{column} IN ({marks})"));
            format!("rows of {table}{bounds} by {} keys of fragment {driver}", keys.len())
        }
        None if !conditions.is_empty() => format!("rows of {table}{bounds} by the rows of fragment {driver}"),
        None => return Ok((None, format!("every row of {table}: the keys of fragment {driver} are too many"))),
    };
    *values = keys.map(|(_, keys)| keys).unwrap_or_default();
    let sql = by.with(&conditions);
    Ok((Some(sql), format!("{why}; otherwise every row that passes its filter would have been shipped")))
}

/// The statement of a fragment that is reduced by rows, where sending these to `nodes` is less than
/// shipping the fragment's own; and what was chosen.
fn by_rows(
    by: &ReducedByRows,
    fragment: &Fragment,
    conn: &Connection,
    tables: &[MergeTable],
    now_unix_ns: i64,
    nodes: usize,
    left_bytes: &mut u64,
) -> rusqlite::Result<(Option<String>, String)> {
    let all_rows = |why: &str| (None, format!("every row of {}: {why}", fragment.table));
    let counted = tables.get(by.counted).map_or("", |table| table.name.as_str());
    let counted: i64 =
        conn.query_row(&format!("SELECT coalesce(sum(n), 0) FROM {}", quoted(counted)), [], |row| row.get(0))?;
    let counted = usize::try_from(counted).unwrap_or(0);
    // What is sent to all nodes is to be less than what they would ship.
    let most = MAX_KEYS.min(counted.saturating_sub(1) / nodes.max(1));
    let too_many = || all_rows(&format!("more than {most} rows to match at each of {nodes} nodes, {counted} to ship"));
    let (mut sets, mut left) = (Vec::new(), most);
    for set in &by.sets {
        let Some(rows) = set_values(conn, set, left, now_unix_ns)? else { return Ok(too_many()) };
        left -= rows.len();
        sets.push(rows);
    }
    let rows = most - left;
    let bytes: u64 = sets.iter().flatten().flatten().map(Value::data_bytes).sum();
    if bytes > *left_bytes {
        return Ok(all_rows("the rows to match have too many bytes"));
    }
    let Some(sql) = with_sets(&by.sets, &sets, &by.sql) else {
        return Ok(all_rows("the rows to match cannot be written as values"));
    };
    *left_bytes -= bytes;
    let table = &fragment.table;
    Ok((Some(sql), format!("rows of {table} that match one of {rows}; otherwise {counted} would have been shipped")))
}

/// The distinct values of a column but NULL; None when they are too many.
fn keys(conn: &Connection, table: &str, column: &str, left_bytes: &mut u64) -> rusqlite::Result<Option<Vec<Value>>> {
    let (table, column) = (quoted(table), quoted(column));
    let sql = format!("SELECT DISTINCT {column} FROM {table} WHERE {column} IS NOT NULL LIMIT {}", MAX_KEYS + 1);
    let mut statement = conn.prepare_cached(&sql)?;
    let keys: Vec<Value> =
        statement.query_map([], |row| row.get_ref(0).map(Value::from_sqlite))?.collect::<Result<_, _>>()?;
    let bytes: u64 = keys.iter().map(Value::data_bytes).sum();
    if keys.len() > MAX_KEYS || bytes > *left_bytes {
        return Ok(None);
    }
    *left_bytes -= bytes;
    Ok(Some(keys))
}

/// One task for each kind of target; fragment indices are the plan's in the sink.
fn ask(
    round: &RoundFragments,
    fanout: &mut dyn Fanout,
    budget: &Budget,
    now_unix_ns: i64,
    stop: &Stop,
    answer: &mut Answer,
    sink: Sink<'_>,
) -> Result<(), RunError> {
    for (targets, members) in round.groups() {
        if stop.is_stopped() {
            return Err(RunError::Stopped("before all nodes were asked".to_owned()));
        }
        if targets == Targets::Named(Vec::new()) {
            continue;
        }
        let task = round.task(&members, budget, now_unix_ns);
        let stats = fanout.ask(&task, &targets, &mut |node, fragment, batch| {
            let (fragment, ..) = members
                .get(fragment)
                .and_then(|at| round.fragments.get(*at))
                .ok_or_else(|| RunError::Internal(format!("{node} answered fragment {fragment}")))?;
            sink(node, *fragment, batch)
        })?;
        let known: HashMap<String, usize> =
            answer.node_stats.iter().enumerate().map(|(at, (node, _))| (node.clone(), at)).collect();
        let mut notes: Vec<(String, Vec<String>)> = Vec::new();
        for (node, stat) in stats {
            for note in stat.notes.iter().filter(|note| !note.starts_with(RAN)) {
                match notes.iter_mut().find(|(known, _)| known == note) {
                    Some((_, nodes)) if nodes.last() == Some(&node) => {}
                    Some((_, nodes)) => nodes.push(node.clone()),
                    None => notes.push((note.clone(), vec![node.clone()])),
                }
            }
            match known.get(&node).and_then(|at| answer.node_stats.get_mut(*at)) {
                Some((_, sum)) => {
                    sum.rows = sum.rows.saturating_add(stat.rows);
                    sum.bytes = sum.bytes.saturating_add(stat.bytes);
                    sum.elapsed_ns = sum.elapsed_ns.saturating_add(stat.elapsed_ns);
                    sum.notes.extend(stat.notes);
                }
                None => answer.node_stats.push((node, stat)),
            }
        }
        // A note that many nodes send is kept once.
        for note in notes.into_iter().map(|(note, nodes)| format!("{} {note}", nodes.join(", "))) {
            if !answer.notes.contains(&note) {
                answer.notes.push(note);
            }
        }
    }
    Ok(())
}

/// What a question has gathered.
struct Meter {
    left: u64,
    limit: u64,
    /// The memory of the rows that stay in the answer, where the thread counts memory.
    memory: Option<SharedReservation>,
}

impl Meter {
    fn take(&mut self, bytes: u64, of: &str) -> Result<(), RunError> {
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            RunError::OverBudget(format!(
                "more than {} MiB at the coordinator while gathering {of}; narrow it with WHERE, fewer columns or LIMIT",
                self.limit >> 20
            ))
        })?;
        Ok(())
    }

    fn reserve(&self, bytes: u64) -> Result<(), RunError> {
        self.memory
            .as_ref()
            .map_or(Ok(()), |memory| memory.try_grow(bytes))
            .map_err(|why| RunError::OverBudget(why.to_string()))
    }
}

fn check_shape(batch: &Batch, width: usize, node: &str) -> Result<(), RunError> {
    if batch.is_well_formed(width) { Ok(()) } else { Err(RunError::Internal(format!("{node} sent a ragged batch"))) }
}

fn into_rows(batch: Batch) -> impl Iterator<Item = Vec<Value>> {
    let mut columns: Vec<_> = batch.columns.into_iter().map(Vec::into_iter).collect();
    (0..batch.rows).map(move |_| columns.iter_mut().map(|column| column.next().unwrap_or(Value::Null)).collect())
}

fn filled(table: &MergeTable) -> usize {
    table.columns.iter().filter(|column| column.filled).count().max(1)
}

/// The statement that puts a row into a merge table.
pub(crate) fn insert_sql(table: &MergeTable) -> String {
    let mut names: Vec<String> =
        table.columns.iter().filter(|column| column.filled).map(|column| quoted(&column.name)).collect();
    // No column is read: only the number of rows counts, and the fragment ships a NULL for each.
    if names.is_empty() {
        names.extend(table.columns.first().map(|column| quoted(&column.name)));
    }
    let marks = vec!["?"; names.len()].join(", ");
    format!("INSERT INTO {}({}) VALUES ({marks})", quoted(&table.name), names.join(", "))
}

/// Puts rows in with the statement of [`insert_sql`].
pub(crate) fn insert(conn: &Connection, statement: &mut Statement<'_>, batch: &Batch) -> rusqlite::Result<()> {
    // One transaction spares a journal entry a row; for a row or two it would cost more than it
    // spares.
    let transaction = if batch.rows > 8 { Some(conn.unchecked_transaction()?) } else { None };
    for row in 0..batch.rows as usize {
        statement.execute(rusqlite::params_from_iter(batch.columns.iter().map(|column| &column[row])))?;
    }
    transaction.map_or(Ok(()), rusqlite::Transaction::commit)
}

/// Rows of the merge; with `out` those that it was not given.
fn query(
    conn: &Connection,
    sql: &str,
    now_unix_ns: i64,
    meter: &mut Meter,
    mut out: Option<Out<'_>>,
) -> Result<Vec<Vec<Value>>, RunError> {
    let mut statement = conn.prepare_cached(sql).map_err(|error| internal(&error))?;
    let width = statement.column_count();
    bind(&mut statement, "", now_unix_ns).map_err(|error| internal(&error))?;
    let mut rows = statement.raw_query();
    let mut gathered = Vec::new();
    let mut bytes = 0;
    while let Some(row) = rows.next().map_err(|error| runtime(&error))? {
        let values: Vec<Value> = (0..width)
            .map(|i| row.get_ref(i).map(Value::from_sqlite))
            .collect::<Result<_, _>>()
            .map_err(|error| internal(&error))?;
        let more: u64 = values.iter().map(Value::data_bytes).sum();
        match &mut out {
            None => {
                meter.take(more, "the result")?;
                meter.reserve(values.iter().map(Value::size_bytes).sum())?;
                gathered.push(values);
            }
            Some(out) => {
                bytes += more;
                gathered.push(values);
                if gathered.len() >= TOGETHER_ROWS || bytes >= TOGETHER_BYTES {
                    bytes = 0;
                    out(std::mem::take(&mut gathered))?;
                }
            }
        }
    }
    Ok(gathered)
}

fn runtime(error: &rusqlite::Error) -> RunError {
    stopped(error).unwrap_or_else(|| RunError::Sql(message(error)))
}

fn internal(error: &rusqlite::Error) -> RunError {
    stopped(error).unwrap_or_else(|| RunError::Internal(format!("the merge failed: {}", message(error))))
}

/// Where the merge was stopped, by whatever, or is more than the little work that it was to be.
fn stopped(error: &rusqlite::Error) -> Option<RunError> {
    match error.sqlite_error_code()? {
        ErrorCode::OperationInterrupted => {}
        ErrorCode::OutOfMemory if stop::is_over_here() => {}
        ErrorCode::TooBig | ErrorCode::OutOfMemory if stop::is_short_here() => {}
        ErrorCode::OutOfMemory => {
            let why = memory::refused_here().unwrap_or(Refused::TooMuch);
            return Some(RunError::OverBudget(format!("the merge: {why}")));
        }
        _ => return None,
    }
    Some(RunError::Stopped("during the merge".to_owned()))
}
