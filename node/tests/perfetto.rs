//! `rankmesh export --perfetto`: the trace has the same contents as SQL's answers, read here and by
//! Perfetto's own trace_processor.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Output;

use common::job_stores::{EndedJob, HOSTILE, T0};
use common::trace_processor::{Cell, TraceProcessor};
use common::{Lab, make_db, run, stderr, stdout};
use prost::Message;
use report::perfetto::proto;
use serde_json::Value;

/// Tables whose rows are slices or points, with their times.
const TABLES: [(&str, &str); 9] = [
    ("collectives", "duration_ns"),
    ("requests", "duration_ns"),
    ("cuda_calls", "duration_ns"),
    ("offcpu", "duration_ns"),
    ("memory_events", "duration_ns"),
    ("block_io", "duration_ns"),
    ("net_events", "0"),
    ("process_events", "0"),
    ("findings", "until_ns - since_ns"),
];

fn export(dir: &Path, out: &Path, more: &[&str]) -> Output {
    let db = dir.display().to_string();
    let out = out.display().to_string();
    let output = run(&[&["export", "--db", &db, "--perfetto", &out, "--timeout", "60s"], more].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    output
}

/// The span of the full job.
fn full_span() -> [String; 3] {
    ["--between".to_owned(), "2025-12-31T00:00:00Z".to_owned(), "2026-01-02T00:00:00Z".to_owned()]
}

fn sql(dir: &Path, sql: &str) -> Vec<Vec<i64>> {
    let output = run(&["query", "--db", &dir.display().to_string(), "--format", "json", "--timeout", "60s", sql]);
    assert!(output.status.success(), "{sql}: {}", stderr(&output));
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let row = |row: &Value| row.as_array().expect("a row").iter().map(|cell| cell.as_i64().unwrap_or(0)).collect();
    answer["rows"].as_array().expect("rows").iter().map(row).collect()
}

/// Rows and summed-up time of each table, by SQL.
fn expected(dir: &Path) -> BTreeMap<String, Vec<i64>> {
    let of = |(table, duration): &(&str, &str)| {
        let mut rows = sql(dir, &format!("SELECT count(*), coalesce(sum({duration}), 0) FROM {table}"));
        ((*table).to_owned(), rows.remove(0))
    };
    TABLES.iter().map(of).collect()
}

fn job(dir: &Path) -> EndedJob {
    std::fs::create_dir(dir).expect("a directory");
    let job = EndedJob { serves: true, ..EndedJob::small() };
    job.write(dir);
    job
}

#[test]
fn a_trace_has_the_rows_of_the_stores_and_is_read_without_any_tool() {
    let lab = Lab::new();
    let (dir, out) = (lab.path("job"), lab.path("job.pftrace"));
    job(&dir);
    let span = full_span();
    let output = export(&dir, &out, &span.each_ref().map(String::as_str));
    let bytes = std::fs::read(&out).expect("the trace");
    assert!(stderr(&output).contains(&format!("{} bytes into {}", bytes.len(), out.display())), "{}", stderr(&output));

    let trace = proto::Trace::decode(&*bytes).expect("a trace");
    let mut categories = BTreeMap::new();
    for packet in &trace.packet {
        for named in packet.interned_data.iter().flat_map(|new| &new.event_categories) {
            categories.insert(named.iid.expect("a number"), named.name.clone().expect("a name"));
        }
    }
    let mut seen: BTreeMap<String, i64> = BTreeMap::new();
    let mut flows: BTreeMap<u64, i64> = BTreeMap::new();
    for event in trace.packet.iter().filter_map(|packet| packet.track_event.as_ref()) {
        if matches!(event.r#type, Some(proto::SLICE_BEGIN | proto::INSTANT)) {
            *seen.entry(categories[&event.category_iids[0]].clone()).or_default() += 1;
            event.flow_ids.iter().for_each(|flow| *flows.entry(*flow).or_default() += 1);
        }
    }
    for (table, rows) in expected(&dir) {
        assert_eq!(seen.get(&table).copied().unwrap_or(0), rows[0], "{table}");
    }
    assert_eq!(flows.len(), 100, "a flow a collective");
    assert!(flows.values().all(|ranks| *ranks == 8), "of all ranks");
    // Private as the stores are, and no file is written over.
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(std::fs::metadata(&out).expect("there").permissions().mode() & 0o777, 0o600);
    let again = run(&["export", "--db", &dir.display().to_string(), "--perfetto", &out.display().to_string()]);
    assert_eq!((again.status.code(), std::fs::read(&out).expect("there") == bytes), (Some(2), true));
}

#[test]
fn trace_processor_counts_as_sql_does() {
    const TEST: &str = "trace_processor_counts_as_sql_does";
    let lab = Lab::new();
    let (dir, out) = (lab.path("job"), lab.path("job.pftrace"));
    let job = job(&dir);
    let span = full_span();
    let span = span.each_ref().map(String::as_str);
    export(&dir, &out, &span);
    // The same in a file a node, put one after the other; and of two ranks alone.
    let parts: Vec<PathBuf> = ["n0", "n1"]
        .map(|node| {
            let part = lab.path(&format!("{node}.pftrace"));
            export(&dir, &part, &[&span[..], &["--nodes", node]].concat());
            part
        })
        .into();
    let joined = lab.path("joined.pftrace");
    let bytes: Vec<u8> = parts.iter().flat_map(|part| std::fs::read(part).expect("a part")).collect();
    std::fs::write(&joined, bytes).expect("written");
    let few = lab.path("few.pftrace");
    export(&dir, &few, &[&span[..], &["--ranks", "2,5"]].concat());

    let mut read = match TraceProcessor::start(&out) {
        Ok(read) => read,
        Err(why) => {
            eprintln!("skipped: {TEST}: {why}");
            return;
        }
    };
    let expected = expected(&dir);
    let by_table = |read: &mut TraceProcessor| -> BTreeMap<String, Vec<i64>> {
        let of = |(table, _): &(&str, &str)| {
            let sql = format!("SELECT count(*), coalesce(sum(dur), 0) FROM slice WHERE category = '{table}'");
            ((*table).to_owned(), read.integers(&sql).remove(0))
        };
        TABLES.iter().map(of).collect()
    };
    assert_eq!(by_table(&mut read), expected);

    // Spans, one by one, of each rank.
    let of_rank = "SELECT s.ts, s.dur, extract_arg(s.arg_set_id, 'debug.rank') AS rank FROM slice s \
                   WHERE category = 'collectives' ORDER BY 3, 1";
    let spans = sql(&dir, "SELECT ts_ns, duration_ns, rank FROM collectives ORDER BY rank, ts_ns");
    assert_eq!(read.integers(of_rank), spans);

    // A process a rank, which its tracks lie under.
    let processes = read.query("SELECT name FROM process WHERE name GLOB 'rank *' ORDER BY name");
    assert_eq!(processes.len(), 8);
    assert_eq!(processes[5], [Cell::Text(format!("rank 5 on n1 pid 1001 {HOSTILE}"))]);
    let of_process = "SELECT count(*) FROM slice s JOIN process_track t ON s.track_id = t.id JOIN process p USING (upid) \
                      WHERE p.name GLOB 'rank 5 *' AND s.category = 'offcpu'";
    assert_eq!(read.integers(of_process), sql(&dir, "SELECT count(*) FROM offcpu WHERE rank = 5"));

    // An arrow from each rank to the next, in the order in which they came.
    assert_eq!(read.integers("SELECT count(*) FROM flow"), [[100 * 7]]);
    let late = "SELECT count(*) FROM flow f JOIN slice s ON f.slice_in = s.id WHERE extract_arg(s.arg_set_id, 'debug.rank') = 5 \
                AND NOT EXISTS (SELECT 1 FROM flow n WHERE n.slice_out = s.id)";
    assert!(read.integers(late)[0][0] >= job.steps / 2, "from the middle on rank 5 comes last");

    // Counters, states that last, and the verdict on a track of its own.
    let clocks = "SELECT count(*), CAST(min(c.value) AS INT), CAST(max(c.value) AS INT) FROM counter c JOIN track t ON c.track_id = t.id \
                  WHERE t.name = 'GPU 0 SM clock'";
    assert_eq!(
        read.integers(clocks),
        sql(&dir, "SELECT count(*), min(sm_clock_mhz), max(sm_clock_mhz) FROM gpu_samples")
    );
    let throttled = "SELECT count(*), sum(dur) FROM slice WHERE category = 'gpu_samples' AND name = 'sw_thermal'";
    assert_eq!(read.integers(throttled)[0][1] / 1_000_000_000, read.integers(throttled)[0][0], "a second each");
    let verdict = read.query(
        "SELECT s.name, s.ts FROM slice s JOIN track t ON s.track_id = t.id WHERE t.name = 'late ranks' AND s.category = 'verdict'",
    );
    assert_eq!(verdict.len(), 1, "{verdict:?}");
    assert_eq!(verdict[0][0], Cell::Text("rank 5 on n1 is late".to_owned()));
    let Cell::Integer(since_ns) = verdict[0][1] else { panic!("{verdict:?}") };
    assert!((since_ns - T0 - job.steps / 2 * job.step_ns).abs() < 3_000_000_000, "{since_ns}");
    // Nothing was dropped on the way in.
    let wrong = read.query("SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0");
    assert_eq!(wrong, Vec::<Vec<Cell>>::new());
    drop(read);

    let mut read = TraceProcessor::start(&joined).expect("it ran before");
    assert_eq!(by_table(&mut read), expected, "files put together have what they had");
    assert_eq!(read.integers("SELECT count(*) FROM flow"), [[100 * 7]], "arrows from file to file");
    assert_eq!(read.integers("SELECT count(*) FROM process WHERE name GLOB 'rank *'"), [[8]]);
    assert_eq!(read.query("SELECT 1 FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0").len(), 0);
    drop(read);

    let mut read = TraceProcessor::start(&few).expect("it ran before");
    let ranks =
        "SELECT DISTINCT extract_arg(arg_set_id, 'debug.rank') FROM slice WHERE category = 'collectives' ORDER BY 1";
    assert_eq!(read.integers(ranks), [[2], [5]]);
    assert_eq!(read.integers("SELECT count(*) FROM slice WHERE category = 'collectives'"), [[200]]);
}

/// Tables of an older or foreign node.
const OLD: &str = "CREATE TABLE collectives (ts_ns INTEGER, duration_ns INTEGER, pid INTEGER, tid INTEGER, rank INTEGER, nranks INTEGER, \
    comm_hash INTEGER, func TEXT, seq INTEGER, comm_seq INTEGER, count INTEGER, datatype TEXT, bytes INTEGER, reduce_op TEXT, root INTEGER, stream INTEGER, \
    library TEXT, tier INTEGER, ret INTEGER, captured INTEGER, job_id TEXT);";

#[test]
fn a_mesh_is_asked_as_well_and_what_is_missing_is_said() {
    let mut lab = Lab::new();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_nanos();
    let now = i64::try_from(now).expect("before 2262");
    for (rank, node) in ["a", "b"].iter().enumerate() {
        let file = lab.path(&format!("{node}.trace"));
        let rows: String = (0..50)
            .map(|seq| {
                let ts = now - 20_000_000_000 + seq * 200_000_000;
                format!(
                    "INSERT INTO collectives VALUES ({ts}, 1000000, 7, 7, {rank}, 2, 99, 'barrier', {seq}, {seq}, NULL, NULL, NULL, NULL, NULL, NULL, \
                     'mpi', 1, 0, 0, NULL);"
                )
            })
            .collect();
        make_db(&file, &format!("BEGIN; {OLD} {rows} COMMIT;"));
        lab.start(node, &["--serve-db", &file.display().to_string(), "--capture", "off"]);
    }
    lab.wait_for_members(&["a", "b"]);
    let ask = |lab: &Lab, name: &str| {
        let out = lab.path(name);
        let output =
            lab.ask("a", "export", &["--perfetto", &out.display().to_string(), "--since", "60s", "--timeout", "30s"]);
        (output, out)
    };
    let (output, out) = ask(&lab, "both.pftrace");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("not in the trace: offcpu: "), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
    let of = |out: &Path| {
        let trace = proto::Trace::decode(&*std::fs::read(out).expect("a trace")).expect("a trace");
        let events = trace.packet.iter().filter_map(|packet| packet.track_event.as_ref());
        // Times of both are on a's clock: every one has its uncertainty.
        events.filter(|event| !event.flow_ids.is_empty()).count()
    };
    assert_eq!(of(&out), 100);

    lab.kill("b");
    let (output, out) = ask(&lab, "one.pftrace");
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("missing b: "), "{}", stderr(&output));
    assert_eq!(of(&out), 50);
    let strict = lab.path("whole.pftrace");
    let required = ["--perfetto", &strict.display().to_string(), "--since", "60s", "--require-all"];
    assert_eq!(lab.ask("a", "export", &required).status.code(), Some(1));
    assert!(!strict.exists(), "nothing is left behind");
}

#[test]
fn what_cannot_be_exported_is_said_before_anything_is_written() {
    let lab = Lab::new();
    let (dir, out) = (lab.path("job"), lab.path("x.pftrace"));
    job(&dir);
    let (db, to) = (dir.display().to_string(), out.display().to_string());
    let cases: [(&[&str], i32, &str); 5] = [
        (&["--between", "10m", "20m"], 2, "A has to be before B"),
        (&["--ranks", "900"], 1, "no process is known that is of these ranks"),
        (&["--job", "1"], 1, "no job '1' is known: only 4711 is"),
        (&["--out", "x.csv"], 2, "cannot be used with"),
        (&["--ranks", "x"], 2, "are no ranks"),
    ];
    for (more, code, words) in cases {
        let output = run(&[&["export", "--db", &db, "--perfetto", &to], more].concat());
        assert_eq!(output.status.code(), Some(code), "{more:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{more:?}: {}", stderr(&output));
        assert!(!out.exists(), "{more:?}");
    }
    let missing = run(&["export", "--db", &lab.path("none").display().to_string(), "--perfetto", &to]);
    assert_eq!(missing.status.code(), Some(1), "{}", stderr(&missing));
}
