//! Processes whose files are made to harm whoever reads their stacks.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
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
    eprintln!("SKIP: no C compiler");
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
    const NAMES: &[u8] = b"\0.eh_frame\0.eh_frame_hdr\0.shstrtab\0";
    let mut header = vec![0u8; 64];
    header[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\0");
    header[16..20].copy_from_slice(&[3, 0, 62, 0]); // ET_DYN, x86-64
    header[20] = 1;
    header[32..40].copy_from_slice(&64u64.to_le_bytes()); // the program header follows
    header[40..48].copy_from_slice(&256u64.to_le_bytes());
    header[52..54].copy_from_slice(&64u16.to_le_bytes());
    header[54..56].copy_from_slice(&56u16.to_le_bytes());
    header[56..58].copy_from_slice(&1u16.to_le_bytes());
    header[58..60].copy_from_slice(&64u16.to_le_bytes());
    header[60..62].copy_from_slice(&4u16.to_le_bytes());
    header[62..64].copy_from_slice(&3u16.to_le_bytes());
    header.extend([1u32, 5].map(u32::to_le_bytes).concat()); // PT_LOAD, readable and executable
    header.extend([0u64, 0, 0, bytes + 8192, bytes + 8192, 4096].map(u64::to_le_bytes).concat());
    header.resize(256, 0);
    let section = |name: u32, kind: u32, offset: u64, size: u64| {
        let mut section = [name, kind].map(u32::to_le_bytes).concat();
        section.extend([0, offset, offset, size].map(u64::to_le_bytes).concat());
        section.extend([0u32, 0].map(u32::to_le_bytes).concat());
        section.extend([8u64, 0].map(u64::to_le_bytes).concat());
        section
    };
    header.extend(section(0, 0, 0, 0));
    header.extend(section(1, 1, 4096, bytes));
    header.extend(section(11, 1, 4096 + bytes, 16));
    header.extend(section(25, 3, 1024, NAMES.len() as u64));
    header.resize(1024, 0);
    header.extend(NAMES);
    let mut file = File::create(path).unwrap();
    file.write_all(&header).unwrap();
    file.set_len(bytes + 8192).unwrap();
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
