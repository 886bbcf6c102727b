//! Events of InfiniBand devices: each that was reported to a process is a row with device, port,
//! process and rank. The library is a stand-in that is compiled with libibverbs' own header, since
//! no host of ours has such a device.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Cgroup, Recorder, can_capture, wait_for};
use node_bpf::{AttachMode, CaptureConfig, ClassState, NetEvent, Record};

/// The stand-in and the rank, in a directory; none where the header is missing.
fn compile() -> Option<tempfile::TempDir> {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        eprintln!("SKIPPED: needs libibverbs' header (apt-get install libibverbs-dev)");
        return None;
    }
    let out = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/verbs.c");
    let library = out.path().join("libibverbs.so.1");
    let versions = out.path().join("versions");
    std::fs::write(&versions, "IBVERBS_1.0 { };\nIBVERBS_1.1 { global: *; } IBVERBS_1.0;\n").unwrap();
    let cc = |command: &mut Command| {
        let output = command.args(["-std=gnu11", "-O2", "-fno-lto", "-pthread"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let mut built = Command::new("cc");
    built.args(["-DLIBRARY", "-fPIC", "-shared", "-Wl,-soname,libibverbs.so.1", "-o"]).arg(&library).arg(&source);
    cc(built.arg(format!("-Wl,--version-script={}", versions.display())));
    cc(Command::new("cc").arg("-o").arg(out.path().join("rank")).arg(&source).arg(&library).arg("-Wl,-rpath,$ORIGIN"));
    Some(out)
}

fn events_are_rows(mode: Option<AttachMode>) {
    if !can_capture() {
        return;
    }
    let Some(built) = compile() else { return };
    let cgroup = Cgroup::new();
    let recorder =
        Recorder::start(CaptureConfig { system_libraries: false, attach_mode: mode, ..cgroup.capturing([]) });
    let on = |class: &node_bpf::ClassStatus| class.name == "fabric-events" && class.state == ClassState::On;
    assert!(recorder.status().classes.iter().any(on));
    let mut command = Command::new("sh");
    command.arg("-c").arg(r#"echo $$ > "$0" && exec "$@""#).arg(cgroup.0.join("cgroup.procs"));
    command.arg(built.path().join("rank")).env("RANK", "4").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let library = built.path().join("libibverbs.so.1");
    wait_for("the library to be probed", || recorder.status().files.iter().any(|file| file.path == library));
    let files = recorder.status().files;
    let file = files.iter().find(|file| file.path == library).unwrap();
    assert_eq!((file.library, file.symbols.len()), ("verbs", 1));
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"go\n").unwrap();
    let pid = child.id();
    let rows = || recorder.so_far().iter().filter(|r| matches!(r, Record::Net(_))).count();
    wait_for("all events", || rows() >= 4);
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "2 2\n");
    let recorded = recorder.stop();
    let all: Vec<&NetEvent> =
        recorded.0.iter().filter_map(|r| if let Record::Net(n) = r { Some(n) } else { None }).collect();
    let of = |device: &str| -> Vec<(&str, u16, Option<i32>)> {
        all.iter().filter(|e| e.saddr == device).map(|e| (e.event, e.sport, e.state)).collect()
    };
    assert_eq!(of("mlx5_0"), [("ib_port_err", 1, Some(10)), ("ib_port_active", 1, Some(9))]);
    assert_eq!(of("mlx5_bond_0"), [("ib_qp_fatal", 0, Some(1)), ("ib_device_fatal", 0, Some(8))]);
    assert_eq!(all.len(), 4, "a call that returned no event is none: {all:?}");
    assert!(all.iter().all(|e| e.pid == Some(pid) && e.rank == Some(4) && e.cgroup_id != 0), "{all:?}");
    assert!(recorded.lost().is_empty(), "{:?}", recorded.losses());
}

#[test]
fn events_of_devices_are_rows_in_the_best_mode() {
    events_are_rows(None);
}

#[test]
fn events_of_devices_are_rows_by_multi_links() {
    events_are_rows(Some(AttachMode::Multi));
}

#[test]
fn events_of_devices_are_rows_by_single_probes() {
    events_are_rows(Some(AttachMode::Single));
}

#[test]
fn events_of_devices_are_rows_by_probes_without_cookies() {
    events_are_rows(Some(AttachMode::Stub));
}
