//! What a node part asks, as a value: the table, the filter, the keys and aggregates or the columns and order, so that a
//! node can answer it by an executor of its own (rollups, columns) instead of SQLite.
//!
//! The value is read from the part's SQL, at the node. So it can never say anything else than the SQL that `--explain`
//! shows and that SQLite would run, nothing new travels, and a node of any version may use it or not
//! (docs/decisions/0005-typed-parts-are-read-from-sql.md). What is not understood is no scan ([`Scan::of`] is `None`),
//! and SQLite does it.

use crate::ast::{
    Call, Expr, Limit, Output as AstOutput, Query, Select, Sort, Source, Visit, conjuncts, parse_select, same_name,
    unquote, walk,
};
use crate::batch::Value;
use crate::functions;

/// A statement over one table.
#[derive(Debug, Clone, PartialEq)]
pub struct Scan {
    /// The table.
    pub table: String,
    /// Columns that the scan has beside the table's: those that a view computes.
    pub derived: Vec<Derived>,
    /// Conditions on columns, all of which must hold.
    pub filter: Vec<Condition>,
    /// Conditions without columns, all of which must hold.
    pub gates: Vec<Constant>,
    /// What is made of the rows.
    pub output: Output,
}

/// A column made of another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Derived {
    /// Its name in the scan, which no column has.
    pub name: String,
    /// The column it is made of.
    pub of: String,
    /// How.
    pub by: By,
}

/// How a column is made of another one; of NULL it is NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// `upper(x)`
    Upper,
    /// `lower(x)`
    Lower,
    /// `CASE WHEN x IS NOT NULL THEN printf('%016x', x) END`
    Hex,
}

/// An expression without columns, as SQL; it may hold `:mesh_node` and `:mesh_now`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constant(pub String);

/// A condition on a column.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    /// The column.
    pub column: String,
    /// What it must be.
    pub test: Test,
}

/// A test of a value.
#[derive(Debug, Clone, PartialEq)]
pub enum Test {
    /// A comparison.
    Compare(Comparison, Constant),
    /// `[NOT] BETWEEN`.
    Between {
        /// NOT.
        not: bool,
        /// Lower bound.
        low: Constant,
        /// Upper bound.
        high: Constant,
    },
    /// `[NOT] IN (…)`.
    In {
        /// NOT.
        not: bool,
        /// The members.
        list: Vec<Constant>,
    },
}

/// A comparison operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `=`
    Equal,
    /// `<>`
    Unequal,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `IS`
    Is,
    /// `IS NOT`
    IsNot,
}

/// What is made of the rows.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Aggregates by group.
    Groups(Groups),
    /// The rows themselves.
    Rows(Rows),
}

/// Aggregates by group.
#[derive(Debug, Clone, PartialEq)]
pub struct Groups {
    /// Grouping values. Without any, all rows are one group, even when there is none.
    pub keys: Vec<Operand>,
    /// Result columns.
    pub columns: Vec<GroupColumn>,
    /// ORDER BY: indices of result columns.
    pub order: Vec<Order<usize>>,
    /// LIMIT and OFFSET.
    pub limit: Option<(i64, i64)>,
}

/// A value of a row: an integer computed from a column, or the column itself.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// A column.
    Column(String),
    /// An integer.
    Integer(i64),
    /// Integer arithmetic: `+ - * / %`, where SQLite would stay in integers; NULL where it divides by 0.
    Arithmetic(Box<Operand>, char, Box<Operand>),
}

impl Operand {
    /// The columns in it.
    pub fn columns(&self) -> Vec<&str> {
        match self {
            Operand::Column(name) => vec![name],
            Operand::Integer(_) => Vec::new(),
            Operand::Arithmetic(a, _, b) => [a.columns(), b.columns()].concat(),
        }
    }
}

/// A result column of a grouped scan.
#[derive(Debug, Clone, PartialEq)]
pub enum GroupColumn {
    /// A grouping value, by its index.
    Key(usize),
    /// The same for all rows.
    Constant(Constant),
    /// An aggregate.
    Aggregate(Function, Option<Operand>),
}

/// An aggregate function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Function {
    /// `count(*)` without an argument, else `count(x)`.
    Count,
    /// `sum(x)`
    Sum,
    /// `total(x)`
    Total,
    /// `avg(x)`
    Avg,
    /// `min(x)`
    Min,
    /// `max(x)`
    Max,
    /// The partial state of sum, total and avg.
    SumState,
    /// The partial state of approx_quantile.
    SketchState,
    /// The partial state of median and its kin.
    RunsState,
    /// `approx_quantile(x, fraction)`
    Quantile(f64),
    /// `median`, `percentile`, `percentile_cont`, `percentile_disc`.
    Percentile {
        /// 0 to 1.
        fraction: f64,
        /// A value of the column instead of one between two.
        discrete: bool,
    },
}

/// Rows as they are.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows {
    /// Result columns.
    pub columns: Vec<RowColumn>,
    /// ORDER BY, by columns of the table.
    pub order: Vec<Order<String>>,
    /// LIMIT and OFFSET.
    pub limit: Option<(i64, i64)>,
}

/// A result column of rows.
#[derive(Debug, Clone, PartialEq)]
pub enum RowColumn {
    /// A column of the table.
    Column(String),
    /// The same for all rows.
    Constant(Constant),
}

/// An ORDER BY term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order<T> {
    /// What is sorted by.
    pub by: T,
    /// Descending.
    pub desc: bool,
    /// NULLs come first; SQLite's default is first when ascending.
    pub nulls_first: bool,
}

impl Scan {
    /// The scan that `sql` is. `columns` gives the columns of a table of this node, in order, or `None` for tables whose
    /// scans are of no interest.
    #[must_use]
    pub fn of(sql: &str, columns: &dyn Fn(&str) -> Option<Vec<String>>) -> Option<Scan> {
        Self::through_views(sql, columns, &|_| None)
    }

    /// As [`Scan::of`], also for a view that only picks, renames and derives columns of such a table and filters its rows.
    /// `view` gives a view's CREATE statement.
    #[must_use]
    pub fn through_views(
        sql: &str,
        columns: &dyn Fn(&str) -> Option<Vec<String>>,
        view: &dyn Fn(&str) -> Option<String>,
    ) -> Option<Scan> {
        let select = parse_select(sql).ok()?;
        let query = select.single()?;
        if query.distinct || query.having.is_some() || !query.windows.is_empty() {
            return None;
        }
        let from = query.from.as_ref().filter(|from| from.joins.is_empty())?;
        let (table, alias, node) = source(&from.first)?;
        let (mut filter, mut gates) = (Vec::new(), Vec::new());
        let (table, names, derived) = match columns(&table) {
            Some(columns) => (table, Names { columns, alias, node, means: None }, Vec::new()),
            None => {
                let found = View::of(&view(&table)?, columns)?;
                let (visible, means) = found.columns.into_iter().unzip();
                (filter, gates) = (found.filter, found.gates);
                (found.table, Names { columns: visible, alias, node, means: Some(means) }, found.derived)
            }
        };
        for condition in query.filter.as_ref().map(conjuncts).unwrap_or_default() {
            match names.constant(condition) {
                Some(constant) => gates.push(constant),
                None => filter.push(names.condition(condition)?),
            }
        }
        let is_grouped = !query.group_by.is_empty()
            || query.columns.iter().any(|output| matches!(output, AstOutput::Expr(expr, _) if has_aggregate(expr)));
        let output = if is_grouped {
            Output::Groups(names.groups(query, &select)?)
        } else {
            Output::Rows(names.rows(query, &select)?)
        };
        Some(Scan { table, derived, filter, gates, output })
    }

    /// All columns that the scan reads, each once.
    #[must_use]
    pub fn columns(&self) -> Vec<&str> {
        let mut all: Vec<&str> = self.filter.iter().map(|condition| condition.column.as_str()).collect();
        match &self.output {
            Output::Groups(groups) => {
                all.extend(groups.keys.iter().flat_map(Operand::columns));
                for column in &groups.columns {
                    if let GroupColumn::Aggregate(_, Some(operand)) = column {
                        all.extend(operand.columns());
                    }
                }
            }
            Output::Rows(rows) => {
                all.extend(rows.order.iter().map(|order| order.by.as_str()));
                for column in &rows.columns {
                    if let RowColumn::Column(name) = column {
                        all.push(name);
                    }
                }
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// The values of constants on a node.
///
/// # Errors
/// As SQLite's, when one fails (an overflow, say).
pub fn evaluate(
    conn: &rusqlite::Connection,
    constants: &[&Constant],
    node: &str,
    now_unix_ns: i64,
) -> rusqlite::Result<Vec<Value>> {
    constants
        .iter()
        .map(|Constant(sql)| {
            if let Ok(integer) = sql.parse() {
                return Ok(Value::Integer(integer));
            }
            let mut statement = conn.prepare_cached(&format!("SELECT {sql}"))?;
            crate::exec::bind(&mut statement, node, now_unix_ns)?;
            let mut rows = statement.raw_query();
            match rows.next()? {
                Some(row) => Ok(Value::from_sqlite(row.get_ref(0)?)),
                None => Ok(Value::Null),
            }
        })
        .collect()
}

/// The table, its alias, and the name of the node column when the wrapper that adds it is there.
fn source(source: &Source) -> Option<(String, Option<String>, Option<String>)> {
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

fn has_aggregate(expr: &Expr) -> bool {
    crate::shape::contains(expr, crate::shape::is_aggregate)
}

/// A view over one table.
struct View {
    table: String,
    /// By the names that are seen, with the scan's column; none where it is something else.
    columns: Vec<(String, Option<String>)>,
    derived: Vec<Derived>,
    filter: Vec<Condition>,
    gates: Vec<Constant>,
}

impl View {
    fn of(sql: &str, columns: &dyn Fn(&str) -> Option<Vec<String>>) -> Option<View> {
        let select = crate::ast::parse_view(sql).ok()?;
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
        let base = Names { columns: columns(&table)?, alias: alias.clone(), node: None, means: None };
        let mut view = View { table, columns: Vec::new(), derived: Vec::new(), filter: Vec::new(), gates: Vec::new() };
        for output in &query.columns {
            let AstOutput::Expr(expr, alias) = output else { return None };
            if has_aggregate(expr) {
                return None;
            }
            let column = base.column(expr).or_else(|| {
                let derived = base.derived(expr)?;
                let name = derived.name.clone();
                view.derived.push(derived);
                Some(name)
            });
            let seen = match (alias, expr.peeled()) {
                (Some(alias), _) => unquote(alias),
                (None, Expr::Column { name, .. }) => unquote(name),
                _ => return None,
            };
            view.columns.push((seen, column));
        }
        for condition in query.filter.as_ref().map(conjuncts).unwrap_or_default() {
            match base.constant(condition) {
                Some(constant) => view.gates.push(constant),
                None => view.filter.push(base.condition(condition)?),
            }
        }
        Some(view)
    }
}

struct Names {
    columns: Vec<String>,
    alias: Option<String>,
    node: Option<String>,
    /// Of a view: the scan's columns that its columns are.
    means: Option<Vec<Option<String>>>,
}

impl Names {
    /// The table's column that an expression is.
    fn column(&self, expr: &Expr) -> Option<String> {
        let Expr::Column { table, name } = expr.peeled() else { return None };
        let qualified = match (table, &self.alias) {
            (None, _) => true,
            (Some(table), Some(alias)) => same_name(table, alias),
            (Some(_), None) => false,
        };
        let name = unquote(name);
        let at = self.columns.iter().position(|column| qualified && column.eq_ignore_ascii_case(&name))?;
        self.at(at)
    }

    /// The scan's column of a place.
    fn at(&self, at: usize) -> Option<String> {
        match &self.means {
            None => self.columns.get(at).cloned(),
            Some(means) => means.get(at)?.clone(),
        }
    }

    /// What an expression of a view derives from a column, if it is one of the forms known.
    fn derived(&self, expr: &Expr) -> Option<Derived> {
        let make = |of: String, by: By| {
            let name = match by {
                By::Upper => format!("upper({of})"),
                By::Lower => format!("lower({of})"),
                By::Hex => format!("hex({of})"),
            };
            let is_new = !self.columns.iter().any(|column| column.eq_ignore_ascii_case(&name));
            is_new.then_some(Derived { name, of, by })
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

    fn is_node(&self, table: Option<&str>, name: &str) -> bool {
        let bare = unquote(name);
        self.node.as_ref().is_some_and(|node| node.eq_ignore_ascii_case(&bare))
            && !self.columns.iter().any(|column| column.eq_ignore_ascii_case(&bare))
            && table.is_none_or(|table| self.alias.as_ref().is_some_and(|alias| same_name(table, alias)))
    }

    /// The expression as SQL, when it has no column but the node's, nothing that differs from call to call, and no
    /// subquery.
    fn constant(&self, expr: &Expr) -> Option<Constant> {
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
                        self.failed |= !is_truth && !self.names.is_node(table.as_deref(), name);
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
                    _ => crate::ast::walk_mut::expr(self, node),
                }
            }
        }
        let mut expr = expr.clone();
        crate::ast::VisitMut::expr(&mut Named(self), &mut expr);
        Some(Constant(expr.to_string()))
    }

    fn condition(&self, expr: &Expr) -> Option<Condition> {
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
        if let Some(column) = self.column(expr) {
            return Some(Operand::Column(column));
        }
        if let Some(integer) = expr.integer() {
            return Some(Operand::Integer(integer));
        }
        match expr.peeled() {
            Expr::Binary(lhs, operator @ ("+" | "-" | "*" | "/" | "%"), rhs) => {
                let operator = operator.chars().next()?;
                Some(Operand::Arithmetic(Box::new(self.operand(lhs)?), operator, Box::new(self.operand(rhs)?)))
            }
            _ => None,
        }
    }

    fn groups(&self, query: &Query, select: &Select) -> Option<Groups> {
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
        let is_constant_key = query.group_by.len() > keys.len();
        if is_constant_key && keys.is_empty() {
            // No rows, no group: unlike a question without GROUP BY.
            return None;
        }
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
        Some(Groups { keys, columns, order, limit: limit(select.limit.as_ref())? })
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
            functions::SUM_STATE => Function::SumState,
            "mesh_sketch" => Function::SketchState,
            "mesh_runs" => Function::RunsState,
            _ => return None,
        };
        Some(GroupColumn::Aggregate(function, Some(self.operand(first)?)))
    }

    fn rows(&self, query: &Query, select: &Select) -> Option<Rows> {
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
                    for at in 0..self.columns.len() {
                        columns.push(RowColumn::Column(self.at(at)?));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(sql: &str) -> Option<Scan> {
        Scan::of(sql, &|table| {
            (table == "t").then(|| ["ts_ns", "rank", "func", "bytes"].iter().map(|name| (*name).to_owned()).collect())
        })
    }

    #[test]
    fn aggregates_and_their_partial_states() {
        let sql = "SELECT rank AS k0, mesh_sum(bytes) AS p0, count(*) AS p1, mesh_sketch(bytes) AS p2 FROM t \
                   WHERE ts_ns >= 5 AND 'x' = func GROUP BY 1";
        let scan = scan(sql).unwrap();
        assert_eq!(scan.columns(), ["bytes", "func", "rank", "ts_ns"]);
        let Output::Groups(groups) = scan.output else { panic!() };
        assert_eq!(groups.keys, [Operand::Column("rank".into())]);
        assert_eq!(groups.columns[0], GroupColumn::Key(0));
        assert_eq!(groups.columns[2], GroupColumn::Aggregate(Function::Count, None));
        assert_eq!(scan.filter[1].test, Test::Compare(Comparison::Equal, Constant("'x'".into())));
    }

    #[test]
    fn the_node_column_is_a_constant() {
        let sql = "SELECT node, rank, max(bytes) FROM (SELECT *, CAST(:mesh_node AS TEXT) AS node FROM t) AS t \
                   WHERE node IN ('a', 'b') AND t.rank = 3 GROUP BY node, rank ORDER BY 3 DESC LIMIT 5";
        let scan = scan(sql).unwrap();
        assert_eq!(scan.gates.len(), 1);
        assert!(scan.gates[0].0.contains(":mesh_node"), "{:?}", scan.gates);
        let Output::Groups(groups) = scan.output else { panic!() };
        assert_eq!(groups.order, [Order { by: 2, desc: true, nulls_first: false }]);
        assert_eq!(groups.limit, Some((5, 0)));
    }

    #[test]
    fn rows_and_top_k() {
        let Output::Rows(rows) =
            scan("SELECT * FROM t WHERE ts_ns BETWEEN 1 AND 2 ORDER BY bytes DESC LIMIT 3").unwrap().output
        else {
            panic!()
        };
        assert_eq!((rows.columns.len(), rows.order[0].by.as_str(), rows.limit), (4, "bytes", Some((3, 0))));
        assert!(scan("SELECT rank, 'a' FROM t").is_some());
    }

    #[test]
    fn what_is_not_certain_is_left_to_sqlite() {
        for sql in [
            "SELECT rank, bytes, count(*) FROM t GROUP BY rank",
            "SELECT count(DISTINCT rank) FROM t",
            "SELECT count(*) FILTER (WHERE rank = 1) FROM t",
            "SELECT DISTINCT rank FROM t",
            "SELECT rank, count(*) FROM t GROUP BY rank HAVING count(*) > 1",
            "SELECT count(*) FROM t WHERE rank + 1 = 2",
            "SELECT count(*) FROM t WHERE rank = 1 OR rank = 2",
            "SELECT count(*) FROM t, t AS u",
            "SELECT count(*) FROM u",
            "SELECT count(*) FROM t WHERE rank = random()",
            "SELECT count(*) FROM t WHERE rank = (SELECT 1)",
            "SELECT count(*) FROM t WHERE rank = ?",
            "SELECT 'a', count(*) FROM t GROUP BY 1",
            "SELECT max(bytes, rank) + sum(bytes) FROM t",
            "SELECT rank COLLATE NOCASE, count(*) FROM t GROUP BY 1",
            "SELECT approx_quantile(bytes, 2) FROM t",
            "SELECT count(*) FROM t WHERE func = 'X' COLLATE NOCASE",
            "SELECT count(*) FROM t WHERE func COLLATE NOCASE = 'X'",
            "SELECT rank FROM t ORDER BY func COLLATE NOCASE LIMIT 1",
            "SELECT rowid FROM t",
            "WITH t AS (SELECT 1) SELECT * FROM t",
            "SELECT 1 FROM t UNION SELECT 2 FROM t",
            "nonsense",
        ] {
            assert_eq!(scan(sql), None, "{sql}");
        }
    }
}
