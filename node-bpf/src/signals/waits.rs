//! Why a thread was off the CPU: from its state, the kernel's IO accounting and the functions it
//! waited in. The classes are the kernel's own names for waiting (Linux 5.15 to 6.18, kernel/sched,
//! mm, net, block); where no function is known the state alone decides.

use crate::signals::kernel_names::KernelNames;

const TASK_INTERRUPTIBLE: u32 = 1;
const TASK_STOPPED: u32 = 4;
const TASK_TRACED: u32 = 8;
const TASK_FROZEN: u32 = 0x8000;

/// The scheduler's own functions: the frames above them show where a thread waits.
const SCHEDULER: &[&str] = &[
    "__schedule",
    "schedule",
    "schedule_timeout",
    "schedule_timeout_idle",
    "schedule_timeout_interruptible",
    "schedule_timeout_killable",
    "schedule_timeout_uninterruptible",
    "schedule_hrtimeout",
    "schedule_hrtimeout_range",
    "schedule_hrtimeout_range_clock",
    "schedule_preempt_disabled",
    "io_schedule",
    "io_schedule_timeout",
    "__cond_resched",
    "preempt_schedule",
    "preempt_schedule_common",
    "wait_woken",
    "wait_for_completion",
    "wait_for_completion_io",
    "wait_for_common",
    "__wait_for_common",
    "__wait_on_bit",
    "out_of_line_wait_on_bit",
    "bit_wait",
    "bit_wait_io",
    "do_wait_intr",
    "do_wait_intr_irq",
    "trace_call_bpf",
    "bpf_get_task_stack",
];

/// Classes by the beginnings of function names, tried in this order on every frame: IO for a fault
/// counts as a fault.
const CLASSES: &[(&str, &[&str])] = &[
    ("stopped", &["do_signal_stop", "ptrace_stop", "ptrace_do_notify", "do_freezer_trap", "__refrigerator"]),
    (
        "fault",
        &[
            "handle_mm_fault",
            "do_user_addr_fault",
            "do_swap_page",
            "swap_read_folio",
            "swap_readpage",
            "filemap_fault",
            "try_to_free_pages",
            "try_to_free_mem_cgroup_pages",
            "__alloc_pages_slowpath",
            "mem_cgroup_handle_over_high",
            "__mem_cgroup_handle_over_high",
            "reclaim_throttle",
            "throttle_direct_reclaim",
            "pagefault_out_of_memory",
            "mem_cgroup_oom_synchronize",
        ],
    ),
    (
        "lock",
        &[
            "futex_",
            "__futex_",
            "do_futex",
            "rwsem_",
            "__down_",
            "down_",
            "__mutex_lock",
            "mutex_lock",
            "ww_mutex_lock",
            "rt_mutex_",
            "__rt_mutex_",
            "percpu_down_",
            "flock_lock_inode_wait",
            "posix_lock_inode_wait",
        ],
    ),
    (
        "network",
        &[
            "sk_wait_data",
            "sk_stream_wait",
            "__skb_wait_for_more_packets",
            "skb_wait_for",
            "unix_",
            "tcp_",
            "inet_",
            "udp_",
            "sock_recvmsg",
            "sock_sendmsg",
            "sock_alloc_send",
            "lock_sock_nested",
            "__lock_sock",
            "rpc_wait",
            "ib_",
            "rdma_",
        ],
    ),
    (
        "io",
        &[
            "folio_wait",
            "__folio_lock",
            "wait_on_page",
            "__lock_page",
            "blk_",
            "submit_bio_wait",
            "blkdev_",
            "__blkdev_",
            "iomap_dio",
            "__iomap_dio",
            "dio_",
            "jbd2_",
            "xfs_",
            "btrfs_",
            "ext4_",
            "nfs_",
            "nfs4_",
            "fuse_",
            "request_wait_answer",
            "balance_dirty_pages",
            "rq_qos_wait",
            "wbt_wait",
            "io_uring_",
            "io_cqring_wait",
            "read_events",
            "vfs_fsync",
            "file_write_and_wait",
            "ll_",
            "cl_",
        ],
    ),
    ("sleep", &["hrtimer_nanosleep", "do_nanosleep", "common_nsleep", "clock_nanosleep", "msleep", "usleep"]),
];

/// Why and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) reason: &'static str,
    pub(crate) wchan: Option<String>,
}

/// The data of a stretch off the CPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stretch<'a> {
    pub(crate) voluntary: bool,
    /// `task_struct.__state` when it left.
    pub(crate) state: u32,
    /// The kernel counts the wait as one for IO.
    pub(crate) iowait: bool,
    /// It could run, but the CPU quota of its cgroup was used up.
    pub(crate) throttled: bool,
    /// Return addresses, innermost first.
    pub(crate) stack: &'a [u64],
}

/// Judges a stretch.
pub(crate) fn judge(stretch: &Stretch<'_>, names: &KernelNames) -> Wait {
    if !stretch.voluntary {
        return Wait { reason: if stretch.throttled { "throttled" } else { "preempted" }, wchan: None };
    }
    let frames: Vec<&str> = stretch
        .stack
        .iter()
        .filter_map(|address| names.of(*address))
        .skip_while(|name| SCHEDULER.contains(name))
        .collect();
    let wchan = frames.first().map(|name| (*name).to_owned());
    let is = |prefixes: &[&str]| frames.iter().any(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)));
    let by_function = CLASSES.iter().find(|(_, prefixes)| is(prefixes)).map(|(class, _)| *class);
    let stopped = stretch.state & (TASK_STOPPED | TASK_TRACED | TASK_FROZEN) != 0;
    let reason = match by_function {
        _ if stopped => "stopped",
        Some(class @ ("fault" | "stopped")) => class,
        _ if stretch.iowait => "io",
        Some(class) => class,
        None if frames.is_empty() && stretch.state & TASK_INTERRUPTIBLE != 0 => "sleep",
        None if frames.is_empty() => "io", // an uninterruptible wait of unknown place: nearly always a disk
        None => "other",
    };
    Wait { reason, wchan }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(stretch: &Stretch<'_>) -> &'static str {
        judge(stretch, &KernelNames::default()).reason
    }

    const SLEEPING: Stretch<'_> = Stretch { voluntary: true, state: 1, iowait: false, throttled: false, stack: &[] };

    #[test]
    fn without_names_the_state_decides() {
        assert_eq!(reason(&Stretch { voluntary: false, state: 0, ..SLEEPING }), "preempted");
        assert_eq!(reason(&Stretch { voluntary: false, state: 0, throttled: true, ..SLEEPING }), "throttled");
        assert_eq!(reason(&SLEEPING), "sleep");
        assert_eq!(reason(&Stretch { state: 2, ..SLEEPING }), "io");
        assert_eq!(reason(&Stretch { iowait: true, ..SLEEPING }), "io");
        assert_eq!(reason(&Stretch { state: 0x104, ..SLEEPING }), "stopped");
    }

    #[test]
    fn the_functions_it_waited_in_decide() {
        let all = [
            "__schedule",
            "schedule",
            "io_schedule",
            "folio_wait_bit_common",
            "filemap_fault",
            "futex_wait",
            "hrtimer_nanosleep",
            "sk_wait_data",
            "pipe_read",
            "filemap_read",
        ];
        let text: String =
            all.iter().enumerate().map(|(i, name)| format!("{:x} T {name}\n", (i + 1) * 0x100)).collect();
        let names = KernelNames::of_text(&text);
        let judged = |functions: &[&str], iowait: bool| {
            let at = |name: &&str| (all.iter().position(|n| n == name).unwrap() as u64 + 1) * 0x100 + 8;
            let mut stack = vec![0x108, 0x208];
            stack.extend(functions.iter().map(at));
            let wait = judge(&Stretch { iowait, stack: &stack, ..SLEEPING }, &names);
            (wait.reason, wait.wchan.unwrap())
        };
        assert_eq!(judged(&["futex_wait"], false), ("lock", "futex_wait".to_owned()));
        assert_eq!(judged(&["hrtimer_nanosleep"], false), ("sleep", "hrtimer_nanosleep".to_owned()));
        assert_eq!(judged(&["sk_wait_data"], false), ("network", "sk_wait_data".to_owned()));
        assert_eq!(judged(&["pipe_read"], false), ("other", "pipe_read".to_owned()));
        let wait = "folio_wait_bit_common".to_owned();
        assert_eq!(judged(&["io_schedule", "folio_wait_bit_common", "filemap_read"], true), ("io", wait.clone()));
        assert_eq!(judged(&["io_schedule", "folio_wait_bit_common", "filemap_fault"], true), ("fault", wait));
    }
}
