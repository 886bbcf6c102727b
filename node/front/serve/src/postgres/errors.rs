//! Errors as clients of PostgreSQL read them, with its codes.

use ask::NoAnswer;
use model::Coverage;
use pgwire::error::{ErrorInfo, PgWireError, SEVERITY_ERROR, SEVERITY_NOTICE};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::response::NoticeResponse;
use record::printable;

use super::super::problem::Problem;

fn error(code: &str, message: String, hint: Option<&str>) -> PgWireError {
    let mut info = ErrorInfo::new(SEVERITY_ERROR.to_owned(), code.to_owned(), message);
    info.hint = hint.map(str::to_owned);
    PgWireError::UserError(Box::new(info))
}

/// Values that do not fit (data_exception).
pub(super) fn data(message: String) -> PgWireError {
    error("22000", message, None)
}

/// Not supported (feature_not_supported).
pub(super) fn unsupported(message: impl Into<String>) -> PgWireError {
    error("0A000", message.into(), None)
}

/// More than there is room for (program_limit_exceeded).
pub(super) fn too_much(message: String) -> PgWireError {
    error("54000", message, None)
}

/// Not SQL (syntax_error).
pub(super) fn syntax(message: String) -> PgWireError {
    error("42601", message, Some(DIALECT))
}

/// A prepared statement that is not there (invalid_sql_statement_name).
pub(super) fn no_statement(name: &str) -> PgWireError {
    error("26000", format!("prepared statement \"{}\" does not exist", printable(name)), None)
}

/// A cursor that is not there, or may not be (invalid_cursor_name).
pub(super) fn cursor(message: String) -> PgWireError {
    error("34000", message, None)
}

/// What is done in a transaction only (no_active_sql_transaction).
pub(super) fn no_transaction(message: &str) -> PgWireError {
    error("25P01", message.to_owned(), None)
}

/// A savepoint that is not there (invalid_savepoint_specification).
pub(super) fn savepoint(message: String) -> PgWireError {
    error("3B001", message, None)
}

/// The deadline has passed (query_canceled).
pub(super) fn timed_out(after: std::time::Duration) -> PgWireError {
    error("57014", format!("canceling statement due to statement timeout: {} ms", after.as_millis()), None)
}

/// Something that a client is told (warning).
pub(super) fn warning(message: String) -> PgWireBackendMessage {
    let info = ErrorInfo::new("WARNING".to_owned(), "01000".to_owned(), message);
    PgWireBackendMessage::NoticeResponse(NoticeResponse::from(info))
}

/// A parameter's type is neither sent nor told by its place (indeterminate_datatype).
pub(super) fn indeterminate(message: String) -> PgWireError {
    error("42P18", message, None)
}

/// A text beside a number that is none (invalid_text_representation).
pub(super) fn no_number(text: &str) -> PgWireError {
    error("22P02", format!("invalid input syntax for a number: \"{}\"", printable(text)), None)
}

/// Two types that are not compared (undefined_function, as PostgreSQL has it for operators).
pub(super) fn operator(message: String) -> PgWireError {
    error("42883", message, None)
}

/// An unknown setting (undefined_object), or an invalid value of it.
pub(super) fn setting(message: String) -> PgWireError {
    error("42704", message, None)
}

/// Nothing more is done in a transaction that failed (in_failed_sql_transaction).
pub(super) fn failed_transaction() -> PgWireError {
    error("25P02", "current transaction is aborted, commands ignored until end of transaction block".to_owned(), None)
}

const DIALECT: &str = "The dialect is SQLite's with some of PostgreSQL's forms (docs/postgres.md), and times are integers of nanoseconds.";

/// A question that failed, with the coverage so far.
pub(super) fn of(failure: &anyhow::Error) -> PgWireError {
    let message = record::printable_lines(&format!("{failure:#}"));
    if ask::is_usage(failure) {
        return syntax(message);
    }
    let mut info = ErrorInfo::new(SEVERITY_ERROR.to_owned(), "58000".to_owned(), message);
    if let Some(NoAnswer { coverage: Some(coverage), .. }) = failure.downcast_ref() {
        info.detail = Some(lines(coverage));
    }
    PgWireError::UserError(Box::new(info))
}

/// Too many questions run at once, or something is wrong here.
pub(super) fn of_problem(problem: &Problem) -> PgWireError {
    let code = match problem.status {
        400 => "42601",
        403 => "42501",
        429 => "53400",
        504 => "57014",
        _ => "58000",
    };
    error(code, record::printable_lines(&problem.detail), None)
}

/// With `require_all` a partial answer is an error.
pub(super) fn partial(coverage: &Coverage) -> PgWireError {
    let message = format!("{} of {} nodes answered, and require_all is on", coverage.answered, coverage.asked);
    let mut info = ErrorInfo::new(SEVERITY_ERROR.to_owned(), "58000".to_owned(), message);
    info.detail = Some(lines(coverage));
    PgWireError::UserError(Box::new(info))
}

fn lines(coverage: &Coverage) -> String {
    coverage.lines().iter().map(|line| printable(line)).collect::<Vec<_>>().join("\n")
}

/// The nodes missing from an answer, and what its nodes know to be missing; empty if the answer is
/// complete.
pub(super) fn notice(coverage: &Coverage) -> Option<PgWireBackendMessage> {
    if coverage.is_complete() && coverage.notes.is_empty() {
        return None;
    }
    let (severity, code) = if coverage.is_complete() { (SEVERITY_NOTICE, "00000") } else { ("WARNING", "01000") };
    let all = coverage.lines();
    let mut info = ErrorInfo::new(severity.to_owned(), code.to_owned(), printable(&all[0]));
    info.detail = Some(all[1..].iter().map(|line| printable(line)).collect::<Vec<_>>().join("\n"));
    Some(PgWireBackendMessage::NoticeResponse(NoticeResponse::from(info)))
}

#[cfg(test)]
mod tests {
    use model::Missing;

    use super::*;

    #[test]
    fn coverage_is_a_notice_and_a_warning_where_nodes_are_missing() {
        let shown = |coverage: &Coverage| match notice(coverage) {
            Some(PgWireBackendMessage::NoticeResponse(shown)) => format!("{shown:?}"),
            Some(other) => panic!("{other:?}"),
            None => String::new(),
        };
        let complete = Coverage { asked: 2, answered: 2, ..Coverage::default() };
        assert_eq!(shown(&complete), "");
        let noted = Coverage { notes: vec!["n0: 7 records lost".to_owned()], ..complete.clone() };
        assert!(shown(&noted).contains("NOTICE") && shown(&noted).contains("7 records lost"), "{}", shown(&noted));
        let missing = vec![Missing { node: "n1".to_owned(), reason: "unreachable".to_owned() }];
        let partial = Coverage { answered: 1, missing, ..noted };
        assert!(shown(&partial).contains("WARNING") && shown(&partial).contains("1 of 2"), "{}", shown(&partial));
    }
}
