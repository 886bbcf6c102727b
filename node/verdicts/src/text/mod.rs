//! The report as a person reads it: the sentence, the table of ranks with bars, the evidence, what
//! was not visible.
//!
//! Owns wording and layout only; every figure is in the [`Report`].

mod culprit;
mod hang;
mod table;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use causes::{self, Cause, Network};
use observed::{
    RankRef, Rules,
    units::{clock, duration, percent},
};
use record::{printable, wrapped};

use super::hostlist::{first_parts, fold_names, fold_ranges};
use super::point_to_point;
use super::report::{Basis, Report, Verdict};
use table::{BAR, bar};

/// Rows of a table before the rest is summed up.
const WORST: usize = 8;
/// Hosts whose ranks are listed each by itself.
const HOSTS: usize = 3;
/// Ranges of ranks or of hosts in one line.
const PARTS_OF_A_LIST: usize = 16;
/// Further kinds of evidence listed beside a cause.
const PARTS: usize = 4;

/// How many rows of a table are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// The worst eight, and the median of all.
    Worst,
    /// All.
    All,
}

impl Rows {
    /// Of `all` rows; a table is not cut for a single one.
    fn of(self, all: usize) -> usize {
        if self == Self::All || all <= WORST + 1 { all } else { WORST }
    }
}

/// Render a report, of long tables the worst eight rows. Plain text, no colour, ends with a newline.
#[must_use]
pub fn text(report: &Report) -> String {
    render(report, Rows::Worst)
}

/// The same with all rows of its tables.
#[must_use]
pub fn text_of_all(report: &Report) -> String {
    render(report, Rows::All)
}

fn render(report: &Report, rows: Rows) -> String {
    let mut head = String::new();
    sentence(report, rows, &mut head);
    end(report, &mut head);
    let mut why = String::new();
    if let Some(cause) = &report.cause {
        self::cause(cause, &mut why);
    }
    if let Some(next) = next(report) {
        let _ = writeln!(why, "Next: {next}.");
    }
    if !why.is_empty() {
        head.push('\n');
        head.push_str(&why);
    }
    let mut out = wrapped(&head);
    // Where nothing moves it does not matter who was late before.
    let hangs = matches!(&report.verdict, Verdict::Hang(_));
    let mut tables = String::new();
    if let Some(about) = report.point_to_point.as_ref().filter(|_| !hangs) {
        tables.push('\n');
        point_to_point::table(about, &mut tables);
    }
    let compared = if hangs { Vec::new() } else { table::shown(report) };
    for comm in compared {
        tables.push('\n');
        let own = matches!(&report.verdict, Verdict::Rank { culprit, .. } if culprit.basis == Basis::OwnTime);
        table::table(comm, own, rows, &mut tables);
    }
    // Names come from processes of other people: none may drive the terminal.
    out.extend(tables.lines().map(|line| printable(line) + "\n"));
    out.push('\n');
    let mut foot = String::new();
    in_short(report, &mut foot);
    out.push_str(&wrapped(&foot));
    out
}

/// What a verdict rests on, what was looked at, and what could not be seen; lines of 80 columns.
#[must_use]
pub fn evidence(report: &Report) -> String {
    let mut out = String::new();
    rests_on(report, &mut out);
    if let Some(cause) = &report.cause {
        if let Some(peer) = &cause.peer {
            let _ = writeln!(
                out,
                "Compared with rank {} on {}: longer in {} of {} intervals between collectives, by {} together.",
                peer.rank,
                peer.node,
                cause.late_intervals,
                cause.intervals,
                duration(cause.excess_ns),
            );
        }
        if !cause.looked_at.is_empty() {
            let _ = writeln!(out, "Looked at: {}.", cause.looked_at.join(", "));
        }
    }
    for unseen in not_visible(report) {
        let _ = writeln!(out, "Not visible: {unseen}.");
    }
    wrapped(&out)
}

fn not_visible(report: &Report) -> impl Iterator<Item = &String> {
    let of_cause = report.cause.iter().flat_map(|cause| &cause.not_visible);
    of_cause.chain(&report.evidence.not_visible)
}

/// What to look at next.
fn next(report: &Report) -> Option<String> {
    Some(match &report.verdict {
        Verdict::Rank { culprit, .. } => match report.cause.as_ref().map(causes::advice) {
            Some(Some(advice)) => advice.to_owned(),
            _ => format!(
                "look what process {} on {} does between collectives (py-spy, gdb, perf)",
                culprit.pid, culprit.node
            ),
        },
        Verdict::Hang(_) if report.evidence.of_dumps => return None,
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

fn sentence(report: &Report, rows: Rows, out: &mut String) {
    match &report.verdict {
        Verdict::Rank { culprit, also, held_up } => {
            culprit::sentence(report, culprit, out);
            let shown = rows.of(also.len());
            for other in &also[..shown] {
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
            if shown < also.len() {
                let rest = also[shown..].iter().map(|other| (other.rank, other.node.as_str()));
                let _ = writeln!(out, "Also late: {}.", ranks_on(rest));
            }
            if !held_up.is_empty() {
                let _ = writeln!(out, "Late only because they are held up themselves: {}.", ranks(held_up));
            }
            culprit::cost(report, out);
        }
        Verdict::Hang(hang) => hang::sentence(report, hang, rows, out),
        Verdict::StageImbalance { ranks: stage, ratio, share, stages } => {
            let _ = writeln!(
                out,
                "No rank is slow, but one stage has more to do: {} need {ratio:.2} times the compute time of the other \
                 stages, {} of wall time more.",
                ranks(stage),
                percent(*share)
            );
            for stage in stages {
                let bar = bar((stage.own_share * 1e6) as i64, 1_000_000, BAR);
                let _ = writeln!(
                    out,
                    "  {:>4} own work  {bar:<BAR$}  {}",
                    percent(stage.own_share),
                    self::ranks(stage.ranks.iter().map(|rank| &rank.who))
                );
            }
        }
        Verdict::DataImbalance { share, taking_turns, .. } => {
            let _ = writeln!(
                out,
                "No rank is slow, but somebody always is: {taking_turns} ranks take turns at being late, which costs {} of \
                 the time. Uneven data would look like this, and so would noise.",
                percent(*share)
            );
        }
        Verdict::WorkImbalance { ranks: most, ratio, share } => {
            let unknown = report.point_to_point.as_ref().is_some_and(|about| about.unknown);
            let _ = writeln!(
                out,
                "Work imbalance: {}, {ratio:.2} times the compute time of the other ranks, which wait in {} meanwhile ({} of \
                 the time). Nothing seen makes it slow: it has more to do, or always was slower.",
                ranks(most),
                if unknown { "calls on communicators that are not known" } else { "sends, receives and waits" },
                percent(*share)
            );
        }
        Verdict::Network(network) => network_sentence(network, out),
        Verdict::None if point_to_point::summary(report).is_some() => {
            let compared = point_to_point::summary(report).unwrap_or_default();
            let _ = writeln!(out, "No rank {} the others up ({compared}, {}).", holds(report), span(report));
        }
        Verdict::None => {
            let ranks = report.per_comm.iter().map(|c| c.heard).max().unwrap_or(0);
            let _ = writeln!(
                out,
                "No rank {} the others up ({ranks} ranks compared over {} collectives, {}).",
                holds(report),
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

/// Why.
fn cause(cause: &Cause, out: &mut String) {
    let _ = writeln!(out, "Cause: {}.", cause.summary);
    for part in cause.parts.iter().filter(|part| !part.named && part.share >= Rules::CAUSE_PART).take(PARTS) {
        let what = part.what.first().map_or_else(String::new, |what| format!(": {}", printable(&what.name)));
        let _ = writeln!(out, "  seen: {} {}{what}", part.kind.name(), percent(part.share));
    }
}

fn network_sentence(network: &Network, out: &mut String) {
    let whose =
        network.node.as_deref().map_or_else(String::new, |node| format!(" to and from host {}", printable(node)));
    let _ = writeln!(
        out,
        "No rank is slow, but the network{whose} loses segments: {} of {} collectives waited until some were sent \
         again, {} instead of {} after everybody had entered, {} of the time.",
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

/// "rank 6 on n1", "ranks 6-7 on n1, 12 on n2"; of more hosts "ranks 64-126/2 on gpu[033-064]".
fn ranks<'a>(list: impl IntoIterator<Item = &'a RankRef>) -> String {
    ranks_on(list.into_iter().map(|who| (who.rank, who.node.as_str())))
}

fn ranks_on<'a>(list: impl IntoIterator<Item = (i32, &'a str)>) -> String {
    let mut hosts: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (rank, node) in list {
        hosts.entry(node).or_default().extend(u64::try_from(rank));
    }
    let many = if hosts.values().map(Vec::len).sum::<usize>() == 1 { "rank" } else { "ranks" };
    if let (Some(ranks), 1) = (hosts.get(""), hosts.len()) {
        // Their hosts are not known.
        return format!("{many} {}", first_parts(&fold_ranges(ranks.iter().copied()), PARTS_OF_A_LIST));
    }
    if hosts.len() > HOSTS {
        let count: usize = hosts.values().map(Vec::len).sum();
        let on = first_parts(&fold_names(hosts.keys().copied()), PARTS_OF_A_LIST);
        let ranks = fold_ranges(hosts.into_values().flatten());
        let first = first_parts(&ranks, PARTS_OF_A_LIST);
        let all =
            if first.len() < ranks.len() { format!("{count} ranks ({first})") } else { format!("{many} {ranks}") };
        return format!("{all} on {on}");
    }
    let mut each: Vec<(&str, Vec<u64>)> = hosts.into_iter().collect();
    each.sort_by_key(|(_, ranks)| ranks.iter().min().copied());
    let each = each
        .into_iter()
        .map(|(node, ranks)| format!("{} on {node}", first_parts(&fold_ranges(ranks), PARTS_OF_A_LIST)));
    format!("{many} {}", each.collect::<Vec<_>>().join(", "))
}

/// What the verdict rests on in one line, who was not heard, and the notes.
fn in_short(report: &Report, out: &mut String) {
    let e = &report.evidence;
    let (answered, asked) = (report.coverage.answered, report.coverage.asked);
    let of = if e.of_dumps {
        format!("the dumps of {answered} of {asked} ranks")
    } else {
        let nodes = if asked == 1 { "1 node".to_owned() } else { format!("{asked} nodes") };
        format!("tier {}, {} collectives, {}, {answered} of {nodes}", e.tier, e.matched, clocks(report))
    };
    let unseen = match not_visible(report).count() {
        0 => String::new(),
        1 => "; 1 thing not visible".to_owned(),
        several => format!("; {several} things not visible"),
    };
    let _ = writeln!(out, "Evidence: {of}{unseen} (--evidence).");
    if !e.of_dumps {
        for (node, reason) in &report.coverage.missing {
            let _ = writeln!(out, "Not heard: {node} ({reason}).");
        }
    }
    for note in report.coverage.notes.iter().chain(&e.notes) {
        let _ = writeln!(out, "Note: {note}.");
    }
}

fn clocks(report: &Report) -> String {
    match report.evidence.clock_bound_ns {
        Some(0) => "one clock".to_owned(),
        Some(bound) => format!("clocks ±{}", duration(bound)),
        None => "not all clocks known".to_owned(),
    }
}

fn rests_on(report: &Report, out: &mut String) {
    let e = &report.evidence;
    let (answered, asked) = (report.coverage.answered, report.coverage.asked);
    if e.of_dumps {
        let _ = writeln!(out, "Evidence: the dumps of {answered} of {asked} ranks.");
        return;
    }
    let complete = if e.complete == e.matched { String::new() } else { format!(" ({} with every rank)", e.complete) };
    let _ = writeln!(
        out,
        "Evidence: tier {}, {} collectives matched{complete} in {} windows, {}, {answered} of {asked} nodes answered.",
        e.tier,
        e.matched,
        e.windows,
        clocks(report)
    );
}

/// Of a job that makes no calls any more nothing is said in the present.
fn holds(report: &Report) -> &'static str {
    if report.evidence.ended || report.evidence.is_silent { "held" } else { "holds" }
}

/// That a job has ended, or makes no calls any more, and since when; of dumps which are not there.
fn end(report: &Report, out: &mut String) {
    let e = &report.evidence;
    if e.of_dumps {
        // "No dump of rank 1: its file is empty."
        for (_, why) in &report.coverage.missing {
            let _ = writeln!(out, "{}.", hang::capital(why));
        }
    }
    let Some(last_ns) = e.last_call_ns else { return };
    let at = clock(last_ns);
    if e.ended {
        let _ = writeln!(out, "The job has ended: its last call ended at {at}.");
    } else if e.is_silent && !matches!(report.verdict, Verdict::Hang(_)) {
        let before = duration(e.until_ns.saturating_sub(last_ns));
        let _ = writeln!(
            out,
            "Its last call ended at {at}, {before} before the end of this time: it had ended or stood still."
        );
    }
}

fn span(report: &Report) -> String {
    format!("{} to {}", clock(report.evidence.since_ns), clock(report.evidence.until_ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Evidence;

    fn who(rank: i32, node: String) -> RankRef {
        RankRef { rank, node, pid: 1 }
    }

    #[test]
    fn ranks_are_folded_over_hosts() {
        let all: Vec<RankRef> = (32..64).map(|at| who(2 * at, format!("gpu{:03}", at + 1))).collect();
        assert_eq!(ranks(&all), "ranks 64-126/2 on gpu[033-064]");
        assert_eq!(ranks(&all[..1]), "rank 64 on gpu033");
        let two = [who(12, "n2".into()), who(6, "n1".into()), who(7, "n1".into())];
        assert_eq!(ranks(&two), "ranks 6-7 on n1, 12 on n2");
        let odd: Vec<RankRef> = (0..200).map(|at| who(at * at, format!("h{}", at * at * at))).collect();
        assert!(ranks(&odd).starts_with("200 ranks (0-1,4,9,16,") && ranks(&odd).len() < 400, "{}", ranks(&odd));
    }

    #[test]
    fn the_end_of_a_job_is_said_at_once() {
        let evidence =
            Evidence { last_call_ns: Some(3_605_000_000_000), until_ns: 3_700_000_000_000, ..Evidence::default() };
        let of = |evidence: Evidence| {
            let text = text(&Report { verdict: Verdict::None, evidence, ..Report::default() });
            let lines = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect::<Vec<_>>().join(" ");
            lines.split_once("). ").map(|(_, rest)| rest.to_owned()).unwrap_or_default()
        };
        assert_eq!(of(evidence.clone()), "");
        let silent = Evidence { is_silent: true, ..evidence.clone() };
        let held = text(&Report { verdict: Verdict::None, evidence: silent, ..Report::default() });
        assert!(held.starts_with("No rank held the others up"), "{held}");
        assert_eq!(
            of(Evidence { is_silent: true, ..evidence.clone() }),
            "Its last call ended at 01:00:05 UTC, 95.0 s before the end of this time: it had ended or stood still."
        );
        assert_eq!(of(Evidence { ended: true, ..evidence }), "The job has ended: its last call ended at 01:00:05 UTC.");
    }
}
