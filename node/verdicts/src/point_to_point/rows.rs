//! Where time went, from rows: the same calls that the analysis of collectives reads, and the
//! scheduler's records of a few processes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use causes::off_cpu_kinds;
use digest::time_use::{Call, Enqueued, Meter, job_key, names_no_communicator, starts_or_ends};
use observed::{ClockOffset, Coupling, Input, Kind, Names, RankRef, SyncCall, TimeUse, parallel, quoted};
use query_planner::Value;

use super::judge;

/// Says which rank of which user's job each process is: rows of [`RankRow`].
pub const PROCESSES_SQL: &str = "SELECT node, pid, rank, world_size, job_id, step_id, uid FROM processes \
    WHERE rank IS NOT NULL AND world_size > 1 ORDER BY start_ns";
/// The columns of [`Rows::off_cpu_sql`].
pub const OFF_CPU_COLUMNS: &str =
    "node, pid, tid, ts_ns, duration_ns, voluntary, reason, run_delay_ns, next_pid, next_comm";
/// Rows of the scheduler taken, the latest.
const MOST_ROWS: usize = 20_000;
/// Processes whose time off the CPU is asked for: the one that computes longest, and others to
/// compare it with.
const ASKED: usize = 4;
/// Length of the pieces in which time is reported.
const PIECE_NS: i64 = 1_000_000_000;

/// Node and process id.
type Process = (Arc<str>, u32);

/// Gathers rows, by process.
#[derive(Debug, Default)]
pub struct Rows {
    calls: BTreeMap<Process, Vec<Call>>,
    /// Calls that only enqueue: when, and whether they are sends or receives.
    enqueued: BTreeMap<Process, Vec<(i64, bool)>>,
    off_cpu: BTreeMap<Process, Vec<(i64, i64, Kind)>>,
    ranks: BTreeMap<Process, (u64, i32, i32)>,
    names: Names,
    /// Whose time off the CPU was asked for.
    asked: BTreeSet<Process>,
    /// From here on it is known; none where it is not.
    known_from_ns: Option<i64>,
    unscored: bool,
}

/// A row of the answer to [`PROCESSES_SQL`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankRow {
    /// Its host's name, in UTF-8.
    pub node: Vec<u8>,
    /// Its process there.
    pub pid: u32,
    /// Its rank.
    pub rank: i32,
    /// Ranks of its job.
    pub nranks: i32,
    /// The job's id, as the process says it.
    pub job_id: Option<String>,
    /// The job's [`job_key`]: another user's process of the same id has another.
    pub job: u64,
}

impl RankRow {
    /// None where the row has other columns or types.
    #[must_use]
    pub fn read(row: &[Value]) -> Option<Self> {
        let [Value::Text(node), pid, rank, nranks, job_id, step_id, uid] = row else { return None };
        let small = |value| integer(Some(value)).and_then(|value| i32::try_from(value).ok());
        let (pid, rank, nranks) = (u32::try_from(integer(Some(pid))?).ok()?, small(rank)?, small(nranks)?);
        let (job_id, step_id) = (text(Some(job_id)), text(Some(step_id)));
        let uid = integer(Some(uid)).and_then(|uid| u32::try_from(uid).ok());
        let job = job_key(uid, job_id.as_deref(), step_id.as_deref(), nranks);
        Some(Self { node: node.clone(), pid, rank, nranks, job_id, job })
    }
}

fn integer(value: Option<&Value>) -> Option<i64> {
    match value {
        Some(Value::Integer(i)) => Some(*i),
        _ => None,
    }
}

fn text(value: Option<&Value>) -> Option<String> {
    match value {
        Some(Value::Text(text)) => Some(String::from_utf8_lossy(text).into_owned()),
        _ => None,
    }
}

impl Rows {
    fn key(&mut self, row: &[Value]) -> Option<Process> {
        let Some(Value::Text(name)) = row.first() else { return None };
        let node = self.names.keep(name);
        Some((node, u32::try_from(integer(row.get(1))?).ok()?))
    }

    /// Take in one row of the answer to [`sql`](crate::sql), of [`COLUMNS`](crate::COLUMNS); true
    /// where it is of use to the analysis of collectives, too. What is no such row is left out.
    pub fn call(&mut self, row: &[Value]) -> bool {
        let [_, _, rank, _, comm_hash, Value::Text(func), _, entry_ns, duration_ns, tier, _, root] = row else {
            return true;
        };
        let (Some(entry_ns), Some(duration_ns)) = (integer(Some(entry_ns)), integer(Some(duration_ns))) else {
            return true;
        };
        let func = String::from_utf8_lossy(func);
        if starts_or_ends(&func) {
            return func != "init";
        }
        if integer(Some(tier)).unwrap_or(0) == 0 {
            let pair = Coupling::of(&func) == Coupling::Pair;
            self.unscored |= pair;
            if let Some(key) = self.key(row) {
                self.enqueued.entry(key).or_default().push((entry_ns, pair));
            }
            return true;
        }
        let small = |value| integer(Some(value)).and_then(|value| i32::try_from(value).ok());
        let rank = small(rank).filter(|_| *comm_hash != Value::Null);
        let call = Call::new(&func, 0, entry_ns, duration_ns, rank, small(root));
        self.unscored |= !call.scored;
        if let Some(key) = self.key(row) {
            self.calls.entry(key).or_default().push(call);
        }
        !names_no_communicator(&func)
    }

    /// Take in the synchronise calls after the calls that only enqueue: once all rows of calls are
    /// in.
    pub fn syncs(&mut self, syncs: &[SyncCall]) {
        let mut waits: BTreeMap<Process, Vec<&SyncCall>> = BTreeMap::new();
        for sync in syncs {
            if let Ok(pid) = u32::try_from(sync.pid) {
                waits.entry((Arc::clone(&sync.node), pid)).or_default().push(sync);
            }
        }
        for (key, mut calls) in std::mem::take(&mut self.enqueued) {
            let Some(mut waits) = waits.remove(&key) else { continue };
            calls.sort_unstable();
            // Of nested ones, the one that ended first is the wait.
            waits.sort_by_key(|sync| sync.start_ns.saturating_add(sync.duration_ns));
            let (mut calls, mut enqueued) = (calls.into_iter().peekable(), Enqueued::default());
            for sync in waits {
                while let Some((_, pair)) = calls.next_if(|(entry_ns, _)| *entry_ns < sync.start_ns) {
                    enqueued.call(pair);
                }
                // A process's calls have one thread here: its main one.
                let waited = enqueued.wait(0, sync.start_ns, sync.duration_ns);
                self.calls.entry(key.clone()).or_default().extend(waited);
            }
        }
    }

    /// A process's calls, as they came.
    pub(crate) fn in_calls(&self, (node, pid): &observed::Process) -> &[Call] {
        let key = u32::try_from(*pid).ok().map(|pid| (Arc::clone(node), pid));
        key.and_then(|key| self.calls.get(&key)).map_or(&[], Vec::as_slice)
    }

    /// Whether there are calls that are not compared one by one: then [`PROCESSES_SQL`] is worth
    /// asking.
    #[must_use]
    pub fn are_unscored(&self) -> bool {
        self.unscored
    }

    /// Take in one row of the answer to [`PROCESSES_SQL`].
    pub fn process(&mut self, row: &[Value]) {
        if let Some(of) = RankRow::read(row) {
            // The latest of a process id that was used again.
            self.ranks.insert((self.names.keep(&of.node), of.pid), (of.job, of.rank, of.nranks));
        }
    }

    /// Take in the answer to [`Self::off_cpu_sql`].
    pub fn off_cpu(&mut self, rows: &[Vec<Value>]) {
        // The latest came.
        let first_ns = rows.iter().filter_map(|row| integer(row.get(3))).min();
        self.known_from_ns = first_ns.filter(|_| rows.len() >= MOST_ROWS).or(Some(i64::MIN));
        rows.iter().for_each(|row| self.stretch(row));
    }

    fn stretch(&mut self, row: &[Value]) {
        let (Some(start_ns), Some(duration_ns)) = (integer(row.get(3)), integer(row.get(4))) else { return };
        let (voluntary, reason) = (integer(row.get(5)) != Some(0), text(row.get(6)).unwrap_or_default());
        let queued_ns = integer(row.get(7)).unwrap_or(0);
        let taker = (integer(row.get(8)), text(row.get(9)).unwrap_or_default());
        let Some(key) = self.key(row) else { return };
        // Calls have no thread here; it is mostly the main thread that makes them.
        if integer(row.get(2)) != Some(i64::from(key.1)) {
            return;
        }
        let kinds = off_cpu_kinds(voluntary, &reason, duration_ns, queued_ns, taker.0, &taker.1);
        let of = self.off_cpu.entry(key).or_default();
        let mut at_ns = start_ns;
        for (kind, ns) in kinds {
            of.push((at_ns, ns, kind));
            at_ns = at_ns.saturating_add(ns);
        }
    }

    /// The question for the time off the CPU of those whose it may tell, by [`Self::times`] as known
    /// so far: none where nothing is known of anybody.
    #[must_use]
    pub fn off_cpu_sql(&mut self, times: &[TimeUse], clocks: &BTreeMap<String, ClockOffset>) -> Option<String> {
        let who: Vec<RankRef> = judge::to_compare(times, clocks, ASKED);
        if who.is_empty() {
            return None;
        }
        let is_asked = |key: &&Process| who.iter().any(|w| (w.node.as_str(), w.pid) == (&*key.0, key.1.into()));
        self.asked = self.calls.keys().filter(is_asked).cloned().collect();
        let span = |who: &RankRef| {
            let of = times.iter().filter(|time| (&*time.node, time.pid) == (who.node.as_str(), who.pid));
            (of.clone().map(|time| time.until_ns - time.span_ns).min(), of.map(|time| time.until_ns).max())
        };
        let each = who.iter().filter_map(|who| {
            let (Some(from_ns), Some(to_ns)) = span(who) else { return None };
            let node = quoted(&who.node);
            Some(format!("(node = {node} AND pid = {} AND ts_ns >= {from_ns} AND ts_ns < {to_ns})", who.pid))
        });
        let nodes = who.iter().map(|who| quoted(&who.node));
        let nodes = nodes.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ");
        Some(format!(
            "SELECT {OFF_CPU_COLUMNS} FROM offcpu WHERE node IN ({nodes}) AND ({}) ORDER BY ts_ns DESC LIMIT {MOST_ROWS}",
            each.collect::<Vec<_>>().join(" OR ")
        ))
    }

    /// Where the time went. Whether processes were held is known of those that were asked about.
    #[must_use]
    pub fn times(&self) -> Vec<TimeUse> {
        let calls: usize = self.calls.values().map(Vec::len).sum();
        let processes = self.calls.iter().collect();
        parallel::map(processes, calls >= Input::MANY_CALLS, |(key, calls)| self.times_of(key, calls)).concat()
    }

    fn times_of(&self, key: &Process, calls: &[Call]) -> Vec<TimeUse> {
        let mut all = Vec::new();
        let Some((job, rank, nranks)) = self.ranks.get(key) else { return all };
        let mut meter = Meter::default();
        let off_cpu = self.off_cpu.get(key);
        meter.process(key.1, *job, *rank, *nranks);
        let mut calls = calls.to_vec();
        calls.sort_by_key(|call| call.end_ns);
        let mut stretches = off_cpu.cloned().unwrap_or_default();
        stretches.sort_by_key(|(start_ns, ..)| *start_ns);
        let (mut rest, mut of) = (calls.as_slice(), stretches.as_slice());
        while let Some(first) = rest.first() {
            let until_ns = (first.end_ns / PIECE_NS + 1) * PIECE_NS;
            let (now, later) = rest.split_at(rest.partition_point(|call| call.end_ns < until_ns));
            let (held, after) = of.split_at(of.partition_point(|(start_ns, ..)| *start_ns < until_ns));
            now.iter().for_each(|call| meter.call(key.1, *call));
            let known = |from_ns| self.asked.contains(key) && now.iter().all(|call| call.start_ns >= from_ns);
            meter.sees_off_cpu(self.known_from_ns.is_some_and(known));
            held.iter().for_each(|(start, ns, kind)| meter.off_cpu(key.1, 0, *start, *ns, *kind));
            all.extend(meter.close(&key.0, until_ns));
            (rest, of) = (later, after);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use observed::HELD;

    const S: i64 = 1_000_000_000;

    fn word(text: &str) -> Value {
        Value::Text(text.as_bytes().to_vec())
    }

    fn call(node: &str, entry_ns: i64, duration_ns: i64) -> Vec<Value> {
        let int = Value::Integer;
        let who = [word(node), int(7), int(0), int(2), int(5)];
        let what = [word("send"), int(1), int(entry_ns), int(duration_ns), int(1), word("mpi"), int(1)];
        who.into_iter().chain(what).collect()
    }

    fn rows() -> Rows {
        let mut rows = Rows::default();
        for at in 0..40 {
            rows.call(&call("a", at * S / 10, S / 20));
            rows.call(&call("b", at * S / 10, S / 1_000));
        }
        for (node, rank) in [("a", 0), ("b", 1)] {
            let int = Value::Integer;
            rows.process(&[word(node), int(7), int(rank), int(2), word("job"), Value::Null, int(0)]);
        }
        rows
    }

    #[test]
    fn rows_become_time_use_a_second_each() {
        let mut rows = rows();
        assert!(rows.are_unscored());
        let times = rows.times();
        let of_a: Vec<&TimeUse> = times.iter().filter(|time| &*time.node == "a").collect();
        assert_eq!(of_a.len(), 4);
        assert_eq!((of_a[1].span_ns, of_a[1].unscored_ns, of_a[1].held_ns), (S, S / 2, None));
        let sql = rows.off_cpu_sql(&times, &BTreeMap::new()).expect("somebody to ask about");
        assert!(sql.contains("(node = 'b' AND pid = 7 AND ts_ns >= 0 AND ts_ns < 3901000000)"), "{sql}");
        let int = Value::Integer;
        let preempted = [int(0), word("preempted"), int(S / 20), int(9), word("hog")];
        rows.off_cpu(&[[&[word("b"), int(7), int(7), int(S + S / 20), int(S / 20)], &preempted[..]].concat()]);
        let held: i64 = rows.times().iter().filter_map(|time| time.held_ns).map(|held| held[2]).sum();
        assert_eq!((HELD[2], held), (Kind::CpuStolen, S / 20));
    }

    #[test]
    fn of_calls_that_only_enqueue_the_synchronise_calls_after_them_count() {
        let (mut rows, node) = (Rows::default(), Arc::from("a"));
        let int = Value::Integer;
        for at in 0..40 {
            let mut row = call("a", at * S / 10, S / 1_000);
            row[9] = int(0);
            rows.call(&row);
        }
        rows.call(&call("a", 0, 0)[..4]);
        rows.process(&[word("a"), int(7), int(0), int(2), word("job"), Value::Null, int(0)]);
        assert!(rows.are_unscored() && rows.times().is_empty(), "nothing shows how long it waited");
        // Once in half a second, two calls one inside the other; and one with nothing before it.
        let sync = |start_ns, duration_ns| SyncCall { node: Arc::clone(&node), pid: 7, start_ns, duration_ns };
        let mut syncs = vec![sync(-S, S / 2)];
        for at in 1..8 {
            syncs.extend([sync(at * S / 2, S / 5), sync(at * S / 2 + 10, S / 5 - 20)]);
        }
        rows.syncs(&syncs);
        let times = rows.times();
        let waited: i64 = times.iter().map(|time| time.unscored_ns).sum();
        assert_eq!((waited, times.iter().map(|time| time.scored_ns).sum::<i64>()), (7 * (S / 5 - 20), 0));
    }
}
