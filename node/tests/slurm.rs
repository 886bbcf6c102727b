//! `rankmesh slurm` on real Slurm: a cluster of virtual nodes on this machine. Needs root,
//! slurm-wlm and munge.

mod common;

use common::jobs::workloads_in;
use common::slurm::{Slurm, has_slurm};
use common::{can_capture, stderr, stdout, wait_for};
use serde_json::Value;

/// Nodes that share a host name share no memory segments: MPI over TCP.
const MPI: &str = "export OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_mpi_yield_when_idle=1";

fn json(output: &std::process::Output) -> Result<Value, String> {
    serde_json::from_slice(&output.stdout).map_err(|error| format!("{error}: {}{}", stdout(output), stderr(output)))
}

/// The rank that a verdict names.
fn named(slurm: &Slurm, job: u32) -> Result<Value, String> {
    let answer = json(&slurm.rankmesh(&["stragglers", "--job", &job.to_string(), "--format", "json"]))?;
    if answer["verdict"]["kind"] == "rank" { Ok(answer["verdict"].clone()) } else { Err(answer["verdict"].to_string()) }
}

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
        "$RM slurm up --timeout 60s --label team=red; echo \"up ended with $?\"\n{MPI}\n\
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

/// `make test-accounting`: needs slurmdbd and a MariaDB, too.
#[test]
#[ignore = "make test-accounting"]
fn jobs_are_joined_with_what_slurms_own_accounting_says() {
    const TEST: &str = "jobs_are_joined_with_what_slurms_own_accounting_says";
    assert!(has_slurm(TEST) && can_capture(TEST), "it was asked for by name");
    let slurm = Slurm::start_with_accounting(2);
    let bin = workloads_in(slurm.path("job")).join("mpi-ranks");
    let script = |iters: u32, end: &str| {
        format!(
            "$RM slurm up --timeout 60s; {MPI}\nsrun --mpi=pmix {} --iters {iters} --work-ms 20 --late-rank 3 --late-ms 60\n{end}\n",
            bin.display()
        )
    };
    let flags = |name: &'static str| {
        ["-N2", "--ntasks-per-node=2", "--gres=gpu:2", "-A", "physics", "--job-name", name].map(str::to_owned)
    };
    let submit = |file: &str, name: &'static str, script: &str| {
        let flags = flags(name);
        slurm.submit(file, &flags.each_ref().map(String::as_str), script)
    };
    // A name with what separates sacct's columns; a job that fails; one that is running.
    let done = submit("done", "late|rank", &script(100, "true"));
    slurm.wait_for_nothing(&slurm.path(&format!("rankmesh-{done}")));
    let failed = submit("failed", "failed", &script(50, "exit 3"));
    slurm.wait_for_nothing(&slurm.path(&format!("rankmesh-{failed}")));

    const FORMAT: &str = "JobIDRaw,User,Account,Partition,State,ElapsedRaw,AllocNodes,JobName";
    let accounted = |job: u32| {
        wait_for("the job's end in the database", || {
            let id = job.to_string();
            let printed = stdout(&slurm.run("sacct", &["-X", "-n", "-P", "-o", FORMAT, "-j", &id]));
            let fields: Vec<String> = printed.trim_end().splitn(8, '|').map(str::to_owned).collect();
            let is_over = fields.get(4).is_some_and(|state| state == "COMPLETED" || state == "FAILED");
            if is_over { Ok(fields) } else { Err(printed) }
        })
    };
    for (job, state, name) in [(done, "COMPLETED", "late|rank"), (failed, "FAILED", "failed")] {
        let printed = accounted(job);
        let stores = slurm.path(&format!("rankmesh-{job}")).display().to_string();
        let listed =
            json(&slurm.rankmesh(&["jobs", "--db", &stores, "--format", "json", "--gpu-hour", "2EUR"])).unwrap();
        let found = &listed["jobs"][0];
        let known = &found["accounting"];
        assert_eq!(found["job_id"], job.to_string(), "{listed}");
        for (at, field) in [(1, "user"), (2, "account"), (3, "partition"), (4, "state"), (7, "name")] {
            assert_eq!(known[field], printed[at], "{field}: {known}");
        }
        assert_eq!(
            (&known["state"], &known["name"], &known["account"]),
            (&state.into(), &name.into(), &"physics".into())
        );
        assert_eq!(known["elapsed_s"].as_i64(), printed[5].parse().ok(), "{known}");
        assert_eq!((known["nodes"].as_i64(), known["gpus"].as_i64()), (Some(2), Some(4)), "{known}");
        assert_eq!((&found["ranks"], &found["nodes"].as_array().map(Vec::len)), (&4.into(), &Some(2)), "{found}");
        let table = slurm.rankmesh(&["jobs", "--db", &stores]);
        assert!(stdout(&table).contains("physics") && stdout(&table).contains(state), "{}", stdout(&table));
    }
    // Without its database accounting is a line, and the jobs are listed.
    let pid = std::fs::read_to_string(slurm.path("cluster/slurmdbd.pid")).expect("its number");
    let pid = nix::unistd::Pid::from_raw(pid.trim().parse().expect("a number"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("kill");
    let stores = slurm.path(&format!("rankmesh-{done}")).display().to_string();
    let without = slurm.rankmesh(&["jobs", "--db", &stores, "--format", "json"]);
    assert!(stderr(&without).contains("jobs are listed without accounting: sacct"), "{}", stderr(&without));
    assert_eq!(json(&without).unwrap()["jobs"][0]["accounting"], Value::Null);
}

/// Directory that `nobody` may write into.
fn of_nobody(slurm: &Slurm) -> std::path::PathBuf {
    let home = slurm.path("nobody");
    std::fs::create_dir(&home).expect("a directory");
    let nobody = nix::unistd::User::from_name("nobody").expect("users").expect("nobody");
    std::os::unix::fs::chown(&home, Some(nobody.uid.as_raw()), None).expect("chown");
    home
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
        "export HOME={home}\n$RM slurm up --timeout 60s\neval \"$($RM env)\"\n{MPI}\n\
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
    wait_for("no ring is left", || if std::path::Path::new(&rings).exists() { Err(rings.clone()) } else { Ok(()) });
}

/// What NCCL does with its profiler plugin, as a program.
fn nccl_host(slurm: &Slurm) -> std::path::PathBuf {
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../node-bpf");
    let program = slurm.path("nccl-host");
    let mut cc = std::process::Command::new("cc");
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
        "$RM slurm up --timeout 60s; echo \"up ended with $?\"\neval \"$($RM env)\"\n{MPI}\n\
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
        assert!(row[1].as_i64().is_none_or(|times| times == 1), "{answer}");
        if row[0].as_i64() >= Some(100) && row[2].as_i64() == Some(3) {
            Ok(())
        } else {
            Err(format!("{answer}{}", slurm.output_of("beside")))
        }
    });
    // Nothing of them stays in memory: the rings lose their names where eBPF records, too.
    let rings = std::path::PathBuf::from(format!("/dev/shm/rankmesh-0-{job}"));
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

#[test]
fn however_a_job_ends_no_agent_is_left_and_the_stores_are_whole() {
    if !has_slurm("however_a_job_ends_no_agent_is_left_and_the_stores_are_whole") {
        return;
    }
    let slurm = Slurm::start(2);
    let long = "$RM slurm up --timeout 60s; echo \"up $SLURM_RESTART_COUNT ended with $?\"; sleep 600";
    let short = "$RM slurm up --timeout 60s; echo \"up ended with $?\"";
    let flags = ["-N2", "--ntasks-per-node=1", "--requeue"];
    let cancelled = slurm.submit("cancelled", &flags, long);
    let killed = slurm.submit("killed", &flags, long);
    let requeued = slurm.submit("requeued", &flags, long);
    let ended = slurm.submit("ended", &flags, short);
    let timed = slurm.submit("timed", &flags, long);
    for name in ["cancelled", "killed", "requeued", "ended", "timed"] {
        let printed = slurm.wait_for_output(name, "ended with");
        assert!(printed.contains("ended with 0"), "{name}: {printed}");
    }
    let text = |id: u32| id.to_string();
    assert!(slurm.run("scancel", &[&text(cancelled)]).status.success());
    assert!(slurm.run("scancel", &["-s", "KILL", &text(killed)]).status.success());
    assert!(slurm.run("scontrol", &["requeue", &text(requeued)]).status.success());
    // its time ends now: what a time limit does
    assert!(slurm.run("scontrol", &["update", &format!("JobId={timed}"), "EndTime=now+1"]).status.success());
    for job in [cancelled, killed, requeued, ended, timed] {
        let directory = slurm.path(&format!("rankmesh-{job}"));
        slurm.wait_for_nothing(&directory);
        for node in ["n1", "n2"] {
            let store = directory.join(format!("{node}.db"));
            let checked = slurm.rankmesh(&["check", "--db", &store.display().to_string()]);
            assert!(checked.status.success(), "{}{}", stdout(&checked), stderr(&checked));
            let asked =
                slurm.rankmesh(&["query", "--db", &store.display().to_string(), "SELECT count(*) FROM sessions"]);
            assert!(asked.status.success(), "{}", stderr(&asked));
        }
    }
    let log = std::fs::read_to_string(slurm.path(&format!("rankmesh-{cancelled}/log/n2.log"))).expect("a log");
    assert!(log.contains("leaving"), "it was told to go, and went by itself: {log}");
    // What was requeued runs again, with a mesh of its own.
    let printed = wait_for("the requeued job has a mesh again", || {
        // Slurm makes it wait for two minutes, unless it is released. That is possible only once it
        // is pending, and has all its nodes back.
        if slurm.state(requeued) == "PENDING" {
            slurm.run("scontrol", &["update", &format!("JobId={requeued}"), "StartTime=now"]);
        }
        let printed = slurm.output_of("requeued");
        if printed.contains("up 1 ended with 0") {
            Ok(printed)
        } else {
            Err(format!("{printed} {}", slurm.state(requeued)))
        }
    });
    assert!(printed.contains(&format!("rankmesh-{requeued}.r1")), "{printed}");
    let nodes = json(&slurm.rankmesh(&["nodes", "--job", &text(requeued), "--format", "json"])).unwrap();
    assert_eq!(nodes[0]["labels"]["restart"], "1", "{nodes}");
    slurm.run("scancel", &[&text(requeued)]);
    slurm.wait_for_nothing(&slurm.path(&format!("rankmesh-{requeued}.r1")));
}

#[test]
fn what_is_missing_is_said() {
    if !has_slurm("what_is_missing_is_said") {
        return;
    }
    let outside = common::run(&["slurm", "up"]);
    assert_eq!(outside.status.code(), Some(2));
    assert!(stderr(&outside).contains("SLURM_JOB_ID"), "{}", stderr(&outside));
    let slurm = Slurm::start(2);
    // n2 cannot write its log: its agent does not start, n1's does
    let script = "(umask 077; mkdir -p mesh/identity mesh/log/n2.log)\n\
                  $RM slurm up --dir mesh --timeout 25s --capture off; echo \"all ended with $?\"\n\
                  $RM slurm up --dir mesh --wait-for 3 --capture off; echo \"absurd ended with $?\"";
    slurm.submit("half", &["-N2", "--ntasks-per-node=1"], script);
    let printed = slurm.wait_for_output("half", "absurd ended");
    assert!(printed.contains("all ended with 3") && printed.contains("missing: n2: writing"), "{printed}");
    assert!(printed.contains("absurd ended with 1") && printed.contains("the job has 2 nodes"), "{printed}");
}

#[test]
fn arrays_and_het_jobs_are_labelled_and_a_lost_node_is_told() {
    if !has_slurm("arrays_and_het_jobs_are_labelled_and_a_lost_node_is_told") {
        return;
    }
    let slurm = Slurm::start(2);
    let script = "$RM slurm up --timeout 60s --capture off; echo \"up $SLURM_ARRAY_TASK_ID ended with $?\"; sleep 600";
    let array = slurm.submit("array", &["--array=3,5", "-N1"], script);
    let het = slurm.submit("het", &["-N1", ":", "-N1"], script);
    let lost = slurm.submit("lost", &["-N2", "--ntasks-per-node=1", "--no-kill", "--no-requeue"], script);
    for (name, words) in [("array", "up 3 ended"), ("array", "up 5 ended"), ("het", "ended"), ("lost", "ended")] {
        let printed = slurm.wait_for_output(name, &format!("{words} with"));
        assert!(!printed.contains("with 1") && !printed.contains("with 3"), "{name}: {printed}");
    }
    let nodes = |job: &str| json(&slurm.rankmesh(&["nodes", "--job", job, "--format", "json"])).expect("nodes");
    for task in ["3", "5"] {
        let nodes = nodes(&format!("{array}_{task}"));
        let labels = &nodes[0]["labels"];
        assert_eq!(
            (labels["array_job"].as_str(), labels["array_task"].as_str()),
            (Some(&*array.to_string()), Some(task))
        );
    }
    let of_het = nodes(&het.to_string());
    let groups: Vec<_> =
        of_het.as_array().expect("nodes").iter().map(|node| node["labels"]["het_group"].as_str()).collect();
    assert_eq!(groups, [Some("0"), Some("1")], "{of_het}");

    // these two end while their nodes live
    slurm.run("scancel", &[&array.to_string(), &het.to_string()]);
    wait_for("the others have ended", || {
        let left = stdout(&slurm.run("squeue", &["-h", "-o", "%i"])).trim().to_owned();
        if left == lost.to_string() { Ok(()) } else { Err(left) }
    });

    // The second node of the third job dies, with all that Slurm has there.
    let of_node = |process: &procfs::process::Process| {
        let environment = process.environ().unwrap_or_default();
        environment.get(std::ffi::OsStr::new("SLURMD_NODENAME")).is_some_and(|node| node == "n2")
            && environment.get(std::ffi::OsStr::new("SLURM_JOB_ID")).is_some_and(|id| *id == *lost.to_string())
    };
    let slurmd = std::fs::read_to_string(slurm.path("cluster/slurmd.n2.pid")).expect("a pid");
    let mut dead: Vec<i32> = vec![slurmd.trim().parse().expect("a pid")];
    for process in procfs::process::all_processes().expect("/proc").flatten().filter(of_node) {
        dead.extend(process.stat().map(|stat| stat.ppid)); // slurmstepd, or this node's keeper of it
        dead.push(process.pid);
    }
    for pid in dead {
        let is_slurms = std::fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|comm| ["slurmd", "slurmstepd", "rankmesh", "tokio-rt-worker"].contains(&comm.trim()));
        if is_slurms {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
    }
    slurm.run("scontrol", &["update", "NodeName=n2", "State=DOWN", "Reason=test"]);
    let lost_job = lost.to_string();
    wait_for("coverage names the lost node", || {
        let asked = slurm.rankmesh(&["query", "--job", &lost_job, "--format", "json", "SELECT count(*) FROM sessions"]);
        let missing = json(&asked)?["coverage"]["missing"].clone();
        if asked.status.code() == Some(3) && missing[0]["node"] == "n2" { Ok(()) } else { Err(missing.to_string()) }
    });
    slurm.run("scancel", &[&lost_job]);
    slurm.wait_for_nothing(&slurm.path(&format!("rankmesh-{lost}")));
}

#[test]
fn a_site_gives_every_job_its_own_users_mesh() {
    if !has_slurm("a_site_gives_every_job_its_own_users_mesh") {
        return;
    }
    let slurm = Slurm::start_with(2, true, false);
    let home = of_nobody(&slurm);
    // a rank that writes a ring which no agent finds: it lies where none looks
    let script = "mkdir -p -m 700 /dev/shm/rankmesh-65534-$SLURM_JOB_ID && echo x > /dev/shm/rankmesh-65534-$SLURM_JOB_ID/left\n\
                  echo ready; sleep 600";
    let flags = |out: &str| {
        ["--uid=nobody", "-N2", "-D", &home.display().to_string(), "-o", &home.join(out).display().to_string()]
            .map(str::to_owned)
    };
    let submit = |name: &str, more: &[&str]| {
        let flags = flags(name);
        let mut flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        flags.extend(more);
        slurm.submit(name, &flags, script)
    };
    let (mine, without) = (submit("mine", &[]), submit("without", &["--comment=rankmesh=off"]));
    // One task has no other to be compared with: job_submit declines for it, where its user did
    // not.
    let comment = |job: u32| {
        let shown = stdout(&slurm.run("scontrol", &["show", "job", &job.to_string()]));
        let comment = shown.lines().find_map(|line| line.trim().strip_prefix("Comment=").map(str::to_owned));
        slurm.run("scancel", &[&job.to_string()]);
        comment
    };
    let comment_of = |more: &[&str]| {
        let flags = [&["--uid=nobody", "--hold", "-N1", "-n1", "-D", "/tmp"], more].concat();
        comment(slurm.submit("alone", &flags, "true"))
    };
    assert_eq!(comment_of(&[]).as_deref(), Some("rankmesh=off"));
    assert_eq!(comment_of(&["--comment=night"]).as_deref(), Some("night rankmesh=off"));
    assert_eq!(comment_of(&["--comment=rankmesh=on"]).as_deref(), Some("rankmesh=on"));
    assert_eq!(comment_of(&["-n2"]), None);
    let nodes = wait_for("the job has a mesh", || {
        let asked = slurm.rankmesh(&["nodes", "--job", &mine.to_string(), "--format", "json"]);
        let nodes = json(&asked).map_err(|why| format!("{why}\n{}", slurm.logs()))?;
        if nodes.as_array().map(Vec::len) == Some(2) { Ok(nodes) } else { Err(nodes.to_string()) }
    });
    assert_eq!(nodes[1]["labels"]["job"], mine.to_string());
    let directory = home.join(format!("rankmesh-{mine}"));
    let owner =
        |path: &std::path::Path| std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(path).expect("is there"));
    assert_eq!((owner(&directory), owner(&directory.join("n2.db"))), (65_534, 65_534), "the user's own");
    let agents: Vec<u32> = procfs::process::all_processes()
        .expect("/proc")
        .flatten()
        .filter(|process| process.cmdline().is_ok_and(|line| line.contains(&directory.display().to_string())))
        .filter_map(|process| process.uid().ok())
        .collect();
    assert!(agents.len() >= 2 && agents.iter().all(|uid| *uid == 65_534), "with the user's rights: {agents:?}");
    wait_for("the other job has begun", || {
        let printed = std::fs::read_to_string(home.join("without")).map_err(|error| error.to_string())?;
        if printed.contains("ready") { Ok(()) } else { Err(printed) }
    });
    assert!(!home.join(format!("rankmesh-{without}")).exists(), "it said no");

    let left = format!("/dev/shm/rankmesh-65534-{mine}");
    wait_for("the job's rank has left something", || {
        if std::path::Path::new(&left).join("left").exists() { Ok(()) } else { Err(left.clone()) }
    });
    slurm.run("scancel", &[&mine.to_string(), &without.to_string()]);
    slurm.wait_for_nothing(&directory);
    wait_for("the epilog has cleaned up", || {
        let gone = !std::path::Path::new(&left).exists();
        if gone { Ok(()) } else { Err(left.clone()) }
    });
}

/// As slurmd runs it: what is left of the script's process group is killed when it returns.
#[test]
fn what_the_prolog_leaves_behind_outlives_its_process_group() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: what_the_prolog_leaves_behind_outlives_its_process_group: needs root");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let attached = dir.path().join("attached");
    let tool = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a script");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("chmod");
        path
    };
    tool("scontrol", "case \"$*\" in *hostnames*) echo n1 ;; *) echo JobState=RUNNING WorkDir=/ ;; esac");
    let agent = tool("rankmesh", &format!("echo $3 >> {}", attached.display()));
    let prolog = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/slurm/prolog.sh");
    const JOBS: usize = 100;
    for job in 0..JOBS {
        let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap_or_default());
        let mut script = std::process::Command::new(&prolog);
        script.env("PATH", path).env("RANKMESH", &agent).env("RANKMESH_LOG_FILE", dir.path().join("log"));
        script.envs([("SLURM_JOB_USER", "root"), ("SLURM_JOB_UID", "0"), ("SLURM_JOB_GID", "0")]);
        script.envs([("SLURM_JOB_NODELIST", "n1"), ("SLURMD_NODENAME", "n1")]).env("SLURM_JOB_ID", job.to_string());
        let mut script = script.process_group(0).spawn().expect("it runs");
        let group = nix::unistd::Pid::from_raw(i32::try_from(script.id()).expect("a pid"));
        assert!(script.wait().expect("it ends").success());
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
    }
    wait_for("every job to have its mesh", || {
        let mut jobs: Vec<usize> = std::fs::read_to_string(&attached)
            .unwrap_or_default()
            .lines()
            .filter_map(|line| line.parse().ok())
            .collect();
        jobs.sort_unstable();
        if jobs.len() == JOBS { Ok(()) } else { Err(format!("{jobs:?}")) }
    });
}
