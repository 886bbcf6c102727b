//! docs/security.md says which test tries which attack: each of them is there, and is a test.

use std::path::Path;

/// What stands between backticks.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn the_table_of_attacks_names_tests_that_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let page = read("docs/security.md");
    let (_, table) = page.split_once("| attack | file and test |").expect("the table of attacks");
    let rows: Vec<&str> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() >= 25, "{} attacks", rows.len());
    for row in rows {
        let tests = row.trim_matches('|').rsplit_once('|').expect("two columns").1;
        let (mut source, mut found) = (String::new(), 0);
        for span in spans(tests) {
            if span.contains('/') {
                source = read(span);
                continue;
            }
            let lines: Vec<&str> = source.lines().map(str::trim).collect();
            let at = lines.iter().position(|line| {
                line.strip_prefix("async ")
                    .unwrap_or(line)
                    .strip_prefix("fn ")
                    .is_some_and(|rest| rest.starts_with(&format!("{span}(")))
            });
            let at = at.unwrap_or_else(|| panic!("there is no test {span}: {row}"));
            // Attributes lie above it; a property test may stand deeper in `proptest!`.
            let above = lines[at.saturating_sub(4)..at].iter();
            assert!(
                above.rev().any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test")),
                "{span} is no test"
            );
            found += 1;
        }
        assert!(found > 0, "no test: {row}");
    }
}
