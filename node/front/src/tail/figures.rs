//! What is known of a service: its figures, how its hosts compare, and its slowest requests.

use explain::tail::Slowest;
use model::cells::{integer, real};
use query_planner::Value;
use serde::Serialize;
use stats::Population;

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

/// Counts and quantiles of some requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = TailFigures))]
pub struct Figures {
    /// Requests.
    pub count: i64,
    /// Of these failed: status from 500 on, gRPC's not 0, reset, or not answered.
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
    /// Its hosts, tenants or routes, those with the most requests first; none by cause.
    pub groups: Vec<Group>,
    /// What makes its slowest slow.
    pub slowest: Slowest,
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
}
