//! The plan of a scan as SQLite keeps it, a text: which columns it uses, and which comparisons with
//! a column have a value.

use rusqlite::types::ValueRef;
use rusqlite::vtab::IndexConstraintOp;

/// The least and greatest values of integer columns, by column.
pub(super) type Bounds = Vec<(usize, (i64, i64))>;

/// A comparison with a column: `=`, `>`, `g` (at least), `<`, `l` (at most).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Term {
    pub(super) operator: char,
    pub(super) column: usize,
}

/// The operator of a constraint that a scan can use.
pub(super) fn operator(of: IndexConstraintOp) -> Option<char> {
    Some(match of {
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_EQ => '=',
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GT => '>',
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GE => 'g',
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LT => '<',
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LE => 'l',
        _ => return None,
    })
}

/// The integers that satisfy a comparison; none where no row can satisfy it.
pub(super) fn limits(operator: char, value: ValueRef<'_>) -> Option<(i64, i64)> {
    const ALL: (i64, i64) = (i64::MIN, i64::MAX);
    let value = match value {
        ValueRef::Integer(value) => value,
        ValueRef::Null => return None,
        // SQLite knows its meaning.
        _ => return Some(ALL),
    };
    match operator {
        '=' => Some((value, value)),
        '>' => Some((value.checked_add(1)?, i64::MAX)),
        'g' => Some((value, i64::MAX)),
        '<' => Some((i64::MIN, value.checked_sub(1)?)),
        'l' => Some((i64::MIN, value)),
        _ => Some(ALL),
    }
}

/// Reads `COLUMNS|TERM;TERM…`: the used columns as bits, and the comparisons in order of their
/// values.
pub(super) fn read_plan(plan: &str) -> Option<(u64, Vec<Term>)> {
    let (used, terms) = plan.split_once('|')?;
    let term = |text: &str| {
        let operator = text.chars().next()?;
        Some(Term { operator, column: text.get(operator.len_utf8()..)?.parse().ok()? })
    };
    let terms = terms.split(';').filter(|text| !text.is_empty()).map(term).collect::<Option<_>>()?;
    Some((used.parse().ok()?, terms))
}
