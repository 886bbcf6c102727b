//! The bytes the BPF programs write, parsed with size checks. `bpf/wire.h` defines them; the sizes
//! are asserted here and, for the record kinds, on every record. `decode` interprets the records.

use crate::bytes::Reader;
use crate::signals::wire as signals;
use crate::signals::wire::RawHost;
use crate::verbs::{self, RawVerbs};

/// Most arguments a call carries.
pub(crate) const MAX_ARGS: usize = 12;
/// Statistics slots behind those of the functions.
pub(crate) const SLOT_OFFCPU: u8 = 220;
pub(crate) const SLOT_TCP: u8 = 221;
pub(crate) const SLOT_PROCESS: u8 = 222;
/// How many there are (`RM_MAX_FUNCS`).
pub(crate) const SLOTS: u8 = 224;
/// Counters of a communicator (`RM_COUNTERS`).
#[cfg(test)]
pub(crate) const COUNTERS: u8 = 96;

pub(crate) const HAVE_HASH: u8 = 1;
pub(crate) const HAVE_SEQ: u8 = 2;
pub(crate) const HAVE_RANK: u8 = 4;
pub(crate) const FROM_RCCL: u8 = 8;
/// Of a call of MPI, the same bit: its counts are words of 64 bits.
pub(crate) const LARGE_COUNTS: u8 = FROM_RCCL;
pub(crate) const IN_GROUP: u8 = 16;
pub(crate) const CAPTURED: u8 = 32;
pub(crate) const CAPTURE_KNOWN: u8 = 64;
/// Its thread ended in it.
pub(crate) const NOT_RETURNED: u8 = 128;
/// `RM_ROLE_GROUP_END`, and the roles whose calls become records (`MAKES_RECORD`).
const ROLE_GROUP_END: u8 = 10;
const RECORDED_ROLES: [u8; 7] = [0, 7, ROLE_GROUP_END, 11, 12, 14, 15];
/// `RM_NO_POSITION`.
pub(crate) const NO_POSITION: u64 = u64::MAX;

/// `RM_TRACKED`, the value of the map `tracked`.
pub(crate) const TRACKED: u32 = 1;

/// `RM_COMM_BEGINS`.
const COMM_BEGINS: u32 = 8;
const CALL_BYTES: usize = 176;
/// Of a call with few arguments (`RM_SHORT_CALL`): the others read as 0.
const SHORT_CALL_BYTES: usize = 136;
const OFFCPU_BYTES: usize = 184;
/// Most kernel frames of a stretch off the CPU.
const STACK_DEPTH: usize = 12;
const TCP_BYTES: usize = 80;
const PROCESS_BYTES: usize = 16;
/// One CPU's `struct rm_stats`.
pub(crate) const STATS_BYTES: usize = 40;

/// A library call, from entry to return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawCall {
    pub(crate) func: u8,
    pub(crate) flags: u8,
    pub(crate) enter_ns: u64,
    pub(crate) exit_ns: u64,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) cgroup_id: u64,
    pub(crate) comm_hash: u64,
    pub(crate) seq: u64,
    /// [`NO_POSITION`]: none.
    pub(crate) comm_seq: u64,
    pub(crate) rank: i32,
    pub(crate) nranks: i32,
    pub(crate) ret: i32,
    pub(crate) args: [u64; MAX_ARGS],
    /// The address it returned to: the instruction after the call. 0: not known.
    pub(crate) site: u64,
}

/// A stretch off the CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawOffCpu {
    pub(crate) cpu: u32,
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) cgroup_id: u64,
    pub(crate) next_pid: u32,
    pub(crate) voluntary: bool,
    pub(crate) next_comm: [u8; 16],
    /// When it was runnable again; 0: not seen.
    pub(crate) wake_ns: u64,
    pub(crate) state: u32,
    pub(crate) iowait: bool,
    /// It could run, but the CPU quota of its cgroup was used up.
    pub(crate) throttled: bool,
    /// Kernel return addresses, innermost first.
    pub(crate) stack: Vec<u64>,
}

/// A TCP event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawTcp {
    /// `enum rm_tcp_event`.
    pub(crate) event: u16,
    pub(crate) state: u32,
    pub(crate) ts_ns: u64,
    pub(crate) cgroup_id: u64,
    pub(crate) socket_inode: u64,
    pub(crate) family: u16,
    pub(crate) sport: u16,
    pub(crate) dport: u16,
    pub(crate) segs: u32,
    pub(crate) saddr: [u8; 16],
    pub(crate) daddr: [u8; 16],
}

/// One record of the ring buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RawRecord {
    Call(Box<RawCall>),
    /// A process is a member of a communicator that it has just made.
    CommBegins(Box<RawCall>),
    OffCpu(RawOffCpu),
    Tcp(RawTcp),
    Host(RawHost),
    Verbs(RawVerbs),
    /// A process now runs another program.
    Exec {
        pid: u32,
        ts_ns: u64,
    },
    /// The last thread of a process ended.
    Exit {
        pid: u32,
    },
    /// The first traced call of a process begins.
    Found {
        pid: u32,
    },
    /// Its MPI_Init has returned.
    MpiBegan {
        pid: u32,
    },
}

/// Parses one record; none when its kind is unknown or its size is not the kind's.
pub(crate) fn parse(bytes: &[u8]) -> Option<RawRecord> {
    let kind = Reader::new(bytes).u32()?;
    let want = match kind {
        1 | COMM_BEGINS if bytes.len() == SHORT_CALL_BYTES => SHORT_CALL_BYTES,
        1 | COMM_BEGINS => CALL_BYTES, // the shim's are of this size
        2 => OFFCPU_BYTES,
        3 => TCP_BYTES,
        4..=7 => PROCESS_BYTES,
        verbs::KIND => verbs::BYTES,
        other => signals::size_of(other)?,
    };
    if bytes.len() != want {
        return None;
    }
    let mut r = Reader::new(bytes.get(4..)?);
    Some(match kind {
        1 | COMM_BEGINS => {
            let func = r.u8()?;
            let flags = r.u8()?;
            let site_high = r.u16()?;
            let site_low;
            let call = Box::new(RawCall {
                func,
                flags,
                enter_ns: r.u64()?,
                exit_ns: r.u64()?,
                pid: r.u32()?,
                tid: r.u32()?,
                cgroup_id: r.u64()?,
                comm_hash: r.u64()?,
                seq: r.u64()?,
                comm_seq: r.u64()?,
                rank: r.u32()? as i32,
                nranks: r.u32()? as i32,
                ret: r.u32()? as i32,
                args: {
                    site_low = r.u32()?;
                    let mut args = [0; MAX_ARGS];
                    args.iter_mut().zip(std::iter::from_fn(|| r.u64())).for_each(|(arg, word)| *arg = word);
                    args
                },
                site: u64::from(site_high) << 32 | u64::from(site_low),
            });
            if kind == 1 { RawRecord::Call(call) } else { RawRecord::CommBegins(call) }
        }
        2 => {
            let (iowait, throttled);
            RawRecord::OffCpu(RawOffCpu {
                cpu: r.u32()?,
                start_ns: r.u64()?,
                end_ns: r.u64()?,
                pid: r.u32()?,
                tid: r.u32()?,
                cgroup_id: r.u64()?,
                next_pid: r.u32()?,
                voluntary: r.u32()? != 0,
                next_comm: r.array()?,
                wake_ns: r.u64()?,
                state: r.u32()?,
                stack: {
                    let frames = (r.u32()? as usize / 8).min(STACK_DEPTH);
                    iowait = r.u32()? != 0;
                    throttled = r.u32()? != 0;
                    (0..frames).map_while(|_| r.u64()).filter(|address| *address != 0).collect()
                },
                iowait,
                throttled,
            })
        }
        3 => {
            let state = r.u32()?;
            let ts_ns = r.u64()?;
            let cgroup_id = r.u64()?;
            let socket_inode = r.u64()?;
            let family = r.u16()?;
            let sport = r.u16()?;
            let dport = r.u16()?;
            let event = r.u16()?;
            let segs = r.u32()?;
            let _pad = r.u32()?;
            let (saddr, daddr) = (r.array()?, r.array()?);
            RawRecord::Tcp(RawTcp {
                event,
                state,
                ts_ns,
                cgroup_id,
                socket_inode,
                family,
                sport,
                dport,
                segs,
                saddr,
                daddr,
            })
        }
        4 => RawRecord::Exec { pid: r.u32()?, ts_ns: r.u64()? },
        5 => RawRecord::Exit { pid: r.u32()? },
        6 => RawRecord::Found { pid: r.u32()? },
        7 => RawRecord::MpiBegan { pid: r.u32()? },
        verbs::KIND => RawRecord::Verbs(RawVerbs::parse(&mut r)?),
        other => RawRecord::Host(signals::parse(other, &mut r)?),
    })
}

/// A call that has not returned, as the iterator `open_calls` writes it (`struct rm_open_call`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawInFlight {
    /// It is ncclGroupEnd: it waits for the calls of its group.
    pub(crate) group_end: bool,
    /// Where the thread's stack was when it began.
    pub(crate) sp: u64,
    /// The call as if it returned now.
    pub(crate) call: RawCall,
}

/// The iterator's entry of each thread.
pub(crate) const OPEN_CALL_BYTES: usize = 176;

impl RawInFlight {
    /// None when the bytes are of another form, or the call is one that makes no record.
    pub(crate) fn parse(bytes: &[u8], now_ns: u64) -> Option<RawInFlight> {
        let mut r = Reader::new(bytes);
        let (pid, tid) = (r.u32()?, r.u32()?);
        let enter_ns = r.u64()?;
        let sp = r.u64()?;
        let (seq, comm_seq, comm_hash, cgroup_id) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
        let [func, role, have_seq, _have_hash] = r.array()?;
        let (rank, nranks) = (r.u32()? as i32, r.u32()? as i32);
        let comm_flags = r.u32()? as u8 & (HAVE_HASH | HAVE_RANK | FROM_RCCL);
        let _handle = r.u64()?;
        let mut args = [0; MAX_ARGS];
        for arg in &mut args {
            *arg = r.u64()?;
        }
        let flags = NOT_RETURNED | comm_flags | if have_seq != 0 { HAVE_SEQ } else { 0 };
        let group_end = role == ROLE_GROUP_END;
        (RECORDED_ROLES.contains(&role) && enter_ns != 0).then_some(RawInFlight {
            group_end,
            sp,
            call: RawCall {
                func,
                flags,
                enter_ns,
                exit_ns: now_ns,
                pid,
                tid,
                cgroup_id,
                comm_hash,
                seq,
                comm_seq,
                rank,
                nranks,
                ret: 0,
                args,
                site: 0,
            },
        })
    }
}

/// An entry of the map `waiting`: thread (process id << 32 | thread id) and kernel time of the
/// entry.
pub(crate) fn waiting(key: &[u8], value: &[u8]) -> Option<(u64, u64)> {
    Some((Reader::new(key).u64()?, Reader::new(value).u64()?))
}

/// Where `off.followed` lies in `struct thread_state` (`bpf/thread.bpf.h`), and its value
/// `FOLLOWED`.
const FOLLOWED: (usize, u8) = (46, 1);

/// The initial `struct thread_state` of a thread, of a process that is followed.
pub(crate) fn followed_thread(bytes: usize) -> Vec<u8> {
    let mut state = vec![0; bytes];
    if let Some(followed) = state.get_mut(FOLLOWED.0) {
        *followed = FOLLOWED.1;
    }
    state
}

/// The process of a key that begins with its number.
pub(crate) fn pid_of_key(key: &[u8]) -> Option<u32> {
    key.first_chunk().copied().map(u32::from_ne_bytes)
}

/// `struct rm_comm_key`.
pub(crate) fn comm_key(pid: u32, handle: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..4].copy_from_slice(&pid.to_ne_bytes());
    key[8..].copy_from_slice(&handle.to_ne_bytes());
    key
}

/// Process and handle of a `struct rm_comm_key`.
pub(crate) fn comm_of_key(key: &[u8]) -> Option<(u32, u64)> {
    let (pid, handle) = (key.first_chunk()?, key.get(8..)?.first_chunk()?);
    Some((u32::from_ne_bytes(*pid), u64::from_ne_bytes(*handle)))
}

/// Hash, rank and size in a `struct rm_comm_entry`, where all of them are known.
pub(crate) fn comm_facts(entry: &[u8]) -> Option<(u64, i32, i32)> {
    let number = |at: usize| entry.get(at..)?.first_chunk().copied().map(i32::from_ne_bytes);
    let flags = number(16)?.cast_unsigned();
    let all = u32::from(HAVE_HASH | HAVE_RANK);
    Some((comm_hash(entry)?, number(8)?, number(12)?)).filter(|_| flags & all == all)
}

/// The hash in a `struct rm_comm_entry`, or in a `struct rm_comm`.
pub(crate) fn comm_hash(entry: &[u8]) -> Option<u64> {
    entry.first_chunk().copied().map(u64::from_ne_bytes)
}

/// `struct rm_comm` of the communicator that `call` was made in.
pub(crate) fn comm_value(call: &RawCall, flags: u8) -> [u8; 24] {
    let mut value = [0; 24];
    value[..8].copy_from_slice(&call.comm_hash.to_ne_bytes());
    value[8..12].copy_from_slice(&call.rank.to_ne_bytes());
    value[12..16].copy_from_slice(&call.nranks.to_ne_bytes());
    value[16..20].copy_from_slice(&u32::from(flags).to_ne_bytes());
    value
}

/// `struct rm_mpi`: what the programs are to know of a process's MPI library.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RawMpi {
    /// The handles of MPI_COMM_WORLD, MPI_COMM_SELF and MPI_COMM_NULL; 0: not known.
    pub(crate) world: u64,
    pub(crate) own: u64,
    pub(crate) none: u64,
    /// Names the host as MPI sees it.
    pub(crate) host: u64,
    /// MPICH: its tables of communicators; of the last the address of the kind in its description.
    pub(crate) builtin: u64,
    pub(crate) direct: u64,
    pub(crate) indirect: u64,
    /// MPICH: bytes of an entry.
    pub(crate) entry_bytes: u32,
    /// Offsets in the library's structures; `rank_at` 0: not known.
    pub(crate) rank_at: u32,
    pub(crate) size_at: u32,
    pub(crate) group_at: u32,
    pub(crate) remote_at: u32,
    pub(crate) members_at: u32,
    pub(crate) name_at: u32,
}

impl RawMpi {
    /// Without the counter at its end, which is the programs' own.
    pub(crate) fn to_bytes(self) -> [u8; 88] {
        let mut bytes = [0; 88];
        let words = [self.world, self.own, self.none, self.host, self.builtin, self.direct, self.indirect];
        for (at, word) in bytes.chunks_exact_mut(8).zip(words) {
            at.copy_from_slice(&word.to_ne_bytes());
        }
        let RawMpi { entry_bytes, rank_at, size_at, group_at, remote_at, members_at, name_at, .. } = self;
        let halves = [entry_bytes, rank_at, size_at, group_at, remote_at, members_at, name_at];
        for (at, half) in bytes[56..].chunks_exact_mut(4).zip(halves) {
            at.copy_from_slice(&half.to_ne_bytes());
        }
        bytes
    }
}

/// One probe's counters, summed over the CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    pub(crate) hits: u64,
    pub(crate) lost_ring: u64,
    pub(crate) lost_map: u64,
    pub(crate) unmatched: u64,
    pub(crate) shed: u64,
}

impl Stats {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let mut r = Reader::new(bytes);
        for field in [&mut self.hits, &mut self.lost_ring, &mut self.lost_map, &mut self.unmatched, &mut self.shed] {
            *field += r.u64().unwrap_or(0);
        }
    }
}

/// `RM_EVERYBODY`.
pub(crate) const EVERYBODY: u32 = u32::MAX;

/// `struct rm_config`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawConfig {
    pub(crate) cgroup_id: u64,
    pub(crate) offcpu_min_ns: u64,
    pub(crate) wake_bytes: u64,
    pub(crate) own_pid: u32,
    /// [`EVERYBODY`], or the only user whose processes are recorded.
    pub(crate) only_uid: u32,
    pub(crate) block_min_ns: u64,
    /// The tracepoints of block requests pass the queue before the request (before Linux 5.11).
    pub(crate) queue_first: bool,
}

impl RawConfig {
    pub(crate) fn to_bytes(self) -> [u8; 48] {
        let mut bytes = [0; 48];
        bytes[..8].copy_from_slice(&self.cgroup_id.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.offcpu_min_ns.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.wake_bytes.to_ne_bytes());
        bytes[24..28].copy_from_slice(&self.own_pid.to_ne_bytes());
        bytes[28..32].copy_from_slice(&self.only_uid.to_ne_bytes());
        bytes[32..40].copy_from_slice(&self.block_min_ns.to_ne_bytes());
        bytes[40..44].copy_from_slice(&u32::from(self.queue_first).to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_call_reads_back_field_by_field() {
        let mut bytes = vec![];
        bytes.extend(1u32.to_ne_bytes());
        bytes.extend([7, HAVE_HASH | HAVE_SEQ, 9, 0]);
        for word in [100u64, 250] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(41u32.to_ne_bytes());
        bytes.extend(42u32.to_ne_bytes());
        for word in [5u64, 0xdead_beef_0000_0001, 17, 19] {
            bytes.extend(word.to_ne_bytes());
        }
        for word in [-1i32, 8, -3, 0] {
            bytes.extend(word.to_ne_bytes());
        }
        for arg in 0..12u64 {
            bytes.extend((arg * 3).to_ne_bytes());
        }
        let Some(RawRecord::Call(call)) = parse(&bytes) else { panic!("not a call") };
        assert_eq!((call.func, call.flags, call.enter_ns, call.exit_ns), (7, 3, 100, 250));
        assert_eq!((call.pid, call.tid, call.cgroup_id, call.seq), (41, 42, 5, 17));
        assert_eq!(call.comm_seq, 19);
        assert_eq!((call.comm_hash, call.rank, call.nranks, call.ret), (0xdead_beef_0000_0001, -1, 8, -3));
        assert_eq!(call.args[11], 33);
        let Some(RawRecord::Call(short)) = parse(&bytes[..136]) else { panic!("not a call") };
        assert_eq!((short.enter_ns, short.args[6], short.args[7..].to_vec()), (100, 18, vec![0; 5]));
        assert_eq!(parse(&bytes[..bytes.len() - 1]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_of_the_right_size_or_none(kind in 0u32..20, exact: bool, rest in prop::collection::vec(any::<u8>(), 0..256)) {
            let mut bytes = kind.to_ne_bytes().to_vec();
            bytes.extend(rest);
            let size = match kind {
                1 | COMM_BEGINS => CALL_BYTES,
                2 => OFFCPU_BYTES,
                3 => TCP_BYTES,
                4..=7 => PROCESS_BYTES,
                verbs::KIND => verbs::BYTES,
                other => signals::size_of(other).unwrap_or(0),
            };
            bytes.resize(if exact { size.max(4) } else { bytes.len() }, 0);
            let short = [1, COMM_BEGINS].contains(&kind) && bytes.len() == SHORT_CALL_BYTES;
            prop_assert_eq!(parse(&bytes).is_some(), bytes.len() == size || short);
        }
    }
}
