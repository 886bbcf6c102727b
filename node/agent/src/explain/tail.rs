//! A finding that the 99th percentile of a service has grown, explained: what its slowest requests wait
//! for, asked again with the requester's own rights, as long as their rows are kept.

use explain::tail::Slowest;
use model::Coverage;
use model::cells::{integer, text};
use model::explanation::{EXPLANATION_VERSION, Explanation, Link};
use query_planner::Value;
use record::units::clock;
use serde_json::Value as Json;

use super::super::tail::{Slow, finding};
use super::{Requester, sees_processes};

/// What [`Finding::of`] reads.
pub(super) const COLUMNS: &str = "verdict, since_ns, until_ns, culprit_node, detail";

/// Parts of the excess that are less are not spoken of.
const LEAST_SHARE: f64 = 0.05;

/// A row of `findings` of this kind.
#[derive(Debug)]
pub(super) struct Finding {
    verdict: String,
    text: String,
    slow: Slow,
}

impl Finding {
    /// None where it is of another kind.
    pub(super) fn of(row: &[Value]) -> Option<Self> {
        let verdict = text(row, 0);
        if ![finding::GROWN, finding::OVER].contains(&verdict.as_str()) {
            return None;
        }
        let detail: Json = serde_json::from_str(&text(row, 4)).unwrap_or_default();
        let word = |key: &str| detail[key].as_str().unwrap_or_default().to_owned();
        let slow = Slow {
            node: text(row, 3),
            service: word("service"),
            since_ns: integer(row, 1)?,
            until_ns: integer(row, 2)?,
            p99_ns: detail["p99_ns"].as_i64().unwrap_or(0),
            with_names: true,
        };
        Some(Self { verdict, text: word("text"), slow })
    }

    pub(super) async fn explained(self, requester: &Requester<'_>) -> Explanation {
        let Self { verdict, text, mut slow } = self;
        slow.with_names = sees_processes(requester.caller);
        let slowest = match verdict.as_str() {
            finding::GROWN => slow.slowest(requester.asking(requester.caller)).await,
            _ => Ok(Slowest::default()),
        };
        let (since, until) = (clock(slow.since_ns), clock(slow.until_ns));
        let mut found = Explanation {
            version: EXPLANATION_VERSION,
            what: format!("{text} Since {since}, looked at until {until}, UTC."),
            sql: vec![("its slowest requests".to_owned(), slow.sql())],
            runbook: (verdict == finding::GROWN).then(|| "tail".to_owned()),
            verdict,
            values: vec![("SERVICE".to_owned(), slow.service.clone()), ("NODE".to_owned(), slow.node.clone())],
            coverage: Coverage { asked: 1, answered: 1, ..Coverage::default() },
            ..Explanation::default()
        };
        match slowest {
            Ok(slowest) => add(&slowest, &mut found),
            Err(why) => {
                found.coverage.answered = 0;
                found.coverage.missing.push(model::Missing { node: slow.node, reason: why.message });
            }
        }
        found
    }
}

/// What the slowest wait for, and one of them.
fn add(slowest: &Slowest, found: &mut Explanation) {
    if finding::cause(slowest).is_some() {
        let parts = slowest.excess.iter().flat_map(|excess| &excess.parts).filter(|more| more.share >= LEAST_SHARE);
        let words: Vec<String> = parts.map(|more| format!("{:.0} %: {}", more.share * 100.0, more.text)).collect();
        found.cause = Some(format!("of what its slowest take longer, {}", words.join("; ")));
    }
    found.not_visible.extend(slowest.cannot_be_told.iter().cloned());
    let path = slowest.examples.iter().flat_map(|example| example.path.iter().map(|link| (&example.node, link)));
    found.chain.extend(path.map(|(node, link)| Link {
        duration_ns: Some(link.ns),
        node: node.clone(),
        what: link.text.clone(),
        evidence: "request_stretches".to_owned(),
        ..Link::default()
    }));
}
