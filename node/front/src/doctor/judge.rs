//! The judgement of `rankmesh doctor`, without IO: makes findings, each with its remedy, of what
//! the nodes report about themselves and about each other. The serialised form is a contract with
//! people's scripts: fields are added, never renamed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use model::FailureKind;
use model::health::{Health, PathSeen, Reached};
use serde::{Deserialize, Serialize};

/// Clocks further apart than this are not kept by NTP. (chrony and ntpd hold milliseconds.)
const CLOCK_NS: i64 = 100_000_000;
/// The share of lost packets from which questions are slowed down, and the packets needed to judge
/// it.
const LOSS: f64 = 0.01;
const PACKETS: u64 = 100;
/// The payload that Ethernet's 1,500 bytes leave to QUIC, less what tunnels usually take.
const MTU: u16 = 1_350;
/// What to do where one does not accept the other.
const SAME_MESH: &str = "rankmesh identity show on both: the same mesh, a certificate that has not ended?";
/// Calls longer ago than this are ignored.
const RECENT_MS: u64 = 120_000;

/// The data that the agent gathered.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Examination {
    /// The node that asked.
    pub(super) asked_by: String,
    /// The members.
    pub(super) members: Vec<Examined>,
    /// In a large mesh: how many others each node tried.
    pub(super) neighbours: Option<usize>,
}

/// One of them.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Examined {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) state: String,
    pub(super) version: String,
    pub(super) health: Option<Health>,
    pub(super) by_way_of: Option<String>,
    pub(super) error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<FailureKind>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// Questions or recording are affected now.
    Wrong,
    /// They may soon be, or something is less good than it could be.
    Warning,
}

/// One thing found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Finding {
    pub(super) node: String,
    pub(super) what: &'static str,
    pub(super) state: State,
    pub(super) detail: String,
    pub(super) remedy: String,
}

impl Finding {
    fn wrong(node: &str, what: &'static str, detail: String, remedy: String) -> Self {
        Self { node: node.to_owned(), what, state: State::Wrong, detail, remedy }
    }

    fn warning(node: &str, what: &'static str, detail: String, remedy: String) -> Self {
        Self { state: State::Warning, ..Self::wrong(node, what, detail, remedy) }
    }
}

/// Rows that a node could not record.
pub(super) fn lost(node: &str, probe: &str, reason: &str, lost: i64) -> Finding {
    let detail = format!("{lost} rows of {probe} lost in the last hour ({reason})");
    let remedy = "rankmesh help capture, \"Loss\": less load on the agent, or fewer things to record".to_owned();
    Finding::warning(node, "loss", detail, remedy)
}

/// Losses could not be asked for.
pub(super) fn losses_unknown(why: &str) -> Finding {
    let remedy = "ask for it by hand: rankmesh query \"SELECT * FROM capture_loss\"".to_owned();
    Finding::warning("", "loss", format!("not known: {why}"), remedy)
}

/// What is wrong, and what may be soon.
pub(super) fn judge(examination: &Examination) -> Vec<Finding> {
    let mut findings = vec![];
    for member in &examination.members {
        let Some(health) = &member.health else {
            findings.push(silent(examination, member));
            continue;
        };
        of_itself(member, health, &mut findings);
        for reached in &health.reached {
            // A node that does not answer at all has its own finding.
            let other = examination.members.iter().find(|other| other.name == reached.node);
            if let Some(other) = other.and_then(|other| other.health.as_ref()) {
                findings.extend(between(examination, health, reached, other));
            }
        }
    }
    versions(examination, &mut findings);
    names(examination, &mut findings);
    clocks(examination, &mut findings);
    findings
}

/// A member that gave no answer to any node.
fn silent(examination: &Examination, member: &Examined) -> Finding {
    let error = member.error.clone().unwrap_or_else(|| "no answer".to_owned());
    let (node, port) = (&member.name, port(&member.address));
    match member.kind {
        Some(FailureKind::OtherRelease) => {
            return Finding::warning(node, "release", error, format!("update {node} to see more of it"));
        }
        Some(FailureKind::NothingListens) => {
            let detail = format!("its host answers at {}, but no agent listens there", member.address);
            return Finding::wrong(node, "no agent", detail, format!("start it: systemctl start rankmesh on {node}"));
        }
        Some(FailureKind::WrongNode) => {
            let remedy = "give each agent an address of its own and a --name".to_owned();
            return Finding::wrong(node, "name", error, remedy);
        }
        Some(FailureKind::Refused) => return Finding::wrong(node, "certificate", error, SAME_MESH.to_owned()),
        _ => {}
    }
    let own = examination.members.iter().find(|own| own.name == examination.asked_by);
    let calls =
        own.and_then(|own| own.health.as_ref()).map_or(Calls::None, |health| calls(health, &member.address, node));
    let elsewhere = called_from(examination, node).into_iter().filter(|ip| !is_at(&member.address, *ip));
    let elsewhere: Vec<String> = elsewhere.map(|ip| ip.to_string()).collect();
    if !matches!(calls, Calls::Unfinished(_)) && !elsewhere.is_empty() {
        let from = elsewhere.join(", ");
        let detail = format!(
            "{error}; it says it listens at {} and calls from {from}: NAT, or another of its addresses",
            member.address
        );
        let remedy = format!(
            "give {node} --advertise with an address and port that the others reach; a router that translates has to \
             forward this UDP port to it"
        );
        return Finding::wrong(node, "address", detail, remedy);
    }
    let detail = match calls {
        Calls::Unfinished(started) => format!(
            "{error}; {started} calls of it arrived here and none was completed: its packets come through, answers to it do not"
        ),
        Calls::Completed => format!("{error}; it called here a moment ago"),
        Calls::None => format!("{error}; nothing of it arrives here, either"),
    };
    let remedy = match calls {
        Calls::Unfinished(_) => {
            format!(
                "let UDP to port {port} of {node} in (its firewall, or one between), or out of {}",
                examination.asked_by
            )
        }
        Calls::Completed => "ask again in some seconds".to_owned(),
        Calls::None => format!(
            "is its host up, the agent running? If so UDP is blocked both ways: let UDP port {port} through in both directions"
        ),
    };
    let what = match calls {
        Calls::Unfinished(_) => "blocked one way",
        Calls::Completed => "unreachable",
        Calls::None => "unreachable or blocked both ways",
    };
    Finding::wrong(node, what, detail, remedy)
}

enum Calls {
    None,
    Unfinished(u64),
    Completed,
}

/// Recent calls from `address` or of `node`, as `health` lists them.
fn calls(health: &Health, address: &str, node: &str) -> Calls {
    let recent = health.callers.iter().filter(|caller| caller.last_ago_ms <= RECENT_MS);
    let mut of_node = recent.filter(|caller| {
        caller.node.as_deref() == Some(node) || (caller.node.is_none() && caller.address.to_string() == address)
    });
    match of_node.next() {
        // One may just be in progress.
        Some(caller) if caller.unfinished > 1 => Calls::Unfinished(caller.unfinished),
        Some(caller) if caller.completed == 0 => Calls::Unfinished(caller.started),
        Some(_) => Calls::Completed,
        None => Calls::None,
    }
}

/// The addresses from which a node's recent completed calls came, as the others saw them. (Its own
/// list is ignored: before a restart it may have had another address.)
fn called_from(examination: &Examination, node: &str) -> BTreeSet<IpAddr> {
    let healths = examination.members.iter().filter_map(|member| member.health.as_ref());
    let callers = healths.filter(|health| health.node != node).flat_map(|health| &health.callers);
    let completed = callers.filter(|caller| caller.last_ago_ms <= RECENT_MS && caller.completed > 0);
    completed.filter(|caller| caller.node.as_deref() == Some(node)).map(|caller| caller.address.ip()).collect()
}

/// Whether an address, as a node gives it, is of this host.
fn is_at(address: &str, ip: IpAddr) -> bool {
    address.parse().is_ok_and(|address: SocketAddr| address.ip() == ip)
}

fn port(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(_, port)| port)
}

/// From where on recording is dear for a rank, millionths of its time.
const DEAR_PPM: u64 = 20_000;

/// What a node says of itself alone.
fn of_itself(member: &Examined, health: &Health, findings: &mut Vec<Finding>) {
    let node = &member.name;
    let left_h = (health.certificate_ends_ns - health.now_ns) / 3_600_000_000_000;
    if health.certificate_ends_ns != 0 && health.now_ns > health.certificate_ends_ns {
        let detail = format!("its certificate ended {} h ago: others turn it away", -left_h);
        findings.push(Finding::wrong(
            node,
            "certificate",
            detail,
            format!("a new token, and rankmesh up --join … on {node}"),
        ));
    } else if health.certificate_ends_ns != 0 && health.now_ns > health.certificate_renews_ns {
        let detail = format!("its certificate ends in {left_h} h and was not renewed yet");
        let remedy = "is the node that holds the mesh's CA up? (rankmesh nodes --format json: \"issuer\")".to_owned();
        findings.push(Finding::warning(node, "certificate", detail, remedy));
    }
    // Off is what somebody asked for.
    let is_on = health.capture == "on" || health.capture.starts_with("on (") || health.capture.starts_with("on, ");
    if !is_on && health.capture != "off" {
        let remedy = format!("rankmesh check on {node} says what it takes");
        findings.push(Finding::warning(node, "recording", health.capture.clone(), remedy));
    }
    if let Some(taken) = health.recording_ppm.filter(|ppm| *ppm > DEAR_PPM) {
        let detail = format!(
            "recording takes {:.1} % of the time of the rank that makes most calls ({} calls a second on the host, \
             {:.1} us each)",
            taken as f64 / 1e4,
            health.recorded_calls_per_second.unwrap_or_default(),
            health.recorded_call_ns.unwrap_or_default() as f64 / 1e3,
        );
        let remedy = "up --budget 1% bounds it (docs/capture.md); ".to_owned()
            + "an agent without root records ranks under eval \"$(rankmesh env)\" from inside, without traps";
        findings.push(Finding::warning(node, "cost", detail, remedy));
    }
}

/// What a node found on its way to another that answered somebody, too.
fn between(examination: &Examination, from: &Health, reached: &Reached, to: &Health) -> Option<Finding> {
    let (a, b) = (&from.node, &to.node);
    let Some(way) = &reached.way else {
        let error = reached.error.as_deref().unwrap_or("not reached");
        let address = reached.address.map_or_else(|| "?".to_owned(), |address| address.to_string());
        match reached.kind {
            Some(FailureKind::NotKnown) => {
                let remedy = format!("if it stays so: restart {a} with --join {}", address_of(examination, b));
                return Some(Finding::warning(a, "membership", format!("{b} is {error}"), remedy));
            }
            Some(FailureKind::WrongNode) => {
                let remedy = "two agents share an address, or a name: give each its own (--advertise, --name)";
                return Some(Finding::wrong(a, "name", error.to_owned(), remedy.to_owned()));
            }
            Some(FailureKind::Refused) => {
                return Some(Finding::wrong(a, "certificate", format!("{b}: {error}"), SAME_MESH.to_owned()));
            }
            _ => {}
        }
        let arrives = calls(to, &address_of(examination, a), a);
        let back = to.reached.iter().find(|back| back.node == *a).is_some_and(|back| back.way.is_some());
        let port = port(&address);
        let (what, why, remedy) = match (arrives, back) {
            (_, true) => (
                "blocked one way",
                format!("{b} reaches {a}, {a} does not reach {b} at {address}"),
                format!("let UDP to port {port} of {b} in for {a}; behind NAT give {b} --advertise"),
            ),
            (Calls::Unfinished(started), false) => (
                "blocked one way",
                format!("{started} calls of {a} arrive at {b}, the answers of {b} do not arrive at {a}"),
                format!("let UDP from {b} in at {a}, or out at {b}"),
            ),
            (Calls::Completed, false) => (
                "unreachable",
                format!("{a} called {b} a moment ago and does not reach it now"),
                "ask again in some seconds".to_owned(),
            ),
            (Calls::None, false) => match calls(from, &address_of(examination, b), b) {
                Calls::Unfinished(started) => (
                    "blocked one way",
                    format!("{started} calls of {b} arrive at {a}, nothing of {a} arrives at {b} at {address}"),
                    format!("let UDP to port {port} of {b} in for {a}"),
                ),
                _ => (
                    "blocked both ways",
                    format!("{a} and {b} do not hear each other, and others reach both"),
                    format!("let UDP port {port} through between {a} and {b}, in both directions"),
                ),
            },
        };
        return Some(Finding::wrong(a, what, format!("{why} ({error})"), remedy));
    };
    path(a, b, way)
}

fn path(a: &str, b: &str, way: &PathSeen) -> Option<Finding> {
    #[allow(clippy::cast_precision_loss)] // a share
    let share = way.lost as f64 / way.sent.max(1) as f64;
    if way.sent >= PACKETS && share > LOSS {
        let detail = format!("{:.1} % of {} packets to {b} were lost", share * 100.0, way.sent);
        let remedy = format!("the network between {a} and {b}: ethtool -S, switch counters");
        return Some(Finding::warning(a, "packet loss", detail, remedy));
    }
    if way.black_holes > 0 || (way.mtu != 0 && way.mtu < MTU) {
        let detail = format!(
            "datagrams of at most {} bytes pass to {b}{}",
            way.mtu,
            match way.black_holes {
                0 => String::new(),
                times => format!("; larger ones that had passed vanished {times} times"),
            }
        );
        let remedy = "a tunnel or VPN on the way? Nothing breaks; answers take more packets".to_owned();
        return Some(Finding::warning(a, "MTU", detail, remedy));
    }
    None
}

fn address_of(examination: &Examination, name: &str) -> String {
    examination
        .members
        .iter()
        .find(|member| member.name == name)
        .map(|member| member.address.clone())
        .unwrap_or_default()
}

/// Nodes of another release than most.
fn versions(examination: &Examination, findings: &mut Vec<Finding>) {
    let mut nodes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for member in examination.members.iter().filter(|member| !member.version.is_empty()) {
        nodes.entry(&member.version).or_default().push(&member.name);
    }
    let Some(most) = nodes.iter().max_by_key(|(_, nodes)| nodes.len()).map(|(version, _)| (*version).to_owned()) else {
        return;
    };
    for (version, nodes) in nodes.iter().filter(|(version, _)| **version != most) {
        for node in nodes {
            let detail = format!("release {version}, most have {most}");
            let remedy = "two adjacent releases work together; do not leave it so for long".to_owned();
            findings.push(Finding::warning(node, "release", detail, remedy));
        }
    }
}

/// A name that calls from two hosts: two agents that were given the same one, or NAT.
fn names(examination: &Examination, findings: &mut Vec<Finding>) {
    for member in &examination.members {
        let (node, advertised) = (&member.name, &member.address);
        let hosts = called_from(examination, node);
        let list = hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let named = |what| findings.iter().any(|finding: &Finding| finding.node == *node && finding.what == what);
        if hosts.len() > 1 {
            let detail = format!("it called from {} addresses: {list}", hosts.len());
            let remedy =
                "two agents with one name? Give each its own --name. A host with several addresses: --advertise"
                    .to_owned();
            findings.push(Finding::warning(node, "name", detail, remedy));
        } else if hosts.iter().any(|ip| !is_at(advertised, *ip)) && !named("address") {
            let detail = format!("it calls from {list} and says it listens at {advertised}: NAT, or several addresses");
            let remedy = "if others cannot reach it: --advertise with an address that they can".to_owned();
            findings.push(Finding::warning(node, "address", detail, remedy));
        }
    }
}

/// Clocks far from the one of the node that was asked.
fn clocks(examination: &Examination, findings: &mut Vec<Finding>) {
    let own = examination.members.iter().find(|member| member.name == examination.asked_by);
    for reached in own.and_then(|own| own.health.as_ref()).into_iter().flat_map(|health| &health.reached) {
        let Some(way) = reached.way else { continue };
        if way.offset_ns.saturating_abs().saturating_sub(way.bound_ns) > CLOCK_NS {
            #[allow(clippy::cast_precision_loss)] // for people
            let ms = way.offset_ns as f64 / 1e6;
            let detail = format!("its clock is {ms:+.0} ms from that of {}", examination.asked_by);
            let remedy = "is chrony or ntpd running on both? Answers are aligned meanwhile; logs are not".to_owned();
            findings.push(Finding::warning(&reached.node, "clock", detail, remedy));
        }
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
