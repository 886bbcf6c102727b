//! Common table expressions written in place, so that a question over them has a shape
//! (`shape.rs`).
//!
//! `WITH q AS (S) … FROM q` means `… FROM (S) AS q`. Evaluated twice S could differ from itself
//! only if it calls random() or cuts rows by LIMIT, so such a one is written in place at most once.
//! Recursive ones, MATERIALIZED ones and those with a column list over `*` are left alone: then the
//! question has no shape and is fetched, WITH and all.

use crate::ast::{Core, Expr, Output, Select, Source, Visit, VisitMut, same_name, walk, walk_mut};
use crate::functions;

/// Places that bodies are written into: each names the one before twice, and there are a million
/// soon.
const MOST_PLACES: usize = 1_000;

/// The SELECT without its WITH; None when it has none or one that must stay.
pub(crate) fn inlined(select: &Select) -> Option<Select> {
    let with = select.with.as_ref()?;
    if with.recursive && with.ctes.iter().any(|cte| uses(&cte.select, &cte.name) > 0) {
        return None;
    }
    let mut main = Select { with: None, ..select.clone() };
    // A WITH further in could capture a table that a body names.
    if has_with(&main) || with.ctes.iter().any(|cte| has_with(&cte.select)) {
        return None;
    }
    let mut places = 0;
    // Later ones may name earlier ones: going backwards, what a body brings in is replaced by the
    // next round.
    for (i, cte) in with.ctes.iter().enumerate().rev() {
        let forward = with.ctes[i..].iter().any(|later| uses(&cte.select, &later.name) > 0);
        if forward || cte.materialized == Some(true) {
            return None;
        }
        let mut body = cte.select.clone();
        if !cte.columns.is_empty() {
            rename(&mut body, &cte.columns)?;
        }
        let count = uses(&main, &cte.name);
        if count > 1 && is_volatile(&body) {
            return None;
        }
        places += count;
        if places > MOST_PLACES {
            return None;
        }
        let mut place = Place { name: &cte.name, body: &body, failed: false };
        place.select(&mut main);
        if place.failed {
            return None;
        }
    }
    Some(main)
}

/// How often FROM (or IN) names a table.
fn uses(select: &Select, name: &str) -> usize {
    struct Uses<'n>(&'n str, usize);
    impl Visit for Uses<'_> {
        fn source(&mut self, node: &Source) {
            if let Source::Table { name, .. } = node
                && same_name(name, self.0)
            {
                self.1 += 1;
            }
            walk::source(self, node);
        }

        fn expr(&mut self, node: &Expr) {
            if let Expr::InTable { table, .. } = node
                && same_name(table, self.0)
            {
                self.1 += 1;
            }
            walk::expr(self, node);
        }
    }
    let mut uses = Uses(name, 0);
    uses.select(select);
    uses.1
}

fn is_volatile(select: &Select) -> bool {
    struct Volatile(bool);
    impl Visit for Volatile {
        fn select(&mut self, node: &Select) {
            self.0 |= node.limit.is_some();
            walk::select(self, node);
        }

        fn expr(&mut self, node: &Expr) {
            self.0 |= matches!(node, Expr::Call(call) if functions::is_volatile(&call.name));
            walk::expr(self, node);
        }
    }
    let mut volatile = Volatile(false);
    volatile.select(select);
    volatile.0
}

/// Give the result columns of the first arm the names of a column list.
fn rename(select: &mut Select, names: &[String]) -> Option<()> {
    let Core::Query(query) = &mut select.first else { return None };
    if query.columns.len() != names.len() {
        return None;
    }
    // A new alias could capture a name in GROUP BY, HAVING or ORDER BY.
    if !query.group_by.is_empty() || query.having.is_some() || !select.order_by.is_empty() {
        return None;
    }
    for (output, name) in query.columns.iter_mut().zip(names) {
        let Output::Expr(_, alias) = output else { return None };
        *alias = Some(name.clone());
    }
    Some(())
}

struct Place<'a> {
    name: &'a str,
    body: &'a Select,
    failed: bool,
}

impl VisitMut for Place<'_> {
    fn expr(&mut self, node: &mut Expr) {
        self.failed |= matches!(node, Expr::InTable { table, .. } if same_name(table, self.name));
        walk_mut::expr(self, node);
    }

    fn source(&mut self, node: &mut Source) {
        walk_mut::source(self, node);
        if let Source::Table { schema: None, name, alias, .. } = node
            && same_name(name, self.name)
        {
            let alias = alias.clone().unwrap_or_else(|| name.clone());
            *node = Source::Select { select: Box::new(self.body.clone()), alias: Some(alias) };
        }
    }
}

fn has_with(select: &Select) -> bool {
    struct Withs(bool);
    impl Visit for Withs {
        fn select(&mut self, node: &Select) {
            self.0 |= node.with.is_some();
            walk::select(self, node);
        }
    }
    let mut withs = Withs(false);
    withs.select(select);
    withs.0
}
