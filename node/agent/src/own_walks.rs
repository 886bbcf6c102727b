//! Loads the eBPF program that makes Python threads of this host walk their own frames while they
//! run, and copies the stacks of other threads, where the kernel permits it: `node_bpf` does it for `explain`, which does not depend on it.

use std::time::Duration;

use explain::stacks::{OwnFrame, OwnStack, OwnThread, OwnWalk, OwnWalks};
use node_bpf::{PythonThread, PythonWalks, StackCopy, ThreadWalk};

/// Loaded when it is first needed.
#[derive(Debug, Default)]
pub(super) enum Walks {
    #[default]
    New,
    Loaded(Box<PythonWalks>),
    /// Why it cannot be.
    Not(String),
}

impl Walks {
    /// Loads the program where it is not.
    pub(super) fn load(&mut self) {
        if let Walks::New = self {
            *self = match PythonWalks::load() {
                Ok(walks) => Walks::Loaded(Box::new(walks)),
                Err(error) => Walks::Not(error.to_string()),
            };
        }
    }
}

impl Walks {
    fn loaded(&mut self) -> Result<&mut PythonWalks, String> {
        self.load();
        match self {
            Walks::Loaded(walks) => Ok(walks),
            Walks::New => Err("not loaded".to_owned()),
            Walks::Not(why) => Err(why.clone()),
        }
    }
}

/// Why a thread cannot be asked.
fn refused(error: std::io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            format!("the kernel gives this agent no clock of a thread ({error}; sysctl kernel.perf_event_paranoid=2)")
        }
        _ => error.to_string(),
    }
}

impl OwnWalks for Walks {
    fn ask(&mut self, thread: &OwnThread) -> Result<(), String> {
        let OwnThread { tid, state, frame_at, inner_at, code_at, previous_at, instruction_at, .. } = *thread;
        let OwnThread { instruction_bytes, owner_at, tlbc_at, .. } = *thread;
        let asked = PythonThread {
            tid,
            state,
            frame_at,
            inner_at,
            code_at,
            previous_at,
            instruction_at,
            instruction_bytes,
            owner_at,
            tlbc_at,
        };
        self.loaded()?.ask(&asked).map_err(refused)
    }

    fn ask_stack(&mut self, tid: u32) -> Result<(), String> {
        self.loaded()?.ask_stack(tid).map_err(refused)
    }

    fn take(&mut self, patience: Duration) -> Vec<OwnWalk> {
        let Walks::Loaded(walks) = self else { return Vec::new() };
        let frame = |frame: &node_bpf::PythonFrame| OwnFrame {
            address: frame.address,
            code: frame.code,
            instruction: frame.instruction,
            tlbc: frame.tlbc,
            owner: frame.owner,
        };
        let taken = walks.take(patience).into_iter();
        let own = taken.map(|walk| match walk {
            ThreadWalk::Frames(walk) => OwnWalk {
                tid: walk.tid,
                frames: walk.frames.iter().map(frame).collect(),
                complete: walk.complete,
                stack: None,
            },
            ThreadWalk::Stack(StackCopy { tid, pc, sp, fp, bytes }) => {
                let stack = Some(OwnStack { pc, sp, fp, bytes });
                OwnWalk { tid, frames: Vec::new(), complete: false, stack }
            }
        });
        own.collect()
    }

    fn end(&mut self) {
        if let Walks::Loaded(walks) = self {
            walks.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command};
    use std::time::Instant;

    use explain::stacks::{Frame, Plan, Sampler};

    use super::*;

    /// Spends 70 % of its time in one line and 30 % in another, by its own clock, and calls a
    /// function so often that no walk from outside would be consistent.
    const PROGRAM: &str = "\
import time
def work(share):
    end = time.thread_time() + share
    while time.thread_time() < end:
        list(map(len, ('a', 'bc', 'def')))

def seventy():
    work(0.0007)

def thirty():
    work(0.0003)

while True:
    seventy()
    thirty()
";

    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Debian's, and those of pyenv from 3.9 on and of RANKMESH_PYTHONS (`a:b`) where they are.
    fn pythons() -> Vec<PathBuf> {
        let newer = std::env::var_os("RANKMESH_PYTHONS").unwrap_or_default();
        let newer: Vec<PathBuf> = std::env::split_paths(&newer).filter(|path| path.exists()).collect();
        let home = std::env::var_os("HOME").unwrap_or_default();
        let versions = std::fs::read_dir(Path::new(&home).join(".pyenv/versions")).into_iter().flatten().flatten();
        let minor =
            |path: &Path| path.file_name()?.to_str()?.strip_prefix("3.")?.split('.').next()?.parse::<u32>().ok();
        let known = versions.map(|version| version.path()).filter(|path| minor(path).is_some_and(|minor| minor >= 9));
        std::iter::once("/usr/bin/python3".into())
            .chain(known.map(|path| path.join("bin/python3")))
            .chain(newer)
            .collect()
    }

    fn lines_of(frames: &[Frame]) -> Vec<(String, u32)> {
        let line = |frame: &Frame| match frame {
            Frame::Python { function, line, .. } => Some((function.clone(), (*line)?)),
            _ => None,
        };
        frames.iter().filter_map(line).collect()
    }

    /// The shares of the two functions, the number of samples, of torn ones, and of those whose
    /// lines are not of the program's.
    fn sampled(pid: u32, own: Option<&mut dyn OwnWalks>) -> (f64, u32, u32, u32) {
        let plan = Plan { samples: 200, every: Duration::from_millis(7), cpu_budget: Duration::from_secs(5) };
        let (profiles, why) = Sampler::default().profile_with(&[pid], &plan, own, || false);
        assert_eq!(why, None);
        let thread = profiles[0].threads.first().expect("a thread");
        let mut by: BTreeMap<String, u32> = BTreeMap::new();
        let mut wrong = 0;
        for stack in thread.stacks.iter().filter(|stack| !stack.inner_missing) {
            let lines = lines_of(&stack.frames);
            let called = |(function, line): &(String, u32)| match function.as_str() {
                "<module>" => (13..=15).contains(line),
                "seventy" => *line == 8 || *line == 7,
                "thirty" => *line == 11 || *line == 10,
                "work" => (2..=5).contains(line),
                _ => false,
            };
            let follows = lines.first().is_some_and(|(function, line)| {
                let of = |name: &str| lines.get(1).is_none_or(|(function, _)| function == name);
                function == "<module>" && (*line != 14 || of("seventy")) && (*line != 15 || of("thirty"))
            });
            if !lines.iter().all(called) || !follows {
                eprintln!("{lines:?}");
                wrong += stack.count;
            }
            let which = lines.get(1).map_or("<module>", |(function, _)| function.as_str());
            *by.entry(which.to_owned()).or_default() += stack.count;
        }
        let (seventy, thirty) = (by.get("seventy").copied().unwrap_or(0), by.get("thirty").copied().unwrap_or(0));
        eprintln!("{by:?}, {} torn of {}", thread.torn, thread.samples);
        (f64::from(seventy) / f64::from((seventy + thirty).max(1)), thread.samples, thread.torn, wrong)
    }

    #[test]
    fn shares_of_running_lines_are_right_and_no_line_is_wrong() {
        let mut walks = Walks::New;
        walks.load();
        if let Walks::Not(why) = &walks {
            eprintln!("skipped: {why}");
            return;
        }
        let mut tried = 0;
        for python in pythons() {
            let dir = tempfile::tempdir().unwrap();
            let program = dir.path().join("shares.py");
            std::fs::write(&program, PROGRAM).unwrap();
            let Ok(child) = Command::new(&python).arg(&program).spawn().map(Killed) else { continue };
            let python = python.display();
            tried += 1;
            let until = Instant::now() + Duration::from_secs(60);
            let is_at_work = |frames: &[Frame]| {
                let names: Vec<String> = lines_of(frames).into_iter().map(|(function, _)| function).collect();
                matches!(&names[..], [module, part, work] if module == "<module>" && part.ends_with("ty") && work == "work")
            };
            let at_work = |profile: &explain::stacks::ProcessProfile| {
                profile.threads.first().is_some_and(|thread| thread.stacks.iter().any(|s| is_at_work(&s.frames)))
            };
            let look = Plan { samples: 3, every: Duration::from_millis(5), cpu_budget: Duration::from_secs(1) };
            while !Sampler::default().profile(&[child.0.id()], &look, || false).iter().any(at_work) {
                assert!(Instant::now() < until, "{python} does not get to work");
            }
            let (share, samples, torn, wrong) = sampled(child.0.id(), Some(&mut walks));
            // three standard deviations of 200 samples, and the time that calls take besides the
            // work
            assert!((0.60..=0.80).contains(&share), "{python}: {share}");
            assert_eq!(wrong, 0, "{python}");
            assert!(torn * 20 <= samples, "{python}: {torn} of {samples} torn");
        }
        if tried == 0 {
            eprintln!("skipped: no python3 is installed");
        }
    }

    /// Spends 70 % of its time below one function and 30 % below another, all of it in its own code.
    const NATIVE: &str = "volatile unsigned long sink;\n\
        __attribute__((noinline)) void work(long n) { for (long i = 0; i < n; i++) sink += i; }\n\
        __attribute__((noinline)) void seventy(void) { work(700000); sink++; }\n\
        __attribute__((noinline)) void thirty(void) { work(300000); sink++; }\n\
        int main(void) { for (;;) { seventy(); thirty(); } }\n";

    #[test]
    fn functions_of_a_running_native_program_are_found_with_their_shares() {
        if cfg!(not(target_arch = "x86_64")) {
            eprintln!("skipped: native stacks are read on x86-64 only");
            return;
        }
        let mut walks = Walks::New;
        walks.load();
        if let Walks::Not(why) = &walks {
            eprintln!("skipped: {why}");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (source, program) = (dir.path().join("shares.c"), dir.path().join("shares"));
        std::fs::write(&source, NATIVE).unwrap();
        // As most programs are: without frame pointers.
        let built = Command::new("cc").args(["-O2", "-o"]).args([&program, &source]).status();
        if !built.is_ok_and(|status| status.success()) {
            eprintln!("skipped: no C compiler");
            return;
        }
        let child = Killed(Command::new(&program).spawn().unwrap());
        // Until it is this program that runs.
        let (look, until) = (
            Plan { samples: 1, every: Duration::from_millis(20), cpu_budget: Duration::from_secs(1) },
            Instant::now() + Duration::from_secs(60),
        );
        let is_read = |walks: &mut Walks| {
            let (profiles, _) = Sampler::default().profile_with(&[child.0.id()], &look, Some(walks), || false);
            profiles[0].threads.first().is_some_and(|thread| !thread.stacks.is_empty())
        };
        while !is_read(&mut walks) {
            assert!(Instant::now() < until, "its stack is not read");
        }
        let plan = Plan { samples: 200, every: Duration::from_millis(7), cpu_budget: Duration::from_secs(5) };
        let (profiles, why) = Sampler::default().profile_with(&[child.0.id()], &plan, Some(&mut walks), || false);
        assert_eq!(why, None);
        let thread = profiles[0].threads.first().expect("a thread");
        let mut by: BTreeMap<&str, u32> = BTreeMap::new();
        for stack in &thread.stacks {
            let names = stack.frames.iter().filter_map(|frame| match frame {
                Frame::Native { function, .. } => Some(function.as_str()),
                _ => None,
            });
            let names: Vec<&str> = names.skip_while(|name| *name != "main").collect();
            assert!(
                matches!(names[..], ["main"] | ["main", "seventy" | "thirty"] | ["main", "seventy" | "thirty", "work"]),
                "{:?}",
                stack.frames
            );
            *by.entry(names.get(1).copied().unwrap_or("main")).or_default() += stack.count;
        }
        eprintln!("{by:?} of {}", thread.samples);
        let (seventy, thirty) = (by.get("seventy").copied().unwrap_or(0), by.get("thirty").copied().unwrap_or(0));
        // On a busy machine it may get no CPU while a sample waits for it.
        assert!(seventy + thirty >= thread.samples / 4, "{by:?} of {}", thread.samples);
        let share = f64::from(seventy) / f64::from(seventy + thirty);
        assert!((0.55..=0.85).contains(&share), "{share}");
    }
}
