//! The standing verdict of this agent: closes this host's windows and gossips their digests, hears
//! the others', judges, and tells what changes.
//!
//! What a verdict is made of and when a window can be judged is the pure `verdicts::standing`.
//! Here: `feed` collects calls, `keep_stacks` keeps where the named ranks were, `clocks` follows the reference node's clock, `tell` writes findings
//! and runs the operator's command.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use gossip::MemberState;
use parking_lot::Mutex;
use record::{steady_now_ns, wall_ahead_ns};
use serde::Serialize;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Shared;
use verdicts::digest::{self, Digest, Heard, end_of, window_of};
use verdicts::point_to_point::{self, EVERY_WINDOWS, TimeUse};
use verdicts::standing::{Board, Change, Judge, NODE_WINDOWS, Presence, Standing};

mod clocks;
mod feed;
mod keep_stacks;
mod money;
mod tell;

pub(super) use feed::Feed;

/// A window is closed so long after its end: what ended in it has come through the ring buffer by
/// then, which is read every 50 ms.
const LAG: Duration = Duration::from_millis(90);
/// Most bytes of one digest.
const LARGEST: usize = 8_000;
/// And of one statement of where time went.
const LARGEST_TIMES: usize = 4_000;
/// What came from others is looked at this often at most.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What the agent's tasks share of it.
#[derive(Debug, Default)]
pub struct StandingState {
    board: Mutex<Board>,
    current: Mutex<Option<Current>>,
    clocks: clocks::ReferenceClocks,
    new_reference: Notify,
    published_bytes: std::sync::atomic::AtomicU64,
}

/// The verdict that stands.
#[derive(Debug, Clone)]
pub struct Current {
    /// It.
    pub standing: Standing,
    /// When it was judged, on this host's steady clock.
    pub judged_ns: i64,
}

/// How the standing verdict came about, beside the report.
#[derive(Debug, Serialize)]
pub struct About {
    /// End of the window, Unix nanoseconds of the reference node's wall clock.
    pub window_end_ns: i64,
    /// The node to whose clock all times are aligned.
    pub reference: Option<String>,
    /// Time since the window ended, milliseconds.
    pub age_ms: i64,
    /// Nodes whose digest of the window was heard.
    pub heard: usize,
    /// Nodes with ranks whose digest was not heard.
    pub silent: Vec<String>,
}

impl StandingState {
    /// The verdict that stands; none where no agent of the mesh has gossiped a digest yet.
    pub fn current(&self) -> Option<Current> {
        self.current.lock().clone()
    }

    /// What was heard up to now.
    fn board(&self) -> Board {
        self.board.lock().clone()
    }

    /// Bytes of digests that this agent has published.
    pub fn published_bytes(&self) -> u64 {
        self.published_bytes.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl Current {
    /// How it came about.
    #[must_use]
    pub fn about(&self) -> About {
        let since_ns = steady_now_ns().saturating_sub(self.judged_ns);
        About {
            window_end_ns: self.standing.end_ns(),
            reference: self.standing.reference.clone(),
            age_ms: self.standing.age_ns.saturating_add(since_ns).max(0) / 1_000_000,
            heard: self.standing.heard,
            silent: self.standing.silent.clone(),
        }
    }
}

/// Starts the tasks.
pub(super) fn start(
    shared: &Arc<Shared>,
    on_finding: Option<String>,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) {
    let (news, told) = mpsc::channel(tell::WAITING);
    tasks.spawn(publish(Arc::clone(shared), stop.clone()));
    tasks.spawn(listen(Arc::clone(shared), news, stop.clone()));
    tasks.spawn(clocks::keep_fresh(Arc::clone(shared), stop.clone()));
    tasks.spawn(tell::changes(Arc::clone(shared), on_finding, told, stop.clone()));
}

/// Closes each window of this host shortly after its end and gossips its digest.
async fn publish(shared: Arc<Shared>, stop: CancellationToken) {
    if !shared.recording.records() {
        return;
    }
    let own = shared.identity.node().to_string();
    let name: Arc<str> = own.as_str().into();
    let mut last = i64::MIN;
    let lag = i64::try_from(LAG.as_nanos()).unwrap_or(0);
    loop {
        let now_ns = steady_now_ns();
        let window = window_of(now_ns - lag).max(last.saturating_add(1));
        let due_ns = end_of(window).saturating_add(lag);
        let wait = Duration::from_nanos(u64::try_from(due_ns - now_ns).unwrap_or(0));
        tokio::select! {
            () = tokio::time::sleep(wait.max(Duration::from_millis(1))) => {}
            () = stop.cancelled() => return,
        }
        last = window;
        number(&shared, &own, window);
        let (closing, node) = (Arc::clone(&shared), Arc::clone(&name));
        let closed = tokio::task::spawn_blocking(move || {
            let feed = closing.recording.feed();
            feed.end_idle(window, || closing.standing.board().waited_in());
            let recording = &closing.recording;
            let in_calls = feed::InCalls::now(|| recording.open_calls(), || recording.device_waits());
            let times = feed.times(&node, window);
            (feed.close(window, &in_calls), times)
        })
        .await;
        let Ok((digest, times)) = closed else { continue };
        if !times.is_empty() {
            let text = point_to_point::encode(&times, LARGEST_TIMES);
            shared.standing.published_bytes.fetch_add(text.len() as u64, std::sync::atomic::Ordering::Relaxed);
            if let Ok(read) = point_to_point::decode(&own, &text) {
                shared.standing.board.lock().hear_times(&own, window, read);
            }
            shared.coordinator.gossip.publish(times_slot(window), format!("{window} {text}")).await;
        }
        let Some(mut digest) = digest else { continue };
        digest.clock = shared.standing.clocks.now(end_of(window));
        digest.wall_ahead_ms = wall_ahead_ns() / 1_000_000;
        let text = digest::encode_within(digest, LARGEST);
        shared.standing.published_bytes.fetch_add(text.len() as u64, std::sync::atomic::Ordering::Relaxed);
        // As the others will read it.
        if let Ok(read) = digest::decode(&text) {
            shared.standing.board.lock().hear(&own, read, steady_now_ns());
        }
        shared.coordinator.gossip.publish(slot(window), text).await;
    }
}

/// Numbers this host's calls whose communicator's start was not seen, by what others said and by
/// what this host itself said.
fn number(shared: &Shared, own: &str, window: i64) {
    let lanes = shared.recording.feed().unnumbered();
    if lanes.is_empty() {
        return;
    }
    let board = shared.standing.board();
    let said = board.said(&lanes);
    let refs: Vec<Vec<&Digest>> = said.iter().map(|(_, digests)| digests.iter().collect()).collect();
    let heard: Vec<Heard<'_>> = said.iter().zip(&refs).map(|((node, _), digests)| Heard { node, digests }).collect();
    shared.recording.feed().number(own, window, shared.standing.clocks.now(end_of(window)), &heard);
}

fn slot(window: i64) -> String {
    format!("d{}", window.rem_euclid(NODE_WINDOWS))
}

/// Hears the others, judges, and hands on what is news.
async fn listen(shared: Arc<Shared>, news: mpsc::Sender<Standing>, stop: CancellationToken) {
    let own = shared.identity.node().to_string();
    let mut members = shared.coordinator.gossip.watch();
    let mut heard: BTreeMap<(String, String), String> = BTreeMap::new();
    let mut change = Change::default();
    let mut judge = Judge::default();
    loop {
        tokio::select! {
            changed = members.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(Duration::from_millis(250)) => {}
            () = stop.cancelled() => return,
        }
        let list = Arc::clone(&members.borrow_and_update());
        let (mut came, mut times_came) = (Vec::new(), Vec::new());
        for member in list.iter().filter(|member| !member.is_self) {
            for slot in 0..NODE_WINDOWS {
                let name = slot_name(slot);
                let Some(text) = member.facts.extra.get(name) else { continue };
                let key = (member.name.clone(), name.to_owned());
                if heard.get(&key) != Some(text) {
                    came.push((member.name.as_str(), digest::decode(text)));
                    heard.insert(key, text.clone());
                }
            }
            for slot in 0..NODE_WINDOWS / EVERY_WINDOWS {
                let name = times_slot(slot * EVERY_WINDOWS);
                let Some(text) = member.facts.extra.get(&name) else { continue };
                let key = (member.name.clone(), name);
                if heard.get(&key) != Some(text) {
                    times_came.extend(read_times(&member.name, text).map(|read| (member.name.as_str(), read)));
                    heard.insert(key, text.clone());
                }
            }
        }
        {
            let mut board = shared.standing.board.lock();
            for (node, digest) in came {
                match digest {
                    Ok(digest) => {
                        board.hear(node, digest, steady_now_ns());
                    }
                    Err(error) => {
                        tracing::debug!("digest of {node}: {error}");
                        board.refuse(node, error.to_string());
                    }
                }
            }
            for (node, (window, times)) in times_came {
                board.hear_times(node, window, times);
            }
            let presence: BTreeMap<String, Presence> = list
                .iter()
                .filter_map(|member| {
                    let presence = match member.state {
                        MemberState::Live => Presence::Live,
                        MemberState::Dead => Presence::Dead,
                        MemberState::Heard => return None,
                    };
                    Some((member.name.clone(), presence))
                })
                .collect();
            let listed: HashSet<&str> = list.iter().map(|member| member.name.as_str()).collect();
            heard.retain(|(name, _), _| listed.contains(name.as_str()));
            board.presence(&presence);
        }
        let (judging, own_name, mut at_work) = (Arc::clone(&shared), own.clone(), std::mem::take(&mut judge));
        let judged = tokio::task::spawn_blocking(move || {
            let standing = self::judge(&judging, &own_name, &mut at_work);
            (standing, at_work)
        });
        let Ok((standing, done)) = judged.await else { continue };
        judge = done;
        if let Some(standing) = standing
            && change.is_news(&standing.report.verdict)
            && let Err(mpsc::error::TrySendError::Full(standing)) = news.try_send(standing)
        {
            tracing::warn!("a change of the verdict was not told, too many wait: {}", tell::sentence(&standing.report));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The name under which it is gossiped where time went: windows of a second, as many as digests.
fn times_slot(window: i64) -> String {
    format!("t{}", window.div_euclid(EVERY_WINDOWS).rem_euclid(NODE_WINDOWS / EVERY_WINDOWS))
}

/// A node's window and where its processes' time went in it.
fn read_times(node: &str, text: &str) -> Option<(i64, Vec<TimeUse>)> {
    let (window, body) = text.split_once(' ')?;
    let times = point_to_point::decode(node, body);
    let times = times.inspect_err(|error| tracing::debug!("where time went on {node}: {error}")).ok()?;
    Some((window.parse().ok()?, times))
}

fn slot_name(slot: i64) -> &'static str {
    const NAMES: [&str; NODE_WINDOWS as usize] = ["d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7"];
    usize::try_from(slot).ok().and_then(|slot| NAMES.get(slot)).copied().unwrap_or("d0")
}

/// Judges what can be judged now, on a copy of what was heard: digests come in meanwhile.
fn judge(shared: &Shared, own: &str, judge: &mut Judge) -> Option<Standing> {
    let now_ns = steady_now_ns();
    let board = shared.standing.board();
    let reference = board.reference(now_ns);
    let clocks = &shared.standing.clocks;
    let before = clocks.now(now_ns).map(|clock| clock.reference);
    clocks.follow(reference, own);
    if before != reference.map(digest::reference_id) {
        shared.standing.new_reference.notify_one();
    }
    let standing = judge.judge(&board, now_ns)?;
    *shared.standing.current.lock() = Some(Current { standing: standing.clone(), judged_ns: now_ns });
    Some(standing)
}
