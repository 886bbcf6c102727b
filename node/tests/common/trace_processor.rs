//! Perfetto's own trace_processor, asked in SQL about a trace.
//!
//! The messages are those of `protos/perfetto/trace_processor/trace_processor.proto` of
//! github.com/google/perfetto, as far as they are used.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use prost::Message;

use super::Killed;

#[derive(Clone, PartialEq, Message)]
struct Stream {
    #[prost(message, repeated, tag = "1")]
    msg: Vec<Rpc>,
}

#[derive(Clone, PartialEq, Message)]
struct Rpc {
    #[prost(int64, optional, tag = "1")]
    seq: Option<i64>,
    #[prost(int32, optional, tag = "2")]
    request: Option<i32>,
    #[prost(string, optional, tag = "5")]
    fatal_error: Option<String>,
    #[prost(bytes = "vec", optional, tag = "101")]
    append_trace_data: Option<Vec<u8>>,
    #[prost(message, optional, tag = "103")]
    query_args: Option<QueryArgs>,
    #[prost(message, optional, tag = "201")]
    append_result: Option<AppendResult>,
    #[prost(message, optional, tag = "203")]
    query_result: Option<QueryResult>,
}

const APPEND: i32 = 1;
const FINALIZE: i32 = 2;
const QUERY: i32 = 3;

#[derive(Clone, PartialEq, Message)]
struct QueryArgs {
    #[prost(string, optional, tag = "1")]
    sql_query: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct AppendResult {
    #[prost(string, optional, tag = "2")]
    error: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct QueryResult {
    #[prost(string, repeated, tag = "1")]
    column_names: Vec<String>,
    #[prost(string, optional, tag = "2")]
    error: Option<String>,
    #[prost(message, repeated, tag = "3")]
    batch: Vec<Cells>,
}

#[derive(Clone, PartialEq, Message)]
struct Cells {
    #[prost(int32, repeated, tag = "1")]
    cells: Vec<i32>,
    #[prost(int64, repeated, tag = "2")]
    varint_cells: Vec<i64>,
    #[prost(double, repeated, tag = "3")]
    float64_cells: Vec<f64>,
    #[prost(string, optional, tag = "5")]
    string_cells: Option<String>,
    #[prost(bool, optional, tag = "6")]
    is_last_batch: Option<bool>,
}

/// A cell of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
}

/// Perfetto's trace_processor with a trace in it.
pub struct TraceProcessor {
    child: Killed,
    unread: Vec<u8>,
    seq: i64,
}

impl TraceProcessor {
    /// With this trace; an error where the program is missing.
    pub fn start(trace: &Path) -> Result<Self, String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let directory = root.join("target/perfetto");
        let fetched = Command::new(root.join("scripts/perfetto.sh")).arg(&directory).output();
        let fetched = fetched.map_err(|error| format!("scripts/perfetto.sh: {error}"))?;
        if !fetched.status.success() {
            return Err(String::from_utf8_lossy(&fetched.stderr).trim().to_owned());
        }
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/perfetto/trace_processor.mjs");
        let mut command = Command::new("node");
        command.arg(script).arg(directory).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| format!("node (Debian's nodejs): {error}"))?;
        let mut this = Self { child: Killed(child), unread: Vec::new(), seq: 0 };
        let bytes = std::fs::read(trace).expect("a trace");
        for part in bytes.chunks(1 << 20) {
            let reply =
                this.ask(Rpc { request: Some(APPEND), append_trace_data: Some(part.to_vec()), ..Rpc::default() });
            assert_eq!(reply.append_result.and_then(|result| result.error).unwrap_or_default(), "");
        }
        this.ask(Rpc { request: Some(FINALIZE), ..Rpc::default() });
        Ok(this)
    }

    /// Rows of an answer.
    pub fn query(&mut self, sql: &str) -> Vec<Vec<Cell>> {
        let args = QueryArgs { sql_query: Some(sql.to_owned()) };
        let mut reply = self.ask(Rpc { request: Some(QUERY), query_args: Some(args), ..Rpc::default() });
        let (mut columns, mut cells) = (0, Vec::new());
        loop {
            let result = reply.query_result.expect("an answer to a question");
            assert_eq!(result.error.unwrap_or_default(), "", "{sql}");
            columns = columns.max(result.column_names.len());
            let mut last = result.batch.is_empty();
            for batch in result.batch {
                let mut integers = batch.varint_cells.into_iter();
                let mut reals = batch.float64_cells.into_iter();
                let texts = batch.string_cells.unwrap_or_default();
                let mut texts = texts.split('\0');
                cells.extend(batch.cells.iter().map(|kind| match kind {
                    2 => Cell::Integer(integers.next().expect("a cell")),
                    3 => Cell::Real(reals.next().expect("a cell")),
                    4 => Cell::Text(texts.next().expect("a cell").to_owned()),
                    _ => Cell::Null,
                }));
                last |= batch.is_last_batch == Some(true);
            }
            if last {
                break;
            }
            reply = self.read();
        }
        cells.chunks(columns.max(1)).map(<[Cell]>::to_vec).collect()
    }

    /// The integers of an answer, row by row; NULL is `i64::MIN`.
    pub fn integers(&mut self, sql: &str) -> Vec<Vec<i64>> {
        let integer = |cell: &Cell| match cell {
            Cell::Integer(int) => *int,
            Cell::Null => i64::MIN,
            other => panic!("{sql}: {other:?}"),
        };
        self.query(sql).iter().map(|row| row.iter().map(integer).collect()).collect()
    }

    fn ask(&mut self, mut rpc: Rpc) -> Rpc {
        self.seq += 1;
        rpc.seq = Some(self.seq);
        let bytes = Stream { msg: vec![rpc] }.encode_to_vec();
        let input = self.child.0.stdin.as_mut().expect("a pipe");
        input.write_all(&bytes).and_then(|()| input.flush()).expect("trace_processor reads");
        self.read()
    }

    /// The next message.
    fn read(&mut self) -> Rpc {
        let output = self.child.0.stdout.as_mut().expect("a pipe");
        loop {
            if let Some(rpc) = taken(&mut self.unread) {
                assert_eq!(rpc.fatal_error, None);
                return rpc;
            }
            let mut part = [0; 65_536];
            let read = output.read(&mut part).expect("trace_processor answers");
            assert!(read > 0, "trace_processor ended");
            self.unread.extend_from_slice(&part[..read]);
        }
    }
}

/// The first message, when all of it is there: `Stream.msg`, field 1, length-delimited.
fn taken(unread: &mut Vec<u8>) -> Option<Rpc> {
    let (tag, rest) = unread.split_first()?;
    assert_eq!(*tag, 0x0a);
    let mut rest = rest;
    let length = prost::encoding::decode_varint(&mut rest).ok()?;
    let message = rest.get(..usize::try_from(length).expect("short"))?;
    let rpc = Rpc::decode(message).expect("a message");
    let used = unread.len() - rest.len() + message.len();
    unread.drain(..used);
    Some(rpc)
}
