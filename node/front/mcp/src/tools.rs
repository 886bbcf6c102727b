//! The tools: their names and parameters, and the questions that they ask for an assistant. All of
//! them only read.

use std::sync::Arc;

use anyhow::{Context, bail};
use ask::args::{SpanArgs, TargetArgs};
use ask::output::cell_text;
use ask::times::{When, parse_when};
use ask::values::parse_ranks;
use ask::{NoAnswer, Piece, Reply, Span, Target, UsageError};
use explain::stacks::{self, StacksAnswer, Unread};
use front::{runbook, schema, stragglers};
use model::{Coverage, ExplainQuestion, ExplainWhat, LocalRequest, StacksQuestion, StacksWanted, StragglersQuestion};
use record::printable;
use rmcp::model::{Tool, ToolAnnotations};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, json};
use verdicts::Report;

use super::bounds::{Page, fenced};

/// Rows of an answer unless more are asked for.
const ROWS: usize = 200;
/// Most lines of an answer that are no rows.
const LINES: usize = 2_000;

type Arguments = Map<String, serde_json::Value>;

/// The definitions.
pub(super) fn list() -> Vec<Tool> {
    let job = json!({"type": "string", "description": "job_id, or job_id.step_id; else the worst job"});
    let since = json!({"type": "string", "description": "10m, 14:05 or 2026-11-22T03:00; else what stands now"});
    let until = json!({"type": "string", "description": "with since"});
    let offset = json!({"type": "integer", "minimum": 0, "description": "skip so many rows or lines"});
    let tool = |name: &'static str,
                title: &str,
                about: &'static str,
                properties: serde_json::Value,
                required: &[&str]| {
        let schema =
            json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
        let serde_json::Value::Object(schema) = schema else { unreachable!("is an object") };
        let hints = ToolAnnotations::with_title(title).read_only(true).idempotent(true).open_world(false);
        Tool::new_with_raw(name, Some(about.into()), Arc::new(schema)).with_annotations(hints)
    };
    vec![
        tool(
            "diagnose",
            "Which rank, and why",
            "Start here. Which rank holds a job up, on which host, why, since when, what it costs, what was ruled out or not \
             visible, and commands to check and fix it.",
            json!({"job": job, "since": since, "until": until, "offset": offset,
                "finding": {"type": "integer", "description": "ts_ns of a row of findings, in place of since"}}),
            &[],
        ),
        tool(
            "ranks",
            "Scores of ranks",
            "CSV of every rank's scores, the latest first. The culprit of a synchronising job has the LOWEST wait; long waits \
             are its victims'.",
            json!({"job": job, "since": since, "until": until, "offset": offset,
                "ranks": {"type": "string", "description": "only these: 3,5-7"}}),
            &[],
        ),
        tool(
            "query",
            "Ask SQL",
            "SQL (SQLite's dialect, SELECT only) over all nodes as if their stores were one database; CSV. Every table has a \
             column node. Times are ns, ts_ns is Unix time. Aggregate and narrow by ts_ns rather than page.",
            json!({"sql": {"type": "string"}, "limit": {"type": "integer", "minimum": 1, "maximum": 10000, "default": ROWS},
                "offset": offset, "nodes": {"type": "array", "items": {"type": "string"}, "description": "ask only these"},
                "plan": {"type": "boolean", "description": "the plan in place of rows"}}),
            &["sql"],
        ),
        tool(
            "schema",
            "Tables and columns",
            "The tables, a line each; of one table its columns with meaning and unit.",
            json!({"table": {"type": "string"}, "offset": offset}),
            &[],
        ),
        tool(
            "stacks",
            "Call stacks now",
            "Where ranks are at this moment: their call stacks (Python lines and native functions) in classes, by ranks.",
            json!({"job": job, "ranks": {"type": "string", "description": "only these: 3,5-7"}, "offset": offset,
                "children": {"type": "boolean", "description": "also their child processes, such as data loaders"}}),
            &[],
        ),
        tool(
            "nodes",
            "Hosts of the mesh",
            "CSV of the nodes: live or dead, ranks, rows, what they record, labels.",
            json!({"offset": offset}),
            &[],
        ),
    ]
}

/// The target of tools, and their limits.
pub(super) struct Toolbox {
    pub(super) target: Target,
    pub(super) flags: TargetArgs,
    /// The job if an assistant names none.
    pub(super) job: Option<String>,
    pub(super) max_tokens: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Diagnose {
    job: Option<String>,
    since: Option<String>,
    until: Option<String>,
    finding: Option<i64>,
    #[serde(default)]
    offset: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ranks {
    job: Option<String>,
    since: Option<String>,
    until: Option<String>,
    ranks: Option<String>,
    #[serde(default)]
    offset: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Query {
    sql: String,
    limit: Option<usize>,
    #[serde(default)]
    offset: usize,
    #[serde(default)]
    nodes: Vec<String>,
    #[serde(default)]
    plan: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Schema {
    table: Option<String>,
    #[serde(default)]
    offset: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stacks {
    job: Option<String>,
    ranks: Option<String>,
    #[serde(default)]
    children: bool,
    #[serde(default)]
    offset: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nodes {
    #[serde(default)]
    offset: usize,
}

fn parsed<T: DeserializeOwned>(arguments: Arguments) -> Result<T, UsageError> {
    serde_json::from_value(serde_json::Value::Object(arguments))
        .map_err(|error| UsageError(format!("arguments: {error}")))
}

impl Toolbox {
    /// Calls a tool; none where there is no such tool.
    ///
    /// # Errors
    /// Arguments are wrong, or there is no answer; see [`failure`].
    pub(super) fn call(&self, name: &str, arguments: Arguments) -> Option<anyhow::Result<String>> {
        Some(match name {
            "diagnose" => parsed(arguments).map_err(Into::into).and_then(|asked| self.diagnose(asked)),
            "ranks" => parsed(arguments).map_err(Into::into).and_then(|asked| self.ranks(asked)),
            "query" => parsed(arguments).map_err(Into::into).and_then(|asked| self.query(asked)),
            "schema" => parsed(arguments).map_err(Into::into).and_then(|asked| self.schema(asked)),
            "stacks" => parsed(arguments).map_err(Into::into).and_then(|asked| self.stacks(asked)),
            "nodes" => parsed(arguments).map_err(Into::into).and_then(|asked| self.nodes(&asked)),
            _ => return None,
        })
    }

    fn job(&self, asked: Option<String>) -> Option<String> {
        asked.or_else(|| self.job.clone())
    }

    fn span(&self, since: Option<&str>, until: Option<&str>) -> anyhow::Result<Span> {
        let when = |text: Option<&str>| -> Result<Option<When>, UsageError> {
            text.map(parse_when).transpose().map_err(UsageError)
        };
        let (since, until) = (when(since)?, when(until)?);
        if since.is_none() && until.is_some() {
            return Err(UsageError("until: give since, too".to_owned()).into());
        }
        Ok(SpanArgs { since, until, between: Vec::new() }.resolved(&self.target)?)
    }

    fn diagnose(&self, asked: Diagnose) -> anyhow::Result<String> {
        let what = match (asked.finding, self.span(asked.since.as_deref(), asked.until.as_deref())?) {
            (Some(_), Span::Back(_) | Span::Between(..)) => {
                return Err(UsageError("finding, or since and until: not both".to_owned()).into());
            }
            (Some(ts_ns), Span::Last) => ExplainWhat::Finding { ts_ns },
            (None, Span::Between(since_ns, until_ns)) => ExplainWhat::Between { since_ns, until_ns },
            (None, Span::Back(since_ms)) => ExplainWhat::Since { since_ms },
            (None, Span::Last) => ExplainWhat::Standing,
        };
        let found = self.target.explain(ExplainQuestion {
            what,
            job: self.job(asked.job),
            comm: None,
            timeout_ms: self.flags.timeout_ms(),
            nodes: self.flags.ask.nodes.clone(),
            labels: self.flags.ask.label.clone(),
        })?;
        self.check_coverage(&found.coverage)?;
        let mut text = explain::page::text(&found, false);
        text.push_str(&runbook::to_do(&found, false)?);
        let next = match &found.place {
            Some(place) => format!(
                "Next: ranks; stacks with ranks={} if it goes on now; query for the figures (tables collectives, offcpu, \
                 host_samples; rows of node {} around the times above).",
                place.rank,
                printable(&place.node)
            ),
            None => "Next: ranks for all scores; nodes for who records; diagnose with another since.".to_owned(),
        };
        Ok(self.lines(&text, asked.offset, Some(&found.coverage), Some(&next)))
    }

    fn ranks(&self, asked: Ranks) -> anyhow::Result<String> {
        let only = asked.ranks.as_deref().map(parse_ranks).transpose().map_err(UsageError)?;
        let (since_ms, between) = match self.span(asked.since.as_deref(), asked.until.as_deref())? {
            Span::Last => (None, None),
            Span::Back(since_ms) => (Some(since_ms), None),
            Span::Between(since_ns, until_ns) => (None, Some((since_ns, until_ns))),
        };
        let question = StragglersQuestion {
            since_ms,
            job: self.job(asked.job),
            comm: None,
            timeout_ms: self.flags.timeout_ms(),
            nodes: self.flags.ask.nodes.clone(),
            labels: self.flags.ask.label.clone(),
        };
        let json = self.target.stragglers(question, between)?;
        let answer: serde_json::Value = serde_json::from_str(&json).context("reading the verdict")?;
        let coverage = stragglers::coverage(&answer["coverage"]).context("reading the coverage")?;
        self.check_coverage(&coverage)?;
        let report: Report = serde_json::from_value(answer).context("reading the verdict")?;
        let wanted =
            |rank: i32| only.as_ref().is_none_or(|only| u32::try_from(rank).is_ok_and(|rank| only.0.contains(&rank)));
        let mut rows: Vec<(i64, Vec<String>)> = Vec::new();
        let optional = |figure: Option<String>| figure.unwrap_or_default();
        for comm in &report.per_comm {
            for rank in comm.ranks.iter().filter(|rank| wanted(rank.rank)) {
                let bounded = |ns: i64| optional(rank.lateness_bound_ns.map(|_| ns.to_string()));
                let role = serde_json::to_value(rank.role)?;
                rows.push((
                    rank.excess_ns,
                    vec![
                        comm.comm_hash.clone(),
                        rank.rank.to_string(),
                        rank.node.clone(),
                        rank.pid.to_string(),
                        role.as_str().unwrap_or_default().to_owned(),
                        rank.collectives.to_string(),
                        bounded(rank.lateness.mean_ns),
                        bounded(rank.lateness.p95_ns),
                        optional(rank.lateness_bound_ns.map(|ns| ns.to_string())),
                        rank.wait.mean_ns.to_string(),
                        optional(rank.own_excess_ns.map(|ns| ns.to_string())),
                        rank.excess_ns.to_string(),
                        format!("{:.4}", rank.share),
                        optional(rank.z.map(|z| format!("{z:.1}"))),
                        format!("{}/{}", rank.flagged, comm.windows),
                    ],
                ));
            }
        }
        // Latest first; equal ones stay in the order of communicators and ranks.
        rows.sort_by_key(|(excess_ns, _)| std::cmp::Reverse(*excess_ns));
        let mut lines: Vec<String> = rows.iter().map(|(_, row)| csv(row)).collect();
        let mut head =
            "comm,rank,node,pid,role,collectives,lateness_mean_ns,lateness_p95_ns,lateness_bound_ns,wait_mean_ns,\
            own_excess_ns,excess_ns,share,z,flagged_windows"
                .to_owned();
        if let Some(about) = &report.point_to_point {
            let shares = about.ranks.iter().filter(|rank| wanted(rank.rank)).map(|rank| {
                csv(&[
                    "point_to_point".to_owned(),
                    rank.rank.to_string(),
                    rank.node.clone(),
                    rank.pid.to_string(),
                    format!("compute={:.4}", rank.compute),
                    format!("in_calls_not_compared={:.4}", rank.unscored),
                ])
            });
            lines.extend(shares);
            head.push_str("\n(rows with comm=point_to_point: shares of the rank's time)");
        }
        let note = lines.is_empty().then_some("No rank's calls were seen in that time, of those asked for.");
        Ok(self.rows(&head, &lines, asked.offset, LINES, Some(&coverage), note))
    }

    fn query(&self, asked: Query) -> anyhow::Result<String> {
        let most = asked.limit.unwrap_or(ROWS).clamp(1, 10_000);
        let mut question = self.flags.question(asked.sql);
        question.plan_only = asked.plan;
        if !asked.nodes.is_empty() {
            question.nodes = asked.nodes;
        }
        let mut page = self.page(asked.offset, most);
        let mut head = String::new();
        // Rows beyond the page are counted and dropped, so that the coverage is that of the full
        // answer.
        let reply = self.target.query(question, &mut |piece| {
            match piece {
                Piece::Columns(columns) => {
                    head = printable(&csv(&columns.iter().map(|column| column.name.clone()).collect::<Vec<_>>()));
                    page.spend(&head);
                }
                Piece::Rows(rows) => {
                    for row in rows {
                        if page.wants() {
                            page.line(&csv(&row.iter().map(cell_text).collect::<Vec<_>>()))
                        } else {
                            page.skip()
                        }
                    }
                }
                Piece::Idle | Piece::Watched(_) => {}
            }
            Ok(())
        })?;
        match reply {
            Reply::Text(plan) => Ok(self.lines(&plan, asked.offset, None, None)),
            Reply::Result { coverage, .. } => {
                self.check_coverage(&coverage)?;
                Ok(paged(page, "rows", &head, Some(&coverage), None))
            }
            Reply::Board(_) => bail!("something else came in place of rows"),
        }
    }

    fn schema(&self, asked: Schema) -> anyhow::Result<String> {
        Ok(self.lines(&self.schema_text(asked.table.as_deref())?, asked.offset, None, None))
    }

    /// Tables, or the columns of one; also of tables that are no trace store's.
    ///
    /// # Errors
    /// There is no such table, or nobody answers.
    pub(super) fn schema_text(&self, table: Option<&str>) -> anyhow::Result<String> {
        let Some(name) = table else {
            let tables = self.target.tables()?;
            let names: Vec<(&str, &str)> = tables
                .iter()
                .map(|table| (table.name.as_str(), schema::of(&table.name).map_or("", |known| known.brief())))
                .collect();
            return Ok(schema::list(&names));
        };
        if let Some(known) = schema::of(name) {
            return Ok(schema::text(known));
        }
        let tables = self.target.tables()?;
        let Some(found) = tables.iter().find(|table| table.name.eq_ignore_ascii_case(name)) else {
            return Err(UsageError(format!(
                "there is no table '{}': schema without a table lists them",
                printable(name)
            ))
            .into());
        };
        let mut text = format!("{} (no table of a trace store; its columns):\n", found.name);
        for column in &found.columns {
            text.push_str(&format!("  {}  {}\n", column.name, column.decl_type));
        }
        Ok(text)
    }

    fn stacks(&self, asked: Stacks) -> anyhow::Result<String> {
        let ranks = asked.ranks.as_deref().map(parse_ranks).transpose().map_err(UsageError)?;
        let wanted = StacksWanted {
            job: self.job(asked.job),
            ranks: ranks.map(|ranks| ranks.0).unwrap_or_default(),
            children: asked.children,
            all_threads: false,
            samples: 20,
            every_ms: 50,
        };
        let json = self.target.document(LocalRequest::Stacks(StacksQuestion {
            wanted,
            timeout_ms: self.flags.timeout_ms(),
            nodes: self.flags.ask.nodes.clone(),
            labels: self.flags.ask.label.clone(),
        }))?;
        let answer: StacksAnswer = serde_json::from_str(&json).context("reading the stacks")?;
        self.check_coverage(&answer.coverage)?;
        let mut text = stacks::text(&answer.merged);
        for Unread { node, rank, pid, reason } in &answer.unread {
            let who = rank.map_or_else(|| "child process".to_owned(), |rank| format!("rank {rank}"));
            text.push_str(&format!("\n{}", printable(&format!("{who} on {node} (pid {pid}): no stack: {reason}"))));
        }
        if text.trim().is_empty() {
            text =
                "no ranks: none of the nodes that answered knows a process of the ranks that were asked for".to_owned();
        }
        Ok(self.lines(&text, asked.offset, Some(&answer.coverage), None))
    }

    fn nodes(&self, asked: &Nodes) -> anyhow::Result<String> {
        let json = self.target.document(LocalRequest::Nodes)?;
        let nodes: Vec<serde_json::Value> = serde_json::from_str(&json).context("reading the list of nodes")?;
        let lines: Vec<String> = nodes
            .iter()
            .map(|node| {
                let text = |key: &str| node[key].as_str().unwrap_or_default().to_owned();
                let ranks = node["ranks"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_u64);
                let labels = node["labels"].as_object().into_iter().flatten();
                let labels: Vec<String> =
                    labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
                csv(&[
                    text("name"),
                    text("state"),
                    verdicts::hostlist::fold_ranges(ranks),
                    node["store_rows"].as_u64().unwrap_or(0).to_string(),
                    text("capture"),
                    labels.join(" "),
                ])
            })
            .collect();
        Ok(self.rows("node,state,ranks,rows,recording,labels", &lines, asked.offset, LINES, None, None))
    }

    /// The budget of a page, less room for the words around it.
    fn page(&self, offset: usize, most: usize) -> Page {
        Page::new(offset, most, self.max_tokens)
    }

    /// With `--require-all` a partial answer is an error.
    fn check_coverage(&self, coverage: &Coverage) -> anyhow::Result<()> {
        if self.flags.ask.require_all && !coverage.is_complete() {
            let message = "the answer is partial and --require-all was given".to_owned();
            return Err(NoAnswer { message, coverage: Some(coverage.clone()) }.into());
        }
        Ok(())
    }

    fn lines(&self, text: &str, offset: usize, coverage: Option<&Coverage>, next: Option<&str>) -> String {
        let mut page = self.page(offset, LINES);
        page.spend(next.unwrap_or_default());
        coverage.into_iter().for_each(|coverage| page.spend(&coverage_text(coverage)));
        text.lines().for_each(|line| page.line(line));
        paged(page, "lines", "", coverage, next)
    }

    fn rows(
        &self,
        head: &str,
        lines: &[String],
        offset: usize,
        most: usize,
        coverage: Option<&Coverage>,
        note: Option<&str>,
    ) -> String {
        let mut page = self.page(offset, most);
        page.spend(head);
        coverage.into_iter().for_each(|coverage| page.spend(&coverage_text(coverage)));
        lines.iter().for_each(|line| page.line(line));
        paged(page, "rows", head, coverage, note)
    }
}

/// Lines of a coverage that an assistant gets; further ones are counted.
const COVERAGE_LINES: usize = 20;

fn coverage_text(coverage: &Coverage) -> String {
    let mut lines = coverage.lines();
    let more = lines.len().saturating_sub(COVERAGE_LINES);
    lines.truncate(COVERAGE_LINES);
    let mut text: Vec<String> = lines.iter().map(|line| printable(line).chars().take(400).collect()).collect();
    if more > 0 {
        text.push(format!("  … and {more} lines more: rankmesh query says all"));
    }
    text.join("\n")
}

/// Coverage first, then which part is shown, then the data.
fn paged(page: Page, what: &str, head: &str, coverage: Option<&Coverage>, next: Option<&str>) -> String {
    let mut text = String::new();
    if let Some(coverage) = coverage {
        let missing =
            if coverage.is_complete() { "" } else { " PARTIAL: who did not answer stands at the end of the data." };
        text.push_str(&format!("Coverage: {} of {} nodes answered.{missing}\n", coverage.answered, coverage.asked));
    }
    if let Some(shown) = page.shown(what) {
        text.push_str(&shown);
        text.push('\n');
    }
    let mut lines = Vec::new();
    lines.extend((!head.is_empty()).then(|| head.to_owned()));
    lines.extend(page.into_lines());
    if let Some(coverage) = coverage.filter(|coverage| !coverage.is_complete() || !coverage.notes.is_empty()) {
        lines.push(String::new());
        lines.push(coverage_text(coverage));
    }
    text.push_str(&fenced(&lines));
    if let Some(next) = next {
        text.push('\n');
        text.push_str(next);
    }
    text
}

/// An error as text for an assistant: what happened, and the coverage so far.
pub(super) fn failure(error: &anyhow::Error, max_tokens: usize) -> String {
    let mut text = format!("{error:#}");
    if let Some(NoAnswer { coverage: Some(coverage), .. }) = error.downcast_ref() {
        text.push('\n');
        text.push_str(&coverage_text(coverage));
    }
    let mut page = Page::new(0, LINES, max_tokens);
    text.lines().for_each(|line| page.line(line));
    let kind = if error.is::<UsageError>() { "Wrong question" } else { "No answer" };
    format!("{kind}:\n{}", fenced(&page.into_lines()))
}

/// A line of CSV, whatever its cells contain.
fn csv(cells: &[String]) -> String {
    let quoted = cells.iter().map(|cell| {
        let cell = printable(cell);
        if cell.contains([',', '"']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell }
    });
    quoted.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::super::bounds::tokens;
    use super::*;

    #[test]
    fn the_definitions_are_few_and_short_and_only_read() {
        let tools = list();
        assert_eq!(tools.len(), 6);
        let json = serde_json::to_string(&tools).unwrap();
        assert!(tokens(&json) < 2_500, "{} tokens:\n{json}", tokens(&json));
        for tool in &tools {
            let hints = tool.annotations.as_ref().unwrap();
            assert_eq!((hints.read_only_hint, hints.open_world_hint), (Some(true), Some(false)), "{}", tool.name);
        }
    }

    #[test]
    fn csv_lines_stay_lines() {
        assert_eq!(
            csv(&["a".into(), "b,c".into(), "d\"e".into(), "f\ng".into(), String::new()]),
            r#"a,"b,c","d""e",f\ng,"#
        );
    }
}
