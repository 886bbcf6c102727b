//! A cause in words.

use super::evidence::Kind;
use super::{Cause, Part, Topic, What};
use crate::rules::Rules;
use crate::units::{duration, percent};
use record::printable;

impl Kind {
    /// As it stands in JSON and in `findings.cause`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Communication => "communication",
            Self::Stopped => "stopped",
            Self::CpuThrottled => "cpu_throttled",
            Self::CpuStolen => "cpu_stolen",
            Self::Reclaim => "reclaim",
            Self::PageFault => "page_fault",
            Self::BlockIo => "block_io",
            Self::GpuThrottled => "gpu_throttled",
            Self::CudaSync => "cuda_sync",
            Self::CudaCopy => "cuda_copy",
            Self::CudaLaunch => "cuda_launch",
            Self::Lock => "lock",
            Self::NetworkWait => "network_wait",
            Self::FileWait => "file_wait",
            Self::Sleep => "sleep",
            Self::Wait => "wait",
        }
    }

    /// What the thread did, to follow "its thread …"; the second half names who or what it was.
    fn phrases(self) -> (&'static str, &'static str) {
        match self {
            Self::Communication => ("was in other communication calls", "in"),
            Self::Stopped => ("was stopped by a signal or a debugger", "in"),
            Self::CpuThrottled => ("was held by the CPU quota of its cgroup", "cgroup"),
            Self::CpuStolen => ("could run but had no CPU", "taken by"),
            Self::Reclaim => ("had to free memory before it got some", "in"),
            Self::PageFault => ("waited for pages to be read from a disk", "from"),
            Self::BlockIo => ("waited for a block device", "on"),
            Self::GpuThrottled => ("ran on a GPU with lowered clocks", "because of"),
            Self::CudaSync => ("waited for its GPU", "in"),
            Self::CudaCopy => ("copied or allocated GPU memory", "in"),
            Self::CudaLaunch => ("launched GPU work", "in"),
            Self::Lock => ("waited for a lock or another thread", "in"),
            Self::NetworkWait => ("waited for a socket", "in"),
            Self::FileWait => ("waited for a pipe, a local socket, a file or a child", "in"),
            Self::Sleep => ("slept by itself", "in"),
            Self::Wait => ("gave up its CPU, for what is not recorded", "then ran"),
        }
    }

    /// What a person would do next.
    fn advice(self) -> &'static str {
        match self {
            Self::Communication => "look at the verdict of that communicator",
            Self::Stopped => "look who stopped it: a debugger, a checkpoint, SIGSTOP",
            Self::CpuThrottled => "raise the CPU quota of its cgroup (cpu.max)",
            Self::CpuStolen => "move or stop that task, or give the rank cores of its own (cpuset, --cpu-bind)",
            Self::Reclaim => "look at the memory limit of its cgroup and at who uses the host's memory",
            Self::PageFault => "look at the host's memory and at the disk behind its files",
            Self::BlockIo => "look at that device and at what the rank reads or writes in each step",
            Self::GpuThrottled => "look at the GPU's temperature and power limit (nvidia-smi -q -d PERFORMANCE)",
            Self::CudaSync => "look at its kernels: more work, or a slower GPU",
            Self::CudaCopy => "look at what it copies or allocates in each step",
            Self::CudaLaunch => "look at the number of launches and at its CPU",
            Self::Lock => "look which thread it waits for: data loader, garbage collector, interpreter lock",
            Self::NetworkWait => "look at the service that it asks outside of collectives",
            Self::FileWait => "look at its helper processes: a data loader that does not keep up waits like this",
            Self::Sleep => "look for sleep, polling or retries in its own code",
            Self::Wait => "look at what this rank does between collectives that the others do not (stacks)",
        }
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
            format!("most is that its thread {}, but so does its peer's", part.kind.phrases().0)
        }
        Some(part) => format!("most is that its thread {} ({})", part.kind.phrases().0, percent(part.share)),
        None if !cause.looked_at.iter().any(|topic| topic == Topic::OffCpu.words()) => {
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
    let (did, by) = part.kind.phrases();
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
    let bytes = what.bytes.map_or_else(String::new, |bytes| format!(", {}", size(bytes)));
    let part = if share < 0.95 { format!(" for {} of it", percent(share)) } else { String::new() };
    format!("{}{part}{bytes}", printable(&what.name))
}

/// What to look at next: for the dearest named kind, or for what is not visible.
pub(crate) fn advice(cause: &Cause) -> Option<&'static str> {
    Some(cause.named.first()?.advice())
}

/// Bytes in the unit that suits.
pub(crate) fn size(bytes: i64) -> String {
    let value = bytes as f64;
    match value {
        v if v >= 1e9 => format!("{:.1} GB", v / 1e9),
        v if v >= 1e6 => format!("{:.1} MB", v / 1e6),
        v if v >= 1e3 => format!("{:.1} kB", v / 1e3),
        _ => format!("{bytes} B"),
    }
}
