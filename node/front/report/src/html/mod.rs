//! A job as one HTML file that loads nothing from anywhere: verdict, heat map, the worst steps,
//! ranks, step time, cause, services, nodes, and the questions behind it all. Without a job it is on
//! services alone.
//!
//! - `sections`: the parts that are text and tables; `figures`: drawings, as SVG; `services`: requests;
//!   `heat`: the values of the heat map, which report.js draws; `escape`: text of others; `parts`: helpers of
//!   several of them.
//!
//! Scripts and styles of the page are two files in this directory. A policy in the page's head
//! (<https://www.w3.org/TR/CSP3/>) names their hashes and forbids everything else, so that even
//! text that escaped the escaping would neither run nor load.

mod escape;
mod figures;
mod heat;
mod parts;
mod sections;
mod services;

#[cfg(test)]
mod tests;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
pub use heat::delays;
use model::Coverage;
use model::board::Board;
use model::explanation::Explanation;
use query_planner::Value;
use serde::Serialize;
use verdicts::Report;

const SCRIPT: &str = include_str!("report.js");
/// The style of reports: colours, tables, text.
pub const STYLE: &str = include_str!("report.css");

/// The contents of a page.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The job's name; empty: not known.
    pub job: String,
    /// When it was made, as text.
    pub made: String,
    /// The version of rankmesh.
    pub version: String,
    /// The target that was asked, as text.
    pub asked_of: String,
    /// The span of the page, Unix nanoseconds.
    pub span_ns: (i64, i64),
    /// The verdict, and the span that it is about.
    pub verdict: Option<Report>,
    /// The verdict as text.
    pub text: String,
    /// The explanation of it.
    pub found: Option<Explanation>,
    /// The runbook's commands, filled in.
    pub commands: String,
    /// Its cost in money, as text.
    pub money: Option<String>,
    /// What ranks did, window by window.
    pub board: Option<Board>,
    /// The worst steps.
    pub steps: Vec<Step>,
    /// Findings while the job ran.
    pub findings: Vec<Mark>,
    /// Notes of people and programs.
    pub marks: Vec<Mark>,
    /// Servers' requests, those with the most first.
    pub services: Vec<ServiceChapter>,
    /// Services that are not among them.
    pub services_left_out: usize,
    /// No job made calls in this time: the page is on services alone.
    pub without_job: bool,
    /// The nodes and the state of their recording.
    pub nodes: Option<Asked>,
    /// All questions that were asked.
    pub asked: Vec<Asked>,
    /// Parts that could not be made, and why.
    pub lacking: Vec<(String, String)>,
    /// Coverage over all questions.
    pub coverage: Coverage,
}

/// A step: one collective of all ranks.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Step {
    /// Function and number.
    pub collective: String,
    /// The clocks of its hosts are not known, and assumed such that its ranks leave it together.
    pub by_ends: bool,
    /// Each rank's part.
    pub ranks: Vec<Lane>,
    /// Events that hosts recorded of these ranks during it.
    pub events: Vec<Seen>,
}

/// A rank in a step.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Lane {
    /// Its rank.
    pub rank: i64,
    /// Its host.
    pub node: String,
    /// Its process.
    pub pid: i64,
    /// When it entered, Unix nanoseconds of the target's clock.
    pub entry_ns: i64,
    /// How long it was in the call.
    pub duration_ns: i64,
    /// Uncertainty of its entry; none where its host's clock is not known.
    pub bound_ns: Option<i64>,
    /// How long it computed before; none where that is not known.
    pub own_ns: Option<i64>,
}

/// Something that a host recorded of a rank's process.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Seen {
    /// The host.
    pub node: String,
    /// The process.
    pub pid: i64,
    /// When it began, on the same clock.
    pub at_ns: i64,
    /// How long it took.
    pub duration_ns: i64,
    /// Its kind and details.
    pub what: String,
}

/// A span or a point in time with a text.
#[derive(Debug, Clone, Default)]
pub struct Mark {
    /// From here, Unix nanoseconds.
    pub since_ns: i64,
    /// To here; the same of a point.
    pub until_ns: i64,
    /// Its source.
    pub node: String,
    /// Its text.
    pub text: String,
}

/// A service's requests.
#[derive(Debug, Clone, Default)]
pub struct ServiceChapter {
    /// Its name.
    pub name: String,
    /// Its figures in sentences.
    pub lead: Vec<String>,
    /// The figures of all and of each host.
    pub hosts: Asked,
    /// How much longer the slowest take; none where that is not known.
    pub excess: Option<String>,
    /// What they have more of; no rows where nothing has grown.
    pub parts: Asked,
    /// What most delays each; likewise.
    pub causes: Asked,
    /// What they share, and what is not known, in sentences.
    pub beyond: Vec<String>,
    /// Some of them.
    pub examples: Vec<Chain>,
}

/// A request, and who did what for it, then who.
#[derive(Debug, Clone, Default)]
pub struct Chain {
    /// Which one.
    pub head: String,
    /// Who did what, for how long.
    pub links: Vec<String>,
}

/// A question with its answer.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// Its title.
    pub title: String,
    /// The question.
    pub sql: String,
    /// Columns of the answer.
    pub columns: Vec<String>,
    /// Its rows.
    pub rows: Vec<Vec<Value>>,
}

/// The page.
#[must_use]
pub fn render(page: &Page) -> String {
    let source = |text: &str| format!("'sha256-{}'", STANDARD.encode(digest(&SHA256, text.as_bytes())));
    let policy = format!(
        "default-src 'none'; script-src {}; style-src {}; base-uri 'none'; form-action 'none'",
        source(SCRIPT),
        source(STYLE)
    );
    let title = match (page.without_job, page.job.is_empty()) {
        (true, _) => "Services".to_owned(),
        (false, true) => "Job".to_owned(),
        (false, false) => format!("Job {}", escape::text(&page.job)),
    };
    let mut sections: Vec<(&str, &str, String)> = vec![
        ("verdict", "Verdict", sections::verdict(page)),
        ("heat", "Ranks over time", heat::section(page)),
        ("steps", "The worst steps", figures::steps(page)),
        ("ranks", "Ranks", sections::ranks(page)),
        ("time", "Step time", figures::step_time(page)),
        ("cause", "Cause", sections::cause(page)),
        ("services", "Services", services::section(page)),
        ("nodes", "Nodes, and what they could not record", sections::nodes(page)),
        ("asked", "Questions behind this page", sections::asked(page)),
    ];
    let is_on_page = |id: &str| match id {
        "services" => !page.services.is_empty(),
        "nodes" | "asked" => true,
        _ => !page.without_job,
    };
    sections.retain(|(id, _, _)| is_on_page(id));
    let first = sections.first().map_or("", |(id, _, _)| id);
    let links: String = sections.iter().map(|(id, name, _)| format!("<li><a href=\"#{id}\">{name}</a></li>")).collect();
    let body: String = sections
        .iter()
        .map(|(id, name, html)| {
            format!(
                "<section id=\"{id}\" aria-labelledby=\"{id}-h\">\n<h2 id=\"{id}-h\">{name}</h2>\n{html}\n</section>\n"
            )
        })
        .collect();
    let lead = sections::lead(page);
    let made = escape::text(&format!("Made by rankmesh {} at {} from {}.", page.version, page.made, page.asked_of));
    // The policy comes first: it applies to what follows it.
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>{title} – rankmesh report</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <a class=\"skip\" href=\"#{first}\">To the first part</a>\n\
         <header>\n<h1>{title}</h1>\n{lead}\n<nav aria-label=\"Parts of this page\"><ul>{links}</ul></nav>\n</header>\n\
         <main>\n{body}</main>\n<footer><p>{made} This file loads nothing and sends nothing.</p></footer>\n\
         <script type=\"application/json\" id=\"board\">{board}</script>\n<script>{SCRIPT}</script>\n</body>\n</html>\n",
        board = escape::json(&heat::values(page)),
    )
}
