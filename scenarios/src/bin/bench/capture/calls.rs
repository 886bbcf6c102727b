//! The cost of a probed call and of a context switch, above their floors.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use node_bpf::AttachMode;
use node_bpf::measure::{EmptyProbes, Floor};

use super::line_process::LineProcess;
use super::spread;

const ROUNDS: usize = 7;
const BATCHES: usize = 5;
const CALLS: u32 = 5_000;

/// A call without probes takes a few nanoseconds: when it takes longer, another recorder probes the
/// same file.
const BARE_NS: f64 = 100.0;

/// The fastest of a few batches, in ns a call: interruptions of a batch are not the probes' cost.
fn per_call(caller: &mut LineProcess) -> anyhow::Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..BATCHES {
        best = best.min(caller.ask(&CALLS.to_string())? / f64::from(CALLS));
    }
    Ok(best)
}

/// As [`per_call`], once no probes of other recorders are at the function.
fn undisturbed(caller: &mut LineProcess) -> anyhow::Result<f64> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let bare = per_call(caller)?;
        if bare <= BARE_NS || Instant::now() >= deadline {
            return Ok(bare);
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// The time that a probed call takes longer than a bare one, divided by the time that one with an
/// empty entry and return probe takes longer.
pub(super) struct Longer {
    pub(super) recorded: f64,
    /// With the smallest possible record: the floor.
    pub(super) least: f64,
}

/// Measures calls of a function of a library.
pub(super) fn calls(dir: &Path, which: &str, library: &str, symbol: &str) -> anyhow::Result<Longer> {
    let path = dir.join(library);
    let mut caller = LineProcess::start(Command::new(dir.join("call-loop")).arg(which))?;
    let mut best = [f64::INFINITY; 5];
    let mut ratios = vec![];
    println!(
        "\n{symbol}, ns a call: bare, with an empty entry and return probe, with the quickest empty probes, with the \
         smallest record, recorded"
    );
    let mut programs = String::new();
    for round in 0..ROUNDS {
        let bare = undisturbed(&mut caller)?;
        let empty = |caller: &mut LineProcess, mode, floor| {
            let probes = EmptyProbes::attach(&path, symbol, mode, floor)?;
            let time = per_call(caller)?;
            ensure!(probes.without_room() == Some(0), "the smallest records found no room");
            anyhow::Ok(time)
        };
        let pair = empty(&mut caller, AttachMode::Single, Floor::Nothing)?;
        let mut best_kind = |floor| {
            let multi = empty(&mut caller, AttachMode::Multi, floor).ok();
            let session = empty(&mut caller, AttachMode::Session, floor).ok();
            let kinds = multi.into_iter().chain(session).min_by(f64::total_cmp);
            kinds.map_or_else(|| empty(&mut caller, AttachMode::Single, floor), Ok)
        };
        let (same, least) = (best_kind(Floor::Nothing)?, best_kind(Floor::Record)?);
        let recorder = LineProcess::recorder(std::slice::from_ref(&path))?;
        let recorded = per_call(&mut caller)?;
        programs = recorder.end()?;
        println!("  round {round}: {bare:.0}, {pair:.0}, {same:.0}, {least:.0}, {recorded:.0}");
        if bare > BARE_NS || per_call(&mut caller)? > BARE_NS {
            println!("    left out: somebody else probes this file, too");
            continue;
        }
        ratios.push((recorded - bare) / (pair - bare));
        for (best, time) in best.iter_mut().zip([bare, pair, same, least, recorded]) {
            *best = best.min(time);
        }
    }
    ensure!(!ratios.is_empty(), "every round was disturbed by another recorder: end it first");
    for line in programs.lines().filter(|line| line.starts_with("call_") || line.starts_with("cuda_")) {
        let numbers: Vec<f64> = line.split(' ').skip(1).filter_map(|n| n.parse().ok()).collect();
        if let [runs, cpu_ns] = numbers[..]
            && runs > 0.0
        {
            println!("  {}: {:.0} ns a run", line.split(' ').next().unwrap_or_default(), cpu_ns / runs);
        }
    }
    // The best of all rounds: other work on the machine only adds time.
    let [bare, pair, same, least, recorded] = best;
    let ratio = (recorded - bare) / (pair - bare);
    let least = (least - bare) / (pair - bare);
    println!("  over an empty uprobe and uretprobe: {ratio:.3} (rounds: {})", spread(&ratios));
    println!("  over the quickest empty probes: {:.3}", (recorded - bare) / (same - bare));
    println!("  the smallest record over an empty uprobe and uretprobe: {least:.3}");
    Ok(Longer { recorded: ratio, least })
}

/// The cost of `on_switch`, mostly for tasks that are not followed: two threads that wake each
/// other.
pub(super) fn switches() -> anyhow::Result<f64> {
    let recorder = LineProcess::recorder(&[])?;
    let (there, back) = (std::sync::mpsc::sync_channel::<()>(0), std::sync::mpsc::sync_channel::<()>(0));
    let other = std::thread::spawn(move || while there.1.recv().is_ok() && back.0.send(()).is_ok() {});
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        there.0.send(())?;
        back.1.recv()?;
    }
    drop(there.0);
    let _ = other.join();
    let programs = recorder.end()?;
    let line =
        programs.lines().find_map(|line| line.strip_prefix("on_switch ")).context("on_switch was not measured")?;
    let numbers: Vec<f64> = line.split(' ').filter_map(|n| n.parse().ok()).collect();
    let [runs, cpu_ns] = numbers[..] else { bail!("unreadable: {line}") };
    println!("\nsched_switch: {runs} switches, {:.0} ns each", cpu_ns / runs);
    Ok(cpu_ns / runs)
}
