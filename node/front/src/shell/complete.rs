//! Completions at the cursor: tables, columns, functions and keywords of SQL, and the commands of
//! the shell. Pure.

use std::collections::BTreeMap;

use super::commands::{COMMANDS, MODES};

/// Keywords of SQL that are completed.
const KEYWORDS: [&str; 44] = [
    "AND",
    "AS",
    "ASC",
    "BETWEEN",
    "BY",
    "CASE",
    "CAST",
    "CROSS",
    "DESC",
    "DISTINCT",
    "ELSE",
    "END",
    "EXCEPT",
    "EXISTS",
    "FILTER",
    "FROM",
    "GLOB",
    "GROUP",
    "HAVING",
    "IN",
    "INNER",
    "INTERSECT",
    "IS",
    "JOIN",
    "LEFT",
    "LIKE",
    "LIMIT",
    "NOT",
    "NULL",
    "OFFSET",
    "ON",
    "OR",
    "ORDER",
    "OVER",
    "PARTITION",
    "SELECT",
    "THEN",
    "UNION",
    "USING",
    "VALUES",
    "WHEN",
    "WHERE",
    "WINDOW",
    "WITH",
];

/// The names that can be completed.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    /// Tables and views, with their columns.
    pub(super) tables: BTreeMap<String, Vec<String>>,
    /// Functions.
    pub(super) functions: Vec<String>,
}

impl Names {
    fn columns(&self, table: &str) -> Option<&Vec<String>> {
        self.tables.iter().find(|(name, _)| name.eq_ignore_ascii_case(table)).map(|(_, columns)| columns)
    }
}

/// Where the word at `at` of `line` begins, and its completions. `before` are the lines of the
/// statement before this one.
pub(super) fn candidates(before: &str, line: &str, at: usize, names: &Names) -> (usize, Vec<String>) {
    let upto = line.get(..at).unwrap_or(line);
    if before.is_empty() && upto.starts_with('.') {
        return of_command(upto, names);
    }
    let begin = upto
        .rfind(|c: char| !is_word(c))
        .map_or(0, |place| place + upto[place..].chars().next().map_or(1, char::len_utf8));
    let (head, word) = upto.split_at(begin);
    let statement = format!("{before}\n{line}");
    if let Some(owner) = head.strip_suffix('.') {
        let owner = owner.rsplit(|c: char| !is_word(c)).next().unwrap_or_default();
        let table = aliased(&statement, owner);
        return (begin, with_node(names.columns(&table), word));
    }
    let text = format!("{before}\n{head}");
    let last = words(&text).last().map(|word| word.to_ascii_uppercase()).unwrap_or_default();
    let tables = starting(names.tables.keys().map(String::as_str), word);
    if matches!(last.as_str(), "FROM" | "JOIN") {
        return (begin, tables);
    }
    // A list of everything helps nobody.
    if word.is_empty() {
        return (begin, Vec::new());
    }
    let mut all: Vec<String> =
        sources(&statement).iter().flat_map(|(table, _)| with_node(names.columns(table), word)).collect();
    all.extend(starting(names.functions.iter().map(String::as_str), word).into_iter().map(|name| name + "("));
    all.extend(tables);
    let lower = word.chars().all(|c| !c.is_ascii_uppercase());
    let cased = |keyword: String| if lower { keyword.to_ascii_lowercase() } else { keyword };
    all.extend(starting(KEYWORDS.into_iter(), word).into_iter().map(cased));
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|name| seen.insert(name.clone()));
    (begin, all)
}

fn of_command(upto: &str, names: &Names) -> (usize, Vec<String>) {
    let Some((command, argument)) = upto.split_once(' ') else {
        return (0, starting(COMMANDS.iter().map(|command| command.name), upto));
    };
    let begin = upto.len() - argument.trim_start().len();
    let argument = &upto[begin..];
    let found = match command {
        ".schema" | ".tables" => starting(names.tables.keys().map(String::as_str), argument),
        ".mode" => starting(MODES.iter().map(|(name, _)| *name), argument),
        ".timer" => starting(["on", "off"].into_iter(), argument),
        ".explain" => return candidates(" ", upto, upto.len(), names),
        _ => Vec::new(),
    };
    (begin, found)
}

fn with_node(columns: Option<&Vec<String>>, word: &str) -> Vec<String> {
    let Some(columns) = columns else { return Vec::new() };
    starting(columns.iter().map(String::as_str).chain(["node"]), word)
}

fn starting<'a>(names: impl Iterator<Item = &'a str>, word: &str) -> Vec<String> {
    let begins = |name: &&str| name.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    names.filter(begins).map(str::to_owned).collect()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn words(text: &str) -> Vec<&str> {
    text.split(|c: char| !is_word(c)).filter(|word| !word.is_empty()).collect()
}

/// The tables that a statement reads, each with its name or alias there.
fn sources(statement: &str) -> Vec<(String, String)> {
    let words = words(statement);
    let is_keyword = |word: &str| KEYWORDS.iter().any(|keyword| keyword.eq_ignore_ascii_case(word));
    let mut found = Vec::new();
    for (at, _) in words.iter().enumerate().filter(|(_, w)| ["FROM", "JOIN"].iter().any(|k| k.eq_ignore_ascii_case(w)))
    {
        let Some(table) = words.get(at + 1).filter(|word| !is_keyword(word)) else { continue };
        let alias = match words.get(at + 2) {
            Some(word) if word.eq_ignore_ascii_case("AS") => words.get(at + 3),
            word => word.filter(|word| !is_keyword(word)),
        };
        found.push(((*table).to_owned(), (*alias.unwrap_or(table)).to_owned()));
    }
    found
}

/// The table of this name or alias in a statement.
fn aliased(statement: &str, name: &str) -> String {
    let found = sources(statement).into_iter().find(|(_, alias)| alias.eq_ignore_ascii_case(name));
    found.map_or_else(|| name.to_owned(), |(table, _)| table)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names() -> Names {
        let columns = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        Names {
            tables: BTreeMap::from([
                ("collectives".to_owned(), columns(&["ts_ns", "rank", "tier"])),
                ("offcpu".to_owned(), columns(&["ts_ns", "tid"])),
            ]),
            functions: columns(&["count", "coalesce", "median"]),
        }
    }

    fn at_end(before: &str, line: &str) -> (usize, Vec<String>) {
        candidates(before, line, line.len(), &names())
    }

    #[test]
    fn tables_follow_from_and_columns_are_those_of_the_statement() {
        assert_eq!(at_end("", "SELECT * FROM co"), (14, vec!["collectives".to_owned()]));
        assert_eq!(at_end("SELECT *\nFROM", "").1, ["collectives", "offcpu"]);
        assert_eq!(at_end("", "SELECT rank FROM collectives WHERE ti").1, ["tier"]);
        assert_eq!(candidates("", "SELECT ra FROM collectives", 9, &names()).1, ["rank"]);
        assert_eq!(at_end("", "select co").1, ["count(", "coalesce(", "collectives"]);
        assert_eq!(at_end("", "SELECT rank FROM collectives WH").1, ["WHEN", "WHERE"]);
        assert_eq!(at_end("", "select 1 fr").1, ["from"]);
        assert!(at_end("", "SELECT ").1.is_empty());
    }

    #[test]
    fn an_alias_leads_to_its_table() {
        let sql = "SELECT o.t FROM collectives c JOIN offcpu AS o ON c.";
        assert_eq!(candidates("", sql, 10, &names()), (9, vec!["ts_ns".to_owned(), "tid".to_owned()]));
        assert_eq!(at_end("", sql).1, ["ts_ns", "rank", "tier", "node"]);
        assert_eq!(at_end("", "SELECT offcpu.ti").1, ["tid"]);
        assert!(at_end("", "SELECT nothing.").1.is_empty());
    }

    #[test]
    fn commands_and_their_arguments() {
        assert_eq!(at_end("", ".s"), (0, vec![".schema".to_owned()]));
        assert_eq!(at_end("", ".schema off"), (8, vec!["offcpu".to_owned()]));
        assert_eq!(at_end("", ".mode j").1, ["json"]);
        assert_eq!(at_end("", ".timer o").1, ["on", "off"]);
        assert_eq!(at_end("", ".explain SELECT * FROM c").1, ["collectives"]);
        // In the middle of a statement it is no command.
        assert!(at_end("SELECT 1", ".s").1.is_empty());
    }

    proptest! {
        #[test]
        fn no_line_is_too_odd(before in "\\PC{0,20}", line in "\\PC{0,40}", at in 0usize..50) {
            let at = (0..=at.min(line.len())).rev().find(|at| line.is_char_boundary(*at)).unwrap_or(0);
            let (begin, _) = candidates(&before, &line, at, &names());
            prop_assert!(begin <= at && line.is_char_boundary(begin));
        }
    }
}
