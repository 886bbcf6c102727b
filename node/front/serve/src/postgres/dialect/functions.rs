//! Functions that SQLite has under another name, or can be written with those that it has.

use super::call::Call;
use super::made::Made;

/// Patterns of `to_char` (<https://www.postgresql.org/docs/current/functions-formatting.html>) and
/// those of `strftime`, the longer ones first.
const PATTERNS: &[(&str, &str)] =
    &[("YYYY", "%Y"), ("HH24", "%H"), ("DDD", "%j"), ("MM", "%m"), ("DD", "%d"), ("MI", "%M"), ("SS", "%S")];
/// The same of parts of a second: digits, and nanoseconds of the last one.
const FRACTIONS: &[(&str, usize, i64)] = &[("MS", 3, 1_000_000), ("US", 6, 1_000)];

/// The functions that are rewritten here.
pub(super) const NAMES: &[&str] =
    &["greatest", "least", "left", "right", "position", "strpos", "char_length", "character_length", "to_char"];

/// The SQL in place of a call; none where it is none of [`NAMES`], or has not their arguments.
///
/// # Errors
/// It has other arguments than it takes; too much would be made.
pub(super) fn rewritten(call: &Call<'_>, made: &Made) -> Result<Option<String>, String> {
    let arguments = call.arguments();
    let texts: Vec<String> = arguments.iter().map(|argument| call.text(*argument)).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    Ok(Some(match (call.name, &texts[..]) {
        ("greatest", [_, ..]) => of_all("max", &texts, made)?,
        ("least", [_, ..]) => of_all("min", &texts, made)?,
        ("left", [text, n]) => format!("substr({text}, 1, iif(({n}) >= 0, {n}, max(0, length({text}) + ({n}))))"),
        ("right", [text, n]) => {
            format!("substr({text}, iif(({n}) >= 0, max(1, length({text}) - ({n}) + 1), 1 - ({n})))")
        }
        ("strpos", [text, part]) => format!("instr({text}, {part})"),
        ("char_length" | "character_length", [text]) => format!("length({text})"),
        ("position", [_]) => {
            let (from, to) = arguments[0];
            let Some(inside) = (from..to).find(|&at| call.tokens[at].is("in")) else {
                return Err("position takes what is looked for and where: position('a' IN func)".to_owned());
            };
            format!("instr({}, {})", call.text((inside + 1, to)), call.text((from, inside)))
        }
        ("to_char", [time, _]) => match call.tokens[arguments[1].0].string() {
            Some(format) if arguments[1].1 == arguments[1].0 + 1 => formatted(time, &format, made)?,
            _ => return Err("to_char takes its format as a text: to_char(ts_ns, 'HH24:MI:SS')".to_owned()),
        },
        _ => return Ok(None),
    }))
}

/// The largest or smallest of values, without those that are NULL: SQLite's is NULL where one is.
fn of_all(function: &str, values: &[&str], made: &Made) -> Result<String, String> {
    if let [only] = values {
        return Ok(format!("({only})"));
    }
    let once: usize = values.iter().map(|value| value.len() + 2).sum();
    made.room_for(once.saturating_mul(values.len()))?;
    let from = |first: usize| [&values[first..], &values[..first]].concat().join(", ");
    let each: Vec<String> = (0..values.len()).map(|first| format!("coalesce({})", from(first))).collect();
    Ok(format!("{function}({})", each.join(", ")))
}

/// A time of nanoseconds as text, UTC.
fn formatted(time: &str, format: &str, made: &Made) -> Result<String, String> {
    let (mut pieces, mut strftime, mut rest) = (Vec::new(), String::new(), format);
    let close = |strftime: &mut String, pieces: &mut Vec<String>| {
        if !strftime.is_empty() {
            let quoted = std::mem::take(strftime).replace('\'', "''");
            pieces.push(format!("strftime('{quoted}', ({time}) / 1000000000, 'unixepoch')"));
        }
    };
    while let Some(next) = rest.chars().next() {
        made.room_for((pieces.len() + 2).saturating_mul(time.len()))?;
        if let Some((pattern, of_strftime)) = PATTERNS.iter().find(|(pattern, _)| rest.starts_with(pattern)) {
            strftime.push_str(of_strftime);
            rest = &rest[pattern.len()..];
        } else if let Some((pattern, digits, ns)) = FRACTIONS.iter().find(|(pattern, ..)| rest.starts_with(pattern)) {
            close(&mut strftime, &mut pieces);
            let zeros = "0".repeat(digits - 1);
            pieces.push(format!("substr('{zeros}' || (({time}) % 1000000000 / {ns}), -{digits})"));
            rest = &rest[pattern.len()..];
        } else if let Some((text, after)) = rest.strip_prefix('"').and_then(|quoted| quoted.split_once('"')) {
            strftime.push_str(&text.replace('%', "%%"));
            rest = after;
        } else if next.is_alphanumeric() {
            return Err(format!(
                "to_char knows YYYY, MM, DD, DDD, HH24, MI, SS, MS and US here, and text in double quotes, not {:?}",
                record::printable(rest)
            ));
        } else {
            strftime.push_str(if next == '%' { "%%" } else { &rest[..next.len_utf8()] });
            rest = &rest[next.len_utf8()..];
        }
    }
    close(&mut strftime, &mut pieces);
    Ok(format!("({})", pieces.join(" || ")))
}
