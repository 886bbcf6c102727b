//! The tables whose rows become events, which columns are asked for, and how a row becomes an
//! event. Columns become arguments of the same name.

use model::cells::integer_of;
use query_planner::Value;
use verdicts::Coupling;

use super::ids::id;
use super::write::{Arg, Event};

/// The track of a table's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A track of the process `pid`, one a thread; of the host where there is no process.
    Process,
    /// A track of the host.
    Host,
}

/// A table as events.
#[derive(Debug)]
pub struct Table {
    /// Its name, and the category of its events.
    pub name: &'static str,
    /// The column or expression of an event's begin.
    pub time: &'static str,
    /// The expression of its length, NULL where it did not end; none of points in time.
    pub duration: Option<&'static str>,
    /// A NULL length means a point in time, not a missing end.
    pub ends: bool,
    /// The kind of track.
    pub place: Place,
    /// The track's name.
    pub track: &'static str,
    /// Columns that become arguments.
    pub args: &'static [&'static str],
    /// Those of them that are bit patterns.
    pub bits: &'static [&'static str],
    /// The argument that names the event, and a second one that is appended to it.
    pub label: (&'static str, Option<&'static str>),
    /// The name of an event without that.
    pub unnamed: &'static str,
}

/// All of them, in the order of a process's tracks from top to bottom.
pub const TABLES: &[Table] = &[
    Table {
        name: "collectives",
        time: "ts_ns",
        duration: Some("duration_ns"),
        ends: false,
        place: Place::Process,
        track: "collectives",
        args: &[
            "func",
            "rank",
            "nranks",
            "comm_hash",
            "seq",
            "comm_seq",
            "count",
            "datatype",
            "bytes",
            "reduce_op",
            "root",
            "stream",
            "library",
            "tier",
            "ret",
            "captured",
            "job_id",
        ],
        bits: &["comm_hash", "stream"],
        label: ("func", None),
        unnamed: "call",
    },
    Table {
        name: "requests",
        time: "ts_ns",
        duration: Some("duration_ns"),
        ends: true,
        place: Place::Process,
        track: "requests",
        args: &[
            "service",
            "tenant",
            "method",
            "route",
            "status",
            "grpc_status",
            "connection",
            "number",
            "tid",
            "first_byte_ns",
            "queued_ns",
            "cpu_ns",
            "run_delay_ns",
            "bytes_in",
            "bytes_out",
            "sends",
            "gap_ns",
            "kept",
            "stands_for",
        ],
        bits: &["connection"],
        label: ("service", Some("route")),
        unnamed: "request",
    },
    Table {
        name: "cuda_calls",
        time: "ts_ns",
        duration: Some("duration_ns"),
        ends: false,
        place: Place::Process,
        track: "CUDA calls",
        args: &["func", "api", "bytes", "kind", "stream", "ret"],
        bits: &["stream"],
        label: ("func", None),
        unnamed: "call",
    },
    Table {
        name: "symbol_calls",
        time: "ts_ns",
        duration: Some("duration_ns"),
        ends: false,
        place: Place::Process,
        track: "probed functions",
        args: &["symbol", "library", "ret"],
        bits: &[],
        label: ("symbol", None),
        unnamed: "call",
    },
    Table {
        name: "offcpu",
        time: "ts_ns",
        duration: Some("duration_ns"),
        ends: false,
        place: Place::Process,
        track: "off-CPU",
        args: &["reason", "cpu", "voluntary", "next_pid", "next_comm", "run_delay_ns", "wchan"],
        bits: &[],
        label: ("reason", None),
        unnamed: "off-CPU",
    },
    Table {
        name: "memory_events",
        time: "ts_ns",
        duration: Some("duration_ns"),
        ends: true,
        place: Place::Process,
        track: "faults",
        args: &["event", "bytes", "detail"],
        bits: &[],
        label: ("event", None),
        unnamed: "event",
    },
    Table {
        name: "block_io",
        time: "ts_ns",
        duration: Some("duration_ns"),
        ends: false,
        place: Place::Process,
        track: "I/O",
        args: &["op", "device", "queue_ns", "bytes", "error"],
        bits: &[],
        label: ("op", Some("device")),
        unnamed: "request",
    },
    Table {
        name: "net_events",
        time: "ts_ns",
        duration: None,
        ends: true,
        place: Place::Process,
        track: "network",
        args: &["event", "saddr", "sport", "daddr", "dport", "state", "segs"],
        bits: &[],
        label: ("event", None),
        unnamed: "event",
    },
    Table {
        name: "process_events",
        time: "ts_ns",
        duration: None,
        ends: true,
        place: Place::Process,
        track: "processes",
        args: &["event", "parent_pid", "comm", "exit_code", "signal"],
        bits: &[],
        label: ("event", Some("comm")),
        unnamed: "event",
    },
    Table {
        name: "capture_loss",
        time: "since_ns",
        duration: Some("ts_ns - since_ns"),
        ends: true,
        place: Place::Host,
        track: "not recorded",
        args: &["probe", "reason", "lost"],
        bits: &[],
        label: ("probe", Some("reason")),
        unnamed: "loss",
    },
    Table {
        name: "findings",
        time: "since_ns",
        duration: Some("until_ns - since_ns"),
        ends: true,
        place: Place::Host,
        track: "findings",
        args: &[
            "verdict",
            "rank",
            "culprit_node",
            "job_id",
            "lateness_ns",
            "clock_bound_ns",
            "score",
            "cost_gpu_s",
            "cause",
            "tier",
        ],
        bits: &[],
        label: ("verdict", Some("rank")),
        unnamed: "verdict",
    },
    Table {
        name: "annotations",
        time: "ts_ns",
        duration: None,
        ends: true,
        place: Place::Host,
        track: "marks",
        args: &["text", "attributes"],
        bits: &[],
        label: ("text", None),
        unnamed: "mark",
    },
];

/// Columns of process and thread that come before a table's own arguments, where it has them.
const OF_PROCESS: &[&str] = &["pid", "tid", "rank"];
/// Tables whose rows do not have the thread, or are of the process whichever thread read them.
const WITHOUT_THREAD: &[&str] = &["net_events", "process_events", "requests"];
/// Tables whose rows do not have the rank.
const WITHOUT_RANK: &[&str] = &["requests"];

/// A row, parsed.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Its node.
    pub node: String,
    /// When it began, Unix nanoseconds of that node's clock.
    pub ts_ns: i64,
    /// Its length.
    pub duration_ns: Option<i64>,
    /// Its process.
    pub pid: Option<i64>,
    /// Its thread.
    pub tid: Option<i64>,
    /// Its process's rank, as the row has it.
    pub rank: Option<i64>,
    /// The event.
    pub event: Event,
}

/// Of requests, paths and clients.
const REQUESTS_PRIVATE: &[&str] = &["tenant", "route"];

impl Table {
    /// The question for the rows of a span of each node's own clock; with `pids`, only for those of
    /// these processes.
    #[must_use]
    pub fn select(&self, since_ns: i64, until_ns: i64, pids: Option<&[i64]>) -> String {
        self.select_for(since_ns, until_ns, pids, false)
    }

    /// The same for whoever may not ask for [`Self::private`]; none where there is nothing of that.
    #[must_use]
    pub fn select_for_readers(&self, since_ns: i64, until_ns: i64, pids: Option<&[i64]>) -> Option<String> {
        (!self.private().is_empty()).then(|| self.select_for(since_ns, until_ns, pids, true))
    }

    /// Arguments that readers may not ask for.
    fn private(&self) -> &'static [&'static str] {
        if self.name == "requests" { REQUESTS_PRIVATE } else { &[] }
    }

    fn select_for(&self, since_ns: i64, until_ns: i64, pids: Option<&[i64]>, readers: bool) -> String {
        let mut columns = vec!["node", self.time, self.duration.unwrap_or("NULL")];
        for column in OF_PROCESS {
            columns.push(match self.place {
                Place::Host => "NULL",
                Place::Process if *column == "tid" && WITHOUT_THREAD.contains(&self.name) => "NULL",
                Place::Process if *column == "rank" && WITHOUT_RANK.contains(&self.name) => "NULL",
                Place::Process => column,
            });
        }
        let shown = |arg: &&'static str| if readers && self.private().contains(arg) { "NULL" } else { arg };
        columns.extend(self.args.iter().map(shown));
        let pids = pids.filter(|_| self.of_processes());
        format!("SELECT {} FROM {}{}", columns.join(", "), self.name, within(self.time, since_ns, until_ns, pids))
    }

    /// Its rows are of processes.
    #[must_use]
    pub fn of_processes(&self) -> bool {
        self.place == Place::Process
    }

    /// Parses a row of [`Table::select`]'s answer; none without node or time.
    #[must_use]
    pub fn row(&self, values: &[Value]) -> Option<Row> {
        let [node, ts_ns, duration_ns, pid, tid, rank, args @ ..] = values else { return None };
        let mut event = Event { category: self.name, ..Event::default() };
        for (name, value) in self.args.iter().zip(args) {
            let arg = match value {
                Value::Null | Value::Blob(_) => continue,
                Value::Integer(bits) if self.bits.contains(name) => Arg::Bits(bits.cast_unsigned()),
                Value::Integer(int) => Arg::Int(*int),
                Value::Real(real) => Arg::Real(*real),
                Value::Text(text) => Arg::Text(record::printable(&String::from_utf8_lossy(text))),
            };
            event.args.push((name, arg));
        }
        let (first, second) = self.label;
        let shown = |name| event.args.iter().find(|(own, _)| *own == name).map(|(_, arg)| text(arg));
        event.name = shown(first).filter(|name| !name.is_empty()).unwrap_or_else(|| self.unnamed.to_owned());
        if let Some(second) = second.and_then(shown) {
            event.name = format!("{} {second}", event.name);
        }
        if self.name == "collectives" {
            event.flow = flow(&event);
        }
        Some(Row {
            node: match node {
                Value::Text(name) => String::from_utf8_lossy(name).into_owned(),
                _ => return None,
            },
            ts_ns: integer_of(ts_ns)?,
            duration_ns: integer_of(duration_ns).filter(|ns| *ns >= 0),
            pid: integer_of(pid),
            tid: integer_of(tid),
            rank: integer_of(rank),
            event,
        })
    }
}

/// The question for how many rows a table with times in `time` has in each interval of `width_ns`:
/// the intervals' numbers and rows.
#[must_use]
pub fn counts(
    (table, time): (&str, &str),
    (since_ns, until_ns): (i64, i64),
    width_ns: i64,
    pids: Option<&[i64]>,
) -> String {
    let within = within(time, since_ns, until_ns, pids);
    format!("SELECT ({time} - {since_ns}) / {width_ns} AS stretch, count(*) FROM {table}{within} GROUP BY 1")
}

/// The condition for a span, and for some processes.
pub(super) fn within(time: &str, since_ns: i64, until_ns: i64, pids: Option<&[i64]>) -> String {
    let of = pids.map(|pids| {
        let pids: Vec<String> = pids.iter().map(i64::to_string).collect();
        format!(" AND pid IN ({})", pids.join(", "))
    });
    format!(" WHERE {time} >= {since_ns} AND {time} < {until_ns}{}", of.unwrap_or_default())
}

/// The collective that a rank's call is a part of: all its calls get one number, in every file.
/// None of calls between two ranks, and of those that cannot be identified.
fn flow(event: &Event) -> Option<u64> {
    let arg = |name| event.args.iter().find(|(own, _)| *own == name).map(|(_, arg)| text(arg));
    let func = arg("func")?;
    if matches!(Coupling::of(&func), Coupling::Pair | Coupling::Other) || arg("captured").as_deref() == Some("1") {
        return None;
    }
    Some(id(&["flow", &arg("job_id").unwrap_or_default(), &arg("comm_hash")?, &func, &arg("seq")?]))
}

fn text(arg: &Arg) -> String {
    match arg {
        Arg::Int(int) => int.to_string(),
        Arg::Real(real) => real.to_string(),
        Arg::Bits(bits) => format!("{bits:016x}"),
        Arg::Text(text) => text.clone(),
    }
}
