//! Calls that were recorded in time slices only (`rankmesh up --budget`): which stretch of a span all
//! hosts recorded, and of which ranks it is not known what they are in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use explain::stacks::{CountedStack, Frame, MemberStacks};
use model::cells::{integer, quoted, text};
use model::{StacksWanted, StragglersQuestion};
use query_planner::Value;
use record::LossCount;
use verdicts::{ClockOffset, InCall, Input, Process, Rules, Span};

use super::super::Shared;
use super::super::asking::Asking;
use super::super::explain::sees_processes;
use super::hangs::{EVERY_MS, PATIENCE, stacks_of};

/// How far back it is looked for calls that were missed: a rank may be in one since then.
const BACK_NS: i64 = 24 * 3_600_000_000_000;

/// Of a span in which calls were missed, the stretch to be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slices {
    pub(super) since_ns: i64,
    pub(super) until_ns: i64,
    /// In all stretches together.
    recorded_ns: i64,
    all_ns: i64,
}

impl Slices {
    /// The same stretch, judged from this time on.
    pub(super) fn from(self, since_ns: i64) -> Self {
        Self { since_ns, ..self }
    }

    /// What is said of it.
    pub(super) fn note(&self) -> String {
        let seconds = |ns: i64| ns as f64 / 1e9;
        format!(
            "by slices: {:.1} of {:.1} s recorded on all hosts (up --budget); this is of the last, {:.2} s until {}",
            seconds(self.recorded_ns),
            seconds(self.all_ns),
            seconds(self.until_ns - self.since_ns),
            store::show_time(self.until_ns)
        )
    }

    /// Of a span and the stretches in which hosts missed calls, on one clock. None where they missed
    /// none; an empty stretch where all hosts never recorded at once.
    fn of(span: (i64, i64), mut missed: Vec<(i64, i64)>) -> Option<Self> {
        let (since_ns, until_ns) = span;
        missed.retain(|(from, to)| *to > since_ns && *from < until_ns);
        if missed.is_empty() {
            return None;
        }
        missed.sort_unstable();
        let (mut stretches, mut at) = (Vec::new(), since_ns);
        for (from, to) in missed {
            if from > at {
                stretches.push((at, from));
            }
            at = at.max(to);
        }
        if at < until_ns {
            stretches.push((at, until_ns));
        }
        let length = |(from, to): &(i64, i64)| to - from;
        // One that has just begun tells less than the one before.
        let last = match stretches.as_slice() {
            [.., before, last] if 2 * length(last) < length(before) => Some(before),
            all => all.last(),
        };
        let (from, to) = last.copied().unwrap_or((until_ns, until_ns));
        let recorded_ns = stretches.iter().map(length).sum();
        Some(Self { since_ns: from, until_ns: to, recorded_ns, all_ns: until_ns - since_ns })
    }
}

/// The stretch of a span that is to be judged; none where all of it was recorded. And whether all
/// hosts told what they missed.
pub(super) async fn within(
    asking: Asking<'_>,
    question: &StragglersQuestion,
    span: &Span,
    clocks: &BTreeMap<String, ClockOffset>,
) -> (Option<Slices>, bool) {
    let (missed, complete) = missed(asking, question, span, clocks).await;
    if missed.is_empty() {
        return (None, complete);
    }
    // Before the first call nothing was recorded, as nothing was called, or nobody recorded.
    let first_ns = counted(asking, question, span).await.map_or(span.since_ns, |(_, first_ns)| first_ns);
    (Slices::of((span.since_ns.max(first_ns), span.until_ns), missed), complete)
}

/// The stretches in which hosts missed calls, on this node's clock, and whether all hosts told.
pub(in super::super) async fn missed(
    asking: Asking<'_>,
    question: &StragglersQuestion,
    span: &Span,
    clocks: &BTreeMap<String, ClockOffset>,
) -> (Vec<(i64, i64)>, bool) {
    let (since_ns, until_ns) =
        (span.since_ns.saturating_sub(span.slack_ns), span.until_ns.saturating_add(span.slack_ns));
    let sql = format!(
        "SELECT node, since_ns, ts_ns FROM capture_loss WHERE reason = '{}' AND ts_ns > {since_ns} \
         AND since_ns < {until_ns}",
        LossCount::BUDGET
    );
    let (rows, complete) = asking.rows_of(question, sql).await;
    let missed = rows.iter().filter_map(|row| {
        let clock = clocks.get(&text(row, 0));
        let aligned = |ns: i64| clock.map_or(ns, |clock| clock.align(ns));
        Some((aligned(integer(row, 1)?), aligned(integer(row, 2)?)))
    });
    (missed.collect(), complete)
}

/// From when on a span has no more than so many calls; its beginning where they are not counted.
pub(super) async fn since_for(asking: Asking<'_>, question: &StragglersQuestion, span: &Span, most: i64) -> i64 {
    let calls = counted(asking, question, span).await.map_or(0, |(calls, _)| calls);
    if calls <= most {
        return span.since_ns;
    }
    let part = most as f64 / calls as f64;
    span.until_ns.saturating_sub((span.until_ns.saturating_sub(span.since_ns) as f64 * part) as i64)
}

/// How many calls a span has, and when the first was entered; none where there is none, or they
/// cannot be counted.
async fn counted(asking: Asking<'_>, question: &StragglersQuestion, span: &Span) -> Option<(i64, i64)> {
    let job = question.job.as_deref().map(|job| format!(" AND job_id = {}", quoted(job))).unwrap_or_default();
    let sql = format!(
        "SELECT count(*), min(ts_ns) FROM collectives WHERE ts_ns >= {} AND ts_ns < {}{job}",
        span.since_ns.saturating_sub(span.slack_ns),
        span.until_ns.saturating_add(span.slack_ns)
    );
    let (rows, _) = asking.rows_for(question, sql).await.ok()?;
    let row = rows.first()?;
    Some((integer(row, 0)?, integer(row, 1)?))
}

/// Up to when each host missed calls, Unix nanoseconds of its own clock, and whether all hosts told.
pub(super) async fn missed_until(
    asking: Asking<'_>,
    question: &StragglersQuestion,
    until_ns: i64,
) -> (BTreeMap<String, i64>, bool) {
    let back_ns = until_ns.saturating_sub(BACK_NS);
    let sql = format!(
        "SELECT node, max(ts_ns) FROM capture_loss WHERE reason = '{}' AND ts_ns > {back_ns} \
         AND since_ns < {until_ns} GROUP BY node",
        LossCount::BUDGET
    );
    let (rows, complete) = asking.rows_of(question, sql).await;
    (rows.iter().filter_map(|row| Some((text(row, 0), integer(row, 1)?))).collect(), complete)
}

/// Adds the calls whose beginnings were missed: where a process has ended none since the present
/// slice began, its stack says which call it is in. Where that cannot be had, nothing can be said of
/// who waits for whom: takes what is known out of the input. What is to be said of either.
pub(super) async fn add_missed_calls(
    asking: Asking<'_>,
    shared: &Shared,
    question: &StragglersQuestion,
    missed_until: &BTreeMap<String, i64>,
    asked_for: &BTreeSet<Process>,
    input: &mut Input,
) -> Option<String> {
    if missed_until.is_empty() {
        return None;
    }
    let silent = silent(asking, question, missed_until, asked_for, input).await?;
    if silent.is_empty() {
        return None;
    }
    let is_long = |((node, _), missed_ns): (&Process, &i64)| {
        let missed_ns = input.clocks.get(&**node).map_or(*missed_ns, |clock| clock.align(*missed_ns));
        input.until_ns.saturating_sub(missed_ns) >= Rules::default().hang_ns
    };
    let mut unread = silent.len();
    if silent.iter().all(is_long) && sees_processes(asking.caller) {
        let calls = calls_by_stacks(asking, shared, question, &silent).await;
        unread -= calls.len();
        if unread == 0 {
            let since_ns = silent.values().copied().max().unwrap_or_default();
            let found = calls.into_iter().flatten();
            input.in_calls.extend(found);
            return Some(format!(
                "calls were recorded in slices (up --budget): what {} processes are in is by their stacks, and began \
                 before {}",
                silent.len(),
                store::show_time(since_ns)
            ));
        }
    }
    (input.in_calls, input.syncing) = (Vec::new(), Vec::new());
    Some(format!(
        "calls were recorded in slices (up --budget), and {unread} processes have ended no call in the present one: \
         whether ranks hang in calls that began before cannot be told yet (rankmesh stacks shows where they are)"
    ))
}

/// The ranks' processes that have ended no call since the present slice began, and are in none that
/// began in it; and when it began. None where that cannot be asked.
async fn silent(
    asking: Asking<'_>,
    question: &StragglersQuestion,
    missed_until: &BTreeMap<String, i64>,
    asked_for: &BTreeSet<Process>,
    input: &Input,
) -> Option<BTreeMap<Process, i64>> {
    let back_ns = input.until_ns.saturating_sub(BACK_NS);
    let asked = [
        "SELECT node, pid, max(start_ns) FROM processes WHERE rank IS NOT NULL AND world_size > 1 GROUP BY node, pid"
            .to_owned(),
        format!(
            "SELECT node, pid, max(ts_ns) FROM process_events WHERE event IN ('exit', 'oom_killed') AND ts_ns >= {back_ns} \
             GROUP BY node, pid"
        ),
        format!(
            "SELECT node, pid, max(ts_ns) FROM collectives WHERE ts_ns >= {} GROUP BY node, pid",
            missed_until.values().min().copied().unwrap_or(back_ns)
        ),
    ];
    let mut of_each = Vec::new();
    for sql in asked {
        of_each.push(asking.rows_for(question, sql).await.map(|(rows, _)| times(&rows)).unwrap_or_default());
    }
    let [began, ended, called] = of_each.as_slice() else { return None };
    let in_calls: BTreeSet<Process> = input.in_calls.iter().map(|call| (Arc::clone(&call.node), call.pid)).collect();
    let missed_by = |(process, began_ns): (&Process, &i64)| {
        let missed_ns = *missed_until.get(&*process.0)?;
        let since = |times: &Times, ns: i64| times.get(process).is_some_and(|at_ns| *at_ns >= ns);
        let is_silent = *began_ns < missed_ns && !since(ended, *began_ns) && !since(called, missed_ns);
        (is_silent && asked_for.contains(process) && !in_calls.contains(process)).then(|| (process.clone(), missed_ns))
    };
    Some(began.iter().filter_map(missed_by).collect())
}

/// Of those whose stacks can be read: the call that each is in, none where it is in none.
async fn calls_by_stacks(
    asking: Asking<'_>,
    shared: &Shared,
    question: &StragglersQuestion,
    silent: &BTreeMap<Process, i64>,
) -> Vec<Option<InCall>> {
    let all = || StacksWanted {
        job: question.job.clone(),
        all_threads: true,
        native: true,
        samples: 1,
        every_ms: EVERY_MS,
        ..StacksWanted::default()
    };
    let nodes = silent.keys().map(|(node, _)| (&**node, all())).collect();
    let threads = stacks_of(asking.within(PATIENCE), shared, nodes).await;
    let mut by_process: BTreeMap<(&str, i64), Vec<&MemberStacks>> = BTreeMap::new();
    for thread in &threads {
        by_process.entry((&thread.member.node, i64::from(thread.member.pid))).or_default().push(thread);
    }
    let call = |((node, pid), since_ns): (&Process, &i64)| {
        let func = call_by_stacks(by_process.get(&(&**node, *pid))?)?;
        Some(func.map(|func| InCall {
            node: Arc::clone(node),
            pid: *pid,
            func: func.into(),
            since_ns: *since_ns,
            ..InCall::default()
        }))
    };
    silent.iter().filter_map(call).collect()
}

/// The call that a process is in by the stacks of its threads; the inner none where it is in none,
/// the outer one where the stack of its first thread says nothing for certain.
fn call_by_stacks(threads: &[&MemberStacks]) -> Option<Option<&'static str>> {
    let frames = threads.iter().flat_map(|thread| &thread.stacks).flat_map(|stack| &stack.frames);
    let call = |frame: &Frame| match frame {
        Frame::Native { function, .. } => node_bpf::call_name(function),
        Frame::Python { .. } | Frame::ReturnProbe => None,
    };
    if let Some(func) = frames.into_iter().find_map(call) {
        return Some(Some(func));
    }
    let is_whole = |stack: &CountedStack| {
        !stack.inner_missing && !stack.outer_missing && !stack.frames.contains(&Frame::ReturnProbe)
    };
    let first = threads.iter().find(|thread| thread.member.tid == thread.member.pid)?;
    (!first.stacks.is_empty() && first.stacks.iter().all(is_whole)).then_some(None)
}

/// A time of each process.
type Times = BTreeMap<Process, i64>;

fn times(rows: &[Vec<Value>]) -> Times {
    let time = |row: &Vec<Value>| Some(((text(row, 0).as_str().into(), integer(row, 1)?), integer(row, 2)?));
    rows.iter().filter_map(time).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    fn of(missed: &[(i64, i64)]) -> Option<(i64, i64, i64)> {
        let missed = missed.iter().map(|(from, to)| (from * S, to * S)).collect();
        Slices::of((0, 60 * S), missed).map(|of| (of.since_ns / S, of.until_ns / S, of.recorded_ns / S))
    }

    #[test]
    fn what_no_host_missed_is_judged() {
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(60, 70), (-10, 0)]), None, "outside the span");
        // Two hosts: the shorter slices lie within the longer ones.
        let two = [(2, 10), (3, 10), (12, 20), (13, 20), (22, 50), (23, 50), (52, 61)];
        assert_eq!(of(&two), Some((50, 52, 8)));
    }

    #[test]
    fn a_slice_that_has_just_begun_tells_less_than_the_one_before() {
        assert_eq!(of(&[(30, 50), (55, 59)]), Some((50, 55, 36)), "nor does a long one that is long ago count");
        assert_eq!(of(&[(4, 50), (54, 57)]), Some((57, 60, 11)), "half of it");
    }

    #[test]
    fn hosts_that_never_recorded_at_once_have_an_empty_stretch() {
        assert_eq!(of(&[(-5, 30), (30, 70)]), Some((60, 60, 0)));
    }

    #[test]
    fn the_note_says_the_share() {
        let slices = Slices::of((0, 100 * S), vec![(2 * S, 50 * S), (52 * S, 100 * S)]).unwrap();
        assert!(slices.note().starts_with("by slices: 4.0 of 100.0 s recorded"), "{}", slices.note());
    }
}
