//! What a session keeps of prepared statements and bound portals: so many, of so many bytes.

use std::collections::HashMap;

use pgwire::error::PgWireResult;

use super::super::errors;
use super::super::statement::Statement;
use super::super::tokens::Token;

/// Statements and portals of a session, and bytes of them together.
const MOST: usize = 2_000;
const MOST_BYTES: usize = 32 << 20;

/// What has a name in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Statement,
    Portal,
}

/// What is kept under each name.
#[derive(Debug, Default)]
pub(super) struct Kept {
    bytes: HashMap<(Kind, String), usize>,
    all: usize,
}

/// What a statement takes, about.
pub(super) fn bytes_of(statement: &Statement) -> usize {
    // A token's text is on the heap, with what the allocator adds.
    2 * statement.sql.len() + statement.tokens.len() * (size_of::<Token>() + 32)
}

impl Kept {
    /// Keeps something in place of what had the name before.
    ///
    /// # Errors
    /// There is no room.
    pub(super) fn keep(&mut self, kind: Kind, name: &str, bytes: usize) -> PgWireResult<()> {
        let key = (kind, name.to_owned());
        let before = self.bytes.get(&key).copied();
        let others = self.all - before.unwrap_or(0);
        if (before.is_none() && self.bytes.len() >= MOST) || others + bytes > MOST_BYTES {
            return Err(errors::too_much(format!(
                "a session keeps {MOST} statements and portals at most, of {} MiB together: close some",
                MOST_BYTES >> 20
            )));
        }
        self.all = others + bytes;
        self.bytes.insert(key, bytes);
        Ok(())
    }

    /// It is no longer there.
    pub(super) fn end(&mut self, kind: Kind, name: &str) {
        self.all -= self.bytes.remove(&(kind, name.to_owned())).unwrap_or(0);
    }

    /// The names of the statements.
    pub(super) fn statements(&self) -> Vec<String> {
        let all = self.bytes.keys().filter(|(kind, _)| *kind == Kind::Statement);
        all.map(|(_, name)| name.clone()).collect()
    }

    /// There are no portals any more.
    pub(super) fn end_portals(&mut self) {
        self.bytes.retain(|(kind, _), _| *kind != Kind::Portal);
        self.all = self.bytes.values().sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_keeps_a_bounded_number_of_statements() {
        let mut kept = Kept::default();
        for number in 0..MOST {
            kept.keep(Kind::Statement, &number.to_string(), 10).unwrap();
        }
        assert!(kept.keep(Kind::Portal, "p", 1).is_err_and(|error| error.to_string().contains("close some")));
        kept.keep(Kind::Statement, "7", 1_000).expect("in place of the one of that name");
        kept.end(Kind::Statement, "8");
        kept.keep(Kind::Portal, "p", 1).unwrap();
        assert_eq!(kept.statements().len(), MOST - 1);
        kept.end_portals();
        assert_eq!((kept.bytes.len(), kept.all), (MOST - 1, (MOST - 2) * 10 + 1_000));
        assert!(kept.keep(Kind::Portal, "large", MOST_BYTES).is_err());
        assert!(kept.keep(Kind::Statement, "7", MOST_BYTES).is_err());
        assert_eq!(kept.all, (MOST - 2) * 10 + 1_000, "what was there before is still there");
        kept.end(Kind::Statement, "not there");
    }
}
