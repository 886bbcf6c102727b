//! Reads what is worked out row by row: integers of several columns, their comparisons, CASE and
//! the like. What might give anything but integers and NULL is not understood.

use super::expressions::comparison;
use super::names::{Meaning, Names};
use super::{Comparison, Operand};
use crate::ast::{Call, Expr, unquote};

/// What stands twice in the operand where it stands once in SQL is this small, so that operands
/// grow no faster than their SQL.
const MOST_TWICE: usize = 16;

impl Names {
    /// A value of a row: a text or an integer.
    pub(super) fn operand(&self, expr: &Expr) -> Option<Operand> {
        if let Some(column) = self.value(expr) {
            return Some(Operand::Column(column));
        }
        match self.meaning(expr) {
            Some(Meaning::Constant(constant)) => self.operand(&constant),
            Some(Meaning::Computed(operand)) => Some(operand).filter(|operand| !operand.is_real()),
            _ => self.computed(expr),
        }
    }

    /// A value of a row: a text, an integer or a double.
    pub(super) fn any(&self, expr: &Expr) -> Option<Operand> {
        self.operand(expr).or_else(|| self.reals(expr))
    }

    /// A value of a row that is an integer or NULL.
    pub(super) fn integers(&self, expr: &Expr) -> Option<Operand> {
        self.operand(expr).filter(|operand| !matches!(operand, Operand::Column(name) if self.is_text(name)))
    }

    /// A value of a row that is a double or NULL: a column of doubles, or arithmetic with a double
    /// in it.
    pub(super) fn reals(&self, expr: &Expr) -> Option<Operand> {
        self.numbers(expr).filter(Operand::is_real)
    }

    fn numbers(&self, expr: &Expr) -> Option<Operand> {
        if let Some(operand) = self.integers(expr) {
            return Some(operand);
        }
        if let Some(Meaning::Computed(operand)) = self.meaning(expr) {
            return Some(operand);
        }
        Some(match expr.peeled() {
            Expr::Call(call) if call.over.is_some() => self.real_window(call)?,
            Expr::Literal(text) if text.starts_with(|first: char| first.is_ascii_digit() || first == '.') => {
                Operand::Real(text.parse().ok().filter(|value: &f64| value.is_finite())?)
            }
            Expr::Cast(of, name) if name.eq_ignore_ascii_case("REAL") => {
                Operand::Arithmetic(self.numbers(of)?.into(), '*', Operand::Real(1.0).into())
            }
            Expr::Unary("+", of) => self.numbers(of)?,
            Expr::Unary("-", of) => Operand::Arithmetic(Operand::Integer(0).into(), '-', self.numbers(of)?.into()),
            Expr::Binary(lhs, operator @ ("+" | "-" | "*" | "/"), rhs) => {
                Operand::Arithmetic(self.numbers(lhs)?.into(), operator.chars().next()?, self.numbers(rhs)?.into())
            }
            // Each result a double: an integer among them would stay one.
            Expr::Case { base: None, arms, otherwise } => {
                let of = |expr: &Expr| self.numbers(expr).filter(|of| of.is_real() || *of == Operand::Null);
                let arm = |(when, then): &(Expr, Expr)| Some((self.integers(when)?, of(then)?));
                let arms = arms.iter().map(arm).collect::<Option<_>>()?;
                Operand::Case(arms, otherwise.as_ref().map_or(Some(Operand::Null), |expr| of(expr))?.into())
            }
            _ => return None,
        })
    }

    pub(super) fn is_text(&self, name: &str) -> bool {
        self.columns.iter().any(|column| column.is_text && column.name == name)
            || self.calls.borrow().iter().any(|call| call.column.is_text && call.column.name == name)
            || self.derived.borrow().iter().any(|derived| derived.by.is_text() && derived.name == name)
    }

    fn computed(&self, expr: &Expr) -> Option<Operand> {
        if let Some(integer) = expr.integer() {
            return Some(Operand::Integer(integer));
        }
        let boxed = |expr: &Expr| self.integers(expr).map(Box::new);
        let compared = |lhs: Operand, with: Comparison, rhs: Operand| Operand::Compare(lhs.into(), with, rhs.into());
        let unless = |not: bool, operand: Operand| if not { Operand::Not(operand.into()) } else { operand };
        Some(match expr.peeled() {
            Expr::Literal(text) if text.eq_ignore_ascii_case("NULL") => Operand::Null,
            Expr::Cast(of, name) if name.eq_ignore_ascii_case("INTEGER") => self.integers(of)?,
            Expr::Unary("+", of) => self.integers(of)?,
            Expr::Unary("-", of) => Operand::Arithmetic(Operand::Integer(0).into(), '-', boxed(of)?),
            Expr::Unary("NOT", of) => Operand::Not(boxed(of)?),
            Expr::Binary(lhs, "AND", rhs) => Operand::Both(boxed(lhs)?, boxed(rhs)?),
            Expr::Binary(lhs, "OR", rhs) => Operand::Either(boxed(lhs)?, boxed(rhs)?),
            Expr::Binary(lhs, operator @ ("+" | "-" | "*" | "/" | "%" | "&" | "|"), rhs) => {
                Operand::Arithmetic(boxed(lhs)?, operator.chars().next()?, boxed(rhs)?)
            }
            Expr::Binary(lhs, operator, rhs) => {
                let with = comparison(operator)?;
                match (boxed(lhs), boxed(rhs)) {
                    (Some(lhs), Some(rhs)) => Operand::Compare(lhs, with, rhs),
                    _ => compared(self.numbers(lhs)?, with, self.numbers(rhs)?),
                }
            }
            Expr::IsNull(of) => compared(self.integers(of)?, Comparison::Is, Operand::Null),
            Expr::NotNull(of) => compared(self.integers(of)?, Comparison::IsNot, Operand::Null),
            Expr::Between { lhs, not, low, high } => {
                let of = self.integers(lhs).filter(|of| of.size() <= MOST_TWICE)?;
                let least = compared(of.clone(), Comparison::GreaterOrEqual, self.integers(low)?);
                let greatest = compared(of, Comparison::LessOrEqual, self.integers(high)?);
                unless(*not, Operand::Both(least.into(), greatest.into()))
            }
            Expr::InList { lhs, not, list } if !list.is_empty() => {
                let mut list: Vec<i64> = list.iter().map(Expr::integer).collect::<Option<_>>()?;
                list.sort_unstable();
                unless(*not, Operand::Among(boxed(lhs)?, list))
            }
            Expr::Case { base, arms, otherwise } => {
                let base = base.as_ref().map(|base| self.integers(base).filter(|base| base.size() <= MOST_TWICE));
                let base = match base {
                    Some(None) => return None,
                    Some(base) => base,
                    None => None,
                };
                let arm = |(when, then): &(Expr, Expr)| {
                    let when = self.integers(when)?;
                    let when = match &base {
                        Some(base) => compared(base.clone(), Comparison::Equal, when),
                        None => when,
                    };
                    Some((when, self.integers(then)?))
                };
                let arms = arms.iter().map(arm).collect::<Option<_>>()?;
                let otherwise = otherwise.as_ref().map_or(Some(Operand::Null), |expr| self.integers(expr))?;
                Operand::Case(arms, otherwise.into())
            }
            Expr::Call(call) if call.over.is_some() => self.window(call)?,
            Expr::Call(call) => self.call(call)?,
            _ => return None,
        })
    }

    fn call(&self, call: &Call) -> Option<Operand> {
        if call.distinct || call.star || call.filter.is_some() || !call.order_by.is_empty() {
            return None;
        }
        let mut args: Vec<Operand> = call.args.iter().map(|arg| self.integers(arg)).collect::<Option<_>>()?;
        Some(match (unquote(&call.name).to_ascii_lowercase().as_str(), args.len()) {
            ("abs", 1) => Operand::Absolute(args.pop()?.into()),
            ("ifnull", 2) | ("coalesce", 2..) => Operand::First(args),
            (name @ ("min" | "max"), 2..) => Operand::Extreme(name == "max", args),
            ("iif" | "if", 3) => {
                let (otherwise, then) = (args.pop()?, args.pop()?);
                Operand::Case(vec![(args.pop()?, then)], otherwise.into())
            }
            _ => return None,
        })
    }
}
