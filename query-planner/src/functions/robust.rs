//! `robust_z(x [, floor]) OVER (…)`: how far a row's x is from the other rows of its window, in
//! robust standard deviations.
//!
//! Over the others (the rows of the window frame without this one, NULLs left out): `z = (x -
//! median) / max(1.4826 MAD, 2 % of |median|, floor)`, MAD the median of |other - median|; where it
//! is 0, 1.2533 times the mean of |other - median| takes its place (Iglewicz and Hoaglin, "How to
//! Detect and Handle Outliers", 1993; with MAD alone this is their 0.6745 (x - median) / MAD).
//! Clamped to ±9999; 0 where x is the median. NULL where x is NULL or there are fewer than two
//! others. `rankmesh stragglers` computes its z the same way.
//!
//! SQLite's window functions do not see the row that they are asked for. So [`expand`] writes the
//! call as `mesh_robust_z(x, mesh_values(x) OVER (…), floor)`: the window function gathers the
//! frame's values, sorted, and the scalar takes this row's value out of them.

use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Error, Result};

use super::fold::{Args, Fold, Number, register as register_fold};
use crate::ast::{Call, Expr, Output, Over, Query, Select, VisitMut, calls_any, unquote, walk_mut};
use crate::batch::Value;
use crate::error::QueryError;

/// As people call it.
pub(crate) const NAME: &str = "robust_z";
const SCALAR: &str = "mesh_robust_z";
const VALUES: &str = "mesh_values";

/// Scales the MAD to a standard deviation for normal data: 1 / Phi^-1(3/4).
const MAD_TO_SIGMA: f64 = 1.4826;
/// Scales the mean absolute deviation: sqrt(pi / 2).
const MEAN_AD_TO_SIGMA: f64 = 1.253_314;
/// Smallest part of the median that counts as a spread.
const RELATIVE_FLOOR: f64 = 0.02;
/// A larger z carries no more information.
const Z_CAP: f64 = 9_999.0;
/// Rows of one window frame.
const MOST: usize = 65_536;

/// Whether plans use this name.
pub(super) fn is_internal(name: &str) -> bool {
    name == SCALAR || name == VALUES
}

pub(super) fn register(conn: &Connection) -> Result<()> {
    for arity in [1, 2] {
        register_fold(conn, NAME, arity, Unexpanded)?;
    }
    register_fold(conn, VALUES, 1, Gather)?;
    let pure = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
    conn.create_scalar_function(SCALAR, 3, pure, scalar)
}

/// Stands for the function where SQLite checks a question; plans never call it.
struct Unexpanded;

impl Fold for Unexpanded {
    type State = ();
    const WINDOW: bool = true;

    fn step(&self, (): &mut (), _: &Args<'_>) -> std::result::Result<(), String> {
        Err(format!("{NAME}() works in questions to the mesh only"))
    }

    fn finish(&self, (): ()) -> std::result::Result<Value, String> {
        Ok(Value::Null)
    }

    fn heap_bytes(&self, (): &()) -> usize {
        0
    }

    fn value(&self, (): &()) -> std::result::Result<Value, String> {
        Ok(Value::Null)
    }

    fn undo(&self, (): &mut (), _: &Args<'_>) -> std::result::Result<(), String> {
        Ok(())
    }
}

/// The values of a window frame.
struct Gather;

fn numeric(args: &Args<'_>) -> std::result::Result<Option<f64>, String> {
    match args.number(0) {
        Number::Null => Ok(None),
        _ => args.looks_numeric(0).map(Some).ok_or_else(|| format!("input to {NAME}() is not numeric")),
    }
}

impl Fold for Gather {
    type State = Vec<f64>;
    const WINDOW: bool = true;

    fn heap_bytes(&self, state: &Vec<f64>) -> usize {
        state.capacity() * size_of::<f64>()
    }

    fn step(&self, state: &mut Vec<f64>, args: &Args<'_>) -> std::result::Result<(), String> {
        state.extend(numeric(args)?);
        if state.len() > MOST {
            return Err(format!("{NAME}() compares at most {MOST} rows: narrow its window with PARTITION BY"));
        }
        Ok(())
    }

    fn finish(&self, state: Vec<f64>) -> std::result::Result<Value, String> {
        let mut sorted = state;
        sorted.sort_by(f64::total_cmp);
        Ok(Value::Blob(sorted.iter().flat_map(|value| value.to_le_bytes()).collect()))
    }

    fn value(&self, state: &Vec<f64>) -> std::result::Result<Value, String> {
        self.finish(state.clone())
    }

    fn undo(&self, state: &mut Vec<f64>, args: &Args<'_>) -> std::result::Result<(), String> {
        if let Some(value) = numeric(args)?
            && let Some(at) = state.iter().position(|other| other.total_cmp(&value).is_eq())
        {
            state.swap_remove(at);
        }
        Ok(())
    }
}

fn number(value: ValueRef<'_>) -> std::result::Result<Option<f64>, Error> {
    let wrong = || Error::UserFunctionError(format!("input to {NAME}() is not numeric").into());
    #[allow(clippy::cast_precision_loss, reason = "as SQLite's own statistics take integers")]
    match value {
        ValueRef::Null => Ok(None),
        ValueRef::Integer(i) => Ok(Some(i as f64)),
        ValueRef::Real(r) => Ok(Some(r)),
        ValueRef::Text(text) => {
            let text = std::str::from_utf8(text).map_err(|_| wrong())?;
            text.trim().parse().map(Some).map_err(|_| wrong())
        }
        ValueRef::Blob(_) => Err(wrong()),
    }
}

fn scalar(ctx: &Context<'_>) -> Result<Option<f64>> {
    let (Some(x), floor) = (number(ctx.get_raw(0))?, number(ctx.get_raw(2))?.unwrap_or(0.0)) else { return Ok(None) };
    let ValueRef::Blob(bytes) = ctx.get_raw(1) else { return Ok(None) };
    let mut values: Vec<f64> = bytes.as_chunks::<8>().0.iter().map(|chunk| f64::from_le_bytes(*chunk)).collect();
    // This row is one of them, wherever it is in its frame.
    if let Some(own) = values.iter().position(|value| value.total_cmp(&x).is_eq()) {
        values.remove(own);
    }
    Ok(robust_z(x, &values, floor))
}

/// z of x over sorted others; see the module's text.
fn robust_z(x: f64, others: &[f64], floor: f64) -> Option<f64> {
    if others.len() < 2 {
        return None;
    }
    let mid = median(others)?;
    let mut deviations: Vec<f64> = others.iter().map(|other| (other - mid).abs()).collect();
    #[allow(clippy::cast_precision_loss, reason = "a count of rows")]
    let mean = deviations.iter().sum::<f64>() / others.len() as f64;
    deviations.sort_by(f64::total_cmp);
    let mad = median(&deviations)?;
    let spread = if mad > 0.0 { MAD_TO_SIGMA * mad } else { MEAN_AD_TO_SIGMA * mean };
    let scale = spread.max(RELATIVE_FLOOR * mid.abs()).max(floor);
    let gap = x - mid;
    if gap == 0.0 {
        return Some(0.0);
    }
    let z = gap / scale;
    (!z.is_nan()).then(|| z.clamp(-Z_CAP, Z_CAP))
}

fn median(sorted: &[f64]) -> Option<f64> {
    let n = sorted.len();
    match n {
        0 => None,
        _ if n % 2 == 1 => Some(sorted[n / 2]),
        _ => Some((sorted[n / 2 - 1] + sorted[n / 2]) / 2.0),
    }
}

/// Write every call of `robust_z` in the form that SQLite can run. Result columns keep their names.
///
/// # Errors
/// The call has no OVER, or one of the forms that leave this row out by themselves.
pub(crate) fn expand(select: &mut Select) -> std::result::Result<bool, QueryError> {
    let mut calls = Calls { found: false, here: false, error: None };
    calls.select(select);
    match calls.error {
        Some(error) => Err(QueryError::wrong(error)),
        None => Ok(calls.found),
    }
}

struct Calls {
    /// Anywhere so far.
    found: bool,
    /// In the SELECT that is being looked at, not in those inside it: named windows are its own.
    here: bool,
    error: Option<String>,
}

impl VisitMut for Calls {
    fn query(&mut self, node: &mut Query) {
        let outside = std::mem::replace(&mut self.here, false);
        for output in &mut node.columns {
            if let Output::Expr(expr, name @ None) = output
                && calls_any(expr, &[NAME])
            {
                *name = Some(crate::ast::quote_name(&expr.to_string()));
            }
        }
        let windows = node.windows.iter().any(|(_, window)| excludes(window));
        walk_mut::query(self, node);
        if windows && self.here {
            self.refuse("EXCLUDE");
        }
        self.here = outside;
    }

    fn expr(&mut self, node: &mut Expr) {
        walk_mut::expr(self, node);
        let Expr::Call(call) = node else { return };
        if !unquote(&call.name).eq_ignore_ascii_case(NAME) {
            return;
        }
        (self.found, self.here) = (true, true);
        if call.over.is_none() {
            self.error.get_or_insert(format!("{NAME}() is a window function: write {NAME}(x) OVER (PARTITION BY …)"));
            return;
        }
        if call.filter.is_some() {
            self.refuse("FILTER");
        }
        if matches!(&call.over, Some(Over::Window(window)) if excludes(window)) {
            self.refuse("EXCLUDE");
        }
        let mut args = call.args.drain(..);
        let (Some(x), floor) = (args.next(), args.next()) else { return };
        drop(args);
        let values = Call { name: VALUES.to_owned(), args: vec![x.clone()], ..(**call).clone() };
        let floor = floor.unwrap_or_else(|| Expr::Literal("0".to_owned()));
        *node = Expr::call(SCALAR, vec![x, Expr::Call(Box::new(values)), floor]);
    }
}

impl Calls {
    fn refuse(&mut self, what: &str) {
        self.error.get_or_insert(format!(
            "{NAME}() cannot be used with {what}: it leaves out the row itself; filter in a subquery"
        ));
    }
}

fn excludes(window: &crate::ast::Window) -> bool {
    window.frame.as_ref().is_some_and(|frame| frame.exclude.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn z_is_the_published_formula_and_its_floors_bind_in_turn() {
        // Others 1..=9: median 5, MAD 2: 0.6745 * (20 - 5) / 2.
        let others: Vec<f64> = (1..=9).map(f64::from).collect();
        assert!((robust_z(20.0, &others, 0.0).unwrap() - 5.0588).abs() < 1e-3);
        // 2 % of the median 100, a floor of 30, and where the MAD is 0 the mean deviation 2.
        assert!((robust_z(103.0, &[99.999, 100.0, 100.0, 100.001], 0.0).unwrap() - 1.5).abs() < 1e-6);
        assert!((robust_z(103.0, &[99.999, 100.0, 100.0, 100.001], 30.0).unwrap() - 0.1).abs() < 1e-6);
        assert!((robust_z(50.0, &[0.0, 0.0, 0.0, 0.0, 10.0], 0.0).unwrap() - 50.0 / (2.0 * 1.253_314)).abs() < 1e-6);
        assert_eq!(robust_z(1.0, &[0.0, 0.0, 0.0], 0.0), Some(Z_CAP));
        assert_eq!(robust_z(0.0, &[0.0, 0.0, 0.0], 0.0), Some(0.0));
        assert_eq!(robust_z(1.0, &[0.0], 0.0), None);
    }
}
