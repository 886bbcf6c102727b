//! Functions and USDT points that a user names: found by any of their names, counted as often as
//! they were called.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Cgroup, Job, Recorded, Recorder, can_capture, kernel_keys, wait_for};
use node_bpf::{AttachMode, Capture, CaptureConfig, ProbeSpec, Record, SymbolCall};

/// libany.so and a program that calls it, in a directory.
fn compile() -> tempfile::TempDir {
    let out = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/any.cc");
    let library = out.path().join("libany.so.1");
    let cxx = |command: &mut Command| {
        let output = command.args(["-O2", "-g0", "-pthread"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    cxx(Command::new("c++").args(["-fPIC", "-shared", "-Wl,-soname,libany.so.1", "-o"]).arg(&library).arg(&source));
    // the program's own copies of the functions would be called instead of the library's
    let main = std::fs::read_to_string(&source).unwrap();
    let (_, main) = main.split_once("#ifdef MAIN").unwrap();
    let declared = "#include <cstdio>\n#include <cstdlib>\n#include <exception>\n#include <thread>\n#include <unistd.h>\nnamespace demo { struct Options { int work_us; };\
        long reduce(const Options &); int twice(int); double twice(double); void throws(int); }\
        extern \"C\" { unsigned any_depth(unsigned); int any_steps(int); int any_waits(int); }\n";
    let main_source = out.path().join("main.cc");
    std::fs::write(&main_source, format!("{declared}{}", main.replace("#endif", ""))).unwrap();
    cxx(Command::new("c++")
        .arg("-o")
        .arg(out.path().join("any"))
        .arg(&main_source)
        .arg(&library)
        .arg("-Wl,-rpath,$ORIGIN"));
    out
}

fn config(cgroup: &Cgroup, mode: Option<AttachMode>, probes: Vec<ProbeSpec>) -> CaptureConfig {
    CaptureConfig { attach_mode: mode, probes, system_libraries: false, ..cgroup.capturing([]) }
}

/// The program, as rank 2, in the cgroup.
fn any(built: &Path, cgroup: &Cgroup) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(r#"echo $$ > "$0" && exec "$@""#).arg(cgroup.0.join("cgroup.procs"));
    command.arg(built.join("any")).env("RANK", "2");
    command
}

/// Runs the program until the recorder knows its process; returns its pid, and the points that were
/// listened to. `before`: called when it has mapped its libraries.
fn run(built: &Path, cgroup: &Cgroup, recorder: &Recorder, before: impl FnOnce()) -> (u32, String) {
    let mut command = any(built, cgroup);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    before();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"go\n").unwrap();
    let pid = child.id();
    let known = |r: &Record| matches!(r, Record::Process(p) if p.pid == pid);
    wait_for("the process to be known", || recorder.so_far().iter().any(known));
    drop(input); // it ends when its input does
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    (pid, String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

/// Calls per function, as counted; all of this process.
fn counts(recorded: &Recorded, pid: u32) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for record in &recorded.0 {
        if let Record::CallTally(tally) = record {
            assert_eq!((tally.pid, tally.source, tally.rank, tally.bytes), (pid, "symbol", Some(2), None));
            *counts.entry(tally.func.to_string()).or_default() += tally.count;
        }
    }
    counts
}

fn rows<'r>(recorded: &'r Recorded, symbol: &str) -> Vec<&'r SymbolCall> {
    let calls = recorded.0.iter().filter_map(|r| if let Record::SymbolCall(call) = r { Some(call) } else { None });
    calls.filter(|call| call.symbol == symbol).collect()
}

fn named_functions_and_points_are_counted(mode: Option<AttachMode>) {
    if !can_capture() {
        return;
    }
    let built = compile();
    let cgroup = Cgroup::new();
    let library = built.path().join("libany.so.1");
    let at = |symbol: &str| format!("{}:{symbol}", library.display());
    let probes = vec![
        ProbeSpec::function(&at("demo::reduce:retval")).unwrap(),
        ProbeSpec::function(&at("demo::twice(double)")).unwrap(),
        ProbeSpec::function(&at("any_depth:retval")).unwrap(),
        ProbeSpec::function(&at("demo::thr")).unwrap(),
        ProbeSpec::usdt(&at("demo:step")).unwrap(),
    ];
    let recorder = Recorder::start(config(&cgroup, mode, probes));
    let (pid, listened) = run(built.path(), &cgroup, &recorder, || {});
    let recorded = recorder.stop();
    assert_eq!(listened, "400", "by the semaphore the program sees that somebody listens");
    let want = [
        ("libany.so.1:any_depth", 12),
        ("libany.so.1:demo:step", 400),
        ("libany.so.1:demo::reduce(demo::Options const&)", 5005),
        ("libany.so.1:demo::throws(int)", 6), // three are left by an exception
        ("libany.so.1:demo::twice(double)", 7),
    ];
    assert_eq!(counts(&recorded, pid), want.map(|(func, n)| (func.to_owned(), n)).into());
    let lost: BTreeMap<_, _> =
        recorded.lost().iter().map(|l| ((l.probe.as_str(), l.reason.as_str()), l.lost)).collect();
    assert_eq!(lost, [(("libany.so.1:demo::throws(int)", "unmatched"), 3)].into());

    let reduce = rows(&recorded, "demo::reduce(demo::Options const&)");
    let slow: Vec<_> = reduce.iter().filter(|c| c.ret == Some(-3000)).collect();
    assert_eq!(slow.len(), 5, "slow calls have a part of the budget for themselves");
    assert!(slow.iter().all(|c| c.duration_ns >= 3_000_000 && c.rank == Some(2) && c.library == "libany.so.1"));
    assert!(reduce.len() < 5005, "{} rows", reduce.len());
    let depth: Vec<_> = rows(&recorded, "any_depth").iter().map(|c| c.ret.unwrap()).collect();
    assert_eq!(depth, [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5], "inner calls return first");
    assert!(rows(&recorded, "demo::twice(double)").iter().all(|c| c.ret.is_none()), "a double is no integer");
    assert_eq!(rows(&recorded, "demo:step").len(), 400);
}

#[test]
fn named_functions_and_points_are_counted_in_the_best_mode() {
    named_functions_and_points_are_counted(None);
}

#[test]
fn named_functions_and_points_are_counted_by_multi_links() {
    named_functions_and_points_are_counted(Some(AttachMode::Multi));
}

#[test]
fn named_functions_and_points_are_counted_by_single_probes() {
    named_functions_and_points_are_counted(Some(AttachMode::Single));
}

#[test]
fn named_functions_and_points_are_counted_by_probes_without_cookies() {
    named_functions_and_points_are_counted(Some(AttachMode::Stub));
}

#[test]
fn a_library_named_by_its_file_name_is_found_in_running_processes() {
    if !can_capture() {
        return;
    }
    let built = compile();
    let cgroup = Cgroup::new();
    let probes = vec![ProbeSpec::function("libany:_ZN4demo6reduceERKNS_7OptionsE").unwrap()];
    let recorder = Recorder::start(config(&cgroup, None, probes));
    let (pid, _) = run(built.path(), &cgroup, &recorder, || {
        let probed = |path: &Path| recorder.status().files.iter().any(|file| file.path == path);
        wait_for("the file to be probed", || probed(&built.path().join("libany.so.1")));
    });
    let counted = counts(&recorder.stop(), pid);
    assert_eq!(counted, [("libany.so.1:demo::reduce(demo::Options const&)".to_owned(), 5005)].into());
}

#[test]
fn every_thread_of_a_killed_process_is_seen_to_end() {
    if !can_capture() {
        return;
    }
    const RUNS: u64 = 20;
    const THREADS: u64 = 100;
    let built = compile();
    let cgroup = Cgroup::new();
    let probe = format!("{}:any_waits:retval", built.path().join("libany.so.1").display());
    let recorder = Recorder::start(config(&cgroup, None, vec![ProbeSpec::function(&probe).unwrap()]));
    let mut job = any(built.path(), &cgroup);
    job.arg(THREADS.to_string()).stdout(Stdio::piped());
    // several times, since it matters in which order they end
    for _ in 0..RUNS {
        let mut job = Job(job.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(job.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "all\n", "they are in the call");
    }
    let lost = recorder.stop();
    let lost: Vec<_> = lost.lost().iter().map(|l| (l.probe.as_str(), l.reason.as_str(), l.lost)).collect();
    let total = lost.iter().map(|(.., lost)| lost).sum::<u64>();
    assert_eq!(total, RUNS * THREADS, "{lost:?}");
}

#[test]
fn threads_that_end_leave_nothing_behind() {
    if !can_capture() {
        return;
    }
    const THREADS: usize = 200;
    let built = compile();
    let cgroup = Cgroup::new();
    let probe = format!("{}:any_depth", built.path().join("libany.so.1").display());
    let recorder = Recorder::start(config(&cgroup, None, vec![ProbeSpec::function(&probe).unwrap()]));
    let mut job = any(built.path(), &cgroup);
    job.arg(format!("-{THREADS}"));
    let mut job = Job(job.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let pid = job.0.id();
    let known = |r: &Record| matches!(r, Record::Process(p) if p.pid == pid);
    wait_for("the process to be known", || recorder.so_far().iter().any(known));
    job.0.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    let lines = BufReader::new(job.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let ended: Vec<u32> = lines.map_while(|line| line.parse().ok()).collect();
    assert_eq!(ended.len(), THREADS);
    // the process goes on; the next thread with one of their ids starts from nothing
    let kept = || kernel_keys("off_starts").into_iter().filter(|tid| ended.contains(tid)).count();
    // joined, a thread still has a little of its end before it
    wait_for("nothing to be kept when they left their CPU for good", || kept() == 0);
    assert!(kernel_keys("tracked").contains(&pid));
    drop(job);
    wait_for("the process to be forgotten", || recorder.status().processes == 0);
    assert!(!kernel_keys("tracked").contains(&pid));
}

#[test]
fn what_is_not_there_is_refused_with_what_is() {
    if !can_capture() {
        return;
    }
    let built = compile();
    let cgroup = Cgroup::new();
    let library = built.path().join("libany.so.1").display().to_string();
    let refused = |probe: ProbeSpec| {
        let capture = Capture::start(config(&cgroup, None, vec![probe]), Box::new(|_| {}));
        capture.expect_err("no such function or point").to_string()
    };
    let error = refused(ProbeSpec::function(&format!("{library}:any_depht")).unwrap());
    assert!(error.contains("near to it: any_depth"), "{error}");
    let error = refused(ProbeSpec::function(&format!("{library}:demo::reduced")).unwrap());
    assert!(error.contains("demo::reduce(demo::Options const&)"), "{error}");
    let error = refused(ProbeSpec::function(&format!("{library}:demo::twice")).unwrap());
    assert!(error.contains("demo::twice(int)") && error.contains("demo::twice(double)"), "{error}");
    let error = refused(ProbeSpec::usdt(&format!("{library}:demo:stop")).unwrap());
    assert!(error.contains("demo:step"), "{error}");
}

/// A program that leaves a function with a C name by an exception and by longjmp, then calls it deeper on
/// the stack: with a return probe it would end.
const LEAVES: &str = r#"
#include <csetjmp>
#include <cstdio>
#include <stdexcept>
static jmp_buf back;
static volatile int sink;
static void throws() { throw std::runtime_error("on purpose"); }
static void jumps() { longjmp(back, 1); }
static void nothing() { sink = 1; }
extern "C" {
__attribute__((noinline)) int through(void (*what)()) { what(); sink = 2; return 7; }
__attribute__((noinline)) int deeper(int n) {
  volatile char room[256]; room[n] = 1;
  int of = n ? deeper(n - 1) : through(nothing);
  return of + room[n] - 1;
}
__attribute__((noinline)) int hands_over(int n) { return deeper(n); }
}
int main() {
  char line[8];
  if (!fgets(line, sizeof line, stdin)) return 1;
  int sum = 0;
  for (int i = 0; i < 50; i++) {
    try { through(throws); } catch (const std::exception &) { sum++; }
    if (!setjmp(back)) through(jumps); else sum++;
    sum += deeper(i % 5) == 7;
    sum += hands_over(i % 5) == 7;
  }
  printf("%d\n", sum), fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
  }
  return 0;
}
"#;

/// A program of C++.
fn built(dir: &Path, name: &str, source: &str) -> PathBuf {
    let (code, out) = (dir.join(format!("{name}.cc")), dir.join(name));
    std::fs::write(&code, source).unwrap();
    let made = Command::new("c++").args(["-O2", "-o"]).arg(&out).arg(&code).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    out
}

/// Runs a program that waits for a line and then says how much it did; ends it once its process is known.
fn run_leaves(program: &Path, cgroup: &Cgroup, recorder: &Recorder) -> String {
    let is_probed = || recorder.status().files.iter().any(|file| file.path == program);
    let mut command = Command::new("sh");
    command.arg("-c").arg(r#"echo $$ > "$0" && exec "$@""#).arg(cgroup.0.join("cgroup.procs")).arg(program);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    wait_for("the program to be probed", is_probed);
    input.write_all(b"go\n").unwrap();
    let pid = child.id();
    let known = |r: &Record| matches!(r, Record::Process(p) if p.pid == pid);
    wait_for("the process to be known", || recorder.so_far().iter().any(known));
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn by_function(recorded: &Recorded) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for record in &recorded.0 {
        if let Record::CallTally(tally) = record {
            *counts.entry(tally.func.to_string()).or_default() += tally.count;
        }
    }
    counts
}

#[test]
fn exceptions_and_jumps_through_a_probed_function_do_not_end_the_program() {
    if !can_capture() {
        return;
    }
    for mode in [None, Some(AttachMode::Multi), Some(AttachMode::Single), Some(AttachMode::Stub)] {
        let (out, cgroup) = (tempfile::tempdir().unwrap(), Cgroup::new());
        let program = built(out.path(), "leaves", LEAVES);
        let at = |symbol: &str| ProbeSpec::function(&format!("{}:{symbol}", program.display())).unwrap();
        let probes = vec![at("through:retval"), at("hands_over")];
        let recorder = Recorder::start(config(&cgroup, mode, probes));
        let said = recorder.status().problems.join("\n");
        assert!(said.contains("hands_over are counted, and not timed: it only hands over"), "{said}");
        assert_eq!(run_leaves(&program, &cgroup, &recorder), "200");
        let recorded = recorder.stop();
        let want = [("leaves:hands_over (entries)", 50), ("leaves:through", 100)];
        assert_eq!(by_function(&recorded), want.map(|(func, n)| (func.to_owned(), n)).into(), "{mode:?}");
        let left: u64 = recorded.lost().iter().filter(|lost| lost.reason == "unmatched").map(|lost| lost.lost).sum();
        assert_eq!(left, 100, "{mode:?}");
        assert!(rows(&recorded, "through").iter().all(|call| call.ret == Some(7)));
    }
}

#[test]
fn what_a_function_returns_is_not_made_up() {
    if !can_capture() {
        return;
    }
    let (out, cgroup) = (tempfile::tempdir().unwrap(), Cgroup::new());
    let program = built(out.path(), "leaves", LEAVES);
    let probe = ProbeSpec::function(&format!("{}:hands_over:retval", program.display())).unwrap();
    let refused = Capture::start(config(&cgroup, None, vec![probe]), Box::new(|_| {}));
    let error = refused.expect_err("its return is not seen").to_string();
    assert!(error.contains("hands over to another function: name that"), "{error}");
}

#[test]
fn a_function_that_is_called_all_the_time_is_let_go() {
    if !can_capture() {
        return;
    }
    const OFTEN: &str = "#include <cstdio>\nextern \"C\" { static volatile int sink;\
        __attribute__((noinline)) int often(int n) { sink = n; return n + 1; } }\n\
        int main() { for (;;) often(sink); }";
    let (out, cgroup) = (tempfile::tempdir().unwrap(), Cgroup::new());
    let program = built(out.path(), "often", OFTEN);
    let probe = ProbeSpec::function(&format!("{}:often", program.display())).unwrap();
    let recorder = Recorder::start(config(&cgroup, None, vec![probe]));
    let jobs: Vec<Job> = (0..2).map(|_| Job(Command::new(&program).spawn().unwrap())).collect();
    let said = || recorder.status().problems.join("\n");
    wait_for("the probe to be taken off", || said().contains("is not probed for five minutes"));
    assert!(recorder.status().files.iter().all(|file| file.path != program), "it is not listed any more");
    drop(jobs);
    assert!(by_function(&recorder.stop()).is_empty(), "they are not in the cgroup, and slowed all the same");
}

#[test]
fn what_changes_names_and_permissions_of_a_file_changes_nothing() {
    if !can_capture() {
        return;
    }
    let (out, cgroup) = (tempfile::tempdir().unwrap(), Cgroup::new());
    let [stays, written] = ["stays", "written"].map(|name| built(out.path(), name, LEAVES));
    let [library, new] = ["libnccl.so.2", "new"].map(|name| out.path().join(name));
    std::fs::copy(common::workloads().join("libnccl.so.2"), &library).unwrap();
    let at = |program: &Path| ProbeSpec::function(&format!("{}:through", program.display())).unwrap();
    let probes = vec![at(&stays), at(&written)];
    let recorder =
        Recorder::start(CaptureConfig { probes, system_libraries: false, ..cgroup.capturing([library.clone()]) });
    let is_probed = |path: &Path| recorder.status().files.iter().any(|file| file.path == path);
    assert!([&library, &stays, &written].into_iter().all(|path| is_probed(path)));
    for file in [&library, &stays] {
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::copy(file, &new).unwrap();
        std::fs::rename(&new, file).unwrap();
    }
    // all are looked at together, this one last
    std::fs::File::options().append(true).open(&written).unwrap().write_all(b"more").unwrap();
    wait_for("the probes to be taken off", || !is_probed(&written));
    assert!(is_probed(&library) && is_probed(&stays));
    recorder.stop();
}

#[test]
fn a_file_that_is_written_in_place_is_read_anew() {
    if !can_capture() {
        return;
    }
    let (out, cgroup) = (tempfile::tempdir().unwrap(), Cgroup::new());
    let program = built(out.path(), "leaves", LEAVES);
    let recorder = Recorder::start(config(
        &cgroup,
        None,
        vec![ProbeSpec::function(&format!("{}:through", program.display())).unwrap()],
    ));
    let is_probed = || recorder.status().files.iter().any(|file| file.path == program);
    assert!(is_probed());
    assert_eq!(run_leaves(&program, &cgroup, &recorder), "200");
    // the same functions elsewhere, in the same file
    let moved = LEAVES.replace(
        "static void throws",
        "__attribute__((used)) static int pad(int n) { switch (n) { case 1: return 5; \
        case 2: puts(\"a\"); return 9; case 3: puts(\"b\"); return 1; default: return n * n; } }\nstatic void throws",
    );
    let other = built(out.path(), "moved", &moved);
    std::fs::write(&program, std::fs::read(other).unwrap()).unwrap();
    wait_for("the probes to be taken off", || !is_probed());
    assert_eq!(run_leaves(&program, &cgroup, &recorder), "200", "nothing is broken");
    assert_eq!(by_function(&recorder.stop()), [("leaves:through".to_owned(), 200)].into());
}
