//! The questions that fetch evidence, and the reading of their answers. Each question names two
//! processes on at most two nodes, a range of time and a limit of rows.

use std::sync::Arc;

use observed::{Kind, RankRef, quoted};
use query_planner::Value;

use super::evidence::{Call, PID, Recorded, Stretch, of_calls};
use super::off_cpu::{pushed_off, waited};

/// Rows taken in answer to one question; the latest.
pub const ROWS: usize = 20_000;
/// A stretch may have started so much before the time looked at.
const BEFORE_NS: i64 = 5_000_000_000;
/// A GPU sample holds until the next one, at most for so long.
const SAMPLE_NS: i64 = 3_000_000_000;
/// NVML's clock event reasons that slow a GPU under load (nvml.h, nvmlClocksEventReasons): software
/// power cap, hardware slowdown, software and hardware thermal slowdown, hardware power brake. Not:
/// idle, application clocks, sync boost.
const SLOWED: i64 = 0x4 | 0x8 | 0x20 | 0x40 | 0x80;

/// A process whose evidence is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The process.
    pub who: RankRef,
    /// The communicator that the verdict is about.
    pub comm_hash: u64,
    /// The calls of the communicator only enqueue: who waits for the others waits in CUDA calls,
    /// and that is no compute time.
    pub enqueues: bool,
    /// From here, on its host's clock.
    pub from_ns: i64,
    /// To here.
    pub to_ns: i64,
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// Communication calls: they bound the intervals.
    Calls,
    /// Stretches off the CPU.
    OffCpu,
    /// Block requests.
    BlockIo,
    /// Faults and reclaim.
    Memory,
    /// CUDA and HIP calls.
    Cuda,
    /// GPU clocks.
    Gpu,
}

impl Topic {
    /// All, in the order in which they are asked.
    pub const ALL: [Self; 6] = [Self::Calls, Self::OffCpu, Self::BlockIo, Self::Memory, Self::Cuda, Self::Gpu];

    /// In words, as something that was looked at or could not be seen.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Calls => "communication calls",
            Self::OffCpu => "time off the CPU (stretches of 1 ms and longer)",
            Self::BlockIo => "block requests",
            Self::Memory => "major faults and reclaim",
            Self::Cuda => "CUDA and HIP calls",
            Self::Gpu => "GPU clocks",
        }
    }

    /// What was looked at, by whether the answer had rows: where events are recorded none is an
    /// answer, too.
    ///
    /// # Errors
    /// What does not go on all the time or not at all is not recorded here: in words.
    pub fn looked_at(self, has_rows: bool) -> Result<String, String> {
        match self {
            _ if has_rows => Ok(self.words().to_owned()),
            Self::Calls | Self::OffCpu | Self::BlockIo | Self::Memory => Ok(format!("{}: none", self.words())),
            Self::Cuda => Err("no CUDA or HIP calls here".to_owned()),
            Self::Gpu => Err("no GPU samples here".to_owned()),
        }
    }

    fn table(self) -> (&'static str, &'static str) {
        match self {
            Self::Calls => ("collectives", "tid, comm_hash, func, seq"),
            Self::OffCpu => ("offcpu", "tid, voluntary, next_pid, next_comm, reason, run_delay_ns, wchan"),
            Self::BlockIo => ("block_io", "tid, device, op, bytes"),
            Self::Memory => ("memory_events", "tid, event, bytes, detail"),
            Self::Cuda => ("cuda_calls", "tid, func, kind, bytes"),
            Self::Gpu => ("gpu_samples", "gpu, throttle_reasons, throttle"),
        }
    }

    /// The question about these processes.
    #[must_use]
    pub fn sql(self, subjects: &[Subject]) -> String {
        let (table, columns) = self.table();
        let (pid, duration) = if self == Self::Gpu { ("0 AS pid", "0 AS duration_ns") } else { ("pid", "duration_ns") };
        let from_ns = |s: &Subject| s.from_ns.saturating_sub(BEFORE_NS);
        let each = subjects.iter().map(|s| {
            let process = if self == Self::Gpu { String::new() } else { format!("pid = {} AND ", s.who.pid) };
            format!("node = {} AND {process}ts_ns >= {} AND ts_ns < {}", quoted(&s.who.node), from_ns(s), s.to_ns)
        });
        // Calls recorded into a graph take their time when it is replayed; one in which the process
        // ended is over with it.
        let counts = if self == Self::Calls { "captured IS NOT 1 AND duration_ns IS NOT NULL AND " } else { "" };
        let nodes = subjects.iter().map(|s| quoted(&s.who.node));
        format!(
            "SELECT node, {pid}, ts_ns, {duration}, {columns} FROM {table} WHERE {counts}node IN ({}) AND ts_ns >= {} AND ts_ns < {} \
             AND ({}) ORDER BY ts_ns DESC LIMIT {ROWS}",
            nodes.collect::<Vec<_>>().join(", "),
            subjects.iter().map(from_ns).min().unwrap_or(0),
            subjects.iter().map(|s| s.to_ns).max().unwrap_or(0),
            each.collect::<Vec<_>>().join(" OR ")
        )
    }
}

/// An answer that has other columns than were asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an answer about {topic} has a column {column} of another type: do all nodes run the same version?")]
pub struct WrongRow {
    topic: &'static str,
    column: usize,
}

/// What the answers say of each subject.
#[derive(Debug, Default)]
pub struct Reading {
    calls: Vec<(usize, Call)>,
    stretches: Vec<(usize, Stretch)>,
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    node: String,
    gpu: i64,
    ts_ns: i64,
    slowed: Option<Arc<str>>,
}

struct Row<'r> {
    topic: Topic,
    cells: &'r [Value],
}

impl Row<'_> {
    fn wrong(&self, column: usize) -> WrongRow {
        WrongRow { topic: self.topic.words(), column }
    }

    fn maybe(&self, column: usize) -> Result<Option<i64>, WrongRow> {
        match self.cells.get(column) {
            Some(Value::Null) => Ok(None),
            Some(Value::Integer(i)) => Ok(Some(*i)),
            _ => Err(self.wrong(column)),
        }
    }

    fn integer(&self, column: usize) -> Result<i64, WrongRow> {
        self.maybe(column)?.ok_or_else(|| self.wrong(column))
    }

    fn text(&self, column: usize) -> Result<String, WrongRow> {
        match self.cells.get(column) {
            Some(Value::Null) => Ok(String::new()),
            Some(Value::Text(text)) => Ok(String::from_utf8_lossy(text).into_owned()),
            _ => Err(self.wrong(column)),
        }
    }
}

impl Reading {
    /// Take in one row of the answer to [`Topic::sql`] about the same subjects.
    ///
    /// # Errors
    /// [`WrongRow`] when it does not have the columns that were asked for.
    pub fn push(&mut self, topic: Topic, subjects: &[Subject], cells: &[Value]) -> Result<(), WrongRow> {
        let row = Row { topic, cells };
        let (node, pid) = (row.text(0)?, row.integer(1)?);
        let (ts_ns, duration_ns) = (row.integer(2)?, row.maybe(3)?.unwrap_or(0).max(0));
        let end_ns = ts_ns.saturating_add(duration_ns);
        if topic == Topic::Gpu {
            let slowed = row.maybe(5)?.unwrap_or(0) & SLOWED != 0;
            let (gpu, why) = (row.integer(4)?, row.text(6)?);
            self.samples.push(Sample { node, gpu, ts_ns, slowed: slowed.then(|| why.into()) });
            return Ok(());
        }
        // The same process may be the subject twice only by mistake; the first one takes it.
        let Some(of) = subjects.iter().position(|s| s.who.node == node && s.who.pid == pid) else { return Ok(()) };
        let tid = row.maybe(4)?;
        let mut add = |kind, start_ns, end_ns, what: String, bytes| {
            let what = what.into();
            self.stretches.push((of, Stretch { kind, tid, start_ns, end_ns, what, bytes }));
        };
        match topic {
            Topic::Calls => {
                let anchor = row.maybe(5)?.map(i64::cast_unsigned) == Some(subjects[of].comm_hash);
                let (func, seq) = (row.text(6)?.into(), row.maybe(7)?.map(i64::cast_unsigned));
                let call = Call { anchor, func, seq, tid: tid.unwrap_or(pid), entry_ns: ts_ns, end_ns };
                self.calls.push((of, call));
            }
            Topic::OffCpu => {
                let (voluntary, next_pid, next_comm) = (row.integer(5)? != 0, row.maybe(6)?, row.text(7)?);
                let (reason, wchan) = (row.text(8)?, row.text(10)?);
                // The end of a stretch, when it could run again and had to queue.
                let queued_ns = row.maybe(9)?.unwrap_or(0).clamp(0, duration_ns);
                // Hidden from readers who may see only their own processes.
                let another = || "another user's process".to_owned();
                let taker = next_pid.map_or_else(another, |pid| format!("{next_comm}{PID}{pid})"));
                let woken_ns = end_ns - queued_ns;
                if voluntary {
                    let kind = waited(&reason, &wchan);
                    let what = [wchan, reason.clone()].into_iter().find(|s| !s.is_empty()).unwrap_or_default();
                    add(kind, ts_ns, woken_ns, what, None);
                    add(Kind::CpuStolen, woken_ns, end_ns, "others in the run queue when it woke".to_owned(), None);
                } else {
                    let kind = pushed_off(&reason, next_pid, &next_comm);
                    let what = if kind == Kind::CpuThrottled { String::new() } else { taker };
                    add(kind, ts_ns, end_ns, what, None);
                }
            }
            Topic::BlockIo => {
                add(Kind::BlockIo, ts_ns, end_ns, format!("{} ({})", row.text(5)?, row.text(6)?), Some(row.integer(7)?))
            }
            Topic::Memory => {
                let (event, bytes, detail) = (row.text(5)?, row.maybe(6)?, row.text(7)?);
                let kind = if event.contains("fault") { Kind::PageFault } else { Kind::Reclaim };
                add(kind, ts_ns, end_ns, if detail.is_empty() { event } else { detail }, bytes);
            }
            Topic::Cuda => {
                let func = row.text(5)?;
                let kind = match of_cuda(&func) {
                    Kind::CudaSync if subjects[of].enqueues => Kind::Communication,
                    kind => kind,
                };
                add(kind, ts_ns, end_ns, func, row.maybe(7)?);
            }
            Topic::Gpu => {}
        }
        Ok(())
    }

    /// What was recorded of each subject, and what GPUs did where no CUDA call says that it
    /// mattered, in words.
    #[must_use]
    pub fn finish(mut self, subjects: &[Subject]) -> (Vec<Recorded>, Vec<String>) {
        self.samples.sort_by(|a, b| (&a.node, a.gpu, a.ts_ns).cmp(&(&b.node, b.gpu, b.ts_ns)));
        let mut notes = Vec::new();
        let mut recorded = Vec::new();
        for (of, subject) in subjects.iter().enumerate() {
            let mut calls: Vec<Call> =
                self.calls.iter().filter(|(i, _)| *i == of).map(|(_, call)| call.clone()).collect();
            calls.retain(|call| call.entry_ns >= subject.from_ns);
            let (gaps, others) = of_calls(&calls);
            let stretches: Vec<Stretch> =
                self.stretches.iter().filter(|(i, _)| *i == of).map(|(_, stretch)| stretch.clone()).collect();
            let slowed = self.slowed(&subject.who.node);
            if of == 0 && stretches.iter().all(|s| s.kind != Kind::CudaSync) {
                notes.extend(slowed.iter().map(|s| format!("its host's {} ran with lowered clocks", s.what)).next());
            }
            let (requests, mut stretches): (Vec<Stretch>, Vec<Stretch>) = stretches.into_iter().partition(is_request);
            let mut cut = Vec::new();
            while_waiting(&slowed, &stretches, &[Kind::CudaSync], &mut cut);
            while_waiting(&requests, &stretches, &[Kind::BlockIo, Kind::Wait], &mut cut);
            stretches.extend(cut);
            stretches.extend(others);
            recorded.push(Recorded { who: Some(subject.who.clone()), gaps, stretches });
        }
        (recorded, notes)
    }

    /// When GPUs of a host ran with lowered clocks.
    fn slowed(&self, node: &str) -> Vec<Stretch> {
        let of_node: Vec<&Sample> = self.samples.iter().filter(|s| s.node == node).collect();
        let mut found = Vec::new();
        for (i, sample) in of_node.iter().enumerate() {
            let Some(why) = &sample.slowed else { continue };
            let next = of_node.get(i + 1).filter(|next| next.gpu == sample.gpu).map(|next| next.ts_ns);
            let longest = sample.ts_ns.saturating_add(SAMPLE_NS);
            found.push(Stretch {
                kind: Kind::GpuThrottled,
                tid: None,
                start_ns: sample.ts_ns,
                end_ns: next.unwrap_or(longest).min(longest),
                what: format!("GPU {} ({why})", sample.gpu).into(),
                bytes: None,
            });
        }
        found
    }
}

/// A block request, other than a stretch off the CPU for the sake of one.
fn is_request(stretch: &Stretch) -> bool {
    stretch.kind == Kind::BlockIo && stretch.bytes.is_some()
}

/// Block requests and lowered clocks matter only while the thread waits: cut to when it does, by
/// kinds of waiting.
fn while_waiting(found: &[Stretch], stretches: &[Stretch], kinds: &[Kind], all: &mut Vec<Stretch>) {
    for one in found {
        let mut bytes = one.bytes;
        let waits = stretches.iter().filter(|s| kinds.contains(&s.kind) && (one.tid.is_none() || one.tid == s.tid));
        for wait in waits.filter(|s| s.start_ns < one.end_ns && s.end_ns > one.start_ns) {
            all.push(Stretch {
                tid: wait.tid,
                start_ns: one.start_ns.max(wait.start_ns),
                end_ns: one.end_ns.min(wait.end_ns),
                what: Arc::clone(&one.what),
                // Each request's bytes once, however often the thread woke meanwhile.
                bytes: bytes.replace(0),
                ..*one
            });
        }
    }
}

/// Kind of a CUDA or HIP call, by its name.
fn of_cuda(func: &str) -> Kind {
    let name = func.to_ascii_lowercase();
    if name.contains("synchronize") || name.contains("waitevent") || name.contains("query") {
        Kind::CudaSync
    } else if name.contains("launch") {
        Kind::CudaLaunch
    } else {
        Kind::CudaCopy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(node: &str, pid: i64) -> Subject {
        let who = RankRef { rank: 3, node: node.to_owned(), pid };
        Subject { who, comm_hash: u64::MAX, enqueues: false, from_ns: 10_000_000_000, to_ns: 20_000_000_000 }
    }

    #[test]
    fn what_was_looked_at_has_rows_or_is_recorded_where_it_happens() {
        let of = |has_rows: bool| Topic::ALL.map(|topic| topic.looked_at(has_rows));
        assert!(of(true).iter().all(Result::is_ok));
        assert_eq!(of(false)[2], Ok("block requests: none".to_owned()));
        assert_eq!(of(false)[5], Err("no GPU samples here".to_owned()));
    }

    fn text(s: &str) -> Value {
        Value::Text(s.as_bytes().to_vec())
    }

    #[test]
    fn a_question_names_its_processes_its_time_and_a_limit() {
        let sql = Topic::OffCpu.sql(&[subject("a", 7), subject("it's", 8)]);
        assert_eq!(
            sql,
            "SELECT node, pid, ts_ns, duration_ns, tid, voluntary, next_pid, next_comm, reason, run_delay_ns, wchan FROM offcpu \
             WHERE node IN ('a', 'it''s') AND ts_ns >= 5000000000 AND ts_ns < 20000000000 AND (node = 'a' AND pid = 7 AND \
             ts_ns >= 5000000000 AND ts_ns < 20000000000 OR node = 'it''s' AND pid = 8 AND ts_ns >= 5000000000 AND \
             ts_ns < 20000000000) ORDER BY ts_ns DESC LIMIT 20000"
        );
    }

    #[test]
    fn rows_become_intervals_and_stretches() {
        let subjects = [subject("a", 7), subject("b", 7)];
        let mut reading = Reading::default();
        let call = |node: &str, ts: i64, comm: i64, seq: i64| {
            let int = Value::Integer;
            vec![text(node), int(7), int(ts), int(1_000_000), int(70), int(comm), text("all_reduce"), int(seq)]
        };
        for seq in 0..4 {
            let row = call("b", 12_000_000_000 + seq * 100_000_000, -1, seq);
            reading.push(Topic::Calls, &subjects, &row).unwrap();
        }
        reading.push(Topic::Calls, &subjects, &call("b", 12_050_000_000, 5, 0)).unwrap();
        let off = |voluntary: i64, reason: Value, queued: Value| {
            let int = Value::Integer;
            vec![
                text("b"),
                int(7),
                int(12_010_000_000),
                int(30_000_000),
                int(70),
                int(voluntary),
                int(9),
                text("spin"),
                reason,
                queued,
                Value::Null,
            ]
        };
        reading.push(Topic::OffCpu, &subjects, &off(0, Value::Null, Value::Null)).unwrap();
        reading.push(Topic::OffCpu, &subjects, &off(1, text("sleep"), Value::Integer(10_000_000))).unwrap();
        let (recorded, _) = reading.finish(&subjects);
        assert!(recorded[0].gaps.is_empty());
        let gaps: Vec<i64> = recorded[1].gaps.iter().map(|gap| gap.end_ns - gap.start_ns).collect();
        assert_eq!(gaps, [99_000_000; 3]);
        let kinds: Vec<(Kind, i64)> =
            recorded[1].stretches.iter().map(|s| (s.kind, (s.end_ns - s.start_ns) / 1_000_000)).collect();
        assert_eq!(kinds, [(Kind::CpuStolen, 30), (Kind::Sleep, 20), (Kind::CpuStolen, 10), (Kind::Communication, 1)]);
        assert_eq!(&*recorded[1].stretches[0].what, "spin (pid 9)");
    }

    #[test]
    fn a_quota_and_waits_for_pipes_and_children_have_kinds_of_their_own() {
        let subjects = [subject("b", 7)];
        let int = Value::Integer;
        let off = |voluntary: i64, next: (i64, &str), reason: &str, wchan: &str| {
            let (next_pid, next) = next;
            let mut row = vec![text("b"), int(7), int(12_000_000_000), int(30_000_000), int(70), int(voluntary)];
            row.extend([int(next_pid), text(next), text(reason), Value::Null, text(wchan)]);
            let mut reading = Reading::default();
            reading.push(Topic::OffCpu, &subjects, &row).unwrap();
            let stretch = reading.finish(&subjects).0.remove(0).stretches.remove(0);
            (stretch.kind, stretch.what.to_string())
        };
        // The CPU was free and the thread could run: the quota of its cgroup was used up.
        assert_eq!(off(0, (0, "swapper/3"), "preempted", ""), (Kind::CpuThrottled, String::new()));
        assert_eq!(off(0, (9, "spin"), "throttled", ""), (Kind::CpuThrottled, String::new()));
        assert_eq!(off(0, (9, "spin"), "preempted", ""), (Kind::CpuStolen, "spin (pid 9)".to_owned()));
        assert_eq!(off(0, (0, "swapper/3"), "stopped", "").0, Kind::Stopped);
        let waits = |reason: &str, wchan: &str| off(1, (0, "swapper/3"), reason, wchan);
        assert_eq!(waits("other", "pipe_read"), (Kind::FileWait, "pipe_read".to_owned()));
        assert_eq!(waits("other", "do_wait").0, Kind::FileWait);
        assert_eq!(waits("network", "unix_stream_read_generic").0, Kind::FileWait, "of this host");
        assert_eq!(waits("network", "sk_wait_data").0, Kind::NetworkWait);
        assert_eq!(waits("other", "some_driver_wait").0, Kind::Wait);
        assert_eq!(waits("lock", "futex_wait").0, Kind::Lock);
    }

    #[test]
    fn a_throttled_gpu_counts_only_while_the_thread_waits_for_it() {
        let subjects = [subject("a", 7)];
        let int = Value::Integer;
        let mut reading = Reading::default();
        for (ts, bits) in [(11, 0x1), (12, 0x40), (13, 0x0)] {
            let row = [text("a"), int(0), int(ts * 1_000_000_000), int(0), int(2), int(bits), text("hw_thermal")];
            reading.push(Topic::Gpu, &subjects, &row).unwrap();
        }
        let row = [
            text("a"),
            int(7),
            int(12_900_000_000),
            int(300_000_000),
            int(70),
            text("cudaStreamSynchronize"),
            Value::Null,
            Value::Null,
        ];
        reading.push(Topic::Cuda, &subjects, &row).unwrap();
        let (recorded, notes) = reading.finish(&subjects);
        let slowed = recorded[0].stretches.iter().find(|s| s.kind == Kind::GpuThrottled).unwrap();
        assert_eq!((slowed.start_ns, slowed.end_ns), (12_900_000_000, 13_000_000_000));
        assert_eq!(&*slowed.what, "GPU 2 (hw_thermal)");
        assert!(notes.is_empty());
        assert!(Reading::default().push(Topic::Gpu, &subjects, &[text("a")]).is_err());
    }
}
