//! Real gloo jobs through a named function, `--probe libgloo.so.0:gloo::allreduce`: a program of
//! our own with Debian's libgloo, and PyTorch's DistributedDataParallel where python3-torch is
//! installed. As many calls are recorded as the ranks report.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{Cgroup, Job, Recorded, Recorder, can_capture, wait_for};
use node_bpf::{CaptureConfig, ProbeSpec, Record};

const RANKS: i32 = 2;
const FUNC: &str = "libgloo.so.0.5.0:gloo::allreduce(gloo::AllreduceOptions const&)";

/// Starts each rank with `command`, in the cgroup.
fn start(cgroup: &Cgroup, command: &[&str], environment: &[(&str, String)]) -> Vec<Job> {
    let rank = |rank: i32| {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(r#"echo $$ > "$0" && exec "$@""#).arg(cgroup.0.join("cgroup.procs")).args(command);
        shell.env("RANK", rank.to_string()).env("WORLD_SIZE", RANKS.to_string()).envs(environment.iter().cloned());
        Job(shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    };
    (0..RANKS).map(rank).collect()
}

/// Waits for the end of a rank; its last line is the number of its calls.
fn result_of(job: &mut Child) -> u64 {
    use std::io::Read;
    let (mut text, mut stderr) = (String::new(), String::new());
    job.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    job.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let status = job.wait().unwrap();
    assert!(status.success(), "{status}: {text} {stderr}");
    text.lines().last().unwrap().parse().unwrap()
}

/// Calls counted of a process, and its single rows.
fn of(recorded: &Recorded, pid: u32, rank: i32) -> (u64, u64) {
    let (mut counted, mut rows) = (0, 0);
    for record in &recorded.0 {
        match record {
            Record::CallTally(tally) if tally.pid == pid => {
                assert!(tally.func.starts_with("libgloo.so") && tally.func.ends_with(FUNC.split_once(':').unwrap().1));
                assert_eq!((tally.source, tally.rank), ("symbol", Some(rank)));
                counted += tally.count;
            }
            Record::SymbolCall(call) if call.pid == pid => {
                assert_eq!(call.rank, Some(rank));
                rows += 1;
            }
            _ => {}
        }
    }
    (counted, rows)
}

fn recorder(cgroup: &Cgroup) -> Recorder {
    let probe = ProbeSpec::function("libgloo.so.0:gloo::allreduce").unwrap();
    Recorder::start(CaptureConfig { probes: vec![probe], ..cgroup.capturing([]) })
}

/// Lets the ranks begin when their library is probed, and compares the records with the ranks' own
/// counts.
fn compare(recorder: Recorder, mut jobs: Vec<Job>, least: u64) {
    let probed = |files: &[node_bpf::AttachedFile]| files.iter().any(|file| file.library == "symbol");
    wait_for("gloo to be probed", || probed(&recorder.status().files));
    let pids: Vec<u32> = jobs.iter().map(|job| job.0.id()).collect();
    let mut inputs: Vec<_> = jobs.iter_mut().map(|job| job.0.stdin.take().unwrap()).collect();
    inputs.iter_mut().for_each(|input| input.write_all(b"go\n").unwrap());
    let known = |pid: &u32| recorder.so_far().iter().any(|r| matches!(r, Record::Process(p) if p.pid == *pid));
    wait_for("both ranks to be known", || pids.iter().all(known));
    drop(inputs); // they end when their input does
    let counted: Vec<u64> = jobs.iter_mut().map(|job| result_of(&mut job.0)).collect();
    let recorded = recorder.stop();
    assert!(counted.iter().all(|calls| *calls >= least), "{counted:?}");
    for ((rank, pid), calls) in (0..).zip(pids).zip(counted) {
        let (counted, rows) = of(&recorded, pid, rank);
        assert_eq!(counted, calls, "of rank {rank}");
        assert!(rows > 0, "the slow ones are rows, too");
    }
    assert!(recorded.losses().iter().all(|loss| loss.reason == "shed"), "{:?}", recorded.losses());
}

#[test]
fn a_gloo_job_is_recorded_completely() {
    if !can_capture() {
        return;
    }
    if !Path::new("/usr/include/gloo/allreduce.h").exists() {
        eprintln!("SKIPPED: needs gloo (apt-get install libgloo-dev)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/gloo_job.cc");
    let program = dir.path().join("gloo_job");
    let built = Command::new("c++").args(["-O1", "-std=c++14", "-o"]).arg(&program).arg(source).arg("-lgloo").output();
    let built = built.unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let store = dir.path().join("store");
    std::fs::create_dir(&store).unwrap();
    let cgroup = Cgroup::new();
    let recorder = recorder(&cgroup);
    let command = [program.to_str().unwrap(), store.to_str().unwrap(), "500"];
    let jobs = start(&cgroup, &command, &[]);
    let unprobed = Recorder::start(cgroup.capturing([]));
    let reports_it =
        |recorder: &Recorder| recorder.status().problems.iter().any(|p| p.starts_with("calls of gloo are not"));
    wait_for("a recorder without the probe to report what it misses", || reports_it(&unprobed));
    unprobed.stop();
    assert!(!reports_it(&recorder), "{:?}", recorder.status().problems);
    compare(recorder, jobs, 500);
}

/// Steps of a small model under DistributedDataParallel; a hook counts the gradients' reductions,
/// and the loss is reduced too.
const DDP: &str = r#"
import os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
sys.stdin.readline()
torch.manual_seed(0)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=size)
made = [0]
def reduce(state, bucket):
    made[0] += 1
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)))
model.register_comm_hook(None, reduce)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(50):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 64)).square().mean()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss.detach())
    made[0] += 1
dist.destroy_process_group()
sys.stdin.read()
print(made[0])
"#;

#[test]
fn a_pytorch_job_on_gloo_is_recorded_completely() {
    if !can_capture() {
        return;
    }
    let has_torch = Command::new("python3").args(["-c", "import torch.distributed"]).stderr(Stdio::null()).status();
    if !has_torch.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: needs PyTorch with a shared gloo (apt-get install python3-torch)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let cgroup = Cgroup::new();
    let recorder = recorder(&cgroup);
    let store = dir.path().join("store");
    let command = ["python3", "-c", DDP, store.to_str().unwrap()];
    let jobs =
        start(&cgroup, &command, &[("GLOO_SOCKET_IFNAME", "lo".to_owned()), ("OMP_NUM_THREADS", "1".to_owned())]);
    compare(recorder, jobs, 100);
}
