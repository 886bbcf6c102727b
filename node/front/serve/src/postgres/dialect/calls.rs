//! Calls of functions that are rewritten: found from the right, so that what stands in a call's
//! parentheses is rewritten before the call.

use super::super::tokens::{Kind, Token, closing, is_at};
use super::call::Call;
use super::made::Made;
use super::{functions, times};

/// Whether a function of this name is rewritten; a column that is such a call keeps its name.
pub(super) fn is_known(name: &str) -> bool {
    times::NAMES.contains(&name) || functions::NAMES.contains(&name)
}

/// Rewrites all calls.
///
/// # Errors
/// One has other arguments than it takes, or too much would be made.
pub(super) fn rewritten(tokens: &mut Vec<Token>, made: &mut Made) -> Result<(), String> {
    for at in (0..tokens.len()).rev() {
        let Some(name) = tokens.get(at).filter(|token| token.kind == Kind::Word).and_then(Token::name) else {
            continue;
        };
        let is_column = at > 0 && (is_at(tokens, at - 1, ".") || is_at(tokens, at - 1, "as"));
        let is_word = times::WORDS.contains(&name.as_str());
        if is_column || !(is_word || is_known(&name)) {
            continue;
        }
        made.pass(tokens.len())?;
        let close = if is_at(tokens, at + 1, "(") { closing(tokens, at + 1) } else { None };
        let call = Call { tokens, name: &name, inside: close.map(|close| (at + 2, close)) };
        if call.inside.is_none() && (!is_word || is_at(tokens, at + 1, ".")) {
            continue;
        }
        let sql = match times::rewritten(&call)? {
            Some(sql) => sql,
            None => match functions::rewritten(&call, made)? {
                Some(sql) => sql,
                None => continue,
            },
        };
        let place = tokens[at].at;
        tokens.splice(at..=close.unwrap_or(at), made.tokens(&sql, place)?);
    }
    Ok(())
}
