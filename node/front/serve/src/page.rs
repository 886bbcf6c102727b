//! The page: files that are part of the binary, each with its type. It loads nothing from
//! elsewhere, and a policy (<https://www.w3.org/TR/CSP3/>) forbids it to.

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::api::{Nothing, Params};
use super::problem::Problem;
use super::unchanging::unchanging;

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

const INDEX: &str = include_str!("page/index.html");

/// Name under `/page/`, type, content.
const FILES: [(&str, &str, &str); 16] = [
    ("main.js", SCRIPT, include_str!("page/main.js")),
    ("api.js", SCRIPT, include_str!("page/api.js")),
    ("table.js", SCRIPT, include_str!("page/table.js")),
    ("heat.js", SCRIPT, include_str!("page/heat.js")),
    ("lanes.js", SCRIPT, include_str!("page/lanes.js")),
    ("map.js", SCRIPT, include_str!("page/map.js")),
    ("rank.js", SCRIPT, include_str!("page/rank.js")),
    ("services.js", SCRIPT, include_str!("page/services.js")),
    ("saved.js", SCRIPT, include_str!("page/saved.js")),
    ("time.js", SCRIPT, include_str!("page/time.js")),
    ("chart.js", SCRIPT, include_str!("page/chart.js")),
    ("console.js", SCRIPT, include_str!("page/console.js")),
    ("page.css", STYLE, include_str!("page/page.css")),
    ("report.css", STYLE, report::html::STYLE),
    ("uplot.js", SCRIPT, include_str!("page/vendor/uplot-1.6.32.js")),
    ("uplot.css", STYLE, include_str!("page/vendor/uplot-1.6.32.css")),
];

/// Its paths.
pub(super) fn router() -> Router {
    Router::new().route("/", get(index)).route("/page/{name}", get(named))
}

async fn index(_: Params<Nothing>, headers: HeaderMap) -> Response {
    file(&headers, "text/html; charset=utf-8", INDEX)
}

async fn named(Path(name): Path<String>, _: Params<Nothing>, headers: HeaderMap) -> Response {
    match FILES.iter().find(|(known, ..)| *known == name) {
        Some((_, kind, content)) => file(&headers, kind, content),
        None => Problem::new(StatusCode::NOT_FOUND, "wrong", "there is no such file of the page").into_response(),
    }
}

fn file(request: &HeaderMap, kind: &'static str, content: &'static str) -> Response {
    ([(header::CONTENT_SECURITY_POLICY, POLICY)], unchanging(request, kind, content)).into_response()
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::digest::{SHA256, digest};

    use super::*;

    #[test]
    fn nothing_is_loaded_from_elsewhere_and_no_text_becomes_markup() {
        for (name, content) in FILES.iter().map(|(name, _, content)| (*name, *content)).chain([("index", INDEX)]) {
            for wrong in [
                "http://",
                "https://",
                "@import",
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
            ] {
                let vendored = name.starts_with("uplot") || name == "report.css";
                assert!(vendored || !content.contains(wrong), "{name} has {wrong}");
            }
        }
        let handles = INDEX.split_whitespace().any(|word| word.starts_with("on") && word.contains('='));
        assert!(!INDEX.contains("<script>") && !handles && !INDEX.contains("style="), "nothing inline");
        for (name, ..) in FILES {
            let used = FILES.iter().any(|(_, _, content)| content.contains(&format!("./{name}")))
                || INDEX.contains(&format!("/page/{name}"));
            assert!(used, "{name}");
        }
    }

    #[test]
    fn the_vendored_library_is_what_was_published() {
        let hex = |name: &str| {
            let (.., content) = FILES.iter().find(|(known, ..)| *known == name).unwrap();
            hex::encode(digest(&SHA256, content.as_bytes()).as_ref())
        };
        assert_eq!(hex("uplot.js"), "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f");
        assert_eq!(hex("uplot.css"), "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04");
    }
}
