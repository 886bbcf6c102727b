//! The files of a job's mesh, and who may read them.
//!
//! - On the shared directory, one a run of the job (mode 0700): `job.json` ([`Charter`]),
//!   `identity/NODE/` (each node's key and certificate), `NODE.db` (the trace stores; they stay),
//!   `log/`.
//! - On each node, in /tmp/rankmesh-UID (0700): `RUN@NODE/agent.sock`, removed with the agent.
//! - In the user's state directory: `slurm/JOBID`, the path of the job's directory, for questions
//!   from elsewhere.

use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use ask::paths;
use serde::{Deserialize, Serialize};

use super::Job;

/// The settings for every agent of the job's mesh.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Charter {
    /// The job.
    pub job: Job,
    /// Name of its mesh.
    pub mesh: String,
    /// Whether to record.
    pub capture: bool,
    /// Largest size of one node's store.
    pub store_max_mib: u64,
    /// Labels that the user gave.
    pub labels: Vec<(String, String)>,
    /// Where stores are written when not next to this file.
    pub store_dir: Option<PathBuf>,
    /// Whether a report is written when the job ends.
    #[serde(default)]
    pub report: bool,
}

/// The directory of one run of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// That at `path`.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Makes it, for this user alone.
    ///
    /// # Errors
    /// It exists already and is another's or open to others, or cannot be made.
    pub fn make(path: &Path) -> anyhow::Result<Self> {
        private_dir(path)?;
        // with two runs of `slurm up` in one job, the second finds the first one's
        for part in ["identity", "log"] {
            private_dir(&path.join(part))?;
        }
        Ok(Self(path.to_owned()))
    }

    /// A lock on founding the mesh here; others wait for it. None where the file system has no
    /// locks.
    #[must_use]
    pub fn lock(&self) -> Option<std::fs::File> {
        let opened = std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(self.0.join("lock"));
        opened.ok().filter(|file| file.lock().is_ok())
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A node's identity.
    #[must_use]
    pub fn identity(&self, node: &str) -> PathBuf {
        self.0.join("identity").join(node)
    }

    /// A node's store, in the directory that the charter names.
    #[must_use]
    pub fn store(&self, charter: &Charter, node: &str) -> PathBuf {
        charter.store_dir.as_deref().unwrap_or(&self.0).join(format!("{node}.db"))
    }

    /// A log file.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.0.join("log").join(format!("{name}.log"))
    }

    /// Whether a mesh was made here.
    #[must_use]
    pub fn has_charter(&self) -> bool {
        self.0.join("job.json").exists()
    }

    /// Writes the charter, for this user alone; the file appears complete or not at all.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn write_charter(&self, charter: &Charter) -> anyhow::Result<()> {
        let (path, new) = (self.0.join("job.json"), self.0.join("job.json.new"));
        write_private(&new, serde_json::to_string_pretty(charter)?.as_bytes())?;
        std::fs::rename(&new, &path).with_context(|| format!("writing {}", path.display()))
    }

    /// Reads the charter.
    ///
    /// # Errors
    /// There is none here: mostly because this node does not share the directory with the one that
    /// made it.
    pub fn charter(&self) -> anyhow::Result<Charter> {
        let path = self.0.join("job.json");
        let text = std::fs::read_to_string(&path).with_context(|| {
            format!("reading {}: is it on a file system that all nodes of the job share? (see --dir)", path.display())
        })?;
        serde_json::from_str(&text).with_context(|| format!("reading {}", path.display()))
    }
}

fn write_private(path: &Path, contents: &[u8]) -> anyhow::Result<()> {
    use std::io::Write;
    let opened = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    opened.and_then(|mut file| file.write_all(contents)).with_context(|| format!("writing {}", path.display()))
}

/// Makes a directory that only this user may enter, or takes the one that is there when it is such
/// a one.
///
/// # Errors
/// What is there is no directory, another's, or open to others; or it cannot be made.
pub fn private_dir(path: &Path) -> anyhow::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error).with_context(|| format!("making the directory {}", path.display())),
    }
    let found = std::fs::symlink_metadata(path).with_context(|| format!("looking at {}", path.display()))?;
    ensure!(found.is_dir(), "{} is there and is no directory", path.display());
    ensure!(
        found.uid() == nix::unistd::geteuid().as_raw() && found.mode() & 0o077 == 0,
        "{} is there and others may use it: remove it, or `chmod 700` it if it is yours",
        path.display()
    );
    Ok(())
}

/// This user's directory for sockets on this host; made when `make`.
///
/// # Errors
/// See [`private_dir`].
pub fn runtime_dir(make: bool) -> anyhow::Result<PathBuf> {
    let path = runtime_dir_of(nix::unistd::geteuid().as_raw());
    if make {
        private_dir(&path)?;
    }
    Ok(path)
}

fn runtime_dir_of(uid: u32) -> PathBuf {
    // not $TMPDIR: steps of one job may have different ones
    PathBuf::from(format!("/tmp/rankmesh-{uid}"))
}

/// Where ranks of this user write the calls that their MPI shim and NCCL plugin see, for the agent
/// of `run` or, without one, for the user's own.
#[must_use]
pub fn ring_dir(run: Option<&str>) -> PathBuf {
    let uid = nix::unistd::geteuid();
    PathBuf::from(match run {
        Some(run) => format!("/dev/shm/rankmesh-{uid}-{run}"),
        None => format!("/dev/shm/rankmesh-{uid}"),
    })
}

/// Socket of the agent of `run` (see [`Job::run_name`]) on `node`.
#[must_use]
pub fn socket(runtime: &Path, run: &str, node: &str) -> PathBuf {
    runtime.join(format!("{run}@{node}")).join("agent.sock")
}

/// Longest time between an agent's making its socket's directory and opening the socket.
const STARTING: std::time::Duration = std::time::Duration::from_secs(60);

/// Removes what killed agents of this user have left on this host: sockets on which nobody listens,
/// and directories without one.
pub fn tidy(runtime: &Path) {
    let is_old = |path: &Path| {
        let modified = std::fs::symlink_metadata(path).and_then(|found| found.modified());
        modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > STARTING))
    };
    for entry in std::fs::read_dir(runtime).into_iter().flatten().flatten() {
        let socket = entry.path().join("agent.sock");
        let refused = std::os::unix::net::UnixStream::connect(&socket)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
        if refused {
            let _ = std::fs::remove_file(&socket);
            let _ = std::fs::remove_dir(entry.path());
        } else if !socket.exists() && is_old(&entry.path()) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

/// Removes rings of ended processes of this user, if no agent reads: none has found them, or will.
pub fn tidy_rings() {
    tidy_rings_in(Path::new("/dev/shm"), nix::unistd::geteuid().as_raw());
}

fn tidy_rings_in(shm: &Path, uid: u32) {
    let list = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let named = |path: &Path, start: &str| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(start));
    let own = |path: &Path| std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == uid);
    for directory in list(shm).filter(|path| named(path, &format!("rankmesh-{uid}")) && own(path)) {
        for node in list(&directory).filter(|path| own(path)) {
            let reader = node.join("reader");
            let read = std::fs::File::open(&reader).is_ok_and(|file| file.try_lock().is_err());
            if read {
                continue;
            }
            for ring in list(&node).filter(|path| named(path, "ring-")) {
                let name = ring.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let pid = name.split('-').nth(1).unwrap_or_default().to_owned();
                if !Path::new("/proc").join(&pid).is_dir() {
                    let _ = std::fs::remove_file(&ring);
                }
            }
            if list(&node).all(|path| path == reader) {
                let _ = std::fs::remove_file(&reader);
                let _ = std::fs::remove_dir(&node);
            }
        }
        let _ = std::fs::remove_dir(&directory);
    }
}

/// Sockets of agents of job `id` on this host that answer: those of its latest start first, and
/// among them `node`'s first. Root also finds those of other users.
#[must_use]
pub fn sockets_of(id: u32, node: Option<&str>) -> Vec<PathBuf> {
    let own = nix::unistd::geteuid().as_raw();
    let mut directories = vec![(own, runtime_dir_of(own))];
    if own == 0 {
        for entry in std::fs::read_dir("/tmp").into_iter().flatten().flatten() {
            let name = entry.file_name();
            let uid = name.to_str().and_then(|name| name.strip_prefix("rankmesh-")?.parse().ok());
            directories.extend(uid.filter(|uid| *uid != 0).map(|uid| (uid, entry.path())));
        }
    }
    let mut found = vec![];
    for (uid, directory) in directories {
        let Ok(metadata) = std::fs::symlink_metadata(&directory) else { continue };
        if !metadata.is_dir() || metadata.uid() != uid || metadata.mode() & 0o022 != 0 {
            continue;
        }
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some((run, on)) = name.to_str().and_then(|name| name.split_once('@')) else { continue };
            let (job, restart) = run.split_once(".r").unwrap_or((run, "0"));
            let socket = entry.path().join("agent.sock");
            if job.parse() == Ok(id) && std::os::unix::net::UnixStream::connect(&socket).is_ok() {
                let restart: u32 = restart.parse().unwrap_or(0);
                found.push((std::cmp::Reverse(restart), Some(on) != node, on.to_owned(), socket));
            }
        }
    }
    found.sort();
    found.into_iter().map(|(_, _, _, socket)| socket).collect()
}

/// Remembers the directory of a job's mesh for this user's questions from elsewhere, and forgets
/// those that are gone.
///
/// # Errors
/// The state directory cannot be written.
pub fn remember(id: u32, run_dir: &RunDir) -> anyhow::Result<()> {
    let directory = paths::state_dir()?.join("slurm");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
    for entry in std::fs::read_dir(&directory)?.flatten() {
        let gone = std::fs::read_to_string(entry.path()).is_ok_and(|path| !Path::new(&path).exists());
        if gone {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    write_private(&directory.join(id.to_string()), run_dir.path().as_os_str().as_encoded_bytes())
}

/// The directory of a job's mesh, if this user has made one.
#[must_use]
pub fn remembered(id: u32) -> Option<RunDir> {
    let path = std::fs::read_to_string(paths::state_dir().ok()?.join("slurm").join(id.to_string())).ok()?;
    Some(RunDir(PathBuf::from(path)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn rings_of_the_dead_that_nobody_reads_are_taken_away() {
        let shm = tempfile::tempdir().unwrap();
        let uid = nix::unistd::geteuid().as_raw();
        let make = |directory: &str, ring: &str| {
            let node = shm.path().join(directory).join("n1");
            std::fs::create_dir_all(&node).unwrap();
            std::fs::write(node.join(ring), "").unwrap();
            std::fs::write(node.join("reader"), "").unwrap();
            node
        };
        let (dead, own) = ("ring-4194305-nccl", format!("ring-{}", std::process::id()));
        let left = make(&format!("rankmesh-{uid}-7"), dead);
        let running = make(&format!("rankmesh-{uid}-8"), &own);
        let read = make(&format!("rankmesh-{uid}-9"), dead);
        let reader = std::fs::File::open(read.join("reader")).unwrap();
        reader.lock().unwrap();
        let others = make("another", dead);
        tidy_rings_in(shm.path(), uid);
        assert!(!left.exists() && !shm.path().join(format!("rankmesh-{uid}-7")).exists());
        assert!(running.join(own).exists() && read.join(dead).exists() && others.join(dead).exists());
    }

    #[test]
    fn only_the_user_may_enter() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        let run_dir = RunDir::make(&path).unwrap();
        for part in ["", "identity", "log"] {
            assert_eq!(std::fs::metadata(path.join(part)).unwrap().mode() & 0o777, 0o700, "{part}");
        }
        RunDir::make(&path).expect("again");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(RunDir::make(&path).unwrap_err().to_string().contains("chmod 700"));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(RunDir::make(&link).unwrap_err().to_string().contains("no directory"));
        let charter = Charter {
            job: Job { id: 7, ..Job::default() },
            mesh: "job-7".into(),
            capture: true,
            store_max_mib: 1,
            labels: vec![("a".into(), "b".into())],
            store_dir: None,
            report: true,
        };
        assert!(!run_dir.has_charter());
        run_dir.write_charter(&charter).unwrap();
        assert_eq!(std::fs::metadata(path.join("job.json")).unwrap().mode() & 0o777, 0o600);
        assert_eq!(run_dir.charter().unwrap().job, charter.job);
        assert_eq!(run_dir.store(&charter, "n1"), path.join("n1.db"));
    }

    #[test]
    fn a_missing_charter_says_what_to_do() {
        let error = RunDir::at(Path::new("/nonexistent")).charter().unwrap_err();
        assert!(format!("{error:#}").contains("--dir"), "{error:#}");
    }

    #[test]
    fn a_dead_agents_socket_is_taken_away_and_a_live_ones_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let listen = |run: &str| {
            let path = socket(dir.path(), run, "n1");
            std::fs::create_dir(path.parent().unwrap()).unwrap();
            (std::os::unix::net::UnixListener::bind(&path).unwrap(), path)
        };
        let (dead, dead_path) = listen("1");
        let (_live, live_path) = listen("2");
        drop(dead);
        // Two that were killed before they opened a socket, or just after they closed it: one may
        // only be about to open it.
        let [starting, killed] = ["3@n1", "4@n1"].map(|name| dir.path().join(name));
        std::fs::create_dir(&starting).unwrap();
        std::fs::create_dir(&killed).unwrap();
        let before = std::time::SystemTime::now() - 2 * STARTING;
        std::fs::File::open(&killed).and_then(|opened| opened.set_modified(before)).unwrap();
        tidy(dir.path());
        assert!(!dead_path.parent().unwrap().exists() && live_path.exists());
        assert!(starting.exists() && !killed.exists());
    }
}
