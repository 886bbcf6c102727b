//! Compares a report with the truth: every rank that it speaks of must be where it says, and the
//! cause must be named. What is missing may still come; what is false must never be said.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::jobs::Seen;
use crate::truth::{Note, Truth, Why};

/// What a report was worth.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    Right,
    /// It does not say all that is true, yet.
    Lacks(String),
    /// It says what is not true.
    False(String),
}

/// Judges `rankmesh stragglers`' answer as JSON, with the words that go with it.
pub(crate) fn judge(seen: Seen, truth: &Truth, notes: &[Note], verdict: &Value, words: &str) -> Judged {
    match verdict["kind"].as_str() {
        Some("hang") => {}
        // It does not stand still for long.
        Some(early @ ("none" | "unknown")) => return Judged::Lacks(format!("it says {early}")),
        other => return Judged::False(format!("it says {other:?}")),
    }
    let report = Report { seen, truth, notes, verdict, words };
    match (report.falsely(), report.lacks()) {
        (Some(why), _) => Judged::False(why),
        (None, Some(why)) => Judged::Lacks(why),
        (None, None) => Judged::Right,
    }
}

struct Report<'a> {
    seen: Seen,
    truth: &'a Truth,
    notes: &'a [Note],
    verdict: &'a Value,
    words: &'a str,
}

fn list<'a>(of: &'a Value, name: &str) -> &'a [Value] {
    of[name].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The function of a call in a report.
fn func(call: &Value) -> &str {
    call["func"].as_str().unwrap_or_default()
}

impl Report<'_> {
    /// The rank in the job of somebody that the report speaks of, by its process.
    fn rank(&self, who: &Value) -> Option<usize> {
        let pid = who["pid"].as_i64()?;
        let rank = self.notes.iter().position(|note| note.pid == pid)?;
        // Users know no other number than that of the job.
        (who["rank"].as_u64() == Some(rank as u64)).then_some(rank)
    }

    fn missing(&self) -> BTreeSet<Option<usize>> {
        list(self.verdict, "missing").iter().map(|missing| self.rank(missing)).collect()
    }

    fn edges(&self) -> impl Iterator<Item = &Value> {
        list(self.verdict, "circles").iter().flat_map(|circle| circle.as_array().map(Vec::as_slice).unwrap_or_default())
    }

    fn differing(&self) -> &[Value] {
        list(&self.verdict["differing"], "calls")
    }

    /// Who is said to be in a call, and in which.
    fn in_calls(&self) -> impl Iterator<Item = (&Value, &str)> {
        let waiting = ["waiting", "unclear"].into_iter().flat_map(|name| list(self.verdict, name));
        let inside = list(self.verdict, "missing").iter().filter(|missing| missing["inside"].is_object());
        waiting
            .chain(self.edges())
            .map(|who| (who, func(&who["call"])))
            .chain(inside.map(|who| (who, func(&who["inside"]))))
    }

    /// What it says that is not true.
    fn falsely(&self) -> Option<String> {
        let unknown = |not_heard: &&Value| not_heard["among"].is_null();
        if let Some(not_heard) = list(self.verdict, "not_heard").iter().find(unknown) {
            return Some(format!("every process is known, and it says of one that it was not heard: {not_heard}"));
        }
        for (who, func) in self.in_calls() {
            let Some(rank) = self.rank(who) else { return Some(format!("there is no such rank: {who}")) };
            if self.notes[rank].what != func {
                return Some(format!("rank {rank} is in {}, and not in {func}: {who}", self.notes[rank].what));
            }
        }
        let missing = self.missing();
        let allowed: BTreeSet<Option<usize>> = match &self.truth.why {
            Why::Cause(ranks) | Why::Differs(ranks) => ranks.iter().copied().map(Some).collect(),
            Why::Circle(_) => BTreeSet::new(),
        };
        if !missing.is_subset(&allowed) {
            return Some(format!("not to blame: {missing:?}"));
        }
        for edge in self.edges() {
            let (from, to) = (self.rank(edge), self.rank(&edge["waits_for"]));
            let is_true = match &self.truth.why {
                Why::Circle(edges) => from.zip(to).is_some_and(|edge| edges.contains(&edge)),
                Why::Differs(ranks) => [from, to].iter().flatten().any(|rank| ranks.contains(rank)),
                // Who is at the end waits there for the others.
                Why::Cause(ranks) => {
                    let at_end = |rank: &usize| ranks.contains(rank) && self.notes[*rank].what == "finalize";
                    [from, to].iter().flatten().any(at_end)
                }
            };
            if !is_true {
                return Some(format!("it does not wait for that rank: {edge}"));
            }
        }
        // The end of MPI is a call of all, too.
        let at_end = |rank: &usize| self.notes[*rank].what == "finalize";
        let ends = matches!(&self.truth.why, Why::Cause(ranks) if ranks.iter().any(at_end));
        if !self.differing().is_empty() && !ends && !matches!(self.truth.why, Why::Differs(_)) {
            return Some(format!("no calls differ: {}", self.verdict["differing"]));
        }
        if let Some(jam) = list(self.verdict, "jammed").first().filter(|_| matches!(self.truth.why, Why::Cause(_))) {
            return Some(format!("not everybody has entered: {jam}"));
        }
        self.doing_falsely()
    }

    /// What it says of those that are missing.
    fn doing_falsely(&self) -> Option<String> {
        for missing in list(self.verdict, "missing") {
            let note = &self.notes[self.rank(missing)?];
            let activity = missing["activity"].as_str().unwrap_or_default();
            let may: &[&str] = match note.what.as_str() {
                "asleep" | "io" => &["asleep", "sleeping", "io", "reading", ""],
                "running" => &["running", "ready", ""],
                "stopped" => &["stopped", ""],
                // Calls poll, or sleep.
                _ => continue,
            };
            if !may.contains(&activity) && note.what != "ended" || missing["inside"].is_object() {
                return Some(format!("it is {}, at {}: {missing}", note.what, note.line));
            }
        }
        None
    }

    /// What is true and not in it.
    fn lacks(&self) -> Option<String> {
        let missing = self.missing();
        match &self.truth.why {
            Why::Cause(ranks) => {
                let differing = self.differing().iter().flat_map(|call| list(call, "ranks"));
                let told: BTreeSet<Option<usize>> = self.edges().chain(differing).map(|edge| self.rank(edge)).collect();
                for rank in ranks {
                    if !missing.contains(&Some(*rank)) && !told.contains(&Some(*rank)) {
                        return Some(format!("rank {rank} holds the others up"));
                    }
                }
            }
            Why::Differs(ranks) => {
                let groups: Vec<BTreeSet<Option<usize>>> = self
                    .differing()
                    .iter()
                    .map(|call| list(call, "ranks").iter().map(|who| self.rank(who)).collect())
                    .collect();
                if !groups.contains(&ranks.iter().copied().map(Some).collect()) {
                    return Some(format!("{ranks:?} call something else than the others: {groups:?}"));
                }
            }
            Why::Circle(_) if self.edges().next().is_none() => return Some("they wait in a circle".to_owned()),
            Why::Circle(_) => {}
        }
        // The making of every communicator was recorded, so its members are known.
        if let Some(not_heard) = list(self.verdict, "not_heard").first() {
            return Some(format!("which rank it is that was not heard: {not_heard}"));
        }
        // Everybody who is in a call is spoken of.
        let spoken: BTreeSet<usize> = self.in_calls().filter_map(|(who, _)| self.rank(who)).collect();
        let silent = (0..self.truth.ranks).find(|rank| self.notes[*rank].is_call() && !spoken.contains(rank));
        if let Some(rank) = silent {
            return Some(format!("rank {rank} is in {}", self.notes[rank].what));
        }
        self.lacks_place()
    }

    /// Where those to blame are: the line, or of native code the function.
    fn lacks_place(&self) -> Option<String> {
        let Why::Cause(ranks) = &self.truth.why else { return None };
        let told = self.verdict.to_string() + self.words;
        let is_told = |note: &Note| {
            let at_line = told.split(note.line.as_str()).skip(1).any(|rest| !rest.starts_with(char::is_numeric));
            let function = match note.what.as_str() {
                "asleep" => "sleep_on",
                // Without root nobody reads the stack of a thread that runs: what to run instead is said.
                "running" if self.seen == Seen::ByShim => "gdb -p",
                "running" => "compute",
                "io" => "read_pipe",
                _ => return true,
            };
            at_line || !note.line.contains(".py:") && told.contains(function)
        };
        let notes = ranks.iter().map(|rank| &self.notes[*rank]);
        notes.into_iter().find(|note| !is_told(note)).map(|note| format!("it is {} at {}", note.what, note.line))
    }
}
