//! A node's part between the cells of a large mesh, as the driver runs it beside the gossip of its
//! cell: what it says to all, whom it knows elsewhere, and the list of all members. The protocol is
//! `cells`; nothing of this is there in a mesh whose nodes are to stay in one cell.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chitchat::ChitchatId;

use crate::GossipConfig;
use crate::cells::{
    Card, CellId, Cells, CellsConfig, Entry, MAX_JOBS, Mate, Output, Person, SealedCard, Tells, is_job,
};
use crate::config::CellsUse;
use crate::facts::{JOBS_CUT, NodeFacts};
use crate::link::Note;
use crate::member::{Member, MemberState, Seat};
use crate::network::{Inbound, Link};
use crate::quiet::Quiet;
use crate::seal::Sealing;

/// The key of a node's card within its cell.
pub(crate) const KEY_CARD: &str = "card";
/// Bytes that are left for it where there may be one: some 2,900 with an agent's seal and the longest
/// facts.
pub(crate) const CARD_ROOM: usize = 3_000;
/// The label that names a node's rack.
const RACK: &str = "rack";
/// Longest rack that counts as one, bytes.
const MAX_RACK_BYTES: usize = 64;
/// What the protocol's clock says when this process begins: there is a time before it, which others
/// tell of.
const AGE: Duration = Duration::from_secs(3_600);
/// Looks after which the list is made anew in any case: some of it runs out by itself.
const LOOKS: u32 = 20;

/// What is told of a member's jobs, as it would say it itself, and whether its cell runs more than it
/// names.
type Jobs = (Option<String>, bool);

pub(crate) struct Part {
    cells: Cells,
    using: CellsUse,
    began: Instant,
    /// Members of the own cell, by its gossip.
    own: Vec<Member>,
    /// Facts of the cards of others, by the card, with the jobs that are in them.
    facts: HashMap<u128, (Jobs, Arc<NodeFacts>)>,
    /// Facts of those of the cells that were left, which had no card there perhaps.
    before: HashMap<String, Arc<NodeFacts>>,
    /// How many of `own` may live.
    alive: usize,
    /// Whether there was nothing to do at the last look, and `own` is what the cell's gossip knows.
    rested: bool,
    is_told: bool,
    /// What the list was made of, and how many looks ago.
    shown: (u64, bool),
    looks: u32,
    /// The card that the cell's gossip tells.
    told: Option<(u64, u64)>,
    too_long: Quiet,
}

/// The rack that a node's facts name; none where it is too long to be one.
fn rack_of(facts: &NodeFacts) -> String {
    facts.labels.get(RACK).filter(|rack| rack.len() <= MAX_RACK_BYTES).cloned().unwrap_or_default()
}

fn living(members: &[Member]) -> usize {
    members.iter().filter(|member| member.may_live()).count()
}

/// What a node tells within its cell that delegates sum up.
pub(crate) fn tells_of(facts: &NodeFacts, using: CellsUse) -> Tells {
    let text = |key: &str| facts.extra.get(key).map_or("", String::as_str);
    let mut jobs: Vec<String> =
        text(using.jobs).split(' ').skip(1).filter(|job| is_job(job)).map(str::to_owned).collect();
    let more_jobs = u32::try_from(jobs.len().saturating_sub(MAX_JOBS)).unwrap_or(u32::MAX);
    jobs.truncate(MAX_JOBS);
    Tells {
        rows: facts.store_rows,
        span_ns: facts.store_span_ns,
        catalogue: facts.schema_hash,
        trust: text(using.trust).parse().unwrap_or(0),
        jobs,
        more_jobs,
    }
}

/// What stands for the card of a member that tells none, in the cell of the whole mesh: where it
/// belongs is known by its name and rack, but no other cell is told of it.
pub(crate) fn entry_without_card(id: &ChitchatId, facts: &NodeFacts) -> Entry {
    Entry::new(Card {
        name: id.node_id.to_string(),
        rack: rack_of(facts),
        generation: id.generation_id,
        serial: 0,
        address: id.gossip_advertise_addr,
        cell: CellId::WHOLE,
        facts: String::new(),
        later: Vec::new(),
    })
}

/// The card in a key of a member of this cell, with its owner's seal; none where it is another's,
/// of another life, or of another cell.
pub(crate) fn card_of(text: &str, id: &ChitchatId, cell: CellId, sealing: &Sealing) -> Option<(Entry, Arc<str>)> {
    let sealed: SealedCard = serde_json::from_str(text).ok()?;
    let SealedCard { card, .. } = &sealed;
    let is_its = (card.name.as_str(), card.generation, card.address)
        == (&*id.node_id, id.generation_id, id.gossip_advertise_addr);
    let counts = is_its && card.cell == cell && card.serial > 0 && sealed.is_good(sealing);
    counts.then(|| (Entry::new(sealed.card), sealed.seal.into()))
}

impl Part {
    pub(crate) fn new(cfg: &GossipConfig, using: CellsUse, facts: &NodeFacts) -> Self {
        let own = CellsConfig {
            most: using.most,
            round: cfg.interval,
            silent_after: cfg.dead_after + 2 * cfg.interval,
            forget_after: cfg.forget_after,
            seeds: cfg.seeds.clone(),
            ..CellsConfig::new(cfg.node.as_str(), rack_of(facts), cfg.generation, cfg.advertise)
        };
        let began = Instant::now();
        let mut part = Self {
            cells: Cells::new(own, cfg.sealer(), Arc::default(), AGE + began.elapsed()),
            using,
            began,
            own: Vec::new(),
            alive: 0,
            rested: false,
            is_told: false,
            facts: HashMap::new(),
            before: HashMap::new(),
            shown: (0, false),
            looks: 0,
            told: None,
            too_long: Quiet::default(),
        };
        part.say(facts);
        part
    }

    pub(crate) fn cell(&self) -> CellId {
        self.cells.cell()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.cells.card().card.generation
    }

    /// For how long who is silent in the cell's gossip may be on its way from cell to cell.
    pub(crate) fn unsettled(&self) -> Option<Duration> {
        self.cells.unsettled(self.now())
    }

    /// Whether more than one cell is there, or has to be.
    pub(crate) fn is_used(&self) -> bool {
        self.cells.is_one_of_many() || self.alive > self.using.most
    }

    /// Whether there is nothing to do, now as at the last look: a mesh of one cell pays for nothing
    /// of all this. `own` are the members of the cell, where anything is new of them.
    pub(crate) fn rests(&mut self, own: Option<&[Member]>) -> bool {
        if let Some(own) = own {
            self.alive = living(own);
        }
        let rests = !self.is_used();
        let goes_on = std::mem::replace(&mut self.rested, rests) && rests;
        self.is_told &= !goes_on;
        goes_on
    }

    /// There is something to do: whether the cell's members have to be told anew for it.
    pub(crate) fn wakes(&mut self) -> bool {
        !std::mem::replace(&mut self.is_told, true)
    }

    /// Sets what this node says.
    pub(crate) fn say(&mut self, facts: &NodeFacts) {
        let (text, is_whole) = facts.for_all(self.using.told);
        if !is_whole && let Some(before) = self.too_long.may_say() {
            tracing::warn!(
                before,
                "this node's labels are too long to be told beyond its cell: questions by label that are asked in other \
                 cells do not find it; give it fewer or shorter ones"
            );
        }
        self.cells.say(&text, tells_of(facts, self.using));
    }

    /// This node's card as a key of the cell's gossip; none in a mesh of one cell.
    pub(crate) fn key(&self) -> Option<(String, String)> {
        let text = self.is_used().then(|| serde_json::to_string(self.cells.card()).ok()).flatten()?;
        Some((KEY_CARD.to_owned(), text))
    }

    /// Whether the cell's gossip has to be told another card.
    pub(crate) fn has_news(&mut self) -> bool {
        let card = &self.cells.card().card;
        let told = self.is_used().then_some((card.generation, card.serial));
        std::mem::replace(&mut self.told, told) != told
    }

    /// An earlier life of this node in another cell that has a higher generation.
    pub(crate) fn outranked_by(&self) -> Option<u64> {
        self.cells.outranked_by()
    }

    /// A further life of this node in its cell.
    pub(crate) fn begin_anew(&mut self, generation: u64) {
        self.cells.begin_anew(generation);
    }

    pub(crate) fn reseal(&mut self) {
        self.cells.reseal();
    }

    pub(crate) fn absent_mates(&mut self) -> Vec<SocketAddr> {
        self.cells.absent_mates()
    }

    pub(crate) fn receive(&mut self, note: Note) {
        match note {
            Note::Message(Inbound { from, node, payload }) => {
                self.cells.receive(self.now(), &node, from, &payload);
            }
            Note::OfAnother { from, cell } => self.cells.called_from(self.now(), cell, from),
        }
    }

    /// Does what is due. `mates` and `own` are the cell's members where anything is new of them.
    pub(crate) fn pass(&mut self, news: Option<(Vec<Mate>, Vec<Member>)>) {
        let now = self.now();
        if let Some((mates, own)) = news {
            self.alive = living(&own);
            self.own = own;
            self.cells.set_mates(mates, now);
            // The list is to be made anew.
            self.shown.0 = self.shown.0.wrapping_sub(1);
        }
        self.cells.tick(now);
    }

    /// What is to be sent is sent; returns where to go, with members that may be called first.
    pub(crate) fn act(&mut self, link: &dyn Link) -> Option<(CellId, Vec<SocketAddr>)> {
        let mut goes = None;
        while let Some(output) = self.cells.poll() {
            match output {
                Output::Send { to, payload } => link.send(to, payload),
                Output::Move { cell, doors } => goes = Some((cell, doors)),
            }
        }
        goes
    }

    /// The own cell was left.
    pub(crate) fn leave_cell(&mut self) {
        self.alive = 0;
        self.before.extend(self.own.drain(..).map(|member| (member.name, member.facts)));
        self.told = None;
    }

    /// The time of the protocol's clock.
    fn now(&self) -> Duration {
        AGE + self.began.elapsed()
    }

    /// All members, where anything may be new of them.
    pub(crate) fn list(&mut self) -> Option<Vec<Member>> {
        let shown = (self.cells.version(), self.is_used());
        self.looks += 1;
        if shown == self.shown && (self.looks < LOOKS || !shown.1) {
            return None;
        }
        (self.shown, self.looks) = (shown, 0);
        if !shown.1 {
            return Some(self.own.clone());
        }
        let people = self.cells.people(self.now());
        let jobs = self.jobs();
        let unnamed: HashSet<CellId> = self.cells.unnamed_jobs().collect();
        let mut facts = HashMap::with_capacity(people.len());
        let mut all: BTreeMap<String, Member> =
            self.own.iter().map(|member| (member.name.clone(), member.clone())).collect();
        for person in people {
            let card = person.card();
            let is_newer = |known: &Member| known.generation < card.generation;
            if let Some(known) = all.get_mut(&card.name).filter(|known| !is_newer(known)) {
                known.seat.speaks = person.speaks;
                continue;
            }
            // As its owner says them: a version, which is not told on, and the jobs.
            let named = jobs.get(card.name.as_str()).map(|jobs| format!("1 {}", jobs.join(" ")));
            // Of whom no other cell says yet what it runs, that is known which it said here before.
            let before = || self.before.get(&card.name)?.extra.get(self.using.jobs).cloned();
            let named = named.or_else(|| if person.state == MemberState::Live { None } else { before() });
            let member = self.member(&person, (named, unnamed.contains(&card.cell)), &mut facts);
            all.insert(member.name.clone(), member);
        }
        self.facts = facts;
        self.before.retain(|name, _| all.get(name).is_some_and(|member| !member.is_live()));
        all.values_mut().filter(|member| member.is_self).for_each(|own| own.seat.speaks = self.cells.is_delegate());
        Some(all.into_values().collect())
    }

    /// A member of another cell. `facts` are those of the cards that are of use.
    fn member(&self, person: &Person, jobs: Jobs, facts: &mut HashMap<u128, (Jobs, Arc<NodeFacts>)>) -> Member {
        let card = person.card();
        let known = self.facts.get(&person.entry.id).filter(|(of, _)| *of == jobs);
        let (jobs, its) = known.cloned().unwrap_or_else(|| {
            let mut its = match self.before.get(&card.name) {
                Some(before) if card.facts.is_empty() => NodeFacts::clone(before),
                _ => NodeFacts::read_for_all(&card.facts),
            };
            let (named, unnamed) = &jobs;
            its.extra.extend(named.iter().map(|named| (self.using.jobs.to_owned(), named.clone())));
            its.extra.extend(unnamed.then(|| (JOBS_CUT.to_owned(), "1".to_owned())));
            (jobs, Arc::new(its))
        });
        facts.insert(person.entry.id, (jobs, Arc::clone(&its)));
        Member {
            name: card.name.clone(),
            address: its.address.unwrap_or(card.address),
            generation: card.generation,
            state: person.state,
            facts: its,
            is_self: false,
            double: None,
            seat: Seat { cell: card.cell, speaks: person.speaks, elsewhere: card.cell != self.cell() },
        }
    }

    /// The jobs of the hosts of other cells, by name.
    fn jobs(&self) -> HashMap<&str, Vec<&str>> {
        let mut jobs: HashMap<&str, Vec<&str>> = HashMap::new();
        for (host, job) in self.cells.jobs() {
            jobs.entry(host).or_default().push(job);
        }
        jobs
    }

    /// Names of those that are known elsewhere.
    pub(crate) fn names(&self) -> HashSet<String> {
        if !self.is_used() {
            return HashSet::new();
        }
        self.cells.people(self.now()).into_iter().map(|person| person.card().name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::test_member;

    #[test]
    fn facts_of_before_go_with_who_is_forgotten() {
        let cfg = GossipConfig::new("m", "n1", 1, ([127, 0, 0, 1], 1).into());
        let using = CellsUse { most: 2, told: &[], jobs: "jobs", trust: "trust" };
        let mut part = Part::new(&cfg, using, &NodeFacts::default());
        let own: Vec<Member> = (1..5).map(|n| test_member(n, MemberState::Live)).collect();
        part.alive = living(&own);
        part.own = own;
        part.own[3].state = MemberState::Dead;
        for n in [3, 4, 9] {
            part.before.insert(format!("n{n}"), Arc::default());
        }
        part.list().expect("it is made for the first time");
        assert_eq!(part.before.keys().collect::<Vec<_>>(), ["n4"]);
    }
}
