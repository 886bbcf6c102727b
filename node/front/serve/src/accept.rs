//! Which form a client wants of those that there are (RFC 9110, section 12.5.1).

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;

/// A range of media types in an Accept header, with its weight.
struct Range<'h> {
    kind: &'h str,
    weight: f32,
}

fn ranges(headers: &HeaderMap) -> Vec<Range<'_>> {
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let parts = values.flat_map(|value| value.split(',')).map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let mut fields = part.split(';').map(str::trim);
            let kind = fields.next().unwrap_or_default();
            let weight = fields.find_map(|field| field.strip_prefix("q=").or_else(|| field.strip_prefix("Q=")));
            Range { kind, weight: weight.and_then(|q| q.trim().parse().ok()).unwrap_or(1.0) }
        })
        .collect()
}

/// How exactly a range names a media type: 3 by name, 2 by its main type, 1 by `*/*`.
fn fit(range: &str, known: &str) -> u8 {
    let main = known.split('/').next().unwrap_or_default();
    if range.eq_ignore_ascii_case(known) {
        3
    } else if range.strip_suffix("/*").is_some_and(|of| of.eq_ignore_ascii_case(main)) {
        2
    } else {
        u8::from(range == "*/*")
    }
}

/// The form with the largest weight; of several the one that the client names first, and of those
/// that it does not name the first one. Without a header the first form. None where nothing that
/// the client accepts is there.
pub(super) fn preferred<T: Copy>(headers: &HeaderMap, forms: &[(&str, T)]) -> Option<T> {
    let ranges = ranges(headers);
    if ranges.is_empty() {
        return forms.first().map(|(_, form)| *form);
    }
    let mut best: Option<(f32, usize, T)> = None;
    for (known, form) in forms {
        // The most exact range decides.
        let fits = ranges.iter().enumerate().map(|(place, range)| (fit(range.kind, known), place, range.weight));
        let Some((_, place, weight)) =
            fits.filter(|(fit, ..)| *fit > 0).max_by_key(|(fit, place, _)| (*fit, usize::MAX - place))
        else {
            continue;
        };
        let is_better = best.is_none_or(|(most, before, _)| weight > most || (weight >= most && place < before));
        if weight > 0.0 && is_better {
            best = Some((weight, place, *form));
        }
    }
    best.map(|(.., form)| form)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(accept: &[&str]) -> Option<&'static str> {
        let mut headers = HeaderMap::new();
        for value in accept {
            headers.append(ACCEPT, value.parse().unwrap());
        }
        preferred(&headers, &[("application/json", "json"), ("application/x-ndjson", "ndjson"), ("text/csv", "csv")])
    }

    #[test]
    fn weights_and_exactness_decide() {
        assert_eq!(chosen(&[]), Some("json"));
        assert_eq!(chosen(&["*/*"]), Some("json"));
        assert_eq!(chosen(&["text/csv"]), Some("csv"));
        assert_eq!(chosen(&["text/csv, application/json"]), Some("csv"));
        assert_eq!(chosen(&["application/json;q=0.5, text/csv;q=0.9"]), Some("csv"));
        assert_eq!(chosen(&["text/csv;q=0.5", "application/json"]), Some("json"));
        assert_eq!(chosen(&["application/json;q=0, */*;q=0.1"]), Some("ndjson"));
        assert_eq!(chosen(&["text/*, application/json;q=0.9"]), Some("csv"));
        assert_eq!(chosen(&["text/html, */*;q=0.8"]), Some("json"));
        assert_eq!(chosen(&["text/html"]), None);
        assert_eq!(chosen(&["application/json;q=0"]), None);
        assert_eq!(chosen(&["APPLICATION/JSON; charset=utf-8 ;Q=0.3, "]), Some("json"));
    }
}
