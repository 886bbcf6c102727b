//! What live tests and benchmarks start jobs with: cgroups of their own, the C workloads, and
//! `mpirun` as it works in a small room.
//!
//! Owns no judgement of what the jobs do. Needs nothing but the standard library: the tests of
//! `node` include this file, since `scenarios` depends on `node`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Cgroups of one run, the top one first; removed at the end with what still runs in them.
#[derive(Debug)]
pub struct Cgroups(pub Vec<PathBuf>);

impl Cgroups {
    /// Makes one for each name below a new one in the hierarchy at `root`.
    ///
    /// # Errors
    /// Where a directory cannot be made.
    pub fn make(root: &Path, run: &str, names: &[&str]) -> io::Result<Self> {
        let top = root.join(format!("rankmesh-{run}-{}", std::process::id()));
        let mut made = Self(Vec::new());
        for path in std::iter::once(top.clone()).chain(names.iter().map(|name| top.join(name))) {
            std::fs::create_dir(&path)?;
            made.0.push(path);
        }
        Ok(made)
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        let until = Instant::now() + Duration::from_secs(60);
        for path in self.0.iter().rev() {
            let _ = std::fs::write(path.join("cgroup.kill"), "1");
            while std::fs::remove_dir(path).is_err() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// A job that does not outlive this value.
#[derive(Debug)]
pub struct Job(pub Child);

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Compiles the C workloads of `scenarios` (the directory) into `out`.
///
/// # Errors
/// Where `make` is not there, or what it says.
pub fn build_workloads(scenarios: &Path, out: &Path) -> io::Result<()> {
    let made = Command::new("make").arg("-C").arg(scenarios).arg(format!("OUT={}", out.display())).output()?;
    if made.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&made.stderr).into_owned()))
}

/// `mpirun` of so many ranks of `script` (for `sh -c`), as root, more of them than cores, over
/// loopback and shared memory.
#[must_use]
pub fn mpirun(ranks: usize, script: &str) -> Command {
    let mut command = Command::new("mpirun");
    command
        .args(["--allow-run-as-root", "--oversubscribe", "--mca", "oob_tcp_if_include", "lo"])
        .args(["--mca", "btl", "self,vader,tcp", "-np", &ranks.to_string(), "sh", "-c", script])
        .stdin(Stdio::null());
    command
}
