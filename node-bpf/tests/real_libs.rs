//! NVIDIA's published libraries, called without a GPU, under real eBPF: every call is found, with
//! its arguments and its return code, and a communicator's structure is read at each version's
//! offsets. `make check NAME=real-libs` fetches them and prints where they are.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Cgroup, Recorder, can_capture, wait_for};
use node_bpf::{Collective, Record};

const NEEDS: &str = "calls published libraries: make check NAME=real-libs";

/// The directory of scripts/real-libs.sh.
fn libraries() -> PathBuf {
    std::env::var_os("RANKMESH_REAL_LIBS").map(PathBuf::from).expect(NEEDS)
}

fn compile(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let made = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-o"])
        .arg(&program)
        .arg(source)
        .arg("-ldl")
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    program
}

const TYPES: [(&str, u64); 12] = [
    ("int8", 1),
    ("uint8", 1),
    ("int32", 4),
    ("uint32", 4),
    ("int64", 8),
    ("uint64", 8),
    ("float16", 2),
    ("float32", 4),
    ("float64", 8),
    ("bfloat16", 2),
    ("float8_e4m3", 1),
    ("float8_e5m2", 1),
];

/// A version, where `readelf --debug-dump=info` shows the fields of `struct ncclComm` in it, and
/// the calls it exports.
struct Version {
    version: &'static str,
    hash_at: u64,
    rank_at: u64,
    /// It has `startMagic`.
    magic: bool,
    calls: usize,
}

const VERSIONS: [Version; 4] = [
    Version { version: "2.18.3", hash_at: 9168, rank_at: 9176, magic: false, calls: 8 },
    Version { version: "2.21.5", hash_at: 13528, rank_at: 13536, magic: true, calls: 8 },
    Version { version: "2.27.5", hash_at: 0x10_44b0, rank_at: 0x10_44b8, magic: true, calls: 8 },
    Version { version: "2.32.3", hash_at: 0x12_06e0, rank_at: 0x12_06e8, magic: true, calls: 19 },
];

#[test]
#[ignore = "calls published libraries: make check NAME=real-libs"]
fn every_nccl_call_is_found_and_communicators_are_read() {
    assert!(can_capture(), "this test needs eBPF");
    let program = compile("real");
    for version in &VERSIONS {
        let wheel = libraries().join(format!("nvidia-nccl-cu12-{}", version.version));
        let library = wheel.join("nvidia/nccl/lib/libnccl.so.2");
        assert!(library.exists(), "{}: {NEEDS}", library.display());
        check(&program, &library, version);
        let read = if version.magic { ", and a communicator read" } else { "" };
        eprintln!("NCCL {}: {} calls{read}", version.version, version.calls);
    }
}

fn check(program: &Path, library: &Path, version: &Version) {
    const HASH: u64 = 0xfeed_beef_0102_0304;
    let cgroup = Cgroup::new();
    let recorder = Recorder::start(cgroup.capturing([library.to_owned()]));
    let mut child = Command::new("sh")
        .args(["-c", r#"echo $$ > "$0" && exec "$@""#])
        .arg(cgroup.0.join("cgroup.procs"))
        .arg(program)
        .arg(library)
        .args([version.rank_at, version.hash_at, HASH].map(|number| number.to_string()))
        .args(["5", "8", if version.magic { "1" } else { "0" }])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let lines: Vec<String> = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .take_while(|line| line != "done")
        .collect();
    let returned: HashMap<(String, u64), i32> = lines
        .iter()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some(((words.next()?.to_owned(), words.next()?.parse().ok()?), words.next()?.parse().ok()?))
        })
        .collect();
    let calls = || -> Vec<Collective> {
        let collectives = recorder.so_far().into_iter();
        collectives.filter_map(|r| if let Record::Collective(c) = r { Some(c) } else { None }).collect()
    };
    wait_for("every call, and the last with its communicator", || {
        calls().len() >= version.calls && (!version.magic || calls().iter().any(|c| c.comm_hash.is_some()))
    });
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    // a call that makes no record is seen all the same; the counts come once a second
    wait_for("the count of ncclCommInitRank", || {
        recorder.status().probes.iter().any(|p| p.probe == "libnccl:ncclCommInitRank" && p.hits == 1)
    });
    let problems = recorder.status().problems;
    assert!(problems.is_empty(), "{problems:?}");
    let recorded = recorder.stop();
    assert!(recorded.lost().is_empty(), "{:?}", recorded.losses());
    assert_eq!(returned[&("=unique_id".to_owned(), 0)], 0);
    assert_eq!(returned[&("=init_rank".to_owned(), 0)], 1, "no GPU: unhandled CUDA error");
    assert_eq!(recorded.calls().len(), version.calls + usize::from(version.magic), "{lines:?}");
    for call in recorded.calls() {
        let count = call.count.unwrap();
        let (name, bytes) = TYPES[(count % 12) as usize];
        assert_eq!(returned.get(&(call.func.to_owned(), count)), call.ret.as_ref(), "{call:?}: {lines:?}");
        assert_eq!(call.ret, Some(4), "invalid argument: {call:?}");
        assert_eq!((call.datatype, call.bytes), (Some(name), Some(count * bytes)), "{call:?}");
        assert_eq!(call.stream, Some(0x1000 + count), "{call:?}");
        let reduces = ["all_reduce", "reduce", "reduce_scatter"].contains(&call.func);
        assert_eq!(call.reduce_op, reduces.then_some("avg"), "{call:?}");
        let rooted = ["broadcast", "reduce", "gather", "scatter", "send", "recv"].contains(&call.func);
        assert_eq!(call.root, rooted.then_some(3), "{call:?}");
        let of_memory = (count == 1100).then_some((5, 8, HASH));
        assert_eq!(
            (call.rank, call.nranks, call.comm_hash),
            (of_memory.map(|m| m.0), of_memory.map(|m| m.1), of_memory.map(|m| m.2))
        );
        assert_eq!(call.seq, None, "how many calls there were before, nobody knows");
    }
}

#[test]
#[ignore = "calls published libraries: make check NAME=real-libs"]
fn every_cuda_call_is_counted() {
    assert!(can_capture(), "this test needs eBPF");
    let program = compile("real_cuda");
    for library in [
        "nvidia-cuda-runtime-cu12-12.9.79/nvidia/cuda_runtime/lib/libcudart.so.12",
        "nvidia-cuda-runtime-13.0.96/nvidia/cu13/lib/libcudart.so.13",
    ] {
        let library = libraries().join(library);
        assert!(library.exists(), "{}: {NEEDS}", library.display());
        check_cuda(&program, &library);
    }
}

fn check_cuda(program: &Path, library: &Path) {
    let cgroup = Cgroup::new();
    let recorder = Recorder::start(cgroup.capturing([library.to_owned()]));
    let mut child = Command::new("sh")
        .args(["-c", r#"echo $$ > "$0" && exec "$@""#])
        .arg(cgroup.0.join("cgroup.procs"))
        .arg(program)
        .arg(library)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let lines: Vec<String> = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .take_while(|line| line != "done")
        .collect();
    let made: BTreeMap<String, u64> = lines
        .iter()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            assert_eq!(words[2], "35", "no driver: {line}");
            (words[0].to_owned(), words[1].parse().unwrap())
        })
        .collect();
    assert_eq!(made.len(), 7, "{lines:?}");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    let recorded = recorder.stop();
    let mut counted: BTreeMap<String, u64> = BTreeMap::new();
    for record in &recorded.0 {
        if let Record::CallTally(tally) = record {
            assert_eq!(tally.source, "cuda");
            *counted.entry(tally.func.to_string()).or_default() += tally.count;
        }
    }
    assert_eq!(counted, made, "{}", library.display());
    assert!(recorded.lost().is_empty(), "{:?}", recorded.losses());
    eprintln!("{}: {} calls of {} functions", library.display(), made.values().sum::<u64>(), made.len());
}

/// Distance of the function that loads the plugin from ncclGetUniqueId: NVIDIA's wheels carry all
/// symbols.
fn distance(library: &Path) -> i64 {
    use object::{Object, ObjectSymbol};
    let bytes = std::fs::read(library).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let address = |name: &str| file.symbols().find(|s| s.name() == Ok(name)).map(|s| s.address() as i64);
    address("_Z22ncclProfilerPluginInitP8ncclComm").unwrap() - address("ncclGetUniqueId").unwrap()
}

#[test]
#[ignore = "calls published libraries: make check NAME=real-libs"]
fn the_real_library_loads_the_profiler_plugin() {
    let program = compile("real_plugin");
    let dir = tempfile::tempdir().unwrap();
    let plugin = dir.path().join("librankmesh_nccl.so");
    std::fs::write(&plugin, node_bpf::rings::NCCL_PLUGIN).unwrap();
    for (version, loaded) in [("2.27.5", "loaded rankmesh"), ("2.32.3", "Loaded rankmesh (v7)")] {
        let known = VERSIONS.iter().find(|known| known.version == version).unwrap();
        let library = libraries().join(format!("nvidia-nccl-cu12-{version}/nvidia/nccl/lib/libnccl.so.2"));
        assert!(library.exists(), "{}: {NEEDS}", library.display());
        let rings = dir.path().join(version);
        let ran = Command::new(&program)
            .arg(&library)
            .args([distance(&library).to_string(), known.hash_at.to_string(), known.rank_at.to_string()])
            .env("NCCL_PROFILER_PLUGIN", &plugin)
            .env("RANKMESH_RING_DIR", &rings)
            .envs([("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,ENV")])
            .env_remove("SLURMD_NODENAME")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && output.contains("init 0"), "{output}{}", String::from_utf8_lossy(&ran.stderr));
        assert!(output.contains(loaded), "{output}");
        assert_eq!(std::fs::read_dir(rings.join("host")).unwrap().count(), 1, "the plugin's init has made its ring");
        let mask = output.lines().find(|line| line.contains("event mask"));
        assert!(mask.is_none_or(|line| line.ends_with("Enabled: Coll P2p KernelCh ")), "{mask:?}");
        eprintln!("NCCL {version}: {loaded}");
    }
}
