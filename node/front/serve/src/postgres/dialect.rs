//! PostgreSQL's forms in questions to the nodes, rewritten to what SQLite has: casts, intervals and
//! times, `ILIKE`, `extract`, `date_trunc`, `now`, `generate_series`, `= ANY (array)`. Times are
//! integers of nanoseconds. A form without an exact counterpart is refused.

mod aliases;
mod call;
mod calls;
mod functions;
mod made;
pub(super) mod moments;
pub(super) mod numbers;
mod times;

use super::infer::{Columns, Inferred, kind_at, operand_before};
use super::tokens::{Kind, Token, closing, is_at, joined, parts, past_type, strings};
pub(super) use aliases::type_name;
pub(super) use made::Made;
use moments::{interval, moment};

/// The statement in SQLite's forms; none where it has no other.
///
/// # Errors
/// A form has no counterpart; what to write instead.
pub(super) fn rewritten(tokens: &[Token]) -> Result<Option<Vec<Token>>, String> {
    let mut new = tokens.to_vec();
    let mut made = Made::default();
    aliases::kept(&mut new, &mut made)?;
    strings(&mut new);
    constants(&mut new, &mut made)?;
    words(&mut new);
    calls::rewritten(&mut new, &mut made)?;
    series(&mut new, &mut made)?;
    members(&mut new, &mut made)?;
    casts(&mut new, &mut made)?;
    limits(&mut new, &mut made)?;
    without_counterpart(&new)?;
    Ok((new != tokens).then_some(new))
}

/// The statement with a time in place of `now()`; none where it has none.
pub(super) fn with_now(tokens: &[Token], now_ns: i64) -> Option<Vec<Token>> {
    let mut new = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        let is_now = times::is_now(tokens, at);
        new.push(if is_now { number(now_ns, tokens[at].at) } else { tokens[at].clone() });
        at += if is_now { 3 } else { 1 };
    }
    (new.len() != tokens.len()).then_some(new)
}

/// Whether a text of it is a timestamp.
pub(super) fn has_moments(tokens: &[Token]) -> bool {
    tokens.iter().any(|token| token.string().is_some_and(|text| moment(&text).is_some()))
}

/// Timestamps in place of texts beside integers, as `$__timeFilter(ts_ns)` of Grafana has them;
/// none where there are none.
///
/// # Errors
/// There are too many.
pub(super) fn with_moments(tokens: &[Token], columns: &Columns) -> Result<Option<Vec<Token>>, String> {
    let (mut new, mut made) = (tokens.to_vec(), Made::default());
    for (at, token) in tokens.iter().enumerate() {
        if let Some(ns) = token.string().and_then(|text| moment(&text)) {
            made.pass(tokens.len())?;
            if kind_at(tokens, columns, at) == Some(Inferred::Integer) {
                new[at] = number(ns, token.at);
            }
        }
    }
    Ok((new != tokens).then_some(new))
}

fn text_at(tokens: &[Token], at: usize) -> Option<String> {
    tokens.get(at)?.string()
}

fn number(value: i64, at: usize) -> Token {
    Token::new(Kind::Number, value.to_string(), at)
}

/// `interval '5 minutes'`, `timestamptz '2024-…'`, and both as casts of a text.
fn constants(tokens: &mut Vec<Token>, made: &mut Made) -> Result<(), String> {
    const TIMES: &[&str] = &["timestamp", "timestamptz", "date"];
    let mut new = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        let name = tokens[at].name().unwrap_or_default();
        let value = if name == "interval" {
            text_at(tokens, at + 1).map(|text| (text, at + 2, name))
        } else if TIMES.contains(&name.as_str()) {
            let end = past_type(tokens, at);
            made.pass(end - at)?;
            text_at(tokens, end).map(|text| (text, end + 1, name))
        } else if let Some(text) = text_at(tokens, at).filter(|_| is_at(tokens, at + 1, "::")) {
            let name = tokens.get(at + 2).and_then(Token::name).unwrap_or_default();
            (name == "interval" || TIMES.contains(&name.as_str())).then(|| (text, past_type(tokens, at + 2), name))
        } else {
            let added = text_at(tokens, at).filter(|text| is_added(tokens, at) && is_interval(text));
            added.map(|text| (text, at + 1, "interval".to_owned()))
        };
        let Some((text, end, name)) = value else {
            new.push(tokens[at].clone());
            at += 1;
            continue;
        };
        let ns = if name == "interval" {
            interval(&text)?
        } else {
            moment(&text)
                .ok_or_else(|| format!("'{}' is no timestamp such as 2024-05-01T10:00:00Z", record::printable(&text)))?
        };
        new.push(number(ns, tokens[at].at));
        at = end;
    }
    *tokens = new;
    Ok(())
}

/// Whether it is added to something, or taken from it, as in `now() - '5 minutes'`.
fn is_added(tokens: &[Token], at: usize) -> bool {
    at > 0 && ["+", "-"].iter().any(|sign| is_at(tokens, at - 1, sign))
}

/// Whether a text is an interval and no number: SQLite would take the number that it begins with.
fn is_interval(text: &str) -> bool {
    text.contains(|c: char| c.is_ascii_alphabetic() || c == ':') && interval(text).is_ok()
}

/// Forms that nothing is written in place of.
///
/// # Errors
/// There is one; what to write instead.
fn without_counterpart(tokens: &[Token]) -> Result<(), String> {
    for at in 0..tokens.len() {
        if is_at(tokens, at, "distinct") && is_at(tokens, at + 1, "on") && is_at(tokens, at + 2, "(") {
            return Err(
                "no DISTINCT ON here: number the rows with row_number() OVER (PARTITION BY … ORDER BY …), and take 1"
                    .to_owned(),
            );
        }
        if is_at(tokens, at, "array") && is_at(tokens, at + 1, "[") {
            return Err("no arrays here, but for x = ANY (array[…]): json_array(…) makes a list".to_owned());
        }
    }
    Ok(())
}

/// Operators that SQLite writes otherwise.
fn words(tokens: &mut [Token]) {
    for token in tokens.iter_mut().filter(|token| matches!(token.kind, Kind::Word | Kind::Other)) {
        let written = match token.text.as_str() {
            "~~" | "~~*" => "LIKE",
            "!~~" | "!~~*" => "NOT LIKE",
            text if text.eq_ignore_ascii_case("ilike") => "LIKE",
            _ => continue,
        };
        written.clone_into(&mut token.text);
    }
}

/// `x::type`, from left to right.
fn casts(tokens: &mut Vec<Token>, made: &mut Made) -> Result<(), String> {
    if !tokens.iter().any(|token| token.is("::")) {
        return Ok(());
    }
    let mut new: Vec<Token> = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        if !tokens[at].is("::") {
            new.push(tokens[at].clone());
            at += 1;
            continue;
        }
        let end = past_type(tokens, at + 1);
        let from = operand_before(&new, new.len()).ok_or("`::` has no value before it")?;
        let place = new[from].at;
        let sql = cast(&new[from..], &tokens[at + 1..end])?;
        new.truncate(from);
        new.extend(made.tokens(&sql, place)?);
        at = end;
    }
    *tokens = new;
    Ok(())
}

/// `CAST(value AS type)` in SQLite's types, with PostgreSQL's rounding.
fn cast(value: &[Token], named: &[Token]) -> Result<String, String> {
    let name = named.iter().rev().filter_map(Token::name).find(|name| name != "varying" && name != "precision");
    let name = named.first().and_then(Token::name).filter(|name| name != "pg_catalog").or(name).unwrap_or_default();
    let (of, is_param) = (joined(value), value.len() == 1 && value[0].kind == Kind::Param);
    let argument = |index: usize| {
        let numbers = named.iter().filter(|token| token.kind == Kind::Number);
        numbers.filter_map(|token| token.text.parse::<u32>().ok()).nth(index)
    };
    let unknown = || {
        let shown = record::printable(&joined(named));
        format!("no type {shown} here: bigint, double precision, text, bytea; times are integers of nanoseconds")
    };
    if named.iter().any(|token| token.is("[")) {
        return Err(unknown());
    }
    Ok(match name.as_str() {
        "timestamp" | "timestamptz" | "date" | "interval" if is_param => of,
        "bool" | "boolean" => match value.first().filter(|_| value.len() == 1).and_then(Token::string) {
            Some(text) if ["t", "true", "yes", "on", "1"].contains(&text.as_str()) => "1".to_owned(),
            Some(text) if ["f", "false", "no", "off", "0"].contains(&text.as_str()) => "0".to_owned(),
            Some(_) => return Err("a boolean is 't' or 'f'".to_owned()),
            None => format!("CAST({of} AS INTEGER)"),
        },
        "numeric" | "decimal" => match argument(1).or(argument(0).map(|_| 0)) {
            Some(scale) => format!("round(CAST({of} AS REAL), {scale})"),
            None => format!("CAST({of} AS REAL)"),
        },
        "varchar" | "char" | "character" | "bpchar" if argument(0).is_some() => {
            format!("substr(CAST({of} AS TEXT), 1, {})", argument(0).unwrap_or_default())
        }
        "json" | "jsonb" | "uuid" => format!("CAST({of} AS TEXT)"),
        _ => match Inferred::named(&name).ok_or_else(unknown)? {
            // SQLite cuts a fraction off, PostgreSQL rounds.
            Inferred::Integer if !is_integer(value) && !is_param => {
                format!("CAST(iif(typeof({of}) = 'real', round({of}), {of}) AS INTEGER)")
            }
            kind => format!("CAST({of} AS {})", kind.name()),
        },
    })
}

/// Whether it can only be an integer: a literal, or a count.
fn is_integer(value: &[Token]) -> bool {
    let literal =
        value.len() == 1 && value[0].kind == Kind::Number && value[0].text.bytes().all(|c| c.is_ascii_digit());
    literal || value.first().is_some_and(|first| first.is("count"))
}

/// `= ANY ($1)` as [`members`] has it, and nothing else: for statements that are not those of nodes.
///
/// # Errors
/// There are too many.
pub(super) fn with_array_parameters(tokens: &[Token]) -> Result<Option<Vec<Token>>, String> {
    let mut made = Made::default();
    let mut all = tokens.to_vec();
    let mut at = 0;
    while at + 4 < all.len() {
        let is_array = is_at(&all, at, "=") && is_at(&all, at + 1, "any") && is_at(&all, at + 2, "(");
        if is_array && all[at + 3].kind == Kind::Param {
            made.pass(all.len())?;
            let Some(end) = closing(&all, at + 2) else { break };
            let list = array_parameter(&all[at + 3..end]);
            let place = all[at].at;
            all.splice(at..=end, made.tokens(&format!("IN ({list})"), place)?);
        }
        at += 1;
    }
    Ok((all.len() != tokens.len()).then_some(all))
}

/// A parameter whose value is a list, which `with` of a statement knows by the brackets; in them the
/// type of its elements, where it is told.
fn array_parameter(inside: &[Token]) -> String {
    let of = inside.get(2).filter(|_| inside.len() > 2).and_then(Token::name).unwrap_or_default();
    format!("{}[{of}]", inside[0].text)
}

/// `= ANY (ARRAY[…])`, `<> ALL ('{…}')`.
fn members(tokens: &mut Vec<Token>, made: &mut Made) -> Result<(), String> {
    let mut at = 0;
    while at + 2 < tokens.len() {
        let any = is_at(tokens, at, "=") && (is_at(tokens, at + 1, "any") || is_at(tokens, at + 1, "some"));
        let none = (is_at(tokens, at, "<>") || is_at(tokens, at, "!=")) && is_at(tokens, at + 1, "all");
        if (any || none) && is_at(tokens, at + 2, "(") {
            made.pass(tokens.len())?;
            let Some(end) = closing(tokens, at + 2) else { break };
            let inside = &tokens[at + 3..end];
            let uncast = inside.iter().position(|token| token.is("::")).map_or(inside, |cast| &inside[..cast]);
            let list = match uncast {
                [array, open, list @ .., close] if array.is("array") && open.is("[") && close.is("]") => joined(list),
                [param] if param.kind == Kind::Param => array_parameter(inside),
                [text] if text.kind == Kind::Text => array(&text.string().unwrap_or_default())?,
                [first, ..] if first.is("select") || first.is("values") => joined(inside),
                _ => {
                    return Err("= ANY takes a parameter, ARRAY[…], '{…}' or a SELECT here; IN takes a list".to_owned());
                }
            };
            let place = tokens[at].at;
            let word = if any { "IN" } else { "NOT IN" };
            tokens.splice(at..=end, made.tokens(&format!("{word} ({list})"), place)?);
        }
        at += 1;
    }
    Ok(())
}

/// The members of `{1,2,"a b"}` as literals.
fn array(text: &str) -> Result<String, String> {
    let wrong = || "an array is '{1,2}' or '{a,\"b c\"}'".to_owned();
    let inside = text.trim().strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).ok_or_else(wrong)?;
    let (mut all, mut chars) = (Vec::new(), inside.chars().peekable());
    while chars.peek().is_some() {
        let (mut member, is_quoted) = (String::new(), chars.next_if_eq(&'"').is_some());
        loop {
            match chars.next() {
                Some('\\') => member.push(chars.next().ok_or_else(wrong)?),
                Some('"') if is_quoted => {
                    if !matches!(chars.next(), None | Some(',')) {
                        return Err(wrong());
                    }
                    break;
                }
                None if is_quoted => return Err(wrong()),
                Some(',') | None if !is_quoted => break,
                Some('{' | '}' | '"') if !is_quoted => return Err(wrong()),
                Some(other) => member.push(other),
                None => break,
            }
        }
        let is_number =
            !is_quoted && member.trim().parse::<f64>().is_ok() && !member.contains(|c: char| c.is_alphabetic());
        all.push(match member.trim() {
            "NULL" | "null" if !is_quoted => "NULL".to_owned(),
            bare if is_number => bare.to_owned(),
            bare if !is_quoted => format!("'{}'", bare.replace('\'', "''")),
            _ => format!("'{}'", member.replace('\'', "''")),
        });
    }
    Ok(all.join(", "))
}

/// `FROM generate_series(from, to[, step])`.
///
/// # Errors
/// It stands elsewhere, has arguments that are not understood, or makes too much.
pub(super) fn series(tokens: &mut Vec<Token>, made: &mut Made) -> Result<(), String> {
    let mut at = 0;
    while at < tokens.len() {
        if !(is_at(tokens, at, "generate_series") && is_at(tokens, at + 1, "(")) {
            at += 1;
            continue;
        }
        made.pass(tokens.len())?;
        let is_table = at > 0 && ["from", ",", "join", "lateral"].iter().any(|word| is_at(tokens, at - 1, word));
        let in_select = tokens[..at].iter().rposition(|token| token.is("select") || token.is("from"));
        if !is_table || in_select.is_none_or(|before| tokens[before].is("select")) {
            return Err("generate_series stands in FROM here: FROM generate_series(1, 9) AS i".to_owned());
        }
        let close = closing(tokens, at + 1).ok_or("generate_series( is not closed")?;
        let parts = parts(tokens, at + 2, close);
        let written = |part: usize| parts.get(part).map(|&(from, to)| joined(&tokens[from..to]));
        let (Some(first), Some(last), true) = (written(0), written(1), parts.len() <= 3) else {
            return Err("generate_series takes a first and a last number, and a step".to_owned());
        };
        let step = written(2).unwrap_or_else(|| "1".to_owned());
        let is_literal = parts.get(2).is_none_or(|&(from, to)| {
            let from = if is_at(tokens, from, "-") { from + 1 } else { from };
            to == from + 1
                && tokens[from].kind == Kind::Number
                && tokens[from].text.parse::<f64>().is_ok_and(|n| n > 0.0)
        }) && !step.trim_start_matches(['-', ' ']).is_empty();
        if !is_literal {
            return Err("generate_series takes a number other than 0 as step".to_owned());
        }
        let order = if step.starts_with('-') { ">=" } else { "<=" };
        // generate_series(…) [AS] name[(column)]
        let has_as = is_at(tokens, close + 1, "as");
        let name_at = close + 1 + usize::from(has_as);
        let name = tokens.get(name_at).filter(|token| has_as || is_name(token)).and_then(Token::name);
        let (column, end) = match (&name, is_at(tokens, name_at + 1, "(")) {
            (Some(_), true) => (tokens.get(name_at + 2).and_then(Token::name), (name_at + 4).min(tokens.len())),
            (Some(name), false) => (Some(name.clone()), name_at + 1),
            (None, _) => (None, close + 1),
        };
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        let column = quoted(&column.unwrap_or_else(|| "generate_series".to_owned()));
        let name = quoted(&name.unwrap_or_else(|| "generate_series".to_owned()));
        let sql = format!(
            "(WITH RECURSIVE pg_series(v) AS (SELECT {first} WHERE {first} {order} {last} UNION ALL SELECT v + {step} FROM pg_series \
             WHERE v + {step} {order} {last}) SELECT v AS {column} FROM pg_series) AS {name}"
        );
        let table = made.tokens(&sql, tokens[at].at)?;
        let length = table.len();
        tokens.splice(at..end, table);
        at += length;
    }
    Ok(())
}

/// Whether a word can be a name behind a table.
fn is_name(token: &Token) -> bool {
    const KEYWORDS: &[&str] = &[
        "where",
        "group",
        "order",
        "limit",
        "offset",
        "having",
        "union",
        "except",
        "intersect",
        "join",
        "left",
        "right",
        "inner",
        "cross",
        "full",
        "natural",
        "on",
        "using",
        "window",
        "fetch",
    ];
    token.kind == Kind::Quoted || (token.kind == Kind::Word && !KEYWORDS.iter().any(|word| token.is(word)))
}

/// `LIMIT ALL`, `OFFSET` without a limit, `FETCH FIRST 5 ROWS ONLY`.
///
/// # Errors
/// There are too many.
fn limits(tokens: &mut Vec<Token>, made: &mut Made) -> Result<(), String> {
    let mut at = 0;
    while at < tokens.len() {
        let place = tokens[at].at;
        if ["limit", "fetch", "offset"].iter().any(|word| is_at(tokens, at, word)) {
            made.pass(tokens.len())?;
        }
        if is_at(tokens, at, "limit") && is_at(tokens, at + 1, "all") {
            tokens.splice(at..at + 2, made.tokens("LIMIT -1", place)?);
        } else if is_at(tokens, at, "fetch") && (is_at(tokens, at + 1, "first") || is_at(tokens, at + 1, "next")) {
            let only = (at..tokens.len().min(at + 6)).find(|only| is_at(tokens, *only, "only"));
            let Some(only) = only else { return Ok(()) };
            let count = tokens.get(at + 2).filter(|token| matches!(token.kind, Kind::Number | Kind::Param));
            let limit = made.tokens(&format!("LIMIT {}", count.map_or("1", |count| &count.text)), place)?;
            tokens.drain(at..=only);
            // SQLite has LIMIT before OFFSET.
            let before = (0..at).rev().take(4).find(|before| is_at(tokens, *before, "offset")).unwrap_or(at);
            tokens.splice(before..before, limit);
            if is_at(tokens, before + 4, "rows") || is_at(tokens, before + 4, "row") {
                tokens.remove(before + 4);
            }
            at = before + 1;
        } else if is_at(tokens, at, "offset")
            && tokens.get(at + 1).is_some_and(|next| matches!(next.kind, Kind::Number | Kind::Param))
        {
            if is_at(tokens, at + 2, "rows") || is_at(tokens, at + 2, "row") {
                tokens.remove(at + 2);
            }
            let has_limit = (0..at).rev().take(3).any(|before| is_at(tokens, before, "limit"));
            let (after, fetch) = (is_at(tokens, at + 2, "limit"), is_at(tokens, at + 2, "fetch"));
            if after {
                // OFFSET 2 LIMIT 1
                let offset: Vec<Token> = tokens.drain(at..at + 2).collect();
                let end = (at + 2).min(tokens.len());
                tokens.splice(end..end, offset);
                at = end + 1;
            } else if !has_limit && !fetch {
                tokens.splice(at..at, made.tokens("LIMIT -1", place)?);
                at += 3;
            }
        }
        at += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
