//! From parsed kernel records to [`Record`]s: names, units, ranks and wall-clock times. `wire`
//! parses; `process` and `mpi` resolve processes and handles.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, LazyLock};

use crate::clock::Clock;
use crate::functions::{self, Api, Comm, FUNCTIONS, Function, Role};
use crate::gloo;
use crate::mpi::identity;
use crate::process::Process;
use crate::signals::kernel_names::KernelNames;
use crate::signals::waits::{self, Stretch};
use crate::wire::{self, RawCall, RawOffCpu, RawTcp};
use record::{Collective, Library, NetEvent, OffCpu};

/// A call; none when its function is unknown (a record of another build's programs).
pub(crate) fn call(raw: &RawCall, clock: &Clock, process: Option<&Arc<Process>>) -> Option<Collective> {
    let function = FUNCTIONS.get(usize::from(raw.func))?;
    let seen = process.map(|p| &p.seen);
    let mut out = Collective {
        ts_ns: clock.unix_ns(raw.enter_ns),
        duration_ns: i64::try_from(raw.exit_ns.saturating_sub(raw.enter_ns)).unwrap_or(i64::MAX),
        pid: raw.pid,
        tid: raw.tid,
        rank: None,
        local_rank: seen.and_then(|s| s.local_rank),
        nranks: None,
        comm_hash: None,
        func: function.name,
        seq: (raw.flags & wire::HAVE_SEQ != 0).then_some(raw.seq),
        comm_seq: (raw.comm_seq != wire::NO_POSITION).then_some(raw.comm_seq),
        count: argument(raw, function.count).and_then(|value| match function.api {
            Api::Nccl | Api::Gloo => Some(value), // size_t
            Api::Mpi if raw.flags & wire::LARGE_COUNTS != 0 => u64::try_from(value.cast_signed()).ok(), // MPI_Count
            Api::Mpi => u64::try_from(value as u32 as i32).ok(), // int
        }),
        datatype: None,
        bytes: None,
        reduce_op: None,
        root: argument(raw, function.root).map(|value| value as u32 as i32).filter(|root| *root >= 0),
        tag: argument(raw, function.tag).map(|value| value as u32 as i32).filter(|tag| *tag >= 0),
        stream: argument(raw, function.stream),
        library: Library::Nccl,
        tier: 0,
        ret: returned(raw),
        cgroup_id: raw.cgroup_id,
        job_id: process.and_then(|process| process.job_id.clone()),
        captured: (raw.flags & wire::CAPTURE_KNOWN != 0).then_some(raw.flags & wire::CAPTURED != 0),
        site: None,
    };
    match function.api {
        Api::Nccl => nccl(&mut out, raw, function, process),
        Api::Mpi => mpi(&mut out, raw, function, process),
        Api::Gloo => gloo::decode(&mut out, raw, function, process.map(AsRef::as_ref)),
    }
    Some(out)
}

/// Whether it is a call of MPI.
pub(crate) fn is_mpi(raw: &RawCall) -> bool {
    FUNCTIONS.get(usize::from(raw.func)).is_some_and(|function| function.api == Api::Mpi)
}

/// What it returned; none when its thread ended in it.
pub(crate) fn returned(raw: &RawCall) -> Option<i32> {
    (raw.flags & wire::NOT_RETURNED == 0).then_some(raw.ret)
}

/// The requests that a call of MPI waits for: the address of the first, and how many.
pub(crate) fn requests(raw: &RawCall) -> Option<(u64, usize)> {
    let function = FUNCTIONS.get(usize::from(raw.func))?;
    match (function.api, function.comm, function.kind?) {
        (Api::Mpi, Comm::None, functions::REQUEST) if function.role == Role::Call => Some((raw.args[0], 1)),
        (Api::Mpi, Comm::None, functions::REQUESTS | functions::REQUESTS_SOME) if function.role == Role::Call => {
            Some((raw.args[1], usize::try_from(raw.args[0] as u32 as i32).ok()?))
        }
        _ => None,
    }
}

/// Not a call of its own: the end of a group, which starts the calls made in it.
pub(crate) fn is_group_end(raw: &RawCall) -> bool {
    FUNCTIONS.get(usize::from(raw.func)).is_some_and(|function| function.role == Role::GroupEnd)
}

/// The handle of the communicator that a call was made in, and whose it is.
pub(crate) fn communicator(raw: &RawCall) -> Option<(Api, u64)> {
    let function = FUNCTIONS.get(usize::from(raw.func)).filter(|function| function.role != Role::MpiFree)?;
    Some((function.api, argument(raw, function.comm.at())?))
}

fn argument(raw: &RawCall, position: Option<u8>) -> Option<u64> {
    raw.args.get(usize::from(position?)).copied()
}

fn set_datatype(out: &mut Collective, datatype: Option<(&'static str, u64)>) {
    let Some((name, bytes)) = datatype else {
        return;
    };
    out.datatype = Some(name).filter(|name| !name.is_empty());
    out.bytes = out.count.and_then(|count| count.checked_mul(bytes));
}

fn nccl(out: &mut Collective, raw: &RawCall, function: &Function, process: Option<&Arc<Process>>) {
    if raw.flags & wire::FROM_RCCL != 0 {
        out.library = Library::Rccl;
    }
    if raw.flags & wire::HAVE_RANK != 0 {
        out.rank = Some(raw.rank);
        out.nranks = Some(raw.nranks);
    } else if raw.flags & wire::HAVE_SEQ == 0 {
        // The communicator's start was not seen: the environment's rank is the best there is. If a
        // start was seen (a split) the rank is another than that, and not known.
        out.rank = process.and_then(|p| p.seen.rank);
    }
    out.comm_hash = (raw.flags & wire::HAVE_HASH != 0).then_some(raw.comm_hash);
    set_datatype(out, argument(raw, function.datatype).and_then(|value| functions::nccl_datatype(value as u32 as i32)));
    out.reduce_op = argument(raw, function.op).and_then(|value| functions::nccl_op(value as u32 as i32));
}

fn mpi(out: &mut Collective, raw: &RawCall, function: &Function, process: Option<&Arc<Process>>) {
    out.library = Library::Mpi;
    // a blocking call returns after it was synchronised
    out.tier = u8::from(function.role != Role::MpiBegins);
    let Some(process) = process else { return };
    let names = process.mpi();
    let namespace = process.mpi_namespace.as_deref();
    let handle = argument(raw, function.comm.at()).filter(|_| function.role != Role::MpiFree);
    let is_world = function.role == Role::MpiInit
        || function.comm == Comm::World
        || handle.is_some_and(|comm| names.is_world(comm));
    if raw.flags & wire::HAVE_RANK != 0 {
        (out.rank, out.nranks) = (Some(raw.rank), Some(raw.nranks));
    } else if is_world {
        (out.rank, out.nranks) = (process.seen.rank, process.seen.world_size);
    }
    if raw.flags & wire::HAVE_HASH != 0 {
        out.comm_hash = namespace.map(|namespace| identity::communicator(process.user, namespace, raw.comm_hash));
    } else if is_world {
        out.comm_hash = namespace.map(|namespace| identity::communicator(process.user, namespace, identity::WORLD));
    }
    if in_place(raw, function) {
        out.count = None;
    } else {
        set_datatype(out, argument(raw, function.datatype).and_then(|value| names.datatype(value)));
    }
    out.reduce_op = argument(raw, function.op).and_then(|value| names.op(value));
    let is_from_any = argument(raw, function.root).is_some_and(|peer| names.is_any_source(peer));
    if function.tag.is_some() && is_from_any {
        out.root = Some(ANY_SOURCE);
    }
}

/// `Collective::root` of a receive from any rank.
const ANY_SOURCE: i32 = -1;

/// MPI_IN_PLACE (1 in Open MPI, -1 in MPICH) as a buffer whose count and datatype are then ignored.
fn in_place(raw: &RawCall, function: &Function) -> bool {
    let buffer = match function.name.strip_prefix('i').unwrap_or(function.name) {
        "all_gather" | "all_gather_v" | "all_to_all" | "all_to_all_v" | "gather" | "gather_v" => raw.args[0],
        "scatter" => raw.args[3], // what is received at the root
        "scatter_v" => raw.args[4],
        _ => return false,
    };
    [1, u64::MAX].contains(&buffer)
}

/// A stretch off the CPU.
pub(crate) fn off_cpu(
    raw: &RawOffCpu,
    clock: &Clock,
    process: Option<&Arc<Process>>,
    names: &LazyLock<KernelNames>,
) -> OffCpu {
    let RawOffCpu { voluntary, state, iowait, throttled, stack, .. } = raw;
    let stretch = Stretch { voluntary: *voluntary, state: *state, iowait: *iowait, throttled: *throttled, stack };
    let nobody = KernelNames::default();
    let wait = waits::judge(&stretch, if raw.stack.is_empty() { &nobody } else { names });
    // if preempted, it waited for a CPU all the time; else from when it was woken
    let runnable_ns = if raw.voluntary { Some(raw.wake_ns).filter(|ns| *ns != 0) } else { Some(raw.start_ns) };
    let run_delay_ns = runnable_ns.and_then(|from| i64::try_from(raw.end_ns.saturating_sub(from)).ok());
    let name = raw.next_comm.split(|&b| b == 0).next().unwrap_or_default();
    OffCpu {
        ts_ns: clock.unix_ns(raw.start_ns),
        duration_ns: i64::try_from(raw.end_ns.saturating_sub(raw.start_ns)).unwrap_or(i64::MAX),
        pid: raw.pid,
        tid: raw.tid,
        cpu: raw.cpu,
        voluntary: raw.voluntary,
        next_pid: raw.next_pid,
        next_comm: String::from_utf8_lossy(name).into_owned(),
        rank: process.and_then(|p| p.seen.rank),
        cgroup_id: raw.cgroup_id,
        reason: wait.reason,
        run_delay_ns,
        wchan: wait.wchan,
    }
}

/// A TCP event, with the process that has the socket if it is a followed one.
pub(crate) fn tcp(raw: &RawTcp, clock: &Clock, owner: Option<&Arc<Process>>) -> NetEvent {
    let address = |bytes: &[u8; 16]| {
        if i32::from(raw.family) == libc::AF_INET6 {
            return Ipv6Addr::from(*bytes).to_canonical().to_string();
        }
        Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).to_string()
    };
    NetEvent {
        ts_ns: clock.unix_ns(raw.ts_ns),
        event: match raw.event {
            1 => "tcp_send_reset",
            2 => "tcp_receive_reset",
            _ => "tcp_retransmit_skb",
        },
        pid: owner.map(|p| p.seen.pid),
        rank: owner.and_then(|p| p.seen.rank),
        saddr: address(&raw.saddr),
        sport: raw.sport,
        daddr: address(&raw.daddr),
        dport: raw.dport,
        state: i32::try_from(raw.state).ok(),
        segs: Some(i64::from(raw.segs)),
        cgroup_id: raw.cgroup_id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(symbol: &str) -> RawCall {
        let func = FUNCTIONS.iter().position(|f| f.symbols.contains(&symbol)).unwrap() as u8;
        RawCall {
            func,
            flags: 0,
            enter_ns: 1_000,
            exit_ns: 5_000,
            pid: 1,
            tid: 1,
            cgroup_id: 9,
            comm_hash: 0xabc,
            seq: 4,
            comm_seq: wire::NO_POSITION,
            rank: 2,
            nranks: 8,
            ret: 0,
            args: [0; 12],
            site: 0,
        }
    }

    #[test]
    fn a_nccl_all_reduce() {
        let mut raw = raw("ncclAllReduce");
        raw.flags = wire::HAVE_HASH | wire::HAVE_SEQ | wire::HAVE_RANK;
        raw.args[2..8].copy_from_slice(&[1024, 9, 4, 0x5555, 0x77, 0]);
        let out = call(&raw, &Clock::measure(), None).unwrap();
        assert_eq!((out.func, out.duration_ns, out.tier, out.library), ("all_reduce", 4_000, 0, Library::Nccl));
        assert_eq!((out.count, out.datatype, out.bytes), (Some(1024), Some("bfloat16"), Some(2048)));
        assert_eq!((out.reduce_op, out.stream, out.root), (Some("avg"), Some(0x77), None));
        assert_eq!((out.rank, out.nranks, out.comm_hash, out.seq), (Some(2), Some(8), Some(0xabc), Some(4)));
    }

    #[test]
    fn what_was_not_seen_is_none() {
        let mut raw = raw("ncclBroadcast");
        raw.args[2..5].copy_from_slice(&[1, 99, 3]);
        let out = call(&raw, &Clock::measure(), None).unwrap();
        assert_eq!((out.rank, out.nranks, out.comm_hash, out.seq), (None, None, None, None));
        assert_eq!((out.datatype, out.bytes, out.root), (None, None, Some(3)));
        raw.func = 219;
        assert_eq!(call(&raw, &Clock::measure(), None), None);
    }

    #[test]
    fn an_mpi_recv_from_anyone_has_no_root() {
        let mut raw = raw("MPI_Recv");
        raw.args[1] = 0xffff_ffff_0000_0010; // an int: the upper half of the register is no part of it
        raw.args[3] = 0xffff_ffff;
        let out = call(&raw, &Clock::measure(), None).unwrap();
        assert_eq!((out.count, out.root, out.tier, out.library), (Some(16), None, 1, Library::Mpi));
    }

    #[test]
    fn a_send_count_that_mpi_ignores_is_not_reported() {
        let process = crate::process::Processes::new(files::Files::new(|| {})).look(std::process::id()).unwrap().0;
        let mut raw = raw("MPI_Allgather");
        raw.args[..3].copy_from_slice(&[0x7000, 8, 0x4c00_080b]);
        let out = call(&raw, &Clock::measure(), Some(&process)).unwrap();
        assert_eq!((out.count, out.datatype, out.bytes), (Some(8), Some("float64"), Some(64)));
        raw.args[0] = u64::MAX;
        let out = call(&raw, &Clock::measure(), Some(&process)).unwrap();
        assert_eq!((out.count, out.datatype, out.bytes), (None, None, None));
    }

    #[test]
    fn addresses_as_text() {
        let mut raw = RawTcp {
            event: 0,
            state: 1,
            ts_ns: 0,
            cgroup_id: 0,
            socket_inode: 0,
            family: 2,
            sport: 1,
            dport: 2,
            segs: 1,
            saddr: [0; 16],
            daddr: [0; 16],
        };
        raw.saddr[..4].copy_from_slice(&[10, 0, 0, 1]);
        raw.daddr[15] = 1;
        assert_eq!(tcp(&raw, &Clock::measure(), None).saddr, "10.0.0.1");
        raw.family = 10;
        assert_eq!(tcp(&raw, &Clock::measure(), None).daddr, "::1");
    }
}
