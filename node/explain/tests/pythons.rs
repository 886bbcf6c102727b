//! Reads programs of every CPython on this machine, whose threads stay at known lines.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::process::Command;

use common::{Scenes, eventually, program, pythons};
use explain::stacks::python::LineTable;
use explain::stacks::python::lines::line_at;
use explain::stacks::{Frame, Limits, ProcessStacks, StackReader, ThreadStack, Trust};

fn place(frame: &Frame) -> (String, String, u32) {
    match frame {
        Frame::Python { function, file, line } => (function.clone(), file.clone(), line.unwrap_or(0)),
        other => panic!("not a Python frame: {other:?}"),
    }
}

fn thread(stacks: &ProcessStacks, tid: u32) -> Result<&ThreadStack, String> {
    stacks.threads.iter().find(|thread| thread.tid == tid).ok_or_else(|| format!("no thread {tid} in {stacks:#?}"))
}

/// By scene the marked lines of scenes.py, each as often as it is on the stack.
fn marked_lines() -> BTreeMap<String, Vec<u32>> {
    let source = std::fs::read_to_string(program("scenes.py")).unwrap();
    let mut lines: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (number, line) in (1..).zip(source.lines()) {
        for scene in line.split("# at ").skip(1) {
            lines.entry(scene.trim().to_owned()).or_default().push(number);
        }
    }
    lines.retain(|scene, _| source.contains(&format!("def {scene}(")));
    lines
}

/// Waits until each scene's thread sleeps at its marked lines, and no other line of the program is
/// on its stack.
fn all_at_their_lines(reader: &mut StackReader, pid: u32, threads: &BTreeMap<String, u32>) {
    let expected = marked_lines();
    assert!(expected.len() >= 9, "{expected:?}");
    eventually(|| {
        let stacks = reader.read(pid).map_err(|error| error.to_string())?;
        for (scene, tid) in threads.iter().filter(|(scene, _)| *scene != "busy") {
            let stack = thread(&stacks, *tid)?;
            let mut lines: Vec<u32> = stack
                .frames
                .iter()
                .map(place)
                .filter(|(_, file, _)| file.ends_with("scenes.py"))
                .map(|(.., line)| line)
                .collect();
            lines.sort_unstable();
            if lines != expected[scene] || stack.trust != Trust::Proven {
                return Err(format!("{scene}: lines {:?} expected, but {stack:#?}", expected[scene]));
            }
        }
        Ok(())
    });
}

#[test]
fn every_thread_is_at_its_line_and_as_cpython_itself_sees_it() {
    for python in pythons() {
        let mut command = Command::new(&python.path);
        command.arg(program("scenes.py"));
        let mut scenes = Scenes::start(command, &[]);
        let pid = scenes.child.id();
        let mut reader = StackReader::new(Limits::default());
        all_at_their_lines(&mut reader, pid, &scenes.threads);

        let own = scenes.own_view();
        let stacks = reader.read(pid).unwrap();
        assert_eq!(stacks.threads.len(), own.len(), "{python}");
        for (tid, own) in own.into_iter().filter(|(tid, _)| *tid != pid) {
            let seen: Vec<_> = thread(&stacks, tid).unwrap().frames.iter().rev().map(place).collect();
            assert_eq!(seen, own, "{python}");
        }
        let main = thread(&stacks, pid).unwrap();
        assert_eq!(place(&main.frames[0]).0, "<module>", "{python}");
        assert_eq!(place(&main.frames[1]).0, "main", "{python}");
        let free = if python.free_threaded { " (free-threaded)" } else { "" };
        assert!(stacks.runtime.starts_with(&format!("CPython 3.{}", python.minor)), "{python}: {}", stacks.runtime);
        assert!(stacks.runtime.ends_with(free), "{python}: {}", stacks.runtime);
        eprintln!("read {} threads of {python}", stacks.threads.len());
    }
}

#[test]
fn a_thread_that_never_sleeps_is_found_in_its_function() {
    for python in pythons() {
        let mut command = Command::new(&python.path);
        command.arg(program("scenes.py"));
        let scenes = Scenes::start(command, &["busy"]);
        let mut reader = StackReader::new(Limits::default());
        let tid = scenes.threads["busy"];
        let mut agreed = 0;
        eventually(|| {
            let stacks = reader.read(scenes.child.id()).map_err(|error| error.to_string())?;
            let stack = thread(&stacks, tid)?;
            for (at, frame) in stack.frames.iter().rev().enumerate() {
                let (function, file, line) = place(frame);
                let known = match &function[..] {
                    "busy" => (101..=103).contains(&line),
                    "<genexpr>" | "busy.<locals>.<genexpr>" => at == 0 && line == 103,
                    _ => file.ends_with("threading.py"),
                };
                assert!(known, "{python}: a function that does not run: {stack:#?}");
            }
            agreed += usize::from(stack.trust != Trust::Torn && stack.frames.len() >= 4);
            if agreed >= 20 { Ok(()) } else { Err(format!("{python}: {agreed} stacks agreed, last {stack:#?}")) }
        });
    }
}

#[test]
fn a_program_in_a_container_started_by_the_loader_is_read() {
    // Its own mount and pid namespace, its own root, the interpreter under a name without its
    // version, started through ld.so.
    let script = r#"set -e
        root=$1; mount -t tmpfs none $root; mkdir $root/usr $root/odd $root/proc
        mount --bind /usr $root/usr; for d in lib lib64 bin; do ln -s usr/$d $root/$d; done
        cp /usr/bin/python3 $root/odd/worker; strip $root/odd/worker 2>/dev/null || true; cp "$2" $root/odd/scenes.py
        exec chroot $root $(ls /lib64/ld-linux-x86-64.so.2 /lib/ld-linux-aarch64.so.1 2>/dev/null | head -1) /odd/worker /odd/scenes.py"#;
    let root = tempfile::tempdir().unwrap();
    let possible = Command::new("unshare").args(["--mount", "--pid", "--fork", "true"]).status();
    if !possible.is_ok_and(|status| status.success()) {
        eprintln!("skipped: namespaces cannot be made here");
        return;
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh"]);
    command.arg(root.path()).arg(program("scenes.py"));
    let scenes = Scenes::start(command, &[]);
    let pid = *explain::stacks::descendants(&[scenes.child.id()]).first().unwrap();
    let mut reader = StackReader::new(Limits::default());
    // The program has its threads' ids in its own namespace.
    let outside: BTreeMap<String, u32> = std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .flatten()
        .filter_map(|task| {
            let tid = task.file_name().to_str()?.to_owned();
            let status = std::fs::read_to_string(task.path().join("status")).ok()?;
            let own: u32 =
                status.lines().find_map(|l| l.strip_prefix("NSpid:"))?.split_whitespace().last()?.parse().ok()?;
            let scene = scenes.threads.iter().find(|(_, tid)| **tid == own)?.0.clone();
            Some((scene, tid.parse().ok()?))
        })
        .collect();
    assert_eq!(outside.len(), scenes.threads.len());
    assert_ne!(outside, scenes.threads);
    all_at_their_lines(&mut reader, pid, &outside);
}

#[test]
fn line_tables_are_decoded_as_cpython_does() {
    #[derive(serde::Deserialize)]
    struct Function {
        first: i32,
        table: String,
        runs: Vec<(u64, Option<u32>)>,
    }
    // RANKMESH_CODE_UNITS=2000000 takes the whole library.
    let wanted = std::env::var("RANKMESH_CODE_UNITS").unwrap_or_else(|_| "60000".into());
    for python in pythons() {
        let output = Command::new(&python.path).arg(program("lines.py")).arg(&wanted).output().unwrap();
        assert!(output.status.success(), "{python}: {}", String::from_utf8_lossy(&output.stderr));
        let format = match python.minor {
            ..=9 => LineTable::Lnotab,
            10 => LineTable::Pep626,
            _ => LineTable::Locations,
        };
        let mut units = 0;
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let function: Function = serde_json::from_str(line).unwrap();
            let table: Vec<u8> = (0..function.table.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&function.table[at..at + 2], 16).unwrap())
                .collect();
            let mut offset = 0;
            for (count, expected) in function.runs {
                for _ in 0..count {
                    let line = line_at(format, &table, function.first, offset);
                    assert_eq!(line, expected, "{python} at {offset} of {}", function.table);
                    offset += 2;
                    units += 1;
                }
            }
        }
        assert!(units > 10_000, "{python}: only {units} code units");
        eprintln!("{units} code units of {python} agree");
    }
}
