//! Files that are made to harm whoever reads them, read by real confined processes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod elf;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use files::{Answer, Files, Outcome, Question, Refusal};

/// Long enough for a busy two-core machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Users that exist in name only.
const MALLORY: u32 = 65_534;
const ALICE: u32 = 1_000;

fn exports(prefix: &str) -> Question {
    Question::Exports { prefixes: vec![prefix.to_owned()] }
}

fn ask(files: &Files, user: u32, path: &Path, question: Question) -> Outcome {
    files.answer(user, &File::open(path).unwrap(), question, Instant::now() + PATIENCE)
}

/// Of /proc/PID/status.
fn status(pid: u32, field: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default().trim_start_matches(':').trim().to_owned()
}

/// The processes that read for this test program.
fn readers() -> Vec<u32> {
    let parents = |pid: &u32| status(*pid, "PPid") == std::process::id().to_string() && status(*pid, "Seccomp") == "2";
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(parents).filter(|pid| status(*pid, "Name") == "rankmesh-files").collect()
}

/// An ELF file whose one section, `.dynsym`, is claimed to be so large; the file is sparse.
fn sparse(path: &Path, about: u64) {
    const DYNSYM: u32 = 11;
    let size = about / 24 * 24; // whole symbols
    // (Their names are those of the sections, the second one.)
    let symbols = elf::Section { name: ".dynsym", kind: DYNSYM, offset: 4_096, size, link: 2, entry: 24 };
    elf::sparse(path, size + 8_192, &[symbols]);
}

/// A copy of this program, with a byte behind its end that makes it a file of its own.
fn copy(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
    path
}

#[test]
fn who_reads_has_no_rights_left() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::new(|| {});
    let answer = ask(&files, ALICE, &copy(dir.path(), "own"), exports("no such name"));
    assert!(matches!(&*answer.unwrap(), Answer::Exports(elf) if elf.symbols.is_empty() && !elf.segments.is_empty()));
    let readers = readers();
    assert!(!readers.is_empty());
    for pid in readers {
        for (field, value) in [
            ("CapEff", "0000000000000000"),
            ("CapPrm", "0000000000000000"),
            ("CapInh", "0000000000000000"),
            ("CapAmb", "0000000000000000"),
            ("NoNewPrivs", "1"),
            ("Seccomp", "2"),
        ] {
            assert_eq!(status(pid, field), value, "{field}");
        }
        let open: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|fd| fd.file_name().to_string_lossy().into_owned())
            .collect();
        assert!(open.iter().all(|fd| ["0", "1", "2"].contains(&fd.as_str())), "{open:?}");
        assert!(fs::read(format!("/proc/{pid}/environ")).unwrap_or_default().is_empty());
    }
}

#[test]
fn a_sparse_file_of_gigabytes_is_refused_and_takes_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::new(|| {});
    let before = peak_mib(std::process::id());
    for (name, claimed) in [("two", 2u64 << 30), ("sixteen", 16 << 30), ("largest", 200 << 20)] {
        let path = dir.path().join(name);
        sparse(&path, claimed);
        let matching = Question::Matching { name: "ns::Engine::step".to_owned() };
        let refused = ask(&files, MALLORY, &path, matching).unwrap_err();
        let expected = if name == "largest" { "it has no function ns::Engine::step" } else { ".dynsym claims" };
        assert!(refused.to_string().contains(expected), "{refused}");
        let outcome = ask(&files, MALLORY, &path, exports("nccl"));
        match outcome {
            Err(Refusal::Wrong(reason)) => assert!(reason.contains(".dynsym claims"), "{reason}"),
            // what a library may have, of zeros
            Ok(answer) => {
                assert!(matches!(&*answer, Answer::Exports(elf) if elf.symbols.is_empty()) && name == "largest")
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    assert!(peak_mib(std::process::id()) - before < 64, "the process that asked grew");
    let anonymous = |pid: &u32| status(*pid, "RssAnon").trim_end_matches(" kB").parse::<u64>().unwrap_or(0) >> 10;
    let readers = readers();
    assert!(readers.iter().map(anonymous).all(|mib| mib < 64), "one that reads grew");
}

fn peak_mib(pid: u32) -> u64 {
    status(pid, "VmHWM").trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

/// Ends a thread that goes on until then.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_file_that_is_cut_short_while_it_is_read_ends_its_reader_alone() {
    const CLAIMED: u64 = 8 << 20;
    let dir = tempfile::tempdir().unwrap();
    let files = Files::new(|| {});
    let path = dir.path().join("short");
    sparse(&path, CLAIMED);
    let next = copy(dir.path(), "next");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = File::options().write(true).open(&path).unwrap();
            while !stop.load(Ordering::Relaxed) {
                file.set_len(4_096).unwrap();
                file.set_len(CLAIMED + 8_192).unwrap();
            }
        });
        let _stop = Stop(&stop);
        for n in 0..10 {
            // whatever comes of it: this program lives, and the next file is answered
            let _ = ask(&files, MALLORY, &path, exports("nccl"));
            let answer = ask(&files, ALICE, &next, Question::Place { file_offset: n });
            assert!(answer.is_ok(), "{answer:?}");
        }
    });
}

#[test]
fn who_has_files_without_end_waits_for_them_and_nobody_else_does() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::new(|| {});
    let (hostile, innocent) = (dir.path().join("hostile"), copy(dir.path(), "innocent"));
    // as many symbols as a library may have: each question reads them all
    sparse(&hostile, 200 << 20);
    let opened = File::open(&hostile).unwrap();
    // each question is another one, so that none is answered from what is kept
    let tickets: Vec<_> = (0..400).map(|n| files.ask(MALLORY, &opened, exports(&format!("nccl{n}")))).collect();
    let busy = tickets.iter().filter(|ticket| matches!(ticket.outcome(), Some(Err(Refusal::Busy)))).count();
    assert!(busy >= 100, "{busy} of 400 were turned away");
    assert!(ask(&files, ALICE, &innocent, Question::NcclBuild).is_ok());
    let open = tickets.iter().filter(|ticket| ticket.outcome().is_none()).count();
    assert!(open > 0, "the others were not waited for: {open} are open");
}

#[test]
fn an_answer_is_of_a_content_not_of_a_name_or_a_build_id() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::new(|| {});
    let path = dir.path().join("lib");
    fs::write(&path, "no library").unwrap();
    assert!(matches!(ask(&files, ALICE, &path, Question::NcclBuild), Err(Refusal::Wrong(_))));
    let mut file = File::options().write(true).truncate(true).open(&path).unwrap();
    file.write_all(&fs::read(std::env::current_exe().unwrap()).unwrap()).unwrap();
    drop(file);
    assert!(ask(&files, ALICE, &path, Question::NcclBuild).is_ok());
}
