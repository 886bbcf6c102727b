//! Where statements end: at a semicolon that is in no text, name or comment. Pure; what a statement
//! means is the planner's to say.

/// What is read of a statement that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Within {
    Sql,
    /// A text or name, up to this character.
    Quoted(char),
    LineComment,
    BlockComment,
}

/// Takes the statements off the front of `buffer` that have ended, without their semicolons; what is
/// left has not. Statements of nothing but spaces and comments are left out.
pub(super) fn take_statements(buffer: &mut String) -> Vec<String> {
    let mut statements = Vec::new();
    let (mut begin, mut within, mut says) = (0, Within::Sql, false);
    let mut chars = buffer.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let next = chars.peek().map(|(_, next)| *next);
        match within {
            Within::Quoted(end) if c == end => {
                // Doubled it stands for itself, but not in brackets.
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
                    if std::mem::take(&mut says) {
                        statements.push(buffer[begin..at].trim().to_owned());
                    }
                    begin = at + 1;
                }
                c => {
                    says |= !c.is_whitespace();
                    within = match c {
                        '\'' | '"' | '`' => Within::Quoted(c),
                        '[' => Within::Quoted(']'),
                        _ => Within::Sql,
                    };
                }
            },
        }
    }
    // A comment by itself, ended, says nothing; one that goes on is waited for.
    let rest = if says || within == Within::BlockComment { buffer[begin..].to_owned() } else { String::new() };
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
            let (whole, whole_rest) = taken(&text);
            let (mut lines, mut buffer) = (Vec::new(), String::new());
            for line in text.split_inclusive('\n') {
                buffer.push_str(line);
                lines.extend(take_statements(&mut buffer));
            }
            // Comments before a statement may have been dropped with the line that they were on.
            let bare = |all: &[String]| all.iter().map(|s| s.rsplit('\n').next().unwrap_or_default().to_owned()).collect::<Vec<_>>();
            prop_assert_eq!(lines.len(), whole.len());
            prop_assert_eq!(bare(&lines), bare(&whole));
            prop_assert!(whole_rest.ends_with(buffer.trim_start()));
        }
    }
}
