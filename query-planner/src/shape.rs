//! The shape of a question that nodes can work on: one query whose FROM is distributed over the nodes, with every name
//! in it resolved. `rules/rows.rs` and `rules/aggregate.rs` plan over shapes; what has no shape is fetched.
//!
//! FROM is *distributed* when its rows over the union are the rows of each node put together. That holds for one
//! partitioned table; for inner joins of it with replicated tables (equal everywhere); for LEFT JOIN with the
//! replicated side on the right; and for any join of partitioned tables whose condition has `x.node = y.node`, since
//! then only rows of the same node meet. A subquery in FROM counts as a table if it filters and projects a distributed
//! FROM, and as replicated if it reads replicated tables only.

use crate::ast::{
    Compound, Core, Expr, From, Join, JoinKind, Limit, Output, Query, Select, Sort, Source, Visit, VisitMut, conjuncts,
    same_name, unquote, walk, walk_mut,
};
use crate::catalog::{Catalog, Kind, Table};
use crate::check::{affinity, has_node, node_column};
use crate::functions;
use crate::rewrite::each_table;

/// A column that an expression can name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ColumnInfo {
    pub(crate) name: String,
    /// Type name standing for the affinity; None for none at all (an expression of a view or subquery).
    pub(crate) affinity: Option<&'static str>,
    pub(crate) collation: String,
    /// Not part of `*`.
    pub(crate) hidden: bool,
    /// The hidden column that names the node.
    pub(crate) is_node: bool,
}

impl ColumnInfo {
    /// What stands for this column in the merge: see [`Scope::stand_in`].
    pub(crate) fn stand_in(&self, name: &str) -> Expr {
        match self.affinity {
            Some(_) => Expr::column(name),
            // A subquery's expression: a collation of its own, no affinity.
            None => Expr::Unary("+", Box::new(Expr::column(name))),
        }
    }
}

/// One source of FROM.
#[derive(Debug, Clone)]
struct ScopeSource {
    alias: Option<String>,
    columns: Vec<ColumnInfo>,
    /// An outer join may put NULLs in place of its rows.
    nullable: bool,
}

/// What names mean in one FROM.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scope {
    sources: Vec<ScopeSource>,
    /// Columns that USING or NATURAL has merged.
    merged: Vec<String>,
    has_right_join: bool,
}

/// One query over a distributed FROM, names resolved, positions and aliases in GROUP BY, HAVING, WHERE and ORDER BY
/// replaced by what they stand for.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) query: Query,
    pub(crate) order_by: Vec<Order>,
    pub(crate) limit: Option<(i64, i64)>,
    pub(crate) scope: Scope,
    /// The nodes that WHERE admits.
    pub(crate) nodes: Option<Vec<String>>,
}

/// An ORDER BY term.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) sort: Sort,
    /// The result column that it names, by position, alias or the same expression.
    pub(crate) output: Option<usize>,
}

impl Shape {
    /// The shape of a normalised SELECT, if it has one.
    pub(crate) fn of(select: &Select, catalog: &Catalog) -> Option<Shape> {
        let mut query = select.single()?.clone();
        let from = query.from.as_ref()?;
        if spread(from, query.filter.as_ref(), catalog)? != Spread::Partitioned {
            return None;
        }
        let scope = Scope::of(from, catalog)?;
        let limit = match &select.limit {
            None => None,
            Some(limit) => Some(constant_limit(limit)?),
        };
        let mut order_by = select.order_by.clone();
        // A subquery over partitioned tables cannot run at a node.
        let mut remote = Remote { catalog, outer: Some(&scope), found: false };
        remote.query(&query);
        order_by.iter().for_each(|sort| remote.expr(&sort.expr));
        if remote.found {
            return None;
        }
        let outputs = query.columns.clone();
        let plain: Vec<Option<&Expr>> = outputs
            .iter()
            .map(|output| match output {
                Output::Expr(expr, _) => Some(expr),
                _ => None,
            })
            .collect();
        let has_star = plain.iter().any(Option::is_none);
        let mut resolve = Resolve { scope: &scope, outputs: &outputs, aliases: true, failed: false };
        for key in &mut query.group_by {
            match key.integer() {
                Some(_) if has_star => return None,
                Some(position) => *key = output_at(&plain, position)?.clone(),
                None => {}
            }
            resolve.expr(key);
            // Printed back, a number would be read as a position.
            if key.integer().is_some() {
                return None;
            }
        }
        query.filter.iter_mut().chain(query.having.iter_mut()).for_each(|expr| resolve.expr(expr));
        let mut orders = Vec::new();
        for sort in &mut order_by {
            let (bare, collate) = split_collate(&sort.expr);
            let mut output = None;
            if let Some(position) = bare.integer() {
                if has_star {
                    return None;
                }
                output_at(&plain, position)?;
                output = usize::try_from(position - 1).ok();
            } else if let Expr::Column { table: None, name } = bare {
                output = outputs
                    .iter()
                    .position(|output| matches!(output, Output::Expr(_, Some(alias)) if same_name(alias, name)));
            }
            if let Some(at) = output {
                let expr = plain.get(at).copied().flatten()?.clone().paren();
                sort.expr = match collate {
                    Some(name) => Expr::Collate(Box::new(expr), name),
                    None => expr,
                };
                output = output.filter(|_| split_collate(&sort.expr).1.is_none());
            }
            resolve.expr(&mut sort.expr);
            orders.push(Order { sort: sort.clone(), output });
        }
        resolve.aliases = false;
        for output in &mut query.columns {
            if let Output::Expr(expr, _) = output {
                resolve.expr(expr);
            }
        }
        if resolve.failed {
            return None;
        }
        for order in &mut orders {
            if order.output.is_none() {
                order.output = query.columns.iter().position(
                    |output| matches!(output, Output::Expr(expr, _) if expr.peeled() == order.sort.expr.peeled()),
                );
            }
        }
        let nodes = query.filter.as_ref().and_then(|filter| scope.admitted_nodes(filter));
        Some(Shape { query, order_by: orders, limit, scope, nodes })
    }

    /// Whether rows are collapsed: GROUP BY or an aggregate anywhere.
    pub(crate) fn is_grouped(&self) -> bool {
        !self.query.group_by.is_empty() || self.query.having.is_some() || self.any_output(is_aggregate)
    }

    /// Whether a window function is called.
    pub(crate) fn has_window(&self) -> bool {
        self.any_output(|expr| matches!(expr, Expr::Call(call) if call.over.is_some()))
    }

    /// Whether a test holds anywhere in the result columns, HAVING or ORDER BY (subqueries excepted).
    fn any_output(&self, test: fn(&Expr) -> bool) -> bool {
        self.query
            .columns
            .iter()
            .filter_map(|output| match output {
                Output::Expr(expr, _) => Some(expr),
                _ => None,
            })
            .chain(self.query.having.iter())
            .chain(self.order_by.iter().map(|order| &order.sort.expr))
            .any(|expr| contains(expr, test))
    }

    /// Whether every group lies on one node: a key is the node column.
    pub(crate) fn is_grouped_by_node(&self) -> bool {
        self.query.group_by.iter().any(|key| self.scope.parts_by_node(key))
    }

    /// How many rows a node needs to ship at most for LIMIT and OFFSET.
    pub(crate) fn rows_needed(&self) -> Option<i64> {
        let (count, offset) = self.limit?;
        if count < 0 { None } else { count.checked_add(offset.max(0)) }
    }
}

/// Whether an expression is an aggregate call.
pub(crate) fn is_aggregate(expr: &Expr) -> bool {
    matches!(expr, Expr::Call(call) if functions::is_aggregate(call))
}

/// Whether a test holds for a part of the expression; subqueries are not looked into.
pub(crate) fn contains(expr: &Expr, test: fn(&Expr) -> bool) -> bool {
    struct Find(fn(&Expr) -> bool, bool);
    impl Visit for Find {
        fn expr(&mut self, node: &Expr) {
            self.1 |= (self.0)(node);
            walk::expr(self, node);
        }
        fn select(&mut self, _: &Select) {}
    }
    let mut find = Find(test, false);
    find.expr(expr);
    find.1
}

/// Whether a subquery stands in the expression.
pub(crate) fn has_subquery(expr: &Expr) -> bool {
    contains(expr, |expr| {
        matches!(expr, Expr::Exists(_) | Expr::Subquery(_) | Expr::InSelect { .. } | Expr::InTable { .. })
    })
}

fn output_at<'e>(outputs: &[Option<&'e Expr>], position: i64) -> Option<&'e Expr> {
    outputs.get(usize::try_from(position.checked_sub(1)?).ok()?).copied().flatten()
}

/// `x COLLATE c` as (x, c).
fn split_collate(expr: &Expr) -> (&Expr, Option<String>) {
    match expr.peeled() {
        Expr::Collate(inner, name) => (split_collate(inner).0, Some(name.clone())),
        other => (other, None),
    }
}

fn constant_limit(limit: &Limit) -> Option<(i64, i64)> {
    let offset = match &limit.offset {
        None => 0,
        Some(offset) => offset.integer()?,
    };
    Some((limit.count.integer()?, offset))
}

/// Finds subqueries in expressions that read partitioned tables or unknown names (CTEs), those excepted that see
/// rows of the outer row's node only.
struct Remote<'a> {
    catalog: &'a Catalog,
    outer: Option<&'a Scope>,
    found: bool,
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

/// Whether a subquery's WHERE has `inner.node = outer.node`: then all it can see of its (distributed) FROM lies on the
/// node of the outer row, and that node computes what the union would.
fn sees_one_node(select: &Select, outer: &Scope, catalog: &Catalog) -> bool {
    let Some(query) = select.single() else { return false };
    let (Some(from), Some(filter)) = (&query.from, &query.filter) else { return false };
    let Some(inner) = Scope::of(from, catalog) else { return false };
    // A subquery within must keep to replicated tables.
    let mut remote = Remote { catalog, outer: None, found: false };
    remote.query(query);
    if remote.found || spread(from, Some(filter), catalog) != Some(Spread::Partitioned) {
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

/// How a source's rows lie over the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spread {
    /// Each row on one node.
    Partitioned,
    /// The same rows everywhere.
    Everywhere,
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
                && spread(from, query.filter.as_ref(), catalog) == Some(Spread::Partitioned)
        })
}

/// Whether join `i` of FROM keeps rows of different nodes apart: its ON (or, for inner joins, WHERE) has
/// `left.node = right.node`, or USING names the node column.
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
    let held = |alias: &str, node: &str| {
        conditions.iter().find_map(|condition| match condition {
            Expr::Binary(a, "=", b) if names(a, alias, node) => literal_text(b),
            Expr::Binary(a, "=", b) if names(b, alias, node) => literal_text(a),
            _ => None,
        })
    };
    if matches!(join.kind, JoinKind::Comma | JoinKind::Inner | JoinKind::Cross)
        && let Some(right) = held(&right_alias, &right_node)
        && left
            .iter()
            .filter_map(|source| node_of(source))
            .any(|(alias, node)| held(&alias, &node) == Some(right.clone()))
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

impl Scope {
    pub(crate) fn of(from: &From, catalog: &Catalog) -> Option<Scope> {
        let mut scope = Scope::default();
        scope.add_from(from, catalog)?;
        Some(scope)
    }

    fn add_from(&mut self, from: &From, catalog: &Catalog) -> Option<()> {
        self.add_source(&from.first, catalog)?;
        for join in &from.joins {
            self.has_right_join |= matches!(join.kind, JoinKind::Right | JoinKind::Full);
            let before: Vec<String> =
                self.sources.iter().flat_map(|source| &source.columns).map(|column| column.name.clone()).collect();
            let first_right = self.sources.len();
            self.add_source(&join.source, catalog)?;
            for (i, source) in self.sources.iter_mut().enumerate() {
                source.nullable |= match join.kind {
                    JoinKind::Left => i >= first_right,
                    JoinKind::Right => i < first_right,
                    JoinKind::Full => true,
                    JoinKind::Comma | JoinKind::Inner | JoinKind::Cross => false,
                };
            }
            self.merged.extend(join.using.iter().map(|name| unquote(name)));
            if join.natural {
                let added = self.sources.last()?;
                self.merged.extend(
                    added
                        .columns
                        .iter()
                        .filter(|column| !column.hidden)
                        .map(|column| column.name.clone())
                        .filter(|name| before.iter().any(|other| other.eq_ignore_ascii_case(name))),
                );
            }
        }
        Some(())
    }

    fn add_source(&mut self, source: &Source, catalog: &Catalog) -> Option<()> {
        let (alias, columns) = match source {
            Source::Table { name, alias, .. } => {
                let table = catalog.find(name)?;
                (Some(unquote(alias.as_ref().unwrap_or(name))), table_columns(table))
            }
            Source::Select { select, alias } => {
                (alias.as_ref().map(|alias| unquote(alias)), select_columns(select, catalog)?)
            }
            Source::Call { name, alias, .. } => {
                let columns = ["key", "value", "type", "atom", "id", "parent", "fullkey", "path", "json", "root"];
                let column = |name: &&str| ColumnInfo {
                    name: (*name).to_owned(),
                    affinity: Some(""),
                    collation: "BINARY".to_owned(),
                    hidden: matches!(*name, "json" | "root"),
                    is_node: false,
                };
                (Some(unquote(alias.as_ref().unwrap_or(name))), columns.iter().map(column).collect())
            }
            Source::Nested { from, alias: None } => return self.add_from(from, catalog),
            Source::Nested { .. } => return None,
        };
        self.sources.push(ScopeSource { alias, columns, nullable: false });
        Some(())
    }

    /// The source and column that a name means.
    fn find(&self, table: Option<&str>, name: &str) -> Option<(&ScopeSource, &ColumnInfo)> {
        let name = unquote(name);
        let mut found = self
            .sources
            .iter()
            .filter(|source| match (table, &source.alias) {
                (None, _) => true,
                (Some(table), Some(alias)) => unquote(table).eq_ignore_ascii_case(alias),
                (Some(_), None) => false,
            })
            .flat_map(|source| source.columns.iter().map(move |column| (source, column)))
            .filter(|(_, column)| column.name.eq_ignore_ascii_case(&name));
        let first = found.next()?;
        let several = found.next().is_some();
        let is_merged = self.merged.iter().any(|other| other.eq_ignore_ascii_case(&name));
        // A merged column of a RIGHT or FULL join is computed from both sides: no plain column.
        if (several && !is_merged) || (is_merged && self.has_right_join) {
            return None;
        }
        Some(first)
    }

    /// The column an expression is, parentheses aside.
    pub(crate) fn column(&self, expr: &Expr) -> Option<&ColumnInfo> {
        match expr.peeled() {
            Expr::Column { table, name } => self.find(table.as_deref(), name).map(|(_, column)| column),
            _ => None,
        }
    }

    fn is_node(&self, expr: &Expr) -> bool {
        self.column(expr).is_some_and(|column| column.is_node)
    }

    /// Whether the expression names the node of every row: a node column that no outer join makes NULL. Rows that have
    /// NULL there lie on several nodes.
    pub(crate) fn parts_by_node(&self, expr: &Expr) -> bool {
        match expr.peeled() {
            Expr::Column { table, name } => {
                self.find(table.as_deref(), name).is_some_and(|(source, column)| column.is_node && !source.nullable)
            }
            _ => false,
        }
    }

    /// All visible columns in order, as `*` gives them; None where joins merge columns.
    pub(crate) fn star(&self) -> Option<Vec<&ColumnInfo>> {
        self.merged
            .is_empty()
            .then(|| self.sources.iter().flat_map(|source| &source.columns).filter(|c| !c.hidden).collect())
    }

    /// The visible columns of one source.
    pub(crate) fn table_star(&self, alias: &str) -> Option<Vec<&ColumnInfo>> {
        let alias = unquote(alias);
        let mut named =
            self.sources.iter().filter(|s| s.alias.as_ref().is_some_and(|a| a.eq_ignore_ascii_case(&alias)));
        let source = named.next()?;
        Some(source.columns.iter().filter(|column| !column.hidden).collect())
    }

    /// The collating sequence by which SQLite compares values of this expression; None when it is not plain to see
    /// (COLLATE deep inside an operator) or not one that every SQLite has.
    pub(crate) fn collation(&self, expr: &Expr) -> Option<String> {
        let name = match expr.peeled() {
            Expr::Collate(_, name) => unquote(name),
            Expr::Column { table, name } => match self.find(table.as_deref(), name) {
                Some((_, column)) => column.collation.clone(),
                None => return None,
            },
            Expr::Cast(inner, _) | Expr::Unary("+", inner) => return self.collation(inner),
            // Transparent to collation, and too rare to follow.
            Expr::Call(call) if matches!(unquote(&call.name).as_str(), "likely" | "unlikely" | "likelihood") => {
                return None;
            }
            Expr::Paren(_) => return None,
            other if contains(other, |part| matches!(part, Expr::Collate(..))) => return None,
            _ => "BINARY".to_owned(),
        };
        let known = ["BINARY", "NOCASE", "RTRIM"].into_iter().find(|known| known.eq_ignore_ascii_case(&name));
        known.map(str::to_owned)
    }

    /// The affinity that a merge's column may have without changing the values of this expression: that of a column,
    /// none of anything else.
    pub(crate) fn stored_affinity(&self, expr: &Expr) -> &'static str {
        match expr.peeled() {
            Expr::Collate(inner, _) | Expr::Unary("+", inner) => self.stored_affinity(inner),
            other => self.column(other).and_then(|column| column.affinity).unwrap_or(""),
        }
    }

    /// What stands for a shipped expression in the merge, where a column `name` holds its values: the affinity and
    /// collation are those that the expression had.
    pub(crate) fn stand_in(&self, expr: &Expr, name: &str) -> Expr {
        match expr {
            Expr::Paren(inner) if inner.len() == 1 => self.stand_in(&inner[0], name).paren(),
            Expr::Collate(inner, collation) => Expr::Collate(Box::new(self.stand_in(inner, name)), collation.clone()),
            Expr::Unary("+", inner) => Expr::Unary("+", Box::new(self.stand_in(inner, name))),
            Expr::Cast(_, type_name) => Expr::Cast(Box::new(Expr::column(name)), type_name.clone()),
            other => match self.column(other) {
                Some(column) => column.stand_in(name),
                None => Expr::call(functions::VALUE, vec![Expr::column(name)]),
            },
        }
    }

    /// The nodes that a condition admits.
    fn admitted_nodes(&self, filter: &Expr) -> Option<Vec<String>> {
        let text = literal_text;
        let mut admitted: Option<Vec<String>> = None;
        for conjunct in conjuncts(filter) {
            let names = match conjunct {
                Expr::Binary(lhs, "=", rhs) if self.is_node(lhs) => text(rhs).map(|name| vec![name]),
                Expr::Binary(lhs, "=", rhs) if self.is_node(rhs) => text(lhs).map(|name| vec![name]),
                Expr::InList { lhs, not: false, list } if self.is_node(lhs) => list.iter().map(text).collect(),
                Expr::Binary(lhs, "OR", rhs) => self.admitted_nodes(lhs).zip(self.admitted_nodes(rhs)).map(|(a, b)| {
                    let mut both = a;
                    both.extend(b);
                    both
                }),
                _ => None,
            };
            if let Some(names) = names {
                admitted = Some(match admitted {
                    None => names,
                    Some(before) => before.into_iter().filter(|name| names.contains(name)).collect(),
                });
            }
        }
        admitted
    }
}

/// The text of a string literal.
fn literal_text(expr: &Expr) -> Option<String> {
    match expr.peeled() {
        Expr::Literal(text) if text.starts_with('\'') => Some(unquote(text)),
        _ => None,
    }
}

fn table_columns(table: &Table) -> Vec<ColumnInfo> {
    let mut columns: Vec<ColumnInfo> = table
        .columns
        .iter()
        .map(|column| ColumnInfo {
            name: column.name.clone(),
            affinity: if column.plain || !column.decl_type.is_empty() {
                Some(affinity(&column.decl_type))
            } else {
                None
            },
            collation: column.collation.clone(),
            hidden: false,
            is_node: false,
        })
        .collect();
    if has_node(table) {
        columns.push(ColumnInfo {
            name: node_column(table).to_owned(),
            affinity: Some("TEXT"),
            collation: "BINARY".to_owned(),
            hidden: true,
            is_node: true,
        });
    }
    columns
}

/// A column that `*` shows: should it name nodes, it is not relied upon.
fn not_node(column: ColumnInfo) -> ColumnInfo {
    ColumnInfo { is_node: false, ..column }
}

/// The columns of a subquery in FROM; None when they are not plain to see.
fn select_columns(select: &Select, catalog: &Catalog) -> Option<Vec<ColumnInfo>> {
    let query = select.single()?;
    let scope = match &query.from {
        Some(from) => Scope::of(from, catalog)?,
        None => Scope::default(),
    };
    let mut columns = Vec::new();
    for output in &query.columns {
        match output {
            Output::Star => columns.extend(scope.star()?.into_iter().cloned().map(not_node)),
            Output::TableStar(alias) => columns.extend(scope.table_star(alias)?.into_iter().cloned().map(not_node)),
            Output::Expr(expr, alias) => {
                let mut source = scope.column(expr).cloned();
                // NULL of an outer join names no node.
                if let Some(source) = &mut source {
                    source.is_node &= scope.parts_by_node(expr);
                }
                let name = match (alias, expr.peeled()) {
                    (Some(alias), _) => unquote(alias),
                    (None, Expr::Column { name, .. }) => unquote(name),
                    (None, other) => other.to_string(),
                };
                columns.push(match source {
                    Some(source) => ColumnInfo { name, hidden: false, ..source },
                    None if matches!(expr.peeled(), Expr::Cast(..) | Expr::Subquery(_)) => return None,
                    None => ColumnInfo {
                        name,
                        affinity: None,
                        collation: scope.collation(expr)?,
                        hidden: false,
                        is_node: false,
                    },
                });
            }
        }
    }
    Some(columns)
}

/// Brings column references into one spelling and puts result columns in place of their aliases.
struct Resolve<'a> {
    scope: &'a Scope,
    outputs: &'a [Output],
    aliases: bool,
    failed: bool,
}

impl VisitMut for Resolve<'_> {
    fn expr(&mut self, node: &mut Expr) {
        let Expr::Column { table, name } = node else {
            walk_mut::expr(self, node);
            return;
        };
        if let Some((source, column)) = self.scope.find(table.as_deref(), name) {
            let is_merged = self.scope.merged.iter().any(|merged| merged.eq_ignore_ascii_case(&column.name));
            *name = crate::ast::quote_name(&column.name);
            *table = match &source.alias {
                Some(alias) if self.scope.sources.len() > 1 && !is_merged => Some(crate::ast::quote_name(alias)),
                _ if is_merged => table.take(),
                _ => None,
            };
            return;
        }
        if table.is_none() {
            let stands_for = self.outputs.iter().find_map(|output| match output {
                Output::Expr(expr, Some(alias)) if self.aliases && same_name(alias, name) => Some(expr),
                _ => None,
            });
            match stands_for {
                Some(expr) => {
                    let mut expr = expr.clone().paren();
                    let mut inner = Resolve { scope: self.scope, outputs: self.outputs, aliases: false, failed: false };
                    inner.expr(&mut expr);
                    self.failed |= inner.failed;
                    *node = expr;
                }
                None if matches!(unquote(name).to_ascii_lowercase().as_str(), "true" | "false") => {}
                None => self.failed = true,
            }
        } else {
            self.failed = true;
        }
    }

    // A subquery has names of its own; it reads replicated tables only and stays as it is. Names of ours in it
    // (correlation) keep their meaning, since sources keep their aliases.
    fn select(&mut self, _: &mut Select) {}
}
