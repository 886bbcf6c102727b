//! Functions of times, on integers of nanoseconds.

use super::super::tokens::{Kind, Token, closing, is_at, joined, parts};
use super::made;

/// Functions that give the time at which a statement begins.
const NOW: &[&str] = &["now", "transaction_timestamp", "statement_timestamp", "clock_timestamp"];
/// The same, written as words.
const NOW_WORDS: &[&str] = &["current_timestamp", "localtimestamp"];
/// Parts of a time with a fixed length, in nanoseconds. All begin at whole multiples of it.
const FIXED: &[(&str, i64)] = &[
    ("microseconds", 1_000),
    ("milliseconds", 1_000_000),
    ("second", 1_000_000_000),
    ("minute", 60_000_000_000),
    ("hour", 3_600_000_000_000),
    ("day", 86_400_000_000_000),
];

/// Whether `now()` stands here.
pub(super) fn is_now(tokens: &[Token], at: usize) -> bool {
    is_at(tokens, at, "now") && is_at(tokens, at + 1, "(") && is_at(tokens, at + 2, ")")
}

/// `now()` and its brothers, `extract`, `date_part`, `date_trunc`, `to_timestamp`.
///
/// # Errors
/// A part of a time that is not known.
pub(super) fn functions(tokens: &mut Vec<Token>) -> Result<(), String> {
    // From the right: what stands in a call's parentheses is rewritten before the call.
    for at in (0..tokens.len()).rev() {
        let Some(name) = tokens.get(at).filter(|token| token.kind == Kind::Word).and_then(Token::name) else {
            continue;
        };
        let place = tokens[at].at;
        let is_column = at > 0 && (is_at(tokens, at - 1, ".") || is_at(tokens, at - 1, "as"));
        if NOW_WORDS.contains(&name.as_str()) && !is_column && !is_at(tokens, at + 1, ".") {
            let end = if is_at(tokens, at + 1, "(") {
                closing(tokens, at + 1).map_or(at + 1, |close| close + 1)
            } else {
                at + 1
            };
            tokens.splice(at..end, made("now()", place));
            continue;
        }
        if !is_at(tokens, at + 1, "(") {
            continue;
        }
        let Some(close) = closing(tokens, at + 1) else { continue };
        if NOW.contains(&name.as_str()) && close == at + 2 {
            tokens.splice(at..=close, made("now()", place));
            continue;
        }
        let field_at = |at: usize| {
            tokens
                .get(at)
                .and_then(|token| token.string().or_else(|| token.name()))
                .unwrap_or_default()
                .to_ascii_lowercase()
        };
        let sql = match name.as_str() {
            "extract" if is_at(tokens, at + 3, "from") => part(&field_at(at + 2), &joined(&tokens[at + 4..close]))?,
            "date_part" | "date_trunc" => {
                let parts = parts(tokens, at + 2, close);
                let [(from, to), (begin, end)] = parts[..] else {
                    return Err(format!("{name} takes a part and a time: {name}('hour', ts_ns)"));
                };
                if to != from + 1 {
                    return Err(format!("{name} takes its part as a text: {name}('hour', ts_ns)"));
                }
                let of = joined(&tokens[begin..end]);
                if name == "date_part" { part(&field_at(from), &of)? } else { truncated(&field_at(from), &of)? }
            }
            "to_timestamp" => match parts(tokens, at + 2, close)[..] {
                [(from, to)] => format!("CAST(({}) * 1000000000 AS INTEGER)", joined(&tokens[from..to])),
                _ => return Err("to_timestamp takes seconds since 1970 here".to_owned()),
            },
            _ => continue,
        };
        tokens.splice(at..=close, made(&sql, place));
    }
    Ok(())
}

/// A part of a time (`extract(hour FROM ts_ns)`), as PostgreSQL defines it, UTC.
fn part(field: &str, of: &str) -> Result<String, String> {
    let by = |format: &str| format!("CAST(strftime('{format}', ({of}) / 1000000000, 'unixepoch') AS INTEGER)");
    Ok(match field {
        "epoch" => format!("(({of}) / 1000000000.0)"),
        "microseconds" => format!("((({of}) % 60000000000) / 1000)"),
        "milliseconds" => format!("((({of}) % 60000000000) / 1000000.0)"),
        "second" => format!("((({of}) % 60000000000) / 1000000000.0)"),
        "minute" => format!("((({of}) / 60000000000) % 60)"),
        "hour" => format!("((({of}) / 3600000000000) % 24)"),
        "day" => by("%d"),
        "month" => by("%m"),
        "year" => by("%Y"),
        "dow" => by("%w"),
        "isodow" => by("%u"),
        "doy" => by("%j"),
        "week" => by("%V"),
        "isoyear" => by("%G"),
        "quarter" => format!("(({} + 2) / 3)", by("%m")),
        _ => return Err(unknown(field)),
    })
}

/// `date_trunc`: the time at which a part began, UTC.
fn truncated(field: &str, of: &str) -> Result<String, String> {
    if let Some((_, ns)) = FIXED.iter().find(|(name, _)| *name == field) {
        return Ok(format!("(({of}) / {ns} * {ns})"));
    }
    let start = match field {
        // 'weekday 1' is the next Monday unless it is one
        "week" => "'start of day', '-6 days', 'weekday 1'",
        "month" => "'start of month'",
        "year" => "'start of year'",
        _ => return Err(unknown(field)),
    };
    Ok(format!("(CAST(strftime('%s', ({of}) / 1000000000, 'unixepoch', {start}) AS INTEGER) * 1000000000)"))
}

fn unknown(field: &str) -> String {
    format!("no part {field:?} of a time here: second, minute, hour, day, week, month, year, epoch")
}
