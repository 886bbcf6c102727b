//! The Python module, on each Python that is there; and the wheel, as pip installs it.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::job_stores::EndedJob;
use common::{Lab, python, stderr, stdout, wait_for};

/// Pythons of this machine, 3.9 and later: on PATH by number, and pyenv's.
fn pythons() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let home = std::env::var_os("PYENV_ROOT").map(PathBuf::from);
    let home = home.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".pyenv")));
    let installed = home.and_then(|root| std::fs::read_dir(root.join("versions")).ok());
    found.extend(installed.into_iter().flatten().flatten().map(|version| version.path().join("bin/python3")));
    found.extend(["/usr/bin/python3".into(), "/usr/local/bin/python3".into()]);
    found.retain(|python| {
        let new = "import sys; sys.exit(sys.version_info < (3, 9))";
        Command::new(python).args(["-c", new]).output().is_ok_and(|output| output.status.success())
    });
    found.sort();
    found
}

/// A job that has ended, and an agent whose mesh has lost a node.
fn lab() -> Lab {
    let mut lab = Lab::new();
    std::fs::create_dir(lab.path("job")).expect("a directory");
    EndedJob::small().write(&lab.path("job"));
    lab.start("a", &[]);
    lab.start("b", &[]);
    lab.wait_for_members(&["a", "b"]);
    lab.kill("b");
    wait_for("b is known to be dead", || {
        let nodes = lab.nodes("a")?;
        let dead = nodes.iter().any(|node| node["name"] == "b" && node["state"] == "dead");
        if dead { Ok(()) } else { Err(format!("{nodes:?}")) }
    });
    lab
}

fn asked(lab: &Lab, interpreter: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(interpreter);
    command.arg(python::script("module.py")).arg(env!("CARGO_BIN_EXE_rankmesh")).arg(lab.path("job"));
    command.arg(lab.socket("a")).args(more).env("PYTHONDONTWRITEBYTECODE", "1").output().expect("runs")
}

#[test]
fn every_python_that_is_there_asks() {
    let pythons = pythons();
    if pythons.is_empty() {
        eprintln!("skipped: every_python_that_is_there_asks: no Python 3.9 or later");
        return;
    }
    let lab = lab();
    for interpreter in &pythons {
        let ran = asked(&lab, interpreter, &[]);
        assert!(ran.status.success() && stdout(&ran).trim() == "ok", "{}: {}", interpreter.display(), stderr(&ran));
        eprintln!("asked with {}", interpreter.display());
    }
    if let Some(interpreter) = python::clients("every_python_that_is_there_asks, with frames") {
        let ran = asked(&lab, &interpreter, &["frames"]);
        assert!(ran.status.success() && stdout(&ran).trim() == "ok", "{}", stderr(&ran));
    }
}

#[test]
fn the_wheel_installs_the_module_and_the_program() {
    let Some(interpreter) = python::clients("the_wheel_installs_the_module_and_the_program") else { return };
    let lab = Lab::new();
    EndedJob::small().write(lab.dir.path());
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/build_wheel.py");
    let run = |program: &Path, arguments: &[&str]| {
        let ran = Command::new(program).args(arguments).current_dir(lab.dir.path()).output().expect("runs");
        assert!(ran.status.success(), "{arguments:?}: {}", stderr(&ran));
        stdout(&ran)
    };
    let out = lab.path("wheels").display().to_string();
    let made = run(&interpreter, &[&build.display().to_string(), env!("CARGO_BIN_EXE_rankmesh"), &out]);
    let wheel = made.trim();
    assert!(wheel.contains("-py3-none-") && wheel.contains("linux"), "{wheel}");
    let place = lab.path("venv");
    run(&interpreter, &["-m", "venv", &place.display().to_string()]);
    let installed = place.join("bin/python");
    run(&installed, &["-m", "pip", "install", "-q", "--no-index", "--no-deps", "--disable-pip-version-check", wheel]);
    let question = "import rankmesh; print(rankmesh.connect(db=['n0.db', 'n1.db'], timeout=60).sql('SELECT count(*) FROM collectives').rows)";
    assert_eq!(run(&installed, &["-c", question]).trim(), "[(800,)]");
    assert!(run(&place.join("bin/rankmesh"), &["--version"]).starts_with("rankmesh "));
}
