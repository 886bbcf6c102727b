//! Strategy 5: fetch the needed columns and rows, then run the user's own SQL.
//!
//! The coordinator's in-memory SQLite gets one table for each table read, with the same columns,
//! affinities and collations, and in it the rows of all nodes: that is the union, and SQLite
//! answers on it. Three things are left out, none of which the answer can depend on: columns that
//! SQLite's authorizer reports as not read (they stay NULL); rows that a safe conjunct of WHERE or
//! ON on that table alone rejects (the SQL still has the conjunct, so it rejects them again);
//! constraints and indexes (keys repeat between nodes: the union of stores has no unique keys).
//!
//! A table used several times is fetched once, with the OR of its uses' conjuncts. A view that is
//! row by row a view of one table is fetched as a table (nodes compute it); any other view is made
//! at the coordinator over fetched tables. A table without a condition of its own may be reduced by
//! the keys of one that has (`semijoin.rs`), and that of a correlated subquery by the rows of the
//! query around it (`correlated.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

use crate::ast::{
    Expr, From, JoinKind, Query, Select, Source, Visit, VisitMut, conjuncts, quote_name, same_name, walk, walk_mut,
};
use crate::catalog::{Catalog, Kind, Table, has_node, node_column};
use crate::check::Question;
use crate::error::QueryError;
use crate::expressions::Columns;
use crate::names::{affinity, quoted};
use crate::plan::{
    Fragment, Merge, MergeColumn, MergeTable, Plan, ReducedByRows, Reduction, ReductionBy, Strategy, Targets,
};
use crate::rewrite::{has_right_join, is_safe_filter, node_source, normalise};
use crate::scope::admitted_nodes;

use super::correlated::{Matching, Names, Needs, Reducible, Use};
use super::semijoin::{self, Fetched, Link, RangeLink};

pub(crate) fn plan(question: &Question<'_>) -> Result<Plan, QueryError> {
    let (select, changed) = normalise(question)?;
    let catalog = question.catalog;
    let (reads, views, below) = through_views(question)?;
    let filters = Filters::of(&select, catalog);
    let mut fragments = Vec::new();
    let mut tables = Vec::new();
    let mut setup = Vec::new();
    let mut fetched = Vec::new();
    for (key, columns) in &reads {
        let Some(table) = catalog.tables.get(key) else {
            continue;
        };
        // A table below a view has uses that the question's text does not show.
        let filter = if below.contains(key) { None } else { filters.of_table(key) };
        let mut filter_reads = Columns::default();
        filter.iter().for_each(|filter| filter_reads.expr(filter));
        fetched.push(Fetched {
            key: key.clone(),
            filter: filter.as_ref().map(Expr::to_string),
            filter_reads: filter_reads.0.into_iter().map(|(_, name)| name).collect(),
            select: select_of(table, columns, filter.as_ref()),
            is_below: below.contains(key) || !question.reads.contains_key(key),
            uses: filters.uses.get(key).map_or(0, Vec::len),
            ships: read_columns(table, columns).map(|column| column.name.clone()).collect(),
        });
        fragments.push(fragment(table, columns, filter.as_ref()));
        tables.push(merge_table(table, columns, &mut setup));
    }
    let mut reductions = Vec::new();
    if views.is_empty() {
        let links = (filters.links.as_slice(), filters.ranges.as_slice());
        semijoin::reductions(&mut reductions, &fetched, links, &tables, catalog, true);
        for (at, one) in fetched.iter().enumerate().filter(|(_, one)| !one.is_below) {
            let (Some(table), Some(uses)) = (catalog.tables.get(&one.key), filters.uses.get(&one.key)) else {
                continue;
            };
            let (outputs, node, by_node) = outputs(table, &reads[&one.key], filters.of_table(&one.key).as_ref());
            let with_node = node || by_node;
            let with_row_node = with_node || Reducible::names_node(table, uses);
            let reducible = Reducible { table, uses, outputs: &outputs, with_node: with_row_node };
            let reduced = reducible.reduced(&fetched, &tables[..fetched.len()], catalog);
            let Some(by) = reduced.and_then(|reduced| semijoin::by_rows(at, reduced, &reductions)) else { continue };
            let counted = fragments.len();
            let by = ReductionBy::Rows(ReducedByRows { counted, ..by });
            reductions.push(Reduction { fragment: at, by });
            let filter = filters.of_table(&one.key);
            let sql = statement(table, "count(*)", with_node, filter.as_ref());
            fragments.push(Fragment { sql, columns: 1, ..fragments[at].clone() });
            tables.push(semijoin::count_table(counted));
        }
        semijoin::reductions(&mut reductions, &fetched, links, &tables, catalog, false);
    }
    setup.extend(views.iter().filter_map(|key| catalog.tables.get(key)).map(|view| view.sql.clone()));
    Ok(Plan {
        strategy: Strategy::Fetch,
        columns: question.columns.clone(),
        fragments,
        reductions,
        merge: Merge::Sql {
            tables,
            setup,
            sql: if changed { select.to_string() } else { question.sql.trim().trim_end_matches(';').to_owned() },
        },
        notes: Vec::new(),
        lazily: None,
        with_values: None,
    })
}

/// The result columns of a table's fragment, whether the node's name is one of them, and whether
/// the filter names it (also where SQLite reads none, in a dead branch).
fn outputs(table: &Table, columns: &BTreeSet<String>, filter: Option<&Expr>) -> (Vec<String>, bool, bool) {
    let node = (has_node(table) && columns.contains(node_column(table))).then(|| node_column(table).to_owned());
    let mut outputs: Vec<String> = read_columns(table, columns).map(|column| quote_name(&column.name)).collect();
    let is_node = node.is_some();
    outputs.extend(node);
    if outputs.is_empty() {
        outputs.push("NULL".to_owned());
    }
    let mut filtered = Columns::default();
    filter.iter().for_each(|filter| filtered.expr(filter));
    let by_node = has_node(table) && filtered.0.iter().any(|(_, name)| same_name(name, node_column(table)));
    (outputs, is_node, by_node)
}

fn fragment(table: &Table, columns: &BTreeSet<String>, filter: Option<&Expr>) -> Fragment {
    let (outputs, node, by_node) = outputs(table, columns, filter);
    let width = outputs.len();
    let named = filter.filter(|_| by_node).and_then(|filter| {
        let is_node = |expr: &Expr| matches!(expr.peeled(), Expr::Column { table: None, name } if same_name(name, node_column(table)));
        admitted_nodes(filter, &is_node)
    });
    Fragment {
        table: table.name.clone(),
        sql: statement(table, &outputs.join(", "), node || by_node, filter),
        columns: u32::try_from(width).unwrap_or(u32::MAX),
        reads: vec![(table.name.clone(), read_columns(table, columns).map(|column| column.name.clone()).collect())],
        targets: match named {
            _ if table.replicated => Targets::AnyOne,
            Some(names) => Targets::Named(names),
            None => Targets::All,
        },
        combine: None,
        partials: Vec::new(),
    }
}

/// The statement of [`fragment`] without its condition.
fn select_of(table: &Table, columns: &BTreeSet<String>, filter: Option<&Expr>) -> String {
    let (outputs, node, by_node) = outputs(table, columns, filter);
    statement(table, &outputs.join(", "), node || by_node, None)
}

fn statement(table: &Table, outputs: &str, with_node: bool, filter: Option<&Expr>) -> String {
    let source = match with_node {
        true => node_source(table, &quote_name(&table.name)).to_string(),
        false => quote_name(&table.name),
    };
    let filter = filter.map_or_else(String::new, |filter| format!(" WHERE {filter}"));
    format!("SELECT {outputs} FROM {source}{filter}")
}

fn read_columns<'t>(table: &'t Table, read: &'t BTreeSet<String>) -> impl Iterator<Item = &'t crate::catalog::Column> {
    table.columns.iter().filter(|column| read.iter().any(|name| name.eq_ignore_ascii_case(&column.name)))
}

fn merge_table(table: &Table, read: &BTreeSet<String>, setup: &mut Vec<String>) -> MergeTable {
    let is_read = |name: &str| read.iter().any(|other| other.eq_ignore_ascii_case(name));
    let mut columns: Vec<MergeColumn> = table
        .columns
        .iter()
        .map(|column| MergeColumn {
            name: column.name.clone(),
            affinity: affinity(&column.decl_type).to_owned(),
            collation: column.collation.clone(),
            filled: is_read(&column.name),
        })
        .collect();
    if has_node(table) && read.contains(node_column(table)) {
        columns.push(MergeColumn {
            name: node_column(table).to_owned(),
            affinity: "TEXT".to_owned(),
            collation: "BINARY".to_owned(),
            filled: true,
        });
    }
    if table.columns.iter().all(|column| column.plain) {
        return MergeTable { name: table.name.clone(), columns };
    }
    // An expression of a view has no affinity, and every table column has one: so a view over the
    // rows stands for it.
    let rows = format!("{} rows", table.name);
    let outputs: Vec<String> = columns
        .iter()
        .map(|column| {
            let name = quoted(&column.name);
            let expression = table.columns.iter().any(|c| c.name == column.name && !c.plain && c.decl_type.is_empty());
            if expression { format!("+{name} AS {name}") } else { name }
        })
        .collect();
    setup.push(format!("CREATE VIEW {} AS SELECT {} FROM {}", quoted(&table.name), outputs.join(", "), quoted(&rows)));
    MergeTable { name: rows, columns }
}

type Reads = BTreeMap<String, BTreeSet<String>>;

/// What the question reads with computed views replaced by what they read, those views, and the
/// tables they read.
fn through_views(question: &Question<'_>) -> Result<(Reads, Vec<String>, BTreeSet<String>), QueryError> {
    let computed = |key: &String| question.catalog.tables.get(key).is_some_and(|table| table.kind == Kind::View);
    if !question.reads.keys().any(computed) {
        return Ok((question.reads.clone(), Vec::new(), BTreeSet::new()));
    }
    let failed = |error: rusqlite::Error| QueryError::refused(format!("a view cannot be used: {error}"));
    let mut conn = Connection::open_in_memory().map_err(failed)?;
    crate::merge_pool::only_views(&mut conn).map_err(failed)?;
    for table in question.catalog.tables.values() {
        let sql = if table.kind == Kind::View {
            table.sql.clone()
        } else {
            let columns: Vec<String> = table.columns.iter().map(|column| quoted(&column.name)).collect();
            format!("CREATE TABLE {}({})", quoted(&table.name), columns.join(", "))
        };
        match conn.execute(&sql, []) {
            // A view that cannot be made is in the way of those alone who ask for it.
            Err(_) if table.kind == Kind::View => {}
            made => drop(made.map_err(failed)?),
        }
    }
    let seen = Arc::new(Mutex::new(Reads::new()));
    let log = Arc::clone(&seen);
    conn.authorizer(Some(move |context: AuthContext<'_>| {
        if let AuthAction::Read { table_name, column_name } = context.action {
            let mut reads = log.lock();
            let columns = reads.entry(table_name.to_ascii_lowercase()).or_default();
            if !column_name.is_empty() {
                columns.insert(column_name.to_owned());
            }
        }
        Authorization::Allow
    }))
    .map_err(failed)?;
    for key in question.reads.keys().filter(|key| computed(key)) {
        conn.prepare(&format!("SELECT * FROM {}", quoted(key))).map_err(failed)?;
    }
    let read_below = std::mem::take(&mut *seen.lock());
    let below: BTreeSet<String> = read_below.keys().filter(|key| !computed(key)).cloned().collect();
    let mut reads = question.reads.clone();
    for (key, columns) in read_below {
        reads.entry(key).or_default().extend(columns);
    }
    let views: Vec<String> = reads.keys().filter(|key| computed(key)).cloned().collect();
    for view in &views {
        reads.remove(view);
    }
    for (key, columns) in &reads {
        if let Some(table) = question.catalog.tables.get(key)
            && columns.contains("ROWID")
        {
            return Err(QueryError::refused(format!(
                "a view in this question uses rowid of {}, which repeats between nodes",
                table.name
            )));
        }
    }
    Ok((reads, views, below))
}

/// For each table, what each of its uses needs of it.
#[derive(Default)]
struct Filters {
    uses: BTreeMap<String, Vec<Use>>,
    links: Vec<Link>,
    ranges: Vec<RangeLink>,
}

impl Filters {
    fn of(select: &Select, catalog: &Catalog) -> Filters {
        let mut collect =
            Collect { catalog, ctes: Vec::new(), scopes: Vec::new(), needs: None, filters: Filters::default() };
        collect.select(select);
        collect.filters
    }

    /// OR over the uses. What all of them ask for stands before it (`a AND (b OR c)`, which is the
    /// same also of NULLs): so that a bound of time can be read from the fragment.
    fn of_table(&self, key: &str) -> Option<Expr> {
        let uses: Option<Vec<&Expr>> = self.uses.get(key)?.iter().map(|one| one.filter.as_ref()).collect();
        let uses: Vec<Vec<&Expr>> = uses?.into_iter().map(conjuncts).collect();
        let (first, others) = uses.split_first()?;
        let (common, _): (Vec<&Expr>, Vec<&Expr>) =
            first.iter().partition(|conjunct| others.iter().all(|other| other.contains(conjunct)));
        let mut rests: Vec<Vec<&Expr>> = Vec::new();
        for conjuncts in &uses {
            let rest: Vec<&Expr> = conjuncts.iter().filter(|conjunct| !common.contains(conjunct)).copied().collect();
            if !rests.contains(&rest) {
                rests.push(rest);
            }
        }
        let single = rests.len() == 1;
        // A use without conditions reads all that the others read.
        let rest: Option<Vec<Expr>> = rests.into_iter().map(|rest| join_conjuncts(rest.into_iter().cloned())).collect();
        let rest = rest.and_then(|rests| {
            let paren = |filter: Expr| if single { filter } else { filter.paren() };
            rests.into_iter().map(paren).reduce(|lhs, rhs| Expr::Binary(Box::new(lhs), "OR", Box::new(rhs)))
        });
        join_conjuncts(common.into_iter().cloned().chain(rest))
    }
}

struct Collect<'a> {
    catalog: &'a Catalog,
    ctes: Vec<String>,
    /// The FROMs whose columns can be named here, the innermost last.
    scopes: Vec<Names>,
    /// What the expression around needs of the query that is visited next.
    needs: Option<Needs>,
    filters: Filters,
}

impl Visit for Collect<'_> {
    fn select(&mut self, node: &Select) {
        let before = self.ctes.len();
        self.ctes.extend(node.with.iter().flat_map(|with| &with.ctes).map(|cte| cte.name.clone()));
        walk::select(self, node);
        self.ctes.truncate(before);
    }

    fn query(&mut self, node: &Query) {
        let needs = self.needs.take();
        let names = node.from.as_ref().map_or_else(Names::default, |from| Names::of(from, |source| self.table(source)));
        self.scopes.push(names);
        walk::query(self, node);
        if let Some(from) = &node.from {
            self.from(from, node.filter.as_ref(), needs.as_ref());
        }
        self.scopes.pop();
    }

    fn source(&mut self, node: &Source) {
        // A subquery in FROM does not see the sources next to it.
        let own = if matches!(node, Source::Select { .. }) { self.scopes.pop() } else { None };
        walk::source(self, node);
        self.scopes.extend(own);
    }

    fn expr(&mut self, node: &Expr) {
        self.needs = match node {
            Expr::Subquery(select) => Needs::of(select, false),
            Expr::Exists(select) => Needs::of(select, true),
            _ => None,
        };
        walk::expr(self, node);
        if let Expr::InTable { table, .. } = node
            && let Some(table) = self.catalog.find(table)
        {
            self.filters.uses.entry(table.name.to_ascii_lowercase()).or_default().push(Use::default());
        }
    }
}

impl Collect<'_> {
    fn table(&self, source: &Source) -> Option<&Table> {
        match source {
            Source::Table { name, .. } if !self.ctes.iter().any(|cte| same_name(cte, name)) => self.catalog.find(name),
            _ => None,
        }
    }

    fn from(&mut self, from: &From, filter: Option<&Expr>, needs: Option<&Needs>) {
        let movable = !has_right_join(from);
        // Conjuncts of WHERE and of inner joins' ON hold for every row that counts.
        let mut everywhere: Vec<&Expr> = filter.map(conjuncts).unwrap_or_default();
        for join in from.joins.iter().filter(|join| join.kind != JoinKind::Left) {
            everywhere.extend(join.on.as_ref().map(conjuncts).unwrap_or_default());
        }
        let mut uses = Vec::new();
        let (mut links, mut ranges) = (Vec::new(), Vec::new());
        for (i, source) in from.sources().enumerate() {
            let left = i.checked_sub(1).and_then(|at| from.joins.get(at)).filter(|join| join.kind == JoinKind::Left);
            if let Source::Nested { from, .. } = source {
                self.from(from, None, None);
                continue;
            }
            let Some(table) = self.table(source) else {
                continue;
            };
            let candidates = match left {
                Some(join) => join.on.as_ref().map(conjuncts).unwrap_or_default(),
                None => everywhere.clone(),
            };
            if movable {
                links.extend(candidates.iter().flat_map(|expr| self.links(expr, source, table, from)));
                ranges.extend(candidates.iter().flat_map(|expr| self.ranges(expr, source, table, from)));
            }
            let is_own = |expr: &Expr| self.only_reads(expr, source, from);
            let candidates = if movable { candidates } else { Vec::new() };
            let matching = match self.scopes.len() {
                0 | 1 => None,
                _ => Matching::of(&candidates, &self.scopes, self.catalog, needs, &is_own),
            };
            let moved = candidates
                .into_iter()
                .filter(|expr| is_safe_filter(expr) && is_own(expr))
                .map(|expr| unqualified(expr.clone()));
            uses.push((table.name.to_ascii_lowercase(), Use { filter: join_conjuncts(moved), matching }));
        }
        self.filters.links.extend(links);
        self.filters.ranges.extend(ranges);
        for (key, filter) in uses {
            self.filters.uses.entry(key).or_default().push(filter);
        }
    }

    /// The equality of a column of `source` with one of another table of this FROM, if the conjunct
    /// is one.
    fn links(&self, conjunct: &Expr, source: &Source, table: &Table, from: &From) -> Vec<Link> {
        let sides = Link::sides(conjunct).into_iter().filter(|(mine, _)| self.only_reads(mine, source, from));
        sides
            .flat_map(|(mine, theirs)| {
                let others = from.sources().filter(|other| !std::ptr::eq(*other, source));
                others
                    .filter(|other| self.only_reads(theirs, other, from))
                    .filter_map(|other| Link::of(table, mine, self.table(other)?, theirs))
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// As [`Collect::links`], of comparisons by order.
    fn ranges(&self, conjunct: &Expr, source: &Source, table: &Table, from: &From) -> Vec<RangeLink> {
        let sides = RangeLink::sides(conjunct).into_iter().filter(|(mine, ..)| self.only_reads(mine, source, from));
        sides
            .filter_map(|(mine, operator, theirs)| {
                let mut columns = Columns::default();
                columns.expr(theirs);
                let is_theirs = |other: &&Source| !std::ptr::eq(*other, source) && self.only_reads(theirs, other, from);
                let other = from.sources().find(is_theirs).filter(|_| !columns.0.is_empty())?;
                RangeLink::of(table, mine, operator, self.table(other)?, unqualified(theirs.clone()))
            })
            .collect()
    }

    /// Whether every column in the expression is surely one of this source.
    fn only_reads(&self, expr: &Expr, source: &Source, from: &From) -> bool {
        let Some(table) = self.table(source) else {
            return false;
        };
        let Source::Table { name, alias, .. } = source else {
            return false;
        };
        let alias = alias.as_ref().unwrap_or(name);
        let has = |table: &Table, name: &str| {
            table.columns.iter().any(|column| same_name(&quoted(&column.name), name))
                || (has_node(table) && same_name(node_column(table), name))
        };
        let others: Vec<&Source> = from.sources().filter(|other| !std::ptr::eq(*other, source)).collect();
        let mut columns = Columns::default();
        columns.expr(expr);
        columns.0.iter().all(|(qualifier, name)| match qualifier {
            Some(qualifier) => {
                same_name(qualifier, alias)
                    && has(table, name)
                    && !others.iter().any(|other| source_alias(other).is_none_or(|a| same_name(a, qualifier)))
            }
            None => {
                has(table, name) && others.iter().all(|other| self.table(other).is_some_and(|other| !has(other, name)))
            }
        })
    }
}

fn join_conjuncts(exprs: impl Iterator<Item = Expr>) -> Option<Expr> {
    exprs
        .map(|expr| if matches!(expr, Expr::Binary(_, "OR", _)) { expr.paren() } else { expr })
        .reduce(|lhs, rhs| Expr::Binary(Box::new(lhs), "AND", Box::new(rhs)))
}

fn source_alias(source: &Source) -> Option<&String> {
    match source {
        Source::Table { name, alias, .. } | Source::Call { name, alias, .. } => Some(alias.as_ref().unwrap_or(name)),
        Source::Select { alias, .. } | Source::Nested { alias, .. } => alias.as_ref(),
    }
}

/// The expression with `alias.` dropped from every column.
fn unqualified(mut expr: Expr) -> Expr {
    struct Strip;
    impl VisitMut for Strip {
        fn expr(&mut self, node: &mut Expr) {
            if let Expr::Column { table, .. } = node {
                *table = None;
            }
            walk_mut::expr(self, node);
        }
    }
    Strip.expr(&mut expr);
    expr
}
