//! Whole meshes over an in-memory network, as scripts: do something, then wait until every member
//! sees what it should.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gossip::{Gossip, GossipConfig, Inbound, Link, Member, MemberState, NodeFacts};
use tokio::sync::mpsc;

const PATIENCE: Duration = Duration::from_secs(120);

/// The network: who listens where, and which pairs are cut off from each other.
#[derive(Default)]
struct Net {
    listeners: Mutex<HashMap<SocketAddr, mpsc::Sender<Inbound>>>,
    cuts: Mutex<HashSet<(SocketAddr, SocketAddr)>>,
}

struct MemLink {
    net: Arc<Net>,
    own: SocketAddr,
    name: String,
}

impl Link for MemLink {
    fn send(&self, to: SocketAddr, payload: Vec<u8>) {
        if self.net.cuts.lock().unwrap().contains(&(self.own, to)) {
            return;
        }
        if let Some(listener) = self.net.listeners.lock().unwrap().get(&to) {
            let _ = listener.try_send(Inbound { from: self.own, node: self.name.clone(), payload });
        }
    }
}

/// A mesh under test.
struct Cluster {
    net: Arc<Net>,
    mesh: String,
    dead_after: Duration,
    nodes: BTreeMap<u16, Gossip>,
}

fn addr(n: u16) -> SocketAddr {
    ([127, 0, 0, 1], 7000 + n).into()
}

fn facts(version: &str) -> NodeFacts {
    NodeFacts { version: version.to_owned(), ranks: vec![1, 2, 3], ..NodeFacts::default() }
}

impl Cluster {
    fn new(net: &Arc<Net>, mesh: &str) -> Self {
        Self { net: net.clone(), mesh: mesh.to_owned(), dead_after: Duration::from_millis(800), nodes: BTreeMap::new() }
    }

    async fn start(&mut self, n: u16, generation: u64, seeds: &[u16], facts: NodeFacts) {
        self.start_again(n, generation, seeds, facts, Vec::new()).await;
    }

    /// Starts a node that has `remembered` from an earlier life that ended a moment ago.
    async fn start_again(&mut self, n: u16, generation: u64, seeds: &[u16], facts: NodeFacts, remembered: Vec<Member>) {
        let (tx, rx) = mpsc::channel(256);
        self.net.listeners.lock().unwrap().insert(addr(n), tx);
        let mut cfg = GossipConfig::new(self.mesh.as_str(), format!("n{n}"), generation, addr(n));
        cfg.seeds = seeds.iter().map(|s| addr(*s)).collect();
        cfg.interval = Duration::from_millis(40);
        cfg.dead_after = self.dead_after;
        cfg.remembered = remembered.into_iter().map(|member| (member, Duration::ZERO)).collect();
        let link = Arc::new(MemLink { net: self.net.clone(), own: addr(n), name: format!("n{n}") });
        self.nodes.insert(n, Gossip::start(cfg, link, rx, facts).await.unwrap());
    }

    /// Starts node `n` under a name that is another's.
    async fn start_as(&mut self, name: &str, n: u16, generation: u64, seeds: &[u16]) {
        let (tx, rx) = mpsc::channel(256);
        self.net.listeners.lock().unwrap().insert(addr(n), tx);
        let mut cfg = GossipConfig::new(self.mesh.as_str(), name, generation, addr(n));
        cfg.seeds = seeds.iter().map(|s| addr(*s)).collect();
        cfg.interval = Duration::from_millis(40);
        cfg.dead_after = self.dead_after;
        let link = Arc::new(MemLink { net: self.net.clone(), own: addr(n), name: name.to_owned() });
        self.nodes.insert(n, Gossip::start(cfg, link, rx, facts("1")).await.unwrap());
    }

    /// Starts `count` nodes that know only the first and waits until all know all.
    async fn grown(net: &Arc<Net>, mesh: &str, nodes: std::ops::Range<u16>) -> Self {
        Self::new(net, mesh).grow(nodes).await
    }

    async fn grow(self, nodes: std::ops::Range<u16>) -> Self {
        let mut cluster = self;
        let seed = nodes.start;
        for n in nodes.clone() {
            cluster.start(n, 1, &[seed], facts("1")).await;
        }
        let all: Vec<u16> = nodes.collect();
        // The first heartbeat may arrive before the facts do.
        let known = |list: &[Member]| lives(list) == names(&all) && list.iter().all(|m| *m.facts == facts("1"));
        cluster.eventually("all know all", known).await;
        cluster
    }

    fn kill(&mut self, n: u16) {
        self.net.listeners.lock().unwrap().remove(&addr(n));
        self.nodes.remove(&n).expect("no such node");
    }

    fn inject(&self, n: u16, payload: &[u8]) {
        let listeners = self.net.listeners.lock().unwrap();
        let _ =
            listeners[&addr(n)].try_send(Inbound { from: addr(999), node: "n999".into(), payload: payload.to_vec() });
    }

    fn cut(&self, a: u16, b: u16) {
        self.net.cuts.lock().unwrap().extend([(addr(a), addr(b)), (addr(b), addr(a))]);
    }

    /// Waits until the member list of every running node fulfils `seen`.
    async fn eventually(&self, what: &str, seen: impl Fn(&[Member]) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        for (n, gossip) in &self.nodes {
            let mut watch = gossip.watch();
            let left = deadline.saturating_duration_since(Instant::now());
            let waited = tokio::time::timeout(left, watch.wait_for(|list| seen(list))).await;
            assert!(waited.is_ok(), "n{n} never saw that {what}; it sees {:#?}", gossip.members());
        }
    }
}

fn names(nodes: &[u16]) -> Vec<String> {
    nodes.iter().map(|n| format!("n{n}")).collect()
}

fn lives(list: &[Member]) -> Vec<String> {
    list.iter().filter(|m| m.is_live()).map(|m| m.name.clone()).collect()
}

fn find(list: &[Member], n: u16) -> Option<&Member> {
    list.iter().find(|m| m.name == format!("n{n}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_find_each_other_from_one_seed_and_a_killed_one_returns() {
    let net = Arc::new(Net::default());
    let mut cluster = Cluster::grown(&net, "m", 0..5).await;
    for (n, gossip) in &cluster.nodes {
        let list = gossip.members();
        assert_eq!(list.iter().filter(|m| m.is_self).map(|m| m.name.clone()).collect::<Vec<_>>(), names(&[*n]));
        assert!(list.is_sorted_by_key(|m| m.name.clone()));
        assert!(list.iter().all(|m| *m.facts == facts("1")), "{list:#?}");
        assert_eq!(find(&list, 3).unwrap().address, addr(3));
    }

    cluster.kill(3);
    cluster.eventually("n3 is dead", |list| find(list, 3).is_some_and(|m| !m.is_live())).await;
    cluster.eventually("the others live", |list| lives(list) == names(&[0, 1, 2, 4])).await;

    cluster.start(3, 2, &[0], facts("2")).await;
    cluster
        .eventually("n3 is back as itself", |list| {
            find(list, 3).is_some_and(|m| m.is_live() && m.generation == 2 && m.facts.version == "2") && list.len() == 5
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_node_lists_members_as_unconfirmed_before_it_can_judge_them() {
    let net = Arc::new(Net::default());
    let mut cluster = Cluster::grown(&net, "m", 0..3).await;
    cluster.kill(2);
    cluster.eventually("n2 is dead", |list| find(list, 2).is_some_and(|m| !m.is_live())).await;
    // For as long as this test runs it cannot list n2 as dead, and n2's own heartbeat never
    // arrived.
    cluster.dead_after = 4 * PATIENCE;
    cluster.start(3, 1, &[0], facts("1")).await;
    let nodes = [(3, cluster.nodes.remove(&3).unwrap())].into();
    let newcomer = Cluster { nodes, ..Cluster::new(&net, "m") };
    newcomer
        .eventually("n2 is unconfirmed", |list| {
            find(list, 2).is_some_and(|m| m.state == MemberState::Unconfirmed && m.may_live() && *m.facts == facts("1"))
        })
        .await;
    newcomer.eventually("the others live", |list| lives(list) == names(&[0, 1, 3])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_node_lists_and_finds_whom_it_knew() {
    let net = Arc::new(Net::default());
    let mut cluster = Cluster::grown(&net, "m", 0..4).await;
    let known = cluster.nodes[&3].members();
    cluster.kill(3);
    // Its seed is gone for good, and one of those it knew.
    cluster.kill(0);
    cluster.start_again(3, 2, &[0], facts("2"), known.clone()).await;
    let first: Vec<_> = cluster.nodes[&3].members().into_iter().map(|member| member.name).collect();
    assert_eq!(first, names(&[0, 1, 2, 3]), "from its first moment on");
    cluster.eventually("the living found each other", |list| lives(list) == names(&[1, 2, 3])).await;
    cluster.eventually("n0 is dead", |list| find(list, 0).is_some_and(|m| !m.may_live())).await;

    // Alone: it lists who is missing.
    for n in 1..=3 {
        cluster.kill(n);
    }
    cluster.start_again(3, 3, &[0], facts("3"), known).await;
    cluster
        .eventually("all others are dead", |list| {
            list.len() == 4 && list.iter().all(|member| member.is_self || member.state == MemberState::Dead)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_facts_reach_everyone_and_removed_ones_go() {
    let net = Arc::new(Net::default());
    let cluster = Cluster::grown(&net, "m", 0..4).await;
    let mut changed = facts("1");
    changed.store_rows = 77;
    changed.extra.insert("verdict".to_owned(), "rank 5".to_owned());
    cluster.nodes[&2].set_facts(changed.clone()).await;
    assert_eq!(*find(&cluster.nodes[&2].members(), 2).unwrap().facts, changed);
    cluster.eventually("n2's facts changed", |list| find(list, 2).is_some_and(|m| *m.facts == changed)).await;

    changed.extra.clear();
    cluster.nodes[&2].set_facts(changed.clone()).await;
    cluster.eventually("n2's verdict went", |list| find(list, 2).is_some_and(|m| *m.facts == changed)).await;

    let mut huge = changed.clone();
    huge.labels.insert("x".to_owned(), "y".repeat(100_000));
    cluster.nodes[&2].set_facts(huge).await;
    assert_eq!(*find(&cluster.nodes[&2].members(), 2).unwrap().facts, changed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn published_values_reach_everyone_and_survive_new_facts() {
    let net = Arc::new(Net::default());
    let cluster = Cluster::grown(&net, "m", 0..4).await;
    let text: String = (0..128u8).map(char::from).collect();
    cluster.nodes[&2].publish("d0", text.clone()).await;
    cluster.nodes[&2].publish("huge", "y".repeat(100_000)).await;
    cluster.nodes[&2].set_facts(facts("2")).await;
    let mut expected = facts("2");
    expected.extra.insert("d0".to_owned(), text);
    cluster.eventually("n2 published", |list| find(list, 2).is_some_and(|m| *m.facts == expected)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_does_not_stop_gossip() {
    let net = Arc::new(Net::default());
    let mut cluster = Cluster::grown(&net, "m", 0..3).await;
    for n in 0..3 {
        for payload in [&b"junk"[..], &[], &[0x53, 0xB0, 0, 0, 255, 255], &[0x53, 0xB0, 0, 1], &vec![7; 200_000]] {
            cluster.inject(n, payload);
        }
    }
    cluster.start(3, 1, &[1], facts("1")).await;
    cluster.eventually("a fourth joined after the garbage", |list| lives(list) == names(&[0, 1, 2, 3])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn meshes_of_different_names_do_not_merge() {
    let net = Arc::new(Net::default());
    let mut ours = Cluster::grown(&net, "ours", 0..2).await;
    let mut theirs = Cluster::grown(&net, "theirs", 10..12).await;
    // Each gets a node that has the other mesh's address as well, and calls it again and again.
    ours.start(2, 1, &[0, 10], facts("1")).await;
    theirs.start(12, 1, &[10, 0], facts("1")).await;
    ours.eventually("n2 joined", |list| lives(list) == names(&[0, 1, 2])).await;
    theirs.eventually("n12 joined", |list| lives(list) == names(&[10, 11, 12])).await;
    // Time for some forty rounds: seen as an event that needs as many to happen.
    ours.kill(1);
    ours.eventually("n1 is dead", |list| find(list, 1).is_some_and(|m| !m.is_live())).await;
    for (cluster, count) in [(&ours, 3), (&theirs, 3)] {
        cluster.eventually("no stranger is listed", |list| list.len() == count).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_split_mesh_heals() {
    let net = Arc::new(Net::default());
    let cluster = Cluster::grown(&net, "m", 0..4).await;
    for a in [0, 1] {
        for b in [2, 3] {
            cluster.cut(a, b);
        }
    }
    cluster.eventually("it sees only its half", |list| lives(list).len() == 2).await;
    net.cuts.lock().unwrap().clear();
    cluster.eventually("all are back", |list| lives(list).len() == 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_farewell_is_faster_than_silence() {
    let net = Arc::new(Net::default());
    let mut cluster = Cluster::new(&net, "m");
    // Silence alone would take longer than the test waits.
    cluster.dead_after = 4 * PATIENCE;
    let mut cluster = cluster.grow(0..3).await;
    let leaver = cluster.nodes.remove(&1).unwrap();
    leaver.shutdown().await;
    cluster.eventually("n1 left", |list| find(list, 1).is_some_and(|m| !m.is_live())).await;
}

/// One thread for all of them: what blocks it stops the whole mesh while time goes on, like a host
/// that is suspended or starved.
#[tokio::test]
async fn who_stood_still_itself_takes_nobody_for_dead() {
    let net = Arc::new(Net::default());
    let mut cluster = Cluster::new(&net, "m");
    cluster.dead_after = Duration::from_secs(3);
    let mut cluster = cluster.grow(0..3).await;
    let deaths = cluster.nodes.values().map(|gossip| {
        let mut watch = gossip.watch();
        tokio::spawn(async move { watch.wait_for(|list| lives(list).len() < 3).await.map(|list| lives(&list)) })
    });
    let deaths: Vec<_> = deaths.collect();
    tokio::task::yield_now().await;
    std::thread::sleep(3 * cluster.dead_after);
    // Twenty rounds and more, enough to declare deaths.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    cluster.nodes[&1].set_facts(facts("2")).await;
    cluster.eventually("n1's facts arrive again", |list| find(list, 1).is_some_and(|m| *m.facts == facts("2"))).await;
    for death in deaths {
        assert!(!death.is_finished(), "seen to live: {:?}", death.await);
        death.abort();
    }
    // The excuse ends.
    cluster.kill(2);
    cluster.eventually("n2 is dead", |list| find(list, 2).is_some_and(|m| !m.is_live())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_clock_was_set_back_rises_above_its_earlier_life() {
    let net = Arc::new(Net::default());
    let mut cluster = Cluster::grown(&net, "m", 0..3).await;
    cluster.kill(2);
    cluster.start(2, 50, &[0], facts("50")).await;
    cluster.eventually("n2 runs as 50", |list| find(list, 2).is_some_and(|m| m.generation == 50 && m.is_live())).await;
    cluster.kill(2);
    cluster.eventually("n2 is dead", |list| find(list, 2).is_some_and(|m| !m.is_live())).await;
    cluster.start(2, 7, &[0], facts("7")).await;
    cluster
        .eventually("n2 lives above 50", |list| {
            find(list, 2).is_some_and(|m| m.generation == 51 && m.is_live() && m.facts.version == "7")
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_with_one_identity_are_said_to_be_two_and_one_that_starts_again_is_not() {
    let net = Arc::new(Net::default());
    let mut cluster = Cluster::grown(&net, "m", 0..3).await;
    let doubled = |list: &[Member]| list.iter().filter_map(|m| Some((m.name.clone(), m.double?))).collect::<Vec<_>>();
    // A clone of n2 runs on another host.
    cluster.start_as("n2", 7, 1, &[0]).await;
    let (of_all, both) = (names(&[0, 1, 2]), [addr(2), addr(7)]);
    cluster
        .eventually("n2 is two", |list| {
            let found = doubled(list);
            lives(list) == of_all && matches!(&found[..], [(name, at)] if name == "n2" && both.contains(at))
        })
        .await;
    cluster.kill(7);
    cluster.eventually("n2 is one again", |list| doubled(list).is_empty()).await;
    cluster.kill(2);
    cluster.start(2, 9, &[0], facts("again")).await;
    let again = |list: &[Member]| find(list, 2).is_some_and(|m| m.generation == 9 && m.is_live());
    cluster.eventually("it is back", again).await;
    for gossip in cluster.nodes.values() {
        assert!(doubled(&gossip.members()).is_empty());
    }
}
