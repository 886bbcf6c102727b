//! Requests that are calls of functions: a C++ program whose calls are known, one by one.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use node_bpf::{Capture, CaptureConfig, ProbeSpec, RequestSpec, ServingConfig};
use record::RequestSum;

use super::Recorder;
use super::common::{Cgroup, Job, can_capture, wait_for};
use super::fuse::Fuse;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/engine.cc");

/// libengine.so.1 and two programs in a directory: `engine`, which is linked with it, and `later`, which
/// opens it when it is told.
fn compile() -> tempfile::TempDir {
    let out = tempfile::tempdir().unwrap();
    let cxx = |name: &str, arguments: &[&str]| {
        let mut command = Command::new("c++");
        command.args(["-O2", "-g0", "-pthread", "-o"]).arg(out.path().join(name)).arg(SOURCE).args(arguments);
        let made = command.output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    let library = out.path().join("libengine.so.1");
    cxx("libengine.so.1", &["-fPIC", "-shared", "-Wl,-soname,libengine.so.1"]);
    cxx("engine", &["-DMAIN", library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN", "-ldl"]);
    cxx("later", &["-DMAIN", "-DLATER", "-ldl"]);
    out
}

/// A program that calls as it is told.
struct Program {
    job: Job,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(path: &Path, cgroup: &Cgroup) -> Program {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(r#"echo $$ > "$0" && exec "$@""#).arg(cgroup.0.join("cgroup.procs")).arg(path);
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut program = Program { job: Job(child), input, output };
        assert_eq!(program.line(), "ready");
        program
    }

    fn pid(&self) -> u32 {
        self.job.0.id()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Has it make calls; returns what it says of them.
    fn tell(&mut self, what: &str) -> i32 {
        writeln!(self.input, "{what}").unwrap();
        let line = self.line();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
}

fn config(cgroup: &Cgroup, requests: &[&str]) -> ServingConfig {
    let typed: Vec<String> = requests.iter().map(|typed| (*typed).to_owned()).collect();
    ServingConfig {
        requests: RequestSpec::parse_all(&typed).unwrap(),
        detect: false,
        cgroup: Some(cgroup.0.clone()),
        ..ServingConfig::default()
    }
}

/// The linked program, and a recorder that has probed as many functions.
fn recorded(requests: &[&str], functions: usize) -> (tempfile::TempDir, Cgroup, Program, Recorder) {
    let (built, cgroup) = (compile(), Cgroup::new());
    let program = Program::start(&built.path().join("engine"), &cgroup);
    let recorder = Recorder::start(config(&cgroup, requests));
    recorder.wait_for_server(program.pid());
    wait_for_functions(&recorder, functions);
    (built, cgroup, program, recorder)
}

fn wait_for_functions(recorder: &Recorder, functions: usize) {
    let status = || recorder.serving.as_ref().unwrap().status();
    wait_for("the functions to be probed", || {
        assert_eq!(status().problems, Vec::<String>::new());
        status().functions.len() == functions
    });
}

/// All requests, and of these those without an answer, by route.
fn counts(sums: &[RequestSum]) -> Vec<(&str, u64, u64)> {
    let mut routes: Vec<&str> = sums.iter().map(|sum| sum.of.route.as_deref().unwrap()).collect();
    routes.sort_unstable();
    routes.dedup();
    let of = |route: &str, count: fn(&RequestSum) -> u64| {
        sums.iter().filter(|sum| sum.of.route.as_deref() == Some(route)).map(count).sum()
    };
    routes.into_iter().map(|route| (route, of(route, |sum| sum.count), of(route, |sum| sum.unanswered))).collect()
}

#[test]
fn every_call_of_every_overload_is_a_request_from_entry_to_return() {
    if !can_capture() {
        return;
    }
    let (_built, _cgroup, mut program, recorder) = recorded(&["libengine:ns::Engine::step"], 2);
    program.tell("step 4 50 2000");
    program.tell("double 30");
    let pid = program.pid();
    let (rows, sums, lost) = recorder.stop();
    assert_eq!((counts(&sums), lost), (vec![("ns::Engine::step", 230, 0)], 0));
    for sum in &sums {
        assert_eq!((&*sum.of.service, sum.of.pid, sum.of.protocol, sum.of.method), ("engine", pid, "call", None));
        assert_eq!((sum.errors, sum.bytes_in, sum.bytes_out), (0, 0, 0));
    }
    let slow = rows.iter().filter(|row| row.duration_ns.unwrap() >= 2_000_000).count();
    assert!(slow > 0 && rows.iter().all(|row| row.duration_ns.unwrap() >= 10_000), "{rows:?}");
    for row in &rows {
        assert_eq!((row.first_byte_ns, row.sent_tid), (row.duration_ns, Some(row.tid)));
        assert_eq!((row.status, row.port, row.queued_ns, row.peer.as_ref()), (None, None, None, None));
    }
    // Each thread is a connection of its own, on which calls have numbers.
    let mut named: Vec<(u64, u32)> = rows.iter().map(|row| (row.connection, row.number)).collect();
    named.sort_unstable();
    named.dedup();
    assert_eq!(named.len(), rows.len());
    assert!(rows.iter().all(|row| row.number >= 1 && row.number <= 50), "{rows:?}");
}

#[test]
fn what_a_call_waits_for_is_its_path() {
    if !can_capture() {
        return;
    }
    let (_built, _cgroup, mut program, recorder) = recorded(&["libengine.so*:ns::Engine::step(int)"], 1);
    for _ in 0..5 {
        program.tell("double 3");
        program.tell("step 1 1 30000");
    }
    wait_for("the calls", || recorder.rows().len() == 5);
    for row in recorder.rows() {
        let path = recorder.path(&row);
        let sum = |of: &str| path.iter().filter(|s| of.is_empty() || s.kind == of).map(|s| s.duration_ns).sum::<i64>();
        assert_eq!(Some(sum("")), row.duration_ns, "{path:?}");
        let timers = path.iter().filter(|s| s.reason == Some("timer")).map(|s| s.duration_ns).sum::<i64>();
        assert!(timers + sum("unknown") >= 29_000_000, "{path:?}");
    }
    let (_, sums, lost) = recorder.stop();
    assert_eq!((counts(&sums), lost), (vec![("ns::Engine::step", 5, 0)], 0), "the other overload is none");
}

#[test]
fn the_outermost_call_of_a_thread_is_the_request() {
    if !can_capture() {
        return;
    }
    let named = ["libengine.so.1:ns::Engine::deep", "libengine.so.1:ns::Engine::step"];
    let (_built, _cgroup, mut program, recorder) = recorded(&named, 3);
    program.tell("deep 20 7");
    program.tell("step 1 3 10");
    program.tell("deep 5 0");
    let (_, sums, lost) = recorder.stop();
    assert_eq!((counts(&sums), lost), (vec![("ns::Engine::deep", 25, 0), ("ns::Engine::step", 3, 0)], 0));
}

#[test]
fn a_call_that_an_exception_leaves_has_no_answer_and_what_follows_is_seen() {
    if !can_capture() {
        return;
    }
    let named = ["libengine.so.1:ns::Engine::fail", "libengine.so.1:ns::Engine::step"];
    let (_built, _cgroup, mut program, recorder) = recorded(&named, 3);
    // The calls after the last exception are deeper on the stack than the one that it left.
    program.tell("fail 10 8");
    program.tell("step 1 3 10");
    let (rows, sums, lost) = recorder.stop();
    assert_eq!((counts(&sums), lost), (vec![("ns::Engine::fail", 10, 10), ("ns::Engine::step", 11, 0)], 0));
    let failed = rows.iter().filter(|row| row.of.route.as_deref() == Some("ns::Engine::fail"));
    assert!(failed.clone().all(|row| row.duration_ns.is_none() && row.sent_tid.is_none()), "{rows:?}");
    assert!(failed.count() > 0);
}

#[test]
fn a_jump_or_the_threads_end_leaves_a_call_without_an_answer() {
    if !can_capture() {
        return;
    }
    let named = ["libengine.so.1:engine_plain", "libengine.so.1:engine_ends_thread"];
    let (_built, _cgroup, mut program, recorder) = recorded(&named, 2);
    program.tell("jump 12 5");
    program.tell("end 6");
    let (_, sums, lost) = recorder.stop();
    assert_eq!((counts(&sums), lost), (vec![("engine_ends_thread", 6, 6), ("engine_plain", 17, 12)], 0));
}

#[test]
fn a_call_on_a_stack_that_its_thread_leaves_is_lost_and_has_not_failed() {
    if !can_capture() {
        return;
    }
    let (_built, _cgroup, mut program, recorder) = recorded(&["libengine.so.1:engine_yields"], 1);
    program.tell("fibers 12");
    let (_, sums, lost) = recorder.stop();
    // Of each two calls the second is seen from its beginning to its end, and the next round begins after it.
    assert_eq!((counts(&sums), lost), (vec![("engine_yields", 12, 0)], 12));
}

#[test]
fn calls_that_return_in_an_order_of_no_stack_are_lost_and_have_not_failed() {
    if !can_capture() {
        return;
    }
    let (_built, _cgroup, mut program, recorder) = recorded(&["libengine.so.1:engine_yields"], 1);
    program.tell("fibers 12 1");
    let (_, sums, lost) = recorder.stop();
    // The first is taken for one that was left: it then returns, and its thread is known to change stacks.
    assert_eq!((counts(&sums), lost), (vec![("engine_yields", 13, 1)], 11));
}

#[test]
fn a_function_that_is_called_all_the_time_is_let_go() {
    if !can_capture() {
        return;
    }
    let (_built, _cgroup, mut program, recorder) = recorded(&["libengine.so.1:engine_quick"], 1);
    writeln!(program.input, "quick 100000000").unwrap();
    let status = || recorder.serving.as_ref().unwrap().status();
    wait_for("the probes to be taken off", || status().functions.is_empty());
    let said = status().problems.join("\n");
    assert!(said.contains("libengine.so.1: its functions of --request are not probed any more"), "{said}");
    assert_eq!(program.line().split(' ').next(), Some("quick"), "it goes on unharmed");
    recorder.stop();
}

#[test]
fn a_program_on_a_file_system_in_user_space_is_not_probed() {
    if !can_capture() {
        return;
    }
    let (built, cgroup, at) = (compile(), Cgroup::new(), tempfile::tempdir().unwrap());
    let bytes = std::fs::read(built.path().join("later")).unwrap();
    let Some(fuse) = Fuse::with_program(at.path(), bytes) else { return };
    let mut program = Program::start(&fuse.program(), &cgroup);
    let recorder = Recorder::start(config(&cgroup, &["program:own"]));
    let status = || recorder.serving.as_ref().unwrap().status();
    wait_for("it to be refused", || !status().problems.is_empty());
    let said = status().problems.join("\n");
    assert!(said.contains("program: calls of --request are not recorded there") && said.contains("(fuse)"), "{said}");
    assert_eq!((program.tell("own 9"), status().functions.len()), (9, 0));
    drop(program);
    recorder.stop();
    let probe = ProbeSpec::function(&format!("{}:own", fuse.program().display())).unwrap();
    let capture = CaptureConfig { probes: vec![probe], system_libraries: false, ..cgroup.capturing([]) };
    let error = Capture::start(capture, Box::new(|_| {})).expect_err("it lies on FUSE").to_string();
    assert!(error.contains("file system in user space"), "{error}");
}

#[test]
fn a_program_on_an_overlay_that_only_its_process_sees_is_not_probed() {
    if !can_capture() {
        return;
    }
    let (built, cgroup, over) = (compile(), Cgroup::new(), tempfile::tempdir().unwrap());
    let script = r#"mkdir "$1/upper" "$1/work" "$1/at" &&
        mount -t overlay overlay -o "lowerdir=$0,upperdir=$1/upper,workdir=$1/work" "$1/at" || exit 1
        echo ready; exec "$1/at/later""#;
    let mut command = Command::new("sh");
    command.arg("-c").arg(r#"echo $$ > "$0" && exec "$@""#).arg(cgroup.0.join("cgroup.procs"));
    command.args(["unshare", "-m", "sh", "-c", script]).args([built.path(), over.path()]);
    let mut job = Job(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let (mut output, mut line) = (BufReader::new(job.0.stdout.take().unwrap()), String::new());
    output.read_line(&mut line).unwrap();
    if line.trim() != "ready" {
        return eprintln!("SKIPPED: needs unshare -m, and overlays");
    }
    let recorder = Recorder::start(config(&cgroup, &["later:own"]));
    let status = || recorder.serving.as_ref().unwrap().status();
    wait_for("it to be refused", || !status().problems.is_empty());
    let said = status().problems.join("\n");
    assert!(said.contains("it lies on an overlay that its process has mounted"), "{said}");
    assert!(status().functions.is_empty());
    drop(job);
    recorder.stop();
}

#[test]
fn threads_that_end_give_their_room_back() {
    if !can_capture() {
        return;
    }
    // (One user's may be 8,192 at once.)
    const THREADS: u64 = 9_000;
    let (_built, _cgroup, mut program, recorder) = recorded(&["libengine.so.1:ns::Engine::step(int)"], 1);
    program.tell(&format!("many {THREADS}"));
    let (_, sums, lost) = recorder.stop();
    assert_eq!((counts(&sums), lost), (vec![("ns::Engine::step", THREADS, 0)], 0));
}

#[test]
fn a_process_that_dies_in_a_call_leaves_it_unanswered() {
    if !can_capture() {
        return;
    }
    let (_built, _cgroup, mut program, recorder) = recorded(&["libengine.so.1:ns::Engine::step"], 2);
    program.tell("double 4");
    writeln!(program.input, "step 3 1 1000000000").unwrap();
    let inside = || std::fs::read_dir(format!("/proc/{}/task", program.pid())).unwrap().count() == 4;
    wait_for("three threads", inside);
    let asleep = |tid: &str| {
        let wchan = std::fs::read_to_string(format!("/proc/{tid}/syscall")).unwrap_or_default();
        wchan.starts_with(&format!("{} ", libc::SYS_clock_nanosleep))
    };
    let pid = program.pid();
    wait_for("these to sleep in their calls", || {
        let tids = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        tids.filter(|tid| asleep(&format!("{pid}/task/{}", tid.file_name().to_string_lossy()))).count() == 3
    });
    drop(program);
    wait_for("the unanswered ones", || recorder.rows().iter().filter(|row| row.duration_ns.is_none()).count() == 3);
    let (_, sums, lost) = recorder.stop();
    assert_eq!((counts(&sums), lost), (vec![("ns::Engine::step", 7, 3)], 0));
}

#[test]
fn calls_whose_probes_were_taken_off_are_lost_and_have_not_failed() {
    if !can_capture() {
        return;
    }
    // Two functions in a file that is written to while calls are under way: the next look takes its probes off.
    let (built, _cgroup, mut program, recorder) = recorded(&["libengine.so.1:ns::Engine::step"], 2);
    writeln!(program.input, "step 2 1 1000000000").unwrap();
    let pid = program.pid();
    let asleep = |tid: &std::ffi::OsStr| {
        let path = format!("/proc/{pid}/task/{}/syscall", tid.to_string_lossy());
        std::fs::read_to_string(path).unwrap_or_default().starts_with(&format!("{} ", libc::SYS_clock_nanosleep))
    };
    wait_for("two threads to sleep in their calls", || {
        let tids = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        tids.filter(|tid| asleep(&tid.file_name())).count() == 2
    });
    let mut library = std::fs::File::options().append(true).open(built.path().join("libengine.so.1")).unwrap();
    let functions = || recorder.serving.as_ref().unwrap().status().functions.len();
    library.write_all(b"more").unwrap();
    wait_for("the probes to be taken off", || functions() == 0);
    wait_for("it to be read anew", || functions() == 2);
    drop(program);
    wait_for("the calls to be lost", || recorder.losses().iter().map(|loss| loss.lost).sum::<u64>() == 3);
    let (rows, sums, lost) = recorder.stop();
    assert_eq!((rows.len(), counts(&sums), lost), (0, vec![], 3), "two calls, and the time without probes");
}

#[test]
fn a_library_that_is_opened_later_makes_a_server_and_a_program_has_functions_too() {
    if !can_capture() {
        return;
    }
    let (built, cgroup) = (compile(), Cgroup::new());
    let mut own = Program::start(&built.path().join("later"), &cgroup);
    let mut opens = Program::start(&built.path().join("later"), &cgroup);
    let recorder = Recorder::start(config(&cgroup, &["later:own", "libengine.so.1:ns::Engine::step(int)"]));
    recorder.wait_for_server(own.pid());
    wait_for_functions(&recorder, 1);
    assert_eq!(own.tell("own 9"), 9);
    let library: PathBuf = built.path().join("libengine.so.1");
    assert_eq!(opens.tell(&format!("open {}", library.display())), 1);
    wait_for_functions(&recorder, 2);
    assert_eq!(opens.tell("opened 6"), 6);
    let (_, sums, lost) = recorder.stop();
    assert_eq!((counts(&sums), lost), (vec![("ns::Engine::step", 6, 0), ("own", 9, 0)], 0));
    let of = |pid: u32| sums.iter().filter(|sum| sum.of.pid == pid).map(|sum| sum.count).sum::<u64>();
    assert_eq!((of(own.pid()), of(opens.pid())), (9, 6));
    assert!(sums.iter().all(|sum| &*sum.of.service == "later"));
}

/// A directory as one sees it through an overlay; taken away when dropped.
struct Overlay(tempfile::TempDir);

impl Overlay {
    /// None where that cannot be mounted.
    fn over(lower: &Path) -> Option<Overlay> {
        let dir = tempfile::tempdir().unwrap();
        let [upper, work, at] = ["upper", "work", "at"].map(|name| dir.path().join(name));
        for made in [&upper, &work, &at] {
            std::fs::create_dir(made).unwrap();
        }
        let [lower, upper, work] = [lower, &upper, &work].map(Path::display);
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let mounted =
            Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options]).arg(&at).output().unwrap();
        if !mounted.status.success() {
            eprintln!("skipped: no overlay: {}", String::from_utf8_lossy(&mounted.stderr).trim());
            return None;
        }
        Some(Overlay(dir))
    }

    fn at(&self) -> PathBuf {
        self.0.path().join("at")
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.at()).status(); // else it is left to the system
    }
}

#[test]
fn a_file_that_is_reached_in_two_ways_has_each_call_once() {
    if !can_capture() {
        return;
    }
    let (built, cgroup) = (compile(), Cgroup::new());
    let Some(overlays) = [(); 2].iter().map(|()| Overlay::over(built.path())).collect::<Option<Vec<_>>>() else {
        return;
    };
    let mut programs: Vec<Program> =
        overlays.iter().map(|overlay| Program::start(&overlay.at().join("engine"), &cgroup)).collect();
    let named = ["libengine:ns::Engine::step(int)", "libengine:ns::Engine::fail", "libengine:engine:begin:end"];
    let recorder = Recorder::start(config(&cgroup, &named));
    wait_for_functions(&recorder, 6);
    for program in &mut programs {
        program.tell("step 2 30 10");
        program.tell("fail 6 4");
        program.tell("pair 2 5");
    }
    let (_, sums, lost) = recorder.stop();
    let all = [("engine:begin:end", 14, 4), ("ns::Engine::fail", 12, 12), ("ns::Engine::step", 128, 0)];
    assert_eq!((counts(&sums), lost), (all.to_vec(), 0));
    drop(programs);
}

#[test]
fn a_pair_of_points_is_a_request() {
    if !can_capture() {
        return;
    }
    let (_built, _cgroup, mut program, recorder) = recorded(&["libengine.so.1:engine:begin:end"], 1);
    assert_eq!(program.tell("pair 3 20"), 1, "by the semaphores the program sees that somebody listens");
    let (rows, sums, lost) = recorder.stop();
    assert_eq!((counts(&sums), lost), (vec![("engine:begin:end", 23, 3)], 0));
    assert!(rows.iter().all(|row| row.duration_ns.is_none_or(|ns| ns >= 10_000)), "{rows:?}");
}

#[test]
fn a_function_that_is_not_there_is_said() {
    if !can_capture() {
        return;
    }
    let (built, cgroup) = (compile(), Cgroup::new());
    let program = Program::start(&built.path().join("engine"), &cgroup);
    let named = ["libengine.so.1:ns::Engine::stepp", "libengine.so.1:engine:begin:stop"];
    let recorder = Recorder::start(config(&cgroup, &named));
    recorder.wait_for_server(program.pid());
    let status = || recorder.serving.as_ref().unwrap().status();
    wait_for("both to be said", || status().problems.len() == 2);
    let said = |spec: &str| format!("libengine.so.1: calls of {spec} are not recorded there: the agent's log says why");
    assert_eq!(status().problems, named.map(said));
    assert!(status().functions.is_empty());
}
