//! The definitions of the tools that an assistant reads, and the arguments that it may give.

use std::sync::Arc;

use rmcp::model::{Tool, ToolAnnotations};
use serde::Deserialize;
use serde_json::json;

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
        assert_eq!(tools.len(), 6);
        let json = serde_json::to_string(&tools).unwrap();
        assert!(tokens(&json) < 2_500, "{} tokens:\n{json}", tokens(&json));
        for tool in &tools {
            let hints = tool.annotations.as_ref().unwrap();
            assert_eq!((hints.read_only_hint, hints.open_world_hint), (Some(true), Some(false)), "{}", tool.name);
        }
    }
}
