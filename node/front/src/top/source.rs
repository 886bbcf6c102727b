//! Fetches what is shown, in threads of its own: the states that an agent sends, the windows of its
//! judges, and now and then the answers of other questions. Everything goes to the screen as an
//! [`Event`].

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ask::output::cell_text;
use ask::rows::Client;
use ask::{NoAnswer, Piece, Reply, Target, WentAway};
use explain::stacks::{self, StacksAnswer};
use model::board::{Board, BoardQuestion, Known};
use model::cells::{integer, real, text};
use model::watch::Watched;
use model::{LocalRequest, Question, StacksQuestion, StacksWanted, WatchQuestion};
use parking_lot::Mutex;
use query_planner::Value;
use record::unix_now_ns;
use top::{Answer, NodeSample, RankDetail, questions, slowest_of};

use super::past;
use crate::tail;

/// Error that ends the reception of states when enough has come.
pub(super) const ENOUGH: &str = "enough";
/// How far back the first windows of a large job are fetched.
pub(super) const LAST_MINUTE_NS: i64 = 75_000_000_000;
/// Ranks from which on a job is large.
const LARGE: u32 = 1_024;
/// Pause between two requests for windows, after a failure, and between two requests for the rest.
const WINDOWS_EVERY: Duration = Duration::from_millis(500);
const AGAIN: Duration = Duration::from_secs(1);
const REST_EVERY: Duration = Duration::from_secs(5);
/// Time for such a request.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for a question that was typed.
const TYPED_PATIENCE: Duration = Duration::from_secs(60);
/// Rows of an answer that are shown.
const MOST_ROWS: usize = 1_000;
/// Samples of nodes are of this span.
const RECENT_NS: i64 = 10_000_000_000;
/// Span of what is shown of one rank.
const MINUTE_NS: i64 = 60_000_000_000;

/// Something for the screen. Events of a time or a job that is no longer shown are recognised by
/// their number and dropped.
#[derive(Debug)]
pub(super) enum Event {
    /// The current state.
    Watched(u64, Box<Watched>),
    /// Windows.
    Board(u64, Box<Board>),
    /// The state at a time, with its windows, or why it cannot be had.
    Past(u64, Result<(Box<Watched>, Option<Box<Board>>), String>),
    Samples(HashMap<String, NodeSample>),
    Findings(Answer),
    Services(Answer),
    /// What is known of a service's slowest requests: title and text.
    Tail(String, String),
    Detail(Box<RankDetail>),
    Answer(Box<Answer>),
    /// Why no states arrive.
    Failed(u64, String),
}

/// What the threads are to fetch; shared with them.
#[derive(Debug, Default)]
struct Wanted {
    /// The job.
    job: Mutex<Option<String>>,
    /// Increases when another job or another time is shown.
    number: AtomicU64,
    /// The time that is shown; none: now.
    at_ns: Mutex<Option<i64>>,
    /// The span that the command names: it is judged as a whole at its end.
    span_ns: Option<(i64, i64)>,
    /// Services are looked at.
    services: AtomicBool,
    /// The job that was shown when another time was chosen, where none was named.
    shown: Mutex<Option<String>>,
}

impl Wanted {
    /// The job in whose rows a time in the past is looked up.
    fn job_of_past(&self) -> Option<String> {
        let job = self.job.lock().clone().or_else(|| self.shown.lock().clone());
        job.map(|job| past::job_id(&job).to_owned())
    }
}

/// Fetches until it is dropped together with the receiver of its events.
pub(super) struct Source {
    target: Arc<Target>,
    wanted: Arc<Wanted>,
    to: Sender<Event>,
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// An agent that does not know such a request just closes the connection: adds that to the error.
pub(super) fn explained(error: anyhow::Error) -> anyhow::Error {
    if error.is::<WentAway>() {
        return error.context(
            "the agent hung up: one of an earlier release does not push what stands (rankmesh stragglers --watch asks it)",
        );
    }
    error
}

impl Source {
    /// Starts fetching for `job`, with a span at its end; events go to `to`.
    pub(super) fn start(target: Target, job: Option<String>, span_ns: Option<(i64, i64)>, to: Sender<Event>) -> Self {
        let wanted = Arc::new(Wanted { job: Mutex::new(job), span_ns, ..Wanted::default() });
        let source = Self { target: Arc::new(target), wanted, to };
        if source.target.is_stores() || span_ns.is_some() {
            source.show(span_ns.map(|(_, until_ns)| until_ns), true);
        }
        if !source.target.is_stores() {
            source.spawn(watch);
            source.spawn(windows);
        }
        source.spawn(rest);
        source
    }

    fn spawn(&self, run: impl FnOnce(&Target, &Wanted, &Sender<Event>) + Send + 'static) {
        let (target, wanted, to) = (Arc::clone(&self.target), Arc::clone(&self.wanted), self.to.clone());
        std::thread::spawn(move || run(&target, &wanted, &to));
    }

    /// The number of events of what is shown now.
    pub(super) fn number(&self) -> u64 {
        self.wanted.number.load(Ordering::Relaxed)
    }

    /// Shows another job.
    pub(super) fn job(&self, job: Option<String>) {
        *self.wanted.job.lock() = job;
        let at_ns = *self.wanted.at_ns.lock();
        self.show(at_ns, true);
    }

    /// The job that is shown now, though none was named.
    pub(super) fn shows(&self, job: Option<String>) {
        *self.wanted.shown.lock() = job;
    }

    /// Shows a time, of stores without one their end, with `windows` if wanted. Without a time, and
    /// where an agent is asked, the current state.
    pub(super) fn show(&self, at_ns: Option<i64>, windows: bool) {
        *self.wanted.at_ns.lock() = at_ns;
        let number = self.wanted.number.fetch_add(1, Ordering::Relaxed) + 1;
        if at_ns.is_none() && !self.target.is_stores() {
            return;
        }
        self.spawn(move |target, wanted, to| {
            // When a person steps through time quickly, only the last time is fetched.
            std::thread::sleep(Duration::from_millis(150));
            let is_wanted = || wanted.number.load(Ordering::Relaxed) == number;
            if !is_wanted() {
                return;
            }
            let job = wanted.job_of_past();
            let span_ns = at_ns.map(|at_ns| match wanted.span_ns {
                Some(span_ns) if span_ns.1 == at_ns => span_ns,
                _ => past::before(at_ns),
            });
            let found = past::watched(target, job.as_deref(), span_ns).and_then(|watched| {
                // Of the same job as the verdict.
                let job = watched.job.as_ref().and_then(|job| job.id.as_deref());
                let board = (windows && is_wanted()).then(|| past::board(target, job, watched.at_ns));
                Ok((Box::new(watched), board.transpose()?.map(Box::new)))
            });
            let _ = to.send(Event::Past(number, found.map_err(|error| format!("{error:#}"))));
        });
    }

    /// Whether services are looked at: they are asked for only then.
    pub(super) fn shows_services(&self, they_are: bool) {
        self.wanted.services.store(they_are, Ordering::Relaxed);
    }

    /// Fetches what the slowest requests of a service wait for.
    pub(super) fn tail(&self, service: String) {
        self.spawn(move |target, wanted, to| {
            let at_ns = *wanted.at_ns.lock();
            let span_ns = at_ns.map(|at_ns| (at_ns.saturating_sub(questions::SERVICES_NS), at_ns));
            let title = slowest_of(&service);
            let asked = tail::Wanted { service: Some(service), span_ns, ..tail::Wanted::default() };
            let found = tail::of(target, &Client::of_all(target, TYPED_PATIENCE), asked);
            let text = found.map(|tail| [vec![tail.text()], tail.coverage.lines()].concat().join("\n"));
            let _ = to.send(Event::Tail(title, text.unwrap_or_else(|error| format!("{error:#}"))));
        });
    }

    /// Asks a question that was typed.
    pub(super) fn ask(&self, sql: String) {
        self.spawn(move |target, _, to| {
            let _ = to.send(Event::Answer(Box::new(typed(target, sql))));
        });
    }

    /// Fetches the details of a rank.
    pub(super) fn detail(&self, node: String, pid: i64, rank: i64) {
        self.spawn(move |target, wanted, to| {
            let (job, at_ns) = (wanted.job_of_past(), *wanted.at_ns.lock());
            let detail = Fetcher::new(target, job).detail(&node, pid, rank, at_ns);
            let _ = to.send(Event::Detail(Box::new(detail)));
        });
    }
}

/// Passes on the states that arrive for the wanted job, and asks again when the connection ends.
fn watch(target: &Target, wanted: &Wanted, to: &Sender<Event>) {
    loop {
        let (job, number) = (wanted.job.lock().clone(), wanted.number.load(Ordering::Relaxed));
        let request = LocalRequest::Watch(WatchQuestion { job: job.clone() });
        let asked = target.ask_into(request, &mut |piece| {
            let number = wanted.number.load(Ordering::Relaxed);
            if *wanted.job.lock() != job {
                bail!(ENOUGH);
            }
            if let Piece::Watched(json) = piece {
                let watched = serde_json::from_str(&json).context("reading what the agent pushes")?;
                to.send(Event::Watched(number, Box::new(watched)))?;
            }
            Ok(())
        });
        let why = match asked {
            Ok(_) => "the agent ended the push".to_owned(),
            Err(error) if error.to_string() == ENOUGH => continue,
            Err(error) => format!("{:#}", explained(error)),
        };
        if to.send(Event::Failed(number, why)).is_err() {
            return;
        }
        std::thread::sleep(AGAIN);
    }
}

/// Fetches the windows that judges keep, and then new ones.
fn windows(target: &Target, wanted: &Wanted, to: &Sender<Event>) {
    let (mut known, mut of) = (None::<(Known, i64)>, u64::MAX);
    loop {
        let number = wanted.number.load(Ordering::Relaxed);
        if wanted.at_ns.lock().is_some() {
            std::thread::sleep(WINDOWS_EVERY);
            continue;
        }
        if of != number {
            (known, of) = (None, number);
        }
        let job = wanted.job.lock().clone();
        let asked = target.board(BoardQuestion {
            job,
            // The first request is for the ranks.
            since_ns: Some(known.map_or(i64::MAX, |(_, since_ns)| since_ns)),
            known: known.map(|(known, _)| known),
            timeout_ms: millis(PATIENCE),
            ..BoardQuestion::default()
        });
        let mut is_more = false;
        if let Ok(board) = asked {
            let ranks = board.first_rank + u32::try_from(board.ranks.len()).unwrap_or(u32::MAX);
            // Of another judge, or with ranks in another order: all of it again.
            let is_same = known.is_some_and(|(known, _)| known.epoch == board.epoch);
            let since_ns = match (is_same, board.windows.last()) {
                (true, Some(last)) => last.end_ns,
                (true, None) => known.map_or(i64::MIN, |(_, since_ns)| since_ns),
                (false, _) if ranks > LARGE => unix_now_ns().saturating_sub(LAST_MINUTE_NS),
                (false, _) => i64::MIN,
            };
            is_more = board.more || !is_same;
            known = Some((Known { epoch: board.epoch, ranks }, since_ns));
            let board = if is_same { board } else { Board { windows: Vec::new(), ..board } };
            if to.send(Event::Board(number, Box::new(board))).is_err() {
                return;
            }
        }
        if !is_more {
            std::thread::sleep(WINDOWS_EVERY);
        }
    }
}

/// Fetches hosts and findings now and then, and services while they are looked at.
fn rest(target: &Target, wanted: &Wanted, to: &Sender<Event>) {
    loop {
        let (job, at_ns) = (wanted.job.lock().clone(), *wanted.at_ns.lock());
        let fetcher = Fetcher::new(target, job);
        if to.send(Event::Samples(fetcher.samples(at_ns))).is_err()
            || to.send(Event::Findings(fetcher.findings())).is_err()
        {
            return;
        }
        let services = wanted.services.load(Ordering::Relaxed);
        if services && to.send(Event::Services(fetcher.services(at_ns))).is_err() {
            return;
        }
        let is_as_before = || *wanted.at_ns.lock() == at_ns && (services || !wanted.services.load(Ordering::Relaxed));
        // Another time is fetched soon.
        let started = Instant::now();
        while started.elapsed() < REST_EVERY && is_as_before() {
            std::thread::sleep(WINDOWS_EVERY);
        }
    }
}

/// Sends questions whose answers are rows.
pub(super) struct Fetcher<'a> {
    target: &'a Target,
    job: Option<String>,
}

impl<'a> Fetcher<'a> {
    pub(super) fn new(target: &'a Target, job: Option<String>) -> Self {
        Self { target, job }
    }

    fn rows(&self, sql: String, patience: Duration, most: usize) -> anyhow::Result<(Answer, Vec<Vec<Value>>)> {
        let question = Question { sql: sql.clone(), timeout_ms: millis(patience), ..Question::default() };
        let (mut answer, mut all, mut more) = (Answer { sql, ..Answer::default() }, Vec::new(), 0u64);
        let reply = self.target.query(question, &mut |piece| {
            match piece {
                Piece::Columns(columns) => answer.columns = columns.into_iter().map(|column| column.name).collect(),
                Piece::Rows(rows) => {
                    let room = most - all.len();
                    more += rows.len().saturating_sub(room) as u64;
                    all.extend(rows.into_iter().take(room));
                }
                Piece::Watched(_) | Piece::Idle => {}
            }
            Ok(())
        })?;
        answer.rows = all.iter().map(|row| row.iter().map(|cell| cell_text(cell).to_string()).collect()).collect();
        if more > 0 {
            answer.notes.push(format!("{more} rows more are not shown: rankmesh query has them all"));
        }
        if let Reply::Result { coverage, elapsed_ms, .. } = reply {
            answer.notes.push(format!("{} rows in {elapsed_ms:.1} ms", all.len() as u64 + more));
            answer.notes.extend(coverage.lines());
        }
        Ok((answer, all))
    }

    /// Recent samples of the hosts.
    pub(super) fn samples(&self, at_ns: Option<i64>) -> HashMap<String, NodeSample> {
        let until_ns = at_ns.unwrap_or_else(|| self.target.now_ns());
        let since_ns = until_ns.saturating_sub(RECENT_NS);
        let mut samples: HashMap<String, NodeSample> = HashMap::new();
        let rows = |sql: String| match self.rows(sql, PATIENCE, usize::MAX) {
            Ok((_, rows)) => rows,
            Err(error) => {
                tracing::debug!("samples of hosts: {error:#}");
                Vec::new()
            }
        };
        for row in rows(questions::cpus(since_ns, until_ns)) {
            samples.entry(text(&row, 0)).or_default().cpu = real(&row, 1).map(|busy| busy / 100.0);
        }
        for row in rows(questions::gpus(since_ns, until_ns)) {
            let sample = samples.entry(text(&row, 0)).or_default();
            sample.gpus = count(&row, 1).unwrap_or(0);
            (sample.sm_mhz, sample.sm_most_mhz) = (real(&row, 2), real(&row, 3));
            sample.throttled = text(&row, 4);
        }
        for row in rows(questions::losses(since_ns.saturating_sub(MINUTE_NS), until_ns)) {
            samples.entry(text(&row, 0)).or_default().lost = count(&row, 1);
        }
        samples
    }

    /// Findings, newest first.
    pub(super) fn findings(&self) -> Answer {
        match self.rows(questions::findings(), PATIENCE, questions::MOST_FINDINGS) {
            Ok((mut answer, _)) => {
                answer.notes.clear();
                answer
            }
            Err(error) => Answer { notes: vec![format!("findings: {error:#}")], ..Answer::default() },
        }
    }

    /// Services up to a time; without one up to now.
    pub(super) fn services(&self, at_ns: Option<i64>) -> Answer {
        let until_ns = at_ns.unwrap_or_else(|| self.target.now_ns()).saturating_add(1);
        match self.rows(questions::services(until_ns), PATIENCE, questions::MOST_FINDINGS) {
            Ok((mut answer, _)) => {
                answer.notes.clear();
                answer
            }
            Err(error) => Answer { notes: vec![format!("services: {error:#}")], ..Answer::default() },
        }
    }

    /// The details of a rank.
    pub(super) fn detail(&self, node: &str, pid: i64, rank: i64, at_ns: Option<i64>) -> RankDetail {
        let mut detail = RankDetail { of: (node.to_owned(), pid), ..RankDetail::default() };
        let until_ns = at_ns.unwrap_or_else(|| self.target.now_ns());
        match self.rows(questions::times_of(node, pid, until_ns.saturating_sub(MINUTE_NS), until_ns), PATIENCE, 50) {
            Ok((_, rows)) => {
                let of = |row: &Vec<Value>| (text(row, 0), integer(row, 1).unwrap_or(0), count(row, 2).unwrap_or(0));
                detail.times = rows.iter().map(of).collect();
            }
            Err(error) => detail.missing.push(format!("where its time went: {error:#}")),
        }
        match self.rows(questions::process(node, pid), PATIENCE, 1) {
            Ok((answer, rows)) => {
                let facts = answer.columns.iter().zip(rows.first().into_iter().flatten());
                let known = facts.filter(|(_, value)| !matches!(value, Value::Null));
                detail.process = known.map(|(name, value)| (name.clone(), cell_text(value).to_string())).collect();
            }
            Err(error) => detail.missing.push(format!("its process: {error:#}")),
        }
        match at_ns {
            None if !self.target.is_stores() => match self.stack(node, rank) {
                Ok(stack) => detail.stack = stack,
                Err(error) => detail.missing.push(format!("its call stack: {error:#}")),
            },
            _ => detail.missing.push("its call stack: only of what runs now".to_owned()),
        }
        detail
    }

    /// The stack in which a rank is most often.
    fn stack(&self, node: &str, rank: i64) -> anyhow::Result<Vec<String>> {
        let json = self.target.document(LocalRequest::Stacks(StacksQuestion {
            wanted: StacksWanted {
                job: self.job.clone(),
                ranks: vec![u32::try_from(rank).context("a rank below zero")?],
                samples: 5,
                every_ms: 20,
                ..StacksWanted::default()
            },
            timeout_ms: millis(PATIENCE),
            nodes: vec![node.to_owned()],
            labels: Vec::new(),
        }))?;
        let answer: StacksAnswer = serde_json::from_str(&json).context("reading the agent's stacks")?;
        let lines: Vec<String> =
            stacks::text(&answer.merged).lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect();
        if lines.is_empty() {
            let why = answer.unread.first().map_or("its host gave none", |unread| unread.reason.as_str());
            bail!("{why}");
        }
        Ok(lines)
    }
}

fn typed(target: &Target, sql: String) -> Answer {
    match Fetcher::new(target, None).rows(sql.clone(), TYPED_PATIENCE, MOST_ROWS) {
        Ok((answer, _)) => answer,
        Err(error) => {
            let coverage = error.downcast_ref::<NoAnswer>().and_then(|none| none.coverage.clone());
            let mut notes = vec![format!("{error:#}")];
            notes.extend(coverage.iter().flat_map(|coverage| coverage.lines()));
            Answer { sql, notes, ..Answer::default() }
        }
    }
}

fn count(row: &[Value], at: usize) -> Option<u64> {
    integer(row, at).and_then(|count| u64::try_from(count).ok())
}
