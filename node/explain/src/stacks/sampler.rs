//! Takes the stacks of several processes several times, within a budget of CPU time, and counts
//! equal ones.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use record::ThreadWalk;
use serde::{Deserialize, Serialize};

use super::own::OwnWalks;
use super::process::cpu_time;
use super::reader::StackReader;
use super::types::{Frame, Limits, StacksError, ThreadStack, ThreadState, Trust};

/// How often to sample, and the most CPU time it may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Samples of each process.
    pub samples: u32,
    /// Time between two samples.
    pub every: Duration,
    /// CPU time of the reader for all of it; when it is used up sampling ends early, which the
    /// profiles record.
    pub cpu_budget: Duration,
}

/// The stacks of a process, counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessProfile {
    /// Process id in the reader's pid namespace.
    pub pid: u32,
    /// `CPython 3.11.2`, `native`, or empty where nothing was read.
    pub runtime: String,
    /// Samples that were taken.
    pub samples: u32,
    /// Samples that were asked for.
    pub asked: u32,
    /// The reader's CPU time for this process.
    pub cpu_ns: u64,
    /// Why there are fewer samples than asked for.
    pub short_because: Option<ShortReason>,
    /// By thread id.
    pub threads: Vec<ThreadProfile>,
    /// Threads beyond the bound, at most in any sample.
    pub threads_left_out: u32,
}

/// Why a profile has fewer samples than were asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShortReason {
    /// Reading it failed from some sample on; [`StacksError::Ended`] is no fault.
    Failed(StacksError),
    /// The budget of CPU time was used up.
    CpuBudget,
    /// The caller ended the sampling.
    Cancelled,
}

/// The stacks of a thread, counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadProfile {
    /// Thread id in the reader's pid namespace; 0 where unknown.
    pub tid: u32,
    /// The process's first thread.
    pub main: bool,
    /// The kernel's name of the thread.
    pub name: String,
    /// Samples in which the thread was there.
    pub samples: u32,
    /// Samples in which it was on a CPU or waited for one.
    pub running: u32,
    /// Samples of which only outer functions are known, since the thread ran while it was read.
    pub torn: u32,
    /// Different stacks, the most frequent first.
    pub stacks: Vec<CountedStack>,
    /// Samples with stacks beyond [`Limits::stacks`] different ones, or beyond 16 MiB of the process.
    pub other_stacks: u32,
    /// Why nothing was read in some samples.
    pub note: Option<String>,
}

/// A stack and how often it was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedStack {
    /// Outermost function first.
    pub frames: Vec<Frame>,
    /// Samples with it.
    pub count: u32,
    /// More functions, not known, were called by the last frame.
    pub inner_missing: bool,
    /// Functions are missing before the first frame.
    pub outer_missing: bool,
}

/// Samples processes. Keep it for the next time: cached facts about the processes make that
/// cheaper.
#[derive(Debug, Default)]
pub struct Sampler {
    reader: StackReader,
}

impl Sampler {
    /// With these bounds.
    pub fn new(limits: Limits) -> Sampler {
        Sampler { reader: StackReader::new(limits) }
    }

    /// Samples these processes, all in each round. Blocks for about `samples × every`; `cancelled`
    /// is called before each round.
    pub fn profile(&mut self, pids: &[u32], plan: &Plan, cancelled: impl Fn() -> bool) -> Vec<ProcessProfile> {
        self.profile_with(pids, plan, None, cancelled).0
    }

    /// As [`Self::profile`]; running threads of Python walk their frames themselves by `own`. Also
    /// returns why that was not possible, if so; they were read from outside then.
    pub fn profile_with(
        &mut self,
        pids: &[u32],
        plan: &Plan,
        mut own: Option<&mut dyn OwnWalks>,
        cancelled: impl Fn() -> bool,
    ) -> (Vec<ProcessProfile>, Option<String>) {
        self.reader.keep_only(pids);
        let patience = (plan.every / 2).min(MOST_PATIENCE);
        let mut not_asked = None;
        let limits = *self.reader.limits();
        let room = (MOST_BYTES / pids.len().max(1)).min(MOST_BYTES_OF_PROCESS);
        let mut profiles: Vec<Counting> = pids.iter().map(|pid| Counting::new(*pid, plan.samples, room)).collect();
        let start = (Instant::now(), cpu_time());
        for round in 0..plan.samples {
            let due = start.0 + plan.every * round + shifted(plan.every, round);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let stop = match () {
                () if cancelled() => Some(ShortReason::Cancelled),
                () if cpu_time().saturating_sub(start.1) >= plan.cpu_budget && round > 0 => {
                    Some(ShortReason::CpuBudget)
                }
                () => None,
            };
            if let Some(reason) = stop {
                for counting in &mut profiles {
                    counting.profile.short_because.get_or_insert_with(|| reason.clone());
                }
                break;
            }
            // Each process is sampled once, if the others leave it time; one that costs many times
            // its part is not sampled again.
            let most = if round == 0 { plan.cpu_budget * FIRST_ROUND } else { plan.cpu_budget };
            let part = plan.cpu_budget / u32::try_from(pids.len()).unwrap_or(u32::MAX).max(1) * MOST_PARTS;
            for counting in profiles.iter_mut().filter(|counting| counting.profile.short_because.is_none()) {
                let own_part_used = round > 0 && u128::from(counting.profile.cpu_ns) >= part.as_nanos();
                if own_part_used || cpu_time().saturating_sub(start.1) >= most {
                    counting.profile.short_because = Some(ShortReason::CpuBudget);
                } else {
                    counting.sample(&mut self.reader, &mut own, &limits);
                }
            }
            let walks = own.as_mut().map(|own| own.take(patience)).unwrap_or_default();
            for counting in profiles.iter_mut().filter(|counting| counting.profile.short_because.is_none()) {
                let why = counting.answered(&mut self.reader, &walks, &limits);
                not_asked = not_asked.or(why);
            }
        }
        if let Some(own) = own {
            own.end();
        }
        (profiles.into_iter().map(|counting| counting.profile).collect(), not_asked)
    }
}

/// The delay of a round, at most half of the time between two: without it a program whose loop is
/// as long as that time would be seen in one place only. The fractions of the golden ratio's
/// multiples are evenly spread, however many are taken.
fn shifted(every: Duration, round: u32) -> Duration {
    (every / 2).mul_f64((f64::from(round) * 0.618_033_988_749_895).fract())
}

/// The first round may take so many times the budget: what is read the first time is kept.
const FIRST_ROUND: u32 = 4;
/// A process may take so many times its part of the budget.
const MOST_PARTS: u32 = 4;
/// Longest wait for asked threads to get a CPU.
const MOST_PATIENCE: Duration = Duration::from_millis(10);

/// Bytes of different stacks that are kept of all processes, and of one: names are another user's,
/// and each of 256 threads may have others in each sample.
const MOST_BYTES: usize = 256 << 20;
const MOST_BYTES_OF_PROCESS: usize = 16 << 20;

struct Counting {
    profile: ProcessProfile,
    threads: HashMap<u32, usize>,
    /// Bytes of stacks that may still be kept.
    room: usize,
}

/// Bytes that a stack takes.
fn bytes_of(frames: &[Frame]) -> usize {
    let names = frames.iter().map(|frame| match frame {
        Frame::Python { function, file, .. } => function.len() + file.len(),
        Frame::Native { function, module } => function.len() + module.len(),
        Frame::ReturnProbe => 0,
    });
    size_of::<CountedStack>() + size_of_val(frames) + names.sum::<usize>()
}

impl Counting {
    fn new(pid: u32, asked: u32, room: usize) -> Counting {
        Counting {
            profile: ProcessProfile {
                pid,
                runtime: String::new(),
                samples: 0,
                asked,
                cpu_ns: 0,
                short_because: None,
                threads: Vec::new(),
                threads_left_out: 0,
            },
            threads: HashMap::new(),
            room,
        }
    }

    /// The threads that were asked, and why others were not.
    fn answered(&mut self, reader: &mut StackReader, walks: &[ThreadWalk], limits: &Limits) -> Option<String> {
        let before = cpu_time();
        let read = reader.answered(self.profile.pid, walks);
        self.has_cost(before);
        match read {
            Ok((stacks, why)) => {
                let kept = stacks.len();
                let counted = stacks.into_iter().filter_map(|thread| self.count(thread, limits)).count();
                self.profile.threads_left_out += u32::try_from(kept - counted).unwrap_or(u32::MAX);
                why
            }
            Err(error) => {
                self.profile.short_because = Some(ShortReason::Failed(error));
                None
            }
        }
    }

    fn has_cost(&mut self, before: Duration) {
        let cost = cpu_time().saturating_sub(before);
        self.profile.cpu_ns += u64::try_from(cost.as_nanos()).unwrap_or(u64::MAX);
    }

    fn sample(&mut self, reader: &mut StackReader, own: &mut Option<&mut dyn OwnWalks>, limits: &Limits) {
        let before = cpu_time();
        let read = reader.read_or_ask(self.profile.pid, own);
        self.has_cost(before);
        match read {
            Ok(stacks) => {
                self.profile.samples += 1;
                self.profile.runtime = stacks.runtime;
                let kept = stacks.threads.len();
                let counted = stacks.threads.into_iter().filter_map(|thread| self.count(thread, limits)).count();
                let left_out =
                    u32::try_from(kept - counted).unwrap_or(u32::MAX).saturating_add(stacks.threads_left_out);
                self.profile.threads_left_out = self.profile.threads_left_out.max(left_out);
            }
            Err(error) => self.profile.short_because = Some(ShortReason::Failed(error)),
        }
    }

    /// `None` for a thread beyond the bound: threads may come and go between samples.
    fn count(&mut self, stack: ThreadStack, limits: &Limits) -> Option<()> {
        let threads = &mut self.profile.threads;
        let index = match self.threads.get(&stack.tid) {
            Some(index) => *index,
            None if threads.len() >= limits.threads => return None,
            None => {
                threads.push(ThreadProfile {
                    tid: stack.tid,
                    main: stack.tid == self.profile.pid,
                    name: stack.name.clone(),
                    samples: 0,
                    running: 0,
                    torn: 0,
                    stacks: Vec::new(),
                    other_stacks: 0,
                    note: None,
                });
                self.threads.insert(stack.tid, threads.len() - 1);
                threads.len() - 1
            }
        };
        let thread = &mut threads[index];
        thread.samples += 1;
        thread.running += u32::from(stack.state == ThreadState::Running);
        thread.torn += u32::from(stack.trust == Trust::Torn);
        if stack.note.is_some() {
            thread.note = stack.note;
        }
        if stack.trust == Trust::Unread {
            return Some(());
        }
        let inner_missing = stack.trust == Trust::Torn;
        let known = thread.stacks.iter().position(|known| {
            known.inner_missing == inner_missing
                && known.outer_missing == stack.outer_missing
                && known.frames == stack.frames
        });
        match known {
            Some(at) => {
                thread.stacks[at].count += 1;
                // The most frequent ones stay in front: so the next sample is found sooner, and the
                // list is sorted.
                let first = thread.stacks[..at].partition_point(|other| other.count >= thread.stacks[at].count);
                thread.stacks.swap(first, at);
            }
            None if thread.stacks.len() < limits.stacks && bytes_of(&stack.frames) <= self.room => {
                self.room -= bytes_of(&stack.frames);
                thread.stacks.push(CountedStack {
                    frames: stack.frames,
                    count: 1,
                    inner_missing,
                    outer_missing: stack.outer_missing,
                });
            }
            None => thread.other_stacks += 1,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
