//! A call of a function in a statement.

use super::super::tokens::{Token, joined, parts};

/// A call, or a word that stands for one.
pub(super) struct Call<'t> {
    pub(super) tokens: &'t [Token],
    /// Its name, in lower case.
    pub(super) name: &'t str,
    /// The tokens of its arguments, from and to; none of a word without parentheses.
    pub(super) inside: Option<(usize, usize)>,
}

impl Call<'_> {
    /// The tokens of each argument, from and to.
    pub(super) fn arguments(&self) -> Vec<(usize, usize)> {
        self.inside.map(|(from, to)| parts(self.tokens, from, to)).unwrap_or_default()
    }

    /// As SQL.
    pub(super) fn text(&self, (from, to): (usize, usize)) -> String {
        joined(&self.tokens[from..to])
    }
}
