//! Where a source decides by the text of an error, which is for people: a kind decides
//! (`model::Failure`), or a type.

/// What texts of errors are called.
const TEXTS: [&str; 8] = ["error", "err", "why", "reason", "message", "problem", "failure", "refusal"];
const COMPARISONS: [&str; 9] = [
    "starts_with",
    "ends_with",
    "contains",
    "strip_prefix",
    "strip_suffix",
    "trim_start_matches",
    "split_once",
    "rsplit_once",
    "find",
];

/// Where that is right, and why: file, comparison.
pub(crate) const ALLOWED: [(&str, &str, &str); 12] = [
    ("node/front/src/query.rs", "to_string().contains", "SQLite's message for a damaged page"),
    ("query-planner/src/check.rs", "message.starts_with", "SQLite's message: its code is that of any wrong statement"),
    ("query-planner/src/check.rs", "message.strip_prefix", "SQLite's message: what has no such name"),
    ("node-bpf/src/attach.rs", "error.contains", "libbpf's, which has the number of an error as text only"),
    ("node-bpf/src/attach.rs", "format!().contains", "libbpf's, as that"),
    ("node/front/serve/src/api/params.rs", "why.contains", "serde's message"),
    ("node/archive/src/place/read.rs", "why.contains", "no decision: a name is not said twice"),
    ("node/verdicts/src/text/mod.rs", "why.ends_with", "no decision: a sentence gets its end"),
    ("node/verdicts/standing/src/ended.rs", "why.ends_with", "no error: the reason of a verdict"),
    ("node/store/src/facts.rs", "match reason", "no error: a column, why rows were lost"),
    ("node-bpf/src/serving/path.rs", "reason ==", "no error: a column, what a thread waited for"),
    ("node-bpf/src/unprobed.rs", "to_string().contains", "no error: the name of a probe"),
];

/// The comparison of an error's text at `at`, if there is one.
pub(crate) fn comparison(tokens: &[String], at: usize) -> Option<String> {
    let token = |at: usize| tokens.get(at).map_or("", String::as_str);
    let before = |back: usize| at.checked_sub(back).map_or("", token);
    let is_text = |name: &str| TEXTS.contains(&name);
    let is_word = |token: &str| token.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    // Literals are no tokens.
    if (token(at), token(at + 1)) == ("=", "=") && is_text(before(1)) && !is_word(token(at + 2)) {
        return Some(format!("{} ==", before(1)));
    }
    if before(1) != "." || token(at + 1) != "(" {
        return None;
    }
    if token(at) == "as_str" && is_text(before(2)) {
        let from = tokens[..at].iter().rposition(|token| token == "match")?;
        let is_path = tokens[from + 1..at].iter().all(|token| is_word(token) || [".", "&"].contains(&token.as_str()));
        return is_path.then(|| format!("match {}", before(2)));
    }
    if !COMPARISONS.contains(&token(at)) {
        return None;
    }
    let of = match [before(5), before(4), before(3), before(2)] {
        [.., name] if is_text(name) => name,
        [_, "to_string", "(", ")"] => "to_string()",
        ["format", "!", "(", ")"] => "format!()",
        _ => return None,
    };
    Some(format!("{of}.{}", token(at)))
}
