//! What names mean in one FROM: its sources, their columns, and what of a column a merge must keep
//! (affinity, collation). Resolution follows SQLite's; what is not plain to see is `None`, and the
//! question has no shape (`shape.rs`).

use crate::ast::{Expr, From, JoinKind, Output, Select, Source, conjuncts, unquote};
use crate::catalog::{Catalog, Table, has_node, node_column};
use crate::expressions::contains;
use crate::functions;
use crate::names::affinity;

/// A column that an expression can name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ColumnInfo {
    pub(crate) name: String,
    /// Type name standing for the affinity; None for none at all (an expression of a view or
    /// subquery).
    pub(crate) affinity: Option<&'static str>,
    pub(crate) collation: String,
    /// Not part of `*`.
    pub(crate) hidden: bool,
    /// The hidden column that names the node.
    pub(crate) is_node: bool,
}

impl ColumnInfo {
    /// What stands for this column in the merge: see [`Scope::stand_in`].
    pub(crate) fn stand_in(&self, name: &str) -> Expr {
        match self.affinity {
            Some(_) => Expr::column(name),
            // A subquery's expression: a collation of its own, no affinity.
            None => Expr::Unary("+", Box::new(Expr::column(name))),
        }
    }
}

/// One source of FROM.
#[derive(Debug, Clone)]
pub(crate) struct ScopeSource {
    pub(crate) alias: Option<String>,
    columns: Vec<ColumnInfo>,
    /// An outer join may put NULLs in place of its rows.
    nullable: bool,
}

/// What names mean in one FROM.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scope {
    pub(crate) sources: Vec<ScopeSource>,
    /// Columns that USING or NATURAL has merged.
    pub(crate) merged: Vec<String>,
    has_right_join: bool,
}

impl Scope {
    pub(crate) fn of(from: &From, catalog: &Catalog) -> Option<Scope> {
        let mut scope = Scope::default();
        scope.add_from(from, catalog)?;
        Some(scope)
    }

    fn add_from(&mut self, from: &From, catalog: &Catalog) -> Option<()> {
        self.add_source(&from.first, catalog)?;
        for join in &from.joins {
            self.has_right_join |= matches!(join.kind, JoinKind::Right | JoinKind::Full);
            let before: Vec<String> =
                self.sources.iter().flat_map(|source| &source.columns).map(|column| column.name.clone()).collect();
            let first_right = self.sources.len();
            self.add_source(&join.source, catalog)?;
            for (i, source) in self.sources.iter_mut().enumerate() {
                source.nullable |= match join.kind {
                    JoinKind::Left => i >= first_right,
                    JoinKind::Right => i < first_right,
                    JoinKind::Full => true,
                    JoinKind::Comma | JoinKind::Inner | JoinKind::Cross => false,
                };
            }
            self.merged.extend(join.using.iter().map(|name| unquote(name)));
            if join.natural {
                let added = self.sources.last()?;
                self.merged.extend(
                    added
                        .columns
                        .iter()
                        .filter(|column| !column.hidden)
                        .map(|column| column.name.clone())
                        .filter(|name| before.iter().any(|other| other.eq_ignore_ascii_case(name))),
                );
            }
        }
        Some(())
    }

    fn add_source(&mut self, source: &Source, catalog: &Catalog) -> Option<()> {
        let (alias, columns) = match source {
            Source::Table { name, alias, .. } => {
                let table = catalog.find(name)?;
                (Some(unquote(alias.as_ref().unwrap_or(name))), table_columns(table))
            }
            Source::Select { select, alias } => {
                (alias.as_ref().map(|alias| unquote(alias)), select_columns(select, catalog)?)
            }
            Source::Call { name, alias, .. } => {
                let columns = ["key", "value", "type", "atom", "id", "parent", "fullkey", "path", "json", "root"];
                let column = |name: &&str| ColumnInfo {
                    name: (*name).to_owned(),
                    affinity: Some(""),
                    collation: "BINARY".to_owned(),
                    hidden: matches!(*name, "json" | "root"),
                    is_node: false,
                };
                (Some(unquote(alias.as_ref().unwrap_or(name))), columns.iter().map(column).collect())
            }
            Source::Nested { from, alias: None } => return self.add_from(from, catalog),
            Source::Nested { .. } => return None,
        };
        self.sources.push(ScopeSource { alias, columns, nullable: false });
        Some(())
    }

    /// The source and column that a name means.
    pub(crate) fn find(&self, table: Option<&str>, name: &str) -> Option<(&ScopeSource, &ColumnInfo)> {
        let name = unquote(name);
        let mut found = self
            .sources
            .iter()
            .filter(|source| match (table, &source.alias) {
                (None, _) => true,
                (Some(table), Some(alias)) => unquote(table).eq_ignore_ascii_case(alias),
                (Some(_), None) => false,
            })
            .flat_map(|source| source.columns.iter().map(move |column| (source, column)))
            .filter(|(_, column)| column.name.eq_ignore_ascii_case(&name));
        let first = found.next()?;
        let several = found.next().is_some();
        let is_merged = self.merged.iter().any(|other| other.eq_ignore_ascii_case(&name));
        // A merged column of a RIGHT or FULL join is computed from both sides: no plain column.
        if (several && !is_merged) || (is_merged && self.has_right_join) {
            return None;
        }
        Some(first)
    }

    /// The column an expression is, parentheses aside.
    pub(crate) fn column(&self, expr: &Expr) -> Option<&ColumnInfo> {
        match expr.peeled() {
            Expr::Column { table, name } => self.find(table.as_deref(), name).map(|(_, column)| column),
            _ => None,
        }
    }

    fn is_node(&self, expr: &Expr) -> bool {
        self.column(expr).is_some_and(|column| column.is_node)
    }

    /// Whether the expression names the node of every row: a node column that no outer join makes
    /// NULL. Rows that have NULL there are on several nodes.
    pub(crate) fn parts_by_node(&self, expr: &Expr) -> bool {
        match expr.peeled() {
            Expr::Column { table, name } => {
                self.find(table.as_deref(), name).is_some_and(|(source, column)| column.is_node && !source.nullable)
            }
            _ => false,
        }
    }

    /// All visible columns in order, as `*` gives them; None where joins merge columns.
    pub(crate) fn star(&self) -> Option<Vec<&ColumnInfo>> {
        self.merged
            .is_empty()
            .then(|| self.sources.iter().flat_map(|source| &source.columns).filter(|c| !c.hidden).collect())
    }

    /// The visible columns of one source.
    pub(crate) fn table_star(&self, alias: &str) -> Option<Vec<&ColumnInfo>> {
        let alias = unquote(alias);
        let mut named =
            self.sources.iter().filter(|s| s.alias.as_ref().is_some_and(|a| a.eq_ignore_ascii_case(&alias)));
        let source = named.next()?;
        Some(source.columns.iter().filter(|column| !column.hidden).collect())
    }

    /// The collating sequence by which SQLite compares values of this expression; None when it is
    /// not plain to see (COLLATE deep inside an operator) or not one that every SQLite has.
    pub(crate) fn collation(&self, expr: &Expr) -> Option<String> {
        let name = match expr.peeled() {
            Expr::Collate(_, name) => unquote(name),
            Expr::Column { table, name } => match self.find(table.as_deref(), name) {
                Some((_, column)) => column.collation.clone(),
                None => return None,
            },
            Expr::Cast(inner, _) | Expr::Unary("+", inner) => return self.collation(inner),
            // Transparent to collation, and too rare to follow.
            Expr::Call(call) if matches!(unquote(&call.name).as_str(), "likely" | "unlikely" | "likelihood") => {
                return None;
            }
            Expr::Paren(_) => return None,
            other if contains(other, |inner| matches!(inner, Expr::Collate(..))) => return None,
            _ => "BINARY".to_owned(),
        };
        let known = ["BINARY", "NOCASE", "RTRIM"].into_iter().find(|known| known.eq_ignore_ascii_case(&name));
        known.map(str::to_owned)
    }

    /// The affinity that a merge's column may have without changing the values of this expression:
    /// that of a column, none of anything else.
    pub(crate) fn stored_affinity(&self, expr: &Expr) -> &'static str {
        match expr.peeled() {
            Expr::Collate(inner, _) | Expr::Unary("+", inner) => self.stored_affinity(inner),
            other => self.column(other).and_then(|column| column.affinity).unwrap_or(""),
        }
    }

    /// What stands for a shipped expression in the merge, where a column `name` has its values: the
    /// affinity and collation are those that the expression had.
    pub(crate) fn stand_in(&self, expr: &Expr, name: &str) -> Expr {
        match expr {
            Expr::Paren(inner) if inner.len() == 1 => self.stand_in(&inner[0], name).paren(),
            Expr::Collate(inner, collation) => Expr::Collate(Box::new(self.stand_in(inner, name)), collation.clone()),
            Expr::Unary("+", inner) => Expr::Unary("+", Box::new(self.stand_in(inner, name))),
            Expr::Cast(_, type_name) => Expr::Cast(Box::new(Expr::column(name)), type_name.clone()),
            other => match self.column(other) {
                Some(column) => column.stand_in(name),
                None => Expr::call(functions::VALUE, vec![Expr::column(name)]),
            },
        }
    }

    /// The nodes that a condition admits.
    pub(crate) fn admitted_nodes(&self, filter: &Expr) -> Option<Vec<String>> {
        admitted_nodes(filter, &|expr| self.is_node(expr))
    }
}

/// The nodes that a condition admits, where it names them: `node = 'a'`, `node IN ('a', 'b')`, and
/// these with AND and OR. `is_node`: whether an expression is the node column.
pub(crate) fn admitted_nodes(filter: &Expr, is_node: &dyn Fn(&Expr) -> bool) -> Option<Vec<String>> {
    let text = literal_text;
    let mut admitted: Option<Vec<String>> = None;
    for conjunct in conjuncts(filter) {
        let names = match conjunct {
            Expr::Binary(lhs, "=" | "IS", rhs) if is_node(lhs) => text(rhs).map(|name| vec![name]),
            Expr::Binary(lhs, "=" | "IS", rhs) if is_node(rhs) => text(lhs).map(|name| vec![name]),
            Expr::InList { lhs, not: false, list } if is_node(lhs) => list.iter().map(text).collect(),
            Expr::Binary(lhs, "OR", rhs) => admitted_nodes(lhs, is_node)
                .zip(admitted_nodes(rhs, is_node))
                .map(|(left, right)| [left, right].concat()),
            _ => None,
        };
        if let Some(names) = names {
            admitted = Some(match admitted {
                None => names,
                Some(before) => before.into_iter().filter(|name| names.contains(name)).collect(),
            });
        }
    }
    admitted
}

/// The text of a string literal.
pub(crate) fn literal_text(expr: &Expr) -> Option<String> {
    match expr.peeled() {
        Expr::Literal(text) if text.starts_with('\'') => Some(unquote(text)),
        _ => None,
    }
}

fn table_columns(table: &Table) -> Vec<ColumnInfo> {
    let mut columns: Vec<ColumnInfo> = table
        .columns
        .iter()
        .map(|column| ColumnInfo {
            name: column.name.clone(),
            affinity: if column.plain || !column.decl_type.is_empty() {
                Some(affinity(&column.decl_type))
            } else {
                None
            },
            collation: column.collation.clone(),
            hidden: false,
            is_node: false,
        })
        .collect();
    if has_node(table) {
        columns.push(ColumnInfo {
            name: node_column(table).to_owned(),
            affinity: Some("TEXT"),
            collation: "BINARY".to_owned(),
            hidden: true,
            is_node: true,
        });
    }
    columns
}

/// A column that `*` shows: should it name nodes, it is not relied upon.
fn not_node(column: ColumnInfo) -> ColumnInfo {
    ColumnInfo { is_node: false, ..column }
}

/// The columns of a subquery in FROM; None when they are not plain to see.
pub(crate) fn select_columns(select: &Select, catalog: &Catalog) -> Option<Vec<ColumnInfo>> {
    let query = select.single()?;
    let scope = match &query.from {
        Some(from) => Scope::of(from, catalog)?,
        None => Scope::default(),
    };
    let mut columns = Vec::new();
    for output in &query.columns {
        match output {
            Output::Star => columns.extend(scope.star()?.into_iter().cloned().map(not_node)),
            Output::TableStar(alias) => columns.extend(scope.table_star(alias)?.into_iter().cloned().map(not_node)),
            Output::Expr(expr, alias) => {
                let mut source = scope.column(expr).cloned();
                // NULL of an outer join names no node.
                if let Some(source) = &mut source {
                    source.is_node &= scope.parts_by_node(expr);
                }
                let name = match (alias, expr.peeled()) {
                    (Some(alias), _) => unquote(alias),
                    (None, Expr::Column { name, .. }) => unquote(name),
                    (None, other) => other.to_string(),
                };
                columns.push(match source {
                    Some(source) => ColumnInfo { name, hidden: false, ..source },
                    None if matches!(expr.peeled(), Expr::Cast(..) | Expr::Subquery(_)) => return None,
                    None => ColumnInfo {
                        name,
                        affinity: None,
                        collation: scope.collation(expr)?,
                        hidden: false,
                        is_node: false,
                    },
                });
            }
        }
    }
    Some(columns)
}
