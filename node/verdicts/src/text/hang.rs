//! A hang in words: who or what is waited for, and who waits, folded where many are in the same
//! call. Lines take 80 columns.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use observed::{
    Activity, RankRef,
    units::{clock, duration},
};

use super::{PARTS_OF_A_LIST, Rows, ranks};
use crate::hang::{Absence, Call, Difference, DifferentCall, Differing, Edge, Hang, Missing, NotHeard, Waiting};
use crate::report::Report;
use record::add_line;

pub(super) fn sentence(report: &Report, hang: &Hang, rows: Rows, out: &mut String) {
    let who: BTreeSet<&RankRef> = hang.waiting.iter().map(|w| &w.who).collect();
    let since = hang.since_ns.map_or_else(String::new, |ns| {
        // When dumps were made nobody knows.
        if report.evidence.of_dumps {
            return format!(" since {}", clock(ns));
        }
        let for_s = report.evidence.until_ns.saturating_sub(ns).max(0);
        format!(" since {} ({})", clock(ns), duration(for_s))
    });
    let (count, verb) =
        if who.len() == 1 { ("1 rank".to_owned(), "waits") } else { (format!("{} ranks", who.len()), "wait") };
    add_line(out, 0, &format!("Nothing moves{since}: {count} {verb}."));
    if let Some(of) = &hang.differing {
        differing(of, out);
    }
    let shown = rows.of(hang.missing.len());
    for m in &hang.missing[..shown] {
        add_line(out, 0, &absent(m));
    }
    if shown < hang.missing.len() {
        let rest: Vec<&RankRef> = hang.missing[shown..].iter().map(|m| &m.who).collect();
        add_line(out, 0, &format!("Others wait for {} more: {}.", rest.len(), ranks(rest)));
    }
    for circle in &hang.circles {
        self::circle(circle, rows, out);
    }
    for jam in &hang.jammed {
        let place = place(Some(&jam.comm_hash), Some(jam.position));
        add_line(
            out,
            0,
            &format!(
                "All have entered {}{place} and {} {} not leave it: who holds it up cannot be told.",
                jam.func,
                if jam.ranks == 1 { "1 rank".to_owned() } else { format!("{} ranks", jam.ranks) },
                if jam.ranks == 1 { "does" } else { "do" },
            ),
        );
    }
    // Who left no dump is listed below.
    for absent in hang.not_heard.iter().filter(|_| !report.evidence.of_dumps) {
        add_line(out, 0, &not_heard(absent));
    }
    let unclear = grouped(&hang.unclear);
    let is_all = hang.missing.is_empty() && hang.circles.is_empty() && hang.differing.is_none();
    if is_all && hang.not_heard.is_empty() && hang.jammed.is_empty() && unclear.is_empty() {
        add_line(out, 0, "They wait in calls that do not show for whom.");
    }
    for waits in unclear.iter().filter(|_| is_all).take(rows.of(unclear.len())) {
        let who = ranks(waits.iter().map(|wait| &wait.who));
        let (verb, them) = if waits.len() == 1 { ("waits", "it") } else { ("wait", "them") };
        let text = capital(&format!(
            "{who} {verb} in {}: for whom is not known. Others wait for {them}.",
            call(&waits[0].call)
        ));
        add_line(out, 0, &text);
    }
    if let Some(said) = &hang.nccl {
        add_line(out, 0, &format!("{said}."));
    }
    let circled: BTreeSet<(&RankRef, &Call)> = hang.circles.iter().flatten().map(|of| (&of.who, &of.call)).collect();
    let calls = grouped(hang.waiting.iter().filter(|wait| !circled.contains(&(&wait.who, &wait.call))));
    let shown = rows.of(calls.len());
    for waits in &calls[..shown] {
        add_line(out, 2, &waiting(waits));
    }
    if shown < calls.len() {
        let rest: usize = calls[shown..].iter().map(Vec::len).sum();
        add_line(out, 2, &format!("… and {rest} waits more, in {} calls (--all)", calls.len() - shown));
    }
}

/// "1st", "2nd", "11th", "101st" of a position, which counts from 0.
fn ordinal(position: u64) -> String {
    let number = u128::from(position) + 1;
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

/// Where a call is.
fn place(comm_hash: Option<&String>, position: Option<u64>) -> String {
    match (comm_hash, position) {
        (Some(comm), Some(at)) => format!(", the {} collective of communicator {comm},", ordinal(at)),
        (Some(comm), None) => format!(" on communicator {comm}"),
        _ => String::new(),
    }
}

/// A call with whom it is to and where.
fn call(of: &Call) -> String {
    let moves = of.begun.as_ref().unwrap_or(&of.func);
    let peer = match of.peer.as_ref().filter(|_| of.position.is_none()) {
        _ if of.from_any => " from any rank".to_owned(),
        Some(peer) if moves.contains("recv") || moves.contains("probe") => format!(" from rank {}", peer.rank),
        Some(peer) => format!(" to rank {}", peer.rank),
        None => String::new(),
    };
    let tag = of.tag.map_or_else(String::new, |tag| format!(" (tag {tag})"));
    let place = place(of.comm_hash.as_ref(), of.position);
    let begun = of.begun.as_ref().map_or_else(String::new, |begun| format!(" ({begun})"));
    format!("{}{begun}{peer}{tag}{}", of.func, place.trim_end_matches(','))
}

/// Those who wait in the same call and do the same there, longest first.
fn grouped<'a>(waiting: impl IntoIterator<Item = &'a Waiting>) -> Vec<Vec<&'a Waiting>> {
    let mut calls: BTreeMap<(&Call, Option<&str>), Vec<&'a Waiting>> = BTreeMap::new();
    for wait in waiting {
        calls.entry((&wait.call, wait.activity.map(Activity::words))).or_default().push(wait);
    }
    let mut calls: Vec<Vec<&'a Waiting>> = calls.into_values().collect();
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
    format!("{who} {verb} in {}{since}{is}", call(&first.call))
}

/// Calls of one position that do not belong together.
fn differing(of: &Differing, out: &mut String) {
    let in_what = match of.difference {
        Difference::Function => "",
        Difference::Root => ": its root",
        Difference::ReduceOp => ": its reduction",
        Difference::Datatype => ": its datatype",
        Difference::Size => ": its size",
    };
    let place = format!("the {} collective of communicator {}{in_what}.", ordinal(of.position), of.comm_hash);
    add_line(out, 0, &format!("Ranks do not agree on {place}"));
    for one in &of.calls {
        let site = one.site.as_ref().map_or_else(String::new, |site| format!(", at {site}"));
        add_line(out, 2, &format!("{}: {}{site}", ranks(&one.ranks), what(one)));
    }
    add_line(out, 0, "This is the cause; later calls on it are its consequence.");
}

fn what(of: &DifferentCall) -> String {
    let mut text = of.func.clone();
    if let Some(root) = of.root {
        let _ = write!(text, ", root {root}");
    }
    if let Some(op) = &of.reduce_op {
        let _ = write!(text, ", {op}");
    }
    if let Some(datatype) = &of.datatype {
        let _ = write!(text, ", {datatype}");
    }
    if let Some(bytes) = of.bytes {
        let _ = write!(text, ", {bytes} bytes");
    }
    text
}

/// Ranks that wait for each other.
fn circle(edges: &[Edge], rows: Rows, out: &mut String) {
    let head = if edges.len() == 1 { "A rank waits for itself:" } else { "They wait for each other in a circle:" };
    add_line(out, 0, head);
    let shown = rows.of(edges.len());
    for edge in &edges[..shown] {
        let at = edge.line.as_ref().map_or_else(String::new, |at| format!(", at {at}"));
        let (who, waits_for) = (ranks([&edge.who]), ranks([&edge.waits_for]));
        let call = call(&Call { peer: None, ..edge.call.clone() });
        let text = match edge.call.from_any {
            true => format!("{who} waits in {call}, {waits_for} among them{at}"),
            false => format!("{who} waits in {call} for {waits_for}{at}"),
        };
        add_line(out, 2, &text);
    }
    if shown < edges.len() {
        add_line(out, 2, &format!("… and {} more (--all)", edges.len() - shown));
    }
}

/// Ranks of a communicator that are not in the data.
fn not_heard(absent: &NotHeard) -> String {
    let comm = &absent.comm_hash;
    let many = absent.ranks.ranges().len() > PARTS_OF_A_LIST;
    let list = if many {
        format!("{}, … (all with --format json)", absent.ranks.first_ranges(PARTS_OF_A_LIST))
    } else {
        absent.ranks.to_string()
    };
    if let Some(among) = &absent.among {
        let among = among.first_ranges(PARTS_OF_A_LIST);
        return match absent.count {
            1 => format!(
                "Rank {list} of communicator {comm} has made no call on it: which of the job's ranks {among} it is, is not known."
            ),
            count => format!(
                "{count} ranks of communicator {comm} have made no call on it: {list}, which are among the job's ranks {among}."
            ),
        };
    }
    match absent.count {
        1 => format!("Rank {list} of communicator {comm} was not heard: it, or its host, may be gone."),
        count => format!(
            "{count} ranks of communicator {comm} were not heard: they, or their hosts, may be gone. They are {list}."
        ),
    }
}

/// Why a rank is waited for, and what it does.
fn absent(m: &Missing) -> String {
    let who = match m.who.node.as_str() {
        "" => format!("Rank {}", m.who.rank),
        node => format!("Rank {} on host {node}", m.who.rank),
    };
    let within = place(m.call.comm_hash.as_ref(), m.call.position);
    let called = format!("{}{}", m.call.func, within.trim_end_matches(','));
    let wait = match m.holds_up {
        0 => "nobody waits for it".to_owned(),
        1 => "1 rank waits for it".to_owned(),
        n => format!("{n} ranks wait for it"),
    };
    let is = m.activity.map(Activity::words);
    let at = m.line.as_ref().map_or_else(String::new, |at| format!(", at {at}"));
    let inside = m.inside.as_ref().filter(|_| !matches!(m.absence, Absence::Stuck | Absence::Stopped | Absence::Gone));
    let also = match (inside, is) {
        (Some(inside), Some(is)) => format!(" It is in {}, {is}{at}.", call(inside)),
        (Some(inside), None) => format!(" It is in {}{at}.", call(inside)),
        (None, Some(is)) => format!(" It is {is}{at}."),
        (None, None) if at.is_empty() => String::new(),
        (None, None) => format!(" It is{}.", at.trim_start_matches(',')),
    };
    let tag = m.call.tag.map_or_else(String::new, |tag| format!(" with tag {tag}"));
    let comm = m.call.comm_hash.as_ref().map_or_else(String::new, |comm| format!(" on communicator {comm}"));
    match m.absence {
        Absence::Stopped => {
            let of = |call: &Call| (call.comm_hash.clone(), call.position);
            let is_inside = m.inside.as_ref().is_some_and(|inside| of(inside) == of(&m.call));
            let place = if is_inside { "inside" } else { "after" };
            format!("{who} is {} {place} {called}: {wait}.", is.unwrap_or("stopped"))
        }
        Absence::NotEntered => format!("{who} has not entered {called}: {wait}.{also}"),
        Absence::NotSent => {
            format!("{who} has not sent what is received from it{tag}{comm} ({}): {wait}.{also}", m.call.func)
        }
        Absence::NotReceived => {
            format!("{who} has not received what is sent to it{tag}{comm} ({}): {wait}.{also}", m.call.func)
        }
        Absence::Outside => {
            format!("{who} is in no call, while others wait in calls that do not show for whom.{also}")
        }
        Absence::Stuck => format!("{who} does not get through {called}: {wait}.{also}"),
        Absence::Gone => format!("{who} has ended before {called}: {wait}."),
    }
}

pub(super) fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_said_from_one_on() {
        let said: Vec<String> = [0, 1, 2, 3, 10, 11, 12, 20, 100, 111].into_iter().map(ordinal).collect();
        assert_eq!(said.join(" "), "1st 2nd 3rd 4th 11th 12th 13th 21st 101st 112th");
    }
}
