//! A full run: questions from many threads while a script of operations is executed, every answer
//! judged, and the process's resources compared at the end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use agent::Shared;
use anyhow::Context;
use query::FanoutPolicy;
use query::ask::{self, AskError, QueryOutcome};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio_util::sync::CancellationToken;

use super::fleet::Fleet;
use super::judge::{Came, Judgement, Put, judge};
use super::leaks::{Resources, handles};
use super::oracle::Oracle;
use super::questions::{Drawn, Scope, draw};
use super::relay::HostId;
use super::script::{Operation, Script};
use crate::light::question;

/// Most faults reported in full; the rest is counted.
const FULL_FAULTS: usize = 12;
/// Questions between two lines of a run that says how far it is.
const SAYS_EVERY: usize = 250;
/// Operations listed with a fault.
const REMEMBERED: usize = 12;
/// How long hosts may take to find each other, at the beginning and after everything was healed.
const MEETING: Duration = Duration::from_secs(240);
/// Longest wait for the ends of threads and sockets.
const ENDING: Duration = Duration::from_secs(120);
/// Time between two measurements of the machine's own lateness.
const LAG_STEP: Duration = Duration::from_millis(10);
/// Questions between two measurements of the memory.
const MEMORY_EVERY: usize = 25;

/// The parameters of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Hosts.
    pub hosts: usize,
    /// Questions in all.
    pub questions: usize,
    /// Questions at a time.
    pub at_once: usize,
    /// The seed of operations, questions and lost datagrams.
    pub seed: u64,
    /// Mean time between operations.
    pub pace: Duration,
    /// Whether hosts may return with other rows.
    pub new_rows: bool,
    /// Shortest and longest deadline of a question.
    pub timeout: (Duration, Duration),
    /// No question begins after this time, once there was a complete and a partial answer: on a
    /// machine that was suspended the time alone proves nothing.
    pub at_most: Duration,
    /// With more hosts than this, questions go through intermediate aggregators.
    pub tree_above: usize,
    /// The mesh lives in cells of at most so many hosts.
    pub most_in_cell: Option<usize>,
    /// Say on standard error how far it is, and each fault as it is found.
    pub says: bool,
}

/// The result of a run.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Questions judged.
    pub questions: usize,
    /// Answers from every host that was asked.
    pub complete: usize,
    /// Answers from which some hosts were rightly missing.
    pub partial: usize,
    /// Questions whose coordinator was killed or stopped.
    pub unanswered: usize,
    /// Operations done.
    pub operations: usize,
    /// Answers whose rows are not the oracle's.
    pub wrong_rows: usize,
    /// Answers whose coverage is not true.
    pub wrong_coverage: usize,
    /// Questions that failed at a coordinator that was well.
    pub failed: usize,
    /// Answers after the deadline and a tenth, by more than the machine itself was late.
    pub late: usize,
    /// The same with the machine's own lateness counted in.
    pub late_at_all: usize,
    /// Faults in full, the first few.
    pub faults: Vec<String>,
    /// Time until all knew all again after everything was healed.
    pub healed: Duration,
    /// Cells that the mesh then had.
    pub cells: usize,
    /// Time until every host gave a complete answer after that.
    pub complete_again: Duration,
    /// Tasks alive in the busiest agent, before and after.
    pub tasks: (usize, usize),
    /// Resources of the process before the hosts started, and after they ended.
    pub resources: Option<(Resources, Resources)>,
    /// The most resident memory seen in each quarter of the questions, bytes.
    pub memory_bytes: [u64; 4],
    /// The most memory seen allocated and not freed in each quarter of the questions, without the
    /// oracle's databases, bytes.
    pub live_bytes: [u64; 4],
    /// Datagrams carried, and lost on purpose.
    pub datagrams: (u64, u64),
    /// Longest time that the machine was late with a short sleep.
    pub lag: Duration,
    /// Time of the run.
    pub took: Duration,
}

impl Report {
    /// Whether every answer was right and true. (How fast it came depends on the machine, too.)
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.wrong_rows + self.wrong_coverage == 0
    }

    /// Whether every answer was right, true and in time.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.wrong_rows + self.wrong_coverage + self.failed + self.late == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} questions in {:.1} s under {} operations: {} complete, {} partial, {} at coordinators that went; {} datagrams, {} lost",
            self.questions,
            self.took.as_secs_f64(),
            self.operations,
            self.complete,
            self.partial,
            self.unanswered,
            self.datagrams.0,
            self.datagrams.1,
        )?;
        writeln!(
            f,
            "wrong rows {}, wrong coverage {}, failed {}, late {} ({} with the machine's lag of up to {:.0} ms)",
            self.wrong_rows,
            self.wrong_coverage,
            self.failed,
            self.late,
            self.late_at_all,
            self.lag.as_secs_f64() * 1e3
        )?;
        writeln!(
            f,
            "healed: all know all after {:.1} s, whole answers everywhere {:.1} s later; tasks of the busiest agent {} -> {}; memory {} -> {} MiB, live {} -> {} MiB",
            self.healed.as_secs_f64(),
            self.complete_again.as_secs_f64(),
            self.tasks.0,
            self.tasks.1,
            self.memory_bytes[1] >> 20,
            self.memory_bytes[3] >> 20,
            self.live_bytes[1] >> 20,
            self.live_bytes[3] >> 20,
        )?;
        if let Some((before, after)) = &self.resources {
            writeln!(f, "files {} -> {}, threads {} -> {}", before.files, after.files, before.threads, after.threads)?;
        }
        for fault in &self.faults {
            writeln!(f, "{fault}")?;
        }
        Ok(())
    }
}

fn id_of(name: &str) -> Option<HostId> {
    name.strip_prefix('n').and_then(|id| id.parse().ok())
}

/// The members that a host lists now.
fn listed(shared: &Shared) -> BTreeSet<HostId> {
    shared.coordinator.gossip.list().iter().filter_map(|member| id_of(&member.name)).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the threads of a run share.
struct Run {
    options: Options,
    fleet: Arc<Fleet>,
    oracle: Mutex<Oracle>,
    report: Mutex<Report>,
    reasons: Mutex<BTreeMap<String, usize>>,
    operations: Mutex<VecDeque<(Instant, Operation)>>,
    lags: Mutex<VecDeque<(Instant, Duration)>>,
    /// The instant up to which the machine's lateness is known.
    watched: Mutex<Instant>,
    drawn: AtomicUsize,
    over: AtomicBool,
    began: Instant,
}

/// Runs the lab.
///
/// # Errors
/// Hosts cannot start or do not find each other again.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    // Tokio's first runtime opens a pair of sockets for signals that stays as long as the process.
    drop(tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?);
    let before = Resources::now()?;
    let fleet = Fleet::start(options.hosts, options.seed, options.most_in_cell, MEETING)?;
    let tasks_before = fleet.tasks().into_iter().max().unwrap_or(0);
    let run = Run {
        options: options.clone(),
        fleet,
        oracle: Mutex::new(Oracle::new(options.seed)),
        report: Mutex::default(),
        reasons: Mutex::default(),
        operations: Mutex::default(),
        lags: Mutex::default(),
        watched: Mutex::new(Instant::now()),
        drawn: AtomicUsize::new(0),
        over: AtomicBool::new(false),
        began: Instant::now(),
    };
    let operated = std::thread::scope(|scope| {
        scope.spawn(|| run.watch_lag());
        let operator = scope.spawn(|| run.operate());
        let coordinators: Vec<_> = (0..options.at_once)
            .map(|index| (index, &run))
            .map(|(i, run)| scope.spawn(move || run.put_questions(i)))
            .collect();
        for coordinator in coordinators {
            let _ = coordinator.join();
        }
        run.over.store(true, Ordering::Relaxed);
        operator.join()
    });
    operated.map_err(|_| anyhow::anyhow!("the operator panicked"))??;

    let healed = run.fleet.wait_for_all(MEETING).context("after everything was healed")?;
    let complete_again = run.wait_for_complete_answers()?;
    let cells = run.fleet.cells();
    let tasks_after = run.tasks_at_rest();
    let Run { fleet, report, began, .. } = run;
    let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.took = began.elapsed();
    report.datagrams = fleet.datagrams();
    fleet.shutdown();
    drop(fleet);
    (report.healed, report.complete_again, report.cells) = (healed, complete_again, cells);
    report.tasks = (tasks_before, tasks_after);
    let after = settled(&before)?;
    if after.files > before.files {
        report.faults.push(format!("LEAK file handles: {}", handles()?.join(", ")));
    }
    report.resources = Some((before, after));
    Ok(report)
}

/// The resources when the last threads and sockets have ended.
fn settled(before: &Resources) -> anyhow::Result<Resources> {
    let until = Instant::now() + ENDING;
    loop {
        let now = Resources::now()?;
        if (now.files <= before.files && now.threads <= before.threads) || Instant::now() > until {
            return Ok(now);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Run {
    fn watch_lag(&self) {
        while !self.over.load(Ordering::Relaxed) {
            let began = Instant::now();
            std::thread::sleep(LAG_STEP);
            let lag = began.elapsed().saturating_sub(LAG_STEP);
            let mut lags = lock(&self.lags);
            if lag > LAG_STEP {
                lags.push_back((began, lag));
            }
            while lags.front().is_some_and(|(at, _)| at.elapsed() > Duration::from_secs(120)) {
                lags.pop_front();
            }
            *lock(&self.watched) = began;
        }
    }

    /// The sum of the machine's lateness between two instants, of which the second is not in the
    /// future.
    fn lag(&self, from: Instant, until: Instant) -> Duration {
        // After the machine was suspended, the asking thread may go on before the watch has noticed
        // it.
        while *lock(&self.watched) < until && !self.over.load(Ordering::Relaxed) {
            std::thread::sleep(LAG_STEP);
        }
        let lags = lock(&self.lags);
        lags.iter().filter(|(at, lag)| *at + *lag >= from && *at <= until).map(|(_, lag)| *lag).sum()
    }

    fn operate(&self) -> anyhow::Result<()> {
        let mut script = Script::new(self.options.seed, self.options.hosts, self.options.pace, self.options.new_rows);
        while !self.over.load(Ordering::Relaxed) {
            let (pause, operation) = script.draw();
            let until = Instant::now() + pause;
            while Instant::now() < until && !self.over.load(Ordering::Relaxed) {
                std::thread::sleep(LAG_STEP);
            }
            self.apply(operation)?;
        }
        script.ending().into_iter().try_for_each(|operation| self.apply(operation))
    }

    fn apply(&self, operation: Operation) -> anyhow::Result<()> {
        {
            let mut operations = lock(&self.operations);
            operations.push_back((Instant::now(), operation.clone()));
            if operations.len() > REMEMBERED {
                operations.pop_front();
            }
        }
        lock(&self.report).operations += 1;
        self.fleet.apply(&operation).with_context(|| operation.to_string())
    }

    fn put_questions(&self, index: usize) {
        let mut rng = StdRng::seed_from_u64(self.options.seed.wrapping_mul(1_000_003).wrapping_add(index as u64));
        let both_seen = || {
            let report = lock(&self.report);
            report.complete > 0 && report.partial > 0
        };
        while (self.began.elapsed() < self.options.at_most || !both_seen())
            && self.drawn.fetch_add(1, Ordering::Relaxed) < self.options.questions
        {
            let drawn = draw(&mut rng, self.options.hosts);
            let (shortest, longest) = self.options.timeout;
            let timeout = shortest + (longest - shortest).mul_f64(rng.random_range(0.0..1.0));
            let timeout = Duration::from_millis(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
            let put = loop {
                let coordinator = rng.random_range(0..self.options.hosts);
                if let Some(put) = self.put(coordinator, &drawn, timeout) {
                    break put;
                }
                std::thread::sleep(LAG_STEP);
            };
            self.account(&put);
        }
    }

    /// Asks one question; `None` where the coordinator does not run.
    fn put(&self, coordinator: HostId, drawn: &Drawn, timeout: Duration) -> Option<Put> {
        let (shared, runtime) = self.fleet.asked(coordinator)?;
        *shared.coordinator.fanout.lock() = FanoutPolicy { tree_above: self.options.tree_above };
        let live: BTreeSet<HostId> = shared
            .coordinator
            .gossip
            .list()
            .iter()
            .filter(|member| member.is_live())
            .filter_map(|member| id_of(&member.name).map(|id| (id, member.address)))
            .filter(|(id, address)| self.fleet.address(*id) == Some(*address))
            .map(|(id, _)| id)
            .collect();
        let before = listed(&shared);
        let question = question(&drawn.sql, timeout);
        let (tell, ended_at) = mpsc::channel();
        let of_task = Arc::clone(&shared);
        let began = Instant::now();
        let (tell_list, then_listed) = mpsc::channel();
        runtime.spawn(async move {
            let _ = tell_list.send(listed(&of_task));
            let came = ask::ask(&of_task.coordinator, question, CancellationToken::new()).await;
            let _ = tell.send((Instant::now(), came));
        });
        // A killed coordinator drops the task, a stopped one goes on later.
        let (ended, came) = match ended_at.recv() {
            Ok((ended, Ok(QueryOutcome::Answer { answer, coverage, .. }))) => {
                (ended, Came::Answer(answer.rows, coverage))
            }
            Ok((ended, Ok(QueryOutcome::Plan(plan)))) => (ended, Came::Failed(plan)),
            Ok((ended, Err(AskError::Wrong(failure)))) => (ended, Came::Wrong(failure.message)),
            Ok((ended, Err(AskError::Failed { failure, coverage }))) => {
                (ended, Came::Failed(format!("{failure} ({coverage:?})")))
            }
            Err(_) => (Instant::now(), Came::Nobody),
        };
        // On a busy host the question begins some time after it was sent.
        let listed: Vec<_> = [before].into_iter().chain(then_listed.try_recv().ok()).chain([listed(&shared)]).collect();
        let lag = self.lag(began, ended);
        Some(Put { drawn: drawn.clone(), coordinator, began, ended, timeout, listed, live, lag, came })
    }

    fn account(&self, put: &Put) {
        let (judgement, oracle_bytes) = {
            let timeline = self.fleet.timeline();
            let mut oracle = lock(&self.oracle);
            (judge(put, &timeline, &mut oracle), oracle.bytes())
        };
        let Judgement { wrong_rows, wrong_coverage, failed, late, missing, complete } = judgement;
        if let Came::Answer(_, coverage) = &put.came {
            let mut reasons = lock(&self.reasons);
            for gone in &coverage.missing {
                *reasons.entry(gone.reason.clone()).or_default() += 1;
            }
        }
        let excused = late.is_some_and(|late| late <= put.lag);
        let mut report = lock(&self.report);
        report.questions += 1;
        report.lag = report.lag.max(put.lag);
        report.complete += usize::from(complete);
        report.partial += usize::from(missing > 0);
        report.unanswered +=
            usize::from(matches!(put.came, Came::Nobody) || (matches!(put.came, Came::Failed(_)) && failed.is_none()));
        report.wrong_rows += usize::from(wrong_rows.is_some());
        report.wrong_coverage += usize::from(wrong_coverage.is_some());
        report.failed += usize::from(failed.is_some());
        report.late += usize::from(late.is_some() && !excused);
        report.late_at_all += usize::from(late.is_some());
        if report.questions % MEMORY_EVERY == 1 {
            let quarter = (4 * (report.questions - 1) / self.options.questions.max(1)).min(3);
            if let Ok(now) = Resources::now() {
                report.memory_bytes[quarter] = report.memory_bytes[quarter].max(now.memory_bytes);
                let live = now.live_bytes.saturating_sub(oracle_bytes);
                report.live_bytes[quarter] = report.live_bytes[quarter].max(live);
            }
        }
        let late = late.filter(|_| !excused).map(|late| format!("late by {late:?}, the machine by {:?}", put.lag));
        let faults = [("rows", wrong_rows), ("coverage", wrong_coverage), ("failed", failed), ("late", late)];
        for (what, fault) in faults.into_iter().filter_map(|(what, fault)| fault.map(|fault| (what, fault))) {
            let text = (report.faults.len() < FULL_FAULTS).then(|| self.fault_text(put, what, &fault));
            if let (true, Some(text)) = (self.options.says, &text) {
                eprintln!("{text}");
            }
            report.faults.extend(text);
        }
        if self.options.says && report.questions.is_multiple_of(SAYS_EVERY) {
            let wrong = (report.wrong_rows, report.wrong_coverage, report.failed, report.late);
            let seconds = self.began.elapsed().as_secs();
            eprintln!("{} questions in {seconds} s; wrong rows, coverage, failed, late: {wrong:?}", report.questions);
        }
    }

    /// A fault with the operations before it.
    fn fault_text(&self, put: &Put, what: &str, fault: &str) -> String {
        let mut text = format!(
            "FAULT {what} at n{} (seed {}, {:.1} s into the run, deadline {:?}, took {:?}, machine late {:?})\n  {}\n  {fault}",
            put.coordinator,
            self.options.seed,
            put.began.duration_since(self.began).as_secs_f64(),
            put.timeout,
            put.ended.duration_since(put.began),
            put.lag,
            put.drawn.sql,
        );
        for (at, operation) in lock(&self.operations).iter() {
            let when = at.saturating_duration_since(put.began).as_secs_f64()
                - put.began.saturating_duration_since(*at).as_secs_f64();
            text.push_str(&format!("\n    {when:+.2} s {operation}"));
        }
        text
    }

    /// Tasks of the busiest agent once their number is lowest: those of dead connections end with
    /// time.
    fn tasks_at_rest(&self) -> usize {
        let until = Instant::now() + ENDING;
        let (mut fewest, mut since) = (usize::MAX, Instant::now());
        // Until there were no fewer for this long.
        while since.elapsed() < Duration::from_secs(2) && Instant::now() < until {
            let now = self.fleet.tasks().into_iter().max().unwrap_or(0);
            if now < fewest {
                (fewest, since) = (now, Instant::now());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        fewest
    }

    /// Waits until every host gives a complete and right answer.
    fn wait_for_complete_answers(&self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let drawn = Drawn {
            sql: "SELECT node, count(*), sum(v) FROM t GROUP BY node".into(),
            ordered: false,
            scope: Scope::All,
        };
        for host in 0..self.options.hosts {
            loop {
                let put = self.put(host, &drawn, Duration::from_secs(10)).context("a host does not run at the end")?;
                let judgement = judge(&put, &self.fleet.timeline(), &mut lock(&self.oracle));
                anyhow::ensure!(judgement.wrong_rows.is_none(), "at the end: {judgement:?}");
                if judgement.complete {
                    break;
                }
                anyhow::ensure!(began.elapsed() < MEETING, "n{host} gets no whole answer at the end: {:?}", put.came);
            }
        }
        Ok(began.elapsed())
    }
}
