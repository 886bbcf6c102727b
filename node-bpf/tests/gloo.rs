//! Real gloo jobs: a program of our own with Debian's libgloo, and PyTorch's
//! DistributedDataParallel where python3-torch is installed. Every call is recorded with its rank,
//! its communicator and its number there, without a flag.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};

use common::{Cgroup, Job, Recorded, Recorder, can_capture, wait_for};
use node_bpf::{Collective, Library, ProbeSpec, Record};

/// A rank, its standard input, and what it prints.
struct Rank {
    job: Job,
    input: Option<ChildStdin>,
    output: BufReader<std::process::ChildStdout>,
}

impl Rank {
    fn pid(&self) -> u32 {
        self.job.0.id()
    }

    /// The next line that it prints, as JSON.
    fn line(&mut self) -> serde_json::Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// Lets it end, which it does when its input does.
    fn end(mut self) {
        drop(self.input.take());
        assert!(self.job.0.wait().unwrap().success());
    }
}

/// Starts each rank with `command`, in the cgroup.
fn start(cgroup: &Cgroup, ranks: i32, command: &[&str], environment: &[(&str, &str)]) -> Vec<Rank> {
    let rank = |rank: i32| {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(r#"echo $$ > "$0" && exec "$@""#).arg(cgroup.0.join("cgroup.procs")).args(command);
        shell.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string()).envs(environment.iter().copied());
        let mut job = Job(shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let (input, output) = (job.0.stdin.take(), BufReader::new(job.0.stdout.take().unwrap()));
        Rank { job, input, output }
    };
    (0..ranks).map(rank).collect()
}

fn say_go(ranks: &mut [Rank]) {
    ranks.iter_mut().for_each(|rank| rank.input.as_mut().unwrap().write_all(b"go\n").unwrap());
}

/// Whether gloo is probed in a file of this name.
fn is_probed(recorder: &Recorder, name: &str) -> bool {
    recorder.status().files.iter().any(|file| file.library == "gloo" && file.path.to_string_lossy().contains(name))
}

/// The calls of a process, by communicator, in the order in which they were made.
fn calls_of(recorded: &Recorded, pid: u32) -> BTreeMap<u64, Vec<&Collective>> {
    let mut of: BTreeMap<u64, Vec<&Collective>> = BTreeMap::new();
    for call in recorded.calls().into_iter().filter(|call| call.pid == pid) {
        assert_eq!((call.library, call.tier, call.ret), (Library::Gloo, 1, Some(0)), "{call:?}");
        of.entry(call.comm_hash.unwrap_or_else(|| panic!("no communicator: {call:?}"))).or_default().push(call);
    }
    of.values_mut().for_each(|calls| calls.sort_by_key(|call| call.ts_ns));
    of
}

const RANKS: i32 = 4;
const REDUCTIONS: usize = 200;

/// Function, elements and bytes of each collective but the reductions, in a communicator of `size`.
fn others(size: u64) -> Vec<(&'static str, Option<u64>, Option<u64>)> {
    vec![
        ("all_gather", Some(8), Some(32)),
        ("all_gather_v", Some(8), Some(32)),
        ("all_to_all", Some(size), Some(4 * size)),
        ("broadcast", Some(8), Some(32)),
        ("gather", Some(8), Some(32)),
        ("reduce", Some(8), Some(32)),
        ("scatter", Some(8), Some(32)),
        ("barrier", None, None),
    ]
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
    // a user's probe of the same function beside ours
    let probe = ProbeSpec::function("libgloo.so.0:gloo::allreduce").unwrap();
    let recorder = Recorder::start(node_bpf::CaptureConfig { probes: vec![probe], ..cgroup.capturing([]) });
    let command = [program.to_str().unwrap(), store.to_str().unwrap(), &REDUCTIONS.to_string()];
    let mut ranks = start(&cgroup, RANKS, &command, &[]);
    wait_for("gloo to be probed", || is_probed(&recorder, "libgloo"));
    say_go(&mut ranks);
    let said: Vec<serde_json::Value> = ranks.iter_mut().map(Rank::line).collect();
    let made = |of: &serde_json::Value, name: &str| of[name].as_u64().unwrap() as usize;
    let total: usize = said.iter().map(|said| made(said, "world") + made(said, "even")).sum();
    let count = || recorder.so_far().iter().filter(|record| matches!(record, Record::Collective(_))).count();
    wait_for("all calls to be recorded", || count() >= total);
    assert_eq!(recorder.in_flight(), [], "the barrier that was left by an exception is over");
    let pids: Vec<u32> = ranks.iter().map(Rank::pid).collect();
    ranks.into_iter().for_each(Rank::end);
    let recorded = recorder.stop();
    assert_eq!(recorded.calls().len(), total);

    let of_ranks: Vec<_> = pids.iter().map(|pid| calls_of(&recorded, *pid)).collect();
    // the world is where there are reductions, in all of them the same
    let is_world = |calls: &[&Collective]| calls.iter().any(|call| call.func == "all_reduce");
    let worlds: BTreeSet<u64> =
        of_ranks.iter().flat_map(|of| of.iter().filter(|(_, calls)| is_world(calls)).map(|(hash, _)| *hash)).collect();
    let groups: BTreeSet<u64> =
        of_ranks.iter().flat_map(|of| of.keys().copied()).filter(|hash| !worlds.contains(hash)).collect();
    assert_eq!((worlds.len(), groups.len()), (1, 1), "{of_ranks:?}");
    for (rank, of) in of_ranks.iter().enumerate() {
        let numbers = |hash: &BTreeSet<u64>| of.get(hash.first().unwrap()).cloned().unwrap_or_default();
        let (world, even) = (numbers(&worlds), numbers(&groups));
        assert_eq!((world.len(), even.len()), (made(&said[rank], "world"), made(&said[rank], "even")));
        let who = |calls: &[&Collective]| calls.iter().map(|call| (call.rank, call.nranks)).collect::<BTreeSet<_>>();
        assert_eq!(who(&world), [(Some(rank as i32), Some(RANKS))].into());
        if rank % 2 == 0 {
            assert_eq!(who(&even), [(Some(rank as i32 / 2), Some(2))].into());
        }
        let (reductions, rest) = world.split_at(REDUCTIONS);
        for (seq, call) in (0..).zip(reductions) {
            assert_eq!((call.func, call.seq, call.count, call.bytes), ("all_reduce", Some(seq), Some(64), Some(256)));
        }
        for (size, calls) in [(RANKS as u64, rest), (2, &even[..])] {
            let shapes: Vec<_> = calls.iter().map(|call| (call.func, call.count, call.bytes)).collect();
            assert!(calls.is_empty() || shapes == others(size), "{shapes:?}");
            assert!(calls.iter().all(|call| call.seq == Some(0)));
            let root = |func: &str| calls.iter().find(|call| call.func == func).and_then(|call| call.root);
            assert!(calls.is_empty() || (root("broadcast"), root("gather")) == (Some(size as i32 - 1), Some(0)));
        }
        let sites = reductions.iter().filter(|call| call.site.as_deref().is_some_and(|site| site.contains("gloo_job")));
        assert!(sites.count() > REDUCTIONS / 2, "where they were made is known");
    }
    let world = worlds.first().unwrap();
    for seq in 0..REDUCTIONS {
        let calls = || of_ranks.iter().map(|of| of[world][seq]);
        let last_in = calls().map(|call| call.ts_ns).max().unwrap();
        let first_out = calls().map(|call| call.ts_ns + call.duration_ns).min().unwrap();
        assert!(last_in <= first_out + common::CLOCKS_NS, "reduction {seq}: all come before anybody leaves");
    }
    let counted = recorded.0.iter().filter_map(|record| match record {
        Record::CallTally(tally) if tally.source == "symbol" => Some(tally.count),
        _ => None,
    });
    assert_eq!(counted.sum::<u64>() as usize, RANKS as usize * REDUCTIONS, "the user's own probe");
    let lost = recorded.losses().into_iter().filter(|loss| loss.reason != "shed");
    let lost: Vec<_> = lost.map(|loss| (loss.probe.as_str(), loss.reason.as_str(), loss.lost)).collect();
    let barrier = "libgloo:_ZN4gloo7barrierERNS_14BarrierOptionsE";
    assert_eq!(lost, [(barrier, "unmatched", 1)], "the barrier that was left by an exception has no end");
}

/// Steps of a small model under DistributedDataParallel, and reductions in two groups of two; a
/// hook counts the gradients' reductions.
const DDP: &str = r#"
import json, os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
sys.stdin.readline()
torch.manual_seed(0)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=size)
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
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
for _ in range(5):
    dist.all_reduce(torch.ones(3), group=pairs[rank // 2])
print(json.dumps({"world": made[0], "pair": 5}), flush=True)
sys.stdin.readline()
for _ in range(5):
    dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.ones(3), group=pairs[rank // 2])
print(json.dumps({"world": made[0] + 5, "pair": 10}), flush=True)
sys.stdin.read()
"#;

/// A Python that has PyTorch: RANKMESH_TORCH_PYTHON, or Debian's.
fn torch_python() -> Option<String> {
    let python = std::env::var("RANKMESH_TORCH_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has_torch = Command::new(&python).args(["-c", "import torch.distributed"]).stderr(Stdio::null()).status();
    has_torch.is_ok_and(|status| status.success()).then_some(python)
}

#[test]
fn a_pytorch_job_on_gloo_is_recorded_completely() {
    if !can_capture() {
        return;
    }
    let Some(python) = torch_python() else {
        eprintln!("SKIPPED: needs PyTorch (apt-get install python3-torch, or RANKMESH_TORCH_PYTHON=PYTHON)");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let cgroup = Cgroup::new();
    let recorder = Recorder::start(cgroup.capturing([]));
    let store = dir.path().join("store");
    let command = [&python, "-c", DDP, store.to_str().unwrap()];
    let mut ranks = start(&cgroup, RANKS, &command, &[("GLOO_SOCKET_IFNAME", "lo"), ("OMP_NUM_THREADS", "1")]);
    // Debian's PyTorch has it in the library of its own, wheels in PyTorch's
    let looked = || is_probed(&recorder, "libtorch_cpu") || std::env::var_os("RANKMESH_TORCH_PYTHON").is_none();
    wait_for("gloo to be probed", looked);
    say_go(&mut ranks);
    let said: Vec<serde_json::Value> = ranks.iter_mut().map(Rank::line).collect();
    let made: Vec<usize> = said.iter().map(|said| (said["world"].as_u64().unwrap() + 5) as usize).collect();
    let reductions = || {
        let calls =
            recorder.so_far().into_iter().filter(|r| matches!(r, Record::Collective(c) if c.func == "all_reduce"));
        calls.count()
    };
    wait_for("all reductions to be recorded", || reductions() >= made.iter().sum());
    // another recorder comes while the job runs
    let late = Recorder::start(cgroup.capturing([]));
    wait_for("gloo to be probed by the late one", || late.status().files.len() >= recorder.status().files.len());
    say_go(&mut ranks);
    ranks.iter_mut().for_each(|rank| drop(rank.line()));
    let of_late = || late.so_far().into_iter().filter(|record| matches!(record, Record::Collective(_))).count();
    wait_for("the last reductions to be recorded", || of_late() >= 10 * ranks.len());
    let made: Vec<usize> = made.iter().map(|made| made + 10).collect();
    wait_for("the first one to have them too", || reductions() >= made.iter().sum());
    let pids: Vec<u32> = ranks.iter().map(Rank::pid).collect();
    ranks.into_iter().for_each(Rank::end);
    let recorded = recorder.stop();

    let of_ranks: Vec<_> = pids.iter().map(|pid| calls_of(&recorded, *pid)).collect();
    let of_size = |of: &BTreeMap<u64, Vec<&Collective>>, size: i32| {
        let found: Vec<u64> =
            of.iter().filter(|(_, calls)| calls[0].nranks == Some(size)).map(|(hash, _)| *hash).collect();
        assert_eq!(found.len(), 1, "{of:?}");
        found[0]
    };
    let worlds: BTreeSet<u64> = of_ranks.iter().map(|of| of_size(of, RANKS)).collect();
    assert_eq!(worlds.len(), 1, "one world, the same on all ranks");
    let pairs: Vec<u64> = of_ranks.iter().map(|of| of_size(of, 2)).collect();
    assert!(pairs[0] == pairs[1] && pairs[2] == pairs[3] && pairs[0] != pairs[2], "{pairs:?}");
    for ((rank, of), made) in of_ranks.iter().enumerate().zip(made) {
        let all = of.values().flatten().filter(|call| call.func == "all_reduce").count();
        assert_eq!(all, made, "of rank {rank}");
        assert!(of.values().flatten().all(|call| call.rank.is_some()));
        // the order of the group's operations, whichever thread made them
        let world = &of[worlds.first().unwrap()];
        let mut numbers: Vec<(u64, &str)> = world.iter().map(|call| (call.comm_seq.unwrap(), call.func)).collect();
        numbers.sort_unstable();
        let mut theirs: Vec<(u64, &str)> =
            of_ranks[0][worlds.first().unwrap()].iter().map(|call| (call.comm_seq.unwrap(), call.func)).collect();
        theirs.sort_unstable();
        assert_eq!(numbers, theirs, "the same operations in the same order");
    }
    // gloo keeps what names a communicator since 2025
    let keeps = is_probed(&late, "libtorch_cpu");
    let late = late.stop();
    assert_eq!(late.calls().len(), 10 * pids.len());
    for seen in late.calls() {
        assert_eq!((seen.seq, seen.comm_seq.is_some()), (None, true), "there were calls before: {seen:?}");
        let of = &of_ranks[pids.iter().position(|pid| *pid == seen.pid).unwrap()];
        let is_it = |call: &&&Collective| (call.nranks, call.comm_seq) == (seen.nranks, seen.comm_seq);
        let known = of.values().flatten().find(is_it).unwrap_or_else(|| panic!("the first one has it not: {seen:?}"));
        assert_eq!((seen.func, seen.rank, seen.count), (known.func, known.rank, known.count));
        assert_eq!(seen.comm_hash, known.comm_hash.filter(|_| keeps), "{seen:?}");
    }
}
