//! The list of commands as `rankmesh --help` prints it, grouped by what a person wants to do, and
//! what `rankmesh` alone says.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Command, CommandFactory};

use super::Cli;

/// Commands by what they are for, with what each does in a few words.
const GROUPS: [(&str, &[(&str, &str)]); 6] = [
    (
        "Begin here",
        &[
            ("demo", "the main job on this machine: four agents, one late rank"),
            ("up", "run the agent of this host: capture, store, mesh"),
            ("stragglers", "name the rank that holds the others up"),
            ("explain", "say why: where, since when, what it costs, what to do"),
            ("query", "ask the mesh (or one file) a SQL question"),
        ],
    ),
    (
        "Run",
        &[
            ("slurm", "give a Slurm job its own mesh"),
            ("env", "what a shell sets to record programs without root"),
            ("trace", "record this host into a file, without a mesh"),
            ("mark", "note an epoch, a phase, a deployment beside the rows"),
            ("serve", "a page, HTTP, metrics, alerts, PostgreSQL's protocol"),
            ("mcp", "answer an assistant (Model Context Protocol)"),
            ("archive", "write hours of stores as Parquet, or into ClickHouse"),
        ],
    ),
    (
        "Ask",
        &[
            ("shell", "one SQL question after the other, with history"),
            ("saved", "list saved investigations"),
            ("schema", "what tables and columns hold, with units"),
            ("export", "rows as SQLite, CSV, Parquet, or for Perfetto"),
            ("import", "make another program's trace into a store"),
        ],
    ),
    (
        "Look",
        &[
            ("top", "watch a job live: verdict, ranks, heat map"),
            ("nodes", "list the nodes of the mesh"),
            ("jobs", "list the jobs of the past, with their verdicts"),
            ("report", "write a job's report as one HTML file"),
        ],
    ),
    (
        "Explain",
        &[
            ("tail", "which requests to servers are slow, where, and why"),
            ("stacks", "where ranks are: their call stacks, in classes"),
            ("compare", "two spans, or two sets of stores: what changed"),
            ("cost", "what waiting for late ranks cost"),
            ("runbook", "what to do about a kind of cause"),
        ],
    ),
    (
        "Administer",
        &[
            ("check", "what this host can capture, and what to do about it"),
            ("doctor", "examine every node and the ways between them"),
            ("identity", "CA, node certificates, join tokens"),
            ("help", "the help of a command, or the page of a topic"),
            ("completions", "completions of commands and flags for a shell"),
            ("man", "write manual pages"),
        ],
    ),
];

/// What `rankmesh --help` prints around its flags.
const TEMPLATE: &str = "{about}\n\nUsage: {usage}\n\n{before-help}Options:\n{options}{after-help}";

/// The command line with its commands grouped in the help.
pub(super) fn root() -> Command {
    let command = Cli::command();
    let listed = list(&command);
    command
        .about("Which rank holds the job up, and why: ask any host.")
        .before_help(listed)
        .after_help("\n`rankmesh help COMMAND` says more; `rankmesh help` also lists topics.")
        .help_template(TEMPLATE)
}

/// The commands that this build has, in groups.
fn list(command: &Command) -> String {
    let mut text = String::new();
    for (title, commands) in GROUPS {
        let _ = writeln!(text, "{title}:");
        // (Some builds leave front ends out.)
        for (name, about) in commands.iter().filter(|(name, _)| command.find_subcommand(name).is_some()) {
            let _ = writeln!(text, "  {name:<12} {about}");
        }
        text.push('\n');
    }
    text
}

/// What `rankmesh` without a command says: how to begin, or how to go on where an agent runs.
pub(super) fn without_command() -> String {
    let sockets = [ask::paths::default_socket(), PathBuf::from("/run/rankmesh/agent.sock")];
    let runs = sockets.into_iter().any(|socket| std::os::unix::net::UnixStream::connect(socket).is_ok());
    let first = if runs {
        "An agent runs on this host.\n\n  \
         rankmesh stragglers     which rank holds the others up\n  \
         rankmesh query 'SELECT rank, count(*) FROM collectives GROUP BY rank'\n"
    } else {
        "No agent runs on this host. Two ways to begin:\n\n  \
         rankmesh demo           see it at work on this machine, nothing to set up\n  \
         sudo rankmesh up        record this host; it prints the command for the next\n"
    };
    format!("{first}\n`rankmesh --help` lists all commands.\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_command_is_listed_once() {
        let command = root();
        let has: BTreeSet<&str> =
            command.get_subcommands().filter(|below| !below.is_hide_set()).map(Command::get_name).collect();
        let listed: Vec<&str> = GROUPS.iter().flat_map(|(_, commands)| *commands).map(|(name, _)| *name).collect();
        let once: BTreeSet<&str> = listed.iter().copied().collect();
        assert_eq!(listed.len(), once.len(), "a command is listed twice");
        assert!(has.is_subset(&once), "not listed: {:?}", has.difference(&once));
        // (A build without front ends has fewer.)
        if cfg!(all(feature = "archive", feature = "serve", feature = "mcp")) {
            assert_eq!(has, once);
        }
    }

    #[test]
    fn the_help_fits_a_terminal_and_begins_with_what_people_need_first() {
        let help = root().render_help().to_string();
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
        let at = |text: &str| help.find(text).unwrap_or_else(|| panic!("no {text:?} in {help}"));
        assert!(at("Begin here:") < at("Run:") && at("Administer:") < at("Options:"), "{help}");
        assert!(without_command().lines().all(|line| line.chars().count() <= 80));
    }
}
