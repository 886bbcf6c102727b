//! SQL as clients of PostgreSQL write it, cut into tokens: as much as is needed to recognise kinds
//! of statements, to find parameters, and to rewrite statements on the catalogue.

/// The kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A bare name or a keyword.
    Word,
    /// A name in quotation marks.
    Quoted,
    /// A number, or a blob: `x'00'`.
    Number,
    /// A string: `'…'`, `E'…'` or `$tag$…$tag$`.
    Text,
    /// `$1`.
    Param,
    /// Operators and other signs between names and values.
    Other,
}

/// A token and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) text: String,
    /// Bytes before it; of a generated token, those before the one it was made from.
    pub(super) at: usize,
}

impl Token {
    /// A generated token.
    pub(super) fn new(kind: Kind, text: impl Into<String>, at: usize) -> Self {
        Self { kind, text: text.into(), at }
    }

    /// Whether it is this keyword, or these signs.
    pub(super) fn is(&self, text: &str) -> bool {
        match self.kind {
            Kind::Word => self.text.eq_ignore_ascii_case(text),
            Kind::Other => self.text == text,
            _ => false,
        }
    }

    /// The name that it is, in lower case unless it was quoted.
    pub(super) fn name(&self) -> Option<String> {
        match self.kind {
            Kind::Word => Some(self.text.to_ascii_lowercase()),
            Kind::Quoted => Some(self.text[1..self.text.len() - 1].replace("\"\"", "\"")),
            _ => None,
        }
    }

    /// The contents of a string.
    pub(super) fn string(&self) -> Option<String> {
        if self.kind != Kind::Text {
            return None;
        }
        if let Some(inner) = self.text.strip_prefix('$') {
            let tag = inner.find('$')? + 2;
            return self.text.get(tag..self.text.len() - tag).map(str::to_owned);
        }
        let escapes = self.text.starts_with(['e', 'E']);
        let inner = self.text.trim_start_matches(['e', 'E']);
        let inner = inner.get(1..inner.len() - 1)?;
        Some(if escapes { unescaped(inner) } else { inner.replace("''", "'") })
    }
}

/// Parameters are numbered in 16 bits
/// (<https://www.postgresql.org/docs/current/protocol-message-formats.html>, Bind).
const MOST_PARAMETERS: usize = 65_535;

/// The tokens of some SQL, without spaces and comments.
///
/// # Errors
/// A string, a name or a comment does not end; a parameter's number is none.
pub(super) fn tokens(sql: &str) -> Result<Vec<Token>, String> {
    let bytes = sql.as_bytes();
    let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
    let mut all = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let begin = at;
        let kind = match byte(at) {
            b' ' | b'\t' | b'\r' | b'\n' | 0x0c => {
                at += 1;
                continue;
            }
            b'-' if byte(at + 1) == b'-' => {
                at = sql[at..].find('\n').map_or(bytes.len(), |line| at + line + 1);
                continue;
            }
            b'/' if byte(at + 1) == b'*' => {
                at = past_comment(bytes, at).ok_or("a comment /* does not end")?;
                continue;
            }
            b'\'' => {
                at = past_quoted(bytes, at, b'\'', false).ok_or("a string does not end")?;
                Kind::Text
            }
            // A blob of SQLite.
            b'x' | b'X' if byte(at + 1) == b'\'' => {
                at = past_quoted(bytes, at + 1, b'\'', false).ok_or("a blob does not end")?;
                Kind::Number
            }
            b'e' | b'E' if byte(at + 1) == b'\'' => {
                at = past_quoted(bytes, at + 1, b'\'', true).ok_or("a string does not end")?;
                Kind::Text
            }
            mark @ (b'"' | b'`') => {
                at = past_quoted(bytes, at, mark, false).ok_or("a name in quotation marks does not end")?;
                if mark == b'"' { Kind::Quoted } else { Kind::Other }
            }
            b'$' if byte(at + 1).is_ascii_digit() => {
                at += 1;
                while byte(at).is_ascii_digit() {
                    at += 1;
                }
                if !sql[begin + 1..at].parse().is_ok_and(|number: usize| (1..=MOST_PARAMETERS).contains(&number)) {
                    let shown: String = sql[begin..at].chars().take(20).collect();
                    return Err(format!("there is no parameter {shown}: they are $1 to ${MOST_PARAMETERS}"));
                }
                Kind::Param
            }
            b'$' => match past_dollars(sql, at) {
                Some(end) => {
                    at = end.ok_or("a string in dollar signs does not end")?;
                    Kind::Text
                }
                None => {
                    at += 1;
                    Kind::Other
                }
            },
            c if c.is_ascii_digit() || (c == b'.' && byte(at + 1).is_ascii_digit()) => {
                at += 1;
                while byte(at).is_ascii_alphanumeric()
                    || matches!(byte(at), b'.' | b'_')
                    || (matches!(byte(at), b'+' | b'-')
                        && matches!(byte(at - 1), b'e' | b'E')
                        && byte(begin + 1) != b'x')
                {
                    at += 1;
                }
                Kind::Number
            }
            c if c.is_ascii_alphabetic() || c == b'_' || c >= 0x80 => {
                while byte(at).is_ascii_alphanumeric() || matches!(byte(at), b'_' | b'$') || byte(at) >= 0x80 {
                    at += 1;
                }
                Kind::Word
            }
            b':' if byte(at + 1) == b':' => {
                at += 2;
                Kind::Other
            }
            b'~' | b'!' | b'<' | b'>' | b'=' | b'|' | b'-' | b'@' | b'#' | b'&' => {
                at += 1;
                // `->>`, `!~*`, `<>`, …; a sign before a number stays by itself.
                while matches!(byte(at), b'~' | b'<' | b'>' | b'=' | b'|' | b'*' | b'@' | b'&')
                    && !matches!(byte(begin), b'-') | matches!(byte(at), b'>')
                {
                    at += 1;
                }
                Kind::Other
            }
            _ => {
                at += 1;
                Kind::Other
            }
        };
        all.push(Token { kind, text: sql[begin..at].to_owned(), at: begin });
    }
    Ok(all)
}

pub(super) fn past_quoted(bytes: &[u8], open: usize, mark: u8, escapes: bool) -> Option<usize> {
    let mut at = open + 1;
    loop {
        match *bytes.get(at)? {
            b'\\' if escapes => at += 2,
            c if c == mark && bytes.get(at + 1) == Some(&mark) => at += 2,
            c if c == mark => return Some(at + 1),
            _ => at += 1,
        }
    }
}

/// What `E'…'` stands for
/// (<https://www.postgresql.org/docs/current/sql-syntax-lexical.html#SQL-SYNTAX-STRINGS-ESCAPE>).
fn unescaped(text: &str) -> String {
    let (mut plain, mut chars) = (String::with_capacity(text.len()), text.chars().peekable());
    while let Some(next) = chars.next() {
        if next == '\'' {
            chars.next_if_eq(&'\'');
        }
        if next != '\\' {
            plain.push(next);
            continue;
        }
        let Some(escaped) = chars.next() else { break };
        // Digits of a number that stands for a character.
        let mut digits = |radix: u32, most: usize| {
            let mut digits = String::new();
            while digits.len() < most
                && let Some(digit) = chars.next_if(|c| c.is_digit(radix))
            {
                digits.push(digit);
            }
            u32::from_str_radix(&digits, radix).ok().and_then(char::from_u32)
        };
        let number = match escaped {
            'x' => digits(16, 2),
            'u' => digits(16, 4),
            'U' => digits(16, 8),
            _ => None,
        };
        plain.push(match escaped {
            _ if number.is_some() => number.unwrap_or_default(),
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            other => other,
        });
    }
    plain
}

/// In PostgreSQL comments can be nested.
fn past_comment(bytes: &[u8], open: usize) -> Option<usize> {
    let (mut at, mut depth) = (open, 0_usize);
    loop {
        match (bytes.get(at)?, bytes.get(at + 1)?) {
            (b'/', b'*') => (depth, at) = (depth + 1, at + 2),
            (b'*', b'/') if depth == 1 => return Some(at + 2),
            (b'*', b'/') => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
}

/// The end of `$tag$…$tag$`, if it has one; none where no tag stands.
fn past_dollars(sql: &str, open: usize) -> Option<Option<usize>> {
    let name = sql.get(open + 1..)?.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    let tag = open + 1 + name + 1;
    let mark = sql.get(open..tag).filter(|mark| mark.ends_with('$'))?;
    Some(sql.get(tag..)?.find(mark).map(|end| tag + end + mark.len()))
}

/// The statements between semicolons, each with its tokens; without empty ones.
///
/// # Errors
/// As [`tokens`].
pub(super) fn statements(sql: &str) -> Result<Vec<(String, Vec<Token>)>, String> {
    let mut all = Vec::new();
    let mut from = 0;
    let mut pending = Vec::new();
    let ended = |pending: &mut Vec<Token>, from: usize, to: usize, all: &mut Vec<(String, Vec<Token>)>| {
        if !pending.is_empty() {
            let mut tokens = std::mem::take(pending);
            tokens.iter_mut().for_each(|token| token.at -= from);
            all.push((sql[from..to].to_owned(), tokens));
        }
    };
    for token in tokens(sql)? {
        if token.is(";") {
            ended(&mut pending, from, token.at, &mut all);
            from = token.at + 1;
        } else {
            pending.push(token);
        }
    }
    ended(&mut pending, from, sql.len(), &mut all);
    Ok(all)
}

/// The index of the parenthesis or bracket that closes the one at `open`.
pub(super) fn closing(tokens: &[Token], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "(" | "[" if token.kind == Kind::Other => depth += 1,
            ")" | "]" if token.kind == Kind::Other => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// The index of the parenthesis or bracket that opens the one that closes at `close`.
pub(super) fn opening(tokens: &[Token], close: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for at in (0..=close).rev() {
        match tokens[at].text.as_str() {
            ")" | "]" if tokens[at].kind == Kind::Other => depth += 1,
            "(" | "[" if tokens[at].kind == Kind::Other => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// Whether this keyword, or these signs, stand there.
pub(super) fn is_at(tokens: &[Token], at: usize, text: &str) -> bool {
    tokens.get(at).is_some_and(|token| token.is(text))
}

/// What lies between the commas of `from..to` that are in no parentheses.
pub(super) fn parts(tokens: &[Token], from: usize, to: usize) -> Vec<(usize, usize)> {
    let (mut parts, mut begin, mut at) = (Vec::new(), from, from);
    while at < to {
        if is_at(tokens, at, ",") {
            parts.push((begin, at));
            begin = at + 1;
        }
        let opens = is_at(tokens, at, "(") || is_at(tokens, at, "[");
        at = if opens { closing(tokens, at).map_or(to, |close| close + 1) } else { at + 1 };
    }
    parts.push((begin, to));
    parts
}

/// The index after a type's name.
pub(super) fn past_type(tokens: &[Token], at: usize) -> usize {
    let mut end = at + 1;
    while is_at(tokens, end, ".") {
        end += 2;
    }
    while ["precision", "varying"].iter().any(|word| is_at(tokens, end, word)) {
        end += 1;
    }
    if is_at(tokens, end, "(") {
        end = closing(tokens, end).map_or(tokens.len(), |close| close + 1);
    }
    if ["with", "without"].iter().any(|word| is_at(tokens, end, word)) && is_at(tokens, end + 1, "time") {
        end += 3;
    }
    while is_at(tokens, end, "[") && is_at(tokens, end + 1, "]") {
        end += 2;
    }
    end.min(tokens.len())
}

/// Strings with escapes or dollar quotes, as plain ones.
pub(super) fn strings(tokens: &mut [Token]) {
    for token in tokens {
        if token.kind == Kind::Text
            && !token.text.starts_with('\'')
            && let Some(inner) = token.string()
        {
            token.text = format!("'{}'", inner.replace('\'', "''"));
        }
    }
}

/// As one line of SQL. Where a parenthesis, a comma or a dot stood close to its neighbour it does again:
/// a column without a name is called as it is written.
pub(super) fn joined(tokens: &[Token]) -> String {
    let is_sign = |token: &Token| ["(", ")", ",", "."].iter().any(|sign| token.is(sign));
    let mut sql = String::new();
    let mut before: Option<&Token> = None;
    for token in tokens {
        let were_close =
            |before: &Token| before.at + before.text.len() == token.at && (is_sign(before) || is_sign(token));
        if before.is_some_and(|before| !were_close(before)) {
            sql.push(' ');
        }
        sql.push_str(&token.text);
        before = Some(token);
    }
    sql
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(sql: &str) -> Vec<String> {
        tokens(sql).unwrap().into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn strings_names_and_comments_are_not_cut() {
        assert_eq!(
            texts(
                "SELECT 'a;''b', \"x\"\"y\", E'\\'', $q$;$q$ -- ;\n/* ; /* ; */ */ FROM t.c::int8 WHERE a!~*'b' AND a>=-1.5e-3"
            ),
            [
                "SELECT",
                "'a;''b'",
                ",",
                "\"x\"\"y\"",
                ",",
                "E'\\''",
                ",",
                "$q$;$q$",
                "FROM",
                "t",
                ".",
                "c",
                "::",
                "int8",
                "WHERE",
                "a",
                "!~*",
                "'b'",
                "AND",
                "a",
                ">=",
                "-",
                "1.5e-3"
            ]
        );
        let strings: Vec<_> = tokens("'a''b' E'\\\\d' $t$x$t$").unwrap().iter().filter_map(Token::string).collect();
        assert_eq!(strings, ["a'b", "\\d", "x"]);
        assert!(tokens("SELECT $a$ $b$ $c$").is_err() && texts("a $ b") == ["a", "$", "b"]);
        assert!(tokens("'a").is_err() && tokens("/*").is_err() && tokens("\"a").is_err());
    }

    #[test]
    fn a_blob_is_one_token() {
        assert_eq!(texts("SELECT x'6162', X'', ax'b'"), ["SELECT", "x'6162'", ",", "X''", ",", "ax", "'b'"]);
        assert_eq!(joined(&tokens("SELECT x'6162'").unwrap()), "SELECT x'6162'");
        assert!(tokens("x'").is_err());
    }

    #[test]
    fn a_parameter_has_a_number_of_sixteen_bits() {
        assert_eq!(texts("$1 $65535"), ["$1", "$65535"]);
        for sql in ["$0", "$65536", "$100000000000", "$99999999999999999999999999"] {
            assert!(tokens(sql).is_err_and(|error| error.contains("no parameter")), "{sql}");
        }
    }

    #[test]
    fn escapes_are_read_as_postgresql_reads_them() {
        let of = |sql: &str| tokens(sql).unwrap()[0].string().unwrap();
        assert_eq!(of(r"E'a\nb\t\\ \' ''c'"), "a\nb\t\\ ' 'c");
        assert_eq!(of(r"E'\x41\u00e9\q\\\''"), "Aéq\\'");
    }

    #[test]
    fn statements_end_at_semicolons() {
        let all = statements(" ; SELECT ';' ; -- nothing\n ; SHOW x").unwrap();
        let texts: Vec<&str> = all.iter().map(|(text, _)| text.trim()).collect();
        assert_eq!(texts, ["SELECT ';'", "SHOW x"]);
        assert!(all.iter().all(|(text, tokens)| text[tokens[0].at..].starts_with(&tokens[0].text)));
    }

    proptest! {
        #[test]
        fn any_text_is_cut_without_loss(sql in "[ -~é\n]{0,80}") {
            if let Ok(tokens) = tokens(&sql) {
                for token in &tokens {
                    prop_assert_eq!(&sql[token.at..token.at + token.text.len()], &token.text);
                    let _ = (token.string(), token.name());
                }
                for at in 0..tokens.len() {
                    let _ = closing(&tokens, at);
                    if tokens[at].is(")") { let _ = opening(&tokens, at); }
                }
                prop_assert!(statements(&sql).is_ok());
            }
        }
    }
}
