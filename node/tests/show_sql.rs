//! What `rankmesh stragglers --show-sql` prints gives the figures of the ranks again, asked of the
//! same mesh. This holds the views `lateness` and `self_time`, plain and synced, against the
//! analysis.

mod common;
#[allow(dead_code, unreachable_pub, unused_imports, reason = "the simulator, of which this needs a part")]
#[path = "../../scenarios/src/simulate/mod.rs"]
mod simulate;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use common::{Lab, make_db, stderr};
use serde_json::Value;
use simulate::{Grid, Job, Slow};
use verdicts::Input;

const MS: i64 = 1_000_000;
const NODES: [&str; 4] = ["n0", "n1", "n2", "n3"];
const SCHEMA: &str = "\
CREATE TABLE collectives (ts_ns INTEGER, duration_ns INTEGER, pid INTEGER, tid INTEGER, rank INTEGER, nranks INTEGER, comm_hash INTEGER, \
func TEXT, seq INTEGER, tier INTEGER, library TEXT, root INTEGER, job_id TEXT, captured INTEGER);
CREATE TABLE cuda_calls (ts_ns INTEGER, duration_ns INTEGER, pid INTEGER, tid INTEGER, func TEXT, kind TEXT, bytes INTEGER);
CREATE TABLE net_events (ts_ns INTEGER, event TEXT, pid INTEGER, saddr TEXT, daddr TEXT);
";

/// The stores of simulated jobs, by name of the job, served by one agent each. All clocks are this
/// host's, and all jobs have just ended.
fn mesh(jobs: &[(&str, Input)]) -> Lab {
    let mut stores: BTreeMap<String, String> = NODES.map(|node| (node.to_owned(), SCHEMA.to_owned())).into();
    for (place, (name, input)) in jobs.iter().enumerate() {
        let later_ns = now_ns() - input.until_ns;
        // Processes and communicators of their own.
        let (pids, comms) = (10_000 * (1 + place as i64), (place as u64) << 48);
        for seen in &input.observations {
            let null = || "NULL".to_owned();
            let (nranks, root) = (
                seen.nranks.map_or_else(null, |n| n.to_string()),
                seen.root.map_or_else(null, |root| root.to_string()),
            );
            let (at, pid, comm) = (seen.entry_ns + later_ns, pids + seen.pid, (seen.comm_hash ^ comms).cast_signed());
            let _ = writeln!(
                stores.get_mut(&*seen.node).expect("one of the nodes"),
                "INSERT INTO collectives VALUES ({at}, {}, {pid}, {pid}, {}, {nranks}, {comm}, '{}', {}, {}, '{}', {root}, '{name}', 0);",
                seen.duration_ns,
                seen.rank,
                seen.func,
                seen.seq,
                seen.tier,
                seen.library,
            );
        }
        for sync in &input.syncs {
            let _ = writeln!(
                stores.get_mut(&*sync.node).expect("one of the nodes"),
                "INSERT INTO cuda_calls VALUES ({}, {}, {2}, {2}, 'cudaStreamSynchronize', 'after_collective', NULL);",
                sync.start_ns + later_ns,
                sync.duration_ns,
                pids + sync.pid
            );
        }
    }
    let mut lab = Lab::new();
    for (node, sql) in &stores {
        let file = lab.path(&format!("{node}.trace"));
        make_db(&file, &format!("BEGIN;\n{sql}COMMIT;"));
        lab.start(node, &["--serve-db", &file.display().to_string(), "--capture", "off"]);
    }
    lab.wait_for_members(&NODES);
    lab
}

fn now_ns() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_nanos();
    i64::try_from(now).expect("before 2262")
}

/// One clock for all nodes.
fn plain(job: Job) -> Job {
    Job { clock_offset_ns: 0, clock_bound_ns: 0, ..job }
}

fn verdict(lab: &Lab, job: &str) -> Value {
    let flags = ["--since", "100s", "--job", job, "--format", "json", "--show-sql", "--timeout", "100s"];
    let output = lab.ask("n0", "stragglers", &flags);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

type Row = BTreeMap<String, Value>;

/// The answers to all questions that are shown, by title.
fn asked(lab: &Lab, answer: &Value) -> Vec<(String, Vec<Row>)> {
    let shown = answer["sql"].as_array().expect("questions");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let all = shown.iter().filter(|shown| shown["sql"] != "").map(|shown| {
        let (title, sql) = (text(&shown["title"]), text(&shown["sql"]));
        let (result, code) = lab.query("n0", &sql, &["--timeout", "100s"]);
        assert_eq!(code, 0, "{title}: {result}\n{sql}");
        let columns = result["columns"].as_array().expect("columns").iter();
        let names: Vec<String> = columns.map(|c| text(&c["name"])).collect();
        let rows = result["rows"].as_array().expect("rows").iter();
        let rows = rows.map(|row| names.iter().cloned().zip(row.as_array().expect("row").iter().cloned()).collect());
        (title, rows.collect())
    });
    all.collect()
}

fn close(what: &str, got: &Value, want: &Value, within: f64) {
    match (got.as_f64(), want.as_f64()) {
        (Some(g), Some(w)) => {
            assert!((g - w).abs() <= within.max(1e-6 * w.abs()), "{what}: {g} by SQL, {w} in the verdict");
        }
        _ => assert_eq!(got.is_null(), want.is_null(), "{what}: {got} by SQL, {want} in the verdict"),
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Compares the report's figures of ranks with the answers. Each question measures the clocks anew,
/// within their bound.
fn same_figures(lab: &Lab, answer: &Value) -> Vec<(String, Vec<Row>)> {
    let asked = asked(lab, answer);
    let bound = answer["evidence"]["clock_bound_ns"].as_f64().expect("clocks are known") * 2.0 + 1.0;
    for comm in list(&answer["per_comm"]).filter(|comm| list(&comm["ranks"]).next().is_some()) {
        let title = format!("ranks of communicator {} over", comm["comm_hash"].as_str().expect("a hash"));
        let Some((_, rows)) = asked.iter().find(|(known, _)| known.starts_with(&title)) else { continue };
        assert_eq!(rows.len(), list(&comm["ranks"]).count());
        for want in list(&comm["ranks"]) {
            let got = rows.iter().find(|row| row["rank"] == want["rank"]).expect("each rank");
            assert_eq!((&got["node"], &got["pid"]), (&want["node"], &want["pid"]));
            // Where calls only enqueue, a verdict compares the ends of steps: the first collective
            // ends none.
            let compared = want["collectives"].as_i64().expect("a count");
            let all = got["collectives"].as_i64().expect("a count");
            let ends_none = i64::from(comm["waits"] == "enqueued");
            assert!((0..=ends_none).contains(&(all - compared)), "{all} by SQL, {compared} in the verdict: {rows:?}");
            let one = if all > compared { got["lateness_ns"].as_f64().unwrap_or(0.0).abs() / all as f64 } else { 0.0 };
            for (name, field) in [("", "mean_ns"), ("_median", "median_ns")] {
                let (late, wait) = (&got[&format!("lateness{name}_ns")], &got[&format!("wait{name}_ns")]);
                close(&format!("lateness {field}"), late, &want["lateness"][field], bound + one);
                // A call that only enqueues shows no wait.
                if comm["waits"] != "enqueued" {
                    close(&format!("wait {field}"), wait, &want["wait"][field], 2_000.0);
                }
            }
        }
    }
    asked
}

/// By how much more compute time a rank takes than the median of the others, by the answers.
fn own_excess_ns(asked: &[(String, Vec<Row>)], rank: i64) -> f64 {
    let (_, rows) = asked.iter().find(|(title, _)| title.ends_with("over the span")).expect("ranks");
    let own = |row: &Row| row["own_ns"].as_f64().expect("compute time");
    let mut others: Vec<f64> = rows.iter().filter(|row| row["rank"] != rank).map(own).collect();
    others.sort_by(f64::total_cmp);
    own(rows.iter().find(|row| row["rank"] == rank).expect("the rank")) - others[others.len() / 2]
}

#[test]
fn the_figures_of_ranks_come_out_of_the_questions_that_are_shown() {
    let slow = |rank, extra_ns, from_step| vec![Slow { rank, extra_ns, from_step }];
    // Late from the middle on: the episode is not the span. Records are lost, too.
    let late = plain(Job { steps: 90, own_ns: 50 * MS, slow: slow(5, 40 * MS, 40), loss: 0.002, ..Job::default() });
    let healthy = plain(Job { steps: 40, ..Job::default() });
    let job = plain(Job { steps: 24, own_ns: 100 * MS, slow: slow(3, 60 * MS, 0), ..Job::default() });
    let grid = Grid { tensor: 2, data: 2, pipeline: 2, microbatches: 2, job, ..Grid::default() };
    let entries =
        plain(Job { steps: 30, own_ns: 50 * MS, slow: slow(5, 400 * MS, 0), enqueues: true, ..Job::default() });
    let synced = Job { steps: 60, slow: slow(5, 60 * MS, 0), syncs: true, loss: 0.002, ..entries.clone() };
    let several = Job { collectives: 3, runs_ahead: true, loss: 0.0, ..synced.clone() };
    let jobs = [
        ("late", late.observe(7)),
        ("healthy", healthy.observe(7)),
        ("grid", grid.observe(7)),
        ("entries", entries.observe(7)),
        ("synced", synced.observe(7)),
        ("several", several.observe(7)),
    ];
    let lab = mesh(&jobs);
    // Before the jobs leave the span; what is asked then has the times of the verdict.
    let [late, healthy, grid, entries, synced, several] = jobs.map(|(job, _)| verdict(&lab, job));

    let named = |answer: &Value| (answer["verdict"]["rank"].clone(), answer["verdict"]["basis"].clone());
    assert_eq!(named(&late), (5.into(), "waits".into()), "{late}");
    let asked = same_figures(&lab, &late);
    let (_, episode) = asked.iter().find(|(title, _)| title.contains("in the episode of rank 5 on n2")).expect("it");
    assert_eq!(episode[0]["collectives"], late["verdict"]["collectives"]);
    let excess = own_excess_ns(&asked, 5);
    assert!((excess - 40e6 * 50.0 / 90.0).abs() < 3e6, "{excess}");
    // The text prints them, ready to paste.
    let output = lab.ask("n1", "stragglers", &["--since", "100s", "--job", "late", "--show-sql", "--timeout", "100s"]);
    let text = common::stdout(&output);
    assert!(text.contains("in the episode of rank 5 on n2\nSELECT l.rank, l.node, l.pid"), "{text}");

    assert_eq!(healthy["verdict"]["kind"], "none", "{healthy}");
    same_figures(&lab, &healthy);
    assert_eq!(grid["verdict"]["rank"], 3, "{grid}");
    same_figures(&lab, &grid);
    assert_eq!(named(&entries), (5.into(), "entries".into()), "{entries}");
    same_figures(&lab, &entries);
    for answer in [synced, several] {
        assert_eq!(named(&answer), (5.into(), "waits".into()), "{answer}");
        assert_eq!(answer["per_comm"][0]["synced"], true);
        same_figures(&lab, &answer);
    }

    // The same stores without agents, one more of which cannot be read.
    let damaged = lab.path("n4.trace");
    std::fs::write(&damaged, b"no database").expect("written");
    let of_files = |job: &str| {
        let mut command = common::rankmesh();
        command.args(["stragglers", "--job", job, "--since", "100s", "--format", "json", "--timeout", "100s"]);
        for node in NODES.iter().chain(&["n4"]) {
            command.arg("--db").arg(lab.path(&format!("{node}.trace")));
        }
        let output = command.output().expect("runs");
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let missing = &answer["coverage"]["missing"][0];
        assert!(missing[0] == "n4" && missing[1].as_str().is_some_and(|why| why.starts_with("failed: ")), "{missing}");
        answer
    };
    let late = of_files("late");
    assert_eq!(named(&late), (5.into(), "waits".into()), "{late}");
    assert_eq!(late["verdict"]["node"], "n2", "{late}");
    assert_eq!(of_files("healthy")["verdict"]["kind"], "none");
    // Entries prove nothing across clocks that are not known.
    assert_eq!(of_files("entries")["verdict"]["kind"], "unknown");
}
