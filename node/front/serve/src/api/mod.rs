//! The paths under `/api/v1`, and their description, which is generated from the handlers.
//!
//! Documents are those of `--format json` of the commands: one model for all. `query` answers
//! SQL, `documents` and `tail` requests with one JSON document, `live` sends what changes; `params`
//! has parameters of several paths, `shapes` the description of answers.

mod arrow;
mod documents;
mod encode;
mod live;
mod params;
mod query;
mod shapes;
mod tail;

use std::sync::Arc;

use axum::extract::rejection::JsonRejection;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{OpenApi, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::gateway::Shared;
use super::guard::{Guard, Peer};
use super::problem::Problem;
use super::unchanging::unchanging;
pub(super) use params::{Nothing, Params};

/// The description apart from paths.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "rankmesh",
        description = "SQL over the stores of all hosts of a mesh, and which rank holds a job up, and why. Every answer says who \
                       is in it (coverage); 206 marks one that lacks nodes. Times are Unix nanoseconds, as integers of 64 bits."
    ),
    components(schemas(encode::Form, query::Explained, front::tail::By)),
    security(("token" = [])),
    modifiers(&Token)
)]
struct Description;

struct Token;

impl utoipa::Modify for Token {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
        openapi.components.get_or_insert_default().add_security_scheme("token", scheme);
        openapi.info.version = env!("CARGO_PKG_VERSION").to_owned();
    }
}

/// Problems of every path that asks a target, as text; the status shows which one came.
const PROBLEMS: [(&str, &str); 10] = [
    ("400", "The question or a parameter is wrong; `detail` says what to write"),
    ("401", "No token, or one that is not known"),
    ("403", "What the client may not ask, or a page of another origin"),
    ("406", "No form of rows that the client accepts (of `query`)"),
    ("413", "A body of more than 640 KiB"),
    ("421", "A host that this server does not answer for: `--host` names others"),
    ("429", "Too much at once, or too often: `Retry-After` says when to come again"),
    ("502", "The question failed; `coverage` says who had answered, where that is known"),
    ("503", "No agent answers; or `require_all` was given and nodes are missing (`coverage`)"),
    ("504", "The question took longer than its time"),
];

/// Adds to each path with a token the problems that it may answer.
fn with_problems(openapi: &mut utoipa::openapi::OpenApi) {
    use utoipa::openapi::{ContentBuilder, HeaderBuilder, Ref, RefOr, ResponseBuilder};
    let problem = || ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    for item in openapi.paths.paths.values_mut() {
        for (operation, is_post) in [(&mut item.get, false), (&mut item.post, true)] {
            let Some(operation) = operation else { continue };
            // Line breaks of comments are no line breaks of the text.
            operation.summary = operation.summary.take().map(|text| text.replace('\n', " "));
            for parameter in operation.parameters.iter_mut().flatten() {
                if let RefOr::T(parameter) = parameter {
                    parameter.description = parameter.description.take().map(|text| text.replace('\n', " "));
                }
            }
            if operation.security.is_some() {
                continue;
            }
            for (status, description) in PROBLEMS {
                if !is_post && ["406", "413"].contains(&status) {
                    continue;
                }
                let mut response =
                    ResponseBuilder::new().description(description).content("application/problem+json", problem());
                if status == "429" {
                    let seconds = HeaderBuilder::new().description(Some("Seconds")).build();
                    response = response.header("Retry-After", seconds);
                }
                operation.responses.responses.insert(status.to_owned(), response.build().into());
            }
        }
    }
}

/// The paths of the interface.
pub(super) fn router(gateway: &Shared, guard: &Arc<Guard>) -> Router {
    let (asking, mut description) = described().split_for_parts();
    with_problems(&mut description);
    let signing: Router =
        Router::new().route("/api/v1/session", axum::routing::post(sign_in)).with_state(Arc::clone(guard));
    let json = axum::body::Bytes::from(serde_json::to_vec(&description).unwrap_or_default());
    asking
        .with_state(Arc::clone(gateway))
        .merge(signing)
        .route(
            "/api/v1/openapi.json",
            get(move |headers: HeaderMap, Params(Nothing {}): Params<Nothing>| async move {
                unchanging(&headers, "application/json", json)
            }),
        )
        .fallback(|| async {
            Problem::new(StatusCode::NOT_FOUND, "wrong", "there is no such path: see /api/v1/openapi.json")
        })
        .method_not_allowed_fallback(|| async {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "wrong", "not with this method: see /api/v1/openapi.json")
        })
}

fn described() -> OpenApiRouter<Shared> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(query::query))
        .routes(routes!(documents::stragglers))
        .routes(routes!(documents::explain))
        .routes(routes!(documents::stacks))
        .routes(routes!(documents::nodes))
        .routes(routes!(documents::watch))
        .routes(routes!(documents::step))
        .routes(routes!(documents::investigations))
        .routes(routes!(documents::schema))
        .routes(routes!(documents::cost))
        .routes(routes!(tail::tail))
        .routes(routes!(documents::board))
        .routes(routes!(live::findings))
        .routes(routes!(live::findings_events))
        .routes(routes!(live::watch_events))
        .routes(routes!(healthz))
}

/// Whether this process answers; it asks nobody.
#[utoipa::path(get, path = "/healthz", security(()), responses((status = 200, body = Health)))]
async fn healthz(Params(Nothing {}): Params<Nothing>) -> Json<Health> {
    Json(Health { status: "ok".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() })
}

/// How this process is.
#[derive(Serialize, ToSchema)]
struct Health {
    /// `ok`.
    status: String,
    /// The release.
    version: String,
}

/// A link's secret.
#[derive(Deserialize)]
struct SignIn {
    secret: String,
}

/// A session.
#[derive(Serialize)]
struct Session {
    token: String,
}

/// A link's secret becomes a session's token. Not part of the described interface: programs have
/// tokens of their own.
async fn sign_in(
    State(guard): State<Arc<Guard>>,
    Extension(peer): Extension<Peer>,
    Params(Nothing {}): Params<Nothing>,
    given: Result<Json<SignIn>, JsonRejection>,
) -> Result<Json<Session>, Problem> {
    let Json(given) = given.map_err(|rejection| {
        Problem::new(rejection.status(), "wrong", "the body is {\"secret\": \"…\"}, as application/json")
    })?;
    guard.sign_in(peer, &given.secret).map(|token| Json(Session { token }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_as_it_is() {
        let (_, mut description) = described().split_for_parts();
        with_problems(&mut description);
        let mut json = serde_json::to_value(&description).unwrap();
        json["info"]["version"] = "VERSION".into();
        insta::assert_snapshot!("openapi", serde_json::to_string_pretty(&json).unwrap());
    }
}
