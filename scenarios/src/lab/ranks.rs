//! A job on hosts of a lab: the digests of a simulated one, sent by the hosts' agents as if these had
//! recorded it, a window every half second. It goes on where an agent is killed, as ranks do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use agent::Shared;
use agent::standing::{now_ns, send_windows};
use anyhow::Context;
use digest::{Digest, decode, end_of, reference_id, window_of};

use super::fleet::Fleet;
use super::questions::name_of;
use super::relay::HostId;
use crate::simulate::{Job, Slow};
use crate::stragglers::scale::digests;

/// The job's key.
pub const JOB: u64 = 0x0012_3456;
/// Ranks on each host.
const RANKS_PER_HOST: usize = 2;
/// The rank that is late: on the second host.
pub const LATE: i32 = 3;
/// Steps of 100 ms, and the late rank's 30 ms more: longer than any lab.
const STEPS: usize = 4_000;
/// The step from which it is late.
const LATE_FROM: usize = 20;
/// Windows are closed so long after their end, as agents do.
const LAG_NS: i64 = 90_000_000;

/// A job that runs until this is dropped.
pub struct Ranks {
    stop: Arc<AtomicBool>,
    sending: Option<JoinHandle<()>>,
}

impl Ranks {
    /// Starts the job on these hosts, two ranks on each.
    ///
    /// # Errors
    /// Its digests cannot be read.
    pub fn start(fleet: &Arc<Fleet>, hosts: &[HostId]) -> anyhow::Result<Self> {
        let job = Job {
            ranks: hosts.len() * RANKS_PER_HOST,
            ranks_per_node: RANKS_PER_HOST,
            steps: STEPS,
            own_ns: 100_000_000,
            clock_offset_ns: 0,
            clock_bound_ns: 0,
            slow: vec![Slow { rank: usize::try_from(LATE)?, extra_ns: 30_000_000, from_step: LATE_FROM }],
            ..Job::default()
        };
        let mut windows: BTreeMap<i64, Vec<(HostId, Digest)>> = BTreeMap::new();
        for (window, sent) in digests(&job).sent {
            for (node, text) in sent {
                let at: usize = node.trim_start_matches('n').parse()?;
                windows.entry(window).or_default().push((*hosts.get(at).context("no such host")?, decode(&text)?));
            }
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (fleet, stopped) = (Arc::clone(fleet), Arc::clone(&stop));
        let sending = std::thread::spawn(move || send_all(&fleet, windows, &stopped));
        Ok(Self { stop, sending: Some(sending) })
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(sending) = self.sending.take() {
            let _ = sending.join();
        }
    }
}

/// Sends each window when it is over, by the agents that run.
fn send_all(fleet: &Fleet, windows: BTreeMap<i64, Vec<(HostId, Digest)>>, stop: &AtomicBool) {
    let Some(first) = windows.first_key_value().map(|(window, _)| *window) else { return };
    let later = window_of(now_ns()) + 1 - first;
    for (window, digests) in windows {
        let due_ns = end_of(window + later) + LAG_NS - now_ns();
        std::thread::sleep(Duration::from_nanos(u64::try_from(due_ns).unwrap_or(0)));
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let names: Vec<String> = digests.iter().map(|(host, _)| name_of(*host)).collect();
        for (host, mut digest) in digests {
            let Some((shared, runtime)) = fleet.asked(host) else { continue };
            digest.window += later;
            if let Some(clock) = &mut digest.clock {
                clock.reference = reference_id(&reference(&shared, &names));
            }
            runtime.spawn(async move { send_windows(&shared, digest.window, [(JOB, digest)].into()).await });
        }
    }
}

/// To whose clock a host's are aligned: the first by name of those that it knows to live.
fn reference(shared: &Shared, names: &[String]) -> String {
    let list = shared.coordinator.gossip.list();
    let live = list.iter().filter(|member| member.is_live() && names.contains(&member.name));
    live.map(|member| member.name.clone()).min().unwrap_or_default()
}
