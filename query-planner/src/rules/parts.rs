//! Strategy 4: parts of a question, each planned on its own, joined at the coordinator.
//!
//! A subquery, common table expression or arm of a compound that stands for itself (SQLite can
//! compile it alone, so it names nothing of the query around it) means its own result. If it
//! collapses or cuts rows (aggregates, DISTINCT, LIMIT) and the rules for rows or aggregates can
//! plan it, its merge SQL over its own merge table gives that result, with the names, affinities
//! and collations the subquery's columns had; so it can stand in its place. What remains of the
//! question is fetched as by strategy 5, and one SQLite at the coordinator runs the question over
//! them.
//!
//! Left alone: subqueries that filter and project only (fetch moves their conditions to the nodes
//! already), and those that name a common table expression.

use crate::ast::{
    Core, Expr, Output, Query, Select, Source, Visit, VisitMut, parse_select, parse_view, quote_name, same_name, walk,
    walk_mut,
};
use crate::catalog::{Catalog, Column, Kind, Table};
use crate::check::{Question, check};
use crate::error::QueryError;
use crate::expressions::each_table;
use crate::plan::{Fragment, Merge, MergeTable, Plan, Strategy};
use crate::rewrite::normalise;
use crate::scope::Scope;
use crate::shape::Shape;

pub(crate) fn plan(question: &Question<'_>) -> Result<Option<Plan>, QueryError> {
    let mut select = question.select.clone();
    inline_views(&mut select, question.catalog);
    let mut replace = Replace { catalog: question.catalog, ctes: cte_names(&select), fragments: Vec::new() };
    replace.children(&mut select);
    if replace.fragments.is_empty() {
        return Ok(None);
    }
    let mut catalog = question.catalog.clone();
    for (_, table) in &replace.fragments {
        catalog.tables.insert(table.name.clone(), as_replicated(table));
    }
    let sql = select.to_string();
    let Ok(rest) = check(&sql, &catalog) else { return Ok(None) };
    let mut plan = super::fetch::plan(&rest)?;
    let Merge::Sql { tables, .. } = &mut plan.merge else { return Ok(None) };
    for (fragment, table) in plan.fragments.iter_mut().zip(tables) {
        if let Some((planned, merge)) = replace.fragments.iter().find(|(_, merge)| merge.name == table.name) {
            *fragment = planned.clone();
            *table = merge.clone();
        }
    }
    let plan = Plan { strategy: Strategy::Parts, columns: question.columns.clone(), ..plan };
    let with_values = super::values::plan(&select, &replace.fragments, &plan, question.catalog);
    Ok(Some(Plan { with_values, ..plan }))
}

/// Puts merge SQL in place of subqueries that have a plan.
struct Replace<'a> {
    catalog: &'a Catalog,
    ctes: Vec<String>,
    fragments: Vec<(Fragment, MergeTable)>,
}

impl VisitMut for Replace<'_> {
    fn select(&mut self, node: &mut Select) {
        match self.merged(node) {
            Some(merged) => *node = merged,
            None => self.children(node),
        }
    }

    fn expr(&mut self, node: &mut Expr) {
        if let Expr::InSelect { lhs, select, .. } = node
            && let Some(merged) = self.value_set(select)
        {
            **select = merged;
            self.expr(lhs);
            return;
        }
        walk_mut::expr(self, node);
    }
}

impl Replace<'_> {
    /// Tries what is below a SELECT, arms of a compound included.
    fn children(&mut self, node: &mut Select) {
        if !node.compounds.is_empty() {
            let arms = std::iter::once(&mut node.first).chain(node.compounds.iter_mut().map(|(_, core)| core));
            for arm in arms {
                let Core::Query(query) = arm else { continue };
                let alone = Select::of(Query::clone(query));
                if let Some(Select { first, .. }) = self.merged(&alone) {
                    *arm = first;
                }
            }
        }
        walk_mut::select(self, node);
    }

    /// What IN compares with, without duplicates: each value travels once a node. Values that
    /// DISTINCT finds equal must be the same to IN, whatever it compares them with: so the column
    /// has an affinity, under which 1 and 1.0 do not both occur, and collates by BINARY.
    fn value_set(&mut self, select: &Select) -> Option<Select> {
        let mut distinct = select.clone();
        let Core::Query(query) = &mut distinct.first else { return None };
        let from = query.from.as_ref()?;
        let [Output::Expr(value, _)] = query.columns.as_slice() else { return None };
        let scope = Scope::of(from, self.catalog)?;
        let column = scope.column(value)?;
        if column.affinity.is_none_or(str::is_empty) || !column.collation.eq_ignore_ascii_case("BINARY") {
            return None;
        }
        query.distinct = true;
        self.merged(&distinct)
    }

    /// The SELECT as merge SQL over a table of its own.
    fn merged(&mut self, select: &Select) -> Option<Select> {
        let query = select.single()?;
        if self.names_cte(select) {
            return None;
        }
        let sql = select.to_string();
        let question = check(&sql, self.catalog).ok()?;
        let (normal, _) = normalise(&question).ok()?;
        let shape = Shape::of(&normal, self.catalog)?;
        let plan = match super::rows::plan_inner(&question, &shape) {
            Some(plan) => plan,
            None => super::aggregate::plan_in_one(&question, &shape).ok()??,
        };
        let ([fragment], Merge::Sql { tables, sql, .. }) = (plan.fragments.as_slice(), plan.merge) else { return None };
        let [table] = tables.as_slice() else { return None };
        let mut merged = parse_select(&sql).ok()?;
        let name = format!("{}_{}", table.name, self.fragments.len() + 1);
        if self.catalog.find(&name).is_some() {
            return None;
        }
        each_table(&mut merged, &mut |source| {
            if let Source::Table { name: old, .. } = source {
                *old = name.clone();
            }
        });
        let Core::Query(outer) = &mut merged.first else { return None };
        let given = query.columns.iter().map(|output| match output {
            Output::Expr(_, alias) => alias.clone(),
            _ => None,
        });
        let has_star = query.columns.len() != question.columns.len();
        let given: Vec<Option<String>> = if has_star { vec![None; question.columns.len()] } else { given.collect() };
        for ((output, given), column) in outer.columns.iter_mut().zip(given).zip(&question.columns) {
            let Output::Expr(_, alias) = output else { return None };
            let name = given.unwrap_or_else(|| quote_name(&column.name));
            // ORDER BY would take such an alias for the merge's own column.
            if table.columns.iter().any(|column| same_name(&column.name, &name)) {
                return None;
            }
            *alias = Some(name);
        }
        self.fragments.push((fragment.clone(), MergeTable { name, columns: table.columns.clone() }));
        Some(merged)
    }

    fn names_cte(&self, select: &Select) -> bool {
        let mut found = false;
        each_table(&mut select.clone(), &mut |source| {
            if let Source::Table { name, .. } = source {
                found |= self.ctes.iter().any(|cte| same_name(cte, name));
            }
        });
        found
    }
}

/// Views deeper than this stay views.
const VIEW_DEPTH: usize = 8;

/// Computed views written in place, where their text has the names of `*` and their columns.
fn inline_views(select: &mut Select, catalog: &Catalog) {
    for _ in 0..VIEW_DEPTH {
        let ctes = cte_names(select);
        let mut found = false;
        each_table(select, &mut |source| {
            let Source::Table { name, alias, .. } = source else { return };
            let Some(view) = catalog.find(name).filter(|table| table.kind == Kind::View) else { return };
            if let Some(body) = view_body(view, &ctes) {
                let alias = alias.clone().unwrap_or_else(|| name.clone());
                *source = Source::Select { select: Box::new(body), alias: Some(alias) };
                found = true;
            }
        });
        if !found {
            return;
        }
    }
}

/// The SELECT of a view with its columns named; None where the question's common table expressions
/// would capture a name in it, or `*` hides how its columns are called.
fn view_body(view: &Table, ctes: &[String]) -> Option<Select> {
    let mut body = parse_view(&view.sql).ok()?;
    let mut captured = false;
    each_table(&mut body, &mut |source| {
        if let Source::Table { name, .. } = source {
            captured |= ctes.iter().any(|cte| same_name(cte, name));
        }
    });
    let Core::Query(query) = &mut body.first else { return None };
    // A new alias could capture a name in ORDER BY.
    if captured || query.columns.len() != view.columns.len() || !body.order_by.is_empty() {
        return None;
    }
    for (output, column) in query.columns.iter_mut().zip(&view.columns) {
        let Output::Expr(_, alias) = output else { return None };
        let name = quote_name(&column.name);
        if alias.as_ref().is_some_and(|alias| !same_name(alias, &name)) {
            return None;
        }
        *alias = Some(name);
    }
    Some(body)
}

fn cte_names(select: &Select) -> Vec<String> {
    struct Names(Vec<String>);
    impl Visit for Names {
        fn select(&mut self, node: &Select) {
            self.0.extend(node.with.iter().flat_map(|with| &with.ctes).map(|cte| cte.name.clone()));
            walk::select(self, node);
        }
    }
    let mut names = Names(Vec::new());
    names.select(select);
    names.0
}

/// A merge table as the catalogue of what remains sees it: without node column.
fn as_replicated(table: &MergeTable) -> Table {
    Table {
        name: table.name.clone(),
        sql: String::new(),
        columns: table
            .columns
            .iter()
            .map(|column| Column {
                name: column.name.clone(),
                decl_type: column.affinity.clone(),
                collation: column.collation.clone(),
                plain: true,
            })
            .collect(),
        replicated: true,
        kind: Kind::Table,
        varies: false,
        rowid_column: None,
    }
}
