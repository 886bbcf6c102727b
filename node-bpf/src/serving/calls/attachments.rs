//! Putting probes into files and taking them off, in a thread of its own: the kernel may take long over
//! it (it stops each process that maps the file for a moment), and the recorder has rings to read. And
//! which attachments there are: a program counts the hits of each, and asks whether one is still there.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object};

use super::super::programs::CALL_ATTACHMENTS;
use super::probes::{self, Wanted};
use crate::attach::Links;
use crate::config::AttachMode;
use crate::content::Content;
use crate::hits::{OVER, too_often};

/// How many there are at once.
pub(super) const PLACES: usize = CALL_ATTACHMENTS as usize;
/// Between two attachments: who maps and unmaps a file all the time has it probed so often at most.
const REST: Duration = Duration::from_millis(50);

/// Probes to be put into a file.
pub(super) struct ToAttach {
    pub(super) object: Arc<Object>,
    pub(super) mode: AttachMode,
    pub(super) file: fs::File,
    /// What it was when it was asked.
    pub(super) read: Content,
    pub(super) wanted: Wanted,
    pub(super) number: u32,
    /// To whom the file is counted.
    pub(super) user: u32,
}

enum Job {
    Attach(Box<ToAttach>),
    Detach(Links, u32),
}

/// What has been done.
pub(super) enum Done {
    Attached(Attached),
    /// The attachment of this number is gone.
    Detached(u32),
}

/// Probes that were put into a file.
pub(super) struct Attached {
    pub(super) number: u32,
    pub(super) file: fs::File,
    pub(super) read: Content,
    pub(super) links: Links,
    /// Names that cannot be probed, and why.
    pub(super) refused: Vec<(Arc<str>, String)>,
    /// They may be another time.
    pub(super) may_pass: bool,
}

/// The thread.
#[derive(Debug)]
pub(super) struct Attacher {
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
}

impl Attacher {
    pub(super) fn start() -> Attacher {
        let (jobs, todo) = mpsc::channel();
        let (tell, done) = mpsc::channel();
        let thread = thread::Builder::new().name("attaching".to_owned()).spawn(move || work(&todo, &tell));
        Attacher { jobs: Some(jobs), done, thread: thread.ok() }
    }

    /// False where there is no thread.
    pub(super) fn attach(&self, what: ToAttach) -> bool {
        self.thread.is_some() && self.jobs.as_ref().is_some_and(|jobs| jobs.send(Job::Attach(Box::new(what))).is_ok())
    }

    pub(super) fn detach(&self, links: Links, number: u32) {
        let job = Job::Detach(links, number);
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job)); // without the thread they are dropped here
    }

    pub(super) fn done(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }
}

impl Drop for Attacher {
    /// Takes off what is to be taken off; what is to be attached to is left.
    fn drop(&mut self) {
        self.jobs = None;
        self.thread.take().map(JoinHandle::join);
    }
}

/// Takes probes off first, and attaches to files of users in turn.
fn work(todo: &Receiver<Job>, tell: &Sender<Done>) {
    let mut waiting = Waiting::default();
    loop {
        let next =
            if waiting.is_empty() { todo.recv().map_err(|_| TryRecvError::Disconnected) } else { todo.try_recv() };
        match next {
            Ok(Job::Attach(what)) => waiting.add(what.user, what),
            Ok(Job::Detach(links, number)) => {
                drop(links);
                if tell.send(Done::Detached(number)).is_err() {
                    return;
                }
            }
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                let Some(what) = waiting.take() else { continue };
                let ToAttach { object, mode, file, read, wanted, number, .. } = *what;
                let probes::Outcome { links, refused, may_pass } =
                    probes::attach((&object, mode), &file, &wanted, number);
                let attached = Attached { number, file, read, links: links.into(), refused, may_pass };
                if tell.send(Done::Attached(attached)).is_err() {
                    return;
                }
                thread::sleep(REST);
            }
        }
    }
}

/// What waits, by whose it is.
struct Waiting<T> {
    by_user: BTreeMap<u32, VecDeque<T>>,
    /// Whose was taken last.
    last: u32,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Waiting { by_user: BTreeMap::new(), last: 0 }
    }
}

impl<T> Waiting<T> {
    fn is_empty(&self) -> bool {
        self.by_user.is_empty()
    }

    fn add(&mut self, user: u32, what: T) {
        self.by_user.entry(user).or_default().push_back(what);
    }

    /// The next user's first.
    fn take(&mut self) -> Option<T> {
        let after = (Bound::Excluded(self.last), Bound::Unbounded);
        let user = self.by_user.range(after).next().or(self.by_user.first_key_value()).map(|(user, _)| *user)?;
        self.last = user;
        let of_user = self.by_user.get_mut(&user)?;
        let what = of_user.pop_front();
        if of_user.is_empty() {
            self.by_user.remove(&user);
        }
        what
    }
}

/// Which attachments the programs know, by their places.
#[derive(Debug)]
pub(super) struct Numbers {
    map: Option<MapHandle>,
    /// Of each place the number there, and hits as of a time.
    there: [Option<(u32, u64, Instant)>; PLACES],
    last: u32,
}

impl Default for Numbers {
    fn default() -> Self {
        Numbers { map: None, there: [None; PLACES], last: 0 }
    }
}

impl Numbers {
    /// The programs have this map now.
    pub(super) fn in_map(&mut self, map: Option<MapHandle>) {
        self.map = map;
    }

    pub(super) fn has_map(&self) -> bool {
        self.map.is_some()
    }

    /// A number for an attachment; none where all places are in use.
    pub(super) fn take(&mut self) -> Option<u32> {
        let at = self.there.iter().position(Option::is_none)?;
        self.last = self.last.wrapping_add(1) % (u32::MAX / PLACES as u32);
        let number = self.last.max(1) * PLACES as u32 + at as u32;
        let hits = self.write(at, number);
        self.there[at] = Some((number, hits, Instant::now()));
        Some(number)
    }

    /// The programs take it for gone; its place is not given to others yet.
    pub(super) fn leave(&mut self, number: u32) {
        let at = number as usize % PLACES;
        if self.there[at].is_some_and(|(there, ..)| there == number) {
            self.write(at, 0);
        }
    }

    /// Its place may be another's.
    pub(super) fn give(&mut self, number: u32) {
        let at = number as usize % PLACES;
        if self.there[at].is_some_and(|(there, ..)| there == number) {
            self.there[at] = None;
        }
    }

    /// Writes which number is at a place. Returns the hits there.
    fn write(&self, at: usize, number: u32) -> u64 {
        let Some(map) = &self.map else { return 0 };
        let hits = hits(map, at);
        let value = [&hits.to_ne_bytes()[..], &number.to_ne_bytes(), &[0; 4]].concat();
        if let Err(error) = map.update(&(at as u32).to_ne_bytes(), &value, MapFlags::ANY) {
            tracing::warn!(%error, "cannot tell the programs of an attachment");
        }
        hits
    }

    /// The attachments that are hit too often, and how often in a second.
    pub(super) fn too_often(&mut self, now: Instant) -> Vec<(u32, u64)> {
        let Some(map) = &self.map else { return vec![] };
        let mut all = vec![];
        for (at, place) in self.there.iter_mut().enumerate() {
            let Some((number, counted, since)) = place else { continue };
            if now.duration_since(*since) < OVER {
                continue;
            }
            let hits = hits(map, at);
            if let Some(often) = too_often(hits.saturating_sub(*counted), now.duration_since(*since)) {
                all.push((*number, often));
            }
            (*counted, *since) = (hits, now);
        }
        all
    }
}

fn hits(map: &MapHandle, at: usize) -> u64 {
    let value = map.lookup(&(at as u32).to_ne_bytes(), MapFlags::ANY).ok().flatten();
    value.and_then(|value| value.first_chunk().copied()).map_or(0, u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_taken_of_one_user_after_the_other() {
        let mut waiting = Waiting::default();
        for (user, what) in [(7, "a"), (7, "b"), (7, "c"), (0, "d"), (9, "e")] {
            waiting.add(user, what);
        }
        let all: Vec<&str> = std::iter::from_fn(|| waiting.take()).collect();
        assert_eq!((all, waiting.is_empty()), (vec!["a", "e", "d", "b", "c"], true));
    }

    #[test]
    fn a_place_has_one_attachment_and_each_has_its_own_number() {
        let mut numbers = Numbers::default();
        let all: Vec<u32> = std::iter::from_fn(|| numbers.take()).collect();
        assert_eq!(all.len(), PLACES);
        numbers.leave(all[3]);
        assert_eq!(numbers.take(), None, "its probes may still be there");
        numbers.give(all[3]);
        let new = numbers.take().unwrap();
        assert_eq!((new as usize % PLACES, all.contains(&new)), (3, false));
        numbers.give(all[3]);
        assert_eq!(numbers.take(), None, "it is another's place now");
    }
}
