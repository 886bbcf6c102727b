//! Live: a training loop of Python ranks on real Open MPI, one of which is late for a known cause;
//! what `rankmesh explain` answers about it meanwhile. Needs root and mpi4py.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::can_capture;
use common::pair::{AGENTS, Held, Holds, Pair, RANKS, busy};
use serde_json::Value;

/// In which an explanation must have come.
const PATIENCE: Duration = Duration::from_secs(45);

/// A cause of lateness.
struct Injected {
    name: &'static str,
    /// What the program does by itself; none: nothing.
    does: Option<&'static str>,
    holds: &'static [Holds],
    /// Kinds of causes that are right: each a name that the kernel may give to this.
    kinds: &'static [&'static str],
    /// A part of the text of the first link of the worst step.
    says: &'static str,
    /// The mark of the line that the late rank is in.
    line: Option<&'static str>,
}

const INJECTED: [Injected; 11] = [
    Injected {
        name: "hog",
        does: None,
        holds: &[Holds::Hog("backup")],
        kinds: &["cpu_stolen"],
        says: "backup (pid ",
        line: None,
    },
    Injected {
        name: "quota",
        does: None,
        holds: &[Holds::Quota],
        kinds: &["cpu_throttled"],
        says: "CPU quota",
        line: None,
    },
    Injected { name: "stop", does: None, holds: &[Holds::Stop], kinds: &["stopped"], says: "was stopped", line: None },
    Injected {
        name: "sleep",
        does: Some("sleep"),
        holds: &[],
        kinds: &["sleep"],
        says: "slept by itself",
        line: Some("# SLEEP"),
    },
    Injected {
        name: "read",
        does: Some("read"),
        holds: &[Holds::Reads],
        kinds: &["block_io"],
        says: "waited for ",
        line: Some("# READ"),
    },
    Injected {
        name: "fsync",
        does: Some("fsync"),
        holds: &[Holds::Writes],
        kinds: &["block_io"],
        says: "waited for ",
        line: Some("# FSYNC"),
    },
    Injected {
        name: "dirty",
        does: Some("dirty"),
        holds: &[Holds::Memory(32), Holds::Writes],
        kinds: &["reclaim", "page_fault", "block_io"],
        says: "",
        line: Some("# MEMORY"),
    },
    Injected {
        name: "swap",
        does: Some("swap"),
        holds: &[Holds::Memory(24)],
        kinds: &["page_fault", "reclaim", "block_io"],
        says: "",
        line: Some("# MEMORY"),
    },
    Injected {
        name: "lock",
        does: Some("lock"),
        holds: &[],
        kinds: &["lock"],
        says: "lock or another thread",
        line: Some("# LOCK"),
    },
    Injected {
        name: "fault",
        does: Some("fault"),
        holds: &[Holds::Reads],
        kinds: &["page_fault", "block_io"],
        says: "",
        line: Some("# FAULT"),
    },
    Injected {
        name: "worker",
        does: Some("worker"),
        holds: &[],
        kinds: &["file_wait"],
        says: "a pipe, a local socket, a file or a child",
        line: Some("# WORKER"),
    },
];

/// Space to swap to, where this machine lets it be.
struct Swap(PathBuf);

impl Swap {
    fn on(dir: &Path) -> Result<Self, String> {
        let swap = Self(dir.join("swap"));
        let path = swap.0.display().to_string();
        let script = format!(
            "dd if=/dev/zero of={path} bs=1M count=128 status=none && chmod 600 {path} && mkswap -q {path} && swapon {path}"
        );
        let output = Command::new("sh").args(["-c", &script]).output().map_err(|error| error.to_string())?;
        if output.status.success() { Ok(swap) } else { Err(common::stderr(&output)) }
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(&self.0).status();
        let _ = std::fs::remove_file(&self.0);
    }
}

fn program() -> PathBuf {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/workloads/train.py");
    program.canonicalize().expect("the program is there")
}

fn line_of(mark: &str) -> String {
    let text = std::fs::read_to_string(program()).expect("the program");
    let line = text.lines().position(|line| line.ends_with(mark)).expect("a marked line");
    format!("train.py:{} ", line + 1)
}

enum Outcome {
    /// The right link, whether the line is right (none: not asked for), and when.
    Right(Option<bool>, Duration),
    Wrong(String),
    Missed(String),
    Skipped(String),
}

/// Whether an explanation is the right one; the error has the wrong parts.
fn judged(found: &Value, rank: usize, injected: &Injected) -> Result<bool, String> {
    let kinds: Vec<&str> = found["kinds"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let link = &found["examples"][0]["links"][0];
    let text = link["what"].as_str().unwrap_or_default();
    if found["verdict"] != "rank" || found["place"]["rank"] != rank {
        return Err(format!("{} {}", found["verdict"], found["what"]));
    }
    let is_kind = kinds.first().is_some_and(|kind| injected.kinds.contains(kind));
    if is_kind && link["evidence"] != "collectives" && text.contains(injected.says) {
        return Ok(true);
    }
    Err(format!("{kinds:?} {link}"))
}

/// Makes a rank late and looks until it is explained; then once more for the line. An explanation
/// of another rank, or a link of another cause, is wrong, unless this machine is busy: then it may
/// be true.
fn inject(pair: &mut Pair, rank: usize, injected: &Injected) -> Outcome {
    let dir = pair.dir();
    let swap = match injected.name {
        "swap" => Some(Swap::on(&dir)),
        _ => None,
    };
    if let Some(Err(why)) = &swap {
        return Outcome::Skipped(why.clone());
    }
    // Pages that an earlier round left in the page cache are charged to its cgroup, not to the one
    // with the limit: nothing would hold the rank.
    let _ = std::fs::remove_file(dir.join(format!("map.{rank}")));
    if ["read", "fault"].contains(&injected.name) {
        std::fs::write(dir.join(format!("data.{rank}")), vec![7_u8; 16 << 20]).expect("a file");
        nix::unistd::sync();
    }
    pair.start(&format!("/usr/bin/python3 {} {}", program().display(), dir.display()));
    if let Err(why) = becomes_calm(pair) {
        pair.stop();
        return Outcome::Skipped(why);
    }
    let held = match Held::hold(pair, rank, injected.holds) {
        Ok(held) => held,
        Err(why) => return Outcome::Skipped(why),
    };
    let cause = dir.join(format!("cause.{rank}"));
    if let Some(does) = injected.does {
        std::fs::write(dir.join("cause.new"), does).expect("written");
        std::fs::rename(dir.join("cause.new"), &cause).expect("renamed");
    }
    let outcome = look(pair, rank, injected);
    let _ = std::fs::remove_file(cause);
    pair.stop();
    drop(held);
    outcome
}

/// Waits until both ranks are compared and nobody is named. Where a rank is held up before anything
/// is injected, other work takes its core: who does is the error.
fn becomes_calm(pair: &Pair) -> Result<(), String> {
    let until = Instant::now() + common::PATIENCE;
    let mut held = false;
    loop {
        let answer = pair.verdict();
        let compared = answer.as_ref().is_ok_and(|answer| {
            let ranks = &answer["per_comm"][0]["ranks"];
            let both = ranks.as_array().map_or(0, Vec::len) == RANKS;
            both && ranks[0]["pid"].as_i64() == pair.pid(0).map(i64::from)
        });
        let kind = answer.as_ref().ok().and_then(|answer| answer["verdict"]["kind"].as_str());
        if compared && (kind == Some("none") || busy().is_some()) {
            return Ok(());
        }
        held |= compared && kind == Some("rank");
        if Instant::now() >= until {
            assert!(held, "both ranks are compared: not within {:?}; last: {answer:?}", common::PATIENCE);
            return Err(format!(
                "before anything was injected: {}",
                answer.map_or_else(|why| why, |a| a["cause"].to_string())
            ));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn look(pair: &Pair, rank: usize, injected: &Injected) -> Outcome {
    let began = Instant::now();
    let (mut last, mut wrong, mut right) = (String::new(), None, None);
    while began.elapsed() < PATIENCE {
        match pair.ask("explain", &["--timeout", "20s"]) {
            Ok(found) => match judged(&found, rank, injected) {
                Ok(_) => {
                    if right.is_none() {
                        let page = pair.lab.ask(AGENTS[0], "explain", &["--timeout", "20s", "--gpu-hour", "2.49EUR"]);
                        eprintln!("{}", common::stdout(&page));
                    }
                    let line = found["place"]["line"].as_str();
                    let marked = injected.line.map(line_of);
                    let right_line = marked.map(|marked| line.is_some_and(|line| line.contains(&marked)));
                    last = format!("{line:?} {}", found["not_visible"]);
                    let first = right.get_or_insert(began.elapsed());
                    if right_line != Some(false) || began.elapsed() > *first + Duration::from_secs(10) {
                        if right_line == Some(false) {
                            eprintln!("{}: line: {last}", injected.name);
                        }
                        return Outcome::Right(right_line, *first);
                    }
                }
                Err(other) => {
                    let names = found["verdict"] == "rank"
                        && (found["place"]["rank"] != rank
                            || found["kinds"].as_array().is_some_and(|kinds| !kinds.is_empty()));
                    last = format!("{other} {}", found["cause"]);
                    // While the cause begins, the explanation may still be about the time before
                    // it.
                    if names && began.elapsed() > Duration::from_secs(10) {
                        wrong = wrong.or_else(|| Some(last.clone()));
                    }
                }
            },
            Err(why) => last = why,
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    match (busy(), wrong) {
        (Some(why), _) => Outcome::Skipped(format!("{why}: {last}")),
        (None, Some(wrong)) => Outcome::Wrong(wrong),
        (None, None) => Outcome::Missed(last),
    }
}

fn can_run(test: &str) -> bool {
    let mut python = Command::new("/usr/bin/python3");
    let there = python.args(["-c", "import mpi4py"]).status().is_ok_and(|status| status.success());
    if !there {
        eprintln!("skipped: {test}: mpi4py is not installed (scripts/deps.sh --test)");
    }
    there && can_capture(test)
}

#[test]
fn a_late_worker_of_a_rank_is_explained_with_its_line() {
    const TEST: &str = "a_late_worker_of_a_rank_is_explained_with_its_line";
    if !can_run(TEST) {
        return;
    }
    let worker = INJECTED.iter().find(|injected| injected.name == "worker").expect("it is one");
    match inject(&mut Pair::new("worker"), 1, worker) {
        Outcome::Right(line, _) => assert_eq!(line, Some(true)),
        Outcome::Skipped(why) => eprintln!("skipped: {TEST}: {why}"),
        Outcome::Wrong(report) | Outcome::Missed(report) => panic!("{report}"),
    }
}

/// The long form. `EXPLAIN_CAUSE` chooses one, `EXPLAIN_ROUNDS` how often each.
#[test]
#[ignore = "half an hour: make bench NAME=explain"]
fn every_cause_is_explained() {
    if !can_run("every_cause_is_explained") {
        return;
    }
    let wanted = std::env::var("EXPLAIN_CAUSE").ok();
    let rounds: usize = std::env::var("EXPLAIN_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(5);
    let (mut right, mut wrong, mut missed, mut lines, mut with_line, mut waited) = (0, 0, 0, 0, 0, 0.0);
    let mut pair = Pair::new("explain");
    for round in 0..rounds {
        for (at, injected) in INJECTED.iter().enumerate() {
            if wanted.as_ref().is_some_and(|wanted| !wanted.split(',').any(|name| name == injected.name)) {
                continue;
            }
            let rank = (round + at) % RANKS;
            let outcome = inject(&mut pair, rank, injected);
            print!("round {round} {} rank {rank}: ", injected.name);
            match outcome {
                Outcome::Right(line, after) => {
                    println!("right after {:.1} s, line {line:?}", after.as_secs_f64());
                    (right, waited) = (right + 1, waited + after.as_secs_f64());
                    with_line += usize::from(line.is_some());
                    lines += usize::from(line == Some(true));
                }
                Outcome::Wrong(report) => {
                    println!("WRONG: {report}");
                    wrong += 1;
                }
                Outcome::Missed(report) => {
                    println!("missed: {report}");
                    missed += 1;
                }
                Outcome::Skipped(why) => println!("skipped: {why}"),
            }
        }
    }
    let of = right + wrong + missed;
    let percent = |part: usize, of: usize| 100.0 * part as f64 / of.max(1) as f64;
    println!("figure explain_right_link {:.1} % aim >= 90", percent(right, of));
    println!("figure explain_wrong_chain {wrong} runs aim <= 0");
    println!("figure explain_runs {of} runs aim >= 55");
    println!("figure explain_right_line {:.1} % of {with_line}", percent(lines, with_line));
    println!("figure explain_time {:.1} s", waited / right.max(1) as f64);
}
