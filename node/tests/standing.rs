//! The standing verdict, live: real eBPF on real processes, four agents with a cgroup each. Needs
//! root.

mod common;

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Instant;

use common::jobs::{Cgroups, Job, mpi_job, process_of_rank, workloads};
use common::{Lab, can_capture, stderr, stdout, wait_for};
use nix::sys::signal::{Signal, kill};
use serde_json::Value;

const AGENTS: [&str; 4] = ["m1", "m2", "m3", "m4"];

/// Agents with a cgroup each; the first runs a command on findings.
fn agents(lab: &mut Lab, cgroups: &Cgroups) {
    let findings_file = lab.path("findings").display().to_string();
    let command = format!(
        "cat >> {findings_file}.json; echo \"$RANKMESH_VERDICT $RANKMESH_RANK $RANKMESH_NODE\" >> {findings_file}"
    );
    for name in AGENTS {
        let cgroup = cgroups.path(name).display().to_string();
        let mut flags = vec!["--cgroup", &cgroup];
        if name == AGENTS[0] {
            flags.extend(["--on-finding", &command]);
        }
        lab.start(name, &flags);
    }
    lab.wait_for_members(&AGENTS);
}

/// The standing verdict of an agent.
fn standing(lab: &Lab, coordinator: &str) -> Result<Value, String> {
    let output = lab.ask(coordinator, "stragglers", &["--format", "json"]);
    if !matches!(output.status.code(), Some(0 | 3)) {
        return Err(stderr(&output));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}

/// Waits until every agent's verdict is of a kind; gives the verdicts.
fn all_say(lab: &Lab, kind: &str) -> Vec<Value> {
    AGENTS
        .iter()
        .map(|coordinator| {
            wait_for(&format!("{coordinator} says {kind}"), || {
                let answer = standing(lab, coordinator)?;
                let settled = answer["standing"]["heard"] == 4 && answer["verdict"]["kind"] == kind;
                if settled { Ok(answer) } else { Err(format!("{} {}", answer["verdict"], answer["standing"])) }
            })
        })
        .collect()
}

#[test]
fn every_agent_names_the_late_rank_by_itself_and_reports_it_once() {
    if !can_capture("every_agent_names_the_late_rank_by_itself_and_reports_it_once") {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("standing", &AGENTS);
    agents(&mut lab, &cgroups);
    let late = lab.path("late");
    let _job = mpi_job(&lab, &cgroups, &format!("--iters 1000000 --work-ms 20 --late-file {}", late.display()));
    all_say(&lab, "none");
    for coordinator in AGENTS {
        wait_for(&format!("{coordinator} has all ranks"), || {
            let answer = standing(&lab, coordinator)?;
            let all = answer["per_comm"][0]["heard"] == 8 && answer["standing"]["heard"] == 4;
            let all = all && answer["standing"]["reference"] == "m1";
            if all { Ok(()) } else { Err(answer.to_string()) }
        });
    }

    std::fs::write(&late, "3 60\n").expect("written");
    let injected = Instant::now();
    let answers = all_say(&lab, "rank");
    eprintln!("named by every agent after {:?}", injected.elapsed());
    for answer in &answers {
        let verdict = &answer["verdict"];
        assert_eq!((&verdict["rank"], &verdict["node"]), (&3.into(), &"m2".into()), "{verdict}");
        let late_ms = verdict["late_by_ns"].as_i64().expect("a number") / 1_000_000;
        // of 60 ms; what a busy machine adds is of all ranks, but not alike
        assert!((20..600).contains(&late_ms), "{verdict}");
    }
    // Any two agents give the same verdict for the same window. Where a busy machine takes seconds
    // for each answer, few windows are seen of two agents, though they are asked at once.
    let mut windows: BTreeMap<i64, Vec<Value>> = BTreeMap::new();
    let mut rounds = 0;
    wait_for("windows that two agents have judged", || {
        let answers: Vec<_> = std::thread::scope(|scope| {
            let asked = AGENTS.map(|coordinator| scope.spawn(|| standing(&lab, coordinator)));
            asked.into_iter().map(|answer| answer.join().expect("an answer")).collect()
        });
        let mut last = Vec::new();
        for answer in answers {
            let answer = answer?;
            last.push(answer["standing"].to_string());
            if answer["standing"]["heard"] == 4 {
                let window = answer["standing"]["window_end_ns"].as_i64().expect("a time");
                windows.entry(window).or_default().push(answer["verdict"].clone());
            }
        }
        rounds += 1;
        let shared = windows.values().filter(|verdicts| verdicts.len() > 1).count();
        let enough = shared >= 8 || (rounds >= 20 && shared > 0);
        if enough { Ok(()) } else { Err(format!("{shared} of {} in {rounds} rounds: {last:?}", windows.len())) }
    });
    for (window, verdicts) in windows {
        assert!(verdicts.iter().all(|verdict| *verdict == verdicts[0]), "{window}: {verdicts:#?}");
    }
    std::fs::remove_file(&late).expect("removed");
    all_say(&lab, "none");

    // One row for each change, in the mesh; the command ran for each. (On a busy host the verdict
    // may have come and gone more than once.)
    let sql = "SELECT verdict, rank, culprit_node FROM findings ORDER BY ts_ns";
    let mut changes = 0;
    wait_for("the findings", || {
        let (answer, _) = lab.query("m4", sql, &[]);
        let rows = answer["rows"].as_array().ok_or("no rows")?;
        changes = rows.len();
        let in_turns = rows.iter().enumerate().all(|(at, row)| {
            let expected = [serde_json::json!(["rank", 3, "m2"]), serde_json::json!(["none", null, null])];
            *row == expected[at % 2]
        });
        if in_turns && changes >= 2 && changes % 2 == 0 { Ok(()) } else { Err(answer["rows"].to_string()) }
    });
    // A verdict on the past lists them.
    let output = lab.ask("m3", "stragglers", &["--since", "5m"]);
    let text = stdout(&output).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("Findings of this time") && text.contains("rank, rank 3 on m2"), "{text}");
    wait_for("the command", || {
        let findings = std::fs::read_to_string(lab.path("findings")).map_err(|error| error.to_string())?;
        if findings == "rank 3 m2\nnone  \n".repeat(changes / 2) { Ok(()) } else { Err(findings) }
    });
    let json = std::fs::read_to_string(lab.path("findings.json")).expect("its input");
    let first: Value = serde_json::Deserializer::from_str(&json).into_iter().next().expect("a value").expect("JSON");
    assert_eq!((&first["agent"], &first["verdict"]["rank"]), (&"m1".into(), &3.into()), "{first}");
    for agent in AGENTS {
        assert!(lab.log(agent).contains("Rank 3 on host m2"), "{}", lab.log(agent));
    }
}

#[test]
fn the_end_of_a_job_ends_what_is_said_of_its_ranks() {
    if !can_capture("the_end_of_a_job_ends_what_is_said_of_its_ranks") {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("ended", &AGENTS);
    agents(&mut lab, &cgroups);
    let late = lab.path("late");
    std::fs::write(&late, "3 60\n").expect("written");
    let job = mpi_job(&lab, &cgroups, &format!("--iters 1000000 --work-ms 20 --late-file {}", late.display()));
    for answer in all_say(&lab, "rank") {
        assert_eq!(answer["verdict"]["ongoing"], true, "{answer}");
    }
    for cgroup in &cgroups.0 {
        std::fs::write(cgroup.join("cgroup.kill"), "1").expect("the ranks are killed");
    }
    let ended = Instant::now();
    drop(job);
    for coordinator in AGENTS {
        wait_for(&format!("{coordinator} says that the job has ended"), || {
            let verdict = &standing(&lab, coordinator)?["verdict"];
            match verdict["why"].as_str() {
                Some("the job's 8 ranks have ended") => Ok(()),
                _ => Err(verdict.to_string()),
            }
        });
    }
    eprintln!("every agent knows of the end after {:?}", ended.elapsed());
    let text = stdout(&lab.ask("m1", "stragglers", &[])).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("the job's 8 ranks have ended") && !text.contains("still does"), "{text}");
    // So does a verdict on the past, once no host states ranks any more.
    wait_for("the stores' verdict has the note", || {
        let text = stdout(&lab.ask("m3", "stragglers", &["--since", "5m"]));
        let has_note = text.contains("The job has ended: its last call ended at");
        if has_note { Ok(()) } else { Err(text) }
    });
}

#[test]
fn verdicts_go_on_when_wall_clocks_are_set() {
    if !can_capture("verdicts_go_on_when_wall_clocks_are_set") {
        return;
    }
    const S: i64 = 1_000_000_000;
    let mut lab = Lab::new();
    let bin = workloads(&lab);
    lab.step_clocks(&bin);
    let cgroups = Cgroups::new("clocks", &AGENTS);
    agents(&mut lab, &cgroups);
    let late = lab.path("late");
    std::fs::write(&late, "3 60\n").expect("written");
    let _job = mpi_job(&lab, &cgroups, &format!("--iters 1000000 --work-ms 20 --late-file {}", late.display()));
    all_say(&lab, "rank");
    // The reference is m1; certificates are valid from an hour before they were made.
    for (host, ahead_ns) in [("m3", 3_600 * S), ("m1", 3_600 * S), ("m3", -3_300 * S), ("m1", -3_300 * S), ("m1", 0)] {
        lab.step_clock(host, ahead_ns);
        let began = Instant::now();
        // Windows are judged at all agents that end after the step, of all hosts' digests, and name
        // the rank.
        for coordinator in AGENTS {
            wait_for(&format!("{coordinator} names the rank after {host} was set by {} s", ahead_ns / S), || {
                let answer = standing(&lab, coordinator)?;
                let about = &answer["standing"];
                let age_ms = about["age_ms"].as_i64().ok_or("no age")?;
                assert!((0..60_000).contains(&age_ms), "{about}");
                let fresh = i128::from(age_ms) < began.elapsed().as_millis().cast_signed();
                let named = answer["verdict"]["rank"] == 3 && about["heard"] == 4;
                if fresh && named { Ok(()) } else { Err(format!("{about} {}", answer["verdict"])) }
            });
        }
        eprintln!("{host} set by {} s: every agent judged anew after {:?}", ahead_ns / S, began.elapsed());
        // Times are by the reference's wall clock, as it is now.
        wait_for("times of the wall clock", || {
            let answer = standing(&lab, "m2")?;
            let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock");
            let wall_ns = i64::try_from(wall.as_nanos()).expect("a time");
            let off_ns =
                wall_ns + reference_ahead_ns(&lab) - answer["verdict"]["until_ns"].as_i64().ok_or("no rank")?;
            if (0..60 * S).contains(&off_ns) { Ok(()) } else { Err(format!("off by {} s", off_ns / S)) }
        });
    }
}

/// By how much the wall clock of the reference node is ahead of this machine's.
fn reference_ahead_ns(lab: &Lab) -> i64 {
    let step = std::fs::read(lab.path("m1.step")).expect("its file");
    i64::from_ne_bytes(step.try_into().expect("eight bytes"))
}

/// Eight ranks on nccl-sim.
fn nccl_job(lab: &Lab, cgroups: &Cgroups) -> (Job, std::path::PathBuf) {
    let bin = workloads(lab);
    let list = AGENTS.map(|name| cgroups.path(name).display().to_string()).join(",");
    let child = Command::new(bin.join("nccl-ranks"))
        .env("NCCL_SIM_STOP", lab.path("stop"))
        .args(["--ranks", "8", "--iters", "100000", "--work-ms", "20", "--start-ms", "2500", "--cgroups", &list])
        // As the real library, which waits on.
        .env("NCCL_SIM_IGNORE_DEAD", "1")
        .env("NCCL_SIM_TIMEOUT_MS", "600000")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("the job starts");
    (Job(child), bin)
}

fn pid_of(bin: &std::path::Path, rank: u32) -> nix::unistd::Pid {
    let pid = wait_for("the process of the rank", || process_of_rank(bin, rank).ok_or_else(|| "not found".to_owned()));
    nix::unistd::Pid::from_raw(pid)
}

fn missing(answer: &Value) -> Vec<(i64, String)> {
    let all = answer["verdict"]["missing"].as_array().cloned().unwrap_or_default();
    all.iter().map(|m| (m["rank"].as_i64().unwrap_or(-1), m["node"].as_str().unwrap_or_default().to_owned())).collect()
}

#[test]
fn a_stopped_rank_is_a_hang_at_every_agent() {
    if !can_capture("a_stopped_rank_is_a_hang_at_every_agent") {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("stopped", &AGENTS);
    agents(&mut lab, &cgroups);
    let (_job, bin) = nccl_job(&lab, &cgroups);
    all_say(&lab, "none");
    let rank = pid_of(&bin, 5);
    kill(rank, Signal::SIGSTOP).expect("stopped");
    let stopped = Instant::now();
    let answers = all_say(&lab, "hang");
    let took = stopped.elapsed();
    eprintln!("the hang is known to every agent after {took:?}");
    for answer in &answers {
        assert_eq!(missing(answer), [(5, "m3".to_owned())], "{answer}");
        assert_eq!(answer["verdict"]["missing"][0]["activity"], "stopped", "{answer}");
    }
    kill(rank, Signal::SIGCONT).expect("continued");
    all_say(&lab, "none");
}

#[test]
fn a_rank_that_is_stopped_in_a_call_that_all_have_entered_is_named() {
    if !can_capture("a_rank_that_is_stopped_in_a_call_that_all_have_entered_is_named") {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("within", &AGENTS);
    agents(&mut lab, &cgroups);
    let (_job, bin) = nccl_job(&lab, &cgroups);
    all_say(&lab, "none");
    std::fs::write(lab.path("stop.new"), "5").expect("written");
    std::fs::rename(lab.path("stop.new"), lab.path("stop")).expect("renamed");
    let named = |answer: &Value| {
        assert_eq!(missing(answer), [(5, "m3".to_owned())], "{answer}");
        let rank = &answer["verdict"]["missing"][0];
        assert_eq!((&rank["absence"], &rank["activity"]), (&"stopped".into(), &"stopped".into()), "{answer}");
        assert_eq!((&rank["call"]["func"], &rank["holds_up"]), (&"all_reduce".into(), &7.into()), "{answer}");
    };
    all_say(&lab, "hang").iter().for_each(named);
    // The verdict of the stores and the hosts is the same.
    let asked = lab.ask("m1", "stragglers", &["--since", "60s", "--format", "json"]);
    let asked: Value = serde_json::from_slice(&asked.stdout).unwrap_or_else(|_| panic!("{}", stderr(&asked)));
    named(&asked);
    let text = stdout(&lab.ask("m2", "stragglers", &[]));
    assert!(text.contains("Rank 5 on host m3 is stopped (SIGSTOP or its like) inside all_reduce"), "{text}");
    kill(pid_of(&bin, 5), Signal::SIGCONT).expect("continued");
    all_say(&lab, "none");
}

#[test]
fn a_rank_that_vanished_is_named_by_those_who_wait_for_it() {
    if !can_capture("a_rank_that_vanished_is_named_by_those_who_wait_for_it") {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("vanished", &AGENTS);
    agents(&mut lab, &cgroups);
    let (_job, bin) = nccl_job(&lab, &cgroups);
    all_say(&lab, "none");
    kill(pid_of(&bin, 2), Signal::SIGKILL).expect("killed");
    for answer in all_say(&lab, "hang") {
        assert_eq!(missing(&answer), [(2, "m2".to_owned())], "{answer}");
        assert_eq!(answer["verdict"]["missing"][0]["absence"], "gone", "{answer}");
    }
}

#[test]
fn a_host_that_vanished_is_named_by_its_ranks() {
    if !can_capture("a_host_that_vanished_is_named_by_its_ranks") {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("nohost", &AGENTS);
    agents(&mut lab, &cgroups);
    let (_job, bin) = nccl_job(&lab, &cgroups);
    all_say(&lab, "none");
    // The host with its agent and its ranks.
    let ranks = [pid_of(&bin, 6), pid_of(&bin, 7)];
    lab.kill("m4");
    for rank in ranks {
        kill(rank, Signal::SIGKILL).expect("killed");
    }
    for coordinator in &AGENTS[..3] {
        wait_for(&format!("{coordinator} misses the ranks of m4"), || {
            let answer = standing(&lab, coordinator)?;
            let mut who = missing(&answer);
            who.sort();
            let gone = answer["verdict"]["missing"][0]["absence"] == "gone";
            if gone && who == [(6, "m4".to_owned()), (7, "m4".to_owned())] {
                Ok(())
            } else {
                Err(format!("{} {}", answer["verdict"], answer["coverage"]))
            }
        });
    }
    // Longer after than a host counts as one with ranks by what it sent.
    let end_ns = |answer: &Value| answer["standing"]["window_end_ns"].as_i64().ok_or("no window");
    let long_after_ns = end_ns(&standing(&lab, AGENTS[0]).expect("standing")).expect("standing") + 12_000_000_000;
    for coordinator in &AGENTS[..3] {
        wait_for(&format!("{coordinator} goes on missing m4"), || {
            let answer = standing(&lab, coordinator)?;
            match (end_ns(&answer)? >= long_after_ns, &answer["coverage"]) {
                (true, of) if of["asked"] == 4 && of["missing"][0][0] == "m4" => Ok(()),
                (_, of) => Err(of.to_string()),
            }
        });
    }
}
