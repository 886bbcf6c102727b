//! Requests that servers of this host have answered since the agent's start, by service, and whose 99th
//! percentile has grown: for metrics, which ask again and again and must not cost a question each time.
//! Also those that ended since they were taken last, for looks at that percentile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use explain::tail::Durations;
use model::watch::{GrownNow, REQUEST_BOUNDS_NS, ServiceNow};
use node_bpf::Record;
use parking_lot::Mutex;
use record::RequestSum;
use tokio::sync::Notify;

/// Services that are counted by name …
const MOST_SERVICES: usize = 64;
/// … those that had none for so long make room, and begin anew …
const GONE_AFTER: Duration = Duration::from_secs(3600);
/// … the others together, as this one.
const OTHERS: &str = "(other)";

/// Requests of a service that ended.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// Of the answered ones.
    pub(super) durations: Durations,
    /// All.
    pub(super) requests: u64,
    /// Of these failed: status from 500 on, gRPC's not 0, reset, or not answered.
    pub(super) failed: u64,
}

/// The counts, each with the time of its last request.
#[derive(Debug, Default)]
pub(super) struct Served {
    services: Mutex<BTreeMap<Arc<str>, (ServiceNow, Instant)>>,
    /// Those that ended since they were taken, of the services that are counted by name.
    ended: Mutex<BTreeMap<Arc<str>, Ended>>,
    /// Whose 99th percentile has grown; the looks for that follow few services.
    grown: Mutex<BTreeMap<String, GrownNow>>,
    /// That is known: what stood before the agent's start is among them.
    is_grown_known: AtomicBool,
    /// There was a request.
    arrived: Notify,
}

impl Served {
    /// Counts what is a sum of requests.
    pub(super) fn record(&self, record: &Record) {
        if let Record::RequestSum(sum) = record {
            self.count(sum, Instant::now());
            self.arrived.notify_one();
        }
    }

    fn count(&self, sum: &RequestSum, now: Instant) {
        let mut services = self.services.lock();
        if services.len() >= MOST_SERVICES && !services.contains_key(&sum.of.service) {
            services.retain(|_, (_, last)| now.duration_since(*last) < GONE_AFTER);
        }
        let name = match services.contains_key(&sum.of.service) || services.len() < MOST_SERVICES {
            true => Arc::clone(&sum.of.service),
            false => Arc::from(OTHERS),
        };
        if &*name != OTHERS {
            let mut all = self.ended.lock();
            let ended = all.entry(Arc::clone(&name)).or_default();
            (ended.requests, ended.failed) = (ended.requests + sum.count, ended.failed + sum.errors);
            sum.durations.iter().for_each(|(ns, count)| ended.durations.add(*ns, *count));
        }
        let (of, last) = services.entry(name).or_insert_with_key(|name| {
            let durations = vec![0; REQUEST_BOUNDS_NS.len() + 1];
            (ServiceNow { name: name.to_string(), durations, ..ServiceNow::default() }, now)
        });
        *last = now;
        of.count += sum.count;
        of.errors += sum.errors;
        of.sum_ns = of.sum_ns.saturating_add(sum.sum_ns);
        for (ns, count) in &sum.durations {
            // (There is one more than bounds.)
            of.durations[REQUEST_BOUNDS_NS.partition_point(|bound| bound < ns)] += count;
        }
    }

    /// Waits for a request, or returns at once where there was one since the last time.
    pub(super) async fn arrived(&self) {
        self.arrived.notified().await;
    }

    /// The requests that ended since the last time, by service.
    pub(super) fn take_ended(&self) -> BTreeMap<Arc<str>, Ended> {
        std::mem::take(&mut self.ended.lock())
    }

    /// What stood before the agent's start was taken up.
    pub(super) fn grown_is_known(&self) {
        self.is_grown_known.store(true, Ordering::Relaxed);
    }

    /// Whether it was.
    pub(super) fn is_grown_known(&self) -> bool {
        self.is_grown_known.load(Ordering::Relaxed)
    }

    /// What stands on the 99th percentile of a service.
    pub(super) fn set_grown(&self, service: &str, grown: Option<GrownNow>) {
        let mut all = self.grown.lock();
        match grown {
            Some(grown) => drop(all.insert(service.to_owned(), grown)),
            None => drop(all.remove(service)),
        }
    }

    /// By name. What stands on a service that has had no request since the agent's start stands, too.
    pub(super) fn now(&self) -> Vec<ServiceNow> {
        let mut grown = self.grown.lock().clone();
        let mut now: Vec<ServiceNow> = self.services.lock().values().map(|(of, _)| of.clone()).collect();
        now.iter_mut().for_each(|of| of.grown = grown.remove(&of.name));
        let durations = vec![0; REQUEST_BOUNDS_NS.len() + 1];
        now.extend(grown.into_iter().map(|(name, grown)| ServiceNow {
            name,
            durations: durations.clone(),
            grown: Some(grown),
            ..ServiceNow::default()
        }));
        now.sort_by(|a, b| a.name.cmp(&b.name));
        now
    }
}

#[cfg(test)]
mod tests {
    use record::RequestOf;

    use super::*;

    fn sum(service: &str, durations: &[(u64, u64)]) -> Record {
        let count = durations.iter().map(|(_, count)| count).sum();
        Record::RequestSum(Box::new(RequestSum {
            of: RequestOf { service: service.into(), ..RequestOf::default() },
            count,
            errors: 1,
            sum_ns: durations.iter().map(|(ns, count)| ns * count).sum(),
            durations: durations.to_vec(),
            ..RequestSum::default()
        }))
    }

    #[test]
    fn durations_are_counted_by_their_bounds() {
        let served = Served::default();
        assert_eq!((REQUEST_BOUNDS_NS[0], REQUEST_BOUNDS_NS[30]), (1_000_000, 100_000_000_000));
        served.record(&sum("chat", &[(500_000, 2), (1_000_000, 1), (1_000_001, 4)]));
        served.record(&sum("chat", &[(100_000_000_001, 1)]));
        let [chat] = &served.now()[..] else { panic!("{:?}", served.now()) };
        assert_eq!((chat.count, chat.errors, chat.sum_ns), (8, 2, 100_006_000_005));
        assert_eq!((chat.durations[0], chat.durations[1], chat.durations[31]), (3, 4, 1));
        assert_eq!(chat.durations.iter().sum::<u64>(), chat.count);
        served.set_grown("chat", Some(GrownNow { p99_ns: 7, ..GrownNow::default() }));
        assert_eq!(served.now()[0].grown.as_ref().map(|grown| grown.p99_ns), Some(7));
        served.set_grown("chat", None);
        assert_eq!(served.now()[0].grown, None);
        served.set_grown("before", Some(GrownNow::default()));
        let names: Vec<String> = served.now().into_iter().map(|of| of.name).collect();
        assert_eq!(names, ["before", "chat"]);
    }

    #[test]
    fn what_ended_is_taken_once_whenever_it_began() {
        let served = Served::default();
        served.record(&sum("chat", &[(500_000, 2)]));
        // A request of a minute, of the second in which it began.
        served.record(&sum("chat", &[(60_000_000_000, 1)]));
        let ended = served.take_ended();
        assert_eq!(ended["chat"].durations.quantile(1.0), 60_000_000_000);
        assert_eq!((ended["chat"].requests, ended["chat"].failed), (3, 2));
        assert!(served.take_ended().is_empty());
    }

    #[test]
    fn there_are_never_more_services_than_have_room() {
        let served = Served::default();
        (0..MOST_SERVICES * 2).for_each(|n| served.record(&sum(&format!("s{n:03}"), &[(1, 1)])));
        let now = served.now();
        assert_eq!(now.len(), MOST_SERVICES + 1);
        assert_eq!((now[0].name.as_str(), now[0].count), (OTHERS, MOST_SERVICES as u64));
        served.record(&sum("s000", &[(1, 1)]));
        assert_eq!(served.now()[1].count, 2, "who is counted by name goes on to be");
        let Record::RequestSum(new) = sum("named", &[(1, 1)]) else { panic!("it is a sum") };
        served.count(&new, Instant::now() + GONE_AFTER);
        let names: Vec<String> = served.now().into_iter().map(|of| of.name).collect();
        assert_eq!(names, ["named"], "the others had none for an hour");
    }
}
