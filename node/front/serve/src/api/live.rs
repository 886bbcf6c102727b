//! Live data: findings as they come, by long poll or as events, and the standing verdict with its
//! ranks at each change. Events are server-sent ones
//! (<https://html.spec.whatwg.org/multipage/server-sent-events.html>).

use std::convert::Infallible;
use std::time::{Duration, Instant};

use anyhow::bail;
use ask::Piece;
use ask::output::{quiet, value_to_json};
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::{Stream, stream};
use model::{LocalRequest, WatchQuestion};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;
use utoipa::IntoParams;

use super::super::findings::{Following, after_ns};
use super::super::gateway::{Shared, Who, send_blocking};
use super::super::problem::Problem;
use super::params::{Nothing, Params, document, duration_of};
use super::shapes;

/// Time between two requests for findings.
const EVERY: Duration = Duration::from_secs(2);
/// Time between two keep-alive comments.
const ALIVE: Duration = Duration::from_secs(15);

/// Which findings.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct FindingsParams {
    /// Those after this, Unix nanoseconds of the clock of the host that found it [default: the newest
    /// 1,000].
    after: Option<i64>,
    /// Wait up to so long for one, as `30s` (a long poll, 60s at most).
    wait: Option<String>,
}

/// What was found, oldest first; at most 1,000.
#[utoipa::path(get, path = "/api/v1/findings", params(FindingsParams), responses(
    (status = 200, description = "What was found; of a long poll without any rows when the time was over", body = shapes::Findings),
    (status = 206, description = "The same, of less than all nodes: see its coverage", body = shapes::Findings),
    (status = "default", description = "No answer", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn findings(
    State(gateway): State<Shared>,
    Extension(who): Extension<Who>,
    Params(params): Params<FindingsParams>,
) -> Result<Response, Problem> {
    let wait = duration_of(params.wait)?.unwrap_or_default();
    if wait > Duration::from_secs(60) {
        return Err(Problem::wrong("a long poll waits 60s at most"));
    }
    let (until, after) = (Instant::now() + wait, params.after);
    loop {
        let found = gateway.ask(&who, move |target| after_ns(target, after)).await?;
        let left = until.saturating_duration_since(Instant::now());
        if !found.rows.is_empty() || left.is_zero() {
            let columns: Vec<_> =
                found.columns.iter().map(|column| json!({ "name": column.name, "type": column.decl_type })).collect();
            let rows: Vec<Vec<_>> = found.rows.iter().map(|row| row.iter().map(value_to_json).collect()).collect();
            let body = json!({ "columns": columns, "rows": rows, "more": found.more, "coverage": found.coverage });
            return document(body.to_string(), &found.coverage, false);
        }
        tokio::time::sleep(EVERY.min(left)).await;
    }
}

/// Findings as events `finding`, those from now on, or after the id that the client saw last.
#[utoipa::path(get, path = "/api/v1/findings/events", responses(
    (status = 200, description = "Events: an object a finding, by column", body = String, content_type = "text/event-stream"),
    (status = "default", description = "No answer", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn findings_events(
    State(gateway): State<Shared>,
    Extension(who): Extension<Who>,
    headers: HeaderMap,
    Params(Nothing {}): Params<Nothing>,
) -> Result<Response, Problem> {
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse::<i64>().ok());
    let (to, events) = mpsc::channel(16);
    let (_asked, stop) = gateway.begin(&who, move |target| {
        let mut following = Following::after(target, last);
        while !to.is_closed() {
            match following.next(target, &[]) {
                Ok(found) => {
                    for finding in found {
                        let text = quiet(&serde_json::Value::Object(finding.object).to_string());
                        let event = Event::default().event("finding").id(finding.reached_ns.to_string()).data(text);
                        if send_blocking(&to, event).is_err() {
                            return;
                        }
                    }
                }
                Err(error) => {
                    let event = Event::default().event("failed").data(quiet(&json!(format!("{error:#}")).to_string()));
                    if send_blocking(&to, event).is_err() {
                        return;
                    }
                }
            }
            std::thread::sleep(EVERY);
        }
    })?;
    Ok(sse(events, stop))
}

/// Which job.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WatchParams {
    /// The job whose verdict and ranks are wanted [default: the one that is worst off].
    job: Option<String>,
}

/// The standing verdict with its ranks, jobs and nodes: events `watch` at each change, at most two
/// a second.
#[utoipa::path(get, path = "/api/v1/watch/events", params(WatchParams), responses(
    (status = 200, description = "Events: see docs/top.md", body = String, content_type = "text/event-stream"),
    (status = "default", description = "No answer", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn watch_events(
    State(gateway): State<Shared>,
    Extension(who): Extension<Who>,
    Params(params): Params<WatchParams>,
) -> Result<Response, Problem> {
    let job = params.job.clone();
    gateway.ask(&who, move |target| Ok(target.check_job(job.as_deref())?)).await?;
    let (to, events) = mpsc::channel(2);
    let (_asked, stop) = gateway.begin(&who, move |target| {
        if target.is_stores() {
            // Stores do not change: the state at their end is sent once.
            let event = match front::top::past::watched(target, params.job.as_deref(), None) {
                Ok(watched) => Event::default().event("watch").data(quiet(&json!(watched).to_string())),
                Err(error) => Event::default().event("failed").data(quiet(&json!(format!("{error:#}")).to_string())),
            };
            let _ = send_blocking(&to, event);
            while !to.is_closed() {
                std::thread::sleep(EVERY);
            }
            return;
        }
        let request = LocalRequest::Watch(WatchQuestion { job: params.job });
        let watched = target.ask_into(request, &mut |piece| {
            if to.is_closed() {
                bail!("the client went away");
            }
            if let Piece::Watched(json) = piece {
                send_blocking(&to, Event::default().event("watch").data(quiet(&json)))?;
            }
            Ok(())
        });
        let why = watched.map_or_else(|error| format!("{error:#}"), |_| "the agent ended it".to_owned());
        let _ = send_blocking(&to, Event::default().event("failed").data(quiet(&json!(why).to_string())));
    })?;
    Ok(sse(events, stop))
}

fn sse(events: mpsc::Receiver<Event>, stop: tokio_util::sync::DropGuard) -> Response {
    Sse::new(received(events, stop)).keep_alive(KeepAlive::new().interval(ALIVE)).into_response()
}

/// Ends with the last event; the question ends with this.
fn received(
    events: mpsc::Receiver<Event>,
    stop: tokio_util::sync::DropGuard,
) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold((events, stop), |(mut events, stop)| async move {
        let event = events.recv().await?;
        Some((Ok(event), (events, stop)))
    })
}
