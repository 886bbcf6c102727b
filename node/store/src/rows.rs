//! Owns the mapping from what capture hands on to rows: this file and `host` (the host's signals)
//! know both `record`'s records and the columns of the schema. Does not own when rows are written
//! (`ingest`) nor the rollups' arithmetic (`rollups`).

mod host;
mod requests;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use record::{BlockIo, CallTally, Collective, CudaCall, HostRecord, NetEvent, OffCpu, ProcessSeen, Record, SymbolCall};
use rusqlite::{Connection, OptionalExtension, Params, Statement, params};

use super::columnar::{RowColumns, cells};
use super::rollups::{Counts, RollupKey, Rollups, Sum};

/// Longest duration taken as true: 2^53 ns, about 104 days. Anything longer (or negative) is a torn
/// record; it is counted as lost, reason "invalid". The bound also keeps a bucket's sum far from
/// 64-bit overflow.
const LONGEST_NS: i64 = 1 << 53;

/// Times of a start are rounded to the kernel's ticks: a process may have been there so much
/// earlier.
pub(super) const TICK_NS: i64 = 20_000_000;

/// A verdict to be kept in the `findings` table. `None` is "not known".
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Finding {
    /// When it was found, Unix nanoseconds.
    pub ts_ns: i64,
    /// Start of the time looked at.
    pub since_ns: i64,
    /// End of the time looked at.
    pub until_ns: i64,
    /// "rank", "replica-victim", "stage-imbalance", "network", "hang", "none", "unknown", …
    pub verdict: String,
    /// The culprit's rank.
    pub rank: Option<i32>,
    /// The culprit's node.
    pub culprit_node: Option<String>,
    /// Job.
    pub job_id: Option<String>,
    /// Communicator.
    pub comm_hash: Option<u64>,
    /// Collective.
    pub func: Option<String>,
    /// Evidence tier.
    pub tier: Option<u8>,
    /// How late.
    pub lateness_ns: Option<i64>,
    /// How well the clocks are known.
    pub clock_bound_ns: Option<i64>,
    /// Robust z.
    pub score: Option<f64>,
    /// GPU-seconds wasted.
    pub cost_gpu_s: Option<f64>,
    /// Named cause.
    pub cause: Option<String>,
    /// The verdict's text or JSON, as shown.
    pub detail: String,
}

/// Something that this node was asked, to be kept in the `audit` table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Audit {
    /// When it was asked, Unix nanoseconds.
    pub ts_ns: i64,
    /// "socket" or "mesh".
    pub via: &'static str,
    /// User id on this host, or name in the mesh.
    pub who: String,
    /// What it may do here: owner or reader; node, operator or reader.
    pub role: &'static str,
    /// The process that asked, on the socket.
    pub pid: Option<i32>,
    /// "query", "stragglers", "nodes", "task", …
    pub kind: &'static str,
    /// The SQL, cut to a bounded length.
    pub question: Option<String>,
    /// "answered", "refused" or "failed".
    pub outcome: &'static str,
    /// Why it was refused or failed.
    pub reason: Option<String>,
    /// From question to answer.
    pub duration_ns: i64,
    /// Rows that were given.
    pub rows: Option<i64>,
    /// Bytes of them.
    pub bytes: Option<i64>,
}

/// A note of a person or a program, to be kept in the `annotations` table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Annotation {
    /// When, Unix nanoseconds.
    pub ts_ns: i64,
    /// What was noted.
    pub text: String,
    /// A JSON object of texts.
    pub attributes: String,
    /// User who noted it; none where she came over the mesh.
    pub uid: Option<u32>,
}

/// Where a thread of a rank was when the standing verdict changed, to be kept in the `stacks`
/// table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StackSeen {
    /// When, Unix nanoseconds.
    pub ts_ns: i64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Its rank.
    pub rank: i32,
    /// "hang", "waiting", "late", "peer", "late_child" or "peer_child": what it was in the verdict.
    pub kind: &'static str,
    /// Samples of the process.
    pub samples: u32,
    /// Of these, with this stack.
    pub count: u32,
    /// JSON, outermost function first.
    pub frames: String,
}

/// How far another node's clock was from this one's, to be kept in the `clock_offsets` table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClockOffsetSeen {
    /// The time of that offset, Unix nanoseconds of this node's clock.
    pub ts_ns: i64,
    /// This node's name in the mesh.
    pub measured_by: String,
    /// The other's.
    pub peer: String,
    /// The other's Unix time minus this node's.
    pub offset_ns: i64,
    /// The true offset was within this of it.
    pub bound_ns: i64,
    /// How fast it grew, parts in a billion.
    pub drift_ppb: i64,
    /// The true drift was within this of it.
    pub drift_bound_ppb: i64,
}

/// One thing to store.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    Record(Record),
    Finding(Finding),
    Audit(Audit),
    Annotation(Annotation),
    Stack(StackSeen),
    Clock(ClockOffsetSeen),
}

/// Declares the kinds of items, each with the table that its rows go to.
macro_rules! kinds {
    ($($kind:ident => $table:literal,)+) => {
        /// Kinds of items for loss accounting; the discriminant indexes counters.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Kind {
            $($kind,)+
        }

        impl Kind {
            pub(crate) const ALL: [Self; [$($table),+].len()] = [$(Self::$kind),+];

            /// The table its rows go to; also the probe name under which their loss is counted.
            pub(crate) fn table(self) -> &'static str {
                match self {
                    $(Self::$kind => $table,)+
                }
            }
        }
    };
}

kinds! {
    Collective => "collectives",
    OffCpu => "offcpu",
    Net => "net_events",
    Process => "processes",
    Finding => "findings",
    Block => "block_io",
    Memory => "memory_events",
    Life => "process_events",
    Fabric => "fabric_counters",
    Gpu => "gpu_samples",
    Host => "host_samples",
    SelfStat => "self_stats",
    CudaCall => "cuda_calls",
    SymbolCall => "symbol_calls",
    CallTally => "call_rollups",
    Audit => "audit",
    Annotation => "annotations",
    Stack => "stacks",
    Clock => "clock_offsets",
    Request => "requests",
    RequestStretch => "request_stretches",
    RequestSum => "request_rollups",
}

impl Item {
    /// `None` for loss counts: they are never lost themselves and take another way.
    pub(crate) fn kind(&self) -> Option<Kind> {
        Some(match self {
            Self::Record(Record::Collective(_)) => Kind::Collective,
            Self::Record(Record::OffCpu(_)) => Kind::OffCpu,
            Self::Record(Record::Net(_)) => Kind::Net,
            Self::Record(Record::Process(_)) => Kind::Process,
            Self::Record(Record::Host(record)) => Kind::of_host(record),
            Self::Record(Record::CudaCall(_)) => Kind::CudaCall,
            Self::Record(Record::CallTally(_)) => Kind::CallTally,
            Self::Record(Record::SymbolCall(_)) => Kind::SymbolCall,
            Self::Record(Record::Request(_)) => Kind::Request,
            Self::Record(Record::RequestStretch(_)) => Kind::RequestStretch,
            Self::Record(Record::RequestSum(_)) => Kind::RequestSum,
            Self::Record(Record::Loss(_)) => return None,
            Self::Finding(_) => Kind::Finding,
            Self::Audit(_) => Kind::Audit,
            Self::Annotation(_) => Kind::Annotation,
            Self::Stack(_) => Kind::Stack,
            Self::Clock(_) => Kind::Clock,
        })
    }
}

/// What became of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    /// A row was written.
    Row,
    /// Not plausible; to be counted as lost.
    Invalid,
}

/// Writes a row: each column stands beside its value. A name alone is the record's own field.
macro_rules! row {
    (@value $of:ident, $column:ident) => { $of.$column };
    (@value $of:ident, $column:ident, $value:expr) => { $value };
    (@mark $column:ident) => { ", ?" };
    ($statements:expr, $table:literal, $of:ident: $first:ident $(, $column:ident $(= $value:expr)?)* $(,)?) => {
        $statements.insert(
            $table,
            concat!(
                "INSERT INTO ", $table, " (", stringify!($first), $(", ", stringify!($column),)* ") VALUES (?",
                $(row!(@mark $column),)* ")"
            ),
            params![$of.$first, $(row!(@value $of, $column $(, $value)?)),*],
        )
    };
}
use row;

/// The statements of one connection, each prepared once.
pub(crate) struct Statements<'c> {
    conn: &'c Connection,
    process: Statement<'c>,
    last_program: Statement<'c>,
    /// By table.
    inserts: BTreeMap<&'static str, Statement<'c>>,
}

impl<'c> Statements<'c> {
    pub(crate) fn prepare(conn: &'c Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            conn,
            inserts: BTreeMap::new(),
            // Found again: what is newly known wins, what was known stays.
            process: conn.prepare(
                "INSERT INTO processes (pid, start_ns, seen_ns, exe, comm, rank, local_rank, world_size, job_id, step_id, \
                 container_id, cgroup_path, user, uid, pod, cgroup_id, tenant) \
                 VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17) \
                 ON CONFLICT (pid, start_ns) DO UPDATE SET seen_ns = excluded.seen_ns, exe = excluded.exe, \
                 comm = excluded.comm, rank = ifnull(excluded.rank, rank), \
                 local_rank = ifnull(excluded.local_rank, local_rank), \
                 world_size = ifnull(excluded.world_size, world_size), job_id = ifnull(excluded.job_id, job_id), \
                 step_id = ifnull(excluded.step_id, step_id), \
                 container_id = ifnull(excluded.container_id, container_id), cgroup_path = excluded.cgroup_path, \
                 user = excluded.user, uid = ifnull(excluded.uid, uid), pod = ifnull(excluded.pod, pod), \
                 cgroup_id = ifnull(excluded.cgroup_id, cgroup_id), tenant = excluded.tenant",
            )?,
            last_program: conn.prepare(
                "SELECT start_ns, exe = ?3 AND uid IS ?4 FROM processes WHERE pid = ?1 AND start_ns >= ?2 \
                 ORDER BY start_ns DESC LIMIT 1",
            )?,
        })
    }

    fn insert(&mut self, table: &'static str, sql: &str, values: impl Params) -> rusqlite::Result<Stored> {
        let insert = match self.inserts.entry(table) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(self.conn.prepare(sql)?),
        };
        insert.execute(values)?;
        Ok(Stored::Row)
    }

    /// Write one item inside the open transaction; what it adds to rollups goes to `rollups`.
    /// `now_ns` is when the batch is written.
    pub(crate) fn write(&mut self, item: &Item, rollups: &mut Rollups, now_ns: i64) -> rusqlite::Result<Stored> {
        match item {
            Item::Record(Record::Host(record)) => host::write(self, record),
            Item::Record(Record::Process(p)) => self.process(p, now_ns),
            Item::Record(Record::CallTally(t)) => Ok(tally(t, rollups)),
            // These take another way, as columns; loss counts a third one.
            Item::Record(_) => Ok(Stored::Invalid),
            Item::Finding(f) => row!(
                self, "findings", f: ts_ns, since_ns, until_ns, verdict, rank, culprit_node, job_id,
                comm_hash = f.comm_hash.map(bits), func, tier, lateness_ns, clock_bound_ns, score, cost_gpu_s, cause,
                detail,
            ),
            Item::Audit(a) => row!(
                self, "audit", a: ts_ns, via, who, role, pid, kind, question, outcome, reason, duration_ns, rows, bytes,
            ),
            Item::Stack(s) => row!(self, "stacks", s: ts_ns, pid, tid, rank, kind, samples, count, frames),
            Item::Clock(c) if !plausible(c.ts_ns, c.bound_ns) => Ok(Stored::Invalid),
            Item::Clock(c) => row!(
                self, "clock_offsets", c: ts_ns, measured_by, peer, offset_ns, bound_ns, drift_ppb, drift_bound_ppb,
            ),
            Item::Annotation(a) => row!(self, "annotations", a: ts_ns, text, attributes, uid),
        }
    }

    /// The start of the row that a process belongs into: its own, unless the store knows a later
    /// program of the same process, whose exec a new session has not seen. Where that is another
    /// program than runs now, this one began at some time before now.
    fn start_of(&mut self, p: &ProcessSeen, now_ns: i64) -> rusqlite::Result<i64> {
        if p.start_ns == 0 {
            return Ok(0); // an imported trace tells none
        }
        let since_ns = p.start_ns.saturating_sub(TICK_NS);
        let last = self.last_program.query_row(params![p.pid, since_ns, p.exe, p.uid], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, bool>(1)?))
        });
        Ok(match last.optional()? {
            Some((start_ns, true)) => start_ns,
            Some((start_ns, false)) if start_ns > p.start_ns.saturating_add(TICK_NS) => now_ns,
            _ => p.start_ns,
        })
    }

    fn process(&mut self, p: &ProcessSeen, now_ns: i64) -> rusqlite::Result<Stored> {
        let start_ns = self.start_of(p, now_ns)?;
        self.process.execute(params![
            p.pid,
            start_ns,
            now_ns,
            p.exe,
            p.comm,
            p.rank,
            p.local_rank,
            p.world_size,
            p.job_id,
            p.step_id,
            p.container_id,
            p.cgroup_path,
            p.user,
            p.uid,
            p.pod,
            p.cgroup_id.map(bits),
            p.tenant(),
        ])?;
        Ok(Stored::Row)
    }
}

/// The time of a record of a columnar table.
pub(crate) fn time_of(record: &Record) -> i64 {
    match record {
        Record::Collective(c) => c.ts_ns,
        Record::OffCpu(o) => o.ts_ns,
        Record::Net(n) => n.ts_ns,
        Record::CudaCall(c) => c.ts_ns,
        Record::SymbolCall(c) => c.ts_ns,
        Record::Request(r) => r.ts_ns,
        Record::RequestStretch(s) => s.ts_ns,
        Record::RequestSum(s) => s.ts_ns,
        Record::Host(HostRecord::Block(b)) => b.ts_ns,
        _ => 0,
    }
}

/// Add a record to the columns of its table, in the order of the schema, and to the rollups. False
/// when it is not plausible.
pub(crate) fn push(record: &Record, rows: &mut RowColumns, rollups: &mut Rollups) -> bool {
    match record {
        Record::Collective(c) if plausible(c.ts_ns, c.duration_ns) => collective(c, rows, rollups),
        Record::OffCpu(o) if plausible(o.ts_ns, o.duration_ns) => offcpu(o, rows, rollups),
        Record::Net(n) if plausible(n.ts_ns, 0) => net(n, rows),
        // These two are in the rollups already: they count every call, rows are some of them.
        Record::CudaCall(c) if plausible(c.ts_ns, c.duration_ns) => cuda_call(c, rows),
        Record::SymbolCall(c) if plausible(c.ts_ns, c.duration_ns) => symbol_call(c, rows),
        Record::Host(HostRecord::Block(b))
            if plausible(b.ts_ns, b.duration_ns) && b.queue_ns.is_none_or(|ns| plausible(b.ts_ns, ns)) =>
        {
            block(b, rows);
        }
        Record::Request(r) => return requests::request(r, rows),
        Record::RequestStretch(s) => return requests::request_stretch(s, rows),
        Record::RequestSum(s) => return requests::request_sum(s, rows),
        _ => return false,
    }
    true
}

fn collective(c: &Collective, rows: &mut RowColumns, rollups: &mut Rollups) {
    let library = c.library.name();
    let comm_hash = c.comm_hash.map(bits);
    let duration_ns = c.ret.map(|_| c.duration_ns); // else it never returned
    cells!(
        rows, c: ts_ns, duration_ns = duration_ns, pid, tid, rank, local_rank, nranks, comm_hash = comm_hash, func,
        seq = c.seq.and_then(quantity), count = c.count.and_then(quantity), datatype,
        bytes = c.bytes.and_then(quantity), reduce_op, root, stream = c.stream.map(bits), library = library, tier, ret,
        cgroup_id = bits(c.cgroup_id), job_id, captured, site, comm_seq = c.comm_seq.and_then(quantity),
    );
    if let Some(duration_ns) = duration_ns {
        let key = RollupKey::new(c.ts_ns, library, c.func, c.pid, c.rank, comm_hash, bits(c.cgroup_id));
        rollups.add(key, duration_ns);
    }
}

fn offcpu(o: &OffCpu, rows: &mut RowColumns, rollups: &mut Rollups) {
    cells!(
        rows, o: ts_ns, duration_ns, pid, tid, cpu, voluntary, next_pid, next_comm, rank, cgroup_id = bits(o.cgroup_id),
        reason, run_delay_ns, wchan,
    );
    let func = if o.voluntary { "voluntary" } else { "preempted" };
    rollups.add(RollupKey::new(o.ts_ns, "offcpu", func, o.pid, o.rank, None, bits(o.cgroup_id)), o.duration_ns);
}

fn net(n: &NetEvent, rows: &mut RowColumns) {
    cells!(
        rows, n: ts_ns, event, pid, rank, saddr, sport, daddr, dport, state, segs, cgroup_id = bits(n.cgroup_id),
    );
}

fn cuda_call(c: &CudaCall, rows: &mut RowColumns) {
    cells!(
        rows, c: ts_ns, duration_ns, pid, tid, rank, api, func, bytes = c.bytes.and_then(quantity), kind,
        stream = c.stream.map(bits), ret, cgroup_id = bits(c.cgroup_id),
    );
}

fn symbol_call(c: &SymbolCall, rows: &mut RowColumns) {
    cells!(rows, c: ts_ns, duration_ns, pid, tid, rank, library, symbol, ret, cgroup_id = bits(c.cgroup_id));
}

fn block(b: &BlockIo, rows: &mut RowColumns) {
    cells!(
        rows, b: ts_ns, duration_ns, queue_ns, pid, tid, rank, device, op, bytes, error, cgroup_id = bits(b.cgroup_id),
    );
}

/// Calls that were counted, not recorded one by one.
fn tally(t: &CallTally, rollups: &mut Rollups) -> Stored {
    let numbers = [t.count, t.sum_ns, t.min_ns, t.max_ns].map(|n| quantity(n).filter(|n| *n <= LONGEST_NS));
    let [Some(count @ 1..), Some(sum_ns), Some(min_ns), Some(max_ns)] = numbers else { return Stored::Invalid };
    if t.ts_ns < 0 || min_ns > max_ns {
        return Stored::Invalid;
    }
    let key = RollupKey::new(t.ts_ns, t.source, t.func.clone(), t.pid, t.rank, None, bits(t.cgroup_id));
    let mut counts = Counts::default();
    t.buckets.iter().filter(|(_, calls)| *calls > 0).for_each(|(mean_ns, calls)| counts.add(*mean_ns, *calls));
    let sketch = Some(counts).filter(|counts| *counts != Counts::default());
    rollups.add_sum(key, Sum { count, sum_ns, min_ns, max_ns, bytes: t.bytes.and_then(quantity), sketch });
    Stored::Row
}

fn plausible(ts_ns: i64, duration_ns: i64) -> bool {
    ts_ns >= 0 && (0..=LONGEST_NS).contains(&duration_ns)
}

/// An id keeps its bit pattern.
fn bits(id: u64) -> i64 {
    i64::from_ne_bytes(id.to_ne_bytes())
}

/// A quantity above i64::MAX is a garbage argument of the caller's: not known.
fn quantity(value: u64) -> Option<i64> {
    i64::try_from(value).ok()
}
