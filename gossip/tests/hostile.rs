//! A member that turned hostile: it is let in, and sends what it likes. The honest ones go on, and
//! believe of each other only what each says of itself.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gossip::hostile::{self, ChitchatId, Delta, Digest, Entry, Key, Message, SEAL, Status};
use gossip::{Gossip, GossipConfig, Inbound, Link, MAX_LIVES, NodeFacts, Sealer};
use tokio::sync::mpsc;

const PATIENCE: Duration = Duration::from_secs(120);
/// Incarnations that do not fit into a digest by far.
const MANY: u64 = 1_500;

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

struct MemLink(Net, SocketAddr, &'static str);

impl Link for MemLink {
    fn send(&self, to: SocketAddr, payload: Vec<u8>) {
        if let Some(listener) = self.0.lock().unwrap().get(&to) {
            let _ = listener.try_send(Inbound { from: self.1, node: self.2.to_owned(), payload });
        }
    }
}

fn address(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

fn facts(version: &str) -> NodeFacts {
    NodeFacts { version: version.to_owned(), ..NodeFacts::default() }
}

/// Two honest members that know each other, and a hostile one's place in the network.
struct Scene {
    net: Net,
    reader: Gossip,
    owner: Gossip,
    inbox: mpsc::Receiver<Inbound>,
}

const READER: u16 = 1;
const OWNER: u16 = 2;
const HOSTILE: u16 = 3;

async fn start(net: &Net, name: &'static str, port: u16) -> Gossip {
    let mut config = GossipConfig::new("m", name, 1, address(port));
    config.seeds = vec![address(READER)];
    config.interval = Duration::from_millis(40);
    config.dead_after = Duration::from_secs(5);
    let (tx, rx) = mpsc::channel(256);
    net.lock().unwrap().insert(address(port), tx);
    let link = Arc::new(MemLink(net.clone(), address(port), name));
    Gossip::start(config.with_sealer(Arc::new(Names(name))), link, rx, facts("1")).await.unwrap()
}

fn version(gossip: &Gossip, name: &str) -> Option<String> {
    Some(gossip.list().iter().find(|member| member.name == name)?.facts.version.clone())
}

fn generation(gossip: &Gossip) -> u64 {
    gossip.list().iter().find(|member| member.is_self).unwrap().generation
}

async fn eventually(what: &str, seen: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !seen() {
        assert!(Instant::now() < until, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl Scene {
    async fn new() -> Self {
        let net = Net::default();
        let (reader, owner) = (start(&net, "reader", READER).await, start(&net, "owner", OWNER).await);
        for (gossip, other) in [(&reader, "owner"), (&owner, "reader")] {
            eventually("they know each other", || version(gossip, other).as_deref() == Some("1")).await;
        }
        let (tx, inbox) = mpsc::channel(1_024);
        net.lock().unwrap().insert(address(HOSTILE), tx);
        Self { net, reader, owner, inbox }
    }

    fn send(&self, to: u16, message: &Message) {
        let sender = self.net.lock().unwrap()[&address(to)].clone();
        let _ =
            sender.try_send(Inbound { from: address(HOSTILE), node: "evil".into(), payload: hostile::bytes(message) });
    }

    /// What the node at `port` answers to an empty digest: what it knows of everybody. It has then
    /// looked at everything that was sent before.
    async fn knowledge(&mut self, port: u16) -> (Digest, Vec<Delta>) {
        let until = Instant::now() + PATIENCE;
        while self.inbox.try_recv().is_ok() {}
        loop {
            assert!(Instant::now() < until, "{port} does not answer");
            self.send(port, &Message::Syn { mesh: "m".into(), digest: Digest::new() });
            let answer = tokio::time::timeout(Duration::from_secs(1), self.inbox.recv()).await;
            let Ok(Some(Inbound { from, payload, .. })) = answer else { continue };
            if let (Ok(Message::SynAck { digest, deltas }), true) = (hostile::read(&payload), from == address(port)) {
                return (digest, deltas);
            }
        }
    }

    /// The owner's words, as the reader hands them on.
    async fn words_of_owner(&mut self) -> Delta {
        let (_, deltas) = self.knowledge(READER).await;
        deltas.into_iter().find(|delta| &*delta.id.node_id == "owner").unwrap()
    }

    /// Both honest ones run as before, and hear each other's news.
    async fn assert_well(&mut self, news: &'static str) {
        for (gossip, other, port) in [(&self.owner, &self.reader, OWNER), (&self.reader, &self.owner, READER)] {
            assert_eq!(generation(gossip), 1, "{port} was started anew");
            gossip.set_facts(facts(news)).await;
            let name = if port == OWNER { "owner" } else { "reader" };
            eventually("news arrive", || version(other, name).as_deref() == Some(news)).await;
        }
        self.knowledge(OWNER).await;
        assert_eq!((generation(&self.owner), generation(&self.reader)), (1, 1));
    }
}

/// The seal of these keys by `name`, as the last of them.
fn sealed(name: &'static str, id: &ChitchatId, mut keys: Vec<Key>) -> Vec<Key> {
    keys.retain(|key| key.name != SEAL);
    let version = keys.iter().map(|key| key.version).max().unwrap_or(0) + 1;
    let mut live: Vec<_> = keys
        .iter()
        .filter(|key| key.status == Status::Set)
        .map(|key| (key.name.clone(), key.value.clone(), key.version))
        .collect();
    live.sort();
    let seal = Names(name).seal(&hostile::statement(id, version, &live)).unwrap();
    keys.push(Key { name: SEAL.to_owned(), value: seal, version, status: Status::Set });
    keys
}

fn key(name: &str, value: &str, version: u64) -> Key {
    Key { name: name.to_owned(), value: value.to_owned(), version, status: Status::Set }
}

fn whole(id: ChitchatId, keys: Vec<Key>) -> Delta {
    let max_version = keys.last().map_or(0, |key| key.version);
    Delta { id, last_gc: 0, from: 0, keys, max_version }
}

/// As an answer and as the end of an exchange: each is another way in.
fn both(deltas: Vec<Delta>) -> [Message; 2] {
    [Message::SynAck { digest: Digest::new(), deltas: deltas.clone() }, Message::Ack { deltas }]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_says_anything_of_a_node_but_itself_not_even_to_it() {
    let mut scene = Scene::new().await;
    let words = scene.words_of_owner().await;
    let top = words.max_version;
    // To the owner itself: keys that it then would seal; and a version after which there is none.
    let mut more = words.clone();
    (more.from, more.keys, more.max_version) =
        (top, vec![key("x.trust", "9", top + 1), key("left", "1", top + 2)], top + 2);
    let last = Delta { from: top, keys: Vec::new(), max_version: u64::MAX, ..words.clone() };
    for message in both(vec![more.clone()]).into_iter().chain(both(vec![last.clone()])) {
        scene.send(OWNER, &message);
    }
    scene.owner.publish("k", "v").await;
    let said = || {
        let list = scene.reader.list();
        let owner = list.iter().find(|member| member.name == "owner").unwrap();
        (owner.facts.extra.contains_key("k"), owner.facts.extra.contains_key("trust"), owner.may_live())
    };
    eventually("the owner's next words arrive", || said().0).await;
    assert_eq!(said(), (true, false, true), "it says what it means to say");

    // To another, under the owner's old seal, and under the forger's own.
    let words = scene.words_of_owner().await;
    let top = words.max_version;
    let (mut old, mut own) = (words.clone(), words.clone());
    let node = old.keys.iter_mut().find(|key| key.name == "n").unwrap();
    node.value = node.value.replace("\"v\":\"1\"", "\"v\":\"evil\"");
    own.keys = sealed("hostile", &own.id, old.keys.clone());
    for delta in [&mut old, &mut own] {
        // So that they are newer, in an order that a message may have.
        for (place, key) in delta.keys.iter_mut().enumerate() {
            key.version = top + 1 + place as u64;
        }
        delta.max_version = delta.keys.last().unwrap().version;
    }
    // The owner's own words, only newer: its next ones would look old.
    let mut renumbered = words.clone();
    for key in &mut renumbered.keys {
        key.version += 1 << 40;
    }
    renumbered.max_version += 1 << 40;
    for forged in [old, own, renumbered, Delta { from: top, keys: Vec::new(), max_version: top + 1, ..words.clone() }] {
        let before = scene.reader.forged();
        for message in both(vec![forged]) {
            scene.send(READER, &message);
        }
        eventually("the forgery is counted", || scene.reader.forged() > before).await;
    }
    // A made-up life of the owner's is not even listed.
    let double = ChitchatId::new("owner", 9, address(HOSTILE));
    for message in
        both(vec![whole(double.clone(), sealed("hostile", &double, vec![key("n", "{\"v\":\"double\"}", 1)]))])
    {
        scene.send(READER, &message);
    }
    let (digest, _) = scene.knowledge(READER).await;
    assert!(!digest.contains_key(&double));
    assert_eq!(version(&scene.reader, "owner").as_deref(), Some("1"));
    scene.assert_well("2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_at_the_end_of_their_range_stop_nobody() {
    let mut scene = Scene::new().await;
    let words = scene.words_of_owner().await;
    let own = ChitchatId::new("hostile", 1, address(HOSTILE));
    for port in [READER, OWNER] {
        for max in [u64::MAX, u64::MAX - 1, 1 << 63] {
            // Of others, of the receiver, and of itself under a good seal.
            let of_others = Delta { from: words.max_version, keys: Vec::new(), max_version: max, ..words.clone() };
            let at_the_end = vec![key("n", "{}", max - 2)];
            let of_itself = whole(own.clone(), sealed("hostile", &own, at_the_end));
            let gone = Delta { last_gc: max, from: 0, keys: Vec::new(), max_version: max, ..words.clone() };
            for message in both(vec![of_others, of_itself, gone]) {
                scene.send(port, &message);
            }
            let entry = Entry { heartbeat: 1, last_gc: max, max_version: max };
            let digest = Digest::from([(words.id.clone(), entry), (own.clone(), entry)]);
            scene.send(port, &Message::Syn { mesh: "m".into(), digest: digest.clone() });
            scene.send(port, &Message::SynAck { digest, deltas: Vec::new() });
        }
    }
    scene.assert_well("2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_only_named_takes_no_room_and_a_name_has_few_lives() {
    let mut scene = Scene::new().await;
    let invented = |number: u64| ChitchatId::new(format!("invented-{number}"), 1, address(HOSTILE));
    let entry = Entry { heartbeat: 1, last_gc: 0, max_version: 3 };
    let digest: Digest = (0..MANY).map(|number| (invented(number), entry)).collect();
    let unsealed = (0..MANY).map(|number| whole(invented(number), vec![key("n", "{}", 1)])).collect::<Vec<_>>();
    for port in [READER, OWNER] {
        scene.send(port, &Message::Syn { mesh: "m".into(), digest: digest.clone() });
        for some in unsealed.chunks(300) {
            scene.send(port, &Message::SynAck { digest: digest.clone(), deltas: some.to_vec() });
        }
        let (known, _) = scene.knowledge(port).await;
        assert_eq!(known.len(), 2, "{:?}", known.keys().take(4).collect::<Vec<_>>());
    }
    // Lives of its own, each under a good seal.
    let life = |generation| {
        let id = ChitchatId::new("hostile", generation, address(HOSTILE));
        whole(id.clone(), sealed("hostile", &id, vec![key("n", "{}", 1)]))
    };
    for some in (1..=MANY).collect::<Vec<_>>().chunks(300) {
        for message in both(some.iter().map(|generation| life(*generation)).collect()) {
            scene.send(READER, &message);
        }
        scene.knowledge(READER).await;
    }
    for port in [READER, OWNER] {
        eventually("others hear of it", || scene.owner.list().iter().any(|member| member.name == "hostile")).await;
        let (known, _) = scene.knowledge(port).await;
        assert!(known.len() <= 2 + MAX_LIVES, "{} incarnations", known.len());
    }
    scene.assert_well("2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_says_a_bounded_amount_of_itself() {
    let mut scene = Scene::new().await;
    let id = ChitchatId::new("hostile", 1, address(HOSTILE));
    let keys: Vec<Key> = (1..=40).map(|number| key(&format!("x.{number:02}"), &"y".repeat(8_000), number)).collect();
    for message in both(vec![whole(id.clone(), sealed("hostile", &id, keys))]) {
        scene.send(READER, &message);
    }
    let (known, _) = scene.knowledge(READER).await;
    assert!(!known.contains_key(&id));
    scene.assert_well("2").await;
}
