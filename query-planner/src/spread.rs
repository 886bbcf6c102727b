//! How the rows of a FROM are spread over the nodes.
//!
//! FROM is *distributed* when its rows over the union are the rows of each node put together. That
//! holds for one partitioned table; for inner joins of it with replicated tables (equal
//! everywhere); for LEFT JOIN with the replicated side on the right; and for any join of
//! partitioned tables whose condition has `x.node = y.node` (or fixes both to one node by name),
//! since then only rows of the same node meet. A subquery in FROM counts as a table if it filters
//! and projects a distributed FROM, and as replicated if it reads replicated tables only.

use crate::ast::{
    Compound, Core, Expr, From, Join, JoinKind, Output, Select, Source, Visit, conjuncts, same_name, walk,
};
use crate::catalog::{Catalog, Kind, has_node, node_column};
use crate::expressions::{contains, each_table, is_aggregate};
use crate::functions;
use crate::scope::{Scope, literal_text, select_columns};

/// Finds subqueries in expressions that read partitioned tables or unknown names (CTEs), those
/// excepted that see rows of the outer row's node only.
pub(crate) struct Remote<'a> {
    pub(crate) catalog: &'a Catalog,
    pub(crate) outer: Option<&'a Scope>,
    pub(crate) found: bool,
}

impl Visit for Remote<'_> {
    fn expr(&mut self, node: &Expr) {
        if let Expr::InTable { .. } = node {
            self.found = true;
        }
        walk::expr(self, node);
    }

    fn select(&mut self, node: &Select) {
        // Evaluated once over the union; at each node it may give something else.
        let same_node = || self.outer.is_some_and(|outer| sees_one_node(node, outer, self.catalog));
        self.found |= contains_volatile(node) || !(reads_replicated_only(node, self.catalog) || same_node());
    }

    fn source(&mut self, node: &Source) {
        // Subqueries in FROM are judged by `spread`.
        if !matches!(node, Source::Select { .. }) {
            walk::source(self, node);
        }
    }
}

/// Whether a subquery's WHERE has `inner.node = outer.node`: then all it can see of its
/// (distributed) FROM is on the node of the outer row, and that node computes what the union would.
fn sees_one_node(select: &Select, outer: &Scope, catalog: &Catalog) -> bool {
    let Some(query) = select.single() else { return false };
    let (Some(from), Some(filter)) = (&query.from, &query.filter) else { return false };
    let Some(inner) = Scope::of(from, catalog) else { return false };
    // A subquery within must keep to replicated tables.
    let mut remote = Remote { catalog, outer: None, found: false };
    remote.query(query);
    if remote.found || !is_partitioned(from, Some(filter), catalog) {
        return false;
    }
    let names_inner = |expr: &Expr| inner.parts_by_node(expr);
    // What the inner FROM knows, it means.
    let names_outer = |expr: &Expr| inner.column(expr).is_none() && outer.parts_by_node(expr);
    conjuncts(filter).iter().any(|conjunct| match conjunct {
        Expr::Binary(a, "=", b) => (names_inner(a) && names_outer(b)) || (names_inner(b) && names_outer(a)),
        _ => false,
    })
}

fn reads_replicated_only(select: &Select, catalog: &Catalog) -> bool {
    let mut only = true;
    each_table(&mut select.clone(), &mut |source| {
        if let Source::Table { name, .. } = source {
            only &= catalog.find(name).is_some_and(|table| table.replicated);
        }
    });
    struct InTables(bool);
    impl Visit for InTables {
        fn expr(&mut self, node: &Expr) {
            self.0 |= matches!(node, Expr::InTable { .. });
            walk::expr(self, node);
        }
    }
    let mut in_tables = InTables(false);
    in_tables.select(select);
    only && !in_tables.0
}

/// How a source's rows are spread over the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spread {
    /// Each row on one node.
    Partitioned,
    /// The same rows everywhere.
    Everywhere,
}

/// Whether the rows of FROM over the union are the rows of each node put together, each on one
/// node.
pub(crate) fn is_partitioned(from: &From, filter: Option<&Expr>, catalog: &Catalog) -> bool {
    spread(from, filter, catalog) == Some(Spread::Partitioned)
}

fn spread(from: &From, filter: Option<&Expr>, catalog: &Catalog) -> Option<Spread> {
    let mut all = source_spread(&from.first, catalog)?;
    for (i, join) in from.joins.iter().enumerate() {
        let right = source_spread(&join.source, catalog)?;
        use Spread::{Everywhere, Partitioned};
        all = match (all, right) {
            (Everywhere, Everywhere) => Everywhere,
            (Partitioned, Partitioned) if joins_on_node(from, i, join, filter, catalog) => Partitioned,
            (Partitioned, Partitioned) => return None,
            (Partitioned, Everywhere) if !matches!(join.kind, JoinKind::Right | JoinKind::Full) => Partitioned,
            (Everywhere, Partitioned) if !matches!(join.kind, JoinKind::Left | JoinKind::Full) => Partitioned,
            _ => return None,
        };
    }
    Some(all)
}

fn source_spread(source: &Source, catalog: &Catalog) -> Option<Spread> {
    match source {
        Source::Table { name, .. } => {
            let table = catalog.find(name)?;
            match (table.replicated, table.kind) {
                (true, _) => Some(Spread::Everywhere),
                (false, Kind::View) => None,
                (false, _) => Some(Spread::Partitioned),
            }
        }
        // json_each and its kin: what they give depends on their arguments only.
        Source::Call { .. } => Some(Spread::Everywhere),
        Source::Nested { from, alias: None } => spread(from, None, catalog),
        Source::Nested { .. } => None,
        Source::Select { select, .. } => {
            if reads_replicated_only(select, catalog) {
                let volatile = contains_volatile(select);
                return if volatile { None } else { Some(Spread::Everywhere) };
            }
            row_select(select, catalog).then_some(Spread::Partitioned)
        }
    }
}

fn contains_volatile(select: &Select) -> bool {
    struct Volatile(bool);
    impl Visit for Volatile {
        fn expr(&mut self, node: &Expr) {
            self.0 |= matches!(node, Expr::Call(call) if functions::is_volatile(&call.name));
            walk::expr(self, node);
        }
    }
    let mut volatile = Volatile(false);
    volatile.select(select);
    // LIMIT without a total order may pick other rows on each node.
    volatile.0 || select.limit.is_some()
}

/// Filter and projection of a distributed FROM, or UNION ALL of such.
fn row_select(select: &Select, catalog: &Catalog) -> bool {
    select.with.is_none()
        && select.limit.is_none()
        && select.compounds.iter().all(|(operator, _)| *operator == Compound::UnionAll)
        && std::iter::once(&select.first).chain(select.compounds.iter().map(|(_, core)| core)).all(|core| {
            let Core::Query(query) = core else { return false };
            let Some(from) = &query.from else { return false };
            let mut remote = Remote { catalog, outer: None, found: false };
            remote.query(query);
            let collapses = query.columns.iter().any(|output| {
                matches!(output, Output::Expr(expr, _) if contains(expr, |e| is_aggregate(e)
                    || matches!(e, Expr::Call(call) if call.over.is_some())))
            });
            !query.distinct
                && query.group_by.is_empty()
                && query.having.is_none()
                && !collapses
                && !remote.found
                && is_partitioned(from, query.filter.as_ref(), catalog)
        })
}

/// Whether join `i` of FROM keeps rows of different nodes apart: its ON (or, for inner joins,
/// WHERE) has `left.node = right.node`, or USING names the node column.
fn joins_on_node(from: &From, i: usize, join: &Join, filter: Option<&Expr>, catalog: &Catalog) -> bool {
    let left: Vec<&Source> = from.sources().take(i + 1).collect();
    let node_of = |source: &Source| -> Option<(String, String)> {
        match source {
            Source::Table { name, alias, .. } => {
                let table = catalog.find(name).filter(|table| has_node(table))?;
                Some((alias.clone().unwrap_or_else(|| name.clone()), node_column(table).to_owned()))
            }
            Source::Select { select, alias: Some(alias) } => {
                let columns = select_columns(select, catalog)?;
                Some((alias.clone(), columns.into_iter().find(|column| column.is_node)?.name))
            }
            _ => None,
        }
    };
    let Some((right_alias, right_node)) = node_of(&join.source) else { return false };
    if join.using.iter().any(|name| same_name(name, &right_node)) {
        return left.iter().all(|source| node_of(source).is_some_and(|(_, node)| node == right_node));
    }
    let names = |expr: &Expr, alias: &str, node: &str| {
        matches!(expr.peeled(), Expr::Column { table: Some(table), name }
            if same_name(table, alias) && same_name(name, node))
    };
    let mut conditions: Vec<&Expr> = join.on.as_ref().map(conjuncts).unwrap_or_default();
    if matches!(join.kind, JoinKind::Comma | JoinKind::Inner | JoinKind::Cross)
        && !from.joins.iter().any(|join| matches!(join.kind, JoinKind::Right | JoinKind::Full))
    {
        conditions.extend(filter.map(conjuncts).unwrap_or_default());
    }
    // Both sides on one and the same node, by name.
    let column_of = |alias: &str, node: &str| {
        conditions.iter().find_map(|condition| match condition {
            Expr::Binary(a, "=", b) if names(a, alias, node) => literal_text(b),
            Expr::Binary(a, "=", b) if names(b, alias, node) => literal_text(a),
            _ => None,
        })
    };
    if matches!(join.kind, JoinKind::Comma | JoinKind::Inner | JoinKind::Cross)
        && let Some(right) = column_of(&right_alias, &right_node)
        && left
            .iter()
            .filter_map(|source| node_of(source))
            .any(|(alias, node)| column_of(&alias, &node) == Some(right.clone()))
    {
        return true;
    }
    conditions.iter().any(|condition| {
        let Expr::Binary(a, "=", b) = condition else { return false };
        left.iter().filter_map(|source| node_of(source)).any(|(alias, node)| {
            !same_name(&alias, &right_alias)
                && ((names(a, &alias, &node) && names(b, &right_alias, &right_node))
                    || (names(b, &alias, &node) && names(a, &right_alias, &right_node)))
        })
    })
}
