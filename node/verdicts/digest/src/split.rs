//! Splits a host's digest by the jobs of its processes.

use std::collections::{BTreeMap, BTreeSet};

use super::{Digest, LongCall, Recent, StepCalls, Steps};

/// The digests of a host's jobs: of each the processes with their lanes and steps, and those that
/// have ended. What is of the host (its clock, what was lost, segments sent again, calls that
/// cannot be compared) goes into each. `also` are processes without anything in the digest.
#[must_use]
pub fn by_job(
    digest: Digest,
    also: impl IntoIterator<Item = u32>,
    job_of: impl Fn(u32) -> u64,
) -> BTreeMap<u64, Digest> {
    let named = digest.processes.iter().map(|process| process.pid).chain(digest.gone.iter().map(|gone| gone.pid));
    let jobs: BTreeSet<u64> = named.chain(also).map(&job_of).collect();
    if jobs.len() < 2 {
        return jobs.into_iter().next().map(|job| (job, digest)).into_iter().collect();
    }
    jobs.into_iter().map(|job| (job, of_job(&digest, |pid| job_of(pid) == job))).collect()
}

fn of_job(digest: &Digest, is_in: impl Fn(u32) -> bool) -> Digest {
    // New places, by old ones.
    let mut processes: BTreeMap<usize, usize> = BTreeMap::new();
    let mut lanes: BTreeMap<usize, usize> = BTreeMap::new();
    let mut of = Digest {
        window: digest.window,
        clock: digest.clock,
        wall_ahead_ms: digest.wall_ahead_ms,
        lost: digest.lost,
        unplaced: digest.unplaced,
        cut: digest.cut,
        gone: digest.gone.iter().filter(|gone| is_in(gone.pid)).copied().collect(),
        resent: digest.resent.clone(),
        ..Digest::default()
    };
    for (place, process) in digest.processes.iter().enumerate().filter(|(_, process)| is_in(process.pid)) {
        processes.insert(place, of.processes.len());
        of.processes.push(process.clone());
    }
    for (place, lane) in digest.lanes.iter().enumerate() {
        if let Some(process) = processes.get(&lane.process) {
            lanes.insert(place, of.lanes.len());
            let mut lane = lane.clone();
            lane.process = *process;
            of.lanes.push(lane);
        }
    }
    of.long_calls = digest
        .long_calls
        .iter()
        .filter_map(|call| Some(LongCall { process: *processes.get(&call.process)?, ..call.clone() }))
        .collect();
    of.recent = digest
        .recent
        .iter()
        .filter_map(|recent| Some(Recent { process: *processes.get(&recent.process)?, ..recent.clone() }))
        .collect();
    let calls = |calls: &StepCalls| Some(StepCalls { lane: *lanes.get(&calls.lane)?, ..*calls });
    for steps in &digest.steps {
        if let (Some(process), Some(ends)) = (processes.get(&steps.process), lanes.get(&steps.ends)) {
            let calls = steps.calls.iter().filter_map(calls).collect();
            of.steps.push(Steps { process: *process, ends: *ends, calls, ..steps.clone() });
        }
    }
    of
}

#[cfg(test)]
mod tests {
    use super::super::{Gone, Lane, Process};
    use super::*;

    #[test]
    fn each_job_has_its_own_processes_with_all_that_is_said_of_them() {
        let lane = |process, comm_hash| Lane { process, comm_hash, func: "barrier".into(), ..Lane::default() };
        let calls = |lane| StepCalls { lane, calls: 2, ..StepCalls::default() };
        let digest = Digest {
            window: 7,
            lost: 3,
            gone: vec![Gone { pid: 9, window: 5 }, Gone { pid: 4, window: 6 }],
            processes: [2, 3, 4].map(|pid| Process { pid, ..Process::default() }).into(),
            lanes: vec![lane(0, 10), lane(1, 20), lane(1, 21), lane(2, 10)],
            steps: vec![
                Steps { process: 1, ends: 2, calls: vec![calls(1), calls(2)], ..Steps::default() },
                Steps { process: 2, ends: 3, calls: vec![calls(3)], ..Steps::default() },
            ],
            ..Digest::default()
        };
        let jobs = by_job(digest.clone(), [6], |pid| u64::from(pid % 2));
        let (even, odd) = (&jobs[&0], &jobs[&1]);
        let pids = |of: &Digest| of.processes.iter().map(|process| process.pid).collect::<Vec<_>>();
        assert_eq!((pids(even), pids(odd)), (vec![2, 4], vec![3]));
        let lanes = |of: &Digest| of.lanes.iter().map(|lane| (lane.process, lane.comm_hash)).collect::<Vec<_>>();
        assert_eq!((lanes(even), lanes(odd)), (vec![(0, 10), (1, 10)], vec![(0, 20), (0, 21)]));
        assert_eq!((even.gone[0].pid, odd.gone[0].pid, even.lost, odd.lost, odd.window), (4, 9, 3, 3, 7));
        assert_eq!((odd.steps[0].process, odd.steps[0].ends, odd.steps[0].calls[1].lane), (0, 1, 1));
        assert_eq!((even.steps[0].process, even.steps[0].ends, even.steps[0].calls[0].lane), (1, 1, 1));
        assert_eq!(by_job(digest.clone(), [], |_| 5), [(5, digest)].into());
        // A process without calls in this window is still there.
        assert_eq!(by_job(Digest::default(), [6], u64::from).into_keys().collect::<Vec<_>>(), [6]);
    }
}
