//! What an agent that is killed or does not run does to the ranks: nothing. Needs root.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use common::jobs::{Cgroups, Job, workloads};
use common::{Lab, can_capture, stderr, stdout, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The ids of the BPF links that a process holds.
fn links_of(pid: u32) -> BTreeSet<u32> {
    let open = fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("a process");
    let text = open.flatten().filter_map(|entry| fs::read_to_string(entry.path()).ok());
    text.filter_map(|text| text.lines().find_map(|line| line.strip_prefix("link_id:")?.trim().parse().ok())).collect()
}

/// Those of them that the kernel still has.
fn links_left(links: &BTreeSet<u32>) -> BTreeSet<u32> {
    libbpf_rs::query::LinkInfoIter::default().map(|link| link.id).filter(|id| links.contains(id)).collect()
}

/// A workload, in the cgroup.
fn in_cgroup(cgroup: &Path, program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(r#"echo $$ > "$0/cgroup.procs" && exec "$@""#).arg(cgroup);
    command.arg(program).args(arguments).stdin(Stdio::null());
    command
}

#[test]
fn a_killed_agent_leaves_no_probe_behind_and_the_job_goes_on() {
    if !can_capture("a_killed_agent_leaves_no_probe_behind_and_the_job_goes_on") {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("killed", &["jobs"]);
    let cgroup = cgroups.path("jobs");
    lab.start("m1", &["--cgroup", &cgroup.display().to_string()]);
    let ranks = workloads(&lab).join("nccl-ranks");
    let log = fs::File::create(lab.path("job.log")).expect("a file");
    // slow while this file is there, so that it has most of its steps before it when the agent is
    // killed
    let slow = lab.path("slow");
    fs::write(&slow, "1 250\n").expect("written");
    let steps = ["--ranks", "2", "--iters", "400", "--work-ms", "10", "--late-file", &slow.display().to_string()];
    let job = in_cgroup(cgroup, &ranks, &steps).stdout(log).spawn();
    let mut job = Job(job.expect("the job starts"));
    wait_for("calls are recorded", || {
        let (answer, _) = lab.query("m1", "SELECT count(*) > 20 FROM collectives", &[]);
        if answer["rows"][0][0] == 1 { Ok(()) } else { Err(lab.log("m1")) }
    });
    let links = links_of(lab.pid("m1"));
    assert!(links.len() > 3, "probes on calls and tracepoints: {links:?}");
    assert_eq!(links_left(&links), links);
    lab.kill("m1");
    assert!(job.0.try_wait().expect("wait").is_none(), "the job is to run on; it ended too soon to tell");
    fs::remove_file(&slow).expect("removed");
    wait_for("the probes are gone", || {
        let left = links_left(&links);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    assert!(job.0.wait().expect("wait").success());
    let printed = fs::read_to_string(lab.path("job.log")).expect("what the ranks printed");
    assert_eq!(printed.matches("\"ok\":true").count(), 2, "{printed}");
}

#[test]
fn a_stopped_agent_blocks_no_rank_and_counts_what_it_missed() {
    if !can_capture("a_stopped_agent_blocks_no_rank_and_counts_what_it_missed") {
        return;
    }
    const CALLS: i64 = 200_000; // several times what the ring buffer holds
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("stopped", &["jobs"]);
    let cgroup = cgroups.path("jobs");
    lab.start("m1", &["--cgroup", &cgroup.display().to_string()]);
    let made = workloads(&lab);
    let run = |calls: i64| {
        let calls = calls.to_string();
        let output = in_cgroup(cgroup, &made.join("nccl-rate"), &["--rate", "1000000", "--calls", &calls]).output();
        let output = output.expect("runs");
        assert!(output.status.success(), "{}", stderr(&output));
        let printed: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("json");
        printed["pid"].as_i64().expect("a process id")
    };
    // Once for the agent to know the library.
    wait_for("the library is found", || {
        run(1);
        if lab.log("m1").contains("noop/libnccl.so.2") { Ok(()) } else { Err(lab.log("m1")) }
    });
    let agent = Pid::from_raw(lab.pid("m1") as i32);
    kill(agent, Signal::SIGSTOP).expect("stopped");
    let pid = run(CALLS);
    let status = fs::read_to_string(format!("/proc/{agent}/status")).expect("a process");
    assert!(status.contains("State:\tT"), "the agent was to be stopped all the time: {status}");
    kill(agent, Signal::SIGCONT).expect("continued");
    let (stored, lost) = wait_for("every call is stored or counted as lost", || {
        let number = |sql: &str| lab.query("m1", sql, &[]).0["rows"][0][0].as_i64().unwrap_or(-1);
        let stored = number(&format!("SELECT count(*) FROM collectives WHERE pid = {pid}"));
        let lost = number(
            "SELECT ifnull(sum(lost), 0) FROM capture_loss WHERE probe IN ('libnccl:ncclAllReduce', 'collectives')",
        );
        if stored + lost == CALLS { Ok((stored, lost)) } else { Err(format!("{stored} stored, {lost} lost")) }
    });
    assert!(stored > 0 && lost > 0, "{stored} stored, {lost} lost");
}
