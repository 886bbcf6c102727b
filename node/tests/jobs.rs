//! Several jobs on one mesh, live: a verdict for each, from its judges, at every agent; and a judge
//! that dies. Real eBPF on real processes, four agents with a cgroup each. Needs root.

mod common;

use std::collections::BTreeSet;
use std::time::Instant;

use common::jobs::{Cgroups, mpi_job, mpi_script, workloads};
use common::{Lab, can_capture, stderr, stdout, wait_for};
use serde_json::Value;
use store::{Finding, Store, StoreConfig};

const AGENTS: [&str; 4] = ["m1", "m2", "m3", "m4"];

fn standing(lab: &Lab, coordinator: &str, more: &[&str]) -> Result<Value, String> {
    let output = lab.ask(coordinator, "stragglers", &[&["--format", "json"], more].concat());
    serde_json::from_slice(&output.stdout).map_err(|error| format!("{error}: {}", stderr(&output)))
}

/// The judges of a job, by an answer.
fn judges(about: &Value) -> BTreeSet<String> {
    let judges = about["judges"].as_array().into_iter().flatten();
    judges.filter_map(|judge| judge["judge"].as_str().map(str::to_owned)).collect()
}

#[test]
fn each_job_has_a_verdict_of_its_own_judges_at_every_agent_and_a_dead_judge_is_replaced() {
    if !can_capture("each_job_has_a_verdict_of_its_own_judges_at_every_agent_and_a_dead_judge_is_replaced") {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("jobs", &AGENTS);
    // m2 was the culprit of three other jobs of these hosts this month.
    let seed = tempfile::tempdir().expect("a directory");
    let store = Store::open(seed.path().join("m1.db"), StoreConfig::default()).expect("a store");
    for (job, hours) in [("before", 30), ("long before", 200), ("at first", 300)] {
        let ts_ns = record::unix_now_ns() - hours * 3_600_000_000_000;
        let (verdict, node, job) = ("rank".to_owned(), Some("m2".to_owned()), Some(job.to_owned()));
        let since_ns = ts_ns;
        store.ingest().finding(Finding {
            ts_ns,
            since_ns,
            until_ns: ts_ns,
            verdict,
            culprit_node: node,
            job_id: job,
            detail: serde_json::json!({ "job": { "hosts": AGENTS } }).to_string(),
            ..Finding::default()
        });
    }
    store.close();
    std::fs::copy(seed.path().join("m1.db"), lab.path("m1.db")).expect("copied");
    for name in AGENTS {
        lab.start(name, &["--cgroup", &cgroups.path(name).display().to_string()]);
    }
    lab.wait_for_members(&AGENTS);
    let late = lab.path("late");
    std::fs::write(&late, "3 60\n").expect("written");
    let _large = mpi_job(&lab, &cgroups, &format!("--iters 1000000 --work-ms 20 --late-file {}", late.display()));
    // On the first two hosts alone.
    let bin = workloads(&lab).join("mpi-ranks");
    let _small = mpi_script(&lab, &cgroups, 4, &format!("{} --iters 1000000 --work-ms 20", bin.display()));

    let answers = AGENTS.map(|coordinator| {
        wait_for(&format!("{coordinator} knows of both jobs"), || {
            let answer = standing(&lab, coordinator, &[])?;
            let (large, small) = (&answer["standing"], &answer["other_jobs"][0]);
            let named = answer["verdict"]["kind"] == "rank" && answer["verdict"]["rank"] == 3;
            let both = large["nranks"] == 8 && small["standing"]["nranks"] == 4;
            let judged = judges(large).len() == 3 && judges(&small["standing"]).len() == 2;
            let well = small["verdict"]["kind"] == "none" && answer["other_jobs"].as_array().map(Vec::len) == Some(1);
            if named && both && judged && well { Ok(answer) } else { Err(answer.to_string()) }
        })
    });
    let of = |which: fn(&Value) -> &Value| answers.iter().map(|answer| judges(which(answer))).collect::<BTreeSet<_>>();
    assert_eq!(of(|answer| &answer["standing"]).len(), 1, "all agents name the same judges");
    let small = of(|answer| &answer["other_jobs"][0]["standing"]);
    assert_eq!(small, BTreeSet::from([BTreeSet::from(["m1".to_owned(), "m2".to_owned()])]));
    // Its host was the culprit of three other jobs; but this delay is the program's own, which sleeps
    // by its own doing: nothing is said of the host.
    wait_for("the finding with its cause", || {
        let sql = "SELECT count(*) FROM findings WHERE culprit_node = 'm2' AND ts_ns > unixepoch() * 1000000000 - 3600000000000 \
                   AND json_extract(detail, '$.cause.named') LIKE '%sleep%'";
        let (answer, _) = lab.query("m3", sql, &[]);
        if answer["rows"][0][0].as_i64() > Some(0) { Ok(()) } else { Err(answer.to_string()) }
    });
    let (repeated, _) = lab.query("m3", "SELECT count(*) FROM findings WHERE verdict = 'repeat_culprit'", &[]);
    assert_eq!(repeated["rows"][0][0], 0, "{repeated}");
    // What jobs there are, and who was waited for, of the mesh.
    let output = lab.ask("m4", "jobs", &["--format", "json", "--sacct", "off", "--timeout", "60s"]);
    let listed: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    let listed = listed["jobs"].as_array().expect("jobs");
    let large = listed.iter().find(|job| job["ranks"] == 8).expect("the large job");
    assert_eq!((listed.len(), &large["waited"]["culprits"][0]["rank"]), (2, &3.into()), "{large}");
    assert!(large["steps"]["p50_ns"].as_i64().is_some_and(|ns| ns > 20_000_000), "{large}");
    assert_eq!(large["verdicts"][0]["node"], "m2", "{large}");
    // The full report, also from a judge that is another host: all ranks are in it.
    for answer in &answers {
        assert_eq!(answer["per_comm"][0]["ranks"].as_array().map(Vec::len), Some(8), "{answer}");
    }

    let small = &answers[3]["other_jobs"][0]["standing"];
    let id = small["job_id"].as_str().expect("mpirun gives its job a name");
    let alone = wait_for("one job alone", || {
        let answer = standing(&lab, "m4", &["--job", id])?;
        if answer["standing"]["job"] == small["job"] { Ok(answer) } else { Err(answer.to_string()) }
    });
    assert_eq!((&alone["standing"]["nranks"], &alone["other_jobs"]), (&4.into(), &Value::Null), "{alone}");
    let text = stdout(&lab.ask("m4", "stragglers", &[]));
    assert!(text.contains("Rank 3 on host m2 holds up") && text.contains("(4 ranks):"), "{text}");

    // A judge that has no part in the delay.
    let before = judges(&answers[0]["standing"]);
    let gone = before.iter().find(|judge| *judge != "m2").expect("three judges").clone();
    let left: BTreeSet<String> = AGENTS.iter().filter(|name| **name != gone).map(|name| (*name).to_owned()).collect();
    // (Stopped: a host that is off refuses nothing, it does not answer.)
    let agent = nix::unistd::Pid::from_raw(lab.pid(&gone).cast_signed());
    nix::sys::signal::kill(agent, nix::sys::signal::Signal::SIGSTOP).expect("stopped");
    let stopped = Instant::now();
    let answers_come = |what: &str, enough: fn(&BTreeSet<String>, &BTreeSet<String>) -> bool| {
        let answers_come = |coordinator: &str| {
            wait_for(&format!("{coordinator} {what}"), || {
                let answer = standing(&lab, coordinator, &[])?;
                let all = std::iter::once(&answer["standing"]);
                let others = answer["other_jobs"].as_array().into_iter().flatten().map(|other| &other["standing"]);
                let large = all.chain(others).find(|about| about["nranks"] == 8).ok_or("no verdict")?;
                if enough(&judges(large), &left) { Ok(()) } else { Err(large.to_string()) }
            });
        };
        std::thread::scope(|scope| {
            for coordinator in &left {
                scope.spawn(|| answers_come(coordinator));
            }
        });
    };
    answers_come("answers of all judges that are left", |judges, left| judges.is_superset(left));
    eprintln!("{gone} was replaced after {:?}", stopped.elapsed());
    nix::sys::signal::kill(agent, nix::sys::signal::Signal::SIGKILL).expect("killed");
    answers_come("no answer of a dead judge", |judges, left| judges == left);
}
