//! `rankmesh env`: prints the variables with which programs started by a shell hand their MPI and
//! NCCL calls to the agent without root.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use ask::{Exit, paths};
use clap::Args;
use record::for_shell;
use trusted::Dir;

use crate::slurm::run_dir::{self, RunDir};
use crate::slurm::{Job, up};

/// Flags of `rankmesh env`.
#[derive(Debug, Args)]
pub(super) struct EnvArgs {
    /// Where the library is written; all nodes of the job must see it [default: the directory of
    /// the job's mesh, else this user's state directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Preloaded before MPI (LD_PRELOAD).
const MPI: (&str, &[u8]) = ("librankmesh_pmpi.so", node_bpf::rings::MPI_SHIM);
/// Loaded by NCCL (NCCL_PROFILER_PLUGIN).
const NCCL: (&str, &[u8]) = ("librankmesh_nccl.so", node_bpf::rings::NCCL_PLUGIN);

pub(super) fn run(args: EnvArgs) -> anyhow::Result<Exit> {
    let job = Job::of_environment().ok();
    let rings = run_dir::ring_dir(job.as_ref().map(Job::run_name).as_deref());
    let directory = match args.dir {
        Some(directory) => std::path::absolute(&directory).with_context(|| format!("--dir {}", directory.display()))?,
        None => default_directory(job.as_ref())?,
    };
    let (mpi, nccl) = (install(&directory, MPI)?, install(&directory, NCCL)?);
    let get = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(other) = get(PLUGIN).filter(|other| Path::new(other).file_name() != nccl.file_name()) {
        eprintln!(
            "rankmesh: {PLUGIN} is {other} and stays: NCCL loads one profiler plugin, so NCCL calls are not recorded without root"
        );
    }
    if let Some(set) = limited_export(&get) {
        eprintln!(
            "rankmesh: SLURM_EXPORT_ENV is {set} (sbatch --export): what ranks need is added to it; a step with \
             `srun --export` needs --export={},…",
            HANDED_ON.join(",")
        );
    }
    let mut out = std::io::stdout().lock();
    for line in lines(&rings, &mpi, &nccl, &get)? {
        writeln!(out, "{line}")?;
    }
    Ok(Exit::Complete)
}

const PLUGIN: &str = "NCCL_PROFILER_PLUGIN";
/// What ranks need of the environment.
const HANDED_ON: [&str; 3] = ["LD_PRELOAD", PLUGIN, "RANKMESH_RING_DIR"];

/// Of the job's mesh, where this user has made one; else in this user's state.
fn default_directory(job: Option<&Job>) -> anyhow::Result<PathBuf> {
    let (name, _) = match job.map(up::default_directory) {
        Some(Ok(found)) => found,
        _ => return Ok(paths::state_dir()?.join("lib")),
    };
    match RunDir::open(&name) {
        Ok(of_job) if of_job.has_charter() => Ok(name.join("lib")),
        Ok(_) => Ok(paths::state_dir()?.join("lib")),
        Err(refused) => {
            if !refused.is_missing() {
                eprintln!("rankmesh: {refused}; the libraries are in your state directory instead");
            }
            Ok(paths::state_dir()?.join("lib"))
        }
    }
}

/// Writes a library, unless it is there. Programs are going to load it: nobody but this user and
/// root can change it, or what leads there.
fn install(directory: &Path, (name, contents): (&str, &[u8])) -> anyhow::Result<PathBuf> {
    let doing = || format!("writing {name} into {} (see --dir)", directory.display());
    let opened = match Dir::open(directory) {
        Err(refused) if refused.is_missing() => Dir::make_all(directory),
        opened => opened,
    };
    let opened = opened.with_context(doing)?;
    let is_there = opened.read(name, contents.len() as u64).is_ok_and(|found| found == contents);
    if !is_there {
        // it appears complete or not at all: ranks may be starting
        opened.replace(name, contents, 0o755).with_context(doing)?;
    }
    Ok(directory.join(name))
}

/// The lines to be evaluated by sh. Variables that are set already are kept, and calling it twice
/// changes nothing more.
fn lines(
    rings: &Path,
    library: &Path,
    plugin: &Path,
    get: &dyn Fn(&str) -> Option<String>,
) -> anyhow::Result<Vec<String>> {
    let (rings, library, plugin) = (text(rings)?, text(library)?, text(plugin)?);
    // LD_PRELOAD is split at both, and they cannot be quoted in it
    ensure!(
        !library.contains([' ', ':', ';']),
        "{library}: LD_PRELOAD takes no path with a space, ':' or ';' (see --dir)"
    );
    let with = |name: &str, separator: char, more: &[&str]| {
        let before = get(name).unwrap_or_default();
        let kept: Vec<&str> = before.split(separator).filter(|part| !part.is_empty() && !more.contains(part)).collect();
        [more, &kept].concat().join(&separator.to_string())
    };
    let preload = with("LD_PRELOAD", ':', &[library]);
    // Open MPI's launcher passes the variables named here on to ranks of other nodes (srun and
    // MPICH's pass on everything).
    let handed_on = with("OMPI_MCA_mca_base_env_list", ';', &HANDED_ON);
    // another plugin is kept; ours may have been written elsewhere before
    let ours = |set: &str| Path::new(set).file_name().is_some_and(|name| name == NCCL.0);
    let plugin = get(PLUGIN).filter(|set| !ours(set)).unwrap_or_else(|| plugin.to_owned());
    let export = |name: &str, value: &str| format!("export {name}={}", for_shell(value));
    let mut lines = vec![
        export("RANKMESH_RING_DIR", rings),
        export("LD_PRELOAD", &preload),
        export(PLUGIN, &plugin),
        export("OMPI_MCA_mca_base_env_list", &handed_on),
    ];
    if limited_export(get).is_some() {
        lines.push(export("SLURM_EXPORT_ENV", &with_ours(&with("SLURM_EXPORT_ENV", ',', &HANDED_ON))));
    }
    Ok(lines)
}

/// What `sbatch --export` lets srun pass on, where that is not everything (sbatch(1), srun(1)).
fn limited_export(get: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    get("SLURM_EXPORT_ENV").filter(|set| !set.split(',').any(|name| name == "ALL"))
}

/// A list for srun without its words for "nothing".
fn with_ours(list: &str) -> String {
    let named: Vec<&str> = list.split(',').filter(|name| !["NONE", "NIL"].contains(name)).collect();
    named.join(",")
}

fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str().with_context(|| format!("{} is not text: give another --dir", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_stays_and_twice_is_as_once() {
        let get = |name: &str| match name {
            "LD_PRELOAD" => Some("/a.so:/home/it's/lib/l.so".to_owned()),
            "OMPI_MCA_mca_base_env_list" => Some("LD_PRELOAD;MINE".to_owned()),
            _ => None,
        };
        let plugin = Path::new("/lib/librankmesh_nccl.so");
        let lines = lines(Path::new("/dev/shm/r"), Path::new("/home/it's/lib/l.so"), plugin, &get).unwrap();
        assert_eq!(
            lines,
            [
                "export RANKMESH_RING_DIR='/dev/shm/r'",
                r"export LD_PRELOAD='/home/it'\''s/lib/l.so:/a.so'",
                "export NCCL_PROFILER_PLUGIN='/lib/librankmesh_nccl.so'",
                "export OMPI_MCA_mca_base_env_list='LD_PRELOAD;NCCL_PROFILER_PLUGIN;RANKMESH_RING_DIR;MINE'",
            ]
        );
        assert!(super::lines(Path::new("/r"), Path::new("/with space/l.so"), plugin, &get).is_err());
    }

    #[test]
    fn a_job_that_exports_nothing_exports_what_ranks_need() {
        let plugin = Path::new("/lib/librankmesh_nccl.so");
        let of = |set: Option<&str>| {
            let get = |name: &str| (name == "SLURM_EXPORT_ENV").then(|| set.map(str::to_owned)).flatten();
            lines(Path::new("/r"), Path::new("/l.so"), plugin, &get).unwrap().get(4).cloned()
        };
        let ours = "LD_PRELOAD,NCCL_PROFILER_PLUGIN,RANKMESH_RING_DIR";
        assert_eq!(of(Some("NONE")), Some(format!("export SLURM_EXPORT_ENV='{ours}'")));
        assert_eq!(of(Some("NIL")), Some(format!("export SLURM_EXPORT_ENV='{ours}'")));
        assert_eq!(of(Some("A,LD_PRELOAD,B=1")), Some(format!("export SLURM_EXPORT_ENV='{ours},A,B=1'")));
        assert_eq!((of(None), of(Some("ALL")), of(Some("ALL,A=1"))), (None, None, None));
    }

    #[test]
    fn a_plugin_of_the_users_own_stays() {
        for (set, wanted) in [("inspector", "inspector"), ("/old/librankmesh_nccl.so", "/new/librankmesh_nccl.so")] {
            let get = |name: &str| (name == PLUGIN).then(|| set.to_owned());
            let (library, plugin) = (Path::new("/l.so"), Path::new("/new/librankmesh_nccl.so"));
            let lines = lines(Path::new("/r"), library, plugin, &get).unwrap();
            assert_eq!(lines[2], format!("export NCCL_PROFILER_PLUGIN='{wanted}'"));
        }
    }

    #[test]
    fn no_library_is_taken_from_where_another_user_can_write() {
        use std::os::unix::fs::PermissionsExt;
        let site = tempfile::tempdir().unwrap();
        let lib = site.path().join("lib");
        let path = install(&lib, MPI).unwrap();
        std::fs::set_permissions(&lib, std::fs::Permissions::from_mode(0o777)).unwrap();
        let refused = format!("{:#}", install(&lib, MPI).unwrap_err());
        assert!(refused.contains("may be changed by everybody"), "{refused}");
        std::fs::set_permissions(&lib, std::fs::Permissions::from_mode(0o755)).unwrap();
        // The right bytes, in a file that somebody else can change later.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        install(&lib, MPI).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
        if std::os::unix::fs::chown(&lib, Some(65534), None).is_err() {
            eprintln!("skipped: only root can give files to another user");
            return;
        }
        let refused = format!("{:#}", install(&lib, MPI).unwrap_err());
        assert!(refused.contains("belongs to user 65534"), "{refused}");
    }

    #[test]
    fn the_library_is_written_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = install(&dir.path().join("lib"), MPI).unwrap();
        let written = std::fs::metadata(&path).unwrap().modified().unwrap();
        assert_eq!(install(&dir.path().join("lib"), MPI).unwrap(), path);
        assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), written);
        assert_eq!(std::fs::read_dir(dir.path().join("lib")).unwrap().count(), 1);
    }
}
