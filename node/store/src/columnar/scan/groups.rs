//! Owns aggregates by group over segments. Rows are given to groups through the codes of the
//! grouping columns: a group is looked up once for each combination of codes in a segment, not for
//! each row. `states` keeps the partial aggregates of groups, `summed` takes them from summaries,
//! `helper` lets a second thread help, `distinct` keeps different values, `made` finds groups by
//! what SQLite makes of their integers.

mod distinct;
mod helper;
mod made;
mod states;
mod summed;

use query_planner::memory::Reservation;
use query_planner::scan::{Function, GroupColumn, Groups, Operand, Order, evaluate};
use query_planner::states::{Bracket, Buckets};
use query_planner::{NodeError, Value};

use super::super::Kind;
use super::super::encode::Scalar;
use super::super::pick::Pick;
use super::super::segment::Segment;
use super::keys::KeyCodes;
use super::out::{compare, emit_rows, value_of};
use super::values::{Morsel, Values};
use super::{Emit, Failure, MORSEL, StepAside, Work, damaged, failed, wanted};
use crate::FastMap;
use made::Made;
use states::{Argument, Found, NO_VALUES, State, add, reserve, result};
use summed::Summed;

/// Combinations of codes for which a table is kept in place of a map.
const DENSE: u64 = 1 << 17;

/// A percentile that is asked for: of which argument, which fraction.
#[derive(Clone, Copy, PartialEq)]
struct Exact {
    argument: usize,
    fraction: f64,
    discrete: bool,
}

/// How many segments were answered from their summaries, and how many rows are in the groups; None
/// when SQLite has to do it.
pub(super) fn answer(
    work: &Work<'_>,
    groups: &Groups,
    node: &str,
    now_unix_ns: i64,
    emit: Emit<'_>,
) -> Result<Option<(usize, u64)>, NodeError> {
    let answer = || -> Result<_, Failure> {
        let mut grouping = Grouping::of(work, groups)?;
        let summaries = grouping.add(work, groups)?;
        let admitted = grouping.state.found.rows.iter().sum();
        Ok((grouping.finish(work, groups, node, now_unix_ns)?, (summaries, admitted)))
    };
    match answer() {
        Ok((rows, counts)) => {
            emit_rows(rows, groups.shown, emit)?;
            Ok(Some(counts))
        }
        Err(Failure::StepAside) => Ok(None),
        Err(Failure::Node(error)) => Err(error),
    }
}

/// The rows of all groups.
pub(super) fn rows_of(
    work: &Work<'_>,
    groups: &Groups,
    node: &str,
    now_unix_ns: i64,
) -> Result<Vec<Vec<Value>>, Failure> {
    let mut grouping = Grouping::of(work, groups)?;
    grouping.add(work, groups)?;
    grouping.finish(work, groups, node, now_unix_ns)
}

/// Groups to which rows are added.
pub(super) struct Grouping {
    state: State,
    exact: Vec<Exact>,
}

/// Whether all is known of a row's group once the row was looked at.
pub(super) fn looks_once(groups: &Groups) -> bool {
    let looks_twice = |column: &GroupColumn| matches!(column, GroupColumn::Aggregate(Function::Percentile { .. }, _));
    !groups.columns.iter().any(looks_twice)
}

impl Grouping {
    /// No rows yet.
    pub(super) fn of(work: &Work<'_>, groups: &Groups) -> Result<Self, Failure> {
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
                || (is_text && !matches!(function, Function::Count | Function::CountDistinct))
                || (is_blob && *function != Function::Count && !takes_sketches)
            {
                return Err(Failure::StepAside);
            }
            let at = match arguments.iter().position(|argument| argument.operand == *operand) {
                Some(at) => at,
                None => {
                    arguments.push(Argument {
                        operand: operand.clone(),
                        basics: Vec::new(),
                        wants_basics: false,
                        reals: operand.is_real().then(Vec::new),
                        distinct: None,
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
                Function::CountDistinct => argument.distinct = Some(Vec::new()),
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
        let mut state = State { found: Found::default(), arguments };
        if groups.keys.is_empty() {
            state.found.group(Vec::new(), &mut state.arguments)?;
        }
        Made::of(work, groups, !exact.is_empty())?;
        Ok(Self { state, exact })
    }

    /// Add rows; how many segments were answered from their summaries.
    pub(super) fn add(&mut self, work: &Work<'_>, groups: &Groups) -> Result<usize, Failure> {
        scan(work, groups, &mut self.state)
    }

    /// The rows of all groups. Where percentiles look again, at the rows that were added.
    pub(super) fn finish(
        self,
        work: &Work<'_>,
        groups: &Groups,
        node: &str,
        now_unix_ns: i64,
    ) -> Result<Vec<Vec<Value>>, Failure> {
        let Self { state, exact } = self;
        let state = Made::of(work, groups, !exact.is_empty())?.regrouped(state)?;
        let State { mut found, arguments } = state;
        let mut percentiles: Vec<(Exact, Vec<Value>)> = Vec::new();
        for wanted in exact {
            if !percentiles.iter().any(|(other, _)| *other == wanted) {
                let values = exact_percentiles(work, groups, &mut found, &arguments, wanted)?;
                percentiles.push((wanted, values));
            }
        }
        finish(work, groups, &found, arguments, &percentiles, node, now_unix_ns)
    }
}

/// An exact percentile of every group: the sketch brackets it, a second look gathers what lies in
/// the bracket.
fn exact_percentiles(
    work: &Work<'_>,
    groups: &Groups,
    found: &mut Found,
    arguments: &[Argument],
    wanted: Exact,
) -> Result<Vec<Value>, Failure> {
    let Exact { argument, fraction, discrete } = wanted;
    let brackets: Vec<Option<Bracket>> = arguments[argument].quantiles.as_ref().map_or_else(Vec::new, |all| {
        all.iter().map(|quantiles| quantiles.bracket(Buckets::table(), fraction, discrete)).collect()
    });
    let again = Argument {
        operand: arguments[argument].operand.clone(),
        basics: vec![NO_VALUES; found.keys.len()],
        wants_basics: false,
        reals: None,
        distinct: None,
        quantiles: None,
        gathered: Some(vec![Vec::new(); found.keys.len()]),
    };
    let mut state = State { found: std::mem::take(found), arguments: vec![again] };
    let mut reservation = Reservation::default();
    for segment in work.segments {
        work.go_on()?;
        reserve(&mut reservation, &state)?;
        Opened::of(work, segment, groups, &state.arguments)?.add(&mut state, Some(&brackets))?;
    }
    reserve(&mut reservation, &state)?;
    *found = state.found;
    let gathered = state.arguments.pop().and_then(|again| again.gathered).unwrap_or_default();
    Ok(gathered
        .into_iter()
        .zip(brackets)
        .map(|(mut values, bracket)| {
            bracket.map_or(Value::Null, |bracket| bracket.percentile(&mut values, fraction, discrete))
        })
        .collect())
}

/// Add all segments' rows to the groups. How many were answered from their summaries.
fn scan(work: &Work<'_>, groups: &Groups, state: &mut State) -> Result<usize, Failure> {
    let summed = Summed::of(work, groups, &state.arguments);
    let (mut summaries, mut reservation) = (0, Reservation::default());
    // DISTINCT … LIMIT is done once it has its rows.
    let is_distinct = groups.columns.iter().all(|column| !matches!(column, GroupColumn::Aggregate(..)));
    let enough = groups.limit.filter(|(count, _)| is_distinct && groups.order.is_empty() && *count >= 0);
    let enough = enough.and_then(|(count, offset)| usize::try_from(count.saturating_add(offset)).ok());
    let apart = state.empty()?;
    let add = |opened: Opened<'_>, state: &mut State| opened.add(state, None);
    let other = helper::with_helper(work, apart, add, |helper| {
        for segment in work.segments {
            work.go_on()?;
            reserve(&mut reservation, state)?;
            if enough.is_some_and(|enough| state.found.keys.len() >= enough) {
                break;
            }
            if let Some(summed) = &summed
                && summed.add(work, segment, state)?
            {
                summaries += 1;
                continue;
            }
            if let Some(opened) = helper.offer(Opened::of(work, segment, groups, &state.arguments)?)? {
                add(opened, state)?;
            }
        }
        Ok(())
    })?;
    if let Some(other) = other {
        state.merge(other)?;
    }
    reserve(&mut reservation, state)?;
    Ok(summaries)
}

/// A segment with all that a question reads of it: what remains to be done needs no connection.
struct Opened<'s> {
    segment: &'s Segment,
    picks: Vec<Pick>,
    predicates: Vec<Values>,
    keys: Vec<KeyCodes>,
    values: Vec<Values>,
}

impl<'s> Opened<'s> {
    fn of(work: &Work<'_>, segment: &'s Segment, groups: &Groups, arguments: &[Argument]) -> Result<Self, Failure> {
        let values = |operand: &Operand| Values::open(work, segment, operand);
        Ok(Self {
            segment,
            picks: work.filter.of_segment(work.conn, segment).map_err(failed)?,
            predicates: work.predicates.iter().map(values).collect::<Result<_, _>>()?,
            keys: groups.keys.iter().map(|key| KeyCodes::open(work, segment, key)).collect::<Result<_, _>>()?,
            values: arguments.iter().map(|argument| values(&argument.operand)).collect::<Result<_, _>>()?,
        })
    }

    /// Add the rows to the groups. With `brackets`, only integers in their group's bracket are
    /// gathered and nothing else is counted.
    fn add(self, state: &mut State, brackets: Option<&[Option<Bracket>]>) -> Result<(), Failure> {
        let Self { segment, mut picks, mut predicates, mut keys, mut values } = self;
        let State { found, arguments } = state;
        let combinations =
            keys.iter().try_fold(1_u64, |all, key| all.checked_mul(key.size)).ok_or(Failure::StepAside)?;
        // Group by combination of codes; 0 is "not looked up yet".
        let mut dense: Vec<u32> = if combinations <= DENSE { vec![0; combinations as usize] } else { Vec::new() };
        let mut sparse: FastMap<u64, u32> = FastMap::default();
        let mut rows: Vec<u32> = Vec::with_capacity(MORSEL);
        let mut group_of: Vec<u32> = Vec::with_capacity(MORSEL);
        for start in (0..segment.rows).step_by(MORSEL) {
            let len = MORSEL.min(segment.rows - start);
            wanted(&mut picks, &mut predicates, (segment, start, len), &mut rows)?;
            if rows.is_empty() {
                continue;
            }
            let morsel = Morsel { segment, start, len, rows: &rows };
            group_of.clear();
            if keys.is_empty() {
                group_of.resize(rows.len(), 0);
            } else {
                for key in &mut keys {
                    key.read(morsel)?;
                }
                for row in 0..rows.len() {
                    let mut combined = 0_u64;
                    for key in &keys {
                        combined = combined * key.size + u64::from(key.codes[row]);
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
                values.read(morsel)?;
                add(argument, values, &group_of, brackets)?;
            }
        }
        Ok(())
    }
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
                let named = groups.named.iter().find(|(key, _)| key == at).map(|(_, texts)| texts);
                for (row, key) in rows.iter_mut().zip(&found.keys) {
                    row.push(match (named, &key[*at]) {
                        (Some(texts), Scalar::Integer(place)) => {
                            let text = usize::try_from(*place).ok().and_then(|place| texts.get(place));
                            text.map_or(Value::Null, |text| Value::Text(text.as_bytes().to_vec()))
                        }
                        (_, value) => value_of(value),
                    });
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
