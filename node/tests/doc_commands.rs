//! The commands in README and docs/ work: each block is one of commands, of SQL, or of neither
//! (listed in `docs/not-run.txt`); each command line runs on two agents with the rows of a job, or
//! on its stores, or is listed there with the reason why not. Every entry of the lists must match
//! something.
#![cfg(feature = "archive")]

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::Lab;
use common::job_stores::EndedJob;

/// What lines of commands begin with: ours, and what only looks at a process.
const PROGRAMS: [&str; 3] = ["rankmesh ", "ps ", "grep "];

/// Commands that ask this host's agent by default.
const ASK_AN_AGENT: [&str; 13] = [
    "query",
    "nodes",
    "stragglers",
    "explain",
    "stacks",
    "cost",
    "compare",
    "mark",
    "report",
    "export",
    "top",
    "shell",
    "jobs",
];

/// A block of a page.
struct Block {
    /// Page and line.
    at: String,
    lines: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What starts with so many spaces, or stands between fences.
fn blocks_of(page: &str, text: &str) -> Vec<Block> {
    let (mut blocks, mut fenced, mut open) = (vec![], false, false);
    let mut after_blank = true;
    for (number, line) in (1..).zip(text.lines()) {
        let fence = line.trim_start().starts_with("```");
        if fence {
            (fenced, open) = (!fenced, false);
            continue;
        }
        let indented = line.starts_with("    ") && (open || after_blank);
        if fenced || indented {
            if !open {
                blocks.push(Block { at: format!("{page}:{number}"), lines: vec![] });
            }
            open = true;
            let line = if fenced { line } else { &line[4..] };
            blocks.last_mut().expect("a block").lines.push(line.to_owned());
        } else if line.trim().is_empty() && open && !fenced {
            // A blank line ends an indented block only when something else follows.
            blocks.last_mut().expect("a block").lines.push(String::new());
        } else {
            open = false;
        }
        after_blank = line.trim().is_empty();
    }
    blocks
}

fn blocks() -> Vec<Block> {
    let mut pages = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    for folder in ["docs", "docs/runbooks"] {
        let found = std::fs::read_dir(root().join(folder)).expect("a folder").flatten().map(|entry| entry.path());
        pages.extend(found.filter(|path| path.extension().is_some_and(|ending| ending == "md")));
    }
    pages.sort();
    let blocks = pages.iter().flat_map(|page| {
        let name = page.strip_prefix(root()).expect("below").display().to_string();
        blocks_of(&name, &std::fs::read_to_string(page).expect("a page"))
    });
    blocks.collect()
}

/// `KIND<tab>BEGINNING<tab>WHY`: what is not run. A command fits where it begins so, a block where
/// its first line does.
struct NotRun {
    kind: String,
    begins: String,
}

impl NotRun {
    fn fits(&self, text: &str) -> bool {
        match self.begins.strip_suffix('$') {
            Some(exact) => text == exact,
            None => text.starts_with(&self.begins),
        }
    }
}

fn not_run() -> Vec<NotRun> {
    let text = include_str!("docs/not-run.txt");
    let entries = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    entries
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            let [kind, begins, why] = fields.as_slice() else { panic!("not KIND, BEGINNING, WHY: {line:?}") };
            assert!(["block", "command"].contains(kind) && !begins.is_empty() && why.len() > 8, "{line:?}");
            NotRun { kind: (*kind).to_owned(), begins: (*begins).to_owned() }
        })
        .collect()
}

/// Command lines of a block: what a shell would be given, without remarks behind two spaces.
fn commands(block: &Block) -> Vec<String> {
    let mut commands: Vec<String> = vec![];
    let mut quoted = false;
    for line in &block.lines {
        if quoted {
            let last = commands.last_mut().expect("a command");
            last.push('\n');
            last.push_str(line);
            quoted = last.matches('"').count() % 2 == 1;
            continue;
        }
        let line = line.trim_start().trim_start_matches("$ ");
        if !PROGRAMS.iter().any(|program| line.starts_with(program)) {
            continue;
        }
        quoted = line.matches('"').count() % 2 == 1;
        commands.push(without_remark(line));
    }
    commands
}

fn without_remark(line: &str) -> String {
    let mut quote = None;
    let mut spaces = 0;
    for (at, letter) in line.char_indices() {
        match (quote, letter) {
            (None, '"' | '\'') => quote = Some(letter),
            (Some(open), _) if open == letter => quote = None,
            _ => {}
        }
        spaces = if letter == ' ' && quote.is_none() { spaces + 1 } else { 0 };
        if spaces == 2 || (quote.is_none() && letter == '#') {
            return line[..at].trim_end().to_owned();
        }
    }
    line.to_owned()
}

fn is_sql(block: &Block) -> bool {
    block
        .lines
        .iter()
        .find(|line| !line.is_empty())
        .is_some_and(|first| ["SELECT ", "WITH ", "-- "].iter().any(|word| first.starts_with(word)))
}

/// Two agents with a job's rows, its stores and an archive, and where they are.
struct World {
    lab: Lab,
    names: [&'static str; 2],
}

impl World {
    fn new() -> Self {
        let mut lab = Lab::new();
        let job = lab.path("rankmesh-4711");
        std::fs::create_dir(&job).expect("a directory");
        EndedJob::small().write(&job);
        std::fs::create_dir(lab.path("history")).expect("a directory");
        std::fs::write(lab.path("questions.sql"), "SELECT count(*) FROM collectives;\n").expect("written");
        let names = ["n0", "n1"];
        for name in names {
            let store = lab.path(&format!("{name}-live.db"));
            std::fs::copy(job.join(format!("{name}.db")), &store).expect("a copy");
            let store = store.display().to_string();
            lab.start(name, &["--store", &store, "--store-max-age", "36500d"]);
        }
        lab.wait_for_members(&names);
        let world = Self { lab, names };
        let made = world.run("rankmesh archive --db rankmesh-4711 --open-hours --to history");
        assert!(made.0, "{}", made.1);
        world
    }

    /// A line as it runs here: places and times that pages make up are those of this job.
    fn here(&self, line: &str) -> String {
        if !line.starts_with("rankmesh ") {
            return line.to_owned();
        }
        [
            ("--db PATH", "--db rankmesh-4711"),
            ("--db DIR", "--db rankmesh-4711"),
            ("--db JOBDIR", "--db rankmesh-4711"),
            ("job-4711/", "rankmesh-4711"),
            ("--db trace.db", "--db rankmesh-4711/n0.db"),
            ("/var/lib/rankmesh/trace.db", "rankmesh-4711/n1.db"),
            ("/mnt/history", "history"),
            ("old-driver/", "rankmesh-4711"),
            ("new-driver/", "rankmesh-4711"),
            ("--since 30d", "--since 3650d"),
            ("--since 30m", "--since 2026-01-01T00:00Z"),
            ("14:05 14:06", "2026-01-01T00:00Z 2026-01-01T00:00:30Z"),
            ("14:05 14:10", "2026-01-01T00:00Z 2026-01-01T00:00:30Z"),
            ("14:05 14:35", "2026-01-01T00:00Z 2026-01-01T00:00:30Z"),
            ("03:10 03:20", "2026-01-01T00:00Z 2026-01-01T00:00:30Z"),
            ("03:00..03:10", "2026-01-01T00:00Z..2026-01-01T00:00:10Z"),
            ("03:10..03:20", "2026-01-01T00:00:10Z..2026-01-01T00:00:20Z"),
            ("\"SELECT …\"", "\"SELECT count(*) FROM collectives\""),
            ("--job JOBID", "--job 4711"),
            ("$NODE", "n0"),
            ("$RANK", "5"),
            ("$PID", "1001"),
        ]
        .iter()
        .fold(line.to_owned(), |line, (made_up, here)| line.replace(made_up, here))
    }

    /// A line with the socket of this mesh's agent, where it asks the host's.
    fn of_this_agent(&self, line: &str) -> String {
        let others = ["--db", "--archive", "--via", "--socket", "--recorded"];
        if others.iter().any(|flag| line.contains(flag)) && !line.contains(" --live") {
            return line.to_owned();
        }
        let socket = self.lab.socket(self.names[0]);
        ASK_AN_AGENT.iter().fold(line.to_owned(), |line, command| {
            let with = format!("rankmesh {command} --socket {}", socket.display());
            match line.strip_prefix(&format!("rankmesh {command}")) {
                Some(rest) if rest.is_empty() || rest.starts_with([' ', '\n']) => format!("{with}{rest}"),
                _ => line,
            }
        })
    }

    /// Whether a command line succeeds (complete or partial answers), and its output.
    fn run(&self, line: &str) -> (bool, String) {
        let program = Path::new(env!("CARGO_BIN_EXE_rankmesh"));
        let _ = std::fs::remove_file(self.lab.path("t.pftrace"));
        let path =
            format!("{}:{}", program.parent().expect("a folder").display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("bash");
        command.args(["-ec", &self.of_this_agent(&self.here(line))]).env("PATH", path).current_dir(self.lab.dir.path());
        command.env("TZ", "UTC").env("TERM", "dumb");
        // Of the processes that runbooks look at.
        let pid = self.lab.pid(self.names[1]).to_string();
        command.env("PID", &pid).env("OTHER", pid);
        let output = command.env_remove("RANKMESH_LOG").stdin(Stdio::null()).output().expect("bash");
        let printed = [output.stdout, output.stderr].concat();
        (matches!(output.status.code(), Some(0 | 3)), String::from_utf8_lossy(&printed).into_owned())
    }
}

#[test]
fn every_command_of_the_docs_runs() {
    let (blocks, lists) = (blocks(), not_run());
    assert!(blocks.len() > 80, "{} blocks", blocks.len());
    let fits = |kind: &str, text: &str| lists.iter().position(|entry| entry.kind == kind && entry.fits(text));
    let (mut used, mut lines, mut unknown) = (BTreeSet::new(), BTreeSet::new(), vec![]);
    for block in &blocks {
        let first = block.lines.iter().find(|line| !line.is_empty()).cloned().unwrap_or_default();
        if let Some(entry) = fits("block", &first) {
            used.insert(entry);
            continue;
        }
        if is_sql(block) {
            let sql = block.lines.join("\n").replace("'", "'\\''");
            for statement in sql.split("\n\n").filter(|sql| !sql.trim().is_empty()) {
                lines.insert((format!("rankmesh query -- '{}'", statement.trim()), block.at.clone()));
            }
            continue;
        }
        let found = commands(block);
        if found.is_empty() {
            unknown.push(format!("{}: {first}", block.at));
        }
        for line in found {
            match fits("command", &line) {
                Some(entry) => _ = used.insert(entry),
                None => _ = lines.insert((line, block.at.clone())),
            }
        }
    }
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
    assert_eq!(unknown, Vec::<String>::new(), "blocks of no command that docs/not-run.txt does not list");
    let idle: Vec<&str> =
        (0..lists.len()).filter(|entry| !used.contains(entry)).map(|entry| lists[entry].begins.as_str()).collect();
    assert_eq!(idle, Vec::<&str>::new(), "entries of docs/not-run.txt that fit nothing");
    let world = World::new();
    let mut failed = vec![];
    let mut runs = 0;
    for (line, at) in &lines {
        runs += 1;
        let (good, printed) = world.run(line);
        if !good {
            failed.push(format!("{at}: {line}\n{printed}"));
        }
    }
    eprintln!("{runs} of {} command lines ran", lines.len());
    assert!(runs > 10, "{runs}");
    assert_eq!(failed, Vec::<String>::new(), "{}", failed.join("\n"));
}
