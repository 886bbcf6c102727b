//! Limits a question to rows from before a time, so that its answer does not change while rows are
//! recorded.
//!
//! Works on the text: each table of a FROM clause that has a time gets a condition, in WHERE, or in
//! ON where the table is the right side of a LEFT JOIN. The rest of the question stays as it is, so
//! that it is planned as it would be.

/// Tables and views with the column of their time.
const TIMED: &[(&str, &str)] = &[
    ("collectives", "ts_ns"),
    ("offcpu", "ts_ns"),
    ("net_events", "ts_ns"),
    ("cuda_calls", "ts_ns"),
    ("symbol_calls", "ts_ns"),
    ("requests", "ts_ns"),
    ("request_stretches", "ts_ns"),
    ("request_rollups", "bucket_ns"),
    ("block_io", "ts_ns"),
    ("memory_events", "ts_ns"),
    ("process_events", "ts_ns"),
    ("fabric_counters", "ts_ns"),
    ("gpu_samples", "ts_ns"),
    ("host_samples", "ts_ns"),
    ("self_stats", "ts_ns"),
    ("capture_loss", "ts_ns"),
    ("findings", "ts_ns"),
    ("audit", "ts_ns"),
    ("annotations", "ts_ns"),
    ("stacks", "ts_ns"),
    ("clock_offsets", "ts_ns"),
    ("call_rollups", "bucket_ns"),
    ("cuda_time", "bucket_ns"),
    ("sessions", "start_ns"),
    ("nccl_events", "timestamp_ns"),
    ("cuda_events", "timestamp_ns"),
    ("tcp_events", "timestamp_ns"),
    ("events", "timestamp"),
];

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
        let Some((_, time)) = TIMED.iter().find(|(table, _)| begins && token.is(table)) else { continue };
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

/// Words, numbers, quoted pieces and single signs; comments are left out.
fn tokens(sql: &str) -> Vec<Token<'_>> {
    let bytes = sql.as_bytes();
    let (mut tokens, mut at, mut depth) = (Vec::new(), 0, 0_usize);
    while at < bytes.len() {
        let begin = at;
        match bytes[at] {
            byte if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'-' if bytes.get(at + 1) == Some(&b'-') => {
                at += sql[at..].find('\n').unwrap_or(sql.len() - at);
                continue;
            }
            quote @ (b'\'' | b'"') => {
                at += 1;
                while at < bytes.len() && bytes[at] != quote {
                    at += 1;
                }
                at = (at + 1).min(bytes.len());
            }
            byte if byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80 => {
                while at < bytes.len() && (bytes[at].is_ascii_alphanumeric() || bytes[at] == b'_' || bytes[at] >= 0x80)
                {
                    at += 1;
                }
            }
            b')' => {
                depth = depth.saturating_sub(1);
                at += 1;
            }
            _ => at += 1,
        }
        tokens.push(Token { text: &sql[begin..at], begin, depth });
        depth += usize::from(bytes[begin] == b'(');
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
