//! Questions that SQLite answers and the mesh refuses, on purpose: each with the reason for which
//! that is right. Any other refusal fails a run.

/// What the refusal says, and why it is right.
const LISTED: &[(&str, &str)] = &[];

/// Why refusing with this message is right; `None` where it is not listed.
#[must_use]
pub fn reason(message: &str) -> Option<&'static str> {
    LISTED.iter().find(|(pattern, _)| message.contains(pattern)).map(|(_, why)| *why)
}
