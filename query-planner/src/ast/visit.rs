//! Walking the tree, for reading and for rewriting. A visitor overrides what it cares about and
//! calls `walk` to go on.

use super::{Bound, Core, Expr, From, Limit, Output, Over, Query, Select, Sort, Source, Window};

macro_rules! visitor {
    ($trait:ident, $module:ident, [$($mutable:tt)?]) => {
        /// Visits every node below the one it is given.
        pub(crate) trait $trait {
            fn select(&mut self, node: & $($mutable)? Select) {
                $module::select(self, node);
            }
            fn query(&mut self, node: & $($mutable)? Query) {
                $module::query(self, node);
            }
            fn source(&mut self, node: & $($mutable)? Source) {
                $module::source(self, node);
            }
            fn expr(&mut self, node: & $($mutable)? Expr) {
                $module::expr(self, node);
            }
        }

        /// The nodes below a node, in reading order.
        pub(crate) mod $module {
            use super::*;

            pub(crate) fn select<V: $trait + ?Sized>(v: &mut V, node: & $($mutable)? Select) {
                if let Some(with) = & $($mutable)? node.with {
                    for cte in & $($mutable)? with.ctes {
                        v.select(& $($mutable)? cte.select);
                    }
                }
                core(v, & $($mutable)? node.first);
                for (_, arm) in & $($mutable)? node.compounds {
                    core(v, arm);
                }
                sorts(v, & $($mutable)? node.order_by);
                if let Some(Limit { count, offset }) = & $($mutable)? node.limit {
                    v.expr(count);
                    if let Some(offset) = offset {
                        v.expr(offset);
                    }
                }
            }

            fn core<V: $trait + ?Sized>(v: &mut V, node: & $($mutable)? Core) {
                match node {
                    Core::Query(inner) => v.query(inner),
                    Core::Values(rows) => {
                        for row in rows {
                            exprs(v, row);
                        }
                    }
                }
            }

            pub(crate) fn query<V: $trait + ?Sized>(v: &mut V, node: & $($mutable)? Query) {
                for output in & $($mutable)? node.columns {
                    if let Output::Expr(inner, _) = output {
                        v.expr(inner);
                    }
                }
                if let Some(inner) = & $($mutable)? node.from {
                    from(v, inner);
                }
                if let Some(inner) = & $($mutable)? node.filter {
                    v.expr(inner);
                }
                exprs(v, & $($mutable)? node.group_by);
                if let Some(inner) = & $($mutable)? node.having {
                    v.expr(inner);
                }
                for (_, inner) in & $($mutable)? node.windows {
                    window(v, inner);
                }
            }

            fn from<V: $trait + ?Sized>(v: &mut V, node: & $($mutable)? From) {
                v.source(& $($mutable)? node.first);
                for join in & $($mutable)? node.joins {
                    v.source(& $($mutable)? join.source);
                    if let Some(on) = & $($mutable)? join.on {
                        v.expr(on);
                    }
                }
            }

            pub(crate) fn source<V: $trait + ?Sized>(v: &mut V, node: & $($mutable)? Source) {
                match node {
                    Source::Table { .. } => {}
                    Source::Call { args, .. } => exprs(v, args),
                    Source::Select { select, .. } => v.select(select),
                    Source::Nested { from: inner, .. } => from(v, inner),
                }
            }

            fn window<V: $trait + ?Sized>(v: &mut V, node: & $($mutable)? Window) {
                exprs(v, & $($mutable)? node.partition_by);
                sorts(v, & $($mutable)? node.order_by);
                if let Some(frame) = & $($mutable)? node.frame {
                    if let Bound::Following(inner) | Bound::Preceding(inner) = & $($mutable)? frame.start {
                        v.expr(inner);
                    }
                    if let Some(Bound::Following(inner) | Bound::Preceding(inner)) = & $($mutable)? frame.end {
                        v.expr(inner);
                    }
                }
            }

            fn sorts<V: $trait + ?Sized>(v: &mut V, nodes: & $($mutable)? [Sort]) {
                for sort in nodes {
                    v.expr(& $($mutable)? sort.expr);
                }
            }

            fn exprs<V: $trait + ?Sized>(v: &mut V, nodes: & $($mutable)? [Expr]) {
                for node in nodes {
                    v.expr(node);
                }
            }

            pub(crate) fn expr<V: $trait + ?Sized>(v: &mut V, node: & $($mutable)? Expr) {
                match node {
                    Expr::Between { lhs, low, high, .. } => {
                        v.expr(lhs);
                        v.expr(low);
                        v.expr(high);
                    }
                    Expr::Binary(lhs, _, rhs) => {
                        v.expr(lhs);
                        v.expr(rhs);
                    }
                    Expr::Case { base, arms, otherwise } => {
                        if let Some(base) = base {
                            v.expr(base);
                        }
                        for (when, then) in arms {
                            v.expr(when);
                            v.expr(then);
                        }
                        if let Some(otherwise) = otherwise {
                            v.expr(otherwise);
                        }
                    }
                    Expr::Cast(inner, _) | Expr::Collate(inner, _) | Expr::IsNull(inner) | Expr::NotNull(inner)
                    | Expr::Unary(_, inner) => v.expr(inner),
                    Expr::Column { .. } | Expr::Literal(_) | Expr::Variable(_) => {}
                    Expr::Exists(inner) | Expr::Subquery(inner) => v.select(inner),
                    Expr::Call(call) => {
                        exprs(v, & $($mutable)? call.args);
                        sorts(v, & $($mutable)? call.order_by);
                        if let Some(filter) = & $($mutable)? call.filter {
                            v.expr(filter);
                        }
                        if let Some(Over::Window(inner)) = & $($mutable)? call.over {
                            window(v, inner);
                        }
                    }
                    Expr::InList { lhs, list, .. } => {
                        v.expr(lhs);
                        exprs(v, list);
                    }
                    Expr::InSelect { lhs, select, .. } => {
                        v.expr(lhs);
                        v.select(select);
                    }
                    Expr::InTable { lhs, args, .. } => {
                        v.expr(lhs);
                        if let Some(args) = args {
                            exprs(v, args);
                        }
                    }
                    Expr::Like { lhs, rhs, escape, .. } => {
                        v.expr(lhs);
                        v.expr(rhs);
                        if let Some(escape) = escape {
                            v.expr(escape);
                        }
                    }
                    Expr::Paren(inner) => exprs(v, inner),
                }
            }
        }
    };
}

visitor!(Visit, walk, []);
visitor!(VisitMut, walk_mut, [mut]);

/// Whether one of these functions is called anywhere in an expression, subqueries included.
pub(crate) fn calls_any(expr: &Expr, functions: &[&str]) -> bool {
    struct Look<'f>(&'f [&'f str], bool);
    impl Visit for Look<'_> {
        fn expr(&mut self, node: &Expr) {
            self.1 |= matches!(node, Expr::Call(call)
                if self.0.iter().any(|name| super::unquote(&call.name).eq_ignore_ascii_case(name)));
            walk::expr(self, node);
        }
    }
    let mut look = Look(functions, false);
    look.expr(expr);
    look.1
}
