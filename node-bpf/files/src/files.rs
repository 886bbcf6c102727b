//! Who asks what of whose files: a queue a user, taken in turn, worked on by a few confined
//! processes (`reader`), one of them a user at most. So files that take long keep only their own
//! user's waiting, and their user's CPU time is rationed. Answers are kept by the content of the
//! file ([`FileId`]).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::File;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::question::{Answer, FileId, Question};
use crate::reader::{Reader, Refusal};
use crate::wire;

/// Processes that read, at most; all but one end when there is nothing to do.
const MOST_READERS: usize = 4;
const IDLE: Duration = Duration::from_secs(30);
/// Questions of one user that wait.
const MOST_WAITING: usize = 256;
/// CPU time that a user's files may take at once, and which part of a core they may take for ever.
const AT_ONCE: Duration = Duration::from_secs(30);
const SHARE: f64 = 0.05;
/// Bytes of answers that are kept.
const MOST_KEPT_BYTES: usize = 8 << 20;
/// A question about a file that has ended so many processes is not asked again.
const MOST_ENDED: u32 = 3;

/// The outcome of a question.
pub type Outcome = Result<Arc<Answer>, Refusal>;

/// A question that has been asked, and its outcome when there is one.
#[derive(Debug, Clone)]
pub struct Ticket(Arc<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    outcome: OnceLock<Outcome>,
    lock: Mutex<()>,
    there: Condvar,
}

impl Ticket {
    /// One that is answered already.
    #[must_use]
    pub fn of(outcome: Outcome) -> Ticket {
        let ticket = Ticket(Arc::default());
        ticket.give(outcome);
        ticket
    }

    fn give(&self, outcome: Outcome) {
        let _guard = self.0.lock.lock();
        let _ = self.0.outcome.set(outcome); // the first counts
        self.0.there.notify_all();
    }

    /// The outcome; none while the file is being read, or waits to be.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        self.0.outcome.get()
    }

    /// The outcome, waited for until a time.
    #[must_use]
    pub fn wait(&self, until: Instant) -> Option<&Outcome> {
        let mut guard = self.0.lock.lock();
        while self.outcome().is_none() && !self.0.there.wait_until(&mut guard, until).timed_out() {}
        drop(guard);
        self.outcome()
    }
}

/// Reads files. Clones are the same; the processes end with the last.
#[derive(Debug, Clone)]
pub struct Files(Arc<Handle>);

/// Its end is the end of all.
#[derive(Debug)]
struct Handle(Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.more.notify_all();
    }
}

struct Shared {
    state: Mutex<State>,
    more: Condvar,
    on_answer: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    users: BTreeMap<u32, User>,
    /// The user who was served last.
    last: u32,
    readers: usize,
    idle: usize,
    kept: Kept,
    closed: bool,
}

/// What one user's files are asked.
struct User {
    waiting: VecDeque<Job>,
    busy: bool,
    /// CPU time left, as of a time.
    left: Duration,
    as_of: Instant,
}

struct Job {
    file: File,
    id: FileId,
    question: Question,
    ticket: Ticket,
}

impl User {
    fn new(now: Instant) -> User {
        User { waiting: VecDeque::new(), busy: false, left: AT_ONCE, as_of: now }
    }

    fn refill(&mut self, now: Instant) {
        let gained = now.saturating_duration_since(self.as_of).mul_f64(SHARE);
        self.left = (self.left + gained).min(AT_ONCE);
        self.as_of = now;
    }

    /// When a question of this user's may be worked on.
    fn due(&self) -> Option<Instant> {
        if self.busy || self.waiting.is_empty() {
            return None;
        }
        let lacks = if self.left.is_zero() { Duration::from_secs(1).div_f64(SHARE) } else { Duration::ZERO };
        Some(self.as_of + lacks)
    }

    fn is_forgettable(&self) -> bool {
        !self.busy && self.waiting.is_empty() && self.left >= AT_ONCE
    }
}

impl State {
    /// The next question, of the user after the one that was served last; or when one is due.
    fn take(&mut self, now: Instant) -> Result<(u32, Job), Option<Instant>> {
        for user in self.users.values_mut() {
            user.refill(now);
        }
        self.users.retain(|_, user| !user.is_forgettable());
        let after = self.users.range(self.last.saturating_add(1)..).chain(self.users.range(..=self.last));
        let due: Vec<(u32, Instant)> = after.filter_map(|(uid, user)| Some((*uid, user.due()?))).collect();
        let Some((uid, _)) = due.iter().find(|(_, at)| *at <= now) else {
            return Err(due.into_iter().map(|(_, at)| at).min());
        };
        let uid = *uid;
        self.last = uid;
        let user = self.users.get_mut(&uid).ok_or(None)?;
        let job = user.waiting.pop_front().ok_or(None)?;
        user.busy = true;
        Ok((uid, job))
    }
}

/// Answers by content, the oldest dropped first.
#[derive(Default)]
struct Kept {
    answers: HashMap<(FileId, Question), (Outcome, usize)>,
    order: VecDeque<(FileId, Question)>,
    bytes: usize,
    /// How many processes a question has ended that has no answer yet.
    ended: HashMap<(FileId, Question), u32>,
}

impl Kept {
    /// Keeps the outcome where the same file will not be answered otherwise, and returns it: one that
    /// ends each process that reads it is refused for good.
    fn settle(&mut self, key: (FileId, Question), outcome: Outcome) -> Outcome {
        const MOST_COUNTED: usize = 4_096;
        let outcome = match outcome {
            Err(refusal) if refusal.ended_reader() => {
                if self.ended.len() >= MOST_COUNTED {
                    self.ended.clear();
                }
                let times = self.ended.entry(key.clone()).or_default();
                *times += 1;
                if *times < MOST_ENDED {
                    return Err(refusal);
                }
                Err(Refusal::Wrong(format!("{refusal}, {times} times of {times}")))
            }
            other => other,
        };
        if outcome.as_ref().map_or_else(Refusal::is_final, |_| true) {
            self.ended.remove(&key);
            self.add(key, outcome.clone());
        }
        outcome
    }

    fn add(&mut self, key: (FileId, Question), outcome: Outcome) {
        let bytes = outcome.as_ref().ok().and_then(|answer| wire::encode(&**answer)).map_or(0, |bytes| bytes.len());
        let bytes = bytes + 512; // the key, and what a map takes
        if self.answers.insert(key.clone(), (outcome, bytes)).is_none() {
            self.order.push_back(key);
            self.bytes += bytes;
        }
        while self.bytes > MOST_KEPT_BYTES {
            let Some(oldest) = self.order.pop_front() else { break };
            self.bytes -= self.answers.remove(&oldest).map_or(0, |(_, bytes)| bytes);
        }
    }
}

impl Default for Files {
    fn default() -> Self {
        Files::new(|| {})
    }
}

impl Files {
    /// `on_answer` is called from another thread after each answer.
    pub fn new(on_answer: impl Fn() + Send + Sync + 'static) -> Files {
        let shared = Shared { state: Mutex::default(), more: Condvar::new(), on_answer: Box::new(on_answer) };
        Files(Arc::new(Handle(Arc::new(shared))))
    }

    /// Asks about a file, in the name of the user who has it mapped: it is this user's files that
    /// wait for it.
    #[must_use]
    pub fn ask(&self, user: u32, file: &File, question: Question) -> Ticket {
        let refused = |error: std::io::Error| match error.kind() {
            // No regular file, now and later: a device must not be opened again and again.
            std::io::ErrorKind::InvalidInput => Refusal::Wrong(error.to_string()),
            _ => Refusal::Unreadable(error.to_string()),
        };
        let (id, file) = match FileId::of(file).and_then(|id| Ok((id, file.try_clone()?))) {
            Ok(opened) => opened,
            Err(error) => return Ticket::of(Err(refused(error))),
        };
        let shared = &self.0.0;
        let mut state = shared.state.lock();
        if let Some((outcome, _)) = state.kept.answers.get(&(id, question.clone())) {
            return Ticket::of(outcome.clone());
        }
        let now = Instant::now();
        let of_user = state.users.entry(user).or_insert_with(|| User::new(now));
        if of_user.waiting.len() >= MOST_WAITING {
            return Ticket::of(Err(Refusal::Busy));
        }
        let ticket = Ticket(Arc::default());
        of_user.waiting.push_back(Job { file, id, question, ticket: ticket.clone() });
        if state.idle == 0 && state.readers < MOST_READERS {
            let shared = Arc::clone(shared);
            let spawned = thread::Builder::new().name("files".to_owned()).spawn(move || work(&shared));
            match spawned {
                Ok(_) => state.readers += 1,
                Err(error) if state.readers == 0 => {
                    ticket.give(Err(Refusal::NotConfined(error.to_string())));
                }
                Err(_) => {} // those that run do it
            }
        }
        drop(state);
        self.0.0.more.notify_one();
        ticket
    }

    /// Asks, and waits for the outcome.
    ///
    /// # Errors
    /// Why there is no answer; [`Refusal::Busy`] where there is none until then.
    pub fn answer(&self, user: u32, file: &File, question: Question, until: Instant) -> Outcome {
        self.ask(user, file, question).wait(until).cloned().unwrap_or(Err(Refusal::Busy))
    }
}

/// The body of a thread with a process of its own.
fn work(shared: &Shared) {
    let mut reader: Option<Reader> = None;
    let mut state = shared.state.lock();
    loop {
        if state.closed {
            break;
        }
        let (uid, job) = match state.take(Instant::now()) {
            Ok(job) => job,
            Err(due) => {
                state.idle += 1;
                let until = due.unwrap_or_else(|| Instant::now() + IDLE);
                let nothing_came = shared.more.wait_until(&mut state, until).timed_out();
                state.idle -= 1;
                if nothing_came && due.is_none() && state.readers > 1 {
                    break;
                }
                continue;
            }
        };
        drop(state);
        let Job { file, id, question, ticket } = job;
        let (outcome, spent) = read(&mut reader, &file, id, question.clone());
        drop(file);
        state = shared.state.lock();
        if let Some(user) = state.users.get_mut(&uid) {
            user.busy = false;
            user.left = user.left.saturating_sub(spent);
        }
        let outcome = state.kept.settle((id, question), outcome);
        drop(state);
        ticket.give(outcome);
        (shared.on_answer)();
        shared.more.notify_one(); // this user's next may be worked on by another
        state = shared.state.lock();
    }
    state.readers -= 1;
}

/// The outcome, and the CPU time that it took.
fn read(reader: &mut Option<Reader>, file: &File, id: FileId, question: Question) -> (Outcome, Duration) {
    if reader.is_none() {
        match Reader::start() {
            Ok(started) => *reader = Some(started),
            Err(refusal) => return (Err(refusal), Duration::ZERO),
        }
    }
    let Some(running) = reader else { return (Err(Refusal::Busy), Duration::ZERO) };
    let (began, before) = (Instant::now(), running.cpu_time());
    let mut outcome = running.ask(file, id, question).map(Arc::new);
    // Of one that has ended the time cannot be told any more: it is not more than passed.
    let spent = running.cpu_time().checked_sub(before).unwrap_or_else(|| began.elapsed());
    if matches!(outcome, Err(Refusal::Late | Refusal::Slow | Refusal::Ended(_) | Refusal::NotConfined(_))) {
        *reader = None;
    }
    if FileId::of(file).ok() != Some(id) {
        outcome = Err(Refusal::Changed);
    }
    (outcome, spent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_ends_its_reader_once_is_asked_again_and_one_that_always_does_is_refused() {
        let id = |inode| FileId { device: 1, inode, changed: (0, 0), bytes: 9 };
        let mut kept = Kept::default();
        let killed = || Err(Refusal::Ended("signal 9".to_owned()));
        for outcome in [killed(), Err(Refusal::Slow), Err(Refusal::Late), Err(Refusal::Changed)] {
            assert_eq!(kept.settle((id(1), Question::NcclBuild), outcome.clone()), outcome);
            assert!(kept.answers.is_empty(), "{outcome:?} is kept");
        }
        let last = kept.settle((id(1), Question::NcclBuild), killed());
        assert!(matches!(&last, Err(Refusal::Wrong(why)) if why.contains("signal 9") && why.contains("3 times")));
        assert_eq!(kept.answers[&(id(1), Question::NcclBuild)].0, last);
        let _ = kept.settle((id(2), Question::NcclBuild), killed());
        assert!(!kept.answers.contains_key(&(id(2), Question::NcclBuild)), "another file");
    }

    #[test]
    fn a_device_is_refused_for_good() {
        let device = File::open("/dev/null").unwrap();
        let ticket = Files::default().ask(0, &device, Question::NcclBuild);
        let refusal = ticket.outcome().unwrap().as_ref().unwrap_err();
        assert!(refusal.is_final(), "{refusal:?}");
    }
}
