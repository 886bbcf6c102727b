//! What `rankmesh stragglers --show-sql` prints gives the figures of the verdict again, asked of the same mesh: every question of every
//! kind of verdict is asked, and every figure compared.

mod common;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use common::{Lab, make_db, stderr};
use serde_json::Value;
use verdicts::Input;
use verdicts::simulate::{Grid, Job, Slow};

const MS: i64 = 1_000_000;
const NODES: [&str; 4] = ["n0", "n1", "n2", "n3"];
const SCHEMA: &str = "\
CREATE TABLE collectives (ts_ns INTEGER, duration_ns INTEGER, pid INTEGER, tid INTEGER, rank INTEGER, nranks INTEGER, comm_hash INTEGER, \
func TEXT, seq INTEGER, tier INTEGER, library TEXT, root INTEGER, job_id TEXT, captured INTEGER);
CREATE TABLE cuda_calls (ts_ns INTEGER, duration_ns INTEGER, pid INTEGER, tid INTEGER, func TEXT, kind TEXT, bytes INTEGER);
CREATE TABLE net_events (ts_ns INTEGER, event TEXT, pid INTEGER, saddr TEXT, daddr TEXT);
";

/// The stores of simulated jobs, by name of the job, served by one agent each. All clocks are this host's, and all jobs have just ended.
fn mesh(jobs: &[(&str, Input)], more: &[(&str, String)]) -> Lab {
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
    for (node, sql) in more {
        stores.get_mut(*node).expect("one of the nodes").push_str(sql);
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

fn of<'a>(asked: &'a [(String, Vec<Row>)], title: &str) -> &'a [Row] {
    let found = asked.iter().find(|(known, _)| known.starts_with(title));
    let titles: Vec<&String> = asked.iter().map(|(title, _)| title).collect();
    &found.unwrap_or_else(|| panic!("no question {title:?} among {titles:?}")).1
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

/// Compares everything that a report says of ranks. By entries, two measurements of the same clocks may differ.
fn same_figures(lab: &Lab, answer: &Value, by_entries: bool) -> Vec<(String, Vec<Row>)> {
    let asked = asked(lab, answer);
    // Both measure the clocks anew, within the bound each.
    let bound = answer["evidence"]["clock_bound_ns"].as_f64().expect("clocks are known") * 2.0 + 1.0;
    let clock = if by_entries { bound } else { 1.0 };
    let verdict = &answer["verdict"];
    let (mut matched, mut complete, mut windows) = (0, 0, 0);
    for comm in list(&answer["per_comm"]).filter(|comm| list(&comm["ranks"]).next().is_some()) {
        let row =
            asked.iter().filter(|(title, _)| title.starts_with("collectives compared")).flat_map(|(_, rows)| rows);
        let row = row.clone().find(|row| row["comm_hash"] == comm["comm_hash"]).expect("each communicator");
        assert_eq!((&row["matched"], &row["dropped"]), (&comm["matched"], &comm["dropped"]), "{row:?}");
        close("period", &row["period_ns"], &comm["period_ns"], bound);
        matched += row["matched"].as_u64().expect("a number");
        complete += row["complete"].as_u64().expect("a number");
        windows += comm["windows"].as_u64().expect("a number");
        let hash = comm["comm_hash"].as_str().expect("a hash");
        let period = comm["period_ns"].as_f64().expect("a period");
        if asked.iter().all(|(title, _)| !title.starts_with(&format!("ranks of communicator {hash}"))) {
            continue;
        }
        let ranks = of(&asked, &format!("ranks of communicator {hash}"));
        let flags = of(&asked, &format!("windows of communicator {hash}"));
        assert_eq!(ranks.len(), list(&comm["ranks"]).count());
        for want in list(&comm["ranks"]) {
            let got = ranks.iter().find(|row| row["rank"] == want["rank"]).expect("each rank");
            assert_eq!((&got["node"], &got["pid"]), (&want["node"], &want["pid"]));
            assert_eq!(got["collectives"], want["collectives"], "{ranks:?}\n{}", answer["evidence"]);
            for (name, field) in [("", "mean_ns"), ("_median", "median_ns"), ("_p95", "p95_ns")] {
                close(
                    &format!("lateness {field}"),
                    &got[&format!("lateness{name}_ns")],
                    &want["lateness"][field],
                    bound,
                );
                // Waits are means of whole numbers, and may end in a half.
                close(&format!("wait {field}"), &got[&format!("wait{name}_ns")], &want["wait"][field], 1.0);
            }
            if comm["own_from_entries"] == false {
                close("own excess", &got["own_excess_ns"], &want["own_excess_ns"], 1.0);
            }
            close("excess", &got["excess_ns"], &want["excess_ns"], clock);
            close("share", &got["share"], &want["share"], 2.0 * bound / period + 1e-6);
            let z = want["z"].as_f64().unwrap_or(0.0).abs();
            close("z", &got["z"], &want["z"], if by_entries { 0.05 * z + 3.0 } else { 1e-6 });
            let flagged = flags.iter().find(|row| row["rank"] == want["rank"]).expect("each rank");
            close("flagged", &flagged["flagged"], &want["flagged"], if by_entries { 2.0 } else { 0.0 });
            assert_eq!(flagged["windows"], comm["windows"]);
        }
    }
    assert_eq!((matched, complete), (number(&answer["evidence"]["matched"]), number(&answer["evidence"]["complete"])));
    assert_eq!(windows, number(&answer["evidence"]["windows"]));
    if verdict["kind"] != "rank" {
        return asked;
    }
    let named = of(&asked, &format!("rank {} on", verdict["rank"]));
    assert_eq!(named.len(), 1, "{named:?}");
    let comm =
        list(&answer["per_comm"]).find(|comm| comm["comm_hash"] == verdict["comm_hash"]).expect("its communicator");
    let period = comm["period_ns"].as_f64().expect("a period");
    close("late by", &named[0]["late_by_ns"], &verdict["late_by_ns"], clock);
    // Who of two was the last by less than the clocks are known to is told anew.
    close("last in", &named[0]["last_in"], &verdict["last_in"], 3.0);
    assert_eq!(named[0]["collectives"], verdict["collectives"]);
    close("share", &named[0]["share"], &verdict["share"], 2.0 * bound / period + 1e-6);
    let z = verdict["z"].as_f64().unwrap_or(0.0).abs();
    close("z", &named[0]["z"], &verdict["z"], if by_entries { 0.05 * z + 3.0 } else { 1e-6 });
    let flags = of(&asked, &format!("windows of communicator {}", comm["comm_hash"].as_str().expect("a hash")));
    let flags = flags.iter().find(|row| row["pid"] == verdict["pid"]).expect("its windows");
    let column = if verdict["basis"] == "own_time" { "own_in_episode" } else { "late_in_episode" };
    close("flagged in the episode", &flags[column], &verdict["flagged"], if by_entries { 1.0 } else { 0.0 });
    let (cost, want) = (&of(&asked, "cost")[0], &answer["cost"]);
    let within = |want: &Value| if by_entries { 0.1 * want.as_f64().unwrap_or(0.0) } else { 1e-6 };
    close("cost", &cost["gpu_seconds_wasted"], &want["gpu_seconds_wasted"], within(&want["gpu_seconds_wasted"]));
    // What is taken by time moves with the clocks of the first and last collective.
    let by_time = |want: &Value| within(want).max(1e-3 * want.as_f64().unwrap_or(0.0));
    close("ranks lost", &cost["gpus_lost"], &want["gpus_lost"], by_time(&want["gpus_lost"]));
    let step = &want["per_step"];
    assert_eq!(cost["collectives_a_step"], step["collectives"]);
    for (got, want) in [
        ("steps", "steps"),
        ("step_ns", "step_ns"),
        ("wasted_ns_a_step", "wasted_ns"),
        ("gpu_seconds_a_step", "gpu_seconds_wasted"),
        ("slowdown", "slowdown"),
    ] {
        close(want, &cost[got], &step[want], by_time(&step[want]));
    }
    asked
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

/// Every fifth collective waits a second for segments that n2 sends again to n1 and n3. The job began 100 s ago and goes on for minutes: the
/// last seconds of it are looked at.
fn lossy(input: &mut Input) -> Vec<(&'static str, String)> {
    const WAIT: i64 = 1_000 * MS;
    for seen in &mut input.observations {
        let before = i64::try_from(seen.seq.div_ceil(5)).expect("small");
        seen.entry_ns += before * WAIT;
        seen.duration_ns += if seen.seq % 5 == 0 { WAIT } else { 0 };
    }
    input.until_ns = input.since_ns + 100_000 * MS;
    let later_ns = now_ns() - input.until_ns;
    let hit = input.observations.iter().filter(|o| o.rank == 0 && o.seq % 5 == 0);
    let rows = hit.enumerate().map(|(i, o)| {
        let (at, to) = (o.entry_ns + o.duration_ns - 500 * MS + later_ns, if i % 2 == 0 { 1 } else { 3 });
        format!("INSERT INTO net_events VALUES ({at}, 'tcp_retransmit_skb', 1, '10.0.0.2', '10.0.0.{to}');\n")
    });
    vec![("n2", rows.collect())]
}

#[test]
fn every_figure_of_a_verdict_comes_out_of_the_questions_that_are_shown() {
    let slow = |rank, extra_ns, from_step| vec![Slow { rank, extra_ns, from_step }];
    // Late from the middle on: the episode is not the span. Records are lost, too.
    let late = plain(Job { steps: 90, own_ns: 50 * MS, slow: slow(5, 40 * MS, 40), loss: 0.002, ..Job::default() });
    let healthy = plain(Job { steps: 40, ..Job::default() });
    let grid = |slow: Vec<Slow>, heavy_stage| {
        let job = plain(Job { steps: 24, own_ns: 100 * MS, slow, ..Job::default() });
        Grid { tensor: 2, data: 2, pipeline: 2, microbatches: 2, heavy_stage, job }
    };
    let uneven = plain(Job { collectives: 4, uneven: 0.3, steps: 60, ..Job::default() });
    let mut lost = plain(Job { steps: 400, own_ns: 500 * MS, ..Job::default() }).observe(7);
    let retransmissions = lossy(&mut lost);
    let jobs = [
        ("late", late.observe(7)),
        ("healthy", healthy.observe(7)),
        ("grid", grid(slow(3, 60 * MS, 0), None).observe(7)),
        ("stages", grid(Vec::new(), Some((1, 1.8))).observe(7)),
        ("uneven", uneven.observe(7)),
        ("lossy", lost),
    ];
    let lab = mesh(&jobs, &retransmissions);
    // before the jobs leave the span; what is asked then has the times of the verdict
    let [late, healthy, grid, stages, uneven, lossy] = jobs.map(|(job, _)| verdict(&lab, job));

    let answer = late;
    assert_eq!((&answer["verdict"]["kind"], &answer["verdict"]["rank"]), (&"rank".into(), &5.into()), "{answer}");
    same_figures(&lab, &answer, false);
    // The text prints them, ready to paste.
    let output = lab.ask("n1", "stragglers", &["--since", "100s", "--job", "late", "--show-sql", "--timeout", "100s"]);
    let text = common::stdout(&output);
    assert!(text.contains("\n-- rank 5 on n2 in its episode\nWITH member(node, pid, class, bound_ns) AS ("), "{text}");

    let answer = healthy;
    assert_eq!(answer["verdict"]["kind"], "none", "{answer}");
    same_figures(&lab, &answer, false);

    let answer = grid;
    assert_eq!((&answer["verdict"]["kind"], &answer["verdict"]["rank"]), (&"rank".into(), &3.into()), "{answer}");
    same_figures(&lab, &answer, false);

    let answer = stages;
    assert_eq!(answer["verdict"]["kind"], "stage_imbalance", "{answer}");
    let asked = same_figures(&lab, &answer, false);
    let stages = of(&asked, "stages");
    for (got, want) in stages.iter().zip(list(&answer["verdict"]["stages"])) {
        close("own work of a stage", &got["own_share"], &want["own_share"], 1e-6);
        assert_eq!(number(&got["ranks"]), list(&want["ranks"]).count() as u64);
    }
    assert_eq!(stages.len(), 2);
    close("ratio of stages", &stages[0]["ratio"], &answer["verdict"]["ratio"], 1e-6);
    close("share of a stage", &stages[0]["share"], &answer["verdict"]["share"], 1e-6);

    let answer = uneven;
    assert_eq!(answer["verdict"]["kind"], "data_imbalance", "{answer}");
    let asked = same_figures(&lab, &answer, false);
    let turns = &of(&asked, "lateness that goes round")[0];
    close("share of turns", &turns["share"], &answer["verdict"]["share"], 1e-6);
    assert_eq!(turns["taking_turns"], answer["verdict"]["taking_turns"]);

    let answer = lossy;
    let network = &answer["verdict"];
    assert_eq!((&network["kind"], &network["node"]), (&"network".into(), &"n2".into()), "{answer}");
    let asked = same_figures(&lab, &answer, false);
    let flows = of(&asked, "the network");
    assert_eq!(flows.len(), list(&network["flows"]).count());
    for (got, want) in flows.iter().zip(list(&network["flows"])) {
        assert_eq!((&got["from_node"], &got["to_address"]), (&want["from_node"], &want["to"]), "{flows:?}");
        assert_eq!(got["retransmissions"], want["retransmissions"]);
        assert_eq!(got["all_flows"], network["retransmissions"]);
        assert_eq!(got["collectives"], network["collectives"]);
        assert_eq!(got["with_retransmissions"], network["with_retransmissions"]);
        for name in ["usual_ns", "slow_ns"] {
            close(
                name,
                &got[name],
                &network[name],
                2.0 * answer["evidence"]["clock_bound_ns"].as_f64().expect("clocks") + 1.0,
            );
        }
        close("share", &got["share"], &network["share"], 0.02);
        close("explained", &got["explained"], &network["explained"], 0.02);
    }
}

#[test]
fn every_figure_comes_out_where_calls_only_enqueue() {
    let slow = |extra_ns| vec![Slow { rank: 5, extra_ns, from_step: 0 }];
    let entries = plain(Job { steps: 30, own_ns: 50 * MS, slow: slow(400 * MS), enqueues: true, ..Job::default() });
    let synced = Job { steps: 60, slow: slow(60 * MS), syncs: true, loss: 0.002, ..entries.clone() };
    let several = Job { collectives: 3, runs_ahead: true, loss: 0.0, ..synced.clone() };
    let jobs = [("entries", entries.observe(7)), ("synced", synced.observe(7)), ("several", several.observe(7))];
    let lab = mesh(&jobs, &[]);
    let answers = jobs.map(|(job, _)| verdict(&lab, job));
    for (answer, basis) in answers.into_iter().zip(["entries", "waits", "waits"]) {
        let is = (&answer["verdict"]["kind"], &answer["verdict"]["rank"], &answer["verdict"]["basis"]);
        assert_eq!(is, (&"rank".into(), &5.into(), &basis.into()), "{answer}");
        assert_eq!(answer["per_comm"][0]["synced"], basis == "waits");
        same_figures(&lab, &answer, basis == "entries");
    }
}
