//! Texts about the binary itself: `help` of commands and topics, completions for shells, manual
//! pages, and the versions of its formats.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::Context;
use ask::{Exit, UsageError};
use clap::{Args, Command};
use clap_complete::Shell;
use front::schema::{without_links, wrapped};

use super::groups::root;

/// Pages of docs/ that users need besides the flags: name, title, text.
const TOPICS: [(&str, &str, &str); 14] = [
    ("sql", "what can be asked, functions, what an answer means", include_str!("../../../docs/sql.md")),
    (
        "tables",
        "the trace store's file, tables and columns (or: rankmesh schema)",
        include_str!("../../../docs/schema.md"),
    ),
    (
        "other-tools",
        "what py-spy, nvidia-smi, clush and others answer, asked here",
        include_str!("../../../docs/from-another-tool.md"),
    ),
    ("verdicts", "how a rank comes to be named", include_str!("../../../docs/verdicts.md")),
    ("screens", "rankmesh top: its keys, and what each column means", include_str!("../../../docs/top.md")),
    ("api", "rankmesh serve: page, HTTP, metrics, alerts", include_str!("../../../docs/api.md")),
    ("capture", "what is recorded, and what that needs", include_str!("../../../docs/capture.md")),
    ("reports", "a job's report as one file, also at a Slurm job's end", include_str!("../../../docs/report.md")),
    ("perfetto", "a trace for Perfetto's viewer", include_str!("../../../docs/perfetto.md")),
    ("assistants", "rankmesh mcp: tools, bounds, data that others wrote", include_str!("../../../docs/mcp.md")),
    ("postgres", "psql, Grafana, pandas: rankmesh serve --postgres", include_str!("../../../docs/postgres.md")),
    ("python", "the Python module and its wheel", include_str!("../../../docs/python.md")),
    ("operations", "running an agent: stores, memory, files", include_str!("../../../docs/operations.md")),
    ("security", "identities, roles, what a peer may do", include_str!("../../../docs/security.md")),
];

/// `--version`: the formats that have versions of their own besides the program's.
pub(super) static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{}\nwire {} with frames {}, store schema {}\nlibelf and zlib {}, for {}\nkernel objects {}\n{}",
        env!("CARGO_PKG_VERSION"),
        String::from_utf8_lossy(certs::tls::ALPN_MESH),
        model::frame::VERSION,
        store::SCHEMA_VERSION,
        if cfg!(feature = "vendored") { "inside (feature vendored)" } else { "of the system" },
        std::env::consts::ARCH,
        kernel_objects(),
        match option_env!("RANKMESH_COMMIT") {
            Some(commit) => format!("commit {commit}"),
            None => "commit not known (RANKMESH_COMMIT was not set for the build)".to_owned(),
        }
    )
});

/// Which BPF programs are inside: their size and CRC-32, to compare builds by.
fn kernel_objects() -> String {
    let mut sum = flate2::Crc::new();
    node_bpf::kernel_objects().into_iter().for_each(|object| sum.update(object));
    format!("{:08x} ({} bytes)", sum.sum(), sum.amount())
}

/// Flags of `rankmesh help`.
#[derive(Debug, Args)]
pub(super) struct HelpArgs {
    /// A command (`query`, `slurm up`) or a topic (`sql`, `tables`, `verdicts`, …; none: their
    /// list)
    #[arg(value_name = "COMMAND|TOPIC")]
    about: Vec<String>,
}

/// Flags of `rankmesh completions`.
#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Flags of `rankmesh man`.
#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Directory for the pages, rankmesh.1 and one a command; it must exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// The help of a command, or a topic's page.
pub(super) fn help(args: &HelpArgs) -> anyhow::Result<Exit> {
    let mut out = std::io::stdout().lock();
    let mut root = root();
    if args.about.is_empty() {
        writeln!(out, "{}\nTopics (rankmesh help TOPIC):", root.render_help())?;
        for (name, about, _) in TOPICS {
            writeln!(out, "  {name:<12} {about}")?;
        }
        return Ok(Exit::Complete);
    }
    if let Some((.., text)) = topic(&args.about) {
        let text = if out.is_terminal() { laid_out(&without_links(text, "docs")) } else { text.to_owned() };
        write!(out, "{text}")?;
        return Ok(Exit::Complete);
    }
    let mut command = &mut root;
    for name in &args.about {
        command = command.find_subcommand_mut(name).ok_or_else(|| {
            UsageError(format!("{name:?} is neither a command nor a topic; rankmesh help lists both"))
        })?;
    }
    write!(out, "{}", command.render_long_help())?;
    Ok(Exit::Complete)
}

/// A page of Markdown as a terminal shows it: prose in lines of 80 columns; code, tables and headings
/// are as they are.
fn laid_out(page: &str) -> String {
    let (mut out, mut prose, mut is_fenced) = (String::new(), None::<(String, usize)>, false);
    let flush = |prose: &mut Option<(String, usize)>, out: &mut String| {
        if let Some((text, indent)) = prose.take() {
            let words = text.trim_start();
            let head = text.get(..text.len() - words.len()).unwrap_or_default();
            out.push_str(&wrapped(head, words, indent));
        }
    };
    for line in page.lines() {
        let is_fence = line.starts_with("```");
        let is_code = prose.is_none() && line.starts_with("    ");
        if is_fenced || is_fence || is_code || line.is_empty() || line.starts_with(['|', '#']) {
            is_fenced ^= is_fence;
            flush(&mut prose, &mut out);
            out.push_str(line);
            out.push('\n');
            continue;
        }
        let words = line.trim_start();
        let marker = words.split_once(' ').map_or("", |(marker, _)| marker);
        let is_item = marker == "-" || marker.strip_suffix('.').is_some_and(|number| number.parse::<u8>().is_ok());
        if is_item {
            flush(&mut prose, &mut out);
        }
        match &mut prose {
            Some((text, _)) => {
                text.push(' ');
                text.push_str(words);
            }
            None => {
                let within = if is_item { marker.len() + 1 } else { 0 };
                prose = Some((line.to_owned(), line.len() - words.len() + within));
            }
        }
    }
    flush(&mut prose, &mut out);
    out
}

fn topic(about: &[String]) -> Option<(&'static str, &'static str, &'static str)> {
    let [name] = about else { return None };
    TOPICS.into_iter().find(|(topic, ..)| topic == name)
}

/// The completion script of a shell for our commands and flags.
pub(super) fn completions(args: &CompletionsArgs) -> anyhow::Result<Exit> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut root(), "rankmesh", &mut text);
    std::io::stdout().write_all(&text)?;
    Ok(Exit::Complete)
}

/// Manual pages of all commands.
pub(super) fn man(args: &ManArgs) -> anyhow::Result<Exit> {
    let mut root = root();
    root.build();
    page(&root, &args.out)?;
    Ok(Exit::Complete)
}

fn page(command: &Command, out: &Path) -> anyhow::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).replace(' ', "-");
    let path = out.join(format!("{name}.1"));
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).title(name).render(&mut text)?;
    std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    command.get_subcommands().filter(|below| !below.is_hide_set()).try_for_each(|below| page(below, out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_every_shell_completes_all_of_them() {
        let dir = tempfile::tempdir().expect("a directory");
        man(&ManArgs { out: dir.path().to_path_buf() }).expect("written");
        let names: Vec<String> = root().get_subcommands().map(|command| command.get_name().to_owned()).collect();
        for name in &names {
            let page = std::fs::read_to_string(dir.path().join(format!("rankmesh-{name}.1"))).expect("a page");
            assert!(page.contains(".SH NAME"), "{name}: {page}");
        }
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut root(), "rankmesh", &mut text);
            let text = String::from_utf8(text).expect("text");
            assert!(names.iter().all(|name| text.contains(name.as_str())), "{shell}");
        }
    }

    #[test]
    fn topics_at_a_terminal_have_no_links() {
        for (name, _, page) in TOPICS {
            let shown = laid_out(&without_links(page, "docs"));
            let link = shown.lines().find(|line| line.contains("]("));
            assert_eq!(link, None, "{name}");
        }
    }

    #[test]
    fn the_page_of_versions_names_the_stores_schema() {
        let page = include_str!("../../../docs/versions.md");
        assert!(page.contains(&format!("`PRAGMA user_version`, now {} |", store::SCHEMA_VERSION)));
    }

    #[test]
    fn a_version_says_which_kernel_objects_are_inside() {
        let version = LONG_VERSION.as_str();
        assert!(version.contains("wire rankmesh/"), "{version}");
        let bytes: usize = node_bpf::kernel_objects().map(<[u8]>::len).iter().sum();
        assert!(version.contains(&format!("({bytes} bytes)")), "{version}");
        assert!(!version.contains("kernel objects 00000000"), "{version}");
    }

    #[test]
    fn a_topic_fits_a_terminal_and_says_the_same() {
        let page = "# H\n\nsome words\nof prose\n- one\n  two\n1. three\n\n    code   as it is\n| a | b |\n";
        assert_eq!(laid_out(page), page.replace("words\nof", "words of").replace("one\n  two", "one two"));
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        for (topic, _, text) in TOPICS {
            let shown = laid_out(text);
            assert_eq!(words(&shown), words(text), "{topic}");
            let as_it_is = |line: &str| text.lines().any(|other| other == line);
            let long = shown.lines().find(|line| line.chars().count() > 80 && !as_it_is(line));
            assert_eq!(long, None, "{topic}");
        }
    }

    #[test]
    fn no_topic_hides_a_command() {
        assert!(TOPICS.iter().all(|(topic, ..)| root().find_subcommand(topic).is_none()));
        assert!(TOPICS.iter().all(|(_, about, _)| about.len() + 15 <= 80), "the list fits 80 columns");
    }

    #[test]
    fn each_page_begins_with_an_example() {
        for (topic, _, text) in TOPICS {
            assert!(text.lines().take(25).any(|line| line.starts_with("    ")), "{topic}");
        }
    }

    #[test]
    fn each_command_that_takes_a_time_takes_it_in_every_form() {
        let has = |command: &clap::Command, flag: &str| command.get_arguments().any(|of| of.get_long() == Some(flag));
        let timed: Vec<_> = root().get_subcommands().filter(|command| has(command, "since")).cloned().collect();
        assert!(timed.len() >= 8, "{}", timed.len());
        for command in timed {
            assert!(has(&command, "until") && has(&command, "between"), "{}", command.get_name());
        }
    }

    #[test]
    fn flags_are_well_formed() {
        root().debug_assert();
    }
}
