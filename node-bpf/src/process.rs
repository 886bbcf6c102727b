//! The identity of a process: rank, job, container and user, from /proc. Ranks come from the
//! launcher's environment variables; the ones MPI launchers and torchrun set win over Slurm's,
//! because under mpirun inside sbatch every rank sees the launcher's SLURM_PROCID. `mpi` resolves
//! the handles of its libraries, `container` finds containers.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::cgroup;
use crate::clock;
use crate::container;
use crate::environment::{self, OfLibc};
use crate::maps;
use crate::mpi::MpiNames;
use crate::mpi::structures::Member;
use crate::procfs::{self, cgroup_path, has_threads, start_since_boot_ns};
use files::Files;
use parking_lot::{Mutex, MutexGuard};
use record::ProcessSeen;

/// The file with PyTorch's operations for CPUs, which every PyTorch program has loaded.
const TORCH: &[u8] = b"libtorch_cpu.so";

/// The facts in a process's environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Attribution {
    pub(crate) rank: Option<i32>,
    pub(crate) local_rank: Option<i32>,
    pub(crate) world_size: Option<i32>,
    pub(crate) job_id: Option<String>,
    pub(crate) step_id: Option<String>,
    /// Names the MPI job: equal on all its ranks, different in any other.
    pub(crate) mpi_namespace: Option<String>,
    /// Names the job of a program that finds its ranks by PyTorch's variables, likewise.
    pub(crate) torch_namespace: Option<String>,
}

impl Attribution {
    /// Reads the block of /proc/PID/environ: `NAME=value` ended by zero bytes, values in any bytes.
    pub(crate) fn from_environ(block: &[u8]) -> Attribution {
        let variables: HashMap<&str, &str> = block
            .split(|&b| b == 0)
            .filter_map(|entry| std::str::from_utf8(entry).ok()?.split_once('='))
            .filter(|(_, value)| !value.is_empty())
            .collect();
        let text = |names: &[&str]| names.iter().find_map(|name| variables.get(name)).map(|v| (*v).to_owned());
        let number = |names: &[&str]| {
            names.iter().find_map(|name| variables.get(name)?.parse::<i32>().ok().filter(|number| *number >= 0))
        };
        let slurm_rank = number(&["SLURM_PROCID"]);
        let rank =
            number(&["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "RANK"]).or(slurm_rank);
        // Slurm's other numbers count only where Slurm itself started this rank.
        let by_slurm = |names: &[&str]| {
            if rank == slurm_rank { number(names) } else { None }
        };
        let slurm_job = text(&["SLURM_JOB_ID", "SLURM_JOBID"]);
        let step_id = text(&["SLURM_STEP_ID", "SLURM_STEPID"]);
        let launcher = text(&["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"]);
        let slurm_step = slurm_job.as_ref().map(|job| format!("{job}.{}", step_id.as_deref().unwrap_or("")));
        let run = text(&["TORCHELASTIC_RUN_ID"]).filter(|id| id != "none");
        let address = text(&["MASTER_ADDR"]).zip(text(&["MASTER_PORT"])).map(|(host, port)| format!("{host}:{port}"));
        let torch_address = address.filter(|_| variables.contains_key("RANK"));
        let job_id = slurm_job.clone().or_else(|| launcher.clone()).or(run).or_else(|| torch_address.clone());
        let torch_namespace = match (&job_id, &torch_address) {
            (Some(job), Some(address)) => Some(format!("{job} {address}")),
            (job, address) => job.clone().or_else(|| address.clone()),
        };
        Attribution {
            rank,
            local_rank: number(&[
                "OMPI_COMM_WORLD_LOCAL_RANK",
                "MPI_LOCALRANKID",
                "MV2_COMM_WORLD_LOCAL_RANK",
                "LOCAL_RANK",
            ])
            .or_else(|| by_slurm(&["SLURM_LOCALID"])),
            world_size: number(&["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "WORLD_SIZE"])
                .or_else(|| by_slurm(&["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"])),
            job_id,
            step_id,
            mpi_namespace: launcher.or(slurm_step),
            torch_namespace,
        }
    }
}

/// Whose process it is ([`ProcessSeen::tenant`]), also of one that is not followed; none where it has ended.
pub(crate) fn tenant(pid: u32) -> Option<String> {
    let cgroups = procfs::read(pid, "cgroup").ok()?;
    let cgroups = String::from_utf8_lossy(&cgroups);
    let file = |name| procfs::read(pid, name).unwrap_or_default();
    let environ = file("environ");
    let mountinfo = String::from_utf8_lossy(&file("mountinfo")).into_owned();
    let seen = ProcessSeen {
        job_id: Attribution::from_environ(&environ).job_id,
        container_id: container::id(&cgroups, &mountinfo, &environ),
        pod: container::pod_uid(&cgroups),
        cgroup_path: cgroup_path(&cgroups).to_owned(),
        user: procfs::user_of(pid).map(user_name)?,
        ..ProcessSeen::default()
    };
    Some(seen.tenant())
}

/// A process as first read.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) seen: ProcessSeen,
    /// That of `seen`, for the records of its calls.
    pub(crate) job_id: Option<Arc<str>>,
    pub(crate) mpi_namespace: Option<String>,
    /// The user that it runs as: whose its job is, and its files.
    pub(crate) user: u32,
    pub(crate) torch_namespace: Option<String>,
    /// Kernel time of the reading: an exec before it is already in it.
    read_ns: u64,
    /// When the process began, which it does not with a program that replaces another (exec).
    began_ns: i64,
    /// Its environment tells no rank: libc's is looked for.
    of_libc: Option<OfLibc>,
    /// The environment is lost: a program has written over it, and libc's is not found.
    is_nameless: bool,
    files: Files,
    mpi: OnceLock<MpiNames>,
    torch: OnceLock<bool>,
}

impl Process {
    fn read(pid: u32, boot_unix_ns: i64, files: &Files) -> Option<Process> {
        Process::read_with(pid, boot_unix_ns, files, None)
    }

    /// `asked`: where its libc's environment is, if that has been asked before.
    fn read_with(pid: u32, boot_unix_ns: i64, files: &Files, asked: Option<&OfLibc>) -> Option<Process> {
        let read_ns = clock::kernel_now_ns();
        let file = |name| procfs::read(pid, name).unwrap_or_default();
        let stat = procfs::read(pid, "stat").ok()?;
        let cgroups = String::from_utf8_lossy(&file("cgroup")).into_owned();
        let user = procfs::user_of(pid)?;
        let mut environ = file("environ");
        let mut who = Attribution::from_environ(&environ);
        let (mut of_libc, mut is_nameless) = (None, false);
        if who.rank.is_none() {
            let new = asked.is_none().then(|| OfLibc::ask(pid, user, files));
            let found = asked.or(new.as_ref()).filter(|of_libc| of_libc.is_ready());
            is_nameless = found.is_some() && environment::is_overwritten(&environ);
            if let Some(block) = found.and_then(|of_libc| of_libc.block(pid)).filter(|block| !block.is_empty()) {
                who = Attribution::from_environ(&block);
                (environ, is_nameless) = (block, false);
            }
            of_libc = new.filter(|of_libc| !of_libc.is_ready());
        }
        if who.rank.is_some() && who.mpi_namespace.is_none() {
            let hydra = hydra_job(pid);
            who.job_id = who.job_id.or_else(|| hydra.as_ref().map(|job| job.name.clone()));
            who.mpi_namespace = hydra.map(|job| format!("{}.{}", job.name, job.group));
        }
        let comm = file("comm");
        let mountinfo = String::from_utf8_lossy(&file("mountinfo")).into_owned();
        let uid = fs::metadata(format!("/proc/{pid}")).ok().map(|metadata| metadata.uid());
        let seen = ProcessSeen {
            pid,
            start_ns: boot_unix_ns.saturating_add(start_since_boot_ns(&stat)?),
            exe: fs::read_link(format!("/proc/{pid}/exe"))
                .map(|p| p.to_string_lossy().into_owned())
                .unwrap_or_default(),
            comm: String::from_utf8_lossy(comm.trim_ascii_end()).into_owned(),
            rank: who.rank,
            local_rank: who.local_rank,
            world_size: who.world_size,
            job_id: who.job_id,
            step_id: who.step_id,
            container_id: container::id(&cgroups, &mountinfo, &environ),
            pod: container::pod_uid(&cgroups),
            cgroup_path: cgroup_path(&cgroups).to_owned(),
            user: uid.map(user_name).unwrap_or_default(),
            uid,
            cgroup_id: cgroup::id_of(cgroup_path(&cgroups)),
        };
        let job_id = seen.job_id.as_deref().map(Arc::from);
        // started without a launcher: a job of its own
        let alone = || format!("{}.{pid}.{}", seen.cgroup_id.unwrap_or(0), seen.start_ns);
        who.mpi_namespace.get_or_insert_with(alone);
        Some(Process {
            job_id,
            mpi_namespace: who.mpi_namespace,
            user,
            torch_namespace: who.torch_namespace,
            read_ns,
            began_ns: seen.start_ns,
            of_libc,
            is_nameless,
            files: files.clone(),
            mpi: OnceLock::new(),
            torch: OnceLock::new(),
            seen,
        })
    }

    /// Why neither its rank nor its job is known.
    pub(crate) fn no_rank_because(&self) -> Option<String> {
        self.is_nameless.then(|| {
            format!(
                "{} (pid {}) has written over its environment (setproctitle) and its libc's is not found: \
                 its rank and job are not known",
                self.seen.comm, self.seen.pid
            )
        })
    }

    /// Whether it has PyTorch loaded; looked at once, when it has made a call of gloo.
    pub(crate) fn has_torch(&self) -> bool {
        *self.torch.get_or_init(|| {
            let maps = procfs::read(self.seen.pid, "maps").unwrap_or_default();
            maps::mappings(&maps).any(|mapping| mapping.file_name().starts_with(TORCH))
        })
    }

    /// Its place in its MPI job.
    pub(crate) fn member(&self) -> Member {
        let number = |number: Option<i32>| u32::try_from(number?).ok();
        let job = self.mpi_namespace.as_deref().and_then(|namespace| namespace.parse().ok());
        let place = number(self.seen.rank).zip(number(self.seen.world_size));
        Member { pid: self.seen.pid, place, job, objects: self.mpi().open_mpi() }
    }

    /// What the MPI handles of this process mean; asked for once.
    pub(crate) fn mpi(&self) -> &MpiNames {
        self.mpi.get_or_init(|| MpiNames::ask(self.seen.pid, &self.files))
    }
}

/// A job of MPICH's launcher, hydra, which names it in no variable: on each host a proxy, which starts
/// the ranks, has the launcher's address among its arguments.
#[derive(Debug, PartialEq, Eq)]
struct HydraJob {
    /// The launcher's host and port.
    name: String,
    /// Other than 0 for ranks that the job has started itself (MPI_Comm_spawn).
    group: String,
}

/// Most processes between a rank and its proxy.
const MOST_BETWEEN: usize = 4;

fn hydra_job(pid: u32) -> Option<HydraJob> {
    let parent = |pid: &u32| procfs::parent(&procfs::read(*pid, "stat").ok()?);
    let parents = std::iter::successors(parent(&pid), parent).take(MOST_BETWEEN);
    parents.into_iter().find_map(|pid| hydra_arguments(&procfs::read(pid, "cmdline").ok()?))
}

/// Of a proxy's command line, its words ended by zero bytes.
fn hydra_arguments(cmdline: &[u8]) -> Option<HydraJob> {
    let mut words = cmdline.split(|&b| b == 0).map(String::from_utf8_lossy);
    let program = words.next()?;
    if !program.rsplit('/').next()?.starts_with("hydra_") {
        return None;
    }
    let words: Vec<_> = words.collect();
    let after = |flag: &str| words.iter().skip_while(|word| *word != flag).nth(1).map(|word| word.to_string());
    Some(HydraJob { name: after("--control-port")?, group: after("--pgid").unwrap_or_default() })
}

fn user_name(uid: u32) -> String {
    let mut buffer = [0u8; 4096];
    // SAFETY: all zero is a valid passwd to be filled in.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: the pointers are valid for the call, the length is the buffer's.
    let rc = unsafe { libc::getpwuid_r(uid, &mut entry, buffer.as_mut_ptr().cast(), buffer.len(), &mut found) };
    if rc != 0 || found.is_null() {
        return uid.to_string();
    }
    // SAFETY: on success pw_name points to a string inside `buffer`.
    unsafe { std::ffi::CStr::from_ptr(entry.pw_name) }.to_string_lossy().into_owned()
}

/// The followed processes, shared by the reader of the ring and by discovery.
#[derive(Debug)]
pub(crate) struct Processes {
    known: Mutex<HashMap<u32, Arc<Process>>>,
    /// The last exec of pids (kernel time): a read that began before it is of the program before.
    execs: Mutex<HashMap<u32, u64>>,
    /// Reported processes that have begun another program: when the process began and when that
    /// program did, Unix time.
    replaced: Mutex<HashMap<u32, (i64, i64)>>,
    ended: Mutex<HashMap<u32, (Arc<Process>, Instant)>>,
    boot_unix_ns: i64,
    files: Files,
}

/// How long an ended process is remembered.
const REMEMBERED: Duration = Duration::from_secs(10);
/// Most execs that are remembered. A read takes milliseconds, so older ones may be dropped.
const MOST_EXECS: usize = 4096;
/// How often a process is read again that begins other programs meanwhile.
const MOST_READINGS: u32 = 8;

impl Processes {
    pub(crate) fn new(files: Files) -> Self {
        Processes {
            known: Mutex::default(),
            execs: Mutex::default(),
            replaced: Mutex::default(),
            ended: Mutex::default(),
            boot_unix_ns: clock::boot_unix_ns(),
            files,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Arc<Process>>> {
        self.known.lock()
    }

    /// The process, read from /proc when it was not known; true when it was read now.
    pub(crate) fn look(&self, pid: u32) -> Option<(Arc<Process>, bool)> {
        if let Some(process) = self.lock().get(&pid) {
            return Some((Arc::clone(process), false));
        }
        self.keep(pid, Process::read(pid, self.boot_unix_ns, &self.files)?)
    }

    /// Reads again the processes of which libc's environment can be read now.
    pub(crate) fn read_environments(&self) -> Vec<Arc<Process>> {
        let is_due = |process: &Process| process.of_libc.as_ref().is_some_and(OfLibc::is_ready);
        let due: Vec<_> = self.lock().values().filter(|process| is_due(process)).map(Arc::clone).collect();
        let read = |old: Arc<Process>| {
            let pid = old.seen.pid;
            let read = Process::read_with(pid, self.boot_unix_ns, &self.files, old.of_libc.as_ref())?;
            let read = self.of_its_program(read);
            let mut known = self.lock();
            // else it has ended, or begun another program
            let is_same = known.get(&pid).is_some_and(|known| Arc::ptr_eq(known, &old));
            if !is_same || read.began_ns != old.began_ns {
                return None;
            }
            let process = Arc::new(read);
            known.insert(pid, Arc::clone(&process));
            Some(process)
        };
        due.into_iter().filter_map(read).collect()
    }

    /// Whether its rank may be known soon, when its libc's file has been read.
    pub(crate) fn awaits_environment(&self, process: &Process) -> bool {
        let known = self.known(process.seen.pid).filter(|known| known.seen.start_ns == process.seen.start_ns);
        known.is_some_and(|known| known.of_libc.is_some())
    }

    /// The process as it was read last; this, if that is another one or another program.
    pub(crate) fn newest(&self, process: Arc<Process>) -> Arc<Process> {
        if process.of_libc.is_none() {
            return process; // nothing was left to be read
        }
        self.recent(process.seen.pid).filter(|newer| newer.seen.start_ns == process.seen.start_ns).unwrap_or(process)
    }

    /// With the start of the program, where that is not the process's.
    fn of_its_program(&self, mut read: Process) -> Process {
        if let Some((began_ns, exec_ns)) = self.replaced.lock().get(&read.seen.pid)
            && *began_ns == read.began_ns
        {
            read.seen.start_ns = *exec_ns;
        }
        read
    }

    /// Keeps what was read, unless the process has begun another program meanwhile: launchers begin
    /// the rank's a few milliseconds after their own, and give it its rank.
    fn keep(&self, pid: u32, mut read: Process) -> Option<(Arc<Process>, bool)> {
        for _ in 0..MOST_READINGS {
            let mut known = self.lock();
            // under the same lock as `exec` takes both: that either came before, or finds what is
            // kept here
            let left = self.execs().get(&pid).is_some_and(|exec_ns| read.read_ns < *exec_ns);
            if !left {
                if let Some(process) = known.get(&pid) {
                    return Some((Arc::clone(process), false)); // another thread was quicker
                }
                let process = Arc::new(self.of_its_program(read));
                known.insert(pid, Arc::clone(&process));
                return Some((process, true));
            }
            drop(known);
            read = Process::read(pid, self.boot_unix_ns, &self.files)?;
        }
        None
    }

    fn execs(&self) -> MutexGuard<'_, HashMap<u32, u64>> {
        self.execs.lock()
    }

    /// Whether the stored process is the one that has this pid now, not another one started at
    /// another time. An earlier process is marked as ended.
    pub(crate) fn is_same(&self, pid: u32) -> bool {
        let Some(known) = self.known(pid) else { return true };
        let Ok(stat) = procfs::read(pid, "stat") else { return true };
        let start_ns = start_since_boot_ns(&stat).map(|since| self.boot_unix_ns.saturating_add(since));
        let same = start_ns == Some(known.began_ns);
        if !same {
            self.forget(pid);
        }
        same
    }

    /// Whether a process still runs: one that has ended and was not waited for does not.
    pub(crate) fn lives(&self, process: &Process) -> bool {
        let Ok(stat) = procfs::read(process.seen.pid, "stat") else { return false };
        let start_ns = start_since_boot_ns(&stat).map(|since| self.boot_unix_ns.saturating_add(since));
        has_threads(&stat) && start_ns == Some(process.began_ns)
    }

    /// Records that it runs another program since `ts_ns` (kernel time): earlier reads are void.
    pub(crate) fn exec(&self, pid: u32, ts_ns: u64) {
        let mut known = self.lock();
        let mut execs = self.execs();
        if execs.len() >= MOST_EXECS {
            execs.retain(|_, at| ts_ns.saturating_sub(*at) < 1_000_000_000);
        }
        if execs.len() < MOST_EXECS {
            execs.insert(pid, ts_ns);
        }
        if known.get(&pid).is_some_and(|process| process.read_ns < ts_ns)
            && let Some(before) = known.remove(&pid)
        {
            // its row stays that of the program before
            let exec_ns = clock::Clock::measure().unix_ns(ts_ns).max(before.seen.start_ns.saturating_add(1));
            self.replaced.lock().insert(pid, (before.began_ns, exec_ns));
        }
        drop((known, execs));
        self.begins(pid);
    }

    /// Records that a process of this pid begins: stored facts of an earlier one are not of it.
    pub(crate) fn begins(&self, pid: u32) {
        self.ended().remove(&pid);
    }

    /// Records that it has ended. Its counts may still have to be read.
    pub(crate) fn forget(&self, pid: u32) {
        let process = self.lock().remove(&pid);
        let mut ended = self.ended();
        ended.retain(|_, (_, at)| at.elapsed() < REMEMBERED);
        ended.extend(process.map(|process| (pid, (process, Instant::now()))));
    }

    fn ended(&self) -> MutexGuard<'_, HashMap<u32, (Arc<Process>, Instant)>> {
        self.ended.lock()
    }

    /// The process of a record; true when it was read now. Records of one that has just ended may
    /// still arrive (threads that end at once, requests to a disk in flight): then /proc has no
    /// facts about its pid any more, so it is not read.
    pub(crate) fn of_record(&self, pid: u32) -> Option<(Arc<Process>, bool)> {
        self.recent(pid).map(|process| (process, false)).or_else(|| self.look(pid))
    }

    /// One that is known, or was until a little while ago.
    pub(crate) fn recent(&self, pid: u32) -> Option<Arc<Process>> {
        self.known(pid).or_else(|| self.ended().get(&pid).map(|(process, _)| Arc::clone(process)))
    }

    /// Lets go of what is kept of processes that are gone.
    pub(crate) fn sweep(&self) {
        self.replaced.lock().retain(|pid, _| procfs::runs(*pid));
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.lock().keys().copied().collect()
    }

    /// The pids of those that are known, that of the one that began first first.
    pub(crate) fn oldest_first(&self) -> Vec<u32> {
        let mut known: Vec<_> = self.lock().iter().map(|(pid, process)| (process.seen.start_ns, *pid)).collect();
        known.sort_unstable();
        known.into_iter().map(|(_, pid)| pid).collect()
    }

    pub(crate) fn known(&self, pid: u32) -> Option<Arc<Process>> {
        self.lock().get(&pid).map(Arc::clone)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Attribution {
        let block: Vec<u8> = variables.iter().flat_map(|(k, v)| format!("{k}={v}\0").into_bytes()).collect();
        Attribution::from_environ(&block)
    }

    #[test]
    fn mpirun_inside_sbatch_does_not_take_the_launchers_procid() {
        let who = read(&[
            ("SLURM_JOB_ID", "77"),
            ("SLURM_PROCID", "0"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_NTASKS", "1"),
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "8"),
            ("PMIX_NAMESPACE", "4711"),
        ]);
        assert_eq!((who.rank, who.local_rank, who.world_size), (Some(3), None, Some(8)));
        assert_eq!((who.job_id.as_deref(), who.mpi_namespace.as_deref()), (Some("77"), Some("4711")));
    }

    #[test]
    fn srun_and_torchrun() {
        let srun = read(&[
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_ID", "2"),
            ("SLURM_PROCID", "5"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_NTASKS", "8"),
        ]);
        assert_eq!((srun.rank, srun.local_rank, srun.world_size), (Some(5), Some(1), Some(8)));
        assert_eq!((srun.step_id.as_deref(), srun.mpi_namespace.as_deref()), (Some("2"), Some("77.2")));
        let torch = read(&[("RANK", "6"), ("LOCAL_RANK", "2"), ("WORLD_SIZE", "16"), ("TORCHELASTIC_RUN_ID", "none")]);
        assert_eq!((torch.rank, torch.local_rank, torch.world_size), (Some(6), Some(2), Some(16)));
        assert_eq!((torch.job_id, torch.torch_namespace), (None, None));
        let address = [("RANK", "6"), ("MASTER_ADDR", "n1"), ("MASTER_PORT", "29500")];
        assert_eq!(read(&address).job_id.as_deref(), Some("n1:29500"), "what its ranks have in common");
        let torch = read(&[("TORCHELASTIC_RUN_ID", "r7"), address[0], address[1], address[2]]);
        assert_eq!((torch.job_id.as_deref(), torch.torch_namespace.as_deref()), (Some("r7"), Some("r7 n1:29500")));
        assert_eq!(read(&address[1..]).job_id, None, "no rank of it");
    }

    #[test]
    fn mpichs_launcher_names_its_job_in_the_arguments_of_its_proxies() {
        let line = b"/usr/bin/hydra_pmi_proxy\0--control-port\0n1:38267\0--rmk\0user\0--pgid\x002\0--proxy-id\x000\0";
        let job = hydra_arguments(line).unwrap();
        assert_eq!((job.name.as_str(), job.group.as_str()), ("n1:38267", "2"));
        assert_eq!(hydra_arguments(b"/bin/sh\0--control-port\0n1:1\0"), None);
        assert_eq!(hydra_arguments(b"hydra_pmi_proxy\0--control-port"), None);
    }

    #[test]
    fn numbers_that_are_none_are_passed_over() {
        let who = read(&[("OMPI_COMM_WORLD_RANK", "x"), ("PMIX_RANK", "-2"), ("RANK", "4"), ("WORLD_SIZE", "")]);
        assert_eq!((who.rank, who.world_size), (Some(4), None));
    }

    #[test]
    fn a_pid_that_is_used_again_is_recognised_by_its_start() {
        let processes = Processes::new(Files::new(|| {}));
        let pid = std::process::id();
        let (me, _) = processes.look(pid).unwrap();
        assert!(processes.is_same(pid) && processes.known(pid).is_some());
        // another process had this pid, and its end was not seen
        let before = ProcessSeen { start_ns: me.seen.start_ns - 5_000_000_000, rank: Some(7), ..me.seen.clone() };
        let before = Process {
            seen: before,
            job_id: None,
            mpi_namespace: None,
            user: 0,
            torch_namespace: None,
            read_ns: me.read_ns,
            began_ns: me.began_ns - 5_000_000_000,
            of_libc: None,
            is_nameless: false,
            files: me.files.clone(),
            mpi: OnceLock::new(),
            torch: OnceLock::new(),
        };
        processes.lock().insert(pid, Arc::new(before));
        assert!(!processes.is_same(pid) && processes.known(pid).is_none());
        let (again, new) = processes.look(pid).unwrap();
        assert!(new && again.seen == me.seen);
        assert!(processes.is_same(0), "what is not known is not another");
    }

    #[test]
    fn what_comes_after_the_end_is_of_the_process_that_ended() {
        let processes = Processes::new(Files::new(|| {}));
        let pid = std::process::id();
        let (me, _) = processes.look(pid).unwrap();
        processes.forget(pid);
        let (late, new) = processes.of_record(pid).unwrap();
        assert!(!new && Arc::ptr_eq(&late, &me) && processes.pids().is_empty(), "it is not followed again");
        // another one begins with its number
        processes.begins(pid);
        let (next, new) = processes.of_record(pid).unwrap();
        assert!(new && !Arc::ptr_eq(&next, &me));
        processes.forget(pid);
        assert!(processes.look(pid).unwrap().1, "reported as new: read, whatever was before");
    }

    #[test]
    fn this_process_reads_as_itself() {
        let processes = Processes::new(Files::new(|| {}));
        let (me, new) = processes.look(std::process::id()).unwrap();
        assert!(new && !processes.look(std::process::id()).unwrap().1);
        assert_eq!(me.seen.exe, std::env::current_exe().unwrap().to_string_lossy());
        let age_ns = clock::Clock::measure().now_unix_ns() - me.seen.start_ns;
        assert!((0..86_400_000_000_000).contains(&age_ns), "started {age_ns} ns ago");
        processes.exec(std::process::id(), 1);
        assert!(processes.known(std::process::id()).is_some(), "an exec before the reading changes nothing");
        processes.exec(std::process::id(), u64::MAX);
        assert!(processes.known(std::process::id()).is_none());
    }

    #[test]
    fn what_was_read_of_the_program_before_is_not_kept() {
        let rank = ["-c", "RANK=3 exec sleep 100"];
        let waits = ["-c", &format!("read go; exec sh {} \"{}\"", rank[0], rank[1])];
        let mut child =
            std::process::Command::new("sh").args(waits).stdin(std::process::Stdio::piped()).spawn().unwrap();
        let processes = Processes::new(Files::new(|| {}));
        let pid = child.id();
        let early = Process::read(pid, processes.boot_unix_ns, &processes.files).unwrap();
        assert_eq!(early.seen.rank, None);
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"go\n").unwrap();
        let of_rank = || {
            Process::read(pid, processes.boot_unix_ns, &processes.files)
                .is_some_and(|process| process.seen.rank == Some(3))
        };
        while !of_rank() {
            std::thread::yield_now();
        }
        // reported by the ring while it was read: there is nothing to undo yet
        processes.exec(pid, clock::kernel_now_ns());
        let (process, new) = processes.keep(pid, early).unwrap();
        assert!(new && process.seen.rank == Some(3), "{process:?}");
        assert!(!processes.look(pid).unwrap().1);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    proptest! {
        #[test]
        fn any_environment_reads_without_harm(block in prop::collection::vec(any::<u8>(), 0..300)) {
            let who = Attribution::from_environ(&block);
            prop_assert!(who.rank.is_none_or(|rank| rank >= 0));
        }
    }
}
