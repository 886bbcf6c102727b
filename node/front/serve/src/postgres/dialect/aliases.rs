//! Names of result columns that are rewritten: those that PostgreSQL gives them
//! (<https://www.postgresql.org/docs/current/queries-select-lists.html#QUERIES-COLUMN-LABELS>), so
//! that clients find a column whose expression has become another.

use std::collections::BTreeMap;

use super::super::tokens::{Kind, Token, closing, is_at, past_type};
use super::made::Made;
use super::{calls, times};

/// Types that PostgreSQL calls otherwise than the standard does.
const OWN_NAMES: &[(&str, &str)] = &[
    ("bigint", "int8"),
    ("int", "int4"),
    ("integer", "int4"),
    ("smallint", "int2"),
    ("double", "float8"),
    ("real", "float4"),
    ("boolean", "bool"),
    ("character", "bpchar"),
    ("decimal", "numeric"),
];
const LIST_ENDS: &[&str] = &[
    "from",
    "where",
    "group",
    "order",
    "limit",
    "union",
    "except",
    "intersect",
    "having",
    "window",
    "offset",
    "fetch",
];

/// PostgreSQL's own name of a type, as columns have it.
pub(in super::super) fn type_name(written: &str) -> String {
    OWN_NAMES.iter().find(|(known, _)| *known == written).map_or(written, |(_, own)| own).to_owned()
}

/// Writes `AS name` behind columns without a name that are a cast, or a call or a word that is rewritten.
///
/// # Errors
/// There are too many.
pub(super) fn kept(tokens: &mut Vec<Token>, made: &mut Made) -> Result<(), String> {
    // By the token that they stand before.
    let mut names = BTreeMap::new();
    for at in (0..tokens.len()).filter(|at| tokens[*at].is("select")) {
        list(tokens, at + 1, made, &mut names)?;
    }
    if names.is_empty() {
        return Ok(());
    }
    let mut new = Vec::with_capacity(tokens.len() + 2 * names.len());
    for at in 0..=tokens.len() {
        if let Some(name) = names.get(&at) {
            let place = tokens[at - 1].at;
            let quoted = format!("\"{}\"", name.replace('"', "\"\""));
            new.extend([Token::new(Kind::Word, "AS", place), Token::new(Kind::Quoted, quoted, place)]);
        }
        new.extend(tokens.get(at).cloned());
    }
    *tokens = new;
    Ok(())
}

fn list(tokens: &[Token], begin: usize, made: &mut Made, names: &mut BTreeMap<usize, String>) -> Result<(), String> {
    let mut begin = begin + usize::from(is_at(tokens, begin, "distinct") || is_at(tokens, begin, "all"));
    loop {
        let end = item_end(tokens, begin);
        made.pass(end - begin.min(end))?;
        if let Some(name) = name(tokens, begin, end) {
            names.insert(end, name);
        }
        if !is_at(tokens, end, ",") {
            return Ok(());
        }
        begin = end + 1;
    }
}

/// Where a column of a list ends.
fn item_end(tokens: &[Token], begin: usize) -> usize {
    let mut at = begin;
    while at < tokens.len() {
        let token = &tokens[at];
        if token.is(",") || token.is(")") || (token.kind == Kind::Word && LIST_ENDS.iter().any(|word| token.is(word))) {
            return at;
        }
        let opens = token.is("(") || token.is("[");
        at = if opens { closing(tokens, at).map_or(tokens.len(), |close| close + 1) } else { at + 1 };
    }
    at
}

/// The name of a column that is nothing but a cast or a rewritten function.
fn name(tokens: &[Token], begin: usize, end: usize) -> Option<String> {
    let first = tokens.get(begin)?;
    let mut at = begin + 1;
    let mut name = first.name();
    while is_at(tokens, at, ".") && at < end {
        name = tokens.get(at + 1)?.name();
        at += 2;
    }
    let is_word = |name: &String| first.kind == Kind::Word && times::WORDS.contains(&name.as_str());
    let mut is_rewritten = at == end && at == begin + 1 && name.as_ref().is_some_and(is_word);
    if first.is("(") {
        at = closing(tokens, begin)? + 1;
        name = None;
    } else if is_at(tokens, at, "(") && at < end {
        is_rewritten = name.as_ref().is_some_and(|name| calls::is_known(name));
        at = closing(tokens, at)? + 1;
    }
    while is_at(tokens, at, "::") && at < end {
        let typed = tokens.get(at + 1)?.name()?;
        name = name.or_else(|| Some(type_name(&typed)));
        at = past_type(tokens, at + 1);
        is_rewritten = true;
    }
    (is_rewritten && at == end).then_some(name).flatten()
}
