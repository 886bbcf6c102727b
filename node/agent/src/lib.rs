//! The agent of one host: capture into the store, membership in the mesh, answers to questions.
//!
//! `config`: the agent's configuration. `bootstrap`: its identity (load, found or join). `serve`:
//! answers to other nodes. `access`: who may ask what; `audit` records it. `seal` signs what is
//! gossiped. `trust` renews the certificate and keeps the trust list current. `answer`: answers to
//! people; `local`: those on this host. `facts`: what it gossips about itself. `archiver` runs the
//! process that archives hours. `memory` returns free memory to the system. `standing` keeps the
//! current verdict. `ras` asks NCCL itself in a hang. `tail` finds services whose p99 has grown.
//! `stacks` samples where ranks are. `light`: an agent without all that, for many in one process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use gossip::{Gossip, GossipConfig};
use mesh::{JoinHost, Mesh, MeshConfig, join};
use query::exec::Executor;
use query::{Coordinator, Way};
use store::Source;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub mod access;
mod activity;
mod answer;
mod answer_sink;
pub mod archiver;
mod asking;
mod audit;
mod board;
pub mod board_of_stores;
mod board_window;
pub mod bootstrap;
mod causes;
pub mod config;
mod device;
mod device_times;
pub mod explain;
pub mod facts;
mod graphs;
mod health;
pub mod light;
mod local;
mod mark;
mod memory;
mod open_calls;
mod own_state;
mod own_walks;
mod past_findings;
mod ras;
mod recording;
mod remembered;
pub mod scope;
pub mod seal;
mod serve;
mod served;
mod source;
mod stacks;
pub mod standing;
pub mod stragglers;
pub mod tail;
mod trust;
mod watch;

pub use config::{AgentConfig, CaptureChoice, SourceConfig};
pub use recording::RecordingState;

/// Questions of other nodes that run at once on this host.
const CONCURRENT_QUESTIONS: usize = 4;
/// Memory of all questions of a process with one agent, MiB, unless configured otherwise: with what
/// an agent needs besides, and the allocator's overhead, it stays under 1 GiB.
pub const QUESTIONS_MIB: u64 = 640;

/// What every task of an agent shares.
pub struct Shared {
    /// This node's identity.
    pub identity: Arc<certs::Identity>,
    /// Address that other nodes dial.
    pub advertise: SocketAddr,
    /// QUIC endpoint.
    pub mesh: Mesh,
    /// Runs tasks on this node's source.
    pub executor: Arc<Executor>,
    /// Asks the mesh.
    pub coordinator: Coordinator,
    /// The trace store or the served file.
    pub source: Arc<Source>,
    /// The recording, or why there is none.
    pub recording: Arc<recording::Recording>,
    /// Samples the stacks of this host's ranks.
    stacks: Arc<stacks::Stacks>,
    /// The audit.
    auditor: Arc<audit::Auditor>,
    /// How many notes users have left.
    marks: mark::Marks,
    /// The standing verdict.
    pub standing: standing::StandingState,
}

/// The parts of an agent that know no mesh.
struct Own {
    executor: Arc<Executor>,
    source: Arc<Source>,
    recording: Arc<recording::Recording>,
    stacks: Arc<stacks::Stacks>,
    auditor: Arc<audit::Auditor>,
}

impl Own {
    fn new(identity: &certs::Identity, source: Arc<Source>, recording: Arc<recording::Recording>) -> Self {
        Self {
            executor: Arc::new(Executor::new(identity.node().to_string(), Arc::clone(&source), CONCURRENT_QUESTIONS)),
            stacks: Arc::new(stacks::Stacks::new(Arc::clone(&recording))),
            auditor: Arc::new(audit::Auditor::new(Arc::clone(&source))),
            source,
            recording,
        }
    }

    fn handler(&self, keeper: Option<Arc<trust::Keeper>>, auditor: Option<Arc<audit::Auditor>>) -> serve::NodeHandler {
        let (executor, recording) = (Arc::clone(&self.executor), Arc::clone(&self.recording));
        serve::NodeHandler::new(executor, recording, Arc::clone(&self.stacks), keeper, auditor)
    }

    fn shared(self, identity: Arc<certs::Identity>, advertise: SocketAddr, mesh: Mesh, gossip: Gossip) -> Arc<Shared> {
        let way = Way::Mesh { mesh: mesh.clone(), own: Arc::clone(&self.executor) };
        Arc::new(Shared {
            identity,
            advertise,
            coordinator: Coordinator::new(way, gossip, verdicts::VIEWS),
            mesh,
            executor: self.executor,
            source: self.source,
            recording: self.recording,
            stacks: self.stacks,
            auditor: self.auditor,
            marks: mark::Marks::default(),
            standing: standing::StandingState::default(),
        })
    }
}

/// A running agent.
pub struct Agent {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
    stop: CancellationToken,
    socket: Option<PathBuf>,
}

impl Agent {
    /// Starts an agent: identity, source, endpoint, gossip, capture, local socket.
    ///
    /// # Errors
    /// The identity cannot be loaded, founded or joined; the address is taken; the store cannot be
    /// opened; the socket path is in use. Capture that cannot start is not an error in `auto` mode:
    /// it is reported and the agent goes on.
    pub async fn start(config: AgentConfig) -> anyhow::Result<Self> {
        let readers = access::Readers::of(&config.socket_access)?;
        if let Some(command) = &config.on_finding {
            standing::hook_is_ours(command).context("--on-finding")?;
        }
        let (source, unwritable) = source::open(&config)?;
        if !certs::Identity::exists(&config.identity) {
            // A mesh is founded, or a token used, by a start that can listen.
            mesh::udp_socket(config.listen)?;
        }
        let founded = bootstrap::identity(&config).await?;
        let identity = Arc::new(founded.identity);
        let join_server = founded.issuer.clone().map(|issuer| Arc::new(join::JoinServer::new(issuer)));
        let keeper = Arc::new(trust::Keeper::new(&config, Arc::clone(&identity), founded.issuer, join_server.clone()));
        let name = identity.node().to_string();
        let source = Arc::new(source);
        let recording = Arc::new(recording::Recording::start(&config, &source, unwritable)?);
        let own = Own::new(&identity, source, recording);
        let (keeper_of_mesh, auditor) = (Some(Arc::clone(&keeper)), Some(Arc::clone(&own.auditor)));
        let handler = Arc::new(own.handler(keeper_of_mesh, auditor));
        let handler_of_people = Arc::clone(&handler);
        let join_host = join_server.map(|join_server| join_server as Arc<dyn JoinHost>);
        let host_key = certs::HostKey::of(&config.identity).context("this host's own key")?;
        let (mesh, inbound) = Mesh::start(MeshConfig {
            listen: config.listen,
            identity: Arc::clone(&identity),
            host_key,
            handler,
            join_host,
            runtime: Arc::new(quinn::TokioRuntime),
        })?;
        let known = remembered::read_in(&config.identity, identity.mesh().as_str());
        let seeds = bootstrap::seeds(&config, !known.is_empty()).await;
        let advertise = config::advertised(config.advertise, mesh.local_addr()?, &seeds)?;

        let own_facts = facts::of(&config, &own.executor, &own.source, &own.recording)?;
        let generation = gossip::next_generation(&config.identity.join("generation")).context("counting this start")?;
        let gossip = Gossip::start(
            GossipConfig {
                seeds,
                remembered: remembered::silences(&known),
                cells: config.most_in_cell.map(facts::in_cells),
                ..GossipConfig::new(identity.mesh().as_str(), name, generation, advertise)
            }
            .with_sealer(Arc::new(seal::NodeSeal::new({
                let mesh = mesh.clone();
                move || mesh.identity()
            }))),
            Arc::new(mesh.clone()),
            inbound,
            own_facts,
        )
        .await
        .context("starting gossip")?;

        let shared = own.shared(identity, advertise, mesh, gossip);
        handler_of_people.answers_people(&shared, config.socket_access.readers_see_processes);
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(facts::keep_true(Arc::clone(&shared), config.clone(), stop.clone()));
        tasks.spawn(trust::keep(Arc::clone(&shared), keeper, stop.clone()));
        tasks.spawn(memory::keep_small(stop.clone()));
        tasks.spawn(remembered::keep(Arc::clone(&shared), config.identity.clone(), known, stop.clone()));
        let news = standing::start(&shared, config.on_finding.clone(), &stop, &mut tasks);
        tasks.spawn(tail::watch(Arc::clone(&shared), config.tail_every, news, stop.clone()));
        if let Some(socket) = &config.socket {
            let listener = model::local_socket::bind(socket)
                .with_context(|| format!("opening the local socket {}", socket.display()))?;
            readers.open_socket(socket).with_context(|| format!("opening {} to its readers", socket.display()))?;
            tasks.spawn(local::serve(listener, Arc::clone(&shared), readers, stop.clone()));
        }
        Ok(Self { shared, tasks, stop, socket: config.socket })
    }

    /// What the agent's tasks share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Leaves the mesh, stops capture, writes the store's last batch.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        if let Some(socket) = &self.socket {
            let _ = std::fs::remove_file(socket);
        }
        while self.tasks.join_next().await.is_some() {}
        self.shared.coordinator.gossip.leave().await;
        self.shared.mesh.shutdown().await;
        let shared = Arc::clone(&self.shared);
        let _ = tokio::task::spawn_blocking(move || {
            if let Source::Store(store) = shared.source.as_ref() {
                store.recording_ends(record::unix_now_ns());
            }
            shared.recording.stop();
            if let Source::Store(store) = shared.source.as_ref() {
                store.close();
            }
        })
        .await;
    }
}
