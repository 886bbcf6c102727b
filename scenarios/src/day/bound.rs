//! Limits a question to rows from before a time, so that its answer does not change while rows are
//! recorded.
//!
//! Works on the text: each table of a FROM clause that has a time gets a condition, in WHERE, or in
//! ON where the table is the right side of a LEFT JOIN. The rest of the question stays as it is, so
//! that it is planned as it would be.

use sqlite3_parser::lexer::Scanner;
use sqlite3_parser::lexer::sql::Tokenizer;
use store::TIMED_TABLES;

/// Views with the column of their time.
const VIEWS: [(&str, &str); 6] = [
    ("cuda_time", "bucket_ns"),
    ("sessions", "start_ns"),
    ("nccl_events", "timestamp_ns"),
    ("cuda_events", "timestamp_ns"),
    ("tcp_events", "timestamp_ns"),
    ("events", "timestamp"),
];

/// The column of the time of what a token names; none where it names no table of rows with a time.
/// (A process is seen again and again.)
fn time_of(token: &Token<'_>) -> Option<&'static str> {
    let mut tables = TIMED_TABLES.iter().filter(|(table, _)| *table != "processes").chain(&VIEWS);
    tables.find(|(table, _)| token.is(table)).map(|(_, time)| *time)
}

/// A token with its place in the text and the parentheses around it.
#[derive(Debug, Clone, Copy)]
struct Token<'s> {
    text: &'s str,
    begin: usize,
    depth: usize,
}

impl Token<'_> {
    fn is(&self, word: &str) -> bool {
        self.text.eq_ignore_ascii_case(word)
    }

    fn is_one_of(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.is(word))
    }

    fn end(&self) -> usize {
        self.begin + self.text.len()
    }
}

/// What ends a FROM clause or a WHERE clause on its own level.
const AFTER_FROM: &[&str] =
    &["where", "group", "having", "window", "order", "limit", "union", "except", "intersect", ";", ")"];
/// What is no alias.
const NO_ALIAS: &[&str] =
    &["on", "using", "join", "left", "inner", "cross", "natural", "full", "right", "outer", "as", ","];

/// The same question about rows from before `until_ns` (Unix nanoseconds).
#[must_use]
pub fn before(sql: &str, until_ns: i64) -> String {
    let tokens = tokens(sql);
    // Pieces of text to put in, by place; those of one place in this order.
    let mut edits: Vec<(usize, String)> = Vec::new();
    for (at, from) in tokens.iter().enumerate().filter(|(_, token)| token.is("from")) {
        if at > 0 && tokens[at - 1].is("distinct") {
            continue; // IS DISTINCT FROM
        }
        let clause = &tokens[at + 1..];
        let ends =
            |token: &Token<'_>| token.depth < from.depth || (token.depth == from.depth && token.is_one_of(AFTER_FROM));
        let length = clause.iter().position(ends).unwrap_or(clause.len());
        let wanted = conditions(&clause[..length], from.depth, until_ns, &mut edits);
        if wanted.is_empty() {
            continue;
        }
        let wanted = wanted.join(" AND ");
        let rest = &clause[length..];
        let Some(filter) = rest.first().filter(|token| token.depth == from.depth && token.is("where")) else {
            let end = clause[..length].last().map_or(from.end(), Token::end);
            edits.push((end, format!(" WHERE {wanted}")));
            continue;
        };
        edits.push((filter.end(), format!(" {wanted} AND (")));
        let body = &rest[1..];
        let last = body.iter().position(ends).unwrap_or(body.len());
        edits.push((body[..last].last().map_or(filter.end(), Token::end), ")".to_owned()));
    }
    edits.sort_by_key(|(place, _)| *place);
    let (mut bounded, mut done) = (String::with_capacity(sql.len() + 256), 0);
    for (place, text) in edits {
        bounded.push_str(&sql[done..place]);
        bounded.push_str(&text);
        done = place;
    }
    bounded.push_str(&sql[done..]);
    bounded
}

/// The conditions for WHERE on the sources of a FROM clause; those for ON go to `edits`.
fn conditions(clause: &[Token<'_>], depth: usize, until_ns: i64, edits: &mut Vec<(usize, String)>) -> Vec<String> {
    let mut wanted = Vec::new();
    let level: Vec<&Token<'_>> = clause.iter().filter(|token| token.depth == depth).collect();
    for (at, token) in level.iter().enumerate() {
        let begins = at == 0 || level[at - 1].is_one_of(&["join", ","]);
        let Some(time) = time_of(token).filter(|_| begins) else { continue };
        let after = level.get(at + 1).map(|next| if next.is("as") { level.get(at + 2) } else { level.get(at + 1) });
        let alias = after.flatten().filter(|next| !next.is_one_of(NO_ALIAS)).map_or(token.text, |next| next.text);
        let condition = format!("{alias}.{time} < {until_ns}");
        let left = (1..=3).filter_map(|back| at.checked_sub(back)).any(|before| level[before].is("left"));
        match level[at..].iter().find(|next| next.is("on")).filter(|_| left) {
            Some(on) => edits.push((on.end(), format!(" {condition} AND"))),
            None => wanted.push(condition),
        }
    }
    wanted
}

fn tokens(sql: &str) -> Vec<Token<'_>> {
    let (mut scanner, mut tokens, mut depth) = (Scanner::new(Tokenizer::new()), Vec::new(), 0_usize);
    while let Ok((begin, Some(_), end)) = scanner.scan(sql.as_bytes()) {
        let text = &sql[begin..end];
        depth = depth.saturating_sub(usize::from(text == ")"));
        tokens.push(Token { text, begin, depth });
        depth += usize::from(text == "(");
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_timed_table_is_bounded_where_it_is_named() {
        for (sql, bounded) in [
            ("SELECT count(*) FROM collectives", "SELECT count(*) FROM collectives WHERE collectives.ts_ns < 9"),
            (
                "SELECT a FROM offcpu o WHERE x = 1 OR y = 'from; events' GROUP BY a",
                "SELECT a FROM offcpu o WHERE o.ts_ns < 9 AND ( x = 1 OR y = 'from; events') GROUP BY a",
            ),
            (
                "WITH s AS (SELECT *, node FROM nccl_events WHERE d > 1) SELECT * FROM s LEFT JOIN tcp_events AS t ON t.n = s.n AND 1 GROUP BY 1",
                "WITH s AS (SELECT *, node FROM nccl_events WHERE nccl_events.timestamp_ns < 9 AND ( d > 1)) SELECT * FROM s \
                 LEFT JOIN tcp_events AS t ON t.timestamp_ns < 9 AND t.n = s.n AND 1 GROUP BY 1",
            ),
            (
                "SELECT 1 FROM lateness(1, 2) WHERE a IS DISTINCT FROM events",
                "SELECT 1 FROM lateness(1, 2) WHERE a IS DISTINCT FROM events",
            ),
            (
                "SELECT (SELECT max(ts_ns) FROM audit) FROM processes, self_stats s;",
                "SELECT (SELECT max(ts_ns) FROM audit WHERE audit.ts_ns < 9) FROM processes, self_stats s WHERE s.ts_ns < 9;",
            ),
        ] {
            assert_eq!(before(sql, 9), bounded);
        }
    }
}
