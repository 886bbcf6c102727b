//! Owns rows as they are, and the first k of an order: the columns that are sorted by are read for
//! all rows, the others only for the rows that are shown.

use std::collections::BTreeMap;

use query_planner::scan::{Order, RowColumn, Rows, evaluate};
use query_planner::{Batch, NodeError, Value};

use super::super::encode::{Cell, Encoded};
use super::super::pick::admitted;
use super::super::segment::Segment;
use super::groups::{compare, give};
use super::{Emit, Work, damaged, failed};

/// Rows of a batch, and of a look.
const ROWS: usize = 4096;
/// Values of a block that is read alone.
const BLOCK: usize = 1024;
/// More than these first rows of an order are sorted by SQLite.
const MOST_FIRST: usize = 10_000;

/// False when SQLite has to do it.
pub(super) fn answer(
    work: &Work<'_>,
    rows: &Rows,
    node: &str,
    now_unix_ns: i64,
    emit: Emit<'_>,
) -> Result<bool, NodeError> {
    let mut constants = Vec::new();
    for column in &rows.columns {
        let value = match column {
            RowColumn::Column(_) => None,
            RowColumn::Constant(constant) => match evaluate(work.conn, &[constant], node, now_unix_ns) {
                Ok(mut values) => values.pop(),
                Err(_) => return Ok(false),
            },
        };
        constants.push(value);
    }
    let wanted = rows.limit.map(|(count, offset)| {
        let at_most = |value: i64| usize::try_from(value).unwrap_or(usize::MAX);
        (if count < 0 { usize::MAX } else { at_most(count) }, at_most(offset))
    });
    if rows.order.is_empty() {
        all_rows(work, rows, &constants, wanted, emit)?;
        return Ok(true);
    }
    let Some((count, offset)) = wanted else { return Ok(false) };
    let first = count.saturating_add(offset);
    if first > MOST_FIRST {
        return Ok(false);
    }
    let found = first_of(work, &rows.order, first)?;
    let shown: Vec<(usize, u32)> = found.into_iter().skip(offset).map(|(_, place)| place).collect();
    give(cells(work, rows, &constants, &shown)?, rows.columns.len(), emit)?;
    Ok(true)
}

fn value(cell: Cell<'_>) -> Value {
    match cell {
        Cell::Null => Value::Null,
        Cell::Integer(value) => Value::Integer(value),
        Cell::Text(text) => Value::Text(text.to_vec()),
    }
}

/// Read `len` values of a column from `start` on into `out`.
fn read(segment: &Segment, column: &Encoded, start: usize, len: usize, out: &mut Vec<i64>) -> Result<(), NodeError> {
    out.resize(len, 0);
    column.read(start, out).ok_or_else(|| damaged(segment, "a column"))
}

fn all_rows(
    work: &Work<'_>,
    rows: &Rows,
    constants: &[Option<Value>],
    wanted: Option<(usize, usize)>,
    emit: Emit<'_>,
) -> Result<(), NodeError> {
    let (mut left, mut skip) = wanted.unwrap_or((usize::MAX, 0));
    let mut buffer = Vec::new();
    let mut kept: Vec<u32> = Vec::with_capacity(ROWS);
    for segment in work.segments {
        work.go_on()?;
        if left == 0 {
            return Ok(());
        }
        let mut picks = work.filter.of_segment(work.conn, segment).map_err(failed)?;
        let mut columns: Vec<Option<Encoded>> = Vec::with_capacity(rows.columns.len());
        let mut start = 0;
        while start < segment.rows && left > 0 {
            let len = ROWS.min(segment.rows - start);
            admitted(&mut picks, segment, start, len, &mut kept).map_err(failed)?;
            let skipped = skip.min(kept.len());
            kept.drain(..skipped);
            skip -= skipped;
            kept.truncate(left);
            if !kept.is_empty() {
                if columns.is_empty() {
                    for column in &rows.columns {
                        columns.push(match column {
                            RowColumn::Column(name) => Some(work.column(segment, name)?),
                            RowColumn::Constant(_) => None,
                        });
                    }
                }
                let mut batch = Batch { rows: kept.len() as u32, columns: Vec::with_capacity(columns.len()) };
                for (column, constant) in columns.iter().zip(constants) {
                    batch.columns.push(match column {
                        Some(column) => {
                            read(segment, column, start, len, &mut buffer)?;
                            let cell = |row: &u32| value(column.cell(start + *row as usize, buffer[*row as usize]));
                            kept.iter().map(cell).collect()
                        }
                        None => vec![constant.clone().unwrap_or(Value::Null); kept.len()],
                    });
                }
                left -= kept.len();
                emit(batch)?;
            }
            start += len;
        }
    }
    Ok(())
}

/// A row by its segment's place in the list and its place there.
type Place = (usize, u32);

/// The first `wanted` rows of an order, in that order, each with what it is sorted by.
fn first_of(work: &Work<'_>, order: &[Order<String>], wanted: usize) -> Result<Vec<(Vec<Value>, Place)>, NodeError> {
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
        best.truncate(wanted);
        match best.get(wanted.wrapping_sub(1)).and_then(|(keys, _)| keys.first()) {
            Some(Value::Integer(value)) => Some(*value),
            _ => None,
        }
    };
    if wanted == 0 {
        return Ok(best);
    }
    let desc = order.first().is_some_and(|order| order.desc);
    let mut kept: Vec<u32> = Vec::with_capacity(ROWS);
    for (at, segment) in work.segments.iter().enumerate() {
        work.go_on()?;
        let mut picks = work.filter.of_segment(work.conn, segment).map_err(failed)?;
        let columns: Vec<Encoded> =
            order.iter().map(|order| work.column(segment, &order.by)).collect::<Result<_, _>>()?;
        let mut buffers: Vec<Vec<i64>> = vec![Vec::new(); columns.len()];
        let mut start = 0;
        while start < segment.rows {
            let len = ROWS.min(segment.rows - start);
            admitted(&mut picks, segment, start, len, &mut kept).map_err(failed)?;
            for (column, buffer) in columns.iter().zip(&mut buffers) {
                read(segment, column, start, len, buffer)?;
            }
            for &row in &kept {
                let place = start + row as usize;
                let leading = columns[0].cell(place, buffers[0][row as usize]);
                if let (Some(bar), Cell::Integer(value)) = (bar, leading)
                    && (if desc { value < bar } else { value > bar })
                {
                    continue;
                }
                let keys = columns.iter().zip(&buffers);
                let keys = keys.map(|(column, buffer)| value(column.cell(place, buffer[row as usize]))).collect();
                best.push((keys, (at, place as u32)));
                if best.len() >= wanted * 2 + 64 {
                    bar = cut(&mut best);
                }
            }
            start += len;
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
) -> Result<Vec<Vec<Value>>, NodeError> {
    let mut blocks: BTreeMap<(usize, usize), Vec<(usize, u32)>> = BTreeMap::new();
    for (i, (segment, row)) in shown.iter().enumerate() {
        blocks.entry((*segment, *row as usize / BLOCK)).or_default().push((i, *row));
    }
    let mut out: Vec<Vec<Value>> = vec![Vec::with_capacity(rows.columns.len()); shown.len()];
    let mut buffer = Vec::new();
    for (column, constant) in rows.columns.iter().zip(constants) {
        let RowColumn::Column(name) = column else {
            out.iter_mut().for_each(|row| row.push(constant.clone().unwrap_or(Value::Null)));
            continue;
        };
        let mut open: Option<(usize, Encoded)> = None;
        for ((at, block), members) in &blocks {
            let segment = &work.segments[*at];
            let encoded = match &mut open {
                Some((of, encoded)) if of == at => encoded,
                other => {
                    work.go_on()?;
                    &mut other.insert((*at, work.column(segment, name)?)).1
                }
            };
            let start = block * BLOCK;
            read(segment, encoded, start, BLOCK.min(segment.rows - start), &mut buffer)?;
            for (i, row) in members {
                out[*i].push(value(encoded.cell(*row as usize, buffer[*row as usize - start])));
            }
        }
    }
    Ok(out)
}
