//! Reads statements over several tables, or with `EXISTS` and `IN (SELECT …)`, as a scan over
//! joined rows: sides that are scans of their own, and what a row of each must have in common with
//! the rows before it. Common table expressions are written in place (`ctes`).
//!
//! What is joined are integers and texts of BINARY collation compared with their like. So a key of
//! a hash table finds exactly what SQLite's `=` finds.

use super::expressions::comparison;
use super::names::{Conditions, Meaning, Names, has_aggregate};
use super::{
    Bound, Column, Comparison, Derived, Function, GroupColumn, Join, Joined, Keeps, OfMatches, Operand, Output,
    Reading, RowColumn, Rows, Scan, Side, SideColumn, SideRows, Windowed, by_all, foreign,
};
use crate::ast::{
    Expr, From, JoinKind, Output as AstOutput, Query, Select, Source, Visit, VisitMut, conjuncts, quote_name, unquote,
    walk, walk_mut,
};
use crate::ctes;

/// Sides of a join at most.
const MOST_SIDES: usize = 8;

/// What FROM names, or what `EXISTS` and `IN` look into.
struct Part {
    alias: Option<String>,
    /// All columns by the names that are seen, those that cannot be joined as none.
    columns: Vec<(String, Option<Column>)>,
    source: PartSource,
}

enum PartSource {
    /// A table; the conditions on it alone.
    Table { name: String, names: Box<Names>, conditions: Conditions },
    /// A SELECT.
    Scan(Box<Scan>),
    /// A table that is no columns; the conditions on it alone, as SQL.
    Plain { source: Source, conditions: Vec<Expr> },
    /// A SELECT over such tables, or over none, as SQL.
    Sql(String),
}

/// A step of a join before it is known which columns are needed.
struct Step {
    keeps: Keeps,
    /// By index among all parts.
    part: usize,
    equal: Vec<(Operand, Operand)>,
    bounds: Vec<Bound>,
    residual: Vec<Operand>,
    value: Option<(Column, OfMatches)>,
}

impl Reading<'_> {
    /// As [`Reading::scan`], of what is joined.
    pub(super) fn joined(&self, select: &Select) -> Option<Scan> {
        let inlined = if select.with.is_some() { Some(ctes::inlined(select)?) } else { None };
        let select = inlined.as_ref().unwrap_or(select);
        let mut query = select.single()?.clone();
        let values = take_values(&mut query);
        let query = &query;
        let from = query.from.as_ref().filter(|_| query.having.is_none())?;
        let mut parts = vec![self.part(&from.first)?];
        let mut hidden: Vec<(usize, String)> = Vec::new();
        for join in &from.joins {
            if join.natural
                || !matches!(join.kind, JoinKind::Comma | JoinKind::Inner | JoinKind::Cross | JoinKind::Left)
            {
                return None;
            }
            hidden.extend(join.using.iter().map(|name| (parts.len(), unquote(name))));
            parts.push(self.part(&join.source)?);
        }
        let of_from = parts.len();
        let mut names = names_of(&parts, &hidden);
        names.named_windows.clone_from(&query.windows);
        let is_left = |part: usize| part > 0 && from.joins[part - 1].kind == JoinKind::Left;
        let mut left: Vec<&Expr> = query.filter.as_ref().map(conjuncts).unwrap_or_default();
        for join in from.joins.iter().filter(|join| join.kind != JoinKind::Left) {
            left.extend(join.on.as_ref().map(conjuncts).unwrap_or_default());
        }
        let mut after: Vec<&Expr> = Vec::new();
        let mut marks: Vec<&Expr> = Vec::new();
        // By part: what compares it with those before.
        let mut on: Vec<Vec<&Expr>> = vec![Vec::new(); of_from];
        for condition in left {
            if mark(condition).is_some() {
                marks.push(condition);
                continue;
            }
            let touched = names.touched(condition)?;
            match (touched.as_slice(), touched.last()) {
                ([], _) => after.push(condition),
                ([part], _) if is_left(*part) => after.push(condition),
                ([part], _) => match parts[*part].add(condition) {
                    Some(()) => {}
                    None => after.push(condition),
                },
                (_, Some(last)) if !is_left(*last) => on[*last].push(condition),
                _ => after.push(condition),
            }
        }
        let mut steps = Vec::new();
        for (at, join) in from.joins.iter().enumerate() {
            let part = at + 1;
            let mut conditions = std::mem::take(&mut on[part]);
            let keeps = if is_left(part) { Keeps::All } else { Keeps::Matching };
            if is_left(part) {
                for condition in join.on.as_ref().map(conjuncts).unwrap_or_default() {
                    let touched = names.touched(condition)?;
                    if touched.iter().any(|touched| *touched > part) {
                        return None;
                    }
                    if touched != [part] || parts[part].add(condition).is_none() {
                        conditions.push(condition);
                    }
                }
            }
            let mut step = Step::of(keeps, part, &names, &conditions)?;
            for name in &join.using {
                step.equal.push(using(&parts, part, &unquote(name))?);
            }
            steps.push(step);
        }
        for condition in marks {
            let step = self.marked(condition, &mut parts, of_from)?;
            steps.push(step);
        }
        for (at, (value, inner)) in values.iter().enumerate() {
            let column = Column::of_integers(value_name(at));
            steps.push(self.valued(*value, inner, column.clone(), &mut parts, of_from)?);
            names.add(column);
        }
        // Without a key every row would meet every other one: SQLite knows better ways.
        if steps.iter().any(|step| step.equal.is_empty()) || parts.len() > MOST_SIDES {
            return None;
        }
        // Rows of one scan for another (which need not be made again: groups, windows), or
        // something of columns among what is joined.
        let is_made =
            |scan: &Scan| scan.windowed.is_some() || scan.joined.is_some() || matches!(scan.output, Output::Groups(_));
        let is_scan = |part: &Part| matches!(&part.source, PartSource::Scan(scan) if is_made(scan));
        let is_foreign = |part: &Part| matches!(part.source, PartSource::Plain { .. } | PartSource::Sql(_));
        if (steps.is_empty() && !is_scan(&parts[0])) || parts.iter().all(is_foreign) {
            return None;
        }
        let mut conditions = Conditions::default();
        for condition in after {
            conditions.add(&names, Some(condition))?;
        }
        let has_star = query.columns.iter().any(|output| !matches!(output, AstOutput::Expr(..)));
        if has_star && (!hidden.is_empty() || !names.has_all()) {
            return None;
        }
        let output = output(&names, query, select)?;
        let (derived, calls) = names.into_derived();
        if !calls.is_empty() && matches!(output, Output::Groups(_)) {
            return None;
        }
        let windowed = (!calls.is_empty()).then(|| {
            let Conditions { filter, predicates, gates } = std::mem::take(&mut conditions);
            Windowed { filter, predicates, gates, calls }
        });
        let Conditions { filter, predicates, gates } = conditions;
        let mut scan =
            Scan { table: String::new(), joined: None, derived, filter, predicates, gates, windowed, output };
        scan.joined = Some(Box::new(joined(parts, steps, &scan)?));
        Some(scan)
    }

    fn part(&self, source: &Source) -> Option<Part> {
        match source {
            Source::Table { schema: None, name, alias, .. } => {
                let (name, alias) = (unquote(name), alias.clone().unwrap_or_else(|| name.clone()));
                let Some(columns) = (self.columns)(&name) else {
                    let columns = (self.plain)(&name)?;
                    let source = PartSource::Plain { source: source.clone(), conditions: Vec::new() };
                    return Some(Part { alias: Some(alias), columns, source });
                };
                let seen = columns.iter().map(|column| (column.name.clone(), Some(column.clone()))).collect();
                let names = Box::new(Names::of(columns, Some(alias.clone()), None));
                let source = PartSource::Table { name, names, conditions: Conditions::default() };
                Some(Part { alias: Some(alias), columns: seen, source })
            }
            Source::Select { select, alias } => self.selected(select, alias.clone()),
            _ => None,
        }
    }

    /// A SELECT in FROM or after IN.
    fn selected(&self, select: &Select, alias: Option<String>) -> Option<Part> {
        let Some(scan) = self.scan(select) else {
            let columns = foreign::columns(select, self.plain)?;
            return Some(Part { alias, columns, source: PartSource::Sql(select.to_string()) });
        };
        // Rows in an order, or the first of them, cannot be gathered.
        if matches!(&scan.output, Output::Rows(rows) if !rows.order.is_empty() || rows.limit.is_some()) {
            return None;
        }
        let query = select.single()?;
        let mut columns = Vec::new();
        for (at, output) in query.columns.iter().enumerate() {
            let AstOutput::Expr(expr, alias) = output else { return None };
            let name = match (alias, expr.peeled()) {
                (Some(alias), _) => unquote(alias),
                (None, Expr::Column { name, .. }) => unquote(name),
                _ => String::new(),
            };
            let column = self.column_of_output(&scan, at, &name);
            columns.push((name, column));
        }
        Some(Part { alias, columns, source: PartSource::Scan(Box::new(scan)) })
    }

    /// A result column, where it is known what it holds.
    fn column_of_output(&self, scan: &Scan, at: usize, name: &str) -> Option<Column> {
        let integers = || Some(Column::of_integers(name.to_owned()));
        let reals = || Some(Column { is_real: true, ..Column::of_integers(name.to_owned()) });
        let operand = match &scan.output {
            Output::Rows(rows) => match rows.columns.get(at)? {
                RowColumn::Value(operand) if operand.is_real() => return reals(),
                RowColumn::Value(operand) => operand,
                RowColumn::Constant(_) => return None,
            },
            Output::Groups(groups) => match groups.columns.get(at)? {
                GroupColumn::Key(key) if groups.named.iter().any(|(named, _)| named == key) => {
                    return Some(Column::of_text(name.to_owned(), true));
                }
                GroupColumn::Key(key) if groups.made.iter().any(|(made, _)| made == key) => return None,
                GroupColumn::Key(key) => groups.keys.get(*key)?,
                GroupColumn::Aggregate(Function::Count | Function::CountDistinct, _) => return integers(),
                GroupColumn::Aggregate(Function::Avg | Function::Total, _) => return reals(),
                GroupColumn::Aggregate(Function::Sum | Function::Min | Function::Max, Some(of)) if of.is_real() => {
                    return reals();
                }
                GroupColumn::Aggregate(Function::Sum, _) => return integers(),
                GroupColumn::Aggregate(Function::Min | Function::Max, Some(operand)) => {
                    return if self.is_text(scan, operand)? { None } else { integers() };
                }
                _ => return None,
            },
        };
        Some(Column::of_text(name.to_owned(), self.is_text(scan, operand)?))
    }

    fn is_text(&self, scan: &Scan, operand: &Operand) -> Option<bool> {
        let Operand::Column(name) = operand else { return Some(false) };
        if let Some(derived) = scan.derived.iter().find(|derived| derived.name == *name) {
            return Some(derived.by.is_text());
        }
        let calls = scan.windowed.iter().flat_map(|windowed| &windowed.calls);
        if let Some(call) = calls.map(|call| &call.column).find(|column| column.name == *name) {
            return Some(call.is_text);
        }
        if let Some(joined) = &scan.joined {
            return joined.columns().find(|column| column.name == *name).map(|column| column.is_text);
        }
        (self.columns)(&scan.table)?.iter().find(|column| column.name == *name).map(|column| column.is_text)
    }

    /// The step that a condition with `EXISTS` or `IN (SELECT …)` is.
    fn marked(&self, condition: &Expr, parts: &mut Vec<Part>, of_from: usize) -> Option<Step> {
        match mark(condition)? {
            Mark::Exists { not, select } => {
                let is_aggregate = |output: &_| matches!(output, AstOutput::Expr(expr, _) if has_aggregate(expr));
                // An aggregate without groups makes a row of none.
                if select.single()?.columns.iter().any(is_aggregate) {
                    return None;
                }
                let keeps = if not { Keeps::WithoutMatch } else { Keeps::WithMatch };
                Some(self.correlated(keeps, select, parts, of_from)?.0)
            }
            Mark::In { lhs, not, select } => {
                let part = parts.len();
                parts.push(self.selected(select, None)?);
                let names = names_of(&parts[..of_from], &[]);
                let operand = names.operand(lhs)?;
                let [(_, Some(column))] = parts[part].columns.as_slice() else { return None };
                if column.is_real || names.is_text_operand(&operand) != column.is_text {
                    return None;
                }
                let equal = vec![(operand, Operand::Column(in_join(part, &column.name)))];
                let keeps = if not { Keeps::NotAmong } else { Keeps::WithMatch };
                Some(Step { keeps, part, equal, bounds: Vec::new(), residual: Vec::new(), value: None })
            }
        }
    }

    /// The step that a subquery over one part makes, and what the names in it mean.
    fn correlated(
        &self,
        keeps: Keeps,
        select: &Select,
        parts: &mut Vec<Part>,
        of_from: usize,
    ) -> Option<(Step, Names)> {
        let part = parts.len();
        let query = select.single()?;
        let from = query.from.as_ref().filter(|from| from.joins.is_empty())?;
        let is_plain = query.group_by.is_empty() && query.having.is_none() && select.limit.is_none();
        parts.push(self.part(&from.first).filter(|_| is_plain)?);
        // (What other subqueries look into is not seen by this one.)
        let seen: Vec<usize> = (0..of_from).chain([part]).collect();
        let names = names_among(parts, &seen, part);
        let mut on = Vec::new();
        for condition in query.filter.as_ref().map(conjuncts).unwrap_or_default() {
            if names.touched(condition)? != [part] || parts[part].add(condition).is_none() {
                on.push(condition);
            }
        }
        Some((Step::of(keeps, part, &names, &on)?, names))
    }

    /// The step that a subquery which is a value makes.
    fn valued(
        &self,
        is: IsValue,
        select: &Select,
        column: Column,
        parts: &mut Vec<Part>,
        of_from: usize,
    ) -> Option<Step> {
        let query = select.single()?;
        let is_aggregate = |output: &AstOutput| matches!(output, AstOutput::Expr(expr, _) if has_aggregate(expr));
        let (mut step, names) = self.correlated(Keeps::Value, select, parts, of_from)?;
        let of = match (is, query.columns.as_slice()) {
            (IsValue::Exists, columns) if !columns.iter().any(is_aggregate) => OfMatches::Exists,
            (IsValue::Scalar, [AstOutput::Expr(expr, _)]) if !query.distinct => {
                let Expr::Call(call) = expr.peeled() else { return None };
                if call.distinct || call.filter.is_some() || !call.order_by.is_empty() || call.over.is_some() {
                    return None;
                }
                let operand = || match call.args.as_slice() {
                    [of] => names.integers(of),
                    _ => None,
                };
                match unquote(&call.name).to_ascii_lowercase().as_str() {
                    "count" if call.star => OfMatches::Count(None),
                    "count" => OfMatches::Count(Some(operand()?)),
                    "min" => OfMatches::Least(operand()?),
                    "max" => OfMatches::Greatest(operand()?),
                    _ => return None,
                }
            }
            _ => return None,
        };
        step.value = Some((column, of));
        Some(step)
    }
}

/// What a subquery in an expression gives.
#[derive(Clone, Copy)]
enum IsValue {
    Exists,
    Scalar,
}

fn value_name(at: usize) -> String {
    format!("value {at}")
}

/// Replaces the subqueries in result columns by columns of names that no table has.
fn take_values(query: &mut Query) -> Vec<(IsValue, Select)> {
    #[derive(Default)]
    struct Take(Vec<(IsValue, Select)>);
    impl VisitMut for Take {
        fn expr(&mut self, node: &mut Expr) {
            let found = match node {
                Expr::Exists(select) => (IsValue::Exists, Select::clone(select)),
                Expr::Subquery(select) => (IsValue::Scalar, Select::clone(select)),
                _ => return walk_mut::expr(self, node),
            };
            *node = Expr::column(&value_name(self.0.len()));
            self.0.push(found);
        }
    }
    let mut take = Take::default();
    for output in &mut query.columns {
        if let AstOutput::Expr(expr, _) = output {
            take.expr(expr);
        }
    }
    take.0
}

/// What is made of joined rows.
fn output(names: &Names, query: &Query, select: &Select) -> Option<Output> {
    let is_grouped = !query.group_by.is_empty()
        || query.columns.iter().any(|output| matches!(output, AstOutput::Expr(expr, _) if has_aggregate(expr)));
    Some(match (is_grouped, query.distinct) {
        (true, true) => return None,
        (true, false) => Output::Groups(names.groups(query, select)?),
        (false, true) => Output::Groups(names.groups(&by_all(query), select)?),
        (false, false) => Output::Rows(names.rows(query, select)?),
    })
}

/// A subquery that is a condition.
enum Mark<'e> {
    Exists { not: bool, select: &'e Select },
    In { lhs: &'e Expr, not: bool, select: &'e Select },
}

fn mark(condition: &Expr) -> Option<Mark<'_>> {
    match condition.peeled() {
        Expr::Exists(select) => Some(Mark::Exists { not: false, select }),
        Expr::Unary("NOT", inner) => match inner.peeled() {
            Expr::Exists(select) => Some(Mark::Exists { not: true, select }),
            _ => None,
        },
        Expr::InSelect { lhs, not, select } => Some(Mark::In { lhs, not: *not, select }),
        _ => None,
    }
}

/// How a part's column is called among all.
fn in_join(part: usize, column: &str) -> String {
    format!("{part}.{column}")
}

/// The columns of parts, by their places. `hidden` ones are not meant by a name alone.
fn names_of(parts: &[Part], hidden: &[(usize, String)]) -> Names {
    let all: Vec<usize> = (0..parts.len()).collect();
    let mut names = names_among(parts, &all, usize::MAX);
    names.hide(hidden);
    names
}

/// The columns of some parts; of equal names those of the part `inner` are meant.
fn names_among(parts: &[Part], seen: &[usize], inner: usize) -> Names {
    let mut columns = Vec::new();
    let mut means = Vec::new();
    for part in seen {
        let Some(Part { alias, columns: all, .. }) = parts.get(*part) else { continue };
        for (name, column) in all {
            let meaning = match column {
                Some(column) => {
                    let name = in_join(*part, &column.name);
                    columns.push(Column { name: name.clone(), ..*column });
                    if column.is_real { Meaning::Computed(Operand::RealColumn(name)) } else { Meaning::Column(name) }
                }
                None => Meaning::Other,
            };
            means.push((name.clone(), meaning, alias.clone(), *part));
        }
    }
    Names::of_several(columns, means, inner)
}

/// The two columns that USING compares.
fn using(parts: &[Part], part: usize, name: &str) -> Option<(Operand, Operand)> {
    let find = |at: usize| {
        let column = parts[at].columns.iter().find(|(other, _)| other.eq_ignore_ascii_case(name))?;
        Some((at, column.1.as_ref()?))
    };
    let before: Vec<_> = (0..part).filter_map(find).collect();
    let ([(other, a)], (_, b)) = (before.as_slice(), find(part)?) else { return None };
    let operand = |at: usize, column: &Column| Operand::Column(in_join(at, &column.name));
    (a.is_text == b.is_text && !a.is_real && !b.is_real).then(|| (operand(*other, a), operand(part, b)))
}

impl Part {
    /// A condition on this part alone, where it can look at its rows before they are joined.
    fn add(&mut self, condition: &Expr) -> Option<()> {
        match &mut self.source {
            PartSource::Table { names, conditions, .. } => conditions.add(names, Some(condition)),
            PartSource::Plain { conditions, .. } => {
                conditions.push(foreign::is_same_each_time(condition).then(|| condition.clone())?);
                Some(())
            }
            PartSource::Scan(_) | PartSource::Sql(_) => None,
        }
    }
}

impl Step {
    fn of(keeps: Keeps, part: usize, names: &Names, conditions: &[&Expr]) -> Option<Step> {
        let mut step = Step { keeps, part, equal: Vec::new(), bounds: Vec::new(), residual: Vec::new(), value: None };
        let mut bounds: Vec<(Bound, Operand)> = Vec::new();
        for condition in conditions {
            let Expr::Binary(lhs, operator, rhs) = condition.peeled() else {
                step.residual.push(names.integers(condition)?);
                continue;
            };
            // The side that is about this part alone, the other about those before.
            let of_lhs = names.touched(lhs)? == [part] && !names.touched(rhs)?.contains(&part);
            let of_rhs = names.touched(rhs)? == [part] && !names.touched(lhs)?.contains(&part);
            let (own, other, mirrored) = match (of_lhs, of_rhs) {
                (true, _) => (lhs, rhs, false),
                (_, true) => (rhs, lhs, true),
                _ => {
                    step.residual.push(names.integers(condition)?);
                    continue;
                }
            };
            let is_equal = matches!(*operator, "=" | "==");
            let has_key = !names.touched(other)?.is_empty();
            if let (true, true, Some(own), Some(other)) = (is_equal, has_key, names.operand(own), names.operand(other))
            {
                if names.is_text_operand(&own) != names.is_text_operand(&other) {
                    return None;
                }
                step.equal.push((other, own));
                continue;
            }
            let residual = names.integers(condition)?;
            let bound = || {
                let column = names.column(own).filter(|column| !names.is_text(column))?;
                let comparison = comparison(operator)?;
                let comparison = if mirrored { super::expressions::mirrored(comparison) } else { comparison };
                let is_bound =
                    !matches!(comparison, Comparison::Equal | Comparison::Unequal | Comparison::Is | Comparison::IsNot);
                is_bound.then_some(Bound { column, comparison, with: names.integers(other)? })
            };
            match bound() {
                Some(bound) => bounds.push((bound, residual)),
                None => step.residual.push(residual),
            }
        }
        // The column with most bounds: rather between two than above one.
        let count = |column: &str| bounds.iter().filter(|(bound, _)| bound.column == column).count();
        let most = bounds.iter().map(|(bound, _)| bound.column.clone()).max_by_key(|column| count(column));
        for (bound, residual) in bounds {
            if Some(&bound.column) == most.as_ref() {
                step.bounds.push(bound);
            } else {
                step.residual.push(residual);
            }
        }
        Some(step)
    }

    fn operands(&self) -> impl Iterator<Item = &Operand> {
        let of_bounds = self.bounds.iter().map(|bound| &bound.with);
        let of_value = self.value.iter().filter_map(|(_, of)| of.operand());
        self.equal.iter().flat_map(|(a, b)| [a, b]).chain(of_bounds).chain(&self.residual).chain(of_value)
    }
}

/// The sides with the columns that are needed of them.
fn joined(parts: Vec<Part>, steps: Vec<Step>, scan: &Scan) -> Option<Joined> {
    let mut needed: Vec<String> = Vec::new();
    {
        let of = |name: &str| scan.derived.iter().find(|derived: &&Derived| derived.name == name);
        let mut add = |name: &str| {
            let name = of(name).map_or(name, |derived| &derived.of);
            if !needed.iter().any(|known| known == name) {
                needed.push(name.to_owned());
            }
        };
        scan.columns().into_iter().for_each(&mut add);
        steps.iter().flat_map(Step::operands).flat_map(Operand::columns).for_each(&mut add);
        steps.iter().flat_map(|step| &step.bounds).for_each(|bound| add(&bound.column));
        // A join's own operands are made of columns alone.
        if steps.iter().flat_map(Step::operands).flat_map(Operand::columns).any(|name| of(name).is_some()) {
            return None;
        }
    }
    let mut sides: Vec<Option<Side>> =
        parts.into_iter().enumerate().map(|(at, part)| Some(part.side(at, &needed))).collect();
    let mut take = |at: usize| sides.get_mut(at).and_then(Option::take);
    let first = take(0)?;
    let mut joins = Vec::new();
    for Step { keeps, part, equal, bounds, residual, value } in steps {
        joins.push(Join { keeps, side: take(part)?, equal, bounds, residual, value });
    }
    Some(Joined { first, joins })
}

/// Those that are needed of a SELECT's result columns.
fn result_columns(
    at: usize,
    columns: Vec<(String, Option<Column>)>,
    is_needed: impl Fn(&Column) -> bool,
) -> Vec<SideColumn> {
    let known = columns.into_iter().enumerate().filter_map(|(of, (_, column))| Some((of, column?)));
    let needed = known.filter(|(_, column)| is_needed(column));
    needed.map(|(of, column)| SideColumn { column: Column { name: in_join(at, &column.name), ..column }, of }).collect()
}

impl Part {
    fn side(self, at: usize, needed: &[String]) -> Side {
        let is_needed = |column: &Column| needed.contains(&in_join(at, &column.name));
        let mut columns = Vec::new();
        let rows = match self.source {
            PartSource::Table { name, names, conditions } => {
                let mut values = Vec::new();
                for column in self.columns.into_iter().filter_map(|(_, column)| column).filter(is_needed) {
                    values.push(RowColumn::Value(Operand::Column(column.name.clone())));
                    let name = in_join(at, &column.name);
                    columns.push(SideColumn { column: Column { name, ..column }, of: values.len() - 1 });
                }
                let (derived, _) = names.into_derived();
                let Conditions { filter, predicates, gates } = conditions;
                let output = Output::Rows(Rows { columns: values, order: Vec::new(), limit: None });
                SideRows::Scan(Box::new(Scan {
                    table: name,
                    joined: None,
                    derived,
                    filter,
                    predicates,
                    gates,
                    windowed: None,
                    output,
                }))
            }
            PartSource::Plain { source, conditions } => {
                let mut shown = Vec::new();
                for column in self.columns.into_iter().filter_map(|(_, column)| column).filter(is_needed) {
                    shown.push(AstOutput::Expr(Expr::column(&quote_name(&column.name)), None));
                    let name = in_join(at, &column.name);
                    columns.push(SideColumn { column: Column { name, ..column }, of: shown.len() - 1 });
                }
                if shown.is_empty() {
                    shown.push(AstOutput::Expr(Expr::Literal("NULL".to_owned()), None));
                }
                let and = |a: Expr, b: Expr| Expr::Binary(Box::new(a), "AND", Box::new(b));
                let filter = conditions.into_iter().map(Expr::paren).reduce(and);
                let from = Some(From { first: source, joins: Vec::new() });
                let query = Query { columns: shown, from, filter, ..Query::default() };
                SideRows::Sql(Select::of(query).to_string())
            }
            PartSource::Scan(scan) => {
                columns = result_columns(at, self.columns, is_needed);
                SideRows::Scan(scan)
            }
            PartSource::Sql(sql) => {
                columns = result_columns(at, self.columns, is_needed);
                SideRows::Sql(sql)
            }
        };
        Side { rows, columns }
    }
}

impl Names {
    /// The parts that an expression names, ascending; none where it names something else, or has a
    /// subquery.
    fn touched(&self, expr: &Expr) -> Option<Vec<usize>> {
        struct Look<'n> {
            names: &'n Names,
            parts: Vec<usize>,
            failed: bool,
        }
        impl Visit for Look<'_> {
            fn select(&mut self, _: &Select) {
                self.failed = true;
            }

            fn expr(&mut self, node: &Expr) {
                match node {
                    Expr::Column { table, name } => match self.names.part_of(table.as_deref(), name) {
                        Some(part) if !self.parts.contains(&part) => self.parts.push(part),
                        Some(_) => {}
                        None => self.failed = true,
                    },
                    Expr::InTable { .. } | Expr::Variable(_) => self.failed = true,
                    _ => walk::expr(self, node),
                }
            }
        }
        let mut look = Look { names: self, parts: Vec::new(), failed: false };
        look.expr(expr);
        look.parts.sort_unstable();
        (!look.failed).then_some(look.parts)
    }

    /// Whether an operand is text.
    fn is_text_operand(&self, operand: &Operand) -> bool {
        matches!(operand, Operand::Column(name) if self.is_text(name))
    }
}
