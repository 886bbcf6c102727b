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
    /// "http/1", "http/2", "grpc", "other", or "call" of a function.
    pub protocol: &'static str,
    /// Method of HTTP; "OTHER" for one that is not known.
    pub method: Option<&'static str>,
    /// The path of HTTP with what differs from request to request replaced, without its query; none
    /// where paths are not wanted. Of calls the function's name.
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
    /// Thread that read its first bytes, or that makes the call.
    pub tid: u32,
    /// Thread that sent the first bytes of the answer.
    pub sent_tid: Option<u32>,
    /// Status of HTTP.
    pub status: Option<u16>,
    /// Status of gRPC; 0: it went well.
    pub grpc_status: Option<u32>,
    /// The port it came to; none of Unix sockets.
    pub port: Option<u16>,
    /// The client's address.
    pub peer: Option<String>,
    /// Names its connection on this host, or the thread that makes the call.
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
    /// On its path through threads, how long these ran; none where the path is not all known.
    pub cpu_ns: Option<i64>,
    /// On its path, how long they could run and had no CPU; likewise.
    pub run_delay_ns: Option<i64>,
    /// Why this one has a row: "all", "slow", "sample", "error".
    pub kept: &'static str,
    /// How many requests like it the row stands for.
    pub stands_for: u32,
}

/// Parts of a request's time that are alike: what a thread did, of which it waited. All of a request
/// together are its duration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestStretch {
    /// The request's time, which with the connection and the number on it names the request.
    pub ts_ns: i64,
    /// Its connection.
    pub connection: u64,
    /// Its number there.
    pub number: u32,
    /// The server's process.
    pub pid: u32,
    /// Place in the chain, by when the first part began, from 0.
    pub place: u32,
    /// When that was, from the request's time on.
    pub after_ns: i64,
    /// How long, together.
    pub duration_ns: i64,
    /// How many parts.
    pub parts: u32,
    /// Of the time up to the answer's first byte, or after it.
    pub before_first_byte: bool,
    /// "unread", "ran", "ready", "throttled", "asleep" or "unknown".
    pub kind: &'static str,
    /// Of "asleep": in what, such as "timer", "lock", "io"; of "unknown": why.
    pub reason: Option<&'static str>,
    /// Of "asleep": who woke the thread: "interrupt", "kernel", "other_process"; "unseen".
    pub woken_by: Option<&'static str>,
    /// Whose thread it was.
    pub of_pid: Option<u32>,
    /// Its process's program, with the script that it runs.
    pub process: Option<String>,
    /// The thread.
    pub tid: Option<u32>,
    /// Its name.
    pub thread: Option<String>,
    /// What the thread slept in that it woke, and that waited for it; none of the one that sent the
    /// answer.
    pub awaited_in: Option<&'static str>,
    /// Of "ready": which process had the CPU.
    pub taken_by_pid: Option<u32>,
    /// Its name.
    pub taken_by: Option<String>,
    /// Whose it is, as [`ProcessSeen::tenant`](crate::ProcessSeen::tenant) says; "kernel" of the kernel's threads.
    pub taken_by_tenant: Option<String>,
    /// Whose server it is.
    pub tenant: Arc<str>,
    /// How many requests like it the request stands for.
    pub stands_for: u32,
    /// cgroup v2 id of the server.
    pub cgroup_id: u64,
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
    /// Of these failed: status from 500 on, gRPC's not 0, reset, or not answered.
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
