//! Lines of 80 columns.

use std::fmt::Write as _;

/// Columns of a line.
pub const COLUMNS: usize = 80;

/// Adds a line, broken at spaces where it is too long; what follows is indented further.
pub fn add_line(out: &mut String, indent: usize, text: &str) {
    let mut width = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > COLUMNS {
            out.push('\n');
            width = 0;
            let _ = write!(out, "{:1$}", "", indent + 2);
            width += indent + 2;
        } else if width > 0 {
            out.push(' ');
            width += 1;
        } else {
            let _ = write!(out, "{:1$}", "", indent);
            width += indent;
        }
        out.push_str(word);
        width += length;
    }
    out.push('\n');
}

/// A name as a column of a table shows it: its beginning and its end, where it is longer than so many
/// characters.
#[must_use]
pub fn short_name(name: &str, most: usize) -> String {
    let name = super::printable(name);
    let count = name.chars().count();
    if count <= most {
        return name;
    }
    let kept = most.saturating_sub(1);
    let first = name.chars().take(kept / 2);
    first.chain(['…']).chain(name.chars().skip(count - (kept - kept / 2))).collect()
}

/// A text with its long lines broken; each keeps its indentation. Names in it may drive a terminal:
/// they are escaped first, so that the columns are those that are shown.
#[must_use]
pub fn wrapped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for long in text.lines() {
        let long = super::printable(long);
        let words = long.trim_start_matches(' ');
        if long.chars().count() <= COLUMNS {
            out.push_str(&long);
            out.push('\n');
        } else {
            add_line(&mut out, long.len() - words.len(), words);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_at_spaces_and_keep_their_indentation() {
        let text = format!("short\n\n  {}", "word ".repeat(30).trim_end());
        let lines: Vec<String> = wrapped(&text).lines().map(str::to_owned).collect();
        assert_eq!(&lines[..2], ["short", ""]);
        assert!(
            lines[2..].len() == 2 && lines[2].starts_with("  word") && lines[3].starts_with("    word"),
            "{lines:?}"
        );
        assert!(lines.iter().all(|line| line.chars().count() <= COLUMNS));
        // A word that is longer stays whole: it is a name to be copied.
        let name = "x".repeat(200);
        assert_eq!(wrapped(&format!("a {name} b")), format!("a\n  {name}\n  b\n"));
        assert_eq!(wrapped("a\u{1b}[2J"), "a\\x1b[2J\n");
    }
}
