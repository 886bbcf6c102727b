//! Requests that servers of this host have answered since the agent's start, by service, and whose 99th
//! percentile has grown: for metrics, which ask again and again and must not cost a question each time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// The counts, each with the time of its last request.
#[derive(Debug, Default)]
pub(super) struct Served {
    services: Mutex<BTreeMap<Arc<str>, (ServiceNow, Instant)>>,
    /// Whose 99th percentile has grown; the looks for that follow few services.
    grown: Mutex<BTreeMap<String, GrownNow>>,
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

    /// What stands on the 99th percentile of a service.
    pub(super) fn set_grown(&self, service: &str, grown: Option<GrownNow>) {
        let mut all = self.grown.lock();
        match grown {
            Some(grown) => drop(all.insert(service.to_owned(), grown)),
            None => drop(all.remove(service)),
        }
    }

    /// By name.
    pub(super) fn now(&self) -> Vec<ServiceNow> {
        let grown = self.grown.lock();
        let with_grown = |of: &ServiceNow| ServiceNow { grown: grown.get(&of.name).cloned(), ..of.clone() };
        self.services.lock().values().map(|(of, _)| with_grown(of)).collect()
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
