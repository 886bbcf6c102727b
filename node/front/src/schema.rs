//! `rankmesh schema`: what the tables of a trace store contain. The text is that of docs/schema.md,
//! included at build time; a test of `store` compares that page with the schema.

use std::io::Write;
use std::sync::LazyLock;

use ask::args::ReportFormat;
use ask::output::printable;
use ask::{Exit, UsageError};
use serde::Serialize;

use super::args::SchemaArgs;

/// The page: one `## \`name\`` a table or view, then a description, then a row of a Markdown table
/// with name and meaning for each column.
const PAGE: &str = include_str!("../../../docs/schema.md");
/// What agents add to the stores' tables; the heading of the page's last part is alike.
pub const OF_MESH: &str = "view of the mesh";
/// Columns of text on a terminal.
const WIDTH: usize = 80;

/// A table or view as it is documented.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Documented {
    /// Its name.
    pub name: String,
    /// `table`, `view`, or [`OF_MESH`].
    pub kind: &'static str,
    /// Description of its rows.
    pub about: String,
    /// Its columns.
    pub columns: Vec<Meaning>,
}

/// A column and its description, with its unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Meaning {
    /// Its name.
    pub name: String,
    /// As declared; empty where a view computes it.
    #[serde(rename = "type")]
    pub decl_type: String,
    /// Its contents, with their unit.
    pub meaning: String,
}

impl Documented {
    /// Its first sentence.
    pub fn brief(&self) -> &str {
        let end = self.about.match_indices(". ").map(|(at, _)| at + 1).next().unwrap_or(self.about.len());
        self.about.get(..end).unwrap_or(&self.about)
    }
}

/// All tables and views of the page, in its order.
pub static DOCUMENTED: LazyLock<Vec<Documented>> = LazyLock::new(|| documented(PAGE));

/// The description of a table or view on the page.
pub fn of(table: &str) -> Option<&'static Documented> {
    DOCUMENTED.iter().find(|documented| documented.name.eq_ignore_ascii_case(table))
}

/// The views that can be asked, as SQL that ends with their SELECT: those of a store of this release,
/// and those that agents add.
pub fn views() -> Vec<(String, String)> {
    let of_stores = store::views().unwrap_or_default();
    let of_agents = verdicts::VIEWS.iter().map(|view| (view.name.to_owned(), view.sql.to_owned()));
    of_stores.into_iter().chain(of_agents).collect()
}

fn documented(page: &str) -> Vec<Documented> {
    let declared = store::declared().unwrap_or_default();
    let mut all: Vec<Documented> = Vec::new();
    let mut kind = "table";
    for line in page.lines() {
        if line.starts_with("# Views of the mesh") {
            kind = OF_MESH;
        }
        if let Some(name) = line.strip_prefix("## `") {
            let name = name.split('`').next().unwrap_or_default().to_owned();
            all.push(Documented { name, kind, about: String::new(), columns: Vec::new() });
            continue;
        }
        let Some(table) = all.last_mut().filter(|table| table.kind == kind) else { continue };
        if let Some((name, rest)) = line.strip_prefix("| `").and_then(|rest| rest.split_once('`')) {
            let meaning = without_links(rest.trim().trim_start_matches('|').trim_end_matches('|').trim(), "docs");
            let types = declared.get(&table.name).into_iter().flatten();
            let decl_type = types.filter(|(column, _)| column == name).map(|(_, decl_type)| decl_type.clone()).next();
            let decl_type = decl_type.unwrap_or_default();
            table.columns.push(Meaning { name: name.to_owned(), decl_type, meaning });
        } else if !line.is_empty() && !line.starts_with('|') {
            if !table.about.is_empty() {
                table.about.push(' ');
            }
            table.about.push_str(&without_links(line.trim(), "docs"));
        }
    }
    for table in &mut all {
        if table.about.starts_with("View:") {
            table.kind = "view";
        }
    }
    all
}

/// Markdown of a page in `folder` with the page that each link names instead of the link: who reads it
/// at a terminal cannot follow one. A link within the page is its words.
pub fn without_links(text: &str, folder: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        out.push_str(before);
        match link.split_once("](").and_then(|(words, after)| Some((words, after.split_once(')')?))) {
            Some((words, (path, after))) if !words.contains(']') => {
                let page = linked(folder, path);
                let is_its_name = path.split('#').next().is_some_and(|path| path.ends_with(words));
                let is_runbook = page.strip_prefix("rankmesh runbook ").is_some_and(|kind| kind == words);
                match page.as_str() {
                    "" => out.push_str(words),
                    page if is_its_name || is_runbook => out.push_str(page),
                    page => out.push_str(&format!("{words} ({page})")),
                }
                rest = after;
            }
            _ => {
                out.push('[');
                rest = link;
            }
        }
    }
    out + rest
}

/// What a link of a page in `folder` names: a page of the project, the command that shows a runbook,
/// an address; empty of a place on the same page.
fn linked(folder: &str, path: &str) -> String {
    if path.starts_with('#') {
        return String::new();
    }
    if path.contains(':') || path.starts_with('/') {
        return path.to_owned();
    }
    let mut parts: Vec<&str> = folder.split('/').collect();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let page = parts.join("/");
    match page.strip_prefix("docs/runbooks/").and_then(|kind| kind.strip_suffix(".md")) {
        Some(kind) if explain::runbook::page(kind).is_some() => format!("rankmesh runbook {kind}"),
        _ => page,
    }
}

/// Prints the descriptions of tables and columns.
///
/// # Errors
/// Nobody answers, the flags are wrong, or the output cannot be written.
pub fn run(args: &SchemaArgs) -> anyhow::Result<Exit> {
    let chosen = match &args.table {
        None => DOCUMENTED.iter().collect(),
        Some(name) => match of(name) {
            Some(table) => vec![table],
            None => {
                let message = format!("a trace store has no table {name:?}; rankmesh schema lists them");
                return Err(UsageError(message).into());
            }
        },
    };
    let mut out = std::io::stdout().lock();
    match (args.format, chosen.as_slice()) {
        (ReportFormat::Json, chosen) => writeln!(out, "{}", serde_json::to_string(chosen)?)?,
        (ReportFormat::Table, [table]) if args.table.is_some() => write!(out, "{}", text(table))?,
        (ReportFormat::Table, tables) => {
            let names: Vec<(&str, &str)> = tables.iter().map(|table| (table.name.as_str(), table.brief())).collect();
            write!(out, "{}", list(&names))?;
        }
    }
    Ok(Exit::Complete)
}

/// Names with their descriptions, a line each.
pub fn list(names: &[(&str, &str)]) -> String {
    let width = names.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let line = |(name, about): &(&str, &str)| wrapped(&format!("{:<width$}  ", printable(name)), about, width + 2);
    names.iter().map(line).collect()
}

/// A table with its columns, as people read it.
pub fn text(table: &Documented) -> String {
    let mut out = wrapped(&format!("{} ({}): ", printable(&table.name), table.kind), &table.about, 2);
    let longest = |of: fn(&Meaning) -> &str| table.columns.iter().map(|c| of(c).chars().count()).max().unwrap_or(0);
    let (name, kind) = (longest(|column| &column.name), longest(|column| &column.decl_type));
    for column in &table.columns {
        let head = format!("  {:<name$}  {:<kind$}  ", printable(&column.name), printable(&column.decl_type));
        out.push_str(&wrapped(&head, &column.meaning, name + kind + 6));
    }
    out
}

/// `text` after `head`, in lines of [`WIDTH`], all but the first indented.
pub fn wrapped(head: &str, text: &str, indent: usize) -> String {
    let mut out = head.to_owned();
    let (mut column, mut fresh) = (head.chars().count(), true);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if !fresh && column + 1 + length > WIDTH {
            out.truncate(out.trim_end().len());
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            (column, fresh) = (indent, true);
        }
        if !fresh {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        (column, fresh) = (column + length, false);
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_its_columns_with_types_and_meanings() {
        let declared = store::declared().expect("in memory");
        let of_mesh: Vec<&str> = DOCUMENTED.iter().filter(|of| of.kind == OF_MESH).map(|of| of.name.as_str()).collect();
        let mut views: Vec<&str> = verdicts::VIEWS.iter().map(|view| view.name).collect();
        views.sort_unstable();
        assert_eq!(of_mesh, views);
        assert_eq!(DOCUMENTED.len(), declared.len() + views.len());
        for table in DOCUMENTED.iter().filter(|table| table.kind != OF_MESH) {
            assert!(!table.about.is_empty() && !table.brief().contains('\n'), "{table:?}");
            let columns: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
            let of_store: Vec<&str> = declared[&table.name].iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(columns, of_store, "{}", table.name);
            assert!(table.columns.iter().all(|column| !column.meaning.is_empty()), "{}", table.name);
            let typed = table.columns.iter().all(|column| !column.decl_type.is_empty());
            assert!(typed || table.kind == "view", "{table:?}");
        }
    }

    #[test]
    fn links_are_paths() {
        let read = |text: &str| without_links(text, "docs");
        assert_eq!(read("see [history.md](history.md), x[1]"), "see docs/history.md, x[1]");
        assert_eq!(read("as [serving.md](serving.md#time) says"), "as docs/serving.md#time says");
        assert_eq!(read("[the page](sql.md) and [i] (j)"), "the page (docs/sql.md) and [i] (j)");
        assert_eq!(read("[above](#limits), [runbook](runbooks/tail.md)"), "above, runbook (rankmesh runbook tail)");
        assert_eq!(read("[the desk](mailto:ops@x), [w](/wiki/x)"), "the desk (mailto:ops@x), w (/wiki/x)");
        assert_eq!(read("[cargo](https://rustup.rs)"), "cargo (https://rustup.rs)");
        let read = |text: &str| without_links(text, "docs/runbooks");
        assert_eq!(
            read("see [lock](lock.md), [serving](../serving.md)"),
            "see rankmesh runbook lock, serving (docs/serving.md)"
        );
        let raw = |text: &str| text.contains("](");
        assert!(!DOCUMENTED.iter().any(|table| raw(&table.about) || table.columns.iter().any(|of| raw(&of.meaning))));
    }

    #[test]
    fn a_table_as_people_read_it() {
        insta::assert_snapshot!("schema-clock-offsets", text(of("CLOCK_OFFSETS").expect("it is documented")));
        assert!(text(of("collectives").expect("documented")).lines().all(|line| line.chars().count() <= WIDTH));
        assert_eq!(of("nothing"), None);
    }
}
