//! Whether rows and errors are the same, in what the SQL does not leave open.

use query_planner::Value;

use super::script::{Expectation, Sort};

/// Rows as a multiset, and the values of concatenated columns, each group's on its own, as
/// multisets of their parts.
pub(super) fn canonical(rows: &[Vec<String>], concatenated: &[(usize, String)]) -> Vec<Vec<String>> {
    let mut rows: Vec<Vec<String>> = rows.to_vec();
    for (place, separator) in concatenated {
        for value in rows.iter_mut().filter_map(|row| row.get_mut(*place)) {
            let mut parts: Vec<&str> = value.split(separator.as_str()).collect();
            parts.sort_unstable();
            *value = parts.join(separator);
        }
    }
    rows.sort_unstable();
    rows
}

/// Whether a message of the mesh tells SQLite's own error: its first words stand in it, whatever
/// the mesh says around them.
pub(super) fn is_same_error(message: &str, own: &str) -> bool {
    // rusqlite puts the statement and the place in it behind the words.
    let words = own.split(" in ").next().unwrap_or(own).trim();
    !words.is_empty() && message.to_lowercase().contains(&words.to_lowercase())
}

/// Whether rows are the same in any order.
pub(super) fn same_rows(ours: &[Vec<Value>], union: &[Vec<Value>]) -> bool {
    let shown = |rows: &[Vec<Value>]| {
        let mut rows: Vec<String> = rows.iter().map(|row| format!("{row:?}")).collect();
        rows.sort_unstable();
        rows
    };
    shown(ours) == shown(union)
}

/// Both answers, in the order in which they are compared.
pub(super) fn difference(ours: &[Vec<String>], union: &[Vec<String>], expected: &Expectation) -> String {
    let listed = |rows: &[Vec<String>]| {
        let mut rows: Vec<String> = rows.iter().map(|row| row.join("|")).collect();
        if expected.sort != Sort::No {
            rows.sort_unstable();
        }
        let more = rows.len().saturating_sub(20);
        rows.truncate(20);
        let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{tail}", rows.join("  "))
    };
    format!("SQLite {}\ngot    {}\n", listed(union), listed(ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_concatenation_are_compared_and_not_its_bytes() {
        let row = |group: &str, parts: &str| vec![group.to_owned(), parts.to_owned()];
        let same = |ours: &[Vec<String>], union: &[Vec<String>]| {
            let concatenated = [(1, ",".to_owned())];
            canonical(ours, &concatenated) == canonical(union, &concatenated)
        };
        let union = [row("1", "ab,cd"), row("2", "ef")];
        assert!(same(&[row("2", "ef"), row("1", "cd,ab")], &union));
        assert!(!same(&[row("1", "cd,ba"), row("2", "ef")], &union), "the same bytes in other parts");
        assert!(!same(&[row("1", "ab"), row("2", "cd,ef")], &union), "parts of another group");
    }

    #[test]
    fn an_expected_error_is_told_from_a_failure_of_the_mesh() {
        let own = "no such column: q in SELECT q FROM t at offset 7";
        assert!(is_same_error("no such column: q", own));
        assert!(is_same_error("line 1: No such column: q (did you mean a?)", own));
        for other in ["timeout: no answer within 10 ms", "no such table: t", "no node answered", ""] {
            assert!(!is_same_error(other, own), "{other}");
        }
        assert!(!is_same_error("integer overflow", ""));
    }
}
