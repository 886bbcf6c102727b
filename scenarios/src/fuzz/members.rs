//! What a member of the mesh may send of gossip, message after message, into a running gossiper; and
//! verdicts that members publish.
//!
//! An input of the first kind is a list of messages. Each begins with its kind (one byte); the
//! numbers, names and incarnations in it are chosen by a byte each from those that are apt to do
//! harm. Seals are made where the input says so, by whom it says: only the member itself and its
//! former lives have a key here.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use gossip::hostile::{self, ChitchatId, Delta, Digest, Entry, Key, Message, SEAL, Status};
use gossip::{Gossip, GossipConfig, Inbound, Link, MAX_LIVES, NodeFacts, Sealer};
use standing::{Held, JobVerdict, chosen, disagrees};
use tokio::sync::mpsc;

/// Messages of an input that are looked at.
const MESSAGES: usize = 24;
/// How long the gossiper may take for them.
const PATIENCE: Duration = Duration::from_secs(30);

/// A name and a sum: who has no name of its own to seal with seals for nobody.
struct Sums(&'static str);

fn sum(statement: &[u8]) -> u64 {
    statement.iter().fold(7, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

impl Sealer for Sums {
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

fn address(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

const OWN: u16 = 1;
const OWNER: u16 = 2;
const MEMBER: u16 = 3;
/// Who asks at the end how the gossiper is.
const ASKER: u16 = 4;

/// Hands on what goes to the asker.
struct Answers(mpsc::UnboundedSender<Vec<u8>>);

impl Link for Answers {
    fn send(&self, to: SocketAddr, payload: Vec<u8>) {
        if to == address(ASKER) {
            let _ = self.0.send(payload);
        }
    }
}

/// Bytes of an input, one after the other; zeros behind its end.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn number(&mut self) -> u64 {
        match self.byte() {
            255 => u64::MAX,
            254 => u64::MAX - 1,
            253 => 1 << 63,
            252 => 1 << 32,
            small => u64::from(small),
        }
    }

    fn id(&mut self) -> ChitchatId {
        let which = self.byte();
        let life = u64::from(which >> 3);
        match which & 7 {
            0 => ChitchatId::new("own", 1, address(OWN)),
            1 => ChitchatId::new("owner", 1, address(OWNER)),
            2 => ChitchatId::new("owner", 1 + life, address(OWNER)),
            3 => ChitchatId::new("own", 1 + life, address(OWN)),
            4 => ChitchatId::new(format!("invented-{}", self.byte()), self.number(), address(MEMBER)),
            _ => ChitchatId::new("member", life, address(MEMBER)),
        }
    }

    fn digest(&mut self) -> Digest {
        let count = self.byte() % 16;
        let mut digest = Digest::new();
        for _ in 0..count {
            let id = self.id();
            digest.insert(id, Entry { heartbeat: self.number(), last_gc: self.number(), max_version: self.number() });
        }
        digest
    }

    fn deltas(&mut self) -> Vec<Delta> {
        (0..self.byte() % 8).map(|_| self.delta()).collect()
    }

    fn delta(&mut self) -> Delta {
        let id = self.id();
        let (last_gc, from, count) = (self.number(), self.number(), self.byte() % 8);
        let mut keys = Vec::new();
        for _ in 0..count {
            let what = self.byte();
            let name = ["n", "s", "left", "x.jobs", "x.trust", "x.v", SEAL, ""][usize::from(what & 7)];
            let value =
                ["{}", "1", "", "{\"v\":\"evil\"}"][usize::from(what >> 3 & 3)].repeat(1 + usize::from(what >> 6));
            let status = if what & 32 == 0 { Status::Set } else { Status::Deleted };
            keys.push(Key { name: name.to_owned(), value, version: self.number(), status });
        }
        let flags = self.byte();
        let mut max_version = if flags & 1 == 0 { keys.last().map_or(0, |key| key.version) } else { self.number() };
        if flags & 2 != 0 {
            keys.retain(|key| key.name != SEAL);
            let version = max_version.wrapping_add(1);
            let mut live: Vec<_> = keys
                .iter()
                .filter(|key| key.status == Status::Set)
                .map(|key| (key.name.clone(), key.value.clone(), key.version))
                .collect();
            live.sort();
            let seal = Sums("member").seal(&hostile::statement(&id, version, &live)).unwrap_or_default();
            keys.push(Key { name: SEAL.to_owned(), value: seal, version, status: Status::Set });
            max_version = version;
        }
        Delta { id, last_gc, from, keys, max_version }
    }

    fn message(&mut self) -> Vec<u8> {
        let message = match self.byte() % 6 {
            0 => {
                let length = usize::from(self.byte()).min(self.0.len());
                let (bytes, rest) = self.0.split_at(length);
                self.0 = rest;
                return bytes.to_vec();
            }
            1 => Message::Syn { mesh: "m".into(), digest: self.digest() },
            2 => Message::Syn { mesh: "x".into(), digest: self.digest() },
            3 => Message::SynAck { digest: self.digest(), deltas: self.deltas() },
            4 => Message::Ack { deltas: self.deltas() },
            _ => Message::OtherMesh,
        };
        hostile::bytes(&message)
    }
}

/// What the owner says of itself.
fn words_of_owner() -> Delta {
    let id = ChitchatId::new("owner", 1, address(OWNER));
    let node = ("n".to_owned(), "{\"v\":\"good\"}".to_owned(), 1);
    let seal = Sums("owner").seal(&hostile::statement(&id, 2, std::slice::from_ref(&node))).unwrap_or_default();
    let key = |name: &str, value: String, version| Key { name: name.to_owned(), value, version, status: Status::Set };
    let keys = vec![key("n", node.1, 1), key(SEAL, seal, 2)];
    Delta { id, last_gc: 0, from: 0, keys, max_version: 2 }
}

fn runtime() -> &'static tokio::runtime::Runtime {
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| match tokio::runtime::Builder::new_current_thread().enable_time().build() {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime: {error}"),
    })
}

/// Feeds the messages to a gossiper that knows another member.
///
/// # Panics
/// Where it ends, forgets or changes what the other said, or takes in more than it may.
///
/// # Errors
/// It does not start.
pub(super) fn feed(input: &[u8]) -> anyhow::Result<()> {
    runtime().block_on(async {
        let (answers, mut answered) = mpsc::unbounded_channel();
        let (to, inbound) = mpsc::channel(MESSAGES + 8);
        let config = GossipConfig::new("m", "own", 1, address(OWN)).with_sealer(Arc::new(Sums("own")));
        let gossip = Gossip::start(config, Arc::new(Answers(answers)), inbound, NodeFacts::default()).await?;
        let send = async |port: u16, payload: Vec<u8>| {
            to.send(Inbound { from: address(port), node: format!("n{port}"), payload }).await
        };
        send(OWNER, hostile::bytes(&Message::Ack { deltas: vec![words_of_owner()] })).await?;
        let mut script = Script(input);
        for _ in 0..MESSAGES {
            if script.0.is_empty() {
                break;
            }
            send(MEMBER, script.message()).await?;
        }
        send(ASKER, hostile::bytes(&Message::Syn { mesh: "m".into(), digest: Digest::new() })).await?;
        let answer = tokio::time::timeout(PATIENCE, answered.recv()).await.context("gossip has stopped")?;
        let Ok(Message::SynAck { digest, deltas }) = hostile::read(&answer.unwrap_or_default()) else {
            panic!("no answer to a digest");
        };
        let of = |name: &str| digest.keys().filter(|id| &*id.node_id == name).count();
        assert_eq!((of("own"), of("owner")), (1, 1), "{digest:?}");
        assert!(of("member") <= MAX_LIVES && digest.len() == 2 + of("member"), "{digest:?}");
        assert!(deltas.contains(&words_of_owner()), "the owner's words have changed: {deltas:?}");
        let own = deltas.iter().find(|delta| &*delta.id.node_id == "own");
        let said = own.map(|own| own.keys.iter().map(|key| key.name.as_str()).collect::<Vec<_>>());
        assert_eq!(said.as_deref(), Some(&["n", "s", SEAL][..]), "what it says itself");
        gossip.publish("k", "v").await;
        let life = gossip.members().iter().find(|member| member.is_self).map(|member| member.generation);
        assert_eq!(life, Some(1), "it was started anew");
        Ok(())
    })
}

/// Some of each kind of message.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    vec![
        // A digest of everybody with large numbers; one of many that were made up.
        vec![1, 4, 0, 255, 255, 255, 1, 255, 254, 255, 5, 253, 253, 253, 12, 1, 2, 3],
        [vec![1, 15], (0..15).flat_map(|n| [4, n, 1, 1, 0, 3]).collect()].concat(),
        // The member's own words under its seal, twice, and then without.
        vec![4, 1, 5, 0, 0, 2, 0, 1, 1, 2, 2, 4, 1, 5, 0, 3, 1, 24, 9, 2, 3, 1, 0, 0, 0, 1, 0, 1, 0],
        // Of others: keys, a version, deletions, everything anew.
        vec![4, 2, 0, 0, 3, 1, 4, 9, 0, 1, 0, 2, 1, 24, 5, 2],
        vec![3, 0, 1, 1, 255, 0, 0, 1, 255, 4, 1, 0, 0, 2, 0, 1, 255],
        // Many lives of its own.
        [vec![4, 7], (0..7).flat_map(|life| [5 | life << 3, 0, 0, 1, 0, 1, 2]).collect()].concat(),
        vec![0, 4, 0x53, 0xB0, 0, 1, 5, 2, 1, 0, 1, 1, 1],
    ]
}

/// Reads the texts of an input's lines as verdicts of judges, and chooses of them.
pub(super) fn feed_verdicts(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let mut held: Vec<Held> = Vec::new();
    for (now_ns, line) in (0..16).zip(text.lines()) {
        let Ok(verdict) = JobVerdict::read(line) else { continue };
        // What is read can be published on.
        if let Some(text) = verdict.text() {
            assert!(JobVerdict::read(&text).is_ok(), "{text}");
        }
        let _ = verdict.standing.end_ns();
        held.push(Held::after(held.last(), verdict, now_ns * 1_000_000_000));
    }
    let said: Vec<_> = held.iter().map(Held::said).collect();
    for now_ns in [0, 20_000_000_000, i64::MAX] {
        for own in [None, held.len().checked_sub(1)] {
            if let Some(shown) = chosen(&said, own, now_ns) {
                let _ = said.iter().filter(|other| disagrees(&said[shown], other, now_ns)).count();
            }
        }
    }
}
