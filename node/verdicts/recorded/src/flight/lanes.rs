//! How far one rank got in each group that it made calls in: its calls by position, the oldest that
//! is not over, and its sends and receives that are not.

use std::collections::BTreeMap;
use std::sync::Arc;

use observed::{Coupling, Made, Payload};

use super::dump::{Dump, Entry, Status};
use super::names;

/// The calls of a rank in a group.
#[derive(Debug, Clone, Default)]
pub(super) struct Lane {
    /// The process's own number of the group.
    pub(super) pg_id: Option<i64>,
    pub(super) desc: String,
    /// Collectives by position, those that the buffer still has.
    pub(super) calls: BTreeMap<u64, Call>,
    /// Position of the last one.
    pub(super) entered: Option<u64>,
    /// The last position up to which all are over.
    pub(super) over: Option<u64>,
    /// Sends and receives that are not over, oldest first.
    pub(super) pairs: Vec<Pair>,
    /// Calls whose position is not known.
    pub(super) unplaced: u64,
}

/// A collective, or a batch of calls that share a position.
#[derive(Debug, Clone, Default)]
pub(super) struct Call {
    /// Canonical name.
    pub(super) func: Arc<str>,
    pub(super) payload: Payload,
    pub(super) created_ns: Option<i64>,
    pub(super) site: Option<String>,
    is_over: bool,
}

impl Call {
    /// Whether all ranks of the group meet in it.
    pub(super) fn meets(&self) -> bool {
        Coupling::of(&self.func) == Coupling::All
    }
}

/// A send or receive that is not over.
#[derive(Debug, Clone)]
pub(super) struct Pair {
    /// Rank in the group.
    pub(super) peer: i32,
    pub(super) is_send: bool,
    pub(super) created_ns: Option<i64>,
}

impl Lane {
    /// The oldest collective that is not over, with its position.
    pub(super) fn pending(&self) -> Option<(u64, &Call)> {
        let from = self.over.map_or(0, |over| over.saturating_add(1));
        self.calls.range(from..).next().map(|(position, call)| (*position, call))
    }

    /// The last position that it had entered at a time, Unix nanoseconds.
    pub(super) fn entered_by(&self, at_ns: i64) -> Option<u64> {
        let later = self.calls.iter().find(|(_, call)| call.created_ns.is_some_and(|created_ns| created_ns > at_ns));
        later.map_or(self.entered, |(position, _)| position.checked_sub(1))
    }

    /// What it called.
    pub(super) fn made(&self) -> impl Iterator<Item = Made> {
        self.calls.iter().map(|(position, call)| Made {
            position: *position,
            func: Arc::clone(&call.func),
            root: None,
            payload: call.payload.clone(),
        })
    }
}

/// The calls of a rank by the name of their group.
pub(super) fn of(dump: &Dump) -> BTreeMap<String, Lane> {
    let mut lanes: BTreeMap<String, Lane> = BTreeMap::new();
    let mut entries: BTreeMap<&str, Vec<(usize, &Entry)>> = BTreeMap::new();
    for (at, entry) in dump.entries.iter().enumerate() {
        entries.entry(entry.name()).or_default().push((at, entry));
    }
    let positions = positions(dump);
    let has_events = dump.has_events();
    // Of the process's calls the last that is known to be over.
    let last_over = dump.entries.iter().rposition(|entry| is_over(entry, None, has_events));
    for (name, entries) in entries {
        let lane = lanes.entry(name.to_owned()).or_default();
        let first = entries.first().map(|(_, entry)| *entry);
        lane.pg_id = first.and_then(|entry| entry.pg_id);
        lane.desc = first.map_or_else(String::new, |entry| entry.desc().to_owned());
        let status = lane.pg_id.and_then(|id| dump.pg_status.get(&id.to_string())).copied();
        collectives(lane, &entries, &positions, status, has_events);
        pairs(lane, &entries, status, last_over, has_events);
    }
    of_status(dump, &mut lanes);
    lanes
}

/// The position of each entry in its group, from 0, where it is known. The recorder counts from 1.
///
/// TorchComms numbers the calls of all communicators in one row, sends and receives too: there the
/// calls of each are counted, if the buffer has lost none.
fn positions(dump: &Dump) -> Vec<Option<u64>> {
    let given = |entry: &Entry| entry.collective_seq_id.and_then(from_zero);
    let offset = |entry: &Entry| Some(entry.collective_seq_id?.wrapping_sub(entry.record_id?));
    let is_one_row = |first: &Entry| {
        let (name, all) = (first.name(), offset(first));
        let several = || dump.entries.iter().any(|entry| entry.name() != name || entry.is_p2p());
        let in_row = |entry: &Entry| offset(entry) == all && entry.p2p_seq_id.unwrap_or(0) == 0;
        all.is_some() && dump.pg_status.is_empty() && dump.entries.iter().all(in_row) && several()
    };
    let Some(first) = dump.entries.first().filter(|first| is_one_row(first)) else {
        return dump.entries.iter().map(given).collect();
    };
    if first.collective_seq_id != Some(0) {
        return vec![None; dump.entries.len()];
    }
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut count = |entry| {
        let count = counts.entry(Entry::name(entry)).or_default();
        let position = *count;
        *count += u64::from(!entry.is_p2p());
        Some(position)
    };
    dump.entries.iter().map(&mut count).collect()
}

/// A number of the recorder, which counts from 1 (0 is the first of TorchComms, too), as a position.
fn from_zero(seq: i64) -> Option<u64> {
    u64::try_from(seq).ok().map(|seq| seq.saturating_sub(1))
}

/// A count of the recorder as the position of the last of them; none where there was none.
fn last_of(count: i64) -> Option<u64> {
    u64::try_from(count).ok().and_then(|count| count.checked_sub(1))
}

/// Whether a call is over. `completed`: how far the process's status says that calls are, where it
/// counts such.
fn is_over(entry: &Entry, completed: Option<(i64, i64)>, has_events: bool) -> bool {
    let by_status = completed.map(|(position, completed)| completed >= position);
    // Without events a device library's call that was retired may have timed out.
    let retired = entry.retired && !has_events && (by_status != Some(false) || !names::is_ordered(&entry.library()));
    entry.is_complete() || retired || by_status == Some(true)
}

fn collectives(
    lane: &mut Lane,
    entries: &[(usize, &Entry)],
    positions: &[Option<u64>],
    status: Option<Status>,
    has_events: bool,
) {
    // Sends and receives are counted in the same status.
    let status = status.filter(|_| entries.iter().all(|(_, entry)| !entry.is_p2p()));
    let completed = status.map(|status| status.last_completed_collective);
    let is_ordered = entries.iter().all(|(_, entry)| names::is_ordered(&entry.library()));
    for (at, entry) in entries.iter().filter(|(_, entry)| !entry.is_p2p()) {
        let Some(position) = positions[*at] else {
            lane.unplaced += 1;
            continue;
        };
        let by_status = entry.collective_seq_id.zip(completed);
        let call = Call {
            func: names::canonical(entry.called()).into(),
            payload: names::payload(entry),
            created_ns: entry.created_ns(),
            site: entry.site(),
            is_over: is_over(entry, by_status, has_events),
        };
        let batch = lane.calls.entry(position).or_insert_with(|| call.clone());
        batch.is_over |= call.is_over;
        if *batch.func != *call.func {
            // Calls of a batch end with it, and not by themselves.
            batch.func = names::BATCH.into();
            batch.payload = Payload::default();
        }
    }
    let enqueued = status.and_then(|status| last_of(status.last_enqueued_collective));
    lane.entered = lane.calls.keys().next_back().copied().max(enqueued);
    let last_over = lane.calls.iter().rfind(|(_, call)| call.is_over).map(|(position, _)| *position);
    let pending = lane.calls.iter().find(|(position, call)| {
        // A device library's calls of a group are over in their order.
        !(call.is_over || is_ordered && last_over.is_some_and(|last| **position < last))
    });
    let before = |position: u64| position.checked_sub(1);
    lane.over = match pending {
        Some((position, _)) => before(*position),
        None => lane.calls.keys().next_back().copied().max(completed.and_then(last_of)),
    };
}

/// Sends and receives that are not over: neither they nor their batch ended, and the process went
/// on with nothing later that did.
fn pairs(
    lane: &mut Lane,
    entries: &[(usize, &Entry)],
    status: Option<Status>,
    last_over: Option<usize>,
    has_events: bool,
) {
    let most = entries.iter().filter_map(|(_, entry)| entry.collective_seq_id).max().unwrap_or(0);
    // A number beyond all collectives is one of sends and receives.
    let completed = status.map(|status| status.last_completed_collective).filter(|completed| *completed > most);
    let over = |entry: &Entry| is_over(entry, entry.p2p_seq_id.zip(completed), has_events);
    let batch_over: Vec<Option<i64>> =
        entries.iter().filter(|(_, entry)| entry.is_p2p() && over(entry)).map(|(_, entry)| entry.p2p_seq_id).collect();
    for (at, entry) in entries.iter().filter(|(_, entry)| entry.is_p2p()) {
        let Some((is_send, peer)) = names::peer(entry.called()) else { continue };
        let batch = entry.p2p_seq_id.filter(|seq| *seq > 0);
        let ended = over(entry) || batch.is_some() && batch_over.contains(&batch);
        if !ended && last_over.is_none_or(|last| last < *at) {
            lane.pairs.push(Pair { peer, is_send, created_ns: entry.created_ns() });
        }
    }
}

/// Groups of which the buffer holds no call any more: how far the process got says its status, by
/// its own numbers of groups. These and the names both count up in the order of creation.
fn of_status(dump: &Dump, lanes: &mut BTreeMap<String, Lane>) {
    let mut names: Vec<(u64, &str)> =
        dump.pg_config.keys().filter_map(|name| Some((name.parse().ok()?, name.as_str()))).collect();
    let mut ids: Vec<(i64, Status)> =
        dump.pg_status.iter().filter_map(|(id, status)| Some((id.parse().ok()?, *status))).collect();
    names.sort_unstable();
    ids.sort_by_key(|(id, _)| *id);
    let pairs: Vec<(&str, i64, Status)> =
        names.iter().zip(&ids).map(|((_, name), (id, status))| (*name, *id, *status)).collect();
    let agrees = |(name, id, _): &(&str, i64, Status)| {
        lanes.get(*name).and_then(|lane| lane.pg_id).is_none_or(|of_calls| of_calls == *id)
    };
    if names.len() != ids.len() || !pairs.iter().all(agrees) {
        return;
    }
    for (name, id, status) in pairs {
        lanes.entry(name.to_owned()).or_insert_with(|| Lane {
            pg_id: Some(id),
            entered: last_of(status.last_enqueued_collective),
            // It may be over by now: the status comes late, and nothing says that it is not.
            over: last_of(status.last_enqueued_collective),
            ..Lane::default()
        });
    }
}
