//! What a stretch off the CPU was: by the scheduler's records, what a thread waited for or what took
//! its CPU.

use observed::Kind;

/// Functions of the kernel in which a thread waits for a pipe, a socket within its host, a file
/// descriptor or a child (fs/pipe.c, net/unix, fs/eventpoll.c, fs/select.c, kernel/exit.c), by their
/// beginnings.
const FILE_WAITS: [&str; 11] = [
    "unix_",
    "pipe_",
    "anon_pipe_",
    "wait_for_partner",
    "ep_poll",
    "do_epoll",
    "do_poll",
    "do_sys_poll",
    "do_select",
    "do_wait",
    "poll_schedule",
];

/// What a thread that gave up its CPU waited for, by `offcpu.reason`, and where that says nothing by
/// the function it waited in (`offcpu.wchan`).
pub(super) fn waited(reason: &str, wchan: &str) -> Kind {
    let for_a_process = FILE_WAITS.iter().any(|function| wchan.starts_with(function));
    match reason {
        "sleep" => Kind::Sleep,
        "lock" => Kind::Lock,
        "io" => Kind::BlockIo,
        "fault" => Kind::PageFault,
        "network" | "other" if for_a_process => Kind::FileWait,
        "network" => Kind::NetworkWait,
        "stopped" => Kind::Stopped,
        _ => Kind::Wait,
    }
}

/// What took the CPU from a thread that could run, by `offcpu.reason` and the task that got it: where
/// that is the idle task, a quota held the thread, also where an older recorder says "preempted".
pub(super) fn pushed_off(reason: &str, next_pid: Option<i64>, next_comm: &str) -> Kind {
    match reason {
        "stopped" => Kind::Stopped,
        "throttled" => Kind::CpuThrottled,
        _ if next_pid == Some(0) && next_comm.starts_with("swapper") => Kind::CpuThrottled,
        _ => Kind::CpuStolen,
    }
}

/// What a stretch off the CPU was, in the order of its parts, with their lengths. `next` is the task
/// that took the CPU.
#[must_use]
pub fn off_cpu_kinds(
    voluntary: bool,
    reason: &str,
    duration_ns: i64,
    run_delay_ns: i64,
    next_pid: Option<i64>,
    next_comm: &str,
) -> [(Kind, i64); 2] {
    if !voluntary {
        let pushed = pushed_off(reason, next_pid, next_comm);
        return [(pushed, duration_ns), (pushed, 0)];
    }
    let queued_ns = run_delay_ns.clamp(0, duration_ns.max(0));
    [(waited(reason, ""), duration_ns - queued_ns), (Kind::CpuStolen, queued_ns)]
}
