//! Configuration of a gossiper and its checks. Owns the file with the generation number too.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::Error;
use crate::member::Member;
use crate::seal::Sealer;

/// Longest node or mesh name, bytes. Names travel with every digest, so they are kept short: at 64
/// bytes a digest of 600 nodes fills a message.
const MAX_NAME_BYTES: usize = 64;

/// In so many rounds who starts in a mesh of several cells has heard of all of them.
const LEARNS: u32 = 60;

/// How a mesh of many nodes falls into cells; the same on every node.
#[derive(Debug, Clone, Copy)]
pub struct CellsUse {
    /// Nodes of a cell at most.
    pub most: usize,
    /// Values of [`NodeFacts::extra`](crate::NodeFacts::extra) that are told to all cells.
    pub told: &'static [&'static str],
    /// The one that names jobs: its first word is a version, each further one is a job. Who runs
    /// which is told to all cells, too.
    pub jobs: &'static str,
    /// The one that is the number of a trust list.
    pub trust: &'static str,
}

/// How one node gossips.
#[derive(Clone)]
pub struct GossipConfig {
    /// Name of the mesh. Members of differently named meshes ignore each other.
    pub mesh: String,
    /// Name of this node, unique in the mesh.
    pub node: String,
    /// Number of this incarnation of the node: higher after each restart (see [`next_generation`]).
    pub generation: u64,
    /// Where other members reach this node; a concrete address.
    pub advertise: SocketAddr,
    /// Members to call first, and again whenever one of them is not a live member. May hold the own
    /// address.
    pub seeds: Vec<SocketAddr>,
    /// Members that an earlier life of this node knew, each with the time since its last heartbeat.
    /// They are listed from the start, as dead where no gossip about them arrives, and forgotten as
    /// any dead member is. Where no other member is live they are called, however long ago that
    /// was.
    pub remembered: Vec<(Member, Duration)>,
    /// Time between two rounds.
    pub interval: Duration,
    /// Silence after which a member counts as dead. It is stretched when a member's heartbeats have
    /// been arriving slowly.
    pub dead_after: Duration,
    /// How long a dead member stays listed.
    pub forget_after: Duration,
    /// Binds facts to their owners.
    pub sealer: Option<Arc<dyn Sealer>>,
    /// Bytes of digests with which this node may begin exchanges, each second: what keeps its
    /// traffic within bounds in a large mesh, where it then begins fewer. All that it sends is
    /// about twice this and what is new.
    pub digest_bytes_per_s: u32,
    /// Into which cells a large mesh falls; without it, all of it is one, however large.
    pub cells: Option<CellsUse>,
}

impl std::fmt::Debug for GossipConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GossipConfig")
            .field("mesh", &self.mesh)
            .field("node", &self.node)
            .field("generation", &self.generation)
            .field("advertise", &self.advertise)
            .field("sealed", &self.sealer.is_some())
            .finish_non_exhaustive()
    }
}

impl GossipConfig {
    /// A configuration with the usual timing: rounds of 500 ms, dead after about 5 s, forgotten
    /// after an hour.
    #[must_use]
    pub fn new(mesh: impl Into<String>, node: impl Into<String>, generation: u64, advertise: SocketAddr) -> Self {
        Self {
            mesh: mesh.into(),
            node: node.into(),
            generation,
            advertise,
            seeds: Vec::new(),
            remembered: Vec::new(),
            interval: Duration::from_millis(500),
            dead_after: Duration::from_secs(5),
            forget_after: Duration::from_secs(3600),
            sealer: None,
            digest_bytes_per_s: 44_000,
            cells: None,
        }
    }

    /// With facts bound to their owners: what is not sealed by who it is about is not believed.
    #[must_use]
    pub fn with_sealer(self, sealer: Arc<dyn Sealer>) -> Self {
        Self { sealer: Some(sealer), ..self }
    }

    pub(crate) fn sealer(&self) -> Option<Arc<dyn Sealer>> {
        self.sealer.clone()
    }

    /// For how long members that are remembered may be silent. In a mesh of several cells they are
    /// heard of when the other cells are; those that were dead before are none of it.
    pub(crate) fn patience(&self) -> Duration {
        let lived = self.remembered.iter().filter(|(member, _)| member.may_live()).count();
        let is_large = self.cells.is_some_and(|cells| lived >= cells.most);
        if is_large { self.dead_after.max(LEARNS * self.interval) } else { self.dead_after }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        for (what, name) in [("mesh", &self.mesh), ("node", &self.node)] {
            if name.is_empty() || name.len() > MAX_NAME_BYTES {
                return Err(Error::Config(format!("the {what} name must have 1 to {MAX_NAME_BYTES} bytes: {name:?}")));
            }
        }
        if self.advertise.ip().is_unspecified() || self.advertise.port() == 0 {
            return Err(Error::Config(format!(
                "{} cannot be advertised: give the address and port at which other hosts reach this one",
                self.advertise
            )));
        }
        if self.interval < Duration::from_millis(1) || self.dead_after < 2 * self.interval {
            return Err(Error::Config("dead_after must be at least two gossip intervals".into()));
        }
        if self.cells.is_some_and(|cells| cells.most < 2) {
            return Err(Error::Config("a cell must have room for two nodes".into()));
        }
        Ok(())
    }
}

/// The next generation of a node: above the one recorded in `file` and not below the wall clock in
/// milliseconds, so that neither a clock set back nor a lost file makes a restarted node look older
/// than its last incarnation. Records it.
///
/// # Errors
/// When the file cannot be written. A file that is missing or does not hold a number counts as
/// none.
pub fn next_generation(file: &Path) -> Result<u64, Error> {
    let recorded = match std::fs::read_to_string(file) {
        Ok(text) => text.trim().parse::<u64>().ok(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => return Err(e.into()),
    };
    let clock_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
    let generation = clock_ms.max(recorded.map_or(0, |g| g.saturating_add(1)));
    let fresh = file.with_extension("new");
    // A name that somebody else put there is not written through, and nobody else may write the new
    // one, whatever the umask.
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    writeln!(made, "{generation}")?;
    std::fs::rename(&fresh, file)?;
    Ok(generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_rise_even_when_the_clock_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("generation");
        let first = next_generation(&file).unwrap();
        let second = next_generation(&file).unwrap();
        assert!(second > first);
        std::fs::write(&file, "99999999999999999\n").unwrap();
        assert_eq!(next_generation(&file).unwrap(), 100_000_000_000_000_000);
        std::fs::write(&file, "rubbish").unwrap();
        // From the clock alone, which somebody may have set meanwhile.
        assert!((1_000_000_000_000..100_000_000_000_000).contains(&next_generation(&file).unwrap()));
    }

    #[test]
    fn who_starts_in_a_large_mesh_has_time_to_learn_all_cells() {
        let mut cfg = GossipConfig::new("m", "n", 1, ([127, 0, 0, 1], 7117).into());
        let member = |n| (crate::member::test_member(n, crate::MemberState::Live), Duration::ZERO);
        cfg.remembered = (1..=8).map(member).collect();
        assert_eq!(cfg.patience(), Duration::from_secs(5), "one cell, however large");
        let patience = |cfg: &GossipConfig, most| {
            let cells = Some(CellsUse { most, told: &[], jobs: "jobs", trust: "trust" });
            GossipConfig { cells, ..cfg.clone() }.patience()
        };
        assert_eq!([9, 8].map(|most| patience(&cfg, most)), [5, 30].map(Duration::from_secs));
        // Of those one was dead before.
        cfg.remembered[3].0.state = crate::MemberState::Dead;
        assert_eq!(patience(&cfg, 8), Duration::from_secs(5));
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let good = GossipConfig::new("m", "n", 1, ([127, 0, 0, 1], 7117).into());
        good.check().unwrap();
        let refused = |change: fn(&mut GossipConfig)| {
            let mut cfg = good.clone();
            change(&mut cfg);
            cfg.check().is_err()
        };
        assert!(refused(|c| c.advertise = ([0, 0, 0, 0], 7117).into()));
        assert!(refused(|c| c.advertise = ([127, 0, 0, 1], 0).into()));
        assert!(refused(|c| c.node = String::new()));
        assert!(refused(|c| c.mesh = "x".repeat(65)));
        assert!(refused(|c| c.dead_after = c.interval));
    }
}
