//! Where the operands of a statement begin and end, by its tokens.

use super::super::tokens::{Kind, Token, closing, opening};
use super::Look;

impl Look<'_> {
    /// Where the operand begins that ends before `end`.
    pub(super) fn operand_before(&self, end: usize) -> Option<usize> {
        let mut at = end.checked_sub(1)?;
        if self.is(at, "end") {
            return (0..at).rev().find(|before| self.is(*before, "case"));
        }
        // f(…) OVER window
        if at > 0 && self.is(at - 1, "over") {
            return self.operand_before(at - 1);
        }
        // x::type
        if at >= 2 && self.is(at - 1, "::") {
            return self.operand_before(at - 1);
        }
        if self.is(at, ")") {
            at = opening(self.tokens, at)?;
            // f(…) OVER (…), f(…) FILTER (…)
            if at > 0 && self.is_any(at - 1, &["over", "filter"]) {
                return self.operand_before(at - 1);
            }
            match at.checked_sub(1) {
                Some(before) if self.is_name_of_function(before) => at = before,
                _ => return Some(at),
            }
        }
        while at >= 2 && self.is(at - 1, ".") {
            at -= 2;
        }
        Some(at)
    }

    /// Where the operand ends that begins at `begin`.
    pub(super) fn operand_after(&self, begin: usize) -> Option<usize> {
        let mut end = self.uncast_after(begin)?;
        while self.is(end, "::") {
            end += 2;
        }
        Some(end.min(self.tokens.len()))
    }

    /// The same without the types that it is cast to.
    pub(super) fn uncast_after(&self, begin: usize) -> Option<usize> {
        let mut end = begin + 1;
        if self.is(begin, "case") {
            return (begin..self.tokens.len()).find(|at| self.is(*at, "end")).map(|at| at + 1);
        }
        if self.is(begin, "(") {
            end = closing(self.tokens, begin)? + 1;
        } else {
            self.tokens.get(begin)?;
            while self.is(end, ".") {
                end += 2;
            }
            if self.is(end, "(") {
                end = closing(self.tokens, end)? + 1;
            }
        }
        while self.is_any(end, &["over", "filter"]) && self.is(end + 1, "(") {
            end = closing(self.tokens, end + 1)? + 1;
        }
        if self.is(end, "over") && self.tokens.get(end + 1).is_some_and(|token| token.kind == Kind::Word) {
            end += 2;
        }
        Some(end.min(self.tokens.len()))
    }

    pub(super) fn ends_value(&self, at: usize) -> bool {
        let token = &self.tokens[at];
        matches!(token.kind, Kind::Number | Kind::Text | Kind::Param | Kind::Quoted)
            || (token.kind == Kind::Word && !is_operator_word(token))
            || token.is(")")
    }

    /// The parenthesis around a token.
    pub(super) fn opened_before(&self, at: usize) -> Option<usize> {
        let mut depth = 0_usize;
        (0..at).rev().find(|&before| {
            let token = &self.tokens[before];
            if token.is(")") || token.is("]") {
                depth += 1;
            } else if token.is("(") || token.is("[") {
                if depth == 0 {
                    return true;
                }
                depth -= 1;
            }
            false
        })
    }

    pub(super) fn is_name_of_function(&self, at: usize) -> bool {
        self.tokens
            .get(at)
            .is_some_and(|token| token.kind == Kind::Quoted || (token.kind == Kind::Word && !is_operator_word(token)))
    }
}

/// Words between values.
fn is_operator_word(token: &Token) -> bool {
    const WORDS: &[&str] = &[
        "select", "where", "and", "or", "not", "in", "on", "then", "else", "when", "case", "any", "as", "by",
        "between", "is", "like", "ilike", "glob", "having", "limit", "offset", "from", "distinct", "all", "union",
        "values", "exists", "over", "filter", "using", "join", "set",
    ];
    WORDS.iter().any(|word| token.is(word))
}
