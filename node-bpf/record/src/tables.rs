//! The tables that each class of probes fills, and so those in which the loss of a probe leaves
//! gaps. Does not own what a class needs of the host or is made of (`node_bpf::CLASSES`) nor the
//! tables' columns (`store`).

/// Processes that use a traced library.
pub const PROCESSES: &[&str] = &["processes"];
/// Calls of NCCL, RCCL and MPI.
pub const COLLECTIVES: &[&str] = &["collectives"];
/// Calls of CUDA and HIP.
pub const CUDA: &[&str] = &["cuda_calls", "call_rollups"];
/// Calls of functions that the user names.
pub const SYMBOLS: &[&str] = &["symbol_calls", "call_rollups"];
/// Threads off the CPU.
pub const OFF_CPU: &[&str] = &["offcpu"];
/// TCP retransmits and resets, and what InfiniBand and RoCE devices report.
pub const NET: &[&str] = &["net_events"];
/// Starts and ends of processes.
pub const PROCESS_EVENTS: &[&str] = &["process_events"];
/// Requests to disks.
pub const BLOCK: &[&str] = &["block_io"];
/// Page faults and reclaim.
pub const MEMORY: &[&str] = &["memory_events"];
/// Requests that servers answer.
pub const REQUESTS: &[&str] = &["requests", "request_stretches", "request_rollups"];
/// Ranks that the kernel kills for want of memory.
pub const OOM: &[&str] = &["memory_events", "process_events"];

/// The tables that may miss rows when a probe has lost records; none for a probe that is not known,
/// which may be any. Probes are named as in the status of capture
/// (`node_bpf::CaptureStatus::probes`).
#[must_use]
pub fn tables_of_probe(probe: &str) -> Option<Vec<&'static str>> {
    let tables: &[&[&str]] = match probe {
        "sched_switch" => &[OFF_CPU],
        "tcp" | "ib_events" => &[NET],
        // A process or thread that is not followed is missing everywhere.
        "sched_process" => &[PROCESSES, COLLECTIVES, OFF_CPU, NET, BLOCK, MEMORY],
        "block_rq" => &[BLOCK],
        "major_fault" | "reclaim" => &[MEMORY],
        "oom_kill" => &[OOM],
        "process_events" => &[PROCESS_EVENTS],
        "calls" => &[COLLECTIVES],
        "requests" => &[REQUESTS],
        // The name of a call is its library's and its own.
        _ => match probe.split_once(':')?.0 {
            "libnccl" | "libmpi" => &[COLLECTIVES],
            "libcudart" | "libcuda" | "libamdhip64" => &[CUDA],
            _ => &[SYMBOLS],
        },
    };
    Some(tables.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_loses_rows_of_its_class() {
        assert_eq!(tables_of_probe("sched_switch"), Some(vec!["offcpu"]));
        assert_eq!(tables_of_probe("libnccl:ncclSend"), Some(vec!["collectives"]));
        assert_eq!(tables_of_probe("oom_kill"), Some(vec!["memory_events", "process_events"]));
        assert_eq!(tables_of_probe("ring"), None);
        let cuda = tables_of_probe("libcudart:cudaMemcpy");
        assert!(cuda.is_some_and(|tables| tables.contains(&"cuda_calls")));
    }
}
