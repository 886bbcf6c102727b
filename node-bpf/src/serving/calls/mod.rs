//! Calls that are requests (`rankmesh up --request`): the files that have the functions, what the
//! crate `files` finds in them, and the probes there. `spec` has what was typed, `probes` attaches.
//! Does not own what the programs say of calls (`wire`), nor which processes map a file (`find`).

mod probes;
mod spec;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::sync::Arc;

use files::{Answer, Files, Outcome, Question, Refusal, Ticket};
use libbpf_rs::Link;
use record::{printable, shortened};

use super::programs::Programs;
use crate::maps::FileKey;
use crate::rooms::Share;
use probes::Wanted;
use spec::What;

pub use spec::{RequestError, RequestSpec};

/// Most files with probes; of one user as many as all users leave free.
const MOST_FILES: usize = 64;
/// How often a file is asked that could not be read.
const MOST_ATTEMPTS: u32 = 5;
/// Processes that are looked at again when there is room for their files.
const MOST_TURNED_AWAY: usize = 1_024;
/// Attachments whose names are kept, so that calls that end late have one.
const MOST_NAMED: usize = 4 * MOST_FILES;

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
    state: State,
}

#[derive(Debug)]
enum State {
    /// By what is asked for: the index of what was typed.
    Asked { file: fs::File, tickets: Vec<(usize, Vec<Ticket>)>, attempts: u32 },
    /// (Without links: it has none of the functions, or cannot be probed.)
    Attached { _links: Vec<Link>, number: u32 },
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
    last_number: u32,
    /// Processes with files for which there was no room.
    turned_away: HashSet<u32>,
    problems: Vec<String>,
}

impl Calls {
    pub(super) fn new(specs: Vec<RequestSpec>, files: Files) -> Calls {
        Calls {
            specs,
            files,
            known: HashMap::new(),
            share: Share::of(MOST_FILES),
            names: BTreeMap::new(),
            last_number: 0,
            turned_away: HashSet::new(),
            problems: vec![],
        }
    }

    /// A process maps a file: it is asked for the functions, once.
    pub(super) fn maps(&mut self, library: Library) {
        if self.known.contains_key(&library.key) {
            return;
        }
        let shown = shortened(&printable(&String::from_utf8_lossy(&library.name)), 80);
        if !self.share.take(library.user) {
            if self.turned_away.len() < MOST_TURNED_AWAY {
                self.turned_away.insert(library.pid);
            }
            self.problem(format!(
                "{shown}: of {MOST_FILES} files with functions of --request, one user's are probed while they are no more \
                 than all leave free: calls in further ones are not recorded"
            ));
            return;
        }
        let meant = |spec: &RequestSpec| spec.means(&library.path, &library.name);
        let meant: Vec<usize> = (0..self.specs.len()).filter(|at| meant(&self.specs[*at])).collect();
        let state = self.asked(library.file, library.user, meant, 0);
        self.known.insert(library.key, Known { user: library.user, shown, state });
    }

    fn asked(&self, file: fs::File, user: u32, meant: Vec<usize>, attempts: u32) -> State {
        let ask = |question: Question| self.files.ask(user, &file, question);
        let of = |at: usize| (at, questions(&self.specs[at]).into_iter().map(ask).collect());
        let tickets = meant.into_iter().map(of).collect();
        State::Asked { file, tickets, attempts }
    }

    /// Attaches to the files that have answered; false where there were none.
    pub(super) fn attach(&mut self, programs: &Programs) -> bool {
        let is_there = |known: &Known| match &known.state {
            State::Asked { tickets, .. } => {
                tickets.iter().flat_map(|(_, tickets)| tickets).all(|ticket| ticket.outcome().is_some())
            }
            State::Attached { .. } => false,
        };
        let there: Vec<FileKey> =
            self.known.iter().filter(|(_, known)| is_there(known)).map(|(key, _)| key.clone()).collect();
        let any = !there.is_empty();
        for key in there {
            let Some(Known { user, shown, state }) = self.known.remove(&key) else { continue };
            let State::Asked { file, tickets, attempts } = state else { continue };
            let state = self.answered(programs, file, tickets, attempts, (user, &shown));
            self.known.insert(key, Known { user, shown, state });
        }
        any
    }

    fn answered(
        &mut self,
        programs: &Programs,
        file: fs::File,
        tickets: Vec<(usize, Vec<Ticket>)>,
        attempts: u32,
        (user, shown): (u32, &str),
    ) -> State {
        let outcomes = |tickets: &[Ticket]| tickets.iter().filter_map(|ticket| ticket.outcome().cloned()).collect();
        let outcomes: Vec<(usize, Vec<Outcome>)> = tickets.iter().map(|(at, of)| (*at, outcomes(of))).collect();
        let any = |is: fn(&Refusal) -> bool| {
            let mut all = outcomes.iter().flat_map(|(_, of)| of);
            all.any(|outcome| outcome.as_ref().is_err_and(is))
        };
        let is_busy = any(|refusal| matches!(refusal, Refusal::Busy | Refusal::Changed));
        if is_busy || attempts + 1 < MOST_ATTEMPTS && any(|refusal| !refusal.is_final()) {
            let meant = outcomes.into_iter().map(|(at, _)| at).collect();
            return self.asked(file, user, meant, attempts + u32::from(!is_busy));
        }
        let mut wanted = Wanted::default();
        for (at, outcomes) in outcomes {
            let answers: Result<Vec<Arc<Answer>>, Refusal> = outcomes.into_iter().collect();
            let added = answers.map_err(|refusal| refusal.to_string()).and_then(|answers| {
                let Some(spec) = self.specs.get(at) else { return Ok(()) };
                wanted.add(spec, &answers)
            });
            if let Err(reason) = added {
                // (Who reads answers may not see a file's other names, which are in the reason.)
                tracing::warn!("{shown}: {}", printable(&reason));
                if let Some(spec) = self.specs.get(at) {
                    self.problem(format!("{shown}: calls of {spec} are not recorded there: the agent's log says why"));
                }
            }
        }
        self.last_number = self.last_number.wrapping_add(1);
        let number = self.last_number;
        let (links, refused) = probes::attach(programs, &file, &wanted, number);
        for (name, reason) in refused {
            tracing::warn!("{shown}: {name} cannot be probed: {reason}");
            self.problem(format!("{shown}: a function of --request cannot be probed: the agent's log says why"));
        }
        if !links.is_empty() {
            tracing::info!("calls in {shown} are requests: {}", wanted.names.join(", "));
        }
        self.names.insert(number, wanted.names.clone());
        self.forget_names();
        State::Attached { _links: links, number }
    }

    /// Lets go of the oldest names that no probe refers to, where there are many.
    fn forget_names(&mut self) {
        let number = |known: &Known| match &known.state {
            State::Attached { number, .. } => Some(*number),
            State::Asked { .. } => None,
        };
        let attached: HashSet<u32> = self.known.values().filter_map(number).chain([self.last_number]).collect();
        while self.names.len() > MOST_NAMED {
            let Some(oldest) = self.names.keys().find(|number| !attached.contains(number)).copied() else { break };
            self.names.remove(&oldest);
        }
    }

    /// Takes the probes off files that nobody has mapped. Returns processes with files for which there may
    /// be room now.
    pub(super) fn keep_only(&mut self, used: &HashSet<FileKey>) -> HashSet<u32> {
        let unused: Vec<Known> = self.known.extract_if(|key, _| !used.contains(key)).map(|(_, known)| known).collect();
        unused.iter().for_each(|known| self.share.give(known.user, 1));
        if unused.is_empty() { HashSet::new() } else { std::mem::take(&mut self.turned_away) }
    }

    /// Takes all probes away.
    pub(super) fn clear(&mut self) {
        self.keep_only(&HashSet::new());
        self.turned_away.clear();
    }

    /// The name of a function or pair, by its probe's cookie.
    pub(super) fn name(&self, cookie: u64) -> Option<Arc<str>> {
        let names = self.names.get(&u32::try_from(cookie >> 32).ok()?)?;
        names.get((cookie & u64::from(u32::MAX)) as usize).cloned()
    }

    /// The functions and pairs whose calls are seen now, with their files.
    pub(super) fn seen(&self) -> Vec<String> {
        let of = |known: &Known| match &known.state {
            State::Attached { _links: links, number } if !links.is_empty() => {
                let names = self.names.get(number).map(Vec::as_slice).unwrap_or_default();
                names.iter().map(|name| format!("{}: {name}", known.shown)).collect()
            }
            _ => vec![],
        };
        let mut seen: Vec<String> = self.known.values().flat_map(of).collect();
        seen.sort();
        seen
    }

    fn problem(&mut self, text: String) {
        self.problems.push(text);
    }

    /// What cannot be recorded, since the last time.
    pub(super) fn take_problems(&mut self) -> Vec<String> {
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
            calls.last_number = number;
            calls.names.insert(number, vec!["f".into(), format!("f{number}").into()]);
            let state = State::Attached { _links: vec![], number: 1 };
            calls.known.insert((vec![], 1), Known { user: 0, shown: String::new(), state });
            calls.forget_names();
        }
        assert_eq!(calls.names.len(), MOST_NAMED);
        assert_eq!(calls.name(1_000 << 32 | 1).as_deref(), Some("f1000"));
        assert_eq!(calls.name(1 << 32 | 1).as_deref(), Some("f1"), "it is attached");
        assert_eq!((calls.name(2 << 32), calls.name(1_000 << 32 | 2)), (None, None));
    }
}
