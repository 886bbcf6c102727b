//! Two hundred expensive questions at once while calls are recorded: each is answered, or refused
//! with the time to come again, and ingest loses nothing.
//!
//! One full agent in this process with a store of its own; rows are written as capture writes
//! them.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use agent::{Agent, AgentConfig, SourceConfig};
use anyhow::bail;
use certs::Authority;
use query::ask::{self, QueryOutcome};
use scenarios::figures::{figure, none_of};
use scenarios::light::question;
use scenarios::store_bench::generate::{Generator, at_pace};
use store::{Source, StoreConfig};
use tokio_util::sync::CancellationToken;

/// A crowd of questions beside ingest.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Questions at once
    #[arg(long, default_value_t = 200)]
    questions: usize,
    /// Rows a second
    #[arg(long, default_value_t = 20_000)]
    rate: u64,
    /// Seconds of rows before the questions come
    #[arg(long, default_value_t = 10)]
    before: u64,
    /// Seconds of questions
    #[arg(long, default_value_t = 20)]
    timeout: u64,
}

/// The time limit of a question, and when a refused one comes again.
const PATIENCE: Duration = Duration::from_secs(20);
const COME_AGAIN: Duration = Duration::from_millis(500);

/// Each joins a window of the calls with all of them, and is gathered at the coordinator.
const HEAVY: &str = "SELECT a.rank, count(*), max(a.duration_ns + b.duration_ns) FROM collectives a \
    JOIN collectives b ON a.seq = b.seq AND a.func = b.func WHERE a.rank >= 0 GROUP BY a.rank ORDER BY 2 DESC LIMIT 20";

pub(super) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let authority = Authority::create(&"crowd".parse()?)?;
    let identity = dir.path().join("identity");
    authority.issue(&"n0".parse()?, Duration::from_secs(86_400))?.save(&identity)?;
    let agent = Agent::start(AgentConfig::new(
        "n0".parse()?,
        identity,
        SourceConfig::Store { path: dir.path().join("trace.db"), limits: StoreConfig::default() },
    ))
    .await?;
    let shared = agent.shared().clone();
    let total = arguments.before + arguments.timeout + 2;
    let recorded = {
        let (source, rate) = (shared.source.clone(), arguments.rate);
        std::thread::spawn(move || -> anyhow::Result<u64> {
            let Source::Store(store) = source.as_ref() else { bail!("no store") };
            let rows: Vec<_> = Generator::spread(rate * total, i64::try_from(total * 1_000_000_000)?).collect();
            Ok(at_pace(&store.ingest(), rate, rows, &AtomicBool::new(false)))
        })
    };
    tokio::time::sleep(Duration::from_secs(arguments.before)).await;
    let began = Instant::now();
    let until = began + Duration::from_secs(arguments.timeout);
    let asking: Vec<_> = (0..arguments.questions)
        .map(|_| {
            let shared = shared.clone();
            tokio::spawn(async move {
                let mut came = Vec::new();
                // An answered client asks again, and so does a refused one.
                while Instant::now() < until {
                    let asked =
                        ask::ask(&shared.coordinator, question(HEAVY, PATIENCE), CancellationToken::new()).await;
                    if asked.is_err() {
                        tokio::time::sleep(COME_AGAIN).await;
                    }
                    came.push(asked);
                }
                came
            })
        })
        .collect();
    let mut came: BTreeMap<String, usize> = BTreeMap::new();
    let mut unanswered = 0_usize;
    for asked in asking {
        for asked in asked.await? {
            let what = match asked {
                Ok(QueryOutcome::Answer { coverage, .. }) if coverage.is_complete() => "answered".to_owned(),
                Ok(QueryOutcome::Answer { coverage, .. }) => format!("partial: {:?}", coverage.missing),
                Ok(QueryOutcome::Plan(_)) => "planned".to_owned(),
                Err(error) => error.to_string(),
            };
            let known = ["answered", "busy: ", "timeout: ", "over budget"].iter().any(|word| what.starts_with(word));
            unanswered += usize::from(!known);
            let short = what.split("; ask again in").next().unwrap_or_default().chars().take(160).collect();
            *came.entry(short).or_default() += 1;
        }
    }
    let took = began.elapsed();
    let offered = recorded.join().map_err(|_| anyhow::anyhow!("the recorder panicked"))??;
    let Source::Store(store) = shared.source.as_ref() else { bail!("no store") };
    store.flush(Duration::from_secs(60))?;
    let health = store.health();
    for (what, count) in &came {
        eprintln!("{count} x {what}");
    }
    eprintln!("{offered} rows offered, {} stored, {} lost; the questions took {took:.1?}", health.stored, health.lost);
    none_of("crowd_neither_answered_nor_refused", unanswered, "questions");
    figure("crowd_answered", came.get("answered").copied().unwrap_or(0) as f64, "questions", ">=", 1.0);
    none_of("crowd_rows_lost", health.lost, "rows");
    none_of("crowd_rows_not_stored", offered.saturating_sub(health.stored), "rows");
    drop(shared);
    agent.shutdown().await;
    Ok(())
}
