//! The slowest requests by what most delays each of them. Values in, figures out.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::example::Example;
use super::parts::{self, Part, Request};

/// Slow requests that the same part of their time delays most.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = TailCause))]
pub struct CauseGroup {
    /// Of which each has more beyond an ordinary request than of any other.
    pub part: Part,
    /// `part` in words.
    pub text: String,
    /// Requests.
    pub count: i64,
    /// Half of them take no longer, by the rows.
    pub p50_ns: i64,
    /// Likewise 99 % of them.
    pub p99_ns: i64,
    /// Of all that slow requests take longer than ordinary ones, what these take longer, 0 to 1.
    pub share: f64,
    /// The slowest of them.
    pub example: Example,
}

/// Groups slow requests, the slowest first, by what most delays each; the largest share first.
pub(super) fn causes(slow: &[Request], ordinary: &[Request]) -> Vec<CauseGroup> {
    let Some((ordinary_ns, ordinary_parts)) = parts::mean(ordinary) else { return vec![] };
    let excess = |request: &Request| request.weight * (request.duration_ns as f64 - ordinary_ns);
    let all: f64 = slow.iter().map(excess).sum();
    if all <= 0.0 {
        return vec![];
    }
    // By words: what differs in nothing that is told is one cause.
    let mut groups: BTreeMap<String, (Part, Vec<&Request>)> = BTreeMap::new();
    for request in slow {
        let more = |(part, ns): &(Part, i64)| *ns as f64 - ordinary_parts.get(part).copied().unwrap_or(0.0);
        let most = parts::parts(request).into_iter().max_by(|a, b| more(a).total_cmp(&more(b)));
        if let Some((part, _)) = most {
            groups.entry(part.words()).or_insert_with(|| (part, vec![])).1.push(request);
        }
    }
    let mut threads: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (part, names) in parts::names(slow) {
        threads.entry(part.words()).or_default().extend(names);
    }
    let group = |(words, (part, requests)): (String, (Part, Vec<&Request>))| {
        let slowest = requests.first()?;
        let part = part.of_threads(threads.get(&words));
        Some(CauseGroup {
            text: part.words(),
            part,
            count: requests.iter().map(|request| request.weight).sum::<f64>().round() as i64,
            p50_ns: quantile(&requests, 0.5),
            p99_ns: quantile(&requests, 0.99),
            share: requests.iter().map(|request| excess(request)).sum::<f64>() / all,
            example: Example::of(slowest),
        })
    };
    let mut causes: Vec<CauseGroup> = groups.into_iter().filter_map(group).collect();
    causes.sort_by(|a, b| b.share.total_cmp(&a.share));
    causes
}

/// The shortest duration that this share of the requests does not exceed. They come the slowest first.
fn quantile(requests: &[&Request], share: f64) -> i64 {
    let all: f64 = requests.iter().map(|request| request.weight).sum();
    let mut up_to = 0.0;
    let mut ascending = requests.iter().rev();
    let reached = ascending.find(|request| {
        up_to += request.weight;
        up_to >= share * all
    });
    reached.or(requests.first()).map_or(0, |request| request.duration_ns)
}

#[cfg(test)]
mod tests {
    use super::super::parts::Kind;
    use super::*;

    const MS: i64 = 1_000_000;

    fn request(thread: &str, kind: Kind, ms: i64, weight: f64) -> Request {
        let of =
            |kind, thread: &str| Part { kind, process: "python3".into(), thread: thread.into(), ..Part::default() };
        let path = vec![(of(Kind::OnCpu, "main"), 2 * MS), (of(kind, thread), ms * MS)];
        let duration_ns = path.iter().map(|(_, ns)| ns).sum();
        Request { duration_ns, weight, path, ..Request::default() }
    }

    #[test]
    fn each_slow_request_is_of_what_delays_it_most() {
        let ordinary = [request("main", Kind::Unread, 1, 100.0)];
        let slow = [
            request("main", Kind::Throttled, 98, 1.0),
            request("pool_2", Kind::Asleep, 48, 1.0),
            request("pool_1", Kind::Asleep, 38, 1.0),
            request("pool_1", Kind::Asleep, 28, 2.0),
        ];
        let found = causes(&slow, &ordinary);
        let told: Vec<_> = found.iter().map(|of| (of.part.kind, &*of.part.thread, of.count)).collect();
        assert_eq!(told, [(Kind::Asleep, "pool_*", 4), (Kind::Throttled, "main", 1)]);
        assert_eq!((found[0].p50_ns, found[0].p99_ns), (30 * MS, 50 * MS));
        assert_eq!((found[0].example.duration_ns, found[1].example.duration_ns), (50 * MS, 100 * MS));
        assert!((found.iter().map(|of| of.share).sum::<f64>() - 1.0).abs() < 1e-9);
        // 47, 37 and twice 27 ms of these and 97 ms.
        assert!((found[1].share - 97.0 / 235.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn what_reads_the_same_is_one_cause() {
        let ordinary = [request("main", Kind::Unread, 1, 100.0)];
        let mut slow = vec![request("pool_1", Kind::Asleep, 48, 1.0), request("pool_1", Kind::Asleep, 38, 1.0)];
        slow[1].path[1].0.woken_by = "interrupt".into();
        let found = causes(&slow, &ordinary);
        let told: Vec<_> = found.iter().map(|of| (&*of.part.thread, of.count)).collect();
        assert_eq!(told, [("pool_1", 2)]);
    }

    #[test]
    fn without_an_excess_there_is_no_cause() {
        let one = [request("main", Kind::Unread, 1, 1.0)];
        assert_eq!((causes(&one, &one), causes(&one, &[]), causes(&[], &one)), (vec![], vec![], vec![]));
    }
}
