//! Live: real eBPF, jobs with a known cause of lateness, asked through the command line. Needs
//! root.

mod common;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::jobs::{Cgroups, cpu_quota, read_throttle, workloads};
use common::netns::Hosts;
use common::{Lab, can_capture, stderr, wait_for};
use serde_json::Value;

const AGENTS: [&str; 3] = ["c1", "c2", "c3"];
const RANKS: usize = 6;
/// The rank that is made late: not the coordinator's, and not on its host.
const LATE: usize = 3;

/// Processes that end with the test.
#[derive(Default)]
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

/// Three agents with a cgroup each, and where their ranks go.
struct Job {
    /// Ends before the cgroups that hold them are removed.
    processes: Processes,
    throttle: Option<Cgroups>,
    cgroups: Cgroups,
    lab: Lab,
    program: PathBuf,
}

impl Job {
    fn new(test: &str) -> Self {
        let mut lab = Lab::new();
        let cgroups = Cgroups::new(test, &AGENTS);
        common::jobs::start_agents(&mut lab, &cgroups, &AGENTS);
        for node in lab.nodes(AGENTS[0]).expect("nodes") {
            assert_eq!(node["capture"], "on", "{node}");
        }
        let program = workloads(&lab).join("cause-ranks");
        Self { processes: Processes::default(), throttle: None, cgroups, lab, program }
    }

    fn node_of(rank: usize) -> &'static str {
        AGENTS[rank * AGENTS.len() / RANKS]
    }

    /// Starts all ranks with `each`, the late one with `late`, in `more` cgroups too.
    fn start(&mut self, each: &[&str], late: &[&str], more: &[&Path]) {
        let id_file = self.lab.path("nccl.id");
        for rank in 0..RANKS {
            let mut files = vec![self.cgroups.path(Self::node_of(rank)).join("cgroup.procs")];
            files.extend(more.iter().filter(|_| rank == LATE).map(|path| path.join("cgroup.procs")));
            let mut command = Command::new(&self.program);
            command
                .args(["--rank", &rank.to_string(), "--ranks", &RANKS.to_string(), "--iters", "1000000"])
                .args(["--start-ms", "2500", "--id-file"])
                .arg(&id_file)
                .args(if rank == LATE { late } else { each })
                .env("RANK", rank.to_string())
                .env("NCCL_SIM_TIMEOUT_MS", "600000")
                .env("WORLD_SIZE", RANKS.to_string())
                .stdin(Stdio::null())
                .stdout(Stdio::null());
            // SAFETY: only writes to files before exec.
            unsafe {
                command.pre_exec(move || files.iter().try_for_each(|file| std::fs::write(file, "0")));
            }
            self.processes.0.push(command.spawn().expect("a rank starts"));
        }
    }

    /// A process that burns a CPU, under a name of its own.
    fn spin(&mut self, cpu: &str) {
        let spinner = self.lab.path("job").join("spinner");
        std::fs::copy(&self.program, &spinner).expect("a copy");
        for _ in 0..2 {
            let child = Command::new(&spinner).args(["--spin", "--cpu", cpu]).spawn().expect("a spinner starts");
            self.processes.0.push(child);
        }
    }

    /// Whether the recorder has the reasons for which threads give up the CPU.
    fn reasons_are_recorded(&self) -> bool {
        let (answer, _) = self.lab.query(AGENTS[0], "SELECT count(reason) FROM offcpu", &[]);
        answer["rows"][0][0] != 0
    }

    fn verdict(&self, since: &str) -> Result<Value, String> {
        let output = self.lab.ask(AGENTS[0], "stragglers", &["--since", since, "--format", "json"]);
        if !output.status.success() {
            return Err(stderr(&output));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
    }

    /// The cause, once the late rank is named and its whole span is one of lateness.
    fn cause(&self) -> Result<Value, String> {
        let answer = self.verdict("6s")?;
        let verdict = &answer["verdict"];
        if verdict["kind"] != "rank" {
            let ranks = answer["per_comm"][0]["ranks"].as_array().into_iter().flatten();
            let shares = ranks.map(|rank| format!("{} {} {}", rank["rank"], rank["share"], rank["z"]));
            return Err(format!("{verdict} {:?}", shares.collect::<Vec<_>>()));
        }
        assert_eq!((&verdict["rank"], &verdict["node"]), (&LATE.into(), &Self::node_of(LATE).into()), "{verdict}");
        Ok(answer["cause"].clone())
    }
}

impl Job {
    /// Waits until the explanation's worst step begins with a link of `table` with the text `what`.
    /// No link of any step is of another table.
    fn assert_explained(&self, table: &str, what: &str) {
        let found = wait_for("the worst step begins with its cause", || {
            let more = ["--since", "6s", "--timeout", "60s", "--format", "json"];
            let output = self.lab.ask(AGENTS[0], "explain", &more);
            let found: Value = serde_json::from_slice(&output.stdout).map_err(|_| stderr(&output))?;
            if found["verdict"] != "rank" {
                return Err(found["what"].to_string());
            }
            let link = &found["examples"][0]["links"][0];
            let begins = link["evidence"] == table && link["what"].as_str().is_some_and(|text| text.contains(what));
            if begins { Ok(found) } else { Err(found.to_string()) }
        });
        assert_eq!((&found["place"]["rank"], &found["place"]["node"]), (&LATE.into(), &Self::node_of(LATE).into()));
        let examples = found["examples"].as_array().expect("examples");
        for link in examples.iter().flat_map(|example| example["links"].as_array().expect("links")) {
            assert!(link["evidence"] == table || link["evidence"] == "collectives", "{link}\n{found}");
        }
        let entry =
            |example: &Value| {
                example["links"].as_array().expect("links").iter().any(|link| {
                    link["what"].as_str().is_some_and(|text| text.starts_with(&format!("rank {LATE} entered")))
                })
            };
        assert!(examples.iter().all(entry), "{found}");
        let page = self.lab.ask(AGENTS[0], "explain", &["--since", "6s", "--timeout", "60s", "--gpu-hour", "2.49EUR"]);
        let page = common::stdout(&page);
        eprintln!("{page}");
        assert!(page.contains("The worst steps") && page.contains("EUR an hour"), "{page}");
    }
}

fn named(cause: &Value) -> Vec<&str> {
    cause["named"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// What is listed of a kind.
fn what<'v>(cause: &'v Value, kind: &str) -> Vec<&'v str> {
    let parts = cause["parts"].as_array().into_iter().flatten().filter(|part| part["kind"] == kind);
    parts
        .flat_map(|part| part["what"].as_array().into_iter().flatten())
        .filter_map(|what| what["name"].as_str())
        .collect()
}

#[test]
fn a_spinner_on_the_ranks_cpu_is_named() {
    if !can_capture("a_spinner_on_the_ranks_cpu_is_named") {
        return;
    }
    let mut job = Job::new("stolen");
    // The others need little CPU, so that a loaded machine does not make them late alike.
    let late = ["--cpu-ms", "4", "--sleep-ms", "10", "--cpu", "1"];
    job.start(&["--cpu-ms", "1", "--sleep-ms", "10"], &late, &[]);
    job.spin("1");
    let cause = wait_for("the spinner is named", || {
        let cause = job.cause()?;
        let seen = what(&cause, "cpu_stolen").iter().any(|name| name.starts_with("spinner ("));
        let explained = cause["explained"].as_f64().is_some_and(|share| share >= 0.8);
        if named(&cause) == ["cpu_stolen"] && seen && explained { Ok(cause) } else { Err(cause.to_string()) }
    });
    eprintln!("{}", cause["summary"]);
    assert_ne!(cause["peer"]["node"], Job::node_of(LATE), "{cause}");
    job.assert_explained("offcpu", "spinner (");
}

#[test]
fn a_cpu_quota_is_named() {
    const TEST: &str = "a_cpu_quota_is_named";
    if !can_capture(TEST) {
        return;
    }
    let mut job = Job::new("quota");
    let quota = match cpu_quota(Duration::from_millis(100), Duration::from_millis(10)) {
        Ok(quota) => quota,
        Err(why) => {
            eprintln!("skipped: {TEST}: {why}");
            return;
        }
    };
    // Each interval needs 30 ms of CPU, of which its cgroup gives a tenth; the others need 1 ms.
    let throttled = quota.0[0].clone();
    job.throttle = Some(quota);
    job.start(&["--cpu-ms", "1", "--sleep-ms", "10"], &["--cpu-ms", "30", "--sleep-ms", "10"], &[&throttled]);
    let cause = wait_for("the quota is named", || {
        let cause = job.cause()?;
        // While it is throttled others run on its CPU, which is not the cause.
        if named(&cause).first() == Some(&"cpu_throttled") { Ok(cause) } else { Err(cause.to_string()) }
    });
    eprintln!("{}", cause["summary"]);
}

#[test]
fn a_rank_that_just_sleeps_longer_is_given_no_other_cause() {
    if !can_capture("a_rank_that_just_sleeps_longer_is_given_no_other_cause") {
        return;
    }
    let mut job = Job::new("sleeps");
    // Long enough that what a busy host adds at each waking is no fifth of it: that would rightly
    // be named, too.
    job.start(&["--cpu-ms", "1", "--sleep-ms", "10"], &["--cpu-ms", "1", "--sleep-ms", "150"], &[]);
    for _ in 0..5 {
        let cause = wait_for("the late rank is named", || job.cause());
        assert!(named(&cause).iter().all(|kind| ["sleep", "wait"].contains(kind)), "{cause}");
    }
    let cause = wait_for("the sleep is seen", || {
        let cause = job.cause()?;
        if named(&cause).is_empty() { Err(cause.to_string()) } else { Ok(cause) }
    });
    eprintln!("{}", cause["summary"]);
    let link = if named(&cause).contains(&"sleep") { "slept by itself" } else { "gave up its CPU" };
    job.assert_explained("offcpu", link);
}

#[test]
fn slow_reads_of_a_throttled_file_are_named() {
    if !can_capture("slow_reads_of_a_throttled_file_are_named") {
        return;
    }
    let mut job = Job::new("reads");
    let file = job.lab.path("data");
    std::fs::write(&file, vec![7_u8; 16 << 20]).expect("a file");
    nix::unistd::sync();
    let throttle = match read_throttle(&file, 2 << 20) {
        Ok(throttle) => throttle,
        Err(why) => {
            eprintln!("skipped: slow_reads_of_a_throttled_file_are_named: {why}");
            return;
        }
    };
    // 64 KiB at 2 MiB/s are 31 ms.
    let file = file.display().to_string();
    let reads = ["--cpu-ms", "1", "--sleep-ms", "10", "--read", &file, "--read-kib", "64"];
    let throttled = throttle.0[0].clone();
    job.throttle = Some(throttle);
    job.start(&reads, &reads, &[&throttled]);
    let cause = wait_for("the reads are named", || {
        let cause = job.cause()?;
        if named(&cause) == ["wait"] && !job.reasons_are_recorded() {
            return Ok(cause);
        }
        if matches!(named(&cause).as_slice(), ["block_io"] | ["page_fault"]) {
            Ok(cause)
        } else {
            Err(cause.to_string())
        }
    });
    eprintln!("{}", cause["summary"]);
    if named(&cause) == ["wait"] {
        eprintln!("skipped: slow_reads_of_a_throttled_file_are_named: this host does not record why threads wait");
    }
}

#[test]
fn packet_loss_to_one_host_is_named_with_its_flows() {
    if !can_capture("packet_loss_to_one_host_is_named_with_its_flows") {
        return;
    }
    let hosts = match Hosts::new("c", AGENTS.len()) {
        Ok(hosts) => hosts,
        Err(why) => {
            eprintln!("skipped: packet_loss_to_one_host_is_named_with_its_flows: {why}");
            return;
        }
    };
    let mut job = Job::new("loss");
    let bin = job.program.with_file_name("mpi-ranks");
    assert!(bin.exists(), "no mpi-ranks: install libopenmpi-dev and openmpi-bin");
    // Two ranks to a host; all talk over TCP, those of one host too. mpirun's own daemon starts
    // them on each host.
    let netns = hosts.name(1).trim_end_matches('1').to_owned();
    let daemon = job.lab.path("on-host");
    let on_host = format!(
        "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nhost=${{1##*.}}; shift\n\
         exec ip netns exec {netns}$host unshare --uts sh -c \"hostname host$host; $*\"\n"
    );
    std::fs::write(&daemon, on_host).expect("a script");
    std::fs::set_permissions(&daemon, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a script");
    let script = format!(
        "h=$((OMPI_COMM_WORLD_RANK / 2 + 1)); nsenter -t {} -m sh -c \"echo $$ > {}/c$h/cgroup.procs\" && exec {} \
         --iters 100000 --work-ms 20 --start-ms 2500 --count 2000",
        std::process::id(),
        job.cgroups.0[0].display(),
        bin.display()
    );
    let log = std::fs::File::create(job.lab.path("mpi.log")).expect("a file");
    let child = Command::new(&daemon)
        .arg("10.117.0.1")
        .arg("exec mpirun")
        .args(["--allow-run-as-root", "--oversubscribe", "--mca", "oob_tcp_if_include", "10.117.0.0/24"])
        .args(["--mca", "plm_rsh_agent", &daemon.display().to_string()])
        .args(["--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "10.117.0.0/24", "--mca", "pml", "ob1"])
        .args(["--host", "10.117.0.1:2,10.117.0.2:2,10.117.0.3:2", "-np", "6", "sh", "-c"])
        .arg(format!("'{script}'"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("mpirun starts");
    job.processes.0.push(child);
    wait_for("every rank is in the verdict", || {
        let (answer, _) = job.lab.query("c1", "SELECT count(DISTINCT rank) FROM collectives WHERE seq > 20", &[]);
        let log = || std::fs::read_to_string(job.lab.path("mpi.log")).unwrap_or_default();
        if answer["rows"][0][0] == 6 { Ok(()) } else { Err(format!("{}\n{}", answer["rows"], log())) }
    });
    if let Err(why) = hosts.lose(3) {
        eprintln!("skipped: packet_loss_to_one_host_is_named_with_its_flows: {why}");
        return;
    }
    let answer = wait_for("the network is named", || {
        let answer = job.verdict("15s")?;
        let verdict = &answer["verdict"];
        // Ranks that leave a collective late are no culprits.
        assert_ne!(verdict["kind"], "hang", "{verdict}");
        if verdict["kind"] == "network" && verdict["node"] == "c3" { Ok(answer) } else { Err(verdict.to_string()) }
    });
    let verdict = &answer["verdict"];
    eprintln!("{verdict}");
    let flow = &verdict["flows"][0];
    assert!([&flow["from_node"], &flow["to_node"]].contains(&&Value::from("c3")), "{verdict}");
    // Every agent finds it by itself, from the digests' retransmissions.
    for coordinator in AGENTS {
        let standing = wait_for(&format!("{coordinator}'s standing verdict is the network"), || {
            let output = job.lab.ask(coordinator, "stragglers", &["--format", "json"]);
            let answer: Value = serde_json::from_slice(&output.stdout).map_err(|_| stderr(&output))?;
            let verdict = &answer["verdict"];
            assert_ne!(verdict["kind"], "hang", "{verdict}");
            let named = verdict["kind"] == "network" && verdict["node"] == "c3";
            if named && answer["standing"]["heard"] == AGENTS.len() { Ok(answer) } else { Err(verdict.to_string()) }
        });
        assert_ne!(standing["verdict"]["retransmissions"], 0, "{standing}");
    }
    // And it is explained by the segments that were sent again.
    let explained = wait_for("it is explained", || {
        let output = job.lab.ask(AGENTS[0], "explain", &["--format", "json", "--timeout", "20s"]);
        let found: Value = serde_json::from_slice(&output.stdout).map_err(|_| stderr(&output))?;
        if found["verdict"] == "network" { Ok(found) } else { Err(found["what"].to_string()) }
    });
    let first = explained["chain"][0]["what"].as_str().expect("its first link");
    assert!(first.contains("(c3) were sent again") || first.contains("from 10.117.0.3 "), "{explained}");
    assert_eq!(explained["runbook"], "network", "{explained}");
    drop(job);
    drop(hosts);
}
