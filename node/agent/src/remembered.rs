//! The members that this agent knows, kept in its identity directory for its next start: an agent
//! that has just started must not answer as if it were alone, and must find the mesh again when the
//! hosts that it was to join are gone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use gossip::{Member, MemberList, NodeFacts};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::Shared;
use record::unix_now_ns;

const FILE: &str = "members.json";
/// How often the list is checked: it is written when a member came, left or moved …
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// … and this often in any case, so that the times of the last heartbeats are current.
const WRITE_EVERY: Duration = Duration::from_secs(300);

#[derive(Serialize, Deserialize)]
struct Memory {
    mesh: String,
    members: Vec<Known>,
}

/// A member, and when it was last live.
#[derive(Serialize, Deserialize)]
pub(super) struct Known {
    member: Member,
    /// When it was last not dead, Unix nanoseconds.
    #[serde(rename = "heard_ns")]
    live_ns: i64,
}

fn read(file: &Path) -> anyhow::Result<Option<Memory>> {
    let text = certs::read_if_there(file)?;
    text.map(|text| serde_json::from_slice(&text)).transpose().map_err(Into::into)
}

fn write(file: &Path, memory: &Memory) -> anyhow::Result<()> {
    Ok(certs::replace_private_file(file, &serde_json::to_vec(memory)?)?)
}

/// The members that this node's earlier life knew in this mesh. A file that cannot be read is
/// logged and counts as none: it is written anew.
pub(super) fn read_in(identity: &Path, mesh: &str) -> Vec<Known> {
    let file = identity.join(FILE);
    match read(&file).with_context(|| format!("the members known before, in {}", file.display())) {
        Ok(Some(memory)) if memory.mesh == mesh => memory.members,
        Ok(_) => Vec::new(),
        Err(error) => {
            tracing::warn!("{error:#}: begun anew");
            Vec::new()
        }
    }
}

/// Those members, each with the time since it was last live.
pub(super) fn silences(known: &[Known]) -> Vec<(Member, Duration)> {
    let now_ns = unix_now_ns();
    let silent = |live_ns: i64| Duration::from_nanos(u64::try_from(now_ns.saturating_sub(live_ns)).unwrap_or(0));
    known.iter().map(|known| (known.member.clone(), silent(known.live_ns))).collect()
}

/// The members but this one, each with when it was last live: now, or as was known before.
fn memory(mesh: &str, list: &MemberList, before: &[Known], now_ns: i64) -> Memory {
    let before: BTreeMap<&str, i64> = before.iter().map(|known| (known.member.name.as_str(), known.live_ns)).collect();
    let members = list.iter().filter(|member| !member.is_self).map(|member| {
        let live_before = before.get(member.name.as_str()).copied();
        // What others publish besides their facts is theirs to publish again.
        let facts = NodeFacts { extra: BTreeMap::new(), ..NodeFacts::clone(&member.facts) };
        Known {
            member: Member { facts: facts.into(), ..member.clone() },
            live_ns: if member.is_live() { now_ns } else { live_before.unwrap_or(now_ns) },
        }
    });
    Memory { mesh: mesh.to_owned(), members: members.collect() }
}

/// Whether a member came, left, moved, restarted or has other labels or tables.
fn differ(known: &[Known], list: &MemberList) -> bool {
    let others = || list.iter().filter(|member| !member.is_self);
    let same = |(known, member): (&Known, &Member)| {
        let before = &known.member;
        (&before.name, before.address, before.generation, before.state, &before.facts.labels, before.facts.schema_hash)
            == (
                &member.name,
                member.address,
                member.generation,
                member.state,
                &member.facts.labels,
                member.facts.schema_hash,
            )
    };
    known.len() != others().count() || !known.iter().zip(others()).all(same)
}

/// Keeps the file current until the agent stops; `known` is its content at the start.
pub(super) async fn keep(shared: Arc<Shared>, identity: PathBuf, mut known: Vec<Known>, stop: CancellationToken) {
    let file = identity.join(FILE);
    let mesh = shared.identity.mesh().to_string();
    let mut written = tokio::time::Instant::now();
    let mut failed = false;
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = stop.cancelled() => return,
        }
        let list = shared.coordinator.gossip.list();
        if !differ(&known, &list) && written.elapsed() < WRITE_EVERY {
            continue;
        }
        let memory = memory(&mesh, &list, &known, unix_now_ns());
        // Blocking: it waits for the disk.
        let to = file.clone();
        let Ok((memory, outcome)) = tokio::task::spawn_blocking(move || {
            let outcome = write(&to, &memory);
            (memory, outcome)
        })
        .await
        else {
            return;
        };
        match outcome {
            Ok(()) => failed = false,
            Err(error) if !failed => {
                failed = true;
                tracing::warn!("the members could not be kept for the next start, in {}: {error:#}", file.display());
            }
            Err(_) => {}
        }
        (known, written) = (memory.members, tokio::time::Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use gossip::MemberState;

    use super::*;

    fn member(n: u16, state: MemberState) -> Member {
        let facts = NodeFacts {
            labels: [("zone".to_owned(), "a".to_owned())].into(),
            extra: [("d0".to_owned(), "digest".to_owned())].into(),
            store_rows: 7,
            ..NodeFacts::default()
        };
        let address = ([127, 0, 0, 1], n).into();
        Member {
            name: format!("n{n}"),
            address,
            generation: 3,
            state,
            facts: facts.into(),
            is_self: n == 1,
            double: None,
            seat: gossip::Seat::default(),
        }
    }

    #[test]
    fn who_was_known_is_known_after_a_restart_and_since_when_silent() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        assert!(read_in(dir.path(), "m").is_empty());
        let list: MemberList =
            Arc::new(vec![member(1, MemberState::Live), member(2, MemberState::Live), member(3, MemberState::Dead)]);
        let long_ago = unix_now_ns() - 100_000_000_000;
        let before = [Known { member: member(3, MemberState::Live), live_ns: long_ago }];
        let memory = memory("m", &list, &before, unix_now_ns());
        write(&file, &memory).unwrap();
        assert!(!differ(&memory.members, &list));
        let known = silences(&read_in(dir.path(), "m"));
        let names: Vec<_> = known.iter().map(|(member, silent)| (&*member.name, silent.as_secs() >= 100)).collect();
        assert_eq!(names, [("n2", false), ("n3", true)]);
        assert_eq!(*known[0].0.facts, NodeFacts { extra: [].into(), ..NodeFacts::clone(&list[1].facts) });
        assert!(read_in(dir.path(), "another").is_empty());

        let mut moved = list.as_ref().clone();
        Arc::make_mut(&mut moved[1].facts).store_rows = 8;
        assert!(!differ(&memory.members, &Arc::new(moved.clone())), "rows come all the time");
        moved[1].address.set_port(9);
        assert!(differ(&memory.members, &Arc::new(moved)));
        assert!(differ(&memory.members, &Arc::new(list[..2].to_vec())));
    }

    #[test]
    fn a_torn_file_is_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "{\"mesh\":\"m\",\"mem", "[1,2]", "\u{0}\u{1}"] {
            std::fs::write(dir.path().join(FILE), text).unwrap();
            assert!(read_in(dir.path(), "m").is_empty());
        }
        write(&dir.path().join(FILE), &Memory { mesh: "m".into(), members: Vec::new() }).unwrap();
        assert!(read(&dir.path().join(FILE)).unwrap().is_some());
    }
}
