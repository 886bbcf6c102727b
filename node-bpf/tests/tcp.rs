//! TCP retransmits, in a network namespace whose packets go nowhere.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;

use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};

use common::{Cgroup, Job, Recorder, can_capture, wait_for, workloads};
use node_bpf::{NetEvent, Record};

/// Connects from a namespace of its own to a neighbour that is not there: every packet is dropped
/// at the far end of a veth pair. The library preloaded makes the shell a followed process, rank 7.
const CONNECT: &str = "ip link add v0 type veth peer name v1 && ip addr add 10.99.0.1/24 dev v0 && \
    ip link set v0 up && ip link set v1 up && ip neigh add 10.99.0.2 lladdr 02:00:00:00:00:02 dev v0 && \
    LD_PRELOAD=$0 RANK=7 exec bash -c 'read -r go; exec 3<>/dev/tcp/10.99.0.2/7117'";

#[test]
fn a_retransmit_names_its_addresses_and_owner() {
    if !can_capture() {
        return;
    }
    let can =
        Command::new("unshare").args(["-n", "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"]).status();
    if !can.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: needs unshare, ip and veth interfaces");
        return;
    }
    let library = workloads().join("libnccl.so.2");
    let (cgroup, other) = (Cgroup::new(), Cgroup::new());
    let start = |cgroup: &Cgroup| Recorder::start(cgroup.capturing([library.clone()]));
    let (recorder, elsewhere) = (start(&cgroup), start(&other));
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(r#"echo $$ > "$0" && exec "$@""#).arg(cgroup.0.join("cgroup.procs"));
    shell.args(["unshare", "-n", "sh", "-c", CONNECT]).arg(&library);
    let mut child = Job(shell.stdin(Stdio::piped()).stderr(File::create("/dev/null").unwrap()).spawn().unwrap());
    // the owner of a socket can be found among known processes
    let known = |r: &Record| matches!(r, Record::Process(p) if p.rank == Some(7));
    wait_for("the shell to be known", || recorder.so_far().iter().any(known));
    child.0.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    let events = |records: Vec<Record>| -> Vec<NetEvent> {
        records.into_iter().filter_map(|r| if let Record::Net(n) = r { Some(n) } else { None }).collect()
    };
    wait_for("a retransmitted SYN", || !events(recorder.so_far()).is_empty());
    drop(child);
    let event = events(recorder.stop().0).remove(0);
    assert_eq!(
        (event.event, event.saddr.as_str(), event.daddr.as_str()),
        ("tcp_retransmit_skb", "10.99.0.1", "10.99.0.2")
    );
    assert_eq!((event.dport, event.state, event.rank), (7117, Some(2), Some(7)), "SYN_SENT is 2");
    assert!(event.sport > 0 && event.pid.is_some());
    assert_eq!(events(elsewhere.stop().0), vec![], "another cgroup's capture");
}
