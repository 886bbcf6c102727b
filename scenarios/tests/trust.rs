//! Certificates that renew, revocation and a new CA, with agents that run: nothing is lost, and who
//! is shut out is out.

// A failed step is a failed test.
#![allow(clippy::unwrap_used)]
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use agent::Agent;
use query::ask::{self, AskError, QueryOutcome};
use scenarios::light::question;
use scenarios::trust::{TrustMesh, until};
use tokio_util::sync::CancellationToken;

const DAY: Duration = Duration::from_secs(86_400);

async fn started(size: usize, validity: Duration) -> TrustMesh {
    TrustMesh::start(size, validity).await.unwrap()
}

fn live(agent: &Agent) -> usize {
    agent.shared().coordinator.gossip.list().iter().filter(|member| member.is_live()).count()
}

async fn eventually(what: &str, seen: impl Fn() -> bool) {
    until(what, seen).await.unwrap();
}

/// Sum over all nodes, and who is missing.
async fn sum(agent: &Agent) -> Result<(String, Vec<String>), AskError> {
    let question = question("SELECT sum(x) FROM t", Duration::from_secs(240));
    match ask::ask(&agent.shared().coordinator, question, CancellationToken::new()).await? {
        QueryOutcome::Answer { answer, coverage, .. } => {
            let missing = coverage.missing.iter().map(|missing| format!("{missing:?}")).collect();
            Ok((format!("{:?}", answer.rows[0][0]), missing))
        }
        QueryOutcome::Plan(_) => unreachable!("no plan was asked for"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_renew_under_load_and_no_question_is_lost() {
    let validity = Duration::from_secs(36);
    let mesh = started(3, validity).await;
    let serials = |mesh: &TrustMesh| -> Vec<String> {
        mesh.agents.iter().map(|agent| agent.shared().mesh.identity().serial().to_owned()).collect()
    };
    let first = serials(&mesh);
    let end = mesh.agents.iter().map(|agent| agent.shared().mesh.identity().not_after()).max().unwrap();
    let (done, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let load = |agent| {
        let (done, asked) = (&done, &asked);
        async move {
            while !done.load(Ordering::SeqCst) {
                let (total, missing) = sum(agent).await.unwrap();
                assert!(missing.is_empty(), "{missing:?}");
                assert_eq!(total, "Integer(9)");
                asked.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    };
    let watch = async {
        eventually("all have renewed", || serials(&mesh).iter().zip(&first).all(|(now, then)| now != then)).await;
        // Beyond the end of what they began with.
        let left = end.duration_since(std::time::SystemTime::now()).unwrap_or_default();
        tokio::time::sleep(left + Duration::from_secs(1)).await;
        done.store(true, Ordering::SeqCst);
    };
    tokio::join!(load(&mesh.agents[0]), load(&mesh.agents[1]), load(&mesh.agents[2]), watch);
    eprintln!("{} questions, none lost", asked.load(Ordering::SeqCst));
    // What was renewed is on disk, for the next start.
    for (index, agent) in mesh.agents.iter().enumerate() {
        let saved = certs::Identity::load(&mesh.identity(&format!("n{index}"))).unwrap();
        assert!(saved.check_valid(std::time::SystemTime::now()).is_ok());
        assert_eq!(agent.shared().identity.node(), saved.node());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_node_is_shut_out_by_all_of_sixteen_while_connected() {
    let mesh = started(16, DAY).await;
    let outcast = &mesh.agents[15];
    // It talks to everybody, so that there are connections to close.
    let (total, missing) = sum(outcast).await.unwrap();
    assert_eq!((total.as_str(), missing.len()), ("Integer(48)", 0));
    let began = Instant::now();
    mesh.issuer().unwrap().revoke("n15").unwrap();
    let others = &mesh.agents[..15];
    eventually("all go by the list", || others.iter().all(|agent| agent.shared().mesh.identity().trust_number() == 1))
        .await;
    eventually("all have closed their connections to it", || {
        others.iter().all(|agent| agent.shared().mesh.stats().shut_out > 0)
    })
    .await;
    eprintln!("revoked at 15 agents, live connections closed, after {:?}", began.elapsed());
    // Nobody answers it, nobody asks it, and what it says of itself is believed no more.
    match sum(outcast).await {
        Ok((_, missing)) => assert_eq!(missing.len(), 15, "{missing:?}"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    eventually("it counts as gone", || others.iter().all(|agent| live(agent) == 15)).await;
    let (total, _) = sum(&mesh.agents[3]).await.unwrap();
    assert_eq!(total, "Integer(45)");
    // A restart changes nothing: the list is on disk.
    assert!(
        certs::tls::peer(outcast.shared().identity.chain(), &certs::Identity::load(&mesh.identity("n7")).unwrap())
            .is_err()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_ca_takes_over_and_the_old_one_is_forgotten() {
    let mesh = started(3, DAY).await;
    let before = mesh.issuer().unwrap().authority().fingerprint();
    // A day's certificate renews under a new CA after half a minute: this test is in a hurry, and
    // plays the nodes' part.
    let issuer = mesh.issuer().unwrap().rotate().unwrap();
    assert_ne!(issuer.authority().fingerprint(), before);
    eventually("all trust both", || {
        mesh.agents.iter().all(|agent| agent.shared().mesh.identity().authorities().len() == 2)
    })
    .await;
    assert_eq!(sum(&mesh.agents[1]).await.unwrap().0, "Integer(9)");
    let under_new = |agent: &Agent| agent.shared().mesh.identity().is_of_first_authority();
    eventually("all have renewed under it", || mesh.agents.iter().all(under_new)).await;
    assert_eq!(sum(&mesh.agents[2]).await.unwrap().0, "Integer(9)");
    mesh.issuer().unwrap().finish_rotation(false).unwrap();
    eventually("all trust the new one only", || {
        mesh.agents.iter().all(|agent| agent.shared().mesh.identity().authorities().len() == 1)
    })
    .await;
    for agent in &mesh.agents {
        assert_eq!(sum(agent).await.unwrap(), ("Integer(9)".to_owned(), Vec::new()));
    }
    // Who joins now joins the new CA.
    let token = mesh.issuer().unwrap().tokens().create(DAY, None).unwrap();
    let joined =
        Arc::new(mesh::join::join(mesh.agents[0].shared().advertise, &token, &"late".parse().unwrap()).await.unwrap());
    assert_eq!(joined.ca_fingerprint(), issuer.authority().fingerprint());
}
