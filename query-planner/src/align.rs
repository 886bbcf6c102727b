//! Functions and views about the mesh, which no store knows, written out as plain SQL before
//! planning: times on the coordinator's clock (`cluster_ns`, `clock_bound_ns`), and views that need
//! them.
//!
//! `cluster_ns(t)` becomes `mesh_cluster_ns(t, NODE, CLOCKS)` and `clock_bound_ns([t])`
//! `mesh_clock_bound_ns(NODE, CLOCKS, t)`: NODE is the hidden node column of the table that `t` is
//! of, CLOCKS a literal with the offsets that the coordinator has measured. So they mean the same
//! wherever they run, and every strategy keeps the union contract. A [`View`] is a SELECT by name;
//! `name(since, until)` sets its `:since` and `:until`, on the coordinator's clock.

use crate::ast::{
    self, Call, Expr, From, Output, Query, Select, Source, Visit, VisitMut, calls_any, parse_select, quote_name,
    same_name, unquote, walk_mut,
};
use crate::catalog::Catalog;
use crate::clocks::Clocks;
use crate::error::QueryError;
use crate::expressions::Columns;
use crate::functions::clock::{BOUND, CLUSTER, MESH_BOUND, MESH_CLUSTER, literal};
use crate::limits::MAX_SQL_BYTES;
use crate::planner::with_stack_for;

/// A view that agents offer in addition to those of the stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// Its name.
    pub name: &'static str,
    /// One SELECT. It may have `:in_span OR …` for conditions that limit the span (1 without one),
    /// `:since`, `:until`, and `:slack` (how far clocks are apart, nanoseconds).
    pub sql: &'static str,
}

/// Whether a question may need [`align`]: it has one of these names in it somewhere.
#[must_use]
pub fn needs_clocks(sql: &str, views: &[View]) -> bool {
    let sql = sql.to_ascii_lowercase();
    sql.contains(CLUSTER) || sql.contains(BOUND) || views.iter().any(|view| sql.contains(view.name))
}

/// The question in plain SQL; none where it has nothing of the kind.
///
/// # Errors
/// It is not clear which node's time is meant, or a view is called with other arguments than a
/// span. SQL that cannot be parsed is no error here: the planner reports its error.
pub fn align(sql: &str, catalog: &Catalog, clocks: &Clocks, views: &[View]) -> Result<Option<String>, QueryError> {
    // SQLite has not seen the text yet: the planner reports what is wrong with a deep or long one.
    if sql.len() > MAX_SQL_BYTES {
        return Ok(None);
    }
    with_stack_for(sql, || align_here(sql, catalog, clocks, views))
}

fn align_here(sql: &str, catalog: &Catalog, clocks: &Clocks, views: &[View]) -> Result<Option<String>, QueryError> {
    let Ok(mut select) = parse_select(sql) else { return Ok(None) };
    let mut inline = Inline { catalog, views, slack_ns: slack_ns(clocks), ctes: Vec::new(), found: false, error: None };
    inline.select(&mut select);
    let mut aligned =
        Aligned { catalog, clocks: Expr::Literal(literal(clocks)), scopes: Vec::new(), found: false, error: None };
    aligned.select(&mut select);
    match inline.error.or(aligned.error) {
        Some(message) => Err(QueryError::wrong(message)),
        None => Ok((inline.found || aligned.found).then(|| select.to_string())),
    }
}

/// How far a node's time may be from the coordinator's.
fn slack_ns(clocks: &Clocks) -> i64 {
    clocks.values().map(|clock| clock.offset_ns.saturating_abs().saturating_add(clock.bound_ns)).max().unwrap_or(0)
}

/// Puts the views in place.
struct Inline<'a> {
    catalog: &'a Catalog,
    views: &'a [View],
    slack_ns: i64,
    ctes: Vec<String>,
    found: bool,
    error: Option<String>,
}

impl VisitMut for Inline<'_> {
    fn select(&mut self, node: &mut Select) {
        let before = self.ctes.len();
        self.ctes.extend(node.with.iter().flat_map(|with| &with.ctes).map(|cte| cte.name.clone()));
        walk_mut::select(self, node);
        self.ctes.truncate(before);
    }

    fn source(&mut self, node: &mut Source) {
        walk_mut::source(self, node);
        let (name, args, alias) = match node {
            Source::Table { schema: None, name, alias, .. } => (name.clone(), None, alias.clone()),
            Source::Call { name, args, alias } => (name.clone(), Some(std::mem::take(args)), alias.clone()),
            _ => return,
        };
        let Some(view) = self.views.iter().find(|view| same_name(view.name, &name)) else { return };
        // What a store or the question itself calls so comes first.
        if self.catalog.find(&name).is_some() || self.ctes.iter().any(|cte| same_name(cte, &name)) {
            return;
        }
        let Ok(mut body) = parse_select(view.sql) else { return };
        let mut span = match args {
            None => Span { is_always: true, since: Expr::Literal("0".into()), until: Expr::Literal("0".into()) },
            Some(mut args) if args.len() == 2 => {
                let until = args.pop().unwrap_or_else(|| Expr::Literal("0".into()));
                let since = args.pop().unwrap_or_else(|| Expr::Literal("0".into()));
                Span { is_always: false, since, until }
            }
            Some(_) => {
                self.error.get_or_insert(format!(
                    "write {0}, or {0}(since_ns, until_ns) for the collectives of a span of the coordinator's clock",
                    view.name
                ));
                return;
            }
        };
        span.slack(self.slack_ns, &mut body);
        self.found = true;
        *node = Source::Select { select: Box::new(body), alias: Some(alias.unwrap_or(name)) };
    }
}

/// The span that a view is asked for.
struct Span {
    is_always: bool,
    since: Expr,
    until: Expr,
}

impl Span {
    fn slack(&mut self, slack_ns: i64, body: &mut Select) {
        struct Variables<'s>(&'s Span, i64);
        impl VisitMut for Variables<'_> {
            fn expr(&mut self, node: &mut Expr) {
                // Readers of the span from the conditions (`time_range`, scans) understand no OR.
                if let Expr::Binary(lhs, "OR", rhs) = node
                    && **lhs == Expr::Variable(":in_span".to_owned())
                {
                    *node = if self.0.is_always { Expr::Literal("1".to_owned()) } else { *rhs.clone() };
                }
                walk_mut::expr(self, node);
                let Expr::Variable(name) = node else { return };
                let value = match name.as_str() {
                    ":since" => Expr::Paren(vec![self.0.since.clone()]),
                    ":until" => Expr::Paren(vec![self.0.until.clone()]),
                    ":slack" => Expr::Literal(self.1.to_string()),
                    _ => return,
                };
                *node = value;
            }
        }
        Variables(self, slack_ns).select(body);
    }
}

/// Writes out the calls.
struct Aligned<'a> {
    catalog: &'a Catalog,
    clocks: Expr,
    /// The sources of the queries around, innermost last.
    scopes: Vec<Vec<Source>>,
    found: bool,
    error: Option<String>,
}

impl VisitMut for Aligned<'_> {
    fn select(&mut self, node: &mut Select) {
        self.scopes.push(Vec::new());
        walk_mut::select(self, node);
        self.scopes.pop();
    }

    fn query(&mut self, node: &mut Query) {
        let mut sources = Vec::new();
        node.from.iter().for_each(|from| gather(from, &mut sources));
        // ORDER BY is visited after the query, and sees the same.
        if let Some(scope) = self.scopes.last_mut() {
            *scope = sources;
        }
        for output in &mut node.columns {
            if let Output::Expr(expr, name @ None) = output
                && !matches!(expr, Expr::Subquery(_))
                && calls_any(expr, &[CLUSTER, BOUND])
            {
                *name = Some(quote_name(&expr.to_string()));
            }
        }
        walk_mut::query(self, node);
    }

    fn expr(&mut self, node: &mut Expr) {
        walk_mut::expr(self, node);
        let Expr::Call(call) = node else { return };
        let name = unquote(&call.name).to_ascii_lowercase();
        let time = call.args.first().cloned();
        let written = match (name.as_str(), call.args.len()) {
            (CLUSTER, 1) => self.node_of(call, CLUSTER).map(|of| {
                let time = time.unwrap_or_else(|| Expr::Literal("NULL".to_owned()));
                Expr::call(MESH_CLUSTER, vec![time, of, self.clocks.clone()])
            }),
            (BOUND, 0 | 1) => self.node_of(call, BOUND).map(|of| {
                let time = time.unwrap_or_else(|| Expr::Literal("NULL".to_owned()));
                Expr::call(MESH_BOUND, vec![of, self.clocks.clone(), time])
            }),
            (CLUSTER, _) => Err(format!("{CLUSTER}() takes one time: {CLUSTER}(ts_ns)")),
            (BOUND, _) => Err(format!("{BOUND}() takes at most one time: {BOUND}(ts_ns)")),
            _ => return,
        };
        match written {
            Ok(expr) => {
                self.found = true;
                *node = expr;
            }
            Err(message) => {
                self.error.get_or_insert(message);
            }
        }
    }
}

impl Aligned<'_> {
    /// The node column of the table that a call's argument is of.
    fn node_of(&self, call: &Call, name: &str) -> Result<Expr, String> {
        let mut columns = Columns::default();
        call.args.iter().for_each(|arg| columns.expr(arg));
        let node = |table: &str| Expr::Column { table: Some(table.to_owned()), name: "node".to_owned() };
        if let Some(table) = columns.0.iter().find_map(|(table, _)| table.as_ref()) {
            return Ok(node(table));
        }
        let empty = Vec::new();
        let sources = self.scopes.iter().rev().find(|scope| !scope.is_empty()).unwrap_or(&empty);
        let has = |source: &&Source| match source {
            Source::Table { name, .. } => self.catalog.find(name).is_none_or(|table| {
                columns.0.iter().all(|(_, column)| table.columns.iter().any(|own| same_name(&own.name, column)))
            }),
            _ => true,
        };
        let candidates: Vec<&Source> =
            if sources.len() == 1 { sources.iter().collect() } else { sources.iter().filter(has).collect() };
        match candidates.as_slice() {
            [Source::Table { name, alias, .. }] => Ok(node(alias.as_ref().unwrap_or(name))),
            [Source::Select { alias: Some(alias), .. }] => Ok(node(alias)),
            [Source::Select { .. }] => Ok(Expr::column("node")),
            _ => Err(format!("{name}(): say whose time that is, as in {name}(c.ts_ns) for a table called c")),
        }
    }
}

fn gather(from: &From, sources: &mut Vec<Source>) {
    for source in std::iter::once(&from.first).chain(from.joins.iter().map(|join| &join.source)) {
        match source {
            ast::Source::Nested { from, .. } => gather(from, sources),
            // Only names matter: no need to copy what is in a subquery.
            ast::Source::Select { alias, .. } => sources
                .push(ast::Source::Select { select: Box::new(Select::of(Query::default())), alias: alias.clone() }),
            other => sources.push(other.clone()),
        }
    }
}
