//! Attaching the call programs to a file, in one of four ways. `discovery` and `symbols` decide the
//! files and offsets; the programs are in `bpf/calls.bpf.h`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libbpf_rs::{Link, Object, UprobeMultiOpts, UprobeOpts};

use crate::classes::ProbeClass;
use crate::config::AttachMode;
use crate::gloo;
use crate::lookup::program;
use crate::maps;
use crate::signals::faults::{self, Fault};
use crate::stubs;
use crate::symbol_probes::Places;
use crate::symbols::Target;

impl AttachMode {
    /// The endings of the names of the programs it uses: for returns, for entries. Returns first:
    /// an entry probe alone would leave calls unmatched.
    fn programs(self) -> &'static [&'static str] {
        match self {
            AttachMode::Session => &["session"],
            AttachMode::Multi => &["return_multi", "enter_multi"],
            AttachMode::Single | AttachMode::Stub => &["return_single", "enter_single"],
        }
    }

    /// Whether every probe has a link of its own.
    pub(crate) fn one_by_one(self) -> bool {
        matches!(self, AttachMode::Single | AttachMode::Stub)
    }

    /// Whether a program is of use in this mode.
    pub(crate) fn suits(self, program: &str) -> bool {
        let programs_of = if self == AttachMode::Stub { AttachMode::Single } else { self };
        mode_of(program).is_none_or(|mode| mode == programs_of)
    }
}

/// The mode that a program at library calls is for, by its name's ending; none for all others.
fn mode_of(program: &str) -> Option<AttachMode> {
    let of = [("_session", AttachMode::Session), ("_multi", AttachMode::Multi), ("_single", AttachMode::Single)];
    of.iter().find(|(ending, _)| program.ends_with(ending)).map(|(_, mode)| *mode)
}

/// Whether a program is for one way of attaching.
pub(crate) fn is_of_one_mode(program: &str) -> bool {
    mode_of(program).is_some()
}

/// Attaches the programs of a class, but for those at library calls.
pub(crate) fn attach_class(object: &Object, class: &ProbeClass) -> libbpf_rs::Result<Vec<Link>> {
    let everywhere = class.programs.iter().filter(|name| mode_of(name).is_none());
    let mut links = vec![];
    for name in everywhere {
        let program = program(object, name)?;
        match *name {
            OPEN_CALLS => {} // is not attached to anything, but read
            "on_major_fault" => links.extend(faults::attach(&program, Fault::Major)?),
            _ if FAULT_BEGINS.contains(name) => {} // when it is worth it
            _ => links.push(program.attach()?),
        }
    }
    Ok(links)
}

/// The programs at the beginnings of page faults, of which a kernel has one kind or the other.
const FAULT_BEGINS: [&str; 3] = ["on_user_fault", "on_kernel_fault", "on_fault"];

/// Attaches the programs at the beginnings of page faults.
pub(crate) fn attach_fault_begins(object: &Object) -> libbpf_rs::Result<Vec<Link>> {
    let mut links = vec![];
    for name in FAULT_BEGINS {
        match program(object, name) {
            Ok(program) if name == "on_fault" => links.extend(faults::attach(&program, Fault::Begins)?),
            Ok(program) => links.push(program.attach()?),
            Err(_) => {} // of the other architecture
        }
    }
    Ok(links)
}

/// Why a class could not be attached, and what to do.
pub(crate) fn refusal(error: &libbpf_rs::Error) -> (String, String) {
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok();
    let above_2 = paranoid.and_then(|text| text.trim().parse::<i32>().ok()).is_some_and(|value| value > 2);
    let remedy = if lacks_files(&error.to_string()) {
        "allow more open files (ulimit -n 4096; systemd: LimitNOFILE=4096)"
    } else if error.kind() == libbpf_rs::ErrorKind::PermissionDenied && above_2 {
        "sysctl kernel.perf_event_paranoid=2 (above that some distributions' kernels ask for CAP_SYS_ADMIN)"
    } else {
        "use a newer kernel, or report this one's version"
    };
    (format!("the kernel refused to attach it: {error}"), remedy.to_owned())
}

/// Whether an error of libbpf says that no more files may be opened (EMFILE), which it has as text
/// only.
pub(crate) fn lacks_files(error: &str) -> bool {
    error.contains("os error 24") || error.contains("-EMFILE")
}

const EVERY_PROCESS: i32 = -1;

/// The iterator over the calls that have not returned.
pub(crate) const OPEN_CALLS: &str = "open_calls";

/// Kinds of actions at calls: the beginnings of the programs' names.
pub(crate) const CALL: &str = "call";
pub(crate) const CUDA: &str = "cuda";
pub(crate) const VERBS: &str = "verbs";

/// Probes, in the order in which they were put: ends before beginnings. They are taken off the other way
/// round, so that no call is seen to begin whose end is not seen.
#[derive(Debug, Default)]
pub(crate) struct Links(Vec<Link>);

impl From<Vec<Link>> for Links {
    fn from(links: Vec<Link>) -> Self {
        Self(links)
    }
}

impl Links {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes them off.
    pub(crate) fn clear(&mut self) {
        while self.0.pop().is_some() {}
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The result of attaching to a file. The probes last as long as the links.
pub(crate) struct Attached {
    pub(crate) links: Vec<Link>,
    /// Functions that the kernel cannot probe, and why: x86 kernels refuse a first instruction with
    /// a lock or segment prefix (ENOTSUPP), and report that only when a process has the file
    /// mapped.
    pub(crate) refused: Vec<(String, String)>,
}

/// Attaches to all targets in a file, or to those that can be probed: one that cannot would prevent
/// the others.
pub(crate) fn attach(
    object: &Object,
    family: &str,
    mode: AttachMode,
    path: &Path,
    targets: &[Target],
) -> libbpf_rs::Result<Attached> {
    // Single probes are attached one by one anyway: those that can be stay.
    let single = mode.one_by_one();
    let mut last = None;
    if !single {
        match attach_for(object, family, mode, path, targets, EVERY_PROCESS) {
            Ok(links) => return Ok(Attached { links, refused: vec![] }),
            Err(error) => last = Some(error),
        }
    }
    let (mut good, mut links, mut refused) = (vec![], vec![], vec![]);
    for target in targets {
        match attach_for(object, family, mode, path, std::slice::from_ref(target), EVERY_PROCESS) {
            Ok(attached) if single => links.extend(attached),
            Ok(_tried) => good.push(target.clone()),
            Err(error) if is_unprobeable(&error) => {
                refused.push((target.symbol.clone().into_owned(), format!("{error:#}")));
                last = Some(error);
            }
            Err(error) => return Err(error), // not this function's fault: all or nothing
        }
    }
    if let (true, true, Some(error)) = (good.is_empty(), links.is_empty(), last) {
        return Err(error);
    }
    if !good.is_empty() {
        links = attach_for(object, family, mode, path, &good, EVERY_PROCESS)?;
    }
    Ok(Attached { links, refused })
}

/// ENOTSUPP (524), the kernel's own, which has no kind: the first instruction cannot be probed.
fn is_unprobeable(error: &libbpf_rs::Error) -> bool {
    format!("{error:#}").contains("os error 524")
}

/// Attaches the user's function or points. The links are made in an order in which no call is
/// counted as begun without its end.
pub(crate) fn attach_places(
    object: &Object,
    mode: AttachMode,
    path: &Path,
    places: &Places,
) -> libbpf_rs::Result<Vec<Link>> {
    match places {
        Places::Function { entry, ends } => {
            let mut links = attach_points(object, "symbol_exit", mode, path, ends)?;
            links.extend(attach_points(object, "symbol_entry", mode, path, std::slice::from_ref(entry))?);
            Ok(links)
        }
        Places::Entries { entry, .. } => attach_points(object, "symbol_point", mode, path, std::slice::from_ref(entry)),
        Places::Points(points) => attach_points(object, "symbol_point", mode, path, points),
    }
}

/// Attaches to gloo's functions, in the same order; what makes communicators last (`symbols::targets`).
pub(crate) fn attach_gloo(
    object: &Object,
    mode: AttachMode,
    path: &Path,
    places: &gloo::Places,
) -> libbpf_rs::Result<Vec<Link>> {
    let gloo::Places { entries, exits, changes } = places;
    let mut links = vec![];
    for (program, targets) in [("call_exit", exits), ("call_entry", entries), ("call_change", changes)] {
        if !targets.is_empty() {
            links.extend(attach_points(object, program, mode, path, targets)?);
        }
    }
    Ok(links)
}

/// Attaches to instructions: there is no return. (A session program would take the word at the
/// stack pointer for a return address.)
fn attach_points(
    object: &Object,
    what: &str,
    mode: AttachMode,
    path: &Path,
    targets: &[Target],
) -> libbpf_rs::Result<Vec<Link>> {
    let ending = match mode {
        AttachMode::Session => "session",
        AttachMode::Multi => "multi",
        AttachMode::Single | AttachMode::Stub => "single",
    };
    attach_program(object, &format!("{what}_{ending}"), mode, false, path, targets)
}

/// Attaches a program that has a form for each of these two modes to places in a file, or to the returns
/// of the functions that begin there.
pub(crate) fn attach_at(
    object: &Object,
    what: &str,
    mode: AttachMode,
    at_return: bool,
    path: &Path,
    targets: &[Target],
) -> libbpf_rs::Result<Vec<Link>> {
    let ending = if mode.one_by_one() { "single" } else { "multi" };
    attach_program(object, &format!("{what}_{ending}"), mode, at_return, path, targets)
}

fn attach_program(
    object: &Object,
    name: &str,
    mode: AttachMode,
    retprobe: bool,
    path: &Path,
    targets: &[Target],
) -> libbpf_rs::Result<Vec<Link>> {
    if mode.one_by_one() {
        let at = (EVERY_PROCESS, path);
        return targets.iter().map(|target| attach_single(object, name, mode, retprobe, at, target)).collect();
    }
    let semaphores = targets.iter().any(|target| target.semaphore != 0);
    let opts = UprobeMultiOpts {
        offsets: targets.iter().map(|t| t.file_offset as usize).collect(),
        cookies: targets.iter().map(|t| t.cookie).collect(),
        ref_ctr_offsets: targets.iter().filter(|_| semaphores).map(|t| t.semaphore as usize).collect(),
        retprobe,
        ..UprobeMultiOpts::default()
    };
    Ok(vec![program(object, name)?.attach_uprobe_multi_with_opts(EVERY_PROCESS, path, "", opts)?])
}

/// Attaches a program to one place, in one process or in all.
fn attach_single(
    object: &Object,
    name: &str,
    mode: AttachMode,
    retprobe: bool,
    (pid, path): (i32, &Path),
    target: &Target,
) -> libbpf_rs::Result<Link> {
    if mode == AttachMode::Stub {
        return stubs::attach(object, name, retprobe, (pid, path), target);
    }
    let (cookie, ref_ctr_offset) = (target.cookie, target.semaphore as usize);
    let opts = UprobeOpts { cookie, ref_ctr_offset, retprobe, ..UprobeOpts::default() };
    program(object, name)?.attach_uprobe_with_opts(pid, path, target.file_offset as usize, opts)
}

fn attach_for(
    object: &Object,
    family: &str,
    mode: AttachMode,
    path: &Path,
    targets: &[Target],
    pid: i32,
) -> libbpf_rs::Result<Vec<Link>> {
    let mut links = vec![];
    for name in mode.programs() {
        let retprobe = name.starts_with("return");
        let name = format!("{family}_{name}");
        if mode.one_by_one() {
            for target in targets {
                links.push(attach_single(object, &name, mode, retprobe, (pid, path), target)?);
            }
            continue;
        }
        let opts = UprobeMultiOpts {
            offsets: targets.iter().map(|t| t.file_offset as usize).collect(),
            cookies: targets.iter().map(|t| t.cookie).collect(),
            retprobe,
            session: mode == AttachMode::Session,
            ..UprobeMultiOpts::default()
        };
        links.push(program(object, &name)?.attach_uprobe_multi_with_opts(pid, path, "", opts)?);
    }
    Ok(links)
}

/// Tries the mode on a function of our own that nobody calls: old kernels load some of the programs
/// and then refuse the link.
pub(crate) fn probe(object: &Object, mode: AttachMode) -> libbpf_rs::Result<()> {
    attach_to_self(object, CALL, mode, never_called).map(drop)
}

/// Attaches to a function of this process, in this process alone.
pub(crate) fn attach_to_self(
    object: &Object,
    family: &str,
    mode: AttachMode,
    function: extern "C" fn(),
) -> libbpf_rs::Result<Vec<Link>> {
    let text = std::fs::read("/proc/self/maps")?;
    let address = function as *const () as u64;
    let mapping = maps::mappings(&text).find(|m| m.start <= address && address < m.end);
    let mapping = mapping.ok_or_else(|| libbpf_rs::Error::from_raw_os_error(libc::ENOENT))?;
    let file_offset = address - mapping.start + mapping.offset;
    let target = Target { symbol: "".into(), file_offset, cookie: 0, semaphore: 0 };
    let direct = PathBuf::from(format!("/proc/self/map_files/{:x}-{:x}", mapping.start, mapping.end));
    // without CAP_SYS_ADMIN and CAP_CHECKPOINT_RESTORE those links cannot be followed
    let path = if direct.metadata().is_ok() { direct } else { PathBuf::from(OsStr::from_bytes(mapping.path)) };
    let own_pid = i32::try_from(std::process::id()).unwrap_or(0);
    attach_for(object, family, mode, &path, &[target], own_pid)
}

#[inline(never)]
extern "C" fn never_called() {
    std::hint::black_box(());
}
