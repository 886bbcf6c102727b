//! The SQL that rewriting makes, and how much of it there may be: a form that repeats its operand
//! makes a nested statement grow exponentially.

use super::super::tokens::{self, Token};

/// Bytes made of one statement, all rewriting together.
const MOST_BYTES: usize = 500_000;

/// What has been made of a statement.
#[derive(Debug, Default)]
pub(in super::super) struct Made {
    bytes: usize,
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

    /// To be asked before a text is built that is much longer than what it is built of.
    ///
    /// # Errors
    /// The statement has grown too long.
    pub(super) fn room_for(&self, more: usize) -> Result<(), String> {
        if self.bytes.saturating_add(more) > MOST_BYTES {
            return Err(format!(
                "the statement's PostgreSQL forms become more than {MOST_BYTES} bytes of SQLite's: nest fewer of them"
            ));
        }
        Ok(())
    }
}
