//! `rankmesh stacks` on a real job: Python ranks that call Open MPI, recorded by eBPF; the lines
//! where they are, in classes. Needs root.

mod common;

use common::jobs::{Cgroups, Job, mpi_script};
use common::{Lab, can_capture, stderr, stdout, wait_for};
use serde_json::Value;

const AGENTS: [&str; 2] = ["m1", "m2"];

/// A training loop. Rank 3 loads its data slowly; the others wait for it in the all-reduce. The
/// comments mark the lines that the test expects.
const TRAIN: &str = r#"import ctypes, os, time

mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
symbol = lambda name: ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))
world, double, total = symbol("ompi_mpi_comm_world"), symbol("ompi_mpi_double"), symbol("ompi_mpi_op_sum")
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])


def load_batch():
    time.sleep(1.5 if rank == 3 else 0.01)  # LOADS


def all_reduce(mine, sum):
    mpi.MPI_Allreduce(mine, sum, 16, double, total, world)  # MEETS


def step(mine, sum):
    load_batch()
    all_reduce(mine, sum)


mpi.MPI_Init(None, None)
buffers = [(ctypes.c_double * 16)() for _ in range(2)]
while True:
    step(*buffers)
"#;

fn line_of(mark: &str) -> u64 {
    TRAIN.lines().position(|line| line.ends_with(mark)).expect("a marked line") as u64 + 1
}

fn stacks(lab: &Lab, coordinator: &str, more: &[&str]) -> (Result<Value, String>, Option<i32>) {
    let output = lab.ask(coordinator, "stacks", &[&["--format", "json", "--timeout", "30s"], more].concat());
    let answer = serde_json::from_slice(&output.stdout).map_err(|error| format!("{error}: {}", stderr(&output)));
    (answer, output.status.code())
}

/// The ranks of the class whose path has this Python function at this line.
fn ranks_at(answer: &Value, function: &str, line: u64) -> String {
    let at = |step: &Value| {
        let frame = &step["Function"]["Python"];
        frame["function"].as_str().is_some_and(|name| name == function) && frame["line"] == line
    };
    let classes = answer["merged"]["classes"].as_array().expect("classes");
    let class = classes.iter().find(|class| class["path"].as_array().expect("a path").iter().any(at));
    class.map(|class| class["members"]["ranks"].as_str().unwrap_or_default().to_owned()).unwrap_or_default()
}

#[test]
fn the_late_rank_is_at_another_line_than_those_who_wait_for_it() {
    if !can_capture("the_late_rank_is_at_another_line_than_those_who_wait_for_it") {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("stacks", &AGENTS);
    common::jobs::start_agents(&mut lab, &cgroups, &AGENTS);
    let program = lab.path("train.py");
    std::fs::write(&program, TRAIN).expect("the program");
    let job: Job = mpi_script(&lab, &cgroups, 4, &format!("python3 {}", program.display()));
    wait_for("every rank is listed", || {
        let nodes = lab.nodes("m2")?;
        let ranks: usize = nodes.iter().filter_map(|node| node["ranks"].as_array()).map(Vec::len).sum();
        if ranks == 4 { Ok(()) } else { Err(format!("{nodes:?}")) }
    });

    let (loads, meets) = (line_of("# LOADS"), line_of("# MEETS"));
    for coordinator in AGENTS {
        let (answer, code) = stacks(&lab, coordinator, &["--samples", "30", "--every", "100ms"]);
        let answer = answer.expect("an answer");
        assert_eq!(code, Some(0), "{answer}");
        assert_eq!(ranks_at(&answer, "load_batch", loads), "3", "{answer}");
        assert_eq!(ranks_at(&answer, "all_reduce", meets), "0-2", "{answer}");
        assert_eq!(answer["unread"].as_array().map(Vec::len), Some(0), "{answer}");
    }
    // Some ranks, as text and as lines for a flame graph.
    let output = lab.ask("m1", "stacks", &["--ranks", "3", "--samples", "5"]);
    let text = stdout(&output);
    assert!(text.contains("load_batch") && !text.contains("all_reduce"), "{text}");
    assert!(stderr(&output).contains("2 of 2 nodes answered"), "{}", stderr(&output));
    let folded = stdout(&lab.ask("m1", "stacks", &["--format", "folded", "--samples", "5"]));
    assert!(folded.lines().any(|line| line.contains("step (") && line.contains(";all_reduce (")), "{folded}");
    // Nobody has such a rank; a job that nobody runs.
    let output = lab.ask("m1", "stacks", &["--ranks", "7"]);
    assert!(stdout(&output).starts_with("no ranks"), "{}", stdout(&output));
    let output = lab.ask("m1", "stacks", &["--job", "no-such-job"]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(stderr(&output).contains("no job 'no-such-job' is known"), "{}", stderr(&output));

    // The time that sampling takes has to fit into the deadline.
    let output = lab.ask("m1", "stacks", &["--samples", "200", "--every", "100ms"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("--timeout"), "{}", stderr(&output));

    // The explanation names the line that the late rank is in and its peer is not; the agents of
    // both have kept where they were when the verdict began to name it.
    let line = wait_for("the late rank's line is named", || {
        let output = lab.ask("m1", "explain", &["--since", "30s", "--timeout", "60s", "--format", "json"]);
        let found: Value = serde_json::from_slice(&output.stdout).map_err(|_| stderr(&output))?;
        match found["place"]["line"].as_str() {
            Some(line) if found["place"]["rank"] == 3 => Ok(line.to_owned()),
            _ => Err(found.to_string()),
        }
    });
    eprintln!("{line}");
    assert!(line.contains(&format!(":{loads} load_batch")), "{line}");
    // The peer loads, too, for 10 ms of each step: a few of its samples may meet it there. How many
    // samples there are depends on how busy the machine is: of fewer than five nothing follows.
    let peer = line.split_once("its peer ").expect("the peer's share").1;
    let (at, of) = peer.split_once(" of ").expect("a share");
    let (at, of): (u32, u32) = (at.parse().expect("a count"), of.parse().expect("a count"));
    assert!(of < 5 || 3 * at <= of, "{line}");
    wait_for("both hosts have kept stacks", || {
        let kept = "SELECT kind, 2 * sum(count * (frames LIKE '%load_batch%')) > sum(count) FROM stacks WHERE kind IN ('late', 'peer') GROUP BY kind";
        let (answer, _) = lab.query("m1", kept, &[]);
        let expected = serde_json::json!([["late", 1], ["peer", 0]]);
        if answer["rows"] == expected { Ok(()) } else { Err(answer.to_string()) }
    });

    // An agent that is gone is missing by name, and the others' ranks are there.
    lab.kill("m2");
    wait_for("m2 is missing", || {
        let (answer, code) = stacks(&lab, "m1", &["--samples", "5", "--nodes", "m1,m2"]);
        let answer = answer?;
        if code == Some(3) && answer["coverage"]["missing"][0]["node"] == "m2" {
            assert_eq!(ranks_at(&answer, "all_reduce", meets), "0-1", "{answer}");
            return Ok(());
        }
        Err(answer.to_string())
    });
    let output = lab.ask("m1", "stacks", &["--samples", "5", "--nodes", "m1,m2", "--require-all"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""), "{}", stderr(&output));
    // An explanation without it notes that, too.
    let output = lab.ask("m1", "explain", &["--since", "5s", "--timeout", "60s", "--format", "json"]);
    let found: Value = serde_json::from_slice(&output.stdout).expect("an explanation");
    assert_eq!(output.status.code(), Some(3), "{found}");
    assert_eq!((&found["version"], &found["coverage"]["missing"][0]["node"]), (&1.into(), &"m2".into()), "{found}");
    drop(job);
}
