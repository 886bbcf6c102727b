//! What processes of this host do, read from /proc: for processes that make no progress.
//!
//! What the states mean is `verdicts::Activity`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use gossip::Member;
use model::wire::{Request, Response};
use verdicts::{Activity, Doing, Input};

use super::Shared;

/// Threads of one process that are looked at; of a process with more, this many count.
const MOST_THREADS: usize = 256;
/// Below this waiting time no host is asked.
const LONG_NS: i64 = 1_000_000_000;
/// Nodes asked at once.
const NODES_AT_ONCE: usize = 32;

/// What a process does; [`Activity::Ended`] where there is none, or it is merely waiting to be
/// collected by its parent.
pub(super) fn activity(pid: u32) -> Activity {
    let of = Path::new("/proc").join(pid.to_string());
    let seen: Vec<(char, Option<String>)> = threads(&of)
        .take(MOST_THREADS)
        .filter_map(|thread| {
            let state = self::state(&thread)?;
            let channel = (state == 'D').then(|| std::fs::read_to_string(thread.join("wchan")).ok()).flatten();
            Some((state, channel))
        })
        .collect();
    let seen = seen.iter().map(|(state, channel)| (*state, channel.as_deref()));
    Activity::of_threads(seen).unwrap_or(Activity::Ended)
}

/// What the processes do that take part in communicators where a rank has waited for long, of every
/// live node that answers within the deadline. Empty where none has.
pub(super) async fn of_those_who_wait(shared: &Shared, input: &Input, deadline: Instant) -> Vec<Doing> {
    let long = |since_ns: i64| input.until_ns.saturating_sub(since_ns) >= LONG_NS;
    let waits = input.in_calls.iter().any(|call| long(call.since_ns));
    if !waits && !input.syncing.iter().any(|sync| long(sync.start_ns)) {
        return Vec::new();
    }
    let mut pids: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    let calls = input.in_calls.iter().map(|call| (&call.node, call.pid));
    let late = input.unnumbered.iter().map(|seen| (&seen.node, seen.pid));
    let known = input.progress.iter().map(|p| (&p.node, p.pid)).chain(input.ranks.iter().map(|of| (&of.node, of.pid)));
    for (node, pid) in known.chain(calls).chain(late) {
        pids.entry(node).or_default().extend(u32::try_from(pid));
    }
    let asked = shared.coordinator.gossip.members().into_iter().filter(Member::may_live).filter_map(|member| {
        let pids: Vec<u32> = pids.remove(member.name.as_str())?.into_iter().collect();
        Some((member, pids))
    });
    futures::stream::iter(asked)
        .map(|(member, pids)| async move {
            let activities = if member.is_self {
                let recording = Arc::clone(&shared.recording);
                tokio::task::spawn_blocking(move || recording.feed().activities(&pids)).await.ok()?
            } else {
                let name = member.name.parse().ok()?;
                let request = Request::Activities(pids);
                let mut answer = shared.mesh.ask(&name, member.address, request, deadline.into()).await.ok()?;
                match answer.next().await {
                    Ok(Some(Response::Activities(activities))) => activities,
                    _ => return None,
                }
            };
            let node: Arc<str> = member.name.as_str().into();
            let doing =
                move |(pid, activity): (u32, Activity)| Doing { node: Arc::clone(&node), pid: pid.into(), activity };
            Some(activities.into_iter().map(doing).collect::<Vec<_>>())
        })
        .buffer_unordered(NODES_AT_ONCE)
        .filter_map(|doing| async move { doing })
        .concat()
        .await
}

fn threads(of: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(of.join("task")).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The state of a process or thread by its directory.
fn state(of: &Path) -> Option<char> {
    let stat = std::fs::read_to_string(of.join("stat")).ok()?;
    // The state follows the name, which is in brackets and may contain anything.
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;

    fn until(what: &str, pid: u32, wanted: Activity) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while activity(pid) != wanted {
            assert!(Instant::now() < deadline, "{what}: {:?}", activity(pid));
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_process_sleeps_is_stopped_and_ends() {
        let mut child = Command::new("sleep").arg("600").stdout(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        until("it sleeps", pid, Activity::Sleeping);
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGSTOP).unwrap();
        until("it is stopped", pid, Activity::Stopped);
        assert!(node_bpf::runs(pid));
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).unwrap();
        // Not collected yet: a zombie.
        until("it has ended", pid, Activity::Ended);
        assert!(!node_bpf::runs(pid));
        child.wait().unwrap();
        assert_eq!(activity(pid), Activity::Ended);
    }

    #[test]
    fn this_process_runs() {
        let here = activity(std::process::id());
        assert!(!here.is_halted() && here != Activity::Ended, "{here:?}");
    }
}
