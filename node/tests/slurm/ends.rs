//! How jobs and nodes end, what is missing then, and how arrays and het jobs are labelled.

use crate::common::slurm::{Slurm, has_slurm};
use crate::common::{run, stderr, stdout, wait_for};
use crate::json;

#[test]
fn however_a_job_ends_no_agent_is_left_and_the_stores_are_whole() {
    if !has_slurm("however_a_job_ends_no_agent_is_left_and_the_stores_are_whole") {
        return;
    }
    let slurm = Slurm::start(2);
    let long = "$RM slurm up --budget none --timeout 60s; echo \"up $SLURM_RESTART_COUNT ended with $?\"; sleep 600";
    let short = "$RM slurm up --budget none --timeout 60s; echo \"up ended with $?\"";
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
    let outside = run(&["slurm", "up"]);
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
