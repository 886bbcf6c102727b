//! The paths under `/api/v1`, and their description, which is made of the handlers.
//!
//! Documents are those of `--format json` of the commands: one model for all. `query` answers SQL,
//! `documents` what has one JSON document, `live` what goes on; `params` is what several take.

mod arrow;
mod documents;
mod encode;
mod live;
mod params;
mod query;

use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::http::StatusCode;
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

/// What the description says beside paths.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "rankmesh",
        description = "SQL over the stores of all hosts of a mesh, and which rank holds a job up, and why. Every answer says who \
                       is in it (coverage); 206 marks one that lacks nodes. Times are Unix nanoseconds, as integers of 64 bits."
    ),
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

/// The paths of the interface.
pub(super) fn router(gateway: &Shared, guard: &Arc<Guard>) -> Router {
    let (asking, description) = described().split_for_parts();
    let signing: Router =
        Router::new().route("/api/v1/session", axum::routing::post(sign_in)).with_state(Arc::clone(guard));
    let json = serde_json::to_value(&description).unwrap_or_default();
    asking
        .with_state(Arc::clone(gateway))
        .merge(signing)
        .route("/api/v1/openapi.json", get(move || async move { Json(json) }))
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
        .routes(routes!(documents::board))
        .routes(routes!(live::findings))
        .routes(routes!(live::findings_events))
        .routes(routes!(live::watch_events))
        .routes(routes!(healthz))
}

/// Whether this process answers; it asks nobody.
#[utoipa::path(get, path = "/healthz", security(()), responses((status = 200, body = Health)))]
async fn healthz() -> Json<Health> {
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
    Json(given): Json<SignIn>,
) -> Result<Json<Session>, Problem> {
    guard.sign_in(peer, &given.secret).map(|token| Json(Session { token }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_as_it_is() {
        let (_, description) = described().split_for_parts();
        let mut json = serde_json::to_value(&description).unwrap();
        json["info"]["version"] = "VERSION".into();
        insta::assert_snapshot!("openapi", serde_json::to_string_pretty(&json).unwrap());
    }
}
