//! A recorder of one user sees nothing of another's: neither calls, nor off-CPU time, connections,
//! requests to disks, faults, children, ends, or open calls; nor processes that the user starts
//! with another's rights.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{Cgroup, Job, Recorder, can_capture, wait_for, workloads};
use node_bpf::{CaptureConfig, HostRecord, MemoryEvent, Record};

/// Two user ids without names that no one else uses.
const OURS: u32 = 54_331;
const OTHER: u32 = 54_332;

/// The workloads where every user may run them, a file to read, and a program that takes OTHER's
/// rights.
struct Dirs {
    dir: tempfile::TempDir,
    file: Option<PathBuf>,
}

impl Dirs {
    fn new() -> Dirs {
        let (from, dir) = (workloads(), tempfile::tempdir().unwrap());
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["libnccl.so.2", "host-events", "nccl-ranks"] {
            fs::copy(from.join(name), dir.path().join(name)).unwrap();
        }
        // such programs do not look for libraries in their own directory ($ORIGIN): the loader
        // forbids it
        let scenarios = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
        let set_user = dir.path().join("set-user");
        let mut cc = Command::new("cc");
        cc.arg("-I").arg(scenarios.join("nccl-sim")).arg("-o").arg(&set_user);
        cc.arg(scenarios.join("workloads/host-events.c")).arg(dir.path().join("libnccl.so.2"));
        let built = cc.arg(format!("-Wl,-rpath,{}", dir.path().display())).arg("-ldl").output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        chown(&set_user, Some(OTHER), None).unwrap();
        fs::set_permissions(&set_user, fs::Permissions::from_mode(0o4755)).unwrap();
        // read past the page cache: where that works
        let file = dir.path().join("data");
        fs::write(&file, vec![1; 17 << 20]).unwrap();
        File::open(&file).unwrap().sync_all().unwrap();
        let mut past = Command::new("dd");
        past.arg(format!("if={}", file.display())).args(["of=/dev/null", "bs=4096", "count=1", "iflag=direct"]);
        past.stderr(Stdio::null());
        let file = past.status().is_ok_and(|status| status.success()).then_some(file);
        Dirs { dir, file }
    }

    /// Runs `script` as a user, in the cgroup and in a network of its own, where 10.99.99.99 does
    /// not answer.
    fn start(&self, user: u32, cgroup: &Cgroup, rank: u32, script: &str) -> Child {
        let mut command = Command::new("unshare");
        let network = "ip link set lo up && ip route add 10.99.99.99 dev lo";
        let enter = format!("{network} && echo $$ > {}/cgroup.procs", cgroup.0.display());
        command.args(["-n", "sh", "-c", &format!("{enter} && exec \"$@\""), "sh"]);
        command.args(["setpriv", "--reuid", &user.to_string(), "--regid", &user.to_string(), "--clear-groups"]);
        command.args(["sh", "-c", script]).env("RANK", rank.to_string()).current_dir(self.dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

/// A workload's own report.
fn report_of(child: Child) -> serde_json::Value {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    let stderr = String::from_utf8_lossy(&output.stderr);
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {text} {stderr}"))
}

/// The processes that a record is about.
fn pids(record: &Record) -> Vec<u32> {
    match record {
        Record::Collective(r) => vec![r.pid],
        Record::OffCpu(r) => vec![r.pid, r.next_pid],
        Record::Net(r) => r.pid.into_iter().collect(),
        Record::Process(r) => vec![r.pid],
        Record::Host(HostRecord::Block(r)) => vec![r.pid],
        Record::Host(HostRecord::Memory(r)) => vec![r.pid],
        Record::Host(HostRecord::Life(r)) => vec![r.pid, r.parent_pid.unwrap_or(0)],
        _ => vec![],
    }
}

#[test]
fn of_another_user_nothing_is_recorded() {
    if !can_capture() {
        return;
    }
    let place = Dirs::new();
    let cgroup = Cgroup::new();
    let recorder = Recorder::start(CaptureConfig {
        only_user: Some(OURS),
        block_min: std::time::Duration::ZERO,
        ..cgroup.capturing([place.dir.path().join("libnccl.so.2")])
    });
    assert_eq!(recorder.status().only_user, Some(OURS));
    let disk = place.file.as_ref().map(|file| format!(" --disk {}", file.display())).unwrap_or_default();
    // alone, and both at once
    let others = report_of(place.start(OTHER, &cgroup, 1, &format!("exec ./host-events{disk}")));
    // it is followed, and then has another user's rights
    let wait = "until [ -e go ]; do sleep 0.02; done; exec ./set-user";
    let lent = place.start(OURS, &cgroup, 3, &format!("LD_PRELOAD=$PWD/libnccl.so.2 exec sh -c '{wait}'"));
    let lent_by = lent.id();
    let followed = |r: &Record| matches!(r, Record::Process(p) if p.pid == lent_by && p.rank == Some(3));
    wait_for("the shell to be followed", || recorder.so_far().iter().any(followed));
    File::create(place.dir.path().join("go")).unwrap();
    let other = place.start(OTHER, &cgroup, 2, &format!("exec ./host-events{disk}"));
    let ours = report_of(place.start(OURS, &cgroup, 0, &format!("exec ./host-events{disk}")));
    let not_ours = [others, report_of(other), report_of(lent)];
    let waits: Vec<Job> = [(OURS, 7), (OTHER, 8)]
        .map(|(user, iters)| {
            let ranks = format!("exec ./nccl-ranks --ranks 2 --iters {iters} --late-rank 1 --late-ms 600000");
            let ranks = format!("export NCCL_SIM_TIMEOUT_MS=600000; {ranks}");
            Job(place.start(user, &cgroup, 0, &ranks))
        })
        .into();
    let ranks_of = |job: &Job| {
        let of = |pid: &str| fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let procs = fs::read_to_string(cgroup.0.join("cgroup.procs")).unwrap_or_default();
        let of_job = move |pid: &&str| of(pid).contains(&format!("PPid:\t{}\n", job.0.id()));
        procs.lines().filter(of_job).map(|pid| pid.parse::<u32>().unwrap()).collect::<Vec<_>>()
    };
    // in both jobs one rank is in its first call, while the late one sleeps before it
    let in_call = |pid: u32, call: libc::c_long| {
        let now = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
        now.starts_with(&format!("{call} "))
    };
    let (futex, sleep) = (libc::SYS_futex, libc::SYS_clock_nanosleep);
    let waits_on = |pids: &[u32]| pids.iter().filter(|pid| in_call(**pid, futex)).count() == 1;
    let is_late = |pids: &[u32]| pids.iter().filter(|pid| in_call(**pid, sleep)).count() == 1;
    wait_for("a rank of both jobs to wait for its late peer", || {
        waits.iter().map(ranks_of).all(|pids| pids.len() == 2 && waits_on(&pids) && is_late(&pids))
    });
    wait_for("our rank to wait", || recorder.in_flight().iter().any(|c| c.duration_ns > 300_000_000));
    let in_flight = recorder.in_flight();
    let (our_ranks, their_ranks) = (ranks_of(&waits[0]), ranks_of(&waits[1]));
    assert_eq!((our_ranks.len(), their_ranks.len()), (2, 2));
    assert!(in_flight.iter().all(|call| our_ranks.contains(&call.pid)), "{in_flight:?} {their_ranks:?}");
    drop(waits); // the ranks end with the jobs
    let recorded = recorder.stop();

    let number = |of: &serde_json::Value, name: &str| of[name].as_u64().unwrap();
    let pid = number(&ours, "pid") as u32;
    let count = |is: &dyn Fn(&Record) -> bool| recorded.0.iter().filter(|r| is(r)).count() as u64;
    assert_eq!(recorded.count(pid, "all_reduce"), number(&ours, "calls"));
    assert!(count(&|r| matches!(r, Record::OffCpu(o) if o.pid == pid && o.voluntary)) >= number(&ours, "sleeps"));
    let refused = count(&|r| matches!(r, Record::Net(n) if n.event == "tcp_receive_reset"));
    assert_eq!(refused, number(&ours, "refused"), "not the others', which were as many");
    let again = count(&|r| matches!(r, Record::Net(n) if n.event == "tcp_retransmit_skb"));
    assert_eq!(again, number(&ours, "retransmits"));
    let ends =
        |r: &Record| matches!(r, Record::Host(HostRecord::Life(l)) if l.parent_pid == Some(pid) && l.event == "exit");
    assert_eq!(count(&ends), number(&ours, "children"));
    if place.file.is_some() {
        let reads = |r: &Record| matches!(r, Record::Host(HostRecord::Block(b)) if b.pid == pid);
        let is_fault = |m: &MemoryEvent| m.pid == pid && m.event == "major_fault";
        let faults = |r: &Record| match r {
            Record::Host(HostRecord::Memory(m)) if is_fault(m) => u64::from(m.count),
            _ => 0,
        };
        assert!(count(&reads) >= number(&ours, "reads"), "{}", count(&reads));
        // its program's own pages may have had to be read, too
        let (seen, counted) = (recorded.0.iter().map(faults).sum::<u64>(), number(&ours, "faults"));
        assert!(seen >= counted && seen <= 2 * counted, "{seen} faults, {counted} of them by the file");
    } else {
        eprintln!("the temporary directory cannot be read past the page cache: requests to disks were not tried");
    }

    let mut hidden: Vec<u32> = not_ours.iter().map(|report| number(report, "pid") as u32).collect();
    hidden.extend(their_ranks);
    for record in &recorded.0 {
        let of_other = pids(record).into_iter().filter(|pid| hidden.contains(pid)).collect::<Vec<_>>();
        // until it took the other's rights, the one that did so was ours
        let before = of_other == [lent_by] && !matches!(record, Record::Collective(_) | Record::Net(_));
        assert!(of_other.is_empty() || before, "{record:?}");
        match record {
            Record::Process(p) => assert_eq!(p.uid, Some(OURS), "{p:?}"),
            Record::OffCpu(o) => assert!(o.pid != lent_by || o.next_comm != "set-user", "{o:?}"),
            _ => {}
        }
    }
    assert_eq!(recorded.count(lent_by, "all_reduce"), 0);
    let lost = recorded.lost();
    assert!(lost.iter().all(|l| ["in_flight", "unmatched"].contains(&l.reason.as_str())), "{lost:?}");
}
