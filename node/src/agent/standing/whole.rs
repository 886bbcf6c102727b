//! The whole report of a job: from its judge, where that is another host.

use std::time::{Duration, Instant};

use model::wire::{Request, Response};

use super::super::Shared;
use super::{Current, judging};

/// Longest that a judge is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Puts the judge's whole report in place of the brief one that it told.
///
/// # Errors
/// The judge does not give it; in words. The brief one then stays.
pub(in crate::agent) async fn whole_of(
    shared: &Shared,
    current: &mut Current,
    deadline: Instant,
) -> Result<(), String> {
    let own = shared.identity.node().to_string();
    if current.judge.is_empty() || current.judge == own {
        return Ok(());
    }
    let list = shared.coordinator.gossip.list();
    let member = list.iter().find(|member| member.name == current.judge).ok_or("it is no member any more")?;
    let name = current.judge.parse().map_err(|error| format!("{error}"))?;
    let left = deadline.saturating_duration_since(Instant::now()) / 4;
    let deadline = tokio::time::Instant::now() + PATIENCE.min(left);
    let answer = shared.mesh.ask(&name, member.address, Request::Verdict(current.job), deadline).await;
    let mut answer = answer.map_err(|error| error.to_string())?;
    let json = match answer.next().await.map_err(|error| error.to_string())? {
        Some(Response::Verdict(json)) => json,
        Some(other) => return Err(other.summary()),
        None => return Err("no answer".to_owned()),
    };
    current.standing = judging::read_whole(&json).ok_or("it has none, or one too large to be sent")?;
    current.judged_ns = record::steady_now_ns();
    Ok(())
}
