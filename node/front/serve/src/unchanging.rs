//! Answers that do not change while this program runs: with a tag by their content (RFC 9110,
//! section 8.8.3), so that a client that has one asks only whether it still holds.

use aws_lc_rs::digest::{SHA256, digest};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// The content, or 304 where the client has it.
pub(super) fn unchanging(request: &HeaderMap, kind: &'static str, content: impl Into<axum::body::Bytes>) -> Response {
    let content = content.into();
    let tag = format!("\"{}\"", hex::encode(&digest(&SHA256, &content).as_ref()[..16]));
    // Asked for each time: another release's page would send requests that this one does not know.
    let headers = [(header::ETAG, tag.clone()), (header::CACHE_CONTROL, "no-cache".to_owned())];
    let given = request.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = given.flat_map(|value| value.split(',')).map(|given| given.trim().trim_start_matches("W/"));
    if tags.any(|given| given == tag || given == "*") {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    (headers, [(header::CONTENT_TYPE, kind)], content).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_has_is_not_sent_again() {
        let asked = |tag: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(tag) = tag {
                headers.insert(header::IF_NONE_MATCH, tag.parse().unwrap());
            }
            unchanging(&headers, "text/css", "a {}")
        };
        let first = asked(None);
        assert_eq!(first.status(), StatusCode::OK);
        let tag = first.headers()[header::ETAG].to_str().unwrap().to_owned();
        for given in [tag.clone(), format!("W/{tag}"), format!("\"other\", {tag}"), "*".to_owned()] {
            assert_eq!(asked(Some(&given)).status(), StatusCode::NOT_MODIFIED, "{given}");
        }
        assert_eq!(asked(Some("\"other\"")).status(), StatusCode::OK);
    }
}
