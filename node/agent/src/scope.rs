//! Which records belong to a job: an agent that belongs to a job keeps the records of the job's
//! processes, and of no others.
//!
//! A process belongs to the job when its environment carries one of the job's ids, and to this node
//! unless its environment names another one by which Slurm started it: several nodes may share one
//! kernel (virtual hosts, several slurmd on a machine). Where the job has a cgroup of its own the
//! kernel filters already; see [`job_cgroup`].

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use node_bpf::{HostRecord, ProcessSeen, Record};

/// Most processes for which the decision is remembered at a time.
const MOST_PROCESSES: usize = 32_768;

/// The job, and the node of it, whose processes are recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobScope {
    /// The job's ids (several of a het job).
    pub ids: Vec<String>,
    /// Slurm's name of this node.
    pub node: String,
}

/// Decides record by record.
#[derive(Debug)]
pub(crate) struct Scope {
    job: JobScope,
    /// Slurm's name of this node is not its host name: its kernel is another's, too.
    shared_host: bool,
    belongs: HashMap<u32, bool>,
}

impl Scope {
    pub(crate) fn new(job: JobScope) -> Self {
        let host = nix::unistd::gethostname().unwrap_or_default();
        let host = host.to_string_lossy();
        let shared_host = host.split('.').next() != job.node.split('.').next();
        Self { job, shared_host, belongs: HashMap::new() }
    }

    /// Whether a record is one of the job, or of the host in general.
    pub(crate) fn admits(&mut self, record: &Record) -> bool {
        let pid = match record {
            Record::Process(process) => {
                let belongs = self.is_of_job(process);
                if self.belongs.len() >= MOST_PROCESSES {
                    self.belongs.retain(|pid, _| Path::new("/proc").join(pid.to_string()).exists());
                }
                self.belongs.insert(process.pid, belongs);
                return belongs;
            }
            Record::Collective(call) => call.pid,
            Record::OffCpu(stretch) => stretch.pid,
            Record::CudaCall(call) => call.pid,
            Record::SymbolCall(call) => call.pid,
            Record::CallTally(tally) => tally.pid,
            Record::Request(request) => request.of.pid,
            Record::RequestStretch(stretch) => stretch.pid,
            Record::RequestSum(sum) => sum.of.pid,
            Record::Host(HostRecord::Block(request)) => request.pid,
            Record::Host(HostRecord::Memory(event)) => event.pid,
            Record::Host(HostRecord::Life(event)) => event.pid,
            // no process is known: it may be another job's
            Record::Net(event) => match event.pid {
                Some(pid) => pid,
                None => return false,
            },
            Record::Host(
                HostRecord::Fabric(_) | HostRecord::Gpu(_) | HostRecord::Host(_) | HostRecord::SelfStat(_),
            )
            | Record::Loss(_) => return true,
        };
        self.is_of(pid)
    }

    /// Whether a process that was seen is the job's.
    pub(crate) fn is_of(&self, pid: u32) -> bool {
        self.belongs.get(&pid).copied().unwrap_or(false)
    }

    fn is_of_job(&self, process: &ProcessSeen) -> bool {
        let of_job = process.job_id.as_ref().is_some_and(|id| self.job.ids.contains(id));
        of_job && self.is_here(process.pid)
    }

    fn is_here(&self, pid: u32) -> bool {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let elsewhere = node_in(&environ).is_some_and(|node| node != self.job.node);
        // A launcher may pass its own node's name on to ranks of another node: believed only where
        // two nodes share a kernel.
        !(elsewhere && (self.shared_host || in_another_host(pid)))
    }
}

/// `SLURMD_NODENAME` in a block of `NAME=value` ended by zero bytes.
fn node_in(environ: &[u8]) -> Option<String> {
    let entries = environ.split(|&byte| byte == 0);
    let value = entries.filter_map(|entry| entry.strip_prefix(b"SLURMD_NODENAME=")).next()?;
    Some(String::from_utf8_lossy(value).into_owned())
}

/// Whether a process lives under another host name than this one does (its UTS namespace is
/// another).
fn in_another_host(pid: u32) -> bool {
    let uts = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/uts")).ok();
    matches!((uts(&pid.to_string()), uts("self")), (Some(theirs), Some(ours)) if theirs != ours)
}

/// The job's own cgroup (v2), when Slurm made one: this process is in `…/job_ID/step_…` then, and
/// all of the job's processes on this node are in `…/job_ID`.
#[must_use]
pub fn job_cgroup(ids: &[String]) -> Option<PathBuf> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = cut_at_job(own.lines().find_map(|line| line.strip_prefix("0::"))?, ids)?;
    let full = node_bpf::cgroup_mount_point()?.join(path.trim_start_matches('/'));
    full.is_dir().then_some(full)
}

fn cut_at_job<'a>(path: &'a str, ids: &[String]) -> Option<&'a str> {
    let mut end = 0;
    for part in path.split_inclusive('/') {
        end += part.len();
        if ids.iter().any(|id| part.trim_end_matches('/').strip_prefix("job_") == Some(id)) {
            return Some(path[..end].trim_end_matches('/'));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope() -> Scope {
        Scope::new(JobScope { ids: vec!["7".into()], node: "n1".into() })
    }

    fn process(pid: u32, job: Option<&str>) -> Record {
        Record::Process(ProcessSeen { pid, job_id: job.map(str::to_owned), ..ProcessSeen::default() })
    }

    #[test]
    fn only_what_the_jobs_processes_do_is_kept() {
        let mut scope = scope();
        // pids past any kernel's limit: no environment to be read
        let (ours, theirs, nobodys) = (u32::MAX - 1, u32::MAX - 2, u32::MAX - 3);
        assert!(scope.admits(&process(ours, Some("7"))));
        assert!(!scope.admits(&process(theirs, Some("8"))));
        assert!(!scope.admits(&process(nobodys, None)));
        let stat = node_bpf::LossCount { ts_ns: 0, since_ns: None, probe: "p".into(), reason: "r".into(), lost: 1 };
        assert!(scope.admits(&Record::Loss(stat)), "a loss of the host's capture concerns every job");
        assert!(scope.is_of(ours) && !scope.is_of(theirs) && !scope.is_of(1));
        assert!(!scope.admits(&process(ours, Some("8"))), "another process has the pid now");
        assert!(!scope.is_of(ours));
    }

    #[test]
    fn the_node_that_slurm_started_a_process_on() {
        assert_eq!(node_in(b"A=1\0SLURMD_NODENAME=n3\0B=2\0").as_deref(), Some("n3"));
        assert_eq!(node_in(b"XSLURMD_NODENAME=n3\0"), None);
    }

    #[test]
    fn the_cgroup_of_the_job_holds_that_of_the_step() {
        let ids = ["12".to_owned()];
        let path = "/system.slice/slurmstepd.scope/job_12/step_0/user/task_1";
        assert_eq!(cut_at_job(path, &ids), Some("/system.slice/slurmstepd.scope/job_12"));
        assert_eq!(cut_at_job("/slurm/uid_1/job_123/step_0", &ids), None);
        assert_eq!(cut_at_job("/user.slice", &ids), None);
    }
}
