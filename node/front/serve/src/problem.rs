//! The answer in place of an answer: problem details (RFC 9457).

use ask::{NoAgent, NoAnswer, Stopped, UnknownJob, UsageError};
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use model::{Coverage, FailureKind};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Problem details.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(super) struct Problem {
    /// What kind: `urn:rankmesh:problem:` and `wrong`, `unauthorized`, `forbidden`,
    /// `unknown` (a job), `busy`, `timeout`, `partial`, `unreachable`, `failed` or `internal`.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// The status in words.
    pub(super) title: String,
    /// The HTTP status.
    pub(super) status: u16,
    /// What happened and what to do.
    pub(super) detail: String,
    /// Who was asked and who answered, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub(super) coverage: Option<Box<Coverage>>,
    /// Seconds until asking again is worth while.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry_after: Option<u64>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, kind: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:rankmesh:problem:{kind}"),
            title: status.canonical_reason().unwrap_or_default().to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
            coverage: None,
            retry_after: None,
        }
    }

    /// The request is wrong.
    pub(super) fn wrong(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "wrong", detail)
    }

    /// Too many questions run at the moment.
    pub(super) fn busy(detail: impl Into<String>, retry_after: u64) -> Self {
        Self { retry_after: Some(retry_after), ..Self::new(StatusCode::TOO_MANY_REQUESTS, "busy", detail) }
    }

    /// The answer lacks nodes, and all were required.
    pub(super) fn partial(coverage: Coverage) -> Self {
        let detail = "the answer is partial and require_all was given: nothing is given";
        let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, "partial", detail);
        Self { coverage: Some(Box::new(coverage)), ..problem }
    }

    /// The problem for an error of a question.
    pub(super) fn of(error: &anyhow::Error) -> Self {
        let detail = format!("{error:#}");
        if error.is::<UsageError>() {
            return Self::wrong(detail);
        }
        if error.is::<UnknownJob>() {
            return Self::new(StatusCode::NOT_FOUND, "unknown", detail);
        }
        if error.is::<Stopped>() {
            return Self::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the question was stopped");
        }
        let none = error.downcast_ref::<NoAnswer>();
        let problem = match none.map(|none| none.failure.kind) {
            _ if ask::is_forbidden(error) => Self::new(StatusCode::FORBIDDEN, "forbidden", detail),
            Some(FailureKind::Busy) => Self::busy(detail, 3),
            Some(FailureKind::Timeout) => Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout", detail),
            None if error.is::<NoAgent>() => Self::new(StatusCode::SERVICE_UNAVAILABLE, "unreachable", detail),
            _ => Self::new(StatusCode::BAD_GATEWAY, "failed", detail),
        };
        let coverage = none.and_then(|none| none.coverage.clone()).map(Box::new);
        Self { coverage, ..problem }
    }

    /// A fault of this program.
    pub(super) fn internal(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let retry = self.retry_after.map(HeaderValue::from);
        let mut response = (status, Json(self)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(retry) = retry {
            headers.insert(header::RETRY_AFTER, retry);
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
