//! Functions that SQLite has under another name, or can be written with those that it has.

use super::super::tokens::{Kind, Token, closing, is_at, joined, parts};
use super::made;

/// Patterns of `to_char` (<https://www.postgresql.org/docs/current/functions-formatting.html>) and
/// those of `strftime`, the longer ones first.
const PATTERNS: &[(&str, &str)] =
    &[("YYYY", "%Y"), ("HH24", "%H"), ("DDD", "%j"), ("MM", "%m"), ("DD", "%d"), ("MI", "%M"), ("SS", "%S")];
/// The same of parts of a second: digits, and nanoseconds of the last one.
const FRACTIONS: &[(&str, usize, i64)] = &[("MS", 3, 1_000_000), ("US", 6, 1_000)];

/// `greatest`, `least`, `left`, `right`, `position`, `strpos`, `char_length`, `to_char`.
///
/// # Errors
/// One has other arguments than it takes.
pub(super) fn functions(tokens: &mut Vec<Token>) -> Result<(), String> {
    // From the right: what stands in a call's parentheses is rewritten before the call.
    for at in (0..tokens.len()).rev() {
        let Some(name) = tokens[at..].first().filter(|token| token.kind == Kind::Word).and_then(Token::name) else {
            continue;
        };
        let is_column = at > 0 && (is_at(tokens, at - 1, ".") || is_at(tokens, at - 1, "as"));
        if is_column || !is_at(tokens, at + 1, "(") {
            continue;
        }
        let Some(close) = closing(tokens, at + 1) else { continue };
        let arguments = parts(tokens, at + 2, close);
        let texts: Vec<String> = arguments.iter().map(|&(from, to)| joined(&tokens[from..to])).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let sql = match (name.as_str(), &texts[..]) {
            ("greatest", [_, ..]) => of_all("max", &texts),
            ("least", [_, ..]) => of_all("min", &texts),
            ("left", [text, n]) => format!("substr({text}, 1, iif(({n}) >= 0, {n}, max(0, length({text}) + ({n}))))"),
            ("right", [text, n]) => {
                format!("substr({text}, iif(({n}) >= 0, max(1, length({text}) - ({n}) + 1), 1 - ({n})))")
            }
            ("strpos", [text, part]) => format!("instr({text}, {part})"),
            ("char_length" | "character_length", [text]) => format!("length({text})"),
            ("position", [_]) => {
                let (from, to) = arguments[0];
                let Some(inside) = (from..to).find(|&at| tokens[at].is("in")) else {
                    return Err("position takes what is looked for and where: position('a' IN func)".to_owned());
                };
                format!("instr({}, {})", joined(&tokens[inside + 1..to]), joined(&tokens[from..inside]))
            }
            ("to_char", [time, _]) => match tokens[arguments[1].0].string() {
                Some(format) if arguments[1].1 == arguments[1].0 + 1 => formatted(time, &format)?,
                _ => return Err("to_char takes its format as a text: to_char(ts_ns, 'HH24:MI:SS')".to_owned()),
            },
            _ => continue,
        };
        let place = tokens[at].at;
        tokens.splice(at..=close, made(&sql, place));
    }
    Ok(())
}

/// The largest or smallest of values, without those that are NULL: SQLite's is NULL where one is.
fn of_all(function: &str, values: &[&str]) -> String {
    if let [only] = values {
        return format!("({only})");
    }
    let from = |first: usize| [&values[first..], &values[..first]].concat().join(", ");
    let each: Vec<String> = (0..values.len()).map(|first| format!("coalesce({})", from(first))).collect();
    format!("{function}({})", each.join(", "))
}

/// A time of nanoseconds as text, UTC.
fn formatted(time: &str, format: &str) -> Result<String, String> {
    let (mut pieces, mut strftime, mut rest) = (Vec::new(), String::new(), format);
    let close = |strftime: &mut String, pieces: &mut Vec<String>| {
        if !strftime.is_empty() {
            let quoted = std::mem::take(strftime).replace('\'', "''");
            pieces.push(format!("strftime('{quoted}', ({time}) / 1000000000, 'unixepoch')"));
        }
    };
    while let Some(next) = rest.chars().next() {
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
