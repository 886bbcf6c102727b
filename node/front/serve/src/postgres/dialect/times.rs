//! Functions of times, on integers of nanoseconds.

use super::super::tokens::{Token, is_at};
use super::call::Call;

/// Words for the time at which a statement begins; some take a precision in parentheses.
pub(super) const WORDS: &[&str] = &["current_timestamp", "localtimestamp", CURRENT_DATE];
/// The midnight before, UTC.
const CURRENT_DATE: &str = "current_date";
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

/// The functions that are rewritten here.
pub(super) const NAMES: &[&str] = &[
    "now",
    "transaction_timestamp",
    "statement_timestamp",
    "clock_timestamp",
    "extract",
    "date_part",
    "date_trunc",
    "to_timestamp",
];

/// The SQL in place of a call; none where it is none of [`NAMES`] and [`WORDS`].
///
/// # Errors
/// A part of a time that is not known, or other arguments than the function takes.
pub(super) fn rewritten(call: &Call<'_>) -> Result<Option<String>, String> {
    if call.name == CURRENT_DATE {
        return truncated("day", "now()").map(Some);
    }
    let Some((from, to)) = call.inside else { return Ok(Some("now()".to_owned())) };
    let field_at = |at: usize| {
        let token = call.tokens.get(at);
        token.and_then(|token| token.string().or_else(|| token.name())).unwrap_or_default().to_ascii_lowercase()
    };
    let name = call.name;
    Ok(Some(match name {
        _ if WORDS.contains(&name) => "now()".to_owned(),
        "now" | "transaction_timestamp" | "statement_timestamp" | "clock_timestamp" if from == to => "now()".to_owned(),
        "extract" if is_at(call.tokens, from + 1, "from") => part(&field_at(from), &call.text((from + 2, to)))?,
        "date_part" | "date_trunc" => {
            let [(first, end), of] = call.arguments()[..] else {
                return Err(format!("{name} takes a part and a time: {name}('hour', ts_ns)"));
            };
            if end != first + 1 {
                return Err(format!("{name} takes its part as a text: {name}('hour', ts_ns)"));
            }
            let of = call.text(of);
            if name == "date_part" { part(&field_at(first), &of)? } else { truncated(&field_at(first), &of)? }
        }
        "to_timestamp" => match call.arguments()[..] {
            [seconds] => format!("CAST(({}) * 1000000000 AS INTEGER)", call.text(seconds)),
            _ => return Err("to_timestamp takes seconds since 1970 here".to_owned()),
        },
        _ => return Ok(None),
    }))
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
