//! Stores, archive and both together give the same answers and the same list of jobs.

use std::path::Path;

use serde_json::Value;

use crate::common::{rankmesh, run, stderr, stdout};
use crate::{Investigation, archived, ask, investigations, same, text};

#[test]
fn stores_archive_and_both_together_answer_alike() {
    let dir = tempfile::tempdir().expect("a directory");
    let (stores, archive) = archived(dir.path());
    let (stores, archive) = (text(&stores), text(&archive));
    for Investigation { name, mesh, .. } in investigations() {
        let expected = ask(&["--db", stores], &mesh);
        let is_empty = expected["rows"].as_array().is_none_or(Vec::is_empty);
        assert_eq!(is_empty, name == "incomplete-collectives", "{name}");
        for from in [&["--archive", archive][..], &["--archive", archive, "--db", stores]] {
            let answer = ask(from, &mesh);
            assert!(same(&answer["rows"], &expected["rows"]), "{name} {from:?}: {answer} is not {expected}");
            assert_eq!(answer["coverage"]["answered"], 2, "{name}");
        }
    }
    // A job's verdict and bill come from the archive as from the stores.
    let span = ["--between", "2026-01-01T01:30Z", "2026-01-01T02:00Z"];
    for (command, span, figures) in
        [("stragglers", &span[..], ["verdict", "ranks"]), ("cost", &["--job", "4711"], ["culprits", "collectives"])]
    {
        let of = |flag: &str, path: &str| -> Value {
            let output = run(&[&[command, "--format", "json", "--timeout", "60s", flag, path], span].concat());
            assert!(output.status.success(), "{command} {flag}: {}", stderr(&output));
            serde_json::from_str(&stdout(&output)).expect("JSON")
        };
        let (from_stores, from_archive) = (of("--db", stores), of("--archive", archive));
        for figure in figures {
            assert!(
                same(&from_archive[figure], &from_stores[figure]),
                "{command}: {from_archive} is not {from_stores}"
            );
        }
        assert_ne!(from_stores[figures[0]], Value::Null, "{command}");
    }
    // A second pass writes nothing.
    let again = run(&["archive", "--full-speed", "--db", stores, "--to", archive]);
    assert!(stderr(&again).starts_with("0 hours, 0 rows"), "{}", stderr(&again));
    let copy = dir.path().join("copy.db");
    std::fs::copy(Path::new(stores).join("n0.db"), &copy).expect("copied");
    let twice = run(&["query", "--archive", archive, "--db", stores, "--db", text(&copy), "SELECT 1 FROM collectives"]);
    assert_eq!(twice.status.code(), Some(2));
    assert!(stderr(&twice).contains("another copy of the store of n0"), "{}", stderr(&twice));
}

/// A question of docs/history.md: what follows this sentence.
fn documented(sentence: &str) -> String {
    let text = include_str!("../../../docs/history.md");
    let after = text.split(sentence).nth(1).expect("the sentence is there");
    let lines = after.lines().skip(1).skip_while(|line| line.is_empty()).take_while(|line| line.starts_with("    "));
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

#[test]
fn jobs_are_listed_from_stores_and_archive_with_accounting() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a directory");
    let (stores, archive) = archived(dir.path());
    let sacct = dir.path().join("sacct");
    let line = "4711|4711|ada|physics|h100|COMPLETED|9180|2|cpu=8,gres/gpu=8,node=2|train|me";
    std::fs::write(&sacct, format!("#!/bin/sh\necho \"$@\" > {}/asked\necho '{line}'\n", text(dir.path())))
        .and_then(|()| std::fs::set_permissions(&sacct, std::fs::Permissions::from_mode(0o755)))
        .expect("written");
    let jobs = |arguments: &[&str]| {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = rankmesh();
        command.args(["jobs", "--timeout", "60s"]).args(arguments).env("PATH", format!("{}:{path}", text(dir.path())));
        command.output().expect("it runs")
    };
    let of = |flag: &str, path: &str| -> Value {
        let output = jobs(&[flag, path, "--format", "json", "--gpu-hour", "2.00EUR"]);
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_str(&stdout(&output)).expect("JSON")
    };
    let (from_stores, from_archive) = (of("--db", text(&stores)), of("--archive", text(&archive)));
    assert!(same(&from_stores["jobs"], &from_archive["jobs"]), "{from_archive} is not {from_stores}");
    let job = &from_stores["jobs"][0];
    assert_eq!((&job["job_id"], &job["ranks"], &job["calls"]), (&"4711".into(), &8.into(), &7200.into()), "{job}");
    assert_eq!(job["nodes"], serde_json::json!(["n0", "n1"]));
    let p50_ns = job["steps"]["p50_ns"].as_i64().expect("steps");
    assert!((9_900_000_000..10_200_000_000).contains(&p50_ns), "{job}");
    assert_eq!(job["waited"]["culprits"][0]["rank"], 5, "{job}");
    // Seven ranks wait 100 ms in each of 450 steps, and some for the others' unevenness.
    let waited = job["waited"]["rank_seconds"].as_f64().expect("a figure");
    assert!((315.0..500.0).contains(&waited), "{job}");
    let cost = job["money"]["total"].as_f64().expect("a price");
    assert!((cost - waited / 3600.0 * 2.0).abs() < 1e-6, "{job}");
    assert_eq!((&job["accounting"]["user"], &job["accounting"]["gpus"]), (&"ada".into(), &8.into()), "{job}");
    assert_eq!((&job["verdicts"][0]["verdict"], &job["verdicts"][0]["node"]), (&"rank".into(), &"n1".into()), "{job}");
    let asked = std::fs::read_to_string(dir.path().join("asked")).expect("sacct was asked");
    assert!(asked.trim_end().ends_with("--jobs 4711"), "{asked}");

    // As a table and as a file; a sacct that fails costs nothing but a line.
    std::fs::write(&sacct, "#!/bin/sh\necho no database >&2\nexit 1\n").expect("written");
    let (parquet, table) = (dir.path().join("jobs.parquet"), dir.path().join("jobs.csv"));
    for file in [&parquet, &table] {
        let output = jobs(&["--db", text(&stores), "--out", text(file)]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stdout(&output).contains("rank 5 on n1"), "{}", stdout(&output));
        assert!(stderr(&output).contains("without accounting: sacct") && stderr(&output).contains("no database"));
    }
    assert!(std::fs::read(&parquet).expect("a file").starts_with(b"PAR1"));
    let table = std::fs::read_to_string(&table).expect("a file");
    assert!(table.lines().nth(1).is_some_and(|line| line.starts_with("4711,")), "{table}");
    let again = jobs(&["--db", text(&stores), "--out", text(&parquet)]);
    assert_eq!(again.status.code(), Some(2), "{}", stderr(&again));
    let none = jobs(&["--db", text(&stores), "--job", "1"]);
    let said = "no job '1' is known: only 4711 is";
    assert!(none.status.code() == Some(1) && stderr(&none).contains(said), "{}", stderr(&none));

    // Who was a culprit most often, as docs/history.md asks.
    let sql = documented("Which hosts were culprits most often this month, over different jobs:");
    for from in [["--db", text(&stores)], ["--archive", text(&archive)]] {
        let answer = ask(&from, &sql);
        assert_eq!(answer["rows"], serde_json::json!([["n1", 2, 3], ["n0", 1, 1]]), "{sql}");
    }
}
