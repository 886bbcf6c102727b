//! What the recorder of one rank wrote, as JSON or as pickle.
//!
//! Formats 2.0 to 2.10 add fields; what is not there has a default, what is not known is ignored.
//! The JSON form has texts where the pickle has numbers, and no frames.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::lenient;
use crate::ImportError;

/// The major version of the formats that are read.
const MAJOR: &str = "2";

/// What the recorder of one rank wrote.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Dump {
    /// "2.10", a text: as a number it would be less than 2.9.
    #[serde(deserialize_with = "lenient::text")]
    version: String,
    /// The groups by name.
    #[serde(deserialize_with = "lenient::or_default")]
    pub(super) pg_config: BTreeMap<String, Config>,
    /// How far the process got, by its own number of the group.
    #[serde(deserialize_with = "lenient::or_default")]
    pub(super) pg_status: BTreeMap<String, Status>,
    /// The calls, oldest first.
    #[serde(deserialize_with = "lenient::or_default")]
    pub(super) entries: Vec<Entry>,
}

/// A group as the process knows it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Config {
    #[serde(deserialize_with = "lenient::text")]
    pub(super) name: String,
    #[serde(deserialize_with = "lenient::text")]
    pub(super) desc: String,
    /// Its ranks in the job.
    #[serde(deserialize_with = "lenient::ranks")]
    pub(super) ranks: Vec<i32>,
}

/// How far a process got in a group; -1 where it made no call. What the device has completed may be
/// more by now.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    #[serde(deserialize_with = "lenient::number")]
    pub(super) last_enqueued_collective: i64,
    #[serde(deserialize_with = "lenient::number")]
    pub(super) last_completed_collective: i64,
}

impl Default for Status {
    fn default() -> Self {
        Self { last_enqueued_collective: -1, last_completed_collective: -1 }
    }
}

/// A call.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Entry {
    /// Counts the process's calls.
    #[serde(deserialize_with = "lenient::optional")]
    pub(super) record_id: Option<i64>,
    /// The process's own number of the group.
    #[serde(deserialize_with = "lenient::optional")]
    pub(super) pg_id: Option<i64>,
    /// Name and description of the group.
    #[serde(deserialize_with = "lenient::texts")]
    pub(super) process_group: Vec<String>,
    /// Position in the group over all functions, from 1; calls of one batch share it.
    #[serde(alias = "seq_id", deserialize_with = "lenient::optional")]
    pub(super) collective_seq_id: Option<i64>,
    /// The same of sends and receives.
    #[serde(deserialize_with = "lenient::optional")]
    pub(super) p2p_seq_id: Option<i64>,
    /// "nccl:all_reduce", "nccl:send 0->3".
    #[serde(deserialize_with = "lenient::text")]
    profiling_name: String,
    #[serde(deserialize_with = "lenient::optional")]
    time_created_ns: Option<i64>,
    /// Lists of the tensors' sizes.
    #[serde(deserialize_with = "lenient::or_default")]
    input_sizes: Vec<Vec<i64>>,
    #[serde(deserialize_with = "lenient::or_default")]
    output_sizes: Vec<Vec<i64>>,
    #[serde(deserialize_with = "lenient::texts")]
    input_dtypes: Vec<String>,
    /// "scheduled", "started" or "completed", as the device's events tell; without these it stays
    /// "scheduled".
    #[serde(deserialize_with = "lenient::text")]
    state: String,
    #[serde(deserialize_with = "lenient::optional")]
    time_discovered_started_ns: Option<i64>,
    #[serde(deserialize_with = "lenient::optional")]
    time_discovered_completed_ns: Option<i64>,
    /// It is over, or has timed out.
    #[serde(deserialize_with = "lenient::or_default")]
    pub(super) retired: bool,
    #[serde(deserialize_with = "lenient::optional")]
    timeout_ms: Option<i64>,
    #[serde(deserialize_with = "lenient::or_default")]
    is_p2p: Option<bool>,
    /// Innermost first.
    #[serde(deserialize_with = "lenient::or_default")]
    frames: Vec<Frame>,
}

/// A frame of the process's stack.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Frame {
    #[serde(deserialize_with = "lenient::text")]
    filename: String,
    #[serde(deserialize_with = "lenient::optional")]
    line: Option<i64>,
}

impl Dump {
    /// Of what a file holds.
    ///
    /// # Errors
    /// It is no dump, or one of another major version ([`ImportError`]).
    pub fn from_value(value: Value) -> Result<Self, ImportError> {
        if !value.as_object().is_some_and(|object| object.contains_key("entries") || object.contains_key("version")) {
            return Err(ImportError::NoDump);
        }
        let dump: Self = serde_json::from_value(value).map_err(|error| ImportError::Dump(error.to_string()))?;
        let major = dump.version.split('.').next().unwrap_or_default();
        if !dump.version.is_empty() && major != MAJOR {
            return Err(ImportError::Version(dump.version));
        }
        Ok(dump)
    }

    /// When its first and its last call was made, Unix nanoseconds; none of a rank without any.
    pub(super) fn span_ns(&self) -> Option<(i64, i64)> {
        let times = || self.entries.iter().filter_map(Entry::created_ns);
        times().min().zip(times().max())
    }

    /// Whether the device's events, or what stands for them, say how far calls are: then one that
    /// was retired and is not complete has timed out.
    pub(super) fn has_events(&self) -> bool {
        self.entries.iter().any(|entry| entry.is_complete() || entry.is_started())
    }
}

impl Entry {
    pub(super) fn name(&self) -> &str {
        self.process_group.first().map_or("", String::as_str)
    }

    pub(super) fn desc(&self) -> &str {
        self.process_group.get(1).map_or("", String::as_str)
    }

    /// "nccl", "gloo", "xccl", "hccl"; lower case.
    pub(super) fn library(&self) -> String {
        self.profiling_name.split_once(':').map_or_else(String::new, |(library, _)| library.to_ascii_lowercase())
    }

    /// What was called, without the library: "_all_gather_base", "send 0->3".
    pub(super) fn called(&self) -> &str {
        self.profiling_name.split_once(':').map_or(&*self.profiling_name, |(_, called)| called)
    }

    pub(super) fn created_ns(&self) -> Option<i64> {
        self.time_created_ns.filter(|at| *at > 0)
    }

    pub(super) fn timeout_ns(&self) -> i64 {
        self.timeout_ms.unwrap_or(0).max(0).saturating_mul(1_000_000)
    }

    /// Whether the device's event says that it is over.
    pub(super) fn is_complete(&self) -> bool {
        self.state == "completed" || self.time_discovered_completed_ns.is_some_and(|at| at > 0)
    }

    fn is_started(&self) -> bool {
        self.state == "started" || self.time_discovered_started_ns.is_some_and(|at| at > 0)
    }

    /// Whether it is a send or receive, or a batch of them.
    pub(super) fn is_p2p(&self) -> bool {
        let called = self.called();
        self.is_p2p.unwrap_or(false) || called.starts_with("send") || called.starts_with("recv")
    }

    /// Elements of all tensors that go in, and that come out.
    pub(super) fn elements(&self) -> (u64, u64) {
        let of = |all: &[Vec<i64>]| {
            let of = |sizes: &Vec<i64>| sizes.iter().fold(1u64, |all, size| all.saturating_mul(size.unsigned_abs()));
            all.iter().map(of).fold(0, u64::saturating_add)
        };
        (of(&self.input_sizes), of(&self.output_sizes))
    }

    /// The type of what goes in, where that is one.
    pub(super) fn datatype(&self) -> Option<&str> {
        let first = self.input_dtypes.first()?;
        self.input_dtypes.iter().all(|of| of == first).then_some(first)
    }

    /// Where the program made it: the innermost frame that is not PyTorch's, "train.py:20".
    pub(super) fn site(&self) -> Option<String> {
        let is_pytorch = |frame: &&Frame| frame.filename.split('/').any(|part| part == "torch");
        let frame = self.frames.iter().find(|frame| !is_pytorch(frame) && frame.line.is_some_and(|line| line > 0))?;
        let file = frame.filename.rsplit('/').next().unwrap_or_default();
        Some(format!("{file}:{}", frame.line?))
    }
}
