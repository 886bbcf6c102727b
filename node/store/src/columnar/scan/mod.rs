//! Owns answering typed questions (`query_planner::scan`) from segments, column by column, without
//! SQLite's row machine.
//!
//! `schema` says which fragments are scans, `filter` decides which segments and rows a condition
//! admits, `values` reads the values of rows, `compute` works out what is made of several. `joins`
//! joins rows, `narrow` says beforehand which of them matter, `windows` adds columns that window
//! functions make. `keys` gives codes to what is grouped by, `groups` makes aggregates, `rows`
//! gives rows and the first k of an order, `out` hands rows out. Whatever is not understood, or
//! would not be exact, is left to SQLite and the virtual table (`Ok(None)`): the answers are the
//! same either way, which the tests hold against each other.

mod compute;
mod filter;
mod gather;
mod groups;
mod joins;
mod keys;
mod narrow;
mod out;
mod rows;
mod schema;
mod sorted;
#[cfg(test)]
mod tests;
mod values;
mod windows;

use std::borrow::Cow;

use query_planner::scan::{Column, Operand, Output, Scan, WindowCall, Windowed};
use query_planner::{Answered, Batch, Catalog, Fragment, FragmentExecutor, NodeError};
use rusqlite::Connection;

use super::elsewhere::{self, ARCHIVED_MODULE};
use super::encode::Encoded;
use super::form::time_of;
use super::pick::{Pick, admitted};
use super::segment::{Directory, Segment, SegmentError};
use super::{Kind, MODULE};
use filter::Filter;
use narrow::Narrowed;
use values::{Morsel, Values};

/// Rows that are worked on at a time: a few columns of them fit the processor's second cache.
const MORSEL: usize = 8192;

/// Answers parts from columns.
pub struct ColumnExecutor<'s> {
    /// Looked at before each segment.
    stop: &'s dyn Fn() -> bool,
    /// More rows than this to look at are not for here.
    most_rows: u64,
}

/// Emits batches.
type Emit<'e> = &'e mut dyn FnMut(Batch) -> Result<(), NodeError>;

impl<'s> ColumnExecutor<'s> {
    /// An executor that gives up with [`NodeError::Stopped`] once `stop` says so, or when more than
    /// `most_rows` rows would have to be looked at.
    pub fn new(stop: &'s dyn Fn() -> bool, most_rows: u64) -> Self {
        Self { stop, most_rows }
    }
}

impl FragmentExecutor for ColumnExecutor<'_> {
    fn execute(
        &self,
        conn: &Connection,
        fragment: &Fragment,
        node: &str,
        now_unix_ns: i64,
        emit: Emit<'_>,
    ) -> Result<Option<Answered>, NodeError> {
        let Some(scan) = schema::scan_of(conn, fragment) else { return Ok(None) };
        let asked = Asked { conn, node, now_unix_ns, stop: self.stop, most_rows: self.most_rows };
        let answered = in_pieces(&asked, &scan, emit).and_then(|answered| match answered {
            Some(answered) => Ok(answered),
            None => at_once(&asked, &scan, emit),
        });
        match answered {
            Ok(answered) => Ok(Some(answered)),
            Err(Failure::StepAside) => Ok(None),
            Err(Failure::Node(error)) => Err(error),
        }
    }

    fn understands(&self, conn: &Connection, fragment: &Fragment) -> bool {
        schema::scan_of(conn, fragment).is_some()
    }
}

/// Answer a scan from all its rows at once.
fn at_once(asked: &Asked<'_>, scan: &Scan, emit: Emit<'_>) -> Result<Answered, Failure> {
    let Asked { node, now_unix_ns, .. } = *asked;
    with_work(asked, scan, Of::All, |work, from| {
        let (summaries, admitted) = match &scan.output {
            Output::Groups(groups) => {
                let answered = groups::answer(work, groups, node, now_unix_ns, emit)?;
                answered.map(|(summaries, rows)| (summaries, Some(rows)))
            }
            Output::Rows(rows) => rows::answer(work, rows, node, now_unix_ns, emit)?.then_some((0, None)),
        }
        .ok_or(StepAside)?;
        Ok(Answered { from: from.description(summaries), admitted: from.sides.or(admitted) })
    })
}

/// Answer a scan that makes groups of a join whose first side is long: joined rows are not kept,
/// but go into their groups a piece at a time. None where it is no such scan.
fn in_pieces(asked: &Asked<'_>, scan: &Scan, emit: Emit<'_>) -> Result<Option<Answered>, Failure> {
    let (Some(joined), Output::Groups(groups), None) = (&scan.joined, &scan.output, &scan.windowed) else {
        return Ok(None);
    };
    if !groups::looks_once(groups) {
        return Ok(None);
    }
    let Asked { node, now_unix_ns, .. } = *asked;
    let mut grouping: Option<groups::Grouping> = None;
    let made = joins::in_pieces(asked, joined, &mut |segment| {
        with_work(asked, scan, Of::These(segment), |work, _| {
            let grouping = match &mut grouping {
                Some(grouping) => grouping,
                none => none.insert(groups::Grouping::of(work, groups)?),
            };
            grouping.add(work, groups).map(drop)
        })
    })?;
    let (Some((description, sides)), Some(grouping)) = (made, grouping) else { return Ok(None) };
    let nothing = Segment::in_memory(0, 0, Vec::new());
    let rows = with_work(asked, scan, Of::These(&nothing), |work, _| grouping.finish(work, groups, node, now_unix_ns))?;
    out::emit_rows(rows, groups.shown, emit)?;
    Ok(Some(Answered { from: format!("columns: {description}"), admitted: Some(sides) }))
}

/// Which of a scan's rows.
#[derive(Clone, Copy)]
enum Of<'o> {
    All,
    /// Those that lie in ranges.
    In(&'o [Narrowed]),
    /// Joined rows that are there.
    These(&'o Segment),
}

/// Who asks, and what that may take.
struct Asked<'a> {
    conn: &'a Connection,
    node: &'a str,
    now_unix_ns: i64,
    stop: &'a dyn Fn() -> bool,
    most_rows: u64,
}

impl Asked<'_> {
    fn go_on(&self) -> Result<(), NodeError> {
        if (self.stop)() { Err(NodeError::Stopped("interrupted".to_owned())) } else { Ok(()) }
    }
}

/// What a scan was answered from.
struct Origin {
    /// The table, or what was joined.
    what: String,
    segments: usize,
    /// Segments that cannot have a row.
    pruned: usize,
    /// Rows that windows saw.
    windowed: Option<usize>,
    /// Rows of all sides, where it is a join.
    sides: Option<u64>,
}

impl Origin {
    fn description(&self, summaries: usize) -> String {
        let Self { what, segments, pruned, windowed, sides } = self;
        let windows = windowed.map_or_else(String::new, |rows| format!(", windows over {rows} rows"));
        if sides.is_some() {
            return format!("columns: {what}{windows}");
        }
        let kinds = [(summaries, "rollups"), (segments - summaries, "columns")];
        let used: Vec<String> = kinds
            .iter()
            .filter(|(count, _)| *count > 0 || (segments - summaries == 0 && summaries == 0))
            .map(|(count, kind)| format!("{kind} of {count} segments"))
            .collect();
        format!("{what}: {}{windows} ({pruned} more ruled out by their ranges)", used.join(", "))
    }
}

/// Do `with` for what a scan's output is made of; SQLite does what is not understood.
fn with_work<T>(
    asked: &Asked<'_>,
    scan: &Scan,
    of: Of<'_>,
    with: impl FnOnce(&Work<'_>, &Origin) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let Asked { conn, node, now_unix_ns, stop, .. } = *asked;
    let kind = |is_text: bool| if is_text { Kind::Text } else { Kind::Integer };
    let table = scan.table.to_ascii_lowercase();
    let mut kinds: Vec<(String, Kind)> = match &scan.joined {
        None => schema::columns(conn, &table).ok().flatten().ok_or(StepAside)?.to_vec(),
        Some(joined) => joined.columns().map(|column| (column.name.clone(), kind(column.is_text))).collect(),
    };
    kinds.extend(scan.derived.iter().map(|derived| (derived.name.clone(), kind(derived.by.is_text()))));
    if let Some(windowed) = &scan.windowed {
        let of_call = |call: &WindowCall| (call.column.name.clone(), kind(call.column.is_text));
        kinds.extend(windowed.calls.iter().map(of_call));
    }
    let is_blob = |name: &&str| kinds.iter().any(|(column, kind)| column == name && *kind == Kind::Blob);
    // Aggregates know what bytes may be.
    if matches!(scan.output, Output::Rows(_)) && scan.columns().iter().any(is_blob) {
        return Err(Failure::StepAside);
    }
    let first = before_windows(scan);
    // What is wrong with a constant, SQLite says in its own words.
    let filter_of = |scan: &Scan| match Filter::of(conn, scan, &kinds, node, now_unix_ns) {
        Ok(Some(filter)) => Ok(filter),
        Ok(None) | Err(_) => Err(StepAside),
    };
    let mut filter = filter_of(&first)?;
    if let Of::In(ranges) = of {
        filter.narrow(ranges);
    }
    let is_integer = |name: &str| kinds.iter().any(|(column, kind)| column == name && *kind == Kind::Integer);
    let are_integers = |of: &[Operand]| of.iter().flat_map(Operand::columns).all(is_integer);
    if !are_integers(&first.predicates) || !are_integers(&scan.predicates) {
        return Err(Failure::StepAside);
    }
    let (mut what, mut all) = (table.clone(), 1);
    let mut joined_rows = None;
    let segments: Vec<Segment> = match (&scan.joined, of) {
        (_, Of::These(segment)) => {
            Some(segment.clone()).filter(|segment| filter.may_hold(segment)).into_iter().collect()
        }
        (None, _) => {
            let found = segments(asked, &table, filter.times(time_of(&table)))?;
            all = found.len();
            found.into_iter().filter(|segment| filter.may_hold(segment)).collect()
        }
        (Some(joined), _) => {
            let rows = joined_rows.insert(joins::rows(asked, joined)?);
            what.clone_from(&rows.description);
            if filter.may_hold(&rows.segment) { vec![rows.segment.clone()] } else { Vec::new() }
        }
    };
    if scan.joined.is_none() && takes_too_many_rows(asked, &filter, &segments).map_err(failed)? {
        return Err(NodeError::Stopped("too many rows to look at on the spot".to_owned()).into());
    }
    let predicates = first.predicates.as_slice();
    let mut work = Work { conn, table: &table, kinds: &kinds, filter: &filter, predicates, segments: &segments, stop };
    let mut windowed = None;
    if let Some(before) = &scan.windowed {
        let after = filter_of(scan)?;
        let mut added = windows::add(&work, scan, before)?;
        added.segments.retain(|segment| after.may_hold(segment));
        windowed = Some((added, after));
    }
    if let Some((added, after)) = &windowed {
        work = Work { table: "", filter: after, predicates: &scan.predicates, segments: &added.segments, ..work };
    }
    let from = Origin {
        what,
        segments: segments.len(),
        pruned: all.saturating_sub(segments.len()),
        windowed: windowed.as_ref().map(|(added, _)| added.rows),
        sides: scan.joined.as_ref().map(|_| joined_rows.as_ref().map_or(0, |rows| rows.sides)),
    };
    with(&work, &from)
}

/// Columns are opened of so many segments at most to find out whether a scan is small.
const MOST_OPENED: usize = 8;

/// Whether more rows have to be looked at than the caller allows: where conditions cut a segment,
/// those of the blocks that they leave.
fn takes_too_many_rows(asked: &Asked<'_>, filter: &Filter, segments: &[Segment]) -> Result<bool, SegmentError> {
    let all: u64 = segments.iter().map(|segment| segment.rows as u64).sum();
    if all <= asked.most_rows || segments.len() > MOST_OPENED {
        return Ok(all > asked.most_rows);
    }
    let mut left = 0_u64;
    for segment in segments {
        let picks = filter.of_segment(asked.conn, segment)?;
        left += picks.first().map_or(segment.rows, |pick| pick.rows_left().min(segment.rows)) as u64;
        if left > asked.most_rows {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The segments of a table that may hold rows from the first to the second time.
fn segments(asked: &Asked<'_>, table: &str, times: (i64, i64)) -> Result<Vec<Segment>, Failure> {
    let Asked { conn, most_rows, .. } = *asked;
    let Some(elsewhere) = elsewhere::columns(conn) else {
        return Ok(Directory::load(conn, table, times).map_err(failed)?.segments);
    };
    if most_rows < u64::MAX {
        // To know how many there are takes reading.
        return Err(NodeError::Stopped("not on the spot".to_owned()).into());
    }
    let kinds = schema::columns(conn, table).ok().flatten().ok_or(StepAside)?;
    let parts = elsewhere.parts(table, times).map_err(|error| failed(error.into()))?.ok_or(StepAside)?;
    Ok(parts.into_iter().map(|part| Segment::elsewhere(table, part, &kinds)).collect())
}

/// What is asked of the rows that windows see, where there are any; else the scan itself.
fn before_windows(scan: &Scan) -> Cow<'_, Scan> {
    match scan.windowed.clone() {
        None => Cow::Borrowed(scan),
        Some(Windowed { filter, predicates, gates, .. }) => {
            Cow::Owned(Scan { filter, predicates, gates, windowed: None, ..scan.clone() })
        }
    }
}

/// What a scan works on.
struct Work<'w> {
    conn: &'w Connection,
    table: &'w str,
    kinds: &'w [(String, Kind)],
    filter: &'w Filter,
    predicates: &'w [Operand],
    segments: &'w [Segment],
    stop: &'w dyn Fn() -> bool,
}

impl Work<'_> {
    fn go_on(&self) -> Result<(), NodeError> {
        if (self.stop)() { Err(NodeError::Stopped("interrupted".to_owned())) } else { Ok(()) }
    }

    fn column(&self, segment: &Segment, name: &str) -> Result<Encoded, NodeError> {
        self.filter.column(self.conn, segment, name).map_err(failed)
    }

    fn kind(&self, column: &str) -> Kind {
        self.kinds.iter().find(|(name, _)| name == column).map_or(Kind::Integer, |(_, kind)| *kind)
    }
}

fn failed(error: SegmentError) -> NodeError {
    match error {
        SegmentError::Sqlite(error) => NodeError::of_sqlite(&error),
        other => NodeError::Failed(other.to_string()),
    }
}

fn damaged(segment: &Segment, column: &str) -> NodeError {
    failed(segment.damaged(column.to_owned()))
}

/// Put into `rows` (relative to `start`) those of the next `len` rows that all conditions admit.
fn wanted(
    picks: &mut [Pick],
    predicates: &mut [Values],
    (segment, start, len): (&Segment, usize, usize),
    rows: &mut Vec<u32>,
) -> Result<(), Failure> {
    admitted(picks, segment, start, len, rows).map_err(failed)?;
    for predicate in predicates {
        if rows.is_empty() {
            return Ok(());
        }
        predicate.read(Morsel { segment, start, len, rows })?;
        let mut at = 0;
        rows.retain(|_| {
            at += 1;
            predicate.vector.is_true(at - 1)
        });
    }
    Ok(())
}

/// Too much for here, or not integers after all: SQLite does it.
struct StepAside;

enum Failure {
    Node(NodeError),
    StepAside,
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        Self::Node(error)
    }
}

impl From<StepAside> for Failure {
    fn from(_: StepAside) -> Self {
        Self::StepAside
    }
}

/// Whether a table that is made by such a statement is one whose columns are here.
fn has_columns(sql: &str) -> bool {
    [MODULE, ARCHIVED_MODULE].iter().any(|module| sql.contains(&*module.to_string_lossy()))
}

/// Whether a node with tables as in `catalog` answers such a part from columns.
pub fn understands(catalog: &Catalog, fragment: &Fragment) -> bool {
    let of_table = |name: &str| {
        let table = catalog.tables.get(&name.to_ascii_lowercase()).filter(|table| has_columns(&table.sql))?;
        let is_text = |decl_type: &str| Kind::declared(decl_type) == Kind::Text;
        let column = |column: &query_planner::Column| Column::of_text(column.name.clone(), is_text(&column.decl_type));
        Some(table.columns.iter().map(column).collect())
    };
    let of_view = |name: &str| catalog.tables.get(&name.to_ascii_lowercase()).map(|table| table.sql.clone());
    let of_plain = |name: &str| {
        let table = catalog.tables.get(&name.to_ascii_lowercase()).filter(|table| schema::is_stored(&table.sql))?;
        let column = |column: &query_planner::Column| {
            (column.name.clone(), schema::plain_column(&column.name, &column.decl_type, &column.collation))
        };
        Some(table.columns.iter().map(column).collect())
    };
    Scan::through_views(&fragment.sql, &of_table, &of_plain, &of_view).is_some()
}
