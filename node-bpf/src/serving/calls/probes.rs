//! The probes at the functions and points of one file.

use std::collections::HashSet;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use files::{Answer, Ends, Point};
use libbpf_rs::{Link, Object};
use record::printable;

use super::spec::{RequestSpec, What};
use crate::attach;
use crate::config::AttachMode;
use crate::symbols::Target;

/// Most probes in one file; and where each is an open file of its own.
const MOST_PROBES: usize = 4_096;
const MOST_SINGLE_PROBES: usize = 64;

/// What is to be probed in a file.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Of its functions and pairs: the routes of requests.
    pub(super) names: Vec<Arc<str>>,
    /// For each name its probes.
    places: Vec<Place>,
    /// File offsets of functions that are wanted already: two names may mean one.
    entries: HashSet<u64>,
    /// Where pairs begin: a point begins one.
    begins: HashSet<u64>,
    /// Functions that are not probed, and why.
    refused: Vec<(Arc<str>, String)>,
    /// What is to be known of those that are, for the log.
    pub(super) remarks: Vec<String>,
    probes: usize,
    most_probes: usize,
}

#[derive(Debug)]
enum Place {
    /// Its first instruction, and its ends.
    Function {
        entry: u64,
        /// Where it begins: the entry's probe may lie a little later.
        begins: u64,
        ends: Vec<u64>,
        /// Ends that lead to another function, and where that begins.
        over: Vec<(u64, u64)>,
    },
    Pair {
        begin: Vec<Point>,
        end: Vec<Point>,
    },
}

impl Wanted {
    /// Nothing yet, for probes that are attached in this way.
    pub(super) fn new(mode: AttachMode) -> Wanted {
        Wanted { most_probes: if mode.one_by_one() { MOST_SINGLE_PROBES } else { MOST_PROBES }, ..Wanted::default() }
    }

    /// Adds what a file has answered.
    ///
    /// # Errors
    /// What is wrong with the answers, for people.
    pub(super) fn add(&mut self, spec: &RequestSpec, answers: &[Arc<Answer>]) -> Result<(), String> {
        let answers: Vec<&Answer> = answers.iter().map(Arc::as_ref).collect();
        match (&spec.what, &answers[..]) {
            (What::Function { .. }, [Answer::Matching(found)]) => {
                let count =
                    |of: &files::Found| of.ends.as_ref().map_or(0, |ends| 1 + ends.returns.len() + ends.jumps.len());
                self.room(found.iter().map(count).sum(), spec)?;
                for function in found {
                    let name: Arc<str> = printable(&function.shown).into();
                    if !function.shares.is_empty() {
                        let shares = printable(&function.shares.join(", "));
                        self.remarks.push(format!("calls of {shares} count for {name}: they are the same code"));
                    }
                    match &function.ends {
                        Err(why) => self.refused.push((name, why.reason.clone())),
                        Ok(Ends { returns, jumps, over }) if self.entries.insert(function.file_offset) => {
                            if !jumps.is_empty() {
                                let all = returns.len() + jumps.len();
                                let over = jumps.len();
                                self.remarks
                                    .push(format!("{over} of {all} ends of {name} hand over to another function"));
                            }
                            let ends = [&returns[..], jumps].concat();
                            self.names.push(name);
                            let (entry, begins, over) = (function.file_offset, function.begins, over.clone());
                            self.places.push(Place::Function { entry, begins, ends, over });
                        }
                        Ok(_) => {}
                    }
                }
                Ok(())
            }
            (What::Pair { provider, begin, end }, [Answer::Points(begins), Answer::Points(ends)]) => {
                if begins.iter().any(|begin| ends.iter().any(|end| end.file_offset == begin.file_offset)) {
                    return Err(format!("{spec} begins where it ends"));
                }
                if begins.iter().any(|begin| self.begins.contains(&begin.file_offset)) {
                    return Err(format!(
                        "{spec} begins where another pair of --request does: a point begins one request"
                    ));
                }
                self.room(begins.len() + ends.len(), spec)?;
                self.begins.extend(begins.iter().map(|begin| begin.file_offset));
                self.names.push(printable(&format!("{provider}:{begin}:{end}")).into());
                self.places.push(Place::Pair { begin: begins.clone(), end: ends.clone() });
                Ok(())
            }
            _ => Err("it was asked something else".to_owned()),
        }
    }

    fn room(&mut self, probes: usize, spec: &RequestSpec) -> Result<(), String> {
        let most = self.most_probes;
        if self.probes + probes > most {
            return Err(format!(
                "{spec} needs {probes} probes, beside {} others; {most} in a file can be: name one function with its \
                 parameters",
                self.probes
            ));
        }
        self.probes += probes;
        Ok(())
    }
}

/// The probes of one kind.
struct Kind {
    program: &'static str,
    targets: Vec<Target>,
}

/// What has come of attaching.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) links: Vec<Link>,
    /// Names that cannot be probed, with the reasons.
    pub(super) refused: Vec<(Arc<str>, String)>,
    /// The kernel had no memory or no open file left, or was interrupted.
    pub(super) may_pass: bool,
}

/// Whether an error is not the function's.
fn may_pass(error: &libbpf_rs::Error) -> bool {
    let text = format!("{error:#}");
    [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EINTR, libc::EAGAIN, libc::EBUSY]
        .iter()
        .any(|errno| text.contains(&format!("(os error {errno})")))
}

/// Of an attachment that is only tried: it has the place of the number without this bit, and its calls do not
/// count as those of an attachment that is there.
const TRIED: u32 = 1 << 31;

/// Attaches; `number` is this attachment's.
pub(super) fn attach(to: (&Object, AttachMode), file: &fs::File, wanted: &Wanted, number: u32) -> Outcome {
    let all: Vec<usize> = (0..wanted.places.len()).collect();
    let mut outcome = Outcome { refused: wanted.refused.clone(), ..Outcome::default() };
    if all.is_empty() {
        return outcome;
    }
    if let Ok(links) = attach_to(to, file, wanted, &all, number) {
        return Outcome { links, ..outcome };
    }
    // One that cannot be probed would prevent the others.
    let mut good = vec![];
    for at in all {
        match attach_to(to, file, wanted, &[at], number ^ TRIED) {
            Ok(_tried) => good.push(at),
            Err(error) => {
                outcome.may_pass |= may_pass(&error);
                outcome.refused.push((Arc::clone(&wanted.names[at]), format!("{error:#}")));
            }
        }
    }
    if good.is_empty() {
        return outcome;
    }
    // Each link costs those that pass the file's probes: they are put again as few.
    match attach_to(to, file, wanted, &good, number) {
        Ok(links) => outcome.links = links,
        Err(error) => {
            outcome.may_pass |= may_pass(&error);
            outcome.refused.extend(good.iter().map(|at| (Arc::clone(&wanted.names[*at]), format!("{error:#}"))));
        }
    }
    outcome
}

/// Ends first, so that no call is seen to begin whose end is not seen.
fn attach_to(
    (object, mode): (&Object, AttachMode),
    file: &fs::File,
    wanted: &Wanted,
    which: &[usize],
    number: u32,
) -> libbpf_rs::Result<Vec<Link>> {
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let mut links = vec![];
    for kind in kinds(wanted, which, number).iter().filter(|kind| !kind.targets.is_empty()) {
        let Kind { program, targets } = kind;
        links.extend(attach::attach_at(object, program, mode, false, &path, targets)?);
    }
    Ok(links)
}

fn kinds(wanted: &Wanted, which: &[usize], number: u32) -> [Kind; 4] {
    let kind = |program| Kind { program, targets: vec![] };
    let mut pair_ends = kind("pair_end");
    let mut ends = kind("function_end");
    let mut pair_begins = kind("pair_begin");
    let mut entries = kind("function_entry");
    // Functions may have ends in common: where one goes on in another.
    let mut taken = HashSet::new();
    // What leads to another of them is no end: it is the same call.
    let begins: HashSet<u64> = which
        .iter()
        .filter_map(|at| match wanted.places.get(*at)? {
            Place::Function { begins, .. } => Some(*begins),
            Place::Pair { .. } => None,
        })
        .collect();
    for at in which {
        let (Some(place), Some(name)) = (wanted.places.get(*at), wanted.names.get(*at)) else { continue };
        let cookie = u64::from(number) << 32 | *at as u64;
        let target =
            |file_offset, semaphore| Target { symbol: name.to_string().into(), file_offset, cookie, semaphore };
        match place {
            Place::Function { entry, ends: of_it, over, .. } => {
                entries.targets.push(target(*entry, 0));
                let goes_on = |end: u64| over.iter().any(|(from, to)| *from == end && begins.contains(to));
                let new = of_it.iter().filter(|end| !goes_on(**end) && taken.insert(**end));
                ends.targets.extend(new.map(|end| target(*end, 0)));
            }
            Place::Pair { begin, end } => {
                let point = |point: &Point| target(point.file_offset, point.semaphore_offset);
                pair_begins.targets.extend(begin.iter().map(point));
                pair_ends.targets.extend(end.iter().map(point));
            }
        }
    }
    [pair_ends, ends, pair_begins, entries]
}

#[cfg(test)]
mod tests {
    use files::Found;

    use super::*;

    fn spec(typed: &str) -> RequestSpec {
        RequestSpec::parse_all(&[typed.to_owned()]).unwrap().remove(0)
    }

    fn found(shown: &str, file_offset: u64, returns: &[u64], jumps: &[u64]) -> Found {
        let ends = Ends { returns: returns.to_vec(), jumps: jumps.to_vec(), over: vec![] };
        Found { shown: shown.to_owned(), file_offset, begins: file_offset, ends: Ok(ends), shares: vec![] }
    }

    #[test]
    fn each_place_is_probed_once_and_ends_before_entries() {
        let mut wanted = Wanted::new(AttachMode::Multi);
        let overloads = vec![found("a::f", 10, &[15], &[90]), found("a::f", 20, &[25, 90], &[])];
        wanted.add(&spec("libx:a::f"), &[Answer::Matching(overloads).into()]).unwrap();
        let unknown = Found { ends: Err("why".to_owned().into()), ..found("unknown", 35, &[], &[]) };
        let again = vec![found("a::f", 10, &[15], &[]), found("plain", 30, &[33], &[]), unknown];
        wanted.add(&spec("libx:plain"), &[Answer::Matching(again).into()]).unwrap();
        let points = |at| Arc::new(Answer::Points(vec![Point { file_offset: at, semaphore_offset: 7 }]));
        wanted.add(&spec("libx:p:b:e"), &[points(40), points(50)]).unwrap();
        assert_eq!(wanted.names.iter().map(|name| &**name).collect::<Vec<_>>(), ["a::f", "a::f", "plain", "p:b:e"]);
        let shown: Vec<_> = kinds(&wanted, &[0, 1, 2, 3], 9)
            .iter()
            .map(|kind| {
                let of = |target: &Target| (target.file_offset, target.cookie - (9 << 32), target.semaphore);
                (kind.program, kind.targets.iter().map(of).collect::<Vec<_>>())
            })
            .collect();
        assert_eq!(wanted.refused, [("unknown".into(), "why".to_owned())]);
        assert_eq!(
            shown,
            [
                ("pair_end", vec![(50, 3, 7)]),
                ("function_end", vec![(15, 0, 0), (90, 0, 0), (25, 1, 0), (33, 2, 0)]),
                ("pair_begin", vec![(40, 3, 7)]),
                ("function_entry", vec![(10, 0, 0), (20, 1, 0), (30, 2, 0)]),
            ]
        );
    }

    #[test]
    fn a_jump_to_another_of_the_functions_is_no_end() {
        let mut wanted = Wanted::new(AttachMode::Multi);
        let mut first = found("f", 10, &[15], &[17, 19]);
        first.ends.as_mut().unwrap().over = vec![(17, 28), (19, 50)];
        let part = Found { begins: 28, ..found("f", 30, &[33], &[]) };
        wanted.add(&spec("libx:f"), &[Answer::Matching(vec![first, part]).into()]).unwrap();
        let ends = |which: &[usize]| -> Vec<u64> {
            let [_, ends, ..] = kinds(&wanted, which, 9);
            ends.targets.iter().map(|target| target.file_offset).collect()
        };
        assert_eq!((ends(&[0, 1]), ends(&[0])), (vec![15, 19, 33], vec![15, 17, 19]));
    }

    #[test]
    fn a_file_has_only_so_many_probes() {
        let mut wanted = Wanted::new(AttachMode::Multi);
        let many = found("f", 1, &(0..MOST_PROBES as u64).collect::<Vec<_>>(), &[]);
        let error = wanted.add(&spec("libx:f"), &[Answer::Matching(vec![many]).into()]).unwrap_err();
        assert!(error.contains("with its parameters") && wanted.names.is_empty(), "{error}");
        assert!(wanted.add(&spec("libx:f"), &[]).is_err());
        let few = found("f", 1, &(0..MOST_SINGLE_PROBES as u64).collect::<Vec<_>>(), &[]);
        assert!(Wanted::new(AttachMode::Single).add(&spec("libx:f"), &[Answer::Matching(vec![few]).into()]).is_err());
    }

    #[test]
    fn a_point_begins_one_pair() {
        let mut wanted = Wanted::new(AttachMode::Multi);
        let points = |at| Arc::new(Answer::Points(vec![Point { file_offset: at, semaphore_offset: 0 }]));
        wanted.add(&spec("libx:p:b:e"), &[points(40), points(50)]).unwrap();
        let error = wanted.add(&spec("libx:p:b:f"), &[points(40), points(60)]).unwrap_err();
        assert!(error.contains("another pair"), "{error}");
        assert!(
            wanted.add(&spec("libx:p:c:d"), &[points(70), points(70)]).unwrap_err().contains("begins where it ends")
        );
    }
}
