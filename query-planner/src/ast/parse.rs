//! From SQL text to the owned tree, through sqlite3-parser, whose own tree is built without
//! recursion. The depth of the owned tree is bounded here, since texts come from other nodes, too,
//! and not all of them have been prepared by SQLite before. What is not one SELECT is named here.

use std::cell::Cell;

use sqlite3_parser::ast as p;
use sqlite3_parser::lexer::sql::Parser;
use sqlite3_parser::{Bump, FallibleIterator as _};

use super::{
    Bound, Call, Compound, Core, Cte, Expr, Frame, From, Indexed, Join, JoinKind, Limit, Output, Over, Query, Select,
    Sort, Source, Window, With,
};

/// Why a text is not one SELECT.
#[derive(Debug)]
pub(crate) enum ParseFailure {
    /// The parser's own words.
    Syntax(String),
    /// More than one statement.
    Several,
    /// No statement at all.
    Nothing,
    /// EXPLAIN.
    Explain,
    /// Another statement.
    NotSelect,
    /// A construct the planner does not know.
    Unknown(&'static str),
    /// Expressions and subqueries are nested deeper than allowed.
    TooDeep,
}

type Parsed<T> = Result<T, ParseFailure>;

/// Levels that a tree may have. Everything that walks one recurses, so this bounds the stack for
/// any text. SQLite itself allows less (SQLITE_MAX_PARSER_DEPTH, 2,500).
const MOST_LEVELS: u32 = 3_000;

thread_local! {
    /// Levels that the tree under construction may still have.
    static LEVELS_LEFT: Cell<u32> = const { Cell::new(MOST_LEVELS) };
}

/// One level down, for as long as it lives.
struct Level(u32);

impl Level {
    fn down() -> Parsed<Level> {
        let left = LEVELS_LEFT.get();
        LEVELS_LEFT.set(left.checked_sub(1).ok_or(ParseFailure::TooDeep)?);
        Ok(Level(left))
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        LEVELS_LEFT.set(self.0);
    }
}

/// Levels and bytes of a text that is parsed on any stack, however much of that is in use: a level
/// takes about 10 KiB without optimisation. What people write is far from it.
const SHALLOW_LEVELS: u32 = 60;
const SHALLOW_BYTES: usize = 256 << 10;

fn shallow<T>(sql: &str, parse: impl FnOnce(&str) -> Parsed<T>) -> Parsed<T> {
    if sql.len() > SHALLOW_BYTES {
        return Err(ParseFailure::TooDeep);
    }
    let _restored = Level(LEVELS_LEFT.replace(SHALLOW_LEVELS));
    parse(sql)
}

/// As [`parse_select`], for a text that nobody has looked at before and a stack of any size.
pub(crate) fn parse_shallow_select(sql: &str) -> Parsed<Select> {
    shallow(sql, parse_select)
}

/// Parse one SELECT (or VALUES).
pub(crate) fn parse_select(sql: &str) -> Parsed<Select> {
    let bump = Bump::new();
    let mut parser = Parser::new(&bump, sql.as_bytes());
    let command = match parser.next() {
        Ok(Some(command)) => command,
        Ok(None) => return Err(ParseFailure::Nothing),
        Err(error) => return Err(ParseFailure::Syntax(error.to_string())),
    };
    let select = match command {
        p::Cmd::Stmt(p::Stmt::Select(select)) => convert_select(select)?,
        p::Cmd::Explain(_) | p::Cmd::ExplainQueryPlan(_) => return Err(ParseFailure::Explain),
        p::Cmd::Stmt(_) => return Err(ParseFailure::NotSelect),
    };
    match parser.next() {
        Ok(None) => Ok(select),
        _ => Err(ParseFailure::Several),
    }
}

/// Whether a text is one SELECT, without building its tree (which needs a bounded depth).
pub(crate) fn statement_kind(sql: &str) -> Parsed<()> {
    let bump = Bump::new();
    let mut parser = Parser::new(&bump, sql.as_bytes());
    match parser.next() {
        Ok(Some(p::Cmd::Stmt(p::Stmt::Select(_)))) => {}
        Ok(Some(p::Cmd::Explain(_) | p::Cmd::ExplainQueryPlan(_))) => {
            return Err(ParseFailure::Explain);
        }
        Ok(Some(_)) => return Err(ParseFailure::NotSelect),
        Ok(None) => return Err(ParseFailure::Nothing),
        Err(error) => return Err(ParseFailure::Syntax(error.to_string())),
    }
    match parser.next() {
        Ok(None) => Ok(()),
        Ok(Some(_)) => Err(ParseFailure::Several),
        Err(error) => Err(ParseFailure::Syntax(error.to_string())),
    }
}

/// Parse the SELECT of a text that is one `CREATE VIEW` statement and nothing else, where it is not
/// deep: it may be another node's.
pub(crate) fn parse_view(sql: &str) -> Parsed<Select> {
    shallow(sql, parse_any_view)
}

/// Whether a text, if it is a SELECT at all, can be worked on by recursion on any stack.
pub(crate) fn is_shallow(sql: &str) -> bool {
    !matches!(parse_shallow_select(sql), Err(ParseFailure::TooDeep))
}

fn parse_any_view(sql: &str) -> Parsed<Select> {
    let bump = Bump::new();
    let mut parser = Parser::new(&bump, sql.as_bytes());
    let select = match parser.next() {
        Ok(Some(p::Cmd::Stmt(p::Stmt::CreateView { select, .. }))) => convert_select(select)?,
        Ok(_) => return Err(ParseFailure::NotSelect),
        Err(error) => return Err(ParseFailure::Syntax(error.to_string())),
    };
    match parser.next() {
        Ok(None) => Ok(select),
        _ => Err(ParseFailure::Several),
    }
}

fn convert_select(select: &p::Select<'_>) -> Parsed<Select> {
    let _level = Level::down()?;
    let with = select.with.as_ref().map(convert_with).transpose()?;
    let mut compounds = Vec::new();
    for arm in select.body.compounds.iter().flatten() {
        let operator = match arm.operator {
            p::CompoundOperator::Union => Compound::Union,
            p::CompoundOperator::UnionAll => Compound::UnionAll,
            p::CompoundOperator::Except => Compound::Except,
            p::CompoundOperator::Intersect => Compound::Intersect,
        };
        compounds.push((operator, convert_core(&arm.select)?));
    }
    Ok(Select {
        with,
        first: convert_core(&select.body.select)?,
        compounds,
        order_by: convert_sorts(select.order_by)?,
        limit: select
            .limit
            .map(|limit| {
                Ok(Limit {
                    count: convert_expr(&limit.expr)?,
                    offset: limit.offset.as_ref().map(convert_expr).transpose()?,
                })
            })
            .transpose()?,
    })
}

fn convert_with(with: &p::With<'_>) -> Parsed<With> {
    let mut ctes = Vec::new();
    for cte in with.ctes {
        ctes.push(Cte {
            name: cte.tbl_name.0.to_owned(),
            columns: cte.columns.iter().flat_map(|cols| cols.iter()).map(|col| col.col_name.0.to_owned()).collect(),
            materialized: match cte.materialized {
                p::Materialized::Any => None,
                p::Materialized::Yes => Some(true),
                p::Materialized::No => Some(false),
            },
            select: convert_select(cte.select)?,
        });
    }
    Ok(With { recursive: with.recursive, ctes })
}

fn convert_core(core: &p::OneSelect<'_>) -> Parsed<Core> {
    match core {
        p::OneSelect::Values(rows) => {
            rows.iter().map(|row| row.iter().map(convert_expr).collect()).collect::<Parsed<_>>().map(Core::Values)
        }
        p::OneSelect::Select { distinctness, columns, from, where_clause, group_by, having, window_clause } => {
            Ok(Core::Query(Box::new(Query {
                distinct: matches!(distinctness, Some(p::Distinctness::Distinct)),
                columns: columns.iter().map(convert_output).collect::<Parsed<_>>()?,
                from: match from {
                    Some(from) => convert_from(from)?,
                    None => None,
                },
                filter: where_clause.map(convert_expr).transpose()?,
                group_by: convert_list(*group_by)?,
                having: having.map(convert_expr).transpose()?,
                windows: window_clause
                    .iter()
                    .flat_map(|defs| defs.iter())
                    .map(|def| Ok((def.name.0.to_owned(), convert_window(&def.window)?)))
                    .collect::<Parsed<_>>()?,
            })))
        }
    }
}

fn alias_of(alias: Option<&p::As<'_>>) -> Option<String> {
    match alias {
        Some(p::As::As(name) | p::As::Elided(name)) => Some(name.0.to_owned()),
        None => None,
    }
}

fn convert_output(column: &p::ResultColumn<'_>) -> Parsed<Output> {
    Ok(match column {
        p::ResultColumn::Expr(expr, alias) => Output::Expr(convert_expr(expr)?, alias_of(alias.as_ref())),
        p::ResultColumn::Star => Output::Star,
        p::ResultColumn::TableStar(name) => Output::TableStar(name.0.to_owned()),
    })
}

fn convert_from(from: &p::FromClause<'_>) -> Parsed<Option<From>> {
    let _level = Level::down()?;
    let Some(first) = from.select else {
        return Ok(None);
    };
    let mut joins = Vec::new();
    for join in from.joins.iter().flatten() {
        let (kind, natural) = match join.operator {
            p::JoinOperator::Comma => (JoinKind::Comma, false),
            p::JoinOperator::TypedJoin(None) => (JoinKind::Inner, false),
            p::JoinOperator::TypedJoin(Some(flags)) => {
                let left = flags.contains(p::JoinType::LEFT);
                let right = flags.contains(p::JoinType::RIGHT);
                let kind = match (left, right) {
                    (true, true) => JoinKind::Full,
                    (true, false) => JoinKind::Left,
                    (false, true) => JoinKind::Right,
                    (false, false) if flags.contains(p::JoinType::CROSS) => JoinKind::Cross,
                    (false, false) => JoinKind::Inner,
                };
                (kind, flags.contains(p::JoinType::NATURAL))
            }
        };
        let (on, using) = match &join.constraint {
            None => (None, Vec::new()),
            Some(p::JoinConstraint::On(expr)) => (Some(convert_expr(expr)?), Vec::new()),
            Some(p::JoinConstraint::Using(names)) => (None, names.iter().map(|name| name.0.to_owned()).collect()),
        };
        joins.push(Join { kind, natural, source: convert_source(&join.table)?, on, using });
    }
    Ok(Some(From { first: convert_source(first)?, joins }))
}

fn convert_source(source: &p::SelectTable<'_>) -> Parsed<Source> {
    Ok(match source {
        p::SelectTable::Table(name, alias, indexed) => Source::Table {
            schema: name.db_name.as_ref().map(|schema| schema.0.to_owned()),
            name: name.name.0.to_owned(),
            alias: alias_of(alias.as_ref()),
            indexed: match indexed {
                None => Indexed::Any,
                Some(p::Indexed::IndexedBy(index)) => Indexed::By(index.0.to_owned()),
                Some(p::Indexed::NotIndexed) => Indexed::Not,
            },
        },
        p::SelectTable::TableCall(name, args, alias) => {
            Source::Call { name: name.name.0.to_owned(), args: convert_list(*args)?, alias: alias_of(alias.as_ref()) }
        }
        p::SelectTable::Select(select, alias) => {
            Source::Select { select: Box::new(convert_select(select)?), alias: alias_of(alias.as_ref()) }
        }
        p::SelectTable::Sub(from, alias) => match convert_from(from)? {
            Some(from) => Source::Nested { from: Box::new(from), alias: alias_of(alias.as_ref()) },
            None => return Err(ParseFailure::Unknown("an empty FROM")),
        },
    })
}

fn convert_sorts(sorts: Option<&[p::SortedColumn<'_>]>) -> Parsed<Vec<Sort>> {
    sorts
        .unwrap_or_default()
        .iter()
        .map(|sort| {
            Ok(Sort {
                expr: convert_expr(&sort.expr)?,
                desc: sort.order.as_ref().map(|order| matches!(order, p::SortOrder::Desc)),
                nulls_first: sort.nulls.as_ref().map(|nulls| matches!(nulls, p::NullsOrder::First)),
            })
        })
        .collect()
}

fn convert_window(window: &p::Window<'_>) -> Parsed<Window> {
    Ok(Window {
        base: window.base.as_ref().map(|name| name.0.to_owned()),
        partition_by: convert_list(window.partition_by)?,
        order_by: convert_sorts(window.order_by)?,
        frame: window.frame_clause.as_ref().map(convert_frame).transpose()?,
    })
}

fn convert_frame(frame: &p::FrameClause<'_>) -> Parsed<Frame> {
    Ok(Frame {
        mode: match frame.mode {
            p::FrameMode::Groups => "GROUPS",
            p::FrameMode::Range => "RANGE",
            p::FrameMode::Rows => "ROWS",
        },
        start: convert_bound(&frame.start)?,
        end: frame.end.as_ref().map(convert_bound).transpose()?,
        exclude: frame.exclude.as_ref().map(|exclude| match exclude {
            p::FrameExclude::NoOthers => "NO OTHERS",
            p::FrameExclude::CurrentRow => "CURRENT ROW",
            p::FrameExclude::Group => "GROUP",
            p::FrameExclude::Ties => "TIES",
        }),
    })
}

fn convert_bound(bound: &p::FrameBound<'_>) -> Parsed<Bound> {
    Ok(match bound {
        p::FrameBound::CurrentRow => Bound::CurrentRow,
        p::FrameBound::Following(expr) => Bound::Following(Box::new(convert_expr(expr)?)),
        p::FrameBound::Preceding(expr) => Bound::Preceding(Box::new(convert_expr(expr)?)),
        p::FrameBound::UnboundedFollowing => Bound::UnboundedFollowing,
        p::FrameBound::UnboundedPreceding => Bound::UnboundedPreceding,
    })
}

fn convert_list(exprs: Option<&[p::Expr<'_>]>) -> Parsed<Vec<Expr>> {
    exprs.unwrap_or_default().iter().map(convert_expr).collect()
}

fn boxed(expr: &p::Expr<'_>) -> Parsed<Box<Expr>> {
    convert_expr(expr).map(Box::new)
}

fn convert_tail(tail: Option<&p::FunctionTail<'_>>) -> Parsed<(Option<Expr>, Option<Over>)> {
    let Some(tail) = tail else {
        return Ok((None, None));
    };
    let over = match tail.over_clause {
        None => None,
        Some(p::Over::Name(name)) => Some(Over::Name(name.0.to_owned())),
        Some(p::Over::Window(window)) => Some(Over::Window(convert_window(window)?)),
    };
    Ok((tail.filter_clause.map(convert_expr).transpose()?, over))
}

fn convert_expr(expr: &p::Expr<'_>) -> Parsed<Expr> {
    let _level = Level::down()?;
    Ok(match expr {
        p::Expr::Between { lhs, not, start, end } => {
            Expr::Between { lhs: boxed(lhs)?, not: *not, low: boxed(start)?, high: boxed(end)? }
        }
        p::Expr::Binary(lhs, operator, rhs) => Expr::Binary(boxed(lhs)?, operator_text(*operator), boxed(rhs)?),
        p::Expr::Case { base, when_then_pairs, else_expr } => Expr::Case {
            base: base.map(boxed).transpose()?,
            arms: when_then_pairs
                .iter()
                .map(|(when, then)| Ok((convert_expr(when)?, convert_expr(then)?)))
                .collect::<Parsed<_>>()?,
            otherwise: else_expr.map(boxed).transpose()?,
        },
        p::Expr::Cast { expr, type_name } => {
            Expr::Cast(boxed(expr)?, type_name.as_ref().map(type_text).transpose()?.unwrap_or_default())
        }
        p::Expr::Collate(expr, name) => Expr::Collate(boxed(expr)?, (*name).to_owned()),
        p::Expr::DoublyQualified(_, table, name) | p::Expr::Qualified(table, name) => {
            Expr::Column { table: Some(table.0.to_owned()), name: name.0.to_owned() }
        }
        p::Expr::Id(id) => Expr::Column { table: None, name: id.0.to_owned() },
        p::Expr::Name(name) => Expr::Column { table: None, name: name.0.to_owned() },
        p::Expr::Exists(select) => Expr::Exists(Box::new(convert_select(select)?)),
        p::Expr::FunctionCall { name, distinctness, args, order_by, filter_over } => {
            let (filter, over) = convert_tail(filter_over.as_ref())?;
            Expr::Call(Box::new(Call {
                name: name.0.to_owned(),
                distinct: matches!(distinctness, Some(p::Distinctness::Distinct)),
                star: false,
                args: convert_list(*args)?,
                order_by: match order_by {
                    None => Vec::new(),
                    Some(p::FunctionCallOrder::SortList(sorts)) => convert_sorts(Some(sorts))?,
                },
                filter,
                over,
            }))
        }
        p::Expr::FunctionCallStar { name, filter_over } => {
            let (filter, over) = convert_tail(filter_over.as_ref())?;
            Expr::Call(Box::new(Call {
                name: name.0.to_owned(),
                distinct: false,
                star: true,
                args: Vec::new(),
                order_by: Vec::new(),
                filter,
                over,
            }))
        }
        p::Expr::InList { lhs, not, rhs } => Expr::InList { lhs: boxed(lhs)?, not: *not, list: convert_list(*rhs)? },
        p::Expr::InSelect { lhs, not, rhs } => {
            Expr::InSelect { lhs: boxed(lhs)?, not: *not, select: Box::new(convert_select(rhs)?) }
        }
        p::Expr::InTable { lhs, not, rhs, args } => Expr::InTable {
            lhs: boxed(lhs)?,
            not: *not,
            table: rhs.name.0.to_owned(),
            args: args.map(|args| convert_list(Some(args))).transpose()?,
        },
        p::Expr::IsNull(expr) => Expr::IsNull(boxed(expr)?),
        p::Expr::NotNull(expr) => Expr::NotNull(boxed(expr)?),
        p::Expr::Like { lhs, not, op, rhs, escape } => Expr::Like {
            lhs: boxed(lhs)?,
            not: *not,
            op: match op {
                p::LikeOperator::Glob => "GLOB",
                p::LikeOperator::Like => "LIKE",
                p::LikeOperator::Match => "MATCH",
                p::LikeOperator::Regexp => "REGEXP",
            },
            rhs: boxed(rhs)?,
            escape: escape.map(boxed).transpose()?,
        },
        p::Expr::Literal(literal) => Expr::Literal(literal_text(literal)),
        p::Expr::Parenthesized(exprs) => Expr::Paren(exprs.iter().map(convert_expr).collect::<Parsed<_>>()?),
        p::Expr::Raise(..) => return Err(ParseFailure::Unknown("RAISE()")),
        p::Expr::Subquery(select) => Expr::Subquery(Box::new(convert_select(select)?)),
        p::Expr::Unary(operator, expr) => Expr::Unary(
            match operator {
                p::UnaryOperator::BitwiseNot => "~",
                p::UnaryOperator::Negative => "-",
                p::UnaryOperator::Not => "NOT",
                p::UnaryOperator::Positive => "+",
            },
            boxed(expr)?,
        ),
        p::Expr::Variable(name) => Expr::Variable((*name).to_owned()),
    })
}

fn literal_text(literal: &p::Literal<'_>) -> String {
    match literal {
        p::Literal::Numeric(text) | p::Literal::String(text) | p::Literal::Keyword(text) => (*text).to_owned(),
        p::Literal::Blob(hex) => format!("x'{hex}'"),
        p::Literal::Null => "NULL".to_owned(),
        p::Literal::CurrentDate => "CURRENT_DATE".to_owned(),
        p::Literal::CurrentTime => "CURRENT_TIME".to_owned(),
        p::Literal::CurrentTimestamp => "CURRENT_TIMESTAMP".to_owned(),
    }
}

fn type_text(name: &p::Type<'_>) -> Parsed<String> {
    Ok(match &name.size {
        None => name.name.to_owned(),
        Some(p::TypeSize::MaxSize(size)) => format!("{}({})", name.name, convert_expr(size)?),
        Some(p::TypeSize::TypeSize(a, b)) => {
            format!("{}({}, {})", name.name, convert_expr(a)?, convert_expr(b)?)
        }
    })
}

fn operator_text(operator: p::Operator) -> &'static str {
    match operator {
        p::Operator::Add => "+",
        p::Operator::And => "AND",
        p::Operator::ArrowRight => "->",
        p::Operator::ArrowRightShift => "->>",
        p::Operator::BitwiseAnd => "&",
        p::Operator::BitwiseOr => "|",
        p::Operator::Concat => "||",
        p::Operator::Equals => "=",
        p::Operator::Divide => "/",
        p::Operator::Greater => ">",
        p::Operator::GreaterEquals => ">=",
        p::Operator::Is => "IS",
        p::Operator::IsNot => "IS NOT",
        p::Operator::LeftShift => "<<",
        p::Operator::Less => "<",
        p::Operator::LessEquals => "<=",
        p::Operator::Modulus => "%",
        p::Operator::Multiply => "*",
        p::Operator::NotEquals => "<>",
        p::Operator::Or => "OR",
        p::Operator::RightShift => ">>",
        p::Operator::Subtract => "-",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ast::{Visit, walk};

    /// Every kind of nesting that the grammar has, `depth` times.
    fn nested(depth: usize) -> Vec<String> {
        let around = |before: &str, inner: &str, after: &str| {
            format!("SELECT {}{inner}{} FROM t", before.repeat(depth), after.repeat(depth))
        };
        vec![
            around("(", "1", ")"),
            around("1+", "1", ""),
            around("", "1", "+1"),
            around("NOT ", "1", ""),
            around("- ", "1", ""),
            around("abs(", "1", ")"),
            around("(SELECT ", "1", ")"),
            around("EXISTS (SELECT ", "1", ")"),
            around("CASE WHEN 1 THEN ", "1", " END"),
            around("CAST(", "1", " AS TEXT)"),
            around("1 IN (", "1", ")"),
            around("1 BETWEEN 1 AND ", "1", ""),
            around("sum(x) FILTER (WHERE ", "1", ")"),
            around("sum(x) OVER (ORDER BY ", "1", ")"),
            around("", "x", " COLLATE NOCASE"),
            around("", "x", " IS NULL"),
            format!("SELECT * FROM {}t{}", "(".repeat(depth), ")".repeat(depth)),
            format!("SELECT * FROM {}t{}", "(SELECT * FROM ".repeat(depth), ")".repeat(depth)),
            format!("{}SELECT 1{}", "WITH a AS (".repeat(depth), ") SELECT * FROM a".repeat(depth)),
            format!("SELECT 1 LIMIT {}1{}", "(SELECT 1 LIMIT ".repeat(depth), ")".repeat(depth)),
        ]
    }

    struct Everything(usize);

    impl Visit for Everything {
        fn expr(&mut self, node: &Expr) {
            self.0 += 1;
            walk::expr(self, node);
        }
    }

    #[test]
    fn no_depth_of_a_text_takes_more_stack_than_a_thread_has() {
        // Half of what tokio's threads have: a caller has used some of it, too.
        let small_stack = std::thread::Builder::new().stack_size(1 << 20).spawn(|| {
            for depth in [20, 40, 70, 3_000, 15_000] {
                for sql in nested(depth) {
                    match parse_shallow_select(&sql) {
                        Ok(select) => {
                            assert!(depth < 70, "{depth} levels: {sql:.60}");
                            Everything(0).select(&select.clone());
                            assert!(!select.to_string().is_empty());
                        }
                        Err(ParseFailure::TooDeep | ParseFailure::Syntax(_)) => assert!(depth > 20, "{sql:.60}"),
                        Err(other) => panic!("{other:?}: {sql:.60}"),
                    }
                    let view = parse_view(&format!("CREATE VIEW v AS {sql}"));
                    assert!(view.is_ok() || depth > 20, "{sql:.60}");
                }
            }
            assert!(parse_shallow_select(&format!("SELECT '{}'", "x".repeat(SHALLOW_BYTES))).is_err());
        });
        small_stack.expect("a thread").join().expect("no panic");
    }

    /// On a stack as tokio's threads have it, and in time that does not double with each level.
    #[test]
    fn no_question_is_too_deep_for_its_thread() {
        let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(|| {
            let conn = rusqlite::Connection::open_in_memory().expect("memory");
            conn.execute_batch("CREATE TABLE t(x)").expect("a table");
            let catalog = crate::Catalog::of(&conn, &[]).expect("a catalogue");
            for depth in [30, 60, 100, 500, 980, 2_000, 4_000] {
                for sql in nested(depth) {
                    let _ = crate::plan(&sql, &catalog, &crate::AskOptions::default());
                    let _ = crate::align(&sql, &catalog, &Default::default(), &[]);
                }
            }
        });
        thread.expect("a thread").join().expect("no panic");
    }

    #[test]
    fn the_limit_is_reset_after_a_text_that_was_too_deep() {
        for _ in 0..3 {
            assert!(matches!(parse_shallow_select(&nested(70)[0]), Err(ParseFailure::TooDeep)));
        }
        assert_eq!(LEVELS_LEFT.get(), MOST_LEVELS);
    }

    #[test]
    fn a_view_is_one_statement() {
        assert!(parse_view("CREATE VIEW v AS SELECT 1;").is_ok());
        assert!(matches!(parse_view("CREATE VIEW v AS SELECT 1; ATTACH 'x' AS y"), Err(ParseFailure::Several)));
        assert!(matches!(parse_view("ATTACH 'x' AS y"), Err(ParseFailure::NotSelect)));
    }
}
