//! Calls that are requests (`rankmesh up --request`): the files that have the functions, what the
//! crate `files` finds in them, and the probes there. `spec` has what was typed, `probes` which probes that
//! makes, `attachments` puts them there.
//! Does not own what the programs say of calls (`wire`), nor which processes map a file (`find`).

mod attachments;
mod probes;
mod spec;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use files::{Answer, Files, Outcome, Question, Refusal, Ticket};
use record::{printable, shortened};

use super::programs::Programs;
use crate::attach::Links;
use crate::content::Content;
use crate::hits::MOST_HITS;
use crate::maps::FileKey;
use crate::rooms::Share;
use attachments::{Attached, Attacher, Done, Numbers, ToAttach};
use probes::Wanted;
use spec::What;

pub use spec::{RequestError, RequestSpec};

/// Most files with probes; of one user as many as all users leave free.
const MOST_FILES: usize = attachments::PLACES;
/// How often a file is asked that could not be read.
const MOST_ATTEMPTS: u32 = 5;
/// Longest pause before a file is probed again that was written to more than once.
const MOST_PAUSE: Duration = Duration::from_secs(60);
/// When a file is asked again that could not be attached to, for want of memory or open files.
const AGAIN_AFTER: Duration = Duration::from_secs(30);
/// Processes that are looked at again when there is room for their files.
const MOST_TURNED_AWAY: usize = 1_024;
/// Attachments whose names are kept, so that calls that end late have one.
const MOST_NAMED: usize = 4 * MOST_FILES;
/// Problems between two times that they are taken.
const MOST_PROBLEMS: usize = 256;

/// A file that a process has mapped, and that a `--request` means.
#[derive(Debug)]
pub(super) struct Library {
    pub(super) pid: u32,
    /// To whom it is counted.
    pub(super) user: u32,
    pub(super) key: FileKey,
    pub(super) file: fs::File,
    /// Its path, as processes see it, and the last component of that.
    pub(super) path: Vec<u8>,
    pub(super) name: Vec<u8>,
}

/// A file that is known.
#[derive(Debug)]
struct Known {
    user: u32,
    shown: String,
    /// What means it: indices of what was typed.
    meant: Vec<usize>,
    /// How often it was written to while it was probed.
    written: u32,
    state: State,
}

#[derive(Debug)]
enum State {
    /// By what is asked for.
    Asked { file: fs::File, read: Content, tickets: Vec<(usize, Vec<Ticket>)>, attempts: u32 },
    /// It is being attached to.
    Attaching { number: u32 },
    /// The file is kept open: so its number is no other file's, also where it is deleted.
    Attached { links: Links, number: u32, file: fs::File, read: Content },
    /// It has none of the functions, cannot be probed, or was hit too often; and which file that was, where it
    /// is to be asked anew once that is written to.
    Nothing(Option<Again>),
}

/// A file that is asked anew at a time; without one, once it is written to.
#[derive(Debug)]
struct Again {
    file: fs::File,
    read: Content,
    at: Option<Instant>,
}

/// What cannot be recorded: of whose files, for who asks, and for the log alone.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) user: u32,
    pub(super) text: String,
    pub(super) detail: Option<String>,
}

/// The functions whose calls are requests, wherever they are.
#[derive(Debug)]
pub(super) struct Calls {
    specs: Vec<RequestSpec>,
    files: Files,
    known: HashMap<FileKey, Known>,
    share: Share,
    /// By the number of an attachment: the names of its functions and pairs.
    names: BTreeMap<u32, Vec<Arc<str>>>,
    numbers: Numbers,
    /// Attachments that are to be taken off, of files that nobody has mapped: to whom these are counted.
    leaving: HashMap<u32, u32>,
    /// Some of their room was given back.
    is_room: bool,
    /// Times that probes were taken off to read a file anew.
    gaps: u64,
    attacher: Attacher,
    /// Processes with files for which there was no room.
    turned_away: HashSet<u32>,
    problems: Vec<Problem>,
}

impl Calls {
    pub(super) fn new(specs: Vec<RequestSpec>, files: Files) -> Calls {
        Calls {
            specs,
            files,
            known: HashMap::new(),
            share: Share::of(MOST_FILES),
            names: BTreeMap::new(),
            numbers: Numbers::default(),
            leaving: HashMap::new(),
            is_room: false,
            gaps: 0,
            attacher: Attacher::start(),
            turned_away: HashSet::new(),
            problems: vec![],
        }
    }

    /// Files that need not be opened again.
    pub(super) fn known(&self) -> HashSet<FileKey> {
        self.known.keys().cloned().collect()
    }

    /// A process maps a file: it is asked for the functions, once.
    pub(super) fn maps(&mut self, library: Library) {
        if self.known.contains_key(&library.key) {
            return;
        }
        let user = library.user;
        let shown = shortened(&printable(&String::from_utf8_lossy(&library.name)), 80);
        let Ok(read) = Content::of(&library.file) else { return };
        if !self.share.take(user) {
            if self.turned_away.len() < MOST_TURNED_AWAY {
                self.turned_away.insert(library.pid);
            }
            let text = format!(
                "of {MOST_FILES} files with functions of --request, one user's are probed while they are no more \
                 than all leave free: calls in further ones are not recorded"
            );
            return self.problem(user, text, Some(format!("{shown} is one of these")));
        }
        let means = |spec: &RequestSpec| spec.means(&library.path, &library.name);
        let meant: Vec<usize> = (0..self.specs.len()).filter(|at| means(&self.specs[*at])).collect();
        let state = self.asked((library.file, read), user, &meant, 0);
        self.known.insert(library.key, Known { user, shown, meant, written: 0, state });
    }

    /// A file of a user's is not looked at.
    pub(super) fn refuse(&mut self, user: u32, name: &[u8], reason: &str) {
        let shown = shortened(&printable(&String::from_utf8_lossy(name)), 80);
        self.problem(user, format!("{shown}: calls of --request are not recorded there: {reason}"), None);
    }

    fn asked(&self, (file, read): (fs::File, Content), user: u32, meant: &[usize], attempts: u32) -> State {
        let ask = |question: Question| self.files.ask(user, &file, question);
        let of = |at: &usize| (*at, questions(&self.specs[*at]).into_iter().map(ask).collect());
        let tickets = meant.iter().map(of).collect();
        State::Asked { file, read, tickets, attempts }
    }

    /// Has files attached to that have answered, and takes what has been done; false where there was nothing.
    pub(super) fn attach(&mut self, programs: &Programs) -> bool {
        if !self.numbers.has_map() {
            self.numbers.in_map(programs.attachments().ok());
        }
        let is_there = |known: &Known| match &known.state {
            State::Asked { tickets, .. } => {
                tickets.iter().flat_map(|(_, tickets)| tickets).all(|ticket| ticket.outcome().is_some())
            }
            State::Attaching { .. } | State::Attached { .. } | State::Nothing(_) => false,
        };
        let there: Vec<FileKey> =
            self.known.iter().filter(|(_, known)| is_there(known)).map(|(key, _)| key.clone()).collect();
        let mut any = !there.is_empty();
        for key in there {
            let Some(mut known) = self.known.remove(&key) else { continue };
            if let State::Asked { file, read, tickets, attempts } = known.state {
                known.state = State::Nothing(None);
                known.state = self.answered(programs, (file, read), tickets, attempts, &known);
            }
            self.known.insert(key, known);
        }
        any |= self.take_done();
        any
    }

    /// Takes what has been done, also where the programs are gone; false where there was nothing.
    pub(super) fn take_done(&mut self) -> bool {
        let mut any = false;
        while let Some(done) = self.attacher.done() {
            any = true;
            match done {
                Done::Attached(attached) => self.attached(attached),
                Done::Detached(number) => {
                    self.numbers.give(number);
                    if let Some(user) = self.leaving.remove(&number) {
                        self.share.give(user, 1);
                        self.is_room = true;
                    }
                }
            }
        }
        any
    }

    fn answered(
        &mut self,
        programs: &Programs,
        (file, read): (fs::File, Content),
        tickets: Vec<(usize, Vec<Ticket>)>,
        attempts: u32,
        Known { user, shown, meant, .. }: &Known,
    ) -> State {
        let outcomes = |tickets: &[Ticket]| tickets.iter().filter_map(|ticket| ticket.outcome().cloned()).collect();
        let outcomes: Vec<(usize, Vec<Outcome>)> = tickets.iter().map(|(at, of)| (*at, outcomes(of))).collect();
        let any = |is: fn(&Refusal) -> bool| {
            let mut all = outcomes.iter().flat_map(|(_, of)| of);
            all.any(|outcome| outcome.as_ref().is_err_and(is))
        };
        let is_busy = any(|refusal| matches!(refusal, Refusal::Busy | Refusal::Changed));
        if is_busy || attempts + 1 < MOST_ATTEMPTS && any(|refusal| !refusal.is_final()) {
            let read = Content::of(&file).unwrap_or(read);
            return self.asked((file, read), *user, meant, attempts + u32::from(!is_busy));
        }
        let mut wanted = Wanted::new(programs.mode);
        for (at, outcomes) in outcomes {
            let answers: Result<Vec<Arc<Answer>>, Refusal> = outcomes.into_iter().collect();
            let added = answers.map_err(|refusal| refusal.to_string()).and_then(|answers| {
                let Some(spec) = self.specs.get(at) else { return Ok(()) };
                wanted.add(spec, &answers)
            });
            if let Err(reason) = added
                && let Some(spec) = self.specs.get(at)
            {
                // (Who reads answers may not see a file's other names, which are in the reason.)
                let text = format!("{shown}: calls of {spec} are not recorded there: the agent's log says why");
                self.problem(*user, text, Some(format!("{shown}: {}", printable(&reason))));
            }
        }
        let Some(number) = self.numbers.take() else {
            return State::Asked { file, read, tickets, attempts }; // when probes of others are off
        };
        self.names.insert(number, wanted.names.clone());
        self.forget_names(number);
        for remark in &wanted.remarks {
            tracing::info!("{shown}: {remark}");
        }
        let (object, mode) = (programs.object(), programs.mode);
        if !self.attacher.attach(ToAttach { object, mode, file, read, wanted, number, user: *user }) {
            self.numbers.give(number);
            self.problem(*user, "no function of --request can be probed: there is no thread for it".to_owned(), None);
            return State::Nothing(None);
        }
        State::Attaching { number }
    }

    /// Probes have been put into a file.
    fn attached(&mut self, Attached { number, file, read, links, refused, may_pass }: Attached) {
        let is_it = |known: &Known| matches!(known.state, State::Attaching { number: of } if of == number);
        let Some(key) = self.known.iter().find(|(_, known)| is_it(known)).map(|(key, _)| key.clone()) else {
            return self.detach(links, number); // nobody has it mapped any more
        };
        let Some(mut known) = self.known.remove(&key) else { return };
        let (user, shown) = (known.user, &known.shown);
        for (name, reason) in refused {
            let detail = format!("{shown}: {name} cannot be probed: {reason}");
            let text = format!("{shown}: a function of --request cannot be probed: the agent's log says why");
            self.problem(user, text, Some(detail));
        }
        let names = self.names.get(&number).map(|names| names.join(", ")).unwrap_or_default();
        if links.is_empty() {
            self.detach(links, number);
            known.state =
                State::Nothing(Some(Again { file, read, at: may_pass.then(|| Instant::now() + AGAIN_AFTER) }));
        } else {
            tracing::info!("calls in {shown} are requests: {names}");
            known.state = State::Attached { links, number, file, read };
        }
        self.known.insert(key, known);
        self.look_at_files(); // it may have been written to meanwhile
    }

    fn detach(&mut self, links: Links, number: u32) {
        self.numbers.leave(number);
        self.attacher.detach(links, number);
    }

    /// Takes the probes off files that were written to since they were read, and has these read anew: code may
    /// have moved under the probes.
    pub(super) fn look_at_files(&mut self) {
        let is_outdated = |known: &Known| match &known.state {
            State::Attached { file, read, .. } => read.has_changed(file),
            State::Nothing(Some(Again { file, read, at })) => {
                at.map_or_else(|| read.has_changed(file), |at| at <= Instant::now())
            }
            _ => false,
        };
        let outdated: Vec<FileKey> =
            self.known.iter().filter(|(_, known)| is_outdated(known)).map(|(key, _)| key.clone()).collect();
        for key in outdated {
            let Some(mut known) = self.known.remove(&key) else { continue };
            let mut pause = None;
            let file = match known.state {
                State::Attached { links, number, file, .. } => {
                    tracing::info!("{} was written to: its probes are taken off, and it is read anew", known.shown);
                    self.detach(links, number);
                    self.gaps += 1;
                    // One that is written to all the time is not probed all the time.
                    pause = (known.written > 0).then(|| MOST_PAUSE.min(Duration::from_secs(1 << known.written.min(6))));
                    known.written += 1;
                    Some(file)
                }
                State::Nothing(Some(Again { file, .. })) => Some(file),
                _ => None,
            };
            known.state = State::Nothing(None);
            if let Some(file) = file {
                known.state = match (Content::of(&file), pause.map(|pause| Instant::now() + pause)) {
                    (Ok(read), at @ Some(_)) => State::Nothing(Some(Again { file, read, at })),
                    (Ok(read), None) => self.asked((file, read), known.user, &known.meant, 0),
                    (Err(_), _) => State::Nothing(None),
                };
            }
            self.known.insert(key, known);
        }
    }

    /// Takes off what is hit too often.
    pub(super) fn brake(&mut self) {
        for (number, often) in self.numbers.too_often(Instant::now()) {
            let is_it = |known: &&mut Known| matches!(known.state, State::Attached { number: of, .. } if of == number);
            let Some(known) = self.known.values_mut().find(is_it) else { continue };
            let State::Attached { links, .. } = std::mem::replace(&mut known.state, State::Nothing(None)) else {
                continue;
            };
            let (user, shown) = (known.user, known.shown.clone());
            self.detach(links, number);
            let text = format!(
                "{shown}: its functions of --request are not probed any more: {often} hits in a second slow it; \
                 {MOST_HITS} are bearable"
            );
            self.problem(user, text, None);
        }
    }

    /// Lets go of the oldest names that no probe refers to, where there are many.
    fn forget_names(&mut self, last: u32) {
        let number = |known: &Known| match &known.state {
            State::Attached { number, .. } | State::Attaching { number } => Some(*number),
            State::Asked { .. } | State::Nothing(_) => None,
        };
        let attached: HashSet<u32> = self.known.values().filter_map(number).chain([last]).collect();
        while self.names.len() > MOST_NAMED {
            let Some(oldest) = self.names.keys().find(|number| !attached.contains(number)).copied() else { break };
            self.names.remove(&oldest);
        }
    }

    /// Takes the probes off files that nobody has mapped. Returns processes with files for which there may
    /// be room now.
    pub(super) fn keep_only(&mut self, used: &HashSet<FileKey>) -> HashSet<u32> {
        let unused: Vec<Known> = self.known.extract_if(|key, _| !used.contains(key)).map(|(_, known)| known).collect();
        for known in unused {
            match known.state {
                // Its room is given back when its probes are off.
                State::Attached { links, number, .. } => {
                    self.leaving.insert(number, known.user);
                    self.detach(links, number);
                }
                State::Attaching { number } => drop(self.leaving.insert(number, known.user)),
                State::Asked { .. } | State::Nothing(_) => {
                    self.share.give(known.user, 1);
                    self.is_room = true;
                }
            }
        }
        if std::mem::take(&mut self.is_room) { std::mem::take(&mut self.turned_away) } else { HashSet::new() }
    }

    /// Takes all probes away.
    pub(super) fn clear(&mut self) {
        self.keep_only(&HashSet::new());
        self.turned_away.clear();
        self.numbers.in_map(None);
    }

    /// The name of a function or pair, by its probe's cookie.
    pub(super) fn name(&self, cookie: u64) -> Option<Arc<str>> {
        let names = self.names.get(&u32::try_from(cookie >> 32).ok()?)?;
        names.get((cookie & u64::from(u32::MAX)) as usize).cloned()
    }

    /// The functions and pairs whose calls are seen now, with their files.
    pub(super) fn seen(&self) -> Vec<String> {
        let of = |known: &Known| match &known.state {
            State::Attached { number, .. } => {
                let names = self.names.get(number).map(Vec::as_slice).unwrap_or_default();
                names.iter().map(|name| format!("{}: {name}", known.shown)).collect()
            }
            _ => vec![],
        };
        let mut seen: Vec<String> = self.known.values().flat_map(of).collect();
        seen.sort();
        seen
    }

    fn problem(&mut self, user: u32, text: String, detail: Option<String>) {
        if self.problems.len() < MOST_PROBLEMS {
            self.problems.push(Problem { user, text, detail });
        }
    }

    /// How often calls were missed while a file was read anew, since the last time.
    pub(super) fn take_gaps(&mut self) -> u64 {
        std::mem::take(&mut self.gaps)
    }

    /// What cannot be recorded, since the last time.
    pub(super) fn take_problems(&mut self) -> Vec<Problem> {
        std::mem::take(&mut self.problems)
    }
}

/// What a file is asked for a function, or a pair.
fn questions(spec: &RequestSpec) -> Vec<Question> {
    match &spec.what {
        What::Function { name } => vec![Question::Matching { name: name.clone() }],
        What::Pair { provider, begin, end } => {
            let point = |name: &String| Question::Points { provider: provider.clone(), name: name.clone() };
            vec![point(begin), point(end)]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_users_files_leave_room_for_others_and_are_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libx.so");
        fs::write(&path, "no library").unwrap();
        let specs = RequestSpec::parse_all(&["libx.so:f".to_owned()]).unwrap();
        let mut calls = Calls::new(specs, Files::new(|| {}));
        let library = |user: u32, inode: u64| Library {
            pid: 7,
            user,
            key: (b"08:01".to_vec(), inode),
            file: fs::File::open(&path).unwrap(),
            path: b"/opt/libx.so".to_vec(),
            name: b"libx.so".to_vec(),
        };
        (0..200).for_each(|inode| calls.maps(library(65_534, inode)));
        assert_eq!(calls.known.len(), MOST_FILES / 2);
        assert_eq!(calls.take_problems().len(), 200 - MOST_FILES / 2);
        calls.maps(library(1_000, 900));
        calls.maps(library(1_001, 900));
        assert_eq!((calls.known.len(), calls.take_problems().len()), (MOST_FILES / 2 + 1, 0), "for whoever maps it");
        assert_eq!(calls.keep_only(&HashSet::from([(b"08:01".to_vec(), 900)])), HashSet::from([7]));
        calls.maps(library(65_534, 1));
        assert_eq!((calls.known.len(), calls.take_problems().len()), (2, 0));
    }

    #[test]
    fn names_are_kept_for_calls_that_end_late_and_not_without_end() {
        let mut calls = Calls::new(vec![], Files::new(|| {}));
        for number in 1..=1_000 {
            calls.names.insert(number, vec!["f".into(), format!("f{number}").into()]);
            let known = Known {
                user: 0,
                shown: String::new(),
                meant: vec![],
                written: 0,
                state: State::Attaching { number: 1 },
            };
            calls.known.insert((vec![], 1), known);
            calls.forget_names(number);
        }
        assert_eq!(calls.names.len(), MOST_NAMED);
        assert_eq!(calls.name(1_000 << 32 | 1).as_deref(), Some("f1000"));
        assert_eq!(calls.name(1 << 32 | 1).as_deref(), Some("f1"), "it is attached");
        assert_eq!((calls.name(2 << 32), calls.name(1_000 << 32 | 2)), (None, None));
    }
}
