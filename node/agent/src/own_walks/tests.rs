//! Threads that run, asked for their own stacks: Python programs and a native one.

#[path = "../../../explain/tests/common/pythons.rs"]
mod pythons;

use std::collections::BTreeMap;
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

/// Rounds of samples of one program.
const MOST_ROUNDS: usize = 6;

#[test]
fn shares_of_running_lines_are_right_and_no_line_is_wrong() {
    let mut walks = Walks::New;
    walks.load();
    if let Walks::Not(why) = &walks {
        eprintln!("skipped: {why}");
        return;
    }
    for python in pythons::pythons().into_iter().filter(|python| python.minor >= 9) {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("shares.py");
        std::fs::write(&program, PROGRAM).unwrap();
        let Ok(child) = Command::new(&python.path).arg(&program).spawn().map(Killed) else { continue };
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
        // Three standard deviations of 200 samples, and the time that calls take besides the work.
        // Where others want the CPU the program goes on in slices, and samples of one slice are
        // alike: then the mean of several rounds must lie there.
        let (mut shares, within) = (Vec::new(), 0.60..=0.80);
        let mean = |shares: &[f64]| shares.iter().sum::<f64>() / shares.len() as f64;
        while shares.is_empty() || (shares.len() < MOST_ROUNDS && !within.contains(&mean(&shares))) {
            let (share, samples, torn, wrong) = sampled(child.0.id(), Some(&mut walks));
            assert_eq!(wrong, 0, "{python}");
            assert!(torn * 20 <= samples, "{python}: {torn} of {samples} torn");
            shares.push(share);
        }
        assert!(within.contains(&mean(&shares)), "{python}: {shares:?}");
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
