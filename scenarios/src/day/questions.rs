//! The SQL that the documentation shows: whoever reads it types it, so all of it is asked.

use std::path::Path;

use anyhow::{Context, ensure};
use query_planner::Value;

/// A question, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Page of the documentation, or what else it is from.
    pub from: String,
    /// The SQL.
    pub sql: String,
}

/// Pages with questions.
const PAGES: [&str; 10] = [
    "README.md",
    "docs/architecture.md",
    "docs/capture.md",
    "docs/operations.md",
    "docs/scale.md",
    "docs/schema.md",
    "docs/security.md",
    "docs/slurm.md",
    "docs/sql.md",
    "docs/verdicts.md",
];

/// Every question of the documentation below `root`. A span of `lateness` and its kin becomes
/// `span`, since the page's own lies on some day; questions with an ellipsis are parts of
/// questions, and left out.
///
/// # Errors
/// A page is missing, or fewer questions are found than there were when this was written.
pub fn of_pages(root: &Path, span: (i64, i64)) -> anyhow::Result<Vec<Asked>> {
    let mut asked: Vec<Asked> = Vec::new();
    for page in PAGES {
        let text = std::fs::read_to_string(root.join(page)).with_context(|| format!("reading {page}"))?;
        for sql in blocks(&text).into_iter().chain(quoted(&text)) {
            let sql = with_parameters(&with_span(&sql, span), span)?;
            if !sql.contains('…') && asked.iter().all(|known| known.sql != sql) {
                asked.push(Asked { from: page.to_owned(), sql });
            }
        }
    }
    ensure!(asked.len() >= 12, "only {} questions were found in the documentation: {asked:?}", asked.len());
    Ok(asked)
}

/// A saved investigation's parameters: the span, and any length.
fn with_parameters(sql: &str, span: (i64, i64)) -> anyhow::Result<String> {
    let value = |name: &str| match name {
        "since" => span.0,
        "until" => span.1,
        _ => 1,
    };
    let values = query_planner::parameters(sql)?.into_iter().map(|name| (name.clone(), Value::Integer(value(&name))));
    Ok(query_planner::with_values(sql, &values.collect())?)
}

fn is_question(text: &str) -> bool {
    let mut words = text.split_whitespace();
    words.next().is_some_and(|word| ["SELECT", "WITH"].contains(&word)) && words.any(|word| word == "FROM")
}

/// Statements in indented blocks.
fn blocks(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut block = String::new();
    for line in page.lines().chain([""]) {
        if let Some(code) = line.strip_prefix("    ") {
            if !code.trim_start().starts_with("--") {
                block.push_str(code.trim_end());
                block.push('\n');
            }
            continue;
        }
        for statement in std::mem::take(&mut block).split(';') {
            let statement = statement.trim();
            if is_question(statement) {
                found.push(statement.to_owned());
            }
        }
    }
    found
}

/// Questions in double quotes after `rankmesh query`, and between backticks.
fn quoted(page: &str) -> Vec<String> {
    let between = |mark: char| page.split(mark).skip(1).step_by(2);
    let commands = page.split("rankmesh query").skip(1).filter_map(|rest| rest.split('"').nth(1));
    let spans = between('`').filter(|span| !span.contains('`'));
    commands
        .chain(spans)
        .map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|text| is_question(text))
        .collect()
}

/// Put `span` in place of the two numbers of `lateness(…, …)` and its kin.
fn with_span(sql: &str, (since_ns, until_ns): (i64, i64)) -> String {
    let Some((before, rest)) = ["lateness(", "self_time("].iter().find_map(|name| {
        let at = sql.find(name)? + name.len();
        Some(sql.split_at(at))
    }) else {
        return sql.to_owned();
    };
    match rest.split_once(')') {
        Some((numbers, after)) if numbers.chars().all(|c| c.is_ascii_digit() || c == ',' || c == ' ') => {
            format!("{before}{since_ns}, {until_ns}){after}")
        }
        _ => sql.to_owned(),
    }
}

/// Questions that read each table whole, in the ways that the executors differ in.
#[must_use]
pub fn of_tables() -> Vec<Asked> {
    let whole = [
        "SELECT rank, count(*) FROM collectives GROUP BY 1",
        "SELECT count(*), min(ts_ns), max(ts_ns), sum(duration_ns) FROM collectives",
        "SELECT func, library, count(*), avg(duration_ns), max(bytes) FROM collectives GROUP BY 1, 2",
        "SELECT rank, approx_quantile(duration_ns, 0.99), median(tier) FROM collectives GROUP BY rank",
        "SELECT job_id, count(DISTINCT comm_hash) FROM collectives GROUP BY job_id",
        "SELECT count(*) FROM collectives WHERE job_id = 'train-7' AND func = 'all_reduce' AND rank = 5",
        "SELECT ts_ns, rank, duration_ns FROM collectives WHERE tier = 3 ORDER BY duration_ns DESC, ts_ns, rank LIMIT 5",
        "SELECT reason, count(*), sum(run_delay_ns) FROM offcpu GROUP BY reason",
        "SELECT event, saddr, count(*), sum(segs) FROM net_events GROUP BY 1, 2",
        "SELECT func, kind, count(*), max(duration_ns) FROM cuda_calls GROUP BY 1, 2",
        "SELECT symbol, count(*), count(ret), sum(ret) FROM symbol_calls GROUP BY symbol",
        "SELECT op, count(*), sum(bytes), max(duration_ns) FROM block_io GROUP BY op",
        "SELECT event, count(*), sum(bytes) FROM memory_events GROUP BY event",
        "SELECT event, count(*), count(exit_code) FROM process_events GROUP BY event",
        "SELECT device, counter, count(*), sum(delta) FROM fabric_counters GROUP BY 1, 2",
        "SELECT gpu, throttle, count(*), min(sm_clock_mhz) FROM gpu_samples GROUP BY 1, 2",
        "SELECT count(*), max(psi_cpu_some_us), min(memory_available_bytes) FROM host_samples",
        "SELECT name, count(*), max(value) FROM self_stats GROUP BY name",
        "SELECT job_id, count(*), min(rank), max(rank) FROM processes GROUP BY job_id",
        "SELECT source, func, sum(count), sum(sum_ns), max(max_ns) FROM call_rollups GROUP BY 1, 2",
        "SELECT service, kept, count(*), count(status), max(duration_ns) FROM requests GROUP BY 1, 2",
        "SELECT kind, reason, thread, count(*), sum(duration_ns), max(after_ns) FROM request_stretches GROUP BY 1, 2, 3",
        "SELECT service, sum(count), sum(errors), max(max_ns) FROM request_rollups GROUP BY service",
        "SELECT probe, reason, sum(lost) FROM capture_loss GROUP BY 1, 2",
        "SELECT node, count(*), max(stop_ns) FROM sessions GROUP BY node",
        "SELECT verdict, count(*), max(lateness_ns) FROM findings GROUP BY verdict",
        "SELECT outcome, count(*), sum(rows) FROM audit GROUP BY outcome",
        "SELECT op, count(*), max(duration_ns) FROM nccl_events GROUP BY op",
        "SELECT source, op, count(*), sum(duration) FROM events GROUP BY 1, 2",
    ];
    whole.map(|sql| Asked { from: "tables".to_owned(), sql: sql.to_owned() }).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_found_in_blocks_commands_and_spans() {
        let page = "Text `SELECT a FROM t` and\n\n    -- which\n    SELECT b\n    FROM t;\n\n    WITH x AS (SELECT 1 AS c FROM lateness(1, 2)) SELECT c FROM x\n\n\
                    Run `ls`: rankmesh query --job 4 \"SELECT d\n  FROM t\".\n";
        let mut found = blocks(page);
        found.extend(quoted(page));
        assert_eq!(
            found,
            [
                "SELECT b\nFROM t",
                "WITH x AS (SELECT 1 AS c FROM lateness(1, 2)) SELECT c FROM x",
                "SELECT d FROM t",
                "SELECT a FROM t"
            ]
        );
        assert_eq!(with_span(&found[1], (7, 8)), "WITH x AS (SELECT 1 AS c FROM lateness(7, 8)) SELECT c FROM x");
    }

    #[test]
    fn the_documentation_has_questions() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let asked = of_pages(&root, (1, 2)).unwrap_or_else(|error| panic!("{error:#}"));
        assert!(asked.iter().any(|asked| asked.sql.contains("FROM lateness(1, 2)")), "{asked:#?}");
        assert!(asked.iter().any(|asked| asked.sql.contains("tcp_retransmit_skb")), "{asked:#?}");
    }
}
