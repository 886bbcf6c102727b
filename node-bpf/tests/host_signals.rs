//! The host's effects on a rank: a slow disk, a kill for want of memory, a network that loses
//! packets, too much to record.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::{Cgroup, Job, Recorded, Recorder, can_capture, nccl_ranks, wait_for, workloads};
use node_bpf::{
    Backlog, BlockIo, CaptureConfig, ClassState, HostRecord, MemoryEvent, NetEvent, ProcessEvent, Record, SelfStat,
};

/// A followed shell of this rank in the cgroups: it waits for a file, then runs the script.
fn rank_shell(cgroups: &[&Path], rank: u32, go: &Path, script: &str) -> Job {
    let enter: String = cgroups.iter().map(|path| format!("echo $$ > {}/cgroup.procs && ", path.display())).collect();
    let wait = format!("until [ -e {} ]; do sleep 0.02; done", go.display());
    let mut shell = Command::new("sh");
    // a library preloaded makes it a process that capture follows
    shell.arg("-c").arg(format!("{enter} LD_PRELOAD=$0 RANK={rank} exec sh -c '{wait}; {script}'"));
    shell.arg(workloads().join("libnccl.so.2")).stdin(Stdio::null());
    let log = File::create(go.with_extension("log")).unwrap();
    Job(shell.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap())
}

fn wait_until_followed(recorder: &Recorder, pid: u32) {
    wait_for("the shell to be followed", || {
        recorder.so_far().iter().any(|r| matches!(r, Record::Process(p) if p.pid == pid && p.rank.is_some()))
    });
}

fn signals(records: &[Record]) -> (Vec<BlockIo>, Vec<MemoryEvent>, Vec<ProcessEvent>, Vec<SelfStat>) {
    let mut all = (vec![], vec![], vec![], vec![]);
    for record in records {
        match record {
            Record::Host(HostRecord::Block(r)) => all.0.push(r.clone()),
            Record::Host(HostRecord::Memory(r)) => all.1.push(r.clone()),
            Record::Host(HostRecord::Life(r)) => all.2.push(r.clone()),
            Record::Host(HostRecord::SelfStat(r)) => all.3.push(r.clone()),
            _ => {}
        }
    }
    all
}

/// A directory of a controller of cgroup v1, removed with the value.
struct OldCgroup(PathBuf);

impl OldCgroup {
    fn new(controller: &str) -> Option<OldCgroup> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let path = Path::new("/sys/fs/cgroup").join(controller).join(format!(
            "rankmesh-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        ));
        fs::create_dir(&path).ok().map(|()| OldCgroup(path))
    }
}

impl Drop for OldCgroup {
    fn drop(&mut self) {
        wait_for("the old cgroup to be empty", || fs::remove_dir(&self.0).is_ok());
    }
}

/// A limit in the job's cgroup v2, or in a cgroup v1 of its own; none when this host has neither
/// controller.
fn limit(cgroup: &Cgroup, new: (&str, &str), old: (&str, &str, &str)) -> Option<Option<OldCgroup>> {
    if fs::write(cgroup.0.join(new.0), new.1).is_ok() {
        return Some(None);
    }
    let (controller, file, value) = old;
    let directory = OldCgroup::new(controller)?;
    fs::write(directory.0.join(file), value).ok().map(|()| Some(directory))
}

/// A loop device over a file, detached when dropped.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn over(file: &Path) -> Option<LoopDevice> {
        let out = Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(file).output().ok()?;
        out.status.success().then(|| LoopDevice(String::from_utf8(out.stdout).unwrap().trim().into()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// The disk of a file, not its partition, "major:minor".
fn disk_of(file: &Path) -> Option<String> {
    let device = fs::metadata(file).ok()?.dev();
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let at = fs::canonicalize(Path::new("/sys/dev/block").join(&number)).ok()?;
    let disk = if at.join("partition").exists() { at.parent()?.to_owned() } else { at };
    Some(fs::read_to_string(disk.join("dev")).ok()?.trim().to_owned())
}

#[test]
fn a_slow_disk_shows_as_requests_and_waits_of_the_rank_that_reads() {
    if !can_capture() {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = dir.path().join("disk");
    let mut written = File::create(&file).unwrap();
    written.write_all(&vec![7; 4 << 20]).unwrap();
    written.sync_all().unwrap();
    let cgroup = Cgroup::new();
    let disk = disk_of(&file).unwrap_or_default();
    let (new, old) = (format!("{disk} rbps=1048576"), format!("{disk} 1048576"));
    let slow = limit(&cgroup, ("io.max", &new), ("blkio", "blkio.throttle.read_bps_device", &old));
    let (Some(slow), Some(device)) = (slow, LoopDevice::over(&file)) else {
        eprintln!("SKIPPED: needs loop devices and a cgroup controller that slows reads of {disk:?}");
        return;
    };
    let recorder = Recorder::start(cgroup.capturing([]));
    let cgroups: Vec<&Path> = slow.iter().map(|old| old.0.as_path()).chain([cgroup.0.as_path()]).collect();
    let (go, done) = (dir.path().join("go"), dir.path().join("done"));
    // again until one was followed from its beginning on: its waits are recorded from then on
    let dd = format!("dd if={} of=/dev/null bs=256k count=16 iflag=direct", device.0.display());
    let script = format!("until [ -e {} ]; do {dd} || exit 1; done", done.display());
    let mut shell = rank_shell(&cgroups, 3, &go, &script);
    wait_until_followed(&recorder, shell.0.id());
    File::create(&go).unwrap();
    let name = device.0.file_name().unwrap().to_str().unwrap();
    let slow_of = |blocks: &[BlockIo], pid: u32| -> Vec<BlockIo> {
        let is_slow = |b: &&BlockIo| b.device == name && b.duration_ns >= 50_000_000 && b.pid == pid;
        blocks.iter().filter(is_slow).cloned().collect()
    };
    let waited_of = |recorded: &Recorded, pid: u32| -> i64 {
        recorded.off_cpu().iter().filter(|o| o.pid == pid && o.reason == "io").map(|o| o.duration_ns).sum()
    };
    let mut followed = None;
    wait_for("a slow reader whose waits are recorded", || {
        assert!(shell.0.try_wait().unwrap().is_none(), "{}", fs::read_to_string(go.with_extension("log")).unwrap());
        let recorded = Recorded(recorder.so_far());
        let (blocks, _, life, _) = signals(&recorded.0);
        followed = life.iter().filter(|l| l.event == "exit").map(|l| l.pid).find(|pid| {
            let longest = slow_of(&blocks, *pid).iter().map(|b| b.duration_ns).max();
            longest.is_some_and(|longest| waited_of(&recorded, *pid) >= longest / 2)
        });
        followed.is_some()
    });
    let pid = followed.unwrap();
    File::create(&done).unwrap();
    assert!(shell.0.wait().unwrap().success());
    let recorded = recorder.stop();
    let (blocks, _, life, _) = signals(&recorded.0);
    let slow = slow_of(&blocks, pid);
    assert!(slow.iter().all(|b| b.rank == Some(3) && b.op == "read" && b.bytes > 0 && b.error == 0), "{slow:?}");
    let total = |b: &BlockIo| b.queue_ns.unwrap_or(0) + b.duration_ns;
    assert!(blocks.iter().all(|b| total(b) >= 1_000_000), "shorter ones make no rows: {blocks:?}");
    let waits: Vec<_> = recorded.off_cpu().into_iter().filter(|o| o.pid == pid && o.reason == "io").collect();
    assert!(waits.iter().all(|o| o.rank == Some(3) && o.voluntary), "{waits:?}");
    // dd was started by the rank and ended well
    assert!(life.iter().any(|l| l.event == "fork" && l.pid == pid && l.parent_pid == Some(shell.0.id())));
    assert!(life.iter().any(|l| l.event == "exit" && l.pid == pid && l.exit_code == Some(0) && l.comm == "dd"));
}

/// A job of rank 6 that fills the memory of its cgroup; returns the shell's process id and all
/// records. None when no limit can be set.
fn out_of_memory(script: &str) -> Option<(u32, Vec<Record>)> {
    let dir = tempfile::tempdir().unwrap();
    let (cgroup, bytes) = (Cgroup::new(), "33554432");
    let Some(small) = limit(&cgroup, ("memory.max", bytes), ("memory", "memory.limit_in_bytes", bytes)) else {
        eprintln!("SKIPPED: needs the memory controller of cgroups");
        return None;
    };
    let recorder = Recorder::start(cgroup.capturing([]));
    let states = recorder.status().classes;
    assert!(states.iter().any(|class| class.name == "oom" && class.state == ClassState::On), "{states:?}");
    let cgroups: Vec<&Path> = small.iter().map(|old| old.0.as_path()).chain([cgroup.0.as_path()]).collect();
    let go = dir.path().join("go");
    let shell = rank_shell(&cgroups, 6, &go, script);
    let pid = shell.0.id();
    wait_until_followed(&recorder, pid);
    File::create(&go).unwrap();
    let ended = |records: &[Record]| signals(records).2.iter().any(|l| l.event == "oom_killed");
    wait_for("the kernel to kill it", || ended(&recorder.so_far()));
    drop(shell);
    let recorded = recorder.stop().0;
    let inode = fs::metadata(&cgroup.0).unwrap().ino();
    let (_, memory, life, _) = signals(&recorded);
    let kills: Vec<_> = memory.iter().filter(|m| m.event == "oom_kill").collect();
    assert_eq!(kills.len(), 1, "{memory:?}");
    assert_eq!((kills[0].rank, kills[0].tid), (Some(6), None));
    assert!(kills[0].cgroup_id.is_none_or(|id| id == inode), "{kills:?}");
    let end = life.iter().find(|l| l.event == "oom_killed").unwrap();
    assert_eq!((end.pid, end.rank, end.signal, end.exit_code), (kills[0].pid, Some(6), Some(9), None));
    // before that it had to look for memory itself
    assert!(memory.iter().any(|m| m.event == "direct_reclaim" && m.rank == Some(6) && m.duration_ns.is_some()));
    Some((pid, recorded))
}

#[test]
fn a_kill_for_want_of_memory_is_the_ranks() {
    if !can_capture() {
        return;
    }
    if let Some((pid, records)) = out_of_memory("x=0123456789; while :; do x=$x$x; done") {
        assert!(signals(&records).2.iter().any(|l| l.event == "oom_killed" && l.pid == pid));
    }
}

#[test]
fn a_kill_of_what_a_rank_started_is_the_ranks_too() {
    if !can_capture() {
        return;
    }
    if let Some((pid, records)) = out_of_memory("tail /dev/zero; true") {
        let end = signals(&records).2.into_iter().find(|l| l.event == "oom_killed").unwrap();
        assert_eq!((end.parent_pid, end.comm.as_str()), (Some(pid), "tail"));
    }
}

#[test]
fn short_faults_are_summed_up_and_none_is_lost() {
    if !can_capture() {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = dir.path().join("disk");
    let mut written = File::create(&file).unwrap();
    written.write_all(&vec![7; 16 << 20]).unwrap();
    written.sync_all().unwrap();
    let (workloads, cgroup) = (workloads(), Cgroup::new());
    let recorder = Recorder::of_nccl(&cgroup, &workloads);
    let states = recorder.status().classes;
    let is_on = |name: &str| states.iter().any(|class| class.name == name && class.state == ClassState::On);
    if !is_on("faults") || !is_on("fault-times") {
        eprintln!("SKIPPED: needs perf's event of major faults and the kernel's tracepoints of page faults");
        return;
    }
    let enter = format!("echo $$ > {}/cgroup.procs && exec $0 --disk $1", cgroup.0.display());
    let mut rank = Command::new("sh");
    rank.args(["-c", &enter]).arg(workloads.join("host-events")).arg(&file).env("LD_LIBRARY_PATH", &workloads);
    let mut runs: Vec<(u32, u64)> = vec![];
    let of_rank = |records: &[Record], rank: u32| -> Vec<MemoryEvent> {
        signals(records).1.into_iter().filter(|m| m.pid == rank && m.event == "major_fault").collect()
    };
    let sum = |faults: &[MemoryEvent]| faults.iter().map(|m| u64::from(m.count)).sum::<u64>();
    let is_timed = |m: &MemoryEvent| m.duration_ns.is_some();
    // again until one ran when there had been many for a second: its faults are timed
    wait_for("faults with their time", || {
        let output = rank.output().unwrap();
        let output: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let (pid, faults) = (output["pid"].as_u64().unwrap_or(0) as u32, output["faults"].as_u64().unwrap_or(0));
        runs.push((pid, faults));
        let seen = |records: &[Record]| sum(&of_rank(records, pid)) >= faults;
        wait_for("all of its faults", || seen(&recorder.so_far()));
        faults < 64 || of_rank(&recorder.so_far(), pid).iter().any(is_timed)
    });
    if runs.iter().any(|(_, faults)| *faults < 64) {
        eprintln!("SKIPPED: the temporary directory cannot be read past the page cache: {runs:?}");
        return;
    }
    let records = recorder.stop().0;
    for (pid, counted) in &runs {
        let faults = of_rank(&records, *pid);
        // its program's own pages may have had to be read, too
        assert!((*counted..=2 * counted).contains(&sum(&faults)), "{counted} in truth: {faults:?}");
        assert!(faults.iter().all(|m| m.rank == Some(0) && m.tid == Some(*pid)), "{faults:?}");
        let (timed, untimed): (Vec<_>, Vec<_>) = faults.into_iter().partition(is_timed);
        let none = timed.is_empty();
        assert!(none || sum(&untimed) <= 128, "the first one's beginning is never known: {timed:?} {untimed:?}");
        let is_long = |m: &MemoryEvent| m.duration_ns >= Some(1_000_000) && m.count == 1;
        let (long, short): (Vec<_>, Vec<_>) = timed.into_iter().chain(untimed).partition(is_long);
        assert!(short.iter().all(|m| m.duration_ns <= Some(50_000_000)), "{short:?}");
        eprintln!("{} long ones, {} short ones in {} rows, timed: {}", long.len(), sum(&short), short.len(), !none);
        assert!(short.is_empty() || short.len() as u64 * 2 <= sum(&short) + 8, "{short:?}");
    }
}

/// Runs in the network namespace of a process.
fn inside(pid: u32, command: &[&str]) -> bool {
    let mut nsenter = Command::new("nsenter");
    nsenter.args(["-t", &pid.to_string(), "-n"]).args(command).stderr(Stdio::null());
    nsenter.status().is_ok_and(|status| status.success())
}

/// Two network namespaces, 10.98.0.1 and 10.98.0.2, between which one packet in ten is lost on the
/// way to the second.
fn lossy_pair() -> Option<[Job; 2]> {
    let namespace = || Command::new("unshare").args(["-n", "sleep", "300"]).spawn().ok().map(Job);
    let pair = [namespace()?, namespace()?];
    let [a, b] = [pair[0].0.id(), pair[1].0.id()];
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    wait_for("the namespaces", || {
        [a, b].iter().all(|pid| fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|link| link != own))
    });
    let link = ["ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", &b.to_string()];
    let up = inside(a, &link)
        && inside(a, &["ip", "addr", "add", "10.98.0.1/24", "dev", "v0"])
        && inside(b, &["ip", "addr", "add", "10.98.0.2/24", "dev", "v1"])
        && inside(a, &["ip", "link", "set", "v0", "up"])
        && inside(b, &["ip", "link", "set", "v1", "up"]);
    let lose = ["-A", "INPUT", "-m", "statistic", "--mode", "random", "--probability", "0.1", "-j", "DROP"];
    let command: Vec<&str> = ["iptables"].into_iter().chain(lose).collect();
    (up && inside(b, &command)).then_some(pair)
}

#[test]
fn lost_packets_show_as_retransmits_of_the_rank_that_sends() {
    if !can_capture() {
        return;
    }
    let Some([a, b]) = lossy_pair() else {
        eprintln!("SKIPPED: needs unshare, nsenter, ip, veth and iptables with its statistic match");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let namespace = File::open(format!("/proc/{}/ns/net", b.0.id())).unwrap();
    const BYTES: usize = 3_000_000;
    let (port, bound) = std::sync::mpsc::channel();
    let (tell, stopped) = std::sync::mpsc::channel::<()>();
    let receiver = std::thread::spawn(move || {
        // SAFETY: the descriptor is open; only this thread changes its namespace.
        assert_eq!(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
        let listener = TcpListener::bind("10.98.0.2:0").unwrap();
        port.send(listener.local_addr().unwrap().port()).unwrap();
        let mut connection = listener.accept().unwrap().0;
        connection.read_exact(&mut vec![0; BYTES]).unwrap();
        let _ = stopped.recv(); // the sender ends with the connection
    });
    let port = bound.recv().unwrap();
    let cgroup = Cgroup::new();
    let recorder = Recorder::start(cgroup.capturing([]));
    let go = dir.path().join("go");
    // it has its socket until all is there, and its owner was looked up
    let send = format!("exec 3<>/dev/tcp/10.98.0.2/{port}; head -c {BYTES} /dev/zero >&3; cat <&3");
    let script = format!("exec nsenter -t {} -n bash -c \"{send}\"", a.0.id());
    let mut shell = rank_shell(&[&cgroup.0], 5, &go, &script);
    wait_until_followed(&recorder, shell.0.id());
    File::create(&go).unwrap();
    let again_of = |records: Vec<Record>| -> Vec<NetEvent> {
        let events = records.into_iter().filter_map(|r| if let Record::Net(n) = r { Some(n) } else { None });
        events.filter(|n| n.event == "tcp_retransmit_skb" && n.dport == port).collect()
    };
    wait_for("some packets to be sent again", || again_of(recorder.so_far()).len() >= 5);
    drop(tell);
    let ended = shell.0.wait().unwrap();
    assert!(ended.success(), "{}", fs::read_to_string(go.with_extension("log")).unwrap());
    receiver.join().unwrap();
    let again = again_of(recorder.stop().0);
    eprintln!("{} packets sent again", again.len());
    assert!(again.iter().all(|n| n.saddr == "10.98.0.1" && n.daddr == "10.98.0.2"));
    let known: Vec<_> = again.iter().filter(|n| n.rank == Some(5)).collect();
    assert!(known.len() * 2 > again.len(), "{} of {} with their rank", known.len(), again.len());
}

#[test]
fn under_load_short_stretches_are_left_out_counted_and_come_back() {
    if !can_capture() {
        return;
    }
    let workloads = workloads();
    let cgroup = Cgroup::new();
    let backlog = Backlog::default();
    let recorder = Recorder::start(CaptureConfig {
        backlog: backlog.clone(),
        ..cgroup.capturing([workloads.join("libnccl.so.2")])
    });
    // the longest sleep is half the threshold that four steps lead to
    let mut job = nccl_ranks(&workloads, &[&cgroup], &["--ranks", "2", "--iters", "100000", "--work-ms", "5"]);
    let job = Job(job.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    let least = |records: &[Record]| {
        let stats = signals(records).3;
        stats.iter().rev().find(|s| s.name == "capture.offcpu_min").map(|s| s.value)
    };
    wait_for("the first threshold to be reported", || least(&recorder.so_far()) == Some(1e6));
    backlog.set(900);
    wait_for("the threshold to rise all the way", || least(&recorder.so_far()) == Some(64e6));
    backlog.set(0);
    let shed = |records: &[Record]| -> u64 {
        let losses = records.iter().filter_map(|r| if let Record::Loss(l) = r { Some(l) } else { None });
        losses.filter(|l| l.probe == "sched_switch" && l.reason == "shed").map(|l| l.lost).sum()
    };
    wait_for("what is left out to be counted", || shed(&recorder.so_far()) > 0);
    drop(job);
    let deadline = std::time::Instant::now() + Duration::from_secs(120);
    while least(&recorder.so_far()) != Some(1e6) {
        assert!(std::time::Instant::now() < deadline, "the threshold never came back");
        std::thread::sleep(Duration::from_millis(100));
    }
    let recorded = recorder.stop();
    let stats = signals(&recorded.0).3;
    let last = |name: &str| stats.iter().rev().find(|s| s.name == name).map(|s| s.value);
    assert_eq!(last("probe.sched_switch.shed"), Some(shed(&recorded.0) as f64), "reported and counted are equal");
    assert!(last("probe.libnccl:ncclAllReduce.hits").is_some_and(|hits| hits > 0.0));
    assert!(recorded.lost().iter().all(|l| l.reason != "shed"), "no collective is left out");
    assert!(last("program.on_switch.runs").is_some_and(|runs| runs > 0.0));
    assert!(last("program.on_switch.cpu").is_some_and(|ns| ns > 0.0));
}
