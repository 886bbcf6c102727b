//! Rewrites that every rule shares: one instant for 'now', the hidden `node` column made visible
//! where a question reads it, `*` written out where that column would otherwise slip in, names of
//! schemas and indexes dropped.

use std::collections::BTreeSet;

use crate::ast::{
    self, Expr, From, Indexed, JoinKind, Output, Query, Select, Source, Visit, VisitMut, quote_name, same_name,
    unquote, walk_mut,
};
use crate::catalog::{Catalog, Table, has_node, node_column};
use crate::check::Question;
use crate::error::QueryError;
use crate::expressions::{Columns, FreezeNow, NO_LOCAL_TIME, asks_for_local_time, cte_names, each_table};
use crate::functions;
use crate::names::NODE_PARAMETER;

/// The question's tree, ready for the rules: one 'now', plain table names. The flag: whether
/// anything but spelling changed, that is whether the user's own text can no longer stand.
pub(crate) fn normalise(question: &Question<'_>) -> Result<(Select, bool), QueryError> {
    if asks_for_local_time(&question.select) {
        return Err(QueryError::wrong(NO_LOCAL_TIME));
    }
    let mut select = question.select.clone();
    let mut now = FreezeNow(false);
    now.select(&mut select);
    let mut changed = now.0;
    each_table(&mut select, &mut |source| {
        if let Source::Table { schema, indexed, .. } = source {
            changed |= schema.take().is_some();
            // An index is not in the merge, and "which index" is no part of an answer.
            if *indexed != Indexed::Any {
                *indexed = Indexed::Any;
                changed = true;
            }
        }
    });
    let mut calls = None;
    each_table(&mut select, &mut |source| {
        if let Source::Call { name, .. } = source
            && question.catalog.find(name).is_some()
        {
            calls.get_or_insert(unquote(name));
        }
    });
    if let Some(name) = calls {
        return Err(QueryError::wrong(format!("{name} is a table, not a function")));
    }
    let with_node = node_tables(&select, question);
    if !with_node.is_empty() {
        let mut expand =
            ExpandStars { catalog: question.catalog, with_node: &with_node, ctes: Vec::new(), fresh: 0, error: None };
        expand.select(&mut select);
        if let Some(error) = expand.error {
            return Err(error);
        }
        changed = true;
    }
    Ok((select, changed))
}

/// Put `(SELECT *, CAST(:mesh_node AS TEXT) AS node FROM t) AS t` for every table whose node column
/// is read. As a subquery's column it has TEXT affinity and BINARY collation, like the column it
/// stands for.
pub(crate) fn with_node_sources(select: &mut Select, question: &Question<'_>) {
    let with_node = node_tables(select, question);
    each_table(select, &mut |source| {
        if let Source::Table { name, alias, .. } = source
            && let Some(table) = question.catalog.find(name)
            && with_node.contains(&table.name.to_ascii_lowercase())
        {
            let alias = alias.clone().unwrap_or_else(|| name.clone());
            *source = node_source(table, &alias);
        }
    });
}

/// The tables (lower case) whose node column is used. SQLite reports what it reads, but it does not
/// look into what it can see to be dead (`0 AND node = 'a'`); there the spelling decides.
fn node_tables(select: &Select, question: &Question<'_>) -> BTreeSet<String> {
    let mut columns = Columns::default();
    columns.select(select);
    let mut used = BTreeSet::new();
    each_table(&mut select.clone(), &mut |source| {
        if let Source::Table { name, alias, .. } = source
            && let Some(table) = question.catalog.find(name).filter(|table| has_node(table))
        {
            let alias = alias.as_ref().unwrap_or(name);
            let spelled = |(qualifier, column): &(Option<String>, String)| {
                same_name(column, node_column(table)) && qualifier.as_ref().is_none_or(|q| same_name(q, alias))
            };
            if question.reads_node(table) || columns.0.iter().any(spelled) {
                used.insert(table.name.to_ascii_lowercase());
            }
        }
    });
    used
}

/// The source that stands for a table with its node column.
pub(crate) fn node_source(table: &Table, alias: &str) -> Source {
    let inner = Query {
        columns: vec![Output::Star, Output::Expr(node_expr(), Some(node_column(table).to_owned()))],
        from: Some(From {
            first: Source::Table { schema: None, name: quote_name(&table.name), alias: None, indexed: Indexed::Any },
            joins: Vec::new(),
        }),
        ..Query::default()
    };
    Source::Select { select: Box::new(Select::of(inner)), alias: Some(alias.to_owned()) }
}

/// The node's name as a value of the node column.
pub(crate) fn node_expr() -> Expr {
    Expr::Cast(Box::new(Expr::Variable(NODE_PARAMETER.to_owned())), "TEXT".to_owned())
}

/// Writes `*` out wherever a source with a now visible node column stands in FROM.
struct ExpandStars<'a> {
    catalog: &'a Catalog,
    with_node: &'a BTreeSet<String>,
    ctes: Vec<String>,
    fresh: usize,
    error: Option<QueryError>,
}

impl VisitMut for ExpandStars<'_> {
    fn select(&mut self, node: &mut Select) {
        let before = self.ctes.len();
        self.ctes.extend(cte_names(node));
        walk_mut::select(self, node);
        self.ctes.truncate(before);
    }

    fn query(&mut self, node: &mut Query) {
        walk_mut::query(self, node);
        let Some(from) = &mut node.from else { return };
        if !self.touches(from) {
            return;
        }
        let natural = from.joins.iter().any(|join| join.natural);
        let star = node.columns.iter().any(|output| !matches!(output, Output::Expr(..)));
        if natural || (star && from.joins.iter().any(|join| !join.using.is_empty())) {
            self.error.get_or_insert(QueryError::refused(
                "node together with NATURAL JOIN, or with * over JOIN … USING, is not supported: \
                 write the join condition with ON and the columns out",
            ));
            return;
        }
        if !star {
            return;
        }
        let mut all = Vec::new();
        self.outputs(from, &mut all);
        let outputs = std::mem::take(&mut node.columns);
        for output in outputs {
            match output {
                Output::Expr(..) => node.columns.push(output),
                Output::Star => node.columns.extend(all.iter().map(|(_, output)| output.clone())),
                Output::TableStar(name) => {
                    let mut of_table =
                        all.iter().filter(|(alias, _)| same_name(alias, &name)).map(|(_, output)| output.clone());
                    match of_table.next() {
                        Some(first) => {
                            node.columns.push(first);
                            node.columns.extend(of_table);
                        }
                        None => node.columns.push(Output::TableStar(name)),
                    }
                }
            }
        }
    }
}

impl ExpandStars<'_> {
    fn table(&self, source: &Source) -> Option<&Table> {
        match source {
            Source::Table { name, .. } if !self.ctes.iter().any(|cte| same_name(cte, name)) => self.catalog.find(name),
            _ => None,
        }
    }

    fn touches(&self, from: &From) -> bool {
        from.sources().any(|source| match source {
            Source::Nested { from, .. } => self.touches(from),
            other => self.table(other).is_some_and(|t| self.with_node.contains(&t.name.to_ascii_lowercase())),
        })
    }

    /// What `*` means, source by source, with each source's alias.
    fn outputs(&mut self, from: &mut From, out: &mut Vec<(String, Output)>) {
        let sources = std::iter::once(&mut from.first).chain(from.joins.iter_mut().map(|join| &mut join.source));
        for source in sources {
            if let Some(columns) = self.table(source).map(|table| table.columns.clone()) {
                let Source::Table { name, alias, .. } = &*source else {
                    continue;
                };
                let alias = alias.as_ref().unwrap_or(name).clone();
                out.extend(columns.iter().map(|column| {
                    let expr = Expr::Column { table: Some(alias.clone()), name: quote_name(&column.name) };
                    (alias.clone(), Output::Expr(expr, None))
                }));
                continue;
            }
            match source {
                Source::Nested { from, alias: None } => self.outputs(from, out),
                Source::Table { name, alias, .. } | Source::Call { name, alias, .. } => {
                    let alias = alias.as_ref().unwrap_or(name).clone();
                    out.push((alias.clone(), Output::TableStar(alias)));
                }
                Source::Select { alias, .. } | Source::Nested { alias, .. } => {
                    let alias = alias.get_or_insert_with(|| {
                        self.fresh += 1;
                        format!("mesh_sub_{}", self.fresh)
                    });
                    out.push((alias.clone(), Output::TableStar(alias.clone())));
                }
            }
        }
    }
}

/// Whether an expression can move to the nodes as a filter: no subquery, aggregate, window or
/// random value, and nothing that may fail on a row which the union would have skipped.
pub(crate) fn is_safe_filter(expr: &Expr) -> bool {
    struct Safe(bool);
    impl ast::Visit for Safe {
        fn expr(&mut self, node: &Expr) {
            match node {
                Expr::Exists(_)
                | Expr::Subquery(_)
                | Expr::InSelect { .. }
                | Expr::InTable { .. }
                | Expr::Binary(_, "->" | "->>", _)
                | Expr::Like { op: "MATCH" | "REGEXP", .. }
                | Expr::Like { escape: Some(_), .. } => self.0 = false,
                Expr::Call(call) if call.over.is_some() || functions::is_aggregate(call) => self.0 = false,
                Expr::Call(call) if !functions::never_fails(&call.name) => self.0 = false,
                _ => ast::walk::expr(self, node),
            }
        }
    }
    let mut safe = Safe(true);
    ast::Visit::expr(&mut safe, expr);
    safe.0
}

/// Whether a FROM may drop or null-extend rows of its left side (RIGHT and FULL joins).
pub(crate) fn has_right_join(from: &From) -> bool {
    from.joins.iter().any(|join| matches!(join.kind, JoinKind::Right | JoinKind::Full))
        || from.sources().any(|source| matches!(source, Source::Nested { from, .. } if has_right_join(from)))
}
