//! `rankmesh runbook`: what to check, what to do and how to verify it, for each kind of cause.

use std::io::{IsTerminal, Read, Write};
use std::path::Path;

use anyhow::Context;
use ask::output::printable_lines;
use ask::{Exit, UsageError};
use clap::Args;
use explain::runbook::{RUNBOOKS, VARIABLES, Values, filled, only_commands, page};
use model::explanation::Explanation;

use crate::schema::without_links;

/// Directory with a site's own pages; each replaces the page of that kind.
pub const SITE_PAGES: &str = "/etc/rankmesh/runbooks";
/// Largest page of a site.
const MOST_BYTES: u64 = 1 << 20;

/// Flags of `rankmesh runbook`.
#[derive(Debug, Args)]
pub struct RunbookArgs {
    /// Kind of cause, as verdicts name it: cpu_stolen, hang, network, … [default: list all]
    #[arg(value_name = "KIND")]
    kind: Option<String>,
    /// What commands are about: PID=4711, CGROUP=system.slice, …
    #[arg(value_name = "NAME=VALUE")]
    values: Vec<String>,
    /// The site's own pages, KIND.md each
    #[arg(long, value_name = "DIR", default_value = SITE_PAGES)]
    dir: std::path::PathBuf,
}

/// Prints the runbook of a kind of cause, or their list.
///
/// # Errors
/// Nobody answers, the flags are wrong, or the output cannot be written.
pub fn run(args: RunbookArgs) -> anyhow::Result<Exit> {
    let mut out = std::io::stdout().lock();
    let Some(kind) = &args.kind else {
        write!(out, "{}", listed(&args.dir)?)?;
        return Ok(Exit::Complete);
    };
    let values = args.values.iter().map(|text| value(text)).collect::<Result<Values, _>>()?;
    let text = text(&args.dir, kind)?.ok_or_else(|| {
        let kinds: Vec<&str> = RUNBOOKS.iter().map(|(kind, _)| *kind).collect();
        UsageError(format!("there is no runbook '{kind}'; there are {}", kinds.join(", ")))
    })?;
    let mut shown = printable_lines(&filled(&text, &values));
    if out.is_terminal() {
        shown = without_links(&shown, "docs/runbooks");
    }
    writeln!(out, "{shown}")?;
    Ok(Exit::Complete)
}

/// Kinds with the titles of their pages, in lines of 80 columns.
fn listed(site: &Path) -> anyhow::Result<String> {
    let title_of = |(kind, built_in): &(&str, &str)| -> anyhow::Result<String> {
        let text = of_site(site, kind)?;
        let own = if text.is_some() { " (the site's own)" } else { "" };
        Ok(title(text.as_deref().unwrap_or(built_in)).to_owned() + own)
    };
    let titles = RUNBOOKS.iter().map(title_of).collect::<anyhow::Result<Vec<_>>>()?;
    let kinds = RUNBOOKS.iter().map(|(kind, _)| *kind);
    Ok(crate::schema::list(&kinds.zip(titles.iter().map(String::as_str)).collect::<Vec<_>>()))
}

/// The page of a kind: the site's, or the one built in.
pub fn text(site: &Path, kind: &str) -> anyhow::Result<Option<String>> {
    let Some(built_in) = page(kind) else { return Ok(None) };
    Ok(Some(of_site(site, kind)?.unwrap_or_else(|| built_in.to_owned())))
}

fn of_site(site: &Path, kind: &str) -> anyhow::Result<Option<String>> {
    let path = site.join(format!("{kind}.md"));
    let file = match std::fs::File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("the site's runbook {}", path.display())),
    };
    let mut text = String::new();
    let read = file.take(MOST_BYTES + 1).read_to_string(&mut text);
    read.with_context(|| format!("the site's runbook {}", path.display()))?;
    anyhow::ensure!(text.len() as u64 <= MOST_BYTES, "{}: more than {MOST_BYTES} bytes", path.display());
    Ok(Some(text))
}

fn title(page: &str) -> &str {
    page.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or_default()
}

fn value(text: &str) -> Result<(String, String), UsageError> {
    let known = |name: &str| VARIABLES.iter().any(|(known, _)| *known == name);
    match text.split_once('=') {
        Some((name, value)) if known(name) => Ok((name.to_owned(), value.to_owned())),
        _ => {
            let all: Vec<String> = VARIABLES.iter().map(|(name, what)| format!("{name} ({what})")).collect();
            Err(UsageError(format!("'{text}' is no NAME=VALUE with one of {}", all.join(", "))))
        }
    }
}

/// What to do: the commands of the runbook that fits, or all of it.
pub fn to_do(found: &Explanation, all: bool) -> anyhow::Result<String> {
    let Some(kind) = &found.runbook else { return Ok(String::new()) };
    let Some(page) = text(Path::new(SITE_PAGES), kind)? else { return Ok(String::new()) };
    let values: Values = found.values.iter().cloned().collect();
    if all {
        return Ok(printable_lines(&format!("\n{}", filled(&page, &values))) + "\n");
    }
    let title = page.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or_default();
    let mut out = record::wrapped(&format!("\nWhat to do (rankmesh runbook {kind}): {title}"));
    for section in ["Check", "Fix", "Verify"] {
        let commands = only_commands(&page, section, &values);
        if !commands.is_empty() {
            out.push_str(&format!("  {section}:\n"));
            commands.lines().filter(|line| !line.is_empty()).for_each(|line| out.push_str(&format!("    {line}\n")));
        }
    }
    Ok(printable_lines(&out) + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_cause_has_a_runbook() {
        for kind in verdicts::Kind::ALL {
            assert!(page(kind.name()).is_some(), "{}", kind.name());
        }
    }

    #[test]
    fn runbooks_at_a_terminal_have_no_links() {
        for (kind, page) in RUNBOOKS {
            let shown = without_links(page, "docs/runbooks");
            assert_eq!(shown.lines().find(|line| line.contains("](")), None, "{kind}");
        }
    }

    #[test]
    fn a_sites_page_stands_in_place_of_the_built_in_one() {
        let site = tempfile::tempdir().unwrap();
        let built_in = text(site.path(), "hang").unwrap().unwrap();
        assert_eq!(title(&built_in), "Nothing moves");
        std::fs::write(site.path().join("hang.md"), "# Call the desk\n\n```sh\necho \"$PID\"\n```\n").unwrap();
        let own = text(site.path(), "hang").unwrap().unwrap();
        assert_eq!(title(&own), "Call the desk");
        let list = listed(site.path()).unwrap();
        assert!(list.contains("Call the desk (the site's own)") && list.contains("file_wait"), "{list}");
        assert!(list.lines().all(|line| line.chars().count() <= 80), "{list}");
        assert_eq!(text(site.path(), "no-such-kind").unwrap(), None);
        assert_eq!(text(site.path(), "../hang").unwrap(), None);
        assert!(value("PID=1").is_ok() && value("PIT=1").is_err() && value("PID").is_err());
    }

    #[test]
    fn what_to_do_has_the_real_process_in_its_commands() {
        let found = Explanation {
            runbook: Some("cpu_stolen".to_owned()),
            values: vec![("OTHER".to_owned(), "812".to_owned()), ("PID".to_owned(), "4711".to_owned())],
            ..Explanation::default()
        };
        let text = to_do(&found, false).unwrap();
        assert!(text.contains("renice -n 19 -p 812") && text.contains("taskset -cp 4711"), "{text}");
        assert!(to_do(&found, true).unwrap().contains("## Fix"));
        assert_eq!(to_do(&Explanation::default(), false).unwrap(), "");
    }
}
