//! The files of a job's mesh, and who may read them.
//!
//! - On the shared directory, one a run of the job (mode 0700): `job.json` ([`Charter`]),
//!   `identity/NODE/` (each node's key and certificate), `NODE.db` (the trace stores; they stay),
//!   `log/`.
//! - On each node, in /tmp/rankmesh-UID (0700): `RUN@NODE/agent.sock`, removed with the agent.
//! - In the user's state directory: `slurm/JOBID`, the path of the job's directory, for questions
//!   from elsewhere.

//!
//! All of these are where others may write, too: `trusted` opens them, and refuses what another user
//! can have put there.

use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use ask::paths;
use serde::{Deserialize, Serialize};
use trusted::{Dir, Refused};

use super::Job;

/// Most bytes of a charter, and of a file that names a directory.
const MOST_BYTES: u64 = 16 << 20;

/// The settings for every agent of the job's mesh.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Charter {
    /// The job.
    pub job: Job,
    /// Name of its mesh.
    pub mesh: String,
    /// Whether to record.
    pub capture: bool,
    /// What recording calls may take of a core of each node, in millionths; none is without bound.
    pub budget_ppm: Option<u32>,
    /// Largest size of one node's store.
    pub store_max_mib: u64,
    /// Labels that the user gave.
    pub labels: Vec<(String, String)>,
    /// Where stores are written when not next to this file.
    pub store_dir: Option<PathBuf>,
    /// Whether a report is written when the job ends.
    #[serde(default)]
    pub report: bool,
    /// How long Slurm lets a step that ends live on (KillWait).
    pub kill_wait: Duration,
}

/// The directory of one run of a job: this user's, and nobody else can change it or put another in
/// its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// That at `path`.
    ///
    /// # Errors
    /// There is none, or it is not this user's alone.
    pub fn open(path: &Path) -> Result<Self, Refused> {
        Dir::open(path)?.private()?;
        Self::named(path)
    }

    /// By the name that it was given by: links on the way may lead elsewhere on another node.
    fn named(path: &Path) -> Result<Self, Refused> {
        let absolute = std::path::absolute(path);
        absolute.map(Self).map_err(|source| Refused::Io { doing: "finding", path: path.to_owned(), source })
    }

    /// Makes it, for this user alone.
    ///
    /// # Errors
    /// It exists already and is another's or open to others, or cannot be made.
    pub fn make(path: &Path) -> Result<Self, Refused> {
        let made = Dir::make(path)?;
        // with two runs of `slurm up` in one job, the second finds the first one's
        for part in ["identity", "log"] {
            made.make_dir(part)?;
        }
        Self::named(path)
    }

    /// A lock on founding the mesh here; others wait for it. None where the file system has no
    /// locks.
    #[must_use]
    pub fn lock(&self) -> Option<std::fs::File> {
        let opened = Dir::open(&self.0).and_then(|dir| dir.append("lock", 0o600));
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
        Dir::open(&self.0).is_ok_and(|dir| dir.file("job.json").is_ok())
    }

    /// Writes the charter, for this user alone; the file appears complete or not at all.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn write_charter(&self, charter: &Charter) -> anyhow::Result<()> {
        Ok(Dir::open(&self.0)?.replace("job.json", serde_json::to_string_pretty(charter)?.as_bytes(), 0o600)?)
    }

    /// Reads the charter.
    ///
    /// # Errors
    /// There is none here: mostly because this node does not share the directory with the one that
    /// made it.
    pub fn charter(&self) -> anyhow::Result<Charter> {
        let text = Dir::open(&self.0)?.read("job.json", MOST_BYTES)?;
        serde_json::from_slice(&text).with_context(|| format!("reading {}", self.0.join("job.json").display()))
    }
}

/// The charter in `directory`, on a node of the job.
///
/// # Errors
/// The directory is not this user's alone, or there is no charter: mostly because this node does
/// not share it with the one that made it.
pub fn charter_in(directory: &Path) -> anyhow::Result<(RunDir, Charter)> {
    let read = RunDir::open(directory).map_err(anyhow::Error::from).and_then(|run_dir| {
        let charter = run_dir.charter()?;
        Ok((run_dir, charter))
    });
    read.context("is the directory on a file system that all nodes of the job share? (see --dir)")
}

/// This user's directory for sockets on this host, made where it is missing.
///
/// # Errors
/// See [`Dir::make`].
pub fn runtime_dir() -> Result<PathBuf, Refused> {
    Ok(Dir::make(&runtime_dir_of(nix::unistd::geteuid().as_raw()))?.path().to_owned())
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
    let own = |path: &Path| Dir::open_of(path, uid).and_then(Dir::private).is_ok_and(|dir| dir.owner() == uid);
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

/// Sockets of agents of job `id` on this host that answer and run as `user`: those of its latest
/// start first, and among them `node`'s first.
#[must_use]
pub fn sockets_of(id: u32, user: u32, node: Option<&str>) -> Vec<PathBuf> {
    sockets_in(&runtime_dir_of(user), id, user, node)
}

/// The users, root excepted, who have a directory for sockets on this host, or of whom somebody
/// says so.
pub fn others_users() -> impl Iterator<Item = u32> {
    let of = |entry: std::fs::DirEntry| entry.file_name().to_str()?.strip_prefix("rankmesh-")?.parse().ok();
    std::fs::read_dir("/tmp").into_iter().flatten().flatten().filter_map(of).filter(|user| *user != 0)
}

fn sockets_in(runtime: &Path, id: u32, user: u32, node: Option<&str>) -> Vec<PathBuf> {
    // Nobody else can have made anything in it, so whoever listens there is the user.
    let Ok(directory) = Dir::open_of(runtime, user) else { return vec![] };
    if directory.owner() != user {
        return vec![];
    }
    let mut found = vec![];
    for entry in std::fs::read_dir(directory.path()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some((run, on)) = name.to_str().and_then(|name| name.split_once('@')) else { continue };
        let (job, restart) = run.split_once(".r").unwrap_or((run, "0"));
        let socket = entry.path().join("agent.sock");
        if job.parse() == Ok(id) && UnixStream::connect(&socket).is_ok() {
            let restart: u32 = restart.parse().unwrap_or(0);
            found.push((std::cmp::Reverse(restart), Some(on) != node, on.to_owned(), socket));
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
    let directory = Dir::make_all(&paths::state_dir()?.join("slurm"))?;
    for entry in std::fs::read_dir(directory.path())?.flatten() {
        let gone = directory.read(entry.file_name(), MOST_BYTES).is_ok_and(|path| !path_of(path).exists());
        if gone {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    Ok(directory.replace(id.to_string(), run_dir.path().as_os_str().as_encoded_bytes(), 0o600)?)
}

/// The directory of a job's mesh, if this user has made one.
#[must_use]
pub fn remembered(id: u32) -> Option<RunDir> {
    let directory = Dir::open(&paths::state_dir().ok()?.join("slurm")).ok()?;
    RunDir::open(&path_of(directory.read(id.to_string(), MOST_BYTES).ok()?)).ok()
}

fn path_of(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn rings_of_the_dead_that_nobody_reads_are_taken_away() {
        let shm = tempfile::tempdir().unwrap();
        let uid = nix::unistd::geteuid().as_raw();
        let make = |directory: &str, ring: &str| {
            let node = shm.path().join(directory).join("n1");
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&node).unwrap();
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
        for refused in [RunDir::make(&path), RunDir::open(&path)] {
            assert!(refused.unwrap_err().to_string().contains("chmod 700"));
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(RunDir::make(&link).unwrap_err().to_string().contains("no directory"));
        let charter = Charter {
            job: Job { id: 7, ..Job::default() },
            mesh: "job-7".into(),
            capture: true,
            budget_ppm: Some(10_000),
            store_max_mib: 1,
            labels: vec![("a".into(), "b".into())],
            store_dir: None,
            report: true,
            kill_wait: Duration::from_secs(30),
        };
        assert!(!run_dir.has_charter());
        run_dir.write_charter(&charter).unwrap();
        assert_eq!(std::fs::metadata(path.join("job.json")).unwrap().mode() & 0o777, 0o600);
        assert_eq!(run_dir.charter().unwrap().job, charter.job);
        assert_eq!(run_dir.store(&charter, "n1"), path.join("n1.db"));
    }

    #[test]
    fn a_missing_charter_says_what_to_do() {
        let error = charter_in(Path::new("/nonexistent")).unwrap_err();
        assert!(format!("{error:#}").contains("--dir"), "{error:#}");
    }

    /// Another user, who knows the next job's number, was there first.
    #[test]
    fn what_another_user_has_put_there_is_not_believed() {
        const ANOTHER: u32 = 65534;
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
        let run = RunDir::make(&dir.path().join("rankmesh-4711")).unwrap();
        run.write_charter(&Charter {
            job: Job { id: 4711, ..Job::default() },
            mesh: "job-4711".into(),
            capture: true,
            budget_ppm: Some(10_000),
            store_max_mib: 1,
            labels: vec![],
            store_dir: None,
            report: false,
            kill_wait: Duration::from_secs(30),
        })
        .unwrap();
        let sockets = dir.path().join("rankmesh-7");
        let listen = |run: &str| {
            let path = socket(&sockets, run, "n1");
            std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path.parent().unwrap()).unwrap();
            std::os::unix::net::UnixListener::bind(&path).unwrap()
        };
        let _listening = (listen("4711"), listen("4711.r9"));
        let own = nix::unistd::geteuid().as_raw();
        assert_eq!(sockets_in(&sockets, 4711, own, None).len(), 2);
        assert!(RunDir::open(run.path()).is_ok_and(|found| found.has_charter()));
        let given = std::os::unix::fs::chown(run.path(), Some(ANOTHER), None)
            .and_then(|()| std::os::unix::fs::chown(&sockets, Some(ANOTHER), None));
        if given.is_err() {
            eprintln!("skipped: only root can give files to another user");
            return;
        }
        let refused = RunDir::open(run.path()).unwrap_err().to_string();
        assert!(refused.contains("belongs to user 65534"), "{refused}");
        assert!(RunDir::make(run.path()).is_err() && charter_in(run.path()).is_err());
        assert!(!run.has_charter() && run.charter().is_err());
        assert!(sockets_in(&sockets, 4711, own, None).is_empty(), "asked for the other user's alone");
        assert_eq!(sockets_in(&sockets, 4711, ANOTHER, None).len(), 2);
        std::fs::set_permissions(&sockets, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(sockets_in(&sockets, 4711, ANOTHER, None).is_empty(), "anybody may have made it");
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
