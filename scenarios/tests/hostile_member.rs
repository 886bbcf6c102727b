//! A member that turned hostile beside whole agents: it has a valid certificate, gossips what it
//! likes and answers what it likes. The others go on answering questions, learn of revocations,
//! renew, and believe nothing that it says of others.

// A failed step is a failed test.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use agent::seal::NodeSeal;
use async_trait::async_trait;
use certs::{HostKey, NODE_VALIDITY, Reissue};
use gossip::hostile::{self, ChitchatId, Delta, Digest, Entry, Key, Message, Status};
use gossip::{Gossip, GossipConfig, Link, NodeFacts};
use mesh::{Handler, Mesh, MeshConfig, Responder};
use model::wire::{Request, Response};
use query::ask::{self, QueryOutcome};
use scenarios::light::question;
use scenarios::trust::{TrustMesh, until};
use standing::{JobName, JobVerdict};
use tokio_util::sync::CancellationToken;

const DAY: Duration = Duration::from_secs(86_400);

/// Keeps who asks for its list waiting, and makes certificates of nothing.
struct Liar;

#[async_trait]
impl Handler for Liar {
    async fn handle(
        &self,
        _: &Mesh,
        _: certs::tls::Peer,
        request: Request,
        out: &mut Responder,
        cancelled: CancellationToken,
    ) {
        match request {
            Request::Trust => cancelled.cancelled().await,
            Request::Renew { .. } => drop(out.send(Response::Renewed(vec![vec![7; 500]])).await),
            _ => drop(out.send(Response::Unsupported("no".to_owned())).await),
        }
    }
}

/// The hostile member.
struct Evil {
    mesh: Mesh,
    gossip: Gossip,
    address: SocketAddr,
}

impl Evil {
    async fn join(beside: &TrustMesh) -> Self {
        let issuer = beside.issuer().unwrap();
        let identity = Arc::new(issuer.issue(&"evil".parse().unwrap(), NODE_VALIDITY, Reissue::Refuse).unwrap());
        let config = MeshConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            identity: Arc::clone(&identity),
            host_key: HostKey::random().unwrap(),
            handler: Arc::new(Liar),
            join_host: None,
            runtime: Arc::new(quinn::TokioRuntime),
        };
        let (mesh, inbound) = Mesh::start(config).unwrap();
        let address = mesh.local_addr().unwrap();
        let mut config = GossipConfig::new(identity.mesh().as_str(), "evil", 1, address)
            .with_sealer(Arc::new(NodeSeal::new(move || Arc::clone(&identity))));
        config.seeds = beside.agents.iter().map(|agent| agent.shared().advertise).collect();
        let gossip = Gossip::start(config, Arc::new(mesh.clone()), inbound, NodeFacts::default()).await.unwrap();
        let evil = Self { mesh, gossip, address };
        let listed = |agent: &agent::Agent| {
            let list = agent.shared().coordinator.gossip.list();
            list.iter().any(|member| member.name == "evil" && member.is_live())
        };
        until("it is a member", || beside.agents.iter().all(listed)).await.unwrap();
        evil
    }

    fn send(&self, to: SocketAddr, message: &Message) {
        Link::send(&self.mesh, to, hostile::bytes(message));
    }
}

/// Every honest node answers a question at every agent; who is missing is the hostile one.
async fn assert_answered(mesh: &TrustMesh) {
    for agent in &mesh.agents {
        let question = question("SELECT sum(x) FROM t", Duration::from_secs(240));
        let asked = ask::ask(&agent.shared().coordinator, question, CancellationToken::new()).await.unwrap();
        let QueryOutcome::Answer { answer, coverage, .. } = asked else { panic!("no plan was asked for") };
        assert_eq!(format!("{:?}", answer.rows[0][0]), format!("Integer({})", 3 * mesh.agents.len()));
        assert!(
            coverage.missing.iter().all(|missing| format!("{missing:?}").contains("evil")),
            "{:?}",
            coverage.missing
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_member_sends_of_others_stops_nobody_and_is_not_believed() {
    let mesh = TrustMesh::start(3, DAY).await.unwrap();
    let evil = Evil::join(&mesh).await;
    let lives = |mesh: &TrustMesh| -> Vec<u64> {
        let own = |agent: &agent::Agent| {
            agent
                .shared()
                .coordinator
                .gossip
                .list()
                .iter()
                .find(|member| member.is_self)
                .map(|member| member.generation)
        };
        mesh.agents.iter().filter_map(own).collect()
    };
    let before = lives(&mesh);
    let invented = |number: u64| ChitchatId::new(format!("invented-{number}"), 1, evil.address);
    let entry = Entry { heartbeat: 1, last_gc: 0, max_version: 1 };
    let many: Digest = (0..1_500).map(|number| (invented(number), entry)).collect();
    for agent in &mesh.agents {
        let list = agent.shared().coordinator.gossip.list();
        for member in list.iter().filter(|member| member.name != "evil") {
            let id = ChitchatId::new(member.name.as_str(), member.generation, member.address);
            let key = |name: &str, version| Key { name: name.into(), value: "9".into(), version, status: Status::Set };
            let keys = vec![key("x.trust", 1_000), key("left", 1_001)];
            let more = Delta { id: id.clone(), last_gc: 0, from: 1, keys, max_version: 1_001 };
            let last = Delta { id, last_gc: 0, from: 1, keys: Vec::new(), max_version: u64::MAX };
            for deltas in [vec![more], vec![last]] {
                evil.send(agent.shared().advertise, &Message::Ack { deltas: deltas.clone() });
                evil.send(agent.shared().advertise, &Message::SynAck { digest: Digest::new(), deltas });
            }
        }
        let mesh_name = agent.shared().identity.mesh().to_string();
        evil.send(agent.shared().advertise, &Message::Syn { mesh: mesh_name, digest: many.clone() });
    }
    // News of each still reach all others, which they would not after any of this.
    for (at, agent) in mesh.agents.iter().enumerate() {
        let news = format!("news-{at}");
        agent.shared().coordinator.gossip.publish("news", news.clone()).await;
        let heard = |other: &agent::Agent| {
            let list = other.shared().coordinator.gossip.list();
            list.iter().any(|member| member.facts.extra.get("news") == Some(&news) && member.may_live())
        };
        until("the news are heard", || mesh.agents.iter().all(heard)).await.unwrap();
    }
    for agent in &mesh.agents {
        let list = agent.shared().coordinator.gossip.list();
        let names: Vec<&str> = list.iter().map(|member| member.name.as_str()).collect();
        assert_eq!(names, ["evil", "n0", "n1", "n2"]);
        assert!(list.iter().all(|member| !member.facts.extra.contains_key("trust")), "{list:#?}");
    }
    assert_eq!(lives(&mesh), before, "gossip was started anew somewhere");
    assert_answered(&mesh).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_claims_the_newest_list_and_the_ca_delays_no_revocation_and_no_renewal() {
    let mut mesh = TrustMesh::start(2, Duration::from_secs(45)).await.unwrap();
    let evil = Evil::join(&mesh).await;
    evil.gossip.publish("trust", u64::MAX.to_string()).await;
    evil.gossip.publish("issuer", "1").await;
    let claimed = |agent: &agent::Agent| {
        agent.shared().coordinator.gossip.list().iter().any(|member| member.facts.extra.contains_key("trust"))
    };
    until("its claim is heard", || mesh.agents.iter().all(claimed)).await.unwrap();
    let issuer = mesh.issuer().unwrap();
    issuer.issue(&"lost".parse().unwrap(), NODE_VALIDITY, Reissue::Refuse).unwrap();
    issuer.revoke("lost").unwrap();
    let number = |agent: &agent::Agent| agent.shared().mesh.identity().trust_number();
    let serials = |mesh: &TrustMesh| -> Vec<String> {
        mesh.agents.iter().map(|agent| agent.shared().mesh.identity().serial().to_owned()).collect()
    };
    let first = serials(&mesh);
    // Another claim each moment, each of a higher number than any true one.
    let mut claim = u64::MAX / 2;
    while mesh.agents.iter().any(|agent| number(agent) != 1) {
        claim += 1;
        evil.gossip.publish("trust", claim.to_string()).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    until("both have renewed", || serials(&mesh).iter().zip(&first).all(|(now, then)| now != then)).await.unwrap();
    assert_answered(&mesh).await;
    mesh.agents.clear();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verdict_of_a_job_that_runs_elsewhere_is_not_shown() {
    let mesh = TrustMesh::start(2, DAY).await.unwrap();
    let evil = Evil::join(&mesh).await;
    let verdict = |job: u64| {
        let standing = serde_json::json!({
            "window": 5, "reference": null, "heard": 1, "silent": [], "wall_ahead_ns": 0, "age_ns": 0,
            "report": verdicts::Report::default(),
        });
        let verdict = JobVerdict { job, name: JobName::default(), standing: serde_json::from_value(standing).unwrap() };
        verdict.text().unwrap()
    };
    // Of a job of which it says that it runs there, all know; of another nobody.
    evil.gossip.publish("jobs", "1 7").await;
    for job in [7u64, 8] {
        evil.gossip.publish(format!("v{job:016x}"), verdict(job)).await;
    }
    let shown = |agent: &agent::Agent| -> Vec<u64> {
        agent.shared().standing.all().iter().map(|current| current.job).collect()
    };
    until("its own job's is shown", || mesh.agents.iter().all(|agent| shown(agent) == [7])).await.unwrap();
    assert_answered(&mesh).await;
}
