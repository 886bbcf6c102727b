//! What can be seen of an expression or a tree alone: what it calls, which tables it names, whether
//! it means the question's instant.

use crate::ast::{Expr, Select, Source, Visit, VisitMut, same_name, unquote, walk, walk_mut};
use crate::functions;
use crate::names::NOW_PARAMETER;

/// Whether an expression is an aggregate call.
pub(crate) fn is_aggregate(expr: &Expr) -> bool {
    matches!(expr, Expr::Call(call) if functions::is_aggregate(call))
}

/// Every column reference, qualifier first.
#[derive(Default)]
pub(crate) struct Columns(pub(crate) Vec<(Option<String>, String)>);

impl Visit for Columns {
    fn expr(&mut self, node: &Expr) {
        if let Expr::Column { table, name } = node {
            self.0.push((table.clone(), name.clone()));
        }
        walk::expr(self, node);
    }
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

/// Call `f` for every source that is a table or a table-valued function, names of CTEs excepted.
pub(crate) fn each_table(select: &mut Select, f: &mut dyn FnMut(&mut Source)) {
    struct Tables<'f> {
        ctes: Vec<String>,
        f: &'f mut dyn FnMut(&mut Source),
    }
    impl VisitMut for Tables<'_> {
        fn select(&mut self, node: &mut Select) {
            let before = self.ctes.len();
            self.ctes.extend(cte_names(node));
            walk_mut::select(self, node);
            self.ctes.truncate(before);
        }

        fn source(&mut self, node: &mut Source) {
            walk_mut::source(self, node);
            match node {
                Source::Table { schema: None, name, .. } if self.ctes.iter().any(|cte| same_name(cte, name)) => {}
                Source::Table { .. } | Source::Call { .. } => (self.f)(node),
                Source::Select { .. } | Source::Nested { .. } => {}
            }
        }
    }
    Tables { ctes: Vec::new(), f }.select(select);
}

/// The names that this WITH gives.
pub(crate) fn cte_names(select: &Select) -> Vec<String> {
    select.with.iter().flat_map(|with| &with.ctes).map(|cte| cte.name.clone()).collect()
}

/// 'now', and calls that mean it, become the parameter that holds the question's instant.
pub(crate) struct FreezeNow(pub(crate) bool);

impl VisitMut for FreezeNow {
    fn expr(&mut self, node: &mut Expr) {
        walk_mut::expr(self, node);
        let now = || Expr::Variable(NOW_PARAMETER.to_owned());
        match node {
            Expr::Literal(text) => {
                let function = match text.as_str() {
                    "CURRENT_DATE" => "date",
                    "CURRENT_TIME" => "time",
                    "CURRENT_TIMESTAMP" => "datetime",
                    _ => return,
                };
                *node = Expr::call(function, vec![now()]);
                self.0 = true;
            }
            Expr::Call(call) => {
                let name = unquote(&call.name).to_ascii_lowercase();
                // Position of the time value among the arguments, and how many mean that it is left
                // out.
                let (at, left_out) = match name.as_str() {
                    "date" | "time" | "datetime" | "julianday" | "unixepoch" => (0, 0),
                    "strftime" => (1, 1),
                    "timediff" => {
                        for arg in &mut call.args {
                            if is_now(arg) {
                                *arg = now();
                                self.0 = true;
                            }
                        }
                        return;
                    }
                    _ => return,
                };
                if call.args.len() == left_out {
                    call.args.push(now());
                    self.0 = true;
                } else if let Some(arg) = call.args.get_mut(at)
                    && is_now(arg)
                {
                    *arg = now();
                    self.0 = true;
                }
            }
            _ => {}
        }
    }
}

/// Whether a function of time is asked for local time, in these very words: whose it would be differs
/// from node to node. (Modifiers that are values are refused where they are read: `harden`.)
pub(crate) fn asks_for_local_time(select: &Select) -> bool {
    struct Found(bool);
    impl Visit for Found {
        fn expr(&mut self, node: &Expr) {
            if let Expr::Call(call) = node
                && functions::is_of_time(&call.name)
            {
                self.0 |= call.args.iter().any(|arg| is_text(arg, "localtime"));
            }
            walk::expr(self, node);
        }
    }
    let mut found = Found(false);
    found.select(select);
    found.0
}

/// What to write instead of a local time.
pub(crate) const NO_LOCAL_TIME: &str = "'localtime' is each node's own time zone, so one answer cannot have it: add the \
     offset from UTC instead, as in datetime(ts_ns / 1000000000, 'unixepoch', '+02:00')";

/// Whether this very expression reads the clock.
pub(crate) fn means_now(expr: &Expr) -> bool {
    let mut frozen = expr.clone();
    let mut freeze = FreezeNow(false);
    freeze.expr(&mut frozen);
    freeze.0
}

fn is_now(expr: &Expr) -> bool {
    is_text(expr, "now")
}

/// Whether an expression is this text, written out, in any case.
fn is_text(expr: &Expr, wanted: &str) -> bool {
    matches!(expr.peeled(), Expr::Literal(text) if text.starts_with('\'') && unquote(text).eq_ignore_ascii_case(wanted))
}

#[cfg(test)]
mod tests {
    use crate::{AskOptions, Catalog, plan};

    #[test]
    fn local_time_is_refused_with_what_to_write() {
        let refused = |sql: &str| plan(sql, &Catalog::default(), &AskOptions::default()).err().map(|e| e.to_string());
        for sql in [
            "SELECT datetime(0, 'unixepoch', 'localtime')",
            "SELECT 1 WHERE strftime('%H', '2026-07-01', 'LocalTime') = '02'",
            "WITH t AS (SELECT date('2026-07-01', 'localtime') AS d) SELECT d FROM t",
        ] {
            assert!(refused(sql).is_some_and(|why| why.contains("'+02:00'")), "{sql}");
        }
        assert_eq!(refused("SELECT datetime(0, 'unixepoch', '+02:00'), 'localtime'"), None);
    }
}
