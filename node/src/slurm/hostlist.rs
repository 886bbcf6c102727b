//! Slurm's hostlist syntax, `gpu[001-004,7]-ib,login1`, as the names it stands for.
//!
//! Owned here: the syntax and its bounds. `job` and `up` use the lists.
//! The syntax is that of `scontrol show hostnames` (slurm.conf(5), "NodeName"): names separated by
//! commas, each with any number of bracketed lists of numbers and ranges; a range's numbers are as
//! wide as its first one is written. Lists inside lists (`a[1,b[2-3]]`) are taken, too.

use thiserror::Error;

/// Most names of a list: more than any cluster has, and few enough for memory.
pub const MOST_HOSTS: usize = 65_536;
/// Longest list that is read.
const LONGEST_BYTES: usize = 1 << 20;
/// Longest name (DNS allows 253 characters).
const LONGEST_NAME: usize = 255;
/// Deepest list in a list.
const DEEPEST: usize = 8;

/// A hostlist that is not one, or stands for too much.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HostlistError {
    /// The syntax is wrong.
    #[error("the node list is wrong at character {at}: {what}")]
    Syntax {
        /// Position in the text, from 0.
        at: usize,
        /// What was expected.
        what: &'static str,
    },
    /// It stands for too many names.
    #[error("the node list stands for too much: {0}")]
    TooMuch(&'static str),
}

/// The names that `text` stands for, in its order, each as often as it is named.
///
/// # Errors
/// See [`HostlistError`]. Whatever the text is, no more than [`MOST_HOSTS`] names are ever made.
pub fn expand(text: &str) -> Result<Vec<String>, HostlistError> {
    if text.len() > LONGEST_BYTES {
        return Err(HostlistError::TooMuch("it is longer than a mebibyte"));
    }
    let mut parser = Parser { text: text.trim().as_bytes(), at: 0 };
    if parser.text.is_empty() {
        return Ok(vec![]);
    }
    let names = parser.list(0)?;
    match parser.peek() {
        None => Ok(names),
        Some(_) => Err(parser.wrong("a ']' without its '['")),
    }
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn wrong(&self, what: &'static str) -> HostlistError {
        HostlistError::Syntax { at: self.at, what }
    }

    /// Items separated by commas, up to the end or a closing bracket.
    fn list(&mut self, depth: usize) -> Result<Vec<String>, HostlistError> {
        let mut all = vec![];
        loop {
            let some = self.item(depth)?;
            if all.len() + some.len() > MOST_HOSTS {
                return Err(HostlistError::TooMuch("more than 65536 names"));
            }
            all.extend(some);
            match self.peek() {
                Some(b',') => self.at += 1,
                _ => return Ok(all),
            }
        }
    }

    /// Inside brackets a number or a range, else pieces of a name, each plain or a bracketed list.
    fn item(&mut self, depth: usize) -> Result<Vec<String>, HostlistError> {
        if depth > 0
            && let Some(range) = self.range()?
        {
            return Ok(range);
        }
        let mut names = vec![String::new()];
        let start = self.at;
        while let Some(byte) = self.peek() {
            match byte {
                b',' | b']' => break,
                b'[' => {
                    if depth >= DEEPEST {
                        return Err(HostlistError::TooMuch("lists inside lists, more than eight deep"));
                    }
                    self.at += 1;
                    let inner = self.list(depth + 1)?;
                    if self.peek() != Some(b']') {
                        return Err(self.wrong("expected ']'"));
                    }
                    self.at += 1;
                    names = combine(&names, &inner)?;
                }
                b if b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_') => {
                    let rest = &self.text[self.at..];
                    let plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
                    let length = rest.iter().position(|b| !plain(b)).unwrap_or(rest.len());
                    let piece = String::from_utf8_lossy(&rest[..length]).into_owned();
                    names = combine(&names, &[piece])?;
                    self.at += length;
                }
                _ => return Err(self.wrong("a name has letters, digits, '.', '-' and '_'")),
            }
        }
        if self.at == start { Err(self.wrong("expected a name")) } else { Ok(names) }
    }

    /// `12` or `08-11`, if the item is no more than that.
    fn range(&mut self) -> Result<Option<Vec<String>>, HostlistError> {
        let start = self.at;
        let Some(first) = self.digits() else { return Ok(None) };
        let last = if self.peek() == Some(b'-') {
            self.at += 1;
            self.digits()
        } else {
            Some(first.clone())
        };
        let (Some(last), None | Some(b',' | b']')) = (last, self.peek()) else {
            self.at = start; // a name that begins with digits
            return Ok(None);
        };
        if first == last {
            return Ok(Some(vec![first]));
        }
        let number = |digits: &str| digits.parse::<u64>().map_err(|_| HostlistError::TooMuch("a number past 64 bits"));
        let (from, to) = (number(&first)?, number(&last)?);
        if to < from {
            return Err(HostlistError::Syntax { at: start, what: "a range ends before it begins" });
        }
        if to - from >= MOST_HOSTS as u64 {
            return Err(HostlistError::TooMuch("more than 65536 names"));
        }
        let width = first.len();
        Ok(Some((from..=to).map(|number| format!("{number:0width$}")).collect()))
    }

    fn digits(&mut self) -> Option<String> {
        let rest = &self.text[self.at..];
        let length = rest.iter().position(|b| !b.is_ascii_digit()).unwrap_or(rest.len());
        self.at += length;
        (1..=LONGEST_NAME).contains(&length).then(|| String::from_utf8_lossy(&rest[..length]).into_owned())
    }
}

/// Each prefix combined with each suffix.
fn combine(beginnings: &[String], endings: &[String]) -> Result<Vec<String>, HostlistError> {
    if beginnings.len().saturating_mul(endings.len()) > MOST_HOSTS {
        return Err(HostlistError::TooMuch("more than 65536 names"));
    }
    let longest = |names: &[String]| names.iter().map(String::len).max().unwrap_or(0);
    if longest(beginnings) + longest(endings) > LONGEST_NAME {
        return Err(HostlistError::TooMuch("a name longer than 255 characters"));
    }
    Ok(beginnings.iter().flat_map(|start| endings.iter().map(move |end| format!("{start}{end}"))).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(text: &str) -> Vec<String> {
        expand(text).unwrap()
    }

    #[test]
    fn what_slurm_writes() {
        assert_eq!(names("n[1-4]"), ["n1", "n2", "n3", "n4"]);
        assert_eq!(names("login,gpu[08-11,20]"), ["login", "gpu08", "gpu09", "gpu10", "gpu11", "gpu20"]);
        assert_eq!(names("n[9-11]"), ["n9", "n10", "n11"]);
        assert_eq!(names("n[098-101]"), ["n098", "n099", "n100", "n101"]);
        assert_eq!(names("r[1-2]n[3,5]"), ["r1n3", "r1n5", "r2n3", "r2n5"]);
        assert_eq!(names("gpu[1-2]-ib.cluster"), ["gpu1-ib.cluster", "gpu2-ib.cluster"]);
        assert_eq!(names("a-1,b_2"), ["a-1", "b_2"]);
        assert_eq!(names("n[1,x[2-3]y]"), ["n1", "nx2y", "nx3y"]);
        assert_eq!(names("n[1-2b,3-]"), ["n1-2b", "n3-"], "no ranges: pieces of names");
        assert_eq!(names(" n1 "), ["n1"]);
        assert!(names("").is_empty());
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for text in
            ["n[", "n[1", "n]", "n[]", ",", "a,", ",a", "n[2-1]", "n[1-2", "a b", "n[1,]", "a/b", "n{1}", "n[1]]"]
        {
            assert!(matches!(expand(text), Err(HostlistError::Syntax { .. })), "{text}: {:?}", expand(text));
        }
    }

    #[test]
    fn what_is_absurd_is_refused_at_once() {
        let deep = format!("{}1{}", "a[".repeat(5000), "]".repeat(5000));
        let long = "x".repeat(300);
        for text in [
            "n[1-99999999999]",
            "n[0-65536]",
            "n[1-1000]m[1-1000]",
            "n[1-60000],m[1-60000]",
            "n[1-99999999999999999999999]",
            &deep,
            &long,
            &"n,".repeat(1 << 20),
        ] {
            assert!(matches!(expand(text), Err(HostlistError::TooMuch(_))), "{}", text.get(..40).unwrap_or(text));
        }
        assert_eq!(names("n[0-65535]").len(), MOST_HOSTS);
    }

    proptest! {
        #[test]
        fn ranges_are_counted_up(prefix in "[a-z]{1,5}", suffix in "(-[a-z]{1,3})?", from in 0u32..2000, more in 0u32..50, width in 1usize..6) {
            let first = format!("{from:0width$}");
            let made = names(&format!("{prefix}[{first}-{}]{suffix}", from + more));
            let wide = first.len();
            let wanted: Vec<String> = (from..=from + more).map(|n| format!("{prefix}{n:0wide$}{suffix}")).collect();
            prop_assert_eq!(made, wanted);
        }

        #[test]
        fn plain_names_stand_for_themselves(list in prop::collection::vec("[a-z][a-z0-9._-]{0,20}", 1..40)) {
            prop_assert_eq!(names(&list.join(",")), list);
        }

        #[test]
        fn two_brackets_are_a_product(rows in 1u32..30, columns in 1u32..30) {
            let made = names(&format!("r[1-{rows}]c[1-{columns}]"));
            prop_assert_eq!(made.len() as u32, rows * columns);
            prop_assert_eq!(made.last().cloned(), Some(format!("r{rows}c{columns}")));
        }

        #[test]
        fn any_text_is_a_bounded_list_or_an_error(text in "[a-c0-9,\\[\\]-]{0,60}") {
            if let Ok(made) = expand(&text) {
                prop_assert!(made.len() <= MOST_HOSTS && made.iter().all(|name| (1..=255).contains(&name.len())));
            }
        }
    }
}
