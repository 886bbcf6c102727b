//! An agent's rows about its host and itself, asked for in SQL like any others. Needs root.

mod common;

use std::process::{Child, Command, Stdio};

use common::jobs::{Cgroups, Job, process_of_rank, workloads};
use common::{Lab, can_capture, stdout, wait_for};
use serde_json::Value;

fn rows(lab: &Lab, sql: &str) -> Value {
    lab.query("host", sql, &[]).0["rows"].clone()
}

/// Waits until the question's one value is 1.
fn wait_until(lab: &Lab, what: &str, sql: &str) {
    wait_for(what, || {
        let (answer, _) = lab.query("host", sql, &[]);
        if answer["rows"][0][0] == 1 { Ok(()) } else { Err(answer.to_string()) }
    });
}

#[test]
fn an_agent_tells_of_its_host_its_ranks_waits_and_its_own_cost() {
    if !can_capture("an_agent_tells_of_its_host_its_ranks_waits_and_its_own_cost") {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("host", &["job"]);
    let cgroup = cgroups.path("job").display().to_string();
    lab.start("host", &["--cgroup", &cgroup]);
    let job = Command::new(workloads(&lab).join("nccl-ranks"))
        .args(["--ranks", "2", "--iters", "100000", "--work-ms", "20", "--cgroups", &cgroup])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("the job starts");
    let job = Job(job);

    // The host, sampled.
    wait_until(
        &lab,
        "two samples of the host",
        "SELECT count(*) >= 2 AND max(cpu_busy_pct) BETWEEN 0 AND 100 AND min(memory_total_bytes) > 0 FROM host_samples",
    );
    // Why ranks are off the CPU. Root's agent has given up its privileges and knows the kernel's
    // functions all the same.
    wait_until(
        &lab,
        "sleeps of both ranks with their reason",
        "SELECT count(DISTINCT rank) = 2 FROM offcpu WHERE reason = 'sleep' AND wchan LIKE '%nanosleep' \
         AND run_delay_ns BETWEEN 0 AND duration_ns",
    );
    // Its own cost: recorded every ten seconds.
    wait_until(
        &lab,
        "the agent's own cost",
        "SELECT count(DISTINCT name) = 7 FROM self_stats WHERE value > 0 AND name IN ('agent.cpu', 'agent.rss', \
         'store.stored', 'capture.call_cost', 'capture.rank_share', 'program.on_switch.cpu', 'probe.libnccl:ncclAllReduce.hits')",
    );
    // The call that each rank died in is a row without an end, and in no sum.
    drop(job);
    wait_until(
        &lab,
        "sums by cgroup that equal the calls",
        "SELECT count(*) = 1 AND max(p.cgroup_path) LIKE '%/job' \
         AND max(s.calls) = (SELECT count(*) FROM collectives WHERE duration_ns IS NOT NULL) \
         FROM (SELECT cgroup_id, sum(count) AS calls FROM call_rollups WHERE source = 'nccl' GROUP BY cgroup_id) s \
         JOIN (SELECT DISTINCT cgroup_id, cgroup_path FROM processes WHERE rank IS NOT NULL) p USING (cgroup_id)",
    );
    // The ranks' ends are known, with how.
    wait_until(
        &lab,
        "the ends of both ranks",
        "SELECT count(*) = 2 FROM process_events e JOIN processes p USING (pid) WHERE e.event = 'exit' \
         AND p.rank IS NOT NULL AND p.uid = 0",
    );
    let tables = ["block_io", "memory_events", "fabric_counters", "gpu_samples"];
    for table in tables {
        assert!(rows(&lab, &format!("SELECT count(*) FROM {table}"))[0][0].is_u64(), "{table}");
    }
}

/// The reports of the ranks of a job that has ended, one JSON line each.
fn ended(job: Child) -> Vec<Value> {
    let output = job.wait_with_output().expect("the job ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

#[test]
fn each_tenants_sums_are_its_own() {
    if !can_capture("each_tenants_sums_are_its_own") {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("tenants", &["ada", "bob"]);
    lab.start("host", &["--cgroup", &cgroups.0[0].display().to_string()]);
    let bin = workloads(&lab);
    let begin = lab.path("begin");
    let start = |tenant: &str, ranks: &str, iters: &str| {
        Command::new(bin.join("nccl-ranks"))
            .args(["--ranks", ranks, "--iters", iters, "--work-ms", "5", "--mode", "enqueue", "--start-file"])
            .arg(&begin)
            .arg("--cgroups")
            .arg(cgroups.path(tenant))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the job starts")
    };
    // side by side, for the same second to hold calls of both
    let jobs = [("ada", start("ada", "2", "150")), ("bob", start("bob", "3", "90"))];
    // their libraries probed, so that not even the first call is missed
    wait_for("the libraries to be found", || {
        let log = lab.log("host");
        let found = ["libnccl.so.2", "libcudart.so.12"].iter().all(|name| log.contains(&format!("job/{name}")));
        if found { Ok(()) } else { Err(log) }
    });
    wait_until(&lab, "the ranks to be known", "SELECT count(DISTINCT pid) = 5 FROM processes WHERE rank IS NOT NULL");
    std::fs::write(&begin, "").expect("a file");
    for (tenant, job) in jobs {
        let ranks = ended(job);
        let reduced: u64 = ranks.iter().map(|rank| rank["calls"]["all_reduce"].as_u64().expect("a count")).sum();
        assert_eq!(reduced, if tenant == "ada" { 300 } else { 270 });
        // every call, by the sums alone: of NCCL, and of CUDA, which has rows of few
        for (source, func) in [("nccl", "all_reduce"), ("cuda", "cudaStreamSynchronize")] {
            wait_until(
                &lab,
                &format!("{tenant}'s {func}"),
                &format!(
                    "SELECT sum(s.count) = {reduced} AND count(DISTINCT s.pid) = {ranks} FROM call_rollups s \
                     WHERE source = '{source}' AND func = '{func}' AND cgroup_id IN \
                     (SELECT cgroup_id FROM processes WHERE cgroup_path LIKE '%/{tenant}' AND rank IS NOT NULL)",
                    ranks = ranks.len()
                ),
            );
        }
        // time off the CPU, likewise
        wait_until(
            &lab,
            &format!("{tenant}'s time off the CPU"),
            &format!(
                "SELECT sum(s.sum_ns) > 0 AND sum(s.sum_ns) = (SELECT sum(duration_ns) FROM offcpu WHERE pid IN \
                 (SELECT pid FROM processes WHERE cgroup_path LIKE '%/{tenant}')) FROM call_rollups s \
                 WHERE source = 'offcpu' AND cgroup_id IN (SELECT cgroup_id FROM processes WHERE cgroup_path LIKE '%/{tenant}')"
            ),
        );
    }
    let tenants = "SELECT count(DISTINCT cgroup_id) FROM call_rollups WHERE source = 'nccl'";
    assert_eq!(rows(&lab, tenants)[0][0], 2, "nobody else's");
}

#[test]
fn the_call_that_a_rank_died_in_is_a_row() {
    if !can_capture("the_call_that_a_rank_died_in_is_a_row") {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("died", &["job"]);
    let cgroup = cgroups.path("job").display().to_string();
    lab.start("host", &["--cgroup", &cgroup]);
    let bin = workloads(&lab);
    let begin = lab.path("begin");
    let job = Command::new(bin.join("nccl-ranks"))
        .args(["--ranks", "2", "--iters", "3", "--work-ms", "1", "--late-rank", "1", "--late-ms", "600000"])
        .args(["--cgroups", &cgroup, "--start-file"])
        .arg(&begin)
        .env("NCCL_SIM_TIMEOUT_MS", "600000")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("the job starts");
    let _job = Job(job);
    // followed, and so probed, before its communicator is made
    wait_until(&lab, "the ranks to be known", "SELECT count(DISTINCT pid) = 2 FROM processes WHERE rank IS NOT NULL");
    std::fs::write(&begin, "").expect("a file");
    wait_until(
        &lab,
        "rank 0, which waits for the other in its first call",
        "SELECT count(*) = 1 FROM processes WHERE rank = 0 AND pid IN (SELECT pid FROM offcpu)",
    );
    wait_for("rank 0 is in its call", || {
        let open = stdout(&lab.ask("host", "stragglers", &["--since", "60s"]));
        if open.contains("all_reduce") { Ok(()) } else { Err(open) }
    });
    let pid = process_of_rank(&bin, 0).expect("rank 0");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).expect("killed");
    wait_until(
        &lab,
        "the row of the call, and of the end",
        "SELECT count(*) = 1 FROM collectives c JOIN process_events e USING (pid) WHERE c.rank = 0 AND c.seq = 0 \
         AND c.func = 'all_reduce' AND c.bytes = 4096 AND c.duration_ns IS NULL AND c.ret IS NULL AND e.event = 'exit' \
         AND e.signal = 9 AND e.ts_ns > c.ts_ns",
    );
    assert_eq!(rows(&lab, "SELECT count(*) FROM collectives WHERE duration_ns IS NOT NULL")[0][0], 0);
    assert_eq!(rows(&lab, "SELECT count(*) FROM capture_loss")[0][0], 0, "it is no loss");
}
