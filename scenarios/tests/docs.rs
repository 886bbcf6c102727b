//! docs/security.md says which test tries which attack and which limit: each is there, and is a test.

use std::path::Path;

/// What stands between backticks.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn the_tables_of_attacks_and_limits_name_tests_that_are_there() {
    for (head, least) in [("| attack | file and test |", 25), ("| limit | value | of | file and test |", 18)] {
        table_names_tests(head, least);
    }
}

/// Every row of the table below `head` names tests in its last column, and there are `least` rows.
fn table_names_tests(head: &str, least: usize) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let page = read("docs/security.md");
    let (_, table) = page.split_once(head).expect("the table");
    let rows: Vec<&str> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() >= least, "{} rows below {head}", rows.len());
    for row in rows {
        let tests = row.trim_matches('|').rsplit_once('|').expect("columns").1;
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

/// Markdown files of the project that people read.
fn pages(root: &Path) -> Vec<std::path::PathBuf> {
    let mut folders = vec![root.to_path_buf()];
    let mut pages = vec![];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let inside = ["docs", "decisions", "runbooks", "packaging"].contains(&name.as_str());
            if path.is_dir() && inside {
                folders.push(path);
            } else if name.ends_with(".md") {
                pages.push(path);
            }
        }
    }
    pages
}

#[test]
fn each_page_of_docs_begins_with_an_example() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let pages = std::fs::read_dir(docs).expect("the pages").flatten().map(|entry| entry.path());
    let pages: Vec<_> = pages.filter(|page| page.extension().is_some_and(|e| e == "md")).collect();
    assert!(pages.len() > 20, "{} pages", pages.len());
    for page in pages.iter().filter(|page| !page.ends_with("SUMMARY.md")) {
        // What the reader wants, in a sentence; how, in a block; then all else.
        let text = std::fs::read_to_string(page).expect("a page");
        let beginning: Vec<&str> = text.lines().skip(1).take_while(|line| !line.starts_with("    ")).collect();
        let is_prose = |line: &&&str| !line.is_empty() && !line.starts_with(['#', '|', '-']);
        let prose = beginning.iter().filter(is_prose).count();
        assert!(prose > 0 && beginning.len() <= 14, "{}: {beginning:#?}", page.display());
        assert!(beginning.iter().all(|line| !line.starts_with('#')), "{}: a heading first", page.display());
    }
}

/// A heading's anchor, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let pages = pages(&root);
    assert!(pages.len() > 50, "{} pages", pages.len());
    let (mut links, mut dead) = (0, vec![]);
    for page in &pages {
        let text = std::fs::read_to_string(page).expect("a page");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            if link.contains("://") || link.contains(char::is_whitespace) || link.is_empty() {
                continue;
            }
            links += 1;
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().expect("a folder").join(file) };
            let lines = || std::fs::read_to_string(&target).unwrap_or_default();
            let there = || lines().lines().any(|line| line.starts_with('#') && anchor(line) == heading);
            if !target.exists() || (!heading.is_empty() && target.extension().is_some_and(|e| e == "md") && !there()) {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(links > 100, "{links} links");
    assert_eq!(dead, Vec::<String>::new(), "links that lead nowhere");
}

#[test]
fn what_pages_have_make_measure_and_check_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &Path| std::fs::read_to_string(path).expect("a file");
    let names = |script: &str| -> Vec<String> {
        let script = read(&root.join("scripts").join(script));
        script.lines().filter_map(|line| line.split_once(") #: ")).map(|(name, _)| name.to_owned()).collect()
    };
    let known = [("bench", names("bench.sh")), ("check", names("check.sh"))];
    assert!(known.iter().all(|(_, names)| names.len() > 15), "{known:?}");
    let mut unknown = vec![];
    for page in pages(&root) {
        let text = read(&page).split_whitespace().collect::<Vec<_>>().join(" ");
        for (target, names) in &known {
            for rest in text.split(&format!("make {target} NAME=")).skip(1) {
                let name = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next().unwrap_or_default();
                if !names.iter().any(|known| known == name) && !name.is_empty() {
                    unknown.push(format!("{}: make {target} NAME={name}", page.display()));
                }
            }
        }
    }
    assert_eq!(unknown, Vec::<String>::new(), "names that neither script has");
}
