//! The software events of page faults, one on each CPU, each firing a program (perf_event_open(2)):
//! of major ones, at their end, and where no tracepoint exists (on other machines than x86-64) of
//! all, at their beginning. Needs CAP_PERFMON and no hardware; Debian's kernels ask for
//! CAP_SYS_ADMIN where kernel.perf_event_paranoid is above 2 (the default there), so the events are
//! opened before that is dropped.

use std::fs;
use std::io;
use std::mem;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use libbpf_rs::libbpf_sys::{
    PERF_COUNT_SW_PAGE_FAULTS, PERF_COUNT_SW_PAGE_FAULTS_MAJ, PERF_FLAG_FD_CLOEXEC, PERF_TYPE_SOFTWARE, perf_event_attr,
};
use libbpf_rs::{Link, ProgramMut};
use parking_lot::Mutex;

/// Which faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// All, when they begin.
    Begins,
    /// Those that read from a disk, when they are over.
    Major,
}

impl Fault {
    fn event(self) -> u64 {
        u64::from(match self {
            Fault::Begins => PERF_COUNT_SW_PAGE_FAULTS,
            Fault::Major => PERF_COUNT_SW_PAGE_FAULTS_MAJ,
        })
    }
}

/// The events of all CPUs, opened ahead.
static OPENED: Mutex<Vec<(Fault, Vec<OwnedFd>)>> = Mutex::new(vec![]);

/// Opens the events while that is allowed.
pub(crate) fn open_ahead() {
    let begins = cfg!(not(target_arch = "x86_64")).then_some(Fault::Begins);
    let all = begins.into_iter().chain([Fault::Major]);
    *OPENED.lock() = all.filter_map(|fault| Some((fault, open_all(fault).ok()?))).collect();
}

/// Attaches to the event on every CPU that is online. The links own the events, or copies of those
/// that were opened ahead: it may be attached again.
pub(crate) fn attach(program: &ProgramMut<'_>, fault: Fault) -> libbpf_rs::Result<Vec<Link>> {
    let opened = {
        let all = OPENED.lock();
        let events = all.iter().find(|(of, _)| *of == fault).map(|(_, events)| events);
        events.map(|events| events.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>())
    };
    let events = opened.unwrap_or_else(|| open_all(fault))?;
    events.into_iter().map(|event| program.attach_perf_event(event.into_raw_fd())).collect()
}

fn open_all(fault: Fault) -> io::Result<Vec<OwnedFd>> {
    on_each_cpu(&online_cpus()?, |cpu| open(fault, cpu))
}

/// The CPUs that are online ("0-3,8").
pub(crate) fn online_cpus() -> io::Result<String> {
    fs::read_to_string("/sys/devices/system/cpu/online")
}

/// Opens something on each CPU of a list.
pub(crate) fn on_each_cpu<T>(list: &str, open: impl FnMut(i32) -> io::Result<T>) -> io::Result<Vec<T>> {
    cpus(list).map(open).collect()
}

fn open(fault: Fault, cpu: i32) -> io::Result<OwnedFd> {
    // SAFETY: all zero is a valid attribute.
    let mut attr: perf_event_attr = unsafe { mem::zeroed() };
    attr.type_ = PERF_TYPE_SOFTWARE;
    attr.config = fault.event();
    attr.__bindgen_anon_1.sample_period = 1;
    attr.set_disabled(1); // attaching turns it on
    open_event(attr, cpu)
}

/// Opens an event of all processes on one CPU.
pub(crate) fn open_event(mut attr: perf_event_attr, cpu: i32) -> io::Result<OwnedFd> {
    attr.size = u32::try_from(size_of::<perf_event_attr>()).unwrap_or(0);
    let every_process = -1;
    // SAFETY: the attribute is valid for the call; the result is checked.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &attr,
            every_process,
            cpu,
            -1,
            libc::c_ulong::from(PERF_FLAG_FD_CLOEXEC),
        )
    };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just given it to us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// "0-3,8" and the like.
fn cpus(list: &str) -> impl Iterator<Item = i32> + '_ {
    list.trim().split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.parse::<i32>(), last.parse::<i32>()) {
            (Ok(first), Ok(last)) => first..last.saturating_add(1),
            _ => 0..0,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!(cpus("0-2,5\n").collect::<Vec<_>>(), [0, 1, 2, 5]);
        assert_eq!(cpus("0\n").collect::<Vec<_>>(), [0]);
        assert_eq!(cpus("\n").count() + cpus("x-3").count(), 0);
    }
}
