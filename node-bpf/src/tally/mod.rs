//! Counted calls, in user space: reads the BPF programs' counts each second (`bpf/tally.bpf.h`),
//! delivers them as [`CallTally`] records, sets the thresholds from which on a call becomes a row
//! of its own, and makes those rows. `registry` maps numbers to functions, `threshold` has the
//! rule, `wire` the bytes. `cuda` and `symbol_probes` decide which functions are counted.

pub(crate) mod registry;
mod threshold;
pub(crate) mod wire;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object};

use crate::clock::Clock;
use crate::cuda::functions::{self, Kind};
use crate::loader::ProbeStatus;
use crate::lookup;
use crate::process::Process;
use record::{CallTally, CudaCall, Record, SymbolCall};
use registry::{Counted, FUNCS, Registry, SYMBOLS_FROM};
use threshold::Histogram;
use wire::{RawFunc, RawRow, RawTally};

/// Most rows a second of slow CUDA and HIP calls; of synchronisations after collectives; of the
/// user's symbols, and points.
const MOST_ROWS: [u32; wire::BUDGETS] = {
    let mut most = [0; wire::BUDGETS];
    most[wire::BUDGET_SLOW_CUDA] = 200;
    most[wire::BUDGET_SYNCS] = 1000;
    most[wire::BUDGET_SYMBOLS] = 1000;
    most[wire::BUDGET_POINTS] = 1000;
    most
};
/// Before anything is known of a CUDA function. Of the user's symbols every call is wanted.
const FIRST_CUDA_ROW_MIN_NS: u64 = 1_000_000;

/// A function gets no less than this part of a budget, however many there are, and no more than
/// half of it, even alone: so one that is called for the first time does not find it used up.
const MOST_SHARES: usize = 4;
const FEWEST_SHARES: usize = 2;

/// Most rows a second of one of so many functions (but for urgent ones).
fn most_of_one(budget: usize, functions: usize) -> u64 {
    u64::from(MOST_ROWS[budget]) / functions.clamp(FEWEST_SHARES, MOST_SHARES) as u64
}

/// From when on calls of a function become rows of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowRule {
    /// "libcudart:cudaMalloc", …
    pub probe: String,
    /// Calls this long or longer become rows, as long as the second's budget lasts.
    pub row_min_ns: u64,
    /// Rows made so far.
    pub rows: u64,
    /// Calls that were long enough when the budget was spent: they are in the rollups only.
    pub withheld: u64,
}

/// Reads the kernel's counts.
#[derive(Debug)]
pub(crate) struct Tallies {
    counts: [MapHandle; 2],
    funcs: MapHandle,
    rules: MapHandle,
    control: MapHandle,
    rows: MapHandle,
    /// The map in which calls are counted now.
    epoch: u32,
    /// When it began, Unix ns.
    since_ns: i64,
    registry: Arc<Registry>,
    /// Of every function that was called: calls so far.
    calls: HashMap<u16, u64>,
}

impl Tallies {
    pub(crate) fn new(object: &Object, registry: Arc<Registry>, now_ns: i64) -> libbpf_rs::Result<Self> {
        let tallies = Tallies {
            counts: [lookup::map(object, "tallies_0")?, lookup::map(object, "tallies_1")?],
            funcs: lookup::map(object, "tally_funcs")?,
            rules: lookup::map(object, "tally_rules")?,
            control: lookup::map(object, "tally_control")?,
            rows: lookup::map(object, "tally_rows")?,
            epoch: 0,
            since_ns: now_ns,
            registry,
            calls: HashMap::new(),
        };
        for func in 0..SYMBOLS_FROM {
            tallies.set_rule(func, FIRST_CUDA_ROW_MIN_NS, most_of_one(wire::BUDGET_SLOW_CUDA, MOST_SHARES))?;
        }
        for func in SYMBOLS_FROM..FUNCS {
            tallies.set_rule(func, 0, most_of_one(wire::BUDGET_SYMBOLS, MOST_SHARES))?;
        }
        tallies.begin(0)?;
        Ok(tallies)
    }

    /// Makes `epoch` the one in which calls are counted, with its budgets unused.
    fn begin(&self, epoch: u32) -> libbpf_rs::Result<()> {
        for budget in 0..wire::BUDGETS as u32 {
            let at = epoch * wire::BUDGETS as u32 + budget;
            self.rows.update(&at.to_ne_bytes(), &0u64.to_ne_bytes(), MapFlags::ANY)?;
        }
        self.control.update(&0u32.to_ne_bytes(), &wire::control(epoch, MOST_ROWS), MapFlags::ANY)
    }

    fn func(&self, func: u16) -> Option<RawFunc> {
        RawFunc::parse(&self.funcs.lookup(&u32::from(func).to_ne_bytes(), MapFlags::ANY).ok()??)
    }

    fn row_min_ns(&self, func: u16) -> u64 {
        let value = self.rules.lookup(&u32::from(func).to_ne_bytes(), MapFlags::ANY).ok().flatten();
        value.and_then(|value| value.first_chunk().copied()).map_or(0, u64::from_ne_bytes)
    }

    fn set_rule(&self, func: u16, row_min_ns: u64, rows_until: u64) -> libbpf_rs::Result<()> {
        let rule = [row_min_ns, rows_until].map(u64::to_ne_bytes).concat();
        self.rules.update(&u32::from(func).to_ne_bytes(), &rule, MapFlags::ANY)
    }

    /// Ends the epoch: reads its counts, with its time. Sets the thresholds for the next.
    pub(crate) fn read(&mut self, now_ns: i64, rank_of: impl Fn(u32) -> Option<i32>) -> Vec<Record> {
        let (ended, began_ns) = (self.epoch, std::mem::replace(&mut self.since_ns, now_ns));
        self.epoch = 1 - ended;
        if let Err(error) = self.begin(self.epoch) {
            tracing::warn!(%error, "cannot change the epoch of counted calls");
            self.epoch = ended;
            return vec![];
        }
        wait_for_programs();
        let mut sums: BTreeMap<(u32, u16), CallTally> = BTreeMap::new();
        let mut histograms: BTreeMap<u16, Histogram> = BTreeMap::new();
        for raw in take_all(&self.counts[ended as usize]) {
            let Some(counted) = self.registry.counted(raw.func) else { continue };
            *histograms.entry(raw.func).or_default().entry(raw.bucket).or_default() += raw.count;
            *self.calls.entry(raw.func).or_default() += raw.count;
            let sum = sums.entry((raw.pid, raw.func)).or_insert_with(|| CallTally {
                ts_ns: began_ns + (now_ns - began_ns) / 2,
                source: counted.source(),
                func: counted.func(),
                pid: raw.pid,
                rank: rank_of(raw.pid),
                cgroup_id: raw.cgroup_id,
                count: 0,
                sum_ns: 0,
                min_ns: u64::MAX,
                max_ns: 0,
                bytes: matches!(&counted, Counted::Cuda(f) if f.has_bytes()).then_some(0),
                buckets: vec![],
            });
            sum.count += raw.count;
            sum.sum_ns = sum.sum_ns.saturating_add(raw.sum_ns);
            sum.min_ns = sum.min_ns.min(raw.min_ns);
            sum.max_ns = sum.max_ns.max(raw.max_ns);
            sum.bytes = sum.bytes.map(|bytes| bytes.saturating_add(raw.bytes));
            sum.buckets.push((raw.sum_ns / raw.count.max(1), raw.count));
        }
        self.set_thresholds(&histograms);
        sums.into_values()
            .map(|mut sum| {
                sum.buckets.sort_unstable();
                Record::CallTally(sum)
            })
            .collect()
    }

    /// The epoch in which nothing is counted, and of which all was read.
    pub(crate) fn idle(&self) -> usize {
        1 - self.epoch as usize
    }

    /// Half of each budget is planned for, so that a busier second still has room for its slow
    /// calls.
    fn set_thresholds(&self, histograms: &BTreeMap<u16, Histogram>) {
        // functions that were not called this second come down, too
        let empty = Histogram::new();
        let known: Vec<_> = self
            .calls
            .keys()
            // points have no duration: the first of a second become rows
            .filter(|&&func| self.registry.counted(func).is_some_and(|counted| !counted.is_point()))
            .map(|&func| (func, histograms.get(&func).unwrap_or(&empty), self.row_min_ns(func)))
            .collect();
        for (symbols, budget) in [(false, wire::BUDGET_SLOW_CUDA), (true, wire::BUDGET_SYMBOLS)] {
            let group = known.iter().copied().filter(|(func, ..)| (*func >= SYMBOLS_FROM) == symbols);
            let functions = group.clone().count();
            for (func, row_min_ns) in threshold::next(group, u64::from(MOST_ROWS[budget]) / 2) {
                let rows_until = self.func(func).map_or(0, |raw| raw.rows) + most_of_one(budget, functions);
                if let Err(error) = self.set_rule(func, row_min_ns, rows_until) {
                    tracing::warn!(%error, "cannot set the threshold of a counted call");
                }
            }
        }
    }

    /// Counters of every function that was called or lost something, and their rules.
    pub(crate) fn status(&self) -> (Vec<ProbeStatus>, Vec<RowRule>) {
        let mut probes = vec![];
        let mut rules = vec![];
        for number in self.registry.numbers() {
            let calls = self.calls.get(&number).copied().unwrap_or(0);
            let Some(raw) = self.func(number) else { continue };
            let Some(counted) = self.registry.counted(number) else { continue };
            if number < SYMBOLS_FROM && calls + raw.lost_map + raw.unmatched == 0 {
                continue;
            }
            let RawFunc { rows, withheld, lost_ring, lost_map, unmatched } = raw;
            probes.push(ProbeStatus { probe: counted.probe(), hits: calls, lost_ring, lost_map, unmatched, shed: 0 });
            rules.push(RowRule { probe: counted.probe(), row_min_ns: self.row_min_ns(number), rows, withheld });
        }
        (probes, rules)
    }
}

/// Empties a map that no program uses any more.
fn take_all(map: &MapHandle) -> Vec<RawTally> {
    match map.lookup_and_delete_batch(4096, MapFlags::ANY, MapFlags::ANY) {
        Ok(entries) => entries.filter_map(|(key, value)| RawTally::parse(&key, &value)).collect(),
        Err(error) => {
            tracing::warn!(%error, "cannot read the counted calls");
            vec![]
        }
    }
}

/// Returns when every program that may have read the old epoch has ended: they run inside RCU read
/// sections, and this command waits for those (membarrier(2), MEMBARRIER_CMD_GLOBAL). Where it is
/// refused (nohz_full), it sleeps for a while instead.
fn wait_for_programs() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: membarrier takes two numbers (and a CPU that this command ignores) and touches no
    // memory of ours.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if done != 0 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// A single call; none when its number was never assigned.
pub(crate) fn row(raw: &RawRow, registry: &Registry, clock: &Clock, process: Option<&Arc<Process>>) -> Option<Record> {
    let ts_ns = clock.unix_ns(raw.enter_ns);
    let duration_ns = i64::try_from(raw.exit_ns.saturating_sub(raw.enter_ns)).unwrap_or(i64::MAX);
    let rank = process.and_then(|p| p.seen.rank);
    let has = |flag: u16| raw.flags & flag != 0;
    Some(match registry.counted(raw.func)? {
        Counted::Cuda(function) => Record::CudaCall(CudaCall {
            ts_ns,
            duration_ns,
            pid: raw.pid,
            tid: raw.tid,
            rank,
            api: function.api.name(),
            func: function.name,
            bytes: has(wire::HAVE_BYTES).then_some(raw.bytes),
            kind: match function.kind {
                Kind::Fixed(kind) => Some(kind),
                Kind::Argument(_) if has(wire::HAVE_KIND) => functions::copy_kind(raw.copy_kind),
                _ if has(wire::AFTER_COLLECTIVE) => Some("after_collective"),
                _ => None,
            },
            stream: has(wire::HAVE_STREAM).then_some(raw.stream),
            ret: raw.ret as u32 as i32,
            cgroup_id: raw.cgroup_id,
        }),
        Counted::Symbol(info) => Record::SymbolCall(SymbolCall {
            ts_ns,
            duration_ns,
            pid: raw.pid,
            tid: raw.tid,
            rank,
            library: info.library.clone(),
            symbol: info.symbol.clone(),
            ret: (info.with_ret && !has(wire::NO_RETURN)).then_some(raw.ret as i64),
            cgroup_id: raw.cgroup_id,
        }),
    })
}
