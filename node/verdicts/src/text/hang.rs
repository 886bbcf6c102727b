//! A hang in words: who is waited for, and who waits, folded where many are in the same call.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use observed::{
    Activity, RankRef,
    units::{clock, duration},
};

use super::{PARTS_OF_A_LIST, Rows, ranks};
use crate::hang::{Absence, Hang, Missing, NotHeard, Waiting};
use crate::report::Report;

pub(super) fn sentence(report: &Report, hang: &Hang, rows: Rows, out: &mut String) {
    let who: BTreeSet<&RankRef> = hang.waiting.iter().map(|w| &w.who).collect();
    let since = hang.since_ns.map_or_else(String::new, |ns| {
        let for_s = report.evidence.until_ns.saturating_sub(ns).max(0);
        format!(" since {} ({})", clock(ns), duration(for_s))
    });
    let _ = writeln!(out, "Nothing moves{since}: {} ranks wait in a collective.", who.len());
    let shown = rows.of(hang.missing.len());
    for m in &hang.missing[..shown] {
        let _ = writeln!(out, "{}", absent(m));
    }
    if shown < hang.missing.len() {
        let rest: Vec<&RankRef> = hang.missing[shown..].iter().map(|m| &m.who).collect();
        let _ = writeln!(out, "Others wait for {} more: {}.", rest.len(), ranks(rest));
    }
    for jam in &hang.jammed {
        let _ = writeln!(
            out,
            "All {} ranks have entered {} number {} of communicator {} and none leaves it: who holds it up cannot be told.",
            jam.ranks, jam.func, jam.seq, jam.comm_hash
        );
    }
    for absent in &hang.not_heard {
        let _ = writeln!(out, "{}", not_heard(absent));
    }
    if hang.missing.is_empty() && hang.not_heard.is_empty() && hang.jammed.is_empty() {
        let _ = writeln!(out, "They wait for each other in a circle: ranks call collectives in different order.");
    }
    let calls = calls(&hang.waiting);
    let shown = rows.of(calls.len());
    for waits in &calls[..shown] {
        let _ = writeln!(out, "  {}", waiting(waits));
    }
    if shown < calls.len() {
        let rest: usize = calls[shown..].iter().map(Vec::len).sum();
        let _ = writeln!(out, "  … and {rest} waits more, in {} calls (--all)", calls.len() - shown);
    }
}

/// Those who wait in the same call and do the same there, longest first.
fn calls(waiting: &[Waiting]) -> Vec<Vec<&Waiting>> {
    let mut calls: BTreeMap<(&str, &str, u64, Option<&str>), Vec<&Waiting>> = BTreeMap::new();
    for wait in waiting {
        let key = (&*wait.comm_hash, &*wait.func, wait.seq, wait.activity.map(Activity::words));
        calls.entry(key).or_default().push(wait);
    }
    let mut calls: Vec<Vec<&Waiting>> = calls.into_values().collect();
    calls.sort_by_key(|waits| (since(waits).unwrap_or(i64::MAX), std::cmp::Reverse(waits.len())));
    calls
}

/// When the first of them began to wait.
fn since(waits: &[&Waiting]) -> Option<i64> {
    waits.iter().filter_map(|wait| wait.since_ns).min()
}

fn waiting(waits: &[&Waiting]) -> String {
    let Some(first) = waits.first() else { return String::new() };
    let since = since(waits).map_or_else(String::new, |ns| format!(", since {}", clock(ns)));
    let is = first.activity.map_or_else(String::new, |activity| format!(", {}", activity.words()));
    let verb = if waits.len() == 1 { "waits" } else { "wait" };
    let who = ranks(waits.iter().map(|wait| &wait.who));
    format!("{who} {verb} in {} number {} of {}{since}{is}", first.func, first.seq, first.comm_hash)
}

/// Ranks of a communicator that are not in the data.
fn not_heard(absent: &NotHeard) -> String {
    let ranges = absent.ranks.ranges();
    let comm = &absent.comm_hash;
    match (absent.count, ranges.len()) {
        (1, _) => {
            format!("Rank {} of communicator {comm} was not heard: it, or its host, may be gone.", absent.ranks)
        }
        (count, 0..=PARTS_OF_A_LIST) => {
            format!(
                "{count} ranks of communicator {comm} were not heard: they, or their hosts, may be gone. They are {}.",
                absent.ranks
            )
        }
        (count, _) => {
            let first = absent.ranks.first_ranges(PARTS_OF_A_LIST);
            format!(
                "{count} ranks of communicator {comm} were not heard: they, or their hosts, may be gone. They are {first}, … \
                 (all with --format json).",
            )
        }
    }
}

/// What a rank that is waited for does.
fn absent(m: &Missing) -> String {
    let who = format!("Rank {} on host {}", m.who.rank, m.who.node);
    let call = format!("{} number {} of communicator {}", m.func, m.seq, m.comm_hash);
    let wait = match m.holds_up {
        0 => "nobody waits for it".to_owned(),
        1 => "1 rank waits for it".to_owned(),
        n => format!("{n} ranks wait for it"),
    };
    let is = m.activity.map(Activity::words);
    let also = is.map_or_else(String::new, |is| format!(" It is {is}."));
    match (m.absence, is) {
        (Absence::Stopped, is) => format!("{who} is {} inside {call}: {wait}.", is.unwrap_or("stopped")),
        (Absence::NotEntered, _) => {
            format!("{who} has not entered {call}: {wait}.{also}")
        }
        (Absence::Stuck, _) => format!("{who} does not get through {call}: {wait}.{also}"),
        (Absence::Gone, _) => format!("{who} has ended before {call}: {wait}."),
    }
}
