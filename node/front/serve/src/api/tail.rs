//! How long requests take, and what the slowest have more of: the document of `rankmesh tail`.

use std::time::Duration;

use ask::rows::Client;
use ask::times::When;
use axum::extract::{Extension, State};
use axum::response::Response;
use front::tail::{self, By, Wanted};
use serde::Deserialize;
use utoipa::IntoParams;

use super::super::gateway::{Shared, Who};
use super::super::problem::Problem;
use super::params::{OfTime, Params, document, duration, labels, list, when};
use super::shapes;

/// Which requests.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct TailParams {
    /// Only this service.
    service: Option<String>,
    /// Only this tenant, as in `requests.tenant`: `job:42`, `unit:vllm.service`, `user:ada` …
    tenant: Option<String>,
    /// Only this route, as in `requests.route`.
    route: Option<String>,
    /// Break each service down by this [default: host].
    by: Option<By>,
    /// From then on: `60s` (ago), a date and time with its zone, or s, ms, us or ns since 1970 [default: ten
    /// minutes ago].
    #[serde(default, deserialize_with = "when")]
    #[param(value_type = Option<String>)]
    since: Option<When>,
    /// With `since`: up to then [default: now].
    #[serde(default, deserialize_with = "when")]
    #[param(value_type = Option<String>)]
    until: Option<When>,
    /// The time for it, as `10s` [default: 10s].
    #[serde(default, deserialize_with = "duration")]
    #[param(value_type = Option<String>)]
    timeout: Option<Duration>,
    /// Ask only these nodes, by commas.
    #[serde(default, deserialize_with = "list")]
    #[param(value_type = Option<String>)]
    nodes: Vec<String>,
    /// Ask only nodes with all these labels, `K=V` by commas.
    #[serde(default, deserialize_with = "labels")]
    #[param(value_type = Option<String>)]
    label: Vec<(String, String)>,
    /// Nothing (503) instead of an answer that lacks nodes (206).
    #[serde(default)]
    require_all: bool,
}

/// How long requests take, and what the slowest have more of.
#[utoipa::path(get, path = "/api/v1/tail", params(TailParams), responses(
    (status = 200, description = "As rankmesh tail --format json; no services where no requests are stored of that time", body = shapes::Tail),
    (status = 206, description = "The same, of less than all nodes: see its coverage", body = shapes::Tail),
    (status = "default", description = "No answer", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn tail(
    State(gateway): State<Shared>,
    Extension(who): Extension<Who>,
    Params(params): Params<TailParams>,
) -> Result<Response, Problem> {
    let timeout = gateway.timeout(params.timeout)?;
    let of = OfTime { since: params.since, until: params.until, ..OfTime::default() };
    let tail = gateway
        .ask(&who, move |target| {
            let TailParams { service, tenant, route, by, nodes, label, .. } = params;
            let wanted = Wanted { service, tenant, route, by: by.unwrap_or_default(), span_ns: of.span_ns(target)? };
            tail::of(target, &Client::of_nodes(target, &nodes, &label, timeout), wanted)
        })
        .await?;
    let json = serde_json::to_string(&tail).map_err(|error| Problem::internal(error.to_string()))?;
    document(json, &tail.coverage, params.require_all)
}
