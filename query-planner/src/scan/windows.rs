//! Reads the window calls of a [`Scan`](super::Scan)'s statement: `row_number()`, `lag(x)`, running
//! counts and sums. Each is a column added to the scan's rows.

use super::names::{Meaning, Names};
use super::outputs::ordered;
use super::{Column, Frame, Operand, Window, WindowCall, WindowFunction};
use crate::ast::{Bound, Call, Expr, Over, Window as AstWindow, same_name, unquote};

impl Names {
    /// The column that a call with OVER is, of integers or text.
    pub(super) fn window(&self, call: &Call) -> Option<Operand> {
        if returns_reals(call) {
            return None;
        }
        self.windowed(call).map(|column| Operand::Column(column.name))
    }

    /// As [`Names::window`], of doubles.
    pub(super) fn real_window(&self, call: &Call) -> Option<Operand> {
        if !returns_reals(call) {
            return None;
        }
        self.windowed(call).map(|column| Operand::RealColumn(column.name))
    }

    fn windowed(&self, call: &Call) -> Option<Column> {
        if call.distinct || call.filter.is_some() || !call.order_by.is_empty() || self.is_windowed {
            return None;
        }
        let window = match call.over.as_ref()? {
            Over::Window(window) => window,
            Over::Name(name) => &self.named_windows.iter().find(|(other, _)| same_name(other, name))?.1,
        };
        let AstWindow { base: None, partition_by, order_by, frame } = window else { return None };
        let partition: Vec<Operand> = partition_by.iter().map(|expr| self.operand(expr)).collect::<Option<_>>()?;
        let order = order_by.iter().map(|sort| Some(ordered(sort, self.operand(&sort.expr)?)));
        let order: Vec<_> = order.collect::<Option<_>>()?;
        let frame = match frame {
            None if order.is_empty() => Frame::Whole,
            None => Frame::Peers,
            Some(frame) => of_rows(frame)?,
        };
        let is_sliding = matches!(frame, Frame::Between(..));
        let integers = |at: usize| self.integers(call.args.get(at)?);
        let function = match (unquote(&call.name).to_ascii_lowercase().as_str(), call.args.len(), call.star) {
            ("row_number", 0, false) => WindowFunction::RowNumber,
            ("ntile", 1, false) => WindowFunction::Tile(call.args.first()?.integer().filter(|tiles| *tiles > 0)?),
            ("rank", 0, false) => WindowFunction::Rank,
            ("dense_rank", 0, false) => WindowFunction::DenseRank,
            (name @ ("lag" | "lead"), 1..=3, false) => {
                let by = call.args.get(1).map_or(Some(1), Expr::integer).filter(|by| *by >= 0)?;
                let of = self.operand(call.args.first()?)?;
                let otherwise = call.args.get(2).map_or(Some(Operand::Null), |expr| self.integers(expr))?;
                let of = if otherwise == Operand::Null { of } else { integers(0)? };
                WindowFunction::Shifted { of, by: if name == "lag" { -by } else { by }, otherwise }
            }
            ("count", 0, true) => WindowFunction::Count(None, frame),
            ("count", 1, false) => WindowFunction::Count(Some(integers(0)?), frame),
            ("sum", 1, false) => WindowFunction::Sum(integers(0)?, frame),
            ("min", 1, false) if !is_sliding => WindowFunction::Least(integers(0)?, frame),
            ("max", 1, false) if !is_sliding => WindowFunction::Greatest(integers(0)?, frame),
            ("percent_rank", 0, false) => WindowFunction::PercentRank,
            ("cume_dist", 0, false) => WindowFunction::Cumulative,
            ("avg", 1, false) => WindowFunction::Mean(integers(0)?, frame),
            _ => return None,
        };
        let is_real = function.is_real();
        let is_text =
            matches!(&function, WindowFunction::Shifted { of: Operand::Column(name), .. } if self.is_text(name));
        let window = Window { partition, order };
        let mut calls = self.calls.borrow_mut();
        let known = calls.iter().find(|known| known.function == function && known.window == window);
        if let Some(known) = known {
            return Some(known.column.clone());
        }
        let name = format!("over {}", calls.len());
        if self.columns.iter().any(|column| column.name.eq_ignore_ascii_case(&name)) {
            return None;
        }
        let column = Column { name, is_text, is_real };
        calls.push(WindowCall { column: column.clone(), function, window });
        Some(column)
    }

    /// What is seen through this one: a column where it is one.
    pub(super) fn seen_as(&self, expr: &Expr) -> Meaning {
        match self.value(expr) {
            Some(column) => Meaning::Column(column),
            None if self.constant(expr).is_some() => Meaning::Constant(expr.clone()),
            None => match self.any(expr) {
                Some(Operand::Column(column)) => Meaning::Column(column),
                Some(operand) => Meaning::Computed(operand),
                None => Meaning::Other,
            },
        }
    }
}

fn returns_reals(call: &Call) -> bool {
    ["avg", "percent_rank", "cume_dist"].iter().any(|name| same_name(&call.name, name))
}

/// A frame in rows.
fn of_rows(frame: &crate::ast::Frame) -> Option<Frame> {
    if frame.exclude.is_some() || frame.mode != "ROWS" {
        return None;
    }
    // Further than any partition is long: the sums of places stay numbers.
    const FAR: i64 = 1 << 40;
    let places = |expr: &Expr| expr.integer().filter(|rows| (0..FAR).contains(rows));
    let place = |bound: &Bound| {
        Some(match bound {
            Bound::UnboundedPreceding => -FAR,
            Bound::Preceding(rows) => -places(rows)?,
            Bound::CurrentRow => 0,
            Bound::Following(rows) => places(rows)?,
            Bound::UnboundedFollowing => FAR,
        })
    };
    match (place(&frame.start)?, frame.end.as_ref().map_or(Some(0), place)?) {
        (start, 0) if start == -FAR => Some(Frame::Rows),
        (start, end) => Some(Frame::Between(start, end)),
    }
}
