//! Live: programs that Debian packages, whose ranks meet in sends, receives and waits, on two ranks
//! with a core each. One of them is held up: by another task on its core, SIGSTOP, a CPU quota, a
//! slow disk. The standing verdict names it and never the other; in a healthy job it names nobody.
//! Needs root, and the programs: LAMMPS, HPC Challenge (HPL, PTRANS), mpi4py.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::can_capture;
use common::pair::{AGENTS, Held, Holds, Pair, RANKS, busy, is_stolen};
use serde_json::Value;

/// In which a verdict must have come; most come within five seconds.
const PATIENCE: Duration = Duration::from_secs(40);

/// A program of the outside world, with an input of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    /// LAMMPS, a Lennard-Jones melt.
    Melt,
    /// LAMMPS, a crystal that fills three quarters of the box: one rank has most of it.
    Uneven,
    /// HPC Challenge: PTRANS and what follows it up to HPL.
    Hpcc,
    /// mpi4py, Sendrecv with both neighbours.
    Halo,
    /// The command in `REAL_COMMAND`, whatever it is: a program that nobody here has looked at.
    Given,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Injection {
    Hog,
    Stop,
    Quota,
    SlowRead,
}

const LAMMPS: &str = "units lj\natom_style atomic\nprocessors 2 1 1\nlattice fcc 0.8442\n\
    region box block 0 16 0 10 0 10\nregion filled block 0 FILL 0 10 0 10\ncreate_box 1 box\n\
    create_atoms 1 region filled\nmass 1 1.0\nvelocity all create SPEED 87287\npair_style lj/cut 2.5\n\
    pair_coeff 1 1 1.0 1.0 2.5\nneighbor 0.3 bin\nneigh_modify every 20 delay 0 check no\nfix 1 all nve\n\
    thermo 100\nrun 100000000\n";

/// HPC Challenge's input with matrices of some order on a grid of one row and two columns.
fn hpccinf(order: usize) -> String {
    // Six ways to broadcast, three and three to factorise: HPL goes on for as long as it is looked
    // at.
    let hpl = "1\n80\n0\n1\n1\n2\n16.0\n3\n0 1 2\n1\n4\n1\n2\n3\n0 1 2\n6\n0 1 2 3 4 5\n2\n0 1\n2\n64\n0\n0\n1\n8\n";
    format!("HPL\nHPL\nHPL.out\n8\n1\n{order}\n{hpl}##### separator\n0\n1200\n0\n40\n")
}

impl Program {
    fn is_there(self) -> bool {
        let runs = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        match self {
            Self::Melt | Self::Uneven => runs("lmp", &["-help"]),
            Self::Hpcc => Path::new("/usr/bin/hpcc").exists(),
            Self::Halo => runs("/usr/bin/python3", &["-c", "import mpi4py"]),
            Self::Given => std::env::var_os("REAL_COMMAND").is_some(),
        }
    }

    /// Its command, with its input in a directory.
    fn command(self, dir: &Path) -> String {
        match self {
            Self::Melt | Self::Uneven => {
                let (fill, speed) = if self == Self::Melt { ("16", "3.0") } else { ("12", "0.1") };
                let input = LAMMPS.replace("FILL", fill).replace("SPEED", speed);
                std::fs::write(dir.join("in.lammps"), input).expect("written");
                "lmp -in in.lammps -log none -screen none".to_owned()
            }
            Self::Hpcc => {
                std::fs::write(dir.join("hpccinf.txt"), hpccinf(4_000)).expect("written");
                "env OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 hpcc".to_owned()
            }
            Self::Halo => {
                let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/workloads/halo.py");
                let program = program.canonicalize().expect("the program is there");
                format!("/usr/bin/python3 {} {}", program.display(), dir.join("data").display())
            }
            Self::Given => std::env::var("REAL_COMMAND").expect("it is there"),
        }
    }
}

/// Starts a program, and leaves it until both ranks' time is known.
fn run(real: &mut Pair, program: Program) {
    real.start(&program.command(&real.dir()));
    common::wait_for("both ranks are in the verdict", || {
        let answer = real.verdict()?;
        // A program may do without calls that meet point to point.
        let point_to_point = answer["point_to_point"]["ranks"].as_array();
        let collective = answer["per_comm"][0]["ranks"].as_array();
        let pid = real.pid(0).map(i64::from);
        let both = |ranks: &Vec<Value>| ranks.len() == RANKS && ranks.iter().any(|rank| rank["pid"].as_i64() == pid);
        if pid.is_some() && point_to_point.into_iter().chain(collective).any(both) {
            Ok(())
        } else {
            Err(answer["verdict"].to_string())
        }
    });
}

/// Asks for this long, and passes on the answers.
fn look(real: &Pair, length: Duration, mut each: impl FnMut(&Value)) {
    let until = Instant::now() + length;
    while Instant::now() < until {
        if let Ok(answer) = real.verdict() {
            each(&answer);
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// A file that the ranks' program reads while it is there.
struct Read(PathBuf);

impl Drop for Read {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Holds a rank; none where this machine has no means for it, with why.
fn hold(real: &Pair, rank: usize, injection: Injection) -> Result<(Held, Option<Read>), String> {
    match injection {
        Injection::Hog => Ok((Held::hold(real, rank, &[Holds::Hog("hog")])?, None)),
        Injection::Stop => Ok((Held::hold(real, rank, &[Holds::Stop])?, None)),
        Injection::Quota => Ok((Held::hold(real, rank, &[Holds::Quota])?, None)),
        Injection::SlowRead => {
            let partial = real.dir().join("data.partial");
            std::fs::write(&partial, vec![7_u8; 16 << 20]).map_err(|error| error.to_string())?;
            nix::unistd::sync();
            let held = Held::hold(real, rank, &[Holds::Reads])?;
            let file = Read(real.dir().join(format!("data.{rank}")));
            std::fs::rename(&partial, &file.0).map_err(|error| error.to_string())?;
            Ok((held, Some(file)))
        }
    }
}

/// What came of one injected run.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Right(Duration),
    Wrong(String),
    Missed(String),
    Skipped(String),
}

/// Whether a verdict rests only on windows that began after a time of this host's clock.
fn is_of_after(verdict: &Value, time: SystemTime) -> bool {
    let since = verdict["since_ns"].as_u64().map(Duration::from_nanos);
    since.is_none_or(|since| UNIX_EPOCH + since >= time)
}

/// Holds a rank until it is named, for a while at most. Another that is named is wrong, unless a
/// task takes its CPU, or the verdict rests on windows from before: then a hold that just ended may
/// be in them.
fn inject(real: &Pair, rank: usize, injection: Injection) -> Outcome {
    let held = match hold(real, rank, injection) {
        Ok(held) => held,
        Err(why) => return Outcome::Skipped(why),
    };
    let (began, began_at) = (Instant::now(), SystemTime::now());
    let mut last = String::new();
    while began.elapsed() < PATIENCE {
        if let Ok(answer) = real.verdict() {
            let verdict = &answer["verdict"];
            if verdict["kind"] == "rank" && verdict["rank"] == rank && verdict["ongoing"] == true {
                drop(held);
                return Outcome::Right(began.elapsed());
            }
            // Other work on this machine takes the CPU of the other rank, too: then the verdict
            // that it is held up is true.
            let is_other = verdict["kind"] == "rank" && verdict["rank"] != rank;
            if is_other && !is_stolen(&answer) && is_of_after(verdict, began_at) {
                return Outcome::Wrong(answer.to_string());
            }
            last = format!("{verdict} {}", answer["point_to_point"]);
        }
        std::thread::sleep(Duration::from_millis(300));
    }
    match busy() {
        Some(why) => Outcome::Skipped(why),
        None => Outcome::Missed(last),
    }
}

/// Waits until nobody is named.
fn calm(real: &Pair) {
    common::wait_for("nobody is named", || {
        let answer = real.verdict()?;
        let by_others = is_stolen(&answer) && busy().is_some();
        if answer["verdict"]["kind"] == "rank" && !by_others { Err(answer["verdict"].to_string()) } else { Ok(()) }
    });
}

fn can_run(test: &str, programs: &[Program]) -> bool {
    if !can_capture(test) {
        return false;
    }
    let lacking = programs.iter().find(|program| !program.is_there());
    if let Some(program) = lacking {
        eprintln!("skipped: {test}: {program:?} is not installed (scripts/deps.sh --test)");
    }
    lacking.is_none()
}

#[test]
fn a_held_rank_of_real_programs_is_named_and_a_healthy_one_is_not() {
    const TEST: &str = "a_held_rank_of_real_programs_is_named_and_a_healthy_one_is_not";
    if !can_run(TEST, &[Program::Melt, Program::Halo]) {
        return;
    }
    let mut real = Pair::new("real");
    let runs: [(Program, &[(usize, Injection)]); 2] = [
        (Program::Melt, &[(1, Injection::Hog), (0, Injection::Stop), (1, Injection::Quota)]),
        (Program::Halo, &[(1, Injection::SlowRead), (0, Injection::Hog)]),
    ];
    for (program, injections) in runs {
        run(&mut real, program);
        for (rank, injection) in injections {
            let outcome = inject(&real, *rank, *injection);
            eprintln!("{program:?} {injection:?} rank {rank}: {outcome:?}");
            match outcome {
                Outcome::Right(_) => calm(&real),
                Outcome::Skipped(why) => eprintln!("skipped: {TEST}: {injection:?}: {why}"),
                other => panic!("{program:?} {injection:?} rank {rank}: {other:?}"),
            }
        }
    }
}

/// On a machine with other work the rank may truly be held up: then the verdict names the task.
fn only_if_held(answer: &Value) {
    let named = answer["cause"]["named"].as_array().is_some_and(|named| !named.is_empty());
    assert!(answer["verdict"]["kind"] != "rank" || named, "{answer}");
}

#[test]
fn an_uneven_domain_is_never_a_slow_rank_nor_nobody() {
    const TEST: &str = "an_uneven_domain_is_never_a_slow_rank_nor_nobody";
    if !can_run(TEST, &[Program::Uneven]) {
        return;
    }
    let mut real = Pair::new("uneven");
    run(&mut real, Program::Uneven);
    // Busy machines hold both ranks up now and then: then the imbalance cannot always be found.
    let found = |answer: &Value| {
        only_if_held(answer);
        let verdict = &answer["verdict"];
        let heavy = verdict["kind"] == "work_imbalance" && verdict["ranks"][0]["rank"] == 0;
        let may = verdict["kind"] == "unknown" || verdict["kind"] == "rank";
        if heavy || may { Ok(()) } else { Err(format!("{verdict} {}", answer["point_to_point"])) }
    };
    common::wait_for("the imbalance is reported", || found(&real.verdict()?));
    // The verdict of the stores is the same.
    common::wait_for("the stores report it", || {
        let output = real.lab.ask(AGENTS[1], "stragglers", &["--since", "10s", "--format", "json"]);
        found(&serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?)
    });
}

/// The long form. `REAL_PROGRAM` (melt, halo, hpcc, uneven) and `REAL_ROUNDS` choose a part;
/// `REAL_COMMAND` is a command of one's own for both ranks, looked at in place of these.
#[test]
#[ignore = "minutes: make bench NAME=real"]
fn long_form_on_real_programs() {
    let wanted = std::env::var("REAL_PROGRAM").ok();
    let rounds: usize = std::env::var("REAL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(2);
    let given = std::env::var_os("REAL_COMMAND").is_some();
    let all: [(&str, Program, &[Injection]); 5] = [
        ("given", Program::Given, &[Injection::Hog, Injection::Stop, Injection::Quota]),
        ("melt", Program::Melt, &[Injection::Hog, Injection::Stop, Injection::Quota]),
        ("halo", Program::Halo, &[Injection::Hog, Injection::Stop, Injection::Quota, Injection::SlowRead]),
        ("hpcc", Program::Hpcc, &[Injection::Hog, Injection::Stop, Injection::Quota]),
        ("uneven", Program::Uneven, &[]),
    ];
    let (mut right, mut wrong, mut injected, mut healthy, mut named, mut waited) = (0, 0, 0, 0, 0, 0.0);
    let mut real = Pair::new("long");
    for (name, program, injections) in all {
        let chosen = match given {
            true => program == Program::Given,
            false => program != Program::Given && wanted.as_ref().is_none_or(|wanted| wanted == name),
        };
        if !chosen || !can_run("long_form_on_real_programs", &[program]) {
            continue;
        }
        for round in 0..rounds {
            run(&mut real, program);
            let mut kinds = std::collections::BTreeMap::<String, usize>::new();
            let mut held = None;
            look(&real, Duration::from_secs(10), |answer| {
                let verdict = &answer["verdict"];
                let why = verdict["why"].as_str().map_or_else(String::new, |why| format!(": {why}"));
                *kinds.entry(format!("{}{why}", verdict["kind"].as_str().unwrap_or_default())).or_default() += 1;
                held = held.take().or_else(|| busy().filter(|_| is_stolen(answer)));
                if verdict["kind"] == "unknown" {
                    let compute: Vec<&Value> = answer["point_to_point"]["ranks"]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .map(|r| &r["compute"])
                        .collect();
                    eprintln!("{compute:?}");
                }
                if verdict["kind"] == "rank" && held.is_none() {
                    eprintln!(
                        "{name} round {round} healthy: {verdict} {} {}",
                        answer["cause"], answer["point_to_point"]
                    );
                }
            });
            eprintln!("{name} round {round} healthy: {kinds:?} {held:?}");
            // A rank whose core other work takes is held up by it.
            if held.is_none() {
                healthy += 1;
                named += usize::from(kinds.contains_key("rank"));
            }
            for injection in injections {
                let rank = (round + injected) % RANKS;
                let outcome = inject(&real, rank, *injection);
                eprintln!("{name} round {round} {injection:?} rank {rank}: {outcome:?}");
                match outcome {
                    Outcome::Skipped(_) => continue,
                    Outcome::Right(after) => (right, waited) = (right + 1, waited + after.as_secs_f64()),
                    Outcome::Wrong(_) => wrong += 1,
                    Outcome::Missed(_) => {}
                }
                injected += 1;
                calm(&real);
            }
        }
    }
    let percent = |part: usize, of: usize| 100.0 * part as f64 / of.max(1) as f64;
    println!("figure real_right_name {:.1} % aim >= 95", percent(right, injected));
    println!("figure real_wrong_name {wrong} runs aim <= 0");
    println!("figure real_injected {injected} runs aim >= 40");
    println!("figure real_healthy_named {named} runs aim <= 0");
    println!("figure real_healthy {healthy} runs aim >= 20");
    println!("figure real_time_to_name {:.1} s aim <= 15", waited / right.max(1) as f64);
}
