//! The tools: the questions that they ask for an assistant, and the answers. All of them only read.
//! `definitions` has their names and parameters, `text` the form of an answer.

mod definitions;
mod text;

use anyhow::{Context, bail};
use ask::args::{SpanArgs, TargetArgs};
use ask::output::cell_text;
use ask::rows::Client;
use ask::times::{When, parse_when};
use ask::values::parse_ranks;
use ask::{NoAnswer, Piece, Reply, Target, UsageError};
use explain::stacks::{self, StacksAnswer, Unread};
use front::tail::{self, By, Wanted};
use front::{runbook, schema, stragglers};
use model::{
    AskedSpan, Coverage, ExplainQuestion, ExplainWhat, LocalRequest, StacksQuestion, StacksWanted, StragglersQuestion,
};
use record::printable;
use serde::de::DeserializeOwned;
use serde_json::Map;
use verdicts::Report;

use crate::bounds::Page;
use definitions::{Diagnose, DiagnoseTail, Nodes, Query, ROWS, Ranks, Schema, Stacks};
use text::{coverage_text, csv, paged};

pub(super) use definitions::list;
pub(super) use text::failure;

/// Most lines of an answer that are no rows.
const LINES: usize = 2_000;

type Arguments = Map<String, serde_json::Value>;

/// The target of tools, and their limits.
pub(super) struct Toolbox {
    pub(super) target: Target,
    pub(super) flags: TargetArgs,
    /// The job if an assistant names none.
    pub(super) job: Option<String>,
    pub(super) max_tokens: usize,
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
        if let Err(error) = definitions::check(name, &arguments) {
            return Some(Err(error.into()));
        }
        Some(match name {
            "diagnose" => parsed(arguments).map_err(Into::into).and_then(|asked| self.diagnose(asked)),
            "diagnose_tail" => parsed(arguments).map_err(Into::into).and_then(|asked| self.diagnose_tail(asked)),
            "ranks" => parsed(arguments).map_err(Into::into).and_then(|asked| self.ranks(asked)),
            "query" => parsed(arguments).map_err(Into::into).and_then(|asked| self.query(asked)),
            "schema" => parsed(arguments).map_err(Into::into).and_then(|asked| self.schema(asked)),
            "stacks" => parsed(arguments).map_err(Into::into).and_then(|asked| self.stacks(asked)),
            "nodes" => parsed(arguments).map_err(Into::into).and_then(|asked| self.nodes(&asked)),
            _ => return None,
        })
    }

    /// The job that is asked about.
    ///
    /// # Errors
    /// It is not known.
    fn job(&self, asked: Option<String>) -> anyhow::Result<Option<String>> {
        self.target.check_job(asked.as_deref())?;
        Ok(asked.or_else(|| self.job.clone()))
    }

    fn span(&self, since: Option<&str>, until: Option<&str>) -> anyhow::Result<AskedSpan> {
        Ok(Self::span_args(since, until)?.resolved(&self.target)?)
    }

    /// The flags of a command for the same span.
    fn span_args(since: Option<&str>, until: Option<&str>) -> Result<SpanArgs, UsageError> {
        let when = |text: Option<&str>| -> Result<Option<When>, UsageError> {
            text.map(parse_when).transpose().map_err(UsageError)
        };
        let (since, until) = (when(since)?, when(until)?);
        if since.is_none() && until.is_some() {
            return Err(UsageError("until: give since, too".to_owned()));
        }
        Ok(SpanArgs { since, until, between: Vec::new() })
    }

    fn diagnose(&self, asked: Diagnose) -> anyhow::Result<String> {
        let what = match (asked.finding, self.span(asked.since.as_deref(), asked.until.as_deref())?) {
            (Some(ts_ns), AskedSpan::Now) => ExplainWhat::Finding { ts_ns },
            (Some(_), _) => return Err(UsageError("finding, or since and until: not both".to_owned()).into()),
            (None, span) => ExplainWhat::Of(span),
        };
        let found = self.target.explain(ExplainQuestion {
            what,
            job: self.job(asked.job)?,
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
                 host_samples; rows of that rank's node around the times above).",
                place.rank
            ),
            None if found.verdict.starts_with("tail_") => {
                "Next: diagnose_tail with that service, and by=cause; query for single requests (tables requests, \
                 request_stretches)."
                    .to_owned()
            }
            None => "Next: ranks for all scores; nodes for who records; diagnose with another since.".to_owned(),
        };
        Ok(self.lines(&text, asked.offset, Some(&found.coverage), Some(&next)))
    }

    fn diagnose_tail(&self, asked: DiagnoseTail) -> anyhow::Result<String> {
        let span = Self::span_args(asked.since.as_deref(), asked.until.as_deref())?;
        let wanted = Wanted {
            service: asked.service,
            tenant: asked.tenant,
            route: asked.route,
            by: asked.by.as_deref().map(By::parsed).transpose()?.unwrap_or_default(),
            span_ns: span.resolved_ns(&self.target)?,
        };
        let tail = tail::of(&self.target, &Client::of(&self.target, &self.flags), wanted)?;
        self.check_coverage(&tail.coverage)?;
        let next = match tail.services.is_empty() {
            true => "Next: diagnose_tail with an earlier since; nodes for who records.",
            false => {
                "Next: diagnose_tail with by=route or by=cause, or with a service; query for single requests (tables requests, \
                 request_stretches, by ts_ns of the examples)."
            }
        };
        Ok(self.lines(&tail.text(), asked.offset, Some(&tail.coverage), Some(next)))
    }

    fn ranks(&self, asked: Ranks) -> anyhow::Result<String> {
        let only = asked.ranks.as_deref().map(parse_ranks).transpose().map_err(UsageError)?;
        let question = StragglersQuestion {
            span: self.span(asked.since.as_deref(), asked.until.as_deref())?,
            job: self.job(asked.job)?,
            comm: None,
            timeout_ms: self.flags.timeout_ms(),
            nodes: self.flags.ask.nodes.clone(),
            labels: self.flags.ask.label.clone(),
        };
        let json = self.target.stragglers(question)?;
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
            job: self.job(asked.job)?,
            ranks: ranks.map(|ranks| ranks.0).unwrap_or_default(),
            children: asked.children,
            all_threads: false,
            native: false,
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
                    node["store_rows"].as_u64().map_or_else(|| "-".to_owned(), |rows| rows.to_string()),
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
            let failure = "the answer is partial and --require-all was given".into();
            return Err(NoAnswer { failure, coverage: Some(coverage.clone()) }.into());
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
