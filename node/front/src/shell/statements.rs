//! Where statements end: at a semicolon outside of texts, names and comments. Pure; the planner
//! interprets statements.

/// Where the reader is in a statement that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Within {
    Sql,
    /// A text or name, up to this character.
    Quoted(char),
    LineComment,
    BlockComment,
}

/// Takes the complete statements off the front of `buffer`, without their semicolons; the rest
/// stays. Statements of nothing but spaces and comments are left out.
pub(super) fn take_statements(buffer: &mut String) -> Vec<String> {
    let mut statements = Vec::new();
    let (mut begin, mut within, mut has_sql) = (0, Within::Sql, false);
    let mut chars = buffer.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let next = chars.peek().map(|(_, next)| *next);
        match within {
            Within::Quoted(end) if c == end => {
                // A doubled quote is a character of the text, except in brackets.
                if next == Some(end) && end != ']' {
                    chars.next();
                } else {
                    within = Within::Sql;
                }
            }
            Within::LineComment if c == '\n' => within = Within::Sql,
            Within::BlockComment if c == '*' && next == Some('/') => {
                chars.next();
                within = Within::Sql;
            }
            Within::Quoted(_) | Within::LineComment | Within::BlockComment => {}
            Within::Sql => match c {
                '-' if next == Some('-') => within = Within::LineComment,
                '/' if next == Some('*') => {
                    chars.next();
                    within = Within::BlockComment;
                }
                ';' => {
                    if std::mem::take(&mut has_sql) {
                        statements.push(buffer[begin..at].trim().to_owned());
                    }
                    begin = at + 1;
                }
                c => {
                    has_sql |= !c.is_whitespace();
                    within = match c {
                        '\'' | '"' | '`' => Within::Quoted(c),
                        '[' => Within::Quoted(']'),
                        _ => Within::Sql,
                    };
                }
            },
        }
    }
    // A complete comment by itself is dropped; one that is not complete stays.
    let rest = if has_sql || within == Within::BlockComment { buffer[begin..].to_owned() } else { String::new() };
    *buffer = rest;
    statements
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn taken(text: &str) -> (Vec<String>, String) {
        let mut buffer = text.to_owned();
        (take_statements(&mut buffer), buffer)
    }

    #[test]
    fn statements_end_at_semicolons_outside_of_texts_names_and_comments() {
        let (statements, rest) =
            taken("SELECT ';', \"a;b\", [c;d], `e;f`; -- g;h\nSELECT 1 /* i;j */ ; SELECT 'it''s;' ");
        assert_eq!(statements, ["SELECT ';', \"a;b\", [c;d], `e;f`", "-- g;h\nSELECT 1 /* i;j */"]);
        assert_eq!(rest, " SELECT 'it''s;' ");
    }

    #[test]
    fn what_says_nothing_is_no_statement() {
        assert_eq!(taken(" ; ;\n-- only this\n"), (Vec::new(), String::new()));
        assert_eq!(taken("/* over */ ;"), (Vec::new(), String::new()));
        assert_eq!(taken("/* goes on").1, "/* goes on");
    }

    proptest! {
        #[test]
        fn line_by_line_is_as_all_at_once(text in "[ -~\n]{0,120}") {
            let (at_once, at_once_rest) = taken(&text);
            let (mut lines, mut buffer) = (Vec::new(), String::new());
            for line in text.split_inclusive('\n') {
                buffer.push_str(line);
                lines.extend(take_statements(&mut buffer));
            }
            // Comments before a statement may have been dropped with the line that they were on.
            let bare = |all: &[String]| all.iter().map(|s| s.rsplit('\n').next().unwrap_or_default().to_owned()).collect::<Vec<_>>();
            prop_assert_eq!(lines.len(), at_once.len());
            prop_assert_eq!(bare(&lines), bare(&at_once));
            prop_assert!(at_once_rest.ends_with(buffer.trim_start()));
        }
    }
}
