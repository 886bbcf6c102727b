//! Owns rows with what is asked of each, and the first k of an order: what is sorted by is worked
//! out for all rows, the rest only for the rows that are shown.

use std::collections::BTreeMap;

use query_planner::memory::Reservation;
use query_planner::scan::{Operand, Order, RowColumn, Rows, evaluate};
use query_planner::{Batch, NodeError, Value};

use super::super::Kind;
use super::super::segment::Segment;
use super::out::{compare, emit_rows};
use super::values::{Morsel, Values};
use super::{Emit, Failure, MORSEL, Work, failed, wanted};

/// Rows of a batch, and of a look.
const ROWS: usize = 4096;
/// Values of a block that is read alone.
const BLOCK: usize = 1024;
/// More than these first rows of an order are sorted by SQLite.
const MOST_FIRST: usize = 10_000;
/// Without a limit: more rows than these to choose from.
const MOST_SORTED: usize = 1 << 18;
/// Columns that are shown of a row, about.
const SHOWN: usize = 8;

/// False when SQLite has to do it.
pub(super) fn answer(
    work: &Work<'_>,
    rows: &Rows,
    node: &str,
    now_unix_ns: i64,
    emit: Emit<'_>,
) -> Result<bool, NodeError> {
    match try_answer(work, rows, node, now_unix_ns, emit) {
        Ok(()) => Ok(true),
        Err(Failure::StepAside) => Ok(false),
        Err(Failure::Node(error)) => Err(error),
    }
}

fn try_answer(work: &Work<'_>, rows: &Rows, node: &str, now_unix_ns: i64, emit: Emit<'_>) -> Result<(), Failure> {
    let mut constants = Vec::new();
    let mut is_computed = false;
    for column in &rows.columns {
        constants.push(match column {
            RowColumn::Value(operand) => {
                is_computed |= is_integers(work, operand)?;
                None
            }
            RowColumn::Constant(constant) => {
                evaluate(work.conn, &[constant], node, now_unix_ns).map_err(|_| Failure::StepAside)?.pop()
            }
        });
    }
    for order in &rows.order {
        is_integers(work, &order.by)?;
    }
    let limit = rows.limit.map(|(count, offset)| {
        let at_most = |value: i64| usize::try_from(value).unwrap_or(usize::MAX);
        (if count < 0 { usize::MAX } else { at_most(count) }, at_most(offset))
    });
    if rows.order.is_empty() {
        // Once rows have gone out SQLite cannot begin anew: what may not be ours to work out shows
        // before.
        if is_computed || !work.predicates.is_empty() {
            all_rows(work, rows, &constants, limit, None)?;
        }
        return all_rows(work, rows, &constants, limit, Some(emit));
    }
    let (count, offset) = limit.unwrap_or((usize::MAX, 0));
    let first = count.saturating_add(offset);
    let rows_at_most: usize = work.segments.iter().map(|segment| segment.rows).sum();
    if first > MOST_FIRST && rows_at_most > MOST_SORTED {
        return Err(Failure::StepAside);
    }
    let found = first_of(work, &rows.order, first)?;
    let shown: Vec<(usize, u32)> = found.into_iter().skip(offset).map(|(_, place)| place).collect();
    Ok(emit_rows(cells(work, rows, &constants, &shown)?, rows.columns.len(), emit)?)
}

/// Whether an operand is more than a column; what is worked out is so of numbers only.
fn is_integers(work: &Work<'_>, operand: &Operand) -> Result<bool, Failure> {
    let is_column = matches!(operand, Operand::Column(_));
    if !is_column && operand.columns().iter().any(|name| work.kind(name) != Kind::Integer) {
        return Err(Failure::StepAside);
    }
    Ok(!is_column)
}

/// What is shown of a segment's rows; none where it is the same for all.
fn open(work: &Work<'_>, rows: &Rows, segment: &Segment) -> Result<Vec<Option<Values>>, Failure> {
    let column = |column: &RowColumn| match column {
        RowColumn::Value(operand) => Values::open(work, segment, operand).map(Some),
        RowColumn::Constant(_) => Ok(None),
    };
    rows.columns.iter().map(column).collect()
}

fn predicates(work: &Work<'_>, segment: &Segment) -> Result<Vec<Values>, Failure> {
    work.predicates.iter().map(|operand| Values::open(work, segment, operand)).collect()
}

/// Without `emit` everything is worked out and nothing is made of it.
fn all_rows(
    work: &Work<'_>,
    rows: &Rows,
    constants: &[Option<Value>],
    limit: Option<(usize, usize)>,
    mut emit: Option<Emit<'_>>,
) -> Result<(), Failure> {
    let (mut left, mut skip) = limit.unwrap_or((usize::MAX, 0));
    let mut kept: Vec<u32> = Vec::with_capacity(ROWS);
    for segment in work.segments {
        work.go_on()?;
        if left == 0 {
            return Ok(());
        }
        let mut picks = work.filter.of_segment(work.conn, segment).map_err(failed)?;
        let mut predicates = predicates(work, segment)?;
        let mut columns: Vec<Option<Values>> = Vec::new();
        let mut start = 0;
        while start < segment.rows && left > 0 {
            let len = ROWS.min(segment.rows - start);
            wanted(&mut picks, &mut predicates, (segment, start, len), &mut kept)?;
            let skipped = skip.min(kept.len());
            kept.drain(..skipped);
            skip -= skipped;
            kept.truncate(left);
            if !kept.is_empty() {
                if columns.is_empty() {
                    columns = open(work, rows, segment)?;
                }
                let morsel = Morsel { segment, start, len, rows: &kept };
                let mut batch = Batch { rows: kept.len() as u32, columns: Vec::with_capacity(columns.len()) };
                for (column, constant) in columns.iter_mut().zip(constants) {
                    match (column, &emit) {
                        (Some(column), None) if column.column().is_none() => column.read(morsel)?,
                        (_, None) => {}
                        (Some(column), Some(_)) => {
                            column.read(morsel)?;
                            batch.columns.push((0..kept.len()).map(|row| column.value(row)).collect());
                        }
                        (None, Some(_)) => {
                            batch.columns.push(vec![constant.clone().unwrap_or(Value::Null); kept.len()]);
                        }
                    }
                }
                left -= kept.len();
                if let Some(emit) = &mut emit {
                    emit(batch)?;
                }
            }
            start += len;
        }
    }
    Ok(())
}

/// A row by its segment's place in the list and its place there.
type Place = (usize, u32);

/// The first `most` rows of an order, in that order, each with what it is sorted by.
fn first_of(work: &Work<'_>, order: &[Order<Operand>], most: usize) -> Result<Vec<(Vec<Value>, Place)>, Failure> {
    let by = |a: &[Value], b: &[Value]| {
        order.iter().zip(a.iter().zip(b)).fold(std::cmp::Ordering::Equal, |so_far, (order, (a, b))| {
            so_far.then_with(|| compare(a, b, order.desc, order.nulls_first))
        })
    };
    // Kept loosely: twice as many as wanted, cut back when full, with the last one's leading value
    // as a bar.
    let mut best: Vec<(Vec<Value>, Place)> = Vec::new();
    let mut bar: Option<i64> = None;
    let cut = |best: &mut Vec<(Vec<Value>, Place)>| {
        best.sort_by(|a, b| by(&a.0, &b.0).then(a.1.cmp(&b.1)));
        best.truncate(most);
        match best.get(most.wrapping_sub(1)).and_then(|(keys, _)| keys.first()) {
            Some(Value::Integer(value)) => Some(*value),
            _ => None,
        }
    };
    let desc = match order.first() {
        Some(order) if most > 0 => order.desc,
        _ => return Ok(best),
    };
    let mut kept: Vec<u32> = Vec::with_capacity(MORSEL);
    let mut reservation = Reservation::default();
    let row_bytes = size_of::<(Vec<Value>, Place)>() + (order.len() + SHOWN) * size_of::<Value>();
    for (at, segment) in work.segments.iter().enumerate() {
        work.go_on()?;
        let mut picks = work.filter.of_segment(work.conn, segment).map_err(failed)?;
        let mut predicates = predicates(work, segment)?;
        let open = |order: &Order<Operand>| Values::open(work, segment, &order.by);
        let mut columns: Vec<Values> = order.iter().map(open).collect::<Result<_, _>>()?;
        for start in (0..segment.rows).step_by(MORSEL) {
            let len = MORSEL.min(segment.rows - start);
            wanted(&mut picks, &mut predicates, (segment, start, len), &mut kept)?;
            if let (Some(bar), Some(leading)) = (bar, columns.first_mut()) {
                leading.read(Morsel { segment, start, len, rows: &kept })?;
                let (is_text, leading) = (leading.text().is_some(), &leading.vector);
                let is_before = |value: i64| is_text || if desc { value >= bar } else { value <= bar };
                let mut row = 0;
                kept.retain(|_| {
                    row += 1;
                    leading.at(row - 1).is_none_or(is_before)
                });
            }
            if kept.is_empty() {
                continue;
            }
            for column in &mut columns {
                column.read(Morsel { segment, start, len, rows: &kept })?;
            }
            for (row, place) in kept.iter().enumerate() {
                let keys = columns.iter().map(|column| column.value(row)).collect();
                best.push((keys, (at, (start + *place as usize) as u32)));
                if best.len() >= most.saturating_mul(2).saturating_add(64) {
                    bar = cut(&mut best);
                }
            }
            if !reservation.try_resize(best.capacity() * row_bytes) {
                return Err(NodeError::out_of_memory().into());
            }
        }
    }
    cut(&mut best);
    Ok(best)
}

/// The cells of some rows: of each column only the blocks that they lie in.
fn cells(
    work: &Work<'_>,
    rows: &Rows,
    constants: &[Option<Value>],
    shown: &[Place],
) -> Result<Vec<Vec<Value>>, Failure> {
    let mut blocks: BTreeMap<(usize, usize), Vec<(u32, usize)>> = BTreeMap::new();
    for (i, (segment, row)) in shown.iter().enumerate() {
        blocks.entry((*segment, *row as usize / BLOCK)).or_default().push((*row % BLOCK as u32, i));
    }
    blocks.values_mut().for_each(|members| members.sort_unstable());
    let mut out: Vec<Vec<Value>> = vec![Vec::with_capacity(rows.columns.len()); shown.len()];
    for (column, constant) in rows.columns.iter().zip(constants) {
        let RowColumn::Value(operand) = column else {
            out.iter_mut().for_each(|row| row.push(constant.clone().unwrap_or(Value::Null)));
            continue;
        };
        let mut open: Option<(usize, Values)> = None;
        for ((at, block), members) in &blocks {
            let segment = &work.segments[*at];
            let values = match &mut open {
                Some((of, values)) if of == at => values,
                other => {
                    work.go_on()?;
                    &mut other.insert((*at, Values::open(work, segment, operand)?)).1
                }
            };
            let start = block * BLOCK;
            let places: Vec<u32> = members.iter().map(|(row, _)| *row).collect();
            values.read(Morsel { segment, start, len: BLOCK.min(segment.rows - start), rows: &places })?;
            for (row, (_, i)) in members.iter().enumerate() {
                out[*i].push(values.value(row));
            }
        }
    }
    Ok(out)
}
