//! Jobs for tests with real eBPF: cgroups of their own, the C workloads, and the processes of a job.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{Lab, stderr};

/// Cgroups for one test, removed at the end.
pub struct Cgroups(pub Vec<PathBuf>);

impl Cgroups {
    pub fn new(test: &str, names: &[&str]) -> Self {
        Self::below(&node_bpf::cgroup_mount_point().expect("a cgroup v2 hierarchy"), test, names)
    }

    /// In another hierarchy than that of version 2.
    pub fn below(root: &Path, test: &str, names: &[&str]) -> Self {
        let top = root.join(format!("rankmesh-{test}-{}", std::process::id()));
        let mut made = vec![top.clone()];
        made.extend(names.iter().map(|name| top.join(name)));
        for path in &made {
            std::fs::create_dir(path).expect("a cgroup");
        }
        Self(made)
    }

    pub fn path(&self, name: &str) -> &Path {
        self.0.iter().find(|path| path.ends_with(name)).expect("a cgroup of this name")
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        let until = Instant::now() + Duration::from_secs(5);
        for path in self.0.iter().rev() {
            let _ = std::fs::write(path.join("cgroup.kill"), "1");
            while std::fs::remove_dir(path).is_err() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// Compiles the C workloads into the lab.
pub fn workloads(lab: &Lab) -> PathBuf {
    let out = lab.path("job");
    let scenarios = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    let made =
        Command::new("make").arg("-C").arg(scenarios).arg(format!("OUT={}", out.display())).output().expect("make");
    assert!(made.status.success(), "{}", stderr(&made));
    out
}

/// Kills the job when the test ends early.
pub struct Job(pub Child);

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Eight ranks on real Open MPI, two to a cgroup (m1 to m4).
pub fn mpi_job(lab: &Lab, cgroups: &Cgroups, arguments: &str) -> Job {
    let bin = workloads(lab).join("mpi-ranks");
    assert!(bin.exists(), "no mpi-ranks: install libopenmpi-dev and openmpi-bin");
    let top = cgroups.0[0].display();
    let script = format!(
        "echo $$ > {top}/m$((OMPI_COMM_WORLD_RANK / 2 + 1))/cgroup.procs && exec {} {arguments}",
        bin.display()
    );
    let child = Command::new("mpirun")
        .args([
            "--allow-run-as-root",
            "--oversubscribe",
            "--mca",
            "oob_tcp_if_include",
            "lo",
            "--mca",
            "btl",
            "self,vader,tcp",
        ])
        .args(["-np", "8", "sh", "-c", &script])
        .stdin(Stdio::null())
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
