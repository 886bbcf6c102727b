//! Persistent collectives, and the forms of functions with 64-bit counts (of MPICH: Open MPI has none
//! before its version 6): `c/mpi_persistent.c`.

use super::*;

/// A rank of the program, in what is a half of the world.
#[derive(Debug, Clone, Copy)]
struct Member {
    pid: u32,
    world: i32,
    half: usize,
    rank: i32,
    size: i32,
    large: i32,
}

fn member(line: &str) -> Member {
    let json: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    let number = |name: &str| json[name].as_i64().unwrap() as i32;
    Member {
        pid: number("pid") as u32,
        world: number("world"),
        half: number("half") as usize,
        rank: number("rank"),
        size: number("size"),
        large: number("large"),
    }
}

/// Returns when every rank has said what it is.
fn until_said(job: &mut Job) -> Vec<Member> {
    let lines = BufReader::new(job.0.stdout.take().unwrap()).lines();
    let members: Vec<Member> = lines.take(RANKS).map(|line| member(&line.unwrap())).collect();
    assert_eq!(members.len(), RANKS, "it ended before its ranks were done");
    members
}

/// The collectives of a rank that were made on a communicator, in their order.
fn on(calls: &[Collective], pid: u32, comm: Option<u64>) -> Vec<&Collective> {
    assert!(comm.is_some());
    let mut of: Vec<_> = calls.iter().filter(|c| c.pid == pid && c.comm_hash == comm && c.comm_seq.is_some()).collect();
    of.sort_by_key(|c| c.comm_seq);
    of
}

/// The communicator of the first call of `func` with `count` elements.
fn comm_of(calls: &[Collective], pid: u32, func: &str, count: Option<u64>) -> Option<u64> {
    calls.iter().find(|c| c.pid == pid && c.func == func && c.count == count)?.comm_hash
}

/// The elements of what all ranks of the world start.
const OF_ALL: u64 = 408;

/// Whether it is the start of a persistent collective: a nonblocking one, with the arguments that it
/// was made with.
fn is_start(call: &Collective) -> bool {
    matches!((call.func, call.count), ("iall_reduce", Some(401 | OF_ALL)) | ("ibroadcast", Some(402)))
}

/// What the starts of a rank are counted on: by each hash, how many.
fn started(calls: &[Collective], member: &Member) -> BTreeMap<u64, usize> {
    let mut by_hash: BTreeMap<u64, Vec<&Collective>> = BTreeMap::new();
    let mut counts = BTreeMap::new();
    for start in calls.iter().filter(|c| c.pid == member.pid && is_start(c)) {
        by_hash.entry(start.comm_hash.unwrap()).or_default().push(start);
    }
    for (hash, starts) in by_hash {
        let is_of_half = starts[0].nranks == Some(member.size);
        let place = if is_of_half { (member.rank, member.size) } else { (member.world, RANKS as i32) };
        for (n, start) in (0..).zip(&starts) {
            assert_eq!((start.seq, start.comm_seq, start.tier), (Some(n), Some(n), 0), "{start:?}");
            assert_eq!((start.rank, start.nranks), (Some(place.0), Some(place.1)), "{start:?}");
        }
        let is_begin = |c: &&Collective| c.func == "comm_begin" && c.pid == member.pid;
        let begun: Vec<_> = calls.iter().filter(is_begin).filter(|c| c.comm_hash == starts[0].comm_hash).collect();
        assert_eq!(begun.len(), 1, "who is a member is known from its making: {begun:?}");
        // of the world's, rank 0 makes the last when the others have waited for it
        counts.insert(hash, if is_of_half { starts.len() } else { starts.len().min(3) });
    }
    counts
}

fn assert_as_made(calls: &[Collective], members: &[Member]) {
    let mut of_halves: [BTreeSet<BTreeMap<u64, usize>>; 2] = Default::default();
    for member in members {
        let half = on(calls, member.pid, comm_of(calls, member.pid, "all_reduce", Some(400)));
        let found: Vec<(&str, Option<u64>)> = half.iter().map(|c| (c.func, c.count)).collect();
        let mut expected = vec![
            ("all_reduce", Some(400)),
            ("collective_init", None),
            ("collective_init", None),
            ("all_reduce", Some(404)),
        ];
        expected.extend([("iall_reduce", Some(405)); 20]);
        expected.extend((member.large == 1).then_some(("all_reduce", Some(406))));
        expected.push(("all_reduce", Some(407)));
        assert_eq!(found, expected, "{member:?}");
        assert!((0..).zip(&half).all(|(n, c)| c.comm_seq == Some(n)), "{half:?}");
        let seqs = |func: &str| half.iter().filter(|c| c.func == func).map(|c| c.seq.unwrap()).collect::<Vec<_>>();
        assert_eq!(seqs("all_reduce"), (0..3 + member.large as u64).collect::<Vec<_>>());
        assert_eq!(seqs("collective_init"), [0, 1]);
        let sent: Vec<_> = calls.iter().filter(|c| c.pid == member.pid && c.func == "send").collect();
        assert!(sent.iter().all(|c| c.count == Some(3 << 30) && c.bytes == Some(24 << 30)), "{sent:?}");
        assert_eq!(sent.len(), member.large as usize);
        of_halves[member.half].insert(started(calls, member));
    }
    let of_all: BTreeSet<u64> = calls
        .iter()
        .filter(|c| c.func == "iall_reduce" && c.count == Some(OF_ALL))
        .filter_map(|c| c.comm_hash)
        .collect();
    assert_eq!(of_all.len(), 1, "that of the world is one on all ranks");
    for half in &of_halves {
        assert_eq!(half.len(), 1, "the same on the ranks of a half: {of_halves:x?}");
        let counts: Vec<usize> = half.iter().flat_map(|of| of.values().copied()).collect();
        let mut sorted = counts.clone();
        sorted.sort_unstable();
        assert!(matches!(sorted[..], [3, 10, 10]), "{counts:?}");
    }
    let hashes: Vec<&u64> = of_halves.iter().flatten().flat_map(BTreeMap::keys).collect();
    let different: BTreeSet<&u64> = hashes.iter().copied().collect();
    assert_eq!((hashes.len(), different.len()), (6, 5), "but for the world's each is one of its own");
}

/// The others wait in what they have started last, rank 0 has not.
fn assert_waits(open: &[Collective], calls: &[Collective], members: &[Member]) {
    let asleep = members.iter().find(|member| member.world == 0).unwrap();
    let of_all = calls.iter().find(|c| c.count == Some(OF_ALL)).unwrap().comm_hash;
    for wait in open {
        assert!(wait.func == "wait" && wait.pid != asleep.pid, "{wait:?}");
        assert_eq!((wait.comm_hash, wait.comm_seq), (of_all, Some(3)), "{wait:?}");
    }
}

/// How many starts there are before rank 0 goes on.
const STARTS: usize = RANKS * (2 * 10 + 3) + RANKS - 1;

fn by_ebpf(mpi: Mpi) {
    if !can_capture() || !mpi.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = mpi.build(mpi.compiler, "mpi_persistent.c", dir.path());
    let go_on = dir.path().join("go-on");
    let cgroup = Cgroup::new();
    let recorder = Recorder::start(cgroup.capturing([Mpi::library(&program)]));
    let calls = || -> Vec<Collective> {
        let records = recorder.so_far().into_iter();
        records.filter_map(|r| if let Record::Collective(c) = r { Some(c) } else { None }).collect()
    };
    let all_begin = dir.path().join("begin");
    let mut job = Job(mpi.command(&[&program, &go_on, &all_begin], Some(&cgroup)).spawn().unwrap());
    wait_for("every rank to have begun", || calls().iter().filter(|c| c.func == "init").count() == RANKS);
    fs::write(&all_begin, "").unwrap();
    let members = until_said(&mut job);
    wait_for("all starts", || calls().iter().filter(|c| is_start(c)).count() == STARTS);
    let mut open = vec![];
    wait_for("the others to wait for rank 0", || {
        open = recorder.in_flight();
        open.len() == RANKS - 1
    });
    let made = calls();
    fs::write(&go_on, "").unwrap();
    assert!(job.0.wait().unwrap().success());
    assert_as_made(&made, &members);
    assert_waits(&open, &made, &members);
}

fn by_the_shim(mpi: Mpi) {
    if !mpi.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = mpi.build(mpi.compiler, "mpi_persistent.c", dir.path());
    let (shim, ring_dir, go_on) = (dir.path().join("shim.so"), dir.path().join("rings"), dir.path().join("go-on"));
    fs::write(&shim, MPI_SHIM).unwrap();
    let (rings, records): (Rings, _) = rings::read(&ring_dir);
    let mut command = mpi.command(&[&program, &go_on], None);
    command.env("LD_PRELOAD", &shim).env("RANKMESH_RING_DIR", &ring_dir).env_remove("SLURMD_NODENAME");
    let mut job = Job(command.spawn().unwrap());
    let members = until_said(&mut job);
    let mut calls = vec![];
    while calls.iter().filter(|c| is_start(c)).count() < STARTS {
        let so_far = calls.iter().filter(|c| c.func == "iall_reduce").count();
        until(&records, &mut calls, "iall_reduce", so_far + 1);
    }
    let mut open = vec![];
    wait_for("the others to wait for rank 0", || {
        open = rings.in_flight();
        open.len() == RANKS - 1
    });
    fs::write(&go_on, "").unwrap();
    assert!(job.0.wait().unwrap().success());
    until(&records, &mut calls, "finalize", RANKS);
    assert_as_made(&calls, &members);
    assert_waits(&open, &calls, &members);
    drop(rings);
}

#[test]
fn persistent_collectives_of_open_mpi_by_ebpf() {
    by_ebpf(OPEN_MPI);
}

#[test]
fn persistent_collectives_of_mpich_by_ebpf() {
    by_ebpf(MPICH);
}

#[test]
fn persistent_collectives_of_open_mpi_by_the_shim() {
    by_the_shim(OPEN_MPI);
}

#[test]
fn persistent_collectives_of_mpich_by_the_shim() {
    by_the_shim(MPICH);
}
