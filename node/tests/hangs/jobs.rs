//! Jobs that hang, on two hosts with half of the ranks each, and the agents that see them: by eBPF,
//! where a host is a cgroup; without root by the shim, where it is a directory of rings.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::jobs::{Cgroups, workloads_in};
use crate::common::{Lab, rankmesh, stderr, stdout, wait_for};
use crate::ras;
use crate::truth::{Language, Truth};

pub(crate) const AGENTS: [&str; 2] = ["h1", "h2"];
/// Who runs agents and ranks without root.
const NOBODY: u32 = 65_534;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mpi {
    Open,
    Mpich,
}

impl Mpi {
    /// The ending of its programs' names in Debian.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Open => "openmpi",
            Self::Mpich => "mpich",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    ByEbpf,
    ByShim,
}

/// Two agents that see what jobs do.
pub(crate) struct Hosts {
    pub(crate) lab: Lab,
    pub(crate) seen: Seen,
    cgroups: Cgroups,
    programs: PathBuf,
    /// Where what stands in for NCCL's RAS answers.
    ras: SocketAddr,
}

impl Hosts {
    pub(crate) fn new(seen: Seen) -> Self {
        let mut lab = Lab::new();
        let name = if seen == Seen::ByEbpf { "hangs" } else { "hangs-shim" };
        let cgroups = Cgroups::new(name, &["h1", "h2", "launched"]);
        let programs = lab.path("programs");
        std::fs::create_dir(&programs).expect("a directory");
        match seen {
            Seen::ByEbpf => crate::common::jobs::start_agents(&mut lab, &cgroups, &AGENTS),
            Seen::ByShim => start_without_root(&mut lab),
        }
        let hosts = Self { lab, seen, cgroups, programs, ras: ras::start() };
        hosts.compile();
        hosts
    }

    fn compile(&self) {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/workloads");
        for mpi in [Mpi::Open, Mpi::Mpich].map(Mpi::suffix) {
            let c = [format!("mpicc.{mpi}"), "-std=gnu11".into(), "hangs.c".into(), format!("hangs-c-{mpi}")];
            let flags = "-cpp -ffree-line-length-none".to_owned();
            let fortran = [format!("mpif90.{mpi}"), flags, "hangs.f90".into(), format!("hangs-fortran-{mpi}")];
            for [compiler, flags, source, program] in [c, fortran] {
                let mut command = Command::new(&compiler);
                command.args(flags.split(' ')).args(["-O1", "-g", "-o"]).arg(self.programs.join(program));
                let made = command.arg(sources.join(source)).output();
                let made =
                    made.unwrap_or_else(|error| panic!("{compiler}: {error}: scripts/deps.sh --test installs it"));
                assert!(made.status.success(), "{}", stderr(&made));
            }
        }
        if self.seen == Seen::ByEbpf {
            workloads_in(self.programs.join("nccl"));
        }
        std::fs::copy(sources.join("hangs.py"), self.programs.join("hangs.py")).expect("a copy");
    }

    fn program(&self, language: Language, mpi: Mpi) -> String {
        let at = self.programs.display();
        match language {
            Language::Python => format!("/usr/bin/python3 {at}/hangs.py"),
            Language::Nccl => format!("{at}/nccl/nccl-hangs"),
            Language::C | Language::Fortran => format!("{at}/hangs-{}-{}", language.name(), mpi.suffix()),
        }
    }

    /// Starts a job under this name.
    pub(crate) fn start(&self, name: &str, language: Language, mpi: Mpi, truth: &Truth) -> Job {
        let directory = self.lab.path(name);
        std::fs::create_dir(&directory).expect("a directory");
        let of_job = |host: &PathBuf| {
            let cgroup = host.join(name);
            std::fs::create_dir(&cgroup).expect("a cgroup");
            cgroup
        };
        let cgroups: Vec<PathBuf> = self.cgroups.0[1..].iter().map(of_job).collect();
        let launched = cgroups[2].join("cgroup.procs");
        let (program, at, mode, ranks) = (self.program(language, mpi), directory.display(), &truth.mode, truth.ranks);
        let rank = "r=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$RANK}}";
        // The shell stays, so that the launcher does not notice the end of a rank.
        let script = match self.seen {
            Seen::ByEbpf => format!(
                "{rank}; echo $$ > {}/h$((r * 2 / {ranks} + 1))/{name}/cgroup.procs; \
                 SLURM_JOB_ID={name} {program} {mode} {at}; sleep 3600",
                self.cgroups.0[0].display()
            ),
            Seen::ByShim => {
                let (rings, shim) = (self.lab.path("rings"), self.lab.path("shim/librankmesh_pmpi.so"));
                nix::unistd::chown(&directory, Some(NOBODY.into()), Some(NOBODY.into())).expect("chown");
                format!(
                    "{rank}; RANKMESH_RING_DIR={}/h$((r * 2 / {ranks} + 1)) LD_PRELOAD={} SLURM_JOB_ID={name} \
                     {program} {mode} {at}; sleep 3600",
                    rings.display(),
                    shim.display()
                )
            }
        };
        let mut command = Command::new("sh");
        let as_nobody = if self.seen == Seen::ByShim { AS_NOBODY } else { "" };
        // Below the agents: ranks that wait take all the CPU there is.
        let exec = format!("echo $$ > {} && exec nice -n 10 {as_nobody} \"$@\"", launched.display());
        command.args(["-c", &exec, "sh"]).args(launcher(language, mpi)).args([&ranks.to_string(), "sh", "-c", &script]);
        // What waits in MPI lets others have the CPU.
        command.env("OMPI_MCA_mpi_yield_when_idle", "1").env("MPIR_CVAR_POLLS_BEFORE_YIELD", "1");
        command.env("NCCL_RAS_ADDR", self.ras.to_string());
        command.env("NCCL_SIM_TIMEOUT_MS", "3600000").env("HOME", &directory).env("TMPDIR", &directory);
        let log = File::create(directory.join("log")).expect("a file");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a file")).stderr(log);
        Job { launcher: command.spawn().expect("a launcher"), cgroups, directory }
    }
}

/// The library that `rankmesh env` writes.
fn write_shim(lab: &Lab) {
    let made = rankmesh().args(["env", "--dir"]).arg(lab.path("shim")).output().expect("runs");
    assert!(stdout(&made).contains("LD_PRELOAD"), "{}", stderr(&made));
}

const AS_NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups";

/// Starts each rank, as one that has RANK and WORLD_SIZE.
const EACH: &str = "n=$1; shift; for r in $(seq 0 $((n - 1))); do RANK=$r WORLD_SIZE=$n \"$@\" & done; wait";

/// What takes a number of ranks and their command.
fn launcher(language: Language, mpi: Mpi) -> &'static [&'static str] {
    match mpi {
        _ if language == Language::Nccl => &["sh", "-c", EACH, "each"],
        Mpi::Open => &[
            "mpirun.openmpi",
            "--allow-run-as-root",
            "--oversubscribe",
            "--mca",
            "oob_tcp_if_include",
            "lo",
            "--mca",
            "btl",
            "self,vader,tcp",
            "-np",
        ],
        Mpi::Mpich => &["mpirun.mpich", "-np"],
    }
}

/// Agents of an ordinary user. Both look for rings where `rankmesh env` of that user has them made,
/// which is another place for each.
fn start_without_root(lab: &mut Lab) {
    let owned = |path: &Path| nix::unistd::chown(path, Some(NOBODY.into()), Some(NOBODY.into())).expect("chown");
    use std::os::unix::fs::PermissionsExt;
    let allow = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    };
    allow(lab.dir.path(), 0o755);
    write_shim(lab);
    allow(&lab.path("shim"), 0o755);
    let identities = AGENTS.map(|name| lab.issue(name));
    owned(lab.dir.path());
    std::fs::create_dir(lab.path("rings")).expect("a directory");
    let mut first: Option<String> = None;
    for (name, identity) in AGENTS.into_iter().zip(identities) {
        let rings = lab.path("rings").join(name);
        std::fs::create_dir(&rings).expect("a directory");
        owned(&rings);
        allow(&rings, 0o700);
        owned(&identity);
        for file in std::fs::read_dir(&identity).expect("an identity").flatten() {
            owned(&file.path());
        }
        let at = format!("/dev/shm/rankmesh-{NOBODY}");
        let mount = format!(
            "mount -t tmpfs none /dev/shm && mkdir {at} && mount --bind {} {at} && exec {AS_NOBODY} \"$@\"",
            rings.display()
        );
        let binary = rankmesh().get_program().to_owned();
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &mount, "sh"]).arg(binary);
        command.args(["up", "--name", name, "--listen", "127.0.0.1:0", "--identity"]).arg(identity);
        command
            .args(["--budget", "none"])
            .arg("--socket")
            .arg(lab.socket(name))
            .arg("--store")
            .arg(lab.path(&format!("{name}.db")));
        command.args(first.iter().flat_map(|address| ["--join", address]));
        let log = File::create(lab.path(&format!("{name}.log"))).expect("a file");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a file")).stderr(log);
        lab.adopt(name, command);
        let address = wait_for("the agent answers", || {
            let nodes = lab.nodes(name)?;
            nodes.first().and_then(|node| node["address"].as_str().map(str::to_owned)).ok_or("no address".into())
        });
        first.get_or_insert(address);
    }
    lab.wait_for_members(&AGENTS);
}

/// A job that ends with this.
pub(crate) struct Job {
    launcher: Child,
    cgroups: Vec<PathBuf>,
    pub(crate) directory: PathBuf,
}

impl Job {
    /// From now on its processes have the CPU only where nobody else wants it: ranks that wait take
    /// all there is.
    pub(crate) fn stands_still(&self) {
        for cgroup in &self.cgroups {
            let pids = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
            for pid in pids.lines() {
                // (One that has ended needs none.)
                let chrt = Command::new("chrt").args(["--idle", "--all-tasks", "--pid", "0", pid]).output();
                chrt.expect("chrt, of util-linux, runs");
            }
        }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for cgroup in &self.cgroups {
            let _ = std::fs::write(cgroup.join("cgroup.kill"), "1");
        }
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
        for cgroup in &self.cgroups {
            let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
            while std::fs::remove_dir(cgroup).is_err() && std::time::Instant::now() < until {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
    }
}
