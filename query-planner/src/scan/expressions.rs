//! Reads the expressions of a [`Scan`](super::Scan)'s statement that are about one column:
//! conditions on it, and columns that are made of it. Does not own what is worked out of several
//! (`operands`).

use super::names::{Meaning, Names};
use super::{By, Comparison, Condition, Constant, Derived, Operand, Test};
use crate::ast::{Expr, Visit, unquote, walk};
use crate::expressions::means_now;
use crate::functions;

impl Names {
    /// As [`Names::column`], also for what is made of one column.
    pub(super) fn value(&self, expr: &Expr) -> Option<String> {
        self.column(expr).or_else(|| {
            let derived = self.known_form(expr).or_else(|| self.of_one_text(expr))?;
            let name = derived.name.clone();
            let mut all = self.derived.borrow_mut();
            if !all.contains(&derived) {
                all.push(derived);
            }
            Some(name)
        })
    }

    /// A column of the scan by another name, which no column has.
    fn named(&self, name: String, of: String, by: By) -> Option<Derived> {
        let is_new = !self.columns.iter().any(|column| column.name.eq_ignore_ascii_case(&name));
        is_new.then_some(Derived { name, of, by })
    }

    /// The forms that the store works out itself, also of integers: of views.
    fn known_form(&self, expr: &Expr) -> Option<Derived> {
        let make = |of: String, by: By| {
            let name = match by {
                By::Upper => format!("upper({of})"),
                By::Lower => format!("lower({of})"),
                _ => format!("hex({of})"),
            };
            self.named(name, of, by)
        };
        match expr.peeled() {
            Expr::Call(call) if call.over.is_none() && call.filter.is_none() && !call.distinct => {
                let [of] = call.args.as_slice() else { return None };
                match unquote(&call.name).to_ascii_lowercase().as_str() {
                    "upper" => make(self.column(of)?, By::Upper),
                    "lower" => make(self.column(of)?, By::Lower),
                    _ => None,
                }
            }
            Expr::Case { base: None, arms, otherwise: None } => {
                let [(test, Expr::Call(call))] = arms.as_slice() else { return None };
                let null =
                    |expr: &Expr| matches!(expr.peeled(), Expr::Literal(text) if text.eq_ignore_ascii_case("NULL"));
                let tested = match test.peeled() {
                    Expr::NotNull(tested) => tested,
                    Expr::Binary(tested, "IS NOT", other) if null(other) => tested,
                    _ => return None,
                };
                let [Expr::Literal(form), of] = call.args.as_slice() else { return None };
                let column = self.column(of)?;
                let is_hex = unquote(&call.name).eq_ignore_ascii_case("printf")
                    && form == "'%016x'"
                    && self.column(tested)? == column;
                if is_hex { make(column, By::Hex) } else { None }
            }
            _ => None,
        }
    }

    /// An expression of one text column and constants, whose kind is known.
    fn of_one_text(&self, expr: &Expr) -> Option<Derived> {
        let is_text_column = |expr: &Expr| self.column(expr).is_some_and(|name| self.is_text(&name));
        let is_text = returns_text(expr, &is_text_column)??;
        if !is_row_expression(expr, functions::never_fails) {
            return None;
        }
        struct Replace<'n> {
            names: &'n Names,
            of: Vec<String>,
            failed: bool,
        }
        impl crate::ast::VisitMut for Replace<'_> {
            fn expr(&mut self, node: &mut Expr) {
                match self.names.meaning(node) {
                    Some(Meaning::Column(name)) => {
                        self.of.push(name);
                        // With the affinity of the column.
                        *node = Expr::Cast(Box::new(Expr::Variable(By::VALUE.to_owned())), "TEXT".to_owned());
                    }
                    Some(_) => self.failed = true,
                    None => {
                        self.failed |= matches!(node, Expr::Column { .. } | Expr::Variable(_));
                        crate::ast::walk_mut::expr(self, node);
                    }
                }
            }
        }
        let mut replaced = expr.clone();
        let mut replace = Replace { names: self, of: Vec::new(), failed: false };
        crate::ast::VisitMut::expr(&mut replace, &mut replaced);
        let (of, others) = replace.of.split_first()?;
        let is_one_text = others.iter().all(|other| other == of)
            && self.columns.iter().any(|column| column.is_text && column.name == *of);
        if replace.failed || !is_one_text {
            return None;
        }
        let sql = replaced.to_string();
        self.named(format!("{sql} of {of}"), of.clone(), By::Sql { sql, is_text })
    }

    /// An expression of one value that is an integer, and constants: the value, and SQL over
    /// [`By::VALUE`].
    pub(super) fn made_of_integer(&self, expr: &Expr) -> Option<(Operand, String)> {
        struct Replace<'n> {
            names: &'n Names,
            of: Option<Operand>,
            failed: bool,
        }
        impl crate::ast::VisitMut for Replace<'_> {
            fn expr(&mut self, node: &mut Expr) {
                if let Some(operand) = self.names.integers(node).filter(|operand| !operand.columns().is_empty()) {
                    self.failed |= self.of.as_ref().is_some_and(|of| *of != operand);
                    self.of = Some(operand);
                    *node = Expr::Variable(By::VALUE.to_owned());
                    return;
                }
                // In a comparison it would matter whether the value was a column's, with its
                // affinity.
                let is_plain = match node {
                    Expr::Literal(_) | Expr::Call(_) | Expr::Cast(..) | Expr::Unary("+" | "-", _) => true,
                    Expr::Case { base, .. } => base.is_none(),
                    Expr::Binary(_, operator, _) => matches!(*operator, "||" | "+" | "-" | "*" | "/" | "%"),
                    Expr::Paren(_) => true,
                    _ => false,
                };
                self.failed |= !is_plain || means_now(node);
                crate::ast::walk_mut::expr(self, node);
            }
        }
        if !is_row_expression(expr, |name| functions::never_fails(name) || functions::is_of_time(name)) {
            return None;
        }
        let mut replaced = expr.clone();
        let mut replace = Replace { names: self, of: None, failed: false };
        crate::ast::VisitMut::expr(&mut replace, &mut replaced);
        let of = replace.of.filter(|_| !replace.failed)?;
        Some((of, replaced.to_string()))
    }

    pub(super) fn condition(&self, expr: &Expr) -> Option<Condition> {
        self.comparison(expr).or_else(|| {
            // What is true is another number than 0.
            let column =
                self.of_one_text(expr).filter(|derived| !derived.by.is_text()).and_then(|_| self.value(expr))?;
            Some(Condition { column, test: Test::In { not: true, list: vec![Constant("0".to_owned())] } })
        })
    }

    fn comparison(&self, expr: &Expr) -> Option<Condition> {
        let (column, test) = match expr.peeled() {
            Expr::Binary(lhs, operator, rhs) => {
                let comparison = comparison(operator)?;
                match (self.column(lhs), self.column(rhs)) {
                    (Some(column), None) => (column, Test::Compare(comparison, self.constant(rhs)?)),
                    (None, Some(column)) => (column, Test::Compare(mirrored(comparison), self.constant(lhs)?)),
                    _ => return None,
                }
            }
            Expr::Between { lhs, not, low, high } => {
                (self.column(lhs)?, Test::Between { not: *not, low: self.constant(low)?, high: self.constant(high)? })
            }
            Expr::InList { lhs, not, list } => {
                let list = list.iter().map(|member| self.constant(member)).collect::<Option<_>>()?;
                (self.column(lhs)?, Test::In { not: *not, list })
            }
            Expr::IsNull(lhs) => (self.column(lhs)?, Test::Compare(Comparison::Is, Constant("NULL".to_owned()))),
            Expr::NotNull(lhs) => (self.column(lhs)?, Test::Compare(Comparison::IsNot, Constant("NULL".to_owned()))),
            _ => return None,
        };
        Some(Condition { column, test })
    }
}

/// What an expression gives, if not NULL, as far as that shows: text, or integers. The outer none:
/// it does not show; the inner one: NULL only.
fn returns_text(expr: &Expr, is_text_column: &dyn Fn(&Expr) -> bool) -> Option<Option<bool>> {
    let all = |exprs: Vec<&Expr>| {
        exprs.into_iter().try_fold(None, |so_far: Option<bool>, expr| {
            match (so_far, returns_text(expr, is_text_column)?) {
                (Some(a), Some(b)) if a != b => None,
                (a, b) => Some(a.or(b)),
            }
        })
    };
    match expr.peeled() {
        Expr::Literal(text) if text.eq_ignore_ascii_case("NULL") => Some(None),
        Expr::Literal(text) if text.starts_with('\'') => Some(Some(true)),
        Expr::Column { .. } if is_text_column(expr) => Some(Some(true)),
        _ if expr.integer().is_some() => Some(Some(false)),
        Expr::Like { op: "LIKE" | "GLOB", .. }
        | Expr::Between { .. }
        | Expr::InList { .. }
        | Expr::IsNull(_)
        | Expr::NotNull(_)
        | Expr::Unary("NOT", _)
        | Expr::Binary(_, "=" | "==" | "<>" | "!=" | "<" | "<=" | ">" | ">=" | "IS" | "IS NOT" | "AND" | "OR", _) => {
            Some(Some(false))
        }
        Expr::Cast(_, name) if name.eq_ignore_ascii_case("INTEGER") => Some(Some(false)),
        Expr::Cast(_, name) if name.eq_ignore_ascii_case("TEXT") => Some(Some(true)),
        Expr::Case { arms, otherwise, .. } => {
            all(arms.iter().map(|(_, then)| then).chain(otherwise.as_deref()).collect())
        }
        Expr::Call(call) => match unquote(&call.name).to_ascii_lowercase().as_str() {
            "upper" | "lower" | "substr" | "substring" | "trim" | "ltrim" | "rtrim" | "replace" | "hex" => {
                Some(Some(true))
            }
            "length" | "instr" => Some(Some(false)),
            "coalesce" | "ifnull" => all(call.args.iter().collect()),
            _ => None,
        },
        _ => None,
    }
}

/// Whether SQLite can work an expression out from a row alone, the same each time, and cannot fail.
fn is_row_expression(expr: &Expr, never_fails: fn(&str) -> bool) -> bool {
    struct Look(bool, fn(&str) -> bool);
    impl Visit for Look {
        fn expr(&mut self, node: &Expr) {
            match node {
                Expr::Call(call) => {
                    self.0 &= !functions::is_volatile(&call.name)
                        && !functions::is_aggregate(call)
                        && call.over.is_none()
                        && (self.1)(&call.name);
                }
                Expr::Exists(_)
                | Expr::Subquery(_)
                | Expr::InSelect { .. }
                | Expr::InTable { .. }
                | Expr::Collate(..)
                | Expr::Binary(_, "->" | "->>", _)
                | Expr::Like { op: "MATCH" | "REGEXP", .. }
                | Expr::Like { escape: Some(_), .. } => self.0 = false,
                _ => {}
            }
            walk::expr(self, node);
        }
    }
    let mut look = Look(true, never_fails);
    look.expr(expr);
    look.0 && !matches!(expr.peeled(), Expr::Column { .. } | Expr::Literal(_))
}

pub(super) fn comparison(operator: &str) -> Option<Comparison> {
    Some(match operator {
        "=" | "==" => Comparison::Equal,
        "<>" | "!=" => Comparison::Unequal,
        "<" => Comparison::Less,
        "<=" => Comparison::LessOrEqual,
        ">" => Comparison::Greater,
        ">=" => Comparison::GreaterOrEqual,
        "IS" => Comparison::Is,
        "IS NOT" => Comparison::IsNot,
        _ => return None,
    })
}

pub(super) fn mirrored(comparison: Comparison) -> Comparison {
    match comparison {
        Comparison::Less => Comparison::Greater,
        Comparison::LessOrEqual => Comparison::GreaterOrEqual,
        Comparison::Greater => Comparison::Less,
        Comparison::GreaterOrEqual => Comparison::LessOrEqual,
        other => other,
    }
}
