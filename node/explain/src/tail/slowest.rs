//! The slowest hundredth of a service's requests: what they have more of than ordinary ones, what they
//! share, and some of them as chains. Values in, figures out.

use std::collections::BTreeMap;

use serde::Serialize;

use super::causes::{self, CauseGroup};
use super::example::Example;
use super::parts::{self, Excess, Kind, Request};

/// What the slowest requests share is told where it is of so many of them, and so many times as
/// frequent as among ordinary ones.
const SHARED_BY: f64 = 0.5;
const TIMES_AS_FREQUENT: f64 = 1.5;

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
    /// What most delays each of them, the cause with the largest share of the excess first; empty where
    /// nothing has grown.
    pub causes: Vec<CauseGroup>,
    /// Causes that are not among them, since there were too many.
    pub causes_left_out: usize,
    /// What they share and ordinary ones do not.
    pub shared: Vec<Shared>,
    /// Some of them, the slowest first.
    pub examples: Vec<Example>,
}

impl Slowest {
    /// Nothing can be told, and why.
    #[must_use]
    pub fn unknown(why: &str) -> Self {
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

/// Causes that are listed.
const MOST_CAUSES: usize = 20;
/// Below this share what cannot be told is not spoken of.
const LEAST_UNKNOWN: f64 = 0.05;

/// What the slowest requests, the slowest first, have more of.
#[must_use]
pub fn slowest(from_ns: i64, slow: &[Request], ordinary: &[Request], examples: usize) -> Slowest {
    let excess = parts::excess(slow, ordinary);
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
    let (shared, mut causes) = match &excess {
        Some(excess) if excess.grown => (shared(slow, ordinary), causes::causes(slow, ordinary)),
        _ => (vec![], vec![]),
    };
    let causes_left_out = causes.len().saturating_sub(MOST_CAUSES);
    causes.truncate(MOST_CAUSES);
    let rows = slow.len();
    let examples = slow.iter().take(examples).map(Example::of).collect();
    Slowest { from_ns, rows, excess, told, cannot_be_told, causes, causes_left_out, shared, examples }
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
