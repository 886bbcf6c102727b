//! The whole report of a job: given by its judge, and asked for where that is another host.

use std::time::{Duration, Instant};

use model::wire::{Request, Response};

use super::super::Shared;
use super::Current;

/// Longest that a judge is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Most bytes of a whole verdict: it goes in one frame.
const LARGEST: usize = 7 << 20;

/// A judge's whole verdict, for whoever asks, as JSON; empty where there is none, or it is too long
/// for a frame.
pub(crate) fn whole(shared: &Shared, job: u64) -> Vec<u8> {
    let Some((told, _)) = shared.standing.own.lock().get(&job).cloned() else { return Vec::new() };
    let json = serde_json::to_vec(&told.standing).unwrap_or_default();
    if json.len() <= LARGEST { json } else { Vec::new() }
}

/// Puts the judge's whole report in place of the brief one that it told.
///
/// # Errors
/// The judge does not give it; in words. The brief one then stays.
pub(crate) async fn whole_of(shared: &Shared, current: &mut Current, deadline: Instant) -> Result<(), String> {
    let own = shared.identity.node().to_string();
    if current.judge.is_empty() || current.judge == own {
        return Ok(());
    }
    let left = deadline.saturating_duration_since(Instant::now()) / 4;
    let deadline = tokio::time::Instant::now() + PATIENCE.min(left);
    let json = match super::ask(shared, &current.judge, Request::Verdict(current.job), deadline).await? {
        Response::Verdict(json) => json,
        other => return Err(other.summary()),
    };
    current.standing = serde_json::from_slice(&json).ok().ok_or("it has none, or one too large to be sent")?;
    current.judged_ns = record::steady_now_ns();
    Ok(())
}
