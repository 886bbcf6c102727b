//! What an agent tells of its host and of itself, asked as anybody would: in SQL. Needs root.

mod common;

use std::process::{Command, Stdio};

use common::jobs::{Cgroups, Job, workloads};
use common::{Lab, can_capture, wait_for};
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
    // Why ranks are off the CPU. Root's agent has given up its privileges and knows the kernel's functions all the same.
    wait_until(
        &lab,
        "sleeps of both ranks with their reason",
        "SELECT count(DISTINCT rank) = 2 FROM offcpu WHERE reason = 'sleep' AND wchan LIKE '%nanosleep' \
         AND run_delay_ns BETWEEN 0 AND duration_ns",
    );
    // Its own cost: told every ten seconds.
    wait_until(
        &lab,
        "the agent's own cost",
        "SELECT count(DISTINCT name) = 5 FROM self_stats WHERE value > 0 AND name IN ('agent.cpu', 'agent.rss', \
         'store.stored', 'program.on_switch.cpu', 'probe.libnccl:ncclAllReduce.hits')",
    );
    // Sums per tenant, without a look at the raw rows, equal to them.
    drop(job);
    wait_until(
        &lab,
        "sums by cgroup that equal the calls",
        "SELECT count(*) = 1 AND max(p.cgroup_path) LIKE '%/job' AND max(s.calls) = (SELECT count(*) FROM collectives) \
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
