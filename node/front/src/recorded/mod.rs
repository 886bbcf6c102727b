//! `rankmesh stragglers --recorded`: verdicts on jobs that others recorded.
//!
//! `files` finds, unpacks, recognises and groups the files; `recorded` reads their contents.

mod files;
mod pickle;
mod table;

use std::io::Write;

use anyhow::{Context, bail};
use ask::Exit;
use ask::args::ReportFormat;
use ask::output::{printable, quiet};
use verdicts::{Report, Rules, analyse};

use super::args::StragglersArgs;

use files::{Recording, recordings};

/// Kinds of recordings, for messages.
const WANTED: &str = "tables of operations (.csv, .parquet) and PyTorch flight recorder dumps (pickle or .json)";

/// Judge each recording found; one report each, in order of their names.
pub(crate) fn run(args: &StragglersArgs) -> anyhow::Result<Exit> {
    let mut found = Vec::new();
    for path in &args.recorded {
        files::collect(path, &mut found)?;
    }
    let recordings = recordings(&found)?;
    if recordings.is_empty() {
        bail!("no recording there: wanted are {WANTED}, or directories of them");
    }
    let text = |report: &Report| {
        let text = if args.all { verdicts::text_of_all(report) } else { verdicts::text(report) };
        let evidence = if args.evidence { format!("\n{}", verdicts::evidence(report)) } else { String::new() };
        text + &evidence
    };
    let mut out = std::io::stdout().lock();
    let several = recordings.len() > 1;
    for (name, recording) in recordings {
        let report = judged(recording);
        match args.format {
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

fn judged(recording: Recording) -> Report {
    match recording {
        Recording::Operations(input) => analyse(&input, &Rules::default()),
        Recording::Dumps(dumps) => dumps.report(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

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
        files::collect(folder.path(), &mut files).unwrap();
        let mut found = recordings(&files).unwrap();
        assert_eq!(found.len(), 2);
        let report = judged(found.remove(1).1);
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
        let observations = |at: usize| match &found[at].1 {
            Recording::Operations(input) => input.observations.clone(),
            Recording::Dumps(_) => panic!("no dumps"),
        };
        assert_eq!(observations(0).len(), 2);
        assert_eq!(observations(0), observations(1));
        // Damaged: an error, and no part of it.
        let mut bytes = std::fs::read(&packed).unwrap();
        let end = bytes.len() - 20;
        bytes[end..].fill(0xff);
        std::fs::write(&packed, bytes).unwrap();
        assert!(recordings(&[packed]).is_err());
    }
}
