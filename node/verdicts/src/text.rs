//! The report as a person reads it: the sentence, the table of ranks with bars, the evidence, what
//! was not visible.
//!
//! Owns wording and layout only; every figure is in the [`Report`].

use std::collections::BTreeSet;
use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};

use record::printable;

use super::activity::Activity;
use super::hang::{Absence, Hang, Missing, NotHeard};
use super::point_to_point;
use super::ranks::RankRef;
use super::report::{Basis, CommReport, Culprit, RankScore, Report, Role, Verdict};
use super::tally::Waits;
use super::why::{self, Cause, Network};
use super::windows::WindowKind;
use crate::rules::Rules;

/// Rows of a table of ranks; beyond it the rest is summed up in one line.
const ROWS: usize = 16;
/// Further kinds of evidence listed beside a cause.
const PARTS: usize = 4;
/// So close to the start of the span what is seen first may have begun before it.
const EDGE_NS: i64 = 2_000_000_000;
/// Part of the distance between collectives that takes a whole bar where no rank is later.
const LITTLE: f64 = 0.05;
/// Width of the longest bar.
const BAR: usize = 24;

/// Render a report. Plain text, no colour, ends with a newline.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    sentence(report, &mut out);
    let mut why = String::new();
    if let Some(cause) = &report.cause {
        self::cause(cause, &mut why);
    }
    if let Some(next) = next(report) {
        let _ = writeln!(why, "Next: {next}.");
    }
    if !why.is_empty() {
        out.push('\n');
        out.push_str(&why);
    }
    if let Some(about) = &report.point_to_point {
        out.push('\n');
        point_to_point::table(about, &mut out);
    }
    // Where nothing moves, who was late before is beside the point.
    let compared = if matches!(&report.verdict, Verdict::Hang(_)) { Vec::new() } else { shown(report) };
    for comm in compared {
        out.push('\n');
        let own = matches!(&report.verdict, Verdict::Rank { culprit, .. } if culprit.basis == Basis::OwnTime);
        table(comm, own, &mut out);
    }
    out.push('\n');
    evidence(report, &mut out);
    // Names come from processes of other people: none may drive the terminal.
    out.lines().map(|line| printable(line) + "\n").collect()
}

/// What to look at next.
fn next(report: &Report) -> Option<String> {
    Some(match &report.verdict {
        Verdict::Rank { culprit, .. } => match report.cause.as_ref().map(why::advice) {
            Some(Some(advice)) => advice.to_owned(),
            _ => format!(
                "look what process {} on {} does between collectives (py-spy, gdb, perf)",
                culprit.pid, culprit.node
            ),
        },
        Verdict::Hang(hang) => {
            let who = &hang.missing.first()?.who;
            format!(
                "look where process {0} on {1} stands: py-spy dump --pid {0}, gdb -p {0}, /proc/{0}/status",
                who.pid, who.node
            )
        }
        Verdict::StageImbalance { .. } => {
            "give the stage less to do: move layers, or its share of the batch".to_owned()
        }
        Verdict::DataImbalance { .. } => {
            "compare what the ranks get in a step: lengths of sequences, sizes of batches".to_owned()
        }
        Verdict::WorkImbalance { .. } => {
            "balance the domain (its size, a load balancer of the program), or look what this rank does alone (output, I/O)"
                .to_owned()
        }
        Verdict::Network(_) => {
            "look at the links and switch ports of these hosts for errors and drops (ip -s link, ethtool -S)".to_owned()
        }
        Verdict::None | Verdict::Unknown { .. } => return None,
    })
}

fn sentence(report: &Report, out: &mut String) {
    match &report.verdict {
        Verdict::Rank { culprit, also, held_up } => {
            culprit_sentence(report, culprit, out);
            for other in also {
                let _ = writeln!(
                    out,
                    "Also late: rank {} on {}, by {} in {} of {} collectives ({} of the time).",
                    other.rank,
                    other.node,
                    duration(other.late_by_ns),
                    other.last_in,
                    other.collectives,
                    percent(other.share)
                );
            }
            if !held_up.is_empty() {
                let _ = writeln!(out, "Late only because they are held up themselves: {}.", ranks(held_up));
            }
            cost(report, out);
        }
        Verdict::Hang(hang) => hang_sentence(report, hang, out),
        Verdict::StageImbalance { ranks: stage, ratio, share, stages } => {
            let _ = writeln!(
                out,
                "No rank is slow, but one stage has more to do: {} need {ratio:.2} times the own time of the other stages,\n\
                 {} of wall time more.",
                ranks(stage),
                percent(*share)
            );
            for stage in stages {
                let bar = bar((stage.own_share * 1e6) as i64, 1_000_000);
                let list: Vec<RankRef> = stage.ranks.iter().take(ROWS).map(|rank| rank.who.clone()).collect();
                let more = match stage.ranks.len().saturating_sub(ROWS) {
                    0 => String::new(),
                    n => format!(" and {n} more"),
                };
                let _ = writeln!(
                    out,
                    "  {:>4} own work  {bar:<BAR$}  {}{more}",
                    percent(stage.own_share),
                    self::ranks(&list)
                );
            }
        }
        Verdict::DataImbalance { share, taking_turns, .. } => {
            let _ = writeln!(
                out,
                "No rank is slow, but somebody always is: {taking_turns} ranks take turns at being late, which costs {} of \
                 the time.\nUneven data would look like this, and so would noise.",
                percent(*share)
            );
        }
        Verdict::WorkImbalance { ranks: most, ratio, share } => {
            let _ = writeln!(
                out,
                "Work imbalance: {}, {ratio:.2} times the compute time of the other ranks, which wait in sends, receives\n\
                 and waits meanwhile ({} of the time). Nothing seen makes it slow: it has more to do, or always was slower.",
                ranks(most),
                percent(*share)
            );
        }
        Verdict::Network(network) => network_sentence(network, out),
        Verdict::None if point_to_point::summary(report).is_some() => {
            let compared = point_to_point::summary(report).unwrap_or_default();
            let _ = writeln!(out, "No rank holds the others up ({compared}, {}).", span(report));
        }
        Verdict::None => {
            let ranks = report.per_comm.iter().map(|c| c.heard).max().unwrap_or(0);
            let _ = writeln!(
                out,
                "No rank holds the others up ({ranks} ranks compared over {} collectives, {}).",
                report.evidence.matched,
                span(report)
            );
        }
        Verdict::Unknown { why } => {
            let _ = writeln!(
                out,
                "It cannot be told whether a rank holds the others up: {why}{}",
                if why.ends_with('?') { "" } else { "." }
            );
        }
    }
}

fn culprit_sentence(report: &Report, culprit: &Culprit, out: &mut String) {
    let comm = report.per_comm.iter().find(|c| c.comm_hash == culprit.comm_hash);
    let others = match &report.point_to_point {
        Some(about) if culprit.basis == Basis::PointToPoint => about.heard.saturating_sub(1),
        _ => comm.map_or(0, |c| c.heard.saturating_sub(1)),
    };
    let victims = match others {
        _ if culprit.basis == Basis::OwnTime => "its job".to_owned(),
        0 => "the others".to_owned(),
        1 => "the other rank".to_owned(),
        n => format!("the other {n} ranks"),
    };
    let begun = culprit.since_ns.saturating_sub(report.evidence.since_ns);
    let since = match culprit.since_start {
        true if begun < EDGE_NS => {
            format!("since the start of the span, {} (it may have begun earlier)", clock(culprit.since_ns))
        }
        true => format!("from the first collectives on, {}", clock(culprit.since_ns)),
        false => format!("since {}", clock(culprit.since_ns)),
    };
    let until =
        if culprit.ongoing { "and still does".to_owned() } else { format!("until {}", clock(culprit.until_ns)) };
    let late = duration(culprit.late_by_ns);
    let how = match culprit.basis {
        Basis::Waits | Basis::Entries => {
            format!("it enters {late} late, last in {} of {} collectives", culprit.last_in, culprit.collectives)
        }
        Basis::PointToPoint => format!(
            "of each second it computes {late} longer than the others, in {} of {} seconds",
            culprit.last_in, culprit.collectives
        ),
        Basis::OwnTime => format!(
            "its own work takes {late} longer than that of its peers, longest before {} of {} collectives",
            culprit.last_in, culprit.collectives
        ),
    };
    let _ = writeln!(
        out,
        "Rank {} on host {} holds up {victims}: {how}, {} of the time,\n{since}, {until}.",
        culprit.rank,
        culprit.node,
        percent(culprit.share),
    );
}

fn cost(report: &Report, out: &mut String) {
    let gpu = report.per_comm.iter().any(|c| c.library == "nccl" || c.library == "rccl");
    let unit = if gpu { "GPU" } else { "rank" };
    let _ = writeln!(
        out,
        "Cost: {}{:.1} {unit}-seconds waited in that time, as if {:.1} {unit}s did nothing.",
        if report.cost.upper_bound { "at most " } else { "" },
        report.cost.gpu_seconds_wasted,
        report.cost.gpus_lost
    );
    let Some(step) = report.cost.per_step else { return };
    let most = if report.cost.upper_bound { "at most " } else { "" };
    let what = match step.collectives {
        1 => format!("{} collectives", step.steps),
        n => format!("{} steps of {n} collectives", step.steps),
    };
    let times =
        step.slowdown.map_or_else(String::new, |times| format!(", {most}{times:.2} times as long as without it"));
    let _ = writeln!(
        out,
        "In each of {what}: {most}{:.*} {unit}-seconds, {most}{} of {}{times}.",
        if step.gpu_seconds_wasted < 1.0 { 3 } else { 1 },
        step.gpu_seconds_wasted,
        duration(step.wasted_ns),
        duration(step.step_ns),
    );
}

/// Why.
fn cause(cause: &Cause, out: &mut String) {
    let _ = writeln!(out, "Cause: {}.", cause.summary);
    if let Some(peer) = &cause.peer {
        let _ = writeln!(
            out,
            "  (compared with rank {} on {}: longer in {} of {} intervals between collectives, by {} together)",
            peer.rank,
            printable(&peer.node),
            cause.late_intervals,
            cause.intervals,
            duration(cause.excess_ns),
        );
    }
    for part in cause.parts.iter().filter(|part| !part.named && part.share >= Rules::CAUSE_PART).take(PARTS) {
        let what = part.what.first().map_or_else(String::new, |what| format!(": {}", printable(&what.name)));
        let _ = writeln!(out, "  seen: {} {}{what}", part.kind.name(), percent(part.share));
    }
    if !cause.looked_at.is_empty() {
        let _ = writeln!(out, "  looked at: {}", cause.looked_at.join(", "));
    }
    for unseen in &cause.not_visible {
        let _ = writeln!(out, "  not visible: {}", printable(unseen));
    }
}

fn hang_sentence(report: &Report, hang: &Hang, out: &mut String) {
    let waiting: BTreeSet<&RankRef> = hang.waiting.iter().map(|w| &w.who).collect();
    let since = hang.since_ns.map_or_else(String::new, |ns| {
        let for_s = report.evidence.until_ns.saturating_sub(ns).max(0);
        format!(" since {} ({})", clock(ns), duration(for_s))
    });
    let _ = writeln!(out, "Nothing moves{since}: {} ranks wait in a collective.", waiting.len());
    for m in hang.missing.iter().take(ROWS) {
        let _ = writeln!(out, "{}", absent(m));
    }
    if hang.missing.len() > ROWS {
        let _ = writeln!(out, "… and {} ranks more that others wait for.", hang.missing.len() - ROWS);
    }
    for jam in &hang.jammed {
        let _ = writeln!(
            out,
            "All {} ranks have entered {} number {} of communicator {} and none leaves it: who holds it up cannot be told.",
            jam.ranks, jam.func, jam.seq, jam.comm_hash
        );
    }
    for absent in &hang.not_heard {
        let _ = writeln!(out, "{}", unheard(absent));
    }
    if hang.missing.is_empty() && hang.not_heard.is_empty() && hang.jammed.is_empty() {
        let _ = writeln!(out, "They wait for each other in a circle: ranks call collectives in different order.");
    }
    for w in hang.waiting.iter().take(ROWS) {
        let since = w.since_ns.map_or_else(String::new, |ns| format!(", since {}", clock(ns)));
        let _ = writeln!(
            out,
            "  rank {} on {} waits in {} number {} of {}{since}{}",
            w.who.rank,
            w.who.node,
            w.func,
            w.seq,
            w.comm_hash,
            w.activity.map_or_else(String::new, |activity| format!(", {}", activity.words()))
        );
    }
    if hang.waiting.len() > ROWS {
        let _ = writeln!(out, "  … and {} waits more", hang.waiting.len() - ROWS);
    }
}

/// Ranks of a communicator that nobody has heard of.
fn unheard(absent: &NotHeard) -> String {
    let ranges = absent.ranks.ranges();
    let comm = &absent.comm_hash;
    match (absent.count, ranges.len()) {
        (1, _) => {
            format!("Rank {} of communicator {comm} was not heard: it, or its host, may be gone.", absent.ranks)
        }
        (count, 0..=ROWS) => {
            format!(
                "{count} ranks of communicator {comm} were not heard: they, or their hosts, may be gone. They are {}.",
                absent.ranks
            )
        }
        (count, _) => {
            let first = absent.ranks.first_ranges(ROWS);
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

fn network_sentence(network: &Network, out: &mut String) {
    let whose =
        network.node.as_deref().map_or_else(String::new, |node| format!(" to and from host {}", printable(node)));
    let _ = writeln!(
        out,
        "No rank is slow, but the network{whose} loses segments: {} of {} collectives waited until some were sent again,\n\
         {} instead of {} after everybody had entered, {} of the time.",
        network.with_retransmissions,
        network.collectives,
        duration(network.slow_ns),
        duration(network.usual_ns),
        percent(network.share),
    );
    let _ = writeln!(
        out,
        "Cause: {} TCP retransmissions during collectives; those collectives hold {} of all that collectives took too long.",
        network.retransmissions,
        percent(network.explained)
    );
    for flow in &network.flows {
        let to = flow.to_node.as_deref().map_or_else(String::new, |node| format!("{node} "));
        let line = format!("{} ({}) to {to}({}): {}", flow.from_node, flow.from, flow.to, flow.retransmissions);
        let _ = writeln!(out, "  {}", printable(&line));
    }
}

/// "ranks 6 on n1, 7 on n1".
fn ranks(list: &[RankRef]) -> String {
    let named: Vec<String> = list.iter().map(|r| format!("{} on {}", r.rank, r.node)).collect();
    format!("{} {}", if list.len() == 1 { "rank" } else { "ranks" }, named.join(", "))
}

/// The communicators worth a table: those of the named ranks, else the largest that was scored.
fn shown(report: &Report) -> Vec<&CommReport> {
    let scored = || report.per_comm.iter().filter(|c| !c.ranks.is_empty());
    if let Verdict::Rank { culprit, also, .. } = &report.verdict {
        let named: Vec<&str> = std::iter::once(culprit).chain(also).map(|c| c.comm_hash.as_str()).collect();
        scored().filter(|c| named.contains(&c.comm_hash.as_str())).collect()
    } else {
        scored().take(1).collect()
    }
}

/// How late a rank is on average, for the bar: by its waits where they were seen, else by its
/// entries; by its compute time where that is what names somebody.
fn lateness(comm: &CommReport, rank: &RankScore, own: bool) -> i64 {
    if own {
        return rank.own_excess_ns.unwrap_or(0);
    }
    if comm.waits == Some(Waits::Enqueued) {
        return rank.lateness.mean_ns;
    }
    comm.ranks.iter().map(|r| r.wait.mean_ns).max().unwrap_or(0) - rank.wait.mean_ns
}

fn table(comm: &CommReport, own: bool, out: &mut String) {
    let heard = match comm.nranks {
        Some(n) if usize::try_from(n) != Ok(comm.heard) => format!("{} of {n} ranks heard", comm.heard),
        _ => format!("{} ranks", comm.heard),
    };
    let windows = match comm.windowed {
        Some(WindowKind::Time { length_ns }) => {
            format!("{} windows of {} s", comm.windows, length_ns as f64 / 1e9)
        }
        Some(WindowKind::Collectives { each: 1 }) => format!("{} windows of one collective", comm.windows),
        Some(WindowKind::Collectives { each }) => {
            format!("{} windows of {each} collectives (too few for windows of time)", comm.windows)
        }
        None => "no windows".to_owned(),
    };
    let _ = writeln!(
        out,
        "communicator {}, {}, {heard}, a collective every {}, {windows}",
        comm.comm_hash,
        comm.library,
        duration(comm.period_ns)
    );
    let mut ranks: Vec<&RankScore> = comm.ranks.iter().collect();
    ranks.sort_by_key(|r| (r.role != Role::Culprit, std::cmp::Reverse(lateness(comm, r, own))));
    // Where nobody is late to speak of, no bar is long.
    let little = (comm.period_ns as f64 * LITTLE) as i64;
    let longest = ranks.iter().map(|r| lateness(comm, r, own)).max().unwrap_or(0).max(little).max(1);
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["rank", "host", if own { "own excess" } else { "late by" }, "waits", "z", "flagged", ""]);
    for rank in ranks.iter().take(ROWS) {
        let late = lateness(comm, rank, own);
        table.add_row([
            rank.rank.to_string(),
            rank.node.clone(),
            duration(late),
            if comm.waits == Some(Waits::Enqueued) { "?".to_owned() } else { duration(rank.wait.mean_ns) },
            rank.z.map_or("-".to_owned(), |z| format!("{z:.1}")),
            format!("{}/{}", rank.flagged, comm.windows),
            format!(
                "{}{}",
                bar(late, longest),
                match rank.role {
                    Role::Culprit => " culprit",
                    Role::HeldUp => " held up itself",
                    Role::Victim | Role::Peer => "",
                }
            ),
        ]);
    }
    for column in [0, 2, 3, 4, 5] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let _ = writeln!(out, "{}", table.trim_fmt());
    if let Some((first, last)) = ranks.get(ROWS).zip(ranks.last()) {
        let _ = writeln!(
            out,
            "… and {} ranks more, late by {} to {}",
            ranks.len() - ROWS,
            duration(lateness(comm, last, own)),
            duration(lateness(comm, first, own))
        );
    }
}

fn bar(value: i64, longest: i64) -> String {
    let eighths = (value.max(0) as f64 / longest as f64 * (BAR * 8) as f64).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    if let Some(part) = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"].get(eighths % 8) {
        bar.push_str(part);
    }
    bar
}

fn evidence(report: &Report, out: &mut String) {
    let e = &report.evidence;
    let complete = if e.complete == e.matched { String::new() } else { format!(" ({} with every rank)", e.complete) };
    let clocks = match e.clock_bound_ns {
        Some(0) => "one clock".to_owned(),
        Some(bound) => format!("clocks aligned within ±{}", duration(bound)),
        None => "not all clocks known".to_owned(),
    };
    let _ = writeln!(
        out,
        "Evidence: tier {}, {} collectives matched{complete} in {} windows, {clocks}, {} of {} nodes answered.",
        e.tier, e.matched, e.windows, report.coverage.answered, report.coverage.asked
    );
    for (node, reason) in &report.coverage.missing {
        let _ = writeln!(out, "Not heard: {node} ({reason}).");
    }
    for note in &report.coverage.notes {
        let _ = writeln!(out, "Note: {note}.");
    }
    for note in &e.notes {
        let _ = writeln!(out, "Note: {note}.");
    }
    for unseen in &e.not_visible {
        let _ = writeln!(out, "Not visible: {unseen}.");
    }
}

fn span(report: &Report) -> String {
    format!("{} to {}", clock(report.evidence.since_ns), clock(report.evidence.until_ns))
}

/// Nanoseconds with three digits in the unit that suits: "290 ms", "1.20 s", "85.0 µs".
pub(crate) fn duration(ns: i64) -> String {
    let size = ns.unsigned_abs() as f64;
    let (scale, unit) = match size {
        s if s >= 1e9 => (1e9, "s"),
        s if s >= 1e6 => (1e6, "ms"),
        s if s >= 1e3 => (1e3, "µs"),
        _ => return format!("{ns} ns"),
    };
    let value = ns as f64 / scale;
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0} {unit}"),
        v if v >= 9.995 => format!("{value:.1} {unit}"),
        _ => format!("{value:.2} {unit}"),
    }
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Time of day.
fn clock(unix_ns: i64) -> String {
    let second = unix_ns.div_euclid(1_000_000_000).rem_euclid(86_400);
    format!("{:02}:{:02}:{:02} UTC", second / 3_600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_keep_three_digits() {
        let all: Vec<String> = [0, 999, 1_500, 85_040, 290_400_000, 1_200_000_000, -12_345_678].map(duration).into();
        assert_eq!(all, ["0 ns", "999 ns", "1.50 µs", "85.0 µs", "290 ms", "1.20 s", "-12.3 ms"]);
    }
}
