//! Processes whose files are made to harm whoever reads their stacks.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;
#[path = "../../../node-bpf/files/tests/elf/mod.rs"]
mod elf;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use common::{PATIENCE, program};
use explain::stacks::{Limits, ProcessStacks, StackReader};

const MIB: u64 = 1 << 20;

/// Ends its process when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program that maps files as code; none without a C compiler.
fn mapper(folder: &Path) -> Option<PathBuf> {
    let binary = folder.join("maps_files");
    let built = Command::new("cc").args(["-O0", "-o"]).arg(&binary).arg(program("maps_files.c")).status();
    if built.is_ok_and(|status| status.success()) {
        return Some(binary);
    }
    eprintln!("skipped: no C compiler");
    None
}

fn start(mapper: &Path, files: &[PathBuf]) -> Running {
    let mut child = Command::new(mapper).args(files).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "mapped\n");
    Running(child)
}

/// A sparse library with unwind tables of so many bytes, all zero, and an index of them.
fn library(path: &Path, bytes: u64) {
    const PROGBITS: u32 = 1;
    let section = |name, offset, size| elf::Section { name, kind: PROGBITS, offset, size, ..Default::default() };
    let sections = [section(".eh_frame", 4_096, bytes), section(".eh_frame_hdr", 4_096 + bytes, 16)];
    elf::sparse(path, bytes + 8_192, &sections);
}

fn status_mib(field: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_matches([':', ' ', '\t']).trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

fn native() -> StackReader {
    StackReader::new(Limits { native: true, ..Limits::default() })
}

fn notes(stacks: &ProcessStacks) -> String {
    stacks.threads.iter().filter_map(|thread| thread.note.clone()).collect::<Vec<_>>().join("\n")
}

#[cfg(target_arch = "x86_64")]
#[test]
fn unwind_tables_of_many_processes_and_a_changed_file_take_a_bounded_amount() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mapper) = mapper(folder.path()) else { return };
    let before = status_mib("VmRSS");
    let mut reader = native();
    let mut jobs = vec![];
    for job in 0..6 {
        let files: Vec<PathBuf> = (0..4).map(|n| folder.path().join(format!("{job}-{n}.so"))).collect();
        for file in &files {
            library(file, 32 * MIB);
        }
        jobs.push(start(&mapper, &files));
        assert!(!reader.read(jobs[job].0.id()).unwrap().threads.is_empty());
    }
    let peak = status_mib("VmHWM");
    assert!(peak - before < 300, "768 MiB of tables took {} MiB", peak - before);
    // Ended: what they had is there for others.
    jobs.clear();
    reader.keep_only(&[]);
    let file = folder.path().join("last.so");
    library(&file, 120 * MIB);
    let last = start(&mapper, std::slice::from_ref(&file));
    let stacks = reader.read(last.0.id()).unwrap();
    assert_eq!(notes(&stacks), "", "no room after all have ended");

    // The file is changed in place: it claims a thousand million sections, and is long enough.
    let changed = File::options().write(true).open(&file).unwrap();
    changed.set_len(70_000 * MIB).unwrap();
    changed.write_all_at(&[0, 0], 60).unwrap();
    changed.write_all_at(&1_000_000_000u64.to_le_bytes(), 256 + 32).unwrap();
    reader = native();
    assert!(!reader.read(last.0.id()).unwrap().threads.is_empty());
    let peak = status_mib("VmHWM");
    assert!(peak - before < 300, "a file that was changed took {} MiB", peak - before);

    // Tables that fill the room to the last pages: of the system's libraries none are left, and the
    // stack says why it ends.
    drop(last);
    reader.keep_only(&[]);
    let sizes = (0..15).map(|n| (64 * MIB) >> n);
    let files = [64 * MIB, 64 * MIB].into_iter().chain(sizes).enumerate().map(|(n, size)| {
        let file = folder.path().join(format!("all-{n}.so"));
        library(&file, size);
        file
    });
    let full = start(&mapper, &files.collect::<Vec<_>>());
    let said = notes(&reader.read(full.0.id()).unwrap());
    assert!(said.contains("no room for its unwind tables: those of its user's processes have 192 MiB"), "{said}");
}

/// As a program does that exchanges a library by rename, and as one does that wants to harm.
#[test]
fn a_fifo_in_place_of_a_mapped_file_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mapper) = mapper(folder.path()) else { return };
    let file = folder.path().join("lib.so");
    library(&file, 4096);
    let job = start(&mapper, std::slice::from_ref(&file));
    fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let (sender, read) = mpsc::channel();
    let pid = job.0.id();
    std::thread::spawn(move || {
        let stacks = [native().read(pid), StackReader::new(Limits::default()).read(pid)];
        let _ = sender.send(stacks.map(|stacks| stacks.unwrap().threads.len())); // who waited has given up
    });
    assert_eq!(read.recv_timeout(PATIENCE).expect("who reads its stacks waits for the FIFO"), [1, 1]);
}
