//! Call sites: the address that a call returned to, as `function+offset (file)`. Each place of a
//! file is looked up once, however many processes run it, by the crate `files`, since the symbols of
//! a framework's library take long to read. Programs have few such places, so the texts are few.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use files::{Answer, Files, Question, Ticket};
use record::printable;

use crate::maps::{self, Mapping};
use crate::procfs;

/// Most places of one process, and of all files: calls at further ones have no site.
const MOST_OF_PROCESS: usize = 4_096;
const MOST_PLACES: usize = 65_536;
/// How long the ring's reader waits for a new place's name, so that the first rows have it, too …
const WAIT: Duration = Duration::from_millis(20);
/// … but no longer than this within [`SPELL`].
const WAITS: Duration = Duration::from_millis(200);
const SPELL: Duration = Duration::from_secs(10);

/// A place in a file: device, inode and offset.
type Place = (Vec<u8>, u64, u64);

/// Executable memory of a process that is of a file.
#[derive(Debug)]
struct Code {
    start: u64,
    end: u64,
    offset: u64,
    device: Vec<u8>,
    inode: u64,
}

#[derive(Debug)]
enum Text {
    /// Its name is being looked for.
    Asked {
        at: Arc<str>,
        ticket: Ticket,
        name: String,
    },
    Known(Arc<str>),
}

#[derive(Debug, Default)]
struct OfProcess {
    code: Vec<Code>,
    /// None: in no file.
    sites: HashMap<u64, Option<Arc<str>>>,
}

/// The sites of all followed processes.
#[derive(Debug)]
pub(crate) struct Sites {
    processes: HashMap<u32, OfProcess>,
    places: HashMap<Place, Text>,
    files: Files,
    spell: Instant,
    waited: Duration,
}

impl Sites {
    pub(crate) fn new(files: Files) -> Self {
        let (processes, places) = (HashMap::new(), HashMap::new());
        Sites { processes, places, files, spell: Instant::now(), waited: Duration::ZERO }
    }

    /// Reads a process's mappings, which are not available once it has ended.
    pub(crate) fn look(&mut self, pid: u32) {
        self.processes.entry(pid).or_default().code = code_of(pid);
    }

    /// The process has ended, or runs another program.
    pub(crate) fn forget(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    /// The site of a call that returned to `address`; none where that is in no file (code made at
    /// run time), or cannot be found any more.
    pub(crate) fn of(&mut self, pid: u32, address: u64) -> Option<Arc<str>> {
        if address == 0 {
            return None;
        }
        if let Some(text) = self.processes.get(&pid).and_then(|process| process.sites.get(&address)) {
            return text.clone();
        }
        let process = self.processes.entry(pid).or_default();
        if process.sites.len() >= MOST_OF_PROCESS {
            return None;
        }
        let holds = |code: &&Code| (code.start..code.end).contains(&address);
        if !process.code.iter().any(|code| holds(&code)) {
            process.code = code_of(pid); // it has loaded something since
        }
        let Some(code) = process.code.iter().find(holds) else {
            process.sites.insert(address, None);
            return None;
        };
        let place = (code.device.clone(), code.inode, address - code.start + code.offset);
        if !self.places.contains_key(&place) {
            self.ask(pid, address, &place)?;
        }
        if let Some((place, text)) = self.places.remove_entry(&place) {
            self.places.insert(place, text.resolved());
        }
        match self.places.get(&place)? {
            Text::Asked { at, .. } => Some(Arc::clone(at)),
            Text::Known(text) => {
                let text = Arc::clone(text);
                self.processes.entry(pid).or_default().sites.insert(address, Some(Arc::clone(&text)));
                Some(text)
            }
        }
    }

    /// Whether the name of a call's place is being looked up.
    pub(crate) fn awaits(&mut self, pid: u32, address: u64) -> bool {
        let asked = self.of(pid, address).is_some();
        asked && !self.processes.get(&pid).is_some_and(|process| process.sites.contains_key(&address))
    }

    /// Has a new place's name looked up, and waits a little for it.
    fn ask(&mut self, pid: u32, address: u64, place: &Place) -> Option<()> {
        if self.places.len() >= MOST_PLACES {
            self.places.clear(); // they are looked up again
        }
        let text = procfs::read(pid, "maps").ok()?;
        let mapping = maps::mappings(&text).find(|m| (m.start..m.end).contains(&address))?;
        let name = printable(&String::from_utf8_lossy(mapping.file_name()));
        let at: Arc<str> = format!("{name}@{:#x}", place.2).into();
        let Some((user, file)) = procfs::user_of(pid).zip(maps::open(pid, &mapping)) else {
            self.places.insert(place.clone(), Text::Known(at));
            return Some(());
        };
        let ticket = self.files.ask(user, &file, Question::Place { file_offset: place.2 });
        if self.spell.elapsed() > SPELL {
            (self.spell, self.waited) = (Instant::now(), Duration::ZERO);
        }
        if self.waited < WAITS {
            let began = Instant::now();
            let _ = ticket.wait(began + WAIT); // looked at below
            self.waited += began.elapsed();
        }
        let text = Text::Asked { at, ticket, name };
        self.places.insert(place.clone(), text.resolved());
        Some(())
    }
}

impl Text {
    /// With its name, when that has been found.
    fn resolved(self) -> Text {
        let Text::Asked { at, ticket, name } = self else { return self };
        match ticket.outcome() {
            None => Text::Asked { at, ticket, name },
            Some(Ok(answer)) if let Answer::Place(place) = &**answer => {
                Text::Known(printable(&place.text(&name)).into())
            }
            Some(_) => Text::Known(at),
        }
    }
}

fn code_of(pid: u32) -> Vec<Code> {
    let text = procfs::read(pid, "maps").unwrap_or_default();
    let code = maps::mappings(&text).filter(|mapping| mapping.executable);
    code.map(|Mapping { start, end, offset, device, inode, .. }| Code {
        start,
        end,
        offset,
        device: device.to_owned(),
        inode,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    extern "C" fn here_it_is() -> u64 {
        std::hint::black_box(7)
    }

    #[test]
    fn a_place_of_our_own_has_the_name_of_its_function() {
        let (own, mut sites) = (std::process::id(), Sites::new(Files::new(|| {})));
        let address = here_it_is as *const () as u64 + 4;
        let deadline = Instant::now() + Duration::from_secs(60);
        let text = loop {
            let text = sites.of(own, address).unwrap();
            if !text.contains('@') {
                break text;
            }
            assert!(Instant::now() < deadline, "{text}");
            std::thread::sleep(WAIT);
        };
        assert!(text.contains("here_it_is+0x4 (node_bpf"), "{text}");
        let again = sites.of(own, address).unwrap();
        assert!(Arc::ptr_eq(&text, &again) || text == again);
        let on_the_heap = Box::new(0_u64);
        assert_eq!(sites.of(own, &raw const *on_the_heap as u64), None, "not in a file");
        assert_eq!((sites.of(own, 0), sites.of(u32::MAX, address)), (None, None));
        sites.forget(own);
        assert_eq!(sites.of(own, address), Some(again));
    }

    #[test]
    fn places_of_a_process_are_bounded() {
        let (own, mut sites) = (std::process::id(), Sites::new(Files::new(|| {})));
        let full = (0..MOST_OF_PROCESS as u64).map(|address| (address, None)).collect();
        sites.processes.insert(own, OfProcess { code: vec![], sites: full });
        assert_eq!(sites.of(own, here_it_is as *const () as u64), None);
    }
}
