//! The classes of records that capture makes: one table, [`CLASSES`], lists the tables,
//! requirements and programs of each, and the loader, capture's status and `rankmesh check` use it.
//! A new kind of probe is a new row. A class that this host cannot have is off, with the reason and
//! the remedy; the others go on. The programs are in `bpf/`, attaching calls in `attach`.

use std::path::Path;

use libbpf_rs::ReferencesType;
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{FuncProto, Ptr, Struct, Typedef};
use record::tables;

use crate::config::CaptureConfig;

/// A class of records, on or off together.
#[derive(Debug)]
pub struct ProbeClass {
    /// Its name in `check`, status and messages.
    pub name: &'static str,
    /// What it records, in a few words.
    pub records: &'static str,
    /// The tables of the store that it fills.
    pub tables: &'static [&'static str],
    /// Its requirements, which are checked before anything is loaded.
    pub needs: &'static [Need],
    /// Beginnings of the file names of libraries, one of which a process must have mapped for there
    /// to be anything to record; empty when it needs none.
    pub libraries: &'static [&'static str],
    /// Its BPF programs: loaded only when it is on, and attached at the start. Programs whose names
    /// end in `_session`, `_multi` or `_single` are loaded in that mode of attaching only, and
    /// attached by discovery. A class without programs is sampled from user space (`sampling`),
    /// whether or not eBPF can be used.
    pub programs: &'static [&'static str],
    /// Without it capture does not start.
    pub(crate) essential: bool,
    /// Whether the configuration asks for it.
    pub(crate) wanted: fn(&CaptureConfig) -> bool,
}

/// A requirement of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// A tracepoint of the kernel with BTF (`btf_trace_NAME`).
    Tracepoint(&'static str),
    /// A field of a kernel structure.
    Field(&'static str, &'static str),
    /// A file or directory.
    Path(&'static str),
    /// Hardware that not every host has: the directory in which its driver shows it, and its
    /// description.
    Device(&'static str, &'static str),
    /// A library of the system, and who provides it.
    SystemLibrary(&'static str, &'static str),
}

/// Whether a class records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClassState {
    /// It does, or will when there are events.
    On,
    /// Not asked for.
    NotWanted,
    /// This host has no such hardware, which is no fault.
    Absent {
        /// What it does not have.
        why: String,
    },
    /// It cannot record.
    Off {
        /// What is missing or was refused.
        why: String,
        /// What to do about it.
        remedy: String,
    },
}

/// A class and its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassStatus {
    /// [`ProbeClass::name`].
    pub name: &'static str,
    /// Whether it records.
    pub state: ClassState,
}

/// Where the beginning of a page fault is seen: x86-64 has tracepoints for it, others perf's
/// software event.
#[cfg(target_arch = "x86_64")]
const FAULTS_BEGIN: &[Need] = &[Need::Tracepoint("page_fault_user"), Need::Tracepoint("page_fault_kernel")];
#[cfg(not(target_arch = "x86_64"))]
const FAULTS_BEGIN: &[Need] = &[Need::Path("/proc/sys/kernel/perf_event_paranoid")];
#[cfg(target_arch = "x86_64")]
const FAULT_BEGINS: &[&str] = &["on_user_fault", "on_kernel_fault"];
#[cfg(not(target_arch = "x86_64"))]
const FAULT_BEGINS: &[&str] = &["on_fault"];

/// All classes.
pub static CLASSES: &[ProbeClass] = &[
    ProbeClass {
        name: "processes",
        records: "processes that use a traced library: rank, job, container, user",
        tables: tables::PROCESSES,
        needs: &[Need::Tracepoint("sched_process_exec"), Need::Tracepoint("sched_process_exit")],
        libraries: &[],
        programs: &["on_exec", "on_exit"],
        essential: true,
        wanted: |_| true,
    },
    ProbeClass {
        name: "collectives",
        records: "NCCL, RCCL and MPI calls",
        tables: tables::COLLECTIVES,
        needs: &[],
        libraries: &[
            "libnccl.so",
            "libtorch_cuda.so",
            "librccl.so",
            "libtorch_hip.so",
            "libmpi",
            "libgloo.so",
            "libtorch_cpu.so",
        ],
        programs: &[
            "call_session",
            "call_enter_multi",
            "call_return_multi",
            "call_enter_single",
            "call_return_single",
            "call_entry_session",
            "call_entry_multi",
            "call_entry_single",
            "call_exit_session",
            "call_exit_multi",
            "call_exit_single",
            "call_change_session",
            "call_change_multi",
            "call_change_single",
            "open_calls",
        ],
        essential: true,
        wanted: |_| true,
    },
    ProbeClass {
        name: "cuda",
        records: "CUDA and HIP calls, counted; slow ones and synchronisations after collectives one by one",
        tables: tables::CUDA,
        needs: &[],
        libraries: &["libcudart", "libcuda.so", "libamdhip64"],
        programs: &["cuda_session", "cuda_enter_multi", "cuda_return_multi", "cuda_enter_single", "cuda_return_single"],
        essential: false,
        wanted: |config| config.cuda,
    },
    ProbeClass {
        name: "symbols",
        records: "calls of functions, and USDT points, that the user names (--probe, --usdt)",
        tables: tables::SYMBOLS,
        needs: &[],
        libraries: &[],
        programs: &[
            "symbol_entry_session",
            "symbol_entry_multi",
            "symbol_entry_single",
            "symbol_exit_session",
            "symbol_exit_multi",
            "symbol_exit_single",
            "symbol_point_session",
            "symbol_point_multi",
            "symbol_point_single",
        ],
        essential: false,
        wanted: |config| !config.probes.is_empty(),
    },
    ProbeClass {
        name: "offcpu",
        records: "time that ranks are off the CPU, and who took it",
        tables: tables::OFF_CPU,
        needs: &[
            Need::Tracepoint("sched_switch"),
            Need::Tracepoint("sched_wakeup"),
            Need::Field("task_struct", "signal"),
        ],
        libraries: &[],
        programs: &["on_switch", "on_wakeup"],
        essential: false,
        wanted: |config| config.offcpu,
    },
    ProbeClass {
        name: "tcp",
        records: "TCP retransmits",
        tables: tables::NET,
        needs: &[Need::Tracepoint("tcp_retransmit_skb"), Need::Field("sock", "sk_socket")],
        libraries: &[],
        programs: &["on_retransmit"],
        essential: false,
        wanted: |config| config.tcp,
    },
    ProbeClass {
        name: "tcp-resets",
        records: "TCP resets sent and received",
        tables: tables::NET,
        needs: &[
            Need::Tracepoint("tcp_send_reset"),
            Need::Tracepoint("tcp_receive_reset"),
            Need::Field("sock", "sk_socket"),
        ],
        libraries: &[],
        programs: &["on_send_reset", "on_receive_reset"],
        essential: false,
        wanted: |config| config.tcp,
    },
    ProbeClass {
        name: "process-events",
        records: "processes that ranks start, with their ends",
        tables: tables::PROCESS_EVENTS,
        needs: &[Need::Tracepoint("sched_process_fork")],
        libraries: &[],
        programs: &["on_fork"],
        essential: false,
        wanted: |_| true,
    },
    ProbeClass {
        name: "block",
        records: "requests of ranks to disks",
        tables: tables::BLOCK,
        needs: &[
            Need::Tracepoint("block_rq_insert"),
            Need::Tracepoint("block_rq_issue"),
            Need::Tracepoint("block_rq_merge"),
            Need::Tracepoint("block_rq_complete"),
        ],
        libraries: &[],
        programs: &["on_block_insert", "on_block_issue", "on_block_merge", "on_block_complete"],
        essential: false,
        wanted: |config| config.block,
    },
    ProbeClass {
        name: "faults",
        records: "page faults of ranks that read from a disk",
        tables: tables::MEMORY,
        needs: &[Need::Path("/proc/sys/kernel/perf_event_paranoid")],
        libraries: &[],
        programs: &["on_major_fault"],
        essential: false,
        wanted: |config| config.memory,
    },
    ProbeClass {
        name: "fault-times",
        records: "how long these page faults take",
        tables: tables::MEMORY,
        needs: FAULTS_BEGIN,
        libraries: &[],
        programs: FAULT_BEGINS,
        essential: false,
        wanted: |config| config.memory,
    },
    ProbeClass {
        name: "reclaim",
        records: "ranks that have to free memory before they get some",
        tables: tables::MEMORY,
        needs: &[Need::Tracepoint("mm_vmscan_direct_reclaim_begin"), Need::Tracepoint("mm_vmscan_direct_reclaim_end")],
        libraries: &[],
        programs: &["on_reclaim_begin", "on_reclaim_end"],
        essential: false,
        wanted: |config| config.memory,
    },
    ProbeClass {
        name: "cgroup-reclaim",
        records: "the same in a cgroup at its limit",
        tables: tables::MEMORY,
        needs: &[Need::Tracepoint("mm_vmscan_memcg_reclaim_begin"), Need::Tracepoint("mm_vmscan_memcg_reclaim_end")],
        libraries: &[],
        programs: &["on_cgroup_reclaim_begin", "on_cgroup_reclaim_end"],
        essential: false,
        wanted: |config| config.memory,
    },
    ProbeClass {
        name: "oom",
        records: "ranks that the kernel kills for want of memory",
        tables: tables::OOM,
        needs: &[Need::Tracepoint("mark_victim")],
        libraries: &[],
        programs: &["on_oom"],
        essential: false,
        wanted: |config| config.memory,
    },
    ProbeClass {
        name: "fabric-events",
        records: "what InfiniBand and RoCE devices tell a process: ports down and up, queue pairs and devices that fail",
        tables: tables::NET,
        needs: &[],
        libraries: &["libibverbs.so"],
        programs: &[
            "verbs_session",
            "verbs_enter_multi",
            "verbs_return_multi",
            "verbs_enter_single",
            "verbs_return_single",
        ],
        essential: false,
        wanted: |config| config.fabric_events,
    },
    ProbeClass {
        name: "host",
        records: "CPU, memory and pressure of the host, each second",
        tables: &["host_samples"],
        needs: &[],
        libraries: &[],
        programs: &[],
        essential: false,
        wanted: |_| true,
    },
    ProbeClass {
        name: "fabric",
        records: "counters of InfiniBand and RoCE ports",
        tables: &["fabric_counters"],
        needs: &[Need::Device("/sys/class/infiniband", "InfiniBand or RoCE device")],
        libraries: &[],
        programs: &[],
        essential: false,
        wanted: |_| true,
    },
    ProbeClass {
        name: "gpus",
        records: "use, memory, power, clocks and throttling of NVIDIA GPUs, each second",
        tables: &["gpu_samples"],
        needs: &[Need::SystemLibrary("libnvidia-ml.so.1", "the NVIDIA driver's NVML")],
        libraries: &[],
        programs: &[],
        essential: false,
        wanted: |_| true,
    },
];

/// The class that a BPF program belongs to.
pub(crate) fn of_program(program: &str) -> Option<&'static ProbeClass> {
    CLASSES.iter().find(|class| class.programs.contains(&program))
}

/// The state of every class as far as it is known without loading anything: by the configuration
/// and by what the host has.
pub(crate) fn examine(config: &CaptureConfig) -> Vec<ClassStatus> {
    let btf = Btf::from_vmlinux().ok();
    let state = |class: &ProbeClass| {
        if !(class.wanted)(config) {
            return ClassState::NotWanted;
        }
        if let Some(why) = class.needs.iter().find_map(|need| need.absent()) {
            return ClassState::Absent { why };
        }
        let missing = class.needs.iter().find_map(|need| need.missing(btf.as_ref()));
        missing.map_or(ClassState::On, |(why, remedy)| ClassState::Off { why, remedy })
    };
    CLASSES.iter().map(|class| ClassStatus { name: class.name, state: state(class) }).collect()
}

impl Need {
    /// What this host does not have and need not have; none when it is there, or is of another
    /// kind.
    fn absent(self) -> Option<String> {
        match self {
            Need::Device(path, what) => {
                let empty = std::fs::read_dir(path).map_or(true, |mut devices| devices.next().is_none());
                empty.then(|| format!("no {what} here ({path})"))
            }
            Need::SystemLibrary(name, whose) => {
                let cache = std::fs::read("/etc/ld.so.cache").unwrap_or_default();
                // A name may be kept as the end of its path (ldconfig from glibc 2.33 on).
                let is_it = |text: &[u8]| {
                    text.strip_suffix(name.as_bytes()).is_some_and(|before| before.is_empty() || before.ends_with(b"/"))
                };
                let known = cache.split(|&b| b == 0).any(is_it);
                (!known).then(|| format!("no {name} here ({whose})"))
            }
            Need::Tracepoint(_) | Need::Field(..) | Need::Path(_) => None,
        }
    }

    /// Why it is not met and what to do; none when it is.
    fn missing(self, btf: Option<&Btf<'_>>) -> Option<(String, String)> {
        let newer = "use a kernel that has it (Linux 5.10 or later, built with CONFIG_DEBUG_INFO_BTF)".to_owned();
        let btf = || btf.ok_or_else(|| ("the kernel has no type information (BTF)".to_owned(), newer.clone()));
        let met = match self {
            Need::Tracepoint(name) => {
                btf().map(|btf| btf.type_by_name::<libbpf_rs::btf::BtfType<'_>>(&format!("btf_trace_{name}")).is_some())
            }
            Need::Field(of, field) => btf().map(|btf| {
                let found = btf.type_by_name::<Struct<'_>>(of);
                found.is_some_and(|found| found.iter().any(|member| member.name.is_some_and(|name| name == field)))
            }),
            Need::Path(path) => Ok(Path::new(path).exists()),
            Need::Device(..) | Need::SystemLibrary(..) => return None,
        };
        let why = match (met, self) {
            (Ok(true), _) => return None,
            (Err(no_btf), _) => return Some(no_btf),
            (Ok(false), Need::Tracepoint(name)) => format!("the kernel has no tracepoint {name}"),
            (Ok(false), Need::Field(of, field)) => format!("the kernel's struct {of} has no field {field}"),
            (Ok(false), Need::Path(path)) => format!("{path} is missing"),
            (Ok(false), Need::Device(..) | Need::SystemLibrary(..)) => return None,
        };
        Some((why, newer))
    }
}

/// Whether the tracepoints of block requests pass the queue before the request, as they did before
/// Linux 5.11.
pub(crate) fn queue_before_request() -> bool {
    // the first parameter is the tracepoint's own data, the last the request
    Btf::from_vmlinux().is_ok_and(|btf| parameters(&btf, "block_rq_insert") == Some(3))
}

/// How many parameters the kernel declares for what a tracepoint calls.
fn parameters(btf: &Btf<'_>, tracepoint: &str) -> Option<usize> {
    let handler = btf.type_by_name::<Typedef<'_>>(&format!("btf_trace_{tracepoint}"))?;
    let pointer = Ptr::try_from(handler.referenced_type()).ok()?;
    Some(FuncProto::try_from(pointer.referenced_type()).ok()?.iter().len())
}

/// Whether a class is on.
pub(crate) fn is_on(classes: &[ClassStatus], name: &str) -> bool {
    classes.iter().any(|class| class.name == name && class.state == ClassState::On)
}

/// Why capture cannot start at all: a class that it needs is off.
pub(crate) fn missing_essential(classes: &[ClassStatus]) -> Option<String> {
    classes.iter().find_map(|class| {
        let ClassState::Off { why, .. } = &class.state else { return None };
        CLASSES.iter().any(|c| c.name == class.name && c.essential).then(|| why.clone())
    })
}

/// Turns a class off.
pub(crate) fn turn_off(classes: &mut [ClassStatus], name: &str, why: String, remedy: String) {
    for class in classes.iter_mut().filter(|class| class.name == name) {
        class.state = ClassState::Off { why: why.clone(), remedy: remedy.clone() };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_and_programs_belong_to_one_class_each() {
        let names: HashSet<_> = CLASSES.iter().map(|class| class.name).collect();
        assert_eq!(names.len(), CLASSES.len());
        let programs: Vec<_> = CLASSES.iter().flat_map(|class| class.programs).collect();
        assert_eq!(programs.iter().collect::<HashSet<_>>().len(), programs.len());
    }

    #[test]
    fn the_tables_of_every_probe_of_the_host_are_known() {
        for probe in crate::signals::wire::HOST_PROBES {
            assert!(tables::tables_of_probe(probe).is_some_and(|tables| !tables.is_empty()), "{probe}");
        }
    }

    #[test]
    fn what_is_missing_turns_a_class_off_and_says_so() {
        assert_eq!(Need::Path("/proc/self").missing(None), None);
        let (why, remedy) = Need::Path("/no/such/device").missing(None).unwrap();
        assert!(why.contains("/no/such/device") && !remedy.is_empty());
        assert!(Need::Tracepoint("sched_switch").missing(None).unwrap().0.contains("BTF"));
        assert!(Need::Device("/no/such", "card").absent().unwrap().contains("no card"));
        assert_eq!(Need::Device("/proc/self", "card").absent(), None);
        assert!(Need::SystemLibrary("libno-such.so.9", "nobody's").absent().is_some());
        assert_eq!(Need::SystemLibrary("libc.so.6", "the C library").absent(), None);
        assert!(Need::SystemLibrary("bc.so.6", "nobody's").absent().is_some(), "a part of a name");
        let mut config = CaptureConfig { tcp: false, ..CaptureConfig::default() };
        let classes = examine(&config);
        assert_eq!(classes.iter().find(|c| c.name == "tcp").unwrap().state, ClassState::NotWanted);
        config.tcp = true;
        let mut classes = examine(&config);
        assert!(!is_on(&classes, "no such class"));
        turn_off(&mut classes, "tcp", "refused".to_owned(), "ask".to_owned());
        assert!(!is_on(&classes, "tcp"));
        turn_off(&mut classes, "processes", "gone".to_owned(), "none".to_owned());
        assert_eq!(missing_essential(&classes).as_deref(), Some("gone"));
    }

    #[test]
    fn this_kernel_has_what_it_has() {
        let Ok(btf) = Btf::from_vmlinux() else {
            eprintln!("SKIPPED: no BTF here");
            return;
        };
        assert_eq!(Need::Tracepoint("sched_switch").missing(Some(&btf)), None);
        assert_eq!(Need::Field("task_struct", "signal").missing(Some(&btf)), None);
        assert!(Need::Tracepoint("no_such_tracepoint").missing(Some(&btf)).is_some());
        assert!(Need::Field("task_struct", "no_such_field").missing(Some(&btf)).is_some());
        assert_eq!(parameters(&btf, "sched_process_fork"), Some(3), "parent and child, and whom it calls");
        assert_eq!(parameters(&btf, "no_such_tracepoint"), None);
    }
}
