//! Facts bound to their owner. In gossip every member passes on, and so could change, the facts of
//! others. A seal is the owner's signature over all its facts, set last under a key of its own. Who
//! reads facts whose seal does not verify keeps what the owner last sealed, and counts the event.
//!
//! How a seal is made and judged is the agent's ([`Sealer`]). Without one, facts are taken as they
//! come.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chitchat::{ChitchatId, NodeState};

/// The key of the seal.
pub(crate) const KEY_SEAL: &str = "~";

/// Prefix of everything that is sealed.
const CONTEXT: &[u8] = b"rankmesh gossip 1\0";

/// Makes this node's seals and verifies those of others.
pub trait Sealer: Send + Sync + 'static {
    /// A seal of `statement`: printable text without spaces.
    ///
    /// # Errors
    /// Why it cannot be made.
    fn seal(&self, statement: &[u8]) -> Result<String, String>;

    /// Whether `seal` is a seal of `statement` by `node`.
    ///
    /// # Errors
    /// Why not.
    fn check(&self, node: &str, statement: &[u8], seal: &str) -> Result<(), String>;

    /// A number that changes when seals may be judged otherwise than before.
    fn epoch(&self) -> u64;
}

/// The sealer of a mesh, if it has one, and the count of what it refused.
#[derive(Clone, Default)]
pub(crate) struct Sealing {
    pub(crate) sealer: Option<Arc<dyn Sealer>>,
    /// Number of the last seal that this node made; higher each time, so that an old statement is
    /// not taken for a new one.
    made: Arc<AtomicU64>,
    forged: Arc<AtomicU64>,
    unsealed: Arc<AtomicU64>,
}

impl fmt::Debug for Sealing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealing").field("sealer", &self.sealer.is_some()).finish_non_exhaustive()
    }
}

/// Result of reading a member's facts.
pub(crate) enum Reading {
    /// Sealed by their owner; the number of the seal.
    Good(u64),
    /// There are keys whose seal has not arrived yet.
    Incomplete,
    /// Not what the owner sealed.
    Forged(String),
}

impl Sealing {
    pub(crate) fn of(sealer: Option<Arc<dyn Sealer>>) -> Self {
        Self { sealer, ..Self::default() }
    }

    /// Statements refused since the start.
    pub(crate) fn forged(&self) -> u64 {
        self.forged.load(Ordering::Relaxed)
    }

    pub(crate) fn count_forged(&self) {
        self.forged.fetch_add(1, Ordering::Relaxed);
    }

    /// Statements whose seal stayed missing for long, since the start.
    pub(crate) fn unsealed(&self) -> u64 {
        self.unsealed.load(Ordering::Relaxed)
    }

    pub(crate) fn count_unsealed(&self) {
        self.unsealed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.sealer.as_ref().map_or(0, |sealer| sealer.epoch())
    }

    /// The seal of `keys`, as a key of its own; none without a sealer.
    pub(crate) fn seal<'a>(
        &self,
        id: &ChitchatId,
        keys: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Option<(String, String)> {
        let sealer = self.sealer.as_ref()?;
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        match sealer.seal(&statement(id, number, keys)) {
            Ok(seal) => Some((KEY_SEAL.to_owned(), format!("{number} {seal}"))),
            Err(error) => {
                tracing::error!(error, "this node's facts cannot be sealed: nobody will believe them");
                None
            }
        }
    }

    /// Seals this node's state as it is now.
    pub(crate) fn reseal(&self, state: &mut NodeState) {
        let id = state.chitchat_id().clone();
        if let Some((key, seal)) = self.seal(&id, state.key_values()) {
            state.set(key, seal);
        }
    }

    /// Judges the state of another member. A statement before `last` is an old one.
    pub(crate) fn read(&self, id: &ChitchatId, state: &NodeState, last: u64) -> Reading {
        let Some(sealer) = &self.sealer else { return Reading::Good(0) };
        let Some(sealed) = state.get_versioned(KEY_SEAL) else { return Reading::Incomplete };
        // Keys come in the order of their versions, and the seal is the last that the owner sets.
        if sealed.version != state.max_version() {
            return Reading::Incomplete;
        }
        let parts = sealed.value.split_once(' ');
        let Some((number, seal)) = parts.and_then(|(number, seal)| Some((number.parse::<u64>().ok()?, seal))) else {
            return Reading::Forged("its seal cannot be read".to_owned());
        };
        if number < last {
            return Reading::Forged(format!("it is an old statement, number {number} after {last}"));
        }
        match sealer.check(&id.node_id, &statement(id, number, state.key_values()), seal) {
            Ok(()) => Reading::Good(number),
            Err(reason) => Reading::Forged(reason),
        }
    }
}

/// The bytes that are sealed: who, in which life, where, the number of the statement, and every key
/// but the seal's, in the order of the keys, each text with its length before it.
fn statement<'a>(id: &ChitchatId, number: u64, keys: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let mut bytes = CONTEXT.to_vec();
    let mut push = |text: &str| {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    };
    push(&id.node_id);
    push(&id.generation_id.to_string());
    push(&address(id.gossip_advertise_addr));
    push(&number.to_string());
    for (key, value) in keys.filter(|(key, _)| *key != KEY_SEAL) {
        push(key);
        push(value);
    }
    bytes
}

fn address(address: SocketAddr) -> String {
    address.to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Mutex;
    use std::time::{Duration, Instant};

    use chitchat::VersionedValue;
    use tokio::sync::mpsc;

    use super::*;
    use crate::driver::launch;
    use crate::link::LinkTransport;
    use crate::{Gossip, GossipConfig, Inbound, Link, NodeFacts};

    const PATIENCE: Duration = Duration::from_secs(120);

    /// A node seals with its name and a sum; nobody can seal for another.
    struct Names(&'static str);

    fn sum(statement: &[u8]) -> u64 {
        statement.iter().fold(7, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
    }

    impl Sealer for Names {
        fn seal(&self, statement: &[u8]) -> Result<String, String> {
            Ok(format!("{}:{}", self.0, sum(statement)))
        }

        fn check(&self, node: &str, statement: &[u8], seal: &str) -> Result<(), String> {
            if seal == format!("{node}:{}", sum(statement)) { Ok(()) } else { Err("not its seal".to_owned()) }
        }

        fn epoch(&self) -> u64 {
            0
        }
    }

    type Net = Arc<Mutex<HashMap<SocketAddr, mpsc::Sender<Inbound>>>>;

    struct MemLink(Net, SocketAddr);

    impl Link for MemLink {
        fn send(&self, to: SocketAddr, payload: Vec<u8>) {
            if let Some(listener) = self.0.lock().unwrap().get(&to) {
                let _ = listener.try_send(Inbound { from: self.1, payload });
            }
        }
    }

    fn config(name: &'static str, port: u16) -> GossipConfig {
        let mut config = GossipConfig::new("m", name, 1, ([127, 0, 0, 1], port).into());
        config.seeds = vec![([127, 0, 0, 1], 1).into()];
        config.interval = Duration::from_millis(40);
        config.dead_after = Duration::from_secs(5);
        config.with_sealer(Arc::new(Names(name)))
    }

    fn plug(net: &Net, config: &GossipConfig) -> (Arc<MemLink>, mpsc::Receiver<Inbound>) {
        let (tx, rx) = mpsc::channel(64);
        net.lock().unwrap().insert(config.advertise, tx);
        (Arc::new(MemLink(net.clone(), config.advertise)), rx)
    }

    fn facts(version: &str) -> NodeFacts {
        NodeFacts { version: version.to_owned(), ..NodeFacts::default() }
    }

    async fn start(net: &Net, config: GossipConfig, facts: NodeFacts) -> Gossip {
        let (link, inbound) = plug(net, &config);
        Gossip::start(config, link, inbound, facts).await.unwrap()
    }

    fn version(gossip: &Gossip, name: &str) -> Option<String> {
        Some(gossip.list().iter().find(|member| member.name == name)?.facts.version.clone())
    }

    async fn eventually(what: &str, seen: impl Fn() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !seen() {
            assert!(Instant::now() < until, "never happened: {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_another_says_in_a_members_name_is_ignored_and_counted() {
        let net = Net::default();
        let reader = start(&net, config("reader", 1), facts("r")).await;
        let owner = start(&net, config("owner", 2), facts("1")).await;
        eventually("the owner is known", || version(&reader, "owner").as_deref() == Some("1")).await;
        assert_eq!(reader.forged(), 0);

        // A member that changes the owner's facts, with the owner's seal or one of its own.
        let forger = config("forger", 3);
        let (link, inbound) = plug(&net, &forger);
        let transport = LinkTransport::new(link, inbound, &forger);
        let sealing = Sealing::of(forger.sealer());
        let (chitchat, _ending, _directory) = launch(&forger, &transport, &facts("f"), &sealing).await.unwrap();
        eventually("the forger is a member", || version(&reader, "forger").is_some()).await;
        let deadline = Instant::now() + PATIENCE;
        let mut seen = 0;
        for own_seal in [false, true] {
            let forged = chitchat
                .with_chitchat(|chitchat| {
                    let (id, state) = chitchat.node_states().iter().find(|(id, _)| &*id.node_id == "owner")?;
                    let (id, top) = (id.clone(), state.max_version());
                    let mut keys: Vec<(String, VersionedValue)> = state
                        .key_values_including_deleted()
                        .map(|(key, value)| (key.to_owned(), value.clone()))
                        .collect();
                    let node = keys.iter_mut().find(|(key, _)| key == "n")?;
                    node.1.value = node.1.value.replace("\"v\":\"1\"", "\"v\":\"evil\"");
                    node.1.version = top + 1;
                    let texts: Vec<(String, String)> =
                        keys.iter().map(|(key, value)| (key.clone(), value.value.clone())).collect();
                    let own = sealing.seal(&id, texts.iter().map(|(k, v)| (k.as_str(), v.as_str())))?.1;
                    let seal = keys.iter_mut().find(|(key, _)| key == KEY_SEAL)?;
                    if own_seal {
                        seal.1.value = own;
                    }
                    seal.1.version = top + 2;
                    chitchat.reset_node_state_if_update(&id, keys.into_iter(), top + 2, 0);
                    Some(())
                })
                .await;
            assert!(forged.is_some(), "the forger knows the owner");
            while reader.forged() <= seen {
                assert!(Instant::now() < deadline, "the forgery was never counted");
                assert_eq!(version(&reader, "owner").as_deref(), Some("1"));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            seen = reader.forged();
            assert_eq!(version(&reader, "owner").as_deref(), Some("1"), "the owner's own words stand");
        }

        // Another life of the owner, made up: it is not even listed.
        let double = GossipConfig { generation: 9, ..config("owner", 4) }.with_sealer(Arc::new(Names("forger")));
        let _double = start(&net, double, facts("double")).await;
        eventually("the made-up life is counted", || reader.forged() > seen).await;
        assert_eq!(version(&reader, "owner").as_deref(), Some("1"));
        owner.shutdown().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn words_whose_seal_comes_late_are_no_forgery_and_believed_then() {
        let net = Net::default();
        let short = |name, port| GossipConfig { dead_after: Duration::from_secs(1), ..config(name, port) };
        let reader = start(&net, short("reader", 1), facts("r")).await;
        let owner = short("owner", 2);
        let (link, inbound) = plug(&net, &owner);
        let transport = LinkTransport::new(link, inbound, &owner);
        let sealing = Sealing::of(owner.sealer());
        let (chitchat, _ending, _directory) = launch(&owner, &transport, &facts("1"), &sealing).await.unwrap();
        eventually("the owner is known", || version(&reader, "owner").as_deref() == Some("1")).await;
        // A reader that had to wait for the owner's first seal as long as that has counted it.
        let before = reader.unsealed();
        let new = facts("2").encode().unwrap();
        chitchat
            .with_chitchat(|chitchat| new.iter().for_each(|(key, value)| chitchat.self_node_state().set(key, value)))
            .await;
        eventually("the words are there, the seal is not", || reader.unsealed() > before).await;
        assert_eq!((reader.forged(), version(&reader, "owner").as_deref()), (0, Some("1")));
        chitchat.with_chitchat(|chitchat| sealing.reseal(chitchat.self_node_state())).await;
        eventually("the seal has come", || version(&reader, "owner").as_deref() == Some("2")).await;
        assert_eq!((reader.forged(), reader.unsealed()), (0, before + 1));
    }
}
