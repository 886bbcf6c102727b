//! Parameters of several paths: which time, which nodes, how long.

use std::time::Duration;

use ask::Target;
use ask::output::quiet;
use ask::times::{When, parse_when_or_now};
use ask::values::{millis, parse_duration, parse_hash, parse_label};
use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use model::{AskedSpan, Coverage};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use utoipa::IntoParams;

use super::super::gateway::Gateway;
use super::super::problem::Problem;

/// The parameters of a path; those that are not known are refused.
#[derive(Debug)]
pub(in super::super) struct Params<T>(pub(in super::super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Self::of(&parts.uri)
    }
}

impl<T: DeserializeOwned> Params<T> {
    /// Those of an address.
    ///
    /// # Errors
    /// One is not known, or wrong.
    pub(in super::super) fn of(uri: &Uri) -> Result<Self, Problem> {
        let read = Query::<T>::try_from_uri(uri);
        read.map(|Query(read)| Self(read)).map_err(|error| Problem::wrong(in_words(&error.body_text())))
    }
}

/// Of a path without parameters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Nothing {}

/// What is wrong with a parameter, without the words of the library that read it.
fn in_words(text: &str) -> String {
    let text = text.rsplit_once("Failed to deserialize query string: ").map_or(text, |(_, why)| why);
    let quotes = |text: &str| text.replace('`', "");
    if let Some((_, rest)) = text.split_once("unknown field `") {
        let (name, known) = rest.split_once('`').unwrap_or((rest, ""));
        let name: String = record::printable(name).chars().take(40).collect();
        let known = known.split_once("expected ").map_or("", |(_, known)| known);
        let known = known.trim_start_matches("one of ");
        return match known {
            "" => format!("there is no parameter {name}: this path takes none"),
            known => format!("there is no parameter {name}; there are {}", quotes(known)),
        };
    }
    if let Some((_, rest)) = text.split_once("duplicate field `") {
        return format!("{} is given twice", quotes(rest));
    }
    // NAME: what is wrong
    let (name, why) = text.split_once(": ").unwrap_or(("a parameter", text));
    let why = match why {
        "provided string was not `true` or `false`" => "true or false is wanted".to_owned(),
        why if why.contains("invalid digit") || why.contains("number too large") || why.contains("empty string") => {
            "an integer is wanted".to_owned()
        }
        why => quotes(&why.replace("unknown variant", "there is no").replace(", expected one of", "; there are")),
    };
    format!("{name}: {why}")
}

/// Of which time and job, which nodes, and how long.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct OfTime {
    /// From then on: `60s` (ago), a date and time with its zone, or s, ms, us or ns since 1970 [default: the
    /// standing verdict].
    #[serde(default, deserialize_with = "when")]
    #[param(value_type = Option<String>)]
    pub(super) since: Option<When>,
    /// With `since`: up to then.
    #[serde(default, deserialize_with = "when")]
    #[param(value_type = Option<String>)]
    pub(super) until: Option<When>,
    /// Only this job.
    pub(super) job: Option<String>,
    /// Only this communicator, by its hexadecimal hash.
    #[serde(default, deserialize_with = "hash")]
    #[param(value_type = Option<String>)]
    pub(super) comm: Option<u64>,
    /// Of `explain` only, whose parameters list it.
    #[param(ignore)]
    pub(super) finding: Option<i64>,
    /// The time for it, as `10s` [default: 10s].
    #[serde(default, deserialize_with = "duration")]
    #[param(value_type = Option<String>)]
    pub(super) timeout: Option<Duration>,
    /// Ask only these nodes, by commas.
    #[serde(default, deserialize_with = "list")]
    #[param(value_type = Option<String>)]
    pub(super) nodes: Vec<String>,
    /// Ask only nodes with all these labels, `K=V` by commas.
    #[serde(default, deserialize_with = "labels")]
    #[param(value_type = Option<String>)]
    pub(super) label: Vec<(String, String)>,
    /// Nothing (503) instead of an answer that lacks nodes (206).
    #[serde(default)]
    pub(super) require_all: bool,
}

impl OfTime {
    /// The span, of this target's clock.
    ///
    /// # Errors
    /// It ends before it begins, or has no beginning.
    pub(super) fn span(&self, target: &Target) -> anyhow::Result<AskedSpan> {
        match (self.since, self.until) {
            (None, None) => Ok(AskedSpan::Now),
            (None, Some(_)) => Err(wrong_end().into()),
            (Some(since), until) => Ok(target.span(since, until)?),
        }
    }

    /// The same as Unix nanoseconds, up to now where it has no end; none where none was given.
    ///
    /// # Errors
    /// As [`Self::span`].
    pub(super) fn span_ns(&self, target: &Target) -> anyhow::Result<Option<(i64, i64)>> {
        Ok(target.ns_of(self.span(target)?))
    }
}

fn wrong_end() -> ask::UsageError {
    ask::UsageError("until needs since".to_owned())
}

/// The time limit of a question, milliseconds.
pub(super) fn timeout_ms(gateway: &Gateway, wanted: Option<Duration>) -> Result<u64, Problem> {
    gateway.timeout(wanted).map(millis)
}

/// A JSON document with the status that follows from its coverage.
pub(super) fn document(json: String, coverage: &Coverage, require_all: bool) -> Result<Response, Problem> {
    let status = status(coverage, require_all)?;
    Ok((status, [("content-type", "application/json")], quiet(&json)).into_response())
}

/// 200, or 206 where nodes are missing.
///
/// # Errors
/// Nodes are missing, and all were required.
pub(super) fn status(coverage: &Coverage, require_all: bool) -> Result<StatusCode, Problem> {
    match (coverage.is_complete(), require_all) {
        (true, _) => Ok(StatusCode::OK),
        (false, false) => Ok(StatusCode::PARTIAL_CONTENT),
        (false, true) => Err(Problem::partial(coverage.clone())),
    }
}

fn parsed<'de, D: Deserializer<'de>, T>(
    from: D,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| parse(&text).map_err(serde::de::Error::custom)).transpose()
}

/// A length of time.
pub(super) fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    parsed(from, parse_duration)
}

/// A duration where there is one.
///
/// # Errors
/// It is none.
pub(super) fn duration_of(text: Option<String>) -> Result<Option<Duration>, Problem> {
    text.map(|text| parse_duration(&text)).transpose().map_err(Problem::wrong)
}

fn hash<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    parsed(from, parse_hash)
}

/// A point in time.
pub(super) fn when<'de, D: Deserializer<'de>>(from: D) -> Result<Option<When>, D::Error> {
    parsed(from, parse_when_or_now)
}

/// Names by commas.
pub(super) fn list<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let split = |text: &str| Ok(text.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect());
    parsed(from, split).map(Option::unwrap_or_default)
}

/// Labels by commas.
pub(super) fn labels<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(String, String)>, D::Error> {
    let split = |text: &str| text.split(',').filter(|part| !part.is_empty()).map(parse_label).collect();
    parsed(from, split).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use super::super::encode::Form;
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Some {
        #[serde(default, deserialize_with = "duration")]
        _timeout: Option<Duration>,
        _after: Option<i64>,
        _form: Option<Form>,
        _all: Option<bool>,
    }

    fn refused<T: DeserializeOwned + std::fmt::Debug>(query: &str) -> String {
        let uri = format!("/x?{query}").parse().unwrap();
        in_words(&Query::<T>::try_from_uri(&uri).unwrap_err().body_text())
    }

    #[test]
    fn what_is_wrong_is_said_in_words() {
        assert_eq!(refused::<Nothing>("sinc=1"), "there is no parameter sinc: this path takes none");
        assert!(refused::<Some>("sinc=1").starts_with("there is no parameter sinc; there are _timeout, _after"));
        assert_eq!(refused::<Some>("_after=x"), "_after: an integer is wanted");
        assert_eq!(refused::<Some>("_all=maybe"), "_all: true or false is wanted");
        assert_eq!(refused::<Some>("_after=1&_after=2"), "_after is given twice");
        assert!(
            refused::<Some>("_form=xml").contains("there is no xml; there are json"),
            "{}",
            refused::<Some>("_form=xml")
        );
        assert!(refused::<Some>("_timeout=long").contains("write 500ms"));
        for query in ["sinc=1", "_after=x", "_all=maybe", "_form=xml", "_after=1&_after=2"] {
            for word in ["serial", "field", "variant", "expected"] {
                assert!(!refused::<Some>(query).contains(word), "{}", refused::<Some>(query));
            }
        }
    }
}
