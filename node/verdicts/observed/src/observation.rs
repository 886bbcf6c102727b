//! One observation for each call of each rank, and the clocks by which calls of several hosts are
//! compared.
//!
//! Owns these types, the SQL that fetches calls and the reading of its rows. All that goes into a
//! verdict lies in `input.rs`, the matching of observations across ranks in `matching.rs`.

use std::fmt::Write as _;
use std::sync::Arc;

use query_planner::Value;
use serde::{Deserialize, Serialize};

use crate::names::Names;
use crate::payload::Payload;

/// A process: its node and pid.
pub type Process = (Arc<str>, i64);

/// A communicator's hash as reports have it.
pub fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}

/// How a call couples the ranks of its communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Coupling {
    /// Nobody leaves before everybody has entered: all_reduce, all_gather, reduce_scatter,
    /// all_to_all, barrier.
    All,
    /// Everybody waits for the root, the root for nobody: broadcast, scatter.
    RootSends,
    /// The root waits for everybody, the others for nobody: reduce, gather.
    RootReceives,
    /// Two ranks only: send, recv.
    Pair,
    /// Prefix operations and whatever is not known to couple.
    Other,
}

impl Coupling {
    /// Of a call, by its name in lower snake case as the `collectives` table has it. Names of NCCL,
    /// RCCL and MPI.
    #[must_use]
    pub fn of(func: &str) -> Self {
        match func {
            "all_reduce"
            | "allreduce"
            | "all_gather"
            | "allgather"
            | "all_gather_v"
            | "allgather_v"
            | "allgatherv"
            | "all_gatherv"
            | "reduce_scatter"
            | "reduce_scatter_v"
            | "reduce_scatter_block"
            | "all_to_all"
            | "alltoall"
            | "all_to_all_v"
            | "alltoall_v"
            | "alltoallv"
            | "all_to_allv"
            | "alltoallw"
            | "all_to_all_w"
            | "barrier" => Self::All,
            "broadcast" | "bcast" | "scatter" | "scatterv" | "scatter_v" => Self::RootSends,
            "reduce" | "gather" | "gatherv" | "gather_v" => Self::RootReceives,
            "send" | "recv" | "isend" | "irecv" | "sendrecv" | "send_recv" | "send_recv_replace" | "ssend"
            | "bsend" | "rsend" | "probe" | "mprobe" => Self::Pair,
            _ => Self::Other,
        }
    }
}

/// One collective or point-to-point call of one process, as the `collectives` table holds it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observation {
    /// The node that recorded it.
    pub node: Arc<str>,
    /// Process id on that node.
    pub pid: i64,
    /// Rank in the communicator.
    pub rank: i32,
    /// Size of the communicator, when it was seen.
    pub nranks: Option<i32>,
    /// The communicator.
    pub comm_hash: u64,
    /// The call, lower snake case ("all_reduce").
    pub func: Arc<str>,
    /// Number of the call in its (process, communicator, func), counted alike on every rank.
    pub seq: u64,
    /// Position on the communicator, over all functions; none of calls to one rank, and where the
    /// communicator's start was not seen.
    pub comm_seq: Option<u64>,
    /// Entry into the call, Unix nanoseconds of the node's own clock.
    pub entry_ns: i64,
    /// Time inside the call.
    pub duration_ns: i64,
    /// Of that: its thread was halted, that is stopped (by a signal, a debugger or a freezer) or
    /// without the CPU time that its cgroup allows. 0 where it is not known.
    pub halted_ns: i64,
    /// Since its thread's last call: it was held off its CPU ([`HELD`](crate::HELD)). 0 where it is
    /// not known.
    pub held_ns: i64,
    /// Evidence tier of the duration (0: the call only enqueues; 1: it returns after the ranks have
    /// met).
    pub tier: u8,
    /// "nccl", "rccl", "mpi", …
    pub library: Arc<str>,
    /// Root or peer, where the call has one.
    pub root: Option<i32>,
    /// What it moves; of rows only where a hang is looked at.
    pub payload: Payload,
}

/// A call in which the host of a process waits for its device (a stream, event or device
/// synchronise call).
#[derive(Debug, Clone, PartialEq)]
pub struct SyncCall {
    /// The node that recorded it.
    pub node: Arc<str>,
    /// Process id on that node.
    pub pid: i64,
    /// Entry, Unix nanoseconds of the node's own clock.
    pub start_ns: i64,
    /// Time inside the call.
    pub duration_ns: i64,
}

/// A node's clock against the coordinator's, as measured over the mesh.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct ClockOffset {
    /// How far the node's clock is ahead of the coordinator's: `coordinator = node - offset_ns`.
    pub offset_ns: i64,
    /// The true offset lies within `offset_ns` plus or minus this.
    pub bound_ns: i64,
    /// When that held, Unix nanoseconds of the coordinator's clock.
    pub at_ns: i64,
    /// How fast the offset grows, parts in a billion; 0 where it was not measured.
    pub drift_ppb: i64,
    /// The true drift lies within `drift_ppb` plus or minus this. 0: times are taken to be as good
    /// as at `at_ns`.
    pub drift_bound_ppb: i64,
}

impl ClockOffset {
    /// What is believed of a clock whose drift was not measured: quartz oscillators of servers stay
    /// within 50 parts in a million.
    pub const DRIFT_BOUND_PPB: i64 = 50_000;

    /// An offset with its bound, of a clock that does not drift.
    #[must_use]
    pub fn steady(offset_ns: i64, bound_ns: i64) -> Self {
        Self { offset_ns, bound_ns, ..Self::default() }
    }

    /// A time of the node's clock on the coordinator's.
    #[must_use]
    pub fn align(&self, node_ns: i64) -> i64 {
        let aligned = node_ns.saturating_sub(self.offset_ns);
        aligned.saturating_sub(parts(self.drift_ppb, aligned.saturating_sub(self.at_ns)))
    }

    /// How far an aligned time may be wrong, anywhere between two times of the coordinator's clock.
    #[must_use]
    pub fn bound_within(&self, since_ns: i64, until_ns: i64) -> i64 {
        let far = since_ns.abs_diff(self.at_ns).max(until_ns.abs_diff(self.at_ns));
        let drifted = parts(self.drift_bound_ppb.abs(), i64::try_from(far).unwrap_or(i64::MAX));
        self.bound_ns.saturating_add(drifted)
    }
}

/// So many parts in a billion of a length.
fn parts(ppb: i64, length_ns: i64) -> i64 {
    i64::try_from(i128::from(length_ns) * i128::from(ppb) / 1_000_000_000).unwrap_or(0)
}

/// The columns of [`sql`], in order.
pub const COLUMNS: [&str; 12] =
    ["node", "pid", "rank", "nranks", "comm_hash", "func", "seq", "ts_ns", "duration_ns", "tier", "library", "root"];

/// What to fetch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Span {
    /// From here, Unix nanoseconds of the coordinator's clock.
    pub since_ns: i64,
    /// To here, exclusive.
    pub until_ns: i64,
    /// Widens the span on both sides by the largest clock offset of any node: rows carry their
    /// node's compute time. The analysis cuts to the span after aligning.
    pub slack_ns: i64,
    /// Only this job.
    pub job: Option<String>,
    /// Only this communicator.
    pub comm: Option<u64>,
}

/// The question that fetches observations: ask it of the mesh and hand each row to
/// [`Input::push_row`](super::Input::push_row).
#[must_use]
pub fn sql(span: &Span) -> String {
    let mut text = format!(
        // what was captured into a graph did not run then
        "SELECT {} FROM collectives WHERE captured IS NOT 1 AND ts_ns >= {} AND ts_ns < {}",
        COLUMNS.join(", "),
        span.since_ns.saturating_sub(span.slack_ns),
        span.until_ns.saturating_add(span.slack_ns)
    );
    text.push_str(&of(span.job.as_deref(), span.comm));
    text
}

/// The question for the newest call of a job or communicator; its answer is one row of one column.
#[must_use]
pub fn last_sql(job: Option<&str>, comm: Option<u64>) -> String {
    // Without a condition it is in the directory of segments.
    format!("SELECT max(ts_ns) FROM collectives{}", of(job, comm).replacen(" AND ", " WHERE ", 1))
}

/// A text as SQL has it.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The condition on calls of a job and of a communicator.
fn of(job: Option<&str>, comm: Option<u64>) -> String {
    let mut text = String::new();
    if let Some(job) = job {
        let _ = write!(text, " AND job_id = {}", quoted(job));
    }
    if let Some(comm) = comm {
        // The store keeps 64-bit hashes as SQLite integers: the same bits, signed.
        let _ = write!(text, " AND comm_hash = {}", comm.cast_signed());
    }
    text
}

/// The question that fetches the synchronise calls that follow collectives: ask it where calls only
/// enqueue, and hand each row to [`Input::push_sync_row`](super::Input::push_sync_row).
#[must_use]
pub fn syncs_sql(span: &Span) -> String {
    format!(
        "SELECT node, pid, ts_ns, duration_ns FROM cuda_calls WHERE kind = 'after_collective' AND ts_ns >= {} AND ts_ns < {}",
        span.since_ns.saturating_sub(span.slack_ns),
        span.until_ns.saturating_add(span.slack_ns)
    )
}

/// The question for when each node last lost records of calls: ask it where calls have no numbers, and
/// hand each row to [`Input::push_loss_row`](super::Input::push_loss_row).
#[must_use]
pub fn losses_sql(span: &Span) -> String {
    format!(
        "SELECT node, max(ts_ns) FROM capture_loss WHERE ts_ns >= {} AND reason NOT IN ('budget', 'shed') \
         AND (probe LIKE 'lib%' OR probe IN ('collectives', 'ring')) GROUP BY node",
        span.since_ns.saturating_sub(span.slack_ns)
    )
}

/// Times that a row may hold: 1970 to 2096. What lies beyond would overflow differences.
pub(crate) const TIMES: std::ops::Range<i64> = 0..4_000_000_000_000_000_000;
/// Longest call: a year.
pub(crate) const LONGEST_NS: i64 = 31_536_000_000_000_000;

/// A row of the answer, read.
#[derive(Debug, Clone, PartialEq)]
pub enum Row {
    /// It can be matched across ranks.
    Placed(Observation),
    /// It can be matched by time only: its communicator's start was not seen, and it has no number.
    Unnumbered(Observation),
    /// It cannot, and why (its rank, process or communicator is unknown).
    Unplaced(&'static str),
}

/// A row that is not one of [`sql`]'s.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// Wrong number of columns.
    #[error("a row of {got} columns where {} were asked for: ask with stragglers::sql", COLUMNS.len())]
    Width {
        /// Columns found.
        got: usize,
    },
    /// A column has another type.
    #[error("column {column} holds {found}: is `collectives` the table of this rankmesh version?")]
    Type {
        /// Name of the column.
        column: &'static str,
        /// What it holds.
        found: String,
    },
}

impl Observation {
    /// For tests: a call of a blocking library by the only process of host `n{rank}`.
    #[must_use]
    pub fn test_call(rank: i32, comm_hash: u64, func: &str, seq: u64, entry_ns: i64, duration_ns: i64) -> Self {
        let (node, func) = (format!("n{rank}").into(), func.into());
        let library = "mpi".into();
        Self { node, pid: 1, rank, comm_hash, func, seq, entry_ns, duration_ns, tier: 1, library, ..Self::default() }
    }
}

impl Observation {
    /// Read one row of the answer to [`sql`]; `names` keeps what its rows repeat.
    ///
    /// # Errors
    /// [`RowError`] when the row does not have the columns of [`COLUMNS`] with their types.
    pub fn from_row(row: &[Value], names: &mut Names) -> Result<Row, RowError> {
        if row.len() != COLUMNS.len() {
            return Err(RowError::Width { got: row.len() });
        }
        let Some(rank) = small(row, 2)? else {
            return Ok(Row::Unplaced("rank not known"));
        };
        let Some(pid) = integer(row, 1)?.filter(|pid| u32::try_from(*pid).is_ok()) else {
            return Ok(Row::Unplaced("process not known"));
        };
        let Some(comm_hash) = integer(row, 4)? else {
            return Ok(Row::Unplaced("communicator not known"));
        };
        let seq = integer(row, 6)?;
        let Some(duration_ns) = integer(row, 8)? else {
            return Ok(Row::Unplaced("call not finished"));
        };
        let Some(entry_ns) = integer(row, 7)? else {
            return Ok(Row::Unplaced("no time"));
        };
        if !TIMES.contains(&entry_ns) || duration_ns > LONGEST_NS {
            return Ok(Row::Unplaced("a time that cannot be"));
        }
        let seen = Self {
            node: name(row, 0, names)?,
            pid,
            rank,
            nranks: small(row, 3)?.filter(|&n| n > 0),
            comm_hash: comm_hash.cast_unsigned(),
            func: name(row, 5, names)?,
            seq: seq.unwrap_or(0).cast_unsigned(),
            entry_ns,
            duration_ns: duration_ns.max(0),
            halted_ns: 0,
            held_ns: 0,
            tier: small(row, 9)?.and_then(|t| u8::try_from(t).ok()).unwrap_or(0),
            library: name(row, 10, names)?,
            root: small(row, 11)?,
            comm_seq: None,
            payload: Payload::default(),
        };
        Ok(if seq.is_some() { Row::Placed(seen) } else { Row::Unnumbered(seen) })
    }
}

fn wrong(column: usize, value: &Value) -> RowError {
    let found = match value {
        Value::Null => "NULL".to_owned(),
        Value::Integer(i) => format!("integer {i}"),
        Value::Real(r) => format!("real {r}"),
        Value::Text(t) => format!("text '{}'", String::from_utf8_lossy(&t[..t.len().min(40)])),
        Value::Blob(b) => format!("a blob of {} bytes", b.len()),
    };
    RowError::Type { column: COLUMNS[column], found }
}

fn integer(row: &[Value], column: usize) -> Result<Option<i64>, RowError> {
    match &row[column] {
        Value::Null => Ok(None),
        Value::Integer(i) => Ok(Some(*i)),
        other => Err(wrong(column, other)),
    }
}

fn small(row: &[Value], column: usize) -> Result<Option<i32>, RowError> {
    integer(row, column)?.map(|i| i32::try_from(i).map_err(|_| wrong(column, &row[column]))).transpose()
}

fn name(row: &[Value], column: usize, names: &mut Names) -> Result<Arc<str>, RowError> {
    match &row[column] {
        Value::Null => Ok(names.keep(b"")),
        Value::Text(text) => Ok(names.keep(text)),
        other => Err(wrong(column, other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::Input;

    fn row() -> Vec<Value> {
        let text = |s: &str| Value::Text(s.as_bytes().to_vec());
        vec![
            text("n1"),
            Value::Integer(4711),
            Value::Integer(5),
            Value::Integer(8),
            Value::Integer(-2),
            text("all_reduce"),
            Value::Integer(17),
            Value::Integer(1_700_000_000_000_000_000),
            Value::Integer(290_000_000),
            Value::Integer(1),
            text("mpi"),
            Value::Null,
        ]
    }

    #[test]
    fn a_row_is_read_bit_for_bit() {
        let Row::Placed(seen) = Observation::from_row(&row(), &mut Names::default()).unwrap() else {
            panic!("not placed")
        };
        assert_eq!((seen.rank, seen.nranks, seen.seq, seen.tier), (5, Some(8), 17, 1));
        assert_eq!(seen.comm_hash, u64::MAX - 1, "the sign bit belongs to the hash");
        assert_eq!(seen.root, None);
    }

    #[test]
    fn what_cannot_be_matched_is_counted_and_what_is_wrong_is_refused() {
        let mut input = Input::default();
        for column in [1, 2, 4, 6, 8] {
            let mut lacking = row();
            lacking[column] = Value::Null;
            input.push_row(&lacking, &mut Names::default()).unwrap();
        }
        input.push_row(&row(), &mut Names::default()).unwrap();
        assert_eq!(input.unplaced.values().sum::<u64>(), 4);
        assert_eq!((input.observations.len(), input.unnumbered.len()), (1, 1));
        let mut absurd = row();
        absurd[7] = Value::Integer(i64::MAX);
        assert_eq!(Observation::from_row(&absurd, &mut Names::default()), Ok(Row::Unplaced("a time that cannot be")));
        let mut typed = row();
        typed[2] = Value::Text(b"five".to_vec());
        assert!(matches!(
            Observation::from_row(&typed, &mut Names::default()),
            Err(RowError::Type { column: "rank", .. })
        ));
        assert_eq!(Observation::from_row(&row()[1..], &mut Names::default()), Err(RowError::Width { got: 11 }));
    }

    #[test]
    fn the_question_quotes_and_signs() {
        let span = Span { since_ns: 100, until_ns: 200, slack_ns: 5, job: Some("it's".into()), comm: Some(u64::MAX) };
        let text = sql(&span);
        assert!(text.ends_with("ts_ns >= 95 AND ts_ns < 205 AND job_id = 'it''s' AND comm_hash = -1"), "{text}");
    }
}
