//! Live: real eBPF on real processes, four agents with a cgroup each, asked through the command
//! line. Needs root.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::jobs::{Cgroups, Job, mpi_job, mpi_script, process_of_rank, workloads};
use common::{Lab, can_capture, has, rankmesh, stderr, stdout, wait_for};
use serde_json::Value;

const AGENTS: [&str; 4] = ["m1", "m2", "m3", "m4"];

fn start_agents(lab: &mut Lab, cgroups: &Cgroups) {
    common::jobs::start_agents(lab, cgroups, &AGENTS);
    for node in lab.nodes(AGENTS[0]).expect("nodes") {
        assert_eq!(node["capture"], "on", "{node}");
    }
}

fn verdict(lab: &Lab, coordinator: &str, since: &str) -> Result<Value, String> {
    let output = lab.ask(coordinator, "stragglers", &["--since", since, "--format", "json", "--timeout", "60s"]);
    if !output.status.success() {
        return Err(stderr(&output));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}

#[test]
fn open_mpi_late_rank_is_named_by_every_agent_and_a_healthy_job_by_none() {
    if !can_capture("open_mpi_late_rank_is_named_by_every_agent_and_a_healthy_job_by_none") {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("mpi", &AGENTS);
    start_agents(&mut lab, &cgroups);

    // Healthy first: nobody may be named while it runs or after it.
    let mut healthy = mpi_job(&lab, &cgroups, "--iters 200 --work-ms 20");
    let mut asked = 0;
    loop {
        let ended = healthy.0.try_wait().expect("wait");
        let answer = verdict(&lab, AGENTS[asked % AGENTS.len()], "60s").expect("a verdict");
        assert_ne!(answer["verdict"]["kind"], "rank", "a healthy job: {}", answer["verdict"]);
        asked += 1;
        if let Some(status) = ended {
            assert!(status.success(), "{}", std::fs::read_to_string(lab.path("mpi.log")).unwrap_or_default());
            break;
        }
        std::thread::sleep(Duration::from_millis(300));
    }
    wait_for("every call of the healthy job is stored", || {
        let (answer, _) = lab.query("m2", "SELECT count(*) FROM collectives WHERE func = 'all_reduce'", &[]);
        if answer["rows"][0][0] == 1600 { Ok(()) } else { Err(answer.to_string()) }
    });

    // Rank 3 enters 60 ms late: named by any agent alike.
    let late = mpi_job(&lab, &cgroups, "--iters 1000000 --work-ms 20 --late-rank 3 --late-ms 60");
    let started = Instant::now();
    let named_by = |coordinator: &str| {
        wait_for("rank 3 is named", || {
            let answer = verdict(&lab, coordinator, "10s")?;
            if answer["verdict"]["kind"] == "rank" { Ok(answer) } else { Err(answer["verdict"].to_string()) }
        })
    };
    named_by("m1");
    eprintln!("rank named {:?} after mpirun was started", started.elapsed());
    for coordinator in AGENTS {
        let answer = named_by(coordinator);
        let verdict = &answer["verdict"];
        assert_eq!(
            (&verdict["kind"], &verdict["rank"], &verdict["node"]),
            (&"rank".into(), &3.into(), &"m2".into()),
            "{verdict}"
        );
        assert_eq!(verdict["also"].as_array().map(Vec::len), Some(0), "{verdict}");
    }
    drop(late);
}

#[test]
fn a_stopped_rank_is_reported_as_a_hang_by_its_name() {
    if !can_capture("a_stopped_rank_is_reported_as_a_hang_by_its_name") {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("hang", &AGENTS);
    start_agents(&mut lab, &cgroups);
    let bin = workloads(&lab);
    let list = AGENTS.map(|name| cgroups.path(name).display().to_string()).join(",");
    let child = Command::new(bin.join("nccl-ranks"))
        .args(["--ranks", "8", "--iters", "100000", "--work-ms", "20", "--start-ms", "2500", "--cgroups", &list])
        .env("NCCL_SIM_TIMEOUT_MS", "600000")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("the job starts");
    let _job = Job(child);
    wait_for("every rank is in the verdict", || {
        let sql = "SELECT count(DISTINCT rank) FROM collectives WHERE comm_hash IS NOT NULL";
        let (answer, _) = lab.query("m1", sql, &[]);
        if answer["rows"][0][0] == 8 { Ok(()) } else { Err(answer["rows"].to_string()) }
    });
    let rank = wait_for("the process of rank 5", || process_of_rank(&bin, 5).ok_or_else(|| "not found".to_owned()));
    let rank = nix::unistd::Pid::from_raw(rank);
    nix::sys::signal::kill(rank, nix::sys::signal::Signal::SIGSTOP).expect("stopped");
    let stopped = Instant::now();
    let reported_by = |coordinator: &str| {
        wait_for("the hang is reported", || {
            let answer = verdict(&lab, coordinator, "10s")?;
            if answer["verdict"]["kind"] == "hang" { Ok(answer) } else { Err(answer["verdict"].to_string()) }
        })
    };
    let answer = reported_by("m1");
    eprintln!("reported {:?} after the rank was stopped", stopped.elapsed());
    let missing = answer["verdict"]["missing"].as_array().expect("who is missing");
    assert_eq!(missing.len(), 1, "{answer}");
    assert_eq!((&missing[0]["rank"], &missing[0]["node"]), (&5.into(), &"m3".into()), "{answer}");
    for coordinator in AGENTS {
        reported_by(coordinator);
    }
    common::assert_hang_by_sql(&lab, "m2");
    // Explained: who waits, where the stopped process stands, and what to do with it.
    let explained = wait_for("the hang is explained", || {
        let output = lab.ask("m2", "explain", &["--since", "10s", "--timeout", "60s", "--format", "json"]);
        let found: Value = serde_json::from_slice(&output.stdout).map_err(|_| stderr(&output))?;
        if found["verdict"] == "hang" { Ok(found) } else { Err(found["what"].to_string()) }
    });
    assert_eq!((&explained["place"]["rank"], &explained["runbook"]), (&5.into(), &"hang".into()), "{explained}");
    let links = explained["chain"].as_array().expect("a chain");
    let has_link =
        |words: &str| links.iter().any(|link| link["what"].as_str().is_some_and(|what| what.contains(words)));
    assert!(has_link("waits in it") && has_link("rank 5 stands at"), "{explained}");
    let page = stdout(&lab.ask("m2", "explain", &["--since", "10s", "--timeout", "60s"]));
    assert!(page.contains(&format!("/proc/{rank}/status")), "{page}");
    nix::sys::signal::kill(rank, nix::sys::signal::Signal::SIGCONT).expect("continued");
    wait_for("the hang is over", || {
        let answer = verdict(&lab, "m2", "2s")?;
        if answer["verdict"]["kind"] == "hang" { Err(answer["verdict"].to_string()) } else { Ok(()) }
    });
}

/// Runs the demo in a temporary directory of its own and checks that nothing is left there.
/// `MPI_Barrier` for ever; after 50 a file `called` followed by the rank.
const BARRIERS: &str = "
import sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
for step in range(1000000):
    world.Barrier()
    if step == 50:
        open(sys.argv[1] + str(world.rank), 'w').close()
    time.sleep(0.01)
";

#[test]
fn ranks_that_call_while_the_agents_have_no_cpu_are_numbered_from_their_first_call_on() {
    const TEST: &str = "ranks_that_call_while_the_agents_have_no_cpu_are_numbered_from_their_first_call_on";
    if !can_capture(TEST) || !has("mpirun", TEST) {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("early", &AGENTS);
    common::jobs::start_agents(&mut lab, &cgroups, &AGENTS[..2]);
    let agents = AGENTS[..2].iter().map(|name| nix::unistd::Pid::from_raw(lab.pid(name).cast_signed()));
    let signal_all = |signal| agents.clone().for_each(|pid| nix::sys::signal::kill(pid, signal).expect("signalled"));
    signal_all(nix::sys::signal::Signal::SIGSTOP);
    let (program, called) = (lab.path("barriers.py"), lab.path("called"));
    std::fs::write(&program, BARRIERS).expect("written");
    let command = format!("/usr/bin/python3 {} {}", program.display(), called.display());
    let _job = mpi_script(&lab, &cgroups, 4, &command);
    wait_for("every rank has called", || {
        let missing = (0..4).map(|rank| lab.path(&format!("called{rank}"))).find(|path| !path.exists());
        let log = || std::fs::read_to_string(lab.path("mpi.log")).unwrap_or_default();
        missing.map_or(Ok(()), |path| Err(format!("no {}: {}", path.display(), log())))
    });
    signal_all(nix::sys::signal::Signal::SIGCONT);
    let sql = "SELECT pid, max(rank), max(seq) - count(*) + 1, count(*) > 200 AND count(comm_hash) > 0, \
               count(*) - count(seq) FROM collectives WHERE func = 'barrier' GROUP BY pid ORDER BY 2";
    wait_for("every rank's calls have their numbers", || {
        let (answer, _) = lab.query("m1", sql, &[]);
        let rows = answer["rows"].as_array().cloned().unwrap_or_default();
        let is_right = |(rank, row): (i64, &Value)| row[1] == rank && row[2] == 0 && row[3] == 1 && row[4] == 0;
        if rows.len() == 4 && (0..).zip(&rows).all(is_right) { Ok(()) } else { Err(answer.to_string()) }
    });
}

fn demo(arguments: &[&str]) -> String {
    let temporary = tempfile::tempdir().expect("a directory");
    let output = rankmesh().arg("demo").args(arguments).env("TMPDIR", temporary.path()).output().expect("runs");
    let text = stdout(&output);
    assert!(output.status.success(), "{text}{}", stderr(&output));
    let left: Vec<_> = std::fs::read_dir(temporary.path()).expect("readable").collect();
    assert!(left.is_empty(), "the demo left {left:?}");
    assert!(text.contains("node-3"), "{text}");
    text
}

/// The README shows what this prints: each of its lines up to the verdict's cost begins as one does
/// here, but for figures and times.
fn has_readmes_screen(printed: &str) {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = std::fs::read_to_string(readme).expect("the README");
    let (_, screen) = readme.split_once("    Live: ").expect("a screen of the demo");
    let screen = format!("Live: {screen}");
    let shown = screen.lines().map(str::trim).take_while(|line| !line.starts_with("Cause:"));
    // Words wrap where figures have other lengths.
    let words = |text: &str| {
        let words = text.split_whitespace().filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    let printed = words(printed).join(" ");
    for line in shown.filter(|line| line.starts_with("Live:") || line.starts_with("$ ") || line.starts_with("Rank ")) {
        let line = words(line).join(" ");
        assert!(printed.contains(&line), "README shows: {line}\n{printed}");
    }
    assert!(
        ["$ rankmesh stragglers", "Cost:", " rank host late by waits z flagged"].iter().all(|of| printed.contains(of))
    );
}

#[test]
fn the_demo_names_the_late_rank_and_leaves_nothing_behind() {
    // Without root it replays, which is as good a test of everything but capture.
    let text = demo(&[]);
    if can_capture("the live form of the demo") {
        assert!(text.starts_with("Live:"), "{text}");
        has_readmes_screen(&text);
    } else {
        assert!(text.starts_with("Replay:"), "{text}");
    }
}

#[test]
fn the_replayed_demo_says_so_and_names_the_same_rank() {
    let text = demo(&["--replay"]);
    assert!(text.starts_with("Replay:"), "{text}");
}
