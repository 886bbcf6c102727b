//! The parts of the page that are text and tables, complete without a script.

use std::collections::HashMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use model::explanation::{Explanation, Link};
use verdicts::{RankScore, Role};

use super::escape::{csv, text, value};
use super::heat::{Sums, by_lateness, sums};
use super::parts::{lacks, named};
use super::{Asked, Page};
use record::units::{clock, duration, tenths};

/// The title and summary of the page.
pub(super) fn lead(page: &Page) -> String {
    let (since_ns, until_ns) = page.span_ns;
    let mut coverage = page.coverage.lines().into_iter();
    let head = coverage.next().unwrap_or_default();
    let class = if page.coverage.is_complete() { "" } else { " class=\"partial\"" };
    format!(
        "<p>{} to {} UTC, {}. <span{class}>{}.</span></p>",
        text(&date(since_ns)),
        text(&date(until_ns)),
        text(&duration(until_ns - since_ns)),
        text(&head)
    )
}

/// Date and time of day in UTC.
pub(super) fn date(unix_ns: i64) -> String {
    let at = Timestamp::from_nanosecond(unix_ns.into());
    at.map_or_else(|_| format!("{unix_ns} ns"), |at| at.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

/// The first paragraph of a text of lines of 80 columns, a line a sentence.
fn sentences(text: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for line in text.lines().map(str::trim).take_while(|line| !line.is_empty()) {
        match all.last_mut().filter(|last| !last.ends_with(['.', ':'])) {
            Some(last) => *last = format!("{last} {line}"),
            None => all.push(line.to_owned()),
        }
    }
    all
}

/// The verdict as text.
pub(super) fn verdict(page: &Page) -> String {
    let mut out = String::new();
    let mut sentences = sentences(&page.text).into_iter();
    match sentences.next() {
        Some(first) => {
            // Who and by how much at a glance, then the rest.
            let end = first.find([',', ';']).map_or(first.len(), |at| at + 1);
            let (who, rest) = first.split_at(end);
            let _ = write!(out, "<p class=\"headline\"><strong>{}</strong>{}</p>", text(who), text(rest));
            sentences.for_each(|sentence| {
                let _ = write!(out, "<p>{}</p>", text(&sentence));
            });
        }
        None => {
            let _ = write!(
                out,
                "<p class=\"headline\">{}</p>",
                lacks(
                    page,
                    "verdict",
                    "There is no verdict of this time. Give one in which a job ran (rankmesh jobs lists them, --between A B), or see what this host records: rankmesh check."
                )
            );
        }
    }
    if let Some(cause) = page.found.as_ref().and_then(|found| found.cause.as_ref()) {
        let _ = write!(out, "<p><strong>Why:</strong> {}</p>", text(cause));
    }
    if let Some(money) = &page.money {
        let _ = write!(out, "<p>{}</p>", text(money));
    }
    let report = page.verdict.as_ref();
    if let Some(report) = report {
        let evidence = &report.evidence;
        let bound = match evidence.clock_bound_ns {
            Some(bound_ns) => format!("clocks known within ± {}", duration(bound_ns)),
            None => "clocks of hosts not known against each other".to_owned(),
        };
        let _ = write!(
            out,
            "<p>Evidence: tier {}, {} collectives in {} windows from {} to {} UTC, {}.</p>",
            evidence.tier,
            evidence.matched,
            evidence.windows,
            text(&clock(evidence.since_ns)),
            text(&clock(evidence.until_ns)),
            text(&bound)
        );
    }
    let mut hidden: Vec<&str> = Vec::new();
    hidden.extend(report.iter().flat_map(|report| &report.evidence.not_visible).map(String::as_str));
    hidden.extend(page.found.iter().flat_map(|found| &found.not_visible).map(String::as_str));
    let mut known = std::collections::BTreeSet::new();
    hidden.retain(|line| known.insert(*line));
    out += &list("Not visible", hidden.into_iter());
    out += &list(
        "Parts of this page that could not be made",
        page.lacking.iter().map(|(part, why)| format!("{part}: {why}")),
    );
    if !page.text.is_empty() {
        let _ = write!(
            out,
            "<details class=\"no-print\"><summary>The report as <code>rankmesh stragglers</code> prints it</summary><pre tabindex=\"0\">{}</pre></details>",
            text(page.text.trim_end())
        );
    }
    out
}

/// Lines below a heading; nothing without any.
pub(super) fn list(title: &str, lines: impl Iterator<Item = impl AsRef<str>>) -> String {
    // What follows a first line is an error's SQL, which is among the questions.
    let first = |line: &str| text(line.lines().next().unwrap_or_default());
    let items: String = lines.map(|line| format!("<li>{}</li>", first(line.as_ref()))).collect();
    if items.is_empty() { items } else { format!("<h3>{title}</h3><ul>{items}</ul>") }
}

/// One line of the table of ranks.
#[derive(Debug, Default)]
struct Row<'a> {
    rank: i64,
    node: &'a str,
    pid: i64,
    sums: Option<Sums>,
    score: Option<&'a RankScore>,
}

fn rows(page: &Page) -> Vec<Row<'_>> {
    let mut all: HashMap<(&str, i64), Row<'_>> = HashMap::new();
    if let Some(board) = &page.board {
        for (rank, sums) in board.ranks.iter().zip(sums(board)) {
            let row = Row { rank: rank.rank.into(), node: &rank.node, pid: rank.pid, sums: Some(sums), score: None };
            all.insert((&rank.node, rank.pid), row);
        }
    }
    for score in page.verdict.iter().flat_map(|report| report.per_comm.first()).flat_map(|comm| &comm.ranks) {
        let fresh = Row { rank: score.rank.into(), node: &score.node, pid: score.pid, ..Row::default() };
        let row = all.entry((&score.node, score.pid)).or_insert(fresh);
        (row.rank, row.score) = (score.rank.into(), Some(score));
    }
    let named = named(page);
    let mut rows: Vec<Row<'_>> = all.into_values().collect();
    let place =
        |row: &Row<'_>| named.iter().position(|(node, pid)| node == row.node && *pid == row.pid).unwrap_or(named.len());
    let first = page.board.as_ref().is_some_and(by_lateness);
    let late = |row: &Row<'_>| {
        row.sums.map_or_else(|| row.score.map_or(0, |score| score.excess_ns), |sums| sums.shown_ns(first))
    };
    rows.sort_by_key(|row| (place(row), std::cmp::Reverse(late(row)), row.rank, row.node, row.pid));
    rows
}

/// The table of ranks, named ones first.
pub(super) fn ranks(page: &Page) -> String {
    let rows = rows(page);
    if rows.is_empty() {
        return format!("<p>{}</p>", lacks(page, "ranks", "No ranks were recorded in this time."));
    }
    let named = named(page);
    let mut out = String::from(
        "<div class=\"tools needs-script no-print\" hidden><label for=\"filter\">Only rows with</label> \
         <input id=\"filter\" type=\"search\" autocomplete=\"off\" aria-controls=\"rank-table\"> \
         <span id=\"filtered\" role=\"status\" aria-live=\"polite\"></span></div>\n\
         <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Table of ranks\"><table id=\"rank-table\" class=\"sortable\">\n\
         <caption>Ranks, worst first. Sums over the whole time: late is how much later than the first it entered collectives (empty where clocks \
         are not known), others wait how much longer they were in them than it, waits how long it was in them beyond who was there least. Worst in: \
         windows. Median late, z and windows are the verdict's.</caption>\n<thead><tr>",
    );
    let heads = [
        ("Rank", true),
        ("Host", false),
        ("Process", true),
        ("Late", true),
        ("Others wait", true),
        ("Waits", true),
        ("Computes", true),
        ("Worst in", true),
        ("Median late", true),
        ("z", true),
        ("Windows", true),
        ("Role", false),
    ];
    for (name, number) in heads {
        let _ = write!(out, "<th scope=\"col\"{}>{name}</th>", if number { " class=\"n\"" } else { "" });
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &rows {
        let is_named = named.iter().any(|(node, pid)| node == row.node && *pid == row.pid);
        let role = match row.score.map(|score| score.role) {
            Some(Role::Culprit) => "culprit",
            Some(Role::Victim) => "waits",
            Some(Role::HeldUp) => "held up",
            _ if is_named => "named",
            _ => "",
        };
        let _ = write!(
            out,
            "<tr{}><th scope=\"row\" class=\"n\">{}</th><td>{}</td><td class=\"n\">{}</td>",
            if is_named { " class=\"named\"" } else { "" },
            row.rank,
            text(row.node),
            row.pid
        );
        let sums = row.sums;
        for ns in [
            sums.and_then(|sums| sums.late_ns),
            sums.map(|sums| sums.delay_ns),
            sums.and_then(|sums| sums.wait_ns),
            sums.and_then(|sums| sums.compute_ns),
        ] {
            out += &cell(ns, duration);
        }
        out += &cell(sums.and_then(|sums| i64::try_from(sums.worst_in).ok()), |windows| windows.to_string());
        let score = row.score.filter(|score| score.lateness_bound_ns.is_some());
        out += &cell(score.map(|score| score.lateness.median_ns), duration);
        match row.score.and_then(|score| score.z) {
            Some(z) => {
                let _ = write!(out, "<td class=\"n\" data-v=\"{z}\">{}</td>", tenths(z));
            }
            None => out.push_str("<td class=\"n\"></td>"),
        }
        out += &cell(row.score.map(|score| i64::try_from(score.flagged).unwrap_or(i64::MAX)), |windows| {
            windows.to_string()
        });
        let _ = writeln!(out, "<td>{role}</td></tr>");
    }
    out.push_str("</tbody></table></div>");
    out
}

fn cell(number: Option<i64>, shown: impl Fn(i64) -> String) -> String {
    match number {
        Some(number) => format!("<td class=\"n\" data-v=\"{number}\">{}</td>", text(&shown(number))),
        None => "<td class=\"n\"></td>".to_owned(),
    }
}

/// The cause, with its evidence.
pub(super) fn cause(page: &Page) -> String {
    let Some(found) = &page.found else {
        return format!("<p>{}</p>", lacks(page, "cause", "There is no explanation."));
    };
    let mut out = String::new();
    let _ = write!(
        out,
        "<p>{}</p>",
        text(
            found.cause.as_deref().unwrap_or("No cause is named: nobody is, or nothing that was recorded explains it.")
        )
    );
    if let Some(place) = &found.place {
        let mut parts = vec![format!("rank {}, process {} on {}", place.rank, place.pid, place.node)];
        parts.extend(place.cpu.map(|cpu| format!("CPU {cpu}")));
        parts.extend(place.gpu.as_ref().map(|gpu| format!("GPU {gpu}")));
        parts.extend(place.cgroup.as_ref().map(|cgroup| format!("cgroup {cgroup}")));
        parts.extend(place.line.clone());
        let _ = write!(out, "<p><strong>Where:</strong> {}</p>", text(&parts.join(", ")));
    }
    if let Some(cause) =
        page.verdict.as_ref().and_then(|report| report.cause.as_ref()).filter(|cause| !cause.parts.is_empty())
    {
        out.push_str(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Evidence of the cause\"><table>\n\
             <caption>What the culprit's host recorded in its late intervals, beside its peer in the same ones.</caption>\n<thead><tr>\
             <th scope=\"col\">Kind</th><th scope=\"col\" class=\"n\">Culprit</th><th scope=\"col\" class=\"n\">Peer</th>\
             <th scope=\"col\" class=\"n\">Explains</th><th scope=\"col\">What</th></tr></thead>\n<tbody>\n",
        );
        for part in &cause.parts {
            let what: Vec<String> =
                part.what.iter().take(4).map(|what| format!("{} {}", what.name, duration(what.ns))).collect();
            let _ = writeln!(
                out,
                "<tr{}><th scope=\"row\">{}</th><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{:.0} %</td><td>{}</td></tr>",
                if part.named { " class=\"named\"" } else { "" },
                text(part.kind.name()),
                text(&duration(part.culprit_ns)),
                text(&duration(part.peer_ns)),
                part.share * 100.0,
                text(&what.join("; "))
            );
        }
        out.push_str("</tbody></table></div>");
    }
    out += &chain(found);
    out += &list("What changed there then", found.changed.iter());
    out += &list("Looked at, and not it", found.ruled_out.iter());
    if !page.commands.trim().is_empty() {
        let _ = write!(out, "<h3>What to do</h3><pre tabindex=\"0\">{}</pre>", text(page.commands.trim_end()));
    }
    out
}

fn chain(found: &Explanation) -> String {
    let mut out = String::new();
    let links = |links: &[Link]| -> String {
        let one = |link: &Link| {
            let at = link.at_ns.map_or_else(String::new, |ns| format!("{} ", clock(ns)));
            let node = if link.node.is_empty() { String::new() } else { format!("{}: ", link.node) };
            let length = link.duration_ns.map_or_else(String::new, |ns| format!(", {}", duration(ns)));
            let tier = link.tier.map_or_else(String::new, |tier| format!(", tier {tier}"));
            format!("<li>{}</li>", text(&format!("{at}{node}{}{length} [{}{tier}]", link.what, link.evidence)))
        };
        links.iter().map(one).collect()
    };
    if !found.chain.is_empty() {
        let _ = write!(out, "<h3>How</h3><ol>{}</ol>", links(&found.chain));
    }
    for example in &found.examples {
        let _ = write!(
            out,
            "<h3>{}</h3><ol>{}</ol>",
            text(&format!("{}, {} late", example.collective, duration(example.late_ns))),
            links(&example.links)
        );
    }
    out
}

/// The nodes, what they recorded and what not.
pub(super) fn nodes(page: &Page) -> String {
    let mut out = String::new();
    if !page.coverage.missing.is_empty() {
        out.push_str(
            "<table><caption>Missing nodes: nothing of them is on this page.</caption><thead><tr><th scope=\"col\">Node</th>\
             <th scope=\"col\">Why</th></tr></thead><tbody>",
        );
        for missing in &page.coverage.missing {
            let _ = write!(
                out,
                "<tr class=\"named\"><th scope=\"row\">{}</th><td>{}</td></tr>",
                text(&missing.node),
                text(&missing.reason)
            );
        }
        out.push_str("</tbody></table>");
    }
    match &page.nodes {
        Some(nodes) => out += &table(nodes, "What agents recorded on each node, and what they lost.", "Table of nodes"),
        None => {
            let _ = write!(out, "<p>{}</p>", lacks(page, "nodes", "What agents recorded is not known."));
        }
    }
    out += &list("What these nodes know to be missing", page.coverage.notes.iter());
    out
}

/// A table of an answer.
pub(super) fn table(asked: &Asked, caption: &str, label: &str) -> String {
    let mut out = format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{label}\"><table><caption>{caption}</caption><thead><tr>"
    );
    for name in &asked.columns {
        let _ = write!(out, "<th scope=\"col\">{}</th>", text(name));
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in &asked.rows {
        out.push_str("<tr>");
        for (at, cell) in row.iter().enumerate() {
            let shown = text(&value(cell));
            let _ =
                if at == 0 { write!(out, "<th scope=\"row\">{shown}</th>") } else { write!(out, "<td>{shown}</td>") };
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>");
    out
}

/// The questions with their answers, for readers who want to ask further.
pub(super) fn asked(page: &Page) -> String {
    let mut out = String::from("<p>Each gives the figures above again; ask it with <code>rankmesh query</code>.</p>\n");
    for (at, asked) in page.asked.iter().enumerate() {
        let _ = write!(
            out,
            "<details><summary>{}</summary>\n<pre tabindex=\"0\"><code>{}</code></pre>\n",
            text(&asked.title),
            text(&asked.sql)
        );
        if !asked.columns.is_empty() {
            let _ = write!(
                out,
                "<p>{} rows as CSV: <button type=\"button\" class=\"save needs-script\" data-of=\"csv-{at}\" hidden>Save</button></p>\n\
                 <pre tabindex=\"0\" id=\"csv-{at}\" class=\"csv\">{}</pre>\n",
                asked.rows.len(),
                text(csv(&asked.columns, &asked.rows).trim_end())
            );
        }
        out.push_str("</details>\n");
    }
    out
}
