//! Reads a [`Scan`](super::Scan)'s parts from the tree of its SQL: names, conditions, groups, rows,
//! and views over one table. The values that it makes are described in `scan.rs`.

use std::cell::RefCell;

use super::{
    By, Column, ColumnsOf, Comparison, Condition, Constant, Derived, Function, GroupColumn, Groups, Operand, Order,
    RowColumn, Rows, Test,
};
use crate::ast::{
    Call, Expr, Limit, Output as AstOutput, Query, Select, Sort, Source, Visit, conjuncts, same_name, unquote, walk,
};
use crate::functions;

/// The table, its alias, and the name of the node column when the wrapper that adds it is there.
pub(super) fn source(source: &Source) -> Option<(String, Option<String>, Option<String>)> {
    match source {
        Source::Table { schema: None, name, alias, .. } => Some((unquote(name), alias.clone(), None)),
        Source::Select { select, alias } if select.order_by.is_empty() && select.limit.is_none() => {
            let inner = select.single()?;
            let from = inner.from.as_ref().filter(|from| from.joins.is_empty())?;
            let plain =
                inner.filter.is_none() && inner.group_by.is_empty() && inner.having.is_none() && !inner.distinct;
            match (&from.first, inner.columns.as_slice()) {
                (Source::Table { schema: None, name, .. }, [AstOutput::Star, AstOutput::Expr(expr, Some(node))])
                    if plain && *expr == crate::rewrite::node_expr() =>
                {
                    Some((unquote(name), alias.clone(), Some(unquote(node))))
                }
                _ => None,
            }
        }
        _ => None,
    }
}

pub(super) fn has_aggregate(expr: &Expr) -> bool {
    crate::expressions::contains(expr, crate::expressions::is_aggregate)
}

/// What a column of a view is.
#[derive(Debug, Clone)]
pub(super) enum Meaning {
    /// A column of the scan.
    Column(String),
    /// The same for all rows.
    Constant(Expr),
    /// Something else.
    Other,
}

/// A view over one table.
pub(super) struct View {
    pub(super) table: String,
    /// By the names that are seen.
    pub(super) columns: Vec<(String, Meaning)>,
    pub(super) base: Vec<Column>,
    pub(super) filter: Vec<Condition>,
    pub(super) gates: Vec<Constant>,
    pub(super) derived: Vec<Derived>,
}

impl View {
    pub(super) fn of(select: &Select, columns: ColumnsOf<'_>) -> Option<View> {
        let query = select.single()?;
        let is_plain = select.order_by.is_empty()
            && select.limit.is_none()
            && !query.distinct
            && query.group_by.is_empty()
            && query.having.is_none()
            && query.windows.is_empty();
        let from = query.from.as_ref().filter(|from| from.joins.is_empty() && is_plain)?;
        let Source::Table { schema: None, name, alias, .. } = &from.first else { return None };
        let table = unquote(name);
        let base = Names::of(columns(&table)?, alias.clone(), None);
        let (mut seen, mut filter, mut gates) = (Vec::new(), Vec::new(), Vec::new());
        for output in &query.columns {
            let AstOutput::Expr(expr, alias) = output else { return None };
            if has_aggregate(expr) {
                return None;
            }
            let meaning = match base.value(expr) {
                Some(column) => Meaning::Column(column),
                None if base.constant(expr).is_some() => Meaning::Constant(expr.clone()),
                None => Meaning::Other,
            };
            let name = match (alias, expr.peeled()) {
                (Some(alias), _) => unquote(alias),
                (None, Expr::Column { name, .. }) => unquote(name),
                _ => return None,
            };
            seen.push((name, meaning));
        }
        for condition in query.filter.as_ref().map(conjuncts).unwrap_or_default() {
            match base.constant(condition) {
                Some(constant) => gates.push(constant),
                None => filter.push(base.condition(condition)?),
            }
        }
        let columns = base.columns.clone();
        Some(View { table, columns: seen, base: columns, filter, gates, derived: base.into_derived() })
    }
}

/// What the names of a statement mean.
pub(super) struct Names {
    /// The table's columns.
    columns: Vec<Column>,
    /// What is seen of them through a view; none where it is the table itself.
    means: Option<Vec<(String, Meaning)>>,
    alias: Option<String>,
    node: Option<String>,
    /// Columns that were made of others so far.
    derived: RefCell<Vec<Derived>>,
}

impl Names {
    pub(super) fn of(columns: Vec<Column>, alias: Option<String>, node: Option<String>) -> Self {
        Self { columns, means: None, alias, node, derived: RefCell::default() }
    }

    /// Of a view; what it derives goes on being derived.
    pub(super) fn through(view: View, alias: Option<String>, node: Option<String>) -> Self {
        Self { columns: view.base, means: Some(view.columns), alias, node, derived: RefCell::new(view.derived) }
    }

    /// The columns that the scan has beside the table's.
    pub(super) fn into_derived(self) -> Vec<Derived> {
        self.derived.into_inner()
    }

    /// The names that are seen, in order.
    fn seen(&self) -> Vec<&str> {
        match &self.means {
            None => self.columns.iter().map(|column| column.name.as_str()).collect(),
            Some(means) => means.iter().map(|(name, _)| name.as_str()).collect(),
        }
    }

    /// What an expression means, when it is a name alone.
    fn meaning(&self, expr: &Expr) -> Option<Meaning> {
        let Expr::Column { table, name } = expr.peeled() else { return None };
        let qualified = match (table, &self.alias) {
            (None, _) => true,
            (Some(table), Some(alias)) => same_name(table, alias),
            (Some(_), None) => false,
        };
        let name = unquote(name);
        let at = self.seen().iter().position(|column| qualified && column.eq_ignore_ascii_case(&name))?;
        self.at(at)
    }

    /// What stands at a place of what is seen.
    fn at(&self, at: usize) -> Option<Meaning> {
        match &self.means {
            None => Some(Meaning::Column(self.columns.get(at)?.name.clone())),
            Some(means) => Some(means.get(at)?.1.clone()),
        }
    }

    /// The scan's column that an expression is.
    fn column(&self, expr: &Expr) -> Option<String> {
        match self.meaning(expr)? {
            Meaning::Column(name) => Some(name),
            Meaning::Constant(_) | Meaning::Other => None,
        }
    }

    /// As [`Names::column`], also for what is made of one column.
    fn value(&self, expr: &Expr) -> Option<String> {
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
        let is_text = gives_text(expr)??;
        if !is_row_expression(expr) {
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

    fn is_node(&self, table: Option<&str>, name: &str) -> bool {
        let bare = unquote(name);
        self.node.as_ref().is_some_and(|node| node.eq_ignore_ascii_case(&bare))
            && !self.seen().iter().any(|column| column.eq_ignore_ascii_case(&bare))
            && table.is_none_or(|table| self.alias.as_ref().is_some_and(|alias| same_name(table, alias)))
    }

    /// The expression as SQL, when it has no column but the node's, nothing that differs from call
    /// to call, and no subquery.
    pub(super) fn constant(&self, expr: &Expr) -> Option<Constant> {
        struct Look<'n> {
            names: &'n Names,
            failed: bool,
        }
        impl Visit for Look<'_> {
            fn expr(&mut self, node: &Expr) {
                match node {
                    Expr::Column { table, name } => {
                        let is_truth =
                            table.is_none() && matches!(unquote(name).to_ascii_lowercase().as_str(), "true" | "false");
                        let is_same = matches!(self.names.meaning(node), Some(Meaning::Constant(_)));
                        self.failed |= !is_truth && !is_same && !self.names.is_node(table.as_deref(), name);
                    }
                    Expr::Call(call) => {
                        self.failed |= functions::is_volatile(&call.name)
                            || functions::is_aggregate(call)
                            || call.over.is_some()
                            || !functions::never_fails(&call.name);
                    }
                    Expr::Variable(name) => self.failed |= !name.starts_with(":mesh_"),
                    // A collation would be lost with the text of the value.
                    Expr::Collate(..)
                    | Expr::Exists(_)
                    | Expr::Subquery(_)
                    | Expr::InSelect { .. }
                    | Expr::InTable { .. } => {
                        self.failed = true;
                    }
                    _ => {}
                }
                walk::expr(self, node);
            }
        }
        let mut look = Look { names: self, failed: false };
        look.expr(expr);
        if look.failed {
            return None;
        }
        struct Named<'n>(&'n Names);
        impl crate::ast::VisitMut for Named<'_> {
            fn expr(&mut self, node: &mut Expr) {
                match node {
                    Expr::Column { table, name } if self.0.is_node(table.as_deref(), name) => {
                        *node = crate::rewrite::node_expr();
                    }
                    _ => match self.0.meaning(node) {
                        Some(Meaning::Constant(constant)) => *node = constant.paren(),
                        _ => crate::ast::walk_mut::expr(self, node),
                    },
                }
            }
        }
        let mut expr = expr.clone();
        crate::ast::VisitMut::expr(&mut Named(self), &mut expr);
        Some(Constant(expr.to_string()))
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

    fn operand(&self, expr: &Expr) -> Option<Operand> {
        if let Some(column) = self.value(expr) {
            return Some(Operand::Column(column));
        }
        if let Some(Meaning::Constant(constant)) = self.meaning(expr) {
            return self.operand(&constant);
        }
        if let Some(integer) = expr.integer() {
            return Some(Operand::Integer(integer));
        }
        match expr.peeled() {
            Expr::Cast(inner, name) if name.eq_ignore_ascii_case("INTEGER") => inner.integer().map(Operand::Integer),
            Expr::Binary(lhs, operator @ ("+" | "-" | "*" | "/" | "%"), rhs) => {
                let operator = operator.chars().next()?;
                Some(Operand::Arithmetic(Box::new(self.operand(lhs)?), operator, Box::new(self.operand(rhs)?)))
            }
            _ => None,
        }
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
        let mut keys: Vec<Operand> = Vec::new();
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
            keys.push(self.operand(expr)?);
        }
        let of_nothing = query.group_by.is_empty();
        let mut columns = Vec::new();
        for (expr, _) in &outputs {
            columns.push(match expr.peeled() {
                Expr::Call(call) if functions::is_aggregate(call) => self.aggregate(call)?,
                _ => match self.constant(expr) {
                    Some(constant) => GroupColumn::Constant(constant),
                    None => {
                        let operand = self.operand(expr)?;
                        GroupColumn::Key(keys.iter().position(|key| *key == operand)?)
                    }
                },
            });
        }
        let mut order = Vec::new();
        for sort in &select.order_by {
            let at = match sort.expr.integer() {
                Some(position) => usize::try_from(position.checked_sub(1)?).ok().filter(|at| *at < outputs.len())?,
                None => by_alias(&sort.expr)
                    .or_else(|| outputs.iter().position(|(expr, _)| expr.peeled() == sort.expr.peeled()))?,
            };
            order.push(ordered(sort, at));
        }
        Some(Groups { keys, of_nothing, columns, order, limit: limit(select.limit.as_ref())? })
    }

    fn aggregate(&self, call: &Call) -> Option<GroupColumn> {
        if call.distinct || call.filter.is_some() || !call.order_by.is_empty() || call.over.is_some() {
            return None;
        }
        let name = unquote(&call.name).to_ascii_lowercase();
        if call.star {
            return (name == "count").then_some(GroupColumn::Aggregate(Function::Count, None));
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
        Some(GroupColumn::Aggregate(function, Some(self.operand(first)?)))
    }

    pub(super) fn rows(&self, query: &Query, select: &Select) -> Option<Rows> {
        let mut columns = Vec::new();
        let mut aliases: Vec<(Option<String>, usize)> = Vec::new();
        for output in &query.columns {
            match output {
                AstOutput::Expr(expr, alias) => {
                    aliases.push((alias.clone(), columns.len()));
                    columns.push(match self.column(expr) {
                        Some(column) => RowColumn::Column(column),
                        None => RowColumn::Constant(self.constant(expr)?),
                    });
                }
                // With the node's column in it, `*` was written out.
                AstOutput::Star if self.node.is_none() => {
                    for at in 0..self.seen().len() {
                        let Meaning::Column(column) = self.at(at)? else { return None };
                        columns.push(RowColumn::Column(column));
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
                    RowColumn::Column(column) => column.clone(),
                    RowColumn::Constant(_) => return None,
                },
                None => self.column(&sort.expr)?,
            };
            order.push(ordered(sort, by));
        }
        Some(Rows { columns, order, limit: limit(select.limit.as_ref())? })
    }
}

/// What an expression gives beside NULL, as far as that shows: text, or integers. The outer none:
/// it does not show; the inner one: NULL only.
fn gives_text(expr: &Expr) -> Option<Option<bool>> {
    let all = |exprs: Vec<&Expr>| {
        exprs.into_iter().try_fold(None, |so_far: Option<bool>, expr| match (so_far, gives_text(expr)?) {
            (Some(a), Some(b)) if a != b => None,
            (a, b) => Some(a.or(b)),
        })
    };
    match expr.peeled() {
        Expr::Literal(text) if text.eq_ignore_ascii_case("NULL") => Some(None),
        Expr::Literal(text) if text.starts_with('\'') => Some(Some(true)),
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
            _ => None,
        },
        _ => None,
    }
}

/// Whether SQLite can work an expression out from a row alone, the same each time, and cannot fail.
fn is_row_expression(expr: &Expr) -> bool {
    struct Look(bool);
    impl Visit for Look {
        fn expr(&mut self, node: &Expr) {
            match node {
                Expr::Call(call) => {
                    self.0 &= !functions::is_volatile(&call.name)
                        && !functions::is_aggregate(call)
                        && call.over.is_none()
                        && functions::never_fails(&call.name);
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
    let mut look = Look(true);
    look.expr(expr);
    look.0 && !matches!(expr.peeled(), Expr::Column { .. } | Expr::Literal(_))
}

fn ordered<T>(sort: &Sort, by: T) -> Order<T> {
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

fn comparison(operator: &str) -> Option<Comparison> {
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

fn mirrored(comparison: Comparison) -> Comparison {
    match comparison {
        Comparison::Less => Comparison::Greater,
        Comparison::LessOrEqual => Comparison::GreaterOrEqual,
        Comparison::Greater => Comparison::Less,
        Comparison::GreaterOrEqual => Comparison::LessOrEqual,
        other => other,
    }
}
