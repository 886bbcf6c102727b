//! SQL. The status of an answer that fits into [`BUFFERED_BYTES`] shows whether it is complete; a
//! larger one is sent as it comes, with its coverage at the end.

use anyhow::bail;
use ask::values::parse_label;
use ask::{Piece, Reply};
use axum::body::{Body, Bytes};
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use front::question::Sql;
use futures::stream;
use model::{Coverage, Question};
use query_planner::{ColumnMeta, Value};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::DropGuard;
use utoipa::{IntoParams, ToSchema};

use super::super::gateway::{Shared, Who, send_blocking};
use super::super::problem::Problem;
use super::encode::{Encoder, Form};
use super::params::{Params, duration_of, status, timeout_ms};
use super::shapes;

/// Bytes of an answer that are buffered until it is known whether it is complete.
const BUFFERED_BYTES: usize = 8 << 20;
/// Pieces of an answer that may wait.
const PIECES: usize = 2;
/// Most bytes of the coverage in a header.
const COVERAGE_BYTES: usize = 8 << 10;

/// How SQL in the body is asked.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct QueryParams {
    /// The form of the answer [default: by Accept, else json].
    format: Option<Form>,
    /// The time for it, as `10s` [default: 10s].
    timeout: Option<String>,
    /// Ask only these nodes, by commas.
    nodes: Option<String>,
    /// Ask only nodes with all these labels, `K=V` by commas.
    label: Option<String>,
    /// Run it as it stands on each node, `node` as the first column.
    #[serde(default)]
    per_node: bool,
    /// `plan` instead of running it; `analyze` runs it and gives what each node did. The answer is
    /// text.
    explain: Option<Explained>,
    /// Nothing (503) instead of an answer that lacks nodes (206).
    #[serde(default)]
    require_all: bool,
}

/// What of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Explained {
    Plan,
    Analyze,
}

/// Asks SQL: one SELECT over the stores of all nodes, as if they were one database.
#[utoipa::path(post, path = "/api/v1/query", params(QueryParams),
    request_body(content((String = "application/sql"), (Sql = "application/json"))),
    responses(
        (status = 200, description = "Rows of all nodes; with `explain` the plan as text. `rankmesh-coverage: at-end` marks an answer of more than 8 MiB, whose end says who is in it", headers(("rankmesh-coverage" = String, description = "The coverage as JSON, or `at-end`")), content((shapes::Rows = "application/json"), (String = "application/x-ndjson"), (String = "text/csv"), (String = "application/vnd.apache.arrow.stream"), (String = "application/vnd.apache.parquet"), (String = "text/plain"))),
        (status = 206, description = "Rows of less than all nodes: see the coverage", headers(("rankmesh-coverage" = String, description = "The coverage as JSON")), content((shapes::Rows = "application/json"), (String = "application/x-ndjson"), (String = "text/csv"), (String = "application/vnd.apache.arrow.stream"), (String = "application/vnd.apache.parquet"), (String = "text/plain"))),
        (status = "default", description = "No answer", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn query(
    State(gateway): State<Shared>,
    Extension(who): Extension<Who>,
    Params(params): Params<QueryParams>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let form = Form::chosen(params.format, &headers)?;
    let parts = |text: &Option<String>| -> Vec<String> {
        text.iter().flat_map(|text| text.split(',')).filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    let labels: Result<Vec<_>, _> = parts(&params.label).iter().map(|label| parse_label(label)).collect();
    let question = Question {
        sql: String::new(),
        timeout_ms: timeout_ms(&gateway, duration_of(params.timeout)?)?,
        nodes: parts(&params.nodes),
        labels: labels.map_err(Problem::wrong)?,
        per_node: params.per_node,
        plan_only: params.explain == Some(Explained::Plan),
        analyze: params.explain == Some(Explained::Analyze),
    };
    let asked_for = sql(&headers, &body)?;
    let investigations = gateway.investigations().to_owned();
    let (to, pieces) = mpsc::channel(PIECES);
    let (_asked, stop) = gateway.begin(&who, move |target| {
        let filled = asked_for.filled(target, &investigations);
        let reply = filled.and_then(|sql| {
            let question = Question { sql, ..question };
            target.query(question, &mut |piece| {
                let event = match piece {
                    Piece::Columns(columns) => Event::Columns(columns),
                    Piece::Rows(rows) => Event::Rows(rows),
                    Piece::Watched(_) => return Ok(()),
                    // The closed connection is noticed elsewhere.
                    Piece::Idle if to.is_closed() => bail!("the client went away"),
                    Piece::Idle => return Ok(()),
                };
                send_blocking(&to, event)
            })
        });
        let _ = send_blocking(&to, Event::End(reply));
    })?;
    Answer { form, analyze: params.explain.is_some(), require_all: params.require_all, pieces, _stop: stop }
        .response()
        .await
}

/// The SQL of a body.
fn sql(headers: &HeaderMap, body: &[u8]) -> Result<Sql, Problem> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
        return Sql::parsed(body).map_err(|error| Problem::wrong(format!("the body is {error}")));
    }
    match std::str::from_utf8(body) {
        Ok(sql) if !sql.trim().is_empty() => Ok(Sql::of(sql)),
        Ok(_) => Err(Problem::wrong("no question: the body is SQL, or JSON {\"sql\": …}")),
        Err(_) => Err(Problem::wrong("the SQL is not UTF-8")),
    }
}

enum Event {
    Columns(Vec<ColumnMeta>),
    Rows(Vec<Vec<Value>>),
    End(anyhow::Result<Reply>),
}

/// An answer that is being sent.
struct Answer {
    form: Form,
    analyze: bool,
    require_all: bool,
    pieces: mpsc::Receiver<Event>,
    /// Dropping it ends the question.
    _stop: DropGuard,
}

impl Answer {
    async fn response(mut self) -> Result<Response, Problem> {
        let mut encoder = None;
        loop {
            match self.pieces.recv().await {
                Some(Event::Columns(columns)) => encoder = Some(Encoder::new(self.form, columns)),
                Some(Event::Rows(_)) if self.analyze => {}
                Some(Event::Rows(rows)) => {
                    let encoder: &mut Encoder = encoder.as_mut().ok_or_else(without_columns)?;
                    encoder.rows(rows).map_err(Problem::wrong)?;
                    if encoder.len() > BUFFERED_BYTES {
                        break;
                    }
                }
                Some(Event::End(Ok(Reply::Text(plan)))) => return Ok(text(StatusCode::OK, plan)),
                Some(Event::End(Ok(Reply::Result { coverage, elapsed_ms, explained }))) => {
                    let status = status(&coverage, self.require_all)?;
                    if self.analyze {
                        return Ok(covered(text(status, explained), &coverage));
                    }
                    let encoder = encoder.ok_or_else(without_columns)?;
                    let bytes = encoder.end(&coverage, elapsed_ms).map_err(Problem::wrong)?;
                    let response = (status, [(header::CONTENT_TYPE, self.form.media_type())], bytes).into_response();
                    return Ok(covered(response, &coverage));
                }
                Some(Event::End(Ok(Reply::Board(_)))) => return Err(Problem::internal("no rows came")),
                Some(Event::End(Err(error))) => return Err(Problem::of(&error)),
                None => return Err(Problem::internal("the question came to no end")),
            }
        }
        let Some(encoder) = encoder else { return Err(without_columns()) };
        if self.require_all {
            let detail = format!(
                "require_all must hold the answer until it is whole, and this one has more than {} MiB: narrow it, or leave \
                 require_all out and look at the coverage at its end",
                BUFFERED_BYTES >> 20
            );
            return Err(Problem::wrong(detail));
        }
        let kind = self.form.media_type();
        let rest = stream::unfold((self, Some(encoder)), |(mut answer, encoder)| async move {
            let mut encoder = encoder?;
            if encoder.len() == 0 {
                match answer.next(&mut encoder).await {
                    Ok(None) => {}
                    Ok(Some((coverage, elapsed_ms))) => {
                        let end = encoder.end(&coverage, elapsed_ms).map(Bytes::from);
                        return Some((end.map_err(broken_off), (answer, None)));
                    }
                    Err(error) => return Some((Err(broken_off(error)), (answer, None))),
                }
            }
            match encoder.take() {
                Ok(bytes) => Some((Ok(Bytes::from(bytes)), (answer, Some(encoder)))),
                Err(error) => Some((Err(broken_off(error)), (answer, None))),
            }
        });
        let mut response = ([(header::CONTENT_TYPE, kind)], Body::from_stream(rest)).into_response();
        response.headers_mut().insert("rankmesh-coverage", HeaderValue::from_static("at-end"));
        Ok(response)
    }

    /// Encodes the next rows into `encoder`; returns the coverage at the end.
    ///
    /// # Errors
    /// Why the answer breaks off: the question failed, or is partial in a form that cannot carry
    /// that.
    async fn next(&mut self, encoder: &mut Encoder) -> Result<Option<(Coverage, f64)>, String> {
        match self.pieces.recv().await {
            Some(Event::Rows(rows)) => encoder.rows(rows).map(|()| None),
            Some(Event::End(Ok(Reply::Result { coverage, elapsed_ms, .. }))) => {
                if !coverage.is_complete() && !self.form.ends_with_coverage() {
                    return Err(format!(
                        "it is partial, and its form has no place for that: {}",
                        coverage.lines().join("; ")
                    ));
                }
                Ok(Some((coverage, elapsed_ms)))
            }
            Some(Event::End(Err(error))) => Err(format!("{error:#}")),
            Some(Event::Columns(_) | Event::End(Ok(_))) | None => Err("it came to no end".to_owned()),
        }
    }
}

/// Breaks a body off before its end, so that no client takes it for complete.
fn broken_off(why: String) -> std::io::Error {
    tracing::warn!("an answer was broken off: {}", ask::output::printable(&why));
    std::io::Error::other(why)
}

fn without_columns() -> Problem {
    Problem::internal("the agent gave no columns")
}

fn text(status: StatusCode, text: String) -> Response {
    (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], ask::output::printable_lines(&text)).into_response()
}

/// Adds the coverage as a header, if it fits.
fn covered(mut response: Response, coverage: &Coverage) -> Response {
    let json = json!(coverage).to_string();
    let mut ascii = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            ' '..='~' => ascii.push(c),
            _ => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| ascii.push_str(&format!("\\u{unit:04x}"))),
        }
    }
    if ascii.len() > COVERAGE_BYTES {
        ascii =
            json!({ "asked": coverage.asked, "answered": coverage.answered, "more": "in the JSON form" }).to_string();
    }
    if let Ok(value) = HeaderValue::from_str(&ascii) {
        response.headers_mut().insert("rankmesh-coverage", value);
    }
    response
}
