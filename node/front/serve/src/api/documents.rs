//! Paths whose answer is one JSON document, as the command of the same name prints it with
//! `--format json`.

use std::time::Duration;

use ask::UsageError;
use ask::times::When;
use ask::values::{millis, parse_hash, parse_ranks};
use axum::Json;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use front::rates::Priced;
use front::report::asking::Asking;
use front::report::steps;
use front::{cost as bill, saved, schema as documented, stragglers as verdicts};
use model::board::BoardQuestion;
use model::{
    AskedSpan, Coverage, ExplainQuestion, ExplainWhat, LocalRequest, Question, StacksQuestion, StacksWanted,
    StragglersQuestion,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::super::gateway::{Shared, Who};
use super::super::problem::Problem;
use super::super::snapshot;
use super::params::{Nothing, OfTime, Params, document, duration_of, status, timeout_ms, when};
use super::shapes;

/// Which rank holds a job up.
#[utoipa::path(get, path = "/api/v1/stragglers", params(OfTime), responses(
    (status = 200, description = "The verdict, as rankmesh stragglers --format json with the text", body = shapes::Verdict),
    (status = 206, description = "The same, of less than all nodes: see its coverage", body = shapes::Verdict),
    (status = "default", description = "No answer", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn stragglers(
    State(gateway): State<Shared>,
    Extension(who): Extension<Who>,
    Params(params): Params<OfTime>,
) -> Result<Response, Problem> {
    if params.finding.is_some() {
        return Err(Problem::wrong("finding is for explain"));
    }
    let (timeout_ms, require_all, rate) =
        (timeout_ms(&gateway, params.timeout)?, params.require_all, gateway.rate().clone());
    let (json, coverage) = gateway
        .ask(&who, move |target| {
            target.check_job(params.job.as_deref())?;
            let question = StragglersQuestion {
                span: params.span(target)?,
                job: params.job,
                comm: params.comm,
                timeout_ms,
                nodes: params.nodes,
                labels: params.label,
            };
            let mut answer: Value = serde_json::from_str(&target.stragglers(question)?)?;
            let coverage = verdicts::coverage(&answer["coverage"])
                .ok_or_else(|| anyhow::anyhow!("the agent's verdict has no coverage"))?;
            if let Some(money) = Priced::of(&rate, target)?.and_then(|priced| priced.of_report(&answer)) {
                answer["money"] = serde_json::to_value(money)?;
            }
            Ok((answer.to_string(), coverage))
        })
        .await?;
    document(json, &coverage, require_all)
}

/// A verdict with the chain of what was seen behind it.
#[utoipa::path(get, path = "/api/v1/explain", params(
    OfTime,
    ("finding" = Option<i64>, Query, description = "This finding, its `ts_ns`"),
), responses(
    (status = 200, description = "As rankmesh explain --format json, with text and commands", body = shapes::Explanation),
    (status = 206, description = "The same, of less than all nodes: see its coverage", body = shapes::Explanation),
    (status = "default", description = "No answer", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn explain(
    State(gateway): State<Shared>,
    Extension(who): Extension<Who>,
    Params(params): Params<OfTime>,
) -> Result<Response, Problem> {
    let (timeout_ms, require_all) = (timeout_ms(&gateway, params.timeout)?, params.require_all);
    let (json, coverage) = gateway
        .ask(&who, move |target| {
            target.check_job(params.job.as_deref())?;
            let what = match (params.finding, params.span(target)?) {
                (Some(ts_ns), AskedSpan::Now) => ExplainWhat::Finding { ts_ns },
                (Some(_), _) => {
                    return Err(UsageError("a finding has its own time: give no other".to_owned()).into());
                }
                (None, span) => ExplainWhat::Of(span),
            };
            let found = target.explain(ExplainQuestion {
                what,
                job: params.job,
                comm: params.comm,
                timeout_ms,
                nodes: params.nodes,
                labels: params.label,
            })?;
            let mut value = serde_json::to_value(&found)?;
            value["text"] = explain::page::text(&found, false).into();
            value["commands"] = front::runbook::to_do(&found, false)?.into();
            Ok((value.to_string(), found.coverage))
        })
        .await?;
    document(json, &coverage, require_all)
}

/// Which stacks.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct StacksParams {
    /// Only this job.
    job: Option<String>,
    /// Only these ranks, as `3,5-7`.
    ranks: Option<String>,
    /// How often each rank is looked at (1 to 200) [default: 20].
    samples: Option<u32>,
    /// Time between two looks, as `50ms` [default: 50ms].
    every: Option<String>,
    /// Also the ranks' child processes.
    #[serde(default)]
    children: bool,
    /// All threads, not each process's first one only.
    #[serde(default)]
    all_threads: bool,
    /// The time for it, as `10s` [default: 10s].
    timeout: Option<String>,
    /// Ask only these nodes, by commas.
    nodes: Option<String>,
    /// Nothing (503) instead of an answer that lacks nodes (206).
    #[serde(default)]
    require_all: bool,
}

/// Where ranks are: their call stacks, in classes.
#[utoipa::path(get, path = "/api/v1/stacks", params(StacksParams), responses(
    (status = 200, description = "As rankmesh stacks --format json", body = shapes::Stacks),
    (status = 206, description = "The same, of less than all nodes: see its coverage", body = shapes::Stacks),
    (status = "default", description = "No answer", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn stacks(
    State(gateway): State<Shared>,
    Extension(who): Extension<Who>,
    Params(params): Params<StacksParams>,
) -> Result<Response, Problem> {
    let ranks = params.ranks.map(|ranks| parse_ranks(&ranks)).transpose().map_err(Problem::wrong)?;
    let every = duration_of(params.every)?.unwrap_or(Duration::from_millis(50));
    let request = LocalRequest::Stacks(StacksQuestion {
        wanted: StacksWanted {
            job: params.job.clone(),
            ranks: ranks.map(|ranks| ranks.0).unwrap_or_default(),
            children: params.children,
            all_threads: params.all_threads,
            native: false,
            samples: params.samples.unwrap_or(20),
            every_ms: u32::try_from(millis(every)).unwrap_or(u32::MAX),
        },
        timeout_ms: timeout_ms(&gateway, duration_of(params.timeout)?)?,
        nodes: params.nodes.iter().flat_map(|nodes| nodes.split(',')).map(str::to_owned).collect(),
        labels: Vec::new(),
    });
    let job = params.job;
    let asked = gateway.ask(&who, move |target| {
        target.check_job(job.as_deref())?;
        target.document(request)
    });
    let json = asked.await?;
    #[derive(Deserialize)]
    struct Covered {
        coverage: Coverage,
    }
    let covered: Covered = serde_json::from_str(&json)
        .map_err(|error| Problem::internal(format!("reading the agent's stacks: {error}")))?;
    document(json, &covered.coverage, params.require_all)
}

/// The members of the mesh; of stores the stores.
#[utoipa::path(get, path = "/api/v1/nodes", responses(
    (status = 200, description = "As rankmesh nodes --format json: a list", body = Vec<shapes::Node>),
    (status = "default", description = "No answer", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn nodes(
    State(gateway): State<Shared>,
    Extension(who): Extension<Who>,
    Params(Nothing {}): Params<Nothing>,
) -> Result<Response, Problem> {
    let json = gateway.ask(&who, |target| target.document(LocalRequest::Nodes)).await?;
    document(json, &Coverage::default(), false)
}

/// The tables that can be asked for, and what is documented of them.
#[utoipa::path(get, path = "/api/v1/schema", responses(
    (status = 200, description = "A list of tables: name, kind, about, columns with name, type and meaning", body = Vec<shapes::Table>),
    (status = "default", description = "No answer", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn schema(
    State(gateway): State<Shared>,
    Extension(who): Extension<Who>,
    Params(Nothing {}): Params<Nothing>,
) -> Result<Response, Problem> {
    let tables = gateway.ask(&who, |target| target.tables()).await?;
    let described = tables.iter().map(|table| {
        let page = documented::of(&table.name);
        let meaning = |name: &str| {
            let column = page.and_then(|page| page.columns.iter().find(|column| column.name == name));
            column.map(|column| column.meaning.as_str())
        };
        let columns: Vec<Value> = table
            .columns
            .iter()
            .map(|column| {
                serde_json::json!({ "name": column.name, "type": column.decl_type, "meaning": meaning(&column.name) })
            })
            .collect();
        serde_json::json!({
            "name": table.name,
            "kind": page.map(|page| page.kind),
            "about": page.map(|page| page.about.as_str()),
            "columns": columns,
        })
    });
    document(Value::Array(described.collect()).to_string(), &Coverage::default(), false)
}

/// Saved investigations: those that ship, and the site's own.
#[utoipa::path(get, path = "/api/v1/investigations", responses(
    (status = 200, description = "What may be asked with POST query and {\"saved\": NAME}; and files of the site that are none, with the reason", body = Investigations),
    (status = "default", description = "No answer", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn investigations(
    State(gateway): State<Shared>,
    Params(Nothing {}): Params<Nothing>,
) -> Result<Json<Investigations>, Problem> {
    let site = gateway.investigations().to_owned();
    let read = tokio::task::spawn_blocking(move || saved::all(&site)).await;
    let read = read.map_err(|error| Problem::internal(error.to_string()))?;
    let (investigations, unread) = read.map_err(|error| Problem::of(&error))?;
    Ok(Json(Investigations { investigations, unread }))
}

/// Saved investigations.
#[derive(Serialize, ToSchema)]
pub(super) struct Investigations {
    /// By name.
    investigations: Vec<saved::Investigation>,
    /// The site's files that are no investigations.
    unread: Vec<saved::Unread>,
}

/// What stood, once: verdict, jobs, ranks and nodes as `watch/events` pushes them; of a span by the
/// calls in the stores.
#[utoipa::path(get, path = "/api/v1/watch", params(WatchOfParams), responses(
    (status = 200, description = "See docs/top.md", body = shapes::Watched),
    (status = 206, description = "The same, of less than all nodes: see its coverage", body = shapes::Watched),
    (status = "default", description = "No answer", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn watch(
    State(gateway): State<Shared>,
    Extension(who): Extension<Who>,
    Params(params): Params<WatchOfParams>,
) -> Result<Response, Problem> {
    let of = OfTime { since: params.since, until: params.until, ..OfTime::default() };
    let watched = gateway
        .ask(&who, move |target| {
            target.check_job(params.job.as_deref())?;
            let span = of.span_ns(target)?;
            if span.is_none() && !target.is_stores() {
                return snapshot::first(target, params.job);
            }
            front::top::past::watched(target, params.job.as_deref(), span)
        })
        .await?;
    let json = serde_json::to_string(&watched).map_err(|error| Problem::internal(error.to_string()))?;
    document(json, &watched.coverage, params.require_all)
}

/// Of which time and job.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WatchOfParams {
    /// From then on: `60s` (ago), a date and time with its zone, or s, ms, us or ns since 1970 [default: what
    /// stands now].
    #[serde(default, deserialize_with = "when")]
    #[param(value_type = Option<String>)]
    since: Option<When>,
    /// With `since`: up to then [default: now].
    #[serde(default, deserialize_with = "when")]
    #[param(value_type = Option<String>)]
    until: Option<When>,
    /// Only this job.
    job: Option<String>,
    /// Nothing (503) instead of an answer that lacks nodes (206).
    #[serde(default)]
    require_all: bool,
}

/// One collective, rank by rank.
#[utoipa::path(get, path = "/api/v1/step", params(StepParams), responses(
    (status = 200, description = "Each rank's part of it, and what hosts recorded of them meanwhile", body = shapes::Step),
    (status = 206, description = "The same, of less than all nodes: see its coverage", body = shapes::Step),
    (status = "default", description = "No answer", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn step(
    State(gateway): State<Shared>,
    Extension(who): Extension<Who>,
    Params(params): Params<StepParams>,
) -> Result<Response, Problem> {
    let timeout_ms = timeout_ms(&gateway, duration_of(params.timeout)?)?;
    let comm = parse_hash(&params.comm).map_err(Problem::wrong)?.cast_signed();
    let of = steps::Collective { comm, func: params.func, seq: params.seq, at_ns: params.at_ns };
    let (step, coverage) = gateway
        .ask(&who, move |target| {
            let mut asking = Asking::with(target, Question { timeout_ms, ..Question::default() });
            let step = steps::lanes(&mut asking, &of, None, 0)?;
            Ok((step, asking.coverage))
        })
        .await?;
    let mut json = serde_json::to_value(&step).map_err(|error| Problem::internal(error.to_string()))?;
    json["coverage"] = serde_json::to_value(&coverage).map_err(|error| Problem::internal(error.to_string()))?;
    document(json.to_string(), &coverage, params.require_all)
}

/// Which collective: the columns of `collectives` that identify it.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct StepParams {
    /// Its communicator's hash, hexadecimal: `printf('%016x', comm_hash)`.
    comm: String,
    /// Its function, as `all_reduce`.
    func: String,
    /// Its number.
    seq: i64,
    /// When it was, about, Unix nanoseconds: `ts_ns` of any of its ranks.
    at_ns: i64,
    /// The time for each question about it, as `10s` [default: 10s].
    timeout: Option<String>,
    /// Nothing (503) instead of an answer that lacks nodes (206).
    #[serde(default)]
    require_all: bool,
}

/// What of a bill.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct CostParams {
    /// Only this job.
    job: Option<String>,
    /// From then on: `60s` (ago), a date and time with its zone, or s, ms, us or ns since 1970 [default: all
    /// that the stores have].
    #[serde(default, deserialize_with = "when")]
    #[param(value_type = Option<String>)]
    since: Option<When>,
    /// With `since`: up to then [default: now].
    #[serde(default, deserialize_with = "when")]
    #[param(value_type = Option<String>)]
    until: Option<When>,
    /// The time for it, as `10s` [default: 10s].
    timeout: Option<String>,
    /// Nothing (503) instead of an answer that lacks nodes (206).
    #[serde(default)]
    require_all: bool,
}

/// What waiting for late ranks cost, by culprit and cause.
#[utoipa::path(get, path = "/api/v1/cost", params(CostParams), responses(
    (status = 200, description = "As rankmesh cost --format json", body = shapes::Bill),
    (status = 206, description = "The same, of less than all nodes or of less than all the time: see coverage and asked_since_ns", body = shapes::Bill),
    (status = "default", description = "No answer", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn cost(
    State(gateway): State<Shared>,
    Extension(who): Extension<Who>,
    Params(params): Params<CostParams>,
) -> Result<Response, Problem> {
    let timeout = gateway.timeout(duration_of(params.timeout)?)?;
    let of = OfTime { since: params.since, until: params.until, ..OfTime::default() };
    let rate = gateway.rate().clone();
    let asked = gateway.ask(&who, move |target| {
        target.check_job(params.job.as_deref())?;
        bill::of(target, params.job, of.span_ns(target)?, timeout, &rate)
    });
    let bill = asked.await?;
    let status = match (bill.is_complete(), params.require_all) {
        (true, _) => status(&Coverage::default(), false)?,
        (false, true) => return Err(Problem::partial(bill.coverage().clone())),
        (false, false) => axum::http::StatusCode::PARTIAL_CONTENT,
    };
    let json = serde_json::to_string(&bill).map_err(|error| Problem::internal(error.to_string()))?;
    Ok((status, [("content-type", "application/json")], ask::output::quiet(&json)).into_response())
}

/// Which windows.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct BoardParams {
    /// Only this job.
    job: Option<String>,
    /// Windows that end after this, Unix nanoseconds [default: all that judges keep].
    since_ns: Option<i64>,
    /// Make it from the stores, up to here.
    until_ns: Option<i64>,
    /// Length of windows, nanoseconds; with `until_ns`.
    window_ns: Option<i64>,
    /// `epoch` and number of ranks of the answer before, as `EPOCH,RANKS`: what is known is not
    /// sent again.
    known: Option<String>,
    /// The time for it, as `10s` [default: 10s].
    timeout: Option<String>,
}

/// What each rank did, window by window: how late it was, how long it waited and computed,
/// microseconds.
#[utoipa::path(get, path = "/api/v1/board", params(BoardParams), responses(
    (status = 200, description = "See docs/top.md", body = shapes::Board),
    (status = 206, description = "The same, of less than all nodes: see its coverage", body = shapes::Board),
    (status = "default", description = "No answer", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn board(
    State(gateway): State<Shared>,
    Extension(who): Extension<Who>,
    Params(params): Params<BoardParams>,
) -> Result<Response, Problem> {
    let timeout = duration_of(params.timeout)?;
    let known = match params.known.as_deref().map(|known| known.split_once(',')) {
        None => None,
        Some(known) => {
            let read = known.and_then(|(epoch, ranks)| {
                Some(model::board::Known { epoch: epoch.parse().ok()?, ranks: ranks.parse().ok()? })
            });
            Some(read.ok_or_else(|| Problem::wrong("known is EPOCH,RANKS of the answer before"))?)
        }
    };
    let question = BoardQuestion {
        job: params.job,
        since_ns: params.since_ns,
        until_ns: params.until_ns,
        window_ns: params.window_ns,
        known,
        timeout_ms: timeout_ms(&gateway, timeout)?,
    };
    let board = gateway
        .ask(&who, move |target| {
            // Who knows the answer before has named a job that is known.
            if question.known.is_none() {
                target.check_job(question.job.as_deref())?;
            }
            match (target.is_stores(), question.until_ns) {
                // Without a time, the end of the stores, as everywhere.
                (true, None) => {
                    let until_ns = target.now_ns();
                    front::top::past::board(target, question.job.as_deref(), until_ns)
                }
                _ => target.board(question),
            }
        })
        .await?;
    let json = serde_json::to_string(&board).map_err(|error| Problem::internal(error.to_string()))?;
    document(json, &board.coverage, false)
}
