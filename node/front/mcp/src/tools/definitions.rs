//! The definitions of the tools that an assistant reads, and the arguments that it may give.

use std::sync::Arc;

use ask::UsageError;
use front::question::kind;
use record::printable;
use rmcp::model::{Tool, ToolAnnotations};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Rows of an answer unless more are asked for.
pub(super) const ROWS: usize = 200;

/// The definitions.
pub(crate) fn list() -> Vec<Tool> {
    let job = json!({"type": "string", "description": "job_id, or job_id.step_id; else the worst job"});
    let since = json!({"type": "string", "description": "10m, 14:05 or 2026-11-22T03:00; else what stands now"});
    let until = json!({"type": "string", "description": "with since"});
    let offset = json!({"type": "integer", "minimum": 0, "description": "skip so many rows or lines"});
    let tool = |name: &'static str,
                title: &str,
                about: &'static str,
                properties: serde_json::Value,
                required: &[&str]| {
        let schema =
            json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
        let serde_json::Value::Object(schema) = schema else { unreachable!("is an object") };
        let hints = ToolAnnotations::with_title(title).read_only(true).idempotent(true).open_world(false);
        Tool::new_with_raw(name, Some(about.into()), Arc::new(schema)).with_annotations(hints)
    };
    vec![
        tool(
            "diagnose",
            "Which rank, and why",
            "Start here. Which rank holds a job up, on which host, why, since when, what it costs, what was ruled out or not \
             visible, and commands to check and fix it.",
            json!({"job": job, "since": since, "until": until, "offset": offset,
                "finding": {"type": "integer", "description": "ts_ns of a row of findings, in place of since"}}),
            &[],
        ),
        tool(
            "diagnose_tail",
            "Which requests are slow, and why",
            "Of servers (not jobs): how long requests take (p50 to p99.9, by service and host), and what the slowest 1 % wait \
             for more than ordinary ones, with examples. Start here when a service is slow.",
            json!({"service": {"type": "string"}, "tenant": {"type": "string"}, "route": {"type": "string"},
                "by": {"type": "string", "enum": ["host", "tenant", "route", "cause"]},
                "since": {"type": "string", "description": "else 10m"}, "until": until, "offset": offset}),
            &[],
        ),
        tool(
            "ranks",
            "Scores of ranks",
            "CSV of every rank's scores, the latest first. The culprit of a synchronising job has the LOWEST wait; long waits \
             are its victims'.",
            json!({"job": job, "since": since, "until": until, "offset": offset,
                "ranks": {"type": "string", "description": "only these: 3,5-7"}}),
            &[],
        ),
        tool(
            "query",
            "Ask SQL",
            "SQL (SQLite's dialect, SELECT only) over all nodes as if their stores were one database; CSV. Every table has a \
             column node. Times are ns, ts_ns is Unix time. Aggregate and narrow by ts_ns rather than page.",
            json!({"sql": {"type": "string"}, "limit": {"type": "integer", "minimum": 1, "maximum": 10000, "default": ROWS},
                "offset": offset, "nodes": {"type": "array", "items": {"type": "string"}, "description": "ask only these"},
                "plan": {"type": "boolean", "description": "the plan in place of rows"}}),
            &["sql"],
        ),
        tool(
            "schema",
            "Tables and columns",
            "The tables, a line each; of one table its columns with meaning and unit.",
            json!({"table": {"type": "string"}, "offset": offset}),
            &[],
        ),
        tool(
            "stacks",
            "Call stacks now",
            "Where ranks are at this moment: their call stacks (Python lines and native functions) in classes, by ranks.",
            json!({"job": job, "ranks": {"type": "string", "description": "only these: 3,5-7"}, "offset": offset,
                "children": {"type": "boolean", "description": "also their child processes, such as data loaders"}}),
            &[],
        ),
        tool(
            "nodes",
            "Hosts of the mesh",
            "CSV of the nodes: live or dead, ranks, rows, what they record, labels.",
            json!({"offset": offset}),
            &[],
        ),
    ]
}

/// Checks arguments against a tool's definition, in words for who wrote them. Of an unknown tool
/// nothing is wanted.
///
/// # Errors
/// One is missing, not known, or of another type.
pub(super) fn check(name: &str, arguments: &Map<String, Value>) -> Result<(), UsageError> {
    let Some(tool) = list().into_iter().find(|tool| tool.name == name) else { return Ok(()) };
    let empty = Map::new();
    let known = tool.input_schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    for (name, value) in arguments {
        let Some(about) = known.get(name) else {
            let name: String = printable(name).chars().take(40).collect();
            let all: Vec<&str> = known.keys().map(String::as_str).collect();
            return Err(UsageError(format!("there is no argument {name}; there are {}", all.join(", "))));
        };
        let (fits, wanted) = match about["type"].as_str() {
            Some("string") => (value.is_string(), "a text"),
            Some("boolean") => (value.is_boolean(), "true or false"),
            Some("integer") if about["minimum"].is_number() => (value.is_u64(), "a whole number, not below zero"),
            Some("integer") => (value.is_i64(), "a whole number"),
            _ => (value.as_array().is_some_and(|all| all.iter().all(Value::is_string)), "a list of texts"),
        };
        if !fits && !value.is_null() {
            return Err(UsageError(format!("{name} is {}: {wanted} is wanted", kind(value))));
        }
    }
    let required = tool.input_schema.get("required").and_then(Value::as_array).into_iter().flatten();
    match required.filter_map(Value::as_str).find(|name| arguments.get(*name).is_none_or(Value::is_null)) {
        Some(missing) => Err(UsageError(format!("{missing} is missing"))),
        None => Ok(()),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Diagnose {
    pub(super) job: Option<String>,
    pub(super) since: Option<String>,
    pub(super) until: Option<String>,
    pub(super) finding: Option<i64>,
    #[serde(default)]
    pub(super) offset: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DiagnoseTail {
    pub(super) service: Option<String>,
    pub(super) tenant: Option<String>,
    pub(super) route: Option<String>,
    pub(super) by: Option<String>,
    pub(super) since: Option<String>,
    pub(super) until: Option<String>,
    #[serde(default)]
    pub(super) offset: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ranks {
    pub(super) job: Option<String>,
    pub(super) since: Option<String>,
    pub(super) until: Option<String>,
    pub(super) ranks: Option<String>,
    #[serde(default)]
    pub(super) offset: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Query {
    pub(super) sql: String,
    pub(super) limit: Option<usize>,
    #[serde(default)]
    pub(super) offset: usize,
    #[serde(default)]
    pub(super) nodes: Vec<String>,
    #[serde(default)]
    pub(super) plan: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Schema {
    pub(super) table: Option<String>,
    #[serde(default)]
    pub(super) offset: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stacks {
    pub(super) job: Option<String>,
    pub(super) ranks: Option<String>,
    #[serde(default)]
    pub(super) children: bool,
    #[serde(default)]
    pub(super) offset: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nodes {
    #[serde(default)]
    pub(super) offset: usize,
}

#[cfg(test)]
mod tests {
    use super::super::super::bounds::tokens;
    use super::*;

    #[test]
    fn the_definitions_are_few_and_short_and_only_read() {
        let tools = list();
        assert_eq!(tools.len(), 7);
        let json = serde_json::to_string(&tools).unwrap();
        assert!(tokens(&json) < 2_500, "{} tokens:\n{json}", tokens(&json));
        for tool in &tools {
            let hints = tool.annotations.as_ref().unwrap();
            assert_eq!((hints.read_only_hint, hints.open_world_hint), (Some(true), Some(false)), "{}", tool.name);
        }
    }

    #[test]
    fn wrong_arguments_are_told_in_words_of_the_protocol() {
        let refused = |tool: &str, arguments: Value| {
            check(tool, arguments.as_object().unwrap()).err().map(|error| error.to_string())
        };
        for (tool, arguments, words) in [
            ("query", json!({}), "sql is missing"),
            ("query", json!({"sql": 5}), "sql is a number: a text is wanted"),
            (
                "query",
                json!({"sql": "SELECT 1", "limit": -1}),
                "limit is a number: a whole number, not below zero is wanted",
            ),
            ("query", json!({"sql": "SELECT 1", "nodes": [1]}), "nodes is a list: a list of texts is wanted"),
            ("stacks", json!({"children": "yes"}), "children is a text: true or false is wanted"),
            ("nodes", json!({"x\u{1b}": 1}), "there is no argument x\\x1b; there are offset"),
        ] {
            assert_eq!(refused(tool, arguments).as_deref(), Some(words));
        }
        let all = json!({"sql": "SELECT 1", "limit": 5, "offset": 0, "nodes": ["a"], "plan": null});
        assert_eq!(refused("query", all), None);
        assert_eq!(refused("diagnose", json!({"finding": -5})), None);
    }
}
