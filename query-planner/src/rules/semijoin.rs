//! Semi-join reduction of a fetch: what a small, filtered table of a join implies for the rows
//! needed of a large one.
//!
//! `… FROM a JOIN b ON a.k = b.k WHERE a.x > 5` fetches the filtered `a` first (round 1). When its
//! distinct `k` are few, `b` is fetched with `AND k IN (those)` (round 2), else as it is. With
//! `… AND b.t > a.t AND b.t <= a.t + 10` rows of `b` lie between the least and the greatest of
//! these, too: where only `a` has bounds of time, `b` gets them. What is found here is only the
//! chance ([`Reduction`]); the keys and bounds are known when the plan runs (`run.rs`).
//!
//! # Why the rewrite keeps the contract
//! The user's SQL runs unchanged at the coordinator, so a row too many changes nothing. A row of
//! `b` is left out only where no row of `a` that was fetched has its key, and then it takes part in
//! no result row:
//!
//! - The equality is a conjunct of WHERE or of an inner join's ON, which holds for every row that
//!   counts; where `b` is the right side of a LEFT JOIN, a conjunct of that join's ON, without
//!   which `b` only lends NULLs. The left side of a LEFT JOIN is never reduced by its ON, and a
//!   FROM with RIGHT or FULL joins not at all.
//! - What was fetched of `a` is all that can matter of it in any of its uses, its keys included.
//!   `b` is used once in the whole question, and not below a view: a second use would need other
//!   rows of it.
//! - `a.k = b.k` at the coordinator and `b.k IN (…)` at a node find the same values equal. Both are
//!   columns of one affinity and one collating sequence, stored in tables that apply the affinity
//!   (no virtual tables, no expressions of views): so comparing two stored values converts neither,
//!   the keys are bound as values (no text is made of a double), and IN gives them the affinity
//!   that they have already. Keys that DISTINCT at the coordinator takes for one (1 and 1.0, 'a'
//!   and 'A' under NOCASE) are equal to the same values of `b`, because the comparison is the same.
//! - NULL equals nothing: it is no key. `IS`, row values and USING give no chance.
//! - What is compared by `<`, `<=`, `>` or `>=` follows the same rules, with the least or greatest
//!   value of the driver's side in place of keys. That side is a column with a numeric affinity or
//!   arithmetic, and so is `b`'s column: neither is converted before it is compared, so what is
//!   least among the driver's values is least in every comparison. Only integers are sent. NULLs
//!   compare with nothing; where there is nothing else no row of `b` takes part.
//! - `b` may have a condition of its own if that says nothing of the bounded column. `a` is not
//!   reduced itself.
//!
//! # What it does not keep
//! A node answers a round inside one read transaction, but two rounds are two. Each table is a
//! consistent snapshot of each node, as without this rule; `b` may be some milliseconds newer than
//! `a`, as two nodes are to each other anyway. What is committed to both in between is seen in `b`
//! only. Nodes do not differ between the rounds: one that is lost in between ends the run, and the
//! caller starts the plan over without it (see [`crate::Fanout`]).

use std::collections::BTreeSet;

use crate::ast::{Expr, quote_name, same_name};
use crate::catalog::{COLUMN_MODULE, Catalog, Column, Kind, Table};
use crate::names::{affinity, quoted};
use crate::plan::{DriverBound, MergeColumn, MergeTable, ReducedByDriver, ReducedByRows, Reduction, ReductionBy};

/// An equality that every needed row of `table` fulfils, with some row of `driver`. Tables by
/// lower-case name, columns as typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) table: String,
    column: String,
    driver: String,
    driver_column: String,
}

impl Link {
    /// The two ways to read a conjunct `a.k = b.k`: mine, theirs.
    pub(super) fn sides(conjunct: &Expr) -> Vec<(&Expr, &Expr)> {
        let Expr::Binary(lhs, "=", rhs) = conjunct.peeled() else { return Vec::new() };
        let (lhs, rhs) = (lhs.peeled(), rhs.peeled());
        match (lhs, rhs) {
            (Expr::Column { .. }, Expr::Column { .. }) => vec![(lhs, rhs), (rhs, lhs)],
            _ => Vec::new(),
        }
    }

    /// `mine` is a column of `table`, `theirs` of `driver`.
    pub(super) fn of(table: &Table, mine: &Expr, driver: &Table, theirs: &Expr) -> Option<Link> {
        let (Expr::Column { name: column, .. }, Expr::Column { name: driver_column, .. }) = (mine, theirs) else {
            return None;
        };
        Some(Link {
            table: table.name.to_ascii_lowercase(),
            column: column.clone(),
            driver: driver.name.to_ascii_lowercase(),
            driver_column: driver_column.clone(),
        })
    }
}

/// A comparison that every needed row of `table` fulfils, with some row of `driver`. Tables by
/// lower-case name, columns as typed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RangeLink {
    pub(super) table: String,
    column: String,
    operator: &'static str,
    driver: String,
    /// Over the driver's columns, bare.
    with: Expr,
}

impl RangeLink {
    /// The ways to read a conjunct `a.t < b.t`, with each side's column first: mine, how it
    /// compares, theirs.
    pub(super) fn sides(conjunct: &Expr) -> Vec<(&Expr, &'static str, &Expr)> {
        let sides = match conjunct.peeled() {
            Expr::Binary(lhs, operator, rhs) => {
                let turned = match *operator {
                    "<" => ">",
                    "<=" => ">=",
                    ">" => "<",
                    ">=" => "<=",
                    _ => return Vec::new(),
                };
                vec![(lhs.peeled(), *operator, rhs.peeled()), (rhs.peeled(), turned, lhs.peeled())]
            }
            Expr::Between { lhs, not: false, low, high } => {
                let (value, low, high) = (lhs.peeled(), low.peeled(), high.peeled());
                vec![(value, ">=", low), (value, "<=", high), (low, "<=", value), (high, ">=", value)]
            }
            _ => Vec::new(),
        };
        sides.into_iter().filter(|(mine, ..)| matches!(mine, Expr::Column { .. })).collect()
    }

    /// `mine` is a column of `table`, `with` an expression over bare columns of `driver`.
    pub(super) fn of(
        table: &Table,
        mine: &Expr,
        operator: &'static str,
        driver: &Table,
        with: Expr,
    ) -> Option<RangeLink> {
        let Expr::Column { name: column, .. } = mine else { return None };
        let (table, driver) = (table.name.to_ascii_lowercase(), driver.name.to_ascii_lowercase());
        Some(RangeLink { table, column: column.clone(), operator, driver, with })
    }
}

/// Whether an expression gives numbers, or what a column of numbers holds, and each of its columns
/// is fit.
fn is_numeric(expr: &Expr, is_fit: &dyn Fn(&str) -> bool) -> bool {
    fn arithmetic(expr: &Expr, is_fit: &dyn Fn(&str) -> bool) -> bool {
        match expr.peeled() {
            Expr::Column { name, .. } => is_fit(name),
            Expr::Binary(lhs, "+" | "-" | "*", rhs) => arithmetic(lhs, is_fit) && arithmetic(rhs, is_fit),
            other => other.integer().is_some(),
        }
    }
    matches!(expr, Expr::Column { .. } | Expr::Binary(..)) && arithmetic(expr, is_fit)
}

/// A fragment as the fetch rule sees it.
pub(super) struct Fetched {
    /// Lower-case name of its table.
    pub(super) key: String,
    /// A condition of its own that goes to the nodes.
    pub(super) filter: Option<String>,
    /// Names that the condition reads, as typed.
    pub(super) filter_reads: Vec<String>,
    /// The statement without a condition.
    pub(super) select: String,
    /// Whether a view reads its table, so that the question's text does not show all uses.
    pub(super) is_below: bool,
    /// How often the question names its table.
    pub(super) uses: usize,
    /// Names of the columns that it ships.
    pub(super) ships: Vec<String>,
}

/// Adds the fragments that another fragment's keys can reduce, or (without `by_keys`) its bounds
/// alone, to those that are `found`: each at most once, by fragments that are not reduced
/// themselves.
pub(super) fn reductions(
    found: &mut Vec<Reduction>,
    fragments: &[Fetched],
    (links, ranges): (&[Link], &[RangeLink]),
    tables: &[MergeTable],
    catalog: &Catalog,
    by_keys: bool,
) {
    for (at, fragment) in fragments.iter().enumerate() {
        let takes_part = |other: &Reduction| other.fragment == at || other.drivers().contains(&at);
        if fragment.is_below || fragment.uses != 1 || found.iter().any(takes_part) {
            continue;
        }
        let place = |key: &str| {
            let driver = fragments.iter().position(|fragment| fragment.key == key)?;
            let is_reduced = found.iter().any(|other| other.fragment == driver);
            (driver != at && fragments[driver].filter.is_some() && !is_reduced).then_some(driver)
        };
        let keys = links.iter().filter(|link| by_keys && link.table == fragment.key).find_map(|link| {
            // One that has a condition of its own drives: both at once would wait for each other.
            let driver = place(&link.driver).filter(|_| fragment.filter.is_none())?;
            Some((driver, keys(link, fragment, &fragments[driver], catalog)?))
        });
        if by_keys && keys.is_none() {
            continue;
        }
        let of_fragment = ranges.iter().filter(|link| link.table == fragment.key);
        let bounds: Vec<(usize, DriverBound)> = of_fragment
            .filter_map(|link| {
                let driver = place(&link.driver)?;
                Some((driver, bound(link, fragment, &fragments[driver], &tables[driver], catalog)?))
            })
            .collect();
        let first = bounds.first().map(|(driver, _)| *driver);
        let Some(driver) = keys.as_ref().map(|(driver, _)| *driver).or(first) else { continue };
        let bounds = bounds.into_iter().filter(|(of, _)| *of == driver).map(|(_, bound)| bound).collect();
        let (keys, select, filter) = (keys.map(|(_, keys)| keys), fragment.select.clone(), fragment.filter.clone());
        let by = ReductionBy::Driver(ReducedByDriver { driver, keys, bounds, select, filter });
        found.push(Reduction { fragment: at, by });
    }
}

/// The fragment's column, and the driver's with its keys, where rows are found by them.
fn keys(link: &Link, fragment: &Fetched, driver: &Fetched, catalog: &Catalog) -> Option<(String, String)> {
    let (table, driver_table) = (catalog.tables.get(&link.table)?, catalog.tables.get(&link.driver)?);
    let stored = |table| stores_by_affinity(table, catalog);
    let mine = shipped_column(table, &link.column, fragment).filter(|_| stored(table))?;
    let theirs = shipped_column(driver_table, &link.driver_column, driver).filter(|_| stored(driver_table))?;
    let same = affinity(&mine.decl_type) == affinity(&theirs.decl_type)
        && mine.collation.eq_ignore_ascii_case(&theirs.collation);
    (same && !table.replicated).then(|| (mine.name.clone(), theirs.name.clone()))
}

/// What the driver's rows say of the fragment's column.
fn bound(
    link: &RangeLink,
    fragment: &Fetched,
    driver: &Fetched,
    merged: &MergeTable,
    catalog: &Catalog,
) -> Option<DriverBound> {
    let (table, driver_table) = (catalog.tables.get(&link.table)?, catalog.tables.get(&link.driver)?);
    let is_number = |table: &Table, column: &Column| {
        matches!(affinity(&column.decl_type), "INT" | "REAL" | "NUM") && stores_by_affinity(table, catalog)
    };
    let mine = shipped_column(table, &link.column, fragment).filter(|column| is_number(table, column))?;
    let is_fit =
        |name: &str| shipped_column(driver_table, name, driver).is_some_and(|column| is_number(driver_table, column));
    let is_bounded = fragment.filter_reads.iter().any(|name| same_name(name, &link.column));
    if is_bounded || table.replicated || !is_numeric(&link.with, &is_fit) {
        return None;
    }
    let function = if link.operator.starts_with('>') { "min" } else { "max" };
    Some(DriverBound {
        column: quote_name(&mine.name),
        operator: link.operator.to_owned(),
        sql: format!("SELECT {function}({}) FROM {}", link.with, quoted(&merged.name)),
    })
}

/// The reduction of fragment `at` by rows of the `drivers`, where these are not reduced themselves
/// and nothing waits for the fragment.
pub(super) fn by_rows(
    at: usize,
    (drivers, by): (BTreeSet<usize>, ReducedByRows),
    others: &[Reduction],
) -> Option<ReducedByRows> {
    let is_reduced = |fragment: usize| others.iter().any(|other| other.fragment == fragment);
    let drives = |fragment: usize| others.iter().any(|other| other.drivers().contains(&fragment));
    if is_reduced(at) || drives(at) || drivers.contains(&at) || drivers.iter().any(|driver| is_reduced(*driver)) {
        return None;
    }
    Some(ReducedByRows { drivers: drivers.into_iter().collect(), ..by })
}

/// The merge table of a fragment that counts rows.
pub(super) fn count_table(fragment: usize) -> MergeTable {
    let column =
        MergeColumn { name: "n".to_owned(), affinity: "INT".to_owned(), collation: "BINARY".to_owned(), filled: true };
    MergeTable { name: format!("mesh_count_{fragment}"), columns: vec![column] }
}

/// A column of a table by its name as typed, where the fragment ships it.
pub(super) fn shipped_column<'t>(table: &'t Table, name: &str, fragment: &Fetched) -> Option<&'t Column> {
    let column = table.columns.iter().find(|column| same_name(&quoted(&column.name), name))?;
    let shipped = fragment.ships.iter().any(|name| name.eq_ignore_ascii_case(&column.name));
    (shipped && column.plain).then_some(column)
}

/// Whether the values of a plain column of this table have been through the column's affinity: a
/// virtual table gives what it likes, and a view of several arms has an affinity that no arm need
/// have applied.
pub(super) fn stores_by_affinity(table: &Table, catalog: &Catalog) -> bool {
    match table.kind {
        Kind::Table => is_stored(table),
        Kind::RowView => {
            !table.sql.to_ascii_uppercase().contains("UNION")
                && catalog.tables.values().all(|other| other.kind != Kind::Table || is_stored(other))
        }
        Kind::View => false,
    }
}

/// SQLite keeps the statement that made a table as `CREATE TABLE …` or
/// `CREATE VIRTUAL TABLE … USING MODULE(…)`; columns of a trace store hold integers and texts by
/// their declared types.
fn is_stored(table: &Table) -> bool {
    let mut words = table.sql.split_whitespace();
    match words.nth(1) {
        Some(word) if word.eq_ignore_ascii_case("TABLE") => true,
        Some(word) if word.eq_ignore_ascii_case("VIRTUAL") => {
            let module = words.skip_while(|word| !word.eq_ignore_ascii_case("USING")).nth(1);
            module.and_then(|module| module.split('(').next()).map(str::as_bytes) == Some(COLUMN_MODULE.to_bytes())
        }
        _ => false,
    }
}
