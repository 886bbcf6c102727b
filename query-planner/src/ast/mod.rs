//! The owned syntax tree of one SELECT: what the rules look at and rewrite.
//!
//! The tree mirrors sqlite3-parser's, whose nodes borrow from an arena, cannot be cloned and (FROM)
//! cannot be built from outside. Here every node is owned and cloneable. `parse` makes it, `print`
//! writes it back as SQL, `visit` walks it. Names are kept as typed, quotes included; [`unquote`]
//! gives the bare name for comparing.

mod parse;
mod print;
mod visit;

pub(crate) use parse::{ParseFailure, is_shallow, parse_select, parse_shallow_select, parse_view, statement_kind};
pub(crate) use print::{is_keyword, quote_name};
pub(crate) use visit::{Visit, VisitMut, calls_any, walk, walk_mut};

/// A SELECT with its WITH, ORDER BY and LIMIT.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Select {
    pub(crate) with: Option<With>,
    pub(crate) first: Core,
    pub(crate) compounds: Vec<(Compound, Core)>,
    pub(crate) order_by: Vec<Sort>,
    pub(crate) limit: Option<Limit>,
}

/// WITH clause.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct With {
    pub(crate) recursive: bool,
    pub(crate) ctes: Vec<Cte>,
}

/// One common table expression.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cte {
    pub(crate) name: String,
    pub(crate) columns: Vec<String>,
    pub(crate) materialized: Option<bool>,
    pub(crate) select: Select,
}

/// Compound operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compound {
    Union,
    UnionAll,
    Except,
    Intersect,
}

/// One arm of a compound.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Core {
    Query(Box<Query>),
    Values(Vec<Vec<Expr>>),
}

/// SELECT … FROM … WHERE … GROUP BY … HAVING … WINDOW.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Query {
    pub(crate) distinct: bool,
    pub(crate) columns: Vec<Output>,
    pub(crate) from: Option<From>,
    pub(crate) filter: Option<Expr>,
    pub(crate) group_by: Vec<Expr>,
    pub(crate) having: Option<Expr>,
    pub(crate) windows: Vec<(String, Window)>,
}

/// A result column.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Output {
    Expr(Expr, Option<String>),
    Star,
    TableStar(String),
}

/// FROM clause: a first source and what is joined to it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct From {
    pub(crate) first: Source,
    pub(crate) joins: Vec<Join>,
}

/// One joined source.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Join {
    pub(crate) kind: JoinKind,
    pub(crate) natural: bool,
    pub(crate) source: Source,
    pub(crate) on: Option<Expr>,
    pub(crate) using: Vec<String>,
}

/// Join operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JoinKind {
    Comma,
    Inner,
    Cross,
    Left,
    Right,
    Full,
}

/// Something in FROM.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Source {
    Table { schema: Option<String>, name: String, alias: Option<String>, indexed: Indexed },
    Call { name: String, args: Vec<Expr>, alias: Option<String> },
    Select { select: Box<Select>, alias: Option<String> },
    Nested { from: Box<From>, alias: Option<String> },
}

/// INDEXED BY / NOT INDEXED.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Indexed {
    Any,
    By(String),
    Not,
}

/// An ORDER BY term.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sort {
    pub(crate) expr: Expr,
    pub(crate) desc: Option<bool>,
    pub(crate) nulls_first: Option<bool>,
}

/// LIMIT and OFFSET.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Limit {
    pub(crate) count: Expr,
    pub(crate) offset: Option<Expr>,
}

/// OVER clause.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Over {
    Name(String),
    Window(Window),
}

/// A window definition.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Window {
    pub(crate) base: Option<String>,
    pub(crate) partition_by: Vec<Expr>,
    pub(crate) order_by: Vec<Sort>,
    pub(crate) frame: Option<Frame>,
}

/// A window frame; the words (mode, exclusion) stay text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Frame {
    pub(crate) mode: &'static str,
    pub(crate) start: Bound,
    pub(crate) end: Option<Bound>,
    pub(crate) exclude: Option<&'static str>,
}

/// A frame bound.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Bound {
    CurrentRow,
    Following(Box<Expr>),
    Preceding(Box<Expr>),
    UnboundedFollowing,
    UnboundedPreceding,
}

/// A function call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) distinct: bool,
    pub(crate) star: bool,
    pub(crate) args: Vec<Expr>,
    pub(crate) order_by: Vec<Sort>,
    pub(crate) filter: Option<Expr>,
    pub(crate) over: Option<Over>,
}

/// An expression.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Expr {
    Between {
        lhs: Box<Expr>,
        not: bool,
        low: Box<Expr>,
        high: Box<Expr>,
    },
    /// Operator as SQL text.
    Binary(Box<Expr>, &'static str, Box<Expr>),
    Case {
        base: Option<Box<Expr>>,
        arms: Vec<(Expr, Expr)>,
        otherwise: Option<Box<Expr>>,
    },
    Cast(Box<Expr>, String),
    Collate(Box<Expr>, String),
    Column {
        table: Option<String>,
        name: String,
    },
    Exists(Box<Select>),
    Call(Box<Call>),
    InList {
        lhs: Box<Expr>,
        not: bool,
        list: Vec<Expr>,
    },
    InSelect {
        lhs: Box<Expr>,
        not: bool,
        select: Box<Select>,
    },
    InTable {
        lhs: Box<Expr>,
        not: bool,
        table: String,
        args: Option<Vec<Expr>>,
    },
    IsNull(Box<Expr>),
    NotNull(Box<Expr>),
    Like {
        lhs: Box<Expr>,
        not: bool,
        op: &'static str,
        rhs: Box<Expr>,
        escape: Option<Box<Expr>>,
    },
    /// Literal as SQL text.
    Literal(String),
    /// One expression in parentheses, or a row value.
    Paren(Vec<Expr>),
    Subquery(Box<Select>),
    Unary(&'static str, Box<Expr>),
    Variable(String),
}

impl Expr {
    /// A bare column reference; the name is quoted when it has to be.
    pub(crate) fn column(name: &str) -> Expr {
        Expr::Column { table: None, name: quote_name(name) }
    }

    /// A call of a plain function.
    pub(crate) fn call(name: &str, args: Vec<Expr>) -> Expr {
        Expr::Call(Box::new(Call {
            name: name.to_owned(),
            distinct: false,
            star: false,
            args,
            order_by: Vec::new(),
            filter: None,
            over: None,
        }))
    }

    /// This expression in parentheses.
    pub(crate) fn paren(self) -> Expr {
        Expr::Paren(vec![self])
    }

    /// `self`, or what is in its single parentheses.
    pub(crate) fn peeled(&self) -> &Expr {
        let mut expr = self;
        while let Expr::Paren(inner) = expr {
            match inner.as_slice() {
                [one] => expr = one,
                _ => break,
            }
        }
        expr
    }

    /// An integer literal, signed or in parentheses.
    pub(crate) fn integer(&self) -> Option<i64> {
        match self.peeled() {
            Expr::Literal(text) => text.parse().ok(),
            Expr::Unary("-", inner) => match inner.peeled() {
                Expr::Literal(text) => format!("-{text}").parse().ok(),
                _ => None,
            },
            Expr::Unary("+", inner) => inner.integer(),
            _ => None,
        }
    }
}

impl Select {
    /// A SELECT of one query and nothing around it.
    pub(crate) fn of(query: Query) -> Select {
        Select {
            with: None,
            first: Core::Query(Box::new(query)),
            compounds: Vec::new(),
            order_by: Vec::new(),
            limit: None,
        }
    }

    /// The one query this SELECT is, when it has no WITH and is no compound.
    pub(crate) fn single(&self) -> Option<&Query> {
        match (&self.with, &self.first, self.compounds.as_slice()) {
            (None, Core::Query(query), []) => Some(query),
            _ => None,
        }
    }
}

impl From {
    /// All sources, left to right (nested joins count as one).
    pub(crate) fn sources(&self) -> impl Iterator<Item = &Source> {
        std::iter::once(&self.first).chain(self.joins.iter().map(|join| &join.source))
    }
}

/// The bare name behind SQL's four ways to quote one.
pub(crate) fn unquote(name: &str) -> String {
    let mut chars = name.chars();
    let close = match chars.next() {
        Some('"') => '"',
        Some('`') => '`',
        Some('\'') => '\'',
        Some('[') => {
            return name.trim_start_matches('[').trim_end_matches(']').to_owned();
        }
        _ => return name.to_owned(),
    };
    let inner = name.get(1..name.len().saturating_sub(1)).unwrap_or_default();
    let doubled: String = [close, close].iter().collect();
    inner.replace(&doubled, &close.to_string())
}

/// Whether two names, as typed, mean the same thing.
pub(crate) fn same_name(a: &str, b: &str) -> bool {
    unquote(a).eq_ignore_ascii_case(&unquote(b))
}

/// The conjuncts of a condition: what AND joins at the top, through parentheses.
pub(crate) fn conjuncts(expr: &Expr) -> Vec<&Expr> {
    match expr.peeled() {
        Expr::Binary(lhs, "AND", rhs) => {
            let mut all = conjuncts(lhs);
            all.extend(conjuncts(rhs));
            all
        }
        other => vec![other],
    }
}
