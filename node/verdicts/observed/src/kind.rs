//! Kinds of time that is no compute time of a thread's own, by what its host recorded.

use serde::{Deserialize, Serialize};

/// Kinds of evidence. The order is that of precedence: where two cover the same instant, the first
/// one counts, because it says more (a thread that sleeps inside a CUDA call waits for the device).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// In another communication call: no compute time, and left out of the interval's length.
    Communication,
    /// Stopped by a signal or a debugger.
    Stopped,
    /// The cgroup's CPU quota was used up.
    CpuThrottled,
    /// Runnable, but another task had the CPU.
    CpuStolen,
    /// It had to free memory before it got some, or memory pressure held it.
    Reclaim,
    /// A page had to be read from a disk.
    PageFault,
    /// It waited for a block device.
    BlockIo,
    /// The GPU ran with a lowered clock (heat, power).
    GpuThrottled,
    /// In a CUDA call that waits for the device.
    CudaSync,
    /// In a CUDA call that copies or allocates.
    CudaCopy,
    /// In a CUDA call that launches work.
    CudaLaunch,
    /// It waited for a lock or for another thread.
    Lock,
    /// It waited for a socket.
    NetworkWait,
    /// It waited for a pipe, a local socket, a file descriptor or a child process.
    FileWait,
    /// It slept by itself.
    Sleep,
    /// It gave up the CPU; for what is not recorded.
    Wait,
}

impl Kind {
    /// Every kind, in the order of precedence.
    pub const ALL: [Self; Self::Wait as usize + 1] = [
        Self::Communication,
        Self::Stopped,
        Self::CpuThrottled,
        Self::CpuStolen,
        Self::Reclaim,
        Self::PageFault,
        Self::BlockIo,
        Self::GpuThrottled,
        Self::CudaSync,
        Self::CudaCopy,
        Self::CudaLaunch,
        Self::Lock,
        Self::NetworkWait,
        Self::FileWait,
        Self::Sleep,
        Self::Wait,
    ];

    /// Whether the program does that to itself, on whatever host it runs.
    #[must_use]
    pub fn is_of_program(self) -> bool {
        matches!(self, Self::Lock | Self::FileWait | Self::Sleep)
    }

    /// As it stands in JSON and in `findings.cause`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Communication => "communication",
            Self::Stopped => "stopped",
            Self::CpuThrottled => "cpu_throttled",
            Self::CpuStolen => "cpu_stolen",
            Self::Reclaim => "reclaim",
            Self::PageFault => "page_fault",
            Self::BlockIo => "block_io",
            Self::GpuThrottled => "gpu_throttled",
            Self::CudaSync => "cuda_sync",
            Self::CudaCopy => "cuda_copy",
            Self::CudaLaunch => "cuda_launch",
            Self::Lock => "lock",
            Self::NetworkWait => "network_wait",
            Self::FileWait => "file_wait",
            Self::Sleep => "sleep",
            Self::Wait => "wait",
        }
    }
}
