//! What is true of the programs that hang: the tables at the top of their sources, and the notes
//! that their ranks leave of what they are about to do.

use std::collections::BTreeSet;
use std::path::Path;

/// The languages that they are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    C,
    Fortran,
    Python,
    /// In C, on NCCL's simulator and no MPI.
    Nccl,
}

impl Language {
    pub(crate) fn source(self) -> &'static str {
        match self {
            Self::C => include_str!("../../../scenarios/workloads/hangs.c"),
            Self::Fortran => include_str!("../../../scenarios/workloads/hangs.f90"),
            Self::Python => include_str!("../../../scenarios/workloads/hangs.py"),
            Self::Nccl => include_str!("../../../scenarios/workloads/nccl-hangs.c"),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::C => "c",
            Self::Fortran => "fortran",
            Self::Python => "python",
            Self::Nccl => "nccl",
        }
    }
}

/// Why nothing moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// These ranks hold the others up: they are elsewhere.
    Cause(BTreeSet<usize>),
    /// These call something else than the others at the same place of a communicator's order.
    Differs(BTreeSet<usize>),
    /// Who waits for whom, where nobody outside is to blame.
    Circle(BTreeSet<(usize, usize)>),
}

/// One mode of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Truth {
    pub(crate) mode: String,
    pub(crate) ranks: usize,
    pub(crate) why: Why,
    /// The shim does not see it: its rank waits for a message that was begun before.
    pub(crate) by_ebpf_only: bool,
}

/// The table of a source.
pub(crate) fn table(source: &str) -> Vec<Truth> {
    source.lines().filter_map(|line| line.split_once("truth: ")).map(|(_, row)| parse(row)).collect()
}

/// That of one mode.
pub(crate) fn truth(language: Language, mode: &str) -> Truth {
    let found = table(language.source()).into_iter().find(|truth| truth.mode == mode);
    found.unwrap_or_else(|| panic!("{language:?} has no mode {mode}"))
}

fn parse(row: &str) -> Truth {
    let mut words = row.split_whitespace();
    let mode = words.next().expect("a mode").to_owned();
    let words: Vec<&str> = words.collect();
    let (key, value) = words.first().and_then(|word| word.split_once('=')).expect("what is true of it");
    let ranks = words.iter().find_map(|word| word.strip_prefix("ranks=")).map_or(4, |n| n.parse().expect("a number"));
    let number = |word: &str| word.parse::<usize>().expect("a rank");
    let list = || value.split(',').map(number).collect();
    let why = match key {
        "cause" => Why::Cause(list()),
        "differs" => Why::Differs(list()),
        "circle" => Why::Circle(value.split('|').flat_map(edges).collect()),
        _ => panic!("{row}: what is {key}?"),
    };
    Truth { mode, ranks, why, by_ebpf_only: words.contains(&"by=ebpf") }
}

/// `A>B>C`: each waits for the next, and the last for the first.
fn edges(circle: &str) -> Vec<(usize, usize)> {
    let ranks: Vec<usize> = circle.split('>').map(|rank| rank.parse().expect("a rank")).collect();
    (0..ranks.len()).map(|at| (ranks[at], ranks[(at + 1) % ranks.len()])).collect()
}

/// Where a rank is, by its own last note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    /// The call, as the collectives table names it, or what it does instead of one.
    pub(crate) what: String,
    /// File and line.
    pub(crate) line: String,
    pub(crate) pid: i64,
}

impl Note {
    /// None while there is none that is complete.
    pub(crate) fn read(directory: &Path, rank: usize) -> Option<Self> {
        let text = std::fs::read_to_string(directory.join(format!("at.{rank}"))).ok()?;
        let mut words = text.split_whitespace();
        let (what, line, pid) = (words.next()?.to_owned(), words.next()?.to_owned(), words.next()?.parse().ok()?);
        Some(Self { what, line, pid })
    }

    /// Whether the rank is in a call of MPI.
    pub(crate) fn is_call(&self) -> bool {
        !matches!(self.what.as_str(), "asleep" | "running" | "io" | "ended" | "stopped")
    }
}

/// The notes of all ranks of a job that stands still; an error says how far it is.
pub(crate) fn notes(directory: &Path, ranks: usize) -> Result<Vec<Note>, String> {
    let notes: Vec<Option<Note>> = (0..ranks).map(|rank| Note::read(directory, rank)).collect();
    let known: Vec<Note> = notes.iter().flatten().cloned().collect();
    let moved = |rank: usize| {
        let modified = std::fs::metadata(directory.join(format!("at.{rank}"))).and_then(|file| file.modified());
        modified.ok().and_then(|at| at.elapsed().ok()).is_none_or(|age| age.as_secs() < 3)
    };
    if known.len() < ranks || known.iter().any(|note| note.what == "begins") || (0..ranks).any(moved) {
        return Err(format!("{notes:?}"));
    }
    assert!(known.iter().all(|note| note.what != "through"), "the program did not hang: {known:?}");
    Ok(known)
}
