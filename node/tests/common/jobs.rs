//! Jobs for tests with real eBPF: cgroups of their own, the C workloads, and the processes of a
//! job.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Lab;

// One home for what benchmarks start, too.
#[path = "../../../scenarios/src/jobs.rs"]
mod started;

pub use started::Job;

/// Cgroups for one test, removed at the end.
pub struct Cgroups(pub Vec<PathBuf>, #[allow(dead_code)] started::Cgroups);

impl Cgroups {
    pub fn new(test: &str, names: &[&str]) -> Self {
        Self::below(&node_bpf::cgroup_mount_point().expect("a cgroup v2 hierarchy"), test, names)
    }

    /// In another hierarchy than that of version 2.
    pub fn below(root: &Path, test: &str, names: &[&str]) -> Self {
        let made = started::Cgroups::make(root, test, names).expect("cgroups");
        Self(made.0.clone(), made)
    }

    pub fn path(&self, name: &str) -> &Path {
        self.0.iter().find(|path| path.ends_with(name)).expect("a cgroup of this name")
    }
}

/// `mpirun` of so many ranks of a shell script.
pub fn mpirun(ranks: usize, script: &str) -> std::process::Command {
    started::mpirun(ranks, script)
}

/// Compiles the C workloads into the lab.
pub fn workloads(lab: &Lab) -> PathBuf {
    workloads_in(lab.path("job"))
}

/// Compiles them into a directory.
pub fn workloads_in(out: PathBuf) -> PathBuf {
    let scenarios = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    started::build_workloads(&scenarios, &out).expect("the workloads compile");
    out
}

/// Eight ranks on real Open MPI, two to a cgroup (m1 to m4).
pub fn mpi_job(lab: &Lab, cgroups: &Cgroups, arguments: &str) -> Job {
    let bin = workloads(lab).join("mpi-ranks");
    assert!(bin.exists(), "no mpi-ranks: install libopenmpi-dev and openmpi-bin");
    mpi_script(lab, cgroups, 8, &format!("{} {arguments}", bin.display()))
}

/// A command on so many ranks of real Open MPI, two to a cgroup (m1, m2, …).
pub fn mpi_script(lab: &Lab, cgroups: &Cgroups, ranks: usize, command: &str) -> Job {
    mpi_script_by(2, lab, cgroups, ranks, command)
}

/// The same with so many ranks to a cgroup.
pub fn mpi_script_by(each: usize, lab: &Lab, cgroups: &Cgroups, ranks: usize, command: &str) -> Job {
    let top = cgroups.0[0].display();
    let script = format!("echo $$ > {top}/m$((OMPI_COMM_WORLD_RANK / {each} + 1))/cgroup.procs && exec {command}");
    let child = started::mpirun(ranks, &script)
        .stdout(std::fs::File::create(lab.path("mpi.out")).expect("a file"))
        .stderr(std::fs::File::create(lab.path("mpi.log")).expect("a file"))
        .spawn()
        .expect("mpirun starts");
    Job(child)
}

/// The process of a rank, by the rank in its environment and the directory of its program.
pub fn process_of_rank(bin: &Path, rank: u32) -> Option<i32> {
    let wanted = format!("RANK={rank}");
    procfs::process::all_processes().ok()?.flatten().find_map(|process| {
        let of_this_job = process.exe().ok()?.starts_with(bin);
        let environ = process.environ().ok()?;
        let is_rank = environ.get(std::ffi::OsStr::new("RANK"))? == &wanted["RANK=".len()..];
        (of_this_job && is_rank).then_some(process.pid)
    })
}

/// An agent in each of its cgroups, as members of one mesh.
pub fn start_agents(lab: &mut Lab, cgroups: &Cgroups, agents: &[&str]) {
    for name in agents {
        let cgroup = cgroups.path(name).display().to_string();
        lab.start(name, &["--cgroup", &cgroup]);
    }
    lab.wait_for_members(agents);
}

/// A cgroup whose processes get so much CPU in each period.
pub fn cpu_quota(period: Duration, quota: Duration) -> Result<Cgroups, String> {
    let root = Path::new("/sys/fs/cgroup/cpu");
    if !root.join("cpu.cfs_quota_us").exists() && !root.join("cpu.shares").exists() {
        return Err("no CPU quota in cgroup v1".to_owned());
    }
    let cgroups = Cgroups::below(root, "quota", &[]);
    for (file, time) in [("cpu.cfs_period_us", period), ("cpu.cfs_quota_us", quota)] {
        std::fs::write(cgroups.0[0].join(file), time.as_micros().to_string())
            .map_err(|error| format!("{file}: {error}"))?;
    }
    Ok(cgroups)
}

/// A cgroup whose processes get so much memory together from now on.
pub fn memory_limit(bytes: u64) -> Result<Cgroups, String> {
    let root = Path::new("/sys/fs/cgroup/memory");
    if !root.join("memory.limit_in_bytes").exists() && !root.join("memory.use_hierarchy").exists() {
        return Err("no memory limit in cgroup v1".to_owned());
    }
    let cgroups = Cgroups::below(root, "memory", &[]);
    std::fs::write(cgroups.0[0].join("memory.limit_in_bytes"), bytes.to_string())
        .map_err(|error| format!("memory.limit_in_bytes: {error}"))?;
    Ok(cgroups)
}

/// A throttle for reads of the disk under `path`, or why there is none here.
pub fn read_throttle(path: &Path, bytes_per_second: u64) -> Result<Cgroups, String> {
    disk_throttle("read", path, bytes_per_second)
}

/// One for reads (`read`) or writes (`write`).
pub fn disk_throttle(what: &str, path: &Path, bytes_per_second: u64) -> Result<Cgroups, String> {
    use std::os::unix::fs::MetadataExt;
    let device = path.metadata().map_err(|error| error.to_string())?.dev();
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    let root = Path::new("/sys/fs/cgroup/blkio");
    let limit = format!("blkio.throttle.{what}_bps_device");
    if !root.join(&limit).exists() {
        return Err("no blkio throttle in cgroup v1".to_owned());
    }
    let cgroups = Cgroups::below(root, "blkio", &[]);
    let file = cgroups.0[0].join(limit);
    match std::fs::write(&file, format!("{major}:{minor} {bytes_per_second}")) {
        Ok(()) => Ok(cgroups),
        Err(error) => Err(format!("{}: {error}", file.display())),
    }
}
