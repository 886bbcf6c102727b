//! What was heard, and which window can be judged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::network;
use super::settle::settle;
use super::{GRACE_NS, LONG_LOOKBACK, LOOKBACK, Standing};
use crate::digest::{self, Digest, WINDOW_NS, end_of, reference_id, to_input, window_of};
use crate::observation::Coupling;
use crate::{Gone, Heard, Input, Progress, Report, Rules, Verdict, analyse};

/// Blocks kept of one node beyond the short look back.
const MOST_BLOCKS: usize = 4_096;
/// Windows for which it is remembered how far a process got.
const REMEMBER: i64 = 1_200;
/// Windows in which a node must have spoken to count as one with ranks.
const RECENT: i64 = 20;
/// A window that is missing for so many is not waited for.
const OVERTAKEN: i64 = 8;
/// Blocks in the look back up to which every window is judged; beyond, every second, third, …
const BLOCKS_A_WINDOW: usize = 40_000;
/// At least every so many.
const MOST_STRIDE: i64 = 8;
/// Raw verdicts kept.
const RAW: i64 = 12;
/// The hang threshold is so many times the third longest wait that was seen.
const USUAL_WAITS: i64 = 3;
/// And at most this.
const LONGEST_HANG_NS: i64 = 600_000_000_000;
/// Where the short look back holds fewer collectives, the long one is taken.
const FEW: usize = 8;

/// Whether a node is there, by the mesh's failure detector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Its heartbeat arrives.
    Live,
    /// It does not.
    Dead,
}

/// What one node said.
#[derive(Debug, Default)]
struct Page {
    /// By window of the node's own clock.
    digests: BTreeMap<i64, Digest>,
    /// How far each lane got, with the window in which that was last said.
    lanes: BTreeMap<(u32, u64, Arc<str>), (i64, Progress)>,
    dead: bool,
    /// Why its last digest could not be read.
    unread: Option<String>,
}

/// Keeps the digests and the verdicts of the last windows.
#[derive(Debug, Default)]
pub struct Board {
    pages: BTreeMap<String, Page>,
    /// Raw verdicts by window.
    raw: BTreeMap<i64, Arc<Report>>,
    judged: Option<i64>,
}

impl Board {
    /// Take in a digest; false where it was known or is too old.
    pub fn hear(&mut self, node: &str, digest: Digest) -> bool {
        let page = self.pages.entry(node.to_owned()).or_default();
        let newest = page.digests.keys().next_back().copied();
        if page.digests.contains_key(&digest.window) || newest.is_some_and(|n| digest.window < n - LONG_LOOKBACK) {
            return false;
        }
        page.unread = None;
        page.remember(node, &digest);
        let window = digest.window;
        page.digests.insert(window, digest);
        page.forget(newest.map_or(window, |n| n.max(window)));
        true
    }

    /// A digest of a node could not be read: it is not guessed at, and the node is listed as missing, with the reason, until one can be.
    pub fn refuse(&mut self, node: &str, why: String) {
        self.pages.entry(node.to_owned()).or_default().unread = Some(why);
    }

    /// Whether a digest of this window is known.
    #[must_use]
    pub fn knows(&self, node: &str, window: i64) -> bool {
        self.pages.get(node).is_some_and(|page| page.digests.contains_key(&window))
    }

    /// What each node said of these communicators and functions in the windows up to `window`, as many as are gossiped at a time: for
    /// [`Collector::number`](digest::Collector::number).
    #[must_use]
    pub fn said(&self, lanes: &BTreeSet<(u64, Arc<str>)>, window: i64) -> Vec<(&str, Vec<Digest>)> {
        let of = |digest: &Digest| Digest {
            window: digest.window,
            clock: digest.clock,
            processes: digest.processes.clone(),
            lanes: digest
                .lanes
                .iter()
                .filter(|lane| lanes.contains(&(lane.comm_hash, Arc::clone(&lane.func))))
                .cloned()
                .collect(),
            ..Digest::default()
        };
        let recent =
            |page: &Page| page.digests.range(window - OVERTAKEN..=window + OVERTAKEN).map(|(_, d)| of(d)).collect();
        self.pages.iter().map(|(name, page)| (name.as_str(), recent(page))).collect()
    }

    /// Who is there. Nodes that are not listed are forgotten with what they said.
    pub fn presence(&mut self, nodes: &BTreeMap<String, Presence>) {
        self.pages.retain(|name, _| nodes.contains_key(name));
        for (name, page) in &mut self.pages {
            page.dead = nodes.get(name) == Some(&Presence::Dead);
        }
    }

    /// The live node to whose clock all are aligned: the first by name of those that speak. `now_ns` by any clock near theirs.
    #[must_use]
    pub fn reference(&self, now_ns: i64) -> Option<&str> {
        let recent = window_of(now_ns) - RECENT;
        let speaks = |page: &Page| !page.dead && page.digests.keys().next_back().is_some_and(|w| *w >= recent);
        self.pages.iter().find(|(_, page)| speaks(page)).map(|(name, _)| name.as_str())
    }

    /// Every how many windows one is judged: each costs time with the ranks and collectives that it looks at.
    fn stride(&self, window: i64) -> i64 {
        let lately = window - LOOKBACK;
        let digests =
            self.pages.values().flat_map(|page| page.digests.values().rev().take_while(|d| d.window > lately));
        let blocks: usize = digests.flat_map(|digest| &digest.lanes).map(|lane| lane.blocks.len()).sum();
        (1 + i64::try_from(blocks / BLOCKS_A_WINDOW).unwrap_or(i64::MAX)).min(MOST_STRIDE)
    }

    /// The latest window that can be judged at `now_ns` (of the reference's clock): every live node with ranks has spoken of it or of a
    /// later one, or the grace is over. None where nobody spoke lately.
    #[must_use]
    pub fn closed(&self, now_ns: i64) -> Option<i64> {
        let last = window_of(now_ns - GRACE_NS) - 1;
        let spoken: Vec<i64> = self.expected(window_of(now_ns)).map(|(_, window)| window).collect();
        let newest = spoken.iter().max()?;
        let all = spoken.iter().min()?;
        Some((*all).max(last).min(*newest))
    }

    /// Live nodes that spoke lately, with the last window up to which all they said was heard, aligned.
    fn expected(&self, now: i64) -> impl Iterator<Item = (&str, i64)> {
        self.pages.iter().filter(|(_, page)| !page.dead).filter_map(move |(name, page)| {
            let aligned = page.spoken()?;
            (aligned >= now - RECENT).then_some((name.as_str(), aligned))
        })
    }

    /// Judge the windows that closed since the last time; the verdict of the latest, when there is one.
    pub fn judge(&mut self, now_ns: i64) -> Option<Standing> {
        let closed = self.closed(now_ns).filter(|w| self.judged.is_none_or(|judged| *w > judged))?;
        let stride = self.stride(closed);
        // The same windows at every agent.
        let window = closed - closed.rem_euclid(stride);
        if self.judged.is_some_and(|judged| window <= judged) {
            return None;
        }
        // The verdict of a window looks at the raw ones before it. What was missed (first start, a pause) is made up for.
        let first = (window - 4 * stride).max(self.judged.map_or(i64::MIN, |j| j + 1));
        for earlier in (first..=window).filter(|w| w.rem_euclid(stride) == 0) {
            let raw = Arc::new(self.raw(earlier));
            self.raw.insert(earlier, raw);
        }
        self.raw = self.raw.split_off(&(window - RAW * stride));
        self.judged = Some(window);
        let report = settle(&self.raw, window, stride);
        let reference = self.reference_of(window);
        let name = self.pages.keys().find(|name| reference_id(name) == reference).cloned();
        let (mut heard, mut silent) = (0, Vec::new());
        for (node, last) in self.expected(window_of(now_ns)) {
            if last >= window {
                heard += 1;
            } else {
                silent.push(node.to_owned());
            }
        }
        Some(Standing { window, reference: name, report, heard, silent })
    }

    /// The verdict of one window by the digests up to it, whatever other windows say.
    fn raw(&self, window: i64) -> Report {
        let mut input = self.input(window, LOOKBACK);
        let cells = |input: &Input| {
            let seqs: BTreeSet<(u64, u64)> = input.sampled.iter().map(|c| (c.seen.comm_hash, c.seen.seq)).collect();
            seqs.len()
        };
        if cells(&input) < FEW {
            input = self.input(window, LONG_LOOKBACK);
        }
        let rules = Rules { hang_ns: self.hang_ns(window), ..Rules::with_windows(WINDOW_NS) };
        let mut report = analyse(&input, &rules);
        let span = window_of(input.since_ns)..=window;
        let said = self.pages.iter().flat_map(|(node, page)| page.digests.values().map(move |d| (node.as_str(), d)));
        let resent = network::resent(said.filter(|(_, digest)| span.contains(&aligned(digest))), &input);
        if let Some(verdict) = network::verdict(&report, &input, &resent, &rules) {
            report.verdict = verdict;
        }
        if matches!(&report.verdict, Verdict::Unknown { .. }) && input.sampled.is_empty() {
            report.verdict = Verdict::Unknown {
                why: "no rank communicated in the last minute, or none that is recorded: is the job running, and does capture \
                      work where it does (rankmesh nodes)?"
                    .to_owned(),
            };
        }
        report
    }

    /// The input of a window's analysis.
    fn input(&self, window: i64, lookback: i64) -> Input {
        let within = |digest: &Digest| (window - lookback + 1..=window).contains(&aligned(digest));
        let digests: Vec<(&str, &Page, Vec<&Digest>)> = self
            .pages
            .iter()
            .map(|(name, page)| (name.as_str(), page, page.digests.values().filter(|d| within(d)).collect()))
            .collect();
        let heard: Vec<digest::Heard<'_>> =
            digests.iter().map(|(node, _, digests)| digest::Heard { node, digests }).collect();
        let mut input = to_input(&heard, self.reference_of(window));
        input.until_ns = end_of(window);
        input.since_ns = end_of(window - lookback);
        input.heard = Heard { asked: 0, answered: 0, missing: Vec::new(), notes: Vec::new() };
        let mut said: BTreeSet<(Arc<str>, i64, u64, Arc<str>)> = BTreeSet::new();
        for p in &input.progress {
            said.insert((Arc::clone(&p.node), p.pid, p.comm_hash, Arc::clone(&p.func)));
        }
        let (mut lost, mut cut) = (0u64, 0usize);
        for (node, page, digests) in &digests {
            for ((pid, comm, func), (at, progress)) in &page.lanes {
                let key = (Arc::clone(&progress.node), i64::from(*pid), *comm, Arc::clone(func));
                if *at <= window && !said.contains(&key) {
                    input.progress.push(progress.clone());
                }
            }
            lost = digests.iter().fold(lost, |sum, digest| sum.saturating_add(digest.lost));
            cut += digests.iter().filter(|digest| digest.cut).count();
            let ended = |pid: i64, at_ns: i64, how: &str| Gone { node: (*node).into(), pid, at_ns, how: how.into() };
            if let Some(last) = digests.last() {
                input.gone.extend(last.gone.iter().map(|g| ended(g.pid.into(), end_of(g.window), "")));
            }
            if let Some(why) = page.unread.as_ref().filter(|_| !page.dead) {
                input.heard.asked += 1;
                input.heard.missing.push(((*node).to_owned(), why.clone()));
                continue;
            }
            let newest = page.digests.values().next_back().map_or(i64::MIN, aligned);
            if page.dead {
                let pids: BTreeSet<u32> = page.lanes.keys().map(|(pid, ..)| *pid).collect();
                let how = "its host is not heard any more";
                input.gone.extend(pids.into_iter().map(|pid| ended(pid.into(), end_of(newest), how)));
            }
            if newest >= window - RECENT {
                input.heard.asked += 1;
                match (newest >= window, page.dead) {
                    (true, _) => input.heard.answered += 1,
                    (false, false) => {
                        input.heard.missing.push(((*node).to_owned(), "no digest of the window".to_owned()))
                    }
                    (false, true) => input.heard.missing.push(((*node).to_owned(), "dead".to_owned())),
                }
            }
        }
        if lost > 0 {
            input.heard.notes.push(format!("{lost} records were lost in capture"));
        }
        if cut > 0 {
            input.heard.notes.push(format!("{cut} digests were cut: more ranks or communicators on a host than fit"));
        }
        input
    }

    /// The reference that most digests of a window were aligned to; of equals the lowest.
    fn reference_of(&self, window: i64) -> u16 {
        let mut count: BTreeMap<u16, usize> = BTreeMap::new();
        for page in self.pages.values() {
            let latest = page.digests.values().rev().find(|digest| aligned(digest) <= window);
            if let Some(clock) = latest.and_then(|digest| digest.clock) {
                *count.entry(clock.reference).or_default() += 1;
            }
        }
        count.into_iter().max_by_key(|(id, n)| (*n, std::cmp::Reverse(*id))).map_or(0, |(id, _)| id)
    }

    /// From when on a wait is a hang: the rule's threshold, or a few times what ranks were seen to wait without hanging.
    fn hang_ns(&self, window: i64) -> i64 {
        let least = Rules::default().hang_ns;
        // By collective: the longest wait in it. The two longest may be hangs that are over.
        let mut waits: BTreeMap<(u64, &str, u64), u64> = BTreeMap::new();
        for digest in self.pages.values().flat_map(|page| page.digests.values()).filter(|d| aligned(d) <= window) {
            for lane in digest.lanes.iter().filter(|lane| Coupling::of(&lane.func) == Coupling::All) {
                for block in &lane.blocks {
                    let wait = block.duration_us;
                    if wait * 1_000 * (USUAL_WAITS as u64) > least.unsigned_abs() {
                        let longest = waits.entry((lane.comm_hash, &lane.func, block.start)).or_default();
                        *longest = wait.max(*longest);
                    }
                }
            }
        }
        let mut waits: Vec<u64> = waits.into_values().collect();
        waits.sort_unstable_by(|a, b| b.cmp(a));
        let usual = waits.get(2).map_or(0, |us| i64::try_from(*us).unwrap_or(i64::MAX).saturating_mul(1_000));
        usual.saturating_mul(USUAL_WAITS).clamp(least, LONGEST_HANG_NS)
    }
}

/// The window of the reference's clock that a digest's window mostly lies in.
fn aligned(digest: &Digest) -> i64 {
    let offset_ns = digest.clock.map_or(0, |clock| clock.offset_us.saturating_mul(1_000));
    window_of((end_of(digest.window) - WINDOW_NS / 2).saturating_sub(offset_ns))
}

impl Page {
    /// The last window, aligned, before which none is missing: later ones may have overtaken it on the way.
    fn spoken(&self) -> Option<i64> {
        let (&first, _) = self.digests.first_key_value()?;
        let (&newest, digest) = self.digests.last_key_value()?;
        let from = first.max(newest - OVERTAKEN);
        let missing = (from..newest).find(|window| !self.digests.contains_key(window));
        Some(aligned(digest) - missing.map_or(0, |window| newest + 1 - window))
    }

    fn remember(&mut self, node: &str, digest: &Digest) {
        let node: Arc<str> = node.into();
        let input = to_input(&[digest::Heard { node: &node, digests: &[digest] }], 0);
        for progress in input.progress {
            let Ok(pid) = u32::try_from(progress.pid) else { continue };
            let key = (pid, progress.comm_hash, Arc::clone(&progress.func));
            let known = self.lanes.get(&key).map_or(i64::MIN, |(at, _)| *at);
            if digest.window >= known {
                self.lanes.insert(key, (digest.window, progress));
            }
        }
    }

    fn forget(&mut self, newest: i64) {
        self.lanes.retain(|_, (at, _)| *at > newest - REMEMBER);
        let (mut blocks, mut keep_from) = (0, newest - LONG_LOOKBACK);
        for (window, digest) in self.digests.iter().rev() {
            blocks += digest.lanes.iter().map(|lane| lane.blocks.len()).sum::<usize>();
            if blocks > MOST_BLOCKS && *window < newest - LOOKBACK - 8 {
                keep_from = keep_from.max(window + 1);
                break;
            }
        }
        self.digests = self.digests.split_off(&keep_from);
    }
}
