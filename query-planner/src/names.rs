//! How plans and catalogues name things in SQL: quoting, the parameters that nodes bind,
//! affinities.

/// Bound to the node's name.
pub(crate) const NODE_PARAMETER: &str = ":mesh_node";
/// Bound to the question's instant, a Julian day number.
pub(crate) const NOW_PARAMETER: &str = ":mesh_now";

/// A name as an identifier of SQL, whatever is in it.
#[must_use]
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as a literal of SQL.
#[must_use]
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The affinity of a declared type, by SQLite's rules (datatype3.html §3.1), as a type name that
/// has it.
pub(crate) fn affinity(decl_type: &str) -> &'static str {
    let upper = decl_type.to_ascii_uppercase();
    let has = |words: &[&str]| words.iter().any(|word| upper.contains(word));
    if has(&["INT"]) {
        "INT"
    } else if has(&["CHAR", "CLOB", "TEXT"]) {
        "TEXT"
    } else if upper.is_empty() || has(&["BLOB"]) {
        ""
    } else if has(&["REAL", "FLOA", "DOUB"]) {
        "REAL"
    } else {
        "NUM"
    }
}
