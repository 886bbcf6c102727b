//! CUDA and HIP calls: counted in the kernel exactly as often as they were made, by each api for
//! itself, with bytes, direction and stream; synchronisations after a collective are records of
//! their own.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Cgroup, Recorded, Recorder, can_capture, wait_for, workloads};
use node_bpf::{AttachMode, CaptureConfig, CudaCall, Record};

fn cc(arguments: &mut Command) {
    let output = arguments.args(["-std=gnu11", "-O2"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The directory with the stand-ins and gpu_calls, for one test.
fn compile() -> tempfile::TempDir {
    let out = tempfile::tempdir().unwrap();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let at = |name: &str| out.path().join(name);
    for (define, name, needs) in [
        ("-DDRIVER", "libcuda.so.1", None),
        ("-DRUNTIME", "libcudart.so.12", Some("libcuda.so.1")),
        ("-DHIP", "libamdhip64.so.6", None),
    ] {
        let mut command = Command::new("cc");
        // a function that begins with a push is probed at a twentieth of the cost of one that does
        // not
        command.args(["-fPIC", "-fvisibility=hidden", "-fno-omit-frame-pointer", "-shared", define]);
        command.arg("-Wl,-rpath,$ORIGIN");
        command.arg(format!("-Wl,-soname,{name}")).arg("-o").arg(at(name)).arg(here.join("tests/c/gpu_stub.c"));
        cc(command.args(needs.map(at)));
    }
    std::fs::copy(workloads().join("libnccl.so.2"), at("libnccl.so.2")).unwrap();
    for name in ["gpu_calls", "gpu_threads", "gpu_graph"] {
        let mut command = Command::new("cc");
        command.arg("-I").arg(here.join("../scenarios/nccl-sim")).arg("-Wl,-rpath,$ORIGIN").arg("-o");
        command.arg(at(name)).arg(here.join(format!("tests/c/{name}.c")));
        cc(command.args(["libcudart.so.12", "libcuda.so.1", "libamdhip64.so.6", "libnccl.so.2"].map(at)).arg("-lrt"));
    }
    out
}

const LIBRARIES: [&str; 4] = ["libcudart.so.12", "libcuda.so.1", "libamdhip64.so.6", "libnccl.so.2"];

/// Runs gpu_calls: once it has its libraries mapped, `before` may look at it, and after its loops
/// `after`, with its number.
fn calls(built: &Path, cgroup: &Cgroup, loops: [u32; 2], before: impl FnOnce(), after: impl FnOnce(u32)) -> u32 {
    let mut command = Command::new("sh");
    command.arg("-c").arg(r#"echo $$ > "$0" && exec "$@""#).arg(cgroup.0.join("cgroup.procs"));
    command.arg(built.join("gpu_calls")).args(loops.map(|n| n.to_string())).env("RANK", "6");
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    before();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"go\n").unwrap();
    after(child.id());
    input.write_all(b"on\n").unwrap();
    assert!(child.wait().unwrap().success());
    child.id()
}

/// Waits until it is known: the identity of a process can be read while it lives.
fn wait_until_known(recorder: &Recorder, pid: u32) {
    let known = |r: &Record| matches!(r, Record::Process(p) if p.pid == pid);
    wait_for("the process to be known", || recorder.so_far().iter().any(known));
}

/// Runs a program that waits for one line; its number.
fn run_to_end(built: &Path, cgroup: &Cgroup, program: &str) -> u32 {
    let mut command = Command::new("sh");
    command.arg("-c").arg(r#"echo $$ > "$0" && exec "$@""#).arg(cgroup.0.join("cgroup.procs"));
    let mut child = command.arg(built.join(program)).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert!(child.wait().unwrap().success());
    child.id()
}

/// By source and function: calls, bytes and rank.
type Sums = BTreeMap<(&'static str, String), (u64, Option<u64>, Option<i32>)>;

fn sums(recorded: &Recorded, pid: u32) -> Sums {
    let mut sums = Sums::new();
    for record in &recorded.0 {
        let Record::CallTally(tally) = record else { continue };
        if tally.pid != pid {
            continue;
        }
        assert_eq!(tally.buckets.iter().map(|(_, count)| count).sum::<u64>(), tally.count);
        assert!(tally.min_ns * tally.count <= tally.sum_ns && tally.sum_ns <= tally.max_ns * tally.count, "{tally:?}");
        assert!(tally.buckets.iter().all(|(mean, _)| (tally.min_ns..=tally.max_ns).contains(mean)), "{tally:?}");
        assert_ne!(tally.cgroup_id, 0);
        let sum = sums.entry((tally.source, tally.func.to_string())).or_insert((0, tally.bytes.map(|_| 0), tally.rank));
        sum.0 += tally.count;
        sum.1 = sum.1.zip(tally.bytes).map(|(a, b)| a + b);
    }
    sums
}

fn rows(recorded: &Recorded) -> Vec<&CudaCall> {
    recorded.0.iter().filter_map(|r| if let Record::CudaCall(call) = r { Some(call) } else { None }).collect()
}

/// Records the built libraries' calls in a cgroup, and nothing else.
fn of_built(built: &tempfile::TempDir, cgroup: &Cgroup, attach_mode: Option<AttachMode>) -> CaptureConfig {
    CaptureConfig {
        libraries: LIBRARIES.iter().map(|name| built.path().join(name)).collect(),
        system_libraries: false,
        attach_mode,
        ..cgroup.capturing([])
    }
}

fn every_call_is_counted(mode: Option<AttachMode>) {
    if !can_capture() {
        return;
    }
    let built = compile();
    let cgroup = Cgroup::new();
    let recorder = Recorder::start(of_built(&built, &cgroup, mode));
    let pid = calls(built.path(), &cgroup, [2_000, 0], || {}, |pid| wait_until_known(&recorder, pid));
    let recorded = recorder.stop();
    let n = 2_000;
    let rank = Some(6);
    let want = [
        (("cuda", "cudaMalloc"), (1, Some(4096), rank)),
        (("cuda", "cudaMemcpyAsync"), (2 * n, Some(1024 * n), rank)),
        (("cuda", "cudaMemcpy2D"), (n, Some(30 * n), rank)),
        (("cuda", "cudaLaunchKernel"), (n, None, rank)),
        (("cuda", "cudaLaunchKernelExC"), (n, None, rank)),
        (("cuda", "cudaStreamSynchronize"), (2, None, rank)),
        (("cuda_driver", "cuMemcpyHtoDAsync"), (2 * n, Some(1024 * n), rank)),
        (("cuda_driver", "cuLaunchKernel"), (n, None, rank)),
        (("cuda_driver", "cuMemsetD32"), (n, Some(20 * n), rank)),
        (("cuda_driver", "cuStreamSynchronize"), (2, None, rank)),
        (("hip", "hipMemcpy"), (n, Some(7 * n), rank)),
        (("hip", "hipLaunchKernel"), (n, None, rank)),
        (("hip", "hipDeviceSynchronize"), (1, None, rank)),
    ];
    let want: Sums = want.map(|((source, func), sum)| ((source, func.to_owned()), sum)).into();
    assert_eq!(sums(&recorded, pid), want);
    assert!(recorded.lost().is_empty(), "{:?}", recorded.losses());

    let after: Vec<_> = rows(&recorded).into_iter().filter(|c| c.kind == Some("after_collective")).collect();
    let after: Vec<_> = after.iter().map(|c| (c.api, c.func, c.stream, c.rank, c.duration_ns > 1_900_000)).collect();
    // the driver's inside the runtime's returns first; the second cudaStreamSynchronize only, and
    // HIP's no more
    assert_eq!(
        after,
        [
            ("driver", "cuStreamSynchronize", Some(0x6666), rank, true),
            ("runtime", "cudaStreamSynchronize", Some(0x6666), rank, true),
        ]
    );
    let process = recorded.0.iter().any(|r| matches!(r, Record::Process(p) if p.pid == pid && p.rank == rank));
    assert!(process, "the process of counted calls is announced");
}

#[test]
fn every_call_is_counted_in_the_best_mode() {
    every_call_is_counted(None);
}

#[test]
fn every_call_is_counted_by_multi_links() {
    every_call_is_counted(Some(AttachMode::Multi));
}

#[test]
fn every_call_is_counted_by_single_probes() {
    every_call_is_counted(Some(AttachMode::Single));
}

#[test]
fn every_call_is_counted_by_probes_without_cookies() {
    every_call_is_counted(Some(AttachMode::Stub));
}

#[test]
fn slow_calls_are_rows_and_no_more_than_the_budget() {
    if !can_capture() {
        return;
    }
    let built = compile();
    let cgroup = Cgroup::new();
    // without the paths of the libraries: they are found in the running process
    let recorder = Recorder::start(cgroup.capturing([]));
    let found = || {
        for name in LIBRARIES {
            wait_for(name, || recorder.status().files.iter().any(|file| file.path == built.path().join(name)));
        }
    };
    let loops = 2_000;
    let pid = calls(built.path(), &cgroup, [loops, 150], found, |pid| {
        // once they are all counted, a new second's budget of rows is untouched when the slow call
        // comes
        let launches = (("cuda", "cudaLaunchKernel".to_owned()), (u64::from(loops), None, Some(6)));
        wait_for("the loops to be counted", || {
            sums(&Recorded(recorder.so_far()), pid).get(&launches.0) == Some(&launches.1)
        });
    });
    let status = recorder.status();
    let recorded = recorder.stop();
    let slow: Vec<_> = rows(&recorded).into_iter().filter(|c| c.pid == pid).collect();
    let first = slow.iter().find(|c| c.stream == Some(0x5555) && c.api == "runtime").expect("a row of the slow call");
    assert!(first.duration_ns >= 2_000_000 && first.func == "cudaStreamSynchronize" && first.kind.is_none());
    let mut seconds: BTreeMap<i64, usize> = BTreeMap::new();
    for call in slow.iter().filter(|c| c.kind != Some("after_collective")) {
        *seconds.entry((call.ts_ns + call.duration_ns) / 1_000_000_000).or_default() += 1;
    }
    // an epoch's borders are not exactly the seconds'
    assert!(seconds.values().all(|rows| *rows <= 400), "{seconds:?}");
    let launch = sums(&recorded, pid)[&("cuda", "cudaLaunchKernel".to_owned())].0;
    assert_eq!(launch, u64::from(loops));
    let rule = status.rows.iter().find(|rule| rule.probe == "libcudart:cudaLaunchKernel").expect("a rule");
    let made = slow.iter().filter(|c| c.func == "cudaLaunchKernel").count() as u64;
    assert!(rule.rows <= made && made < launch, "{rule:?}, {made} rows of {launch}");
}

/// The main thread waits for the work of the backward pass; a thread that copies does not.
#[test]
fn a_synchronisation_follows_collectives_of_other_threads_on_the_main_thread_only() {
    if !can_capture() {
        return;
    }
    let built = compile();
    let cgroup = Cgroup::new();
    let recorder = Recorder::start(of_built(&built, &cgroup, None));
    let pid = run_to_end(built.path(), &cgroup, "gpu_threads");
    assert!(recorder.device_waits().is_empty(), "all have ended");
    let recorded = recorder.stop();
    let after = |api: &str| -> Vec<(u64, bool)> {
        let rows = rows(&recorded).into_iter().filter(|c| c.kind == Some("after_collective") && c.api == api);
        rows.map(|c| (c.stream.unwrap(), c.tid == pid)).collect()
    };
    let want = [(1, true), (4, true), (5, false), (6, true), (7, true)];
    assert_eq!(after("runtime"), want);
    assert_eq!(after("driver"), want, "the driver's call inside the runtime's waits for the same");
    assert_eq!(sums(&recorded, pid)[&("cuda", "cudaStreamSynchronize".to_owned())].0, 8);
}

/// Of parallel streams, those on which a capture was begun or that joined one through events.
fn captured_calls_are_known_by_stream(mode: Option<AttachMode>) {
    if !can_capture() {
        return;
    }
    let built = compile();
    let cgroup = Cgroup::new();
    let recorder = Recorder::start(of_built(&built, &cgroup, mode));
    let pid = run_to_end(built.path(), &cgroup, "gpu_graph");
    let recorded = recorder.stop();
    let calls: Vec<_> = recorded.calls().into_iter().filter(|call| call.pid == pid).collect();
    let seen: Vec<_> = calls.iter().map(|call| (call.stream.unwrap(), call.captured)).collect();
    let truth: Vec<_> = calls.iter().map(|call| (call.stream.unwrap(), Some(call.count == Some(1)))).collect();
    assert_eq!(seen, truth);
    assert_eq!(seen.iter().filter(|(_, captured)| *captured == Some(true)).count(), 7);
    assert_eq!(seen.len(), 20);
}

#[test]
fn captured_calls_are_known_by_stream_in_the_best_mode() {
    captured_calls_are_known_by_stream(None);
}

#[test]
fn captured_calls_are_known_by_stream_by_single_probes() {
    captured_calls_are_known_by_stream(Some(AttachMode::Single));
}
