//! Attaching probes to files: ahead of time by path or the loader's cache, or when a process has
//! one mapped. The crate `files` reads them, meanwhile other files are looked at. Each file once;
//! what cannot be attached is reported and tried a few times.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use files::{Answer, Outcome, Question, Refusal, Ticket};
use libbpf_rs::Link;

use super::mapped::{MOST_OF_USER, MappedFiles};
use super::probes::FileProbes;
use super::{Ahead, Discovery};
use crate::attach::{self, Attached};
use crate::content::Content;
use crate::cuda;
use crate::cuda::functions::Api;
use crate::error::Error;
use crate::functions;
use crate::gloo;
use crate::hits::MOST_HITS;
use crate::libraries::library_of;
use crate::maps::{self, FileKey};
use crate::mounts;
use crate::shared::AttachedFile;
use crate::symbol_probes::{self, Places};
use crate::symbols::{self, Target};
use crate::verbs;
use record::{Library, printable};

/// A kind of probes in a file. One file may have several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Probed {
    Collectives(Library),
    Cuda(Api),
    Verbs,
    /// The user's probe of this index.
    Named(usize),
}

impl Probed {
    fn name(self) -> &'static str {
        match self {
            Probed::Collectives(library) => library.name(),
            Probed::Cuda(api) => api.source(),
            Probed::Verbs => "verbs",
            Probed::Named(_) => "symbol",
        }
    }

    /// Whether a process that has it mapped is followed at once. One with a library of the user's
    /// choice is followed when it makes the call, and one with PyTorch, which has gloo, when it
    /// makes a communicator; verbs alone do not make a rank.
    pub(super) fn makes_rank(self) -> bool {
        !matches!(self, Probed::Named(_) | Probed::Verbs | Probed::Collectives(Library::Gloo))
    }

    /// What a file is compared with as long as it has these probes. Those of libraries known here stay: calls
    /// missed meanwhile would make the numbers of others wrong.
    fn content(self, file: &fs::File) -> io::Result<Option<Content>> {
        matches!(self, Probed::Named(_)).then(|| Content::of(file)).transpose()
    }
}

/// How often attaching to one file is tried.
const MOST_ATTEMPTS: u32 = 5;
/// How long a file whose probes were hit too often has none.
const BRAKED_FOR: Duration = Duration::from_secs(300);
/// How long reading a file is waited for that is attached ahead.
const MOST_OF_A_FILE: Duration = Duration::from_secs(120);
/// How long the files of processes that run already are waited for at the start.
const AT_THE_START: Duration = Duration::from_secs(20);

/// What was done for a kind of probes in a file that processes have mapped.
#[derive(Debug)]
pub(super) enum Probes {
    /// It is being read.
    Asked,
    /// There are these (none where it has none of the functions, or is attached ahead).
    Attached(FileProbes),
    /// There are none yet, after so many attempts.
    Failed(u32),
    /// They were hit too often: there are none for a while.
    Braked(Instant),
}

/// The probes of a file that was attached ahead.
#[derive(Debug)]
pub(super) struct Held {
    ahead: Ahead,
    probes: FileProbes,
    /// They were hit too often.
    braked: Option<Instant>,
}

/// A file that is being read for a kind of probes.
#[derive(Debug)]
pub(super) struct Asked {
    key: FileKey,
    user: u32,
    probed: Probed,
    /// Kept open: the process that led to it may end before everything is attached.
    file: fs::File,
    /// Where a user named the functions: what it was when it was asked.
    read: Option<Content>,
    shown: PathBuf,
    /// What it exports, and of NCCL which build it is.
    tickets: Vec<Ticket>,
    attempts: u32,
}

/// A file that is being read for the layout of its communicators.
#[derive(Debug)]
pub(super) struct AskedLayout {
    user: Option<u32>,
    ticket: Ticket,
    shown: String,
}

impl Discovery {
    /// Attaches to a file before anybody has it mapped.
    pub(crate) fn attach_ahead(&mut self, path: &Path) -> Result<(), Error> {
        let fail = |reason: String| Error::Library { path: path.to_owned(), reason };
        let name = path.file_name().map(OsStrExt::as_bytes).unwrap_or_default();
        let probed = self.probed_in(path, name);
        if probed.is_empty() {
            return Err(fail("it is named like no library known here".to_owned()));
        }
        probed.into_iter().try_for_each(|probed| self.attach_for_good(path, probed)).map_err(fail)
    }

    /// Probes the user's functions in the files that can be found without a process: by path, or in
    /// the loader's cache. What is wrong with a path is an error at once.
    pub(crate) fn attach_probes_ahead(&mut self) -> Result<(), Error> {
        let cache = fs::read("/etc/ld.so.cache").unwrap_or_default();
        for (index, spec) in self.probes.clone().iter().enumerate() {
            if let Some(path) = spec.path() {
                self.attach_for_good(path, Probed::Named(index))
                    .map_err(|reason| Error::Probe { spec: spec.to_string(), reason })?;
                continue;
            }
            let means = |name: &[u8], path: &[u8]| spec.means(Path::new(OsStr::from_bytes(path)), name);
            for path in paths_in_loader_cache(&cache, means) {
                if let Err(error) = self.attach_for_good(&path, Probed::Named(index)) {
                    tracing::debug!(%error, path = %path.display(), "not probed ahead");
                }
            }
        }
        Ok(())
    }

    /// Called once every running process has been looked at: a name that was found in no file is
    /// refused, one whose library no process has is waited for.
    pub(crate) fn check_probes(&self) -> Result<(), Error> {
        for (spec, state) in self.probes.iter().zip(&self.probed) {
            match state {
                Ok(()) => {}
                Err(Some(reason)) => {
                    return Err(Error::Probe { spec: spec.to_string(), reason: reason.clone() });
                }
                Err(None) => tracing::info!("no process uses the library of {spec}: it is probed when one does"),
            }
        }
        Ok(())
    }

    /// The kinds of probes in a file that processes see under this path.
    pub(super) fn probed_in(&self, path: &Path, file_name: &[u8]) -> Vec<Probed> {
        let collectives = library_of(file_name).map(Probed::Collectives);
        let cuda = cuda::api_of(file_name).filter(|_| self.cuda).map(Probed::Cuda);
        let named = self.probes.iter().enumerate().filter(|(_, spec)| spec.means(path, file_name));
        let verbs = (self.verbs && verbs::is_verbs(file_name)).then_some(Probed::Verbs);
        collectives.into_iter().chain(cuda).chain(verbs).chain(named.map(|(index, _)| Probed::Named(index))).collect()
    }

    /// Attaches to the libraries in the dynamic loader's cache, so that the first process to use
    /// one is seen from its first call on. A file that cannot be probed now is tried again when a
    /// process has it mapped.
    pub(crate) fn attach_system_libraries(&mut self) {
        let cache = fs::read("/etc/ld.so.cache").unwrap_or_default();
        for path in libraries_in_loader_cache(&cache) {
            if let Err(error) = self.attach_ahead(&path) {
                tracing::debug!(%error, "not probed ahead");
            }
        }
    }

    /// Asks the file, and attaches when it has answered.
    pub(super) fn attach_mapped(&mut self, pid: u32, user: u32, mapping: &maps::Mapping<'_>, probed: Probed) {
        let key = mapping.key();
        let Some(known) = self.mapped.mapped(&key, pid, user) else {
            self.shared.problem(
                Some(user),
                &format!(
                    "user {user} has {MOST_OF_USER} files mapped that are named like libraries and are \
                 probed: calls in others are not recorded until these are unmapped"
                ),
            );
            return;
        };
        let attempts = match known.kinds.get(&probed) {
            Some(Probes::Asked | Probes::Attached(_) | Probes::Braked(_)) => return,
            Some(Probes::Failed(attempts)) if *attempts >= MOST_ATTEMPTS => return,
            Some(Probes::Failed(attempts)) => *attempts,
            None => 0,
        };
        let mut refusal = None;
        let file = maps::open_where(pid, mapping, |file| {
            refusal = matches!(probed, Probed::Named(_)).then(|| mounts::refusal(pid, file)).flatten();
            refusal.is_none()
        });
        if let Some(reason) = refusal {
            known_as(&mut self.mapped, &key, probed, Probes::Attached(FileProbes::default()));
            let path = String::from_utf8_lossy(mapping.path);
            return self.shared.problem(Some(user), &format!("{path} is not probed: {reason}"));
        }
        let Some(file) = file else { return };
        let Ok(read) = probed.content(&file) else { return };
        let shown = PathBuf::from(OsStr::from_bytes(mapping.path));
        if self.is_ahead(&file, probed) {
            known_as(&mut self.mapped, &key, probed, Probes::Attached(FileProbes::default()));
            return;
        }
        let tickets =
            self.questions(probed).into_iter().map(|question| self.files.ask(user, &file, question)).collect();
        known_as(&mut self.mapped, &key, probed, Probes::Asked);
        self.asked.push(Asked { key, user, probed, file, read, shown, tickets, attempts });
        self.take_answers(); // those that are kept are there at once
    }

    fn is_ahead(&self, file: &fs::File, probed: Probed) -> bool {
        let identity = file.metadata().map(|found| (found.dev(), found.ino(), probed));
        identity.is_ok_and(|identity| self.ahead.contains(&identity))
    }

    /// What a file is asked for a kind of probes.
    fn questions(&self, probed: Probed) -> Vec<Question> {
        match probed {
            Probed::Collectives(Library::Mpi) => vec![symbols::question(Library::Mpi)],
            Probed::Collectives(Library::Gloo) => gloo::questions(),
            Probed::Collectives(library) => vec![symbols::question(library), Question::NcclBuild],
            Probed::Cuda(api) => vec![cuda::question(api)],
            Probed::Verbs => vec![verbs::question()],
            Probed::Named(index) => self.probes.get(index).map(symbol_probes::question).into_iter().collect(),
        }
    }

    /// Attaches to the files that have answered.
    pub(crate) fn take_answers(&mut self) {
        self.shared.meet_ready();
        let is_there = |asked: &mut Asked| asked.tickets.iter().all(|ticket| ticket.outcome().is_some());
        for asked in self.asked.extract_if(.., is_there).collect::<Vec<_>>() {
            let Asked { key, user, probed, file, read, shown, tickets, attempts } = asked;
            if self.mapped.file(&key).is_none() {
                continue; // nobody has it mapped any more
            }
            let outcomes: Vec<Outcome> = tickets.iter().filter_map(|ticket| ticket.outcome().cloned()).collect();
            let busy = outcomes.iter().any(|outcome| matches!(outcome, Err(Refusal::Busy | Refusal::Changed)));
            let attached = self.attach_answered(&file, &shown, probed, Some(user), outcomes);
            let attached = attached.map(|probes| probes.by(&file, read));
            // Its code may have moved since it was read, also while it was attached to.
            let has_changed = attached.as_ref().is_ok_and(FileProbes::is_outdated);
            let attached = if has_changed { Err(Refusal::Changed.to_string()) } else { attached };
            let state = match attached {
                Ok(probes) => Probes::Attached(probes),
                Err(_) if busy || has_changed => Probes::Failed(attempts),
                Err(reason) => {
                    tracing::debug!(reason = %printable(&reason), "cannot probe a library yet");
                    if attempts + 1 == MOST_ATTEMPTS {
                        self.shared.problem(Some(user), &format!("cannot probe {}: {reason}", shown.display()));
                    }
                    Probes::Failed(attempts + 1)
                }
            };
            let hides_gloo = probed == Probed::Collectives(Library::Gloo)
                && matches!(&state, Probes::Attached(probes) if probes.is_empty());
            if hides_gloo || matches!(state, Probes::Failed(attempts) if attempts < MOST_ATTEMPTS) {
                self.look_again(self.mapped.pids(&key));
            }
            known_as(&mut self.mapped, &key, probed, state);
        }
        for AskedLayout { user, ticket, shown } in self.layouts.extract_if(.., |asked| asked.ticket.outcome().is_some())
        {
            let Some(Err(reason)) = ticket.outcome() else { continue };
            self.shared.problem(
                user,
                &format!(
                    "{shown}: {reason}, so rank, size and hash of communicators that were made before the recorder came \
                     stay unknown"
                ),
            );
        }
    }

    /// Waits for the files of processes that ran already, and attaches.
    pub(crate) fn settle(&mut self) {
        let until = Instant::now() + AT_THE_START;
        while !self.asked.is_empty() && Instant::now() < until {
            for ticket in self.asked.iter().flat_map(|asked| &asked.tickets) {
                let _ = ticket.wait(until); // looked at below
            }
            self.take_answers();
        }
    }

    /// Takes the probes off files that nobody has mapped any more.
    pub(super) fn give_back(&mut self) {
        let (unused, again) = self.mapped.take_unused(Instant::now());
        for (key, file) in unused {
            self.shared.detached_from(&key);
            drop(file);
        }
        self.look_again(again);
    }

    /// Takes the probes at functions that a user named off files that were written to since they were read, and
    /// has them read anew: code may have moved under the probes.
    pub(super) fn look_at_files(&mut self) {
        let is_over = |since: Instant| since.elapsed() >= BRAKED_FOR;
        let is_outdated = |state: &Probes| match state {
            Probes::Attached(probes) => probes.is_outdated(),
            Probes::Braked(since) => is_over(*since),
            Probes::Asked | Probes::Failed(_) => false,
        };
        let (changed, again) = self.mapped.forget_kinds(|_, state| is_outdated(state));
        changed.iter().for_each(|key| self.shared.detached_from(key));
        self.look_again(again);
        let gone: Vec<Ahead> = self
            .held
            .extract_if(.., |held| held.probes.is_outdated() || held.braked.is_some_and(is_over))
            .map(|held| held.ahead)
            .collect();
        self.ahead.retain(|ahead| !gone.contains(ahead));
        for (device, inode, _) in &gone {
            self.shared.detached_from(&(maps::device_of(*device), *inode));
        }
        if !gone.is_empty() {
            tracing::info!("files with functions that were named were written to, or rested: they are read anew");
            let is_ahead = |state: &Probes| matches!(state, Probes::Attached(probes) if probes.is_empty());
            let (_, again) =
                self.mapped.forget_kinds(|kind, state| gone.iter().any(|(.., of)| of == kind) && is_ahead(state));
            self.look_again(again);
        }
    }

    /// Takes off what is hit too often.
    pub(crate) fn brake(&mut self) {
        let now = Instant::now();
        let mut braked: Vec<(FileKey, String, u64)> = vec![];
        for (key, state) in self.mapped.states_mut() {
            if let Probes::Attached(probes) = state
                && let Some((shown, often)) = probes.brake(now)
            {
                *state = Probes::Braked(now);
                braked.push((key.clone(), shown, often));
            }
        }
        for Held { ahead: (device, inode, _), probes, braked: since } in &mut self.held {
            if let Some((shown, often)) = probes.brake(now) {
                *since = Some(now);
                braked.push(((maps::device_of(*device), *inode), shown, often));
            }
        }
        for (key, shown, often) in braked {
            self.shared.detached_from(&key);
            tracing::warn!("{shown} is not probed for five minutes: {often} hits in a second");
            self.shared.problem(
                None,
                &format!("{shown} is not probed for five minutes at a time: more than {MOST_HITS} hits in a second slow what calls it"),
            );
        }
    }

    /// So that communicators made before we came can be read.
    pub(super) fn learn_layout(&mut self, pid: u32, user: Option<u32>, mapping: &maps::Mapping<'_>) {
        let Some(ticket) = self.shared.late.ask(pid, user.unwrap_or(0), mapping) else { return };
        // no error for the many files that only might contain NCCL
        if !mapping.file_name().starts_with(b"libtorch") {
            let shown = String::from_utf8_lossy(mapping.path).into_owned();
            if !self.layouts.iter().any(|asked| asked.shown == shown) {
                self.layouts.push(AskedLayout { user, ticket, shown });
            }
        }
    }

    /// Attaches to a file that is named by the configuration or the loader's cache, for as long as
    /// capture runs.
    fn attach_for_good(&mut self, path: &Path, probed: Probed) -> Result<(), String> {
        let file = fs::File::open(path).map_err(|e| e.to_string())?;
        let metadata = file.metadata().map_err(|e| e.to_string())?;
        let read = probed.content(&file).map_err(|e| e.to_string())?;
        if matches!(probed, Probed::Named(_))
            && let Some(reason) = mounts::refusal(std::process::id(), &file)
        {
            return Err(reason);
        }
        let identity = (metadata.dev(), metadata.ino(), probed);
        if self.ahead.contains(&identity) {
            return Ok(());
        }
        let until = Instant::now() + MOST_OF_A_FILE;
        let answer = |question| self.files.answer(metadata.uid(), &file, question, until);
        let outcomes = self.questions(probed).into_iter().map(answer).collect();
        let probes = self.attach_answered(&file, path, probed, None, outcomes)?;
        let probes = probes.by(&file, read);
        if probes.is_outdated() {
            return Err(Refusal::Changed.to_string());
        }
        self.held.push(Held { ahead: identity, probes, braked: None });
        self.ahead.insert(identity);
        Ok(())
    }

    /// Attaches by what a file has answered.
    fn attach_answered(
        &mut self,
        file: &fs::File,
        shown: &Path,
        probed: Probed,
        user: Option<u32>,
        outcomes: Vec<Outcome>,
    ) -> Result<FileProbes, String> {
        let opened = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let path = opened.as_path();
        if let Probed::Named(index) = probed {
            let answer = outcomes.into_iter().next().ok_or("it was not asked")?;
            return self.attach_named(path, shown, index, user, answer);
        }
        if probed == Probed::Collectives(Library::Gloo) {
            let answers: Result<Vec<Arc<Answer>>, Refusal> = outcomes.into_iter().collect();
            let answers = answers.map_err(|refusal| refusal.to_string())?;
            return self.attach_gloo(file, shown, &answers).map(FileProbes::from);
        }
        let mut targets = vec![];
        for outcome in outcomes {
            match (&*outcome.map_err(|refusal| refusal.to_string())?, probed) {
                (Answer::Exports(elf), Probed::Collectives(library)) => targets = symbols::targets(elf, library),
                (Answer::NcclBuild(build), Probed::Collectives(library)) => {
                    symbols::note_build(&mut targets, library, *build);
                }
                (Answer::Exports(elf), Probed::Cuda(api)) => targets = cuda::targets(elf, api),
                (Answer::DefaultVersion(offset), Probed::Verbs) => targets.extend(offset.map(verbs::target)),
                _ => return Err("it was asked something else".to_owned()),
            }
        }
        if targets.is_empty() {
            return Ok(FileProbes::default());
        }
        let family = match probed {
            Probed::Cuda(_) => attach::CUDA,
            Probed::Verbs => attach::VERBS,
            Probed::Collectives(_) | Probed::Named(_) => attach::CALL,
        };
        let apart = self.slices && matches!(probed, Probed::Collectives(_));
        let (often, seldom): (Vec<Target>, Vec<Target>) =
            targets.iter().cloned().partition(|target| apart && functions::is_frequent(target.cookie));
        let (mut probes, mut refused) = (FileProbes::default(), vec![]);
        for (targets, come_and_go) in [(seldom, false), (often, true)] {
            if targets.is_empty() {
                continue;
            }
            let attached = attach::attach(&self.object, family, self.mode, path, &targets);
            let Attached { links, refused: others } = attached.map_err(|e| format!("{e:#}"))?;
            if come_and_go {
                let is_there = |target: &Target| others.iter().all(|(symbol, _)| *symbol != target.symbol);
                let there = targets.into_iter().filter(is_there).collect();
                probes.come_and_go(file.try_clone().map_err(|e| e.to_string())?, there, links);
            } else {
                probes = FileProbes::from(links);
            }
            refused.extend(others);
        }
        if self.frequent_away {
            probes.go();
        }
        for (symbol, reason) in &refused {
            let shown = shown.display();
            self.shared
                .problem(user, &format!("{shown}: {symbol} cannot be probed ({reason}): its calls are not recorded"));
        }
        let names = targets.iter().map(|t| t.symbol.clone().into_owned());
        let symbols: Vec<String> = names.filter(|name| refused.iter().all(|(other, _)| other != name)).collect();
        let library = probed.name();
        let shown_path = printable(&shown.to_string_lossy());
        tracing::info!(path = %shown_path, library, probes = symbols.len(), "probing a library");
        self.note_attached(file, AttachedFile { path: shown.to_owned(), library, symbols });
        Ok(probes)
    }

    /// Takes the probes at frequent functions away.
    pub(crate) fn take_frequent_away(&mut self) {
        self.frequent_away = true;
        all_probes(&mut self.mapped, &mut self.held).for_each(FileProbes::go);
    }

    /// Puts them back; a file that refuses that is a problem.
    pub(crate) fn put_frequent_back(&mut self) {
        self.frequent_away = false;
        let (object, mode) = (&self.object, self.mode);
        let all = all_probes(&mut self.mapped, &mut self.held);
        let failed = all.filter_map(|probes| probes.come(object, mode).err());
        let failed: Vec<String> = failed.map(|error| format!("{error:#}")).collect();
        for reason in failed {
            let problem = format!("a library whose calls are recorded in slices cannot be probed again ({reason})");
            self.shared.problem(None, &problem);
        }
    }

    fn note_attached(&self, file: &fs::File, attached: AttachedFile) {
        let key = file.metadata().map_or((vec![], 0), |found| (maps::device_of(found.dev()), found.ino()));
        self.shared.attached(key, attached);
    }

    /// Attaches to gloo's functions by what a file has answered.
    fn attach_gloo(&mut self, file: &fs::File, shown: &Path, answers: &[Arc<Answer>]) -> Result<Vec<Link>, String> {
        let places = gloo::places(answers)?;
        if places.entries.is_empty() {
            let identity = file.metadata().map_err(|error| error.to_string())?;
            self.without_gloo.insert((identity.dev(), identity.ino()));
            return Ok(vec![]);
        }
        let opened = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let links = attach::attach_gloo(&self.object, self.mode, &opened, &places).map_err(|e| format!("{e:#}"))?;
        let symbols: Vec<String> = places.entries.iter().map(|target| target.symbol.clone().into_owned()).collect();
        let shown_path = printable(&shown.to_string_lossy());
        tracing::info!(path = %shown_path, library = "gloo", probes = symbols.len(), "probing a library");
        let library = Library::Gloo.name();
        self.note_attached(file, AttachedFile { path: shown.to_owned(), library, symbols });
        Ok(links)
    }

    /// Has the threads of a process looked at whose library may hide gloo's functions.
    pub(super) fn look_for_gloo(&mut self, pid: u32, mapping: &maps::Mapping<'_>) {
        let file = maps::open(pid, mapping).and_then(|file| file.metadata().ok());
        let hides = file.is_some_and(|file| self.without_gloo.contains(&(file.dev(), file.ino())));
        if hides && self.wanted(pid) {
            self.unprobed.hides_gloo(pid);
        }
    }

    /// Probes the matches of one of the user's probes in a file, and records the outcome.
    fn attach_named(
        &mut self,
        path: &Path,
        shown: &Path,
        index: usize,
        user: Option<u32>,
        answer: Outcome,
    ) -> Result<FileProbes, String> {
        let Some(spec) = self.probes.get(index) else { return Ok(FileProbes::default()) };
        let slot = self.hits.slot().ok_or("too many files with functions that you named are probed already (4,095)")?;
        let name = shown.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let name = name.strip_suffix(" (deleted)").unwrap_or(&name);
        let places = answer
            .map_err(|refusal| refusal.to_string())
            .and_then(|answer| symbol_probes::places(&answer, name, spec, &self.shared.counted, slot.at()));
        let attached = places.and_then(|places| {
            let links = attach::attach_places(&self.object, self.mode, path, &places).map_err(|e| e.to_string())?;
            Ok((links, places))
        });
        let result = match attached {
            Ok((links, places)) => {
                let probes = places.count();
                if let Places::Entries { reason, .. } = places {
                    let problem = format!("{}: calls of {spec} are counted, and not timed: {reason}", shown.display());
                    self.shared.problem(user, &problem);
                }
                tracing::info!(path = %printable(&shown.to_string_lossy()), %spec, probes, "probing a function");
                let attached =
                    AttachedFile { path: shown.to_owned(), library: "symbol", symbols: vec![spec.to_string()] };
                if let Ok(file) = fs::File::open(path) {
                    self.note_attached(&file, attached);
                }
                Ok(FileProbes::from(links).counted_at(format!("{spec} in {}", shown.display()), slot))
            }
            Err(reason) => Err(format!("{}: {reason}", shown.display())),
        };
        if let Some(kept) = self.probed.get_mut(index).filter(|kept| kept.is_err()) {
            *kept = result.as_ref().map(|_| ()).map_err(|reason| Some(reason.clone()));
        }
        result
    }

    /// Takes every probe away.
    pub(crate) fn attach_fault_begins(&self) -> libbpf_rs::Result<Vec<Link>> {
        attach::attach_fault_begins(&self.object)
    }
}

/// Those of all files.
fn all_probes<'a>(
    mapped: &'a mut MappedFiles<Probed, Probes>,
    held: &'a mut [Held],
) -> impl Iterator<Item = &'a mut FileProbes> {
    let of_mapped = mapped.kinds_mut().filter_map(|kind| match kind {
        Probes::Attached(probes) => Some(probes),
        Probes::Asked | Probes::Failed(_) | Probes::Braked(_) => None,
    });
    of_mapped.chain(held.iter_mut().map(|held| &mut held.probes))
}

fn known_as(mapped: &mut MappedFiles<Probed, Probes>, key: &FileKey, probed: Probed, state: Probes) {
    if let Some(file) = mapped.file(key) {
        file.kinds.insert(probed, state);
    }
}

/// The cache has its paths as strings ended by zero bytes; the version of its format does not
/// matter.
fn libraries_in_loader_cache(cache: &[u8]) -> Vec<PathBuf> {
    paths_in_loader_cache(cache, |name, _| {
        library_of(name).is_some() || cuda::api_of(name).is_some() || verbs::is_verbs(name)
    })
}

/// The paths whose (file name, path) are `wanted`.
fn paths_in_loader_cache(cache: &[u8], wanted: impl Fn(&[u8], &[u8]) -> bool) -> Vec<PathBuf> {
    cache
        .split(|&b| b == 0)
        .filter(|text| text.first() == Some(&b'/'))
        .filter(|path| wanted(path.rsplit(|&b| b == b'/').next().unwrap_or_default(), path))
        .map(|path| PathBuf::from(std::ffi::OsStr::from_bytes(path)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_in_the_loaders_cache() {
        let cache = b"glibc-ld.so.cache1.1\x01\0\0\x02libmpi.so.40\0/usr/lib/libmpi.so.40\0/usr/lib/libm.so.6\0\xff";
        assert_eq!(libraries_in_loader_cache(cache), [PathBuf::from("/usr/lib/libmpi.so.40")]);
    }
}
