//! Requests that servers answer: rows of some of them, and sums of all. Times are Unix nanoseconds
//! of this host's clock.

use std::sync::Arc;

/// What requests are summed up by: whose they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestOf {
    /// The server's process.
    pub pid: u32,
    /// The service's name, equal on all hosts.
    pub service: Arc<str>,
    /// Whose server it is: `job:ID`, `pod:UID`, `container:ID`, `unit:NAME` or `user:NAME`.
    pub tenant: Arc<str>,
    /// "http/1" or "other".
    pub protocol: &'static str,
    /// Method of HTTP; "OTHER" for one that is not known.
    pub method: Option<&'static str>,
    /// The path of HTTP with what differs from request to request replaced, without its query; none
    /// where paths are not wanted.
    pub route: Option<Arc<str>>,
    /// cgroup v2 id.
    pub cgroup_id: u64,
}

/// One request.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestSeen {
    /// When its first bytes were there: when they were read, less `queued_ns`.
    pub ts_ns: i64,
    /// From there to the end of the last send of its answer; none where it was not answered.
    pub duration_ns: Option<i64>,
    /// From there to the first send.
    pub first_byte_ns: Option<i64>,
    /// How long its bytes had lain unread, at least: the kernel notes their arrival in ticks. None
    /// of Unix sockets.
    pub queued_ns: Option<i64>,
    /// Whose it is.
    pub of: RequestOf,
    /// Thread that read its first bytes.
    pub tid: u32,
    /// Thread that sent the first bytes of the answer.
    pub sent_tid: Option<u32>,
    /// Status of HTTP.
    pub status: Option<u16>,
    /// The port it came to; none of Unix sockets.
    pub port: Option<u16>,
    /// The client's address.
    pub peer: Option<String>,
    /// Names its connection on this host.
    pub connection: u64,
    /// Its number on the connection, from 1.
    pub number: u32,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Sends of the answer.
    pub sends: u32,
    /// The longest time between two of them; none of one send.
    pub gap_ns: Option<i64>,
    /// CPU time of the thread that read it and sent all of the answer, as of the scheduler's last
    /// tick; none where these were several threads.
    pub cpu_ns: Option<i64>,
    /// How long that thread could run and had no CPU.
    pub run_delay_ns: Option<i64>,
    /// Why this one has a row: "all", "slow", "sample", "error".
    pub kept: &'static str,
    /// How many requests like it the row stands for.
    pub stands_for: u32,
}

/// The requests of a second with the same [`RequestOf`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RequestSum {
    /// The second's beginning.
    pub ts_ns: i64,
    /// Whose they are.
    pub of: RequestOf,
    /// How many.
    pub count: u64,
    /// Of these with a status from 500 on, or not answered.
    pub errors: u64,
    /// Of these not answered: they have no duration.
    pub unanswered: u64,
    /// Durations of the answered ones together.
    pub sum_ns: u64,
    /// The shortest.
    pub min_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Of these durations what the bytes had lain unread.
    pub queued_ns: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Durations with how many requests had each, within 0.2 %.
    pub durations: Vec<(u64, u64)>,
    /// The same of the times to the first byte.
    pub first_bytes: Vec<(u64, u64)>,
}
