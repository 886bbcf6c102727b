//! Text that programs and hosts chose (names of processes, nodes, files), as it may be shown on a
//! terminal.

/// Characters that control a terminal, or reverse or hide the text around them (marks of direction,
/// of zero width).
#[must_use]
pub fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Escapes characters that control a terminal, so that data of a hostile process cannot.
#[must_use]
pub fn printable(text: &str) -> String {
    if !text.chars().any(steers) {
        return text.to_owned();
    }
    text.chars()
        .map(|c| match c {
            '\n' => r"\n".to_owned(),
            '\t' => r"\t".to_owned(),
            c if c.is_control() => format!(r"\x{:02x}", u32::from(c)),
            c if steers(c) => format!(r"\u{{{:x}}}", u32::from(c)),
            c => c.to_string(),
        })
        .collect()
}

/// At most so many characters of a text from outside, with `…` where it was longer. Not escaped.
#[must_use]
pub fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Text of bytes; those that are no UTF-8 are written as `\xff`.
#[must_use]
pub fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!(r"\x{byte:02x}"));
        }
    }
    text
}

/// The same for text of several lines, which stay lines.
#[must_use]
pub fn printable_lines(text: &str) -> String {
    text.lines().map(printable).collect::<Vec<_>>().join("\n")
}

/// A text as one word of a shell: in single quotes.
#[must_use]
pub fn for_shell(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}
