//! Cursors by name: `DECLARE`, `FETCH`, `MOVE`, `CLOSE`
//! (<https://www.postgresql.org/docs/current/sql-declare.html>). A cursor is a question that runs
//! and whose rows wait at the nodes until they are fetched; it is read forwards only.

use std::collections::HashMap;

use futures::channel::oneshot;
use model::Coverage;
use pgwire::error::PgWireResult;

use super::super::errors;
use super::super::running::{Next, Running};
use super::super::tokens::Token;

/// Cursors of one session.
const MOST: usize = 16;
/// Rows of one `FETCH` of a number.
const MOST_ROWS: usize = 100_000;

/// A statement about cursors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum CursorStatement {
    /// The question begins at this byte of the statement.
    Declare {
        name: String,
        at: usize,
        hold: bool,
    },
    Fetch {
        name: String,
        rows: Option<usize>,
    },
    Move {
        name: String,
        rows: Option<usize>,
    },
    /// One, or all.
    Close(Option<String>),
}

const FORWARDS: &str = "cursors are read forwards only: NEXT, FORWARD n, FORWARD ALL, ALL or a number of rows";

impl CursorStatement {
    /// Reads one of these statements.
    pub(in super::super) fn parsed(tokens: &[Token]) -> Result<Self, &'static str> {
        let is = |at: usize, text: &str| tokens.get(at).is_some_and(|token| token.is(text));
        let name = |at: usize| tokens.get(at).and_then(Token::name);
        if is(0, "close") {
            return match name(1) {
                Some(_) if is(1, "all") => Ok(Self::Close(None)),
                Some(name) => Ok(Self::Close(Some(name))),
                None => Err("CLOSE needs the name of a cursor, or ALL"),
            };
        }
        if is(0, "declare") {
            let wrong = "DECLARE name [NO SCROLL] CURSOR [WITH HOLD | WITHOUT HOLD] FOR SELECT …";
            let question = tokens.iter().position(|token| token.is("for")).ok_or(wrong)? + 1;
            let words = &tokens[..question];
            if words.iter().any(|token| token.is("scroll")) && !words.iter().any(|token| token.is("no")) {
                return Err("a cursor cannot go back: DECLARE it with NO SCROLL");
            }
            let hold = words.windows(2).any(|pair| pair[0].is("with") && pair[1].is("hold"));
            let at = tokens.get(question).filter(|token| !token.is("declare")).ok_or(wrong)?.at;
            return Ok(Self::Declare { name: name(1).ok_or(wrong)?, at, hold });
        }
        let mut at = 1;
        let mut rows = Some(1);
        if is(at, "forward") {
            at += 1;
        }
        if is(at, "next") {
            at += 1;
        } else if is(at, "all") {
            (rows, at) = (None, at + 1);
        } else if let Some(number) = tokens.get(at).and_then(|token| token.text.parse::<usize>().ok()) {
            (rows, at) = (Some(number), at + 1);
        } else if ["prior", "first", "last", "absolute", "relative", "backward", "-"].iter().any(|word| is(at, word)) {
            return Err(FORWARDS);
        }
        if is(at, "from") || is(at, "in") {
            at += 1;
        }
        let name = name(at).ok_or(FORWARDS)?;
        match is(0, "move") {
            true => Ok(Self::Move { name, rows }),
            false if rows.is_some_and(|rows| rows > MOST_ROWS) => {
                Err("at most 100000 rows at a time are fetched, or ALL, as they come")
            }
            false => Ok(Self::Fetch { name, rows }),
        }
    }
}

/// The cursors of a session.
#[derive(Default)]
pub(super) struct Cursors {
    open: HashMap<String, Cursor>,
}

struct Cursor {
    running: Running,
    hold: bool,
}

impl Cursors {
    /// Opens one.
    ///
    /// # Errors
    /// There is one of this name, or there are too many.
    pub(super) fn open(&mut self, name: &str, running: Running, hold: bool) -> PgWireResult<()> {
        if self.open.contains_key(name) {
            return Err(errors::cursor(format!("cursor \"{}\" already exists", record::printable(name))));
        }
        if self.open.len() >= MOST {
            return Err(errors::cursor(format!("a session has {MOST} cursors at most: CLOSE one")));
        }
        self.open.insert(name.to_owned(), Cursor { running, hold });
        Ok(())
    }

    /// The question behind one, where there is one of this name.
    pub(super) fn running(&self, name: &str) -> Option<&Running> {
        self.open.get(name).map(|cursor| &cursor.running)
    }

    /// The next rows as an answer of their own.
    ///
    /// # Errors
    /// There is none of this name; the question failed, or was cancelled.
    pub(super) async fn fetch(
        &mut self,
        name: &str,
        rows: Option<usize>,
        cancelled: &mut oneshot::Receiver<()>,
    ) -> PgWireResult<Running> {
        let cursor = self.open.get_mut(name).ok_or_else(|| unknown(name))?;
        let Some(most) = rows else {
            // All that is left, as it comes; after it only the end is left.
            let rest = cursor.running.rest();
            return Ok(std::mem::replace(&mut cursor.running, rest));
        };
        let (mut taken, mut coverage) = (Vec::new(), None);
        while taken.len() < most {
            match cursor.running.next(cancelled).await? {
                Next::Row(row) => taken.push(row),
                Next::End(of_all) => {
                    coverage = of_all;
                    break;
                }
            }
        }
        if taken.len() == most {
            coverage = cursor.running.at_end(cancelled).await?.flatten();
        }
        Ok(cursor.running.like(taken, coverage))
    }

    /// Passes rows over; how many there were, and the coverage, if the end is among them.
    ///
    /// # Errors
    /// As [`Self::fetch`].
    pub(super) async fn pass(
        &mut self,
        name: &str,
        rows: Option<usize>,
        cancelled: &mut oneshot::Receiver<()>,
    ) -> PgWireResult<(usize, Option<Coverage>)> {
        let cursor = self.open.get_mut(name).ok_or_else(|| unknown(name))?;
        let mut passed = 0;
        while rows.is_none_or(|most| passed < most) {
            match cursor.running.next(cancelled).await? {
                Next::Row(_) => passed += 1,
                Next::End(coverage) => return Ok((passed, coverage)),
            }
        }
        Ok((passed, cursor.running.at_end(cancelled).await?.flatten()))
    }

    /// Closes one, or all.
    ///
    /// # Errors
    /// There is none of this name.
    pub(super) fn close(&mut self, name: Option<&str>) -> PgWireResult<()> {
        match name {
            None => self.open.clear(),
            Some(name) => drop(self.open.remove(name).ok_or_else(|| unknown(name))?),
        }
        Ok(())
    }

    /// A transaction ends: cursors end with it, but for those WITH HOLD where it is committed.
    pub(super) fn end(&mut self, committed: bool) {
        self.open.retain(|_, cursor| cursor.hold && committed);
    }
}

fn unknown(name: &str) -> pgwire::error::PgWireError {
    errors::cursor(format!(
        "cursor \"{}\" does not exist (one from which nothing is fetched for 5 min is closed)",
        record::printable(name)
    ))
}

#[cfg(test)]
mod tests {
    use super::super::super::tokens::tokens;
    use super::*;

    #[test]
    fn statements_about_cursors_are_read() {
        let of = |sql: &str| CursorStatement::parsed(&tokens(sql).unwrap());
        let fetch = |name: &str, rows| Ok(CursorStatement::Fetch { name: name.into(), rows });
        assert_eq!(of("FETCH c"), fetch("c", Some(1)));
        assert_eq!(of("FETCH FORWARD 100 FROM \"C 1\""), fetch("C 1", Some(100)));
        assert_eq!(of("fetch all in c"), fetch("c", None));
        assert_eq!(of("FETCH NEXT FROM c"), fetch("c", Some(1)));
        assert!(of("FETCH BACKWARD 1 FROM c").is_err() && of("FETCH -1 FROM c").is_err());
        assert!(of("FETCH 100001 FROM c").is_err());
        assert_eq!(of("MOVE 5 FROM c"), Ok(CursorStatement::Move { name: "c".into(), rows: Some(5) }));
        assert_eq!(of("CLOSE ALL"), Ok(CursorStatement::Close(None)));
        assert_eq!(of("CLOSE c"), Ok(CursorStatement::Close(Some("c".into()))));
        let sql = "DECLARE c NO SCROLL CURSOR WITHOUT HOLD FOR SELECT 1";
        let at = sql.find("SELECT").unwrap();
        assert_eq!(of(sql), Ok(CursorStatement::Declare { name: "c".into(), at, hold: false }));
        assert!(of("DECLARE c CURSOR FOR DECLARE c CURSOR FOR SELECT 1").is_err());
        assert!(of("DECLARE c SCROLL CURSOR FOR SELECT 1").is_err() && of("DECLARE c CURSOR").is_err());
    }
}
