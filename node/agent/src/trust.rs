//! What an agent does for trust while it runs: it renews its certificate in time, fetches the
//! mesh's newest trust list from a member that has it, passes it on, and signs for others where it
//! has the CA. The crate `certs` owns certificates and lists; `mesh` owns what a changed identity
//! does to connections.
//!
//! A list needs no trusted messenger: a node gossips the number of its list (under `trust`), and a
//! node with an older one fetches it and checks the CA's signature. Nodes with the CA gossip that
//! (`issuer`); nothing is believed because of it: an answer to a renewal has to be a certificate of
//! the CA.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use certs::tls::Peer;
use certs::{Identity, Issuer, TrustList};
use mesh::join::JoinServer;
use model::wire::{Request, Response};
use parking_lot::Mutex;
use rand::RngExt;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::config::AgentConfig;

/// Time between two checks.
const TICK: Duration = Duration::from_millis(500);
/// How long a peer may take to answer about trust.
const PATIENCE: Duration = Duration::from_secs(10);
/// Names in gossip.
pub(super) const LIST: &str = "trust";
pub(super) const ISSUER: &str = "issuer";
/// Renewals are tried again after this, or after a thirtieth of the certificate's time if that is
/// less.
const AGAIN: Duration = Duration::from_secs(60);
/// A member whose trust list did not count is asked again after the first pause, then after twice as
/// long each time, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// Members that are asked for their list at a time.
const ASKED_AT_A_TIME: usize = 8;
/// Under a new CA a node renews only after this, so that every node has that CA by then.
const NEW_CA_KNOWN: Duration = Duration::from_secs(30);

/// The identity of an agent, and the CA where it has that.
pub(super) struct Keeper {
    dir: PathBuf,
    validity: Duration,
    join_server: Option<Arc<JoinServer>>,
    issuer: Mutex<Option<Arc<Issuer>>>,
    identity: Mutex<Arc<Identity>>,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Keeper {
    pub(super) fn new(
        config: &AgentConfig,
        identity: Arc<Identity>,
        issuer: Option<Arc<Issuer>>,
        join_server: Option<Arc<JoinServer>>,
    ) -> Self {
        let (dir, validity) = (config.identity.clone(), config.cert_validity);
        Self { dir, validity, join_server, issuer: Mutex::new(issuer), identity: Mutex::new(identity) }
    }

    fn identity(&self) -> Arc<Identity> {
        Arc::clone(&self.identity.lock())
    }

    fn issuer(&self) -> Option<Arc<Issuer>> {
        self.issuer.lock().clone()
    }

    /// The trust list as it travels; empty where there is none.
    pub(super) fn list(&self) -> Vec<u8> {
        self.identity().trust().map(|list| list.bytes().to_vec()).unwrap_or_default()
    }

    /// Answers a renewal.
    pub(super) async fn renew(&self, peer: Peer, csr: Vec<u8>) -> Response {
        let Some(issuer) = self.issuer() else {
            return Response::Unsupported("this node does not hold the mesh's CA".into());
        };
        // It reads and writes files, and may wait for their lock.
        let signed = tokio::task::spawn_blocking(move || {
            issuer.renew(&peer.name, peer.role, &peer.serial, &csr).map(|c| (peer, c))
        });
        match signed.await {
            Ok(Ok((peer, chain))) => {
                tracing::info!(name = %peer.name, role = %peer.role, "renewed a certificate");
                Response::Renewed(chain.iter().map(|der| der.to_vec()).collect())
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "refused to renew a certificate");
                Response::failed(error)
            }
            Err(error) => Response::failed(error),
        }
    }

    /// Adopts the list if it is newer than this node's, and valid.
    fn learn(&self, shared: &Shared, bytes: &[u8]) -> anyhow::Result<bool> {
        let before = self.identity();
        let list = TrustList::verify(bytes, before.mesh(), before.authorities())?;
        if list.number() <= before.trust_number() {
            return Ok(false);
        }
        let (number, revoked) = (list.number(), list.revoked().count());
        let identity = Arc::new(before.with_trust(Arc::new(list)).context(
            "this node's certificate is of a CA that is trusted no more; join anew with a token from `rankmesh identity token`",
        )?);
        self.apply(shared, Arc::clone(&identity))?;
        identity.save_trust(&self.dir).context("saving the trust list")?;
        tracing::info!(number, revoked, authorities = identity.authorities().len(), "learned a new trust list");
        if identity.is_revoked() {
            tracing::error!("this node's own certificate is revoked: the mesh does not talk to it any more");
        }
        Ok(true)
    }

    fn apply(&self, shared: &Shared, identity: Arc<Identity>) -> anyhow::Result<()> {
        shared.mesh.set_identity(Arc::clone(&identity))?;
        *self.identity.lock() = identity;
        Ok(())
    }
}

/// State between two checks.
struct Watch {
    list_changed: Option<SystemTime>,
    ca_changed: Option<SystemTime>,
    published: Option<u64>,
    /// Lists that members are being asked for.
    asking: JoinSet<(String, anyhow::Result<Vec<u8>>)>,
    asked: HashSet<String>,
    /// Members that claimed a newer list and had none that counts: until when they are not asked
    /// again, and how long that was.
    refused: HashMap<String, (Instant, Duration)>,
    /// When the certificate stopped being of the CA that issues, and of which identity that was found:
    /// two signatures are checked for it.
    outdated: Option<Instant>,
    judged: Option<Arc<Identity>>,
    renew_at: SystemTime,
    next_try: Instant,
    warned: Option<Instant>,
}

/// Keeps the identity fresh until `stop`.
pub(super) async fn keep(shared: Arc<Shared>, keeper: Arc<Keeper>, stop: CancellationToken) {
    if keeper.issuer().is_some() {
        shared.coordinator.gossip.publish(ISSUER, "1").await;
    }
    let mut watch = Watch {
        list_changed: None,
        ca_changed: Issuer::changed(&keeper.dir),
        published: None,
        asking: JoinSet::new(),
        asked: HashSet::new(),
        refused: HashMap::new(),
        outdated: None,
        judged: None,
        renew_at: renew_at(&keeper.identity()),
        next_try: Instant::now(),
        warned: None,
    };
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = stop.cancelled() => return,
        }
        watch.files(&shared, &keeper);
        watch.members(&shared, &keeper);
        let number = keeper.identity().trust_number();
        if number > 0 && watch.published != Some(number) {
            shared.coordinator.gossip.publish(LIST, number.to_string()).await;
            watch.published = Some(number);
        }
        watch.certificate(&shared, &keeper).await;
    }
}

impl Watch {
    /// Someone may have used `rankmesh identity` on our directory.
    fn files(&mut self, shared: &Shared, keeper: &Keeper) {
        let changed = Issuer::changed(&keeper.dir);
        if changed.is_some() && changed != self.ca_changed {
            match Issuer::open(&keeper.dir) {
                Ok(issuer) => {
                    let issuer = Arc::new(issuer.with_validity(keeper.validity));
                    if let Some(join_server) = &keeper.join_server {
                        join_server.set_issuer(Arc::clone(&issuer));
                    }
                    *keeper.issuer.lock() = Some(issuer);
                    self.ca_changed = changed;
                }
                Err(error) => tracing::warn!(%error, "the CA cannot be read"),
            }
        }
        let changed = TrustList::changed(&keeper.dir);
        if changed.is_some() && changed != self.list_changed {
            self.list_changed = changed;
            let read = std::fs::read(TrustList::path(&keeper.dir)).context("reading the trust list");
            if let Err(error) = read.and_then(|bytes| keeper.learn(shared, &bytes)) {
                tracing::warn!("the trust list in {} was not taken: {error:#}", keeper.dir.display());
            }
        }
    }

    /// Some member may know a newer list. Any can claim that, so nobody is waited for: at each tick
    /// one more of those that do is asked, any of them, and who had none that counts is left out
    /// for a while, longer each time.
    fn members(&mut self, shared: &Arc<Shared>, keeper: &Keeper) {
        while let Some(answered) = self.asking.try_join_next() {
            let Ok((name, list)) = answered else { continue };
            self.asked.remove(&name);
            match list.and_then(|bytes| keeper.learn(shared, &bytes)) {
                Ok(true) => drop(self.refused.remove(&name)),
                // Meanwhile another had it, perhaps.
                failed => {
                    let error =
                        failed.err().map_or_else(|| "it has no newer one".to_owned(), |error| format!("{error:#}"));
                    let pause =
                        self.refused.get(&name).map_or(FIRST_PAUSE, |(_, pause)| (*pause * 2).min(LONGEST_PAUSE));
                    tracing::warn!(node = %name, error, pause_s = pause.as_secs(), "a trust list was not taken");
                    self.refused.insert(name, (Instant::now() + pause, pause));
                }
            }
        }
        let ours = keeper.identity().trust_number();
        let members = shared.coordinator.gossip.list();
        self.refused.retain(|name, _| members.iter().any(|member| member.name == *name));
        let claims = |member: &&gossip::Member| {
            let number = member.facts.extra.get(LIST).and_then(|number| number.parse::<u64>().ok());
            !member.is_self && member.is_live() && number.is_some_and(|number| number > ours)
        };
        let now = Instant::now();
        let waits = |name: &str| self.refused.get(name).is_some_and(|(until, _)| now < *until);
        let may_ask = |member: &&gossip::Member| !self.asked.contains(&member.name) && !waits(&member.name);
        let claimants: Vec<_> = members.iter().filter(claims).filter(may_ask).collect();
        if self.asking.len() >= ASKED_AT_A_TIME || claimants.is_empty() {
            return;
        }
        let member = claimants[rand::rng().random_range(0..claimants.len())].clone();
        self.asked.insert(member.name.clone());
        let shared = Arc::clone(shared);
        self.asking.spawn(async move {
            let list = match ask(&shared, &member, Request::Trust).await {
                Ok(Response::Trust(bytes)) => Ok(bytes),
                Ok(other) => Err(anyhow::anyhow!("an unexpected answer: {}", other.summary())),
                Err(error) => Err(error),
            };
            (member.name, list)
        });
    }

    async fn certificate(&mut self, shared: &Shared, keeper: &Keeper) {
        let identity = keeper.identity();
        let hurry = identity.not_after().duration_since(SystemTime::now()).unwrap_or(Duration::ZERO) / 30;
        if !self.judged.as_ref().is_some_and(|judged| Arc::ptr_eq(judged, &identity)) {
            let since = self.outdated.unwrap_or_else(Instant::now);
            self.outdated = (!identity.is_of_first_authority()).then_some(since);
            self.judged = Some(Arc::clone(&identity));
        }
        let new_ca = self.outdated.is_some_and(|since| since.elapsed() >= NEW_CA_KNOWN.min(hurry));
        if (SystemTime::now() < self.renew_at && !new_ca) || Instant::now() < self.next_try || identity.is_revoked() {
            return;
        }
        match renewed(shared, keeper, &identity).await {
            Ok(fresh) => {
                let fresh = Arc::new(fresh);
                let applied = fresh.save(&keeper.dir).context("saving the renewed identity");
                if let Err(error) = applied.and_then(|()| keeper.apply(shared, Arc::clone(&fresh))) {
                    tracing::warn!("the renewed certificate cannot be used: {error:#}");
                    self.next_try = Instant::now() + AGAIN.min(hurry);
                    return;
                }
                shared.coordinator.gossip.reseal().await;
                self.renew_at = renew_at(&fresh);
                let left = fresh.not_after().duration_since(SystemTime::now()).unwrap_or(Duration::ZERO);
                tracing::info!(valid_for_s = left.as_secs(), "renewed this node's certificate");
            }
            Err(error) => {
                self.next_try = Instant::now() + AGAIN.min(hurry);
                if self.warned.is_none_or(|at| at.elapsed() >= Duration::from_secs(3_600)) {
                    let left = identity.not_after().duration_since(SystemTime::now()).unwrap_or(Duration::ZERO);
                    tracing::warn!(
                        "this node's certificate, valid for another {} s, could not be renewed: {error:#}",
                        left.as_secs()
                    );
                    self.warned = Some(Instant::now());
                }
            }
        }
    }
}

/// A third of its time from its start, and up to a twentieth more, so that a mesh made at once does
/// not renew at once.
fn renew_at(identity: &Identity) -> SystemTime {
    let at = identity.renew_at();
    let left = identity.not_after().duration_since(at).unwrap_or(Duration::ZERO);
    at + left.mul_f64(rand::rng().random_range(0.0..0.05))
}

/// A new certificate from the CA here, or from a member that has it.
async fn renewed(shared: &Shared, keeper: &Keeper, identity: &Arc<Identity>) -> anyhow::Result<Identity> {
    if let Some(issuer) = keeper.issuer() {
        let (csr, pending) = certs::renew::request()?;
        let own = Arc::clone(identity);
        let chain =
            tokio::task::spawn_blocking(move || issuer.renew(own.node(), own.role(), own.serial(), &csr)).await??;
        return Ok(pending.complete(chain.iter().map(|der| der.to_vec()).collect(), identity)?);
    }
    let members = shared.coordinator.gossip.list();
    let mut issuers: Vec<_> =
        members.iter().filter(|m| !m.is_self && m.is_live() && m.facts.extra.contains_key(ISSUER)).collect();
    // Shuffled, so that not all nodes ask the same one.
    let first = rand::rng().random_range(0..issuers.len().max(1));
    if !issuers.is_empty() {
        issuers.rotate_left(first);
    }
    let mut failures = Vec::new();
    for issuer in issuers {
        // Any member can say that it holds the CA: what it answers ends nothing.
        let (csr, pending) = certs::renew::request()?;
        match ask(shared, issuer, Request::Renew { csr }).await {
            Ok(Response::Renewed(chain)) => match pending.complete(chain, identity) {
                Ok(fresh) => return Ok(fresh),
                Err(error) => failures.push(format!("{}: {error}", issuer.name)),
            },
            Ok(Response::Failed(error)) => failures.push(format!("{}: {error}", issuer.name)),
            Ok(other) => failures.push(format!("{}: an unexpected answer: {}", issuer.name, other.summary())),
            Err(error) => failures.push(format!("{}: {error:#}", issuer.name)),
        }
    }
    if failures.is_empty() {
        anyhow::bail!(
            "no live member holds the CA; start the agent that does, or issue anew with `rankmesh identity issue`"
        );
    }
    anyhow::bail!("{}", failures.join("; "))
}

async fn ask(shared: &Shared, member: &gossip::Member, request: Request) -> anyhow::Result<Response> {
    let name = member.name.parse().context("its name")?;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut answer = shared.mesh.ask(&name, member.address, request, deadline).await?;
    answer.next().await?.context("no answer")
}
