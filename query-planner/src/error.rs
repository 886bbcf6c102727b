//! Why a question cannot be planned, and where in its SQL.

/// A place in the user's SQL, in bytes from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

/// The question cannot be planned: it is wrong, or it cannot be answered under the union contract.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct QueryError {
    /// What is wrong and what to do.
    pub message: String,
    /// Where in the SQL, when known.
    pub span: Option<Span>,
    /// True when the SQL is right for SQLite but cannot be answered under the union contract; false
    /// when it is wrong.
    pub refused: bool,
}

impl QueryError {
    /// The SQL is wrong.
    pub(crate) fn wrong(message: impl Into<String>) -> QueryError {
        QueryError { message: message.into(), span: None, refused: false }
    }

    /// The question's time was over before there was a plan.
    pub(crate) fn out_of_time() -> QueryError {
        QueryError::refused("the question takes longer to plan than it has time; simplify it, or give it more time")
    }

    /// The SQL is refused.
    pub(crate) fn refused(message: impl Into<String>) -> QueryError {
        QueryError { message: message.into(), span: None, refused: true }
    }

    /// The message with the line it points into and a caret below, as a terminal shows it. `sql` is
    /// what was planned.
    pub fn render(&self, sql: &str) -> String {
        let Some(span) = self.span.filter(|span| span.start <= sql.len() && sql.is_char_boundary(span.start)) else {
            return self.message.clone();
        };
        let before = &sql[..span.start];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = sql[line_start..].lines().next().unwrap_or_default();
        let number = before.matches('\n').count() + 1;
        let column = sql[line_start..span.start].chars().count();
        let width = sql.get(span.start..span.end).map_or(1, |token| token.chars().count().max(1));
        format!(
            "{} (line {number}, column {})\n  {line}\n  {}{}",
            self.message,
            column + 1,
            " ".repeat(column),
            "^".repeat(width)
        )
    }
}
