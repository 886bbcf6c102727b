//! `rankmesh stragglers --recorded`: verdicts on jobs that others recorded.
//!
//! Owns finding, unpacking and grouping the files; what they say is read by `verdicts::import`.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use verdicts::{Input, Rules, analyse, import, text};

use super::Exit;
use super::args::ReportFormat;
use crate::output::{printable, quiet};

/// Largest recording read, unpacked.
const MOST_BYTES: u64 = 1 << 30;

/// Judge each recording found; one report each, in order of their names.
pub(super) fn run(paths: &[PathBuf], format: ReportFormat) -> anyhow::Result<Exit> {
    let mut files = Vec::new();
    for path in paths {
        collect(path, &mut files)?;
    }
    let recordings = recordings(&files)?;
    if recordings.is_empty() {
        bail!("no recording there: wanted are .csv, .csv.gz and .json files, or directories of them");
    }
    let mut out = std::io::stdout().lock();
    let several = recordings.len() > 1;
    for (name, input) in recordings {
        let report = analyse(&input, &Rules::default());
        match format {
            ReportFormat::Json => {
                let mut json = serde_json::to_value(&report).context("writing the report as JSON")?;
                if let Some(object) = json.as_object_mut() {
                    object.insert("recorded".to_owned(), name.into());
                }
                writeln!(out, "{}", quiet(&json.to_string()))?;
            }
            ReportFormat::Table if several => writeln!(out, "{}\n\n{}", printable(&name), text(&report))?,
            ReportFormat::Table => write!(out, "{}", text(&report))?,
        }
    }
    Ok(Exit::Complete)
}

/// The kinds of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Csv,
    Json,
}

fn kind(path: &Path) -> Option<Kind> {
    let name = path.file_name()?.to_str()?;
    let plain = name.strip_suffix(".gz").unwrap_or(name);
    match plain.rsplit_once('.')?.1 {
        "csv" => Some(Kind::Csv),
        "json" => Some(Kind::Json),
        _ => None,
    }
}

/// The recordings at a path: itself, or those in the directory, sorted.
fn collect(path: &Path, files: &mut Vec<(PathBuf, Kind)>) -> anyhow::Result<()> {
    if !path.is_dir() {
        let kind = kind(path).with_context(|| {
            format!("{}: wanted is a .csv, .csv.gz or .json file, or a directory of them", path.display())
        })?;
        files.push((path.to_owned(), kind));
        return Ok(());
    }
    let entries = std::fs::read_dir(path).with_context(|| format!("reading {}", path.display()))?;
    let mut inside = Vec::new();
    for entry in entries {
        let file = entry.with_context(|| format!("reading {}", path.display()))?.path();
        inside.extend(kind(&file).map(|kind| (file, kind)));
    }
    inside.sort();
    files.append(&mut inside);
    Ok(())
}

/// Each recording with its name. Dumps of single ranks that lie in one directory are one recording.
fn recordings(files: &[(PathBuf, Kind)]) -> anyhow::Result<Vec<(String, Input)>> {
    let mut found = Vec::new();
    let mut ranks: BTreeMap<PathBuf, BTreeMap<i32, String>> = BTreeMap::new();
    for (path, kind) in files {
        let text = contents(path)?;
        let reading = || format!("reading {}", path.display());
        match kind {
            Kind::Csv => found.push((path.display().to_string(), import::bytedance_csv(&text).with_context(reading)?)),
            Kind::Json if import::is_one_rank(&text) => {
                let Some(rank) = rank_of(path) else {
                    bail!("{}: a dump of one rank, and no number in its name says of which", path.display());
                };
                let folder = path.parent().unwrap_or(Path::new("")).to_owned();
                ranks.entry(folder).or_default().insert(rank, text);
            }
            Kind::Json => {
                found.push((path.display().to_string(), import::flight_recorder(&text).with_context(reading)?));
            }
        }
    }
    for (folder, dumps) in ranks {
        let texts = dumps.iter().map(|(rank, text)| (*rank, text.as_str()));
        let input = import::flight_recorder_ranks(texts).with_context(|| format!("reading {}", folder.display()))?;
        found.push((folder.display().to_string(), input));
    }
    Ok(found)
}

fn contents(path: &Path) -> anyhow::Result<String> {
    let reading = || format!("reading {}", path.display());
    let file = std::fs::File::open(path).with_context(reading)?;
    let packed = path.extension().is_some_and(|extension| extension == "gz");
    let source: Box<dyn Read> = if packed { Box::new(flate2::read::MultiGzDecoder::new(file)) } else { Box::new(file) };
    let mut text = String::new();
    source.take(MOST_BYTES + 1).read_to_string(&mut text).with_context(reading)?;
    if text.len() as u64 > MOST_BYTES {
        bail!("{}: more than {MOST_BYTES} bytes unpacked", path.display());
    }
    Ok(text)
}

/// The last number in a file's name.
fn rank_of(path: &Path) -> Option<i32> {
    let name = path.file_stem()?.to_str()?;
    let digits = |c: char| c.is_ascii_digit();
    let end = name.rfind(digits)? + 1;
    let start = name[..end].rfind(|c: char| !digits(c)).map_or(0, |before| before + 1);
    name[start..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_last_number_is_its_rank() {
        assert_eq!(rank_of(Path::new("/x/nccl_trace_rank_17.json")), Some(17));
        assert_eq!(rank_of(Path::new("job12_rank3_dump.json")), Some(3));
        assert_eq!(rank_of(Path::new("dump.json")), None);
        assert_eq!(
            (kind(Path::new("a.csv.gz")), kind(Path::new("b.json")), kind(Path::new("c.db"))),
            (Some(Kind::Csv), Some(Kind::Json), None)
        );
    }

    #[test]
    fn recordings_of_a_folder_are_judged_each_and_dumps_of_ranks_together() {
        let folder = tempfile::tempdir().unwrap();
        let header = "dp_rank,stage,rank,step,optype,start_ts,duration,seq_id,mc,mb_id,gmc\n";
        let mut packed = flate2::write::GzEncoder::new(
            std::fs::File::create(folder.path().join("job.csv.gz")).unwrap(),
            flate2::Compression::fast(),
        );
        packed.write_all(header.as_bytes()).unwrap();
        packed.finish().unwrap();
        // Rank 1 has not entered the collective that rank 0 is in.
        let dump = |enqueued: i64, completed: i64, entries: &str| {
            format!(
                r#"{{"pg_config":{{"0":{{"name":"0","desc":"default_pg","ranks":"[0, 1]"}}}},
                "pg_status":{{"0":{{"last_enqueued_collective":{enqueued},"last_completed_collective":{completed}}}}},
                "entries":[{entries}]}}"#
            )
        };
        let waits = r#"{"process_group":["0","default_pg"],"collective_seq_id":8,"profiling_name":"nccl:all_reduce",
            "time_created_ns":1700000000000000000,"state":"scheduled","is_p2p":false}"#;
        std::fs::write(folder.path().join("trace_0.json"), dump(8, 7, waits)).unwrap();
        std::fs::write(folder.path().join("trace_1.json"), dump(7, 7, "")).unwrap();
        std::fs::write(folder.path().join("notes.txt"), "not a recording").unwrap();
        let mut files = Vec::new();
        collect(folder.path(), &mut files).unwrap();
        let found = recordings(&files).unwrap();
        assert_eq!(found.len(), 2);
        let report = analyse(&found[1].1, &Rules::default());
        let verdicts::Verdict::Hang(hang) = report.verdict else { panic!("{:?}", report.verdict) };
        assert_eq!(hang.missing.iter().map(|m| m.who.rank).collect::<Vec<_>>(), [1]);
    }
}
