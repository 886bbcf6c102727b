//! From the owned tree back to SQL. Parentheses the user typed are nodes of the tree, so what is
//! printed binds as it was read; a rule that puts an expression somewhere new wraps it itself.

use std::fmt::{self, Display, Formatter};

use super::{
    Bound, Call, Compound, Core, Cte, Expr, Frame, From, Indexed, Join, JoinKind, Output, Over, Query, Select, Sort,
    Source, Window,
};

/// Whether SQLite's tokenizer knows the word.
pub(crate) fn is_keyword(word: &str) -> bool {
    // The table lookup asserts a plausible length.
    (2..=17).contains(&word.len()) && sqlite3_parser::dialect::keyword_token(word.as_bytes()).is_some()
}

/// A name as SQL: bare when it is a plain lower-risk identifier, else in double quotes.
pub(crate) fn quote_name(name: &str) -> String {
    let plain = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !is_keyword(name);
    if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

fn list<T: Display>(f: &mut Formatter<'_>, items: &[T]) -> fmt::Result {
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        item.fmt(f)?;
    }
    Ok(())
}

impl Display for Select {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(with) = &self.with {
            f.write_str(if with.recursive { "WITH RECURSIVE " } else { "WITH " })?;
            list(f, &with.ctes)?;
            f.write_str(" ")?;
        }
        self.first.fmt(f)?;
        for (operator, core) in &self.compounds {
            f.write_str(match operator {
                Compound::Union => " UNION ",
                Compound::UnionAll => " UNION ALL ",
                Compound::Except => " EXCEPT ",
                Compound::Intersect => " INTERSECT ",
            })?;
            core.fmt(f)?;
        }
        if !self.order_by.is_empty() {
            f.write_str(" ORDER BY ")?;
            list(f, &self.order_by)?;
        }
        if let Some(limit) = &self.limit {
            write!(f, " LIMIT {}", limit.count)?;
            if let Some(offset) = &limit.offset {
                write!(f, " OFFSET {offset}")?;
            }
        }
        Ok(())
    }
}

impl Display for Cte {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if !self.columns.is_empty() {
            write!(f, "({})", self.columns.join(", "))?;
        }
        f.write_str(match self.materialized {
            None => " AS (",
            Some(true) => " AS MATERIALIZED (",
            Some(false) => " AS NOT MATERIALIZED (",
        })?;
        write!(f, "{})", self.select)
    }
}

impl Display for Core {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Core::Query(query) => query.fmt(f),
            Core::Values(rows) => {
                f.write_str("VALUES ")?;
                for (i, row) in rows.iter().enumerate() {
                    f.write_str(if i > 0 { ", (" } else { "(" })?;
                    list(f, row)?;
                    f.write_str(")")?;
                }
                Ok(())
            }
        }
    }
}

impl Display for Query {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(if self.distinct { "SELECT DISTINCT " } else { "SELECT " })?;
        list(f, &self.columns)?;
        if let Some(from) = &self.from {
            write!(f, " FROM {from}")?;
        }
        if let Some(filter) = &self.filter {
            write!(f, " WHERE {filter}")?;
        }
        if !self.group_by.is_empty() {
            f.write_str(" GROUP BY ")?;
            list(f, &self.group_by)?;
        }
        if let Some(having) = &self.having {
            write!(f, " HAVING {having}")?;
        }
        for (i, (name, window)) in self.windows.iter().enumerate() {
            write!(f, "{} {name} AS ({window})", if i > 0 { "," } else { " WINDOW" })?;
        }
        Ok(())
    }
}

impl Display for Output {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Output::Expr(expr, None) => expr.fmt(f),
            Output::Expr(expr, Some(alias)) => write!(f, "{expr} AS {alias}"),
            Output::Star => f.write_str("*"),
            Output::TableStar(name) => write!(f, "{name}.*"),
        }
    }
}

impl Display for From {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)?;
        self.joins.iter().try_for_each(|join| join.fmt(f))
    }
}

impl Display for Join {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.kind != JoinKind::Comma {
            f.write_str(if self.natural { " NATURAL" } else { "" })?;
        }
        f.write_str(match self.kind {
            JoinKind::Comma => ", ",
            JoinKind::Inner => " JOIN ",
            JoinKind::Cross => " CROSS JOIN ",
            JoinKind::Left => " LEFT JOIN ",
            JoinKind::Right => " RIGHT JOIN ",
            JoinKind::Full => " FULL JOIN ",
        })?;
        self.source.fmt(f)?;
        if let Some(on) = &self.on {
            write!(f, " ON {on}")?;
        }
        if !self.using.is_empty() {
            write!(f, " USING ({})", self.using.join(", "))?;
        }
        Ok(())
    }
}

impl Display for Source {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let alias = match self {
            Source::Table { name, alias, indexed, schema } => {
                if let Some(schema) = schema {
                    write!(f, "{schema}.")?;
                }
                f.write_str(name)?;
                if let Some(alias) = alias {
                    write!(f, " AS {alias}")?;
                }
                return match indexed {
                    Indexed::Any => Ok(()),
                    Indexed::By(index) => write!(f, " INDEXED BY {index}"),
                    Indexed::Not => f.write_str(" NOT INDEXED"),
                };
            }
            Source::Call { name, args, alias } => {
                write!(f, "{name}(")?;
                list(f, args)?;
                f.write_str(")")?;
                alias
            }
            Source::Select { select, alias } => {
                write!(f, "({select})")?;
                alias
            }
            Source::Nested { from, alias } => {
                write!(f, "({from})")?;
                alias
            }
        };
        match alias {
            Some(alias) => write!(f, " AS {alias}"),
            None => Ok(()),
        }
    }
}

impl Display for Sort {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.expr.fmt(f)?;
        f.write_str(match self.desc {
            None => "",
            Some(false) => " ASC",
            Some(true) => " DESC",
        })?;
        f.write_str(match self.nulls_first {
            None => "",
            Some(true) => " NULLS FIRST",
            Some(false) => " NULLS LAST",
        })
    }
}

impl Display for Window {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut space = "";
        if let Some(base) = &self.base {
            f.write_str(base)?;
            space = " ";
        }
        if !self.partition_by.is_empty() {
            write!(f, "{space}PARTITION BY ")?;
            list(f, &self.partition_by)?;
            space = " ";
        }
        if !self.order_by.is_empty() {
            write!(f, "{space}ORDER BY ")?;
            list(f, &self.order_by)?;
            space = " ";
        }
        match &self.frame {
            Some(frame) => write!(f, "{space}{frame}"),
            None => Ok(()),
        }
    }
}

impl Display for Frame {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.end {
            Some(end) => write!(f, "{} BETWEEN {} AND {end}", self.mode, self.start)?,
            None => write!(f, "{} {}", self.mode, self.start)?,
        }
        match self.exclude {
            Some(exclude) => write!(f, " EXCLUDE {exclude}"),
            None => Ok(()),
        }
    }
}

impl Display for Bound {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Bound::CurrentRow => f.write_str("CURRENT ROW"),
            Bound::Following(expr) => write!(f, "{expr} FOLLOWING"),
            Bound::Preceding(expr) => write!(f, "{expr} PRECEDING"),
            Bound::UnboundedFollowing => f.write_str("UNBOUNDED FOLLOWING"),
            Bound::UnboundedPreceding => f.write_str("UNBOUNDED PRECEDING"),
        }
    }
}

impl Display for Call {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.name)?;
        if self.star {
            f.write_str("*")?;
        }
        if self.distinct {
            f.write_str("DISTINCT ")?;
        }
        list(f, &self.args)?;
        if !self.order_by.is_empty() {
            f.write_str(" ORDER BY ")?;
            list(f, &self.order_by)?;
        }
        f.write_str(")")?;
        if let Some(filter) = &self.filter {
            write!(f, " FILTER (WHERE {filter})")?;
        }
        match &self.over {
            None => Ok(()),
            Some(Over::Name(name)) => write!(f, " OVER {name}"),
            Some(Over::Window(window)) => write!(f, " OVER ({window})"),
        }
    }
}

fn not(yes: bool) -> &'static str {
    if yes { " NOT" } else { "" }
}

impl Display for Expr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Expr::Between { lhs, not: n, low, high } => write!(f, "{lhs}{} BETWEEN {low} AND {high}", not(*n)),
            Expr::Binary(lhs, operator, rhs) => write!(f, "{lhs} {operator} {rhs}"),
            Expr::Case { base, arms, otherwise } => {
                f.write_str("CASE")?;
                if let Some(base) = base {
                    write!(f, " {base}")?;
                }
                for (when, then) in arms {
                    write!(f, " WHEN {when} THEN {then}")?;
                }
                if let Some(otherwise) = otherwise {
                    write!(f, " ELSE {otherwise}")?;
                }
                f.write_str(" END")
            }
            Expr::Cast(expr, name) => write!(f, "CAST({expr} AS {name})"),
            Expr::Collate(expr, name) => write!(f, "{expr} COLLATE {name}"),
            Expr::Column { table: Some(table), name } => write!(f, "{table}.{name}"),
            Expr::Column { table: None, name } => f.write_str(name),
            Expr::Exists(select) => write!(f, "EXISTS ({select})"),
            Expr::Call(call) => call.fmt(f),
            Expr::InList { lhs, not: n, list: items } => {
                write!(f, "{lhs}{} IN (", not(*n))?;
                list(f, items)?;
                f.write_str(")")
            }
            Expr::InSelect { lhs, not: n, select } => write!(f, "{lhs}{} IN ({select})", not(*n)),
            Expr::InTable { lhs, not: n, table, args } => {
                write!(f, "{lhs}{} IN {table}", not(*n))?;
                match args {
                    Some(args) => {
                        f.write_str("(")?;
                        list(f, args)?;
                        f.write_str(")")
                    }
                    None => Ok(()),
                }
            }
            Expr::IsNull(expr) => write!(f, "{expr} ISNULL"),
            Expr::NotNull(expr) => write!(f, "{expr} NOTNULL"),
            Expr::Like { lhs, not: n, op, rhs, escape } => {
                write!(f, "{lhs}{} {op} {rhs}", not(*n))?;
                match escape {
                    Some(escape) => write!(f, " ESCAPE {escape}"),
                    None => Ok(()),
                }
            }
            Expr::Literal(text) => f.write_str(text),
            Expr::Paren(exprs) => {
                f.write_str("(")?;
                list(f, exprs)?;
                f.write_str(")")
            }
            Expr::Subquery(select) => write!(f, "({select})"),
            // The space keeps `- -1` from becoming a comment.
            Expr::Unary(operator, expr) if *operator == "NOT" || matches!(**expr, Expr::Unary(..)) => {
                write!(f, "{operator} {expr}")
            }
            Expr::Unary(operator, expr) => write!(f, "{operator}{expr}"),
            Expr::Variable(name) => f.write_str(name),
        }
    }
}
