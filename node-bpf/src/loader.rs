//! Opens, configures and loads the BPF object, in the best of the four ways of attaching that this
//! kernel supports (tried, not guessed from a version), and reads its statistics. Three of them use
//! one object, the one for old kernels has its own (`bpf/features.bpf.h`).

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder, PrintLevel};
use parking_lot::Mutex;

use crate::attach;
use crate::cgroup::Cgroup;
use crate::classes::{self, ClassStatus};
use crate::config::{AttachMode, CaptureConfig};
use crate::error::Error;
use crate::functions::{Api, FUNCTIONS};
use crate::host::{self, Host};
use crate::lookup::map;
use crate::privileges::{self, Capability, Needed, PRIVILEGES};
use crate::signals::wire::{HOST_PROBES, Tuning};
use crate::stubs;
use crate::wire::{EVERYBODY, RawConfig, SLOT_OFFCPU, SLOT_PROCESS, SLOT_TCP, SLOTS, STATS_BYTES, Stats};

/// The capture objects, compressed to a sixth of their size (a megabyte).
static FULL: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/capture.bpf.o.gz"));
static BASIC: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/capture-basic.bpf.o.gz"));

/// The object whose programs a way of attaching uses.
fn object_of(mode: AttachMode) -> &'static [u8] {
    if mode == AttachMode::Stub { BASIC } else { FULL }
}

/// An object as libbpf takes it.
fn inflated(object: &[u8]) -> libbpf_rs::Result<Vec<u8>> {
    let mut bytes = vec![];
    flate2::read::GzDecoder::new(object).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The compiled BPF programs that this binary loads: for kernels from 5.15 on, and for older ones;
/// compressed ELF objects.
#[must_use]
pub fn kernel_objects() -> [&'static [u8]; 2] {
    [FULL, BASIC]
}

/// The counters of one probe since capture started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeStatus {
    /// "libnccl:ncclAllReduce", "sched_switch", …
    pub probe: String,
    /// How often it fired (calls: outermost entries) for a process that is captured.
    pub hits: u64,
    /// Records lost because the ring buffer was full.
    pub lost_ring: u64,
    /// Calls or stretches not followed because a kernel map was full.
    pub lost_map: u64,
    /// Calls whose return never came: the process died in them, or they were left by a jump.
    pub unmatched: u64,
    /// Events not recorded because there were too many.
    pub shed: u64,
}

/// libbpf reports why a load failed only in its log: the last lines are kept for the error.
static LIBBPF_LOG: Mutex<Vec<String>> = Mutex::new(vec![]);

fn keep_log(level: PrintLevel, text: String) {
    let text = text.trim_end();
    tracing::debug!(target: "libbpf", ?level, "{text}");
    let mut log = LIBBPF_LOG.lock();
    if level == PrintLevel::Warn {
        // only the end of a verifier's log has its objection
        let skipped = text.chars().count().saturating_sub(400);
        log.push(text.chars().skip(skipped).collect());
        let surplus = log.len().saturating_sub(8);
        log.drain(..surplus);
    }
}

/// Checks the requirements that need no loading.
pub(crate) fn check_host() -> Result<(), Error> {
    if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err(Error::NoBtf);
    }
    let required = PRIVILEGES.iter().filter(|privilege| privilege.needed == Needed::Always);
    let missing: Vec<_> = required.map(|p| p.capability).filter(|capability| !privileges::has(*capability)).collect();
    if missing.is_empty() { Ok(()) } else { Err(Error::NotPermitted { missing }) }
}

/// The object, loaded.
pub(crate) struct Loaded {
    pub(crate) object: Object,
    /// How its call programs are to be attached.
    pub(crate) mode: AttachMode,
    /// The only user of whose processes its programs send records; none: of everybody's.
    pub(crate) only_user: Option<u32>,
    /// The loaded parts of it.
    pub(crate) classes: Vec<ClassStatus>,
}

/// Loads the object. A class whose programs the kernel refuses is turned off, unless capture needs
/// it.
pub(crate) fn load(config: &CaptureConfig, cgroup: Option<&Cgroup>) -> Result<Loaded, Error> {
    check_host()?;
    let only_user = privileges::only_user().or(config.only_user);
    libbpf_rs::set_print(Some((PrintLevel::Debug, keep_log)));
    host::raise_open_files();
    let mut classes = classes::examine(config);
    if let Some(reason) = classes::missing_essential(&classes) {
        return Err(Error::Load { reason });
    }
    let all = [AttachMode::Session, AttachMode::Multi, AttachMode::Single, AttachMode::Stub];
    let modes = config.attach_mode.map_or(all.to_vec(), |mode| vec![mode]);
    let mut reason = String::new();
    let mut modes = modes.into_iter();
    while let Some(&mode) = modes.as_slice().first() {
        LIBBPF_LOG.lock().clear();
        let tried = open(config, (cgroup, only_user), mode, &classes).and_then(|object| {
            attach::probe(&object, mode)?;
            Ok(object)
        });
        match tried {
            Ok(object) => {
                tracing::debug!(?mode, ?classes, "capture programs loaded");
                return Ok(Loaded { object, mode, classes, only_user });
            }
            Err(error) => {
                let log = LIBBPF_LOG.lock().clone();
                reason = if log.is_empty() { error.to_string() } else { format!("{error}: {}", log.join("; ")) };
                tracing::debug!(?mode, reason, "not possible here");
                if attach::lacks_files(&reason) {
                    return Err(Error::OpenFiles { limit: host::most_open_files() });
                }
                // A program for one way of attaching proves nothing about the next way.
                let last = modes.as_slice().get(1).is_none_or(|next| object_of(*next) != object_of(mode));
                let refused = refused_program(&log).filter(|name| last || !attach::is_of_one_mode(name));
                let class = refused.and_then(classes::of_program);
                match class.filter(|class| !class.essential && classes::is_on(&classes, class.name)) {
                    Some(class) => {
                        let why = format!("the kernel refused its program {}", objection(&log));
                        let remedy = "use a newer kernel, or report this one's version".to_owned();
                        classes::turn_off(&mut classes, class.name, why, remedy);
                    }
                    None => {
                        modes.next();
                        if last {
                            classes = classes::examine(config); // the next object's programs are others
                        }
                    }
                }
            }
        }
    }
    let admin = Capability::CAP_SYS_ADMIN;
    if !privileges::has(admin) && !Host::examine().uprobe_multi {
        return Err(Error::NotPermitted { missing: vec![admin] });
    }
    Err(Error::Load { reason })
}

/// The program that could not be loaded, by libbpf's log ("prog 'NAME': …").
fn refused_program(log: &[String]) -> Option<&str> {
    log.iter().rev().find_map(|line| line.split_once("prog '")?.1.split_once('\'').map(|(name, _)| name))
}

/// Which program was refused, and the verifier's last line about it: "on_oom: invalid size of
/// register spill".
fn objection(log: &[String]) -> String {
    let lines = log.iter().flat_map(|text| text.lines()).map(str::trim);
    let last = lines.take_while(|line| !line.starts_with("processed ")).filter(|line| !line.is_empty()).last();
    format!("{}: {}", refused_program(log).unwrap_or("(unnamed)"), last.unwrap_or("no reason given"))
}

fn open(
    config: &CaptureConfig,
    (cgroup, only_user): (Option<&Cgroup>, Option<u32>),
    mode: AttachMode,
    classes: &[ClassStatus],
) -> libbpf_rs::Result<Object> {
    let mut open = ObjectBuilder::default().name("capture")?.open_memory(&inflated(object_of(mode))?)?;
    for mut program in open.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let on = classes::of_program(&name).is_some_and(|class| classes::is_on(classes, class.name));
        program.set_autoload(on && mode.suits(&name));
    }
    let ring_bytes = config.ring_bytes.next_power_of_two().max(page_bytes());
    let raw = RawConfig {
        cgroup_id: cgroup.map_or(0, |c| c.id),
        offcpu_min_ns: u64::try_from(config.offcpu_min.as_nanos()).unwrap_or(u64::MAX),
        wake_bytes: u64::from(ring_bytes / 4),
        own_pid: std::process::id(),
        only_uid: only_user.unwrap_or(EVERYBODY),
        block_min_ns: u64::try_from(config.block_min.as_nanos()).unwrap_or(u64::MAX),
        queue_first: classes::queue_before_request(),
    };
    let tuning = Tuning {
        offcpu_min_ns: raw.offcpu_min_ns,
        block_min_ns: raw.block_min_ns,
        shed_p2p: false,
        missed_until_ns: 0,
    };
    for mut map in open.maps_mut() {
        if map.name() == "events" {
            map.set_max_entries(ring_bytes)?;
        } else if map.name() == ".rodata.config" {
            map.set_initial_value(&raw.to_bytes())?;
        } else if map.name() == ".data.tuning" {
            map.set_initial_value(&tuning.to_bytes())?;
        }
    }
    let object = open.load()?;
    if let Some(cgroup) = cgroup {
        let fd = cgroup.directory.as_fd().as_raw_fd();
        let map = map(&object, "cgroup_array")?;
        map.update(&0u32.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)?;
    }
    if mode == AttachMode::Stub {
        stubs::fill_targets(&object)?;
    }
    Ok(object)
}

fn page_bytes() -> u32 {
    // SAFETY: sysconf has no preconditions.
    u32::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// The name of a statistics slot; none for one that is not in use.
fn slot_name(slot: u8) -> Option<String> {
    Some(match slot {
        SLOT_OFFCPU => "sched_switch".to_owned(),
        SLOT_TCP => "tcp".to_owned(),
        SLOT_PROCESS => "sched_process".to_owned(),
        _ => {
            let function = FUNCTIONS.get(usize::from(slot))?;
            let library = match function.api {
                Api::Nccl => "libnccl",
                Api::Mpi => "libmpi",
                Api::Gloo => "libgloo",
            };
            format!("{library}:{}", function.symbols.first()?)
        }
    })
}

/// All probes' counters, summed over the CPUs.
pub(crate) fn read_stats(stats: &MapHandle, host_stats: &MapHandle) -> Vec<ProbeStatus> {
    let read = |map: &MapHandle, slot: u8| {
        let per_cpu = map.lookup_percpu(&u32::from(slot).to_ne_bytes(), MapFlags::ANY).ok()??;
        let mut sum = Stats::default();
        per_cpu.iter().filter(|bytes| bytes.len() >= STATS_BYTES).for_each(|bytes| sum.add(bytes));
        Some(sum)
    };
    let status = |probe: String, stats: Stats| {
        let Stats { hits, lost_ring, lost_map, unmatched, shed } = stats;
        ProbeStatus { probe, hits, lost_ring, lost_map, unmatched, shed }
    };
    let host = (0..).zip(HOST_PROBES);
    (0..SLOTS)
        .filter_map(|slot| Some(status(slot_name(slot)?, read(stats, slot)?)))
        .chain(host.filter_map(|(slot, probe)| Some(status((*probe).to_owned(), read(host_stats, slot)?))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_belongs_to_a_class_and_every_class_has_its_programs() {
        let open = ObjectBuilder::default().open_memory(&inflated(FULL).unwrap()).unwrap();
        let mut there: Vec<String> = open.progs().map(|p| p.name().to_string_lossy().into_owned()).collect();
        let mut listed: Vec<String> =
            classes::CLASSES.iter().flat_map(|class| class.programs).map(|name| (*name).to_owned()).collect();
        there.sort();
        listed.sort();
        assert_eq!(there, listed);
    }

    #[test]
    fn the_programs_for_old_kernels_are_those_of_the_single_mode_without_what_these_kernels_lack() {
        let names = |object: &[u8]| -> Vec<String> {
            let open = ObjectBuilder::default().open_memory(&inflated(object).unwrap()).unwrap();
            let names = open.progs().map(|program| program.name().to_string_lossy().into_owned());
            let mut names: Vec<String> = names.filter(|name| AttachMode::Stub.suits(name)).collect();
            names.sort();
            names
        };
        assert_eq!(names(BASIC), names(FULL));
        let all = ObjectBuilder::default().open_memory(&inflated(BASIC).unwrap()).unwrap();
        assert_eq!(all.progs().count(), names(BASIC).len(), "programs of no use");
        for program in all.progs() {
            for instruction in program.insns() {
                // Before 5.12 the only atomic is the addition that returns nothing (imm 0);
                // task storage and its kin came with 5.11, cookies with 5.15.
                const STORE_ATOMIC: [u8; 2] = [0xdb, 0xc3];
                const CALL: u8 = 0x85;
                const TOO_NEW: [i32; 4] = [156, 157, 158, 174]; // task storage, its deletion, the task by type, cookies
                let name = program.name().to_string_lossy();
                assert!(!STORE_ATOMIC.contains(&instruction.code) || instruction.imm == 0, "{name}: an atomic");
                let helper = instruction.code == CALL && instruction.src_reg() == 0;
                assert!(!helper || !TOO_NEW.contains(&instruction.imm), "{name}: helper {}", instruction.imm);
            }
        }
    }

    #[test]
    fn the_refused_program_is_read_from_libbpfs_words() {
        let log = ["libbpf: prog 'on_switch': BPF program load failed: -EINVAL", "libbpf: failed to load object"];
        assert_eq!(refused_program(&log.map(str::to_owned)), Some("on_switch"));
        assert_eq!(refused_program(&["libbpf: map 'x': no".to_owned()]), None);
        let text = "libbpf: prog 'on_oom': -- BEGIN PROG LOAD LOG --\n1: (63) *(u32 *)(r10 -4) = r6\ninvalid size of \
                    register spill\nprocessed 2 insns (limit 1000000)\n-- END PROG LOAD LOG --";
        assert_eq!(objection(&[text.to_owned()]), "on_oom: invalid size of register spill");
    }

    #[test]
    fn what_capture_cannot_do_without_is_loaded() {
        if let Err(error) = check_host() {
            eprintln!("SKIPPED: {error}");
            return;
        }
        let loaded = load(&CaptureConfig::default(), None).unwrap();
        assert!(
            classes::CLASSES.iter().filter(|class| class.essential).all(|c| classes::is_on(&loaded.classes, c.name))
        );
    }
}
