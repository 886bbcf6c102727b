//! The speed and cost of trust: how long a revoked node is served by the rest of a mesh of full
//! agents, whether certificates that renew under load cost a question, and the cost of the seals on
//! gossip facts.

use std::time::Duration;

use scenarios::figures::{figure, none_of, quantile};
use scenarios::trust::{TrustMesh, renew, revoke, seal};

/// A day: long enough that nothing renews by itself.
const DAY: Duration = Duration::from_secs(86_400);

/// Revocation, renewal, seals.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Agents, one of which is revoked at a time
    #[arg(long, default_value_t = 16)]
    agents: usize,
    /// Revocations
    #[arg(long, default_value_t = 7)]
    revocations: usize,
    /// Agents whose certificates renew
    #[arg(long, default_value_t = 8)]
    renewing: usize,
    /// Seconds that their certificates last
    #[arg(long, default_value_t = 45)]
    validity: u64,
    /// Seconds of questions
    #[arg(long, default_value_t = 120)]
    questions: u64,
    /// Gossipers whose seals are timed
    #[arg(long, value_delimiter = ',', default_value = "16,64")]
    gossipers: Vec<usize>,
    /// Seconds that they are watched
    #[arg(long, default_value_t = 15)]
    watch: u64,
}

pub(super) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let (mut closed, mut refused) = revocations(arguments).await?;
    let renewed = renew::run(
        arguments.renewing,
        Duration::from_secs(arguments.validity),
        Duration::from_secs(arguments.questions),
    )
    .await?;
    if let Some(first) = &renewed.first {
        eprintln!("a question was lost: {first}");
    }
    let mut seals = Vec::new();
    for n in &arguments.gossipers {
        seals.push((*n, seal::measure(*n, Duration::from_secs(arguments.watch)).await?));
    }
    let last = closed.iter().max().copied().unwrap_or_default();
    figure("revoked_connections_closed_median", quantile(&mut closed, 0.5).as_secs_f64(), "s", "<=", 5.0);
    figure("revoked_connections_closed_slowest", last.as_secs_f64(), "s", "<=", 5.0);
    figure("revoked_refused_anew_median", quantile(&mut refused, 0.5).as_secs_f64(), "s", "<=", 5.0);
    figure("renewals_under_load", renewed.renewals as f64, "certificates", ">=", 50.0);
    figure("questions_under_renewal", renewed.asked as f64, "questions", ">=", 1_000.0);
    none_of("questions_lost_to_renewal", renewed.lost, "questions");
    for (n, cost) in &seals {
        eprintln!("{n} gossipers: {} statements sealed, {} seals judged", cost.made, cost.judged);
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        figure(&format!("seal_made_{n}"), us(cost.make), "us of CPU", "<=", 200.0);
        figure(&format!("seal_judged_{n}"), us(cost.judge), "us of CPU", "<=", 200.0);
        figure(&format!("seal_share_of_gossip_cpu_{n}"), cost.share * 100.0, "percent", "<=", 50.0);
        none_of(&format!("true_statements_disbelieved_{n}"), cost.disbelieved, "statements");
        figure(&format!("gossip_cpu_a_node_{n}"), cost.core_share * 100.0, "percent of a core", "<=", 1.0);
    }
    Ok(())
}

async fn revocations(arguments: &Arguments) -> anyhow::Result<(Vec<Duration>, Vec<Duration>)> {
    let mut mesh = TrustMesh::start(arguments.agents, DAY).await?;
    let (mut closed, mut refused) = (Vec::new(), Vec::new());
    for round in 1..=arguments.revocations {
        let revoked = revoke::once(&mut mesh).await?;
        eprintln!(
            "revocation {round}: the last of {} connections was closed after {:.2} s, the last refused anew after {:.2} s",
            arguments.agents - 1,
            revoked.closed.as_secs_f64(),
            revoked.refused.as_secs_f64()
        );
        closed.push(revoked.closed);
        refused.push(revoked.refused);
    }
    for agent in mesh.agents {
        agent.shutdown().await;
    }
    Ok((closed, refused))
}
