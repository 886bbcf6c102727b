//! Reads what a [`Scan`](super::Scan) makes of its rows: groups and their aggregates, or rows in an
//! order.

use super::names::{Meaning, Names, has_aggregate};
use super::{Function, GroupColumn, Groups, Operand, Order, RowColumn, Rows};
use crate::ast::{Call, Expr, Limit, Output as AstOutput, Query, Select, Sort, same_name, unquote};
use crate::functions;

/// A grouping value: an operand, and what stands for its integers or is made of them.
#[derive(PartialEq)]
struct Key {
    operand: Operand,
    named: Option<Vec<String>>,
    made: Option<String>,
}

impl Names {
    fn key(&self, expr: &Expr) -> Option<Key> {
        if let Some(operand) = self.operand(expr) {
            return Some(Key { operand, named: None, made: None });
        }
        if let Some((operand, texts)) = self.named_texts(expr) {
            return Some(Key { operand, named: Some(texts), made: None });
        }
        let (operand, sql) = self.made_of_integer(expr)?;
        Some(Key { operand, named: None, made: Some(sql) })
    }

    pub(super) fn groups(&self, query: &Query, select: &Select) -> Option<Groups> {
        let outputs: Vec<(&Expr, Option<&String>)> = query
            .columns
            .iter()
            .map(|output| match output {
                AstOutput::Expr(expr, alias) => Some((expr, alias.as_ref())),
                _ => None,
            })
            .collect::<Option<_>>()?;
        let by_alias = |expr: &Expr| match expr.peeled() {
            Expr::Column { table: None, name } => {
                outputs.iter().position(|(_, alias)| alias.is_some_and(|alias| same_name(alias, name)))
            }
            _ => None,
        };
        let mut keys: Vec<Key> = Vec::new();
        for key in &query.group_by {
            let expr = match key.integer() {
                Some(position) => outputs.get(usize::try_from(position.checked_sub(1)?).ok()?)?.0,
                None => match (self.column(key), by_alias(key)) {
                    (None, Some(at)) => outputs[at].0,
                    _ => key,
                },
            };
            if has_aggregate(expr) {
                return None;
            }
            // The node's name and the like are the same in every group.
            if self.constant(expr).is_some() {
                continue;
            }
            keys.push(self.key(expr)?);
        }
        let of_nothing = query.group_by.is_empty();
        let mut columns = Vec::new();
        for (expr, _) in &outputs {
            columns.push(match expr.peeled() {
                Expr::Call(call) if functions::is_aggregate(call) => self.aggregate(call)?,
                _ => match self.constant(expr) {
                    Some(constant) => GroupColumn::Constant(constant),
                    None => {
                        let key = self.key(expr)?;
                        GroupColumn::Key(keys.iter().position(|other| *other == key)?)
                    }
                },
            });
        }
        let shown = columns.len();
        let mut order = Vec::new();
        for sort in &select.order_by {
            let at = match sort.expr.integer() {
                Some(position) => Some(usize::try_from(position.checked_sub(1)?).ok().filter(|at| *at < shown)?),
                None => by_alias(&sort.expr)
                    .or_else(|| outputs.iter().position(|(expr, _)| expr.peeled() == sort.expr.peeled())),
            };
            let at = match (at, sort.expr.peeled()) {
                (Some(at), _) => at,
                // An aggregate of its own. (With DISTINCT it would be refused.)
                (None, Expr::Call(call)) if functions::is_aggregate(call) && !query.distinct => {
                    columns.push(self.aggregate(call)?);
                    columns.len() - 1
                }
                _ => return None,
            };
            order.push(ordered(sort, at));
        }
        let (mut named, mut made) = (Vec::new(), Vec::new());
        for (at, key) in keys.iter_mut().enumerate() {
            named.extend(key.named.take().map(|texts| (at, texts)));
            made.extend(key.made.take().map(|sql| (at, sql)));
        }
        let keys = keys.into_iter().map(|key| key.operand).collect();
        let limit = limit(select.limit.as_ref())?;
        Some(Groups { keys, named, made, of_nothing, columns, shown, order, limit })
    }

    /// A CASE whose results are texts: as one of the texts' places in a list.
    fn named_texts(&self, expr: &Expr) -> Option<(Operand, Vec<String>)> {
        let Expr::Case { base, arms, otherwise } = expr.peeled() else { return None };
        let mut texts: Vec<String> = Vec::new();
        let mut place = |expr: &Expr| match expr.peeled() {
            null @ Expr::Literal(text) if text.eq_ignore_ascii_case("NULL") => Some(null.clone()),
            Expr::Literal(text) if text.starts_with('\'') => {
                let text = unquote(text);
                let at = texts.iter().position(|known| *known == text).unwrap_or_else(|| {
                    texts.push(text);
                    texts.len() - 1
                });
                Some(Expr::Literal(at.to_string()))
            }
            _ => None,
        };
        let arms = arms.iter().map(|(when, then)| Some((when.clone(), place(then)?))).collect::<Option<_>>()?;
        let otherwise = match otherwise {
            Some(expr) => Some(Box::new(place(expr)?)),
            None => None,
        };
        let operand = self.integers(&Expr::Case { base: base.clone(), arms, otherwise })?;
        Some((operand, texts))
    }

    fn aggregate(&self, call: &Call) -> Option<GroupColumn> {
        if !call.order_by.is_empty() || call.over.is_some() {
            return None;
        }
        let name = unquote(&call.name).to_ascii_lowercase();
        if call.distinct {
            return match (name.as_str(), call.args.as_slice(), &call.filter) {
                ("count", [of], None) => Some(GroupColumn::Aggregate(Function::CountDistinct, Some(self.operand(of)?))),
                // Once or several times is the same to them.
                ("min" | "max", [_], _) => self.aggregate(&Call { distinct: false, ..call.clone() }),
                _ => None,
            };
        }
        let filter = match &call.filter {
            Some(filter) => Some(self.integers(filter)?),
            None => None,
        };
        // A row that FILTER leaves out is one whose argument is NULL.
        let filtered = |operand: Operand| match &filter {
            Some(filter) => Operand::Case(vec![(filter.clone(), operand)], Operand::Null.into()),
            None => operand,
        };
        if call.star {
            let counted = filter.is_some().then(|| filtered(Operand::Integer(1)));
            return (name == "count").then_some(GroupColumn::Aggregate(Function::Count, counted));
        }
        let (first, rest) = call.args.split_first()?;
        let fraction = |scale: f64| {
            let number: f64 = match (rest, rest.first().map(Expr::peeled)) {
                ([_], Some(Expr::Literal(text))) => text.parse().ok()?,
                _ => return None,
            };
            Some(number / scale).filter(|fraction| (0.0..=1.0).contains(fraction))
        };
        let function = match name.as_str() {
            "approx_quantile" => Function::Quantile(fraction(1.0)?),
            "percentile" => Function::Percentile { fraction: fraction(100.0)?, discrete: false },
            "percentile_cont" => Function::Percentile { fraction: fraction(1.0)?, discrete: false },
            "percentile_disc" => Function::Percentile { fraction: fraction(1.0)?, discrete: true },
            _ if !rest.is_empty() => return None,
            "count" => Function::Count,
            "sum" => Function::Sum,
            "total" => Function::Total,
            "avg" => Function::Avg,
            "min" => Function::Min,
            "max" => Function::Max,
            "median" => Function::Percentile { fraction: 0.5, discrete: false },
            // Sums of integers are exact here anyway.
            functions::EXACT_SUM => Function::Sum,
            functions::EXACT_TOTAL => Function::Total,
            functions::EXACT_AVG => Function::Avg,
            functions::SUM_STATE => Function::SumState,
            "mesh_sketch" => Function::SketchState,
            "mesh_runs" => Function::RunsState,
            _ => return None,
        };
        let is_plain = !matches!(
            function,
            Function::SketchState | Function::RunsState | Function::Quantile(_) | Function::Percentile { .. }
        );
        let operand = match &filter {
            None => self.operand(first).or_else(|| self.reals(first).filter(|_| is_plain))?,
            Some(_) if is_plain => filtered(self.integers(first).or_else(|| self.reals(first))?),
            Some(_) => return None,
        };
        Some(GroupColumn::Aggregate(function, Some(operand)))
    }

    pub(super) fn rows(&self, query: &Query, select: &Select) -> Option<Rows> {
        let mut columns = Vec::new();
        let mut aliases: Vec<(Option<String>, usize)> = Vec::new();
        for output in &query.columns {
            match output {
                AstOutput::Expr(expr, alias) => {
                    aliases.push((alias.clone(), columns.len()));
                    columns.push(match self.constant(expr) {
                        Some(constant) => RowColumn::Constant(constant),
                        None => RowColumn::Value(self.any(expr)?),
                    });
                }
                // With the node's column in it, `*` was written out.
                AstOutput::Star if self.node.is_none() => {
                    for at in 0..self.seen().len() {
                        columns.push(RowColumn::Value(match self.at(at)? {
                            Meaning::Column(column) => Operand::Column(column),
                            Meaning::Computed(operand) => operand,
                            Meaning::Constant(_) | Meaning::Other => return None,
                        }));
                    }
                }
                _ => return None,
            }
        }
        let mut order = Vec::new();
        for sort in &select.order_by {
            let at = match sort.expr.integer() {
                Some(position) => Some(usize::try_from(position.checked_sub(1)?).ok()?),
                None => match sort.expr.peeled() {
                    Expr::Column { table: None, name } => aliases
                        .iter()
                        .find(|(alias, _)| alias.as_ref().is_some_and(|alias| same_name(alias, name)))
                        .map(|(_, at)| *at),
                    _ => None,
                },
            };
            let by = match at {
                Some(at) => match columns.get(at)? {
                    RowColumn::Value(operand) if !operand.is_real() => operand.clone(),
                    _ => return None,
                },
                None => self.operand(&sort.expr)?,
            };
            order.push(ordered(sort, by));
        }
        Some(Rows { columns, order, limit: limit(select.limit.as_ref())? })
    }
}

pub(super) fn ordered<T>(sort: &Sort, by: T) -> Order<T> {
    let desc = sort.desc.unwrap_or(false);
    Order { by, desc, nulls_first: sort.nulls_first.unwrap_or(!desc) }
}

/// The inner `None` is "no LIMIT"; the outer one a LIMIT that is no number.
fn limit(limit: Option<&Limit>) -> Option<Option<(i64, i64)>> {
    let Some(limit) = limit else { return Some(None) };
    let offset = match &limit.offset {
        None => 0,
        Some(offset) => offset.integer()?,
    };
    Some(Some((limit.count.integer()?, offset.max(0))))
}
