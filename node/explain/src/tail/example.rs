//! A request as an example: who did what for it, then who.

use serde::Serialize;

use super::parts::{Part, Request};

/// One of the slowest.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = TailExample))]
pub struct Example {
    /// Its host.
    pub node: String,
    /// The server's process there.
    pub pid: i64,
    /// The thread that read its first bytes.
    pub tid: i64,
    /// When it began: its `ts_ns` in `requests`.
    pub ts_ns: i64,
    /// To the end of its answer.
    pub duration_ns: i64,
    /// Method and path; empty where they are not shown.
    pub route: String,
    /// Of HTTP.
    pub status: Option<i64>,
    /// What it waited for, in order; empty where that is not known.
    pub path: Vec<Link>,
}

impl Example {
    pub(super) fn of(request: &Request) -> Self {
        let Request { node, pid, tid, ts_ns, duration_ns, route, status, path, .. } = request.clone();
        let path = path.into_iter().map(|(part, ns)| Link { text: part.words(), part, ns }).collect();
        Self { node, pid, tid, ts_ns, duration_ns, route, status, path }
    }
}

/// A link of a request's chain: who did what, then who.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = TailLink))]
pub struct Link {
    /// Who did what.
    pub part: Part,
    /// How long.
    pub ns: i64,
    /// `part` in words.
    pub text: String,
}
