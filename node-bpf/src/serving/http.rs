//! What the first bytes of a request and of an answer say in HTTP/1.x: method, route, status. The
//! route is the path with what differs from request to request replaced, and without its query.

use std::net::Ipv4Addr;

/// Methods as they are shown; any other is "OTHER".
const METHODS: [&str; 9] = ["GET", "POST", "PUT", "HEAD", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"];
/// Segments of a path that are shown.
const MOST_SEGMENTS: usize = 12;
/// A segment of this length with a digit in it names one thing, not a kind of things.
const LONG: usize = 20;
/// No name is longer.
const LONGEST: usize = 40;
/// No path of gRPC is longer.
const LONGEST_OF_GRPC: usize = 200;

/// The first line of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestLine {
    pub(super) method: &'static str,
    pub(super) route: String,
}

/// Reads the first line, of which the end may be cut off. None where it is no request.
pub(super) fn request_line(head: &[u8]) -> Option<RequestLine> {
    let line_end = head.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
    let line = &head[..line_end.unwrap_or(head.len())];
    let space = line.iter().position(|byte| *byte == b' ')?;
    let method = method(&line[..space]);
    let rest = &line[space + 1..];
    let target_end = rest.iter().position(|byte| *byte == b' ');
    let is_whole = target_end.is_some() || line_end.is_some();
    let target = &rest[..target_end.unwrap_or(rest.len())];
    Some(RequestLine { method, route: route(target, is_whole) })
}

/// A method as it is shown.
pub(super) fn method(name: &[u8]) -> &'static str {
    METHODS.into_iter().find(|method| method.as_bytes() == name).unwrap_or("OTHER")
}

/// gRPC's path, "/package.Service/Method": names that the program has, so they are shown as they are.
pub(super) fn grpc_route(path: &[u8]) -> Option<String> {
    let path = std::str::from_utf8(path).ok().filter(|path| path.len() <= LONGEST_OF_GRPC)?;
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    let is_name = |name: &str| {
        let mut characters = name.chars();
        let first = characters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        first && characters.all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    (service.split('.').all(is_name) && is_name(method)).then(|| path.to_owned())
}

/// The status of an answer.
pub(super) fn status(answer: &[u8; 16]) -> Option<u16> {
    let digits = answer.strip_prefix(b"HTTP/1.")?.get(2..5)?;
    std::str::from_utf8(digits).ok()?.parse().ok().filter(|status| (100..1_000).contains(status))
}

/// The template of a request's target. `is_whole`: nothing of it is cut off.
pub(super) fn route(target: &[u8], is_whole: bool) -> String {
    let path = without_host(target);
    let end = path.iter().position(|byte| matches!(byte, b'?' | b'#' | b';'));
    let (path, is_whole) = (&path[..end.unwrap_or(path.len())], is_whole || end.is_some());
    if path.first() != Some(&b'/') {
        // "*", or the authority of CONNECT.
        return if path == b"*" { "*".to_owned() } else { "(other)".to_owned() };
    }
    let segments: Vec<&[u8]> = path[1..].split(|byte| *byte == b'/').collect();
    let mut route = String::new();
    for (at, segment) in segments.iter().enumerate().take(MOST_SEGMENTS) {
        route.push('/');
        let is_cut = !is_whole && at + 1 == segments.len();
        route.push_str(if is_cut { "{cut}" } else { template(segment) });
    }
    if segments.len() > MOST_SEGMENTS {
        route.push_str("/…");
    }
    route
}

/// "http://host/path", as proxies are asked.
fn without_host(target: &[u8]) -> &[u8] {
    let Some(rest) = target.strip_prefix(b"http://").or_else(|| target.strip_prefix(b"https://")) else {
        return target;
    };
    rest.iter().position(|byte| *byte == b'/').map_or(b"/", |at| &rest[at..])
}

/// The segment itself where it is a name, else what kind of thing it names.
fn template(segment: &[u8]) -> &str {
    let digits = segment.iter().filter(|byte| byte.is_ascii_digit()).count();
    let hex = segment.iter().all(u8::is_ascii_hexdigit);
    if !segment.is_empty() && digits == segment.len() {
        return "{number}";
    }
    if is_uuid(segment) {
        return "{uuid}";
    }
    if hex && segment.len() >= 8 && digits > 0 {
        return "{hex}";
    }
    // An address names somebody.
    let is_address =
        std::str::from_utf8(segment).is_ok_and(|text| text.contains('@') || text.parse::<Ipv4Addr>().is_ok());
    let is_name = segment.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~:,+".contains(byte));
    if is_address || !is_name || segment.len() > LONGEST || (segment.len() >= LONG && digits > 0) {
        return "{text}";
    }
    std::str::from_utf8(segment).unwrap_or("{text}")
}

fn is_uuid(segment: &[u8]) -> bool {
    segment.len() == 36
        && segment.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn route_of(target: &str) -> String {
        request_line(format!("GET {target} HTTP/1.1\r\nHost: x\r\n").as_bytes()).unwrap().route
    }

    #[test]
    fn what_differs_from_request_to_request_is_replaced() {
        assert_eq!(route_of("/v1/chat/completions"), "/v1/chat/completions");
        assert_eq!(route_of("/users/4711/orders/9?token=secret"), "/users/{number}/orders/{number}");
        assert_eq!(route_of("/x/3f2a1b4c-0d5e-4f60-8a7b-9c0d1e2f3a4b"), "/x/{uuid}");
        assert_eq!(route_of("/blobs/deadbeef01/v2"), "/blobs/{hex}/v2");
        assert_eq!(route_of("/models/llama-3.1-8b/infer"), "/models/llama-3.1-8b/infer");
        assert_eq!(route_of("/reset/eyJhbGciOiJIUzI1NiIsInR5cCI6"), "/reset/{text}");
        assert_eq!(route_of("/mail/ada@example.org/%41"), "/mail/{text}/{text}");
        assert_eq!(route_of("/a;session=77/b"), "/a");
        assert_eq!(route_of("http://host:80/a/1"), "/a/{number}");
        assert_eq!((route_of("/"), route_of("*"), route_of("host:443")), ("/".into(), "*".into(), "(other)".into()));
        assert_eq!(route_of(&"/a".repeat(20)), format!("{}/…", "/a".repeat(12)));
    }

    #[test]
    fn a_line_that_is_cut_off_shows_no_half_names() {
        let line = request_line(b"POST /v1/embed").unwrap();
        assert_eq!((line.method, line.route.as_str()), ("POST", "/v1/{cut}"));
        assert_eq!(request_line(b"PUT /v1/embed?x=").unwrap().route, "/v1/embed");
        assert_eq!(request_line(b"GET"), None);
        assert_eq!(request_line(b"BREW /pot HTTP/1.1\r\n").unwrap().method, "OTHER");
    }

    #[test]
    fn names_of_grpc_are_shown_and_nothing_else() {
        let long = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
        assert_eq!(grpc_route(long.as_bytes()).as_deref(), Some(long));
        for path in ["/a.B", "/a.B/c/d", "/a.B/x?y", "/a..B/c", "/4711/c", "a.B/c", "/a.B/", "/ada@x/c"] {
            assert_eq!(grpc_route(path.as_bytes()), None, "{path}");
        }
        assert_eq!(grpc_route(format!("/a.B/{}", "c".repeat(200)).as_bytes()), None);
    }

    #[test]
    fn the_status_of_an_answer() {
        assert_eq!(status(b"HTTP/1.1 200 OK\r"), Some(200));
        assert_eq!(status(b"HTTP/1.0 503 Bus"), Some(503));
        assert_eq!((status(b"HTTP/1.1 2x0 OK\r"), status(b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0")), (None, None));
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_route_that_can_be_shown(head in prop::collection::vec(any::<u8>(), 0..128)) {
            if let Some(line) = request_line(&head) {
                prop_assert!(line.route.chars().all(|c| c.is_ascii_graphic() || c == '…'), "{:?}", line.route);
                prop_assert!(line.route.len() < 600);
            }
        }

        #[test]
        fn no_query_is_shown(query in "[a-z0-9=&]{1,40}") {
            let route = route_of(&format!("/search?{query}"));
            prop_assert_eq!(route, "/search");
        }
    }
}
