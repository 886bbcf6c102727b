//! A cause in words.

use super::{Cause, Part, Topic, What};
use observed::{
    Kind, Rules,
    units::{duration, percent},
};
use record::printable;

/// What the thread did, to follow "its thread …"; the second half names who or what it was.
fn phrases(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Communication => ("was in other communication calls", "in"),
        Kind::Stopped => ("was stopped by a signal or a debugger", "in"),
        Kind::CpuThrottled => ("was held by the CPU quota of its cgroup", "cgroup"),
        Kind::CpuStolen => ("could run but had no CPU", "taken by"),
        Kind::Reclaim => ("had to free memory before it got some", "in"),
        Kind::PageFault => ("waited for pages to be read from a disk", "from"),
        Kind::BlockIo => ("waited for a block device", "on"),
        Kind::GpuThrottled => ("ran on a GPU with lowered clocks", "because of"),
        Kind::CudaSync => ("waited for its GPU", "in"),
        Kind::CudaCopy => ("copied or allocated GPU memory", "in"),
        Kind::CudaLaunch => ("launched GPU work", "in"),
        Kind::Lock => ("waited for a lock or another thread", "in"),
        Kind::NetworkWait => ("waited for a socket", "in"),
        Kind::FileWait => ("waited for a pipe, a local socket, a file or a child", "in"),
        Kind::Sleep => ("slept by itself", "in"),
        Kind::Wait => ("gave up its CPU, for what is not recorded", "then ran"),
    }
}

/// What a person would do next.
fn next(kind: Kind) -> &'static str {
    match kind {
        Kind::Communication => "look at the verdict of that communicator",
        Kind::Stopped => "look who stopped it: a debugger, a checkpoint, SIGSTOP",
        Kind::CpuThrottled => "raise the CPU quota of its cgroup (cpu.max)",
        Kind::CpuStolen => "move or stop that task, or give the rank cores of its own (cpuset, --cpu-bind)",
        Kind::Reclaim => "look at the memory limit of its cgroup and at who uses the host's memory",
        Kind::PageFault => "look at the host's memory and at the disk behind its files",
        Kind::BlockIo => "look at that device and at what the rank reads or writes in each step",
        Kind::GpuThrottled => "look at the GPU's temperature and power limit (nvidia-smi -q -d PERFORMANCE)",
        Kind::CudaSync => "look at its kernels: more work, or a slower GPU",
        Kind::CudaCopy => "look at what it copies or allocates in each step",
        Kind::CudaLaunch => "look at the number of launches and at its CPU",
        Kind::Lock => "look which thread it waits for: data loader, garbage collector, interpreter lock",
        Kind::NetworkWait => "look at the service that it asks outside of collectives",
        Kind::FileWait => "look at its helper processes: a data loader that does not keep up waits like this",
        Kind::Sleep => "look for sleep, polling or retries in its own code",
        Kind::Wait => "look at what this rank does between collectives that the others do not (stacks)",
    }
}

/// See [`Cause::label`].
pub(super) fn label(cause: &Cause) -> String {
    if cause.named.is_empty() {
        return "unattributed".to_owned();
    }
    let parts = cause.parts.iter().filter(|part| part.named).map(|part| {
        let what = part.what.first().map_or_else(String::new, |what| format!(": {}", printable(&what.name)));
        format!("{} ({}){what}", part.kind.name(), percent(part.share))
    });
    let mostly = if cause.is_mostly() { "mostly " } else { "" };
    format!("{mostly}{}", parts.collect::<Vec<_>>().join("; "))
}

/// A cause with the sentence of what it holds now.
#[must_use]
pub fn summarised(mut cause: Cause) -> Cause {
    cause.summary = summary(&cause, Some(cause.excess_ns));
    cause
}

/// One sentence. `excess_ns` is the difference found, none without a comparison.
pub(super) fn summary(cause: &Cause, excess_ns: Option<i64>) -> String {
    match excess_ns {
        None if cause.intervals == 0 => {
            return "unattributed: its host has no two collectives of it in this time".to_owned();
        }
        None => return "unattributed: there is no peer to compare it with".to_owned(),
        Some(ns) if ns <= 0 => {
            return "unattributed: in the intervals looked at it took no longer than its peer".to_owned();
        }
        Some(_) => {}
    }
    if cause.is_attributed() {
        let named: Vec<String> = cause.parts.iter().filter(|part| part.named).map(|part| phrase(part, cause)).collect();
        let named = named.join("; and ");
        if !cause.is_mostly() {
            return named;
        }
        let rest = percent(1.0 - cause.explained);
        return format!("mostly {named}; the other {rest} of the excess are not explained by what was recorded");
    }
    let most = cause.parts.iter().find(|part| part.share >= Rules::CAUSE_PART);
    let seen = match most {
        Some(part) if (part.culprit_ns as f64) < Rules::CAUSE_TIMES_PEER * part.peer_ns as f64 => {
            format!("most is that its thread {}, but so does its peer's", phrases(part.kind).0)
        }
        Some(part) => format!("most is that its thread {} ({})", phrases(part.kind).0, percent(part.share)),
        None if !cause.looked_at.iter().any(|topic| topic.starts_with(Topic::OffCpu.words())) => {
            "when its thread was off its CPU was not recorded: it may have worked, waited or been pushed off".to_owned()
        }
        None => {
            "its thread was on its CPU, or off it for too short to be recorded: more work of its own, or a slower CPU"
                .to_owned()
        }
    };
    format!("unattributed: what was recorded explains {} of the excess, {seen}", percent(cause.explained))
}

fn phrase(part: &Part, cause: &Cause) -> String {
    let (did, by) = phrases(part.kind);
    let each = cause.late_intervals.max(1) as i64;
    let what = match part.what.first() {
        Some(what) if !what.name.is_empty() => format!(", {by} {}", named(what, part)),
        _ => String::new(),
    };
    format!(
        "{} of the excess: its thread {did} for {} an interval (its peer {}){what}",
        percent(part.share),
        duration(part.culprit_ns / each),
        duration(part.peer_ns / each),
    )
}

fn named(what: &What, part: &Part) -> String {
    let share = what.ns as f64 / part.culprit_ns.max(1) as f64;
    let bytes = what.bytes.map_or_else(String::new, |bytes| format!(", {}", record::units::bytes(bytes)));
    let part = if share < 0.95 { format!(" for {} of it", percent(share)) } else { String::new() };
    format!("{}{part}{bytes}", printable(&what.name))
}

/// What to look at next: for the dearest named kind, or for what is not visible.
#[must_use]
pub fn advice(cause: &Cause) -> Option<&'static str> {
    cause.named.first().copied().map(next)
}
