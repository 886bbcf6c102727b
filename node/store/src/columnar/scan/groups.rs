//! Owns aggregates by group over segments. Rows are given to groups through the codes of the
//! grouping columns: a group is looked up once for each combination of codes in a segment, not for
//! each row.

use query_planner::memory::Held;
use query_planner::scan::{Function, GroupColumn, Groups, Operand, Order, evaluate};
use query_planner::states::{Bracket, Buckets, Quantiles, Sum, read_stored, runs_state};
use query_planner::{Batch, NodeError, Value};

use super::super::Kind;
use super::super::encode::{Cell, Encoded, Entries, Scalar};
use super::super::pick::{Pick, admitted};
use super::super::segment::Segment;
use super::super::segment::summary;
use super::{Emit, MORSEL, Work, damaged, failed};
use crate::FastMap;

/// Groups beyond which SQLite does it, on disk if it must.
const MOST_GROUPS: usize = 1 << 20;
/// Combinations of codes for which a table is kept in place of a map.
const DENSE: u64 = 1 << 17;
/// Integers that are gathered for exact percentiles beyond which SQLite does it.
const MOST_GATHERED: usize = 64 << 20;
/// Rows of a batch.
const BATCH_ROWS: usize = 4096;

/// What is kept of an aggregate's argument for a group.
#[derive(Debug, Clone, Copy)]
struct Basic {
    count: i64,
    sum: i128,
    least: i64,
    greatest: i64,
}

const NO_VALUES: Basic = Basic { count: 0, sum: 0, least: i64::MAX, greatest: i64::MIN };

/// What a different argument of the aggregates needs.
struct Argument {
    operand: Operand,
    basics: Vec<Basic>,
    wants_basics: bool,
    quantiles: Option<Vec<Quantiles>>,
    /// Integers of each group, all or those of its brackets.
    gathered: Option<Vec<Vec<i64>>>,
}

/// The groups found so far.
#[derive(Default)]
struct Found {
    index: FastMap<Vec<Scalar>, u32>,
    keys: Vec<Vec<Scalar>>,
    rows: Vec<u64>,
}

/// A percentile that is asked for: of which argument, which fraction.
#[derive(Clone, Copy, PartialEq)]
struct Exact {
    argument: usize,
    fraction: f64,
    discrete: bool,
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

/// How many segments were answered from their summaries; None when SQLite has to do it.
pub(super) fn answer(
    work: &Work<'_>,
    groups: &Groups,
    node: &str,
    now_unix_ns: i64,
    emit: Emit<'_>,
) -> Result<Option<usize>, NodeError> {
    match rows_of(work, groups, node, now_unix_ns) {
        Ok((rows, summaries)) => {
            give(rows, groups.columns.len(), emit)?;
            Ok(Some(summaries))
        }
        Err(Failure::StepAside) => Ok(None),
        Err(Failure::Node(error)) => Err(error),
    }
}

/// Hand rows out as batches.
pub(super) fn give(rows: Vec<Vec<Value>>, width: usize, emit: Emit<'_>) -> Result<(), NodeError> {
    let mut rows = rows.into_iter().peekable();
    while rows.peek().is_some() {
        let mut batch = Batch { rows: 0, columns: vec![Vec::new(); width] };
        for row in rows.by_ref().take(BATCH_ROWS) {
            batch.rows += 1;
            batch.columns.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
        }
        emit(batch)?;
    }
    Ok(())
}

fn rows_of(
    work: &Work<'_>,
    groups: &Groups,
    node: &str,
    now_unix_ns: i64,
) -> Result<(Vec<Vec<Value>>, usize), Failure> {
    let mut arguments: Vec<Argument> = Vec::new();
    let mut exact: Vec<Exact> = Vec::new();
    for column in &groups.columns {
        let GroupColumn::Aggregate(function, Some(operand)) = column else { continue };
        let is_text = matches!(operand, Operand::Column(name) if work.kind(name) == Kind::Text);
        let computes_text = !matches!(operand, Operand::Column(_))
            && operand.columns().iter().any(|name| work.kind(name) != Kind::Integer);
        // Bytes are sketches, or SQLite says what is wrong with them.
        let is_blob = matches!(operand, Operand::Column(name) if work.kind(name) == Kind::Blob);
        let takes_sketches = matches!(function, Function::SketchState | Function::Quantile(_));
        if computes_text
            || (is_text && *function != Function::Count)
            || (is_blob && *function != Function::Count && !takes_sketches)
        {
            return Err(Failure::StepAside);
        }
        let at = match arguments.iter().position(|argument| argument.operand == *operand) {
            Some(at) => at,
            None => {
                let (basics, wants_basics) = (Vec::new(), false);
                arguments.push(Argument {
                    operand: operand.clone(),
                    basics,
                    wants_basics,
                    quantiles: None,
                    gathered: None,
                });
                arguments.len() - 1
            }
        };
        let argument = &mut arguments[at];
        match function {
            Function::SketchState | Function::Quantile(_) => argument.quantiles = Some(Vec::new()),
            Function::RunsState => argument.gathered = Some(Vec::new()),
            Function::Percentile { fraction, discrete } => {
                argument.quantiles = Some(Vec::new());
                exact.push(Exact { argument: at, fraction: *fraction, discrete: *discrete });
            }
            _ => argument.wants_basics = true,
        }
    }
    for key in &groups.keys {
        let is_text = |name: &&str| work.kind(name) == Kind::Text;
        let is_blob = |name: &&str| work.kind(name) == Kind::Blob;
        let columns = key.columns();
        if columns.iter().any(is_blob) || (columns.iter().any(is_text) && !matches!(key, Operand::Column(_))) {
            return Err(Failure::StepAside);
        }
    }
    let mut found = Found::default();
    if groups.keys.is_empty() {
        found.group(Vec::new(), &mut arguments)?;
    }
    let summed = Summed::of(work, groups, &arguments);
    let mut summaries = 0;
    let mut held = Held::default();
    for segment in work.segments {
        work.go_on()?;
        hold(&mut held, &found, &arguments)?;
        if let Some(summed) = &summed
            && summed.add(work, segment, &mut found, &mut arguments)?
        {
            summaries += 1;
            continue;
        }
        scan_segment(work, segment, groups, &mut found, &mut arguments, None)?;
    }
    hold(&mut held, &found, &arguments)?;
    let mut percentiles: Vec<(Exact, Vec<Value>)> = Vec::new();
    for wanted in exact {
        if !percentiles.iter().any(|(other, _)| *other == wanted) {
            let values = exact_percentiles(work, groups, &mut found, &mut arguments, wanted)?;
            percentiles.push((wanted, values));
        }
    }
    Ok((finish(work, groups, &found, arguments, &percentiles, node, now_unix_ns)?, summaries))
}

/// A question that the summaries of segments answer: grouped by columns that they group by, over
/// the column that they sum up.
struct Summed {
    keys: &'static [&'static str],
    /// The places of the question's keys among them.
    places: Vec<usize>,
    with_quantiles: bool,
}

impl Summed {
    fn of(work: &Work<'_>, groups: &Groups, arguments: &[Argument]) -> Option<Self> {
        let (keys, value) = summary::summed(work.table)?;
        let column = |operand: &Operand| match operand {
            Operand::Column(name) => Some(name.clone()),
            _ => None,
        };
        let fits = |argument: &Argument| {
            column(&argument.operand).is_some_and(|name| name == value) && argument.gathered.is_none()
        };
        if !arguments.iter().all(fits) {
            return None;
        }
        let place = |key: &Operand| keys.iter().position(|name| column(key).is_some_and(|key| key == *name));
        let places = groups.keys.iter().map(place).collect::<Option<_>>()?;
        Some(Self { keys, places, with_quantiles: arguments.iter().any(|argument| argument.quantiles.is_some()) })
    }

    /// Add what a segment's summary says of the rows that the conditions admit. False when it has
    /// none, or when the conditions cut through its groups: then its rows are to be looked at.
    fn add(
        &self,
        work: &Work<'_>,
        segment: &Segment,
        found: &mut Found,
        arguments: &mut [Argument],
    ) -> Result<bool, Failure> {
        let Some(admits) = work.filter.of_summary(segment, self.keys) else { return Ok(false) };
        let Some(groups) = summary::read(work.conn, segment, self.with_quantiles).map_err(failed)? else {
            return Ok(false);
        };
        for group in groups.into_iter().filter(|group| admits(&group.key)) {
            let key = self.places.iter().map(|place| group.key[*place].clone()).collect();
            let at = found.group(key, arguments)? as usize;
            found.rows[at] += group.count;
            for argument in arguments.iter_mut() {
                let basic = &mut argument.basics[at];
                basic.count += group.count.cast_signed();
                basic.sum += group.sum;
                basic.least = basic.least.min(group.least);
                basic.greatest = basic.greatest.max(group.greatest);
                if let Some(all) = &mut argument.quantiles {
                    let (zeros, counts) = &group.buckets;
                    all[at].add_counts(*zeros, counts, (group.least, group.greatest));
                }
            }
        }
        Ok(true)
    }
}

/// An exact percentile of every group: the sketch brackets it, a second look gathers what lies in
/// the bracket.
fn exact_percentiles(
    work: &Work<'_>,
    groups: &Groups,
    found: &mut Found,
    arguments: &mut [Argument],
    wanted: Exact,
) -> Result<Vec<Value>, Failure> {
    let Exact { argument, fraction, discrete } = wanted;
    let brackets: Vec<Option<Bracket>> = arguments[argument].quantiles.as_ref().map_or_else(Vec::new, |all| {
        all.iter().map(|quantiles| quantiles.bracket(Buckets::table(), fraction, discrete)).collect()
    });
    let mut again = [Argument {
        operand: arguments[argument].operand.clone(),
        basics: vec![NO_VALUES; found.keys.len()],
        wants_basics: false,
        quantiles: None,
        gathered: Some(vec![Vec::new(); found.keys.len()]),
    }];
    let mut held = Held::default();
    for segment in work.segments {
        work.go_on()?;
        hold(&mut held, found, &again)?;
        scan_segment(work, segment, groups, found, &mut again, Some(&brackets))?;
    }
    hold(&mut held, found, &again)?;
    let [again] = again;
    let gathered = again.gathered.unwrap_or_default();
    Ok(gathered
        .into_iter()
        .zip(brackets)
        .map(|(mut values, bracket)| {
            bracket.map_or(Value::Null, |bracket| bracket.percentile(&mut values, fraction, discrete))
        })
        .collect())
}

/// Counts what is kept for groups as the question's memory.
fn hold(held: &mut Held, found: &Found, arguments: &[Argument]) -> Result<(), NodeError> {
    // A key stands in the list and in the index.
    let of_group = 2 * size_of::<Vec<Scalar>>() + size_of::<u32>() + size_of::<u64>();
    let width = found.keys.first().map_or(0, Vec::len);
    let keys = found.keys.len() * (of_group + 2 * width * size_of::<Scalar>());
    let of_argument = |argument: &Argument| {
        let quantiles = argument.quantiles.iter().flatten();
        let gathered = argument.gathered.iter().flatten();
        argument.basics.len() * size_of::<Basic>()
            + quantiles.map(|all| size_of::<Quantiles>() + all.heap_bytes()).sum::<usize>()
            + gathered.map(|all| size_of::<Vec<i64>>() + all.capacity() * size_of::<i64>()).sum::<usize>()
    };
    let bytes = keys + arguments.iter().map(of_argument).sum::<usize>();
    if held.is_within(bytes) { Ok(()) } else { Err(NodeError::out_of_memory()) }
}

impl Found {
    /// The number of a group; a new one gets room in every argument.
    fn group(&mut self, key: Vec<Scalar>, arguments: &mut [Argument]) -> Result<u32, StepAside> {
        if let Some(group) = self.index.get(&key) {
            return Ok(*group);
        }
        if self.keys.len() >= MOST_GROUPS {
            return Err(StepAside);
        }
        let group = self.keys.len() as u32;
        self.index.insert(key.clone(), group);
        self.keys.push(key);
        self.rows.push(0);
        for argument in arguments {
            argument.basics.push(NO_VALUES);
            argument.quantiles.iter_mut().for_each(|all| all.push(Quantiles::default()));
            argument.gathered.iter_mut().for_each(|all| all.push(Vec::new()));
        }
        Ok(group)
    }
}

/// A grouping value within a segment: its codes.
struct KeyCodes {
    source: Values,
    /// Codes given to integers that have no dictionary; the last is NULL's.
    given: FastMap<Option<i64>, u32>,
    names: Vec<Scalar>,
    /// More than any code.
    size: u64,
    codes: Vec<u32>,
}

impl KeyCodes {
    fn open(work: &Work<'_>, segment: &Segment, operand: &Operand) -> Result<Self, Failure> {
        let source = Values::open(work, segment, operand)?;
        let size = match source.entries() {
            Some(entries) => entries as u64 + 1,
            None if source.is_constant() => 1,
            None => segment.rows as u64 + 1,
        };
        Ok(Self { source, given: FastMap::default(), names: Vec::new(), size, codes: Vec::new() })
    }

    /// The codes of a morsel's rows.
    fn read(&mut self, segment: &Segment, start: usize, len: usize) -> Result<(), Failure> {
        self.source.read(segment, start, len)?;
        self.codes.clear();
        if self.source.is_constant() {
            self.codes.resize(len, 0);
        } else if self.source.entries().is_some() {
            self.codes.extend(self.source.buffer.iter().map(|code| *code as u32));
        } else {
            let mut last: (Option<i64>, u32) = (None, u32::MAX);
            for row in 0..len {
                let value = self.source.integer(start, row);
                if last.1 == u32::MAX || last.0 != value {
                    let next = self.names.len() as u32;
                    let code = *self.given.entry(value).or_insert(next);
                    if code == next {
                        self.names.push(value.map_or(Scalar::Null, Scalar::Integer));
                    }
                    last = (value, code);
                }
                self.codes.push(last.1);
            }
        }
        Ok(())
    }

    fn name(&self, code: u64) -> Scalar {
        if let Some(value) = self.source.constant() {
            return value;
        }
        match &self.source.column {
            Some(column) if column.entries().is_some() => {
                match column.entries().map_or(Cell::Null, |entries| entries.at(code as i64)) {
                    Cell::Null => Scalar::Null,
                    Cell::Integer(value) => Scalar::Integer(value),
                    Cell::Text(text) => Scalar::Text(text.to_vec()),
                }
            }
            _ => self.names.get(code as usize).cloned().unwrap_or(Scalar::Null),
        }
    }
}

/// The values of an operand in a segment, a morsel at a time.
struct Values {
    operand: Operand,
    /// The column, when that is all it is.
    column: Option<Encoded>,
    /// What arithmetic is made of.
    parts: Vec<(String, Values)>,
    buffer: Vec<i64>,
    /// Of arithmetic: which are NULL.
    nulls: Vec<bool>,
}

impl Values {
    fn open(work: &Work<'_>, segment: &Segment, operand: &Operand) -> Result<Self, Failure> {
        let mut values =
            Self { operand: operand.clone(), column: None, parts: Vec::new(), buffer: Vec::new(), nulls: Vec::new() };
        match operand {
            Operand::Column(name) => values.column = Some(work.column(segment, name)?),
            other => {
                for name in other.columns() {
                    if !values.parts.iter().any(|(known, _)| known == name) {
                        let part = Self::open(work, segment, &Operand::Column(name.to_owned()))?;
                        values.parts.push((name.to_owned(), part));
                    }
                }
            }
        }
        Ok(values)
    }

    fn constant(&self) -> Option<Scalar> {
        self.column.as_ref().and_then(|column| column.constant().cloned())
    }

    fn is_constant(&self) -> bool {
        self.column.as_ref().is_some_and(|column| column.constant().is_some())
    }

    fn entries(&self) -> Option<usize> {
        self.column.as_ref().and_then(|column| column.entries().map(Entries::len))
    }

    fn read(&mut self, segment: &Segment, start: usize, len: usize) -> Result<(), Failure> {
        self.buffer.resize(len, 0);
        if let Some(column) = &self.column {
            column.read(start, &mut self.buffer).ok_or_else(|| damaged(segment, "a column"))?;
            return Ok(());
        }
        for (_, part) in &mut self.parts {
            part.read(segment, start, len)?;
        }
        self.nulls.resize(len, false);
        for row in 0..len {
            let value = self.computed(&self.operand, start, row)?;
            self.nulls[row] = value.is_none();
            self.buffer[row] = value.unwrap_or(0);
        }
        Ok(())
    }

    /// SQLite's integer arithmetic; where it would turn to doubles, SQLite does it.
    fn computed(&self, operand: &Operand, start: usize, row: usize) -> Result<Option<i64>, StepAside> {
        Ok(match operand {
            Operand::Integer(value) => Some(*value),
            Operand::Column(name) => {
                self.parts.iter().find(|(part, _)| part == name).and_then(|(_, part)| part.integer(start, row))
            }
            Operand::Arithmetic(a, operator, b) => {
                let (Some(a), Some(b)) = (self.computed(a, start, row)?, self.computed(b, start, row)?) else {
                    return Ok(None);
                };
                match operator {
                    '+' => Some(a.checked_add(b).ok_or(StepAside)?),
                    '-' => Some(a.checked_sub(b).ok_or(StepAside)?),
                    '*' => Some(a.checked_mul(b).ok_or(StepAside)?),
                    '/' | '%' if b == 0 => None,
                    '/' => Some(a.checked_div(b).ok_or(StepAside)?),
                    _ => Some(a.checked_rem(b).unwrap_or(0)),
                }
            }
        })
    }

    /// The integer of a row of the morsel that was read.
    fn integer(&self, start: usize, row: usize) -> Option<i64> {
        let value = self.buffer[row];
        match &self.column {
            None => (!self.nulls[row]).then_some(value),
            Some(column) => match (column.constant(), column.entries()) {
                (Some(Scalar::Integer(value)), _) => Some(*value),
                (Some(_), _) => None,
                (None, Some(entries)) => match entries.at(value) {
                    Cell::Integer(value) => Some(value),
                    _ => None,
                },
                (None, None) => {
                    let at = start + row;
                    let valid = column.valid().is_none_or(|valid| valid[at / 8] >> (at % 8) & 1 == 1);
                    valid.then_some(value)
                }
            },
        }
    }

    /// Whether a row is not NULL, for `count(x)` of any kind.
    fn is_some(&self, start: usize, row: usize) -> bool {
        match &self.column {
            Some(column) => match (column.constant(), column.entries()) {
                (Some(value), _) => *value != Scalar::Null,
                (None, Some(entries)) => entries.at(self.buffer[row]) != Cell::Null,
                (None, None) => self.integer(start, row).is_some(),
            },
            None => !self.nulls[row],
        }
    }

    /// Turn codes into integers in place, where no value is NULL: then the buffer is all there is
    /// to it.
    fn settle(&mut self) -> bool {
        let Some(column) = &self.column else { return !self.nulls.contains(&true) };
        match (column.constant(), column.entries()) {
            (Some(value), _) => matches!(value, Scalar::Integer(_)),
            (None, Some(Entries::Integers(entries))) => {
                let has_null = self.buffer.iter().any(|code| *code as usize >= entries.len());
                if !has_null {
                    self.buffer.iter_mut().for_each(|code| *code = entries[*code as usize]);
                }
                !has_null
            }
            (None, Some(_)) => false,
            (None, None) => column.valid().is_none(),
        }
    }
}

/// Add a segment's rows to the groups. With `brackets`, only integers in their group's bracket are
/// gathered and nothing else is counted.
fn scan_segment(
    work: &Work<'_>,
    segment: &Segment,
    groups: &Groups,
    found: &mut Found,
    arguments: &mut [Argument],
    brackets: Option<&[Option<Bracket>]>,
) -> Result<(), Failure> {
    let mut picks: Vec<Pick> = work.filter.of_segment(work.conn, segment).map_err(failed)?;
    let mut keys: Vec<KeyCodes> =
        groups.keys.iter().map(|key| KeyCodes::open(work, segment, key)).collect::<Result<_, _>>()?;
    let mut values: Vec<Values> =
        arguments.iter().map(|argument| Values::open(work, segment, &argument.operand)).collect::<Result<_, _>>()?;
    let combinations = keys.iter().try_fold(1_u64, |all, key| all.checked_mul(key.size)).ok_or(Failure::StepAside)?;
    // Group by combination of codes; 0 is "not looked up yet".
    let mut dense: Vec<u32> = if combinations <= DENSE { vec![0; combinations as usize] } else { Vec::new() };
    let mut sparse: FastMap<u64, u32> = FastMap::default();
    let mut rows: Vec<u32> = Vec::with_capacity(MORSEL);
    let mut group_of: Vec<u32> = Vec::with_capacity(MORSEL);
    let mut start = 0;
    while start < segment.rows {
        let len = MORSEL.min(segment.rows - start);
        admitted(&mut picks, segment, start, len, &mut rows).map_err(failed)?;
        if rows.is_empty() {
            start += len;
            continue;
        }
        group_of.clear();
        if keys.is_empty() {
            group_of.resize(rows.len(), 0);
        } else {
            for key in &mut keys {
                key.read(segment, start, len)?;
            }
            for &row in &rows {
                let mut combined = 0_u64;
                for key in &keys {
                    combined = combined * key.size + u64::from(key.codes[row as usize]);
                }
                let slot = match dense.get_mut(combined as usize) {
                    Some(slot) => slot,
                    None if combinations > DENSE => sparse.entry(combined).or_insert(0),
                    None => return Err(damaged(segment, "a column").into()),
                };
                if *slot == 0 {
                    *slot = found.group(key_of(&keys, combined), arguments)? + 1;
                }
                group_of.push(*slot - 1);
            }
        }
        if brackets.is_none() {
            group_of.iter().for_each(|group| found.rows[*group as usize] += 1);
        }
        for (argument, values) in arguments.iter_mut().zip(&mut values) {
            values.read(segment, start, len)?;
            add(argument, values, start, &rows, &group_of, brackets)?;
        }
        start += len;
    }
    Ok(())
}

fn key_of(keys: &[KeyCodes], mut combined: u64) -> Vec<Scalar> {
    let mut key: Vec<Scalar> = keys
        .iter()
        .rev()
        .map(|codes| {
            let code = combined % codes.size;
            combined /= codes.size;
            codes.name(code)
        })
        .collect();
    key.reverse();
    key
}

/// Add the rows' values of one argument.
fn add(
    argument: &mut Argument,
    values: &mut Values,
    start: usize,
    rows: &[u32],
    group_of: &[u32],
    brackets: Option<&[Option<Bracket>]>,
) -> Result<(), Failure> {
    let is_text = values.column.as_ref().is_some_and(|column| {
        column.entries().is_some_and(Entries::has_text) || matches!(column.constant(), Some(Scalar::Text(_)))
    });
    if is_text {
        for (row, group) in rows.iter().zip(group_of) {
            argument.basics[*group as usize].count += i64::from(values.is_some(start, *row as usize));
        }
        return match (&mut argument.quantiles, &values.column) {
            (Some(all), Some(column)) => add_sketches(all, column, &values.buffer, start, rows, group_of),
            _ => Ok(()),
        };
    }
    let is_plain = values.settle();
    let mut gathered = 0;
    let mut each = |group: u32, value: i64| {
        let group = group as usize;
        if argument.wants_basics {
            let basic = &mut argument.basics[group];
            basic.count += 1;
            basic.sum += i128::from(value);
            basic.least = basic.least.min(value);
            basic.greatest = basic.greatest.max(value);
        }
        if let Some(quantiles) = &mut argument.quantiles {
            quantiles[group].add(Buckets::table(), value);
        }
        if let Some(all) = &mut argument.gathered {
            let wanted = brackets.is_none_or(|brackets| {
                brackets[group].is_some_and(|bracket| (bracket.least..=bracket.greatest).contains(&value))
            });
            if wanted {
                all[group].push(value);
                gathered += 1;
            }
        }
    };
    if is_plain {
        let buffer = &values.buffer;
        for (row, group) in rows.iter().zip(group_of) {
            each(*group, buffer[*row as usize]);
        }
    } else {
        for (row, group) in rows.iter().zip(group_of) {
            if let Some(value) = values.integer(start, *row as usize) {
                each(*group, value);
            }
        }
    }
    if gathered > 0 {
        let all: usize = argument.gathered.iter().flatten().map(Vec::len).sum();
        if all > MOST_GATHERED {
            return Err(Failure::StepAside);
        }
    }
    Ok(())
}

/// Add the sketches of a column of bytes (`call_rollups.sketch`).
fn add_sketches(
    all: &mut [Quantiles],
    column: &Encoded,
    codes: &[i64],
    start: usize,
    rows: &[u32],
    group_of: &[u32],
) -> Result<(), Failure> {
    let mut counts: Vec<(usize, u64)> = Vec::new();
    for (row, group) in rows.iter().zip(group_of) {
        let Cell::Text(bytes) = column.cell(start + *row as usize, codes[*row as usize]) else { continue };
        let ((least, greatest), zeros, buckets) = read_stored(bytes).ok_or(StepAside)?;
        let range = i64::try_from(least).ok().zip(i64::try_from(greatest).ok()).ok_or(StepAside)?;
        counts.clear();
        counts.extend(buckets.into_iter().map(|(bucket, count)| (usize::from(bucket), count)));
        all[*group as usize].add_counts(zeros, &counts, range);
    }
    Ok(())
}

#[allow(clippy::too_many_arguments)]
fn finish(
    work: &Work<'_>,
    groups: &Groups,
    found: &Found,
    mut arguments: Vec<Argument>,
    percentiles: &[(Exact, Vec<Value>)],
    node: &str,
    now_unix_ns: i64,
) -> Result<Vec<Vec<Value>>, Failure> {
    let mut rows: Vec<Vec<Value>> = vec![Vec::with_capacity(groups.columns.len()); found.keys.len()];
    for column in &groups.columns {
        match column {
            GroupColumn::Key(at) => {
                for (row, key) in rows.iter_mut().zip(&found.keys) {
                    row.push(value_of(&key[*at]));
                }
            }
            GroupColumn::Constant(constant) => {
                let value = evaluate(work.conn, &[constant], node, now_unix_ns)
                    .map_err(|_| StepAside)?
                    .pop()
                    .unwrap_or(Value::Null);
                rows.iter_mut().for_each(|row| row.push(value.clone()));
            }
            GroupColumn::Aggregate(Function::Count, None) => {
                for (row, count) in rows.iter_mut().zip(&found.rows) {
                    row.push(Value::Integer(count.cast_signed()));
                }
            }
            GroupColumn::Aggregate(function, operand) => {
                let at = arguments.iter().position(|argument| Some(&argument.operand) == operand.as_ref());
                let Some(at) = at else { return Err(Failure::StepAside) };
                if let Function::Percentile { fraction, discrete } = *function {
                    let wanted = Exact { argument: at, fraction, discrete };
                    let Some((_, values)) = percentiles.iter().find(|(exact, _)| *exact == wanted) else {
                        return Err(Failure::StepAside);
                    };
                    rows.iter_mut().zip(values).for_each(|(row, value)| row.push(value.clone()));
                    continue;
                }
                let argument = &mut arguments[at];
                for (group, row) in rows.iter_mut().enumerate() {
                    row.push(result(*function, argument, group, found.rows[group]).map_err(NodeError::Sql)?);
                }
            }
        }
    }
    if groups.keys.is_empty() && !groups.of_nothing && found.rows.iter().all(|count| *count == 0) {
        rows.clear();
    }
    // Without ORDER BY any order will do; that of the keys is the one that people expect.
    let by_key: Vec<Order<usize>> = groups
        .columns
        .iter()
        .enumerate()
        .filter(|(_, column)| matches!(column, GroupColumn::Key(_)))
        .map(|(by, _)| Order { by, desc: false, nulls_first: true })
        .collect();
    let order = if groups.order.is_empty() { &by_key } else { &groups.order };
    rows.sort_by(|a, b| {
        order.iter().fold(std::cmp::Ordering::Equal, |so_far, order| {
            so_far.then_with(|| compare(&a[order.by], &b[order.by], order.desc, order.nulls_first))
        })
    });
    if let Some((count, offset)) = groups.limit {
        rows.drain(..usize::try_from(offset).unwrap_or(usize::MAX).min(rows.len()));
        if count >= 0 {
            rows.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        }
    }
    Ok(rows)
}

fn value_of(scalar: &Scalar) -> Value {
    match scalar {
        Scalar::Null => Value::Null,
        Scalar::Integer(value) => Value::Integer(*value),
        Scalar::Text(text) => Value::Text(text.clone()),
    }
}

fn result(function: Function, argument: &mut Argument, group: usize, rows: u64) -> Result<Value, String> {
    let basic = argument.basics[group];
    let mut sum = Sum::default();
    sum.add(basic.count, basic.sum);
    let or_null = |value: i64| if basic.count == 0 { Value::Null } else { Value::Integer(value) };
    Ok(match function {
        Function::Count => Value::Integer(basic.count),
        Function::Min => or_null(basic.least),
        Function::Max => or_null(basic.greatest),
        Function::Sum => sum.sum()?,
        Function::Total => sum.total()?,
        Function::Avg => sum.avg()?,
        Function::SumState => sum.state(),
        Function::SketchState => argument.quantiles.as_ref().map_or(Value::Null, |all| all[group].state(rows)),
        Function::Quantile(fraction) => {
            argument.quantiles.as_ref().map_or(Value::Null, |all| all[group].quantile(fraction))
        }
        Function::RunsState => {
            let values = argument.gathered.as_mut().map(|all| std::mem::take(&mut all[group])).unwrap_or_default();
            runs_state(values, rows)
        }
        Function::Percentile { .. } => Value::Null,
    })
}

/// SQLite's order of values of one column or aggregate: NULL, numbers, text, blobs.
pub(super) fn compare(a: &Value, b: &Value, desc: bool, nulls_first: bool) -> std::cmp::Ordering {
    use std::cmp::Ordering;
    let null = |value: &Value| *value == Value::Null;
    let nulls = match (null(a), null(b)) {
        (true, true) => return Ordering::Equal,
        (true, false) => Some(Ordering::Less),
        (false, true) => Some(Ordering::Greater),
        (false, false) => None,
    };
    if let Some(order) = nulls {
        return if nulls_first { order } else { order.reverse() };
    }
    let order = match (a, b) {
        (Value::Integer(a), Value::Integer(b)) => a.cmp(b),
        (Value::Real(a), Value::Real(b)) => a.total_cmp(b),
        (Value::Text(a), Value::Text(b)) | (Value::Blob(a), Value::Blob(b)) => a.cmp(b),
        _ => Ordering::Equal,
    };
    if desc { order.reverse() } else { order }
}
