//! An explanation as text, from the top down: what, where, how, since when, what was looked at,
//! what it costs. The runbook's text comes from the caller, who knows the site's pages.

use std::fmt::Write as _;

use model::explanation::{Example, Explanation, Link};
use record::{printable, printable_lines};

use record::units::{clock, duration};

/// Links of one step, events of a host: more are counted.
const LINES: usize = 12;

/// Renders an explanation in lines of 80 columns. `with_sql` adds the questions that give its
/// figures again, which are not broken: they are to be copied.
#[must_use]
pub fn text(found: &Explanation, with_sql: bool) -> String {
    let mut out = format!("{}\n", found.what.trim_end());
    if let Some(place) = &found.place {
        let mut parts = vec![format!("rank {} is process {} on {}", place.rank, place.pid, place.node)];
        parts.extend(place.cpu.map(|cpu| format!("CPU {cpu}")));
        parts.extend(place.gpu.as_ref().map(|gpu| format!("GPU {gpu}")));
        parts.extend(place.cgroup.as_ref().map(|cgroup| format!("cgroup {cgroup}")));
        let _ = writeln!(out, "\nWhere: {}", parts.join(", "));
        if let Some(line) = &place.line {
            let _ = writeln!(out, "  {line}");
        }
    }
    if let Some(cause) = &found.cause {
        let _ = writeln!(out, "\nWhy: {cause}");
    }
    if !found.chain.is_empty() {
        out.push_str("\nHow:\n");
        found.chain.iter().take(LINES).for_each(|link| line(link, &mut out));
        more(found.chain.len(), &mut out);
    }
    for (at, example) in found.examples.iter().enumerate() {
        if at == 0 {
            let clock = match (&found.clock_of, found.clock_bound_ns) {
                (Some(node), Some(bound_ns)) => format!("{node}'s clock, ± {}", duration(bound_ns)),
                (Some(node), None) => format!("{node}'s clock"),
                (None, Some(bound_ns)) => format!("one clock, ± {}", duration(bound_ns)),
                (None, None) => "each host's own clock".to_owned(),
            };
            let _ = writeln!(out, "\nThe worst steps (times in UTC on {clock}):");
        }
        let _ = writeln!(out, " {}. {}, {} late", at + 1, example.collective, duration(example.late_ns));
        example.links.iter().take(LINES).for_each(|link| line(link, &mut out));
    }
    if let Some(since) = &found.since {
        let earlier = if since.from_start { " or earlier" } else { "" };
        let until = if since.ongoing { "until now".to_owned() } else { format!("until {}", clock(since.until_ns)) };
        let _ = writeln!(
            out,
            "\nSince {}{earlier}, {until}: last in {} of {} collectives",
            clock(since.since_ns),
            since.last_in,
            since.collectives
        );
    }
    list("What changed there then", &found.changed, &mut out);
    list("Looked at, and not it", &found.ruled_out, &mut out);
    list("Not visible", &found.not_visible, &mut out);
    if let Some(cost) = &found.cost {
        let most = if cost.upper_bound { "at most " } else { "" };
        let step =
            cost.gpu_seconds_per_step.map_or_else(String::new, |s| format!(", {most}{s:.3} rank-seconds a step"));
        let _ = writeln!(
            out,
            "\nCost: {most}{:.1} rank-seconds of {} that {}, as if {:.1} did nothing{step}",
            cost.gpu_seconds,
            if cost.waiting == 1 { "one rank".to_owned() } else { format!("{} ranks", cost.waiting) },
            if cost.waiting == 1 { "waits" } else { "wait" },
            cost.gpus_lost
        );
    }
    // Names come from processes of other people: none may control the terminal.
    let mut page = record::wrapped(&out);
    for (title, sql) in found.sql.iter().filter(|_| with_sql) {
        let question = if sql.is_empty() { format!("-- {title}") } else { format!("-- {title}\n{sql};") };
        let _ = writeln!(page, "\n{}", printable_lines(&question));
    }
    page
}

/// A step in one sentence, for the end of another report. None where its host recorded no link.
#[must_use]
pub fn short(example: &Example) -> Option<String> {
    if example.links.first()?.evidence == "collectives" {
        return None;
    }
    let one = |link: &Link| {
        let at = link.at_ns.map_or_else(String::new, |ns| format!("{} ", clock(ns)));
        let length = link.duration_ns.map_or_else(String::new, |ns| format!(" for {}", duration(ns)));
        format!("{at}{}{length}", link.what)
    };
    let chain: Vec<String> = example.links.iter().map(one).collect();
    Some(format!("For example: {}.", printable(&chain.join(" -> "))))
}

fn line(link: &Link, out: &mut String) {
    let at = link.at_ns.map_or_else(String::new, |ns| format!("{} ", clock(ns)));
    let node = if link.node.is_empty() { String::new() } else { format!("{}: ", link.node) };
    let length = link.duration_ns.map_or_else(String::new, |ns| format!(", {}", duration(ns)));
    let tier = link.tier.map_or_else(String::new, |tier| format!(", tier {tier}"));
    let _ = writeln!(out, "    {at}{node}{}{length}  [{}{tier}]", link.what, link.evidence);
}

fn list(title: &str, lines: &[String], out: &mut String) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{title}:");
    for line in lines.iter().take(LINES) {
        let _ = writeln!(out, "  - {line}");
    }
    more(lines.len(), out);
}

fn more(lines: usize, out: &mut String) {
    if lines > LINES {
        let _ = writeln!(out, "  … and {} more (--format json has all)", lines - LINES);
    }
}

#[cfg(test)]
mod tests {
    use model::explanation::{Place, Since};

    use super::*;

    fn found() -> Explanation {
        let link = |at_ns, what: &str, tier| Link {
            at_ns: Some(at_ns),
            duration_ns: Some(240_000_000),
            node: "node-3".into(),
            what: what.into(),
            evidence: if tier == Some(1) { "collectives" } else { "offcpu" }.into(),
            tier,
        };
        Explanation {
            what: "Rank 5 on host node-3 holds up the other 7 ranks.\n".into(),
            place: Some(Place { rank: 5, node: "node-3".into(), pid: 4711, cpu: Some(12), ..Place::default() }),
            cause: Some("its thread could run but had no CPU".into()),
            examples: vec![Example {
                collective: "all_reduce number 311".into(),
                late_ns: 290_000_000,
                links: vec![link(0, "\u{1b}[2Jbackup had its CPU", None), link(290_000_000, "rank 5 entered", Some(1))],
            }],
            clock_of: Some("node-1".into()),
            clock_bound_ns: Some(400_000),
            since: Some(Since { last_in: 33, collectives: 33, ongoing: true, ..Since::default() }),
            changed: (0..LINES + 2).map(|i| format!("process {i} started")).collect(),
            not_visible: vec!["GPU clocks".into(), "slow calls and synchronisations ".repeat(6).trim_end().into()],
            cost: Some(model::explanation::Cost {
                gpu_seconds: 66.9,
                gpus_lost: 6.7,
                waiting: 7,
                ..Default::default()
            }),
            sql: vec![("waits".into(), "SELECT 1".into())],
            ..Explanation::default()
        }
    }

    #[test]
    fn a_page_reads_from_what_to_cost_and_drives_no_terminal() {
        let text = text(&found(), true);
        let places: Vec<usize> = [
            "Rank 5",
            "Where:",
            "Why:",
            "The worst steps",
            "Since 00:00:00.000",
            "What changed",
            "Not visible",
            "Cost:",
            "-- waits",
        ]
        .map(|part| text.find(part).unwrap_or_else(|| panic!("no {part:?} in\n{text}")))
        .into();
        assert!(places.is_sorted(), "{text}");
        assert!(!text.contains('\u{1b}') && text.contains("… and 2 more"), "{text}");
        assert!(text.contains("00:00:00.290 node-3: rank 5 entered, 240 ms  [collectives, tier 1]"), "{text}");
        assert!(!self::text(&found(), false).contains("SELECT 1"));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn the_short_form_is_the_worst_step_and_there_is_none_without_a_chain() {
        let mut found = found();
        let sentence = short(&found.examples[0]).unwrap();
        assert!(sentence.contains(" -> 00:00:00.290 rank 5 entered") && !sentence.contains('\u{1b}'), "{sentence}");
        found.examples[0].links.remove(0);
        assert_eq!(short(&found.examples[0]), None);
    }
}
