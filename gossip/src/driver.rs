//! The running gossiper: starts chitchat, keeps it going, publishes the member list, calls absent
//! seeds.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chitchat::{Chitchat, ChitchatConfig, ChitchatHandle, ChitchatId, FailureDetectorConfig, spawn_chitchat};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tracing::{error, info, warn};

use crate::cells::CellId;
use crate::facts::{KEY_LEFT, NodeFacts, check_total};
use crate::farewell;
use crate::link::{LinkTransport, Note};
use crate::meeting::Meeting;
use crate::member::Member;
use crate::members::Directory;
use crate::network::{Inbound, Link};
use crate::part::{CARD_ROOM, KEY_CARD, Part};
use crate::remembered::Remembered;
use crate::seal::Sealing;
use crate::{Error, GossipConfig};

/// Heartbeat intervals remembered for each peer. chitchat smooths their mean with five times the
/// expected interval, so a short window keeps the time to death near the configured one while still
/// following a mesh that runs slowly; it also keeps a peer's memory small (a window of 1,000 takes
/// 8 KB).
const SAMPLING_WINDOW: usize = 8;

/// Messages about cells that may wait.
const NOTES: usize = 256;

/// The member list, shared: sorted by name, this node included, one entry a name.
pub type MemberList = Arc<Vec<Member>>;

/// A running gossiper. Dropping it stops gossip at once, without a farewell.
pub struct Gossip {
    commands: mpsc::Sender<Command>,
    members: watch::Receiver<MemberList>,
    sealing: Sealing,
    task: JoinHandle<()>,
}

enum Command {
    SetFacts(Box<NodeFacts>, oneshot::Sender<()>),
    Publish(String, String),
    Reseal,
    Meet(Vec<SocketAddr>, usize),
    Leave(oneshot::Sender<()>),
}

impl Gossip {
    /// Starts gossiping. `link` carries messages out, `inbound` brings those that come in.
    ///
    /// # Errors
    /// When the configuration cannot work or the facts do not fit into a message.
    pub async fn start(
        cfg: GossipConfig,
        link: Arc<dyn Link>,
        inbound: mpsc::Receiver<Inbound>,
        facts: NodeFacts,
    ) -> Result<Self, Error> {
        cfg.check()?;
        let (commands, command_rx) = mpsc::channel(16);
        let sealing = Sealing::of(cfg.sealer());
        let (notes_tx, notes) = mpsc::channel(NOTES);
        let transport = LinkTransport::new(link, inbound, &cfg, sealing.clone(), cfg.cells.map(|_| notes_tx));
        let mut driver = Driver::new(cfg, transport, notes, facts, sealing.clone()).await?;
        let look = driver.look().await;
        let (members_tx, members) = watch::channel(Arc::new(look.unwrap_or_default()));
        let task = tokio::spawn(driver.run(command_rx, members_tx));
        Ok(Self { commands, members, sealing, task })
    }

    /// A member list from elsewhere, behind the same interface: no protocol runs, and the holder of
    /// the sender sets the members. This node's own facts go nowhere.
    ///
    /// Must be called inside a tokio runtime.
    #[must_use]
    pub fn fixed() -> (Self, watch::Sender<MemberList>) {
        let (commands, mut ignored) = mpsc::channel(16);
        let (members_tx, members) = watch::channel(MemberList::default());
        let task = tokio::spawn(async move {
            while let Some(command) = ignored.recv().await {
                if let Command::SetFacts(_, done) | Command::Leave(done) = command {
                    let _ = done.send(());
                }
            }
        });
        (Self { commands, members, sealing: Sealing::of(None), task }, members_tx)
    }

    /// Replaces this node's facts; only what changed is sent out. Facts too large to send leave the
    /// previous ones in place and are reported in the log.
    pub async fn set_facts(&self, facts: NodeFacts) {
        let (done, wait) = oneshot::channel();
        if self.commands.send(Command::SetFacts(Box::new(facts), done)).await.is_ok() {
            let _ = wait.await;
        }
    }

    /// Publishes a value under a name of `extra`, in addition to the facts: [`Gossip::set_facts`]
    /// leaves it alone; an empty value takes it back. A value too large to send leaves the previous
    /// one in place and is reported in the log.
    pub async fn publish(&self, name: impl Into<String>, value: impl Into<String>) {
        // A closed channel: gossip is over.
        let _ = self.commands.send(Command::Publish(name.into(), value.into())).await;
    }

    /// Seals this node's facts anew, with a key or certificate that changed.
    pub async fn reseal(&self) {
        let _ = self.commands.send(Command::Reseal).await;
    }

    /// Names members that were not known at the start, and how many live members there should be
    /// with them, this node included: until so many live, but for a few seconds at most, calls go
    /// out quickly. They stay seeds.
    pub async fn meet(&self, seeds: Vec<SocketAddr>, expected: usize) {
        let _ = self.commands.send(Command::Meet(seeds, expected)).await;
    }

    /// Statements that came in and were not believed, since the start: not sealed by whom they are
    /// about.
    #[must_use]
    pub fn forged(&self) -> u64 {
        self.sealing.forged()
    }

    /// The members: sorted by name, this node included, one a name (the highest generation).
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        self.members.borrow().as_ref().clone()
    }

    /// As [`Gossip::members`], shared instead of copied.
    #[must_use]
    pub fn list(&self) -> MemberList {
        Arc::clone(&self.members.borrow())
    }

    /// Follows the member list; it changes when a member comes, dies, returns or changes its facts.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<MemberList> {
        self.members.clone()
    }

    /// Sends a farewell, so that others list this node as dead without waiting for its silence, and
    /// stops gossiping. The member list stays as it last was.
    pub async fn leave(&self) {
        let (done, wait) = oneshot::channel();
        if self.commands.send(Command::Leave(done)).await.is_ok() {
            let _ = wait.await;
        }
    }

    /// [`Gossip::leave`], for an owner.
    pub async fn shutdown(self) {
        self.leave().await;
    }
}

impl Drop for Gossip {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Ending = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

struct Driver {
    cfg: GossipConfig,
    transport: LinkTransport,
    facts: NodeFacts,
    /// Values of [`Gossip::publish`].
    published: BTreeMap<String, String>,
    chitchat: ChitchatHandle,
    ending: Ending,
    directory: Directory,
    sealing: Sealing,
    /// Between cells, where the mesh may have several; what comes for it.
    part: Option<Part>,
    notes: mpsc::Receiver<Note>,
    /// Members of the cell that this node came to last, to be called until they are there.
    doors: Vec<SocketAddr>,
    meeting: Option<Meeting>,
    leaves: bool,
    /// Set by a look that found an earlier life of this node above its generation.
    outranked_by: Option<u64>,
}

impl Driver {
    async fn new(
        cfg: GossipConfig,
        transport: LinkTransport,
        notes: mpsc::Receiver<Note>,
        facts: NodeFacts,
        sealing: Sealing,
    ) -> Result<Self, Error> {
        let part = cfg.cells.map(|using| Part::new(&cfg, using, &facts));
        let remembered = Remembered::new(&cfg.remembered, &cfg.node, cfg.patience(), cfg.forget_after, Instant::now());
        let keys = facts.encode()?;
        let (chitchat, ending, directory) = launch(&cfg, &transport, keys, CellId::WHOLE, &sealing, remembered).await?;
        let published = BTreeMap::new();
        Ok(Self {
            cfg,
            transport,
            facts,
            published,
            chitchat,
            ending,
            directory,
            sealing,
            part,
            notes,
            doors: Vec::new(),
            meeting: None,
            leaves: false,
            outranked_by: None,
        })
    }

    async fn run(mut self, mut commands: mpsc::Receiver<Command>, members_tx: watch::Sender<MemberList>) {
        let mut tick = tokio::time::interval(self.cfg.interval / 2);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let seed_pause = (4 * self.cfg.interval).min(Duration::from_secs(2));
        let mut seeds_called = Instant::now();
        self.call_remembered(&members_tx.borrow());
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::SetFacts(facts, done)) => {
                        self.set_facts(*facts).await;
                        self.publish(&members_tx).await;
                        let _ = done.send(());
                    }
                    Some(Command::Publish(name, value)) => {
                        self.publish_value(name, value).await;
                        self.publish(&members_tx).await;
                    }
                    Some(Command::Reseal) => {
                        if let Some(part) = &mut self.part {
                            part.reseal();
                        }
                        self.say(true).await;
                    }
                    Some(Command::Meet(seeds, expected)) => {
                        let new = seeds.into_iter().filter(|seed| *seed != self.cfg.advertise);
                        for seed in new {
                            if !self.cfg.seeds.contains(&seed) {
                                self.cfg.seeds.push(seed);
                            }
                        }
                        self.meeting = Some(Meeting::new(expected, self.cfg.interval));
                    }
                    Some(Command::Leave(done)) => {
                        self.leave(&members_tx).await;
                        let _ = done.send(());
                        return;
                    }
                    None => return,
                },
                _ = tick.tick() => {
                    self.publish(&members_tx).await;
                    if let Some(rival) = self.outranked_by.take() {
                        warn!(generation = self.cfg.generation, earlier = rival,
                            "an earlier life of this node has a higher generation (was the clock set back?): going above it");
                        self.relaunch(rival).await;
                    }
                    if seeds_called.elapsed() >= seed_pause {
                        seeds_called = Instant::now();
                        self.call_absent_seeds(&members_tx.borrow());
                        self.call_absent_mates();
                        self.call_remembered(&members_tx.borrow());
                    }
                }
                Some(note) = self.notes.recv() => {
                    if let Some(part) = &mut self.part {
                        if part.wakes() {
                            part.pass(Some((self.directory.mates(), self.directory.list())));
                        }
                        part.receive(note);
                        self.act().await;
                    }
                }
                () = Meeting::next(&mut self.meeting) => {
                    self.publish(&members_tx).await;
                    self.meet();
                }
                ended = &mut self.ending => {
                    error!(error = ?ended.err(), "gossip stopped unexpectedly; starting it anew");
                    // Not at once: whatever broke it may come again.
                    tokio::time::sleep(self.cfg.interval).await;
                    self.relaunch(self.cfg.generation).await;
                }
            }
        }
    }

    async fn look(&mut self) -> Option<Vec<Member>> {
        let elsewhere = match &self.part {
            Some(part) if self.directory.remembers() => part.names(),
            _ => HashSet::new(),
        };
        let (directory, unsettled) = (&mut self.directory, self.part.as_ref().and_then(Part::unsettled));
        let look = |chitchat: &mut Chitchat| directory.look(chitchat, Instant::now(), &elsewhere, unsettled);
        let look = self.chitchat.with_chitchat(look).await;
        self.outranked_by = look.outranked_by;
        let Some(part) = &mut self.part else { return look.members };
        if part.rests(look.members.as_deref()) {
            return look.members;
        }
        let untold = part.wakes();
        let own = look.members.or_else(|| untold.then(|| self.directory.list()));
        part.pass(own.map(|own| (self.directory.mates(), own)));
        self.outranked_by = self.outranked_by.max(part.outranked_by());
        let list = part.list();
        self.act().await;
        list
    }

    /// Does what the protocol between cells wants: its messages go out, what this node says of itself
    /// goes into the cell's gossip, and where it belongs to another cell, it goes there.
    async fn act(&mut self) {
        let Some(part) = &mut self.part else { return };
        if let Some((cell, doors)) = part.act(self.transport.link()) {
            if part.generation() == self.cfg.generation {
                self.doors = doors;
            } else {
                self.go(cell, doors).await;
            }
        }
        if self.part.as_mut().is_some_and(Part::has_news) {
            self.say(false).await;
        }
    }

    /// Gossips within another cell from now on, as a new incarnation.
    async fn go(&mut self, cell: CellId, doors: Vec<SocketAddr>) {
        let Some(part) = &mut self.part else { return };
        part.leave_cell();
        self.cfg.generation = part.generation();
        info!(%cell, generation = self.cfg.generation, "this node gossips within another cell of the mesh");
        self.meeting = Some(Meeting::new(doors.len() + 1, self.cfg.interval));
        self.doors = doors;
        self.chitchat.abort();
        let remembered = self.directory.take_remembered();
        self.begin(cell, remembered).await;
        self.call_doors();
    }

    fn call_doors(&self) {
        for to in self.doors.iter().filter(|door| **door != self.cfg.advertise) {
            let _ = self.chitchat.gossip(*to);
        }
    }

    /// Calls of the first moments; see [`Meeting`].
    fn meet(&mut self) {
        let own = self.directory.list();
        let seeds = if self.doors.is_empty() { &self.cfg.seeds } else { &self.doors };
        let whom = self.meeting.as_mut().and_then(|meeting| meeting.whom(&own, seeds));
        match whom {
            Some(whom) => {
                for to in whom {
                    let _ = self.chitchat.gossip(to);
                }
            }
            None => self.meeting = None,
        }
    }

    /// In a cell of several: calls members of it that do not live by its gossip, but by what others
    /// say, and the doors until one of them is there.
    fn call_absent_mates(&mut self) {
        let Some(part) = self.part.as_mut().filter(|part| part.is_used()) else { return };
        for to in part.absent_mates() {
            let _ = self.chitchat.gossip(to);
        }
        if !self.directory.list().iter().any(|member| member.is_live() && !member.is_self) {
            self.call_doors();
        }
    }

    async fn publish(&mut self, members_tx: &watch::Sender<MemberList>) {
        let Some(members) = self.look().await else { return };
        members_tx.send_if_modified(|shown| {
            let changed = **shown != members;
            if changed {
                *shown = Arc::new(members);
            }
            changed
        });
    }

    /// The facts together with the published values.
    fn all(&self) -> NodeFacts {
        let mut all = self.facts.clone();
        all.extra.extend(self.published.iter().map(|(name, value)| (name.clone(), value.clone())));
        all
    }

    /// What this node says: its facts and published values, and that it leaves.
    fn keys(&self) -> Result<Vec<(String, String)>, Error> {
        let mut keys = self.all().encode()?;
        keys.extend(self.part.as_ref().and_then(Part::key));
        keys.extend(self.leaves.then(|| (KEY_LEFT.to_owned(), "1".to_owned())));
        check_keys(&self.cfg, &keys)?;
        Ok(keys)
    }

    /// Says what is to be said now; `anew` seals it again where nothing is new. Whether it could be
    /// said.
    async fn say(&mut self, anew: bool) -> bool {
        let all = self.all();
        if let Some(part) = &mut self.part {
            part.say(&all);
            part.has_news();
        }
        let keys = match self.keys() {
            Ok(keys) => keys,
            Err(error) => {
                warn!(%error, "what this node says in gossip was not updated");
                return false;
            }
        };
        let sealing = &self.sealing;
        self.chitchat.with_chitchat(|chitchat| sealing.say(chitchat.self_node_state(), &keys, anew)).await;
        true
    }

    async fn publish_value(&mut self, name: String, value: String) {
        let before =
            if value.is_empty() { self.published.remove(&name) } else { self.published.insert(name.clone(), value) };
        if !self.say(false).await {
            match before {
                Some(before) => self.published.insert(name, before),
                None => self.published.remove(&name),
            };
        }
    }

    async fn set_facts(&mut self, facts: NodeFacts) {
        let before = std::mem::replace(&mut self.facts, facts);
        if !self.say(false).await {
            self.facts = before;
        }
    }

    /// Calls every seed that is not a live member: chitchat calls seeds too, but in a large mesh
    /// ever more rarely, and a seed that was split off has to be found again.
    fn call_absent_seeds(&self, members: &[Member]) {
        let present: HashSet<SocketAddr> = members.iter().filter(|m| m.is_live()).map(|m| m.address).collect();
        let absent = |seed: &&SocketAddr| !present.contains(seed) && **seed != self.cfg.advertise;
        for seed in self.cfg.seeds.iter().filter(absent) {
            let _ = self.chitchat.gossip(*seed);
        }
    }

    /// Where nobody else lives, and the seeds may be gone for good: calls whom an earlier life
    /// knew.
    fn call_remembered(&mut self, members: &[Member]) {
        if !members.iter().any(|member| member.is_live() && !member.is_self) {
            for to in self.directory.remembered().into_iter().filter(|to| *to != self.cfg.advertise) {
                let _ = self.chitchat.gossip(to);
            }
        }
    }

    async fn leave(&mut self, members_tx: &watch::Sender<MemberList>) {
        self.leaves = true;
        self.say(false).await;
        // Those of other cells hear of it from this one's delegates.
        let own = self.part.as_ref().map(|_| Arc::new(self.directory.list()));
        let receivers = farewell::whom(&own.unwrap_or_else(|| members_tx.borrow().clone()));
        farewell::send(&self.chitchat, &self.transport, &receivers).await;
        let _ = self.chitchat.initiate_shutdown();
        let _ = tokio::time::timeout(self.cfg.interval, &mut self.ending).await;
    }

    /// Starts the protocol again as a new incarnation above `generation`.
    async fn relaunch(&mut self, generation: u64) {
        self.chitchat.abort();
        self.cfg.generation = generation.saturating_add(1);
        self.cfg.remembered = self.directory.for_next_life();
        let cell = self.part.as_mut().map_or(CellId::WHOLE, |part| {
            part.begin_anew(self.cfg.generation);
            part.cell()
        });
        let cfg = &self.cfg;
        let remembered = Remembered::new(&cfg.remembered, &cfg.node, cfg.patience(), cfg.forget_after, Instant::now());
        self.begin(cell, remembered).await;
    }

    /// Begins the incarnation of the present generation, within this cell.
    async fn begin(&mut self, cell: CellId, remembered: Remembered) {
        let keys = self.keys().or_else(|error| {
            warn!(%error, "gossip begins without the values that were published; each is told again when it changes");
            self.published.clear();
            self.keys()
        });
        let launched = match keys {
            Ok(keys) => launch(&self.cfg, &self.transport, keys, cell, &self.sealing, remembered).await,
            Err(error) => Err(error),
        };
        match launched {
            Ok((chitchat, ending, directory)) => {
                self.chitchat = chitchat;
                self.ending = ending;
                self.directory = directory;
                info!(generation = self.cfg.generation, "gossip runs as a new incarnation");
            }
            // Nothing in it can fail that did not fail at the start; the old ending is over, so do
            // not poll it again.
            Err(error) => {
                error!(%error, "gossip could not be started anew: this node no longer takes part in the mesh");
                self.ending = Box::pin(std::future::pending());
            }
        }
    }
}

/// Whether these keys fit, also with the card that is among them once the mesh has several cells: who
/// has no room for it then could not go on.
fn check_keys(cfg: &GossipConfig, keys: &[(String, String)]) -> Result<(), Error> {
    let lacks_card = cfg.cells.is_some() && keys.iter().all(|(key, _)| key != KEY_CARD);
    check_total(keys, if lacks_card { CARD_ROOM } else { 0 })
}

async fn launch(
    cfg: &GossipConfig,
    transport: &LinkTransport,
    keys: Vec<(String, String)>,
    cell: CellId,
    sealing: &Sealing,
    remembered: Remembered,
) -> Result<(ChitchatHandle, Ending, Directory), Error> {
    let id = ChitchatId::new(cfg.node.as_str(), cfg.generation, cfg.advertise);
    let seeds = if cell == CellId::WHOLE { &cfg.seeds[..] } else { &[] };
    let config = ChitchatConfig {
        chitchat_id: id.clone(),
        cluster_id: cfg.mesh.clone(),
        gossip_interval: cfg.interval,
        listen_addr: cfg.advertise,
        seed_nodes: seeds.iter().map(ToString::to_string).collect(),
        failure_detector_config: failure_detector(cfg),
        marked_for_deletion_grace_period: cfg.forget_after,
        catchup_callback: None,
        // Tells whom to copy for chitchat's own watchers, which nobody has here: otherwise it would
        // copy all facts of all members whenever any of them has changed.
        extra_liveness_predicate: Some(Box::new(|_| false)),
    };
    check_keys(cfg, &keys)?;
    let keys = sealing.first(&id, keys);
    transport.go_to(cell);
    let chitchat = spawn_chitchat(config, keys, transport).await.map_err(|e| Error::Start(e.to_string()))?;
    transport.attach(chitchat.chitchat());
    let ending: Ending = Box::pin(chitchat.termination_watcher());
    let within = cfg.cells.map(|using| (cell, using));
    Ok((chitchat, ending, Directory::new(id, cfg.dead_after, sealing.clone(), within, remembered)))
}

/// chitchat declares a peer dead when the time since its last heartbeat exceeds `phi_threshold`
/// times the smoothed mean interval, (5 expected + sum of the window) / (5 + length of the window).
/// In a running mesh a peer's heartbeat is seen to move about once an interval, so that mean is
/// about one interval.
fn failure_detector(cfg: &GossipConfig) -> FailureDetectorConfig {
    FailureDetectorConfig {
        phi_threshold: cfg.dead_after.as_secs_f64() / cfg.interval.as_secs_f64(),
        sampling_window_size: SAMPLING_WINDOW,
        max_interval: 2 * cfg.dead_after,
        initial_interval: cfg.interval,
        dead_node_grace_period: cfg.forget_after,
    }
}
