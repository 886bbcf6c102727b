//! A Slurm cluster on this machine (scenarios/slurm/lab.sh) for tests of the real binary. Needs
//! root, slurm-wlm and munge.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::terminal::Terminal;
use super::{stderr, stdout, wait_for};

/// True when Slurm is here; else prints on stderr that the test is skipped.
pub fn has_slurm(test: &str) -> bool {
    let missing = if !nix::unistd::geteuid().is_root() {
        Some("root")
    } else if !Path::new("/usr/sbin/slurmctld").exists() || !Path::new("/usr/sbin/munged").exists() {
        Some("Slurm (apt-get install slurm-wlm munge)")
    } else {
        None
    };
    if let Some(missing) = missing {
        eprintln!("skipped: {test}: needs {missing}");
    }
    missing.is_none()
}

/// A running cluster; ended when dropped.
pub struct Slurm {
    pub dir: tempfile::TempDir,
    binary: PathBuf,
}

impl Slurm {
    /// A cluster of nodes n1, n2, …
    pub fn start(nodes: usize) -> Self {
        Self::start_with(nodes, false, false)
    }

    /// The same with accounting: slurmdbd over a MariaDB of its own.
    pub fn start_with_accounting(nodes: usize) -> Self {
        Self::start_with(nodes, false, true)
    }

    /// The same, of a site: its Prolog, Epilog and job_submit (packaging/slurm) run for every job.
    pub fn start_with(nodes: usize, site: bool, accounting: bool) -> Self {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
        // where every user may run it
        let binary = dir.path().join("rankmesh");
        std::fs::copy(env!("CARGO_BIN_EXE_rankmesh"), &binary).expect("a copy of the binary");
        let slurm = Self { dir, binary };
        let site = site.then(|| ["prolog", "epilog"].map(|name| slurm.site_script(name)));
        let up = slurm.lab("up", nodes, site.as_ref(), accounting);
        assert!(up.status.success(), "Slurm itself does not start: {}\n{}", stdout(&up), slurm.logs());
        slurm
    }

    /// A script of packaging/slurm that finds this cluster and this binary.
    fn site_script(&self, name: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../packaging/slurm/{name}.sh"));
        let path = self.path(name);
        let text = format!(
            "#!/bin/bash\nexport PATH=/usr/sbin:/usr/bin:/sbin:/bin RANKMESH={} SLURM_CONF={} RANKMESH_LOG_FILE={}\nexec {}\n",
            self.binary.display(),
            self.path("cluster/slurm.conf").display(),
            self.path("site.log").display(),
            script.display()
        );
        std::fs::write(&path, text).expect("a script");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("chmod");
        path
    }

    fn lab(&self, what: &str, nodes: usize, site: Option<&[PathBuf; 2]>, accounting: bool) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/slurm/lab.sh");
        let mut command = Command::new(script);
        if let Some([prolog, epilog]) = site {
            let submit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/slurm/job_submit.lua");
            command.env("RANKMESH_LAB_PROLOG", prolog).env("RANKMESH_LAB_EPILOG", epilog);
            command.env("RANKMESH_LAB_JOB_SUBMIT", submit);
        }
        if accounting {
            command.env("RANKMESH_LAB_ACCOUNTING", "1");
        }
        command.arg(what).arg(self.dir.path().join("cluster")).arg(nodes.to_string());
        // files, not pipes: daemons keep descriptors that they inherit
        let out = self.dir.path().join(format!("lab-{what}.out"));
        let file = std::fs::File::create(&out).expect("a file");
        let status = command.stdin(Stdio::null()).stdout(file.try_clone().expect("clone")).stderr(file).status();
        Output {
            status: status.expect("the script runs"),
            stdout: std::fs::read(&out).unwrap_or_default(),
            stderr: vec![],
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The binary where every user may run it.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// A command of this cluster.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SLURM_") {
                command.env_remove(name);
            }
        }
        command.env("SLURM_CONF", self.dir.path().join("cluster/slurm.conf")).stdin(Stdio::null());
        command.current_dir(self.dir.path());
        command
    }

    pub fn run(&self, program: &str, arguments: &[&str]) -> Output {
        self.command(program).args(arguments).output().expect("runs")
    }

    /// `rankmesh ARGUMENTS` on the host that is login node and every node.
    pub fn rankmesh(&self, arguments: &[&str]) -> Output {
        self.command(&self.binary).args(arguments).output().expect("runs")
    }

    /// The same where no agent's socket is to be seen, as on a login node.
    pub fn rankmesh_elsewhere(&self, arguments: &[&str]) -> Output {
        let hide = "mount -t tmpfs none /tmp/rankmesh-0 && exec \"$@\"";
        self.command("unshare")
            .args(["--mount", "sh", "-c", hide, "sh"])
            .arg(&self.binary)
            .args(arguments)
            .output()
            .expect("runs")
    }

    /// The same on a terminal.
    pub fn rankmesh_elsewhere_on_a_terminal(&self, arguments: &str) -> Terminal {
        let hide = format!(
            "stty rows 40 cols 120; mount -t tmpfs none /tmp/rankmesh-0 && exec {} {arguments}",
            self.binary.display()
        );
        Terminal::open(self.command("script"), &format!("unshare --mount sh -c '{hide}'"))
    }

    /// Submits a batch script; its output goes to `NAME.out`. In it `$RM` is the binary.
    pub fn submit(&self, name: &str, flags: &[&str], script: &str) -> u32 {
        let file = self.path(&format!("{name}.sh"));
        let text = format!("#!/bin/bash\nRM={}\n{script}\n", self.binary.display());
        std::fs::write(&file, text).expect("a script");
        let out = self.path(&format!("{name}.out"));
        let mut sbatch = self.command("sbatch");
        sbatch.args(["--parsable"]).arg("-o").arg(&out).arg("--open-mode=append").args(flags).arg(&file);
        let made = sbatch.output().expect("sbatch runs");
        assert!(made.status.success(), "{}", stderr(&made));
        stdout(&made).trim().parse().expect("a job id")
    }

    pub fn output_of(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(&format!("{name}.out"))).unwrap_or_default()
    }

    /// Waits until the output of a job has these words.
    pub fn wait_for_output(&self, name: &str, words: &str) -> String {
        wait_for(&format!("{name} says {words}"), || {
            let text = self.output_of(name);
            if text.contains(words) { Ok(text) } else { Err(format!("{text}\n{}", self.logs())) }
        })
    }

    /// The state of a job in squeue; empty when it has ended.
    pub fn state(&self, job: u32) -> String {
        let shown = self.run("squeue", &["-h", "-j", &job.to_string(), "-t", "all", "-o", "%T"]);
        stdout(&shown).trim().to_owned()
    }

    /// Nothing of the mesh in `directory` runs any more.
    pub fn wait_for_nothing(&self, directory: &Path) {
        let words = directory.display().to_string();
        wait_for("every agent is gone", || {
            let left: Vec<String> = procfs::process::all_processes()
                .expect("/proc")
                .flatten()
                .filter_map(|process| process.cmdline().ok())
                .filter(|line| line.contains(&words))
                .map(|line| line.join(" "))
                .collect();
            if left.is_empty() { Ok(()) } else { Err(left.join("\n")) }
        });
    }

    /// The last output of Slurm and the site's scripts.
    pub fn logs(&self) -> String {
        let last = |name: &str| {
            let log = std::fs::read_to_string(self.path(name)).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            lines[lines.len().saturating_sub(15)..].join("\n")
        };
        format!("{}\n{}", last("cluster/log/slurmctld.log"), last("site.log"))
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        let _ = self.run("scancel", &["--user=root"]);
        let _ = self.run("scancel", &["--user=nobody"]);
        // jobs first: a slurmd that is terminated leaves them
        let until = std::time::Instant::now() + std::time::Duration::from_secs(15);
        while std::time::Instant::now() < until && !stdout(&self.run("squeue", &["-h"])).trim().is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let _ = self.lab("down", 0, None, false);
    }
}
