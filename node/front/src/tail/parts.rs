//! Where a request's time went, by what was recorded of the thread that answered it, and what slow
//! requests have more of than ordinary ones. Values in, figures out.

use std::collections::BTreeMap;

use serde::Serialize;

/// A request's row, and what is known of its thread.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Request {
    pub(super) node: String,
    pub(super) pid: i64,
    pub(super) tid: i64,
    pub(super) ts_ns: i64,
    pub(super) duration_ns: i64,
    pub(super) queued_ns: i64,
    /// CPU time, and time runnable without a CPU, where one thread answered it.
    pub(super) of_thread: Option<(i64, i64)>,
    pub(super) route: String,
    pub(super) status: Option<i64>,
    /// How many requests it stands for.
    pub(super) weight: f64,
}

/// A stretch that a thread was off its CPU.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stretch {
    pub(super) ts_ns: i64,
    pub(super) duration_ns: i64,
    pub(super) voluntary: bool,
    pub(super) reason: String,
    /// Who took the CPU; empty where that is not shown.
    pub(super) taken_by: String,
    /// How much of it the thread could run again.
    pub(super) run_delay_ns: i64,
}

/// Stretches by node and thread, in order of time.
pub(super) type Stretches = BTreeMap<(String, i64), Vec<Stretch>>;

/// A part of a request's time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "of")]
pub(super) enum Part {
    /// Its bytes lay in the socket before anybody read them.
    Unread,
    /// Its thread ran.
    OnCpu,
    /// Its thread could run, and another program had the CPU; empty: which one was not recorded.
    CpuTaken(String),
    /// Its thread could run, and the CPU quota of its cgroup was used up.
    Throttled,
    /// Its thread slept: "io", "lock", "network", "fault", "sleep" …; empty: in what was not
    /// recorded.
    Asleep(String),
    /// Other threads had a part in it: theirs are not followed.
    OtherThreads,
}

impl Part {
    /// In a few words.
    pub(super) fn words(&self) -> String {
        match self {
            Part::Unread => "unread in the socket: nobody read it yet".to_owned(),
            Part::OnCpu => "its thread ran".to_owned(),
            Part::CpuTaken(by) if by.is_empty() => "ready to run, and no CPU free (by whom is not recorded)".to_owned(),
            Part::CpuTaken(by) => format!("ready to run, the CPU taken by {by}"),
            Part::Throttled => "held back by the CPU quota of its cgroup".to_owned(),
            Part::Asleep(why) => match why.as_str() {
                "" => "asleep (in what is not recorded)".to_owned(),
                "io" => "asleep, waiting for a disk".to_owned(),
                "lock" => "asleep, waiting for a lock".to_owned(),
                "network" => "asleep, waiting for the network".to_owned(),
                "fault" => "asleep in a page fault".to_owned(),
                "sleep" => "asleep, waiting for a timer or another thread".to_owned(),
                other => format!("asleep ({other})"),
            },
            Part::OtherThreads => "with other threads, which are not followed".to_owned(),
        }
    }

    /// Whether it says why, and not only that something was not seen.
    pub(super) fn tells(&self) -> bool {
        !matches!(self, Part::OtherThreads)
    }
}

/// The parts of a request: together its duration.
pub(super) fn parts(request: &Request, stretches: &Stretches) -> BTreeMap<Part, i64> {
    let mut parts = BTreeMap::new();
    let queued_ns = request.queued_ns.clamp(0, request.duration_ns);
    let mut left_ns = request.duration_ns - queued_ns;
    put(&mut parts, Part::Unread, queued_ns);
    let Some((cpu_ns, delay_ns)) = request.of_thread else {
        put(&mut parts, Part::OtherThreads, left_ns);
        return parts;
    };
    let delay_ns = delay_ns.clamp(0, left_ns);
    left_ns -= delay_ns;
    let cpu_ns = cpu_ns.clamp(0, left_ns);
    let asleep_ns = left_ns - cpu_ns;
    put(&mut parts, Part::OnCpu, cpu_ns);
    let (taken, slept) = seen(request, stretches);
    share_out(&mut parts, delay_ns, taken, Part::CpuTaken(String::new()));
    share_out(&mut parts, asleep_ns, slept, Part::Asleep(String::new()));
    parts
}

/// What was recorded of the thread while it answered: who took its CPU, and what it slept in.
fn seen(request: &Request, stretches: &Stretches) -> (BTreeMap<Part, i64>, BTreeMap<Part, i64>) {
    let (mut taken, mut slept) = (BTreeMap::new(), BTreeMap::new());
    let (from_ns, until_ns) = (request.ts_ns + request.queued_ns, request.ts_ns + request.duration_ns);
    let of_thread = stretches.get(&(request.node.clone(), request.tid)).map_or(&[][..], Vec::as_slice);
    // They follow each other, so their ends ascend, too.
    let first = of_thread.partition_point(|stretch| stretch.ts_ns.saturating_add(stretch.duration_ns) <= from_ns);
    for stretch in of_thread.iter().skip(first).take_while(|stretch| stretch.ts_ns < until_ns) {
        let end_ns = stretch.ts_ns.saturating_add(stretch.duration_ns);
        let within_ns = end_ns.min(until_ns) - stretch.ts_ns.max(from_ns);
        if !stretch.voluntary {
            let part = match stretch.reason.as_str() {
                "throttled" => Part::Throttled,
                _ => Part::CpuTaken(stretch.taken_by.clone()),
            };
            put(&mut taken, part, within_ns);
            continue;
        }
        // At its end it could run again.
        let asleep_until_ns = end_ns.saturating_sub(stretch.run_delay_ns);
        let asleep_ns = asleep_until_ns.min(until_ns) - stretch.ts_ns.max(from_ns);
        put(&mut slept, Part::Asleep(stretch.reason.clone()), asleep_ns.max(0));
    }
    (taken, slept)
}

/// Splits a time that is known among what was seen of it; what is left over is `rest`. What was
/// seen may be a little more, by the clocks' reading: then each has its share.
fn share_out(parts: &mut BTreeMap<Part, i64>, all_ns: i64, seen: BTreeMap<Part, i64>, rest: Part) {
    let sum_ns: i64 = seen.values().sum();
    let scale = if sum_ns > all_ns { all_ns as f64 / sum_ns as f64 } else { 1.0 };
    let mut left_ns = all_ns;
    for (part, ns) in seen {
        let ns = ((ns as f64 * scale) as i64).min(left_ns);
        left_ns -= ns;
        put(parts, part, ns);
    }
    put(parts, rest, left_ns);
}

fn put(parts: &mut BTreeMap<Part, i64>, part: Part, ns: i64) {
    if ns > 0 {
        *parts.entry(part).or_default() += ns;
    }
}

/// What slow requests have more of.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Excess {
    /// Mean duration of the slow ones, and of the ordinary ones.
    pub(super) slow_ns: i64,
    pub(super) ordinary_ns: i64,
    /// Parts by what they add to the mean, the largest first.
    pub(super) parts: Vec<More>,
}

/// A part that slow requests have more of.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct More {
    pub(super) part: Part,
    /// Nanoseconds a request.
    pub(super) more_ns: i64,
    /// Of all that slow requests take longer, 0 to 1.
    pub(super) share: f64,
}

/// Compares slow requests with ordinary ones. None where either is missing, or they are no slower.
pub(super) fn excess(slow: &[Request], ordinary: &[Request], stretches: &Stretches) -> Option<Excess> {
    let (slow_ns, slow_parts) = mean(slow, stretches)?;
    let (ordinary_ns, ordinary_parts) = mean(ordinary, stretches)?;
    let all_ns = slow_ns - ordinary_ns;
    if all_ns <= 0.0 {
        return None;
    }
    let mut parts: Vec<More> = slow_parts
        .into_iter()
        .map(|(part, ns)| {
            let more_ns = ns - ordinary_parts.get(&part).copied().unwrap_or(0.0);
            More { part, more_ns: more_ns as i64, share: more_ns / all_ns }
        })
        .filter(|more| more.more_ns > 0)
        .collect();
    parts.sort_by_key(|more| std::cmp::Reverse(more.more_ns));
    Some(Excess { slow_ns: slow_ns as i64, ordinary_ns: ordinary_ns as i64, parts })
}

/// The mean duration, and of each part.
fn mean(requests: &[Request], stretches: &Stretches) -> Option<(f64, BTreeMap<Part, f64>)> {
    let weight: f64 = requests.iter().map(|request| request.weight).sum();
    if weight <= 0.0 {
        return None;
    }
    let (mut duration_ns, mut sums) = (0.0, BTreeMap::new());
    for request in requests {
        duration_ns += request.weight * request.duration_ns as f64;
        for (part, ns) in parts(request, stretches) {
            *sums.entry(part).or_insert(0.0) += request.weight * ns as f64;
        }
    }
    sums.values_mut().for_each(|sum| *sum /= weight);
    Some((duration_ns / weight, sums))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    fn request(ts_ns: i64, duration_ns: i64, of_thread: Option<(i64, i64)>) -> Request {
        Request { node: "n1".into(), pid: 7, tid: 8, ts_ns, duration_ns, of_thread, weight: 1.0, ..Request::default() }
    }

    fn stretch(ts_ns: i64, duration_ns: i64, reason: &str, taken_by: &str, run_delay_ns: i64) -> Stretch {
        let voluntary = reason != "preempted" && reason != "throttled";
        Stretch { ts_ns, duration_ns, voluntary, reason: reason.into(), taken_by: taken_by.into(), run_delay_ns }
    }

    fn of(stretches: Vec<Stretch>) -> Stretches {
        BTreeMap::from([(("n1".to_owned(), 8), stretches)])
    }

    #[test]
    fn the_parts_of_a_request_are_together_its_duration() {
        let stretches = of(vec![
            stretch(0, 5 * MS, "io", "", 0), // before it
            stretch(20 * MS, 10 * MS, "preempted", "hog", 0),
            stretch(40 * MS, 20 * MS, "lock", "", 4 * MS),
            stretch(95 * MS, 50 * MS, "io", "", 0), // ends after it
        ]);
        let mut one = request(10 * MS, 90 * MS, Some((30 * MS, 14 * MS)));
        one.queued_ns = 5 * MS;
        let parts = parts(&one, &stretches);
        assert_eq!(parts.values().sum::<i64>(), 90 * MS);
        assert_eq!(parts[&Part::Unread], 5 * MS);
        assert_eq!(parts[&Part::OnCpu], 30 * MS);
        assert_eq!(parts[&Part::CpuTaken("hog".into())], 10 * MS);
        assert_eq!(parts[&Part::CpuTaken(String::new())], 4 * MS, "after it was woken");
        assert_eq!(parts[&Part::Asleep("lock".into())], 16 * MS);
        assert_eq!(parts[&Part::Asleep("io".into())], 5 * MS);
        assert_eq!(parts[&Part::Asleep(String::new())], 20 * MS);
    }

    #[test]
    fn what_several_threads_did_is_not_guessed() {
        let parts = parts(&request(0, 9 * MS, None), &of(vec![stretch(0, 9 * MS, "lock", "", 0)]));
        assert_eq!(parts, BTreeMap::from([(Part::OtherThreads, 9 * MS)]));
        assert!(!Part::OtherThreads.tells());
    }

    #[test]
    fn more_than_was_measured_is_shared_out() {
        let stretches =
            of(vec![stretch(0, 6 * MS, "throttled", "x", 0), stretch(6 * MS, 3 * MS, "preempted", "hog", 0)]);
        let parts = parts(&request(0, 10 * MS, Some((8 * MS, 3 * MS))), &stretches);
        assert_eq!(parts[&Part::Throttled], 2 * MS);
        assert_eq!(parts[&Part::CpuTaken("hog".into())], MS);
        assert_eq!(parts.values().sum::<i64>(), 10 * MS);
    }

    #[test]
    fn slow_requests_are_compared_with_ordinary_ones() {
        let slow = [request(0, 52 * MS, Some((2 * MS, 50 * MS))), request(100 * MS, 48 * MS, Some((2 * MS, 46 * MS)))];
        let mut ordinary = request(200 * MS, 2 * MS, Some((2 * MS, 0)));
        ordinary.weight = 50.0;
        let found = excess(&slow, &[ordinary.clone()], &Stretches::new()).unwrap();
        assert_eq!((found.slow_ns, found.ordinary_ns), (50 * MS, 2 * MS));
        let [more] = &found.parts[..] else { panic!("{found:?}") };
        assert_eq!((&more.part, more.more_ns), (&Part::CpuTaken(String::new()), 48 * MS));
        assert!((more.share - 1.0).abs() < 1e-9);
        assert_eq!(excess(&[ordinary.clone()], &slow, &Stretches::new()), None, "no slower");
        assert_eq!(excess(&[], &[ordinary], &Stretches::new()), None);
    }
}
