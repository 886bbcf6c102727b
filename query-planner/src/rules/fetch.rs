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
//! the keys of one that has: `semijoin.rs`.

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
use crate::plan::{Fragment, Merge, MergeColumn, MergeTable, Plan, Strategy, Targets};
use crate::rewrite::{has_right_join, is_safe_filter, node_source, normalise};
use crate::scope::admitted_nodes;

use super::semijoin::{self, Fetched, Link};

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
        fetched.push(Fetched {
            key: key.clone(),
            filtered: filter.is_some(),
            used_once: question.reads.contains_key(key) && filters.uses.get(key).is_some_and(|uses| uses.len() == 1),
            ships: read_columns(table, columns).map(|column| column.name.clone()).collect(),
        });
        fragments.push(fragment(table, columns, filter.as_ref()));
        tables.push(merge_table(table, columns, &mut setup));
    }
    let reductions =
        if views.is_empty() { semijoin::reductions(&fetched, &filters.links, catalog) } else { Vec::new() };
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

fn fragment(table: &Table, columns: &BTreeSet<String>, filter: Option<&Expr>) -> Fragment {
    let node = if has_node(table) && columns.contains(node_column(table)) { Some(node_column(table)) } else { None };
    let mut outputs: Vec<String> = read_columns(table, columns).map(|column| quote_name(&column.name)).collect();
    outputs.extend(node.map(str::to_owned));
    let width = outputs.len().max(1);
    if outputs.is_empty() {
        outputs.push("NULL".to_owned());
    }
    // A filter may name the node where SQLite reads none (a dead branch).
    let mut filtered = Columns::default();
    filter.iter().for_each(|filter| filtered.expr(filter));
    let by_node = has_node(table) && filtered.0.iter().any(|(_, name)| same_name(name, node_column(table)));
    let source = match node.or(by_node.then_some("")) {
        Some(_) => node_source(table, &quote_name(&table.name)).to_string(),
        None => quote_name(&table.name),
    };
    let mut sql = format!("SELECT {} FROM {source}", outputs.join(", "));
    if let Some(filter) = filter {
        sql.push_str(&format!(" WHERE {filter}"));
    }
    let named = filter.filter(|_| by_node).and_then(|filter| {
        let is_node = |expr: &Expr| matches!(expr.peeled(), Expr::Column { table: None, name } if same_name(name, node_column(table)));
        admitted_nodes(filter, &is_node)
    });
    Fragment {
        table: table.name.clone(),
        sql,
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

/// For each table, the filter of each of its uses; None where a use needs every row.
#[derive(Default)]
struct Filters {
    uses: BTreeMap<String, Vec<Option<Expr>>>,
    links: Vec<Link>,
}

impl Filters {
    fn of(select: &Select, catalog: &Catalog) -> Filters {
        let mut collect = Collect { catalog, ctes: Vec::new(), filters: Filters::default() };
        collect.select(select);
        collect.filters
    }

    /// OR over the uses. What all of them ask for stands before it (`a AND (b OR c)`, which is the
    /// same also of NULLs): so that a bound of time can be read from the fragment.
    fn of_table(&self, key: &str) -> Option<Expr> {
        let uses: Option<Vec<&Expr>> = self.uses.get(key)?.iter().map(Option::as_ref).collect();
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
        walk::query(self, node);
        if let Some(from) = &node.from {
            self.from(from, node.filter.as_ref());
        }
    }

    fn expr(&mut self, node: &Expr) {
        walk::expr(self, node);
        if let Expr::InTable { table, .. } = node
            && let Some(table) = self.catalog.find(table)
        {
            self.filters.uses.entry(table.name.to_ascii_lowercase()).or_default().push(None);
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

    fn from(&mut self, from: &From, filter: Option<&Expr>) {
        let movable = !has_right_join(from);
        // Conjuncts of WHERE and of inner joins' ON hold for every row that counts.
        let mut everywhere: Vec<&Expr> = filter.map(conjuncts).unwrap_or_default();
        for join in from.joins.iter().filter(|join| join.kind != JoinKind::Left) {
            everywhere.extend(join.on.as_ref().map(conjuncts).unwrap_or_default());
        }
        let mut uses = Vec::new();
        let mut links = Vec::new();
        for (i, source) in from.sources().enumerate() {
            let left = i.checked_sub(1).and_then(|at| from.joins.get(at)).filter(|join| join.kind == JoinKind::Left);
            if let Source::Nested { from, .. } = source {
                self.from(from, None);
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
            }
            let moved = candidates
                .into_iter()
                .filter(|_| movable)
                .filter(|expr| is_safe_filter(expr) && self.only_reads(expr, source, from))
                .map(|expr| unqualified(expr.clone()));
            uses.push((table.name.to_ascii_lowercase(), join_conjuncts(moved)));
        }
        self.filters.links.extend(links);
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
