//! The requests of each second summed up, and the choice of those that become rows: all where there
//! are few; else the slow ones, those that failed, and some of the others. Knows neither programs nor
//! processes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use record::{Record, RequestOf, RequestSeen, RequestSum};

/// Nanoseconds of a second.
const SECOND_NS: i64 = 1_000_000_000;
/// A second is handed on when it is so long over: most of its requests are in.
const SETTLED_NS: i64 = 2 * SECOND_NS;
/// Rows of a service in a second: where there are no more requests, each has one …
const FEW: u64 = 20;
/// … else about so many of the ordinary ones, and at most so many of the slow and of the failed ones.
const MOST_SLOW: u32 = 100;
const MOST_FAILED: u32 = 20;
/// From this quantile of the last seconds on a request is slow.
const SLOW_FROM: f64 = 0.98;
/// What a second counts after the next one, among those that say what is slow.
const FADES: f64 = 0.8;
/// With fewer requests there is no telling what is slow.
const LEAST_KNOWN: f64 = 100.0;
/// Different keys in a second; what comes after them is summed up without its route.
const MOST_KEYS: usize = 2_048;
/// Routes of a service; the others are "(other)".
const MOST_ROUTES: usize = 200;

/// Durations by buckets, each at most a 256th wide.
#[derive(Debug, Clone, Default, PartialEq)]
struct Histogram(BTreeMap<u32, u64>);

impl Histogram {
    fn add(&mut self, ns: u64) {
        *self.0.entry(bucket(ns)).or_default() += 1;
    }

    fn pairs(&self) -> Vec<(u64, u64)> {
        self.0.iter().map(|(at, count)| (middle(*at), *count)).collect()
    }
}

/// Eight bits behind the leading one.
fn bucket(ns: u64) -> u32 {
    if ns < 256 {
        return ns as u32;
    }
    let shift = 55 - ns.leading_zeros();
    ((shift + 1) << 8) | ((ns >> shift) as u32 & 0xff)
}

fn middle(bucket: u32) -> u64 {
    let (octave, rest) = (bucket >> 8, u64::from(bucket & 0xff));
    match octave.checked_sub(1) {
        None => rest,
        Some(shift) => ((256 + rest) << shift) + ((1_u64 << shift) >> 1),
    }
}

/// What is slow in a service, and what it has had rows for in this second.
#[derive(Debug, Default)]
struct Service {
    /// Requests of the last seconds by bucket; older ones count less.
    recent: BTreeMap<u32, f64>,
    now: Histogram,
    slow_from_ns: Option<u64>,
    /// Requests of the second before, and of this one.
    before: u64,
    count: u64,
    /// The request of this second that is the next sample.
    next_sample: u64,
    slow: u32,
    failed: u32,
    routes: HashSet<Arc<str>>,
}

impl Service {
    /// Begins another second.
    fn turn(&mut self) {
        self.recent.values_mut().for_each(|count| *count *= FADES);
        self.recent.retain(|_, count| *count > 0.01);
        for (at, count) in std::mem::take(&mut self.now.0) {
            *self.recent.entry(at).or_default() += count as f64;
        }
        let all: f64 = self.recent.values().sum();
        let mut below = 0.0;
        let at = self.recent.iter().find(|(_, count)| {
            below += **count;
            below >= SLOW_FROM * all
        });
        self.slow_from_ns = at.filter(|_| all >= LEAST_KNOWN).map(|(at, _)| middle(*at));
        (self.before, self.count, self.slow, self.failed) = (self.count, 0, 0, 0);
        self.next_sample = self.one_in();
    }

    /// Of so many requests one is a sample: by those of the second before, or by this one's so far
    /// where these are more, so that the first second of a burst makes no more rows than others.
    fn one_in(&self) -> u64 {
        self.before.max(self.count).div_ceil(FEW).max(1)
    }

    /// Why a request becomes a row, and how many it stands for; none where it does not.
    fn keeps(&mut self, duration_ns: Option<u64>, failed: bool) -> Option<(&'static str, u32)> {
        self.count += 1;
        duration_ns.into_iter().for_each(|ns| self.now.add(ns));
        let per_second = self.before.max(self.count);
        if per_second <= FEW {
            return Some(("all", 1));
        }
        if failed && self.failed < MOST_FAILED {
            self.failed += 1;
            return Some(("error", 1));
        }
        let slow = duration_ns.zip(self.slow_from_ns).is_some_and(|(ns, from_ns)| ns >= from_ns);
        if slow {
            self.slow += 1;
            return (self.slow <= MOST_SLOW).then_some(("slow", 1));
        }
        if self.count < self.next_sample {
            return None;
        }
        let one_in = self.one_in();
        self.next_sample = self.count + one_in;
        Some(("sample", u32::try_from(one_in).unwrap_or(u32::MAX)))
    }
}

/// Sums up requests and chooses among them.
#[derive(Debug, Default)]
pub(super) struct Sums {
    sums: HashMap<(i64, RequestOf), Sum>,
    services: HashMap<Arc<str>, Service>,
    turned_ns: i64,
}

#[derive(Debug)]
struct Sum {
    of: RequestSum,
    durations: Histogram,
    first_bytes: Histogram,
}

impl Sum {
    fn new((ts_ns, of): (i64, RequestOf)) -> Sum {
        let of = RequestSum { ts_ns, of, min_ns: u64::MAX, ..RequestSum::default() };
        Sum { of, durations: Histogram::default(), first_bytes: Histogram::default() }
    }
}

impl Sums {
    /// Counts a request. It comes back, with why, where it becomes a row. `broke_off`: its
    /// answer did not come to its end.
    pub(super) fn add(&mut self, mut request: RequestSeen, broke_off: bool) -> Option<RequestSeen> {
        let service = self.services.entry(Arc::clone(&request.of.service)).or_default();
        if let Some(route) = &request.of.route
            && !service.routes.contains(route)
        {
            if service.routes.len() < MOST_ROUTES {
                service.routes.insert(Arc::clone(route));
            } else {
                request.of.route = Some(Arc::from("(other)"));
            }
        }
        let unanswered = request.first_byte_ns.is_none();
        let failed = broke_off
            || unanswered
            || request.status.is_some_and(|status| status >= 500)
            || request.grpc_status.is_some_and(|status| status != 0);
        let duration_ns = request.duration_ns.map(|ns| ns.max(0).cast_unsigned());
        let kept = service.keeps(duration_ns, failed);
        self.count(&request, duration_ns, (failed, unanswered));
        let (why, stands_for) = kept?;
        (request.kept, request.stands_for) = (why, stands_for);
        Some(request)
    }

    fn count(&mut self, request: &RequestSeen, duration_ns: Option<u64>, (failed, unanswered): (bool, bool)) {
        let ts_ns = request.ts_ns.div_euclid(SECOND_NS) * SECOND_NS;
        let mut key = (ts_ns, request.of.clone());
        if self.sums.len() >= MOST_KEYS && !self.sums.contains_key(&key) {
            key.1.route = request.of.route.as_ref().map(|_| Arc::from("(other)"));
        }
        let sum = self.sums.entry(key.clone()).or_insert_with(|| Sum::new(key));
        let of = &mut sum.of;
        of.count += 1;
        of.errors += u64::from(failed);
        of.unanswered += u64::from(unanswered);
        of.bytes_in = of.bytes_in.saturating_add(request.bytes_in);
        of.bytes_out = of.bytes_out.saturating_add(request.bytes_out);
        if let Some(ns) = duration_ns {
            of.sum_ns = of.sum_ns.saturating_add(ns);
            (of.min_ns, of.max_ns) = (of.min_ns.min(ns), of.max_ns.max(ns));
            of.queued_ns += request.queued_ns.unwrap_or(0).max(0).cast_unsigned();
            sum.durations.add(ns);
        }
        request.first_byte_ns.into_iter().for_each(|ns| sum.first_bytes.add(ns.max(0).cast_unsigned()));
    }

    /// The sums of the seconds that are over, or of all. To be called about once a second.
    pub(super) fn take(&mut self, now_ns: i64, all: bool) -> Vec<Record> {
        if now_ns.saturating_sub(self.turned_ns) >= SECOND_NS {
            self.turned_ns = now_ns;
            self.services.values_mut().for_each(Service::turn);
        }
        let over = |ts_ns: i64| all || ts_ns.saturating_add(SECOND_NS + SETTLED_NS) <= now_ns;
        let mut taken: Vec<((i64, RequestOf), Sum)> = self.sums.extract_if(|(ts_ns, _), _| over(*ts_ns)).collect();
        taken.sort_by(|a, b| a.0.cmp(&b.0));
        let records = taken.into_iter().map(|(_, sum)| {
            let mut of = sum.of;
            (of.durations, of.first_bytes) = (sum.durations.pairs(), sum.first_bytes.pairs());
            of.min_ns = of.min_ns.min(of.max_ns);
            Record::RequestSum(Box::new(of))
        });
        records.collect()
    }

    /// Lets go of the services that have none of these names.
    pub(super) fn keep_services(&mut self, keeps: impl Fn(&str) -> bool) {
        self.services.retain(|name, _| keeps(name));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(ts_ns: i64, duration_ns: i64) -> RequestSeen {
        RequestSeen {
            ts_ns,
            duration_ns: Some(duration_ns),
            first_byte_ns: Some(duration_ns / 2),
            queued_ns: None,
            of: RequestOf {
                pid: 7,
                service: "chat".into(),
                tenant: "user:ada".into(),
                protocol: "http/1",
                method: Some("GET"),
                route: Some("/".into()),
                cgroup_id: 1,
            },
            tid: 7,
            sent_tid: Some(7),
            status: Some(200),
            grpc_status: None,
            port: Some(80),
            peer: None,
            connection: 1,
            number: 1,
            bytes_in: 10,
            bytes_out: 20,
            sends: 1,
            gap_ns: None,
            cpu_ns: None,
            run_delay_ns: None,
            kept: "",
            stands_for: 0,
        }
    }

    fn sums(records: Vec<Record>) -> Vec<RequestSum> {
        let sums = records.into_iter().filter_map(|record| match record {
            Record::RequestSum(sum) => Some(*sum),
            _ => None,
        });
        sums.collect()
    }

    #[test]
    fn few_requests_all_become_rows() {
        let mut all = Sums::default();
        for second in 0..20 {
            for n in 0..5 {
                let kept = all.add(request(second * SECOND_NS, 1_000_000 * (n + 1)), false).unwrap();
                assert_eq!((kept.kept, kept.stands_for), ("all", 1));
            }
            all.take((second + 1) * SECOND_NS, false);
        }
    }

    #[test]
    fn of_many_the_slow_ones_and_the_failed_ones_stay_and_the_others_are_stood_for() {
        let mut all = Sums::default();
        let (mut slow, mut failed, mut stood_for) = (0, 0, 0_u64);
        for second in 0..30_i64 {
            for n in 0..2_000_i64 {
                let mut one = request(second * SECOND_NS, if n % 100 == 50 { 50_000_000 } else { 1_000_000 });
                if n == 77 {
                    one.status = Some(503);
                }
                let kept = all.add(one, false);
                if second < 10 {
                    continue; // what is slow is not known yet
                }
                match kept.map(|kept| (kept.kept, kept.stands_for, kept.duration_ns)) {
                    Some(("slow", 1, duration)) => {
                        assert_eq!(duration, Some(50_000_000));
                        slow += 1;
                    }
                    Some(("error", 1, _)) => failed += 1,
                    Some(("sample", stands_for, _)) => stood_for += u64::from(stands_for),
                    other => assert_eq!(other, None),
                }
            }
            all.take((second + 1) * SECOND_NS, false);
        }
        assert_eq!((slow, failed), (20 * 20, 20));
        assert!((38_000..=40_000).contains(&stood_for), "{stood_for} for about 39,580");
    }

    #[test]
    fn the_first_second_of_a_burst_makes_few_rows_and_they_stand_for_all_of_it() {
        let mut all = Sums::default();
        let kept: Vec<RequestSeen> = (0..100_000).filter_map(|_| all.add(request(0, 1_000_000), false)).collect();
        assert!(kept.len() < 300, "{} rows", kept.len());
        let stood_for: u64 = kept.iter().map(|kept| u64::from(kept.stands_for)).sum();
        assert!((90_000..=110_000).contains(&stood_for), "{stood_for}");
    }

    #[test]
    fn every_request_is_in_the_sums_once() {
        let mut all = Sums::default();
        for n in 0..10_000_i64 {
            let mut one = request(n * SECOND_NS / 1_000, 1_000_000);
            if n % 10 == 0 {
                (one.duration_ns, one.first_byte_ns) = (None, None);
            }
            all.add(one, false);
        }
        let over = sums(all.take(9 * SECOND_NS, false));
        assert_eq!((over.len(), over[0].count, over[0].unanswered, over[0].errors), (7, 1_000, 100, 100));
        assert_eq!(over[0].durations.iter().map(|(_, count)| count).sum::<u64>(), 900);
        let rest = sums(all.take(9 * SECOND_NS, true));
        assert_eq!(over.iter().chain(&rest).map(|sum| sum.count).sum::<u64>(), 10_000);
        assert!(all.take(99 * SECOND_NS, true).is_empty());
    }

    #[test]
    fn names_without_end_take_room_with_an_end() {
        let mut all = Sums::default();
        for n in 0..5_000 {
            let mut one = request(0, 1_000);
            one.of.route = Some(format!("/{n}").into());
            all.add(one, false);
        }
        let taken = sums(all.take(0, true));
        assert_eq!(taken.len(), MOST_ROUTES + 1);
        assert_eq!(taken.iter().map(|sum| sum.count).sum::<u64>(), 5_000);
    }

    proptest! {
        #[test]
        fn a_bucket_is_near_what_is_in_it(ns in 0_u64..1 << 53) {
            let near = middle(bucket(ns));
            prop_assert!(near.abs_diff(ns) as f64 <= ns as f64 / 500.0, "{} for {}", near, ns);
            prop_assert!(bucket(ns) <= bucket(ns + 1));
        }
    }
}
