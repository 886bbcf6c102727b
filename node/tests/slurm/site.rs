//! A site's Prolog, Epilog and job_submit.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::common::slurm::{Slurm, has_slurm};
use crate::common::{stdout, wait_for};
use crate::{json, of_nobody};

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
    let owner = |path: &Path| std::fs::metadata(path).expect("is there").uid();
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
        if Path::new(&left).join("left").exists() { Ok(()) } else { Err(left.clone()) }
    });
    slurm.run("scancel", &[&mine.to_string(), &without.to_string()]);
    slurm.wait_for_nothing(&directory);
    wait_for("the epilog has cleaned up", || {
        let gone = !Path::new(&left).exists();
        if gone { Ok(()) } else { Err(left.clone()) }
    });
}

/// As slurmd runs it: what is left of the script's process group is killed when it returns.
#[test]
fn what_the_prolog_leaves_behind_outlives_its_process_group() {
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
    let prolog = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/slurm/prolog.sh");
    const JOBS: usize = 100;
    for job in 0..JOBS {
        let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap_or_default());
        let mut script = Command::new(&prolog);
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
