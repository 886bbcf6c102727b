//! Live, on calls that only enqueue, as the real NCCL's do: the late rank is named from the
//! synchronise calls, replayed graphs are noted as a blind spot, and jobs that ran before the
//! agents started are judged. Needs root.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Killed, Lab, can_capture, stderr, wait_for};
use serde_json::Value;

const AGENTS: [&str; 4] = ["m1", "m2", "m3", "m4"];

/// A cgroup for each agent, removed at the end with all that runs in them.
struct Cgroups(PathBuf);

impl Cgroups {
    fn new(test: &str) -> Self {
        let root = node_bpf::cgroup_mount_point().expect("a cgroup v2 hierarchy");
        let top = root.join(format!("rankmesh-enqueue-{test}-{}", std::process::id()));
        std::fs::create_dir(&top).expect("a cgroup");
        for name in AGENTS {
            std::fs::create_dir(top.join(name)).expect("a cgroup");
        }
        Self(top)
    }

    fn list(&self) -> String {
        AGENTS.map(|name| self.0.join(name).display().to_string()).join(",")
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        let until = Instant::now() + Duration::from_secs(60);
        for path in AGENTS.iter().map(|name| self.0.join(name)).chain([self.0.clone()]) {
            let _ = std::fs::write(path.join("cgroup.kill"), "1");
            while std::fs::remove_dir(&path).is_err() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// nccl-ranks with eight ranks, two to an agent.
fn job(bin: &Path, cgroups: &Cgroups, flags: &[&str]) -> Killed {
    let child = Command::new(bin.join("nccl-ranks"))
        .args(["--ranks", "8", "--iters", "1000000", "--cgroups", &cgroups.list()])
        .args(flags)
        .env("NCCL_SIM_TIMEOUT_MS", "600000")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("the job starts");
    Killed(child)
}

fn workloads(lab: &Lab) -> PathBuf {
    let out = lab.path("job");
    let scenarios = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    let made =
        Command::new("make").arg("-C").arg(scenarios).arg(format!("OUT={}", out.display())).output().expect("make");
    assert!(made.status.success(), "{}", stderr(&made));
    out
}

fn start_agents(lab: &mut Lab, cgroups: &Cgroups) {
    for name in AGENTS {
        lab.start(name, &["--cgroup", &cgroups.0.join(name).display().to_string()]);
    }
    lab.wait_for_members(&AGENTS);
}

/// Runs a job until every agent has found and probed its libraries: what follows is seen from its
/// first call on.
fn prime(lab: &Lab, bin: &Path, cgroups: &Cgroups) {
    let first = job(bin, cgroups, &["--mode", "enqueue", "--work-ms", "20"]);
    wait_for("every agent to count CUDA calls", || {
        let sql = "SELECT count(DISTINCT node) FROM call_rollups WHERE func = 'cudaStreamSynchronize'";
        let (answer, _) = lab.query("m1", sql, &[]);
        if answer["rows"][0][0] == AGENTS.len() { Ok(()) } else { Err(answer["rows"].to_string()) }
    });
    drop(first);
    // its ranks follow it, but not at once, and must not be taken for the next job's
    wait_for("the first job's ranks to be gone", || match (0..8).find_map(|rank| process_of_rank(bin, rank)) {
        Some(pid) => Err(format!("{pid} is still there")),
        None => Ok(()),
    });
}

/// The standing verdict, as an agent gives it.
fn standing(lab: &Lab, coordinator: &str) -> Result<Value, String> {
    stragglers(lab, coordinator, &[])
}

/// The verdict of the stores' last `since`.
fn report(lab: &Lab, coordinator: &str, since: &str) -> Result<Value, String> {
    stragglers(lab, coordinator, &["--since", since])
}

fn stragglers(lab: &Lab, coordinator: &str, flags: &[&str]) -> Result<Value, String> {
    let output = lab.ask(coordinator, "stragglers", &[flags, &["--format", "json"]].concat());
    if !output.status.success() {
        return Err(stderr(&output));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}

fn wait_for_rank(lab: &Lab, rank: i32, node: &str) -> Value {
    let found = wait_for("the late rank is named", || {
        let answer = report(lab, "m1", "8s")?;
        if answer["verdict"]["kind"] == "rank" { Ok(answer) } else { Err(answer["verdict"].to_string()) }
    });
    assert_eq!(
        (&found["verdict"]["rank"], &found["verdict"]["node"]),
        (&rank.into(), &node.into()),
        "{}",
        found["verdict"]
    );
    found
}

/// The steps before the graph show that rank 3 is late; nobody else ever is.
fn assert_no_wrong_name(answer: &Value) {
    let verdict = &answer["verdict"];
    assert!(verdict["kind"] != "rank" || verdict["rank"] == 3, "{verdict}");
    assert_ne!(verdict["kind"], "hang", "{verdict}");
}

#[test]
fn the_late_rank_is_named_where_calls_only_enqueue_and_a_stopped_one_is_a_hang() {
    if !can_capture("the_late_rank_is_named_where_calls_only_enqueue_and_a_stopped_one_is_a_hang") {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("late");
    start_agents(&mut lab, &cgroups);
    let bin = workloads(&lab);
    prime(&lab, &bin, &cgroups);
    let flags = ["--mode", "enqueue", "--work-ms", "20", "--late-rank", "3", "--late-ms", "60"];
    let late = job(&bin, &cgroups, &flags);
    // at once, maybe by the entries; by the waits as soon as the span holds nothing but this job
    wait_for_rank(&lab, 3, "m2");
    wait_for("the synchronise calls to be the evidence", || {
        let answer = report(&lab, "m3", "4s")?;
        let verdict = &answer["verdict"];
        assert!(verdict["kind"] != "rank" || verdict["rank"] == 3, "{verdict}");
        let named = (verdict["kind"] == "rank", answer["evidence"]["tier"].as_i64());
        if named == (true, Some(1)) { Ok(()) } else { Err(format!("{verdict} {}", answer["evidence"])) }
    });
    wait_for("they are the evidence of the standing verdict, too", || {
        let answer = standing(&lab, "m2")?;
        let verdict = &answer["verdict"];
        assert!(verdict["kind"] != "rank" || verdict["rank"] == 3, "{verdict}");
        let on_waits = (verdict["basis"].as_str(), answer["evidence"]["tier"].as_i64());
        if on_waits == (Some("waits"), Some(1)) { Ok(()) } else { Err(format!("{verdict} {}", answer["evidence"])) }
    });
    drop(late);

    let _healthy = job(&bin, &cgroups, &["--mode", "enqueue", "--work-ms", "20"]);
    let sql = "SELECT count(DISTINCT rank) FROM collectives WHERE pid IN (SELECT pid FROM cuda_calls \
               WHERE kind = 'after_collective') AND seq > 50 AND ts_ns > (SELECT max(ts_ns) FROM collectives) - 1000000000";
    wait_for("every rank of the healthy job is in the verdict", || {
        let (answer, _) = lab.query("m1", sql, &[]);
        if answer["rows"][0][0] == 8 { Ok(()) } else { Err(answer["rows"].to_string()) }
    });
    wait_for("the late job is out of the span, and nobody is named", || {
        let answer = report(&lab, "m2", "2s")?;
        if answer["verdict"]["kind"] == "none" { Ok(()) } else { Err(answer["verdict"].to_string()) }
    });
    let rank = wait_for("the process of rank 5", || process_of_rank(&bin, 5).ok_or_else(|| "not found".to_owned()));
    let rank = nix::unistd::Pid::from_raw(rank);
    nix::sys::signal::kill(rank, nix::sys::signal::Signal::SIGSTOP).expect("stopped");
    let hang = wait_for("the hang is reported", || {
        let answer = report(&lab, "m1", "10s")?;
        if answer["verdict"]["kind"] == "hang" { Ok(answer) } else { Err(answer["verdict"].to_string()) }
    });
    let missing = hang["verdict"]["missing"].as_array().expect("who is missing");
    assert_eq!(missing.len(), 1, "{hang}");
    assert_eq!((&missing[0]["rank"], &missing[0]["node"]), (&5.into(), &"m3".into()), "{hang}");
    common::assert_hang_by_sql(&lab, "m4");
    nix::sys::signal::kill(rank, nix::sys::signal::Signal::SIGKILL).expect("killed");
}

/// The process of a rank, by the rank in its environment and the directory of its program.
fn process_of_rank(bin: &Path, rank: u32) -> Option<i32> {
    procfs::process::all_processes().ok()?.flatten().find_map(|process| {
        let of_this_job = process.exe().ok()?.starts_with(bin);
        let environ = process.environ().ok()?;
        let is_rank = environ.get(std::ffi::OsStr::new("RANK"))? == rank.to_string().as_str();
        (of_this_job && is_rank).then_some(process.pid)
    })
}

#[test]
fn replayed_graphs_are_a_blind_spot_and_nobody_is_named() {
    if !can_capture("replayed_graphs_are_a_blind_spot_and_nobody_is_named") {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("graph");
    start_agents(&mut lab, &cgroups);
    let bin = workloads(&lab);
    prime(&lab, &bin, &cgroups);
    let flags = ["--mode", "graph", "--work-ms", "20", "--late-rank", "3", "--late-ms", "60"];
    let _job = job(&bin, &cgroups, &flags);
    wait_for("every rank replays", || {
        let sql = "SELECT count(DISTINCT pid) FROM call_rollups WHERE func = 'cudaGraphLaunch'";
        let (answer, _) = lab.query("m1", sql, &[]);
        assert_no_wrong_name(&report(&lab, "m1", "10s")?);
        if answer["rows"][0][0] == 8 { Ok(()) } else { Err(answer["rows"].to_string()) }
    });
    // what was captured and the sums of launches come to the store by different ways
    wait_for("what was captured is stored", || {
        let sql = "SELECT count(*), count(DISTINCT rank) FROM collectives WHERE captured = 1";
        let (answer, _) = lab.query("m1", sql, &[]);
        if answer["rows"][0] == serde_json::json!([8, 8]) { Ok(()) } else { Err(answer["rows"].to_string()) }
    });
    // the steps before the graph drop out of the span; the rest is noted as not visible
    let blind = wait_for("only replays are left", || {
        let answer = report(&lab, "m1", "3s")?;
        assert_no_wrong_name(&answer);
        if answer["verdict"]["kind"] == "unknown" { Ok(answer) } else { Err(answer["verdict"].to_string()) }
    });
    let notes = blind["coverage"]["notes"].to_string();
    assert!(notes.contains("times by 8 processes, 8 collective calls were captured"), "{blind}");
}

#[test]
fn a_job_that_ran_before_the_agents_came_is_understood() {
    if !can_capture("a_job_that_ran_before_the_agents_came_is_understood") {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("before");
    let bin = workloads(&lab);
    // calls are matched by when they end: steps long enough for a busy machine to end them together
    let flags = ["--mode", "enqueue", "--work-ms", "100", "--late-rank", "6", "--late-ms", "300"];
    let _job = job(&bin, &cgroups, &flags);
    wait_for("the job to run", || process_of_rank(&bin, 7).map(|_| ()).ok_or_else(|| "not yet".to_owned()));
    start_agents(&mut lab, &cgroups);
    wait_for_rank(&lab, 6, "m4");
    let sql =
        "SELECT count(*), count(DISTINCT rank), count(DISTINCT comm_hash), min(nranks), count(seq) FROM collectives";
    wait_for("calls of all ranks, and who they are", || {
        let (answer, _) = lab.query("m1", sql, &[]);
        let row = answer["rows"][0].as_array().expect("a row");
        if row[1..] == [8, 1, 8, 0] { Ok(()) } else { Err(answer["rows"].to_string()) }
    });
    // each host numbers its calls by what the others gossip: the standing verdict is made of
    // digests
    for coordinator in AGENTS {
        wait_for(&format!("{coordinator} names the late rank by digests"), || {
            let answer = standing(&lab, coordinator)?;
            let verdict = &answer["verdict"];
            assert!(verdict["kind"] != "rank" || (verdict["rank"] == 6 && verdict["node"] == "m4"), "{verdict}");
            // answered from the stores where no digest can be compared yet
            let by_digests = answer["standing"]["heard"] == 4;
            if by_digests && verdict["kind"] == "rank" { Ok(()) } else { Err(answer.to_string()) }
        });
    }
}

/// Stages of a pipeline that meet in sends and receives alone; hosts run ahead and wait for their
/// devices in every tenth step. Nothing makes all of them meet: what tells is how long each waits.
#[test]
fn a_slow_stage_is_named_where_no_collective_is_called() {
    if !can_capture("a_slow_stage_is_named_where_no_collective_is_called") {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("stages");
    start_agents(&mut lab, &cgroups);
    let bin = workloads(&lab);
    prime(&lab, &bin, &cgroups);
    let late_file = lab.path("late");
    let late = late_file.display().to_string();
    let flags = ["--mode", "enqueue", "--pp", "8", "--pairs-only", "--wait-every", "10", "--work-ms", "10"];
    let _job = job(&bin, &cgroups, &[&flags[..], &["--late-file", &late]].concat());
    // Its own past is what tells a stage that became slow from one that has more to do.
    wait_for("ten seconds of all stages in which none is slow", || {
        let answer = standing(&lab, "m2")?;
        assert_ne!(answer["verdict"]["kind"], "rank", "{}", answer["verdict"]);
        let about = &answer["point_to_point"];
        let span_ns =
            about["until_ns"].as_i64().zip(about["since_ns"].as_i64()).map_or(0, |(until, since)| until - since);
        let all = about["heard"] == 8 && about["enqueued"] == true;
        if all && span_ns >= 10_000_000_000 { Ok(()) } else { Err(about.to_string()) }
    });
    let became_slow = Instant::now();
    std::fs::write(&late_file, "3 10").expect("the file is written");
    let named = |answer: &Value| {
        let verdict = &answer["verdict"];
        assert!(verdict["kind"] != "rank" || verdict["rank"] == 3, "{verdict}");
        if verdict["kind"] == "rank" { Ok(()) } else { Err(format!("{verdict} {}", answer["point_to_point"])) }
    };
    wait_for("the standing verdict names the slow stage", || named(&standing(&lab, "m2")?));
    // However long it takes: a span in which it always was slow tells of more work, and one that reaches
    // back to the job before holds both jobs. How long that is over depends on the machine.
    let before_s = std::cell::Cell::new(5);
    wait_for("so do the stores", || {
        before_s.set(5 + (before_s.get() - 4) % 10);
        named(&report(&lab, "m4", &format!("{}s", became_slow.elapsed().as_secs() + before_s.get()))?)
    });
}

/// In a job with tensor, data and pipeline parallel groups a late rank delays several stages: it
/// may be named, but no other rank.
fn groups_of_large_models(test: &str, mode: &str) {
    if !can_capture(test) {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new(mode);
    start_agents(&mut lab, &cgroups);
    let bin = workloads(&lab);
    prime(&lab, &bin, &cgroups);
    let shape = ["--tp", "2", "--pp", "2", "--dp", "2", "--mode", mode];
    let _job = job(&bin, &cgroups, &[&shape[..], &["--work-ms", "30", "--late-rank", "3", "--late-ms", "90"]].concat());
    let rank = wait_for("the process of rank 3", || process_of_rank(&bin, 3).ok_or_else(|| "not found".to_owned()));
    let steps = |n: u64| {
        let sql = format!(
            "SELECT count(*) FROM collectives WHERE pid = {rank} AND nranks = 8 AND func = 'all_reduce' AND seq >= {n}"
        );
        lab.query("m1", &sql, &[]).0["rows"][0][0].as_u64().unwrap_or(0)
    };
    let mut named = 0u32;
    for step in (30..=120).step_by(15) {
        wait_for("more steps", || if steps(step) > 0 { Ok(()) } else { Err(step.to_string()) });
        let answer = wait_for("a verdict of all", || report(&lab, "m1", "4s"));
        let verdict = &answer["verdict"];
        assert_ne!(verdict["kind"], "hang", "{verdict}");
        if verdict["kind"] == "rank" {
            assert_eq!((&verdict["pid"], &verdict["node"]), (&rank.into(), &"m2".into()), "{verdict}");
            named += 1;
        }
    }
    assert!(named > 0, "in the {mode} mode rank 3 was never named in seven questions");
}

#[test]
fn of_groups_of_large_models_no_wrong_rank_is_named_where_calls_wait() {
    groups_of_large_models("of_groups_of_large_models_no_wrong_rank_is_named_where_calls_wait", "blocking");
}

#[test]
fn of_groups_of_large_models_no_wrong_rank_is_named_where_calls_enqueue() {
    groups_of_large_models("of_groups_of_large_models_no_wrong_rank_is_named_where_calls_enqueue", "enqueue");
}
