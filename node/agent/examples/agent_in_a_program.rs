//! An agent inside a program of one's own: it founds a mesh, opens a trace store, and is asked in
//! SQL.
//!
//! ```text
//! cargo run -p rankmesh-agent --example agent_in_a_program
//! ```
//!
//! Everything is in a temporary directory and nothing is recorded; a program that is to record
//! sets `capture: CaptureChoice::Auto` and needs the rights that `rankmesh check` lists.

use std::time::Duration;

use agent::{Agent, AgentConfig, SourceConfig};
use anyhow::bail;
use query::{QueryOutcome, Question, ask};
use store::StoreConfig;
use tokio_util::sync::CancellationToken;

/// Starts an agent, asks it `sql`, and ends it. The answer as lines of text.
async fn ask_an_agent(sql: &str) -> anyhow::Result<Vec<String>> {
    let dir = tempfile::tempdir()?;
    let source = SourceConfig::Store { path: dir.path().join("trace.db"), limits: StoreConfig::default() };
    let agent = Agent::start(AgentConfig {
        // With addresses of members (`join`) and a token it would join their mesh instead of
        // founding one.
        labels: vec![("room".to_owned(), "lab".to_owned())],
        ..AgentConfig::new("here".parse()?, dir.path().join("identity"), source)
    })
    .await?;
    let question = Question {
        sql: sql.to_owned(),
        timeout_ms: u64::try_from(Duration::from_secs(10).as_millis())?,
        ..Question::default()
    };
    let asked = ask::ask(&agent.shared().coordinator, question, CancellationToken::new()).await;
    let lines = match asked? {
        QueryOutcome::Plan(plan) => bail!("a plan was not asked for: {plan}"),
        QueryOutcome::Answer { answer, coverage, .. } => {
            let mut lines = coverage.lines();
            lines.extend(answer.rows.iter().map(|row| format!("{row:?}")));
            lines
        }
    };
    agent.shutdown().await;
    Ok(lines)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // Bounds what questions take; before anything opens a database.
    query_planner::memory::install();
    for line in ask_an_agent("SELECT count(*) AS calls FROM collectives").await? {
        println!("{line}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn the_agent_answers() {
        let lines = ask_an_agent("SELECT count(*) FROM collectives").await.unwrap();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[1], "[Integer(0)]");
    }
}
