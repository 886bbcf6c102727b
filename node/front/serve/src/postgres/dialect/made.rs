//! The SQL that rewriting makes, and what it may take: a form that repeats its operand makes a nested
//! statement grow exponentially, and each form is looked for, and put in place, among all others.

use query_planner::MAX_SQL_BYTES;

use super::super::tokens::{self, Token};

/// Tokens passed in rewriting one statement: a tenth of a second or two, on a thread that others wait
/// for.
const MOST_STEPS: usize = 20_000_000;

/// What has been made of a statement.
#[derive(Debug, Default)]
pub(in super::super) struct Made {
    /// Bytes of SQL, all rewriting together: no more than a node takes.
    bytes: usize,
    steps: usize,
}

impl Made {
    /// Tokens of some SQL of ours, in place of what stood at this byte.
    ///
    /// # Errors
    /// As [`Made::room_for`].
    pub(super) fn tokens(&mut self, sql: &str, at: usize) -> Result<Vec<Token>, String> {
        self.bytes = self.bytes.saturating_add(sql.len());
        self.room_for(0)?;
        let mut tokens = tokens::tokens(sql)?;
        tokens.iter_mut().for_each(|token| token.at = at);
        Ok(tokens)
    }

    /// To be asked before a form is looked into or put in place, which passes up to so many tokens.
    ///
    /// # Errors
    /// The forms are too many for a statement of that length.
    pub(super) fn pass(&mut self, tokens: usize) -> Result<(), String> {
        self.steps = self.steps.saturating_add(tokens);
        if self.steps > MOST_STEPS {
            return Err(
                "the statement has too many PostgreSQL forms for its length: ask less at a time, write SQLite's \
                        forms, or send values as parameters"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// To be asked before a text is built that is much longer than what it is built of.
    ///
    /// # Errors
    /// The statement has grown too long.
    pub(super) fn room_for(&self, more: usize) -> Result<(), String> {
        if self.bytes.saturating_add(more) > MAX_SQL_BYTES {
            return Err(format!(
                "the statement's PostgreSQL forms become more than {MAX_SQL_BYTES} bytes of SQLite's: write or nest fewer of \
                 them, or send values as parameters"
            ));
        }
        Ok(())
    }
}
