//! Recorded jobs of others, read as the input of a verdict: traces that published studies of
//! stragglers ship (`operations`), and dumps of PyTorch's flight recorder (`flight`).
//!
//! Pure: what files say in, an [`Input`](observed::Input) or a report out. Opening, unpacking and
//! telling files apart is the caller's; what follows from an input is told by `verdicts`.

mod flight;
mod operations;

pub use flight::{Dump, Dumps};
pub use operations::{COLUMNS, Operation, bytedance_csv, of_operations};

/// A trace that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The header lacks a column.
    #[error(
        "the trace has no column {0}: is it one operation a line, as the straggler study of ByteDance publishes it?"
    )]
    Column(&'static str),
    /// No dump.
    #[error(
        "no dump of PyTorch's flight recorder: neither one rank's, with entries and a version, nor an object of one a rank"
    )]
    NoDump,
    /// A dump with a field that cannot be what it is.
    #[error("a damaged dump of PyTorch's flight recorder: {0}")]
    Dump(String),
    /// A dump of another format.
    #[error("a flight recorder dump of format {0}: formats 2.0 to 2.10 are read")]
    Version(String),
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
    use super::*;

    #[test]
    fn the_span_is_what_was_recorded() {
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
