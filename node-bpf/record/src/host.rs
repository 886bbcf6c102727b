//! The records of the host's signals. Times are Unix nanoseconds of this host's clock; `rank` is
//! that of the process, none when not known.

use serde::{Deserialize, Serialize};

/// A request to a block device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockIo {
    /// When it was handed to the device.
    pub ts_ns: i64,
    /// From there to its end.
    pub duration_ns: i64,
    /// How long it waited in the kernel's queue before; none when it was not seen entering one.
    pub queue_ns: Option<i64>,
    /// Process that made it.
    pub pid: u32,
    /// Thread that made it.
    pub tid: u32,
    /// Rank.
    pub rank: Option<i32>,
    /// The disk's name, else major:minor.
    pub device: String,
    /// "read", "write", "flush", "discard", …
    pub op: &'static str,
    /// Size.
    pub bytes: u32,
    /// 0, or a negative errno.
    pub error: i32,
    /// cgroup v2 id.
    pub cgroup_id: u64,
}

/// The memory events of a process: one event, or several short ones of a thread that followed each
/// other closely.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryEvent {
    /// When the first began.
    pub ts_ns: i64,
    /// How long they blocked the thread, together; none when that is not known.
    pub duration_ns: Option<i64>,
    /// How many they are.
    pub count: u32,
    /// "major_fault", "direct_reclaim", "oom_kill".
    pub event: &'static str,
    /// Process.
    pub pid: u32,
    /// Thread; none when the event is the process's.
    pub tid: Option<u32>,
    /// Rank.
    pub rank: Option<i32>,
    /// Memory reclaimed.
    pub bytes: Option<i64>,
    /// Details, as text.
    pub detail: Option<&'static str>,
    /// cgroup v2 id; none when it was not seen.
    pub cgroup_id: Option<u64>,
}

/// A process begins, runs another program, or ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessEvent {
    /// When.
    pub ts_ns: i64,
    /// "fork", "exec", "exit", "oom_killed".
    pub event: &'static str,
    /// The process: of a fork the new one.
    pub pid: u32,
    /// Its parent.
    pub parent_pid: Option<u32>,
    /// Its task name.
    pub comm: String,
    /// What it ended with; none of other events, and when a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Rank: its own, else that of the process that started it.
    pub rank: Option<i32>,
    /// cgroup v2 id.
    pub cgroup_id: u64,
}

/// A counter of a fabric's port (InfiniBand, RoCE).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FabricCounter {
    /// When it was read.
    pub ts_ns: i64,
    /// Device, "mlx5_0".
    pub device: String,
    /// Port; none where the counter is the device's.
    pub port: Option<u32>,
    /// Name as in sysfs.
    pub counter: String,
    /// Value.
    pub value: u64,
    /// Growth since the last row of this counter; none at the first.
    pub delta: Option<u64>,
}

/// A GPU, once a second.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GpuSample {
    /// When.
    pub ts_ns: i64,
    /// Index on this host.
    pub gpu: u32,
    /// NVML's UUID.
    pub uuid: Option<String>,
    /// Its model, as NVML names it.
    pub model: Option<String>,
    /// Share of time in which a kernel ran.
    pub utilisation_pct: Option<u32>,
    /// Memory in use.
    pub memory_used_bytes: Option<u64>,
    /// Memory.
    pub memory_total_bytes: Option<u64>,
    /// Power.
    pub power_mw: Option<u32>,
    /// Temperature.
    pub temperature_c: Option<u32>,
    /// Clock of the multiprocessors.
    pub sm_clock_mhz: Option<u32>,
    /// Clock of the memory.
    pub mem_clock_mhz: Option<u32>,
    /// NVML's bits of the reasons why clocks are throttled.
    pub throttle_reasons: Option<u64>,
    /// The same as text, comma-separated.
    pub throttle: Option<String>,
}

/// The host, once a second. Shares are since the last sample, 0 to 100 over all CPUs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HostSample {
    /// When.
    pub ts_ns: i64,
    /// Busy share of the CPUs.
    pub cpu_busy_pct: Option<f64>,
    /// Share idle with IO outstanding.
    pub cpu_iowait_pct: Option<f64>,
    /// Share that the hypervisor gave to others.
    pub steal_pct: Option<f64>,
    /// Load average of a minute.
    pub load_1m: Option<f64>,
    /// Memory to be had without swapping.
    pub memory_available_bytes: Option<u64>,
    /// Memory.
    pub memory_total_bytes: Option<u64>,
    /// Swap in use.
    pub swap_used_bytes: Option<u64>,
    /// Time since the last sample in which some task waited for a CPU.
    pub psi_cpu_some_us: Option<u64>,
    /// The same for IO.
    pub psi_io_some_us: Option<u64>,
    /// Time in which all tasks waited for IO.
    pub psi_io_full_us: Option<u64>,
    /// Time in which some task waited for memory.
    pub psi_memory_some_us: Option<u64>,
    /// Time in which all tasks waited for memory.
    pub psi_memory_full_us: Option<u64>,
}

/// What recording itself costs and loses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SelfStat {
    /// When.
    pub ts_ns: i64,
    /// What is counted.
    pub name: String,
    /// Value.
    pub value: f64,
    /// "count", "bytes", "percent", "ns", …
    pub unit: &'static str,
}

/// A signal of the host, or a sample.
#[derive(Debug, Clone, PartialEq)]
pub enum HostRecord {
    /// A request to a block device.
    Block(BlockIo),
    /// Memory.
    Memory(MemoryEvent),
    /// A process begins or ends.
    Life(ProcessEvent),
    /// A counter of a fabric's port.
    Fabric(FabricCounter),
    /// A GPU.
    Gpu(GpuSample),
    /// The host.
    Host(HostSample),
    /// Recording itself.
    SelfStat(SelfStat),
}
