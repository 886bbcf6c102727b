//! Jobs with a mesh: the late rank is named, with eBPF and without root, and calls that ranks hand
//! over beside eBPF count once.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::jobs::workloads_in;
use crate::common::slurm::{Slurm, has_slurm};
use crate::common::{can_capture, stderr, stdout, wait_for};
use crate::{MPI, json, named, of_nobody};

#[test]
fn a_batch_script_gets_its_mesh_and_the_late_rank_its_name() {
    const TEST: &str = "a_batch_script_gets_its_mesh_and_the_late_rank_its_name";
    if !has_slurm(TEST) || !can_capture(TEST) {
        return;
    }
    let slurm = Slurm::start(4);
    let bin = workloads_in(slurm.path("job")).join("mpi-ranks");
    // another job on the same nodes: no mesh yet
    let other = slurm.submit("other", &["-N4", "--ntasks-per-node=1"], "echo started; srun --overlap sleep 600");
    let script = format!(
        "$RM slurm up --budget none --timeout 60s --label team=red; echo \"up ended with $?\"\n{MPI}\n\
         srun --mpi=pmix {} --iters 2000 --work-ms 40 --late-rank 5 --late-ms 200\n",
        bin.display()
    );
    let job = slurm.submit("job", &["-N4", "--ntasks-per-node=2"], &script);
    let printed = slurm.wait_for_output("job", "up ended with");
    assert!(printed.contains("up ended with 0") && printed.contains("4 of 4 nodes know each other"), "{printed}");
    let directory = slurm.path(&format!("rankmesh-{job}"));
    assert!(printed.contains(&format!("{}\n", directory.display())), "{printed}");

    let (id, other_id) = (job.to_string(), other.to_string());
    let verdict = wait_for("the late rank is named", || named(&slurm, job));
    assert_eq!((verdict["rank"].as_i64(), verdict["node"].as_str()), (Some(5), Some("n3")), "{verdict}");
    let nodes = json(&slurm.rankmesh(&["nodes", "--job", &id, "--format", "json"])).unwrap();
    assert_eq!(nodes.as_array().map(Vec::len), Some(4), "{nodes}");
    assert_eq!(
        (&nodes[0]["labels"]["job"], &nodes[0]["labels"]["team"]),
        (&Value::from(id.clone()), &Value::from("red"))
    );

    // From a host without agents: the question goes through Slurm to a node of the job.
    let sql = "SELECT node, group_concat(DISTINCT rank), count(DISTINCT comm_hash) FROM collectives GROUP BY node ORDER BY node";
    let answer = slurm.rankmesh_elsewhere(&["query", "--job", &id, "--format", "json", sql]);
    let answer = json(&answer).unwrap();
    let rows = answer["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 4, "{answer}");
    for (index, row) in rows.iter().enumerate() {
        let mut ranks: Vec<&str> = row[1].as_str().expect("ranks").split(',').collect();
        ranks.sort_unstable();
        let wanted = [(2 * index).to_string(), (2 * index + 1).to_string()];
        assert_eq!(
            (ranks.as_slice(), row[2].as_i64()),
            (&[&*wanted[0], &*wanted[1]][..], Some(1)),
            "each node its own ranks"
        );
    }

    // `top` draws there as it would here, through srun's terminal.
    let mut top = slurm.rankmesh_elsewhere_on_a_terminal(&format!("top --job {id}"));
    top.see("CULPRIT");
    top.press("4");
    top.see("n4");
    top.press("q");
    assert_eq!(top.ends(), Some(0));

    // The other job: attached to while it runs, from outside.
    let none = slurm.rankmesh(&["query", "--job", &other_id, "SELECT 1"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(stderr(&none).contains(&format!("rankmesh slurm attach {other}")), "{}", stderr(&none));
    let attached = slurm.rankmesh(&["slurm", "attach", &other_id, "--timeout", "60s"]);
    assert_eq!(attached.status.code(), Some(0), "{}{}", stdout(&attached), stderr(&attached));
    let again = slurm.rankmesh(&["slurm", "attach", &other_id]);
    assert!(again.status.success() && stderr(&again).contains("already"), "{}", stderr(&again));
    let nodes = json(&slurm.rankmesh(&["nodes", "--job", &other_id, "--format", "json"])).unwrap();
    assert_eq!((nodes.as_array().map(Vec::len), &nodes[3]["labels"]["job"]), (Some(4), &Value::from(other_id.clone())));

    // Two jobs on the same nodes: neither has anything of the other.
    for (asked, sql, wanted) in [
        (&other_id, "SELECT count(*) FROM collectives".to_owned(), 0),
        (&other_id, format!("SELECT count(*) FROM processes WHERE job_id <> '{other}'"), 0),
        (&id, format!("SELECT count(*) FROM processes WHERE job_id IS NOT '{job}'"), 0),
        (&id, "SELECT count(DISTINCT pid) FROM processes WHERE rank IS NOT NULL".to_owned(), 8),
    ] {
        let answer = json(&slurm.rankmesh(&["query", "--job", asked, "--format", "json", &sql])).unwrap();
        assert_eq!(answer["rows"][0][0].as_i64(), Some(wanted), "{sql}: {answer}");
    }
    slurm.run("scancel", &[&id, &other_id]);
    slurm.wait_for_nothing(&directory);
    slurm.wait_for_nothing(&slurm.path(&format!("rankmesh-{other}")));
    // The job has left its report; the other one, in which no collective ran, has none, and the
    // reason.
    let page = std::fs::read_to_string(directory.join("report.html")).unwrap_or_else(|error| {
        let log = |name: &str| std::fs::read_to_string(directory.join("log").join(name)).unwrap_or_default();
        panic!("{error}: {}\n{}", log("report.log"), log("n1.log"))
    });
    assert!(page.contains(&format!("Job {job}")) && page.contains("id=\"rank-table\""), "{page}");
    assert!(page.contains("4 of 4 nodes answered"), "every store was closed and read");
    let log = std::fs::read_to_string(slurm.path(&format!("rankmesh-{other}")).join("log/report.log"));
    assert!(log.expect("a log").contains("no collectives were recorded"));
}

#[test]
fn without_root_the_shim_leads_to_the_same_verdict() {
    if !has_slurm("without_root_the_shim_leads_to_the_same_verdict") {
        return;
    }
    let slurm = Slurm::start(4);
    let bin = workloads_in(slurm.path("job")).join("mpi-ranks");
    let home = of_nobody(&slurm);
    // asked in the job by its user: nobody has no account to log in to
    let script = format!(
        "export HOME={home}\n$RM slurm up --budget none --timeout 60s\neval \"$($RM env)\"\n{MPI}\n\
         srun --mpi=pmix {bin} --iters 2000 --work-ms 40 --late-rank 5 --late-ms 200 &\nunset LD_PRELOAD\n\
         while ! $RM stragglers --job $SLURM_JOB_ID --format json > verdict.new || ! grep -q '\"kind\":\"rank\"' verdict.new || ! grep -q '\"answered\":4,' verdict.new; do sleep 0.5; done\n\
         $RM query --job $SLURM_JOB_ID --format json \"SELECT node, group_concat(DISTINCT rank), min(nranks), count(DISTINCT comm_hash), \
         min(count), min(datatype) FROM collectives WHERE func = 'all_reduce' GROUP BY node ORDER BY node\" > rows\n\
         until $RM query --job $SLURM_JOB_ID --format json \"SELECT count(DISTINCT rank) FROM call_rollups \
         WHERE source = 'proc' AND func = 'run_delay' AND sum_ns > 0\" > sampled && grep -q '\"rows\":\\[\\[8\\]\\]' sampled; do sleep 0.5; done\n\
         $RM query --job $SLURM_JOB_ID --format json \"SELECT node, count(*) > 0 FROM host_samples GROUP BY node\" > hosts\n\
         mv verdict.new verdict\nwait\n",
        home = home.display(),
        bin = bin.display()
    );
    let flags = [
        "--uid=nobody",
        "-N4",
        "--ntasks-per-node=2",
        "-D",
        &home.display().to_string(),
        "-o",
        &home.join("out").display().to_string(),
    ];
    let job = slurm.submit("nobody-job", &flags, &script);
    let verdict = wait_for("the late rank is named", || {
        let read = |name: &str| std::fs::read_to_string(home.join(name)).unwrap_or_default();
        serde_json::from_str::<Value>(&read("verdict")).map_err(|_| format!("{}{}", read("out"), read("verdict.new")))
    });
    let (named, coverage) = (&verdict["verdict"], &verdict["coverage"]);
    assert_eq!((named["rank"].as_i64(), named["node"].as_str()), (Some(5), Some("n3")), "{named}");
    assert_eq!(coverage["answered"], 4, "{coverage}");
    let sampled = std::fs::read_to_string(home.join("sampled")).expect("what was sampled");
    assert!(sampled.contains("sampled from /proc"), "coverage says so: {sampled}");
    let hosts: Value =
        serde_json::from_str(&std::fs::read_to_string(home.join("hosts")).expect("what hosts do")).expect("json");
    assert_eq!(hosts["rows"].as_array().map(Vec::len), Some(4), "hosts are sampled without root, too: {hosts}");
    assert_eq!(hosts["coverage"]["notes"], serde_json::json!([]), "and nobody says that they are not");
    let rows: Value = serde_json::from_str(&std::fs::read_to_string(home.join("rows")).expect("rows")).expect("json");
    assert!(rows["coverage"]["notes"].to_string().contains("rankmesh env"), "what is missing is said: {rows}");
    let rows = rows["rows"].as_array().expect("rows");
    for (index, row) in rows.iter().enumerate() {
        let mut ranks: Vec<&str> = row[1].as_str().expect("ranks").split(',').collect();
        ranks.sort_unstable();
        let wanted = [(2 * index).to_string(), (2 * index + 1).to_string()];
        assert_eq!(
            (ranks.as_slice(), row[2].as_i64(), row[3].as_i64()),
            (&[&*wanted[0], &*wanted[1]][..], Some(8), Some(1))
        );
        assert_eq!((row[4].as_i64(), row[5].as_str()), (Some(1024), Some("float64")), "{row}");
    }
    assert_eq!(rows.len(), 4);
    slurm.run("scancel", &[&job.to_string()]);
    let directory = home.join(format!("rankmesh-{job}"));
    slurm.wait_for_nothing(&directory);
    let rings = format!("/dev/shm/rankmesh-65534-{job}");
    wait_for("no ring is left", || if Path::new(&rings).exists() { Err(rings.clone()) } else { Ok(()) });
}

/// What NCCL does with its profiler plugin, as a program.
fn nccl_host(slurm: &Slurm) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../node-bpf");
    let program = slurm.path("nccl-host");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-pthread", "-o"]).arg(&program).arg("-I").arg(sources.join("src/shim"));
    let made = cc.arg(sources.join("tests/c/nccl_host.c")).arg("-ldl").status();
    assert!(made.expect("cc runs").success());
    program
}

#[test]
fn what_ranks_hand_over_beside_ebpf_counts_once_and_devices_tell_their_times() {
    const TEST: &str = "what_ranks_hand_over_beside_ebpf_counts_once_and_devices_tell_their_times";
    if !has_slurm(TEST) || !can_capture(TEST) {
        return;
    }
    let slurm = Slurm::start(2);
    let (mpi, nccl) = (workloads_in(slurm.path("job")).join("mpi-ranks"), nccl_host(&slurm));
    // Version 4 of the plugin's interface has times of the device.
    let script = format!(
        "$RM slurm up --budget none --timeout 60s; echo \"up ended with $?\"\neval \"$($RM env)\"\n{MPI}\n\
         sleep 60 | env -u LD_PRELOAD {} $NCCL_PROFILER_PLUGIN 4 1 50 3 &\n\
         srun --mpi=pmix {} --iters 20000 --work-ms 20\n",
        nccl.display(),
        mpi.display()
    );
    let job = slurm.submit("beside", &["-N2", "--ntasks-per-node=1"], &script);
    let printed = slurm.wait_for_output("beside", "up ended with");
    assert!(printed.contains("ended with 0") && !printed.contains("MPI shim and NCCL plugin only"), "{printed}");
    let id = job.to_string();
    let sql = "SELECT count(*), max(times), max(tier) FROM (SELECT count(*) AS times, max(tier) AS tier FROM collectives \
               GROUP BY node, pid, comm_hash, func, seq)";
    wait_for("the calls are there once, the plugin's with times of the device", || {
        let answer = json(&slurm.rankmesh(&["query", "--job", &id, "--format", "json", sql]))?;
        let row = &answer["rows"][0];
        if row[1].as_i64().is_some_and(|times| times > 1) {
            let more = slurm.rankmesh(&["query", "--job", &id, "SELECT node, pid, rank, comm_hash, func, seq, tier, count(*), min(ts_ns), max(ts_ns) FROM collectives GROUP BY node, pid, comm_hash, func, seq, tier ORDER BY count(*) DESC LIMIT 20"]);
            panic!(
                "{answer}\n{}\n{}",
                stdout(&more),
                stdout(&slurm.rankmesh(&["query", "--job", &id, "SELECT * FROM capture_loss"]))
            );
        }
        if row[0].as_i64() >= Some(100) && row[2].as_i64() == Some(3) {
            Ok(())
        } else {
            Err(format!("{answer}{}", slurm.output_of("beside")))
        }
    });
    // Nothing of them stays in memory: the rings lose their names where eBPF records, too.
    let rings = PathBuf::from(format!("/dev/shm/rankmesh-0-{job}"));
    wait_for("no ring has a name", || {
        let nodes = std::fs::read_dir(&rings).map_err(|error| error.to_string())?.flatten();
        let left: Vec<_> = nodes
            .flat_map(|node| std::fs::read_dir(node.path()).into_iter().flatten().flatten())
            .map(|entry| entry.file_name())
            .filter(|name| name.to_string_lossy().starts_with("ring-"))
            .collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    slurm.run("scancel", &[&id]);
    slurm.wait_for_nothing(&slurm.path(&format!("rankmesh-{job}")));
    wait_for("no ring is left", || if rings.exists() { Err(rings.display().to_string()) } else { Ok(()) });
}
