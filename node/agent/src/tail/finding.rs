//! A change of a service's 99th percentile as a row of `findings`, and in words.

use explain::tail::grown::{Change, Grown, Window};
use explain::tail::{Kind, More, Slowest};
use model::Failure;
use model::watch::GrownNow;
use record::units::{duration, short_duration};
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

/// A change, with what makes its slowest slow where it is known. Its times are of the steady clock.
#[derive(Debug)]
pub(super) struct Changed<'a> {
    pub(super) node: &'a str,
    pub(super) service: &'a str,
    pub(super) change: Change,
    /// None where there was none for long.
    pub(super) window: Option<&'a Window>,
    /// How far the wall clock is ahead of the steady one.
    pub(super) ahead_ns: i64,
    /// Or why that is not known.
    pub(super) slowest: Result<Slowest, Failure>,
}

/// The largest part of the excess, where it explains enough of it. In words without names of programs:
/// whoever may read findings reads them.
pub(crate) fn cause(slowest: &Slowest) -> Option<&More> {
    let largest = slowest.excess.as_ref()?.parts.first()?;
    (largest.part.kind != Kind::Unknown && largest.share >= NAMED_SHARE).then_some(largest)
}

/// That it has grown, in a sentence or two. `cause`: what explains it.
fn grown_text(node: &str, service: &str, grown: Grown, p99_ns: i64, cause: Option<&str>) -> String {
    let times = p99_ns as f64 / grown.past_p99_ns.max(1) as f64;
    let (p99, past) = (duration(p99_ns), duration(grown.past_p99_ns));
    let (long, why) = (short_duration(grown.past_ns), cause.map_or_else(String::new, |cause| format!(" {cause}.")));
    format!("p99 of {service} on {node} is {p99}, {times:.1} times that of the {long} before ({past}).{why}")
}

/// What is shown of it while it stands; `grown` by the wall clock.
pub(super) fn now(node: &str, service: &str, grown: Grown, p99_ns: i64, cause: Option<&str>) -> GrownNow {
    GrownNow {
        since_ns: grown.since_ns,
        p99_ns,
        past_p99_ns: grown.past_p99_ns,
        sentence: grown_text(node, service, grown, p99_ns, cause),
        cause: cause.map(str::to_owned),
    }
}

impl Changed<'_> {
    fn grown(&self) -> Grown {
        let (Change::Grown(grown) | Change::Over(grown) | Change::Usual(grown) | Change::Silent(grown)) = self.change;
        grown.after_ns(self.ahead_ns)
    }

    fn is_grown(&self) -> bool {
        matches!(self.change, Change::Grown(_))
    }

    /// What explains it. (The slowest are compared with ordinary requests, not with the slowest of the
    /// past: it may be what delayed these, too.)
    pub(super) fn named(&self) -> Option<String> {
        let more = cause(self.slowest.as_ref().ok()?)?;
        Some(format!("Of what its slowest take longer than ordinary ones {:.0} %: {}", more.share * 100.0, more.text))
    }

    fn p99_ns(&self) -> Option<i64> {
        self.window.map(Window::p99_ns)
    }

    /// In a sentence or two.
    pub(super) fn text(&self) -> String {
        let past = duration(self.grown().past_p99_ns);
        let p99_ns = self.p99_ns().unwrap_or(0);
        let (service, node, p99) = (self.service, self.node, duration(p99_ns));
        match self.change {
            Change::Grown(grown) => grown_text(node, service, grown, p99_ns, self.named().as_deref()),
            Change::Over(_) => format!("p99 of {service} on {node} is {p99}: as before it grew ({past})."),
            Change::Usual(_) => format!(
                "p99 of {service} on {node} has been grown for a day: what it is now ({p99}, {past} before) becomes its \
                 past, and it is judged again after ten windows."
            ),
            Change::Silent(_) => format!(
                "p99 of {service} on {node}, which had grown, is not known any more: too few requests are answered."
            ),
        }
    }

    /// The row.
    pub(super) fn row(&self) -> Finding {
        let (grown, ts_ns) = (self.grown(), unix_now_ns());
        let text = self.text();
        // Lists of findings show the cause of each, and nothing else of a service.
        let named = self.named().map_or_else(String::new, |named| format!("; {named}"));
        let (cause, lateness_ns) = match self.p99_ns().filter(|_| self.is_grown()) {
            Some(p99_ns) => (
                format!("{}: p99 {}, before {}{named}", self.service, duration(p99_ns), duration(grown.past_p99_ns)),
                Some(p99_ns.saturating_sub(grown.past_p99_ns)),
            ),
            None => (text.clone(), None),
        };
        Finding {
            ts_ns,
            since_ns: grown.since_ns,
            until_ns: self.window.map_or(ts_ns, |window| window.until_ns.saturating_add(self.ahead_ns)),
            verdict: if self.is_grown() { GROWN } else { OVER }.to_owned(),
            culprit_node: Some(self.node.to_owned()),
            lateness_ns,
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
            Err(why) => vec![why.message.clone()],
        };
        json!({
            "text": text, "service": self.service, "p99_ns": self.p99_ns(),
            "requests": self.window.map(|window| window.requests), "failed": self.window.map(|window| window.failed),
            "past_p99_ns": self.grown().past_p99_ns, "past_ns": self.grown().past_ns, "cause": self.named(),
            "excess": parts, "cannot_be_told": cannot_be_told,
        })
    }
}

#[cfg(test)]
mod tests {
    use explain::tail::{Durations, Excess, Part};

    use super::*;

    const MS: i64 = 1_000_000;

    fn window() -> Window {
        let mut durations = Durations::default();
        durations.add(MS.cast_unsigned(), 690);
        durations.add(61 * MS.cast_unsigned(), 10);
        Window { since_ns: 200, until_ns: 300, durations, requests: 702, failed: 2 }
    }

    fn changed(window: &Window, change: fn(Grown) -> Change, share: f64, kind: Kind) -> Changed<'_> {
        let part = Part { kind, of: "timer".into(), ..Part::default() };
        let more = More { part, more_ns: 60 * MS, share, text: "asleep in a timer".into() };
        let excess = Excess { slow_ns: 62 * MS, ordinary_ns: MS, grown: true, parts: vec![more] };
        Changed {
            node: "n1",
            service: "chat",
            change: change(Grown { since_ns: 100, past_p99_ns: MS, past_ns: 1_800_000 * MS }),
            window: Some(window),
            ahead_ns: 1_000,
            slowest: Ok(Slowest { excess: Some(excess), ..Slowest::default() }),
        }
    }

    #[test]
    fn a_finding_says_which_service_by_how_much_and_why() {
        let window = window();
        let found = changed(&window, Change::Grown, 0.97, Kind::Asleep);
        let cause = "Of what its slowest take longer than ordinary ones 97 %: asleep in a timer";
        let text = format!("p99 of chat on n1 is 61.0 ms, 61.0 times that of the 30m00s before (1.00 ms). {cause}.");
        assert_eq!(found.text(), text);
        let row = found.row();
        assert_eq!((row.verdict.as_str(), row.culprit_node.as_deref()), (GROWN, Some("n1")));
        assert_eq!((row.since_ns, row.until_ns, row.lateness_ns), (1_100, 1_300, Some(60 * MS)));
        assert_eq!(row.cause, Some(format!("chat: p99 61.0 ms, before 1.00 ms; {cause}")));
        let detail: Value = serde_json::from_str(&row.detail).expect("JSON");
        assert_eq!((&detail["service"], &detail["excess"][0]["more_ns"]), (&json!("chat"), &json!(60 * MS)));
        assert_eq!((&detail["cause"], &detail["past_ns"]), (&json!(cause), &json!(1_800_000 * MS)));
        // What stands is told in the same words, with what it is now.
        let stands = now("n1", "chat", found.grown(), 30 * MS, Some(cause));
        assert!(stands.sentence.starts_with("p99 of chat on n1 is 30.0 ms, 30.0 times"), "{}", stands.sentence);
        assert_eq!(now("n1", "chat", found.grown(), 61 * MS, Some(cause)).sentence, text);
    }

    #[test]
    fn what_explains_little_or_is_not_known_is_no_cause() {
        let window = window();
        for (share, kind) in [(0.4, Kind::Asleep), (0.9, Kind::Unknown)] {
            let row = changed(&window, Change::Grown, share, kind).row();
            assert_eq!(row.cause.as_deref(), Some("chat: p99 61.0 ms, before 1.00 ms"));
        }
        let why = Changed { slowest: Err("n1 is gone".into()), ..changed(&window, Change::Grown, 0.9, Kind::Asleep) };
        assert!(why.row().detail.contains("n1 is gone"));
    }

    #[test]
    fn the_end_is_a_finding_of_its_own() {
        let window = window();
        for change in [Change::Over, Change::Usual, Change::Silent] {
            let found = changed(&window, change, 0.9, Kind::Asleep);
            let row = found.row();
            assert_eq!((row.verdict.as_str(), row.lateness_ns), (OVER, None));
            assert_eq!(row.cause, Some(found.text()));
        }
    }
}
