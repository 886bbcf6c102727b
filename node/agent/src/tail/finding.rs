//! A change of a service's 99th percentile as a row of `findings`, and in words.

use explain::tail::grown::{Change, Grown, Window};
use explain::tail::{Kind, More, Slowest};
use model::watch::GrownNow;
use record::units::duration;
use record::{printable, unix_now_ns};
use serde_json::{Value, json};
use store::Finding;

/// The kinds of these findings: it has grown, and it has no longer.
pub(crate) const GROWN: &str = "tail_grown";
pub(crate) const OVER: &str = "tail_over";
/// What explains less of the excess is not named as its cause.
const NAMED_SHARE: f64 = 0.5;
/// Parts of the excess in a finding.
const PARTS: usize = 5;

/// A change, with what makes its slowest slow where it is known.
#[derive(Debug)]
pub(super) struct Changed<'a> {
    pub(super) node: &'a str,
    pub(super) service: &'a str,
    pub(super) change: Change,
    /// None where there was none for long.
    pub(super) window: Option<Window>,
    /// Or why that is not known.
    pub(super) slowest: Result<Slowest, String>,
}

/// The largest part of the excess, where it explains enough of it. In words without names of programs:
/// whoever may read findings reads them.
pub(crate) fn cause(slowest: &Slowest) -> Option<&More> {
    let largest = slowest.excess.as_ref()?.parts.first()?;
    (largest.part.kind != Kind::Unknown && largest.share >= NAMED_SHARE).then_some(largest)
}

impl Changed<'_> {
    fn grown(&self) -> Grown {
        let (Change::Grown(grown) | Change::Over(grown) | Change::Usual(grown) | Change::Silent(grown)) = self.change;
        grown
    }

    fn is_grown(&self) -> bool {
        matches!(self.change, Change::Grown(_))
    }

    fn named(&self) -> Option<String> {
        let more = cause(self.slowest.as_ref().ok()?)?;
        Some(format!("{:.0} % of that: {}", more.share * 100.0, more.text))
    }

    /// In a sentence or two.
    pub(super) fn text(&self) -> String {
        let past = duration(self.grown().past_p99_ns);
        let p99 = self.window.map_or_else(String::new, |window| duration(window.p99_ns));
        let (service, node) = (self.service, self.node);
        match self.change {
            Change::Grown(grown) => {
                let times = self.window.map_or(0.0, |window| window.p99_ns as f64 / grown.past_p99_ns.max(1) as f64);
                let why = self.named().map_or_else(String::new, |named| format!(" {named}."));
                format!("p99 of {service} on {node} is {p99}, {times:.1} times that of its last day ({past}).{why}")
            }
            Change::Over(_) => format!("p99 of {service} on {node} is {p99}: as before it grew ({past})."),
            Change::Usual(_) => {
                format!(
                    "p99 of {service} on {node} has been grown for a day: {p99} is its measure from now on ({past} before)."
                )
            }
            Change::Silent(_) => {
                format!(
                    "p99 of {service} on {node}, which had grown, is not known any more: there are too few requests."
                )
            }
        }
    }

    /// What is shown of it at once, where it has grown.
    pub(super) fn now(&self) -> Option<GrownNow> {
        let window = self.window.filter(|_| self.is_grown())?;
        let grown = self.grown();
        Some(GrownNow {
            since_ns: grown.since_ns,
            p99_ns: window.p99_ns,
            past_p99_ns: grown.past_p99_ns,
            sentence: self.text(),
            cause: self.named(),
        })
    }

    /// The row.
    pub(super) fn row(&self) -> Finding {
        let (grown, ts_ns) = (self.grown(), unix_now_ns());
        let more_ns = self.window.map(|window| window.p99_ns.saturating_sub(grown.past_p99_ns));
        let text = self.text();
        // Lists of findings show the cause of each, and nothing else of a service.
        let named = self.named().map_or_else(String::new, |named| format!("; {named}"));
        let cause = match (self.is_grown(), self.window) {
            (true, Some(window)) => format!(
                "{}: p99 {}, of its past {}{named}",
                self.service,
                duration(window.p99_ns),
                duration(grown.past_p99_ns)
            ),
            _ => text.clone(),
        };
        Finding {
            ts_ns,
            since_ns: grown.since_ns,
            until_ns: self.window.map_or(ts_ns, |window| window.until_ns),
            verdict: if self.is_grown() { GROWN } else { OVER }.to_owned(),
            culprit_node: Some(self.node.to_owned()),
            lateness_ns: more_ns.filter(|_| self.is_grown()),
            cause: Some(printable(&cause)),
            detail: self.detail(&text).to_string(),
            ..Finding::default()
        }
    }

    /// What the row has as JSON.
    fn detail(&self, text: &str) -> Value {
        let parts: Vec<Value> = match &self.slowest {
            Ok(Slowest { excess: Some(excess), .. }) => {
                let of = |more: &More| json!({ "text": more.text, "share": more.share, "more_ns": more.more_ns });
                excess.parts.iter().take(PARTS).map(of).collect()
            }
            _ => vec![],
        };
        let cannot_be_told = match &self.slowest {
            Ok(slowest) => slowest.cannot_be_told.clone(),
            Err(why) => vec![why.clone()],
        };
        json!({
            "text": text, "service": self.service, "p99_ns": self.window.map(|window| window.p99_ns),
            "requests": self.window.map(|window| window.requests), "past_p99_ns": self.grown().past_p99_ns,
            "excess": parts, "cannot_be_told": cannot_be_told,
        })
    }
}

#[cfg(test)]
mod tests {
    use explain::tail::{Excess, Part};

    use super::*;

    const MS: i64 = 1_000_000;

    fn changed(change: fn(Grown) -> Change, share: f64, kind: Kind) -> Changed<'static> {
        let part = Part { kind, of: "timer".into(), ..Part::default() };
        let more = More { part, more_ns: 60 * MS, share, text: "asleep in a timer".into() };
        let excess = Excess { slow_ns: 62 * MS, ordinary_ns: MS, grown: true, parts: vec![more] };
        Changed {
            node: "n1",
            service: "chat",
            change: change(Grown { since_ns: 100, past_p99_ns: MS }),
            window: Some(Window { since_ns: 200, until_ns: 300, requests: 700, p99_ns: 61 * MS }),
            slowest: Ok(Slowest { excess: Some(excess), ..Slowest::default() }),
        }
    }

    #[test]
    fn a_finding_says_which_service_by_how_much_and_why() {
        let found = changed(Change::Grown, 0.97, Kind::Asleep);
        let text =
            "p99 of chat on n1 is 61.0 ms, 61.0 times that of its last day (1.00 ms). 97 % of that: asleep in a timer.";
        assert_eq!(found.text(), text);
        let row = found.row();
        assert_eq!((row.verdict.as_str(), row.culprit_node.as_deref()), (GROWN, Some("n1")));
        assert_eq!((row.since_ns, row.until_ns, row.lateness_ns), (100, 300, Some(60 * MS)));
        let cause = row.cause.expect("a cause");
        assert_eq!(cause, "chat: p99 61.0 ms, of its past 1.00 ms; 97 % of that: asleep in a timer");
        let detail: Value = serde_json::from_str(&row.detail).expect("JSON");
        assert_eq!((&detail["service"], &detail["excess"][0]["more_ns"]), (&json!("chat"), &json!(60 * MS)));
        assert_eq!(found.now().expect("it stands").sentence, text);
    }

    #[test]
    fn what_explains_little_or_is_not_known_is_no_cause() {
        for (share, kind) in [(0.4, Kind::Asleep), (0.9, Kind::Unknown)] {
            let row = changed(Change::Grown, share, kind).row();
            assert_eq!(row.cause.as_deref(), Some("chat: p99 61.0 ms, of its past 1.00 ms"));
        }
        let why = Changed { slowest: Err("n1 is gone".into()), ..changed(Change::Grown, 0.9, Kind::Asleep) };
        assert!(why.row().detail.contains("n1 is gone"));
    }

    #[test]
    fn the_end_is_a_finding_of_its_own() {
        for change in [Change::Over, Change::Usual, Change::Silent] {
            let found = changed(change, 0.9, Kind::Asleep);
            let row = found.row();
            assert_eq!((row.verdict.as_str(), row.lateness_ns, found.now()), (OVER, None, None));
            assert_eq!(row.cause, Some(found.text()));
        }
    }
}
