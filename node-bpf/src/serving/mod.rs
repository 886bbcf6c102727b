//! Requests that servers on this host answer: who serves, what the programs at their sockets see,
//! and what becomes of it. One thread; it loads the programs when the first server is found, and
//! takes them away with the last.
//!
//! `config` has what is to be recorded, and what is, `spec` the rules for servers as typed; `find`
//! finds servers, `service` names them, `calls` finds functions whose calls are requests and probes
//! them. `programs` owns the BPF object, `wire` parses its bytes, `http` reads first lines, `http2`
//! what the headers of streams say (by `hpack`), `streams` has how those end that break off, `sums`
//! sums up and chooses rows. Of those, `switches` has what threads did, `path` finds what a request
//! waited for, `rows` makes rows of it; `tick` measures the kernel's tick.

mod calls;
mod config;
mod find;
mod hpack;
mod http;
mod http2;
mod path;
mod programs;
mod rows;
mod service;
mod spec;
mod streams;
mod sums;
mod switches;
mod tick;
mod wire;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use record::{LossCount, Record, RequestOf, RequestSeen};

use crate::cgroup::Cgroup;
use crate::clock::{self, Clock};
use crate::error::Error;
use crate::process::Processes;
use crate::{loader, privileges, procfs};
use calls::{Calls, Problem};
use files::Files;
use find::{Finder, Found};
use http2::Call;
use programs::Programs;
use rows::Names;
use service::service_name;
use streams::LostPositions;
use sums::Sums;
use tick::Tick;
use wire::{Open, Protocol, RawRequest, State};

pub use calls::{RequestError, RequestSpec};
pub use config::{Served, ServingConfig, ServingStatus};
pub use spec::{ServeError, ServeRule};

/// Time between two reads of the rings; and where the last one found a sixteenth of a ring or more, which
/// would fill within the other.
const READ_EVERY: Duration = Duration::from_millis(200);
const READ_SOON: Duration = Duration::from_millis(10);
/// Time between two looks for servers.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// An answer is over when nothing was sent for so long: its connection may stay open for hours.
const QUIET_NS: u64 = 3_000_000_000;
/// A Unix socket is let go after so long without a byte.
const FORGOTTEN_NS: u64 = 600_000_000_000;
/// Likewise one of HTTP/2 while there is room: clients keep these open, and go on after hours.
const FORGOTTEN_HTTP2_NS: u64 = 86_400_000_000_000;
/// Requests that were found quiet, and may come again with the next of their connection.
const MOST_QUIET: usize = 65_536;
/// Problems that are told and logged: of all, and of one user.
const MOST_PROBLEMS: usize = 64;
const MOST_PROBLEMS_OF_USER: usize = 4;
/// Why requests are lost that come after it.
const CONNECTION_LOST: &str = "connections of HTTP/2 that cannot be followed any more";
/// Why requests are lost that were under way on it.
const REQUESTS_LOST: &str = "requests on HTTP/2 connections that could not be followed";
/// Why calls are lost whose process is not followed any more.
const CALLS_LOST: &str = "calls of --request in processes that are not followed any more";
/// Why calls are lost whose thread has gone on on another stack, and may come back.
const STACKS_LOST: &str = "calls of --request on stacks that their threads have left for others (fibers)";
/// Why calls are lost whose file was let go.
const PROBES_LOST: &str = "calls of --request whose probes were taken off before they ended";
/// Why calls are lost that nobody has counted: once for each time.
const GAPS_LOST: &str = "calls of --request of a file that was written to, until it was read anew";
/// Why calls are lost that were taken for a part of one that had been left.
const WITHIN_LOST: &str = "calls of --request within one that did not return: if it was left, they are requests";
/// Why requests are lost on connections that are left out from their first byte on.
const TLS_LEFT_OUT: &str = "connections of TLS, which is not looked into: their requests";
const OPEN_BEFORE_LEFT_OUT: &str =
    "connections of HTTP/2 that were open before the server was followed: their requests";
/// The probe under which losses are counted.
const PROBE: &str = "requests";

/// What is done with a server that is newly found: capture follows it, too.
pub type OnServer = Box<dyn FnMut(u32) + Send>;

/// Recording of requests. Stops when dropped, after what is known was handed on.
#[derive(Debug)]
pub struct Serving {
    status: Arc<Mutex<ServingStatus>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Starts looking for servers. `sink` gets [`Record::Request`], [`Record::RequestStretch`],
    /// [`Record::RequestSum`], [`Record::Process`] and [`Record::Loss`], from one thread.
    ///
    /// # Errors
    /// The host or this process cannot capture; the cgroup does not exist.
    pub fn start(
        config: ServingConfig,
        sink: Box<dyn FnMut(Record) + Send>,
        on_server: OnServer,
    ) -> Result<Serving, Error> {
        loader::check_host()?;
        let cgroup = config.cgroup.as_deref().map(Cgroup::open).transpose()?;
        let status = Arc::new(Mutex::new(ServingStatus::default()));
        let files = Files::new(|| {});
        let mut recorder = Recorder {
            with_calls: !config.requests.is_empty(),
            calls: Calls::new(config.requests.clone(), files.clone()),
            finder: Finder::new((config.rules, config.requests), config.detect, cgroup, privileges::only_user()),
            paths: config.paths,
            programs: None,
            refused: false,
            servers: HashMap::new(),
            processes: Processes::new(files),
            children: HashSet::new(),
            clock: Clock::measure(),
            sums: Sums::default(),
            chosen: vec![],
            names: Names::new(privileges::only_user()),
            quiet: HashMap::new(),
            http2: http2::Connections::default(),
            positions_lost: LostPositions::default(),
            left_out: LeftOut::default(),
            tick: Tick::default(),
            status: Arc::clone(&status),
            told: Mutex::default(),
            sink,
            on_server,
        };
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("serving".into()).spawn(move || {
            let (mut look_at, mut second_at) = (Instant::now(), Instant::now());
            loop {
                let now = Instant::now();
                if now >= look_at {
                    recorder.look();
                    look_at = now + LOOK_EVERY;
                }
                let is_busy = recorder.read();
                recorder.attach();
                if now >= second_at {
                    recorder.second(false);
                    second_at = now + Duration::from_secs(1);
                }
                let wait = match recorder.programs {
                    Some(_) if is_busy => READ_SOON,
                    Some(_) => READ_EVERY,
                    None => LOOK_EVERY,
                };
                if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                    recorder.read();
                    return recorder.second(true);
                }
            }
        });
        let thread = thread.map_err(|source| Error::Os { doing: "starting the thread for requests", source })?;
        Ok(Serving { status, stop: Some(stop), thread: Some(thread) })
    }

    /// Whose requests are recorded now, and what is not.
    #[must_use]
    pub fn status(&self) -> ServingStatus {
        self.status.lock().clone()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic in it was reported when it happened
        }
    }
}

/// What is known of a server.
struct Server {
    /// The service of what no rule names by its port.
    service: Arc<str>,
    by_port: HashMap<u16, Arc<str>>,
    tenant: Arc<str>,
    /// Connections that are not looked into and were reported: what they speak, and whether it was
    /// followed before.
    opaque: HashSet<(Protocol, bool)>,
}

impl Server {
    /// The service at a port; none: a Unix socket.
    fn service_at(&self, port: Option<u16>) -> &Arc<str> {
        port.and_then(|port| self.by_port.get(&port)).unwrap_or(&self.service)
    }

    fn services(&self) -> impl Iterator<Item = &Arc<str>> {
        self.by_port.values().chain(Some(&self.service))
    }
}

/// Connections that are not looked into, since the last second: their requests are lost.
#[derive(Debug, Default)]
struct LeftOut {
    tls: u64,
    open_before: u64,
}

struct Recorder {
    finder: Finder,
    /// There may be calls that are requests.
    with_calls: bool,
    calls: Calls,
    paths: bool,
    programs: Option<Programs>,
    /// The kernel has refused the programs: they are not tried again.
    refused: bool,
    servers: HashMap<u32, Server>,
    /// Processes that servers have forked, and that have rows.
    children: HashSet<u32>,
    processes: Processes,
    clock: Clock,
    sums: Sums,
    /// Requests that become rows, whose paths are still to be found.
    chosen: Vec<(RawRequest, RequestSeen)>,
    names: Names,
    /// Requests that were delivered because their answers seemed over, by connection: the number
    /// on it, and the sends up to then.
    quiet: HashMap<u64, (u32, u32)>,
    /// What HTTP/2's headers said.
    http2: http2::Connections,
    positions_lost: LostPositions,
    left_out: LeftOut,
    tick: Tick,
    status: Arc<Mutex<ServingStatus>>,
    /// How many problems were told, by user.
    told: Mutex<HashMap<Option<u32>, usize>>,
    sink: Box<dyn FnMut(Record) + Send>,
    on_server: OnServer,
}

impl Recorder {
    /// Looks for servers, and follows them.
    fn look(&mut self) {
        self.read(); // what is known of processes that have ended is needed for it
        self.finder.known = self.calls.known();
        let mut found = self.finder.look();
        for (user, name, reason) in std::mem::take(&mut self.finder.refused) {
            self.calls.refuse(user, &name, &reason);
        }
        std::mem::take(&mut self.finder.libraries).into_iter().for_each(|library| self.calls.maps(library));
        let used: HashSet<_> = found.iter().flat_map(|found| found.called.iter().cloned()).collect();
        for pid in self.calls.keep_only(&used) {
            self.finder.look_anew(pid);
        }
        self.calls.look_at_files();
        if found.is_empty() && self.programs.is_some() {
            self.unload();
        }
        if std::mem::take(&mut self.finder.left_out) {
            self.problem(format!(
                "a process maps more than {} files that --request may mean: calls in further ones are not recorded",
                find::MOST_CALLED
            ));
        }
        if self.finder.too_many {
            self.problem(format!(
                "of {} servers on a host, one user's are followed while they are no more than all leave free: \
                 requests of further ones are not recorded",
                find::MOST_SERVERS
            ));
        }
        if !found.is_empty() && self.programs.is_none() && !self.refused {
            match Programs::load(self.with_calls) {
                Ok(programs) => self.programs = Some(programs),
                Err(error) => {
                    self.refused = true;
                    self.problem(format!("no request is recorded: {error}"));
                }
            }
        }
        let Some(programs) = &mut self.programs else { return };
        // The programs let go of a process that begins another program: who it is is to be asked anew.
        found.retain(|found| {
            let began_another = self.servers.contains_key(&found.pid) && !programs.is_followed(found.pid);
            if began_another {
                self.servers.remove(&found.pid);
                self.processes.forget(found.pid);
                self.finder.forget(found.pid);
            }
            !began_another
        });
        let pids: HashSet<u32> = found.iter().map(|found| found.pid).collect();
        programs.keep_only(|pid| pids.contains(&pid));
        for server in &found {
            let by_port = server.ports.iter().map(|(port, name)| (*port, name.as_str().into())).collect();
            if let Some(known) = self.servers.get_mut(&server.pid) {
                known.by_port = by_port;
                programs.follow(server.pid, &server.listens);
                continue;
            }
            let Some((process, _)) = self.processes.look(server.pid) else { continue };
            if !programs.follow(server.pid, &server.listens) {
                continue;
            }
            let service: Arc<str> = service_name(server, &process.seen).into();
            tracing::info!(
                "requests of {service} are recorded: process {}, {:?} {:?}",
                server.pid,
                server.listens,
                server.ports
            );
            (self.sink)(Record::Process(process.seen.clone()));
            (self.on_server)(server.pid);
            let tenant = process.seen.tenant().into();
            self.servers.insert(server.pid, Server { service, by_port, tenant, opaque: HashSet::new() });
        }
        self.forget_servers(&pids);
        for pid in self.children.extract_if(|pid| !procfs::runs(*pid)) {
            self.processes.forget(pid);
        }
        let names: HashSet<Arc<str>> = self.servers.values().flat_map(Server::services).map(Arc::clone).collect();
        self.sums.keep_services(|name| names.contains(name));
        self.status.lock().functions = self.calls.seen();
        let of = |found: &Found| {
            let server = self.servers.get(&found.pid)?;
            let mut services: BTreeMap<&str, Vec<u16>> = BTreeMap::new();
            if found.listens.ports.is_empty() || found.listens.unix {
                services.insert(&server.service, vec![]);
            }
            for port in &found.listens.ports {
                services.entry(server.service_at(Some(*port))).or_default().push(*port);
            }
            let served = |(service, ports): (&str, _)| Served { pid: found.pid, service: service.to_owned(), ports };
            Some(services.into_iter().map(served).collect::<Vec<_>>())
        };
        self.status.lock().servers = found.iter().filter_map(of).flatten().collect();
    }

    /// Attaches to the files whose functions have been found.
    fn attach(&mut self) {
        let is_new = match &self.programs {
            Some(programs) => self.calls.attach(programs),
            None => self.calls.take_done(),
        };
        if is_new {
            self.status.lock().functions = self.calls.seen();
        }
        let gaps = self.calls.take_gaps();
        self.lose(GAPS_LOST, gaps);
        for Problem { user, text, detail } in self.calls.take_problems() {
            self.problem_of(Some(user), text, detail);
        }
    }

    /// Takes what is in the rings. True where there was much.
    fn read(&mut self) -> bool {
        let Some(mut programs) = self.programs.take() else { return false };
        let (mut bytes_read, mut http2_bytes_read) = (0, 0);
        let is_all = programs.ring.consume(|bytes| {
            bytes_read += bytes.len();
            match (wire::parse(bytes), wire::called(bytes)) {
                (Some(raw), _) => self.take(raw),
                (None, Some((raw, within))) => {
                    self.request(&raw);
                    if raw.first_ns.is_none() {
                        self.lose(WITHIN_LOST, within.into());
                    }
                }
                (None, None) => self.lose("parse", 1),
            }
        });
        let is_all_of_http2 = programs.http2_ring.consume(|bytes| {
            http2_bytes_read += bytes.len();
            match (wire::parse(bytes), wire::piece(bytes)) {
                (Some(raw), _) => self.take(raw),
                (None, Some(piece)) => self.http2.take(&piece),
                (None, None) => self.lose("parse", 1),
            }
        });
        if !is_all || !is_all_of_http2 {
            self.positions_lost.miss();
        }
        self.hand_on_chosen(&mut programs);
        let is_busy = bytes_read >= programs.ring.bytes() / 16 || http2_bytes_read >= programs.http2_ring.bytes() / 16;
        self.programs = Some(programs);
        is_busy
    }

    /// Hands on the requests that become rows, each with what it waited for.
    fn hand_on_chosen(&mut self, programs: &mut Programs) {
        if self.chosen.is_empty() {
            return;
        }
        programs.switches.read();
        for (raw, mut seen) in std::mem::take(&mut self.chosen) {
            if !self.servers.contains_key(&raw.pid) && self.children.insert(raw.pid) {
                let child = self.processes.look(raw.pid); // it may have ended
                child.into_iter().for_each(|(process, _)| (self.sink)(Record::Process(process.seen.clone())));
            }
            let stretches = rows::told(&raw, &mut seen, &programs.switches, &mut self.names);
            (self.sink)(Record::Request(Box::new(seen)));
            stretches.into_iter().for_each(|row| (self.sink)(Record::RequestStretch(Box::new(row))));
        }
    }

    /// What is due once a second.
    fn second(&mut self, last: bool) {
        self.clock.refresh();
        self.calls.brake();
        self.deliver_quiet(last);
        self.end_streams(&HashSet::new());
        self.positions_lost.turn();
        let LeftOut { tls, open_before } = std::mem::take(&mut self.left_out);
        self.lose(TLS_LEFT_OUT, tls);
        self.lose(OPEN_BEFORE_LEFT_OUT, open_before);
        let unread = self.http2.unread();
        self.lose("headers of HTTP/2 that were not read: paths and statuses", unread);
        let now_ns = self.clock.now_unix_ns();
        self.sums.take(now_ns, last).into_iter().for_each(|sum| (self.sink)(sum));
    }

    /// Delivers requests whose answers seem over, or all answered ones; and lets go of Unix sockets
    /// that have long been silent, whose end nothing tells.
    fn deliver_quiet(&mut self, all: bool) {
        let Some(programs) = &mut self.programs else { return };
        let now_ns = clock::kernel_now_ns();
        let open = programs.open();
        if self.quiet.len() > MOST_QUIET {
            let there: HashSet<u64> = open.iter().map(|open| open.request.connection).collect();
            self.quiet.retain(|connection, _| there.contains(connection));
        }
        let silent_ns = |raw: &RawRequest| now_ns.saturating_sub(raw.last_ns.max(raw.begin_ns));
        let is_crowded = open.len() > programs.most_connections() / 4;
        let most_ns = |open: &Open| match open.state {
            State::Streams if !is_crowded => FORGOTTEN_HTTP2_NS,
            _ => FORGOTTEN_NS,
        };
        let old = |open: &&Open| open.request.port.is_none() && silent_ns(&open.request) >= most_ns(open);
        for open in open.iter().filter(old) {
            if open.state == State::Streams {
                self.positions_lost.add(open.request.connection);
            }
            programs.forget(open.request.connection);
        }
        programs.tidy();
        for Open { request: raw, state } in open {
            let delivered = self.quiet.get(&raw.connection).is_some_and(|(number, _)| *number == raw.number);
            let is_over = match state {
                State::Answering => all || silent_ns(&raw) >= QUIET_NS,
                State::Reading => raw.port.is_none() && silent_ns(&raw) >= FORGOTTEN_NS,
                State::Streams | State::Other => false,
            };
            if is_over && !delivered {
                self.request(&raw);
                self.quiet.insert(raw.connection, (raw.number, raw.sends));
            }
        }
    }

    /// A record of the ring.
    fn take(&mut self, raw: RawRequest) {
        if raw.opaque {
            return self.opaque(&raw);
        }
        match self.quiet.remove(&raw.connection) {
            Some((number, sends)) if number == raw.number => {
                if sends != raw.sends {
                    self.lose("answers that went on after 3 s of silence: the rest of them", 1);
                }
            }
            _ => self.request(&raw),
        }
    }

    fn request(&mut self, raw: &RawRequest) {
        let queued_ns = self.tick.queued_ns(raw);
        let Some(server) = self.servers.get(&self.server_of(raw)) else {
            return self.lose("process_gone", 1);
        };
        let said = match raw.protocol {
            Protocol::Http1 => said_by_lines(raw),
            Protocol::Http2 => self.http2.ended(raw.connection, raw.stream()),
            Protocol::Call => Call { route: self.calls.name(raw.function), ..Call::default() },
            Protocol::Tls | Protocol::Other => Call::default(),
        };
        let begin_ns = raw.begin_ns.saturating_sub(queued_ns.unwrap_or(0));
        let since = |ns: u64| i64::try_from(ns.saturating_sub(begin_ns)).unwrap_or(i64::MAX);
        let amount = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let seen = RequestSeen {
            ts_ns: self.clock.unix_ns(begin_ns),
            duration_ns: raw.first_ns.map(|_| since(raw.last_ns)),
            first_byte_ns: raw.first_ns.map(since),
            queued_ns: queued_ns.map(amount),
            of: RequestOf {
                pid: raw.pid,
                service: Arc::clone(server.service_at(raw.port)),
                tenant: Arc::clone(&server.tenant),
                protocol: match raw.protocol {
                    Protocol::Http1 => "http/1",
                    Protocol::Http2 if said.is_grpc => "grpc",
                    Protocol::Http2 => "http/2",
                    Protocol::Call => "call",
                    Protocol::Tls | Protocol::Other => "other",
                },
                method: said.method,
                route: said.route.filter(|_| self.paths || raw.protocol == Protocol::Call),
                cgroup_id: raw.cgroup_id,
            },
            tid: raw.read_tid,
            sent_tid: raw.first_ns.map(|_| raw.first.0),
            status: said.status,
            grpc_status: said.grpc_status,
            port: raw.port,
            peer: None, // written out where it becomes a row
            connection: raw.connection,
            number: raw.number,
            bytes_in: raw.bytes_in,
            bytes_out: raw.bytes_out,
            sends: raw.sends,
            gap_ns: (raw.sends > 1).then(|| amount(raw.gap_ns)),
            cpu_ns: None, // known with its path
            run_delay_ns: None,
            kept: "",
            stands_for: 0,
        };
        if let Some(mut kept) = self.sums.add(seen, raw.broke_off) {
            kept.peer = raw.peer.map(|peer| peer.to_string());
            self.chosen.push((raw.clone(), kept));
        }
    }

    /// The server whose request it is: the process, or that which has forked it.
    fn server_of(&self, raw: &RawRequest) -> u32 {
        if self.servers.contains_key(&raw.pid) { raw.pid } else { raw.server }
    }

    /// A connection that is not looked into: said once for each server and protocol.
    fn opaque(&mut self, raw: &RawRequest) {
        match raw.protocol {
            Protocol::Http2 if raw.position_lost => self.positions_lost.add(raw.connection),
            Protocol::Http2 => self.left_out.open_before += 1,
            Protocol::Tls => self.left_out.tls += 1,
            _ => (),
        }
        let pid = self.server_of(raw);
        let Some(server) = self.servers.get_mut(&pid) else { return };
        let what = match raw.protocol {
            Protocol::Http2 if raw.position_lost => "HTTP/2 that cannot be followed from frame to frame",
            Protocol::Http2 => "HTTP/2 and were open before it was followed",
            Protocol::Tls => "TLS: what it carries is not seen",
            _ => return, // of a server that was not named: it may be anything
        };
        if server.opaque.insert((raw.protocol, raw.position_lost)) {
            let service = Arc::clone(server.service_at(raw.port));
            self.problem(format!("connections of {service} speak {what}; their requests are not recorded"));
        }
    }

    fn problem(&self, text: String) {
        self.problem_of(None, text, None);
    }

    /// A problem with a user's files, which others are not to be told in detail.
    fn problem_of(&self, user: Option<u32>, text: String, detail: Option<String>) {
        let mut status = self.status.lock();
        let is_told = status.problems.contains(&text);
        if is_told && detail.is_none() {
            return;
        }
        let mut told = self.told.lock();
        let of_user = told.entry(user).or_default();
        let most = if user.is_none_or(|user| user == 0) { MOST_PROBLEMS } else { MOST_PROBLEMS_OF_USER };
        if *of_user >= most || status.problems.len() >= MOST_PROBLEMS {
            return tracing::debug!("{text}");
        }
        *of_user += 1;
        tracing::warn!("{}", detail.as_ref().unwrap_or(&text));
        if !is_told {
            status.problems.push(text);
        }
    }

    fn lose(&mut self, reason: &str, lost: u64) {
        if lost > 0 {
            let (ts_ns, probe, reason) = (self.clock.now_unix_ns(), PROBE.to_owned(), reason.to_owned());
            (self.sink)(Record::Loss(LossCount { ts_ns, since_ns: None, probe, reason, lost }));
        }
    }
}

/// What the first lines of HTTP/1.x say.
fn said_by_lines(raw: &RawRequest) -> Call {
    let line = http::request_line(raw.head());
    Call {
        method: line.as_ref().map(|line| line.method),
        route: line.map(|line| line.route.into()),
        status: http::status(&raw.answer).filter(|_| raw.first_ns.is_some()),
        ..Call::default()
    }
}
