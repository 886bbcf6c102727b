//! The programs on requests (`bpf/requests.bpf.c`): loaded while there are servers, and what user
//! space has to do with their maps.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Typedef;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder};

use super::switches::Switches;
use super::wire::{self, Listens, Open, RawRequest, State};
use crate::clock;
use crate::config::AttachMode;
use crate::error::Error;
use crate::host::Host;
use crate::lookup::{self, Aligned};
use crate::ring::Ring;
use crate::rooms::Users;

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/requests.bpf.o")));

/// The tracepoints at sockets, which kernels have from Linux 6.3 on.
const TRACEPOINTS: [&str; 2] = ["btf_trace_sock_recv_length", "btf_trace_sock_send_length"];

/// Looks at connections between two at what closed ones may have left.
const TIDIED_EVERY: u32 = 60;
/// `RM_REQUEST_LOSSES`.
const LOSSES: usize = 7;
/// `RM_CALL_ATTACHMENTS`: a power of two.
pub(super) const CALL_ATTACHMENTS: u32 = 64;

/// The loaded programs. They are detached when dropped, and their maps are gone.
#[derive(Debug)]
pub(super) struct Programs {
    object: Arc<Object>,
    _links: Vec<Link>,
    /// How those are attached that see calls.
    pub(super) mode: AttachMode,
    servers: MapHandle,
    /// Processes whose threads are followed: servers, and those that work with them.
    threads_of: MapHandle,
    connections: MapHandle,
    /// HTTP/2: connections that are looked into, and their requests.
    http2: MapHandle,
    streams: MapHandle,
    /// Threads that make calls that are requests.
    callers: MapHandle,
    /// Of probes at functions: which are there.
    attachments: Option<MapHandle>,
    losses: MapHandle,
    users: Users,
    lost: [u64; LOSSES],
    pub(super) ring: Ring,
    /// Streams, and pieces of their headers.
    pub(super) http2_ring: Ring,
    pub(super) switches: Switches,
    /// The servers, and since when each is followed.
    followed: HashMap<u32, (Listens, u64)>,
    tidied: u32,
}

/// What the programs could not hand over since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) ring: u64,
    pub(super) http2_ring: u64,
    pub(super) map: u64,
    /// HTTP/2 connections that are not looked into any more.
    pub(super) positions: u64,
    /// Calls on stacks that their threads have left for others.
    pub(super) stacks: u64,
    /// Calls whose probes were taken off meanwhile.
    pub(super) probes: u64,
}

/// Beginnings of the names of the programs that see calls: those at functions and points, which `calls`
/// attaches, and those at the ends of threads.
const AT_FUNCTIONS: [&str; 2] = ["function_", "pair_"];
const AT_ENDS: &str = "calls_";

impl Programs {
    /// `calls`: with the programs that see calls.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub(super) fn load(calls: bool) -> Result<Programs, Error> {
        let mode = if Host::examine().uprobe_multi { AttachMode::Multi } else { AttachMode::Single };
        Programs::load_for(calls, mode)
    }

    fn load_for(calls: bool, mode: AttachMode) -> Result<Programs, Error> {
        let failed = |error: libbpf_rs::Error| Error::Load { reason: format!("requests: {error:#}") };
        let kernel = Btf::from_vmlinux().map_err(failed)?;
        if TRACEPOINTS.iter().any(|name| kernel.type_by_name::<Typedef<'_>>(name).is_none()) {
            let reason =
                "requests: the tracepoints sock_recv_length and sock_send_length came with Linux 6.3".to_owned();
            return Err(Error::Load { reason });
        }
        let open = ObjectBuilder::default().name("requests").and_then(|builder| builder.open_memory(&OBJECT.0));
        let mut open = open.map_err(failed)?;
        for mut program in open.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            let of_mode = name.ends_with(if mode.one_by_one() { "_single" } else { "_multi" });
            let at_functions = AT_FUNCTIONS.iter().any(|begin| name.starts_with(begin));
            let is_wanted = if at_functions { calls && of_mode } else { calls || !name.starts_with(AT_ENDS) };
            program.set_autoload(is_wanted);
        }
        for mut map in open.maps_mut().filter(|map| !calls && map.name() == "callers") {
            map.set_max_entries(1).map_err(failed)?; // nobody makes entries
        }
        let object = open.load().map_err(failed)?;
        let map = |name| lookup::map(&object, name).map_err(failed);
        let (servers, connections, losses) = (map("servers")?, map("connections")?, map("request_losses")?);
        let (threads_of, http2, streams) = (map("followed")?, map("http2")?, map("streams")?);
        let switches = Switches::open(&map("stretches")?, &map("stretch_count")?)
            .map_err(|source| Error::Os { doing: "mapping the ring of threads", source })?;
        let (callers, attachments) = (map("callers")?, map("attachments").ok());
        let users = Users::new(&object).map_err(failed)?;
        let ring = |name| {
            Ring::open(&map(name)?).map_err(|source| Error::Os { doing: "mapping the ring of requests", source })
        };
        let (ring, http2_ring) = (ring("requests")?, ring("http2_ring")?);
        let mut links = vec![];
        for program in object.progs_mut() {
            let name = program.name().to_string_lossy();
            if AT_FUNCTIONS.iter().any(|begin| name.starts_with(begin)) || !calls && name.starts_with(AT_ENDS) {
                continue;
            }
            links.push(program.attach().map_err(failed)?);
        }
        Ok(Programs {
            object: Arc::new(object),
            _links: links,
            mode,
            servers,
            threads_of,
            connections,
            http2,
            streams,
            callers,
            attachments,
            losses,
            users,
            lost: [0; LOSSES],
            ring,
            http2_ring,
            switches,
            followed: HashMap::new(),
            tidied: 0,
        })
    }

    /// Follows a process, or follows it as it listens now. False where there is no room.
    pub(super) fn follow(&mut self, pid: u32, listens: &Listens) -> bool {
        // The programs let go of what begins another program: it is told again at each look.
        let entry = self.servers.lookup(&pid.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        let entry = entry.and_then(|entry| wire::server(&entry));
        let is_told = entry.is_some() && self.followed.get(&pid).is_some_and(|(told, _)| told == listens);
        // A server's child has been followed since its parent has.
        let since_ns = entry.map_or_else(clock::kernel_now_ns, |(_, _, since_ns)| since_ns);
        let server = Listens { user: self.users.counted_as(listens.user), ..listens.clone() };
        if !is_told && self.servers.update(&pid.to_ne_bytes(), &server.to_bytes(since_ns), MapFlags::ANY).is_err() {
            return false;
        }
        if let Some((user, Some(_), _)) = entry.filter(|_| !is_told) {
            self.users.child_left(user);
        }
        // One that works with another server is followed already; and has an entry again if that ends.
        let _ = self.threads_of.update(&pid.to_ne_bytes(), &wire::followed(pid), MapFlags::NO_EXIST);
        self.followed.insert(pid, (listens.clone(), since_ns));
        true
    }

    /// Since when a process is followed, by the kernel's clock.
    pub(super) fn followed_since(&self, pid: u32) -> Option<u64> {
        self.followed.get(&pid).map(|(_, since_ns)| *since_ns)
    }

    /// Whether the programs follow a process.
    pub(super) fn is_followed(&self, pid: u32) -> bool {
        self.servers.lookup(&pid.to_ne_bytes(), MapFlags::ANY).ok().flatten().is_some()
    }

    /// Follows none but these.
    pub(super) fn keep_only(&mut self, keeps: impl Fn(u32) -> bool) {
        for pid in self.followed.extract_if(|pid, _| !keeps(*pid)).map(|(pid, _)| pid) {
            let _ = self.servers.delete(&pid.to_ne_bytes()); // gone already is as good
        }
        for key in self.servers.keys().collect::<Vec<_>>() {
            let entry = self.servers.lookup(&key, MapFlags::ANY).ok().flatten();
            if let Some((user, Some(of), _)) = entry.and_then(|entry| wire::server(&entry))
                && !self.followed.contains_key(&of)
                && self.servers.delete(&key).is_ok()
            {
                self.users.child_left(user);
            }
        }
        let of_none: Vec<Vec<u8>> = self
            .threads_of
            .keys()
            .filter(|key| {
                let entry = self.threads_of.lookup(key, MapFlags::ANY).ok().flatten();
                entry
                    .and_then(|entry| wire::server_of(&entry))
                    .is_some_and(|pid| !self.followed.contains_key(&pid) && !self.is_followed(pid))
            })
            .collect();
        for key in of_none {
            let _ = self.threads_of.delete(&key); // likewise
        }
    }

    /// The open connections, each with the request under way or its last one.
    pub(super) fn open(&self) -> Vec<Open> {
        let entries = self.connections.keys().filter_map(|key| {
            let entry = self.connections.lookup(&key, MapFlags::ANY).ok()??; // it may be closed meanwhile
            wire::open(&entry)
        });
        entries.collect()
    }

    /// How many connections there is room for.
    pub(super) fn most_connections(&self) -> usize {
        self.connections.max_entries() as usize
    }

    /// Lets go of a connection. (If it goes on, it is seen as a new one.)
    pub(super) fn forget(&mut self, connection: u64) {
        let key = connection.to_ne_bytes();
        let user = self.connections.lookup(&key, MapFlags::ANY).ok().flatten().and_then(|entry| wire::user(&entry));
        let _ = self.http2.delete(&key); // most are none
        // gone already is as good
        if let (Ok(()), Some(user)) = (self.connections.delete(&key), user) {
            self.users.connection_left(user);
        }
    }

    /// Lets go now and then of frames whose connection has none any more: it closed at the moment at which
    /// they began.
    pub(super) fn tidy(&mut self) {
        self.tidied += 1;
        if !self.tidied.is_multiple_of(TIDIED_EVERY) {
            return;
        }
        let left = |key: &Vec<u8>| self.connections.lookup(key, MapFlags::ANY).is_ok_and(|found| found.is_none());
        for key in self.http2.keys().filter(left).collect::<Vec<_>>() {
            let _ = self.http2.delete(&key); // gone already is as good
        }
    }

    /// Lets go of HTTP/2 connections on Unix sockets whose servers have ended. (Those of TCP have closed.)
    pub(super) fn forget_connections_of(&mut self, ended: &HashSet<u32>) {
        if ended.is_empty() {
            return;
        }
        let of_ended = |open: &Open| {
            open.state == State::Streams && open.request.port.is_none() && ended.contains(&open.request.pid)
        };
        for open in self.open().iter().filter(|open| of_ended(open)) {
            self.forget(open.request.connection);
        }
    }

    /// Whether a connection is there, and is HTTP/2 that is looked into.
    pub(super) fn has_streams(&self, connection: u64) -> bool {
        let entry = self.connections.lookup(&connection.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        entry.and_then(|entry| wire::open(&entry)).is_some_and(|open| open.state == State::Streams)
    }

    /// The keys of streams whose connections are no more, or not looked into any more, or whose servers
    /// have `ended`.
    pub(super) fn streams_left(&self, ended: &HashSet<u32>) -> Vec<Vec<u8>> {
        let mut has: HashMap<u64, bool> = HashMap::new();
        let server = |key: &[u8]| Some(wire::open(&self.streams.lookup(key, MapFlags::ANY).ok()??)?.request.pid);
        let mut left = |key: &Vec<u8>| {
            let Some((connection, _)) = wire::stream_key(key) else { return false };
            !*has.entry(connection).or_insert_with(|| self.has_streams(connection))
                || (!ended.is_empty() && server(key).is_some_and(|pid| ended.contains(&pid)))
        };
        self.streams.keys().filter(|key| left(key)).collect()
    }

    /// How many streams there are.
    pub(super) fn streams(&self) -> u64 {
        self.streams.keys().count() as u64
    }

    /// Removes a stream. None where it has ended meanwhile.
    pub(super) fn take_stream(&mut self, key: &[u8]) -> Option<RawRequest> {
        let entry = self.streams.lookup(key, MapFlags::ANY).ok()??;
        self.streams.delete(key).ok()?;
        wire::user(&entry).into_iter().for_each(|user| self.users.stream_left(user));
        wire::open(&entry).map(|open| open.request)
    }

    /// For probes at functions.
    pub(super) fn object(&self) -> Arc<Object> {
        Arc::clone(&self.object)
    }

    /// Of attachments of those: hits, and which are there.
    pub(super) fn attachments(&self) -> libbpf_rs::Result<MapHandle> {
        lookup::map(&self.object, "attachments")
    }

    /// Removes what is kept of the threads of processes. Returns the calls that they are in, as far as
    /// nothing has told their ends, and how many others there are, whose probes were taken off.
    pub(super) fn take_callers(&mut self, of: impl Fn(u32) -> bool) -> (Vec<RawRequest>, u64) {
        let is_attached = |call: &RawRequest| {
            let (Some(map), number) = (&self.attachments, (call.function >> 32) as u32) else { return true };
            let entry = map.lookup(&(number % CALL_ATTACHMENTS).to_ne_bytes(), MapFlags::ANY).ok().flatten();
            entry.as_deref().and_then(wire::attachment) == Some(number)
        };
        let (mut calls, mut off) = (vec![], 0);
        for key in self.callers.keys().collect::<Vec<_>>() {
            let entry = self.callers.lookup(&key, MapFlags::ANY).ok().flatten();
            let Some(caller) = entry.as_deref().and_then(wire::caller).filter(|caller| of(caller.pid)) else {
                continue;
            };
            if self.callers.delete(&key).is_ok() {
                self.users.caller_left(caller.user);
                let (seen, unseen): (Vec<_>, Vec<_>) = caller.calls.into_iter().partition(is_attached);
                calls.extend(seen);
                off += unseen.len() as u64;
            }
        }
        (calls, off)
    }

    /// What was lost since the last time.
    pub(super) fn lost(&mut self) -> Lost {
        let mut since = [0; LOSSES];
        for (place, since) in since.iter_mut().enumerate() {
            let found = self.losses.lookup(&(place as u32).to_ne_bytes(), MapFlags::ANY).ok().flatten();
            let now =
                found.and_then(|bytes| Some(u64::from_ne_bytes(bytes.try_into().ok()?))).unwrap_or(self.lost[place]);
            *since = now.saturating_sub(self.lost[place]);
            self.lost[place] = now;
        }
        Lost {
            ring: since[0],
            http2_ring: since[4],
            map: since[1] + since[2],
            positions: since[3],
            stacks: since[5],
            probes: since[6],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loader;

    #[test]
    fn the_programs_load_with_and_without_those_on_calls_for_both_kinds_of_kernels() {
        if let Err(error) = loader::check_host() {
            eprintln!("SKIPPED: {error}");
            return;
        }
        for mode in [AttachMode::Multi, AttachMode::Single] {
            for calls in [true, false] {
                assert_eq!(Programs::load_for(calls, mode).unwrap().mode, mode);
            }
        }
    }
}
