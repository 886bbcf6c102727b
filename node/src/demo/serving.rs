//! `rankmesh demo --serving`: two agents on loopback, each with a server of one service in a cgroup of
//! its own; one server is faulty; `tail` says on which host, and what its slowest requests wait for.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::lab::{self, Lab};
use super::server::{REFRESH, REFRESHER, RETRIED, RETRY, WORKER};
use super::{LONGEST_WAIT, run_command};

/// Agents, by name; the server of the last one is faulty.
const AGENTS: [&str; 2] = ["node-1", "node-2"];
/// The service.
const SERVICE: &str = "chat";
/// Connections to each server, and the time between an answer and the next request.
const CONNECTIONS: usize = 2;
const PAUSE: Duration = Duration::from_millis(2);
/// A server that takes longer is not asked any more.
const LONGEST_ANSWER: Duration = Duration::from_secs(10);
/// How long is asked, once both servers are followed.
const LOAD: Duration = Duration::from_secs(20);
/// What was injected is so much of what the slowest take longer, at least. (Other programs on this
/// machine have their part.)
const INJECTED: f64 = 0.5;

/// Runs it; prints to standard output.
///
/// # Errors
/// Requests cannot be recorded here, something could not be started, or `tail` does not say what was
/// injected.
pub(crate) async fn show() -> anyhow::Result<()> {
    if let Err(why) = lab::can_capture() {
        bail!(
            "requests are recorded with eBPF, and that is not possible here ({why}): run this as root, on Linux 6.3 or \
             later. (rankmesh demo without --serving shows a recorded trace.)"
        );
    }
    print!(
        "{}",
        record::wrapped(&format!(
            "Live: {} agents on loopback record the requests of two servers with eBPF. On {} a thread keeps a lock for {} ms \
             now and then, and one request in {RETRIED} is tried again after {} ms.",
            AGENTS.len(),
            AGENTS[1],
            REFRESH.as_millis(),
            RETRY.as_millis()
        ))
    );
    let mut lab = Lab::new()?;
    lab.make_cgroups(&AGENTS)?;
    let mut ports = vec![];
    for agent in AGENTS {
        ports.push(lab.start_server(agent, agent == AGENTS[1]).await?);
    }
    for port in &ports {
        lab.flags.extend(["--serve".to_owned(), format!("{SERVICE}=port:{port}")]);
    }
    lab.start_agents(&AGENTS, true).await?;
    lab.wait_for_members(&AGENTS, LONGEST_WAIT).await?;
    let load = Load::start(&ports);
    wait_until_followed(&mut lab).await?;
    tokio::time::sleep(LOAD).await;
    let asked = load.stop();
    let found = wait_for_requests(&lab, asked).await?;
    run_command(&lab, AGENTS[0], &["tail"]).await?;
    run_command(&lab, AGENTS[0], &["tail", "--by", "cause"]).await?;
    lab.close().await;
    check(&found)?;
    let injected = format!(
        "That is what was injected: on {} thread {REFRESHER} has the lock, and workers sleep before they try again.",
        AGENTS[1]
    );
    print!("\n{}", record::wrapped(&injected));
    Ok(())
}

/// Clients that ask one request after the other.
struct Load {
    is_over: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    clients: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start(ports: &[u16]) -> Self {
        let (is_over, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let client = |port: u16| {
            let (is_over, asked) = (Arc::clone(&is_over), Arc::clone(&asked));
            std::thread::spawn(move || {
                // (A server that is gone is missing in the answer.)
                let _ = ask(port, &is_over, &asked);
            })
        };
        let clients = ports.iter().flat_map(|port| [*port; CONNECTIONS]).map(client).collect();
        Self { is_over, asked, clients }
    }

    /// Ends it; how many requests were answered.
    fn stop(mut self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            let _ = client.join();
        }
        self.asked.load(Ordering::Relaxed)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn ask(port: u16, is_over: &AtomicBool, asked: &AtomicU64) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LONGEST_ANSWER))?;
    let mut answer = [0; 40];
    for number in 0.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        stream.write_all(format!("POST /v1/chat/{number} HTTP/1.1\r\nHost: demo\r\n\r\n").as_bytes())?;
        stream.read_exact(&mut answer)?;
        asked.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

async fn tail(lab: &Lab) -> anyhow::Result<Value> {
    let (answer, _) = lab.json(AGENTS[0], &["tail", "--format", "json"]).await.context("asking for the tail")?;
    Ok(answer["services"][0].clone())
}

/// Waits until requests of both hosts are stored.
async fn wait_until_followed(lab: &mut Lab) -> anyhow::Result<()> {
    let until = Instant::now() + LONGEST_WAIT;
    while tail(lab).await?["groups"].as_array().map_or(0, Vec::len) < AGENTS.len() {
        if Instant::now() >= until {
            bail!("the agents record no requests (rankmesh check says why):\n{}", lab.log(AGENTS[0]));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// Waits until no more requests come into the stores; the answer.
async fn wait_for_requests(lab: &Lab, asked: u64) -> anyhow::Result<Value> {
    let until = Instant::now() + LONGEST_WAIT;
    let mut last = None;
    loop {
        let found = tail(lab).await?;
        let count = found["count"].as_u64();
        if count.is_some_and(|count| count > 0) && count == last {
            ensure!(count <= Some(asked), "{count:?} requests were counted, of {asked}");
            return Ok(found);
        }
        ensure!(Instant::now() < until, "requests come into the stores without end: {found}");
        last = count;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// The demo knows what it injected: anything else is a failure.
fn check(found: &Value) -> anyhow::Result<()> {
    let slowest = &found["slowest"];
    let parts = slowest["excess"]["parts"].as_array().context("nothing has grown")?;
    let injected: f64 = parts
        .iter()
        .filter(|more| {
            let thread = more["part"]["thread"].as_str().unwrap_or_default();
            more["part"]["kind"] == "asleep" && (thread == REFRESHER || thread.starts_with(WORKER))
        })
        .filter_map(|more| more["share"].as_f64())
        .sum();
    let most: Vec<&str> = parts.iter().filter_map(|more| more["text"].as_str()).take(3).collect();
    ensure!(
        injected >= INJECTED,
        "what was injected is {:.0} % of the excess; where it ran beside other work, try again. Most is: {}",
        injected * 100.0,
        most.join("; ")
    );
    let shared = slowest["shared"].as_array().into_iter().flatten();
    let hosts: Vec<&Value> = shared.filter(|shared| shared["what"] == "host").map(|shared| &shared["of"]).collect();
    ensure!(hosts == [AGENTS[1]], "the slowest are of {hosts:?}, and not of {}", AGENTS[1]);
    Ok(())
}
