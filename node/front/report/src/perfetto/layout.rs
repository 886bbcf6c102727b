//! Which tracks there are: a process a rank, a track a host, and below them a track for each table
//! and thread. Slices that overlap on a track without being nested get a further one of the same
//! name, for a track's slices are a stack.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};

use super::clock::NodeTime;
use super::ids::id;
use super::proto::{CounterDescriptor, CounterValue, EXPLICIT, ProcessDescriptor, TrackDescriptor};
use super::tables::{Place, Row, TABLES, Table};
use super::write::{Arg, Event, Writer};

/// Description of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Who {
    /// Its rank in the job.
    pub rank: Option<i64>,
    /// Its task name.
    pub comm: Option<String>,
    /// Its job.
    pub job_id: Option<String>,
}

/// The ends of the slices that are open on a track, outermost first; none: it never ends.
type Lane = Vec<Option<u64>>;

/// Most lanes of a track: a person sees nothing in more, and each slice looks at all of them.
const LANES: usize = 64;

/// Places events on tracks.
#[derive(Debug)]
pub struct Layout<W> {
    writer: Writer<W>,
    times: BTreeMap<String, NodeTime>,
    who: HashMap<(String, i64), Who>,
    known: HashSet<u64>,
    pids: HashMap<i32, u64>,
    lanes: HashMap<u64, Vec<Lane>>,
    /// Rows with times from before 1970, which a trace cannot have.
    left_out: u64,
    /// Slices that overlap with as many others as a track has lanes.
    crowded: u64,
}

impl<W: Write> Layout<W> {
    /// Into `writer`, with the nodes' clocks and the descriptions of their processes.
    pub fn new(writer: Writer<W>, times: BTreeMap<String, NodeTime>, who: HashMap<(String, i64), Who>) -> Self {
        let (known, pids, lanes) = (HashSet::new(), HashMap::new(), HashMap::new());
        Self { writer, times, who, known, pids, lanes, left_out: 0, crowded: 0 }
    }

    /// The file that is written.
    pub fn writer(&self) -> &Writer<W> {
        &self.writer
    }

    /// The clock of a node.
    pub fn time(&self, node: &str) -> NodeTime {
        self.times.get(node).copied().unwrap_or_default()
    }

    /// Rows that were left out because they are from before 1970.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Slices that were left out because they overlap with more others than a track shows.
    pub fn crowded(&self) -> u64 {
        self.crowded
    }

    /// Ends the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn end(self) -> io::Result<W> {
        self.writer.end()
    }

    /// Rows of one table and span, in any order.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn rows(&mut self, table: &Table, mut rows: Vec<Row>) -> io::Result<()> {
        // The slice that began first is outside; of two that began at once the longer one.
        rows.sort_by_key(|row| (row.ts_ns, std::cmp::Reverse(row.duration_ns.unwrap_or(i64::MAX))));
        rows.into_iter().try_for_each(|row| self.row(table, row))
    }

    fn row(&mut self, table: &Table, row: Row) -> io::Result<()> {
        let time = self.time(&row.node);
        let Ok(at_ns) = u64::try_from(time.aligned(row.ts_ns)) else {
            self.left_out += 1;
            return Ok(());
        };
        let mut event = row.event;
        match time.bound_ns(row.ts_ns) {
            Some(bound_ns) => event.args.push(("clock_bound_ns", Arg::Int(bound_ns))),
            None => event.args.push(("clock", Arg::Text("its host's own, not set against others".to_owned()))),
        }
        let (parent, owner) = match (table.place, row.pid) {
            (Place::Process, Some(pid)) => (self.process(&row.node, pid, row.rank)?, Some(pid)),
            _ => (self.host(&row.node)?, None),
        };
        let name = match (owner, row.tid) {
            (Some(pid), Some(tid)) if pid != tid => {
                event.args.push(("tid", Arg::Int(tid)));
                format!("{} (thread {tid})", table.track)
            }
            _ => table.track.to_owned(),
        };
        let order = TABLES.iter().position(|known| known.name == table.name).unwrap_or(TABLES.len());
        let order = i32::try_from(order).unwrap_or(i32::MAX);
        let logical = id(&["track", &parent.to_string(), table.name, &name]);
        let ends_ns = match (table.duration, row.duration_ns) {
            (None, _) => None,
            (Some(_), Some(duration_ns)) => Some(Some(at_ns.saturating_add(duration_ns.max(0).cast_unsigned()))),
            (Some(_), None) if table.ends => None,
            (Some(_), None) => Some(None),
        };
        match ends_ns {
            None => {
                let track = self.plain_track(id(&["points", &logical.to_string()]), parent, &name, order)?;
                self.writer.instant(track, at_ns, event)
            }
            Some(ends_ns) => {
                let Some(lane) = self.lane(logical, at_ns, ends_ns) else { return Ok(()) };
                let track = id(&["lane", &logical.to_string(), &lane.to_string()]);
                self.plain_track(track, parent, &name, order)?;
                self.writer.slice(track, at_ns, ends_ns, event)
            }
        }
    }

    /// The first of a track's lanes on which a slice fits; none where there is none.
    fn lane(&mut self, logical: u64, at_ns: u64, ends_ns: Option<u64>) -> Option<usize> {
        let lanes = self.lanes.entry(logical).or_default();
        let last = |end: Option<u64>| end.unwrap_or(u64::MAX);
        for (number, lane) in lanes.iter_mut().enumerate() {
            while lane.last().is_some_and(|end| last(*end) <= at_ns) {
                lane.pop();
            }
            if lane.last().is_none_or(|end| end.is_some() && last(*end) >= last(ends_ns)) {
                lane.push(ends_ns);
                return Some(number);
            }
        }
        if lanes.len() >= LANES {
            self.crowded += 1;
            return None;
        }
        lanes.push(vec![ends_ns]);
        Some(lanes.len() - 1)
    }

    /// The track of a process.
    fn process(&mut self, node: &str, pid: i64, rank: Option<i64>) -> io::Result<u64> {
        let uuid = id(&["process", node, &pid.to_string()]);
        if !self.known.insert(uuid) {
            return Ok(uuid);
        }
        let who = self.who.get(&(node.to_owned(), pid)).cloned().unwrap_or_default();
        let comm = who.comm.map(|comm| format!(" {}", record::printable(&comm))).unwrap_or_default();
        let of = format!("{node} pid {pid}{comm}");
        let name = match who.rank.or(rank) {
            Some(rank) => format!("rank {rank} on {of}"),
            None => of,
        };
        let labels = who.job_id.map(|job| format!("job {}", record::printable(&job)));
        // Perfetto distinguishes processes by their ids, and hosts have the same ones.
        let mut own = i32::try_from(uuid % 0x7fff_ffff).unwrap_or(0).max(1);
        while *self.pids.entry(own).or_insert(uuid) != uuid {
            own = own.checked_add(1).unwrap_or(1);
        }
        let rank = who.rank.or(rank).and_then(|rank| i32::try_from(rank).ok());
        self.writer.track(TrackDescriptor {
            uuid: Some(uuid),
            name: Some(name.clone()),
            process: Some(ProcessDescriptor {
                pid: Some(own),
                process_name: Some(name),
                process_labels: labels.into_iter().collect(),
            }),
            child_ordering: Some(EXPLICIT),
            sibling_order_rank: rank,
            ..TrackDescriptor::default()
        })?;
        Ok(uuid)
    }

    /// The track of a host.
    fn host(&mut self, node: &str) -> io::Result<u64> {
        let uuid = id(&["host", node]);
        if self.known.insert(uuid) {
            self.writer.track(TrackDescriptor {
                uuid: Some(uuid),
                name: Some(format!("host {node}")),
                child_ordering: Some(EXPLICIT),
                ..TrackDescriptor::default()
            })?;
        }
        Ok(uuid)
    }

    /// A track with slices or points.
    fn plain_track(&mut self, uuid: u64, parent: u64, name: &str, order: i32) -> io::Result<u64> {
        if self.known.insert(uuid) {
            self.writer.track(TrackDescriptor {
                uuid: Some(uuid),
                parent_uuid: Some(parent),
                name: Some(name.to_owned()),
                sibling_order_rank: Some(order),
                ..TrackDescriptor::default()
            })?;
        }
        Ok(uuid)
    }

    /// A counter's value, of a host or of one of its processes.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn value(
        &mut self,
        node: &str,
        pid: Option<i64>,
        (name, unit): (&str, &str),
        ts_ns: i64,
        value: CounterValue,
    ) -> io::Result<()> {
        let Ok(at_ns) = u64::try_from(self.time(node).aligned(ts_ns)) else {
            self.left_out += 1;
            return Ok(());
        };
        let parent = match pid {
            Some(pid) => self.process(node, pid, None)?,
            None => self.host(node)?,
        };
        let uuid = id(&["counter", &parent.to_string(), name]);
        if self.known.insert(uuid) {
            self.writer.track(TrackDescriptor {
                uuid: Some(uuid),
                parent_uuid: Some(parent),
                name: Some(name.to_owned()),
                counter: Some(CounterDescriptor { unit_name: Some(unit.to_owned()) }),
                sibling_order_rank: i32::try_from(TABLES.len()).ok(),
                ..TrackDescriptor::default()
            })?;
        }
        self.writer.value(uuid, at_ns, value)
    }

    /// A slice of a host's time that is no row of a table: a state that was sampled.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn state(&mut self, node: &str, track: &str, (since_ns, until_ns): (i64, i64), event: Event) -> io::Result<()> {
        let time = self.time(node);
        let (Ok(since_ns), Ok(until_ns)) =
            (u64::try_from(time.aligned(since_ns)), u64::try_from(time.aligned(until_ns)))
        else {
            self.left_out += 1;
            return Ok(());
        };
        let parent = self.host(node)?;
        let order = i32::try_from(TABLES.len()).unwrap_or(i32::MAX);
        let track = self.plain_track(id(&["state", &parent.to_string(), track]), parent, track, order)?;
        self.writer.slice(track, since_ns, Some(until_ns.max(since_ns)), event)
    }

    /// A slice on a track of the job's own, times on the trace's clock.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn of_job(&mut self, track: &str, (since_ns, until_ns): (i64, i64), event: Event) -> io::Result<()> {
        let since_ns = since_ns.max(0).cast_unsigned();
        let until_ns = until_ns.max(0).cast_unsigned().max(since_ns);
        // Each file has a track of its own, so that files can be concatenated.
        let logical = id(&["job", &self.writer.sequence().to_string(), track]);
        let Some(lane) = self.lane(logical, since_ns, Some(until_ns)) else { return Ok(()) };
        let uuid = id(&["lane", &logical.to_string(), &lane.to_string()]);
        if self.known.insert(uuid) {
            self.writer.track(TrackDescriptor {
                uuid: Some(uuid),
                name: Some(track.to_owned()),
                ..TrackDescriptor::default()
            })?;
        }
        self.writer.slice(uuid, since_ns, Some(until_ns), event)
    }
}
