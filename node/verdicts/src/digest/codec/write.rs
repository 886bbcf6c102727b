//! Writes a digest.

use std::collections::HashMap;
use std::net::IpAddr;

use super::super::{Block, Digest, Lane, Resent};
use super::expected::Before;
use super::neighbour::Neighbour;
use super::{
    FUNCS, HEADS, LIBRARIES, LONGEST_NAME, NEXT_COMM, NEXT_RANK, OTHER_COMM, OTHER_LIBRARY, VERSION, WITH_WALL, fold,
};

#[derive(Default)]
pub(super) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn digest(mut self, digest: &Digest) -> Vec<u8> {
        let stepped = digest.wall_ahead_ms != 0;
        self.bytes.push(if stepped { WITH_WALL } else { VERSION });
        self.signed(digest.window);
        let said = [!digest.gone.is_empty(), !digest.resent.is_empty(), !digest.steps.is_empty(), stepped];
        let flags = [digest.clock.is_some(), digest.cut, digest.lost > 0, digest.unplaced > 0];
        self.bytes.push(flags.iter().chain(&said).rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag)));
        if let Some(clock) = digest.clock {
            self.bytes.extend(clock.reference.to_le_bytes());
            self.signed(clock.offset_us);
            self.unsigned(clock.bound_us.into());
        }
        if stepped {
            self.signed(digest.wall_ahead_ms);
        }
        for count in [digest.lost, digest.unplaced, digest.gone.len() as u64].into_iter().filter(|count| *count > 0) {
            self.unsigned(count);
        }
        for gone in &digest.gone {
            self.unsigned(gone.pid.into());
            self.signed(digest.window.wrapping_sub(gone.window));
        }
        if !digest.resent.is_empty() {
            self.unsigned(digest.resent.len() as u64);
        }
        for resent in &digest.resent {
            self.resent(resent);
        }
        self.unsigned(digest.processes.len() as u64);
        let mut pid = 0;
        for process in &digest.processes {
            let step = fold(i64::from(process.pid) - pid);
            self.unsigned(step << 2 | u64::from(process.activity.is_some()) << 1 | u64::from(process.opens.is_some()));
            pid = process.pid.into();
            if let Some(activity) = process.activity {
                self.bytes.push(activity.number() + 1);
            }
            if process.opens.is_some() {
                self.name(process.opens.as_deref());
            }
        }
        let mut comms: Vec<(u64, Option<i32>)> = Vec::new();
        let mut place: HashMap<(u64, Option<i32>), usize> = HashMap::new();
        for lane in &digest.lanes {
            place.entry((lane.comm_hash, lane.nranks)).or_insert_with(|| {
                comms.push((lane.comm_hash, lane.nranks));
                comms.len() - 1
            });
        }
        self.unsigned(comms.len() as u64);
        for (hash, nranks) in &comms {
            self.bytes.extend(hash.to_le_bytes());
            self.unsigned(nranks.map_or(0, |n| u64::from(n.unsigned_abs()) + 1));
        }
        self.unsigned(digest.lanes.len() as u64);
        let mut before: HashMap<(u64, &str), Before> = HashMap::new();
        let (mut neighbour, mut unused) = (Neighbour::default(), 0);
        for (at, lane) in digest.lanes.iter().enumerate() {
            let written = digest.lanes.get(..at).unwrap_or_default();
            let comm = place[&(lane.comm_hash, lane.nranks)];
            let kind = |lane: &Lane| (lane.func.clone(), lane.library.clone(), lane.tier);
            let like =
                neighbour.like(written).filter(|(like, process)| (*process, kind(like)) == (lane.process, kind(lane)));
            let like = like.map(|(like, _)| like);
            match like {
                Some(like) => self.like(lane, like, comm, comm == unused),
                None => {
                    self.unsigned(lane.process as u64 + HEADS);
                    self.unsigned(comm as u64);
                    self.head(lane);
                }
            }
            unused = unused.max(comm + 1);
            let key = (lane.comm_hash, &*lane.func);
            let known = like.and_then(|like| before.get(&(like.comm_hash, &*like.func))).cloned();
            self.lane(lane, like, before.entry(key).or_insert_with(|| known.unwrap_or_default()));
            neighbour.added(digest.lanes.get(..=at).unwrap_or_default());
        }
        if !digest.steps.is_empty() {
            self.steps(digest);
        }
        self.bytes
    }

    /// What a lane is of, against the one neighbour it.
    fn like(&mut self, lane: &Lane, like: &Lane, comm: usize, unused: bool) {
        let step = i64::from(lane.rank) - i64::from(like.rank);
        if step == 1 && (lane.comm_hash, lane.nranks) == (like.comm_hash, like.nranks) {
            self.unsigned(NEXT_RANK);
        } else if step == 0 && unused {
            self.unsigned(NEXT_COMM);
        } else {
            self.unsigned(OTHER_COMM);
            self.unsigned(comm as u64);
            self.signed(step);
        }
    }

    fn head(&mut self, lane: &Lane) {
        self.name(Some(&lane.func));
        let library = LIBRARIES.iter().position(|l| *l == &*lane.library);
        let library = library.and_then(|l| u8::try_from(l).ok()).unwrap_or(OTHER_LIBRARY);
        self.bytes.push(library << 4 | lane.tier.min(15));
        if library == OTHER_LIBRARY {
            self.text(&lane.library);
        }
        self.signed(lane.rank.into());
    }

    fn lane(&mut self, lane: &Lane, like: Option<&Lane>, before: &mut Before) {
        let same = like.is_some_and(|like| (like.calls, like.last_seq) == (lane.calls, lane.last_seq));
        let runs = |blocks: &[Block]| blocks.iter().map(|b| (b.start, b.level)).collect::<Vec<_>>();
        let alike = !lane.blocks.is_empty() && runs(&lane.blocks) == runs(&before.blocks);
        let waited = lane.blocks.iter().any(|block| block.waited.is_some());
        self.unsigned(
            (if alike { 0 } else { lane.blocks.len() as u64 }) << 5
                | u64::from(same) << 4
                | u64::from(waited) << 3
                | u64::from(alike) << 2
                | u64::from(lane.last_seq.is_some()) << 1
                | u64::from(lane.open.is_some()),
        );
        if !same {
            self.unsigned(lane.calls);
        }
        if let Some(last) = lane.last_seq {
            if !same {
                self.signed(last.wrapping_sub(before.last_seq).cast_signed());
            }
            before.last_seq = last;
        }
        if let Some(open) = lane.open {
            self.signed(open.seq.wrapping_sub(before.last_seq).cast_signed());
            self.unsigned(open.for_ms);
        }
        let mut at = before.blocks.first().map_or(before.last_seq, |b| b.start);
        let mut previous: Option<&Block> = None;
        for block in &lane.blocks {
            if !alike {
                let gap = fold(block.start.wrapping_sub(at).cast_signed());
                self.unsigned(gap.wrapping_mul(32) | u64::from(block.level & 31));
            }
            at = block.start.wrapping_add(block.size());
            let expected = before.expected(block.start, block.level, previous);
            self.signed(block.exit_us.wrapping_sub(expected.exit_us));
            self.signed(block.duration_us.cast_signed().wrapping_sub(expected.duration_us));
            let own = expected.compute_us(block.level, block.exit_us, block.duration_us);
            self.unsigned(block.compute_us.map_or(0, |us| fold(us.cast_signed().wrapping_sub(own)).wrapping_add(1)));
            if waited {
                self.unsigned(block.waited.map_or(0, |calls| block.size().saturating_sub(calls.into()) + 1));
            }
            previous = Some(block);
        }
        if !lane.blocks.is_empty() {
            before.blocks.clone_from(&lane.blocks);
        }
    }

    fn resent(&mut self, resent: &Resent) {
        for address in [resent.from, resent.to] {
            match address {
                IpAddr::V4(address) => {
                    self.bytes.push(4);
                    self.bytes.extend(address.octets());
                }
                IpAddr::V6(address) => {
                    self.bytes.push(16);
                    self.bytes.extend(address.octets());
                }
            }
        }
        self.unsigned(resent.segments);
        self.unsigned(resent.at_ms.len() as u64);
        resent.at_ms.iter().for_each(|at_ms| self.unsigned((*at_ms).into()));
    }

    pub(super) fn unsigned(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    pub(super) fn signed(&mut self, value: i64) {
        self.unsigned(fold(value));
    }

    fn name(&mut self, name: Option<&str>) {
        match (name, name.and_then(|n| FUNCS.iter().position(|f| *f == n))) {
            (None, _) => self.bytes.push(0),
            (_, Some(place)) => self.bytes.push(place as u8 + 2),
            (Some(name), None) => {
                self.bytes.push(1);
                self.text(name);
            }
        }
    }

    fn text(&mut self, text: &str) {
        let mut end = text.len().min(LONGEST_NAME);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.unsigned(end as u64);
        self.bytes.extend(&text.as_bytes()[..end]);
    }
}
