//! Real gossipers in a mesh of several cells, over an in-memory network.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gossip::cells::CellId;
use gossip::{CellsUse, Gossip, GossipConfig, Inbound, Link, Member, MemberList, MemberState, NodeFacts, Sealer};
use tokio::sync::{mpsc, watch};

const PATIENCE: Duration = Duration::from_secs(120);
const ROUND: Duration = Duration::from_millis(100);
const USE: CellsUse = CellsUse { most: 8, told: &["issuer"], jobs: "jobs", trust: "trust" };

/// Seals that name who made them and what they are of.
struct Named(String);

impl Named {
    fn of(name: &str, statement: &[u8]) -> String {
        let sum = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        format!("{name}:{:x}", statement.iter().fold(7, sum))
    }
}

impl Sealer for Named {
    fn seal(&self, statement: &[u8]) -> Result<String, String> {
        Ok(Self::of(&self.0, statement))
    }

    fn check(&self, node: &str, statement: &[u8], seal: &str) -> Result<(), String> {
        if seal == Self::of(node, statement) { Ok(()) } else { Err("another's".into()) }
    }

    fn epoch(&self) -> u64 {
        0
    }
}

/// Who was left out of lists in which they had been, or called dead while living.
type Wrong = Arc<Mutex<Vec<String>>>;

/// The network: who listens where, which pairs are cut off from each other, and whether anything but
/// the gossip of a mesh of one cell was sent.
#[derive(Default)]
struct Net {
    listeners: Mutex<HashMap<SocketAddr, mpsc::Sender<Inbound>>>,
    cuts: Mutex<HashSet<(SocketAddr, SocketAddr)>>,
    about_cells: Mutex<u64>,
    /// To whom nothing about cells comes but that there are several.
    held: Mutex<Option<SocketAddr>>,
}

/// Begins a message that says so.
const APART: &[u8] = b"RMC1\x0a";

struct MemLink(Arc<Net>, u16);

impl Link for MemLink {
    fn send(&self, to: SocketAddr, payload: Vec<u8>) {
        let Self(net, n) = self;
        *net.about_cells.lock().unwrap() += u64::from(payload.starts_with(b"RMC"));
        let is_held = payload.starts_with(b"RMC1") && !payload.starts_with(APART);
        if net.cuts.lock().unwrap().contains(&(addr(*n), to)) || (is_held && *net.held.lock().unwrap() == Some(to)) {
            return;
        }
        if let Some(listener) = net.listeners.lock().unwrap().get(&to) {
            let _ = listener.try_send(Inbound { from: addr(*n), node: format!("n{n}"), payload });
        }
    }
}

fn addr(n: u16) -> SocketAddr {
    ([127, 0, 0, 1], 7000 + n).into()
}

/// Racks of four.
fn facts(n: u16, extra: &[(&str, &str)]) -> NodeFacts {
    NodeFacts {
        labels: BTreeMap::from([("rack".to_owned(), format!("r{}", n / 4))]),
        version: "1".to_owned(),
        schema_hash: 7,
        extra: extra.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        ..NodeFacts::default()
    }
}

#[derive(Default)]
struct Mesh {
    net: Arc<Net>,
    nodes: BTreeMap<u16, Gossip>,
    left_out: Wrong,
    called_dead: Wrong,
    /// Of nodes that are started from now on, another size of cells than the usual.
    most: Option<usize>,
}

impl Mesh {
    async fn start(&mut self, n: u16, generation: u64, seeds: &[u16]) {
        let (tx, rx) = mpsc::channel(1_024);
        self.net.listeners.lock().unwrap().insert(addr(n), tx);
        let mut cfg = GossipConfig::new("m", format!("n{n}"), generation, addr(n));
        cfg.seeds = seeds.iter().map(|seed| addr(*seed)).collect();
        cfg.interval = ROUND;
        cfg.dead_after = 20 * ROUND;
        cfg.cells = Some(CellsUse { most: self.most.unwrap_or(USE.most), ..USE });
        let link = Arc::new(MemLink(self.net.clone(), n));
        let cfg = cfg.with_sealer(Arc::new(Named(format!("n{n}"))));
        let gossip = Gossip::start(cfg, link, rx, facts(n, &[])).await.unwrap();
        tokio::spawn(find_left_out(n, gossip.watch(), Arc::clone(&self.left_out)));
        tokio::spawn(find_called_dead(n, gossip.watch(), self.net.clone(), Arc::clone(&self.called_dead)));
        self.nodes.insert(n, gossip);
    }

    async fn grown(count: u16) -> Self {
        let mut mesh = Self::default();
        for n in 0..count {
            mesh.start(n, 1_000, &[0]).await;
        }
        mesh.eventually("all know all", |_, list| is_all(list, count)).await;
        mesh
    }

    fn kill(&mut self, n: u16) {
        self.net.listeners.lock().unwrap().remove(&addr(n));
        self.nodes.remove(&n).unwrap();
    }

    fn cell(&self, n: u16) -> CellId {
        self.nodes[&n].list().iter().find(|member| member.is_self).unwrap().seat.cell
    }

    fn cells(&self) -> BTreeMap<CellId, BTreeSet<u16>> {
        let mut cells: BTreeMap<CellId, BTreeSet<u16>> = BTreeMap::new();
        for n in self.nodes.keys() {
            cells.entry(self.cell(*n)).or_default().insert(*n);
        }
        cells
    }

    /// Waits until the member list of every running node fulfils `seen`.
    async fn eventually(&self, what: &str, seen: impl Fn(u16, &[Member]) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        for (n, gossip) in &self.nodes {
            let mut watch = gossip.watch();
            let left = deadline.saturating_duration_since(Instant::now());
            let waited = tokio::time::timeout(left, watch.wait_for(|list| seen(*n, list))).await.is_ok();
            let shown = |member: &Member| format!("{} {:?} {}", member.name, member.state, member.seat.cell);
            let list: Vec<String> = gossip.list().iter().map(shown).collect();
            assert!(waited, "n{n} never saw that {what}; it sees {list:?}");
        }
    }
}

/// Follows a node's list. Whoever was in it stays in it, dead or alive.
async fn find_left_out(n: u16, mut lists: watch::Receiver<MemberList>, left_out: Wrong) {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    while lists.changed().await.is_ok() {
        let now: BTreeSet<String> = lists.borrow_and_update().iter().map(|member| member.name.clone()).collect();
        let gone: Vec<&String> = seen.difference(&now).collect();
        if !gone.is_empty() {
            left_out.lock().unwrap().push(format!("n{n} leaves out {gone:?}"));
        }
        seen.extend(now);
    }
}

/// Follows a node's list. Who listens lives.
async fn find_called_dead(n: u16, mut lists: watch::Receiver<MemberList>, net: Arc<Net>, called: Wrong) {
    while lists.changed().await.is_ok() {
        let list = Arc::clone(&lists.borrow_and_update());
        let living: HashSet<SocketAddr> = net.listeners.lock().unwrap().keys().copied().collect();
        for member in list.iter().filter(|member| !member.may_live() && living.contains(&member.address)) {
            let (name, cell) = (&member.name, member.seat.cell);
            called.lock().unwrap().push(format!("n{n} calls {name} of {cell} dead"));
        }
    }
}

fn state(list: &[Member], n: u16) -> Option<MemberState> {
    list.iter().find(|member| member.name == format!("n{n}")).map(|member| member.state)
}

/// Whether so many live, each once and with its facts.
fn is_all(list: &[Member], count: u16) -> bool {
    let is_there = |n| {
        let its = list.iter().find(|member| member.name == format!("n{n}"));
        its.is_some_and(|it| it.is_live() && it.address == addr(n) && it.facts.labels == facts(n, &[]).labels)
    };
    list.len() == usize::from(count) && (0..count).all(is_there)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mesh_that_fits_into_one_cell_says_nothing_of_cells() {
    let mesh = Mesh::grown(8).await;
    assert_eq!(mesh.cells().keys().collect::<Vec<_>>(), [&CellId::WHOLE]);
    assert_eq!(*mesh.net.about_cells.lock().unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_mesh_lives_in_cells() {
    let mut mesh = Mesh::grown(24).await;
    // More come to know each other than fit into a cell before they part.
    let parted = Instant::now() + PATIENCE;
    while mesh.cells().len() < 3 || mesh.cells().values().any(|members| members.len() > USE.most) {
        assert!(Instant::now() < parted, "{:?}", mesh.cells());
        tokio::time::sleep(ROUND).await;
    }
    mesh.eventually("all know all in cells", |_, list| is_all(list, 24)).await;

    // What changes seldom is known everywhere, and so are the hosts of jobs.
    mesh.nodes[&5].set_facts(facts(5, &[("issuer", "1"), ("jobs", "1 a7"), ("other", "x")])).await;
    let (home, elsewhere) = (mesh.cell(5), |mesh: &Mesh, n| mesh.cell(n) != mesh.cell(5));
    let of = |list: &[Member], key: &str| {
        list.iter().find(|member| member.name == "n5").and_then(|it| it.facts.extra.get(key).cloned())
    };
    let known =
        |_, list: &[Member]| of(list, "issuer").as_deref() == Some("1") && of(list, "jobs").as_deref() == Some("1 a7");
    mesh.eventually("n5 issues certificates and runs a job", known).await;
    for n in mesh.nodes.keys().filter(|n| elsewhere(&mesh, **n)) {
        assert_eq!(of(&mesh.nodes[n].list(), "other"), None, "n{n} is not in {home}");
    }

    // A death is known everywhere, and who comes back is the same everywhere.
    mesh.kill(7);
    mesh.eventually("n7 is dead", |_, list| state(list, 7) == Some(MemberState::Dead)).await;
    mesh.start(7, 2_000, &[0]).await;
    mesh.eventually("n7 is back", |_, list| is_all(list, 24)).await;

    // A cell that is cut off as a whole: its members are missing, one by one, and come back.
    let (cell, gone) = mesh.cells().into_iter().next().unwrap();
    let all: Vec<u16> = (0..24).collect();
    for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (*a, *b))) {
        if gone.contains(&a) != gone.contains(&b) {
            mesh.net.cuts.lock().unwrap().insert((addr(a), addr(b)));
        }
    }
    let apart = |n: u16, list: &[Member]| {
        let here = gone.contains(&n);
        (0..24).all(|other| {
            let expected = if gone.contains(&other) == here { MemberState::Live } else { MemberState::Dead };
            state(list, other) == Some(expected)
        })
    };
    mesh.eventually(&format!("{cell} is cut off"), apart).await;
    mesh.net.cuts.lock().unwrap().clear();
    mesh.eventually("all are together", |_, list| is_all(list, 24)).await;

    // A farewell is heard before the silence.
    mesh.nodes.remove(&3).unwrap().shutdown().await;
    mesh.net.listeners.lock().unwrap().remove(&addr(3));
    mesh.eventually("n3 has left", |_, list| state(list, 3) == Some(MemberState::Dead)).await;
    let left_out = mesh.left_out.lock().unwrap();
    assert!(left_out.is_empty(), "an answer would not have named them: {left_out:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mesh_that_falls_into_cells_forgets_no_dead_and_calls_no_living_one_dead() {
    let mut mesh = Mesh::grown(8).await;
    mesh.kill(6);
    mesh.eventually("n6 is dead", |_, list| state(list, 6) == Some(MemberState::Dead)).await;
    // One that has much to say has no room left for what comes to it in cells.
    let most = ["x".repeat(8_150), "y".repeat(1_700)];
    let name = |n: usize| format!("big{n}");
    let big: Vec<(String, &str)> = (0..12).map(|n| (name(n), &*most[0])).chain([(name(12), &*most[1])]).collect();
    let big: Vec<(&str, &str)> = big.iter().map(|(key, value)| (key.as_str(), *value)).collect();
    mesh.nodes[&3].set_facts(facts(3, &big)).await;
    for n in 8..16 {
        mesh.start(n, 1_000, &[0]).await;
    }
    let dead = |list: &[Member]| list.iter().filter(|member| !member.may_live()).count();
    let is_all_but = |list: &[Member]| (0..16).filter(|n| *n != 6).all(|n| state(list, n) == Some(MemberState::Live));
    let parted = |list: &[Member]| list.iter().all(|member| !member.is_live() || member.seat.cell != CellId::WHOLE);
    mesh.eventually("all live in cells", |_, list| is_all_but(list) && parted(list)).await;
    mesh.eventually("n6 is still dead", |n, list| n >= 8 || (state(list, 6) == Some(MemberState::Dead))).await;
    mesh.eventually("nobody else is", |_, list| dead(list) <= 1).await;
    let (left_out, called_dead) = (mesh.left_out.lock().unwrap(), mesh.called_dead.lock().unwrap());
    assert!(left_out.is_empty(), "an answer would not have named them: {left_out:#?}");
    assert!(called_dead.is_empty(), "an answer would have named them: {called_dead:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_hears_late_where_its_mates_have_gone_does_not_call_them_dead() {
    let mut mesh = Mesh::default();
    for n in 0..7 {
        mesh.most = Some(if n == 6 { 8 } else { 7 });
        mesh.start(n, 1_000, &[0]).await;
    }
    mesh.eventually("all know all", |_, list| is_all(list, 7)).await;
    // The eighth lets all go but n6, for which eight have room in one cell.
    *mesh.net.held.lock().unwrap() = Some(addr(6));
    mesh.most = Some(7);
    mesh.start(7, 1_000, &[0]).await;
    let hears_nobody = |list: &[Member]| list.iter().all(|member| member.is_self || !member.is_live());
    mesh.eventually("n6 hears nobody any more", |n, list| n != 6 || hears_nobody(list)).await;
    *mesh.net.held.lock().unwrap() = None;
    mesh.eventually("all know all in cells", |_, list| is_all(list, 8)).await;
    let called_dead = mesh.called_dead.lock().unwrap();
    let by_it: Vec<&String> = called_dead.iter().filter(|called| called.starts_with("n6 ")).collect();
    assert!(by_it.is_empty(), "an answer would have named them: {by_it:#?}");
}
