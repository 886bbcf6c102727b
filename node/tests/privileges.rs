//! What an agent may do: no more than it needs, and enough for everything it promises. Needs root.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::jobs::{Cgroups, Job, workloads};
use common::{Lab, can_capture, rankmesh, stderr, stdout, wait_for};
use node_bpf::privileges::{self, Capability};
use serde_json::Value;

/// A user that is not root and has no name.
const USER: u32 = 54_321;
/// Another one.
const OTHER: u32 = 54_322;

/// One field of a thread's status.
fn field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.expect("a field of this name").trim().to_owned()
}

fn mask(capabilities: &[Capability]) -> u64 {
    capabilities.iter().map(Capability::bitmask).sum()
}

/// Effective, permitted and bounding capabilities, and no_new_privs, of every thread: one set, when
/// all are alike.
fn of_threads(pid: u32) -> BTreeSet<(u64, u64, u64, String)> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    let hex = |status: &str, name: &str| u64::from_str_radix(&field(status, name), 16).expect("a number");
    threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok())
        .map(|s| (hex(&s, "CapEff"), hex(&s, "CapPrm"), hex(&s, "CapBnd"), field(&s, "NoNewPrivs")))
        .collect()
}

/// A directory that only `USER` may enter, with the workloads in it.
fn private_workloads(lab: &Lab) -> PathBuf {
    let made = workloads(lab);
    fs::set_permissions(lab.dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    for entry in fs::read_dir(&made).expect("the workloads").flatten() {
        std::os::unix::fs::chown(entry.path(), Some(USER), None).expect("chown");
    }
    std::os::unix::fs::chown(&made, Some(USER), None).expect("chown");
    fs::set_permissions(&made, fs::Permissions::from_mode(0o700)).expect("chmod");
    made
}

/// Runs as `USER` with these capabilities, which whatever it executes keeps; in the cgroup, when
/// there is one.
fn as_user(program: &Path, capabilities: &[Capability], cgroup: Option<&Path>) -> Command {
    let names = |sign: &str| -> String {
        capabilities.iter().map(|c| format!(",{sign}{}", c.to_string()[4..].to_lowercase())).collect()
    };
    let mut command = Command::new("sh");
    let enter = cgroup.map(|path| format!("echo $$ > {}/cgroup.procs && ", path.display())).unwrap_or_default();
    command.arg("-c").arg(format!("{enter}exec \"$@\"")).arg("sh");
    command.args(["setpriv", "--reuid", &USER.to_string(), "--regid", &USER.to_string(), "--clear-groups"]);
    command.arg(format!("--inh-caps=-all{}", names("+"))).arg(format!("--bounding-set=-all{}", names("+")));
    if !capabilities.is_empty() {
        command.arg(format!("--ambient-caps={}", names("+").trim_start_matches(',')));
    }
    command.arg(program).stdin(Stdio::null());
    command
}

fn rows(lab: &Lab, agent: &str, sql: &str) -> Value {
    lab.query(agent, sql, &[]).0["rows"].clone()
}

#[test]
fn an_agent_of_root_keeps_only_what_capture_uses_on_every_thread() {
    if !can_capture("an_agent_of_root_keeps_only_what_capture_uses_on_every_thread") {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("privileges", &["jobs"]);
    lab.start("recording", &["--cgroup", &cgroups.path("jobs").display().to_string()]);
    lab.start("asking", &[]);
    lab.wait_for_members(&["asking", "recording"]);
    let kept = mask(&privileges::kept(node_bpf::Host::examine().uprobe_multi));
    assert_eq!(of_threads(lab.pid("recording")), BTreeSet::from([(kept, kept, kept, "1".to_owned())]));
    assert_eq!(of_threads(lab.pid("asking")), BTreeSet::from([(0, 0, 0, "1".to_owned())]));
}

#[test]
fn what_is_kept_suffices_for_another_users_job_found_late_even_when_its_library_is_deleted() {
    if !can_capture("what_is_kept_suffices_for_another_users_job_found_late_even_when_its_library_is_deleted") {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("others", &["jobs"]);
    let cgroup = cgroups.path("jobs");
    let made = private_workloads(&lab);
    let ranks = ["--ranks", "2", "--iters", "100000", "--work-ms", "20"];
    let child = as_user(&made.join("nccl-ranks"), &[], Some(cgroup)).args(ranks).stdout(Stdio::null()).spawn();
    let _job = Job(child.expect("the job starts"));
    wait_for("both ranks have the library mapped", || {
        let pids = fs::read_to_string(cgroup.join("cgroup.procs")).map_err(|error| error.to_string())?;
        // the ranks are those that have executed themselves anew, with the communicator's id
        let of = |pid: &str, file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let ranks = pids.lines().filter(|pid| of(pid, "cmdline").contains("--id-hex"));
        let using = ranks.filter(|pid| of(pid, "maps").contains("libnccl.so")).count();
        if using == 2 { Ok(()) } else { Err(format!("{using} ranks")) }
    });
    fs::remove_file(made.join("libnccl.so.2")).expect("deleting the library");
    lab.start("m1", &["--cgroup", &cgroup.display().to_string()]);
    let found = wait_for("calls of both ranks", || {
        let found = rows(&lab, "m1", "SELECT DISTINCT rank, local_rank FROM collectives ORDER BY rank");
        if found.as_array().is_some_and(|rows| rows.len() == 2) { Ok(found) } else { Err(lab.log("m1")) }
    });
    assert_eq!(found, serde_json::json!([[0, 0], [1, 1]]), "ranks are of the environment of another user's process");
    let users = rows(&lab, "m1", "SELECT DISTINCT user, rank IS NULL FROM processes WHERE rank IS NOT NULL");
    assert_eq!(users, serde_json::json!([[USER.to_string(), 0]]));
}

#[test]
fn a_store_in_another_users_directory_works_and_costs_the_right_to_write_there() {
    if !can_capture("a_store_in_another_users_directory_works_and_costs_the_right_to_write_there") {
        return;
    }
    let lab = Lab::new();
    let cgroups = Cgroups::new("home", &["jobs"]);
    let home = lab.path("home");
    fs::create_dir(&home).expect("a directory");
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).expect("chmod");
    std::os::unix::fs::chown(&home, Some(USER), None).expect("chown");
    let store = home.join("trace.db").display().to_string();
    let identity = lab.issue("m1").display().to_string();
    let log = fs::File::create(lab.path("m1.log")).expect("a log");
    let mut command = rankmesh();
    command.args([
        "up",
        "--budget",
        "none",
        "--name",
        "m1",
        "--listen",
        "127.0.0.1:0",
        "--identity",
        &identity,
        "--store",
        &store,
    ]);
    command.arg("--socket").arg(lab.socket("m1")).arg("--cgroup").arg(cgroups.path("jobs"));
    let agent = Job(command.stdout(Stdio::null()).stderr(log).spawn().expect("the agent starts"));
    wait_for("the agent answers", || lab.nodes("m1").map(|_| ()));
    assert!(Path::new(&store).exists());
    let log = lab.log("m1");
    assert!(log.contains("keeping CAP_DAC_OVERRIDE") && log.contains(&store), "{log}");
    let others = [Capability::CAP_DAC_OVERRIDE, Capability::CAP_CHOWN];
    let (effective, ..) = of_threads(agent.0.id()).pop_first().expect("a thread");
    assert_eq!(effective & mask(&others), mask(&others));
}

fn check(capabilities: &[Capability], binary: &Path) -> (Value, Output) {
    let output = as_user(binary, capabilities, None).args(["check", "--format", "json"]).output().expect("runs");
    let value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)));
    (value, output)
}

/// The binary where any user may run it.
fn public_binary(lab: &Lab) -> PathBuf {
    fs::set_permissions(lab.dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let binary = lab.path("rankmesh");
    fs::copy(env!("CARGO_BIN_EXE_rankmesh"), &binary).expect("a copy");
    binary
}

#[test]
fn too_few_open_files_are_not_taken_for_an_old_kernel() {
    if !can_capture("too_few_open_files_are_not_taken_for_an_old_kernel") {
        return;
    }
    let binary = env!("CARGO_BIN_EXE_rankmesh");
    let limited = ["--nofile=64:64", binary, "check", "--format", "json"];
    let output = Command::new("prlimit").args(limited).stdin(Stdio::null()).output().expect("runs");
    let found: Value = serde_json::from_slice(&output.stdout).expect("a document");
    assert_eq!(found["capture"]["possible"], false, "{found}");
    let text = found.to_string();
    assert!(text.contains("may have 64 files open") && text.contains("LimitNOFILE"), "{text}");
    assert!(!text.contains("Linux 5.8") && !text.contains("newer kernel"), "{text}");
}

#[test]
fn an_ordinary_user_is_told_what_to_grant_and_with_it_can_record() {
    if !can_capture("an_ordinary_user_is_told_what_to_grant_and_with_it_can_record") {
        return;
    }
    let lab = Lab::new();
    let binary = public_binary(&lab);
    let (refused, output) = check(&[], &binary);
    assert_eq!(output.status.code(), Some(1), "{refused}");
    assert_eq!(refused["capture"]["possible"], false);
    let capabilities = refused["findings"].as_array().expect("a list").iter().find(|f| f["what"] == "capabilities");
    let remedy = capabilities.expect("the finding")["remedy"].as_str().expect("a remedy").to_owned();
    let multi = node_bpf::Host::examine().uprobe_multi;
    let own = privileges::kept_for(multi, Some(USER));
    let line = format!("sudo setcap {} {}", privileges::setcap_argument(&own), binary.display());
    assert!(remedy.ends_with(&line) || !multi, "{remedy}");
    // a service with the right to look into others' processes
    let granted = privileges::kept(multi);

    let (allowed, output) = check(&granted, &binary);
    assert_eq!(output.status.code(), Some(0), "{allowed}");
    let off: Vec<_> = allowed["classes"].as_array().expect("a list").iter().filter(|c| c["state"] == "off").collect();
    // what is off for this user is off for root as well
    let root = common::run(&["check", "--format", "json"]);
    let root: Value = serde_json::from_str(&stdout(&root)).expect("json");
    for class in off {
        let for_root = root["classes"].as_array().expect("a list").iter().find(|c| c["name"] == class["name"]);
        assert_eq!(for_root.expect("the class")["state"], "off", "{class}");
    }

    let cgroups = Cgroups::new("granted", &["jobs"]);
    let made = private_workloads(&lab);
    let directory = lab.path("of-user");
    fs::create_dir(&directory).expect("a directory");
    std::os::unix::fs::chown(&directory, Some(USER), None).expect("chown");
    let file = directory.join("trace.db");
    let log = fs::File::create(lab.path("trace.log")).expect("a log");
    let mut trace = as_user(&binary, &granted, None);
    trace.args(["trace", "--out"]).arg(&file).arg("--cgroup").arg(cgroups.path("jobs")).stderr(log);
    let mut trace = Job(trace.spawn().expect("the recorder starts"));
    wait_for("the recorder is ready", || {
        let log = fs::read_to_string(lab.path("trace.log")).unwrap_or_default();
        if log.contains("recording into") { Ok(()) } else { Err(log) }
    });
    let mut job = Command::new("sh");
    job.arg("-c").arg(r#"echo $$ > "$0/cgroup.procs" && exec "$@""#).arg(cgroups.path("jobs"));
    job.arg(made.join("nccl-ranks")).args(["--ranks", "2", "--iters", "20", "--work-ms", "5", "--start-file"]);
    let mut job = Job(job.arg(lab.path("begin")).stdout(Stdio::null()).spawn().expect("the job starts"));
    wait_for("both ranks are known, and so their library is probed", || known_ranks(&file, 2));
    fs::write(lab.path("begin"), "").expect("a file");
    assert!(job.0.wait().expect("ends").success());
    let pid = nix::unistd::Pid::from_raw(trace.0.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("asked to end");
    assert!(
        trace.0.wait().expect("ends").success(),
        "{}",
        fs::read_to_string(lab.path("trace.log")).unwrap_or_default()
    );
    let count = ["query", "--format", "csv", "--db", &file.display().to_string()];
    let count = rankmesh().args(count).arg("SELECT count(*), count(DISTINCT rank) FROM collectives").output();
    assert!(stdout(&count.expect("runs")).ends_with("\n40,2\n"));
}

/// Of so many ranks a recorder has written who they are.
fn known_ranks(file: &Path, wanted: usize) -> Result<(), String> {
    let known = "SELECT count(DISTINCT pid) FROM processes WHERE rank IS NOT NULL";
    let answer = rankmesh().args(["query", "--format", "csv", "--db"]).arg(file).arg(known).output().expect("runs");
    if stdout(&answer).ends_with(&format!("\n{wanted}\n")) { Ok(()) } else { Err(stdout(&answer) + &stderr(&answer)) }
}

/// Gives the file these capabilities; false where that cannot be done.
fn setcap(binary: &Path, capabilities: &[Capability]) -> bool {
    let argument = privileges::setcap_argument(capabilities);
    let done = Command::new("setcap").arg(argument).arg(binary).stderr(Stdio::null()).status();
    done.is_ok_and(|status| status.success())
}

/// Runs as a user who has nothing but what the program's file gives.
fn as_plain_user(user: u32, cgroup: Option<&Path>, program: &Path) -> Command {
    let enter = cgroup.map(|path| format!("echo $$ > {}/cgroup.procs && ", path.display())).unwrap_or_default();
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("{enter}exec \"$@\"")).arg("sh");
    command.args(["setpriv", "--reuid", &user.to_string(), "--regid", &user.to_string(), "--clear-groups"]);
    command.args(["--inh-caps=-all"]).arg(program).stdin(Stdio::null());
    command
}

#[test]
fn a_program_with_capabilities_records_only_what_its_user_owns() {
    if !can_capture("a_program_with_capabilities_records_only_what_its_user_owns") {
        return;
    }
    let lab = Lab::new();
    let binary = public_binary(&lab);
    let enough = [Capability::CAP_BPF, Capability::CAP_PERFMON];
    let looks = |binary: &Path| {
        let output = as_plain_user(USER, None, binary).args(["check", "--format", "json"]).output().expect("runs");
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)))
    };
    if !node_bpf::Host::examine().uprobe_multi || !setcap(&binary, &enough) {
        eprintln!("skipped: needs setcap (libcap2-bin) and a kernel with uprobe.multi");
        return;
    }
    let seen = looks(&binary);
    if seen["findings"].to_string().contains("missing: CAP_BPF") {
        eprintln!("skipped: the temporary directory is mounted nosuid, so that its files give no capabilities");
        return;
    }
    assert_eq!((&seen["capture"]["possible"], &seen["capture"]["only_user"]), (&true.into(), &USER.into()), "{seen}");

    let cgroups = Cgroups::new("two-users", &["jobs"]);
    let cgroup = cgroups.path("jobs");
    let made = workloads(&lab);
    let directory = lab.path("of-user");
    fs::create_dir(&directory).expect("a directory");
    std::os::unix::fs::chown(&directory, Some(USER), None).expect("chown");
    let start = |file: &str| {
        let log = lab.path(&format!("{file}.log"));
        let mut trace = as_plain_user(USER, None, &binary);
        trace.args(["trace", "--out"]).arg(directory.join(file)).arg("--cgroup").arg(cgroup);
        let trace = Job(trace.stderr(fs::File::create(&log).expect("a log")).spawn().expect("the recorder starts"));
        wait_for("the recorder is ready", || {
            let log = fs::read_to_string(&log).unwrap_or_default();
            if log.contains("recording into") { Ok(()) } else { Err(log) }
        });
        (trace, fs::read_to_string(&log).expect("its log"))
    };
    let (mut trace, log) = start("trace.db");
    assert!(log.contains(&format!("only processes of user {USER}")), "{log}");
    let job = |user: u32, iters: &str| {
        let mut job = as_plain_user(user, Some(cgroup), &made.join("nccl-ranks"));
        job.args(["--ranks", "2", "--iters", iters, "--work-ms", "5", "--start-file"]).arg(lab.path("begin"));
        Job(job.stdout(Stdio::null()).spawn().expect("the job starts"))
    };
    let mut jobs = [job(OTHER, "30"), job(USER, "20")];
    wait_for("the user's ranks are known, and so their library is probed", || {
        known_ranks(&directory.join("trace.db"), 2)
    });
    fs::write(lab.path("begin"), "").expect("a file");
    assert!(jobs.iter_mut().all(|job| job.0.wait().expect("ends").success()));
    let pid = nix::unistd::Pid::from_raw(trace.0.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("asked to end");
    assert!(trace.0.wait().expect("ends").success());
    let asked = |sql: &str| {
        let file = directory.join("trace.db").display().to_string();
        let answer = rankmesh().args(["query", "--format", "csv", "--db", &file, sql]).output();
        stdout(&answer.expect("runs"))
    };
    assert!(asked("SELECT count(*), count(DISTINCT rank) FROM collectives").ends_with("\n40,2\n"));
    assert!(asked("SELECT DISTINCT uid FROM processes").ends_with(&format!("\n{USER}\n")));
    let strangers = "SELECT count(*) FROM (SELECT pid FROM offcpu UNION ALL SELECT pid FROM process_events) \
                     WHERE pid NOT IN (SELECT pid FROM processes)";
    assert!(asked(strangers).ends_with("\n0\n"));
    assert!(!asked("SELECT count(*) FROM offcpu").ends_with("\n0\n"), "the ranks slept");

    // a site that gives the file more gives its users no more
    let more = [Capability::CAP_SYS_PTRACE, Capability::CAP_DAC_READ_SEARCH, Capability::CAP_SYS_ADMIN];
    assert!(setcap(&binary, &[enough.as_slice(), &more].concat()));
    assert_eq!(looks(&binary)["capture"]["only_user"], USER);
    let (trace, _) = start("more.db");
    let sets = of_threads(trace.0.id());
    assert!(sets.iter().all(|(effective, permitted, ..)| (*effective, *permitted) == (mask(&enough), mask(&enough))));
}
