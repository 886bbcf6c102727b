//! Compares a verdict on a job that hangs with the truth.

use std::collections::BTreeSet;

use serde_json::Value;
use verdicts::{Report, Verdict};

use super::draw::{Drawn, Kind};
use super::observe::pid;
use super::oracle::{Truth, truth};

/// What a verdict was worth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Worth {
    /// It says why nothing moves.
    Right,
    /// It does not say all of it.
    Missed(String),
    /// It says what is not true.
    False(String),
}

/// Judges a verdict.
#[must_use]
pub fn judge(drawn: &Drawn, report: &Report) -> Worth {
    let hang = match &report.verdict {
        Verdict::Hang(hang) if drawn.kind != Kind::Healthy => serde_json::to_value(hang).unwrap_or_default(),
        Verdict::Hang(hang) => return Worth::False(format!("nothing hangs: {hang:?}")),
        // A rank that is in more communicators has more to do.
        _ if drawn.kind == Kind::Healthy => return Worth::Right,
        verdict if !verdict.named_ranks().is_empty() => return Worth::False(format!("nobody is slow: {verdict:?}")),
        verdict => return Worth::Missed(format!("{verdict:?}").chars().take(300).collect()),
    };
    let truth = truth(drawn);
    let said = Said { ranks: drawn.program.ranks.len(), truth: &truth, hang: &hang };
    match said.falsely() {
        Some(why) => Worth::False(why),
        None => said.lacks().map_or(Worth::Right, Worth::Missed),
    }
}

struct Said<'a> {
    ranks: usize,
    truth: &'a Truth,
    hang: &'a Value,
}

fn list<'a>(of: &'a Value, name: &str) -> &'a [Value] {
    of[name].as_array().map(Vec::as_slice).unwrap_or_default()
}

impl Said<'_> {
    /// The rank in the job of somebody spoken of, by its process; it must be called so.
    fn rank(&self, who: &Value) -> Option<usize> {
        let rank = (0..self.ranks).find(|rank| who["pid"] == pid(*rank))?;
        (who["rank"] == rank).then_some(rank)
    }

    fn missing(&self) -> BTreeSet<Option<usize>> {
        list(self.hang, "missing").iter().map(|who| self.rank(who)).collect()
    }

    fn circle(&self) -> impl Iterator<Item = &Value> {
        list(self.hang, "circles").iter().flat_map(|circle| circle.as_array().map(Vec::as_slice).unwrap_or_default())
    }

    /// By call, the ranks that are said to differ.
    fn groups(&self) -> BTreeSet<BTreeSet<Option<usize>>> {
        let calls = list(&self.hang["differing"], "calls");
        calls.iter().map(|call| list(call, "ranks").iter().map(|who| self.rank(who)).collect()).collect()
    }

    /// Ranks in fewer than half of the calls that differ.
    fn odd(&self) -> BTreeSet<usize> {
        let groups = self.truth.differing.values();
        let odd = groups.flat_map(|groups| {
            let most = groups.values().map(BTreeSet::len).max().unwrap_or(0);
            let all: usize = groups.values().map(BTreeSet::len).sum();
            groups.values().filter(move |ranks| ranks.len() < most || 2 * ranks.len() <= all).flatten()
        });
        odd.copied().collect()
    }

    fn falsely(&self) -> Option<String> {
        if let Some(not_heard) = list(self.hang, "not_heard").iter().find(|who| who["among"].is_null()) {
            return Some(format!("every process is known: {not_heard}"));
        }
        let in_calls = ["waiting", "unclear"].into_iter().flat_map(|name| list(self.hang, name)).chain(self.circle());
        let in_calls = in_calls.map(|who| (who, &who["call"]["func"]));
        let inside = list(self.hang, "missing").iter().filter(|who| who["inside"].is_object());
        for (who, func) in in_calls.chain(inside.map(|who| (who, &who["inside"]["func"]))) {
            let call = self.rank(who).and_then(|rank| self.truth.calls.get(&rank));
            if call.is_none_or(|call| func != call) {
                return Some(format!("in truth in {call:?}: {who}"));
            }
        }
        let named = [&self.truth.elsewhere, &self.truth.at_the_end, &self.odd()];
        let named: BTreeSet<Option<usize>> = named.into_iter().flatten().copied().map(Some).collect();
        if let Some(rank) = self.missing().difference(&named).next() {
            return Some(format!("not to blame: {rank:?} of {:?}", self.hang["missing"]));
        }
        for edge in self.circle() {
            let ends = self.rank(edge).zip(self.rank(&edge["waits_for"]));
            if ends.is_none_or(|edge| !self.truth.edges.contains(&edge)) {
                return Some(format!("it does not wait for that rank: {edge}"));
            }
        }
        if self.hang["differing"].is_object() && !self.differs_so() {
            return Some(format!("calls do not differ so: {}", self.hang["differing"]));
        }
        let whole = self.truth.elsewhere.is_empty() && self.truth.at_the_end.is_empty();
        let jam = list(self.hang, "jammed").first().filter(|_| !whole);
        jam.map(|jam| format!("not everybody has entered: {jam}"))
    }

    /// What is said to differ is the first place of a communicator at which calls do: two groups of it at
    /// least.
    fn differs_so(&self) -> bool {
        let said = self.groups();
        // Who is far beyond that place need not be known there any more.
        let so = |groups: &super::oracle::Groups| {
            let of = |ranks: &BTreeSet<Option<usize>>| {
                groups.values().position(|all| ranks.iter().all(|rank| rank.is_some_and(|rank| all.contains(&rank))))
            };
            let places: BTreeSet<Option<usize>> = said.iter().map(of).collect();
            !places.contains(&None) && places.len() == said.len() && said.len() > 1
        };
        self.truth.differing.values().any(so)
    }

    fn lacks(&self) -> Option<String> {
        let missing = self.missing();
        let circle: BTreeSet<usize> = self.circle().filter_map(|edge| self.rank(edge)).collect();
        let Truth { elsewhere, at_the_end, differing, .. } = self.truth;
        if let Some(rank) = elsewhere.iter().find(|rank| !missing.contains(&Some(**rank))) {
            return Some(format!("rank {rank} is elsewhere, and others wait for it"));
        }
        let nobody = elsewhere.is_empty();
        match () {
            () if nobody && !differing.is_empty() && !self.hang["differing"].is_object() => {
                Some("calls differ".to_owned())
            }
            () if nobody && differing.is_empty() && !at_the_end.is_empty() => {
                let named = at_the_end.iter().any(|rank| missing.contains(&Some(*rank)) || circle.contains(rank));
                (!named).then(|| format!("{at_the_end:?} are at the end"))
            }
            () if nobody && differing.is_empty() && circle.is_empty() => Some("they wait in a circle".to_owned()),
            () => None,
        }
    }
}
