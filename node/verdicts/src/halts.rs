//! Halts within calls: a rank that is stopped, or without CPU time, in a collective that it could
//! leave does not wait for the others; the time is its own, and makes it late for the next.

use std::collections::HashMap;
use std::sync::Arc;

use causes::off_cpu_kinds;
use digest::is_halt;
use digest::time_use::Call;
use observed::{HELD, Input, Kind, Names, Observation, Process, Span};
use query_planner::Value;

use crate::comm::{Comm, Met};
use crate::point_to_point::Rows;

/// From and to, Unix nanoseconds of the node's own clock.
type Stretch = (i64, i64);

/// Waits for a CPU that are asked for, of stretches that a program began itself: from so long on.
const QUEUED_NS: i64 = 1_000_000;
/// Rows of halts that are asked for, at most: the latest.
const MOST_ROWS: usize = 20_000;

/// The question for what held the threads that make calls off their CPUs (as far as rows tell: calls
/// have no thread there, and mostly the main thread makes them). Hand its answer to [`take_halts`].
#[must_use]
pub fn halts_sql(span: &Span) -> String {
    format!(
        "SELECT node, pid, ts_ns, duration_ns, voluntary, reason, run_delay_ns, next_pid, next_comm FROM offcpu \
         WHERE ts_ns >= {} AND ts_ns < {} AND tid = pid \
         AND (NOT voluntary OR reason IN ('stopped', 'throttled', 'io', 'fault') OR run_delay_ns >= {QUEUED_NS}) \
         ORDER BY ts_ns DESC LIMIT {MOST_ROWS}",
        span.since_ns.saturating_sub(span.slack_ns),
        span.until_ns.saturating_add(span.slack_ns)
    )
}

/// Notes with each blocking call how long its process was halted in it, and how long it was held
/// outside calls since the one before, by the rows of [`halts_sql`]; what is no such row is left out.
/// `calls`: the calls of processes, also such that are not observed. A note where there may be more rows
/// than were asked for.
pub fn take_halts(input: &mut Input, rows: &[Vec<Value>], calls: &Rows) -> Option<String> {
    let mut stretches: HashMap<Process, Vec<(Stretch, bool)>> = HashMap::new();
    let mut names = Names::default();
    for row in rows {
        let Some((process, at_ns, kinds)) = stretch_of(row, &mut names) else { continue };
        let of = stretches.entry(process).or_default();
        let mut at_ns = at_ns;
        for (kind, ns) in kinds {
            let until_ns = at_ns.saturating_add(ns.max(0));
            if HELD.contains(&kind) && until_ns > at_ns {
                of.push(((at_ns, until_ns), is_halt(kind)));
            }
            at_ns = until_ns;
        }
    }
    let mut observed: HashMap<Process, Vec<&mut Observation>> = HashMap::new();
    for call in input.observations.iter_mut().chain(&mut input.unnumbered).filter(|call| call.tier == 1) {
        let process: Process = (Arc::clone(&call.node), call.pid);
        if stretches.contains_key(&process) {
            observed.entry(process).or_default().push(call);
        }
    }
    for (process, mut seen) in observed {
        let of = stretches.remove(&process).unwrap_or_default();
        let halts = Summed::of(of.iter().filter(|(_, halts)| *halts).map(|(stretch, _)| *stretch).collect());
        let held = Summed::of(outside(of.into_iter().map(|(stretch, _)| stretch).collect(), calls.in_calls(&process)));
        seen.sort_by_key(|call| call.entry_ns);
        let mut before: Option<i64> = None;
        for call in seen {
            let end_ns = call.entry_ns.saturating_add(call.duration_ns);
            call.halted_ns = halts.between(call.entry_ns, end_ns);
            call.held_ns = before.map_or(0, |before| held.between(before, call.entry_ns));
            before = Some(call.entry_ns);
        }
    }
    (rows.len() >= MOST_ROWS).then(|| {
        format!(
            "what held ranks off their CPUs is known of the latest {MOST_ROWS} stretches alone: ask for a shorter time to have \
             all"
        )
    })
}

/// What a stretch off the CPU was, in the order of its parts, with their lengths.
type Parts = [(Kind, i64); 2];

/// A row: process, start and parts.
fn stretch_of(row: &[Value], names: &mut Names) -> Option<(Process, i64, Parts)> {
    let [
        Value::Text(node),
        Value::Integer(pid),
        Value::Integer(at_ns),
        Value::Integer(duration_ns),
        voluntary,
        Value::Text(reason),
        run_delay_ns,
        next_pid,
        next_comm,
    ] = row
    else {
        return None;
    };
    let number = |value: &Value| if let Value::Integer(number) = value { Some(*number) } else { None };
    let words = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
    let next_comm = if let Value::Text(comm) = next_comm { words(comm) } else { String::new() };
    let queued_ns = number(run_delay_ns).unwrap_or(0);
    let voluntary = number(voluntary) != Some(0);
    let kinds = off_cpu_kinds(voluntary, &words(reason), *duration_ns, queued_ns, number(next_pid), &next_comm);
    Some(((names.keep(node), *pid), *at_ns, kinds))
}

/// Of stretches what lies in none of the calls.
fn outside(mut stretches: Vec<Stretch>, calls: &[Call]) -> Vec<Stretch> {
    let mut calls: Vec<Stretch> = calls.iter().map(|call| (call.start_ns, call.end_ns)).collect();
    calls.sort_unstable();
    stretches.sort_unstable();
    let (mut left, mut next) = (Vec::with_capacity(stretches.len()), 0);
    for (start, end) in stretches {
        let mut at = start;
        while calls.get(next).is_some_and(|(_, call_end)| *call_end <= start) {
            next += 1;
        }
        for (call_start, call_end) in calls[next..].iter().take_while(|(call_start, _)| *call_start < end) {
            if *call_start > at {
                left.push((at, *call_start));
            }
            at = at.max(*call_end);
        }
        if at < end {
            left.push((at, end));
        }
    }
    left
}

/// Stretches in order, with how long those before each are together. (A thread is off its CPU once at a
/// time: they do not overlap.)
struct Summed(Vec<(Stretch, i64)>);

impl Summed {
    fn of(mut stretches: Vec<Stretch>) -> Summed {
        stretches.sort_unstable();
        let before = stretches.iter().scan(0, |sum, (start, end)| Some(std::mem::replace(sum, *sum + end - start)));
        let before: Vec<i64> = before.collect();
        Summed(stretches.into_iter().zip(before).collect())
    }

    /// How long they are together up to a time.
    fn up_to(&self, at_ns: i64) -> i64 {
        let after = self.0.partition_point(|((start, _), _)| *start < at_ns);
        let last = after.checked_sub(1).and_then(|last| self.0.get(last));
        last.map_or(0, |((start, end), before)| before + at_ns.min(*end) - start)
    }

    fn between(&self, from_ns: i64, to_ns: i64) -> i64 {
        (self.up_to(to_ns) - self.up_to(from_ns)).max(0)
    }
}

/// Counts the time that ranks were halted in collectives as their own: not as a wait for the others,
/// and as compute time before the next. While others are still to enter, a rank has to wait anyhow:
/// of that nothing is taken. Where clocks are not known, all that it was halted is its own.
pub(crate) fn settle_halts(comm: &mut Comm) {
    if !comm.met.iter().flat_map(|met| met.cells.iter().flatten()).any(|cell| cell.halted_ns > 0) {
        return;
    }
    let members = comm.members.len();
    let mut carried_ns = vec![0; members];
    for at in 0..comm.met.len() {
        for (place, carried) in carried_ns.iter_mut().enumerate() {
            let Some(cell) = comm.met[at].cells[place] else { continue };
            let own_ns = own_part(comm, &comm.met[at], place);
            if let Some(cell) = &mut comm.met[at].cells[place] {
                cell.compute_ns = cell.compute_ns.map(|ns| ns.saturating_add(*carried));
            }
            *carried = own_ns.min(cell.duration_ns);
        }
        // Only now: what a cell is compared with is as it was recorded.
        for (cell, own_ns) in comm.met[at].cells.iter_mut().zip(&carried_ns) {
            if let Some(cell) = cell {
                cell.duration_ns -= own_ns;
            }
        }
    }
}

/// Which part of the time that a rank was halted in a collective nobody else made it wait.
fn own_part(comm: &Comm, met: &Met, place: usize) -> i64 {
    let Some(cell) = met.cells[place].filter(|cell| cell.halted_ns > 0) else { return 0 };
    let me = &comm.members[place];
    let others = met.cells.iter().zip(&comm.members).enumerate().filter(|(other, _)| *other != place);
    let entered = others.filter_map(|(_, (other, member))| Some(other.as_ref()?.entry_ns - me.bound_to(member)?));
    let awaited_ns = entered.max().map_or(0, |last| last.saturating_sub(cell.entry_ns).max(0));
    cell.halted_ns.min(cell.duration_ns.saturating_sub(awaited_ns)).max(0)
}

#[cfg(test)]
mod tests {
    use observed::{ClockOffset, Rules};

    use super::*;
    use crate::{Verdict, analyse};

    const MS: i64 = 1_000_000;

    /// Four ranks of one host with a barrier every 10 ms; one in ten that rank 2 takes part in, it is
    /// stopped for 35 ms when all have come, and comes late to the next by as much. `known`: its
    /// halts are.
    fn stopped_within(known: bool, hosts: bool) -> Input {
        let mut input = Input { since_ns: 0, until_ns: 60_000 * MS, ..Input::default() };
        let mut begins = [0i64; 4];
        for seq in 0..1_000u64 {
            let jitter = |rank: u64| i64::try_from((seq * 7 + rank * 13) % 5).unwrap() * MS / 20;
            let entries: Vec<i64> = (0..4u64).zip(begins).map(|(rank, at)| at + 9 * MS + jitter(rank)).collect();
            let met = entries.iter().max().unwrap() + MS / 10;
            for (rank, entry_ns) in entries.iter().enumerate() {
                let halted_ns = if rank == 2 && seq % 10 == 3 { 35 * MS } else { 0 };
                begins[rank] = met + halted_ns;
                let call = Observation::test_call(rank as i32, 7, "barrier", seq, *entry_ns, begins[rank] - entry_ns);
                let node = if hosts { call.node.clone() } else { "n".into() };
                let halted_ns = if known { halted_ns } else { 0 };
                let pid = 100 + rank as i64;
                input.observations.push(Observation { node, pid, nranks: Some(4), halted_ns, ..call });
            }
        }
        input.clocks = (0..4).map(|host| (format!("n{host}"), ClockOffset::steady(0, MS / 10))).collect();
        input.clocks.insert("n".into(), ClockOffset::steady(0, 0));
        input
    }

    #[test]
    fn a_rank_that_is_stopped_within_its_calls_is_named() {
        for hosts in [false, true] {
            let named = |known| analyse(&stopped_within(known, hosts), &Rules::default()).verdict.named_ranks();
            assert_eq!((named(true), named(false)), (vec![2], vec![]), "what it takes here, it waits less there");
        }
    }

    #[test]
    fn who_is_stopped_while_others_are_still_to_come_holds_nobody_up() {
        // Rank 2 is late by 20 ms each time; rank 1 is stopped while it waits for it.
        let mut input = stopped_within(false, false);
        input.observations.clear();
        for seq in 0..400i64 {
            for rank in 0..4 {
                let entry_ns = seq * 40 * MS + if rank == 2 { 20 * MS } else { rank * MS / 50 };
                let left_ns = seq * 40 * MS + 20 * MS + MS / 10;
                let call = Observation::test_call(rank as i32, 7, "barrier", seq as u64, entry_ns, left_ns - entry_ns);
                let halted_ns = if rank == 1 { 15 * MS } else { 0 };
                let node = "n".into();
                input.observations.push(Observation { node, pid: 100 + rank, nranks: Some(4), halted_ns, ..call });
            }
        }
        let report = analyse(&input, &Rules::default());
        assert!(matches!(&report.verdict, Verdict::Rank { culprit, also, .. } if culprit.rank == 2 && also.is_empty()));
    }

    #[test]
    fn a_late_rank_that_nobody_compares_with_is_named_where_it_was_held_off_its_cpu() {
        // Ranks 0 and 1 of two pools do not do the same: rank 0 has calls with others, too. Rank 1 comes
        // 5 ms late to each barrier, and has been held off its CPU for 4 ms, or has not.
        let input = |held_ns: i64| {
            let mut input = Input { since_ns: 0, until_ns: 60_000 * MS, ..Input::default() };
            for seq in 0..1_500u64 {
                let at_ns = i64::try_from(seq).unwrap() * 20 * MS;
                let late_ns = 5 * MS + i64::try_from(seq * 7 % 5).unwrap() * MS / 20;
                for rank in 0..2 {
                    let entry_ns = at_ns + i64::from(rank) * late_ns;
                    let call =
                        Observation::test_call(rank, 7, "barrier", seq, entry_ns, at_ns + late_ns + MS / 10 - entry_ns);
                    let held_ns = i64::from(rank) * held_ns;
                    input.observations.push(Observation {
                        node: "n".into(),
                        pid: 100 + i64::from(rank),
                        nranks: Some(2),
                        held_ns,
                        ..call
                    });
                }
                for (rank, comm, pid) in [(0, 8, 100), (1, 8, 102), (0, 9, 101), (1, 9, 103)] {
                    let (func, entry_ns) = (["gather", "broadcast"][comm as usize - 8], at_ns + 12 * MS);
                    let call = Observation::test_call(rank, comm, func, seq, entry_ns, MS);
                    input.observations.push(Observation { node: "n".into(), pid, nranks: Some(2), ..call });
                }
            }
            input
        };
        let verdict = |held_ns| analyse(&input(held_ns), &Rules::default()).verdict;
        assert_eq!(verdict(4 * MS).named_ranks(), [1], "{:?}", verdict(4 * MS));
        assert!(matches!(verdict(MS), Verdict::Unknown { .. }), "{:?}", verdict(MS));
    }

    #[test]
    fn a_rank_without_its_cpu_for_single_strokes_is_named_for_their_sum() {
        // Two ranks meet every 0.6 ms, either first by up to 0.2 ms. Now and then one of them has another
        // program on its CPU for 6 ms, one step in about eleven of its own and one in `other` of the other's.
        let input = |calls: u64, other: u64, held: bool| {
            let mut input = Input { since_ns: 0, until_ns: 60_000 * MS, ..Input::default() };
            let mut at_ns = 0;
            for seq in 0..calls {
                let random = seq.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
                let strokes = [random % 11 == 3, random % other == 5];
                let jitter = [(random >> 8) % 200, (random >> 16) % 200].map(|us| us as i64 * MS / 1_000);
                let off = strokes.map(|stroke| if stroke { 6 * MS } else { 0 });
                let entries = [0, 1].map(|rank| at_ns + MS / 2 + jitter[rank] + off[1 - rank]);
                let left_ns = entries[0].max(entries[1]) + MS / 100;
                for rank in 0..2 {
                    let place = rank as usize;
                    let duration_ns = left_ns - entries[place];
                    let call = Observation::test_call(rank, 7, "all_reduce", seq, entries[place], duration_ns);
                    let held_ns = if held { off[1 - place] } else { 0 };
                    let pid = 100 + i64::from(rank);
                    let of = Observation { node: "n".into(), pid, nranks: Some(2), held_ns, ..call };
                    input.observations.push(of);
                }
                at_ns = left_ns;
            }
            input
        };
        let verdict = |calls, other, held| analyse(&input(calls, other, held), &Rules::default()).verdict;
        assert_eq!(verdict(12_000, 1_000_000, true).named_ranks(), [1], "{:?}", verdict(12_000, 1_000_000, true));
        let short = verdict(700, 1_000_000, true);
        assert!(short.named_ranks().is_empty(), "0.8 s name nobody: {short:?}");
        let all_of_it = Input { until_ns: 800 * MS, ..input(700, 1_000_000, true) };
        assert_eq!(analyse(&all_of_it, &Rules::default()).verdict.named_ranks(), [1], "unless nobody asked for more");
        let alike = verdict(12_000, 12, true);
        assert!(alike.named_ranks().is_empty(), "both lose their CPUs in turns: {alike:?}");
    }

    #[test]
    fn where_nobody_stands_out_a_rank_that_was_stopped_is_a_doubt() {
        // Three ranks come late in turns by 5 ms each 10; rank 1 is stopped for 2 ms in each of its waits.
        let input = |halted_ns: i64| {
            let mut input = Input { since_ns: 0, until_ns: 60_000 * MS, ..Input::default() };
            for seq in 0..600i64 {
                for rank in 0..3 {
                    let entry_ns = seq * 10 * MS + if rank == seq % 3 { 5 * MS } else { rank * MS / 50 };
                    let left_ns = seq * 10 * MS + 5 * MS + MS / 10;
                    let call =
                        Observation::test_call(rank as i32, 7, "barrier", seq as u64, entry_ns, left_ns - entry_ns);
                    let halted_ns = if rank == 1 && seq % 3 != 1 { halted_ns } else { 0 };
                    let node = "n".into();
                    input.observations.push(Observation { node, pid: 100 + rank, nranks: Some(3), halted_ns, ..call });
                }
            }
            input
        };
        let verdict = |halted_ns| analyse(&input(halted_ns), &Rules::default()).verdict;
        assert_eq!(verdict(0), Verdict::None);
        let Verdict::Unknown { why } = verdict(2 * MS) else { panic!("{:?}", verdict(2 * MS)) };
        assert!(why.starts_with("rank 1 on n was stopped,") && why.contains("for 800 ms of 5.99 s"), "{why}");
    }

    #[test]
    fn rows_say_how_long_a_call_was_halted() {
        let mut input = stopped_within(false, false);
        input.observations.truncate(4); // of ranks 0 to 3, from 9 ms on
        let (from, ends) = (input.observations[1].entry_ns, input.observations[1].duration_ns);
        let word = |text: &str| Value::Text(text.as_bytes().to_vec());
        let row = |pid: i64, at_ns: i64, length_ns: i64, reason: &str| {
            let of = [word("n"), Value::Integer(pid), Value::Integer(at_ns), Value::Integer(length_ns)];
            let what = [Value::Integer(0), word(reason), Value::Null, Value::Integer(9), word("hog")];
            of.into_iter().chain(what).collect::<Vec<Value>>()
        };
        let rows = [
            row(101, from - 5, 10, "stopped"),
            row(101, from + 20, 10, "throttled"),
            row(101, from + 40, 10, "preempted"),
            row(101, from + ends - 3, 10, "stopped"),
            row(555, from, 10, "stopped"),
            vec![Value::Null],
        ];
        assert_eq!(take_halts(&mut input, &rows, &Rows::default()), None);
        let halted: Vec<i64> = input.observations.iter().map(|call| call.halted_ns).collect();
        assert_eq!(halted, [0, 5 + 10 + 3, 0, 0]);
        let cut = take_halts(&mut input, &vec![vec![Value::Null]; MOST_ROWS], &Rows::default());
        assert!(cut.is_some_and(|note| note.contains("the latest 20000 stretches")));
    }

    #[test]
    fn held_is_what_lies_outside_calls() {
        let call = |start_ns, end_ns| Call { tid: 0, start_ns, end_ns, scored: true, peer: None };
        let calls = [call(10, 20), call(12, 15), call(30, 40), call(100, 200)];
        let left = outside(vec![(0, 5), (8, 12), (18, 32), (35, 38), (39, 41), (50, 60)], &calls);
        assert_eq!(left, [(0, 5), (8, 10), (20, 30), (40, 41), (50, 60)]);
        let held = Summed::of(left);
        assert_eq!(
            (held.between(0, 10), held.between(4, 25), held.between(55, 1_000), held.between(70, 90)),
            (7, 8, 5, 0)
        );
    }
}
