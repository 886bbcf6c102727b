//! What `rankmesh stragglers --show-sql` prints gives the figures of the verdict again, asked of the same mesh.

mod common;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use common::{Lab, make_db, stderr};
use rankmesh::stragglers::simulate::{Job, Slow};
use serde_json::Value;

const MS: i64 = 1_000_000;
const NODES: [&str; 4] = ["n0", "n1", "n2", "n3"];

/// The stores of a simulated job, served by one agent each. All clocks are this host's.
fn mesh(job: &Job) -> Lab {
    let mut stores: BTreeMap<String, String> = BTreeMap::new();
    let job = Job { clock_offset_ns: 0, clock_bound_ns: 0, ..job.clone() };
    for node in NODES {
        let schema = "CREATE TABLE collectives (ts_ns INTEGER, duration_ns INTEGER, pid INTEGER, tid INTEGER, rank INTEGER, \
                      nranks INTEGER, comm_hash INTEGER, func TEXT, seq INTEGER, tier INTEGER, library TEXT, root INTEGER, \
                      job_id TEXT, captured INTEGER);\n";
        stores.insert(node.to_owned(), schema.to_owned());
    }
    let input = job.observe(7);
    // As if it had just ended: clocks are known of now.
    let now_ns = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_nanos();
    let later_ns = i64::try_from(now_ns).expect("before 2262") - input.until_ns;
    for seen in input.observations {
        let store = stores.get_mut(&*seen.node).expect("one of the nodes");
        let _ = writeln!(
            store,
            "INSERT INTO collectives VALUES ({}, {}, {}, {}, {}, 8, {}, '{}', {}, {}, '{}', NULL, NULL, 0);",
            seen.entry_ns + later_ns,
            seen.duration_ns,
            seen.pid,
            seen.pid,
            seen.rank,
            seen.comm_hash.cast_signed(),
            seen.func,
            seen.seq,
            seen.tier,
            seen.library
        );
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

fn verdict(lab: &Lab) -> Value {
    let output =
        lab.ask("n0", "stragglers", &["--since", "100s", "--format", "json", "--show-sql", "--timeout", "50s"]);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Rows of a shown question, by column.
fn rows(lab: &Lab, answer: &Value, title: &str) -> Vec<BTreeMap<String, Value>> {
    let shown = answer["sql"].as_array().expect("questions").iter();
    let shown = shown.clone().find(|s| s["title"].as_str().is_some_and(|t| t.starts_with(title))).expect(title);
    let (result, code) = lab.query("n0", shown["sql"].as_str().expect("SQL"), &["--timeout", "50s"]);
    assert_eq!(code, 0, "{result}");
    let names: Vec<String> = result["columns"]
        .as_array()
        .expect("columns")
        .iter()
        .map(|c| c["name"].as_str().expect("name").into())
        .collect();
    let rows = result["rows"].as_array().expect("rows").iter();
    rows.map(|row| names.iter().cloned().zip(row.as_array().expect("row").iter().cloned()).collect()).collect()
}

fn close(what: &str, got: &Value, want: &Value, within: f64) {
    match (got.as_f64(), want.as_f64()) {
        (Some(g), Some(w)) => {
            assert!((g - w).abs() <= within.max(1e-6 * w.abs()), "{what}: {g} by SQL, {w} in the verdict");
        }
        _ => assert_eq!(got.is_null(), want.is_null(), "{what}: {got} by SQL, {want} in the verdict"),
    }
}

/// Compares everything. `clock_ns` is how far two measurements of the same clocks may differ.
fn same_figures(lab: &Lab, answer: &Value, by_entries: bool) {
    // Both measure the clocks anew, within the bound each.
    let bound = answer["evidence"]["clock_bound_ns"].as_f64().expect("clocks are known") * 2.0 + 1.0;
    let clock = if by_entries { bound } else { 1.0 };
    let verdict = &answer["verdict"];
    let ranks = rows(lab, answer, "ranks of communicator");
    let comm = &answer["per_comm"][0];
    assert_eq!(ranks.len(), comm["ranks"].as_array().expect("ranks").len());
    let period = comm["period_ns"].as_f64().expect("a period");
    for want in comm["ranks"].as_array().expect("ranks") {
        let got = ranks.iter().find(|row| row["rank"] == want["rank"]).expect("each rank");
        assert_eq!((&got["node"], &got["pid"]), (&want["node"], &want["pid"]));
        assert_eq!(got["collectives"], want["collectives"], "{ranks:?}\n{}", answer["evidence"]);
        close("mean lateness", &got["lateness_ns"], &want["lateness"]["mean_ns"], bound);
        close("median lateness", &got["lateness_median_ns"], &want["lateness"]["median_ns"], bound);
        close("mean wait", &got["wait_ns"], &want["wait"]["mean_ns"], 1.0);
        close("median wait", &got["wait_median_ns"], &want["wait"]["median_ns"], 1.0);
        close("excess", &got["excess_ns"], &want["excess_ns"], clock);
        close("share", &got["share"], &want["share"], 2.0 * bound / period + 1e-6);
        let z = want["z"].as_f64().unwrap_or(0.0).abs();
        close("z", &got["z"], &want["z"], if by_entries { 0.05 * z + 3.0 } else { 1e-6 });
    }
    if verdict["kind"] != "rank" {
        return;
    }
    let episode = rows(lab, answer, &format!("rank {}", verdict["rank"]));
    assert_eq!(episode.len(), 1, "{episode:?}");
    close("late by", &episode[0]["late_by_ns"], &verdict["late_by_ns"], clock);
    assert_eq!(episode[0]["last_in"], verdict["last_in"]);
    assert_eq!(episode[0]["collectives"], verdict["collectives"]);
    close("share", &episode[0]["share"], &verdict["share"], 2.0 * bound / period + 1e-6);
    let z = verdict["z"].as_f64().unwrap_or(0.0).abs();
    close("z", &episode[0]["z"], &verdict["z"], if by_entries { 0.05 * z + 3.0 } else { 1e-6 });
    let cost = &rows(lab, answer, "cost")[0]["gpu_seconds_wasted"];
    let wasted = answer["cost"]["gpu_seconds_wasted"].as_f64().expect("a cost");
    close("cost", cost, &answer["cost"]["gpu_seconds_wasted"], if by_entries { 0.1 * wasted } else { 1e-9 });
}

#[test]
fn the_sql_gives_the_figures_of_a_verdict_again() {
    let slow = |from_step| vec![Slow { rank: 5, extra_ns: 40 * MS, from_step }];
    // Late from the middle on: the episode is not the span. Records are lost, too.
    let late = Job { steps: 90, own_ns: 50 * MS, slow: slow(40), loss: 0.002, ..Job::default() };
    let lab = mesh(&late);
    let answer = verdict(&lab);
    assert_eq!((&answer["verdict"]["kind"], &answer["verdict"]["rank"]), (&"rank".into(), &5.into()), "{answer}");
    same_figures(&lab, &answer, false);

    // The text prints them, ready to paste.
    let output = lab.ask("n1", "stragglers", &["--since", "100s", "--show-sql", "--timeout", "50s"]);
    let text = common::stdout(&output);
    assert!(text.contains("\n-- rank 5 on n2 in its episode\nWITH met AS ("), "{text}");
}

#[test]
fn the_sql_gives_the_figures_of_a_healthy_job_and_of_one_that_only_enqueues() {
    let healthy = Job { steps: 40, ..Job::default() };
    let lab = mesh(&healthy);
    let answer = verdict(&lab);
    assert_eq!(answer["verdict"]["kind"], "none", "{answer}");
    same_figures(&lab, &answer, false);
    drop(lab);

    let slow = vec![Slow { rank: 5, extra_ns: 400 * MS, from_step: 0 }];
    let enqueues = Job { steps: 30, own_ns: 50 * MS, slow, enqueues: true, ..Job::default() };
    let lab = mesh(&enqueues);
    let answer = verdict(&lab);
    assert_eq!(
        (&answer["verdict"]["kind"], &answer["verdict"]["basis"]),
        (&"rank".into(), &"entries".into()),
        "{answer}"
    );
    same_figures(&lab, &answer, true);
}
