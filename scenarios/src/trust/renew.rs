//! Certificates that renew under load: every agent of a mesh asks all the time, some questions
//! short and some that a renewal overtakes, while certificates of a few seconds renew again and
//! again. Each answer must be whole and right.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use agent::Shared;
use query::ask::{self, QueryOutcome};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::TrustMesh;
use crate::light::question;

/// Every so many questions one is long.
const LONG_EVERY: u64 = 20;
const TIMEOUT: Duration = Duration::from_secs(60);
/// A certificate that was replaced is noticed by then.
const LOOK: Duration = Duration::from_millis(50);

/// What came of it.
#[derive(Debug)]
pub struct Renewed {
    /// Questions asked, the long ones among them.
    pub asked: u64,
    /// Of these, answered in part, wrongly or not at all.
    pub lost: u64,
    /// What was wrong with the first of them.
    pub first: Option<String>,
    /// Certificates that took the place of others.
    pub renewals: u64,
}

#[derive(Default)]
struct Tally {
    done: AtomicBool,
    asked: AtomicU64,
    lost: AtomicU64,
    first: OnceLock<String>,
}

/// Asks from every one of `agents` agents for `time`.
///
/// # Errors
/// The mesh cannot start.
pub async fn run(agents: usize, validity: Duration, time: Duration) -> anyhow::Result<Renewed> {
    let mesh = TrustMesh::start(agents, validity).await?;
    let tally = Arc::new(Tally::default());
    let mut coordinators = JoinSet::new();
    for agent in &mesh.agents {
        coordinators.spawn(ask_on(Arc::clone(agent.shared()), agents, Arc::clone(&tally)));
    }
    let serials = || -> Vec<String> {
        mesh.agents.iter().map(|agent| agent.shared().mesh.identity().serial().to_owned()).collect()
    };
    let (began, mut renewals, mut before) = (Instant::now(), 0, serials());
    while began.elapsed() < time {
        tokio::time::sleep(LOOK).await;
        let now = serials();
        renewals += now.iter().zip(&before).filter(|(now, before)| now != before).count() as u64;
        before = now;
    }
    tally.done.store(true, Ordering::Relaxed);
    coordinators.join_all().await;
    for agent in mesh.agents {
        agent.shutdown().await;
    }
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Ok(Renewed { asked: count(&tally.asked), lost: count(&tally.lost), first: tally.first.get().cloned(), renewals })
}

async fn ask_on(shared: Arc<Shared>, agents: usize, tally: Arc<Tally>) {
    while !tally.done.load(Ordering::Relaxed) {
        let long = tally.asked.fetch_add(1, Ordering::Relaxed) % LONG_EVERY == LONG_EVERY - 1;
        if let Err(error) = one(&shared, long, agents).await {
            tally.lost.fetch_add(1, Ordering::Relaxed);
            tally.first.get_or_init(|| error);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The sum over all nodes, and what is wrong with it.
async fn one(shared: &Arc<Shared>, long: bool, agents: usize) -> Result<(), String> {
    let sql = if long {
        // Some tenths of a second at each node.
        "SELECT sum(x) FROM t WHERE (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 500000) \
         SELECT count(*) FROM n) = 500000"
    } else {
        "SELECT sum(x) FROM t"
    };
    match ask::ask(&shared.coordinator, question(sql, TIMEOUT), CancellationToken::new()).await {
        Ok(QueryOutcome::Answer { answer, coverage, .. }) => {
            let sum = format!("{:?}", answer.rows.first().and_then(|row| row.first()));
            if !coverage.is_complete() {
                Err(format!("missing: {:?}", coverage.missing))
            } else if sum == format!("Some(Integer({}))", 3 * agents) {
                Ok(())
            } else {
                Err(format!("a sum of {sum}"))
            }
        }
        Ok(QueryOutcome::Plan(_)) => Err("a plan".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
