//! Owns what a few rows say of the rows of a side that can belong to them, before the side is read:
//! between which numbers a column lies. Blocks of a segment that lie elsewhere are not unpacked
//! then, so that a question about a few moments looks at these alone, however long the table is.

use query_planner::scan::{
    Bound, Comparison, Join, Joined, Keeps, OfMatches, Operand, Output, RowColumn, Scan, Side, SideRows,
};

use super::super::pick::united;
use super::StepAside;
use super::compute::{Vector, compute};

/// More rows than these say nothing.
const MOST_ROWS: usize = 4096;
/// Ranges beyond which only the first and the last end count.
const MOST_RANGES: usize = 1024;
/// Different values beyond which they are no ranges.
const MOST_VALUES: usize = 64;

/// Rows before a join.
#[derive(Clone, Copy)]
pub(super) struct Before<'t> {
    pub(super) rows: usize,
    pub(super) columns: &'t [(String, Vector)],
}

/// A column of the side's table, and the ranges one of which its integers must lie in.
pub(super) type Narrowed = (String, Vec<(i64, i64)>);

/// What rows say of a side. `width`: how far above its lower bound a row looks, where it has no
/// upper one.
pub(super) fn narrowed(before: Before<'_>, join: &Join, width: Option<i64>) -> Result<Vec<Narrowed>, StepAside> {
    let Some(scan) = plain_scan(join) else { return Ok(Vec::new()) };
    // With NOT IN the other rows matter, too.
    if before.rows > MOST_ROWS || join.keeps == Keeps::NotAmong {
        return Ok(Vec::new());
    }
    if let Some(column) = join.bounds.first().and_then(|bound| in_table(scan, &join.side, &bound.column)) {
        let bounds = Bounds::of(before, join)?;
        let ranges = (0..before.rows).filter_map(|row| bounds.range(row));
        let ranges = ranges.map(|(least, greatest)| {
            (least, width.map_or(greatest, |width| greatest.min(least.saturating_add(width))))
        });
        let mut ranges = united(ranges.collect());
        if let (Some(first), Some(last), true) = (ranges.first(), ranges.last(), ranges.len() > MOST_RANGES) {
            ranges = vec![(first.0, last.1)];
        }
        return Ok(vec![(column.to_owned(), ranges)]);
    }
    let mut all = Vec::new();
    for (of_before, own) in &join.equal {
        let Operand::Column(own) = own else { continue };
        let Some(column) = in_table(scan, &join.side, own) else { continue };
        let ranges = values(compute(of_before, before.columns, before.rows)?.as_ref());
        all.extend(ranges.map(|ranges| (column.to_owned(), ranges)));
    }
    Ok(all)
}

/// What the rows of sides, each with its join, say of the first side's rows: which values it must
/// have for any of them to belong to it.
pub(super) fn of_first(joined: &Joined, sides: &[Before<'_>]) -> Result<Vec<Narrowed>, StepAside> {
    let SideRows::Scan(scan) = &joined.first.rows else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for (join, side) in joined.joins.iter().zip(sides) {
        if side.rows > MOST_ROWS || !matches!(join.keeps, Keeps::Matching | Keeps::WithMatch) {
            continue;
        }
        for (of_first, own) in &join.equal {
            let Operand::Column(column) = of_first else { continue };
            let Some(column) = in_table(scan, &joined.first, column) else { continue };
            all.extend(
                values(compute(own, side.columns, side.rows)?.as_ref()).map(|ranges| (column.to_owned(), ranges)),
            );
        }
    }
    Ok(all)
}

/// The different values, where they are few.
fn values(vector: &Vector) -> Option<Vec<(i64, i64)>> {
    let mut different: Vec<i64> = (0..vector.values.len()).filter_map(|row| vector.at(row)).collect();
    different.sort_unstable();
    different.dedup();
    (different.len() <= MOST_VALUES).then(|| united(different.into_iter().map(|value| (value, value)).collect()))
}

/// Whether each row wants the least value of the column that lies above its bound, and nothing
/// bounds that from above: then the nearest rows are looked at first.
pub(super) fn wants_nearest(before: Before<'_>, join: &Join) -> bool {
    let above = |bound: &Bound| matches!(bound.comparison, Comparison::Greater | Comparison::GreaterOrEqual);
    let (Some(bound), Some((_, OfMatches::Least(Operand::Column(least))))) = (join.bounds.first(), &join.value) else {
        return false;
    };
    let is_here = |scan: &Scan| in_table(scan, &join.side, least).is_some();
    before.rows <= MOST_RANGES
        && *least == bound.column
        && join.bounds.iter().all(above)
        && plain_scan(join).is_some_and(is_here)
}

/// The scan of a side, where it is rows of a table.
fn plain_scan(join: &Join) -> Option<&Scan> {
    let SideRows::Scan(scan) = &join.side.rows else { return None };
    (scan.joined.is_none() && scan.windowed.is_none()).then_some(scan.as_ref())
}

/// The table's column of integers that a column of the join is.
fn in_table<'j>(scan: &'j Scan, side: &'j Side, column: &str) -> Option<&'j str> {
    let Output::Rows(rows) = &scan.output else { return None };
    let side = side.columns.iter().find(|side| side.column.name == column)?;
    match rows.columns.get(side.of)? {
        RowColumn::Value(Operand::Column(name))
            if !side.column.is_text && scan.derived.iter().all(|derived| derived.name != *name) =>
        {
            Some(name)
        }
        _ => None,
    }
}

/// Between which values each row's bounds admit others.
pub(super) struct Bounds<'t>(Vec<(Comparison, std::borrow::Cow<'t, Vector>)>);

impl<'t> Bounds<'t> {
    pub(super) fn of(before: Before<'t>, join: &Join) -> Result<Self, StepAside> {
        let bound = |bound: &Bound| Ok((bound.comparison, compute(&bound.with, before.columns, before.rows)?));
        join.bounds.iter().map(bound).collect::<Result<_, _>>().map(Self)
    }

    /// None where a bound is NULL or nothing is left.
    pub(super) fn range(&self, row: usize) -> Option<(i64, i64)> {
        let (mut least, mut greatest) = (i64::MIN, i64::MAX);
        for (comparison, with) in &self.0 {
            let value = with.at(row)?;
            match comparison {
                Comparison::Less => greatest = greatest.min(value.checked_sub(1)?),
                Comparison::LessOrEqual => greatest = greatest.min(value),
                Comparison::Greater => least = least.max(value.checked_add(1)?),
                Comparison::GreaterOrEqual => least = least.max(value),
                Comparison::Equal | Comparison::Unequal | Comparison::Is | Comparison::IsNot => return None,
            }
        }
        (least <= greatest).then_some((least, greatest))
    }
}
