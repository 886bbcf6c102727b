//! Which processes are servers: those that listen, and are named by a rule or have a library mapped
//! with which models are computed. Knows nothing of requests; `programs` follows what is found here.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::{Duration, Instant};

use super::calls::{Library, RequestSpec};
use super::spec::{By, ServeRule, matches};
use super::wire::Listens;
use crate::cgroup::Cgroup;
use crate::changes::ChangedCode;
use crate::maps::{self, FileKey};
use crate::mounts;
use crate::procfs::{self, cgroup_path};
use crate::rooms::Share;
use crate::sockets::sockets_of;

/// Beginnings of the names of libraries with which a server computes models.
pub(super) const LIBRARIES: &[&str] = &[
    "libcuda.so",
    "libcudart",
    "libamdhip64",
    "libnccl.so",
    "librccl.so",
    "libtorch",
    "libonnxruntime",
    "onnxruntime_pybind11_state",
    "libnvinfer.so",
    "libllama",
    "libggml",
];

/// A process that may serve is asked for its sockets at each look while it is younger than this …
const YOUNG: Duration = Duration::from_secs(60);
/// … and this often later.
const OLDER_EVERY: Duration = Duration::from_secs(10);
/// Files of one process that are looked at for functions whose calls are requests, by their names:
/// further ones are left out.
pub(super) const MOST_CALLED: usize = 16;
/// How long a file that may not be probed is not opened again, and most of which that is known.
const REFUSED_FOR: Duration = Duration::from_secs(60);
const MOST_REFUSED: usize = 1_024;
/// Such files of one user that are opened in one look, and whose mounts are read; the others are in the next.
const MOST_OPENED: usize = 32;
/// Most servers of a host; of one user as many as all users leave free.
pub(super) const MOST_SERVERS: usize = 1_024;

/// A process that serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) pid: u32,
    /// The rule's name; none where the process was detected by its libraries.
    pub(super) name: Option<String>,
    /// Those of the ports that rules name.
    pub(super) ports: Vec<(u16, String)>,
    pub(super) listens: Listens,
    /// The files that it maps with functions whose calls are its requests.
    pub(super) called: Vec<FileKey>,
}

/// Why a process may be a server.
#[derive(Debug, Clone, PartialEq, Eq)]
enum May {
    Named(String),
    HasLibrary,
    /// Where it listens on the port of a rule.
    ByPort,
}

#[derive(Debug)]
struct Looked {
    code_kb: u64,
    may: Option<May>,
    called: Vec<FileKey>,
    first: Instant,
    sockets_at: Option<Instant>,
    found: Option<Found>,
}

/// Looks through the host's processes.
#[derive(Debug)]
pub(super) struct Finder {
    rules: Vec<ServeRule>,
    /// Whoever has one of these functions is a server.
    requests: Vec<RequestSpec>,
    /// Also those with a library.
    detect: bool,
    cgroup: Option<Cgroup>,
    only_user: Option<u32>,
    changed: ChangedCode,
    looked: HashMap<u32, Looked>,
    /// They have no code, and are half of the processes of many hosts.
    kernel_threads: HashSet<u32>,
    /// There were more servers than are followed.
    pub(super) too_many: bool,
    /// Files with these functions that were found mapped; to be taken.
    pub(super) libraries: Vec<Library>,
    /// Files that need not be opened; to be told before each look.
    pub(super) known: HashSet<FileKey>,
    /// Files of users that may not be probed, and why; to be taken.
    pub(super) refused: Vec<(u32, Vec<u8>, String)>,
    /// Likewise, since when: they are not opened again for a while.
    not_probed: HashMap<FileKey, Instant>,
    /// Files that were opened in this look, of each user.
    opened: HashMap<u32, usize>,
    /// Processes to be looked at again: too many files were opened at once.
    again: HashSet<u32>,
    /// Some of a process's were left out; to be taken.
    pub(super) left_out: bool,
}

impl Finder {
    /// `rules` and `requests` as typed.
    pub(super) fn new(
        (rules, requests): (Vec<ServeRule>, Vec<RequestSpec>),
        detect: bool,
        cgroup: Option<Cgroup>,
        only_user: Option<u32>,
    ) -> Self {
        Finder {
            rules,
            requests,
            detect,
            cgroup,
            only_user,
            changed: ChangedCode::watch(),
            looked: HashMap::new(),
            kernel_threads: HashSet::new(),
            too_many: false,
            libraries: vec![],
            known: HashSet::new(),
            refused: vec![],
            not_probed: HashMap::new(),
            opened: HashMap::new(),
            again: HashSet::new(),
            left_out: false,
        }
    }

    /// A process runs another program, or has ended.
    pub(super) fn forget(&mut self, pid: u32) {
        self.looked.remove(&pid);
    }

    /// There may be room for its files now.
    pub(super) fn look_anew(&mut self, pid: u32) {
        self.looked.entry(pid).and_modify(|looked| looked.code_kb = u64::MAX);
    }

    /// The servers that run now.
    pub(super) fn look(&mut self) -> Vec<Found> {
        for pid in std::mem::take(&mut self.again) {
            self.look_anew(pid);
        }
        self.opened.clear();
        self.not_probed.retain(|_, since| since.elapsed() < REFUSED_FOR);
        let mut listening = HashMap::new();
        let changed = self.changed.take();
        for pid in &changed.pids {
            // It may have another library now, or be another process, a young one.
            if let Some(looked) = self.looked.get_mut(pid) {
                (looked.code_kb, looked.first) = (u64::MAX, Instant::now());
            }
        }
        if changed.all {
            self.look_at_all(&mut listening);
        } else {
            let may = self.looked.iter().filter(|(_, looked)| looked.may_serve()).map(|(pid, _)| *pid);
            let pids: HashSet<u32> = may.chain(changed.pids).chain(changed.ended).collect();
            for pid in pids {
                self.look_if_it_runs(pid, &mut listening);
            }
        }
        let mut found: Vec<Found> = self.looked.values().filter_map(|looked| looked.found.clone()).collect();
        found.sort_by_key(|found| found.pid);
        self.too_many = leave_room(&mut found, MOST_SERVERS);
        found
    }

    fn look_at_all(&mut self, listening: &mut HashMap<u64, Listening>) {
        let Ok(entries) = fs::read_dir("/proc") else { return };
        let mut alive = HashSet::new();
        for entry in entries.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            alive.insert(pid);
            if !self.kernel_threads.contains(&pid)
                && !self.look_if_it_runs(pid, listening)
                && procfs::is_kernel_thread(pid)
            {
                self.kernel_threads.insert(pid);
            }
        }
        self.looked.retain(|pid, _| alive.contains(pid));
        self.kernel_threads.retain(|pid| alive.contains(pid));
    }

    /// False for one that has ended, or has no code.
    fn look_if_it_runs(&mut self, pid: u32, listening: &mut HashMap<u64, Listening>) -> bool {
        if pid == std::process::id() {
            return true;
        }
        match procfs::code_kb(pid) {
            Some(code_kb) => self.look_at(pid, code_kb, listening),
            None => drop(self.looked.remove(&pid)),
        }
        self.looked.contains_key(&pid)
    }

    fn look_at(&mut self, pid: u32, code_kb: u64, listening: &mut HashMap<u64, Listening>) {
        let now = Instant::now();
        if self.looked.get(&pid).is_none_or(|looked| looked.code_kb != code_kb) {
            let (may, called) = self.may_serve(pid);
            let first = self.looked.get(&pid).map_or(now, |looked| looked.first);
            let found = self.looked.remove(&pid).and_then(|looked| looked.found);
            let found = found.filter(|_| may.is_some() || !called.is_empty());
            let looked = Looked { code_kb, may, called, first, sockets_at: None, found };
            self.looked.insert(pid, looked);
        }
        let Some(looked) = self.looked.get_mut(&pid) else { return };
        if !looked.may_serve() {
            return;
        }
        let young = now.duration_since(looked.first) < YOUNG && looked.found.is_none();
        if !young && looked.sockets_at.is_some_and(|at| now.duration_since(at) < OLDER_EVERY) {
            return;
        }
        looked.sockets_at = Some(now);
        let by_sockets = looked.may.as_ref().and_then(|may| found(pid, may, &self.rules, listens(pid, listening)));
        looked.found = by_sockets.or_else(|| by_calls(pid, looked.may.as_ref(), &looked.called));
        looked.found.iter_mut().for_each(|found| found.called.clone_from(&looked.called));
    }

    /// Why a process may serve, and its files with functions whose calls are requests.
    fn may_serve(&mut self, pid: u32) -> (Option<May>, Vec<FileKey>) {
        let none = || (None, vec![]);
        if self.only_user.is_some_and(|user| !procfs::is_all_of_user(pid, user)) {
            return none();
        }
        let cgroups = procfs::read(pid, "cgroup").unwrap_or_default();
        let cgroups = String::from_utf8_lossy(&cgroups);
        let path = cgroup_path(&cgroups);
        if self.cgroup.as_ref().is_some_and(|cgroup| !cgroup.contains(path)) {
            return none();
        }
        let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let exe = exe.to_string_lossy();
        let exe = exe.strip_suffix(" (deleted)").unwrap_or(&exe);
        let named = self.rules.iter().find(|rule| match &rule.by {
            By::Exe(pattern) => matches(pattern, exe) || matches(pattern, exe.rsplit('/').next().unwrap_or(exe)),
            By::Unit(unit) => path.split('/').any(|part| part == unit || part.strip_suffix(".service") == Some(unit)),
            By::Port(_) => false,
        });
        let named = named.map(|rule| May::Named(rule.name.clone()));
        let is_read = !self.requests.is_empty() || self.detect && named.is_none();
        let text = if is_read { procfs::read(pid, "maps").unwrap_or_default() } else { vec![] };
        let called = self.called(pid, &text);
        if named.is_some() {
            return (named, called);
        }
        let has_library = maps::mappings(&text).filter(|mapping| mapping.executable).any(|mapping| {
            let name = String::from_utf8_lossy(mapping.file_name());
            LIBRARIES.iter().any(|library| name.starts_with(library))
        });
        let by_port = self.rules.iter().any(|rule| matches!(rule.by, By::Port(_)));
        let may = match (by_port, has_library && self.detect) {
            // A rule's port comes first; what else it listens on is then a detected server's.
            (_, true) => Some(May::HasLibrary),
            (true, false) => Some(May::ByPort),
            (false, false) => None,
        };
        (may, called)
    }

    /// The files of a process that have functions whose calls are requests, by its maps.
    fn called(&mut self, pid: u32, text: &[u8]) -> Vec<FileKey> {
        let (mut called, mut looked_at) = (vec![], HashSet::new());
        for mapping in maps::mappings(text).filter(|mapping| mapping.executable) {
            let (path, name) = (mapping.path.strip_suffix(b" (deleted)").unwrap_or(mapping.path), mapping.file_name());
            if !self.requests.iter().any(|spec| spec.may_mean(name)) || !looked_at.insert(mapping.key()) {
                continue;
            }
            if looked_at.len() > MOST_CALLED {
                self.left_out = true;
                break;
            }
            if !self.requests.iter().any(|spec| spec.means(path, name)) {
                continue;
            }
            let key = mapping.key();
            let Some(user) = procfs::answers_for(pid) else { continue };
            if !self.known.contains(&key) && self.libraries.iter().all(|library| library.key != key) {
                if self.not_probed.get(&key).is_some_and(|since| since.elapsed() < REFUSED_FOR) {
                    continue;
                }
                let opened = self.opened.entry(user).or_default();
                if *opened >= MOST_OPENED {
                    self.again.insert(pid);
                    continue;
                }
                *opened += 1;
                let mut refusal = None;
                let file = maps::open_where(pid, &mapping, |file| {
                    refusal = mounts::refusal(pid, file);
                    refusal.is_none()
                });
                if let Some(reason) = refusal {
                    if self.refused.len() < MOST_REFUSED && self.not_probed.len() < MOST_REFUSED {
                        self.refused.push((user, name.to_vec(), reason));
                        self.not_probed.insert(key, Instant::now());
                    }
                    continue;
                }
                let Some(file) = file else { continue };
                let (path, name) = (path.to_vec(), name.to_vec());
                self.libraries.push(Library { pid, user, key: key.clone(), file, path, name });
            }
            called.push(key);
        }
        called
    }
}

impl Looked {
    fn may_serve(&self) -> bool {
        self.may.is_some() || !self.called.is_empty()
    }
}

/// A process whose requests are calls alone.
fn by_calls(pid: u32, may: Option<&May>, called: &[FileKey]) -> Option<Found> {
    let user = procfs::answers_for(pid).filter(|_| !called.is_empty())?;
    let name = match may {
        Some(May::Named(name)) => Some(name.clone()),
        _ => None,
    };
    Some(Found { pid, name, ports: vec![], listens: Listens { user, ..Listens::default() }, called: vec![] })
}

/// Leaves out the servers of users who have more than all users leave free; whether there are any.
fn leave_room(found: &mut Vec<Found>, most: usize) -> bool {
    let (before, mut share) = (found.len(), Share::of(most));
    found.retain(|found| share.take(found.listens.user));
    found.len() < before
}

/// What a process is that may serve, by where it listens.
fn found(pid: u32, may: &May, rules: &[ServeRule], mut listens: Listens) -> Option<Found> {
    if listens.ports.is_empty() && !listens.unix {
        return None;
    }
    let of_port = |port: &u16| {
        let rule = rules.iter().find(|rule| matches!(rule.by, By::Port(of) if of == *port))?;
        Some((*port, rule.name.clone()))
    };
    let ports: Vec<(u16, String)> = listens.ports.iter().filter_map(of_port).collect();
    let name = match (may, ports.first()) {
        (May::Named(name), _) => Some(name.clone()),
        (_, Some((_, name))) => {
            (listens.ports, listens.unix) = (ports.iter().map(|(port, _)| *port).collect(), false);
            Some(name.clone())
        }
        (May::HasLibrary, None) => None,
        (May::ByPort, None) => return None,
    };
    listens.any_protocol = name.is_some();
    Some(Found { pid, name, ports, listens, called: vec![] })
}

/// The listening sockets of a network namespace: inodes, with the port of TCP.
type Listening = HashMap<u64, Option<u16>>;

/// Where a process listens. `listening` has what was read of namespaces in this look.
fn listens(pid: u32, listening: &mut HashMap<u64, Listening>) -> Listens {
    let sockets = sockets_of(pid);
    let mut listens = Listens::default();
    if sockets.is_empty() {
        return listens;
    }
    let namespace = fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let namespace =
        namespace.as_deref().and_then(|link| link.to_str()?.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok());
    let all = listening.entry(namespace.unwrap_or(0)).or_insert_with(|| listening_of(pid));
    for kind in sockets.iter().filter_map(|inode| all.get(inode)) {
        match kind {
            Some(port) => listens.ports.push(*port),
            None => listens.unix = true,
        }
    }
    listens.ports.sort_unstable();
    listens.ports.dedup();
    if listens.unix || !listens.ports.is_empty() {
        listens.user = procfs::answers_for(pid).unwrap_or_default(); // it has ended: it takes nothing
    }
    listens
}

fn listening_of(pid: u32) -> Listening {
    let read = |name| String::from_utf8_lossy(&procfs::read(pid, name).unwrap_or_default()).into_owned();
    let tcp = [read("net/tcp"), read("net/tcp6")];
    let tcp = tcp.iter().flat_map(|text| text.lines()).filter_map(listening_tcp);
    let unix = read("net/unix");
    let unix = unix.lines().filter_map(|line| Some((listening_unix(line)?, None)));
    tcp.map(|(inode, port)| (inode, Some(port))).chain(unix).collect()
}

/// `sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode …` of a socket that
/// listens.
fn listening_tcp(line: &str) -> Option<(u64, u16)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    if *words.get(3)? != "0A" {
        return None;
    }
    let port = words.get(1)?.rsplit(':').next()?;
    Some((words.get(9)?.parse().ok()?, u16::from_str_radix(port, 16).ok()?))
}

/// `Num RefCount Protocol Flags Type St Inode Path` of a stream socket that listens.
fn listening_unix(line: &str) -> Option<u64> {
    const LISTENS: u32 = 0x0001_0000;
    let words: Vec<&str> = line.split_whitespace().collect();
    let flags = u32::from_str_radix(words.get(3)?, 16).ok()?;
    (flags & LISTENS != 0 && *words.get(4)? == "0001").then(|| words.get(6)?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_listen() {
        let listens =
            "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 30211 1 x";
        assert_eq!(listening_tcp(listens), Some((30_211, 8_000)));
        assert_eq!(listening_tcp(&listens.replace(" 0A ", " 01 ")), None, "a connection");
        let unix = "0000000000000000: 00000002 00000000 00010000 0001 01 25213 /run/x.sock";
        assert_eq!(listening_unix(unix), Some(25_213));
        assert_eq!(listening_unix(&unix.replace("00010000", "00000000")), None);
        assert_eq!((listening_tcp("  sl  local"), listening_unix("Num RefCount")), (None, None));
    }

    #[test]
    fn one_users_servers_leave_room_for_others() {
        let server = |pid, user| Found {
            pid,
            name: None,
            ports: vec![],
            listens: Listens { user, ..Listens::default() },
            called: vec![],
        };
        let mut found: Vec<Found> = (1..=2_000).map(|pid| server(pid, 65_534)).collect();
        found.extend((3_000..3_100).map(|pid| server(pid, 1_000)));
        assert!(leave_room(&mut found, MOST_SERVERS));
        let of = |user| found.iter().filter(|found| found.listens.user == user).count();
        assert_eq!((of(65_534), of(1_000)), (512, 100));
        assert!(!leave_room(&mut found, MOST_SERVERS), "those of before");
    }

    #[test]
    fn a_rule_names_and_bounds_what_counts() {
        let listens = Listens { ports: vec![80, 9_000], unix: true, ..Listens::default() };
        let rules = [ServeRule::parse("web=port:80").unwrap()];
        let web = found(7, &May::ByPort, &rules, listens.clone()).unwrap();
        assert_eq!((web.name.as_deref(), &*web.listens.ports, web.listens.unix), (Some("web"), &[80][..], false));
        assert!(web.listens.any_protocol);
        assert_eq!(found(7, &May::ByPort, &[], listens.clone()), None);
        let detected = found(7, &May::HasLibrary, &[], listens.clone()).unwrap();
        assert_eq!((detected.name, detected.listens.any_protocol), (None, false));
        assert_eq!(found(7, &May::HasLibrary, &rules, Listens::default()), None, "it does not listen");
    }

    #[test]
    fn a_process_whose_calls_are_requests_need_not_listen_and_is_named_by_its_rule() {
        let (pid, called) = (std::process::id(), [(b"08:01".to_vec(), 7)]);
        let name = |may: Option<May>| by_calls(pid, may.as_ref(), &called).map(|found| found.name);
        assert_eq!(name(Some(May::Named("chat".to_owned()))), Some(Some("chat".to_owned())));
        assert_eq!(
            (name(None), name(Some(May::HasLibrary)), name(Some(May::ByPort))),
            (Some(None), Some(None), Some(None))
        );
        let found = by_calls(pid, None, &called).unwrap();
        assert!(found.listens.ports.is_empty() && !found.listens.unix, "its sockets are not looked at: {found:?}");
        assert_eq!(by_calls(pid, None, &[]), None, "it has none of the files");
    }

    #[test]
    fn our_own_listening_socket_is_found_by_its_rule_and_only_by_it() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let all = listens(std::process::id(), &mut HashMap::new());
        assert!(all.ports.contains(&port), "{all:?}");
    }
}
