//! What a request waited for, across threads and processes: from its answer back to when it was
//! read, by who woke whom. Values in, values out; `switches` has the stretches, `rows` makes rows.
//!
//! The thread that sent the answer ran since it had a CPU again; before that it slept until another
//! thread woke it: what that one did until then is what the request waited for. (Where it waited in a
//! lock, as far as it waited: what it did before is its own.) Where an interrupt or a process that is
//! not followed woke it, it slept for the request's sake, and the path stays with it.

use crate::bytes::Reader;

/// `struct rm_stretch`.
pub(super) const STRETCH_BYTES: usize = 112;
/// Steps of one path; of a request with more the beginning is not told.
const MOST_STEPS: usize = 4_096;

/// A thread was off its CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) off_ns: u64,
    wake_ns: u64,
    pub(super) on_ns: u64,
    pub(super) pid: u32,
    pub(super) tid: u32,
    /// How often it had left a CPU then.
    pub(super) switches: u32,
    waker: (u32, u32),
    woken: u8,
    left: u8,
    is_io: bool,
    is_throttled: bool,
    call: i32,
    /// Who had the CPU while it could run, whose that is, and its name.
    taken: (u32, u32, [u8; 16]),
    comm: [u8; 16],
}

/// `enum rm_woken`.
const BY_THREAD: u8 = 1;
const BY_OTHER: u8 = 2;
const BY_INTERRUPT: u8 = 3;
const BY_KERNEL: u8 = 4;
const AS_NEW: u8 = 5;
/// `enum rm_left`.
const RUNNABLE: u8 = 0;
const UNINTERRUPTIBLE: u8 = 2;

impl Stretch {
    /// From the bytes of an entry, behind its number. None where they are too few.
    pub(super) fn parse(bytes: &[u8]) -> Option<Stretch> {
        let mut r = Reader::new(bytes);
        let (on_ns, off_ns, wake_ns, _ran_ns, switches) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?, r.u32()?);
        let (waker_tid, waker_switches, call) = (r.u32()?, r.u32()?, r.u32()?.cast_signed());
        let [woken, left, iowait, throttled] = r.array()?;
        let (taken, _padding) = ((r.u32()?, r.u32()?, r.array()?), r.u32()?);
        Some(Stretch {
            off_ns,
            wake_ns,
            on_ns,
            switches,
            waker: (waker_tid, waker_switches),
            woken,
            left,
            is_io: iowait != 0,
            is_throttled: throttled != 0,
            call,
            taken,
            pid: r.u32()?,
            tid: r.u32()?,
            comm: r.array()?,
        })
    }

    fn asleep_in(&self) -> &'static str {
        let by_kernel = matches!(self.woken, BY_INTERRUPT | BY_KERNEL);
        match sleeps_in(self.call) {
            _ if self.woken == AS_NEW => "beginning",
            _ if self.is_io => "io",
            "fault" if self.left == UNINTERRUPTIBLE && by_kernel => "io",
            "files" if self.left == UNINTERRUPTIBLE && by_kernel => "io",
            "other" if self.left == UNINTERRUPTIBLE && by_kernel => "io",
            "files" if by_kernel => "network",
            "files" => "pipe",
            other => other,
        }
    }
}

/// What a thread sleeps in, by its system call.
fn sleeps_in(call: i32) -> &'static str {
    #[cfg(target_arch = "x86_64")]
    match i64::from(call) {
        libc::SYS_poll | libc::SYS_select | libc::SYS_epoll_wait => return "events",
        libc::SYS_pause => return "signal",
        _ => (),
    }
    match i64::from(call) {
        -1 => "fault",
        libc::SYS_nanosleep | libc::SYS_clock_nanosleep => "timer",
        libc::SYS_futex | libc::SYS_futex_waitv | FUTEX_WAIT => "lock",
        libc::SYS_ppoll | libc::SYS_pselect6 | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => "events",
        libc::SYS_io_uring_enter | libc::SYS_io_getevents => "events",
        libc::SYS_recvfrom | libc::SYS_recvmsg | libc::SYS_recvmmsg | libc::SYS_accept | libc::SYS_accept4 => "network",
        libc::SYS_sendto | libc::SYS_sendmsg | libc::SYS_sendmmsg | libc::SYS_connect => "network",
        libc::SYS_read | libc::SYS_readv | libc::SYS_write | libc::SYS_writev => "files",
        libc::SYS_splice | libc::SYS_sendfile | libc::SYS_tee => "files",
        libc::SYS_wait4 | libc::SYS_waitid => "child",
        libc::SYS_rt_sigtimedwait | libc::SYS_rt_sigsuspend => "signal",
        libc::SYS_ioctl => "device",
        _ => "other",
    }
}

/// `futex_wait`, of which libc has no name yet: the same number on all architectures (Linux 6.7).
const FUTEX_WAIT: i64 = 455;

/// What a thread did in a part of a request's time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum What {
    Ran,
    /// It could run, and had no CPU.
    Ready {
        /// Who had it: process, its user, its name; none: nobody.
        taken_by: Option<(u32, u32, [u8; 16])>,
    },
    /// It could run, and its cgroup's quota was used up.
    Throttled,
    Asleep {
        reason: &'static str,
        woken_by: &'static str,
    },
    /// Why it is not known.
    Unknown(&'static str),
}

/// A thread in a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Thread {
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) comm: [u8; 16],
    /// What the thread slept in that it woke; none of the one that sent the answer.
    pub(super) awaited_in: Option<&'static str>,
}

/// A part of a request's time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) from_ns: u64,
    pub(super) until_ns: u64,
    /// None where it is not known.
    pub(super) thread: Option<Thread>,
    pub(super) what: What,
}

/// Where a path ends, at a time of the kernel's clock: a thread, and how often it had left a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) tid: u32,
    pub(super) switches: u32,
    pub(super) at_ns: u64,
}

/// The path that ends at a place, from `begin_ns` on, the first step first: together all of that
/// time. `find` has the stretch before a thread, which had left a CPU so often, came back; or why
/// there is none.
pub(super) fn walk(
    end: Place,
    begin_ns: u64,
    find: impl Fn(u32, u32, u64) -> Result<Stretch, &'static str>,
) -> Vec<Step> {
    let mut steps = vec![];
    let (mut at, mut awaited_in, mut floor_ns) = (end, None, begin_ns);
    // Who waits in a lock, and goes on with what it did before when that is told, down to which time.
    let mut waiting: Vec<(Place, Option<&'static str>, u64)> = vec![];
    let mut add = |floor_ns: u64, from_ns: u64, until_ns: u64, thread, what| {
        let from_ns = from_ns.max(floor_ns);
        if until_ns > from_ns {
            steps.push(Step { from_ns, until_ns, thread, what });
        }
    };
    for steps_left in (0..MOST_STEPS).rev() {
        while at.at_ns <= floor_ns
            && let Some(waits) = waiting.pop()
        {
            (at, awaited_in, floor_ns) = waits;
        }
        if at.at_ns <= floor_ns {
            break;
        }
        let found = if steps_left == 0 { Err("too_many") } else { find(at.tid, at.switches, at.at_ns) };
        let stretch = match found {
            Ok(stretch) => stretch,
            Err(why) => {
                let until_ns = at.at_ns;
                at.at_ns = if steps_left == 0 { begin_ns } else { floor_ns };
                add(begin_ns, at.at_ns, until_ns, None, What::Unknown(why));
                continue;
            }
        };
        let thread = Some(Thread { pid: stretch.pid, tid: stretch.tid, comm: stretch.comm, awaited_in });
        let on_ns = stretch.on_ns.min(at.at_ns);
        add(floor_ns, on_ns, at.at_ns, thread, What::Ran);
        let taken_by = Some(stretch.taken).filter(|(pid, ..)| *pid != 0);
        let ready = What::Ready { taken_by };
        if stretch.left == RUNNABLE {
            let off_ns = stretch.off_ns.min(on_ns);
            add(floor_ns, off_ns, on_ns, thread, if stretch.is_throttled { What::Throttled } else { ready });
            at = Place { at_ns: off_ns, switches: at.switches.wrapping_sub(1), ..at };
            continue;
        }
        if matches!(stretch.woken, BY_THREAD | AS_NEW) {
            let wake_ns = stretch.wake_ns.min(on_ns);
            add(floor_ns, wake_ns, on_ns, thread, ready);
            let reason = stretch.asleep_in();
            if reason == "lock" && stretch.off_ns > floor_ns {
                let off_ns = stretch.off_ns.min(wake_ns);
                let before = Place { at_ns: off_ns, switches: at.switches.wrapping_sub(1), ..at };
                waiting.push((before, awaited_in, floor_ns));
                floor_ns = off_ns;
            }
            awaited_in = Some(reason);
            at = Place { tid: stretch.waker.0, switches: stretch.waker.1, at_ns: wake_ns };
            continue;
        }
        let off_ns = stretch.off_ns.min(on_ns);
        let wake_ns = if stretch.wake_ns == 0 { on_ns } else { stretch.wake_ns.clamp(off_ns, on_ns) };
        add(floor_ns, wake_ns, on_ns, thread, ready);
        let woken_by = match stretch.woken {
            BY_INTERRUPT => "interrupt",
            BY_KERNEL => "kernel",
            BY_OTHER => "other_process",
            _ => "unseen",
        };
        add(floor_ns, off_ns, wake_ns, thread, What::Asleep { reason: stretch.asleep_in(), woken_by });
        at = Place { at_ns: off_ns, switches: at.switches.wrapping_sub(1), ..at };
    }
    steps.reverse();
    steps
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    const NANOSLEEP: i32 = libc::SYS_clock_nanosleep as i32;
    const FUTEX: i32 = libc::SYS_futex as i32;
    const EPOLL: i32 = libc::SYS_epoll_pwait as i32;
    const READ: i32 = libc::SYS_read as i32;

    /// A stretch of a thread of process 7, off from and until these times, in a call, and woken.
    fn stretch(tid: u32, switches: u32, (off_ns, wake_ns, on_ns): (u64, u64, u64), call: i32, woken: u8) -> Stretch {
        Stretch {
            off_ns,
            wake_ns,
            on_ns,
            pid: 7,
            tid,
            switches,
            waker: (0, 0),
            woken,
            left: 1,
            is_io: false,
            is_throttled: false,
            call,
            taken: (0, 0, [0; 16]),
            comm: [0; 16],
        }
    }

    fn walked(stretches: &[Stretch], end: (u32, u32, u64), begin_ns: u64) -> Vec<Step> {
        let (tid, switches, at_ns) = end;
        walk(Place { tid, switches, at_ns }, begin_ns, |tid, switches, _| {
            let found = stretches.iter().find(|s| (s.tid, s.switches) == (tid, switches));
            found.copied().ok_or("unseen")
        })
    }

    fn shown(steps: &[Step]) -> Vec<(u32, u64, &What)> {
        steps.iter().map(|step| (step.thread.map_or(0, |t| t.tid), step.until_ns - step.from_ns, &step.what)).collect()
    }

    #[test]
    fn the_path_goes_on_where_who_woke_it_was() {
        let timer = What::Asleep { reason: "timer", woken_by: "interrupt" };
        let mut back = stretch(1, 5, (100, 900, 910), EPOLL, BY_THREAD);
        back.waker = (2, 3);
        let mut handed = stretch(2, 2, (10, 110, 120), FUTEX, BY_THREAD);
        handed.waker = (1, 4); // just before it slept itself
        let all = [
            stretch(1, 4, (0, 40, 50), READ, BY_INTERRUPT),
            back,
            handed,
            stretch(2, 3, (130, 830, 860), NANOSLEEP, BY_INTERRUPT),
        ];
        let steps = walked(&all, (1, 5, 1_000), 60);
        let nobody = What::Ready { taken_by: None };
        assert_eq!(
            shown(&steps),
            [
                (1, 50, &What::Ran), // until it woke the other
                (2, 10, &nobody),
                (2, 10, &What::Ran),
                (2, 700, &timer),
                (2, 30, &nobody),
                (2, 40, &What::Ran),
                (1, 10, &nobody),
                (1, 90, &What::Ran),
            ]
        );
        assert_eq!(steps[3].thread.unwrap().awaited_in, Some("events"), "what the first one slept in");
        assert_eq!(steps[7].thread.unwrap().awaited_in, None);
    }

    #[test]
    fn who_waited_in_a_lock_goes_on_with_what_it_did_before() {
        let mut waited = stretch(2, 3, (500, 700, 710), FUTEX, BY_THREAD);
        waited.waker = (1, 9);
        let mut slept = stretch(2, 2, (150, 400, 400), -1, BY_INTERRUPT);
        slept.is_io = true;
        // It had the lock only since it woke, and slept for something else before.
        let all = [
            stretch(2, 1, (0, 50, 50), READ, BY_INTERRUPT),
            slept,
            waited,
            stretch(1, 9, (90, 600, 600), EPOLL, BY_INTERRUPT),
        ];
        let steps = walked(&all, (2, 3, 800), 100);
        let disk = What::Asleep { reason: "io", woken_by: "interrupt" };
        let events = What::Asleep { reason: "events", woken_by: "interrupt" };
        assert_eq!(
            shown(&steps),
            [
                (2, 50, &What::Ran),
                (2, 250, &disk),
                (2, 100, &What::Ran),
                (1, 100, &events), // of the wait alone
                (1, 100, &What::Ran),
                (2, 10, &What::Ready { taken_by: None }),
                (2, 90, &What::Ran),
            ]
        );
        assert_eq!((steps[4].thread.unwrap().awaited_in, steps[0].thread.unwrap().awaited_in), (Some("lock"), None));
    }

    #[test]
    fn a_thread_that_is_pushed_off_says_who_took_the_cpu() {
        let mut pushed = stretch(1, 5, (300, 0, 500), -1, 0);
        (pushed.left, pushed.taken) = (RUNNABLE, (9, 0, [0; 16]));
        let mut held = stretch(1, 6, (600, 0, 650), -1, 0);
        (held.left, held.is_throttled) = (RUNNABLE, true);
        let steps = walked(&[stretch(1, 4, (0, 10, 20), READ, BY_INTERRUPT), pushed, held], (1, 6, 700), 100);
        let taken = What::Ready { taken_by: Some((9, 0, [0; 16])) };
        assert_eq!(
            shown(&steps),
            [
                (1, 200, &What::Ran),
                (1, 200, &taken),
                (1, 100, &What::Ran),
                (1, 50, &What::Throttled),
                (1, 50, &What::Ran)
            ]
        );
    }

    #[test]
    fn a_stretch_that_is_missing_is_not_made_up() {
        let all = [stretch(1, 4, (0, 10, 20), READ, BY_INTERRUPT), stretch(1, 6, (500, 600, 600), READ, BY_INTERRUPT)];
        let steps = walked(&all, (1, 6, 700), 100);
        let network = What::Asleep { reason: "network", woken_by: "interrupt" };
        assert_eq!(shown(&steps), [(0, 400, &What::Unknown("unseen")), (1, 100, &network), (1, 100, &What::Ran)]);
    }

    #[test]
    fn what_a_thread_sleeps_in() {
        let reason = |call, left, woken, is_io| {
            let mut one = stretch(1, 1, (0, 1, 2), call, woken);
            (one.left, one.is_io) = (left, is_io);
            one.asleep_in()
        };
        assert_eq!((reason(READ, 1, BY_INTERRUPT, false), reason(READ, 1, BY_OTHER, false)), ("network", "pipe"));
        assert_eq!((reason(READ, 2, BY_INTERRUPT, true), reason(-1, 2, BY_INTERRUPT, true)), ("io", "io"));
        let fsync = i32::try_from(libc::SYS_fsync).unwrap();
        assert_eq!((reason(fsync, 2, BY_KERNEL, false), reason(FUTEX, 1, BY_INTERRUPT, false)), ("io", "lock"));
        assert_eq!((reason(-1, 1, BY_OTHER, false), reason(-1, 1, AS_NEW, false)), ("fault", "beginning"));
    }

    proptest! {
        #[test]
        fn the_steps_are_together_the_time_whatever_was_recorded(
            times in prop::collection::vec((1_u64..1_000, 0_u64..1_000, 1_u64..1_000, 0_u32..4, 0_u8..7, 0_u8..3), 0..60),
        ) {
            let all: Vec<Stretch> = times.iter().enumerate().map(|(at, &(off, wake, on, waker, woken, left))| {
                let mut one = stretch(at as u32 % 4, at as u32 / 4, (off, wake, on), FUTEX, woken);
                (one.waker, one.left) = ((waker, at as u32 / 4), left);
                one
            }).collect();
            let steps = walked(&all, (0, 5, 800), 200);
            prop_assert_eq!(steps.iter().map(|step| step.until_ns - step.from_ns).sum::<u64>(), 600);
            prop_assert!(steps.windows(2).all(|two| two[0].until_ns == two[1].from_ns));
        }
    }
}
