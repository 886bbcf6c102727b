//! Owns what is kept of each group: counts and sums, sketches, gathered values; and how the values
//! of rows are added to it.

use query_planner::memory::Reservation;
use query_planner::scan::{Function, Operand};
use query_planner::states::{Bracket, Buckets, Quantiles, Sum, read_stored, runs_state};
use query_planner::{NodeError, Value};

use super::super::super::encode::{Cell, Scalar};
use super::super::compute::Vector;
use super::super::values::Values;
use super::super::{Failure, StepAside};
use super::distinct::Distinct;
use crate::FastMap;

/// Groups beyond which SQLite does it, on disk if it must.
const MOST_GROUPS: usize = 1 << 20;
/// What an exact sum of doubles takes, about.
const EXACT_BYTES: usize = 600;
/// Integers that are gathered for exact percentiles beyond which SQLite does it.
const MOST_GATHERED: usize = 64 << 20;

/// What is kept of an aggregate's argument for a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Basic {
    pub(super) count: i64,
    pub(super) sum: i128,
    pub(super) least: i64,
    pub(super) greatest: i64,
}

pub(super) const NO_VALUES: Basic = Basic { count: 0, sum: 0, least: i64::MAX, greatest: i64::MIN };

/// What is kept of an argument of doubles for a group.
#[derive(Debug, Clone, Default)]
pub(super) struct OfReals {
    sum: Sum,
    range: Option<(f64, f64)>,
}

impl OfReals {
    fn add(&mut self, value: f64) {
        self.sum.add_real(value);
        self.widen((value, value));
    }

    /// (Of equal ones, which 0.0 and -0.0 are, the first stays, as in SQLite.)
    fn widen(&mut self, (least, greatest): (f64, f64)) {
        let widened = |(a, b): (f64, f64)| (if least < a { least } else { a }, if greatest > b { greatest } else { b });
        self.range = Some(self.range.map_or((least, greatest), widened));
    }

    fn merge(&mut self, other: &Self) {
        self.sum.merge(&other.sum);
        other.range.iter().for_each(|range| self.widen(*range));
    }
}

/// What a different argument of the aggregates needs.
pub(super) struct Argument {
    pub(super) operand: Operand,
    pub(super) basics: Vec<Basic>,
    pub(super) wants_basics: bool,
    /// Where it is of doubles.
    pub(super) reals: Option<Vec<OfReals>>,
    /// Different values.
    pub(super) distinct: Option<Vec<Distinct>>,
    pub(super) quantiles: Option<Vec<Quantiles>>,
    /// Integers of each group, all or those of its brackets.
    pub(super) gathered: Option<Vec<Vec<i64>>>,
}

/// The groups found so far.
#[derive(Default)]
pub(super) struct Found {
    index: FastMap<Vec<Scalar>, u32>,
    pub(super) keys: Vec<Vec<Scalar>>,
    pub(super) rows: Vec<u64>,
}

/// Counts what is kept for groups as the question's memory.
pub(super) fn reserve(reservation: &mut Reservation, State { found, arguments }: &State) -> Result<(), NodeError> {
    // A key stands in the list and in the index.
    let of_group = 2 * size_of::<Vec<Scalar>>() + size_of::<u32>() + size_of::<u64>();
    let width = found.keys.first().map_or(0, Vec::len);
    let keys = found.keys.len() * (of_group + 2 * width * size_of::<Scalar>());
    let of_argument = |argument: &Argument| {
        let quantiles = argument.quantiles.iter().flatten();
        let gathered = argument.gathered.iter().flatten();
        // An exact sum of doubles has some hundred bytes beside it.
        let distinct = argument.distinct.iter().flatten();
        argument.basics.len() * size_of::<Basic>()
            + distinct.map(Distinct::bytes).sum::<usize>()
            + argument.reals.as_ref().map_or(0, Vec::len) * (size_of::<OfReals>() + EXACT_BYTES)
            + quantiles.map(|all| size_of::<Quantiles>() + all.heap_bytes()).sum::<usize>()
            + gathered.map(|all| size_of::<Vec<i64>>() + all.capacity() * size_of::<i64>()).sum::<usize>()
    };
    let bytes = keys + arguments.iter().map(of_argument).sum::<usize>();
    if reservation.try_resize(bytes) { Ok(()) } else { Err(NodeError::out_of_memory()) }
}

/// What is known of the groups.
#[derive(Default)]
pub(super) struct State {
    pub(super) found: Found,
    pub(super) arguments: Vec<Argument>,
}

impl State {
    /// Of the same question, before its first row: without GROUP BY there is one group then.
    pub(super) fn empty(&self) -> Result<Self, StepAside> {
        let argument = |argument: &Argument| Argument {
            operand: argument.operand.clone(),
            basics: Vec::new(),
            wants_basics: argument.wants_basics,
            reals: argument.reals.as_ref().map(|_| Vec::new()),
            distinct: argument.distinct.as_ref().map(|_| Vec::new()),
            quantiles: argument.quantiles.as_ref().map(|_| Vec::new()),
            gathered: argument.gathered.as_ref().map(|_| Vec::new()),
        };
        let mut state = Self { found: Found::default(), arguments: self.arguments.iter().map(argument).collect() };
        if self.found.keys.first().is_some_and(Vec::is_empty) {
            state.found.group(Vec::new(), &mut state.arguments)?;
        }
        Ok(state)
    }

    /// Adds what is known of other rows.
    pub(super) fn merge(&mut self, other: Self) -> Result<(), StepAside> {
        let mut places = Vec::with_capacity(other.found.keys.len());
        for (key, rows) in other.found.keys.into_iter().zip(other.found.rows) {
            let at = self.found.group(key, &mut self.arguments)? as usize;
            self.found.rows[at] += rows;
            places.push(at);
        }
        for (argument, other) in self.arguments.iter_mut().zip(other.arguments) {
            for (at, basic) in places.iter().zip(&other.basics) {
                argument.basics[*at].merge(basic);
            }
            for (at, reals) in places.iter().zip(other.reals.iter().flatten()) {
                argument.reals.iter_mut().for_each(|all| all[*at].merge(reals));
            }
            for (at, distinct) in places.iter().zip(other.distinct.into_iter().flatten()) {
                argument.distinct.iter_mut().for_each(|all| all[*at].merge(&distinct));
            }
            for (at, quantiles) in places.iter().zip(other.quantiles.iter().flatten()) {
                argument.quantiles.iter_mut().for_each(|all| all[*at].merge(quantiles));
            }
            for (at, mut values) in places.iter().zip(other.gathered.into_iter().flatten()) {
                argument.gathered.iter_mut().for_each(|all| all[*at].append(&mut values));
            }
            if argument.gathered.iter().flatten().map(Vec::len).sum::<usize>() > MOST_GATHERED {
                return Err(StepAside);
            }
        }
        Ok(())
    }
}

impl Basic {
    pub(super) fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.sum += other.sum;
        self.least = self.least.min(other.least);
        self.greatest = self.greatest.max(other.greatest);
    }
}

impl Found {
    /// The number of a group; a new one gets room in every argument.
    pub(super) fn group(&mut self, key: Vec<Scalar>, arguments: &mut [Argument]) -> Result<u32, StepAside> {
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
            argument.reals.iter_mut().for_each(|all| all.push(OfReals::default()));
            argument.distinct.iter_mut().for_each(|all| all.push(Distinct::default()));
            argument.quantiles.iter_mut().for_each(|all| all.push(Quantiles::default()));
            argument.gathered.iter_mut().for_each(|all| all.push(Vec::new()));
        }
        Ok(group)
    }
}

/// Add the rows' values of one argument.
pub(super) fn add(
    argument: &mut Argument,
    values: &Values,
    group_of: &[u32],
    brackets: Option<&[Option<Bracket>]>,
) -> Result<(), Failure> {
    if let Some(all) = &mut argument.reals {
        for (row, group) in group_of.iter().enumerate() {
            if let Some(value) = values.vector.real_at(row) {
                all[*group as usize].add(value);
            }
        }
        return Ok(());
    }
    let vector = &values.vector;
    if values.text().is_some() {
        for (row, group) in group_of.iter().enumerate() {
            argument.basics[*group as usize].count += i64::from(!vector.is_null(row));
        }
        if let Some(all) = &mut argument.distinct {
            for (row, group) in group_of.iter().enumerate() {
                if let Cell::Text(text) = values.cell(row) {
                    all[*group as usize].add_text(text);
                }
            }
        }
        return match &mut argument.quantiles {
            Some(all) => add_sketches(all, values, group_of),
            None => Ok(()),
        };
    }
    if argument.wants_basics {
        add_basics(&mut argument.basics, vector, group_of);
    }
    if let Some(all) = &mut argument.distinct {
        each(vector, group_of, |group, value| all[group].add(value));
    }
    if let Some(quantiles) = &mut argument.quantiles {
        let buckets = Buckets::table();
        each(vector, group_of, |group, value| quantiles[group].add(buckets, value));
    }
    if let Some(all) = &mut argument.gathered {
        each(vector, group_of, |group, value| {
            let is_wanted = brackets.is_none_or(|brackets| {
                brackets[group].is_some_and(|bracket| (bracket.least..=bracket.greatest).contains(&value))
            });
            if is_wanted {
                all[group].push(value);
            }
        });
        if all.iter().map(Vec::len).sum::<usize>() > MOST_GATHERED {
            return Err(Failure::StepAside);
        }
    }
    Ok(())
}

/// Each value that is not NULL, with its group.
fn each(vector: &Vector, group_of: &[u32], mut with: impl FnMut(usize, i64)) {
    let values = group_of.iter().zip(&vector.values);
    if vector.nulls.is_empty() {
        values.for_each(|(group, value)| with(*group as usize, *value));
    } else {
        values
            .zip(&vector.nulls)
            .filter(|(_, null)| !**null)
            .for_each(|((group, value), _)| with(*group as usize, *value));
    }
}

fn add_basics(basics: &mut [Basic], vector: &Vector, group_of: &[u32]) {
    each(vector, group_of, |group, value| {
        let basic = &mut basics[group];
        basic.count += 1;
        basic.sum += i128::from(value);
        basic.least = basic.least.min(value);
        basic.greatest = basic.greatest.max(value);
    });
}

/// Add the sketches of a column of bytes (`call_rollups.sketch`).
fn add_sketches(all: &mut [Quantiles], values: &Values, group_of: &[u32]) -> Result<(), Failure> {
    let mut counts: Vec<(usize, u64)> = Vec::new();
    for (row, group) in group_of.iter().enumerate() {
        let Cell::Text(bytes) = values.cell(row) else { continue };
        let ((least, greatest), zeros, buckets) = read_stored(bytes).ok_or(StepAside)?;
        let range = i64::try_from(least).ok().zip(i64::try_from(greatest).ok()).ok_or(StepAside)?;
        counts.clear();
        counts.extend(buckets.into_iter().map(|(bucket, count)| (usize::from(bucket), count)));
        all[*group as usize].add_counts(zeros, &counts, range);
    }
    Ok(())
}

pub(super) fn result(function: Function, argument: &mut Argument, group: usize, rows: u64) -> Result<Value, String> {
    if let Some(OfReals { sum, range }) = argument.reals.as_ref().map(|all| &all[group]) {
        return match function {
            Function::Count => Ok(Value::Integer(sum.count())),
            Function::Sum => sum.sum(),
            Function::Total => sum.total(),
            Function::Avg => sum.avg(),
            Function::SumState => Ok(sum.state()),
            Function::Min => Ok(range.map_or(Value::Null, |range| Value::Real(range.0))),
            Function::Max => Ok(range.map_or(Value::Null, |range| Value::Real(range.1))),
            _ => Err("an aggregate that knows no doubles".to_owned()),
        };
    }
    if function == Function::CountDistinct {
        return Ok(Value::Integer(argument.distinct.as_ref().map_or(0, |all| all[group].count())));
    }
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
        Function::Percentile { .. } | Function::CountDistinct => Value::Null,
    })
}
