//! Owns the columns that windows add: the rows that conditions admit are gathered in memory, put in
//! the order of a window, and made into segments again, with the new columns, for whatever is asked
//! of them.

use query_planner::memory::Reservation;
use query_planner::scan::{Frame, Operand, Scan, Window, WindowFunction, Windowed};

use super::super::Kind;
use super::super::segment::{MOST_ROWS, Segment};
use super::compute::Vector;
use super::gather::{Gathered, Pool, column, gather, reserve};
use super::sorted::{Sorted, sorted};
use super::{Failure, StepAside, Work};

/// Rows with the columns that windows add.
pub(super) struct Added {
    pub(super) segments: Vec<Segment>,
    /// How many they were made of.
    pub(super) rows: usize,
    _reservation: Reservation,
}

/// The rows of `work`, with what the rest of the scan reads of them and what its windows add.
pub(super) fn add(work: &Work<'_>, scan: &Scan, windowed: &Windowed) -> Result<Added, Failure> {
    let names = kept(scan, windowed);
    let mut operands: Vec<Operand> = names.iter().map(|name| Operand::Column(name.clone())).collect();
    for operand in windowed.calls.iter().flat_map(|call| call.operands()) {
        if !operands.contains(operand) {
            operands.push(operand.clone());
        }
    }
    let mut reservation = Reservation::default();
    let gathered = gather(work, &operands, &mut reservation)?;
    let rows = gathered.first().map_or(0, Gathered::len);
    let pool = Pool { operands: &operands, gathered: &gathered };
    let mut orders: Vec<(&Window, Sorted)> = Vec::new();
    let mut added: Vec<(Vector, &Gathered)> = Vec::new();
    let nothing = Gathered::default();
    for call in &windowed.calls {
        work.go_on()?;
        let at = match orders.iter().position(|(window, _)| **window == call.window) {
            Some(at) => at,
            None => {
                orders.push((&call.window, sorted(&call.window, rows, pool)?));
                orders.len() - 1
            }
        };
        let values = evaluate(&call.function, &orders[at].1, pool)?;
        // A text that was shifted is still a code of the texts it came from.
        let texts = match &call.function {
            WindowFunction::Shifted { of, .. } => pool.of(of)?,
            _ => &nothing,
        };
        added.push((values, texts));
        let width = operands.len() + 2 * orders.len() + added.len();
        reserve(&mut reservation, rows, 2 * width)?;
    }
    let first = orders.first().map(|(_, sorted)| sorted.rows.as_slice()).unwrap_or_default();
    let mut segments = Vec::new();
    for (at, rows) in first.chunks(MOST_ROWS).enumerate() {
        work.go_on()?;
        let mut columns = Vec::with_capacity(names.len() + added.len());
        for (name, gathered) in names.iter().zip(&gathered) {
            columns.push(column(name, work.kind(name), &gathered.vector, gathered, rows));
        }
        for (call, (values, texts)) in windowed.calls.iter().zip(&added) {
            let kind = if call.column.is_text { Kind::Text } else { Kind::Integer };
            columns.push(column(&call.column.name, kind, values, texts, rows));
        }
        segments.push(Segment::in_memory(at as i64, rows.len(), columns));
    }
    Ok(Added { segments, rows, _reservation: reservation })
}

/// The table's columns that are read of rows once the windows' are there.
fn kept(scan: &Scan, windowed: &Windowed) -> Vec<String> {
    let after = Scan { windowed: None, ..scan.clone() };
    let mut names: Vec<String> = Vec::new();
    for name in after.columns() {
        let name = scan.derived.iter().find(|derived| derived.name == name).map_or(name, |derived| &derived.of);
        if !names.iter().any(|known| known == name) && windowed.calls.iter().all(|call| call.column.name != name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// What a function gives for each row, in the order in which rows were gathered.
fn evaluate(function: &WindowFunction, sorted: &Sorted, pool: Pool<'_>) -> Result<Vector, StepAside> {
    let mut out = Vector::same(Some(0), sorted.rows.len());
    let mut set = |row: u32, value: Option<i64>| match value {
        Some(value) => out.values[row as usize] = value,
        None => {
            if out.nulls.is_empty() {
                out.nulls = vec![false; out.values.len()];
            }
            out.nulls[row as usize] = true;
        }
    };
    for part in sorted.partitions() {
        let rows = &sorted.rows[part.clone()];
        match function {
            WindowFunction::RowNumber => (1..).zip(rows).for_each(|(number, row)| set(*row, Some(number))),
            WindowFunction::Tile(tiles) => {
                // The first ones have one row more where it does not come out even.
                let (size, more) = (rows.len() as i64 / tiles, rows.len() as i64 % tiles);
                for (at, row) in (0..).zip(rows) {
                    let in_larger = at < more * (size + 1);
                    set(
                        *row,
                        Some(if in_larger { at / (size + 1) } else { more + (at - more * (size + 1)) / size } + 1),
                    );
                }
            }
            WindowFunction::Rank | WindowFunction::DenseRank => {
                let mut next = 1;
                for peers in sorted.peers(part.clone()) {
                    let step = if *function == WindowFunction::Rank { peers.len() as i64 } else { 1 };
                    sorted.rows[peers].iter().for_each(|row| set(*row, Some(next)));
                    next += step;
                }
            }
            WindowFunction::PercentRank | WindowFunction::Cumulative => {
                let all = rows.len();
                for peers in sorted.peers(part.clone()) {
                    let (before, with) = (peers.start - part.start, peers.end - part.start);
                    let share = match function {
                        WindowFunction::Cumulative => with as f64 / all as f64,
                        _ if all > 1 => before as f64 / (all - 1) as f64,
                        _ => 0.0,
                    };
                    let bits = share.to_bits().cast_signed();
                    sorted.rows[peers].iter().for_each(|row| set(*row, Some(bits)));
                }
            }
            WindowFunction::Shifted { of, by, otherwise } => {
                let (of, otherwise) = (pool.vector(of)?, pool.vector(otherwise)?);
                for (at, row) in (0_i64..).zip(rows) {
                    let from = at.checked_add(*by).and_then(|at| rows.get(usize::try_from(at).ok()?));
                    set(*row, from.map_or_else(|| otherwise.at(*row as usize), |from| of.at(*from as usize)));
                }
            }
            WindowFunction::Count(None, frame) => {
                running(sorted, part, *frame, None, &mut set, &|seen| Some(seen.rows))?
            }
            WindowFunction::Count(Some(of), frame) => {
                running(sorted, part, *frame, Some(pool.vector(of)?), &mut set, &|seen| Some(seen.count))?;
            }
            WindowFunction::Sum(of, frame) => {
                running(sorted, part, *frame, Some(pool.vector(of)?), &mut set, &|seen| {
                    (seen.count > 0).then_some(seen.sum)
                })?;
            }
            WindowFunction::Mean(of, frame) => {
                running(sorted, part, *frame, Some(pool.vector(of)?), &mut set, &|seen| {
                    // As SQLite's, of integers.
                    let mean = || seen.sum as f64 / seen.count as f64;
                    (seen.count > 0).then(|| mean().to_bits().cast_signed())
                })?;
            }
            WindowFunction::Least(of, frame) => {
                running(sorted, part, *frame, Some(pool.vector(of)?), &mut set, &|seen| seen.least)?;
            }
            WindowFunction::Greatest(of, frame) => {
                running(sorted, part, *frame, Some(pool.vector(of)?), &mut set, &|seen| seen.greatest)?;
            }
        }
    }
    Ok(out)
}

/// What an aggregate has seen of a partition.
#[derive(Default)]
struct Seen {
    rows: i64,
    count: i64,
    sum: i64,
    /// Of the values above and below zero: while neither leaves 64 bits, the sum does not in any
    /// order of the rows, and SQLite's need not be known.
    above: i64,
    below: i64,
    least: Option<i64>,
    greatest: Option<i64>,
}

impl Seen {
    fn add(&mut self, value: Option<i64>) -> Result<(), StepAside> {
        self.rows += 1;
        if let Some(value) = value {
            self.count += 1;
            // Whether that is an error, SQLite says.
            self.above = self.above.checked_add(value.max(0)).ok_or(StepAside)?;
            self.below = self.below.checked_add(value.min(0)).ok_or(StepAside)?;
            self.sum = self.above + self.below;
            self.least = Some(self.least.map_or(value, |least| least.min(value)));
            self.greatest = Some(self.greatest.map_or(value, |greatest| greatest.max(value)));
        }
        Ok(())
    }
}

fn running(
    sorted: &Sorted,
    part: std::ops::Range<usize>,
    frame: Frame,
    of: Option<&Vector>,
    set: &mut dyn FnMut(u32, Option<i64>),
    result: &dyn Fn(&Seen) -> Option<i64>,
) -> Result<(), StepAside> {
    let pieces: Vec<std::ops::Range<usize>> = match frame {
        Frame::Between(start, end) => return sliding(&sorted.rows[part], (start, end), of, set, result),
        Frame::Whole => vec![part],
        Frame::Peers => sorted.peers(part).collect(),
        Frame::Rows => part.map(|at| at..at + 1).collect(),
    };
    let mut seen = Seen::default();
    for piece in pieces {
        let rows = &sorted.rows[piece];
        for row in rows {
            seen.add(of.and_then(|of| of.at(*row as usize)))?;
        }
        rows.iter().for_each(|row| set(*row, result(&seen)));
    }
    Ok(())
}

/// Of the rows of a partition, for each what its neighbours are: counts and sums as differences of
/// running ones.
fn sliding(
    rows: &[u32],
    (start, end): (i64, i64),
    of: Option<&Vector>,
    set: &mut dyn FnMut(u32, Option<i64>),
    result: &dyn Fn(&Seen) -> Option<i64>,
) -> Result<(), StepAside> {
    let mut seen = Seen::default();
    let mut before = Vec::with_capacity(rows.len() + 1);
    before.push((0, 0));
    for row in rows {
        seen.add(of.and_then(|of| of.at(*row as usize)))?;
        before.push((seen.count, seen.sum));
    }
    let place = |at: i64| usize::try_from(at).unwrap_or(0).min(rows.len());
    for (at, row) in (0_i64..).zip(rows) {
        let from = place(at + start);
        let to = place(at + end + 1).max(from);
        let ((count, sum), (other_count, other_sum)) = (before[to], before[from]);
        // (Neither of two sums leaves 64 bits; while no part of the rows does, nor does what is
        // between.)
        let of_frame = Seen { rows: (to - from) as i64, count: count - other_count, ..Seen::default() };
        set(*row, result(&Seen { sum: sum - other_sum, ..of_frame }));
    }
    Ok(())
}
