//! Owns what SQLite is told of a scan: which conditions it is to hand over, what the scan costs
//! then, and how the choice is written down (`idxStr`) until the scan begins. Conditions whose
//! value SQLite knows while it plans make a scan shorter; those with values of other tables make it
//! a look-up (`lookup`), which costs little after the first.

use query_planner::memory::has_room;
use rusqlite::vtab::{DistinctMode, IndexConstraintOp, IndexInfo};
use rusqlite::{Result, types::ValueRef};

use super::super::Kind;
use super::chunk::no_memory;

/// What a table is like, as far as estimates need it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Size {
    pub(super) rows: f64,
    /// The times of its rows, about.
    pub(super) times: (i64, i64),
}

/// A comparison with a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Equal,
    /// `IN`, with all its values at once.
    Among,
    Greater,
    AtLeast,
    Less,
    AtMost,
}

impl Operator {
    const ALL: [(Self, char); 6] = [
        (Self::Equal, '='),
        (Self::Among, 'i'),
        (Self::Greater, '>'),
        (Self::AtLeast, 'g'),
        (Self::Less, '<'),
        (Self::AtMost, 'l'),
    ];

    fn of(operator: IndexConstraintOp) -> Option<Self> {
        Some(match operator {
            IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_EQ => Self::Equal,
            IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GT => Self::Greater,
            IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GE => Self::AtLeast,
            IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LT => Self::Less,
            IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LE => Self::AtMost,
            _ => return None,
        })
    }
}

/// One condition of a scan, its value in the same place of the arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Term {
    pub(super) operator: Operator,
    /// None for the row id.
    pub(super) column: Option<usize>,
}

/// The order in which a scan gives its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// As they lie.
    Any,
    /// By time.
    Ascending,
    /// By time, the latest first.
    Descending,
}

impl Order {
    const ALL: [(Self, &str); 3] = [(Self::Any, ""), (Self::Ascending, "a"), (Self::Descending, "d")];

    /// The order that SQLite asks for, where it is one by time alone.
    fn of(info: &IndexInfo, time: Option<usize>) -> Self {
        let mut columns = info.order_bys();
        let (Some(first), None, DistinctMode::Ordered) = (columns.next(), columns.next(), info.distinct()) else {
            return Self::Any;
        };
        match usize::try_from(first.column()).ok() {
            column if column.is_none() || column != time => Self::Any,
            _ if first.is_order_by_desc() => Self::Descending,
            _ => Self::Ascending,
        }
    }
}

/// The columns that a statement uses, the conditions, and the order.
pub(super) fn write(used: u64, terms: &[Term], order: Order) -> String {
    let mut out = format!("{used}|");
    for term in terms {
        let letter = Operator::ALL.iter().find(|(operator, _)| *operator == term.operator).map_or('?', |(_, c)| *c);
        out.push_str(&format!("{letter}{};", term.column.map_or(-1, |column| column as i64)));
    }
    out.push('|');
    out.push_str(Order::ALL.iter().find(|(other, _)| *other == order).map_or("", |(_, letter)| letter));
    out
}

/// What [`write`] wrote, for a table of `width` columns: which are used, the conditions, the order.
pub(super) fn read(plan: &str, width: usize) -> Option<(Vec<bool>, Vec<Term>, Order)> {
    let (used, rest) = plan.split_once('|')?;
    let (terms, order) = rest.split_once('|')?;
    let used: u64 = used.parse().ok()?;
    let order = Order::ALL.iter().find(|(_, letter)| *letter == order)?.0;
    // The highest bit stands for all columns from 63 on.
    let used = (0..width).map(|at| used >> at.min(63) & 1 == 1).collect();
    let term = |text: &str| {
        let letter = text.chars().next()?;
        let operator = Operator::ALL.iter().find(|(_, other)| *other == letter)?.0;
        let column: i64 = text[letter.len_utf8()..].parse().ok()?;
        Some(Term { operator, column: usize::try_from(column).ok().filter(|column| *column < width) })
    };
    Some((used, terms.split_terminator(';').map(term).collect::<Option<_>>()?, order))
}

/// Memory that the rows kept by one scan may take: half of what a question may have.
pub(super) const KEPT_BYTES: usize = 128 << 20;
/// Rows of which a look-up finds one, for each column that is compared.
const ROWS_A_VALUE: f64 = 20.0;
/// What a look-up keeps of a row beside its columns, about.
const ROW_BYTES: f64 = 24.0;

/// Choose the conditions that a scan is to have, and say what it costs. `time` is the column with
/// the rows' time.
pub(super) fn choose(info: &mut IndexInfo, kinds: &[Kind], time: Option<usize>, size: Size) -> Result<()> {
    let (mut terms, mut places, mut among) = (Vec::new(), Vec::new(), Vec::new());
    let (mut span, mut share) = ((i64::MIN, i64::MAX), 1.0_f64);
    // Compared with what other tables say: by equality, by a bound below and above.
    let (mut equal, mut bounds, mut is_row) = (0, 0, false);
    for (at, constraint) in info.constraints().enumerate() {
        let column = usize::try_from(constraint.column()).ok();
        let Some(operator) = Operator::of(constraint.operator()).filter(|_| constraint.is_usable()) else { continue };
        match column.map(|column| kinds.get(column)) {
            // Texts are compared as bytes only, and for equality.
            Some(Some(Kind::Text))
                if operator == Operator::Equal && info.collation(at).is_ok_and(|name| name == "BINARY") => {}
            Some(Some(Kind::Integer)) | None => {}
            _ => continue,
        }
        let is_in = column.is_some() && operator == Operator::Equal && info.is_in_constraint(at).unwrap_or(false);
        let is_time = column.is_some() && column == time;
        let known = match info.rhs_value(at) {
            Ok(Some(ValueRef::Integer(value))) => Some(Some(value)),
            Ok(Some(_)) => Some(None),
            _ => None,
        };
        match (operator, known) {
            _ if is_in => share /= 4.0,
            (Operator::Equal, Some(_)) => {
                is_row |= column.is_none();
                share /= ROWS_A_VALUE;
            }
            (Operator::Equal, None) => {
                is_row |= column.is_none();
                equal += 1;
            }
            (Operator::Greater | Operator::AtLeast, Some(Some(value))) if is_time => span.0 = span.0.max(value),
            (Operator::Less | Operator::AtMost, Some(Some(value))) if is_time => span.1 = span.1.min(value),
            (_, Some(_)) => share /= 4.0,
            (_, None) => bounds += 1,
        }
        if is_in {
            among.push(at);
        }
        terms.push(Term { operator: if is_in { Operator::Among } else { operator }, column });
        places.push(at);
    }
    for at in among {
        info.set_in_constraint(at, true)?;
    }
    for (i, at) in places.iter().enumerate() {
        info.constraint_usage(*at).set_argv_index(i as std::ffi::c_int + 1);
    }
    let used = info.col_used();
    let order = Order::of(info, time);
    let plan = write(used, &terms, order);
    // rusqlite aborts the process where it gets no memory for the copy.
    if !has_room(plan.len() + 1) {
        return Err(no_memory());
    }
    info.set_idx_str(&plan);
    info.set_order_by_consumed(order != Order::Any);
    // Of the segments those of the span are looked at, and of their rows the conditions leave a
    // share.
    let looked_at = (size.rows * within(span, size.times)).max(1.0);
    let left = (looked_at * share).max(1.0);
    let width = 8.0 * (used.count_ones() as usize).min(kinds.len()) as f64 + ROW_BYTES;
    let is_lookup = equal + bounds > 0 && left * width <= KEPT_BYTES as f64;
    let found = left / ROWS_A_VALUE.powi(equal) / 4_f64.powi(bounds);
    let found = if is_row { 1.0 } else { found.max(1.0) };
    info.set_estimated_rows(found as i64);
    // Even one row costs a block of a segment.
    let scan = looked_at / 8.0 + left * 2.0 + 10_000.0;
    info.set_estimated_cost(if is_lookup { 20.0 + found * 3.0 } else { scan });
    Ok(())
}

/// Which share of a table's rows lies in a span, about.
fn within(span: (i64, i64), times: (i64, i64)) -> f64 {
    let length = |(from, to): (i64, i64)| (to as f64 - from as f64).max(0.0) + 1.0;
    let cut = (span.0.max(times.0), span.1.min(times.1));
    if cut == times { 1.0 } else { (length(cut) / length(times)).clamp(1e-6, 1.0) }
}
