//! The software event of major page faults, one on each CPU, each firing the program
//! `on_major_fault` (perf_event_open(2), PERF_COUNT_SW_PAGE_FAULTS_MAJ). Needs CAP_PERFMON and no
//! hardware; Debian's kernels ask for CAP_SYS_ADMIN where kernel.perf_event_paranoid is above 2 (as
//! it is there), so the events are opened before that is given up.

use std::fs;
use std::io;
use std::mem;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use libbpf_rs::libbpf_sys::{PERF_COUNT_SW_PAGE_FAULTS_MAJ, PERF_FLAG_FD_CLOEXEC, PERF_TYPE_SOFTWARE, perf_event_attr};
use libbpf_rs::{Link, ProgramMut};
use parking_lot::Mutex;

/// The events of all CPUs, opened ahead; taken by the first to attach.
static OPENED: Mutex<Option<Vec<OwnedFd>>> = Mutex::new(None);

/// Opens the events while that is allowed.
pub(crate) fn open_ahead() {
    *OPENED.lock() = open_all().ok();
}

/// Attaches to the event on every CPU that is online. The links own the events.
pub(crate) fn attach(program: &ProgramMut<'_>) -> libbpf_rs::Result<Vec<Link>> {
    let opened = OPENED.lock().take();
    let events = opened.map_or_else(open_all, Ok)?;
    events.into_iter().map(|event| program.attach_perf_event(event.into_raw_fd())).collect()
}

fn open_all() -> io::Result<Vec<OwnedFd>> {
    let online = fs::read_to_string("/sys/devices/system/cpu/online")?;
    cpus(&online).map(open).collect()
}

fn open(cpu: i32) -> io::Result<OwnedFd> {
    // SAFETY: all zero is a valid attribute.
    let mut attr: perf_event_attr = unsafe { mem::zeroed() };
    attr.type_ = PERF_TYPE_SOFTWARE;
    attr.size = u32::try_from(size_of::<perf_event_attr>()).unwrap_or(0);
    attr.config = u64::from(PERF_COUNT_SW_PAGE_FAULTS_MAJ);
    attr.__bindgen_anon_1.sample_period = 1;
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
