//! Where nobody is named: whether that is because nobody is late, or because it cannot be
//! determined, and why not.
//!
//! Pure. `verdict.rs` asks it last. Each doubt is a sentence for the reader.

use std::collections::{BTreeMap, HashSet};

use observed::{Coupling, Input, Observation, Rules, Sampled, Totals, hex, units::duration};
use stats::median;

use super::comm::Comm;
use super::hang::Early;
use super::report::Verdict;
use super::score::Scored;
use super::suspects::Findings;
use super::tally::Waits;

/// Nobody was named: is that because nobody is late, or because it cannot be determined?
pub(crate) fn nobody(input: &Input, scored: &[Scored], thin: &[Comm], findings: Findings, rules: &Rules) -> Verdict {
    let Findings { mut doubts, held_up, mut alone, mut few, .. } = findings;
    if scored.is_empty() {
        let why = if !thin.is_empty() {
            let most = thin.iter().map(|c| c.met.len()).max().unwrap_or(0);
            let ranks = thin.iter().map(|c| c.members.len()).max().unwrap_or(0);
            if ranks < 2 {
                "only one rank of each communicator was heard: nobody to compare it with".to_owned()
            } else {
                format!(
                    "only {most} collectives could be matched across ranks in the span, {} are needed: ask for a longer \
                     --since",
                    rules.persistence
                )
            }
        } else if !input.unplaced.is_empty() {
            format!("{}: no call could be matched across ranks", reasons(&input.unplaced))
        } else {
            "no collective was recorded in the span: is the job communicating, and is it captured?".to_owned()
        };
        return Verdict::Unknown { why };
    }
    for late in held_up {
        doubts.push(format!(
            "rank {} on {} is late, but its compute time between collectives does not explain it: it is held up itself, by a \
             rank or a call that was not seen",
            late.rank, late.node
        ));
    }
    alone.sort();
    alone.dedup();
    for late in alone {
        doubts.push(format!(
            "rank {} on {} is late, but its compute time could not be compared (nobody heard does the same work, or records \
             were lost): it may have more to do, or be held up itself",
            late.rank, late.node
        ));
    }
    few.sort();
    few.dedup_by(|one, other| one.0 == other.0);
    for (late, collectives) in few {
        doubts.push(format!(
            "rank {} on {} is late, but {collectives} collectives are too few to tell that from chance: ask for a longer --since",
            late.rank, late.node
        ));
    }
    if scored.iter().all(|s| s.waits == Waits::Inconsistent) {
        doubts.push(
            "the calls of the ranks do not line up: ranks leave collectives before others enter them; a start was \
             missed, or a clock is off by more than its bound"
                .to_owned(),
        );
    }
    if scored.iter().all(|s| s.waits == Waits::Enqueued && s.bounds.iter().all(Option::is_none)) {
        doubts.push("the calls only enqueue and no clock offset is known: entries cannot be compared".to_owned());
    }
    for s in scored {
        if s.comm.not_heard() == 0 || s.waits == Waits::Enqueued {
            continue;
        }
        // All ranks in the data wait, and the shortest wait is long: whoever they wait for is not in
        // the data.
        if let Some(waited) = all_wait(s).filter(|waited| *waited >= rules.effect) {
            doubts.push(format!(
                "{} of {} ranks of communicator {} were not heard, and every rank heard spends {:.0} % of its time \
                 waiting in it: the one they wait for may be among those",
                s.comm.not_heard(),
                s.comm.not_heard() + s.comm.members.len(),
                hex(s.comm.hash),
                100.0 * waited
            ));
        }
    }
    let coupled = |seen: &&Observation| Coupling::of(&seen.func) == Coupling::All;
    let left_out = input.unnumbered.iter().filter(coupled).count();
    if left_out > input.observations.iter().filter(coupled).count() {
        doubts.push(format!(
            "{left_out} calls could not be matched across ranks, more than could: recording began after the communicators did, and when \
             the calls ended does not tell which belong together"
        ));
    } else {
        doubts.extend(not_matched(input));
        doubts.extend(not_in_digests(input));
    }
    if scored.iter().all(|s| s.waits == Waits::Enqueued) {
        doubts.extend(absent(scored));
        doubts.extend(silent(input, scored, rules));
    }
    doubts.extend(on_devices(scored));
    doubts.extend(halted(scored, rules));
    if scored.iter().all(|s| s.comm.members.len() < 2) {
        doubts.push("only one rank of each communicator was heard: nobody to compare it with".to_owned());
    }
    if doubts.is_empty() { Verdict::None } else { Verdict::Unknown { why: doubts.join("; ") } }
}

/// Ranks wait in calls that may just take long.
pub(crate) fn too_early(early: &Early) -> Verdict {
    let Early { ranks, func, for_ns, hang_ns } = early;
    let (who, still) = if *ranks == 1 {
        ("1 rank waits".to_owned(), "it still does")
    } else {
        (format!("{ranks} ranks wait, the first"), "they still do")
    };
    Verdict::Unknown {
        why: format!(
            "{who} in {func} for {} so far, which may just take long: if {still} after {}, it is a hang; ask again \
             then",
            duration(*for_ns),
            duration(*hang_ns)
        ),
    }
}

/// The share of the time that every rank in the data waits: the shortest of each collective's waits.
fn all_wait(s: &Scored) -> Option<f64> {
    let shortest = s.comm.met.iter().filter_map(|m| m.cells.iter().flatten().map(|c| c.duration_ns).min());
    let shortest = median(shortest.map(|d| d as f64))?;
    s.comm.period_ns().filter(|period| *period > 0.0).map(|period| (shortest / period).min(1.0))
}

fn reasons(unplaced: &BTreeMap<String, u64>) -> String {
    unplaced.iter().map(|(why, n)| format!("{n} calls: {why}")).collect::<Vec<_>>().join(", ")
}

/// Calls that enqueue end when they like, unless the rank's are timed as everybody's: who is late
/// coincides with nobody. A rank most of whose calls could not be matched was not compared.
fn not_matched(input: &Input) -> Option<String> {
    let mut calls: BTreeMap<(&str, i64), (usize, usize)> = BTreeMap::new();
    let coupled = |seen: &&Observation| Coupling::of(&seen.func) == Coupling::All && seen.tier == 0;
    for seen in input.observations.iter().filter(coupled) {
        calls.entry((&seen.node, seen.pid)).or_default().0 += 1;
    }
    for seen in input.unnumbered.iter().filter(coupled) {
        calls.entry((&seen.node, seen.pid)).or_default().1 += 1;
    }
    let unmatched = calls.values().filter(|(matched, left_out)| left_out > matched).count();
    (unmatched > 0).then(|| {
        format!(
            "the calls of {unmatched} of {} processes could not be matched with the others': recording began after the communicators \
             did, and they do not end when the others' do; a rank that is late may be among them",
            calls.len()
        )
    })
}

/// The same of digests: processes whose calls were counted there and none of which got a number,
/// where others' did.
fn not_in_digests(input: &Input) -> Option<String> {
    if input.unplaced.is_empty() {
        return None;
    }
    let numbered: HashSet<(&str, i64)> = input.sampled.iter().map(|lane| (&*lane.node, lane.pid)).collect();
    let calls = |of: &&Totals| of.lanes.iter().any(|l| Coupling::of(&l.func) == Coupling::All && l.calls > 0);
    let (all, left_out) = input
        .totals
        .iter()
        .filter(calls)
        .fold((0, 0), |(all, out), of| (all + 1, out + usize::from(!numbered.contains(&(&*of.node, of.pid)))));
    (left_out > 0 && left_out < all).then(|| {
        format!(
            "the calls of {left_out} of {all} processes could not be matched with the others': recording began after the communicators \
             did, and when their calls ended does not tell which belong together; a rank that is late may be among them"
        )
    })
}

/// Calls only enqueue, and all ranks spend most of their time waiting for their devices after them:
/// a device that takes longer than the others makes all hosts wait alike, and none enters late.
fn on_devices(scored: &[Scored]) -> Option<String> {
    let most = scored.iter().filter(|s| s.comm.lifted).filter_map(all_wait).max_by(f64::total_cmp)?;
    (most >= Rules::ON_DEVICES).then(|| {
        format!(
            "no rank enters its collectives late, but every rank spends {:.0} % of its time waiting for its GPU after them, and a GPU \
             that takes longer than the others shows in the times of the device alone (`rankmesh env`: NCCL's profiler plugin)",
            100.0 * most
        )
    })
}

/// A rank was halted in its collectives for a part of the time that matters, or held off its CPU for
/// much of it, and the others were not: where ranks wait for each other in turns anyhow, what that
/// costs them need not stand out.
fn halted(scored: &[Scored], rules: &Rules) -> Option<String> {
    let met = || scored.iter().flat_map(|s| &s.comm.met).map(|met| met.at_ns);
    let all_ns = met().max()?.saturating_sub(met().min()?) as f64;
    if all_ns <= 0.0 {
        return None;
    }
    let mut of_process: BTreeMap<(&str, i64), OffCpu> = BTreeMap::new();
    // Its rank in the largest communicator.
    let mut comms: Vec<&Comm> = scored.iter().map(|s| &s.comm).collect();
    comms.sort_by_key(|comm| std::cmp::Reverse(comm.members.len()));
    for comm in comms {
        let mut sums = vec![(0.0, 0.0); comm.members.len()];
        for met in &comm.met {
            let weight = f64::from(met.weight);
            for ((halted, held), cell) in sums.iter_mut().zip(&met.cells) {
                *halted += weight * cell.map_or(0, |cell| cell.halted_ns) as f64;
                *held += weight * cell.map_or(0, |cell| cell.held_ns) as f64;
            }
        }
        for (member, (halted, held)) in comm.members.iter().zip(sums) {
            let new = OffCpu { rank: member.rank, halted_ns: 0.0, held_ns: 0.0 };
            let of = of_process.entry((&member.node, member.pid)).or_insert(new);
            // Halts are of each communicator's own calls; held between two calls it is for each of them.
            of.halted_ns += halted;
            of.held_ns = held.max(of.held_ns);
        }
    }
    // The one with most, what it has, and what the others have (median).
    let most = |ns: fn(&OffCpu) -> f64| {
        let (most, of) = of_process.iter().max_by(|a, b| ns(a.1).total_cmp(&ns(b.1)))?;
        let others = median(of_process.iter().filter(|(process, _)| *process != most).map(|(_, of)| ns(of)))?;
        Some((format!("rank {} on {}", of.rank, most.0), ns(of), others))
    };
    let said = |(who, most, others): (String, f64, f64), how: &str, when: &str| {
        let [most, all, others] = [most, all_ns, others].map(|ns| duration(ns as i64));
        format!(
            "{who} was {how} for {most} of {all} {when} its collectives (the others for {others}, median): it may hold \
             them up, though it is not usually late"
        )
    };
    let by = |share: f64| move |(_, most, others): &(String, f64, f64)| most - others >= share * all_ns;
    let halted = most(|of| of.halted_ns).filter(by(rules.effect));
    let held = || most(|of| of.held_ns).filter(by(Rules::HELD_MUCH));
    halted
        .map(|of| said(of, "stopped, or without the CPU time that its cgroup allows,", "within"))
        .or_else(|| held().map(|of| said(of, "held off its CPU", "between")))
}

/// How long a process's calling threads were off their CPUs, nanoseconds.
struct OffCpu {
    rank: i32,
    /// Halted in calls.
    halted_ns: f64,
    /// Held off between calls.
    held_ns: f64,
}

/// Calls only enqueue: a rank that is not in the data cannot be seen by what the others wait.
fn absent(scored: &[Scored]) -> Option<String> {
    let s = scored.iter().filter(|s| s.comm.not_heard() > 0).max_by_key(|s| s.comm.nranks)?;
    Some(format!(
        "{} of {} ranks of communicator {} were not heard, and the calls only enqueue: what the others wait for them does not show",
        s.comm.not_heard(),
        s.comm.nranks?,
        hex(s.comm.hash)
    ))
}

/// Nobody has called anything for long, where calls only enqueue: that is how a hang looks, and how
/// the end of a job does.
fn silent(input: &Input, scored: &[Scored], rules: &Rules) -> Option<String> {
    let seen = input.observations.iter().chain(&input.unnumbered).map(|o| (&*o.node, o.entry_ns, o.duration_ns));
    let last = |of: &Sampled| of.runs.iter().map(|run| (run.entry_ns, run.duration_ns)).max_by_key(|run| run.0 + run.1);
    let sampled = input.sampled.iter().filter_map(|of| last(of).map(|(entry, duration)| (&*of.node, entry, duration)));
    let last = seen.chain(sampled).map(|(node, entry_ns, duration_ns)| {
        let end = entry_ns.saturating_add(duration_ns);
        input.clocks.get(node).map_or(end, |clock| clock.align(end))
    });
    let for_ns = input.until_ns.saturating_sub(last.max()?);
    let period = scored.iter().filter_map(|s| s.comm.period_ns()).fold(0.0, f64::max);
    (for_ns >= rules.hang_ns && for_ns as f64 >= Rules::SILENCE_PERIODS * period).then(|| {
        format!(
            "no rank has called anything for {:.0} s, where collectives came every {:.2} s: the job hangs, computes or has ended, and calls \
             that only enqueue do not show which",
            for_ns as f64 / 1e9,
            period / 1e9
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::{Cell, Met};

    /// Collectives of two ranks every 10 ms, whose synchronise calls take so long.
    fn waiting(shortest_ms: i64, lifted: bool) -> Scored {
        let cell = |duration_ns| Some(Cell { duration_ns, ..Cell::default() });
        let met = (0..20).map(|i| Met {
            at_ns: i * 10_000_000,
            func: "all_reduce".into(),
            seq: 0,
            weight: 1,
            cells: vec![cell(shortest_ms * 1_000_000), cell((shortest_ms + 1) * 1_000_000)],
        });
        let comm = Comm { lifted, met: met.collect(), ..Comm::default() };
        Scored::test_of(comm, Waits::Seen)
    }

    /// Twenty collectives of three ranks every 10 ms, of which rank 1 has these times off its CPU.
    fn off_cpu(halted_ns: i64, held_ns: i64) -> Scored {
        let member = |rank: i32| {
            let (node, pid) = ("n1".into(), i64::from(rank) + 100);
            crate::comm::Member { rank, node, pid, clock: None, class: 0 }
        };
        let met = (0..20).map(|i| Met {
            at_ns: i * 10_000_000,
            func: "all_reduce".into(),
            seq: i.unsigned_abs(),
            weight: 1,
            cells: vec![
                Some(Cell::default()),
                Some(Cell { halted_ns, held_ns, ..Cell::default() }),
                Some(Cell::default()),
            ],
        });
        Scored::test_of(
            Comm { members: (0..3).map(member).collect(), met: met.collect(), ..Comm::default() },
            Waits::Seen,
        )
    }

    #[test]
    fn who_was_off_its_cpu_much_more_than_the_others_is_not_cleared() {
        const MS: i64 = 1_000_000;
        let doubt = |halted_ms, held_ms| halted(&[off_cpu(halted_ms * MS, held_ms * MS)], &Rules::default());
        let within = doubt(2, 0).unwrap();
        assert_eq!(
            within,
            "rank 1 on n1 was stopped, or without the CPU time that its cgroup allows, for 40.0 ms of 190 ms within its \
             collectives (the others for 0 ns, median): it may hold them up, though it is not usually late"
        );
        let between = doubt(0, 3).unwrap();
        assert_eq!(
            between,
            "rank 1 on n1 was held off its CPU for 60.0 ms of 190 ms between its collectives (the others for 0 ns, median): \
             it may hold them up, though it is not usually late"
        );
        assert_eq!(doubt(0, 1), None, "a tenth of the time is what a busy host does");
    }

    #[test]
    fn ranks_that_mostly_wait_for_their_devices_are_not_cleared() {
        let why = on_devices(&[waiting(8, true)]).unwrap();
        assert!(why.contains("80 % of its time waiting for its GPU"), "{why}");
        assert_eq!(on_devices(&[waiting(2, true)]), None, "most of the time is the hosts'");
        assert_eq!(on_devices(&[waiting(8, false)]), None, "calls that wait themselves, or times of the device");
    }
}
