//! Recorded jobs of others, read as the input of a verdict: traces that published studies of
//! stragglers ship (`operations`), and dumps of PyTorch's flight recorder (`dumps`).
//!
//! Pure: what a file says in, an [`Input`](observed::Input) out. Opening, unpacking and telling
//! files apart is the caller's; what follows from an input is told by `verdicts`.

mod dumps;
mod operations;

pub use dumps::{Dump, flight_recorder, is_one_rank, of_dumps};
pub use operations::{COLUMNS, Operation, bytedance_csv, of_operations};

/// A trace that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The header lacks a column.
    #[error(
        "the trace has no column {0}: is it one operation a line, as the straggler study of ByteDance publishes it?"
    )]
    Column(&'static str),
    /// Not the JSON that was expected.
    #[error("not a flight recorder dump of one object a rank: {0}")]
    Json(String),
    /// A line that does not fit the header.
    #[error("line {line} of the trace: {column} is missing or no number")]
    Line {
        /// Counting from 1.
        line: u64,
        /// The column.
        column: String,
    },
    /// Not a table of separated values.
    #[error("not a table of comma-separated values: {0}")]
    Csv(String),
}

#[cfg(test)]
mod tests {
    use super::dumps::WATCHDOG_NS;
    use super::*;
    use verdicts::{Rules, Verdict, analyse};

    #[test]
    fn the_span_is_what_was_recorded() {
        let entry = |seq: i64, at: i64| {
            format!(
                r#"{{"process_group":["3","DATA"],"collective_seq_id":{seq},"profiling_name":"nccl:all_reduce",
                "time_created_ns":{at},"state":"scheduled","is_p2p":false}}"#
            )
        };
        let dump = |entered: i64, entries: &str| {
            format!(
                r#"{{"pg_config":{{"3":{{"name":"3","desc":"DATA","ranks":"[0, 1]"}}}},"entries":[{entries}],
                "pg_status":{{"0":{{"last_enqueued_collective":{entered},"last_completed_collective":4}}}}}}"#
            )
        };
        let start = 1_758_610_505_000_000_000;
        let job = |waiting: &str| format!(r#"{{"0":{waiting},"1":{}}}"#, dump(4, ""));
        let text = job(&dump(6, &format!("{},{}", entry(6, start + 7), entry(5, start))));
        let input = flight_recorder(&text).unwrap();
        assert_eq!((input.since_ns, input.until_ns), (start, start + 7 + WATCHDOG_NS));
        let report = analyse(&input, &Rules::default());
        assert_eq!((report.evidence.since_ns, report.evidence.until_ns), (input.since_ns, input.until_ns));
        let Verdict::Hang(hang) = &report.verdict else { panic!("{:#?}", report.verdict) };
        assert_eq!((hang.missing.len(), hang.missing[0].who.rank), (1, 1));
        // No call, no time.
        let silent = flight_recorder(&job(&dump(4, ""))).unwrap();
        assert_eq!((silent.since_ns, silent.until_ns), (0, 0));

        let header = "dp_rank,stage,rank,step,optype,start_ts,duration\n";
        let csv = format!("{header}0,0,0,7,forward-compute,100.5,1.5\n0,0,0,7,params-all-gather,102.0,0.5\n");
        let input = bytedance_csv(&csv).unwrap();
        assert_eq!((input.since_ns, input.until_ns), (0, 2_000_000_001), "its first operation to its last one's end");
    }

    #[test]
    fn what_is_not_such_a_trace_is_refused() {
        assert_eq!(bytedance_csv("a,b\n1,2\n"), Err(ImportError::Column("dp_rank")));
        let header = "dp_rank,stage,rank,step,optype,start_ts,duration,seq_id,mc,mb_id,gmc\n";
        assert!(bytedance_csv(header).unwrap().observations.is_empty());
        let broken = format!("{header}0,0,0,1,optimizer,soon,1,0,0,0,0\n");
        assert_eq!(bytedance_csv(&broken), Err(ImportError::Line { line: 2, column: "start_ts".to_owned() }));
    }
}
