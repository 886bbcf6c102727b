//! Compute times derived from steps: where calls only enqueue and hosts wait outside them, from
//! when all ranks enter them.
//!
//! A process that receives goes on when its peer has entered the send, one that meets others when
//! the last of them has entered. What it waited so is taken off the time that it was outside calls
//! in the step. Clocks enter only where peers are on different hosts. Pure, and the same for
//! everybody who has the same digests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use observed::{ClockOffset, Rules, Run, Sampled, Unsure};

use super::{Digest, Lane, Steps};

/// A process in a communicator: node, id, communicator.
type Member<'a> = (&'a str, i64, u64);
/// A process: node and id.
type Process<'a> = (&'a str, u32);
/// Calls that are summed: communicator, function, the process's own rank there, peer, which part of
/// these calls of the step.
type Kind<'a> = (u64, &'a str, i32, Option<i32>, u32);

/// A step of a process.
struct Step<'a> {
    level: u8,
    /// On the node's own clock, as of its last digest.
    end_ns: i64,
    length_ns: i64,
    outside_ns: i64,
    /// Calls, and how long before its end they were entered.
    kinds: BTreeMap<Kind<'a>, (u32, i64)>,
}

/// What is known of a process.
struct Stepped<'a> {
    node: &'a Arc<str>,
    ends: &'a Lane,
    nranks: BTreeMap<u64, Option<i32>>,
    /// By number.
    steps: BTreeMap<u64, Step<'a>>,
}

/// Processes that meet each other, directly or by others.
type Job<'a> = BTreeMap<Process<'a>, Stepped<'a>>;

/// The steps in the data of.
#[derive(Default)]
pub(super) struct StepTimes<'a> {
    processes: Job<'a>,
    digests: Vec<&'a Digest>,
}

/// An entry on aligned clocks, and how far that may be wrong.
#[derive(Clone, Copy)]
struct Entry<'a> {
    node: &'a str,
    at_ns: i64,
    bound_ns: i64,
}

impl Entry<'_> {
    /// How long it waited from here on until the last of others had entered: as the clocks say, and
    /// at least and at most were those of two hosts wrong by their bounds.
    fn waits_for(self, others: &[Entry<'_>]) -> [i64; 3] {
        let mut waits_ns = [0; 3];
        for last in others {
            let bound_ns = if last.node == self.node { 0 } else { last.bound_ns.saturating_add(self.bound_ns) };
            let wait_ns = last.at_ns.saturating_sub(self.at_ns);
            let within = [wait_ns, wait_ns.saturating_sub(bound_ns), wait_ns.saturating_add(bound_ns)];
            waits_ns = [0, 1, 2].map(|i| within[i].max(waits_ns[i]));
        }
        waits_ns
    }
}

/// A step of a process, compared with those of the others.
#[derive(Clone, Copy)]
struct StepWait {
    outside_ns: i64,
    /// Of this, the waits for others.
    waited_ns: i64,
    /// These at least and at most, by the bounds of the clocks.
    within_ns: [i64; 2],
    /// The bound of its host's clock.
    bound_ns: i64,
    /// It entered a call before those that it waits for in the one before had entered that: its
    /// host does not wait.
    goes_on: bool,
}

/// Calls of one kind in a step: when they were entered in the mean, and how long each waited, as the
/// clocks say, at least and at most.
struct Wait {
    first: bool,
    from_ns: i64,
    calls: u32,
    each_ns: [i64; 3],
}

/// Whether the process entered a call of the step, or the one that ends it, before the wait in an
/// earlier one was over, beyond the bounds of the clocks. Of first calls: the others may be means.
fn goes_on(waits: &[Wait], end_ns: i64) -> bool {
    let firsts = || waits.iter().filter(|wait| wait.first);
    firsts().any(|wait| {
        let later = firsts().map(|other| other.from_ns).chain([end_ns]).filter(|at_ns| *at_ns > wait.from_ns);
        let [_, least_ns, _] = wait.each_ns;
        least_ns > 0 && later.min().is_some_and(|next_ns| next_ns < wait.from_ns.saturating_add(least_ns))
    })
}

/// Compute times that could be derived.
#[derive(Default)]
pub(super) struct ComputeTimes<'a> {
    /// Lanes whose calls end steps, by communicator and function.
    pub(super) ends: BTreeSet<(u64, &'a str)>,
    cells: Vec<Sampled>,
    /// The steps of processes whose hosts run ahead.
    pub(super) stepped: Vec<observed::Stepped>,
    /// The communicators of these jobs: what their hosts take for compute time holds waits.
    comms: BTreeSet<u64>,
    /// By process and communicator: when each step ended (on the node's clock), and its compute
    /// time, of one call in it.
    other: BTreeMap<Member<'a>, Vec<(i64, i64, Unsure)>>,
}

impl ComputeTimes<'_> {
    /// Put them among the cells: those of the steps' ends are new. In the other communicators, the
    /// call that was made next to a step's end has its compute time, as much as one call's part in
    /// it.
    pub(super) fn spread(mut self, sampled: &mut Vec<Sampled>) {
        let mut places: BTreeMap<Member<'_>, Vec<(i64, usize, usize)>> = BTreeMap::new();
        for (place, lane) in sampled.iter_mut().enumerate().filter(|(_, lane)| self.comms.contains(&lane.comm_hash)) {
            lane.runs.iter_mut().for_each(|run| run.compute_ns = None);
            let member = (&*lane.node, lane.pid, lane.comm_hash);
            if self.other.contains_key(&member) {
                let runs = lane.runs.iter().enumerate().map(|(at, run)| (run.entry_ns, place, at));
                places.entry(member).or_default().extend(runs);
            }
        }
        let mut own: Vec<(usize, usize, i64, Unsure)> = Vec::new();
        for (member, mut runs) in places {
            runs.sort_unstable();
            for &(end_ns, compute_ns, unsure) in self.other.get(&member).into_iter().flatten() {
                let after = runs.partition_point(|(entry_ns, ..)| *entry_ns <= end_ns);
                if let Some((_, place, at)) = after.checked_sub(1).and_then(|before| runs.get(before)) {
                    own.push((*place, *at, compute_ns, unsure));
                }
            }
        }
        for (place, at, compute_ns, unsure) in own {
            if let Some(run) = sampled.get_mut(place).and_then(|lane| lane.runs.get_mut(at)) {
                (run.compute_ns, run.unsure) = (Some(compute_ns), Some(unsure));
            }
        }
        sampled.append(&mut self.cells);
    }
}

impl<'a> StepTimes<'a> {
    /// Take in a digest; its times count from `base_us`.
    pub(super) fn add(&mut self, node: &'a Arc<str>, digest: &'a Digest, base_us: i64) {
        self.digests.push(digest);
        for steps in &digest.steps {
            let Some(pid) = digest.processes.get(steps.process).map(|process| process.pid) else { continue };
            let Some(ends) = digest.lanes.get(steps.ends) else { continue };
            let new = || Stepped { node, ends, nranks: BTreeMap::new(), steps: BTreeMap::new() };
            let process = self.processes.entry((&**node, pid)).or_insert_with(new);
            if (process.ends.comm_hash, &process.ends.func) != (ends.comm_hash, &ends.func) {
                // Another communicator is the largest now: its numbers are others.
                *process = new();
            }
            process.add(steps, &digest.lanes, base_us);
        }
    }

    /// The compute times that can be derived.
    pub(super) fn compute_times(self, clocks: &BTreeMap<String, ClockOffset>) -> ComputeTimes<'a> {
        let mut times = ComputeTimes::default();
        if self.processes.is_empty() {
            return times;
        }
        // Communicators of which a synchronise call was seen, or whose calls wait themselves.
        let shows = |lane: &&Lane| lane.tier > 0 || lane.blocks.iter().any(|block| block.waited.is_some());
        let lanes = self.digests.iter().flat_map(|digest| &digest.lanes);
        let waits: BTreeSet<u64> = lanes.filter(shows).map(|lane| lane.comm_hash).collect();
        for job in together(self.processes) {
            if job.values().flat_map(|process| process.nranks.keys()).any(|comm| waits.contains(comm)) {
                continue;
            }
            let own = step_waits(&job, clocks);
            let widest_ns = own.values().map(|own| own.bound_ns).max().unwrap_or(0);
            let telling = || own.values().filter(|own| own.waited_ns > 2 * widest_ns);
            // At each wait of a step the clocks may be wrong.
            let longer = |own: &StepWait| own.outside_ns + 2 * widest_ns < own.within_ns[0];
            let broken = telling().filter(|own| own.goes_on || longer(own)).count();
            if telling().count() < Rules::HOSTS_WAIT_TELLING
                || broken as f64 > Rules::HOSTS_WAIT_BROKEN * telling().count() as f64
            {
                times.stepped.extend(job.iter().map(|((_, pid), process)| process.single(*pid)));
                continue;
            }
            times.comms.extend(job.values().flat_map(|process| process.nranks.keys()));
            for ((node, pid), process) in &job {
                times.ends.insert((process.ends.comm_hash, &*process.ends.func));
                let runs =
                    process.steps.iter().map(|(number, step)| run(*number, step, own.get(&(*number, (*node, *pid)))));
                times.cells.push(process.sampled(*pid, runs.collect()));
                for (number, step) in &process.steps {
                    let own = own.get(&(*number, (*node, *pid)));
                    let mut calls: BTreeMap<u64, i64> = BTreeMap::new();
                    for ((comm, .., peer, _), (count, _)) in &step.kinds {
                        *calls.entry(*comm).or_default() += if peer.is_none() { i64::from(*count) } else { 0 };
                    }
                    calls.retain(|comm, count| *count > 0 && *comm != process.ends.comm_hash);
                    for (own, (comm, count)) in own.into_iter().flat_map(|own| calls.iter().map(move |of| (own, of))) {
                        let (compute_ns, unsure) = own.compute_ns();
                        let unsure = Unsure { less_ns: unsure.less_ns / count, more_ns: unsure.more_ns / count };
                        let each = (step.end_ns, compute_ns / count, unsure);
                        times.other.entry((&**process.node, (*pid).into(), *comm)).or_default().push(each);
                    }
                }
            }
        }
        times
    }
}

impl StepWait {
    /// Compute time, and how far the clocks leave it open.
    fn compute_ns(&self) -> (i64, Unsure) {
        let own = |waited: i64| self.outside_ns.saturating_sub(waited).max(0);
        let (compute_ns, [least, most]) = (own(self.waited_ns), self.within_ns);
        (compute_ns, Unsure { less_ns: compute_ns - own(most), more_ns: own(least) - compute_ns })
    }
}

impl<'a> Stepped<'a> {
    fn add(&mut self, steps: &'a Steps, lanes: &'a [Lane], base_us: i64) {
        let nanos = |us: u64| i64::try_from(us).unwrap_or(i64::MAX).saturating_mul(1_000);
        let mut kinds = BTreeMap::new();
        for of in &steps.calls {
            let Some(lane) = lanes.get(of.lane) else { continue };
            self.nranks.insert(lane.comm_hash, lane.nranks);
            kinds.insert((lane.comm_hash, &*lane.func, lane.rank, of.peer, of.part), (of.calls, nanos(of.before_us)));
        }
        self.nranks.insert(self.ends.comm_hash, self.ends.nranks);
        let end_ns = base_us.saturating_add(steps.end_us).saturating_mul(1_000);
        let length_ns = nanos(steps.length_us);
        let outside_ns = length_ns.saturating_sub(nanos(steps.called_us));
        let step = Step { level: steps.level, end_ns, length_ns, outside_ns, kinds };
        self.steps.insert(steps.number, step);
    }

    /// Calls that most of its steps hold: one without them lacks a record.
    fn usual(&self) -> BTreeSet<Kind<'a>> {
        let mut held: BTreeMap<Kind<'a>, usize> = BTreeMap::new();
        self.steps.values().flat_map(|step| step.kinds.keys()).for_each(|kind| *held.entry(*kind).or_default() += 1);
        held.into_iter().filter(|(_, steps)| 2 * steps > self.steps.len()).map(|(kind, _)| kind).collect()
    }

    fn single(&self, pid: u32) -> observed::Stepped {
        let times = |step: &Step<'_>| (step.end_ns.saturating_sub(step.length_ns), step.end_ns);
        let steps = self.steps.iter().map(|(number, step)| (*number, times(step))).collect();
        observed::Stepped { node: Arc::clone(self.node), pid: pid.into(), comm_hash: self.ends.comm_hash, steps }
    }

    fn sampled(&self, pid: u32, runs: Vec<Run>) -> Sampled {
        Sampled {
            node: Arc::clone(self.node),
            pid: pid.into(),
            rank: self.ends.rank,
            comm_hash: self.ends.comm_hash,
            func: Arc::clone(&self.ends.func),
            tier: 0,
            library: Arc::clone(&self.ends.library),
            runs,
        }
    }
}

/// A step as a run of the calls that end steps.
fn run(number: u64, step: &Step<'_>, own: Option<&StepWait>) -> Run {
    let (compute_ns, unsure) = own.map(StepWait::compute_ns).unzip();
    let entry_ns = step.end_ns;
    Run {
        seq: number,
        entry_ns,
        duration_ns: 0,
        halted_ns: 0,
        held_ns: 0,
        compute_ns,
        unsure,
        weight: 1 << step.level,
        waited: false,
    }
}

/// By number and process: the steps of which it is known for whom the process waited.
fn step_waits<'a>(job: &Job<'a>, clocks: &BTreeMap<String, ClockOffset>) -> BTreeMap<(u64, Process<'a>), StepWait> {
    let mut numbers: BTreeMap<u64, Vec<(Process<'a>, &Stepped<'a>, &Step<'a>, i64)>> = BTreeMap::new();
    let mut complete: BTreeSet<(u64, Process<'a>)> = BTreeSet::new();
    for (process, stepped) in job {
        let (Some(clock), usual) = (clocks.get(process.0), stepped.usual()) else { continue };
        for (number, step) in &stepped.steps {
            // One that lacks records shows others whom they waited for, as far as it goes, but not
            // how long its own process worked.
            if usual.iter().all(|kind| step.kinds.contains_key(kind)) {
                complete.insert((*number, *process));
            }
            numbers.entry(*number).or_default().push((*process, stepped, step, clock.align(step.end_ns)));
        }
    }
    let mut own = BTreeMap::new();
    if numbers.len() < Rules::FEWEST_STEPS {
        return own;
    }
    let everybody = |stepped: &Stepped<'_>, comm: u64, count: usize| {
        let all = stepped.nranks.get(&comm).copied().flatten().and_then(|n| usize::try_from(n).ok());
        // Where everybody in the data is in it, a rank that is not makes all of them alike
        // wait.
        all == Some(count) || count > 2 && count as f64 >= Rules::EVERYBODY * job.len() as f64
    };
    let entry = |node: &'a str, at_ns: i64| {
        let bound_ns = clocks.get(node).map_or(0, |clock| clock.bound_within(at_ns, at_ns));
        Entry { node, at_ns, bound_ns }
    };
    for (number, steps) in &numbers {
        let mut sent: BTreeMap<Kind<'a>, (u32, Entry<'a>)> = BTreeMap::new();
        let mut met: BTreeMap<(u64, &str, u32, u32), Entered<'a>> = BTreeMap::new();
        let mut starts: BTreeMap<(u64, &str), Entered<'a>> = BTreeMap::new();
        for ((node, _), stepped, step, end_ns) in steps {
            for (kind, (calls, before_ns)) in &step.kinds {
                let at = end_ns.saturating_sub(*before_ns);
                if kind.3.is_some() {
                    sent.insert(*kind, (*calls, entry(node, at)));
                } else {
                    met.entry((kind.0, kind.1, kind.4, *calls)).or_default().add(node, at);
                }
            }
            let ends = (stepped.ends.comm_hash, &*stepped.ends.func);
            starts.entry(ends).or_default().add(node, end_ns.saturating_sub(step.length_ns));
        }
        for (process, stepped, step, end_ns) in
            steps.iter().filter(|(process, ..)| complete.contains(&(*number, *process)))
        {
            let last_entries = |entered: Option<&Entered<'a>>, comm: u64| {
                entered.filter(|entered| everybody(stepped, comm, entered.count)).map(|entered| entered.lasts(entry))
            };
            let waits = step.kinds.iter().map(|((comm, func, rank, peer, part), (calls, before_ns))| {
                let mine = entry(process.0, end_ns.saturating_sub(*before_ns));
                let others = match peer {
                    None => last_entries(met.get(&(*comm, *func, *part, *calls)), *comm)?,
                    Some(peer) if *func == "recv" => {
                        let theirs = sent.get(&(*comm, "send", *peer, Some(*rank), *part));
                        vec![theirs.filter(|(sends, _)| sends == calls)?.1]
                    }
                    Some(_) => Vec::new(),
                };
                Some(Wait { first: *part == 0, from_ns: mine.at_ns, calls: *calls, each_ns: mine.waits_for(&others) })
            });
            let waits: Option<Vec<Wait>> = waits.collect();
            // It begins with the wait for the last of those who ended the step before.
            let first_wait =
                last_entries(starts.get(&(stepped.ends.comm_hash, &*stepped.ends.func)), stepped.ends.comm_hash);
            let mine = entry(process.0, end_ns.saturating_sub(step.length_ns));
            let first_wait = first_wait.map(|lasts| mine.waits_for(&lasts));
            let sum = |a: [i64; 3], b: [i64; 3]| [0, 1, 2].map(|i| a[i].saturating_add(b[i]));
            if let (Some(waits), Some(first_wait)) = (waits, first_wait) {
                let all = waits.iter().map(|wait| wait.each_ns.map(|each| each.saturating_mul(wait.calls.into())));
                let [waited_ns, least, most] = all.fold(first_wait, sum);
                let goes_on = goes_on(&waits, *end_ns);
                let (outside_ns, bound_ns) = (step.outside_ns, mine.bound_ns);
                let of = StepWait { outside_ns, waited_ns, within_ns: [least, most], bound_ns, goes_on };
                own.insert((*number, *process), of);
            }
        }
    }
    own
}

/// When ranks entered a call: how many, and the last of each node.
#[derive(Default)]
struct Entered<'a> {
    count: usize,
    last: BTreeMap<&'a str, i64>,
}

impl<'a> Entered<'a> {
    fn add(&mut self, node: &'a str, at_ns: i64) {
        self.count += 1;
        let last = self.last.entry(node).or_insert(at_ns);
        *last = at_ns.max(*last);
    }

    fn lasts(&self, entry: impl Fn(&'a str, i64) -> Entry<'a>) -> Vec<Entry<'a>> {
        self.last.iter().map(|(&node, &at_ns)| entry(node, at_ns)).collect()
    }
}

/// Processes that have a communicator in common, directly or by others.
fn together(processes: Job<'_>) -> Vec<Job<'_>> {
    let mut jobs: Vec<(BTreeSet<u64>, Job<'_>)> = Vec::new();
    for (process, stepped) in processes {
        let mut comms: BTreeSet<u64> = stepped.nranks.keys().copied().collect();
        let mut job = Job::from([(process, stepped)]);
        jobs.retain_mut(|(of, members)| {
            let apart = of.is_disjoint(&comms);
            if !apart {
                comms.append(of);
                job.append(members);
            }
            apart
        });
        jobs.push((comms, job));
    }
    jobs.into_iter().map(|(_, job)| job).collect()
}
