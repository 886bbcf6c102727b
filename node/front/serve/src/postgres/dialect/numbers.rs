//! Texts that are compared with a column of numbers and are none: PostgreSQL refuses them, SQLite
//! would compare two kinds of values, and the answer would have no row, or all.

use super::super::infer::{COMPARISONS, Columns, column_at};
use super::super::tokens::{Kind, Token, is_at};

/// Whether a statement may have such a text: it compares one that is no number.
pub(in super::super) fn may_be(tokens: &[Token]) -> bool {
    let compares =
        |token: &Token| token.is("in") || token.is("between") || COMPARISONS.iter().any(|sign| token.is(sign));
    tokens.iter().any(compares) && tokens.iter().any(|token| other(token).is_some())
}

/// The first text that is compared with a column of numbers, of a table that its SELECT reads, and is
/// no number. What is computed, or comes through another SELECT, is not looked at.
pub(in super::super) fn first(tokens: &[Token], columns: &Columns) -> Option<String> {
    // (A WITH may have a table's name.)
    if tokens.iter().any(|token| token.is("with")) {
        return None;
    }
    let is_number = column_at(tokens, columns);
    let mut at = 0;
    while at < tokens.len() {
        let Some(end) = column(tokens, at) else {
            at += 1;
            continue;
        };
        let begins = at.checked_sub(1).is_none_or(|before| is_edge(tokens, before));
        let mut texts = Vec::new();
        if begins {
            texts.extend(compared_behind(tokens, end));
        }
        if is_edge(tokens, end)
            && let Some(sign) = at.checked_sub(1).filter(|sign| is_comparison(tokens, *sign))
            && let Some(text) = sign.checked_sub(1)
            && text.checked_sub(1).is_none_or(|before| is_edge(tokens, before))
        {
            texts.push(text);
        }
        let mut found = texts.into_iter().filter_map(|at| other(tokens.get(at)?));
        if let Some(text) = found.next()
            && is_number(end - 1)
        {
            return Some(text);
        }
        at = end;
    }
    None
}

/// The end of a column's name that begins here: `rank`, `c.rank`.
fn column(tokens: &[Token], at: usize) -> Option<usize> {
    let is_name = |at: usize| tokens.get(at).is_some_and(|token| token.name().is_some());
    is_name(at).then_some(())?;
    let mut end = at + 1;
    while is_at(tokens, end, ".") && is_name(end + 1) {
        end += 2;
    }
    Some(end)
}

/// The texts that the column is compared with whose name ends here: `= 'x'`, `IN ('x', …)`,
/// `BETWEEN 'x' AND 'y'`.
fn compared_behind(tokens: &[Token], end: usize) -> Vec<usize> {
    if is_comparison(tokens, end) {
        return if is_edge(tokens, end + 2) { vec![end + 1] } else { Vec::new() };
    }
    let end = end + usize::from(is_at(tokens, end, "not"));
    if is_at(tokens, end, "between") && is_at(tokens, end + 2, "and") {
        return vec![end + 1, end + 3];
    }
    let mut texts = Vec::new();
    if is_at(tokens, end, "in") && is_at(tokens, end + 1, "(") {
        let mut at = end + 2;
        while is_at(tokens, at + 1, ",") || is_at(tokens, at + 1, ")") {
            texts.push(at);
            if is_at(tokens, at + 1, ")") {
                break;
            }
            at += 2;
        }
    }
    texts
}

fn is_comparison(tokens: &[Token], at: usize) -> bool {
    COMPARISONS.iter().any(|sign| is_at(tokens, at, sign))
}

/// Whether a comparison ends before this token, or begins behind it; also at the end of a statement.
fn is_edge(tokens: &[Token], at: usize) -> bool {
    const WORDS: &[&str] = &[
        "(",
        ")",
        ",",
        "where",
        "and",
        "or",
        "not",
        "on",
        "having",
        "when",
        "then",
        "else",
        "end",
        "select",
        "from",
        "group",
        "order",
        "limit",
        "offset",
        "union",
        "except",
        "intersect",
        "as",
    ];
    tokens.get(at).is_none_or(|token| WORDS.iter().any(|word| token.is(word)))
}

/// A text that is no number, as PostgreSQL and SQLite write one.
fn other(token: &Token) -> Option<String> {
    let text = token.string().filter(|_| token.kind == Kind::Text)?;
    let number = text.trim();
    let is_number = number.chars().all(|c| c.is_ascii_digit() || ".eE+-".contains(c))
        && number.parse::<f64>().is_ok_and(f64::is_finite);
    (!is_number).then_some(text)
}
