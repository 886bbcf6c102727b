//! The adapter that lets chitchat speak over the link to the network.
//!
//! chitchat drives its socket from one task: that task awaits every `send`, and drops and
//! re-creates the `recv` future on each tick. So `send` must return at once, `recv` must lose
//! nothing when dropped, and an error from `recv` would end gossip for good. Hence: sends are
//! handed to the link, receives come from a channel, bad payloads are skipped. What of a message
//! counts is decided in `intake`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use chitchat::transport::{Socket, Transport};
use chitchat::{Chitchat, ChitchatMessage, Serializable};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::Instant;

use crate::cells::{self, CellId};
use crate::intake::{Intake, Taken};
use crate::network::{Inbound, Link, MAX_PAYLOAD_BYTES};
use crate::pace::Pace;
use crate::seal::Sealing;
use crate::{GossipConfig, wire};

/// What comes in that is none of the own cell's gossip.
pub(crate) enum Note {
    /// A message about cells.
    Message(Inbound),
    /// The sender began an exchange of the gossip within another cell.
    OfAnother {
        /// Who.
        from: SocketAddr,
        /// Which.
        cell: CellId,
    },
}

/// Opens sockets over one link. Sockets share the incoming channel, so that a restarted protocol
/// task takes over.
pub(crate) struct LinkTransport {
    link: Arc<dyn Link>,
    inbound: Arc<Mutex<mpsc::Receiver<Inbound>>>,
    digest_bytes_per_s: u32,
    round: Duration,
    urgent: Arc<AtomicUsize>,
    completed: Arc<AtomicUsize>,
    mesh: String,
    sealing: Sealing,
    state: watch::Sender<Option<State>>,
    /// In a mesh that may have several cells: the one of sockets that are opened from now on, and
    /// where that goes which is none of its gossip.
    cell: Arc<std::sync::Mutex<CellId>>,
    notes: Option<mpsc::Sender<Note>>,
}

/// chitchat's state, where what counts of a message is put.
type State = Arc<Mutex<Chitchat>>;

impl LinkTransport {
    pub(crate) fn new(
        link: Arc<dyn Link>,
        inbound: mpsc::Receiver<Inbound>,
        cfg: &GossipConfig,
        sealing: Sealing,
        notes: Option<mpsc::Sender<Note>>,
    ) -> Self {
        Self {
            cell: Arc::default(),
            notes,
            mesh: cfg.mesh.clone(),
            sealing,
            state: watch::Sender::default(),
            link,
            inbound: Arc::new(Mutex::new(inbound)),
            digest_bytes_per_s: cfg.digest_bytes_per_s,
            round: cfg.interval,
            urgent: Arc::default(),
            completed: Arc::default(),
        }
    }

    /// The state for what comes in over the socket that was opened last: until it is there,
    /// messages wait.
    pub(crate) fn attach(&self, state: State) {
        self.state.send_replace(Some(state));
    }

    /// Sockets that are opened from now on gossip within this cell.
    pub(crate) fn go_to(&self, cell: CellId) {
        *self.cell.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = cell;
    }

    /// The way out.
    pub(crate) fn link(&self) -> &dyn Link {
        &*self.link
    }

    /// Lets this many more exchanges begin without regard to the allowance.
    pub(crate) fn hurry(&self, exchanges: usize) {
        self.urgent.fetch_add(exchanges, Ordering::Relaxed);
    }

    /// Exchanges started here whose third message, with what the peer lacked, has been handed to
    /// the link.
    pub(crate) fn completed(&self) -> usize {
        self.completed.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Transport for LinkTransport {
    async fn open(&self, _listen_addr: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        self.state.send_replace(None);
        Ok(Box::new(LinkSocket {
            intake: Intake::new(&self.mesh, self.sealing.clone()),
            state: self.state.subscribe(),
            waiting: None,
            answer: true,
            link: self.link.clone(),
            inbound: self.inbound.clone(),
            pace: Pace::new(self.digest_bytes_per_s, self.round),
            urgent: self.urgent.clone(),
            completed: self.completed.clone(),
            cell: *self.cell.lock().unwrap_or_else(std::sync::PoisonError::into_inner),
            notes: self.notes.clone(),
        }))
    }
}

struct LinkSocket {
    intake: Intake,
    state: watch::Receiver<Option<State>>,
    /// A message that came and was not looked at yet.
    waiting: Option<Inbound>,
    /// Whether the answer to the last message goes out.
    answer: bool,
    link: Arc<dyn Link>,
    inbound: Arc<Mutex<mpsc::Receiver<Inbound>>>,
    pace: Pace,
    urgent: Arc<AtomicUsize>,
    completed: Arc<AtomicUsize>,
    cell: CellId,
    notes: Option<mpsc::Sender<Note>>,
}

impl LinkSocket {
    /// The message of the own cell's gossip that came, without its head. What else comes is noted; a
    /// note that nobody has time for is a lost message.
    fn of_own_cell(&self, inbound: Inbound) -> Option<Inbound> {
        let Some(notes) = &self.notes else { return Some(inbound) };
        if cells::is_about_cells(&inbound.payload) {
            let _ = notes.try_send(Note::Message(inbound));
            return None;
        }
        let (cell, message) = cells::unwrap(&inbound.payload)?;
        if cell != self.cell {
            if wire::is_syn(message) {
                let _ = notes.try_send(Note::OfAnother { from: inbound.from, cell });
            }
            return None;
        }
        match cell == CellId::WHOLE {
            true => Some(inbound),
            false => Some(Inbound { payload: message.to_vec(), ..inbound }),
        }
    }

    fn may_begin(&mut self) -> bool {
        let urgent = self.urgent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        self.pace.may_begin(Instant::now()) || urgent
    }
}

#[async_trait]
impl Socket for LinkSocket {
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        let begins = matches!(message, ChitchatMessage::Syn { .. });
        let completes = matches!(message, ChitchatMessage::Ack { .. });
        // chitchat sends an answer before it receives again; it begins exchanges in between.
        if completes && !std::mem::replace(&mut self.answer, true) {
            return Ok(());
        }
        if begins && !self.may_begin() {
            return Ok(());
        }
        let payload = message.serialize_to_vec();
        if begins {
            self.pace.exchange_started(payload.len());
        }
        if payload.len() > MAX_PAYLOAD_BYTES - cells::HEAD_BYTES {
            // Happens from about 2,000 nodes on; see ALGORITHM.md.
            tracing::warn!(bytes = payload.len(), "a gossip message outgrew its limit and was not sent");
            return Ok(());
        }
        self.link.send(to, cells::wrap(self.cell, payload));
        if completes {
            self.completed.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        // Dropped and called again on each tick: what has come is kept in `waiting` until it is
        // looked at, and nothing is awaited after that.
        loop {
            if self.waiting.is_none() {
                let inbound = self.inbound.lock().await.recv().await;
                if let Some(inbound) = inbound {
                    self.waiting = self.of_own_cell(inbound);
                    if self.waiting.is_none() {
                        continue;
                    }
                }
            }
            let state = self.state.wait_for(Option::is_some).await.ok().and_then(|state| state.clone());
            let (Some(state), true) = (state, self.waiting.is_some()) else {
                // The network is gone (shutdown). An error would be reported as a fault; there is
                // nothing to wait for.
                return std::future::pending().await;
            };
            let mut chitchat = state.lock().await;
            let Some(Inbound { from, payload, .. }) = self.waiting.take() else { continue };
            if let Some(Taken { message, answer }) = self.intake.take(&mut chitchat, from, &payload) {
                self.answer = answer;
                return Ok((from, message));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use chitchat::{ChitchatConfig, ChitchatId, FailureDetectorConfig};

    use super::*;

    struct Nowhere;
    impl Link for Nowhere {
        fn send(&self, _to: SocketAddr, _payload: Vec<u8>) {}
    }

    #[tokio::test]
    async fn recv_skips_garbage_and_survives_being_dropped() {
        let (tx, rx) = mpsc::channel(8);
        let from: SocketAddr = ([127, 0, 0, 1], 1).into();
        let cfg = GossipConfig::new("m", "n", 1, from);
        let transport = LinkTransport::new(Arc::new(Nowhere), rx, &cfg, Sealing::default(), None);
        let mut socket = transport.open(from).await.unwrap();
        let config = ChitchatConfig {
            chitchat_id: ChitchatId::new("n", 1, from),
            cluster_id: "m".to_owned(),
            gossip_interval: cfg.interval,
            listen_addr: from,
            seed_nodes: Vec::new(),
            failure_detector_config: FailureDetectorConfig::default(),
            marked_for_deletion_grace_period: cfg.forget_after,
            catchup_callback: None,
            extra_liveness_predicate: None,
        };
        let seeds = watch::Sender::default().subscribe();
        let state = Arc::new(Mutex::new(Chitchat::with_chitchat_id_and_seeds(config, seeds, Vec::new())));
        // A receive that is given up, as chitchat's select does on each tick: nothing has come, and
        // then the state is not there or not free.
        let give_up = async |socket: &mut Box<dyn Socket>| {
            assert!(tokio::time::timeout(Duration::from_millis(5), socket.recv()).await.is_err());
        };
        give_up(&mut socket).await;
        let ack = wire::ack().unwrap();
        for payload in [b"junk".to_vec(), Vec::new(), ack.serialize_to_vec()] {
            tx.send(Inbound { from, node: "n1".into(), payload }).await.unwrap();
        }
        give_up(&mut socket).await;
        let held = state.lock().await;
        transport.attach(state.clone());
        give_up(&mut socket).await;
        drop(held);
        let (_, message) = tokio::time::timeout(Duration::from_secs(120), socket.recv()).await.unwrap().unwrap();
        assert_eq!(message, ack);
    }

    struct Count(AtomicUsize);
    impl Link for Count {
        fn send(&self, _to: SocketAddr, payload: Vec<u8>) {
            self.0.fetch_add(payload.len(), Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn exchanges_beyond_the_allowance_wait_and_answers_and_farewells_do_not() {
        let from: SocketAddr = ([127, 0, 0, 1], 1).into();
        // Nothing refills it, however long this takes.
        let cfg = GossipConfig { digest_bytes_per_s: 0, ..GossipConfig::new("m", "n", 1, from) };
        let (link, (_tx, rx)) = (Arc::new(Count(AtomicUsize::new(0))), mpsc::channel(1));
        let transport = LinkTransport::new(link.clone(), rx, &cfg, Sealing::default(), None);
        let mut socket = transport.open(from).await.unwrap();
        let syn = || wire::syn("m", &wire::Digest::new()).unwrap();
        let mut sent = Vec::new();
        for message in [syn(), syn(), ChitchatMessage::BadCluster] {
            socket.send(from, message).await.unwrap();
            sent.push(link.0.load(Ordering::Relaxed));
        }
        assert!(sent[0] > 0, "the first exchange begins at once");
        assert_eq!(sent[1], sent[0], "the second is beyond the allowance");
        assert!(sent[2] > sent[1], "an answer is never limited");
        transport.hurry(1);
        socket.send(from, syn()).await.unwrap();
        assert!(link.0.load(Ordering::Relaxed) > sent[2], "a farewell is never limited");
    }
}
