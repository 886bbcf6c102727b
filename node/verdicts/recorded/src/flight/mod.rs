//! Dumps of PyTorch's flight recorder: of a job's ranks in, the input of a verdict out, and what
//! the report then needs of them.
//!
//! `dump` reads what one rank wrote (`lenient`: fields that formats write differently; `names`:
//! what calls are called), `runs` takes the dumps of earlier runs out, `lanes` says how far a rank
//! got in each group, `groups` which groups of several ranks are one.

mod dump;
mod groups;
mod lanes;
mod lenient;
mod names;
mod runs;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use observed::{InCall, Input, JobRank, Progress, hex};
use serde_json::Value;
use verdicts::{Absence, Call, Hang, Report, Rules, Verdict, analyse};

pub use dump::Dump;
use groups::{Group, Groups};
use lanes::{Lane, Pair};

use crate::ImportError;

/// What a dump does not say is when it was made: by a watchdog minutes after the last call, or by
/// hand. For finding what hangs taken to be so long after it.
const WAITED_NS: i64 = 600_000_000_000;

/// The dumps of a job, and why there is none of a rank of which there should be one.
#[derive(Debug, Clone, Default)]
pub struct Dumps {
    ranks: BTreeMap<i32, Dump>,
    lacking: BTreeMap<i32, String>,
}

impl Dumps {
    /// Dumps of a whole job: an object of one dump a rank, keyed by rank ("0", "rank_0"), as
    /// NVIDIA's resiliency extension ships its recorded hangs.
    ///
    /// # Errors
    /// The value is not such an object ([`ImportError`]).
    pub fn of_job(value: Value) -> Result<Self, ImportError> {
        let Value::Object(object) = value else { return Err(ImportError::NoDump) };
        let mut all = Self::default();
        for (key, value) in object {
            let digits = key.trim_start_matches(|c: char| !c.is_ascii_digit());
            let rank = digits.parse().map_err(|_| ImportError::NoDump)?;
            all.add(rank, Dump::from_value(value).map_err(|error| error.to_string()));
        }
        match all.lacking.pop_first() {
            Some((rank, why)) if all.ranks.is_empty() => Err(ImportError::Dump(format!("rank {rank}: {why}"))),
            Some((rank, why)) => {
                all.lacking.insert(rank, why);
                Ok(all)
            }
            None if all.ranks.is_empty() => Err(ImportError::NoDump),
            None => Ok(all),
        }
    }

    /// Takes in the dump of a rank, or why it cannot be read.
    pub fn add(&mut self, rank: i32, dump: Result<Dump, String>) {
        match dump {
            Ok(dump) => drop(self.ranks.insert(rank, dump)),
            Err(why) => drop(self.lacking.insert(rank, why)),
        }
    }

    /// Whether not one can be read; the reason for one of them.
    #[must_use]
    pub fn unreadable(&self) -> Option<&str> {
        let why = self.lacking.values().next().map_or("there is none", String::as_str);
        self.ranks.is_empty().then_some(why)
    }

    /// The verdict on them.
    #[must_use]
    pub fn report(self) -> Report {
        let recorded = Recorded::of(self);
        let mut report = analyse(&recorded.input, &Rules::default());
        recorded.complete(&mut report);
        report
    }
}

/// What dumps say.
struct Recorded {
    input: Input,
    groups: Vec<Group>,
    /// By rank.
    stuck: BTreeMap<i32, Stuck>,
    last_ns: i64,
}

impl Recorded {
    fn of(mut dumps: Dumps) -> Self {
        let earlier = runs::take_earlier(&mut dumps.ranks);
        dumps.lacking.extend(earlier);
        let groups = Groups::of(&dumps.ranks);
        let mut input = Input::default();
        let spans = || dumps.ranks.values().filter_map(Dump::span_ns);
        let last_ns = spans().map(|(_, last)| last).max().unwrap_or(0);
        (input.since_ns, input.until_ns) = (spans().map(|(first, _)| first).min().unwrap_or(0), last_ns);
        if last_ns > 0 {
            input.until_ns = last_ns.saturating_add(WAITED_NS);
        }
        let nranks = groups.ranks.last().map_or(0, |last| last.saturating_add(1));
        input.ranks = dumps.ranks.keys().map(|rank| job_rank(*rank, nranks)).collect();
        let stuck = stuck(&groups.all);
        for group in &groups.all {
            take_in(group, &stuck, &mut input);
        }
        let wanted: BTreeSet<i32> = groups.ranks.iter().chain(dumps.lacking.keys()).copied().collect();
        for rank in wanted.into_iter().filter(|rank| !dumps.ranks.contains_key(rank)) {
            let why = dumps.lacking.remove(&rank).unwrap_or_else(|| "there is no file of it".to_owned());
            input.coverage.missing.push((format!("rank {rank}"), format!("no dump of rank {rank}: {why}")));
        }
        input.coverage.answered = dumps.ranks.len();
        input.coverage.asked = dumps.ranks.len() + input.coverage.missing.len();
        input.coverage.notes = groups.notes;
        let unplaced: u64 = groups.all.iter().flat_map(|group| group.lanes.values()).map(|lane| lane.unplaced).sum();
        if unplaced > 0 {
            input.unplaced.insert("their position in the group is not known".to_owned(), unplaced);
        }
        Self { input, groups: groups.all, stuck, last_ns }
    }

    /// Says in the report what only the dumps know: what groups are called, where calls were made,
    /// and where nothing hangs, that.
    fn complete(&self, report: &mut Report) {
        report.evidence.of_dumps = true;
        // Nobody knows when the dumps were made.
        report.evidence.until_ns = self.last_ns;
        if let Verdict::Hang(hang) = &mut report.verdict {
            for missing in &mut hang.missing {
                let Some(stuck) = self.stuck.get(&missing.who.rank) else { continue };
                (missing.absence, missing.call, missing.inside) = (Absence::Stuck, stuck.call.clone(), None);
            }
            self.name_calls(hang, &mut report.evidence.notes);
            return;
        }
        let lanes = || self.groups.iter().flat_map(|group| group.lanes.values());
        let (calls, open) = lanes().fold((0, 0), |(calls, open), lane| {
            (calls + lane.calls.len(), open + usize::from(lane.pending().is_some()) + lane.pairs.len())
        });
        let ranks = report.coverage.answered;
        let why = match (calls, open) {
            (0, _) => format!("the dumps of {ranks} ranks hold no collective"),
            (calls, 0) => format!(
                "nothing hangs in these dumps: all {calls} collectives that {ranks} ranks recorded are over, and how late \
                 ranks were they do not tell"
            ),
            (calls, open) => format!(
                "of {calls} collectives that {ranks} ranks recorded {open} were not over, and nobody is seen to keep them"
            ),
        };
        report.verdict = Verdict::Unknown { why };
    }

    /// Puts the names of groups in the place of hashes, and says where calls were made.
    fn name_calls(&self, hang: &mut Hang, notes: &mut Vec<String>) {
        let mut labels: BTreeMap<String, usize> = BTreeMap::new();
        self.groups.iter().for_each(|group| *labels.entry(group.label()).or_default() += 1);
        let of: BTreeMap<String, (&Group, String)> = self
            .groups
            .iter()
            .map(|group| {
                let label = group.label();
                let of_ranks = || format!("{label} of ranks {}", groups::list(&group.members));
                let label = if labels.get(&label) == Some(&1) { label.clone() } else { of_ranks() };
                (hex(group.hash()), (group, label))
            })
            .collect();
        let site = |hash: &str, rank: i32, position: u64| {
            let (group, _) = of.get(hash)?;
            group.lanes.get(&rank)?.calls.get(&position)?.site.clone()
        };
        if let Some(differing) = &mut hang.differing {
            let (hash, position) = (differing.comm_hash.clone(), differing.position);
            for call in &mut differing.calls {
                call.site = call.ranks.iter().find_map(|who| site(&hash, who.rank, position));
            }
        }
        let mut sites: BTreeMap<String, BTreeSet<i32>> = BTreeMap::new();
        for waits in &hang.waiting {
            let (Some(hash), Some(position)) = (&waits.call.comm_hash, waits.call.position) else { continue };
            if let Some(site) = site(hash, waits.who.rank, position) {
                sites.entry(format!("{} was called at {site}", waits.call.func)).or_default().insert(waits.who.rank);
            }
        }
        notes.extend(sites.into_iter().map(|(called, ranks)| {
            let ranks: Vec<i32> = ranks.into_iter().collect();
            format!("{called} by ranks {}", groups::list(&ranks))
        }));
        let name = |hash: &mut String| {
            if let Some((_, label)) = of.get(hash) {
                hash.clone_from(label);
            }
        };
        let edges = hang.circles.iter_mut().flatten().map(|edge| &mut edge.call);
        let missing = hang.missing.iter_mut().flat_map(|missing| [Some(&mut missing.call), missing.inside.as_mut()]);
        let waiting = hang.waiting.iter_mut().chain(&mut hang.unclear).map(|waits| &mut waits.call);
        let calls = edges.chain(missing.flatten()).chain(waiting);
        calls.filter_map(|call| call.comm_hash.as_mut()).for_each(name);
        hang.differing.iter_mut().map(|of| &mut of.comm_hash).for_each(name);
        hang.jammed.iter_mut().map(|of| &mut of.comm_hash).for_each(name);
        hang.not_heard.iter_mut().map(|of| &mut of.comm_hash).for_each(name);
    }
}

fn node() -> Arc<str> {
    // A dump does not say on which host its rank ran.
    "".into()
}

fn job_rank(rank: i32, nranks: i32) -> JobRank {
    JobRank { node: node(), pid: rank.into(), job: 1, rank, nranks }
}

/// The oldest call of a rank that is not over, where another rank has got through it.
#[derive(Debug, Clone)]
struct Stuck {
    call: Call,
    since_ns: i64,
    /// Whether another got through.
    is_past: bool,
}

/// The ranks whose oldest call that is not over another rank has got through: all had entered it,
/// and these do not get through. What they enqueued after it their devices have not begun.
fn stuck(groups: &[Group]) -> BTreeMap<i32, Stuck> {
    let mut oldest: BTreeMap<i32, Stuck> = BTreeMap::new();
    for group in groups {
        let furthest = group.lanes.values().filter_map(|lane| lane.over).max();
        for (rank, lane) in &group.lanes {
            let Some((position, pending)) = lane.pending() else { continue };
            let Some(since_ns) = pending.created_ns else { continue };
            if oldest.get(rank).is_some_and(|known| known.since_ns <= since_ns) {
                continue;
            }
            let comm_hash = Some(hex(group.hash()));
            let call = Call { func: pending.func.to_string(), comm_hash, position: Some(position), ..Call::default() };
            // A call may be over because it failed: where a rank has not come, nobody got through.
            let all_came = group.lanes.values().all(|lane| lane.entered >= Some(position));
            let is_past = pending.meets() && all_came && furthest.is_some_and(|over| over >= position);
            oldest.insert(*rank, Stuck { call, since_ns, is_past });
        }
    }
    oldest.retain(|_, stuck| stuck.is_past);
    oldest
}

/// How far the ranks of a group got, and in which calls of it they wait.
fn take_in(group: &Group, stuck: &BTreeMap<i32, Stuck>, input: &mut Input) {
    // What all have got through is over, whatever it was.
    let over = group.lanes.values().map(|lane| lane.over).min().flatten();
    for (&rank, lane) in &group.lanes {
        let stuck = stuck.get(&rank);
        let entered = match stuck {
            Some(stuck) => lane.entered_by(stuck.since_ns),
            None => lane.entered,
        };
        let made = lane.made().filter(|made| over.is_none_or(|over| made.position > over));
        input.progress.push(Progress {
            node: node(),
            pid: rank.into(),
            rank: group.place(rank),
            nranks: i32::try_from(group.members.len()).ok(),
            comm_hash: group.hash(),
            entered,
            recent: made.filter(|made| Some(made.position) <= entered).collect(),
            ..Progress::default()
        });
        // Who is stuck waits for nobody.
        if stuck.is_some() {
            continue;
        }
        if let Some((position, pending)) = lane.pending() {
            input.in_calls.push(InCall {
                func: Arc::clone(&pending.func),
                comm_seq: Some(position),
                payload: pending.payload.clone(),
                since_ns: pending.created_ns.unwrap_or(input.since_ns),
                ..in_call(group, rank)
            });
        }
        take_in_pairs(group, rank, lane, input);
    }
}

/// The sends and receives of a rank that wait for their peers.
fn take_in_pairs(group: &Group, rank: i32, lane: &Lane, input: &mut Input) {
    let unmet = lane.pairs.iter().filter(|pair| !is_met(group, group.place(rank), lane, pair));
    input.in_calls.extend(unmet.map(|pair| InCall {
        func: if pair.is_send { "send" } else { "recv" }.into(),
        root: Some(pair.peer),
        since_ns: pair.created_ns.unwrap_or(input.since_ns),
        ..in_call(group, rank)
    }));
}

fn in_call(group: &Group, rank: i32) -> InCall {
    InCall {
        node: node(),
        pid: rank.into(),
        comm_hash: Some(group.hash()),
        rank: Some(group.place(rank)),
        nranks: i32::try_from(group.members.len()).ok(),
        ..InCall::default()
    }
}

/// Whether the peer of a send or receive has made its part, too, as many times.
fn is_met(group: &Group, place: i32, lane: &Lane, pair: &Pair) -> bool {
    let count = |lane: &Lane, peer: i32, is_send: bool| {
        lane.pairs.iter().filter(|pair| pair.peer == peer && pair.is_send == is_send).count()
    };
    let peer = usize::try_from(pair.peer).ok().and_then(|at| group.members.get(at));
    let Some(other) = peer.and_then(|rank| group.lanes.get(rank)) else { return false };
    count(other, place, !pair.is_send) >= count(lane, pair.peer, pair.is_send)
}
