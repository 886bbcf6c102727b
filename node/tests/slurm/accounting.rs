//! Jobs beside what Slurm's accounting knows of them.

use serde_json::Value;

use crate::common::jobs::workloads_in;
use crate::common::slurm::{Slurm, has_slurm};
use crate::common::{can_capture, stderr, stdout, wait_for};
use crate::{MPI, json};

/// `make check NAME=accounting`: needs slurmdbd and a MariaDB, too.
#[test]
#[ignore = "make check NAME=accounting"]
fn jobs_are_joined_with_what_slurms_own_accounting_says() {
    const TEST: &str = "jobs_are_joined_with_what_slurms_own_accounting_says";
    assert!(has_slurm(TEST) && can_capture(TEST), "it was asked for by name");
    let slurm = Slurm::start_with_accounting(2);
    let bin = workloads_in(slurm.path("job")).join("mpi-ranks");
    let script = |iters: u32, end: &str| {
        format!(
            "$RM slurm up --budget none --timeout 60s; {MPI}\nsrun --mpi=pmix {} --iters {iters} --work-ms 20 --late-rank 3 --late-ms 60\n{end}\n",
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
