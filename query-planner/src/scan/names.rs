//! Reads the names of a [`Scan`](super::Scan)'s statement: its table, the view that shows it, what
//! each column means, and which expressions are the same for all rows.

use std::cell::RefCell;

use super::{Column, ColumnsOf, Condition, Constant, Derived, Operand, WindowCall};
use crate::ast::{Expr, Output as AstOutput, Select, Source, Visit, Window, conjuncts, same_name, unquote, walk};
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
    /// Worked out row by row.
    Computed(Operand),
    /// Something else.
    Other,
}

/// Which rows are left.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    pub(super) filter: Vec<Condition>,
    pub(super) predicates: Vec<Operand>,
    pub(super) gates: Vec<Constant>,
}

impl Conditions {
    /// Adds those of a WHERE.
    pub(super) fn add(&mut self, names: &Names, filter: Option<&Expr>) -> Option<()> {
        for condition in filter.map(conjuncts).unwrap_or_default() {
            if let Some(constant) = names.constant(condition) {
                self.gates.push(constant);
            } else if let Some(condition) = names.condition(condition) {
                self.filter.push(condition);
            } else {
                self.predicates.push(names.integers(condition)?);
            }
        }
        Some(())
    }
}

/// A view over one table.
pub(super) struct View {
    pub(super) table: String,
    /// By the names that are seen.
    pub(super) columns: Vec<(String, Meaning)>,
    pub(super) base: Vec<Column>,
    pub(super) conditions: Conditions,
    pub(super) derived: Vec<Derived>,
    pub(super) calls: Vec<WindowCall>,
}

impl View {
    pub(super) fn of(select: &Select, columns: ColumnsOf<'_>) -> Option<View> {
        let query = select.single()?;
        let is_plain = select.order_by.is_empty()
            && select.limit.is_none()
            && !query.distinct
            && query.group_by.is_empty()
            && query.having.is_none();
        let from = query.from.as_ref().filter(|from| from.joins.is_empty() && is_plain)?;
        let Source::Table { schema: None, name, alias, .. } = &from.first else { return None };
        let table = unquote(name);
        let mut base = Names::of(columns(&table)?, alias.clone(), None);
        base.named_windows.clone_from(&query.windows);
        let mut seen = Vec::new();
        for output in &query.columns {
            let AstOutput::Expr(expr, alias) = output else {
                // With `t.*` it would be another view that names its table.
                let AstOutput::Star = output else { return None };
                let column = |column: &Column| (column.name.clone(), Meaning::Column(column.name.clone()));
                seen.extend(base.columns.iter().map(column));
                continue;
            };
            if has_aggregate(expr) {
                return None;
            }
            let meaning = base.seen_as(expr);
            let name = match (alias, expr.peeled()) {
                (Some(alias), _) => unquote(alias),
                (None, Expr::Column { name, .. }) => unquote(name),
                _ => return None,
            };
            seen.push((name, meaning));
        }
        let mut conditions = Conditions::default();
        conditions.add(&base, query.filter.as_ref())?;
        let columns = base.columns.clone();
        let (derived, calls) = base.into_derived();
        Some(View { table, columns: seen, base: columns, conditions, derived, calls })
    }
}

/// What the names of a statement mean.
pub(super) struct Names {
    /// The table's columns.
    pub(super) columns: Vec<Column>,
    /// What is seen of them through a view; none where it is the table itself.
    means: Option<Vec<(String, Meaning)>>,
    alias: Option<String>,
    /// Of joined parts, for each of `means`: the part's name and place, and whether a name alone
    /// may mean it.
    parts: Vec<(Option<String>, usize, bool)>,
    /// The part whose columns are meant where several have a name.
    inner: usize,
    pub(super) node: Option<String>,
    /// Columns that were made of others so far.
    pub(super) derived: RefCell<Vec<Derived>>,
    /// Columns that windows add so far.
    pub(super) calls: RefCell<Vec<WindowCall>>,
    /// Whether a view has added them: a window over windows is not understood.
    pub(super) is_windowed: bool,
    /// Those of a WINDOW clause.
    pub(super) named_windows: Vec<(String, Window)>,
}

impl Names {
    pub(super) fn of(columns: Vec<Column>, alias: Option<String>, node: Option<String>) -> Self {
        let (derived, calls) = (RefCell::default(), RefCell::default());
        let (is_windowed, named_windows) = (false, Vec::new());
        let (parts, inner) = (Vec::new(), usize::MAX);
        Self { columns, means: None, alias, parts, inner, node, derived, calls, is_windowed, named_windows }
    }

    /// Of joined parts: each column with its part's name and place.
    pub(super) fn of_several(
        columns: Vec<Column>,
        seen: Vec<(String, Meaning, Option<String>, usize)>,
        inner: usize,
    ) -> Self {
        let parts = seen.iter().map(|(_, _, alias, part)| (alias.clone(), *part, true)).collect();
        let means = seen.into_iter().map(|(name, meaning, ..)| (name, meaning)).collect();
        Self { means: Some(means), parts, inner, ..Self::of(columns, None, None) }
    }

    /// One more column of joined rows, which belongs to no part.
    pub(super) fn add(&mut self, column: Column) {
        self.parts.push((None, usize::MAX - 1, true));
        self.means.get_or_insert_default().push((column.name.clone(), Meaning::Column(column.name.clone())));
        self.columns.push(column);
    }

    /// From now on these columns, each with its part's place, are not meant by a name alone.
    pub(super) fn hide(&mut self, hidden: &[(usize, String)]) {
        let is_hidden = |part: usize, name: &str| {
            hidden.iter().any(|(other, column)| *other == part && column.eq_ignore_ascii_case(name))
        };
        for ((_, part, is_seen), (name, _)) in self.parts.iter_mut().zip(self.means.iter().flatten()) {
            *is_seen &= !is_hidden(*part, name);
        }
    }

    /// Whether all that is seen is a column.
    pub(super) fn has_all(&self) -> bool {
        self.means.iter().flatten().all(|(_, meaning)| matches!(meaning, Meaning::Column(_)))
    }

    /// Where a name of joined parts stands; none where none or several have it.
    fn place(&self, table: Option<&str>, name: &str) -> Option<usize> {
        let name = unquote(name);
        let is_it = |((other, _), (alias, _, is_seen)): (&(String, Meaning), &(Option<String>, usize, bool))| {
            other.eq_ignore_ascii_case(&name)
                && match (table, alias) {
                    (None, _) => *is_seen,
                    (Some(table), Some(alias)) => same_name(table, alias),
                    (Some(_), None) => false,
                }
        };
        let seen = self.means.iter().flatten().zip(&self.parts).enumerate();
        let found: Vec<usize> = seen.filter(|(_, seen)| is_it(*seen)).map(|(at, _)| at).collect();
        let within: Vec<usize> = found.iter().copied().filter(|at| self.parts[*at].1 == self.inner).collect();
        match (found.as_slice(), within.as_slice()) {
            ([at], _) | (_, [at]) => Some(*at),
            _ => None,
        }
    }

    /// The part that a name means.
    pub(super) fn part_of(&self, table: Option<&str>, name: &str) -> Option<usize> {
        self.parts.get(self.place(table, name)?).map(|(_, part, _)| *part)
    }

    /// Of a view; what it derives goes on being derived.
    pub(super) fn through(view: View, alias: Option<String>, node: Option<String>) -> Self {
        let is_windowed = !view.calls.is_empty();
        let (derived, calls) = (RefCell::new(view.derived), RefCell::new(view.calls));
        Self { means: Some(view.columns), derived, calls, is_windowed, ..Self::of(view.base, alias, node) }
    }

    /// The columns that the scan has in addition to the table's: made of others, and by windows.
    pub(super) fn into_derived(self) -> (Vec<Derived>, Vec<WindowCall>) {
        (self.derived.into_inner(), self.calls.into_inner())
    }

    /// The names that are seen, in order.
    pub(super) fn seen(&self) -> Vec<&str> {
        match &self.means {
            None => self.columns.iter().map(|column| column.name.as_str()).collect(),
            Some(means) => means.iter().map(|(name, _)| name.as_str()).collect(),
        }
    }

    /// What an expression means, when it is a name alone.
    pub(super) fn meaning(&self, expr: &Expr) -> Option<Meaning> {
        let Expr::Column { table, name } = expr.peeled() else { return None };
        if !self.parts.is_empty() {
            return Some(self.place(table.as_deref(), name).and_then(|at| self.at(at)).unwrap_or(Meaning::Other));
        }
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
    pub(super) fn at(&self, at: usize) -> Option<Meaning> {
        match &self.means {
            None => Some(Meaning::Column(self.columns.get(at)?.name.clone())),
            Some(means) => Some(means.get(at)?.1.clone()),
        }
    }

    /// The scan's column that an expression is.
    pub(super) fn column(&self, expr: &Expr) -> Option<String> {
        match self.meaning(expr)? {
            Meaning::Column(name) => Some(name),
            Meaning::Constant(_) | Meaning::Computed(_) | Meaning::Other => None,
        }
    }

    pub(super) fn is_node(&self, table: Option<&str>, name: &str) -> bool {
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
}
