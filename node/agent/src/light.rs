//! An agent without gossip, capture or local socket: it answers and asks like any other, and is
//! given its list of members. For many agents in one process, where gossip (whose cost grows with
//! the square of the mesh) would not fit: benchmarks and the lab. The full agent is the parent
//! module.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use certs::{HostKey, Identity};
use gossip::{Gossip, Member, MemberList, MemberState, NodeFacts};
use mesh::{Mesh, MeshConfig};
use store::{ServedDb, Source};
use tokio::sync::watch;

use super::{Own, Shared, recording};

/// Configuration of a light agent.
pub struct LightConfig {
    /// Its identity.
    pub identity: Identity,
    /// This host's own secret: the same for a restarted agent.
    pub host_key: HostKey,
    /// Address on which it listens; port 0 picks one.
    pub listen: SocketAddr,
    /// The SQLite file that it serves.
    pub database: PathBuf,
    /// The async runtime for its sockets.
    pub runtime: Arc<dyn quinn::Runtime>,
}

/// A running light agent. Dropping it closes its port once nothing of it runs any more.
pub struct LightAgent {
    shared: Arc<Shared>,
    members: watch::Sender<MemberList>,
}

impl LightAgent {
    /// Starts one with an empty list of members.
    ///
    /// # Errors
    /// The port is taken, or the file or the identity cannot be used.
    pub fn start(config: LightConfig) -> anyhow::Result<Self> {
        let identity = Arc::new(config.identity);
        let source = Arc::new(Source::Served(ServedDb::open(&config.database, Vec::new())?));
        let own = Own::new(&identity, source, Arc::new(recording::Recording::off()));
        let handler = Arc::new(own.handler(None, None));
        let (mesh, _no_gossip) = Mesh::start(MeshConfig {
            listen: config.listen,
            identity: Arc::clone(&identity),
            host_key: config.host_key,
            handler,
            join_host: None,
            runtime: config.runtime,
        })?;
        let advertise = mesh.local_addr()?;
        let (gossip, members) = Gossip::fixed();
        Ok(Self { shared: own.shared(identity, advertise, mesh, gossip), members })
    }

    /// The member that others list for it.
    ///
    /// # Errors
    /// Its file cannot be read.
    pub fn member(&self) -> anyhow::Result<Member> {
        let store = self.shared.source.facts();
        let facts = NodeFacts {
            store_rows: store.tables.iter().map(|table| table.rows).sum(),
            schema_hash: self.shared.executor.catalog()?.hash(),
            ..NodeFacts::default()
        };
        Ok(Member {
            name: self.shared.identity.node().to_string(),
            address: self.shared.advertise,
            generation: 1,
            state: MemberState::Live,
            facts: Arc::new(facts),
            is_self: false,
            double: None,
            seat: gossip::Seat::default(),
        })
    }

    /// Sets its members; its own entry is found by name.
    pub fn set_members(&self, members: &[Member]) {
        let own = self.shared.identity.node().as_str();
        let mut list = members.to_vec();
        for member in &mut list {
            member.is_self = member.name == own;
        }
        list.sort_by(|a, b| a.name.cmp(&b.name));
        self.members.send_replace(Arc::new(list));
    }

    /// The coordinator of its questions.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Ends it as SIGKILL would: no farewell is sent.
    ///
    /// # Errors
    /// No other socket can be had.
    pub fn kill(self) -> std::io::Result<()> {
        self.shared.mesh.vanish()
    }

    /// Ends it with a farewell to its peers.
    pub async fn shutdown(self) {
        self.shared.mesh.shutdown().await;
    }
}
