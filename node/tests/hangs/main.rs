//! Live hangs: small programs in C, Fortran and Python that hang in known ways, on Open MPI and
//! MPICH, over two agents with half of the ranks each, by eBPF and by the shim. Every report names
//! the right ranks, calls and lines, and nothing false.
//!
//! The truth is beside the programs (`scenarios/workloads/hangs.*`). `make check NAME=hangs` runs every
//! mode of every language on both MPIs both ways (`RANKMESH_HANGS` picks those whose names contain
//! it).

#[path = "../common/mod.rs"]
mod common;
mod jobs;
mod judge;
mod ras;
mod truth;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use common::{can_capture, stderr, stdout};
use jobs::{AGENTS, Hosts, Mpi, Seen};
use judge::{Judged, judge};
use truth::{Language, table, truth};

type Case = (Language, Mpi, &'static str);

/// Jobs at a time: each has to start, and then to stand still for a while. (Of four on two cores each took a minute.)
const AT_ONCE: usize = 2;
/// So often in a row a report must be right.
const IN_A_ROW: usize = 2;

/// Hangs seen by eBPF in `make test`.
const BY_EBPF: &[Case] = &[
    (Language::C, Mpi::Open, "order"),
    (Language::C, Mpi::Mpich, "mixed"),
    (Language::C, Mpi::Open, "gather-barrier"),
    (Language::C, Mpi::Mpich, "first-barrier"),
    (Language::C, Mpi::Open, "first-gather"),
    (Language::C, Mpi::Mpich, "first-allgather"),
    (Language::C, Mpi::Open, "finalize"),
    (Language::C, Mpi::Mpich, "split"),
    (Language::C, Mpi::Open, "cart"),
    (Language::C, Mpi::Mpich, "create"),
    (Language::C, Mpi::Open, "rings"),
    (Language::C, Mpi::Open, "used-rings"),
    (Language::C, Mpi::Mpich, "two-comms"),
    (Language::C, Mpi::Open, "wrong-tag"),
    (Language::C, Mpi::Mpich, "ssend-ring"),
    (Language::C, Mpi::Open, "exit"),
    (Language::C, Mpi::Mpich, "stopped"),
    (Language::C, Mpi::Open, "persistent"),
    (Language::C, Mpi::Mpich, "persistent"),
    (Language::C, Mpi::Open, "self-send"),
    (Language::C, Mpi::Open, "file-write"),
    (Language::C, Mpi::Mpich, "file-open"),
    (Language::Fortran, Mpi::Open, "one-more"),
    (Language::Fortran, Mpi::Mpich, "split"),
    (Language::Fortran, Mpi::Mpich, "busy"),
    (Language::Python, Mpi::Open, "ahead"),
    (Language::Python, Mpi::Open, "busy"),
    (Language::Python, Mpi::Open, "mixed"),
    (Language::Python, Mpi::Open, "used-rings"),
    (Language::Python, Mpi::Open, "nobody-sends"),
    (Language::Python, Mpi::Open, "irecv-circle"),
    (Language::Python, Mpi::Open, "waitall"),
    (Language::Python, Mpi::Open, "any-source"),
    (Language::Python, Mpi::Open, "wrong-part"),
    (Language::Nccl, Mpi::Open, "first-gather"),
    (Language::Nccl, Mpi::Open, "nobody-sends"),
    (Language::Nccl, Mpi::Open, "split"),
];

/// Hangs seen by the shim.
const BY_SHIM: &[Case] = &[
    (Language::C, Mpi::Open, "first-barrier"),
    (Language::C, Mpi::Mpich, "order"),
    (Language::C, Mpi::Open, "create"),
    (Language::C, Mpi::Mpich, "rings"),
    (Language::C, Mpi::Open, "split"),
    (Language::C, Mpi::Mpich, "persistent"),
    (Language::C, Mpi::Open, "file-open"),
    (Language::Fortran, Mpi::Mpich, "wrong-tag"),
    (Language::Python, Mpi::Open, "pipe"),
];

/// Since when the stores are asked: by turns as a length of time, and as a point in time, as `--since` takes both.
fn since(turn: usize) -> String {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    if turn.is_multiple_of(2) { "30s".to_owned() } else { (now_s - 30).to_string() }
}

/// One report as JSON and as text.
fn report(hosts: &Hosts, job: &str, form: &[&str]) -> Result<(Value, String), String> {
    let ask = |more: &[&str]| {
        let flags = [&["--job", job, "--timeout", "60s"], form, more].concat();
        let output = hosts.lab.ask(AGENTS[0], "stragglers", &flags);
        if output.status.success() { Ok(stdout(&output)) } else { Err(stderr(&output)) }
    };
    let (text, json) = (ask(&[])?, ask(&["--format", "json"])?);
    let answer: Value = serde_json::from_str(&json).map_err(|error| format!("{error}: {json}"))?;
    Ok((answer["verdict"].clone(), text))
}

fn unfolded(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs one hang until its reports are right; an error says what is wrong, with the report.
fn hang(hosts: &Hosts, (language, mpi, mode): Case) -> Result<(), String> {
    let name = format!("{}-{}-{mode}", language.name(), mpi.suffix());
    let truth = truth(language, mode);
    let job = hosts.start(&name, language, mpi, &truth);
    // (On a busy machine its ranks take long to come to where they hang.)
    let until = Instant::now() + 4 * common::PATIENCE;
    let (mut right, mut last, mut turn) = ([0; 2], "nothing was asked".to_owned(), 0);
    let (began, mut stands_still) = (Instant::now(), None);
    while right.iter().any(|right| *right < IN_A_ROW) {
        if Instant::now() >= until {
            return Err(format!("{name}: {last}"));
        }
        std::thread::sleep(std::time::Duration::from_millis(500));
        let notes = match truth::notes(&job.directory, truth.ranks) {
            Ok(notes) => notes,
            Err(so_far) => {
                last = format!("it does not stand still: {so_far}\n{}", job.log());
                continue;
            }
        };
        stands_still.get_or_insert_with(|| {
            job.stands_still();
            began.elapsed()
        });
        turn += 1;
        let since = since(turn);
        // The standing verdict, and the stores.
        let forms: [&[&str]; 2] = [&[], &["--since", &since]];
        for (form, right) in forms.iter().zip(&mut right) {
            let (verdict, text) = match report(hosts, &name, form) {
                Ok(report) => report,
                Err(why) => {
                    last = why;
                    continue;
                }
            };
            let places: Vec<String> = notes.iter().map(|note| format!("{} {}", note.what, note.line)).collect();
            let shown = |what: String| format!("{what}\nin truth: {:?}, {places:?}\n{text}\n{verdict}", truth.why);
            match judge(hosts.seen, &truth, &notes, &verdict, &text) {
                // Words may be on two lines.
                Judged::Right if language == Language::Nccl && !unfolded(&text).contains(ras::SAID) => {
                    (*right, last) = (0, shown("what NCCL itself says is not said".to_owned()));
                }
                Judged::Right => *right += 1,
                Judged::Lacks(what) => (*right, last) = (0, shown(format!("not said ({form:?}): {what}"))),
                Judged::False(what) => return Err(format!("{name}: {}", shown(format!("false ({form:?}): {what}")))),
            }
        }
    }
    let all = began.elapsed();
    eprintln!("right: {name}: stood still after {:.1?}, told after {all:.1?}", stands_still.unwrap_or_default());
    Ok(())
}

/// Runs them, some at a time.
fn run(seen: Seen, cases: &[Case]) {
    let hosts = Hosts::new(seen);
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match hang(&hosts, *case) {
                        Ok(()) => {}
                        Err(why) => {
                            eprintln!("wrong: {case:?}, {seen:?}");
                            failed.lock().expect("no panic").push(why);
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no panic");
    assert!(failed.is_empty(), "{} of {} hangs:\n\n{}", failed.len(), cases.len(), failed.join("\n\n"));
}

/// One after the other: each has agents and jobs of its own.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn hangs_are_told_as_they_are_by_ebpf() {
    if can_capture("hangs_are_told_as_they_are_by_ebpf") {
        let _alone = ALONE.lock();
        run(Seen::ByEbpf, BY_EBPF);
    }
}

#[test]
fn hangs_are_told_as_they_are_by_the_shim() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: hangs_are_told_as_they_are_by_the_shim: needs root, to be another user");
        return;
    }
    let _alone = ALONE.lock();
    run(Seen::ByShim, BY_SHIM);
}

/// `make check NAME=hangs`.
#[test]
#[ignore = "every mode of every program, both MPIs, both ways: half an hour"]
fn every_hang_is_told_as_it_is() {
    let wanted = std::env::var("RANKMESH_HANGS").unwrap_or_default();
    let mut cases = Vec::new();
    for language in [Language::C, Language::Fortran, Language::Python] {
        for truth in table(language.source()) {
            for mpi in [Mpi::Open, Mpi::Mpich] {
                let name = format!("{}-{}-{}", language.name(), mpi.suffix(), truth.mode);
                // Debian's mpi4py is Open MPI's.
                let exists = language != Language::Python || mpi == Mpi::Open;
                if exists && name.contains(&wanted) {
                    cases.push((language, mpi, &*truth.mode.clone().leak()));
                }
            }
        }
    }
    assert!(!cases.is_empty(), "no name contains {wanted}");
    let _alone = ALONE.lock();
    for seen in [Seen::ByEbpf, Seen::ByShim] {
        let is_seen = |(language, _, mode): &&Case| seen == Seen::ByEbpf || !truth(*language, mode).by_ebpf_only;
        if seen == Seen::ByShim || can_capture("every_hang_is_told_as_it_is") {
            run(seen, &cases.iter().filter(is_seen).copied().collect::<Vec<Case>>());
        }
    }
}
