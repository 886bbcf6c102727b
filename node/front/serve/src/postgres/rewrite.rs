//! Rewrites a statement on PostgreSQL's catalogue for SQLite: casts, qualified functions, regular
//! expressions, arrays. SQLite refuses what is not rewritten, and `catalog` handles that.

use super::dialect;
use super::tokens::{Kind, Token, closing, is_at, joined, opening, past_type, strings};

/// Casts that look something up; all others do not change the catalogue's values.
pub(super) const LOOK_UPS: &[&str] = &["regclass", "regtype", "regproc", "regnamespace", "regrole"];
/// Functions that SQLite has by another name.
const RENAMED: &[(&str, &str)] = &[
    ("json_build_object", "json_object"),
    ("jsonb_build_object", "json_object"),
    ("array_agg", "json_group_array"),
    ("bool_and", "min"),
    ("bool_or", "max"),
];
/// Keywords that stand for a value.
const USER_WORDS: &[&str] = &["current_user", "session_user", "user", "current_role"];

/// The same statement for SQLite.
pub(super) fn rewritten(tokens: &[Token]) -> String {
    let mut tokens = tokens.to_vec();
    search_path(&mut tokens);
    strings(&mut tokens);
    qualified_functions(&mut tokens);
    operators(&mut tokens);
    collations(&mut tokens);
    casts(&mut tokens);
    members(&mut tokens);
    // What cannot be rewritten is refused by SQLite.
    let _ = dialect::series(&mut tokens, &mut dialect::Made::default());
    keywords(&mut tokens);
    named_values(&mut tokens);
    unnested(&mut tokens);
    gathered(&mut tokens);
    arrays(&mut tokens);
    subscripts(&mut tokens);
    substrings(&mut tokens);
    names(&mut tokens);
    words(&mut tokens);
    joined(&tokens)
}

fn other(text: &str, at: usize) -> Token {
    Token::new(Kind::Other, text, at)
}

fn word(text: &str, at: usize) -> Token {
    Token::new(Kind::Word, text, at)
}

/// The search path, as elements (Grafana splits it): there is one schema.
fn search_path(tokens: &mut Vec<Token>) {
    let mut at = 0;
    while at + 1 < tokens.len() {
        if is_at(tokens, at, "(")
            && is_at(tokens, at + 1, "select")
            && let Some(end) = closing(tokens, at)
        {
            let inside = &tokens[at + 2..end];
            let has = |name: &str| inside.iter().any(|token| token.is(name));
            let reads_path = inside.iter().any(|token| token.string().as_deref() == Some("search_path"));
            let is_innermost = !inside.iter().any(|token| token.is("select"));
            if is_innermost && reads_path && has("generate_series") {
                let place = tokens[at].at;
                tokens.splice(at + 1..end, [Token::new(Kind::Text, "'public'", place)]);
            }
        }
        at += 1;
    }
}

/// `pg_catalog.f(…)`: SQLite's functions are in no schema; neither are types after AS.
fn qualified_functions(tokens: &mut Vec<Token>) {
    let mut at = 0;
    while at + 2 < tokens.len() {
        let is_schema = is_at(tokens, at, "pg_catalog") || is_at(tokens, at, "information_schema");
        if is_schema && is_at(tokens, at + 1, ".") {
            let is_call = tokens[at + 2].kind == Kind::Word && is_at(tokens, at + 3, "(");
            let is_type = at > 0 && (is_at(tokens, at - 1, "as") || is_at(tokens, at - 1, "::"));
            let is_operator = at > 0 && is_at(tokens, at - 1, "(") && at > 1 && is_at(tokens, at - 2, "operator");
            if is_call || is_type || is_operator {
                tokens.drain(at..at + 2);
                continue;
            }
        }
        at += 1;
    }
}

/// `OPERATOR(~)`, and the operators that SQLite writes as words.
fn operators(tokens: &mut Vec<Token>) {
    let mut at = 0;
    while at < tokens.len() {
        if is_at(tokens, at, "operator") && is_at(tokens, at + 1, "(") && is_at(tokens, at + 3, ")") {
            tokens.drain(at..at + 2);
            tokens.remove(at + 1);
        }
        let written = match tokens[at].text.as_str() {
            "~" => "REGEXP",
            "!~" => "NOT REGEXP",
            "~*" => "MATCH",
            "!~*" => "NOT MATCH",
            "~~" | "~~*" => "LIKE",
            "!~~" | "!~~*" => "NOT LIKE",
            text if text.eq_ignore_ascii_case("ilike") => "LIKE",
            _ => "",
        };
        if !written.is_empty() && matches!(tokens[at].kind, Kind::Other | Kind::Word) {
            tokens[at].text = written.to_owned();
        }
        at += 1;
    }
}

fn collations(tokens: &mut Vec<Token>) {
    let is_collation = |tokens: &[Token], at: usize| {
        tokens[at].is("collate") && at > 0 && !is_at(tokens, at - 1, "as") && !is_at(tokens, at - 1, ".")
    };
    let mut at = 0;
    while at < tokens.len() {
        if is_collation(tokens, at) {
            let length = if is_at(tokens, at + 2, ".") { 4 } else { 2 };
            tokens.drain(at..(at + length).min(tokens.len()));
        } else {
            at += 1;
        }
    }
}

/// Where the value begins that ends before `end`: a name with its qualifiers, a string, a number,
/// or parentheses with the function before them.
fn operand(tokens: &[Token], end: usize) -> Option<usize> {
    let mut at = end.checked_sub(1)?;
    if is_at(tokens, at, ")") || is_at(tokens, at, "]") {
        at = opening(tokens, at)?;
        let before = at.checked_sub(1);
        match before {
            Some(before) if tokens[before].kind == Kind::Word && !is_keyword(&tokens[before]) => at = before,
            _ => return Some(at),
        }
    }
    while at >= 2 && is_at(tokens, at - 1, ".") {
        at -= 2;
    }
    Some(at)
}

fn is_keyword(token: &Token) -> bool {
    const WORDS: &[&str] =
        &["select", "where", "and", "or", "not", "in", "on", "then", "else", "when", "case", "any", "as", "by"];
    WORDS.iter().any(|word| token.is(word))
}

/// `x::type`, and `CAST(x AS type)` where the type looks something up.
fn casts(tokens: &mut Vec<Token>) {
    let mut at = 0;
    while at + 2 < tokens.len() {
        let kind = tokens[at + 1].name().unwrap_or_default();
        if is_at(tokens, at, "as")
            && LOOK_UPS.contains(&kind.as_str())
            && is_at(tokens, at + 2, ")")
            && let Some(before) = opening(tokens, at + 2).and_then(|open| open.checked_sub(1))
            && is_at(tokens, before, "cast")
        {
            tokens[before].text = kind;
            tokens.drain(at..at + 2);
        }
        at += 1;
    }
    while let Some(at) = tokens.iter().position(|token| token.is("::")) {
        let kind = tokens.get(at + 1).and_then(Token::name).unwrap_or_default();
        let end = past_type(tokens, at + 1);
        let place = tokens[at].at;
        tokens.drain(at..end);
        if LOOK_UPS.contains(&kind.as_str())
            && let Some(begin) = operand(tokens, at)
        {
            tokens.insert(at, other(")", place));
            tokens.insert(begin, other("(", place));
            tokens.insert(begin, word(&kind, place));
        }
    }
}

/// `= ANY (array)` and `<> ALL (array)`: SQLite has IN and NOT IN.
fn members(tokens: &mut Vec<Token>) {
    let mut at = 0;
    while at + 2 < tokens.len() {
        let any = is_at(tokens, at, "=") && is_at(tokens, at + 1, "any");
        let none = (is_at(tokens, at, "<>") || is_at(tokens, at, "!=")) && is_at(tokens, at + 1, "all");
        if (any || none)
            && is_at(tokens, at + 2, "(")
            && let Some(end) = closing(tokens, at + 2)
        {
            let place = tokens[at].at;
            let mut inside = tokens[at + 3..end].to_vec();
            while inside.first().is_some_and(|token| token.is("(")) && closing(&inside, 0) == Some(inside.len() - 1) {
                inside = inside[1..inside.len() - 1].to_vec();
            }
            let list = if inside.first().is_some_and(|token| token.is("array")) && is_at(&inside, 1, "[") {
                inside[2..inside.len() - 1].to_vec()
            } else if inside.first().is_some_and(|token| token.is("select")) {
                inside
            } else {
                let mut list = vec![word("SELECT", place), word("value", place), word("FROM", place)];
                list.extend([word("json_each", place), other("(", place), word("pg_array", place), other("(", place)]);
                list.extend(inside);
                list.extend([other(")", place), other(")", place)]);
                list
            };
            let mut made = vec![word(if any { "IN" } else { "NOT IN" }, place), other("(", place)];
            made.extend(list);
            made.push(other(")", place));
            tokens.splice(at..=end, made);
        }
        at += 1;
    }
}

/// `pg_get_keywords()` in FROM: a table here.
fn keywords(tokens: &mut Vec<Token>) {
    while let Some(at) = tokens.iter().position(|token| token.is("pg_get_keywords")) {
        let end = if is_at(tokens, at + 1, "(") && is_at(tokens, at + 2, ")") { at + 3 } else { at + 1 };
        let place = tokens[at].at;
        tokens.splice(at..end, [word("pg_catalog", place), other(".", place), word("pg_keywords", place)]);
    }
}

/// `(VALUES …) name(a, b)`: SQLite's columns of VALUES are named `column1` and so on.
fn named_values(tokens: &mut Vec<Token>) {
    let mut at = 0;
    while at + 1 < tokens.len() {
        let is_values = is_at(tokens, at, "(") && is_at(tokens, at + 1, "values");
        let Some(close) = is_values.then(|| closing(tokens, at)).flatten() else {
            at += 1;
            continue;
        };
        let name = close + 1 + usize::from(is_at(tokens, close + 1, "as"));
        let end = if is_at(tokens, name + 1, "(") { closing(tokens, name + 1) } else { None };
        if let Some(end) = end
            && tokens[name].name().is_some()
        {
            let place = tokens[at].at;
            let columns: Vec<Token> =
                tokens[name + 2..end].iter().filter(|token| token.name().is_some()).cloned().collect();
            tokens.drain(name + 1..=end);
            tokens.insert(close, other(")", place));
            let mut made = vec![word("SELECT", place)];
            for (number, column) in columns.into_iter().enumerate() {
                if number > 0 {
                    made.push(other(",", place));
                }
                made.extend([word(&format!("column{}", number + 1), place), word("AS", place), column]);
            }
            made.extend([word("FROM", place), other("(", place)]);
            tokens.splice(at + 1..at + 1, made);
        }
        at += 1;
    }
}

/// `unnest(x) name` in FROM: a row for each member.
fn unnested(tokens: &mut Vec<Token>) {
    let mut at = 1;
    while at < tokens.len() {
        let is_from = is_at(tokens, at - 1, "from") || is_at(tokens, at - 1, ",");
        if is_from
            && is_at(tokens, at, "unnest")
            && is_at(tokens, at + 1, "(")
            && let Some(end) = closing(tokens, at + 1)
        {
            let name = if is_at(tokens, end + 1, "as") { end + 2 } else { end + 1 };
            let place = tokens[at].at;
            let name =
                tokens.get(name).filter(|token| token.name().is_some()).cloned().unwrap_or(word("unnest", place));
            let mut made =
                vec![other("(", place), word("SELECT", place), word("value", place), word("AS", place), name];
            made.extend([word("FROM", place), word("json_each", place), other("(", place), word("pg_array", place)]);
            made.extend(tokens[at + 1..=end].iter().cloned());
            made.extend([other(")", place), other(")", place)]);
            let length = made.len();
            tokens.splice(at..=end, made);
            at += length;
        }
        at += 1;
    }
}

/// `ARRAY(SELECT x …)`: its rows as one array.
fn gathered(tokens: &mut Vec<Token>) {
    let mut at = 0;
    while at + 2 < tokens.len() {
        if is_at(tokens, at, "array")
            && is_at(tokens, at + 1, "(")
            && is_at(tokens, at + 2, "select")
            && let Some(end) = closing(tokens, at + 1)
        {
            let mut from = at + 3;
            while from < end && !is_at(tokens, from, "from") {
                from = if is_at(tokens, from, "(") { closing(tokens, from).unwrap_or(end) + 1 } else { from + 1 };
            }
            let place = tokens[at].at;
            let from = from.min(end);
            tokens.splice(from..from, [other(")", place), other(")", place)]);
            let made =
                [word("pg_literal", place), other("(", place), word("json_group_array", place), other("(", place)];
            tokens.splice(at + 3..at + 3, made);
            tokens.remove(at);
        }
        at += 1;
    }
}

/// `ARRAY[…]` as JSON.
fn arrays(tokens: &mut [Token]) {
    for at in 0..tokens.len() {
        if is_at(tokens, at, "array")
            && is_at(tokens, at + 1, "[")
            && let Some(end) = closing(tokens, at + 1)
        {
            tokens[at].text = "json_array".to_owned();
            tokens[at + 1].text = "(".to_owned();
            tokens[end].text = ")".to_owned();
        }
    }
}

/// `x[1]`.
fn subscripts(tokens: &mut Vec<Token>) {
    while let Some(at) = tokens.iter().position(|token| token.is("[")) {
        let (Some(end), Some(begin)) = (closing(tokens, at), operand(tokens, at)) else { return };
        let place = tokens[at].at;
        tokens[at].text = ",".to_owned();
        tokens[end].text = ")".to_owned();
        tokens.insert(begin, other("(", place));
        tokens.insert(begin, word("pg_at", place));
    }
}

/// `substring(x FROM a FOR b)`.
fn substrings(tokens: &mut [Token]) {
    for at in 0..tokens.len() {
        if !(is_at(tokens, at, "substring") && is_at(tokens, at + 1, "(")) {
            continue;
        }
        let Some(close) = closing(tokens, at + 1) else { continue };
        let mut inside = at + 2;
        while inside < close {
            if is_at(tokens, inside, "from") || is_at(tokens, inside, "for") {
                let has_begin =
                    is_at(tokens, inside, "from") || tokens[at..inside].iter().any(|token| token.text == ",");
                tokens[inside].kind = Kind::Other;
                tokens[inside].text = if has_begin { "," } else { ", 1 ," }.to_owned();
            }
            let opens = is_at(tokens, inside, "(");
            inside = if opens { closing(tokens, inside).unwrap_or(close) + 1 } else { inside + 1 };
        }
    }
}

/// PostgreSQL takes each keyword as a name after AS, SQLite only quoted ones (`AS notnull`).
fn names(tokens: &mut [Token]) {
    for at in 1..tokens.len() {
        let is_name = tokens[at].kind == Kind::Word && !tokens[at].is("materialized") && !tokens[at].is("not");
        if is_name && is_at(tokens, at - 1, "as") {
            tokens[at] = Token::new(Kind::Quoted, format!("\"{}\"", tokens[at].text), tokens[at].at);
        }
    }
}

/// Keywords that are values, and keywords that SQLite does not know.
fn words(tokens: &mut Vec<Token>) {
    let mut at = 0;
    while at < tokens.len() {
        let is_free = !(at > 0 && (is_at(tokens, at - 1, ".") || is_at(tokens, at - 1, "as")))
            && !is_at(tokens, at + 1, ".")
            && !is_at(tokens, at + 1, "(");
        if is_free && USER_WORDS.iter().any(|user| tokens[at].is(user)) {
            tokens[at].text = "pg_user()".to_owned();
        } else if is_free && tokens[at].is("current_catalog") {
            tokens[at].text = "current_database()".to_owned();
        } else if let Some((_, name)) = RENAMED.iter().find(|(name, _)| tokens[at].is(name))
            && is_at(tokens, at + 1, "(")
        {
            tokens[at].text = (*name).to_owned();
        } else if tokens[at].is("materialized") && at > 0 && is_at(tokens, at - 1, "as") {
            tokens.remove(at);
            continue;
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    /// With a space between all tokens.
    fn of(sql: &str) -> String {
        let tokens = tokens(&rewritten(&tokens(sql).unwrap())).unwrap();
        tokens.into_iter().map(|token| token.text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_clients_write_becomes_sqlites() {
        assert_eq!(of("SELECT c.oid::pg_catalog.regclass, 'x'::text"), "SELECT regclass ( c . oid ) , 'x'");
        assert_eq!(
            of("WHERE c.relname OPERATOR(pg_catalog.~) '^(t)$' COLLATE pg_catalog.default"),
            "WHERE c . relname REGEXP '^(t)$'"
        );
        assert_eq!(of("pg_catalog.pg_table_is_visible(c.oid)"), "pg_table_is_visible ( c . oid )");
        assert_eq!(of("FROM pg_catalog.pg_class c"), "FROM pg_catalog . pg_class c");
        assert_eq!(
            of("k = ANY (ARRAY['r', 'v']) AND n <> ALL('{a}')"),
            "k IN ( 'r' , 'v' ) AND n NOT IN ( SELECT value FROM json_each ( pg_array ( '{a}' ) ) )"
        );
        assert_eq!(
            of("current_setting('server_version_num')::int/100"),
            "current_setting ( 'server_version_num' ) / 100"
        );
        assert_eq!(
            of(
                "SELECT d.datcollate AS collate, a.attnotnull AS notnull, substring(a.b for 128), substring(x from 2 for 3) AS default"
            ),
            "SELECT d . datcollate AS \"collate\" , a . attnotnull AS \"notnull\" , substring ( a . b , 1 , 128 ) , substring ( x , 2 , 3 ) AS \"default\""
        );
        assert_eq!(
            of("SELECT * FROM unnest(current_schemas(true))"),
            "SELECT * FROM ( SELECT value AS \"unnest\" FROM json_each ( pg_array ( current_schemas ( true ) ) ) )"
        );
        assert_eq!(
            of("SELECT a FROM (VALUES ('x', 1)) s(a, b)"),
            "SELECT a FROM ( SELECT column1 AS \"a\" , column2 AS \"b\" FROM ( VALUES ( 'x' , 1 ) ) ) s"
        );
        assert_eq!(of("(parse_ident('t'))[2]"), "pg_at ( ( parse_ident ( 't' ) ) , 2 )");
        assert_eq!(of("a::character varying(10)[] = E'\\\\d'"), "a = '\\d'");
        assert_eq!(
            of("array_to_string(array(select 'a' || x from unnest(t.o) x), ',')"),
            "array_to_string ( ( select pg_literal ( json_group_array ( 'a' || x ) ) from ( SELECT value AS \"x\" FROM json_each ( \
             pg_array ( t . o ) ) ) x ) , ',' )"
        );
        assert_eq!(of("SELECT current_user, t.user"), "SELECT pg_user ( ) , t . user");
        assert_eq!(of("CAST(CAST('a' AS REGCLASS) AS OID)"), "CAST ( regclass ( 'a' ) AS \"OID\" )");
        assert_eq!(of("json_build_object('a', b)"), "json_object ( 'a' , b )");
        assert_eq!(of("to_regclass('a')::oid::regclass"), "regclass ( to_regclass ( 'a' ) )");
    }

    proptest::proptest! {
        #[test]
        fn no_tokens_make_it_fail(sql in "([a-z]{1,3}|any|array|select|operator|collate|[(\\[\\]).,=~]|::| |'x'){0,40}") {
            if let Ok(tokens) = tokens(&sql) {
                rewritten(&tokens);
            }
        }
    }
}
