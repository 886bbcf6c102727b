//! What is known of a service: its figures, how its hosts compare, and its slowest requests.

use std::collections::BTreeMap;

use model::cells::{integer, real};
use query_planner::Value;
use serde::Serialize;
use stats::Population;

use super::parts::{self, Excess, Kind, Part, Request};

/// What [`Figures::of`] reads, from the third column on.
pub(super) const COLUMNS: &str = "sum(count), sum(errors), sum(unanswered), approx_quantile(sketch, 0.5), \
     approx_quantile(sketch, 0.9), approx_quantile(sketch, 0.99), approx_quantile(sketch, 0.999), max(max_ns), \
     approx_quantile(first_byte_sketch, 0.5), approx_quantile(first_byte_sketch, 0.99), sum(queued_ns), sum(sum_ns)";

/// A host's requests are compared with its peers' where each has so many.
const LEAST_COMPARED: i64 = 100;
/// A host is slower than its peers from this robust z on (of four hosts or more) …
const Z: f64 = 3.5;
/// … and where its figure is so many times the median of theirs; with two or three hosts, where
/// there is no spread to judge by, so many times.
const RATIO: f64 = 1.25;
const RATIO_OF_FEW: f64 = 2.0;
/// What the slowest requests share is told where it is of so many of them, and so many times as
/// frequent as among ordinary ones.
const SHARED_BY: f64 = 0.5;
const TIMES_AS_FREQUENT: f64 = 1.5;

/// Counts and quantiles of some requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = TailFigures))]
pub struct Figures {
    /// Requests.
    pub count: i64,
    /// Of these with a status from 500 on, or not answered.
    pub errors: i64,
    /// Of these not answered.
    pub unanswered: i64,
    /// Durations of the answered ones, within 1.2 %; null where none was answered.
    pub p50_ns: Option<i64>,
    /// Likewise.
    pub p90_ns: Option<i64>,
    /// Likewise.
    pub p99_ns: Option<i64>,
    /// Likewise.
    pub p999_ns: Option<i64>,
    /// The longest.
    pub max_ns: Option<i64>,
    /// Time to the first byte of the answer.
    pub first_byte_p50_ns: Option<i64>,
    /// Likewise.
    pub first_byte_p99_ns: Option<i64>,
    /// Of all their time, what requests lay unread, 0 to 1.
    pub unread_share: f64,
}

impl Figures {
    /// From a row of [`COLUMNS`] behind two others.
    pub(super) fn of(row: &[Value]) -> Self {
        let number = |column| integer(row, column).unwrap_or(0);
        let time = |column| real(row, column).map(|ns| ns as i64);
        let (queued_ns, sum_ns) = (number(12), number(13));
        Self {
            count: number(2),
            errors: number(3),
            unanswered: number(4),
            p50_ns: time(5),
            p90_ns: time(6),
            p99_ns: time(7),
            p999_ns: time(8),
            max_ns: time(9),
            first_byte_p50_ns: time(10),
            first_byte_p99_ns: time(11),
            unread_share: if sum_ns > 0 { queued_ns as f64 / sum_ns as f64 } else { 0.0 },
        }
    }
}

/// The requests of a host, a tenant or a route.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = TailGroup))]
pub struct Group {
    /// Which one.
    pub of: String,
    /// Its requests.
    pub figures: Figures,
    /// Of a host that is slower than its peers: how much.
    pub compared: Option<Slower>,
}

/// A host that is slower than its peers.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = TailSlower))]
pub struct Slower {
    /// "p50" or "p99".
    pub quantile: &'static str,
    /// Times the median of its peers.
    pub times: f64,
    /// Robust z over its peers; none of fewer than four hosts.
    pub z: Option<f64>,
}

/// A quantile of a group's durations.
type Quantile = fn(&Figures) -> Option<i64>;

/// Marks the hosts that are slower than their peers.
pub(super) fn compare(groups: &mut [Group]) {
    if groups.len() < 2 || groups.iter().any(|group| group.figures.count < LEAST_COMPARED) {
        return;
    }
    // What is wrong with all of a host's requests shows at both: then the median says it.
    let quantiles: [(&'static str, Quantile); 2] = [("p99", |f| f.p99_ns), ("p50", |f| f.p50_ns)];
    for (quantile, of) in quantiles {
        let values: Vec<Option<f64>> = groups.iter().map(|group| of(&group.figures).map(|ns| ns as f64)).collect();
        let mut all = Population::new(values.iter().copied().flatten());
        for (group, value) in groups.iter_mut().zip(values) {
            let Some(value) = value else { continue };
            let Some(others) = all.median_of_others(Some(value)).filter(|others| *others > 0.0) else { continue };
            let times = value / others;
            let z = all.z(value, value - others, 0.0).filter(|_| all.count() >= 4);
            let slower = match z {
                Some(z) => z >= Z && times >= RATIO,
                None => times >= RATIO_OF_FEW,
            };
            if slower {
                group.compared = Some(Slower { quantile, times, z });
            }
        }
    }
}

/// A service.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = TailService))]
pub struct Service {
    /// Its name.
    pub service: String,
    /// All of its requests.
    #[serde(flatten)]
    pub figures: Figures,
    /// Its hosts, tenants or routes, those with the most requests first.
    pub groups: Vec<Group>,
    /// What makes its slowest slow.
    pub slowest: Slowest,
}

/// The slowest hundredth of a service's requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = TailSlowest))]
pub struct Slowest {
    /// From this duration on.
    pub from_ns: i64,
    /// Rows of them that were looked into.
    pub rows: usize,
    /// What they have more of; null where they are no slower, or there are too few rows.
    pub excess: Option<Excess>,
    /// Of what they take longer, the share whose cause was recorded, 0 to 1.
    pub told: f64,
    /// Why nothing, or not all, can be told.
    pub cannot_be_told: Vec<String>,
    /// What they share and ordinary ones do not.
    pub shared: Vec<Shared>,
    /// Some of them, the slowest first.
    pub examples: Vec<Example>,
}

impl Slowest {
    pub(super) fn unknown(why: &str) -> Self {
        Self { cannot_be_told: vec![why.to_owned()], ..Self::default() }
    }
}

/// What most of the slowest requests have in common.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = TailShared))]
pub struct Shared {
    /// "host", "route" or "process".
    pub what: &'static str,
    /// Which one.
    pub of: String,
    /// Its part of the slowest, 0 to 1.
    pub share: f64,
    /// Its part of the ordinary ones.
    pub ordinary_share: f64,
}

/// One of the slowest.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = TailExample))]
pub struct Example {
    /// Its host.
    pub node: String,
    /// The server's process there.
    pub pid: i64,
    /// The thread that read its first bytes.
    pub tid: i64,
    /// When it began: its `ts_ns` in `requests`.
    pub ts_ns: i64,
    /// To the end of its answer.
    pub duration_ns: i64,
    /// Method and path; empty where they are not shown.
    pub route: String,
    /// Of HTTP.
    pub status: Option<i64>,
    /// What it waited for, in order; empty where that is not known.
    pub path: Vec<Link>,
}

/// A link of a request's chain: who did what, then who.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = TailLink))]
pub struct Link {
    /// Who did what.
    pub part: Part,
    /// How long.
    pub ns: i64,
    /// `part` in words.
    pub text: String,
}

/// Below this share what cannot be told is not spoken of.
const LEAST_UNKNOWN: f64 = 0.05;

/// What the slowest requests, the slowest first, have more of.
pub(super) fn slowest(from_ns: i64, slow: Vec<Request>, ordinary: &[Request], examples: usize) -> Slowest {
    let excess = parts::excess(&slow, ordinary);
    let mut cannot_be_told = vec![];
    let mut told = 0.0;
    match &excess {
        None => cannot_be_told.push("they are no slower than the others: there is no tail".to_owned()),
        Some(excess) => {
            let unknown = || excess.parts.iter().filter(|more| more.part.kind == Kind::Unknown);
            told = (1.0 - unknown().map(|more| more.share).sum::<f64>()).clamp(0.0, 1.0);
            let of_some = unknown().filter(|more| excess.grown && more.share >= LEAST_UNKNOWN);
            let words =
                of_some.map(|more| format!("{:.0} % of it: {}", more.share * 100.0, parts::unknown(&more.part.of)));
            cannot_be_told.extend(words);
        }
    }
    let shared = if excess.as_ref().is_some_and(|excess| excess.grown) { shared(&slow, ordinary) } else { vec![] };
    let rows = slow.len();
    let examples = slow.into_iter().take(examples).map(|request| {
        let Request { node, pid, tid, ts_ns, duration_ns, route, status, path, .. } = request;
        let path = path.into_iter().map(|(part, ns)| Link { text: part.words(), part, ns }).collect();
        Example { node, pid, tid, ts_ns, duration_ns, route, status, path }
    });
    let examples = examples.collect();
    Slowest { from_ns, rows, excess, told, cannot_be_told, shared, examples }
}

/// What a request is of.
type Key = fn(&Request) -> String;

fn shared(slow: &[Request], ordinary: &[Request]) -> Vec<Shared> {
    let keys: [(&'static str, Key); 3] = [
        ("host", |request| request.node.clone()),
        ("route", |request| request.route.clone()),
        ("process", |request| format!("{} on {}", request.pid, request.node)),
    ];
    let mut all = vec![];
    for (what, key) in keys {
        let (of_slow, of_ordinary) = (shares(slow, key), shares(ordinary, key));
        let Some((of, share)) = of_slow.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
        let ordinary_share = of_ordinary.get(&of).copied().unwrap_or(0.0);
        if share >= SHARED_BY && share >= TIMES_AS_FREQUENT * ordinary_share {
            all.push(Shared { what, of, share, ordinary_share });
        }
    }
    all
}

fn shares(requests: &[Request], key: Key) -> BTreeMap<String, f64> {
    let weight: f64 = requests.iter().map(|request| request.weight).sum();
    let mut shares = BTreeMap::new();
    for request in requests {
        *shares.entry(key(request)).or_insert(0.0) += request.weight / weight.max(1e-9);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, count: i64, p50_ms: i64, p99_ms: i64) -> Group {
        let (p50_ns, p99_ns) = (Some(p50_ms * 1_000_000), Some(p99_ms * 1_000_000));
        Group { of: name.into(), figures: Figures { count, p50_ns, p99_ns, ..Figures::default() }, compared: None }
    }

    fn slower(groups: &[Group]) -> Vec<(&str, &'static str)> {
        groups.iter().filter_map(|group| Some((&*group.of, group.compared.as_ref()?.quantile))).collect()
    }

    #[test]
    fn a_host_that_is_slower_than_its_peers_is_named() {
        let mut hosts: Vec<Group> = (0..6).map(|n| host(&format!("n{n}"), 1_000, 10 + n % 2, 30 + n)).collect();
        compare(&mut hosts);
        assert_eq!(slower(&hosts), [], "what differs a little is no finding");
        hosts[3].figures.p99_ns = Some(90_000_000);
        compare(&mut hosts);
        assert_eq!(slower(&hosts), [("n3", "p99")]);
        hosts[3].figures.p50_ns = Some(40_000_000);
        compare(&mut hosts);
        assert_eq!(slower(&hosts), [("n3", "p50")], "all of its requests");
    }

    #[test]
    fn two_hosts_have_no_spread_and_few_requests_no_tail() {
        let mut two = [host("n1", 500, 10, 30), host("n2", 500, 10, 50)];
        compare(&mut two);
        assert_eq!(slower(&two), []);
        two[1].figures.p99_ns = Some(61_000_000);
        compare(&mut two);
        assert_eq!(two[1].compared.as_ref().map(|slower| slower.z), Some(None));
        let mut few = [host("n1", 500, 10, 30), host("n2", 50, 10, 900)];
        compare(&mut few);
        assert_eq!(slower(&few), []);
    }

    #[test]
    fn what_the_slowest_share_is_told_where_ordinary_ones_do_not() {
        let request = |node: &str, route: &str, weight| Request {
            node: node.into(),
            route: route.into(),
            duration_ns: 1,
            weight,
            ..Request::default()
        };
        let slow = [request("n1", "/a", 1.0), request("n1", "/slow", 1.0), request("n2", "/slow", 1.0)];
        let ordinary = [request("n1", "/a", 80.0), request("n2", "/slow", 20.0)];
        let found = shared(&slow, &ordinary);
        assert_eq!(found.iter().map(|shared| (shared.what, &*shared.of)).collect::<Vec<_>>(), [("route", "/slow")]);
    }
}
