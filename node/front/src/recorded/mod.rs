//! `rankmesh stragglers --recorded`: verdicts on jobs that others recorded.
//!
//! Owns finding, unpacking, recognising and grouping the files; `recorded` reads their
//! contents.

mod pickle;
mod table;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ask::Exit;
use ask::args::ReportFormat;
use ask::output::{printable, quiet};
use recorded::Dump;
use verdicts::{Input, Rules, analyse};

/// Kinds of recordings, for messages.
const WANTED: &str = "tables of operations (.csv, .parquet) and PyTorch flight recorder dumps (pickle or .json)";
/// Largest recording read, unpacked.
const MOST_BYTES: u64 = 1 << 30;

/// Judge each recording found; one report each, in order of their names.
pub(crate) fn run(paths: &[PathBuf], format: ReportFormat, all: bool) -> anyhow::Result<Exit> {
    let mut files = Vec::new();
    for path in paths {
        collect(path, &mut files)?;
    }
    let recordings = recordings(&files)?;
    if recordings.is_empty() {
        bail!("no recording there: wanted are {WANTED}, or directories of them");
    }
    let text = if all { verdicts::text_of_all } else { verdicts::text };
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

/// Whether a file in a directory may be a recording, by its name: PyTorch's recorder writes dumps
/// without an extension.
fn is_candidate(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
    let plain = name.strip_suffix(".gz").unwrap_or(name);
    match plain.rsplit_once('.') {
        Some((_, extension)) => matches!(extension, "csv" | "parquet" | "json" | "pkl" | "pickle"),
        None => rank_of(path).is_some() && File::open(path).is_ok_and(begins_like_a_dump),
    }
}

/// Whether a file begins as a pickle or as JSON does.
fn begins_like_a_dump(file: File) -> bool {
    let mut first = Vec::new();
    file.take(2).read_to_end(&mut first).is_ok() && (pickle::is_pickle(&first) || first.starts_with(b"{"))
}

/// The recordings at a path: itself, or those in the directory, sorted.
fn collect(path: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let entries = std::fs::read_dir(path).with_context(|| format!("reading {}", path.display()))?;
    let mut inside = Vec::new();
    for entry in entries {
        inside.push(entry.with_context(|| format!("reading {}", path.display()))?.path());
    }
    inside.retain(|file| is_candidate(file));
    inside.sort();
    files.append(&mut inside);
    Ok(())
}

/// The contents of a file, by its first bytes.
enum Contents {
    Parquet(File),
    /// A dump of one rank.
    Dump(Box<Dump>),
    /// Of a full job, or a table: read already.
    Input(Box<Input>),
}

/// Each recording with its name. Dumps of single ranks in one directory are one recording.
fn recordings(files: &[PathBuf]) -> anyhow::Result<Vec<(String, Input)>> {
    let mut found = Vec::new();
    let mut ranks: BTreeMap<PathBuf, BTreeMap<i32, Dump>> = BTreeMap::new();
    for path in files {
        let reading = || format!("reading {}", path.display());
        match contents(path).with_context(reading)? {
            Contents::Parquet(file) => {
                found.push((path.display().to_string(), table::parquet(file).with_context(reading)?));
            }
            Contents::Input(input) => found.push((path.display().to_string(), *input)),
            Contents::Dump(dump) => {
                let Some(rank) = rank_of(path) else {
                    bail!("{}: a dump of one rank, and no number in its name says of which", path.display());
                };
                let folder = path.parent().unwrap_or(Path::new("")).to_owned();
                ranks.entry(folder).or_default().insert(rank, *dump);
            }
        }
    }
    for (folder, dumps) in ranks {
        found.push((folder.display().to_string(), recorded::of_dumps(&dumps)));
    }
    Ok(found)
}

fn contents(path: &Path) -> anyhow::Result<Contents> {
    let mut file = File::open(path)?;
    let mut first = Vec::new();
    (&mut file).take(4).read_to_end(&mut first)?;
    file.rewind()?;
    if first == b"PAR1" {
        return Ok(Contents::Parquet(file));
    }
    let packed = first.starts_with(&[0x1f, 0x8b]);
    let source: Box<dyn Read> = if packed { Box::new(flate2::read::MultiGzDecoder::new(file)) } else { Box::new(file) };
    let mut bytes = Vec::new();
    source.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        bail!("more than {MOST_BYTES} bytes unpacked");
    }
    if pickle::is_pickle(&bytes) {
        let dump = serde_json::from_value(pickle::read(&bytes)?).context("no dump of PyTorch's flight recorder")?;
        return Ok(Contents::Dump(Box::new(dump)));
    }
    let text = String::from_utf8(bytes).map_err(|_| anyhow::anyhow!("not text: wanted are {WANTED}"))?;
    if !text.trim_start().starts_with(['{', '[']) {
        return Ok(Contents::Input(Box::new(recorded::bytedance_csv(&text)?)));
    }
    if recorded::is_one_rank(&text) {
        let dump = serde_json::from_str(&text).context("no dump of PyTorch's flight recorder")?;
        return Ok(Contents::Dump(Box::new(dump)));
    }
    Ok(Contents::Input(Box::new(recorded::flight_recorder(&text)?)))
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
        assert!(is_candidate(Path::new("a.csv.gz")) && is_candidate(Path::new("b.json")));
        assert!(!is_candidate(Path::new("c.db")) && !is_candidate(Path::new("notes.txt")));
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
        // As PyTorch writes them: pickles without an extension; one of them here as JSON.
        let mut pickled = vec![0x80, 2];
        pickle::write(&serde_json::from_str(&dump(8, 7, waits)).unwrap(), &mut pickled);
        pickled.push(b'.');
        std::fs::write(folder.path().join("nccl_trace_rank_0"), pickled).unwrap();
        std::fs::write(folder.path().join("trace_1.json"), dump(7, 7, "")).unwrap();
        std::fs::write(folder.path().join("step7"), "no dump").unwrap();
        std::fs::write(folder.path().join("notes.txt"), "not a recording").unwrap();
        let mut files = Vec::new();
        collect(folder.path(), &mut files).unwrap();
        let found = recordings(&files).unwrap();
        assert_eq!(found.len(), 2);
        let report = analyse(&found[1].1, &Rules::default());
        let verdicts::Verdict::Hang(hang) = report.verdict else { panic!("{:?}", report.verdict) };
        assert_eq!(hang.missing.iter().map(|m| m.who.rank).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn tables_are_the_same_as_csv_quoted_and_as_parquet() {
        use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
        let ops = [("forward-compute", 0.5, 1.5), ("params-all-gather", 2.0, 0.25)];
        let folder = tempfile::tempdir().unwrap();
        let mut csv = String::from("\"dp_rank\",stage,rank,\"a, comma\",step,optype,start_ts,duration\n");
        for rank in 0..2 {
            for (name, start, length) in ops {
                csv += &format!("{rank},0,{rank},\"x, \"\"y\"\"\",7,\"{name}\",{start},{length}\n");
            }
        }
        let plain = folder.path().join("job.csv");
        std::fs::write(&plain, csv).unwrap();
        let schema = "message t { required int64 dp_rank; required int64 stage; required int64 rank; required int64 step; \
                      required binary optype (UTF8); required double start_ts; required double duration; optional int32 x; }";
        let schema = std::sync::Arc::new(parquet::schema::parser::parse_message_type(schema).unwrap());
        let packed = folder.path().join("job.parquet");
        let file = File::create(&packed).unwrap();
        let mut writer = parquet::file::writer::SerializedFileWriter::new(file, schema, Default::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let column = |at: usize| -> Vec<i64> {
            let of = |rank: i64| {
                if at == 1 {
                    0
                } else if at == 3 {
                    7
                } else {
                    rank
                }
            };
            (0..2).flat_map(|rank| [of(rank); 2]).collect()
        };
        for at in 0..8 {
            let mut next = group.next_column().unwrap().unwrap();
            let both = |of: fn(&(&str, f64, f64)) -> f64| ops.iter().chain(&ops).map(of).collect::<Vec<f64>>();
            match at {
                0..=3 => drop(next.typed::<Int64Type>().write_batch(&column(at), None, None).unwrap()),
                4 => {
                    let names: Vec<ByteArray> = ops.iter().chain(&ops).map(|(name, ..)| (*name).into()).collect();
                    next.typed::<ByteArrayType>().write_batch(&names, None, None).unwrap();
                }
                5 => drop(next.typed::<DoubleType>().write_batch(&both(|op| op.1), None, None).unwrap()),
                6 => drop(next.typed::<DoubleType>().write_batch(&both(|op| op.2), None, None).unwrap()),
                _ => drop(next.typed::<parquet::data_type::Int32Type>().write_batch(&[], Some(&[0; 4]), None).unwrap()),
            }
            next.close().unwrap();
        }
        group.close().unwrap();
        writer.close().unwrap();
        let found = recordings(&[plain, packed.clone()]).unwrap();
        assert_eq!(found[0].1.observations.len(), 2);
        assert_eq!(found[0].1.observations, found[1].1.observations);
        // Damaged: an error, and no part of it.
        let mut bytes = std::fs::read(&packed).unwrap();
        let end = bytes.len() - 20;
        bytes[end..].fill(0xff);
        std::fs::write(&packed, bytes).unwrap();
        assert!(recordings(&[packed]).is_err());
    }
}
