//! The whole report of a job: given by its judge, and asked for where that is another host.

use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use model::wire::{Request, Response};
use standing::Standing;

use super::super::Shared;
use super::Current;

/// Longest that a judge is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// A judge that has not answered for so long may be gone: the next is asked, too.
const NEXT_AFTER: Duration = Duration::from_millis(300);

/// Most bytes of a whole verdict: it goes in one frame.
const LARGEST: usize = 7 << 20;

/// A judge's whole verdict, for whoever asks, as JSON; empty where there is none, or it is too long
/// for a frame.
pub(crate) fn full_report(shared: &Shared, job: u64) -> Vec<u8> {
    let Some(held) = shared.standing.own.lock().get(&job).cloned() else { return Vec::new() };
    let json = serde_json::to_vec(&held.verdict.standing).unwrap_or_default();
    if json.len() <= LARGEST { json } else { Vec::new() }
}

/// Puts the whole report of a judge in place of the brief one: of the first judge, or where that
/// does not answer at once, of the first that does.
///
/// # Errors
/// No judge gives it; in words, by the first. The brief one then stays.
pub(crate) async fn with_full_report(shared: &Shared, current: &mut Current, deadline: Instant) -> Result<(), String> {
    let own = shared.identity.node().to_string();
    if current.judge == own {
        return Ok(());
    }
    let left = deadline.saturating_duration_since(Instant::now()) / 4;
    let deadline = tokio::time::Instant::now() + PATIENCE.min(left);
    let judges: Vec<String> = current.judges.iter().map(|verdict| verdict.judge.clone()).collect();
    let mut next = judges.iter();
    let (mut asked, mut refusal) = (FuturesUnordered::new(), None);
    loop {
        if let Some(judge) = next.next() {
            asked.push(full_report_by(shared, judge, &own, current.job, deadline));
        }
        if asked.is_empty() {
            return Err(refusal.unwrap_or_else(|| "no judge of it is known".to_owned()));
        }
        tokio::select! {
            Some((judge, answer)) = asked.next() => match answer {
                Ok(standing) => {
                    drop(asked);
                    current.judge.clone_from(judge);
                    current.standing = standing;
                    current.judged_ns = record::steady_now_ns();
                    return Ok(());
                }
                Err(why) => drop(refusal.get_or_insert(why)),
            },
            () = tokio::time::sleep(NEXT_AFTER), if next.len() > 0 => {}
        }
    }
}

/// One judge's whole report, with its name.
async fn full_report_by<'a>(
    shared: &Shared,
    judge: &'a String,
    own: &str,
    job: u64,
    deadline: tokio::time::Instant,
) -> (&'a String, Result<Standing, String>) {
    let json = if judge == own {
        Ok(full_report(shared, job))
    } else {
        match super::ask(shared, judge, Request::Verdict(job), deadline).await {
            Ok(Response::Verdict(json)) => Ok(json),
            Ok(other) => Err(other.summary()),
            Err(why) => Err(why),
        }
    };
    let read = |json: Vec<u8>| {
        serde_json::from_slice(&json).map_err(|_| "it has none, or one too large to be sent".to_owned())
    };
    (judge, json.and_then(read))
}
