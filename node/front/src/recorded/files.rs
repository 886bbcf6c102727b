//! The files of recordings: found, unpacked, recognised, and put together where one recording has a
//! file for each rank.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use recorded::{Dump, Dumps};
use verdicts::Input;

use super::{WANTED, pickle, table};

/// Largest recording read, unpacked.
const MOST_BYTES: u64 = 1 << 30;
/// Folders within folders that are looked at.
const DEEPEST: usize = 4;

/// A recording, read.
#[derive(Debug)]
pub(super) enum Recording {
    /// What ranks did.
    Operations(Box<Input>),
    /// Dumps of a job's ranks.
    Dumps(Dumps),
}

/// The contents of a file.
enum Contents {
    All(Recording),
    /// Of one rank: its dump, or why it cannot be read.
    One(Result<Box<Dump>, String>),
}

/// The recordings at a path: itself, or those in the directory and in its directories, sorted.
pub(super) fn collect(path: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    if path.is_dir() {
        return inside(path, 0, files);
    }
    files.push(path.to_owned());
    Ok(())
}

fn inside(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let reading = || format!("reading {}", folder.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(reading)? {
        let entry = entry.with_context(reading)?;
        // Links may lead round in a circle.
        found.push((entry.path(), entry.file_type().is_ok_and(|of| of.is_dir())));
    }
    found.sort();
    for (path, is_folder) in found {
        match is_folder {
            true if depth < DEEPEST => inside(&path, depth + 1, files)?,
            false if is_candidate(&path) => files.push(path),
            _ => {}
        }
    }
    Ok(())
}

/// Whether a file in a directory may be a recording, by its name: PyTorch's recorder writes dumps
/// without an extension.
fn is_candidate(path: &Path) -> bool {
    match extension(path) {
        Some(extension) => matches!(extension, "csv" | "parquet" | "json" | "pkl" | "pickle"),
        None => !Name::of(path).numbers.is_empty() && File::open(path).is_ok_and(begins_like_a_dump),
    }
}

/// The extension, without that of a packed file; what begins with a digit is none ("dump.v2.10").
fn extension(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    let plain = name.strip_suffix(".gz").unwrap_or(name);
    let (_, extension) = plain.rsplit_once('.')?;
    (!extension.starts_with(|c: char| c.is_ascii_digit())).then_some(extension)
}

/// Whether a file begins as a pickle or as JSON does, or holds nothing, as a dump does that was cut
/// off at once.
fn begins_like_a_dump(file: File) -> bool {
    let mut first = Vec::new();
    let read = file.take(2).read_to_end(&mut first).is_ok();
    read && (first.is_empty() || pickle::is_pickle(&first) || first.starts_with(b"{"))
}

/// A file of one rank: its dump, or why it cannot be read.
type OfOneRank = (PathBuf, Result<Box<Dump>, String>);

/// Each recording with its name. Dumps of single ranks that belong together are one recording.
pub(super) fn recordings(files: &[PathBuf]) -> anyhow::Result<Vec<(String, Recording)>> {
    let mut found = Vec::new();
    let mut folders: BTreeMap<PathBuf, Vec<OfOneRank>> = BTreeMap::new();
    for path in files {
        match contents(path).with_context(|| format!("reading {}", path.display()))? {
            Contents::All(recording) => found.push((path.display().to_string(), recording)),
            Contents::One(dump) => {
                let folder = path.parent().unwrap_or(Path::new("")).to_owned();
                folders.entry(folder).or_default().push((path.clone(), dump));
            }
        }
    }
    for (folder, mut dumps) in folders {
        // What cannot be read is a rank's dump where it is called as others are that are.
        let shapes: BTreeSet<String> =
            dumps.iter().filter(|(_, dump)| dump.is_ok()).map(|(path, _)| Name::of(path).shape).collect();
        if shapes.is_empty() {
            let Some((path, Err(why))) = dumps.into_iter().next() else { continue };
            bail!("reading {}: {why}", path.display());
        }
        dumps.retain(|(path, dump)| dump.is_ok() || shapes.contains(&Name::of(path).shape));
        let names: Vec<Name> = dumps.iter().map(|(path, _)| Name::of(path)).collect();
        let mut sets: BTreeMap<String, Dumps> = BTreeMap::new();
        for ((path, dump), place) in dumps.into_iter().zip(places(&names)) {
            let Some((set, rank)) = place else {
                bail!(
                    "{}: a dump of one rank, and its name does not say of which, or says what another's does: wanted is \
                     one file a rank, such as rank_0, rank_1",
                    path.display()
                );
            };
            sets.entry(set).or_default().add(rank, dump.map(|dump| *dump));
        }
        let folder = folder.display().to_string();
        let several = sets.len() > 1;
        for (set, dumps) in sets {
            let name = if several { format!("{folder}: {set}") } else { folder.clone() };
            if let Some(why) = dumps.unreadable() {
                bail!("{name}: no dump can be read: {why}");
            }
            found.push((name, Recording::Dumps(dumps)));
        }
    }
    Ok(found)
}

fn contents(path: &Path) -> anyhow::Result<Contents> {
    let mut file = File::open(path)?;
    let mut first = Vec::new();
    (&mut file).take(4).read_to_end(&mut first)?;
    file.rewind()?;
    if first == b"PAR1" {
        return Ok(Contents::All(Recording::Operations(Box::new(table::parquet(file)?))));
    }
    let packed = first.starts_with(&[0x1f, 0x8b]);
    let source: Box<dyn Read> = if packed { Box::new(flate2::read::MultiGzDecoder::new(file)) } else { Box::new(file) };
    let mut bytes = Vec::new();
    source.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        bail!("more than {MOST_BYTES} bytes unpacked");
    }
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Contents::One(Err("its file is empty".to_owned())));
    }
    if pickle::is_pickle(&bytes) {
        let read = pickle::read(&bytes).map_err(|error| error.to_string());
        let dump = read.and_then(|value| Dump::from_value(value).map_err(|error| error.to_string()));
        return Ok(Contents::One(dump.map(Box::new)));
    }
    let text = String::from_utf8(bytes).map_err(|_| anyhow::anyhow!("not text: wanted are {WANTED}"))?;
    if !text.trim_start().starts_with(['{', '[']) {
        return Ok(Contents::All(Recording::Operations(Box::new(recorded::bytedance_csv(&text)?))));
    }
    let value: serde_json::Value = match serde_json::from_str(&text) {
        Ok(value) => value,
        Err(error) if error.is_eof() => return Ok(Contents::One(Err(format!("its file is cut off ({error})")))),
        Err(error) => return Ok(Contents::One(Err(format!("its file is no JSON ({error})")))),
    };
    match Dump::from_value(value.clone()) {
        Ok(dump) => Ok(Contents::One(Ok(Box::new(dump)))),
        Err(recorded::ImportError::NoDump) => Ok(Contents::All(Recording::Dumps(Dumps::of_job(value)?))),
        Err(error) => Ok(Contents::One(Err(error.to_string()))),
    }
}

/// A file's name with its numbers taken out.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Name {
    /// With `#` in the place of each number.
    shape: String,
    numbers: Vec<i64>,
    /// Which number the word "rank" stands before.
    of_rank: Option<usize>,
}

impl Name {
    fn of(path: &Path) -> Self {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let stem =
            extension(path).and_then(|extension| name.split_once(&format!(".{extension}"))).map_or(name, |n| n.0);
        let (mut shape, mut numbers, mut of_rank) = (String::new(), Vec::new(), None);
        let mut rest = stem;
        while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
            let (before, from) = rest.split_at(start);
            let end = from.find(|c: char| !c.is_ascii_digit()).unwrap_or(from.len());
            if before.to_ascii_lowercase().trim_end_matches(['_', '-', '.', ' ', '=']).ends_with("rank") {
                of_rank = Some(numbers.len());
            }
            shape.push_str(before);
            shape.push('#');
            // Longer ones are no ranks.
            numbers.push(from[..end].parse().unwrap_or(i64::MAX));
            rest = &from[end..];
        }
        shape.push_str(rest);
        Self { shape, numbers, of_rank }
    }
}

/// Of each file in a folder the recording that it is of, and the rank.
///
/// The rank is the number after the word "rank", else the last of those that are different in all
/// names of the same shape. All files of a folder are one recording, unless two would be of one
/// rank: then those of each shape are, and of these those that one more number tells apart.
fn places(names: &[Name]) -> Vec<Option<(String, i32)>> {
    let mut shapes: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    names.iter().enumerate().for_each(|(at, name)| shapes.entry(&name.shape).or_default().push(at));
    let mut ranks: Vec<Option<i32>> = vec![None; names.len()];
    let mut of_shape: BTreeMap<&str, usize> = BTreeMap::new();
    for (shape, files) in &shapes {
        let first = &names[files[0]];
        let values = |slot: usize| files.iter().map(|at| names[*at].numbers[slot]).collect::<BTreeSet<_>>();
        let differing = |slot: &usize| values(*slot).len() == files.len();
        let slots = 0..first.numbers.len();
        let Some(slot) = first.of_rank.or_else(|| slots.clone().rev().find(differing)).or(slots.last()) else {
            continue;
        };
        of_shape.insert(shape, slot);
        for at in files {
            ranks[*at] = i32::try_from(names[*at].numbers[slot]).ok();
        }
    }
    let is_one = |files: &[usize]| files.iter().map(|at| ranks[*at]).collect::<BTreeSet<_>>().len() == files.len();
    let all: Vec<usize> = (0..names.len()).collect();
    let mut sets: Vec<String> = vec![String::new(); names.len()];
    if !is_one(&all) {
        for (shape, files) in &shapes {
            let by = |slot: usize| {
                let mut sets: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
                files.iter().for_each(|at| sets.entry(names[*at].numbers[slot]).or_default().push(*at));
                sets
            };
            let others = (0..names[files[0]].numbers.len()).filter(|slot| of_shape.get(shape) != Some(slot));
            let split =
                others.map(|slot| (slot, by(slot))).filter(|(_, sets)| sets.values().all(|files| is_one(files)));
            let fewest = if is_one(files) { None } else { split.min_by_key(|(_, sets)| sets.len()) };
            for at in files {
                sets[*at] = match &fewest {
                    Some((slot, _)) => with_number(shape, *slot, names[*at].numbers[*slot]),
                    None if is_one(files) => (*shape).to_owned(),
                    None => return vec![None; names.len()],
                };
            }
        }
    }
    sets.into_iter().zip(ranks).map(|(set, rank)| Some((set, rank?))).collect()
}

/// A shape with one of its numbers.
fn with_number(shape: &str, slot: usize, number: i64) -> String {
    let mut with = String::new();
    for (place, part) in shape.split('#').enumerate() {
        match place.checked_sub(1) {
            Some(before) if before == slot => with.push_str(&number.to_string()),
            Some(_) => with.push('#'),
            None => {}
        }
        with.push_str(part);
    }
    with
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(files: &[&str]) -> Vec<(String, i32)> {
        let names: Vec<Name> = files.iter().map(|file| Name::of(Path::new(file))).collect();
        places(&names).into_iter().map(|place| place.unwrap_or_default()).collect()
    }

    fn only_ranks(files: &[&str]) -> Vec<i32> {
        let all = ranks(files);
        assert_eq!(all.iter().map(|(set, _)| set).collect::<BTreeSet<_>>().len(), 1, "one recording: {all:?}");
        all.into_iter().map(|(_, rank)| rank).collect()
    }

    #[test]
    fn a_rank_is_found_among_the_numbers_of_a_name() {
        assert_eq!(only_ranks(&["/x/nccl_trace_rank_17.json"]), [17]);
        assert_eq!(only_ranks(&["job12_rank3_dump.json", "job12_rank4_dump.json"]), [3, 4]);
        assert_eq!(only_ranks(&["trace_0", "trace_1", "trace_10"]), [0, 1, 10]);
        let of_hosts = [
            "nccl_trace_rank_container-node1_0",
            "nccl_trace_rank_container-node1_1",
            "nccl_trace_rank_container-node2_2",
        ];
        assert_eq!(only_ranks(&of_hosts), [0, 1, 2]);
        assert_eq!(only_ranks(&["rank_0_20261128", "rank_1_20261128"]), [0, 1]);
        assert_eq!(only_ranks(&["rank0_pid4711.json", "rank1_pid4712.json"]), [0, 1]);
        assert_eq!(only_ranks(&["r0.v2.10.json", "r1.v2.10.json", "r2.v2.10.json"]), [0, 1, 2]);
        assert_eq!(only_ranks(&["3-of-8.pkl.gz", "4-of-8.pkl.gz"]), [3, 4]);
        assert_eq!(only_ranks(&["nccl_trace_rank_0", "trace_1.json"]), [0, 1], "as people rename them");
        assert!(places(&[Name::of(Path::new("dump.json"))])[0].is_none());
    }

    #[test]
    fn several_recordings_in_one_folder_are_told_apart() {
        let two = ranks(&["healthy_rank_0", "healthy_rank_1", "skip_rank_0", "skip_rank_1"]);
        assert_eq!(two[1], ("healthy_rank_#".to_owned(), 1));
        assert_eq!(two[2], ("skip_rank_#".to_owned(), 0));
        let restarts = ranks(&["attempt0_rank_0", "attempt0_rank_1", "attempt1_rank_0", "attempt1_rank_1"]);
        assert_eq!(restarts[0].0, restarts[1].0);
        assert_eq!(restarts[2], ("attempt1_rank_#".to_owned(), 0));
        let by_step = ranks(&["rank0_step100.json", "rank1_step100.json", "rank0_step200.json"]);
        assert_eq!(by_step[2], ("rank#_step200".to_owned(), 0));
    }

    #[test]
    fn candidates_are_known_by_their_names() {
        assert!(is_candidate(Path::new("a.csv.gz")) && is_candidate(Path::new("b.json")));
        assert!(!is_candidate(Path::new("c.db")) && !is_candidate(Path::new("notes.txt")));
    }
}
