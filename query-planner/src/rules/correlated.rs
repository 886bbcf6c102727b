//! Semi-join reduction of a fetch by rows: which rows of a table a correlated subquery can need,
//! given the rows of the query around it.
//!
//! `SELECT …, (SELECT f FROM c WHERE c.k = b.k AND c.t >= b.t ORDER BY c.t LIMIT 1) FROM b WHERE …`
//! fetches the rows of `b` first (round 1). Where they are few, what the condition reads of them
//! goes to the nodes as a table of values, and of `c` come the rows that match one of them
//! (round 2); of a subquery that takes the first row in an order, only those that are first for one
//! of them at their node. Round 1 also counts the rows of `c` that would come otherwise: values
//! are sent only where they are fewer (`run.rs`).
//!
//! # Why the rewrite keeps the contract
//! As in `semijoin.rs` the user's SQL runs unchanged at the coordinator, so a row too many changes
//! nothing, and a row of `c` is left out only where no use of `c` can need it:
//!
//! - Each use of `c` in the question is looked at. One without a condition that can be sent needs
//!   every row, and then nothing is reduced. The conditions of several uses are joined by OR.
//! - A condition is a conjunct of the WHERE of the subquery (of an ON where `c` is the right side
//!   of a LEFT JOIN), reads columns of `c` and of one table of a query around it, and cannot fail.
//!   The subquery looks at rows of `c` only where all conjuncts are true, so NULLs, NOT IN,
//!   aggregates over nothing and LIMIT are the coordinator's as before.
//! - What the subquery can see of `b` is a row that was fetched, or a row of NULLs (`b` is the
//!   right side of an outer join, or an aggregate is over no row). Both are among the values.
//! - A condition is true at a node where it is true at the coordinator: columns of `c` are of
//!   tables that store by affinity, values have the affinity of their column and collate by BINARY
//!   as it does (`values.rs`).
//! - *First rows*: where the subquery is over `c` alone, all of its conditions are sent, and it is
//!   `ORDER BY c.x LIMIT 1`, `min(c.x)` or `max(c.x)`, then for a row of `b` it needs rows that
//!   have the least (greatest) `x` of those that match. The least of all nodes is the least of its
//!   own node. ORDER BY puts NULL first, `min` passes over it, so a condition must compare `x`.
//!   `EXISTS` needs any row: those that have the least of a column that a condition compares.

use std::collections::BTreeSet;

use super::semijoin::{Fetched, shipped_column};
use crate::ast::{
    Expr, From, Limit, Output, Query, Select, Sort, Source, VisitMut, quote_name, same_name, unquote, walk_mut,
};
use crate::catalog::{Catalog, Table, has_node, node_column};
use crate::expressions::{Columns, contains, is_aggregate};
use crate::names::{affinity, quoted};
use crate::plan::{MergeTable, ReducedByRows, ValueSet};
use crate::rewrite::{is_safe_filter, node_source};

/// The names of a row of the table and of the values in conditions, and of tables of a fragment.
const ROW: &str = "mesh_row";
const OUTER: &str = "mesh_outer";
const VALUES: &str = "mesh_values_";
const FIRSTS: &str = "mesh_first_";
const FIRST: &str = "first";

/// What a FROM names: each source's alias and, of a table, its lower-case name. None where it is
/// not known.
#[derive(Debug, Clone, Default)]
pub(super) struct Names(Vec<(Option<String>, Option<String>)>);

impl Names {
    pub(super) fn of<'t>(from: &From, table: impl Fn(&Source) -> Option<&'t Table>) -> Names {
        let named = |source: &Source| {
            let alias = match source {
                Source::Table { name, alias, .. } | Source::Call { name, alias, .. } => {
                    Some(alias.as_ref().unwrap_or(name).clone())
                }
                Source::Select { alias, .. } => alias.clone(),
                Source::Nested { .. } => None,
            };
            (alias, table(source).map(|table| table.name.to_ascii_lowercase()))
        };
        Names(from.sources().map(named).collect())
    }
}

/// Which of the rows that match a subquery needs, where it does not need all.
#[derive(Debug, Clone)]
pub(super) enum Needs {
    /// Those with the least or greatest value of a column, as typed. With `in_order` NULL is the
    /// least.
    Extreme { column: Expr, greatest: bool, in_order: bool },
    /// Any one of them.
    Any,
}

impl Needs {
    /// What a scalar subquery, or the one of EXISTS, needs.
    pub(super) fn of(select: &Select, is_exists: bool) -> Option<Needs> {
        let query = select.single()?;
        let is_plain = query.from.as_ref()?.joins.is_empty()
            && query.group_by.is_empty()
            && query.having.is_none()
            && !query.distinct;
        if !is_plain {
            return None;
        }
        let collapses = |expr: &Expr| is_aggregate(expr) || matches!(expr, Expr::Call(call) if call.over.is_some());
        let is_of_rows = query.columns.iter().all(|output| match output {
            Output::Expr(expr, _) => !contains(expr, collapses),
            _ => true,
        }) && !select.order_by.iter().any(|sort| contains(&sort.expr, collapses));
        match (&select.limit, select.order_by.as_slice()) {
            (None, _) if is_exists && is_of_rows => Some(Needs::Any),
            (Some(limit), [Sort { expr, desc, nulls_first: None }]) if is_of_rows && is_one(limit) => {
                let column = expr.peeled();
                // ORDER BY looks for an alias first.
                let Expr::Column { table, name } = column else { return None };
                let named = |output: &Output| matches!(output, Output::Expr(_, Some(alias)) if same_name(alias, name));
                let is_alias = table.is_none() && query.columns.iter().any(named);
                (!is_alias).then(|| Needs::Extreme {
                    column: column.clone(),
                    greatest: *desc == Some(true),
                    in_order: true,
                })
            }
            (None, []) => extreme(query),
            _ => None,
        }
    }
}

fn is_one(limit: &Limit) -> bool {
    limit.count.integer() == Some(1) && limit.offset.as_ref().is_none_or(|offset| offset.integer() == Some(0))
}

/// `SELECT min(x)`, `SELECT max(x)`.
fn extreme(query: &Query) -> Option<Needs> {
    let [Output::Expr(value, _)] = query.columns.as_slice() else { return None };
    let Expr::Call(call) = value.peeled() else { return None };
    let greatest = unquote(&call.name).eq_ignore_ascii_case("max");
    let is_extreme = greatest || unquote(&call.name).eq_ignore_ascii_case("min");
    match call.args.as_slice() {
        [column] if is_extreme && call.filter.is_none() && call.over.is_none() && call.order_by.is_empty() => {
            let column = column.peeled().clone();
            matches!(column, Expr::Column { .. }).then_some(Needs::Extreme { column, greatest, in_order: false })
        }
        _ => None,
    }
}

/// The rows of a table that one use of it needs: those that match a row of another table.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Matching {
    /// The other table by its lower-case name.
    driver: String,
    /// Its columns that the condition reads, bare.
    columns: Vec<String>,
    /// Conjuncts on the table alone, then those with values.
    own: Vec<Expr>,
    pairs: Vec<Expr>,
    /// The column by which only the first rows are needed, and whether those are the greatest.
    first: Option<(String, bool)>,
    /// Whether any one row is as good as several that are equal.
    any: bool,
}

impl Matching {
    /// What `conjuncts` say of the rows of a source. `scopes` are the FROMs around them, the
    /// innermost (the source's own) last; `is_own` says whether an expression reads columns of the
    /// source alone.
    pub(super) fn of(
        conjuncts: &[&Expr],
        scopes: &[Names],
        catalog: &Catalog,
        needs: Option<&Needs>,
        is_own: &dyn Fn(&Expr) -> bool,
    ) -> Option<Matching> {
        // By the place of the table around: depth and source.
        let mut groups: Vec<((usize, usize), Vec<&Expr>)> = Vec::new();
        let mut own = Vec::new();
        for conjunct in conjuncts.iter().filter(|conjunct| is_safe_filter(conjunct)) {
            if is_own(conjunct) {
                own.push(*conjunct);
                continue;
            }
            let Some(place) = place_around(conjunct, scopes, catalog, is_own) else { continue };
            match groups.iter_mut().find(|(other, _)| *other == place) {
                Some((_, group)) => group.push(conjunct),
                None => groups.push((place, vec![conjunct])),
            }
        }
        let (place, pairs) = groups.into_iter().rev().max_by_key(|(_, group)| group.len())?;
        let is_complete = own.len() + pairs.len() == conjuncts.len();
        let driver = scopes.get(place.0)?.0.get(place.1)?.1.clone()?;
        let mut rename = Rename { is_own, columns: Vec::new() };
        let renamed = |rename: &mut Rename<'_>, exprs: Vec<&Expr>| {
            let mut exprs: Vec<Expr> = exprs.into_iter().cloned().collect();
            exprs.iter_mut().for_each(|expr| rename.expr(expr));
            exprs
        };
        let (own, pairs) = (renamed(&mut rename, own), renamed(&mut rename, pairs));
        let mut matching = Matching { driver, columns: rename.columns, own, pairs, first: None, any: false };
        if is_complete {
            matching.first = needs.and_then(|needs| matching.first_by(needs, is_own));
            matching.any = matches!(needs, Some(Needs::Any));
        }
        Some(matching)
    }

    fn first_by(&self, needs: &Needs, is_own: &dyn Fn(&Expr) -> bool) -> Option<(String, bool)> {
        let compared = |operators: &[&str]| {
            let all = self.pairs.iter().chain(&self.own);
            all.flat_map(|conjunct| compared_columns(conjunct, operators)).collect::<Vec<String>>()
        };
        match needs {
            Needs::Extreme { column, greatest, in_order } => {
                let Expr::Column { name, .. } = column else { return None };
                let name = unquote(name);
                let all = compared(&["=", "==", "<", "<=", ">", ">="]);
                let is_compared = all.iter().any(|other| other.eq_ignore_ascii_case(&name));
                (is_own(column) && (is_compared || !in_order)).then_some((name, *greatest))
            }
            // (Where all is compared by equality, rows that match are alike.)
            Needs::Any => compared(&["<", "<=", ">", ">="]).into_iter().next().map(|name| (name, false)),
        }
    }
}

/// The columns of the table that a conjunct compares: where it is true, they are not NULL.
fn compared_columns(conjunct: &Expr, operators: &[&str]) -> Vec<String> {
    let of = |side: &Expr| match side.peeled() {
        Expr::Column { table: Some(table), name } if table == ROW => Some(unquote(name)),
        _ => None,
    };
    match conjunct.peeled() {
        Expr::Binary(lhs, operator, rhs) if operators.contains(operator) => {
            of(lhs).into_iter().chain(of(rhs)).collect()
        }
        Expr::Between { lhs, not: false, .. } => of(lhs).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// The one source of the FROMs around whose columns an expression reads beside its own.
fn place_around(
    expr: &Expr,
    scopes: &[Names],
    catalog: &Catalog,
    is_own: &dyn Fn(&Expr) -> bool,
) -> Option<(usize, usize)> {
    let mut columns = Columns::default();
    crate::ast::Visit::expr(&mut columns, expr);
    let mut place = None;
    for (table, name) in columns.0 {
        let column = Expr::Column { table: table.clone(), name: name.clone() };
        if is_own(&column) {
            continue;
        }
        // (A bare name may be that of a result column.)
        let found = named_around(&table?, &name, scopes, catalog)?;
        if place.is_some_and(|place| place != found) {
            return None;
        }
        place = Some(found);
    }
    place
}

fn named_around(qualifier: &str, name: &str, scopes: &[Names], catalog: &Catalog) -> Option<(usize, usize)> {
    for (depth, scope) in scopes.iter().enumerate().rev() {
        let mut found = None;
        for (at, (alias, table)) in scope.0.iter().enumerate() {
            if !same_name(alias.as_ref()?, qualifier) {
                continue;
            }
            let table = catalog.tables.get(table.as_ref()?)?;
            let has = table.columns.iter().any(|column| same_name(&quoted(&column.name), name))
                || (has_node(table) && same_name(node_column(table), name));
            // Its own source is the innermost scope's, and there is one of the name at most.
            if !has || found.is_some() || depth + 1 == scopes.len() {
                return None;
            }
            found = Some((depth, at));
        }
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Gives columns of the table and of the values their names in a fragment.
struct Rename<'a> {
    is_own: &'a dyn Fn(&Expr) -> bool,
    columns: Vec<String>,
}

impl VisitMut for Rename<'_> {
    fn expr(&mut self, node: &mut Expr) {
        if !matches!(node, Expr::Column { .. }) {
            return walk_mut::expr(self, node);
        }
        let is_own = (self.is_own)(node);
        let Expr::Column { table, name } = node else { return };
        let bare = unquote(name);
        if is_own {
            *name = quote_name(&bare);
            *table = Some(ROW.to_owned());
            return;
        }
        let known = self.columns.iter().position(|column| column.eq_ignore_ascii_case(&bare));
        let at = known.unwrap_or_else(|| {
            self.columns.push(bare);
            self.columns.len() - 1
        });
        *table = Some(OUTER.to_owned());
        *name = value_name(at);
    }
}

fn value_name(at: usize) -> String {
    super::values::column_name(at)
}

/// One use of a table.
#[derive(Debug, Default)]
pub(super) struct Use {
    /// The condition on the table alone that all rows fulfil that it needs.
    pub(super) filter: Option<Expr>,
    pub(super) matching: Option<Matching>,
}

/// A fragment that may be reduced, with what it is made of.
pub(super) struct Reducible<'a> {
    pub(super) table: &'a Table,
    pub(super) uses: &'a [Use],
    /// Its result columns as SQL.
    pub(super) outputs: &'a [String],
    /// Whether its source shows the node's name.
    pub(super) with_node: bool,
}

impl Reducible<'_> {
    /// The fragment with only the rows that match, and the values of which fragments it needs;
    /// `tables` and `fragments` are those of the plan.
    pub(super) fn reduced(
        &self,
        fragments: &[Fetched],
        tables: &[MergeTable],
        catalog: &Catalog,
    ) -> Option<(BTreeSet<usize>, ReducedByRows)> {
        if self.table.replicated || self.uses.iter().all(|one| one.matching.is_none()) {
            return None;
        }
        let mut made = Made { sets: Vec::new(), of: Vec::new(), firsts: Vec::new() };
        let mut drivers = BTreeSet::new();
        let mut conditions: Vec<String> = Vec::new();
        for one in self.uses {
            let Some(matching) = &one.matching else {
                conditions.push(format!("({})", qualified(one.filter.as_ref()?)));
                continue;
            };
            let driver = fragments.iter().position(|other| other.key == matching.driver)?;
            drivers.insert(driver);
            self.compares_alike(matching, catalog)?;
            let set = made.set(matching, catalog.tables.get(&matching.driver)?, &fragments[driver], &tables[driver])?;
            let condition = self.condition(matching, &set, &mut made);
            if !conditions.contains(&condition) {
                conditions.push(condition);
            }
        }
        // (A table of which no column is read has the output NULL.)
        let output = |output: &String| if output == "NULL" { output.clone() } else { format!("{ROW}.{output}") };
        let outputs: Vec<String> = self.outputs.iter().map(output).collect();
        let distinct = if self.may_drop_equal_rows() { "DISTINCT " } else { "" };
        let select =
            format!("SELECT {distinct}{} FROM {} WHERE {}", outputs.join(", "), self.source(), conditions.join(" OR "));
        let with = if made.firsts.is_empty() { String::new() } else { format!("WITH {} ", made.firsts.join(", ")) };
        let sql = format!("{with}{select}");
        Some((drivers, ReducedByRows { drivers: Vec::new(), sets: made.sets, sql, counted: 0 }))
    }

    /// Whether a condition with values names the node of the table's row.
    pub(super) fn names_node(table: &Table, uses: &[Use]) -> bool {
        let mut columns = Columns::default();
        let matchings = uses.iter().filter_map(|one| one.matching.as_ref());
        matchings.flat_map(|one| &one.pairs).for_each(|expr| crate::ast::Visit::expr(&mut columns, expr));
        let is_node = |name: &str| has_node(table) && same_name(node_column(table), name);
        columns.0.iter().any(|(of, name)| of.as_deref() == Some(ROW) && is_node(name))
    }

    /// Whether every use needs only one of several rows that are equal in all columns, and equal
    /// means the same in any comparison.
    fn may_drop_equal_rows(&self) -> bool {
        let is_exact = |output: &String| {
            let column = self.table.columns.iter().find(|column| quote_name(&column.name) == *output);
            column.is_none_or(|column| {
                column.plain
                    && matches!(affinity(&column.decl_type), "INT" | "TEXT")
                    && column.collation.eq_ignore_ascii_case("BINARY")
            })
        };
        self.uses.iter().all(|one| one.matching.as_ref().is_some_and(|matching| matching.any))
            && self.outputs.iter().all(is_exact)
    }

    fn source(&self) -> String {
        match self.with_node {
            true => node_source(self.table, ROW).to_string(),
            false => format!("{} AS {ROW}", quote_name(&self.table.name)),
        }
    }

    /// Whether conditions on the table's columns mean the same at a node and at the coordinator.
    fn compares_alike(&self, matching: &Matching, catalog: &Catalog) -> Option<()> {
        let mut columns = Columns::default();
        matching.pairs.iter().for_each(|expr| crate::ast::Visit::expr(&mut columns, expr));
        let first = matching.first.iter().map(|(name, _)| quote_name(name));
        let own = columns.0.into_iter().filter(|(table, _)| table.as_deref() == Some(ROW)).map(|(_, name)| name);
        for name in own.chain(first) {
            let is_node = has_node(self.table) && same_name(node_column(self.table), &name);
            let column = self.table.columns.iter().find(|column| same_name(&quoted(&column.name), &name));
            let stored = |column: &crate::catalog::Column| {
                column.plain
                    && !affinity(&column.decl_type).is_empty()
                    && super::semijoin::stores_by_affinity(self.table, catalog)
            };
            if !column.map_or(is_node, stored) {
                return None;
            }
        }
        Some(())
    }

    fn condition(&self, matching: &Matching, set: &str, made: &mut Made) -> String {
        let all = |exprs: &[Expr]| exprs.iter().map(|expr| format!("({expr})")).collect::<Vec<_>>();
        let (own, pairs) = (all(&matching.own), all(&matching.pairs));
        let Some((column, greatest)) = &matching.first else {
            let exists = format!("EXISTS (SELECT 1 FROM {set} AS {OUTER} WHERE {})", pairs.join(" AND "));
            return [own, vec![exists]].concat().join(" AND ");
        };
        let column = format!("{ROW}.{}", quote_name(column));
        let function = if *greatest { "max" } else { "min" };
        let both = [own, pairs].concat().join(" AND ");
        let body = format!(
            "(SELECT {OUTER}.*, (SELECT {function}({column}) FROM {} WHERE {both}) AS {FIRST} FROM {set} AS {OUTER})",
            self.source()
        );
        let known = made.firsts.iter().position(|other| other.ends_with(&body));
        let number = known.unwrap_or(made.firsts.len()) + 1;
        let firsts = format!("{FIRSTS}{number}");
        if known.is_none() {
            made.firsts.push(format!("{firsts} AS MATERIALIZED {body}"));
        }
        format!(
            "{column} IN (SELECT {FIRST} FROM {firsts}) AND \
             EXISTS (SELECT 1 FROM {firsts} AS {OUTER} WHERE {column} = {OUTER}.{FIRST} AND {both})"
        )
    }
}

/// What the statement of a reduced fragment needs before its SELECT.
struct Made {
    sets: Vec<ValueSet>,
    /// Of each set the table and the columns.
    of: Vec<(String, Vec<String>)>,
    firsts: Vec<String>,
}

impl Made {
    /// The name of the set of the driver's rows that a condition reads.
    fn set(&mut self, matching: &Matching, table: &Table, driver: &Fetched, merged: &MergeTable) -> Option<String> {
        let of = (matching.driver.clone(), matching.columns.clone());
        if let Some(at) = self.of.iter().position(|known| *known == of) {
            return Some(self.sets[at].name.clone());
        }
        let mut affinities = Vec::new();
        for name in &matching.columns {
            if has_node(table) && name.eq_ignore_ascii_case(node_column(table)) {
                affinities.push("TEXT".to_owned());
                continue;
            }
            let column = shipped_column(table, &quote_name(name), driver)?;
            let known = affinity(&column.decl_type);
            if known.is_empty() || !column.collation.eq_ignore_ascii_case("BINARY") {
                return None;
            }
            affinities.push(known.to_owned());
        }
        let columns: Vec<String> = matching.columns.iter().map(|name| quoted(name)).collect();
        let nulls = vec!["NULL"; columns.len()].join(", ");
        let name = format!("{VALUES}{}", self.sets.len() + 1);
        if columns.is_empty() {
            return None;
        }
        let rows = quoted(&merged.name);
        let sql = format!("SELECT {nulls} UNION ALL SELECT DISTINCT {} FROM {rows}", columns.join(", "));
        self.sets.push(ValueSet { name: name.clone(), sql, affinities });
        self.of.push(of);
        Some(name)
    }
}

/// A condition on the table alone, with its columns as the fragment's.
fn qualified(filter: &Expr) -> Expr {
    let mut filter = filter.clone();
    Rename { is_own: &|_| true, columns: Vec::new() }.expr(&mut filter);
    filter
}
