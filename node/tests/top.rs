//! `rankmesh top` on a real terminal (tmux): real agents, a real job, keys as a person presses
//! them; agents that are killed, signals, sizes; and `--once` for scripts. Needs root and tmux.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use common::job_stores::{EndedJob, T0};
use common::jobs::{Cgroups, mpi_job};
use common::{Lab, can_capture, rankmesh, run, stderr, stdout, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const AGENTS: [&str; 4] = ["m1", "m2", "m3", "m4"];

/// A tmux of its own with one shell in it.
struct Tmux {
    socket: std::path::PathBuf,
}

impl Tmux {
    fn start(lab: &Lab, width: u16, height: u16) -> Self {
        let tmux = Self { socket: lab.path("tmux.sock") };
        let shell = "env -u NO_COLOR PS1='at-the-shell> ' LC_ALL=C.UTF-8 bash --norc --noprofile";
        let size = [width.to_string(), height.to_string()];
        tmux.run(&["-f", "/dev/null", "new-session", "-d", "-x", &size[0], "-y", &size[1], shell]);
        tmux.wait_for("at-the-shell>");
        tmux
    }

    fn run(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux").arg("-S").arg(&self.socket).args(arguments).output().expect("tmux runs");
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        stdout(&output)
    }

    fn screen(&self) -> String {
        self.run(&["capture-pane", "-p"])
    }

    fn keys(&self, keys: &[&str]) {
        self.run(&[&["send-keys"], keys].concat());
    }

    /// Types a command at the shell.
    fn shell(&self, command: &str) {
        self.keys(&["-l", command]);
        self.keys(&["Enter"]);
    }

    fn wait_for(&self, words: &str) -> String {
        self.wait_for_all(&[words])
    }

    fn wait_for_all(&self, all: &[&str]) -> String {
        wait_for(&format!("{all:?} on the screen"), || {
            let screen = self.screen();
            if all.iter().all(|words| screen.contains(words)) { Ok(screen) } else { Err(screen) }
        })
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = Command::new("tmux").arg("-S").arg(&self.socket).arg("kill-server").output();
    }
}

fn has_tmux(test: &str) -> bool {
    let has = Command::new("tmux").arg("-V").stdout(Stdio::null()).status().is_ok();
    if !has {
        eprintln!("skipped: {test}: needs tmux (scripts/deps.sh --test)");
    }
    has
}

/// The process that runs `top` on this socket.
fn pid_of_top(socket: &str) -> Pid {
    wait_for("the process of top", || {
        let all = procfs::process::all_processes().map_err(|error| error.to_string())?;
        let is_top = |process: &procfs::process::Process| {
            let words = process.cmdline().unwrap_or_default();
            words.iter().any(|word| word == "top") && words.iter().any(|word| word == socket)
        };
        let found = all.flatten().find(is_top).map(|process| Pid::from_raw(process.pid));
        found.ok_or_else(|| "none".to_owned())
    })
}

#[test]
fn a_person_watches_a_job_on_a_terminal() {
    let test = "a_person_watches_a_job_on_a_terminal";
    if !can_capture(test) || !has_tmux(test) {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("top", &AGENTS);
    common::jobs::start_agents(&mut lab, &cgroups, &AGENTS);
    let job = mpi_job(&lab, &cgroups, "--iters 1000000 --work-ms 20 --late-rank 3 --late-ms 60");

    // Each agent, also the one that is no judge, gives the full table and the windows.
    for agent in AGENTS {
        let watched = wait_for(&format!("{agent} names rank 3"), || {
            let output = lab.ask(agent, "top", &["--once", "--format", "json"]);
            let watched: Value = serde_json::from_slice(&output.stdout).map_err(|_| stderr(&output))?;
            let named =
                watched["job"]["culprits"][0]["rank"] == 3 && watched["ranks"].as_array().is_some_and(|r| r.len() == 8);
            if named { Ok(watched) } else { Err(watched.to_string()) }
        });
        assert_eq!((&watched["version"], &watched["agent"]), (&1.into(), &agent.into()));
        assert_eq!((&watched["ranks"][0]["rank"], &watched["ranks"][0]["role"]), (&3.into(), &"culprit".into()));
        assert!(watched["brief"].is_null(), "{watched}");
        assert_eq!(watched["nodes"].as_array().map(Vec::len), Some(4));
        let hot = wait_for("a heat map with the late rank in it", || {
            let output = lab.ask(agent, "top", &["--once", "--view", "heat", "--ascii"]);
            let text = stdout(&output);
            let row = text.lines().find(|line| line.trim_start().starts_with("3 m2")).map(str::to_owned);
            row.filter(|row| row.contains('@') || row.contains('#')).ok_or(text)
        });
        drop(hot);
    }

    // A reader that goes away is the end, not a fault.
    let mut once = rankmesh();
    once.args(["top", "--once", "--socket"]).arg(lab.socket("m1")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = once.spawn().expect("starts");
    let mut first = String::new();
    BufReader::new(child.stdout.take().expect("its output")).read_line(&mut first).expect("a line");
    let ended = child.wait_with_output().expect("ends");
    assert!(!first.is_empty() && stderr(&ended).is_empty() && ended.status.code().is_some_and(|code| code != 101));

    let tmux = Tmux::start(&lab, 120, 40);
    let binary = rankmesh().get_program().to_string_lossy().into_owned();
    let socket = lab.socket("m1").display().to_string();
    let top = format!("{binary} top --socket {socket}");
    tmux.shell(&top);
    tmux.wait_for_all(&["rank 3 on m2", "live,", "CULPRIT", "last minute"]);
    tmux.keys(&["3"]);
    tmux.wait_for_all(&["lateness above the median", "of the window:", "3 m2"]);
    tmux.keys(&["Enter"]);
    tmux.wait_for_all(&["rank 3 on m2, process", "where its time went"]);
    tmux.keys(&["Escape"]);
    tmux.keys(&["4"]);
    tmux.wait_for_all(&["clock+-", "m4"]);
    // Any SQL, and its table.
    tmux.keys(&[":"]);
    tmux.keys(&["-l", "select count(distinct rank) as n from collectives"]);
    tmux.keys(&["Enter"]);
    tmux.wait_for_all(&["4 of 4 nodes answered", "n\u{20}"]);
    tmux.keys(&["Escape"]);
    // Back in time and now again.
    tmux.keys(&["1", "["]);
    tmux.wait_for_all(&["PAST", "rank 3 on m2"]);
    tmux.keys(&["0"]);
    tmux.wait_for("live,");

    // Another size, and the stop key.
    tmux.run(&["resize-window", "-x", "80", "-y", "24"]);
    tmux.keys(&["2"]);
    let small = tmux.wait_for_all(&["live,", "rank 3 on m2", "q quit"]);
    assert!(small.lines().count() <= 24, "{small}");
    tmux.keys(&["C-z"]);
    tmux.wait_for_all(&["Stopped", "at-the-shell>"]);
    tmux.shell("fg");
    tmux.wait_for_all(&["live,", "CULPRIT"]);
    // Stopped and continued by others, without a word.
    let process = pid_of_top(&socket);
    kill(process, Signal::SIGTSTP).expect("kill");
    tmux.wait_for_all(&["Stopped", "at-the-shell>"]);
    kill(process, Signal::SIGCONT).expect("kill");
    tmux.shell("fg");
    tmux.wait_for_all(&["live,", "CULPRIT"]);

    // A host that dies is marked, and the agent that is asked.
    lab.kill("m4");
    tmux.keys(&["4"]);
    tmux.wait_for("dead");
    lab.kill("m1");
    let stale = tmux.wait_for("STALE: no agent answers");
    assert!(!stale.contains("live,"), "{stale}");
    lab.restart("m1");
    tmux.keys(&["2"]);
    tmux.wait_for("live,");

    // However it ends, the shell is as before: it echoes, and the old screen is back.
    for signal in [Some(Signal::SIGTERM), Some(Signal::SIGINT), None] {
        match signal {
            Some(signal) => kill(pid_of_top(&socket), signal).expect("kill"),
            None => tmux.keys(&["q"]),
        }
        tmux.wait_for("at-the-shell>");
        tmux.shell("clear; stty -a | grep -o ' echo ' ; echo ended with $?");
        let shell = tmux.wait_for("ended with 0");
        assert!(!shell.contains("CULPRIT"), "{shell}");
        if signal.is_some() || signal == Some(Signal::SIGINT) {
            tmux.shell(&top);
            tmux.wait_for("live,");
        }
    }
    drop(job);

    // The morning after: the agents are gone, their stores are there.
    for agent in AGENTS.iter().filter(|agent| **agent != "m4") {
        lab.terminate(agent);
    }
    let directory = lab.path("stores");
    std::fs::create_dir(&directory).expect("made");
    for agent in AGENTS {
        std::fs::copy(lab.path(&format!("{agent}.db")), directory.join(format!("{agent}.db"))).expect("copied");
    }
    let files = directory.display().to_string();
    let output = rankmesh().args(["top", "--once", "--format", "json", "--db", &files]).output().expect("runs");
    let watched: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(watched["nodes"].as_array().map(Vec::len), Some(4), "{watched}");
    assert_eq!(watched["job"]["culprits"][0]["rank"], 3, "{}", watched["job"]);
    tmux.shell(&format!("clear; {binary} top --db {files}"));
    tmux.wait_for_all(&["PAST", "rank 3 on m2"]);
    tmux.keys(&["3"]);
    tmux.wait_for_all(&["of the window:", "3 m2"]);
    tmux.keys(&["q"]);
    tmux.wait_for("at-the-shell>");
}

#[test]
fn without_an_agent_or_a_terminal_it_says_what_to_do() {
    let lab = Lab::new();
    let nowhere = lab.path("nobody.sock").display().to_string();
    let output = rankmesh().args(["top", "--socket", &nowhere]).env("TERM", "dumb").output().expect("runs");
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("no agent answers on") && text.contains("rankmesh up"), "{text}");
    let output = rankmesh().args(["top", "--once", "--db", &nowhere]).output().expect("runs");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
}

#[test]
fn of_a_span_with_several_jobs_one_is_shown_and_the_others_are_named() {
    let lab = Lab::new();
    let dir = lab.path("jobs");
    std::fs::create_dir(&dir).expect("a directory");
    EndedJob::small().write(&dir);
    // Four minutes later another one, on one of the hosts.
    let later = EndedJob {
        hosts: 1,
        late: Some((2, 100_000_000)),
        id: "812",
        from_ns: T0 + 240_000_000_000,
        ..EndedJob::small()
    };
    later.write(&dir);
    let db = dir.display().to_string();
    let ask = |command: &str, more: &[&str]| {
        let output = run(&[&[command, "--db", &db], more].concat());
        assert!(output.status.success(), "{command} {more:?}: {}", stderr(&output));
        (stdout(&output), stderr(&output))
    };
    let first = ["--between", "2026-01-01T00:00Z", "2026-01-01T00:01Z"];

    let (shown, said) = ask("top", &["--once"]);
    assert!(shown.contains("job 812") && shown.contains("rank 2 on n0") && !shown.contains("n1"), "{shown}");
    assert!(said.contains("also in this time: job 4711 (--job 4711 shows it)"), "{said}");
    let (jobs, _) = ask("top", &["--once", "--view", "jobs"]);
    assert!(jobs.contains("job 812*") && jobs.contains("job 4711 ") && jobs.contains("not judged"), "{jobs}");
    let (then, said) = ask("top", &[&["--once"], first.as_slice()].concat());
    assert!(then.contains("job 4711") && then.contains("rank 5 on n1") && !said.contains("also"), "{then}{said}");
    let (since, _) = ask("top", &["--once", "--since", "2026-01-01T00:00Z", "--until", "2026-01-01T00:01Z"]);
    assert_eq!(since, then);

    // Each is judged by itself: the one that ran last in full, the one that had ended in a line.
    let (both, _) = ask("stragglers", &["--since", "10m"]);
    assert!(both.starts_with("job 812:\nRank 2 on host n0 holds up the other 3 ranks"), "{both}");
    let ended = "job 4711, ended 2026-01-01T00:00:24Z: rank 5 on n1 held it up, 99.8 ms late\n  (--job 4711 shows it)";
    assert!(both.contains(ended), "{both}");
    let (json, _) = ask("stragglers", &["--since", "10m", "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let other = &json["other_jobs"][0];
    assert_eq!((&json["job"], &other["job"], &other["ended"]), (&"812".into(), &"4711".into(), &true.into()), "{json}");
    assert_eq!((&json["verdict"]["rank"], &other["verdict"]["rank"]), (&2.into(), &5.into()), "{json}");
    let (one, _) = ask("stragglers", &["--since", "10m", "--job", "4711"]);
    assert!(one.starts_with("Rank 5 on host n1") && !one.contains("812"), "{one}");

    // The other commands take times of the same form.
    let (jobs, _) = ask("jobs", &first);
    assert!(jobs.contains("4711") && !jobs.contains("812"), "{jobs}");
    let (all, _) = ask("cost", &["--timeout", "60s"]);
    let (part, _) = ask("cost", &[&["--timeout", "60s"], first.as_slice()].concat());
    assert_ne!(all, part);

    let page = lab.path("page.html").display().to_string();
    let (_, said) = ask("report", &["-o", &page, "--timeout", "60s"]);
    assert!(said.contains("not on the page: others of this time: job 4711 (--job 4711 shows it)"), "{said}");
    let html = std::fs::read_to_string(&page).expect("a page");
    assert!(html.contains("<h1>Job 812</h1>") && html.contains("others of this time: job 4711"), "{html}");
    let (_, said) = ask("report", &[&["-o", &page, "--timeout", "60s"], first.as_slice()].concat());
    let html = std::fs::read_to_string(&page).expect("a page");
    assert!(html.contains("<h1>Job 4711</h1>") && !said.contains("others"), "{said}");
}

#[test]
fn services_lead_to_what_their_slowest_requests_wait_for() {
    let test = "services_lead_to_what_their_slowest_requests_wait_for";
    let lab = Lab::new();
    let dir = lab.path("job");
    std::fs::create_dir(&dir).expect("a directory");
    EndedJob { steps: 40, serves: true, ..EndedJob::small() }.write(&dir);
    let db = dir.display().to_string();
    let once = run(&["top", "--db", &db, "--once", "--view", "services", "--ascii"]);
    let text = stdout(&once);
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("chat ")).collect();
    assert!(rows.len() == 2 && rows.iter().all(|row| row.contains(" 600 ") && row.contains("85.0ms")), "{text}");
    if !has_tmux(test) {
        return;
    }
    let tmux = Tmux::start(&lab, 100, 30);
    tmux.shell(&format!("{} top --db {db}", env!("CARGO_BIN_EXE_rankmesh")));
    tmux.wait_for("Rank 5");
    tmux.keys(&["8"]);
    tmux.wait_for_all(&["service", "chat", "n0", "n1", "85.0ms"]);
    tmux.keys(&["Enter"]);
    tmux.wait_for_all(&[
        "chat: what its slowest requests wait for",
        "chat: 1200 requests",
        "asleep in a timer",
        "Examples:",
    ]);
    tmux.keys(&["Escape"]);
    tmux.wait_for_all(&["service", "chat"]);
    tmux.keys(&["q"]);
    tmux.wait_for("at-the-shell>");
}
