//! Statements: which of them are for the session, for the catalogue or for the nodes.

use pgwire::error::{PgWireError, PgWireResult};
use query_planner::MAX_SQL_BYTES;

use super::copy::Copy;
use super::rewrite::LOOK_UPS;
use super::session::CursorStatement;
use super::tokens::{Kind, Token, joined, past_quoted, statements, tokens};
use super::{dialect, errors};

/// The kind of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Class {
    Begin,
    Commit,
    Rollback,
    /// SAVEPOINT, RELEASE and ROLLBACK TO, with the name.
    Savepoint(String),
    Release(String),
    RollbackTo(String),
    /// `SET name = value`, `SET name TO value`; whether it is `SET LOCAL`.
    Set(String, String, bool),
    /// Back to how a session begins.
    DiscardAll,
    /// A prepared statement ends, or all.
    Deallocate(Option<String>),
    Cursor(CursorStatement),
    /// An answer as one stream.
    Copy(Copy),
    /// Back to the default: a setting, or all.
    Reset(String),
    Show(String),
    /// No effect: the tag of the answer.
    Done(&'static str),
    /// The plan of the statement from this byte on; whether it is also to be run.
    Explain(usize, bool),
    /// Nothing for so many milliseconds.
    Sleep(u64),
    /// A question to PostgreSQL's catalogue.
    Catalog,
    /// A question to the nodes.
    Nodes,
    /// Not supported: why, and what to do.
    Refused(&'static str),
}

/// Words, values and signs of a text of statements, each of which takes some 80 bytes; of one on the
/// catalogue, whose rewriting takes up to the square of them in steps.
const MOST_TOKENS: usize = 200_000;
const MOST_CATALOG_TOKENS: usize = 10_000;

/// A statement.
#[derive(Debug, Clone)]
pub(super) struct Statement {
    pub(super) sql: String,
    pub(super) tokens: Vec<Token>,
    pub(super) class: Class,
}

/// PostgreSQL's functions that describe the server.
const FUNCTIONS: &[&str] = &[
    "version",
    "current_schema",
    "current_schemas",
    "current_database",
    "current_setting",
    "set_config",
    "has_table_privilege",
    "has_schema_privilege",
    "has_database_privilege",
    "obj_description",
    "col_description",
    "format_type",
    "to_regclass",
    "to_regtype",
    "quote_ident",
    "inet_server_addr",
    "txid_current",
];

impl Statement {
    /// The statements of a text.
    ///
    /// # Errors
    /// A string or a comment does not end; the text is too long.
    pub(super) fn all(sql: &str) -> PgWireResult<Vec<Self>> {
        fits(sql)?;
        let all = statements(sql).map_err(errors::syntax)?;
        let count = all.iter().map(|(_, tokens)| tokens.len()).sum();
        if count > MOST_TOKENS {
            return Err(too_many(MOST_TOKENS, count));
        }
        all.into_iter().map(|(sql, tokens)| Self::new(sql, tokens)).collect()
    }

    /// The one statement of a text.
    ///
    /// # Errors
    /// There is none, or there are more.
    pub(super) fn one(sql: &str) -> PgWireResult<Self> {
        let mut all = Self::all(sql)?;
        match (all.pop(), all.is_empty()) {
            (Some(statement), true) => Ok(statement),
            _ => Err(errors::syntax("one SELECT is expected here".to_owned())),
        }
    }

    fn new(sql: String, tokens: Vec<Token>) -> PgWireResult<Self> {
        let class = class(&sql, &tokens);
        let own_forms = Self { sql, tokens, class };
        let from = match own_forms.class {
            Class::Nodes => 0,
            Class::Explain(at, _) => at,
            // Its question is one of nodes, or of the catalogue.
            Class::Cursor(CursorStatement::Declare { at, .. }) => {
                let question = Self::one(&own_forms.sql[at..])?;
                return own_forms.of_sql(format!("{}{}", &own_forms.sql[..at], question.sql));
            }
            Class::Catalog => {
                let count = own_forms.tokens.len();
                if count > MOST_CATALOG_TOKENS {
                    return Err(too_many(MOST_CATALOG_TOKENS, count));
                }
                return match dialect::with_array_parameters(&own_forms.tokens).map_err(errors::syntax)? {
                    Some(tokens) => own_forms.of_tokens(&tokens),
                    None => Ok(own_forms),
                };
            }
            _ => return Ok(own_forms),
        };
        let begin = own_forms.tokens.partition_point(|token| token.at < from);
        match dialect::rewritten(&own_forms.tokens[begin..]).map_err(errors::syntax)? {
            None => Ok(own_forms),
            Some(question) => own_forms.of_sql(format!("{}{}", &own_forms.sql[..from], joined(&question))),
        }
    }

    /// Of a statement about a question, such as DECLARE, that question, from a byte on.
    pub(super) fn question(&self, at: usize) -> Self {
        let sql = self.sql[at..].to_owned();
        let of = |token: &Token| Token { at: token.at - at, ..token.clone() };
        let tokens: Vec<Token> = self.tokens.iter().filter(|token| token.at >= at).map(of).collect();
        let class = class(&sql, &tokens);
        Self { sql, tokens, class }
    }

    /// The statement with other tokens.
    ///
    /// # Errors
    /// They are no SQL.
    pub(super) fn of_tokens(&self, tokens: &[Token]) -> PgWireResult<Self> {
        self.of_sql(joined(tokens))
    }

    /// The statement without its rows, to see its columns.
    ///
    /// # Errors
    /// As [`Statement::of_tokens`].
    pub(super) fn described(&self) -> PgWireResult<Self> {
        self.of_sql(format!("SELECT * FROM ({}\n) LIMIT 0", self.sql))
    }

    fn of_sql(&self, sql: String) -> PgWireResult<Self> {
        let tokens = tokens(&sql).map_err(errors::syntax)?;
        Ok(self.of(sql, tokens))
    }

    fn of(&self, sql: String, tokens: Vec<Token>) -> Self {
        let class = match &self.class {
            // They say where their question begins.
            Class::Cursor(CursorStatement::Declare { .. }) | Class::Explain(..) => class(&sql, &tokens),
            other => other.clone(),
        };
        Self { sql, tokens, class }
    }

    /// The number of its parameters.
    pub(super) fn parameters(&self) -> usize {
        let numbers = self.tokens.iter().filter(|token| token.kind == Kind::Param);
        numbers.filter_map(|token| token.text[1..].parse().ok()).max().unwrap_or(0)
    }

    /// Of a parameter, from 0, that is an array, whose value is a list, the name of its elements'
    /// type, empty where none is told; none of another.
    pub(super) fn array(&self, number: usize) -> Option<String> {
        let is_it = |token: &Token| token.kind == Kind::Param && token.text[1..].parse() == Ok(number + 1);
        let (at, _) =
            self.tokens.iter().enumerate().find(|(at, token)| is_it(token) && self.brackets_after(*at) > 0)?;
        Some(self.tokens[at + 2].name().unwrap_or_default())
    }

    /// Tokens of the brackets that mark a parameter as an array.
    fn brackets_after(&self, at: usize) -> usize {
        let is = |offset: usize, text: &str| self.tokens.get(at + offset).is_some_and(|token| token.is(text));
        match () {
            () if !is(1, "[") => 0,
            () if is(2, "]") => 2,
            () if is(3, "]") => 3,
            () => 0,
        }
    }

    /// The SQL with values in place of its parameters, as literals; `public.` is removed. A value is
    /// one token, also a list.
    ///
    /// # Errors
    /// A parameter has no value; the values make it too long.
    pub(super) fn with(&self, literals: &[String]) -> PgWireResult<Self> {
        let mut sql = String::with_capacity(self.sql.len());
        let mut tokens = Vec::with_capacity(self.tokens.len());
        let (mut copied, mut at) = (0, 0);
        while at < self.tokens.len() {
            let token = &self.tokens[at];
            let next_is = |offset: usize, text: &str| self.tokens.get(at + offset).is_some_and(|token| token.is(text));
            let begin_of = |at: usize| self.tokens.get(at).map_or(self.sql.len(), |next| next.at);
            if token.kind == Kind::Param {
                let number = token.text[1..].parse::<usize>().ok().and_then(|number| number.checked_sub(1));
                let literal = number.and_then(|number| literals.get(number));
                let literal = literal.ok_or_else(|| errors::syntax(format!("there is no value for {}", token.text)))?;
                sql.push_str(&self.sql[copied..token.at]);
                // (Behind a `-`, a negative number would begin a comment.)
                sql.push(' ');
                tokens.push(Token::new(kind_of(literal), literal.as_str(), sql.len()));
                sql.push_str(literal);
                sql.push(' ');
                fits(&sql)?;
                at += 1 + self.brackets_after(at);
                copied = begin_of(at);
                continue;
            }
            if self.class != Class::Catalog && token.name().as_deref() == Some("public") && next_is(1, ".") {
                sql.push_str(&self.sql[copied..token.at]);
                at += 2;
                copied = begin_of(at);
                continue;
            }
            tokens.push(Token::new(token.kind, token.text.as_str(), sql.len() + token.at - copied));
            at += 1;
        }
        sql.push_str(&self.sql[copied..]);
        fits(&sql)?;
        Ok(self.of(sql, tokens))
    }
}

/// The kind of a literal as one token.
fn kind_of(literal: &str) -> Kind {
    match literal.as_bytes().first() {
        Some(b'\'') if past_quoted(literal.as_bytes(), 0, b'\'', false) == Some(literal.len()) => Kind::Text,
        _ if literal == "NULL" => Kind::Word,
        _ if literal.contains(',') => Kind::Other,
        _ => Kind::Number,
    }
}

/// A statement is no longer than what a node takes.
fn fits(sql: &str) -> PgWireResult<()> {
    if sql.len() <= MAX_SQL_BYTES {
        return Ok(());
    }
    let bytes = sql.len();
    Err(errors::too_much(format!(
        "a statement has at most {MAX_SQL_BYTES} bytes with its values, this one has {bytes}: ask in parts"
    )))
}

fn too_many(most: usize, count: usize) -> PgWireError {
    errors::too_much(format!(
        "a statement has at most {most} words, values and signs here, this text has {count}: send lists as arrays (= ANY \
         ($1)), or ask in parts"
    ))
}

fn class(sql: &str, tokens: &[Token]) -> Class {
    let name = |at: usize| tokens.get(at).and_then(Token::name).unwrap_or_default();
    let value = |from: usize| {
        let words = tokens.iter().skip(from).map(|token| token.string().unwrap_or_else(|| token.text.clone()));
        words.collect::<Vec<_>>().join(" ")
    };
    match name(0).as_str() {
        "begin" | "start" => Class::Begin,
        "commit" | "end" => Class::Commit,
        "rollback" if tokens.iter().any(|token| token.is("to")) => Class::RollbackTo(last_name(tokens)),
        "rollback" | "abort" => Class::Rollback,
        "savepoint" => Class::Savepoint(last_name(tokens)),
        "release" => Class::Release(last_name(tokens)),
        "deallocate" => match tokens.last() {
            Some(last) if last.is("all") => Class::Deallocate(None),
            _ => Class::Deallocate(Some(last_name(tokens))),
        },
        "discard" if name(1) == "all" => Class::DiscardAll,
        "discard" => Class::Done("DISCARD"),
        "unlisten" => Class::Done("UNLISTEN"),
        "set" => {
            let mut at = 1;
            let local = name(1) == "local";
            while ["session", "local"].contains(&name(at).as_str()) && tokens.len() > at + 1 {
                at += 1;
            }
            // SET TIME ZONE, SET TRANSACTION …, SET SESSION CHARACTERISTICS …
            if ["transaction", "characteristics"].contains(&name(at).as_str()) {
                return Class::Done("SET");
            }
            if name(at) == "time" && name(at + 1) == "zone" {
                return Class::Set("timezone".to_owned(), value(at + 2), local);
            }
            let mut known = name(at);
            // rankmesh.require_all
            if tokens.get(at + 1).is_some_and(|token| token.is(".")) {
                known = format!("{known}.{}", name(at + 2));
                at += 2;
            }
            let is_set = tokens.get(at + 1).is_some_and(|token| token.is("=") || token.is("to"));
            Class::Set(known, value(at + if is_set { 2 } else { 1 }), local)
        }
        "reset" => Class::Reset(name(1)),
        "show" => Class::Show(shown(tokens)),
        "explain" => {
            let analyze = name(1) == "analyze";
            match tokens.get(if analyze { 2 } else { 1 }) {
                Some(next) if next.is("(") => {
                    Class::Refused("EXPLAIN takes no options here: EXPLAIN or EXPLAIN ANALYZE")
                }
                Some(next) => Class::Explain(next.at, analyze),
                None => Class::Nodes,
            }
        }
        "declare" | "fetch" | "move" | "close" => {
            CursorStatement::parsed(tokens).map_or_else(Class::Refused, Class::Cursor)
        }
        "copy" => Copy::parsed(sql, tokens).map_or_else(Class::Refused, Class::Copy),
        "prepare" | "execute" => {
            Class::Refused("PREPARE is not offered as SQL: the protocol's own prepared statements are")
        }
        "listen" | "notify" => {
            Class::Refused("there are no notifications: rankmesh stragglers --watch waits for verdicts")
        }
        "select" if name(1) == "pg_sleep" || name(3) == "pg_sleep" => sleep(tokens),
        _ if is_catalog(tokens) => Class::Catalog,
        _ => Class::Nodes,
    }
}

/// `SELECT pg_sleep(seconds)`.
fn sleep(tokens: &[Token]) -> Class {
    let begin = 1 + if tokens.get(2).is_some_and(|token| token.is(".")) { 2 } else { 0 };
    match tokens.get(begin + 1..) {
        Some([open, seconds, close]) if open.is("(") && seconds.kind == Kind::Number && close.is(")") => {
            let seconds = seconds.text.parse::<f64>().unwrap_or(f64::MAX);
            Class::Sleep((seconds * 1e3) as u64)
        }
        _ => Class::Refused("pg_sleep takes a number of seconds, and stands alone: SELECT pg_sleep(0.5)"),
    }
}

/// The name at the end: SAVEPOINT name, ROLLBACK WORK TO SAVEPOINT name.
fn last_name(tokens: &[Token]) -> String {
    tokens.last().and_then(Token::name).unwrap_or_default()
}

fn shown(tokens: &[Token]) -> String {
    let words: Vec<String> = tokens.iter().skip(1).filter_map(Token::name).collect();
    match words.join(" ").as_str() {
        "transaction isolation level" => "transaction_isolation".to_owned(),
        "time zone" => "timezone".to_owned(),
        _ => words.join("."),
    }
}

fn is_catalog(tokens: &[Token]) -> bool {
    let has_from = tokens.iter().any(|token| token.is("from"));
    let is_read =
        ["select", "with", "values", "table"].iter().any(|word| tokens.first().is_some_and(|token| token.is(word)));
    is_read
        && tokens.iter().enumerate().any(|(at, token)| {
            let Some(name) = token.name() else {
                // A cast that looks something up, or to an array.
                let is_of = |kind: &Token| kind.name().is_some_and(|name| LOOK_UPS.contains(&name.as_str()));
                let looks_up = tokens.get(at + 1).is_some_and(is_of) || tokens.get(at + 2).is_some_and(|t| t.is("["));
                return !has_from && token.is("::") && looks_up;
            };
            let is_call = tokens.get(at + 1).is_some_and(|next| next.is("("));
            name.starts_with("pg_")
                || name == "information_schema"
                || (is_call && FUNCTIONS.contains(&name.as_str()))
                || (!has_from
                    && ["current_user", "session_user", "current_catalog", "current_role"].contains(&name.as_str()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(sql: &str) -> Statement {
        Statement::all(sql).unwrap().remove(0)
    }

    #[test]
    fn kinds_of_statements_are_recognised() {
        let class = |sql: &str| one(sql).class;
        assert_eq!(class("SELECT count(*) FROM collectives"), Class::Nodes);
        assert_eq!(class("SELECT now()::text, 1::int"), Class::Nodes);
        assert_eq!(class("INSERT INTO t VALUES (1)"), Class::Nodes);
        assert_eq!(class("SELECT pg_sleep(0.5)"), Class::Sleep(500));
        assert_eq!(class("select pg_catalog.pg_sleep(1)"), Class::Sleep(1_000));
        assert!(matches!(class("SELECT pg_sleep(x) FROM t"), Class::Refused(_)));
        for sql in [
            "SELECT 'collectives'::regclass",
            "SELECT '{1}'::int[]",
            "select version()",
            "SELECT current_user",
            "SELECT * FROM information_schema.tables",
            "WITH x AS (SELECT 1) SELECT * FROM pg_class",
            "SELECT pg_catalog.version()",
        ] {
            assert_eq!(class(sql), Class::Catalog, "{sql}");
        }
        assert_eq!(class("SELECT user FROM processes"), Class::Nodes);
        assert_eq!(class("SET require_all = on"), Class::Set("require_all".into(), "on".into(), false));
        assert_eq!(
            class("SET SESSION rankmesh.require_all TO 'off'"),
            Class::Set("rankmesh.require_all".into(), "off".into(), false)
        );
        assert_eq!(class("SET TIME ZONE 'UTC'"), Class::Set("timezone".into(), "UTC".into(), false));
        assert_eq!(class("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"), Class::Done("SET"));
        assert_eq!(class("show transaction isolation level"), Class::Show("transaction_isolation".into()));
        assert_eq!(class("EXPLAIN ANALYZE SELECT 1"), Class::Explain(16, true));
        assert!(matches!(class("COPY t FROM STDIN"), Class::Refused(_)));
        assert!(matches!(class("COPY t TO STDOUT"), Class::Copy(_)));
        assert_eq!(class("DEALLOCATE PREPARE \"All\""), Class::Deallocate(Some("All".into())));
        assert_eq!(class("deallocate all"), Class::Deallocate(None));
        assert_eq!(class("SET LOCAL x = 1"), Class::Set("x".into(), "1".into(), true));
    }

    #[test]
    fn parameters_become_literals_and_nothing_else_changes() {
        let statement = one("SELECT '$1', $1::INTEGER,$2::varchar(3) FROM public.t -- $3\n WHERE \"public\".x = $2");
        assert_eq!(statement.parameters(), 2);
        let bound = statement.with(&["7".into(), "'a''b'".into()]).unwrap();
        assert_eq!(
            bound.sql.replace(' ', ""),
            "SELECT '$1', CAST(7 AS INTEGER) AS \"int4\", substr(CAST('a''b' AS TEXT), 1, 3) AS \"varchar\" FROM t WHERE x = 'a''b'"
                .replace(' ', "")
        );
        assert!(statement.with(&["7".into()]).is_err());
    }

    #[test]
    fn a_negative_value_behind_a_minus_is_no_comment() {
        let statement = one("SELECT 1 WHERE x = -$1 AND node = $2");
        let bound = statement.with(&["-5".into(), "'\n) OR 1 --'".into()]).unwrap();
        let texts: Vec<&str> = bound.tokens.iter().map(|token| token.text.as_str()).collect();
        assert_eq!(texts[5..], ["-", "-5", "AND", "node", "=", "'\n) OR 1 --'"]);
        let cut: Vec<String> = tokens(&bound.sql).unwrap().into_iter().map(|token| token.text).collect();
        assert_eq!(cut[5..], ["-", "-", "5", "AND", "node", "=", "'\n) OR 1 --'"]);
        for token in &bound.tokens {
            assert!(bound.sql[token.at..].starts_with(&token.text), "{token:?}");
        }
    }

    #[test]
    fn a_cursor_s_question_is_found_after_binding() {
        let mut found = 0;
        for sql in
            ["DECLARE public.public.public.c CURSOR FOR SELECT $1", "DECLARE \"é\" CURSOR FOR SELECT public.é, $1"]
        {
            let Ok(bound) = Statement::one(sql).and_then(|statement| statement.with(&["7".into()])) else { continue };
            if let Class::Cursor(CursorStatement::Declare { at, .. }) = bound.class {
                assert!(bound.sql[at..].starts_with("SELECT"), "{}", bound.sql);
                found += 1;
            }
        }
        assert!(found > 0);
    }

    #[test]
    fn a_text_is_as_long_as_a_node_takes_it() {
        let refused = |sql: &str| Statement::all(sql).expect_err("too long").to_string();
        assert!(refused(&format!("SELECT '{}'", "x".repeat(MAX_SQL_BYTES))).contains("at most 1000000 bytes"));
        assert!(refused(&format!("SELECT {}", "1+".repeat(MOST_TOKENS))).contains("at most 200000 words"));
        assert!(refused(&format!("SELECT {} FROM pg_class", "1,".repeat(5_000))).contains("at most 10000 words"));
        // As psycopg2 writes a list.
        let uuids = "'0198c2f0-0000-7000-8000-000000000000'::uuid, ".repeat(15_000);
        assert!(one(&format!("SELECT 1 FROM t WHERE id IN ({uuids}NULL)")).sql.len() > 700_000);
        // A list is one token, however long it is; one that is too long is refused once it is known.
        let array = one("DECLARE c CURSOR FOR SELECT 1 FROM t WHERE rank = ANY ($1)");
        let bound = array.with(&["1, ".repeat(300_000) + "1"]).unwrap();
        assert!(bound.tokens.len() < 20 && bound.sql.len() > 900_000);
        let refused = array.with(&["1, ".repeat(400_000) + "1"]).expect_err("too long").to_string();
        assert!(refused.contains("at most 1000000 bytes with its values"), "{refused}");
    }

    /// What would pass a long statement again and again is given up: without an end to that, this takes
    /// minutes.
    #[test]
    fn no_text_takes_long_to_rewrite() {
        let refused = |part: &str| {
            let sql = format!("SELECT {}", part.repeat(60_000 / part.len().div_ceil(4)));
            Statement::all(&sql).is_err_and(|error| error.to_string().contains("too many PostgreSQL forms"))
        };
        for part in ["SELECT (", "SELECT now(", "timestamptz(", "SELECT 1::int ", "LIMIT ALL "] {
            assert!(refused(part), "{part}");
        }
        for part in ["((", "$a", "CASE ", "end::int ", "'1'::", "interval '1 s',", "= ANY ("] {
            assert!(!refused(part), "{part}");
        }
    }
}
