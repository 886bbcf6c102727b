//! Shared parts of the tests on real eBPF: the workloads (compiled from ../scenarios), a cgroup of
//! their own, and a capture that keeps its records. Every test captures only its own cgroup, so
//! they may run in parallel.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapHandle};
use node_bpf::{Capture, CaptureConfig, CaptureStatus, Collective, DeviceWait, LossCount, OffCpu, Record};

/// True when capture works here; else prints on standard error that the test is skipped.
pub fn can_capture() -> bool {
    match node_bpf::supported() {
        Ok(()) => true,
        Err(error) => {
            eprintln!("SKIPPED: {error}");
            false
        }
    }
}

/// True when this test may be another user; else prints that it is skipped.
pub fn can_be_others() -> bool {
    // SAFETY: has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        eprintln!("skipped: needs root");
    }
    root && can_capture()
}

/// A directory that everybody may look into.
pub fn open_directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// A program, or a library, of C.
pub fn compiled(dir: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let (code, out) = (dir.join(format!("{name}.c")), dir.join(name));
    fs::write(&code, source).unwrap();
    let made = Command::new("cc").arg("-o").arg(&out).arg(&code).args(flags).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    out
}

/// True when Open MPI is here.
pub fn has_mpi() -> bool {
    let found = ["mpirun", "mpicc"].iter().all(|tool| {
        Command::new("which").arg(tool).stdout(Stdio::null()).status().is_ok_and(|status| status.success())
    });
    if !found {
        eprintln!("SKIPPED: needs mpirun and mpicc (apt-get install openmpi-bin libopenmpi-dev)");
    }
    found
}

/// The directory with libnccl.so.2, nccl-ranks and (with mpicc) mpi-ranks, compiled when needed.
pub fn workloads() -> PathBuf {
    let out = fs::canonicalize(env!("CARGO_TARGET_TMPDIR")).unwrap().join("workloads");
    fs::create_dir_all(&out).unwrap();
    let lock = File::create(out.join("lock")).unwrap();
    lock.lock().unwrap();
    let scenarios = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    let made = Command::new("make").arg("-C").arg(scenarios).arg(format!("OUT={}", out.display())).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    out
}

/// The first CPU that this process may use.
pub fn first_cpu() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    list.split(['-', ',']).next().unwrap().parse().unwrap()
}

/// A process that is killed when this is dropped.
pub struct Job(pub Child);

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A cgroup v2 directory, removed with the value.
pub struct Cgroup(pub PathBuf);

impl Cgroup {
    /// A capture of its processes, with these libraries by their paths.
    pub fn capturing<const N: usize>(&self, libraries: [PathBuf; N]) -> CaptureConfig {
        CaptureConfig { cgroup: Some(self.0.clone()), libraries: libraries.into(), ..CaptureConfig::default() }
    }

    pub fn new() -> Cgroup {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2")).expect("a cgroup2 mount");
        let mount = mount.split(' ').nth(1).unwrap();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(mount).join(format!("rankmesh-test-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Cgroup(path)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // its last process may not have been reaped yet
        wait_for("the cgroup to be empty", || fs::remove_dir(&self.0).is_ok());
    }
}

/// Waits until it is true; fails after two minutes.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited two minutes for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A capture and all its records.
pub struct Recorder {
    capture: Option<Capture>,
    records: Arc<Mutex<Vec<Record>>>,
}

impl Recorder {
    pub fn start(config: CaptureConfig) -> Recorder {
        let records = Arc::new(Mutex::new(vec![]));
        let sink = Arc::clone(&records);
        let capture = Capture::start(config, Box::new(move |record| sink.lock().unwrap().push(record))).unwrap();
        Recorder { capture: Some(capture), records }
    }

    /// Records `cgroup`, with nccl-sim probed from the start.
    pub fn of_nccl(cgroup: &Cgroup, workloads: &Path) -> Recorder {
        Recorder::start(cgroup.capturing([workloads.join("libnccl.so.2")]))
    }

    pub fn status(&self) -> CaptureStatus {
        self.capture.as_ref().unwrap().status()
    }

    pub fn in_flight(&self) -> Vec<Collective> {
        self.capture.as_ref().unwrap().in_flight()
    }

    pub fn device_waits(&self) -> Vec<DeviceWait> {
        self.capture.as_ref().unwrap().device_waits()
    }

    pub fn so_far(&self) -> Vec<Record> {
        self.records.lock().unwrap().clone()
    }

    /// Keeps the sink from taking records, as a slow disk would, until the guard is dropped.
    pub fn hold(&self) -> MutexGuard<'_, Vec<Record>> {
        self.records.lock().unwrap()
    }

    /// Stops the capture: what is returned is everything.
    pub fn stop(mut self) -> Recorded {
        self.capture.take().unwrap().stop();
        Recorded(self.so_far())
    }
}

/// All records of a finished capture.
pub struct Recorded(pub Vec<Record>);

impl Recorded {
    pub fn calls(&self) -> Vec<&Collective> {
        self.0.iter().filter_map(|r| if let Record::Collective(c) = r { Some(c) } else { None }).collect()
    }
    pub fn off_cpu(&self) -> Vec<&OffCpu> {
        self.0.iter().filter_map(|r| if let Record::OffCpu(o) = r { Some(o) } else { None }).collect()
    }
    pub fn losses(&self) -> Vec<&LossCount> {
        self.0.iter().filter_map(|r| if let Record::Loss(l) = r { Some(l) } else { None }).collect()
    }
    /// All losses, except of the shortest stretches off the CPU and requests to disks where there
    /// are very many: a host at its limits makes thousands a second, and may.
    pub fn lost(&self) -> Vec<&LossCount> {
        self.losses().into_iter().filter(|loss| loss.reason != "shed" || loss.probe.starts_with("lib")).collect()
    }
    pub fn count(&self, pid: u32, func: &str) -> u64 {
        self.calls().iter().filter(|c| c.pid == pid && c.func == func).count() as u64
    }
}

/// This process's kernel maps of a name: those of all its recorders.
pub fn kernel_maps(name: &str) -> Vec<MapHandle> {
    let map_of = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path()).ok()?;
        let id = text.lines().find_map(|line| line.strip_prefix("map_id:"))?.trim().parse().ok()?;
        MapHandle::from_map_id(id).ok().filter(|map| map.name() == name)
    };
    let maps: HashMap<u32, MapHandle> = fs::read_dir("/proc/self/fdinfo")
        .unwrap()
        .flatten()
        .filter_map(map_of)
        .map(|map| (map.info().unwrap().info.id, map))
        .collect();
    assert!(!maps.is_empty(), "no recorder of ours has a map {name}");
    maps.into_values().collect()
}

/// Their keys: the first four bytes, which name a process or a thread.
pub fn kernel_keys(name: &str) -> Vec<u32> {
    let number = |key: Vec<u8>| u32::from_ne_bytes(key[..4].try_into().unwrap());
    kernel_maps(name).iter().flat_map(|map| map.keys().map(number).collect::<Vec<_>>()).collect()
}

/// The output of one rank of a workload.
pub struct Rank {
    pub rank: i32,
    pub pid: u32,
    pub id: Option<[u8; 128]>,
    pub calls: serde_json::Map<String, serde_json::Value>,
    pub bytes: u64,
}

/// The output of a rank.
fn rank_of(line: &str) -> Rank {
    let json: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(json["ok"], true, "{line}");
    let byte = |hex: &str, i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
    Rank {
        rank: json["rank"].as_i64().unwrap() as i32,
        pid: json["pid"].as_u64().unwrap() as u32,
        id: json["id"].as_str().map(|hex| std::array::from_fn(|i| byte(hex, i))),
        calls: json["calls"].as_object().unwrap().clone(),
        bytes: json["bytes"].as_u64().unwrap(),
    }
}

impl Rank {
    /// Calls that are to become rows.
    pub fn made(&self) -> u64 {
        self.calls.iter().filter(|(func, _)| *func != "group_end").map(|(_, made)| made.as_u64().unwrap()).sum()
    }
}

/// Runs a workload to its end; returns its ranks in order. They may have ended before they are
/// looked up in /proc: where their identity matters, see [`run_watched`].
pub fn run(command: &mut Command) -> Vec<Rank> {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{command:?}: {text} {}", String::from_utf8_lossy(&output.stderr));
    let mut ranks: Vec<Rank> = text.lines().map(rank_of).collect();
    ranks.sort_by_key(|rank| rank.rank);
    ranks
}

/// Runs a workload with this many ranks, which live until the recorders together know them and have
/// all their calls, however late; returns its ranks in order.
pub fn run_watched(command: &mut Command, ranks: usize, recorders: &[&Recorder]) -> Vec<Rank> {
    let dir = tempfile::tempdir().unwrap();
    let (go_on, stderr) = (dir.path().join("go-on"), dir.path().join("stderr"));
    command.arg("--hold-file").arg(&go_on).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut job = Job(command.stderr(File::create(&stderr).unwrap()).spawn().unwrap());
    let mut printed = BufReader::new(job.0.stdout.take().unwrap());
    let mut all = vec![];
    while all.len() < ranks {
        let mut line = String::new();
        let read = printed.read_line(&mut line).unwrap();
        assert!(read > 0, "{command:?} ended: {}", fs::read_to_string(&stderr).unwrap());
        all.push(rank_of(&line));
    }
    wait_for("every rank to be known with all its calls", || {
        let records: Vec<Record> = recorders.iter().flat_map(|recorder| recorder.so_far()).collect();
        all.iter().all(|rank| {
            let known =
                records.iter().any(|r| matches!(r, Record::Process(p) if p.pid == rank.pid && p.rank.is_some()));
            let calls = records.iter().filter(|r| matches!(r, Record::Collective(c) if c.pid == rank.pid)).count();
            known && calls as u64 >= rank.made()
        })
    });
    File::create(&go_on).unwrap();
    let mut rest = String::new();
    printed.read_to_string(&mut rest).unwrap();
    assert!(job.0.wait().unwrap().success() && rest.is_empty(), "{rest}{}", fs::read_to_string(&stderr).unwrap());
    all.sort_by_key(|rank| rank.rank);
    all
}

/// Tolerance: times are taken in the kernel; their offset to this host's clock changes by as much
/// as that clock is corrected.
pub const CLOCKS_NS: i64 = 1_000_000;

/// Each rank works 10 ms before each of so many all_reduces, and rank `late` works 60 ms more: a
/// sleep is never shorter, and of many on a busy host some are hardly longer.
pub fn assert_late(recorded: &Recorded, ranks: usize, late: i32, steps: u64) {
    let mut left: HashMap<i32, i64> = HashMap::new();
    let mut worked: HashMap<i32, Vec<i64>> = HashMap::new();
    for seq in 0..steps {
        let calls = recorded.calls().into_iter().filter(|c| c.func == "all_reduce" && c.seq == Some(seq));
        let calls: Vec<_> = calls.map(|c| (c.rank.unwrap(), c.ts_ns, c.ts_ns + c.duration_ns)).collect();
        assert_eq!(calls.len(), ranks, "all_reduce {seq}");
        let last_in = calls.iter().map(|(_, enters, _)| enters).max().unwrap();
        let first_out = calls.iter().map(|(.., leaves)| leaves).min().unwrap();
        assert!(*last_in <= first_out + CLOCKS_NS, "all come before anybody leaves: {calls:?}");
        for (rank, enters, leaves) in calls {
            let before = left.insert(rank, leaves);
            worked.entry(rank).or_default().extend(before.map(|before| enters - before));
        }
    }
    assert_eq!(worked.len(), ranks);
    for (rank, worked) in worked {
        let least_ms = (worked.iter().min().unwrap() + CLOCKS_NS) / 1_000_000;
        let about = if rank == late { 70..200 } else { 10..60 };
        assert!(about.contains(&least_ms), "rank {rank} works {least_ms} ms or longer: {worked:?}");
    }
}

/// nccl-ranks with these flags, its ranks in these cgroups.
pub fn nccl_ranks(workloads: &Path, cgroups: &[&Cgroup], flags: &[&str]) -> Command {
    let mut command = Command::new(workloads.join("nccl-ranks"));
    let list: Vec<_> = cgroups.iter().map(|cgroup| cgroup.0.display().to_string()).collect();
    command.args(flags).arg("--cgroups").arg(list.join(","));
    // a rank waits as long for another as it has to
    command.env("NCCL_SIM_TIMEOUT_MS", "600000");
    command
}

/// mpi-ranks under mpirun, all of it in the cgroup.
pub fn mpi_ranks(workloads: &Path, cgroup: &Cgroup, ranks: u32, flags: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(r#"echo $$ > "$0" && exec "$@""#).arg(cgroup.0.join("cgroup.procs"));
    command.args(["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "oob_tcp_if_include", "lo"]);
    command.args(["--mca", "btl", "self,vader,tcp", "-np", &ranks.to_string()]);
    command.arg(workloads.join("mpi-ranks")).args(flags);
    command
}
