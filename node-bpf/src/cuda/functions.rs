//! The functions of CUDA and HIP that are counted, and where their arguments are. Signatures: the
//! CUDA Runtime and Driver API references and HIP's (structures by value count as the words they
//! are passed in: a `dim3` is two). The index in [`FUNCTIONS`] is the function's number in the
//! kernel. Versions of a function (`_v2`, `_ptsz`) are one.

/// The API of a function. Each is counted by itself: the runtime calls the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Api {
    Runtime = 1,
    Driver = 2,
    Hip = 3,
}

impl Api {
    /// `cuda_calls.api`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Api::Runtime => "runtime",
            Api::Driver => "driver",
            Api::Hip => "hip",
        }
    }

    /// `call_rollups.source`: one for each api, so that a sum over a source counts nothing twice.
    pub(crate) fn source(self) -> &'static str {
        match self {
            Api::Runtime => "cuda",
            Api::Driver => "cuda_driver",
            Api::Hip => "hip",
        }
    }

    /// In the names of probes.
    pub(crate) fn library(self) -> &'static str {
        match self {
            Api::Runtime => "libcudart",
            Api::Driver => "libcuda",
            Api::Hip => "libamdhip64",
        }
    }
}

/// How a copy's direction is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    None,
    /// In this argument, as a `cudaMemcpyKind` (HIP: `hipMemcpyKind`).
    Argument(u8),
    /// By the function itself.
    Fixed(&'static str),
}

/// A function. Argument words count from 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CudaFunction {
    pub(crate) api: Api,
    /// Without version suffixes.
    pub(crate) name: &'static str,
    /// The bytes: this argument, times the second, times two to the third.
    bytes: Option<(u8, Option<u8>, u8)>,
    pub(crate) kind: Kind,
    stream: Option<u8>,
    /// The stream argument points to a launch configuration.
    configured: bool,
    /// Waits for the device.
    sync: bool,
    /// Its role in graphs: `CAPTURE_BEGIN`, `CAPTURE_END`, `EVENT_RECORD`, `EVENT_WAIT` or 0.
    graph: u8,
}

const fn new(api: Api, name: &'static str) -> CudaFunction {
    CudaFunction { api, name, bytes: None, kind: Kind::None, stream: None, configured: false, sync: false, graph: 0 }
}
const fn rt(name: &'static str) -> CudaFunction {
    new(Api::Runtime, name)
}
const fn drv(name: &'static str) -> CudaFunction {
    new(Api::Driver, name)
}
const fn hip(name: &'static str) -> CudaFunction {
    new(Api::Hip, name)
}

impl CudaFunction {
    /// Whether its calls have a number of bytes.
    pub(crate) fn has_bytes(&self) -> bool {
        self.bytes.is_some()
    }
    const fn bytes(self, at: u8) -> Self {
        Self { bytes: Some((at, None, 0)), ..self }
    }
    /// Width times height.
    const fn area(self, width: u8, height: u8) -> Self {
        Self { bytes: Some((width, Some(height), 0)), ..self }
    }
    /// The counts are of elements of two to the `shift` bytes.
    const fn elements(self, shift: u8) -> Self {
        match self.bytes {
            Some((at, second, _)) => Self { bytes: Some((at, second, shift)), ..self },
            None => self,
        }
    }
    const fn kind(self, at: u8) -> Self {
        Self { kind: Kind::Argument(at), ..self }
    }
    const fn goes(self, kind: &'static str) -> Self {
        Self { kind: Kind::Fixed(kind), ..self }
    }
    const fn stream(self, at: u8) -> Self {
        Self { stream: Some(at), ..self }
    }
    const fn configured(self, at: u8) -> Self {
        Self { stream: Some(at), configured: true, ..self }
    }
    const fn graph(self, graph: u8) -> Self {
        Self { graph, ..self }
    }
    const fn sync(self) -> Self {
        Self { sync: true, ..self }
    }
}

const H2D: &str = "host_to_device";
const D2H: &str = "device_to_host";
const D2D: &str = "device_to_device";
const ANY: &str = "default";

/// All of them. Fewer than [`SYMBOLS_FROM`](crate::tally::registry::SYMBOLS_FROM).
pub(crate) static FUNCTIONS: &[CudaFunction] = &[
    // CUDA runtime: memory
    rt("cudaMalloc").bytes(1),
    rt("cudaMallocHost").bytes(1),
    rt("cudaHostAlloc").bytes(1),
    rt("cudaMallocManaged").bytes(1),
    rt("cudaMallocPitch").area(2, 3),
    rt("cudaMalloc3D"),
    rt("cudaMallocAsync").bytes(1).stream(2),
    rt("cudaMallocFromPoolAsync").bytes(1).stream(3),
    rt("cudaFree"),
    rt("cudaFreeHost"),
    rt("cudaFreeAsync").stream(1),
    rt("cudaHostRegister").bytes(1),
    rt("cudaHostUnregister"),
    rt("cudaMemPrefetchAsync").bytes(1),
    // copies and fills
    rt("cudaMemcpy").bytes(2).kind(3),
    rt("cudaMemcpyAsync").bytes(2).kind(3).stream(4),
    rt("cudaMemcpyPeer").bytes(4).goes(D2D),
    rt("cudaMemcpyPeerAsync").bytes(4).goes(D2D).stream(5),
    rt("cudaMemcpy2D").area(4, 5).kind(6),
    rt("cudaMemcpy2DAsync").area(4, 5).kind(6).stream(7),
    rt("cudaMemcpyToSymbol").bytes(2).kind(4),
    rt("cudaMemcpyToSymbolAsync").bytes(2).kind(4).stream(5),
    rt("cudaMemcpyFromSymbol").bytes(2).kind(4),
    rt("cudaMemcpyFromSymbolAsync").bytes(2).kind(4).stream(5),
    rt("cudaMemcpyToArray").bytes(4).kind(5),
    rt("cudaMemcpyFromArray").bytes(4).kind(5),
    rt("cudaMemcpy2DToArray").area(5, 6).kind(7),
    rt("cudaMemcpy2DFromArray").area(5, 6).kind(7),
    rt("cudaMemcpy3D"),
    rt("cudaMemcpy3DAsync").stream(1),
    rt("cudaMemcpyBatchAsync"),
    rt("cudaMemset").bytes(2),
    rt("cudaMemsetAsync").bytes(2).stream(3),
    rt("cudaMemset2D").area(3, 4),
    rt("cudaMemset2DAsync").area(3, 4).stream(5),
    rt("cudaMemset3D"),
    rt("cudaMemset3DAsync"),
    // launches
    rt("cudaLaunchKernel").stream(7),
    rt("cudaLaunchKernelExC").configured(0),
    rt("cudaLaunchCooperativeKernel").stream(7),
    rt("cudaLaunchCooperativeKernelMultiDevice"),
    rt("cudaLaunchHostFunc").stream(0),
    // waiting
    rt("cudaStreamSynchronize").stream(0).sync(),
    rt("cudaDeviceSynchronize").sync(),
    rt("cudaThreadSynchronize").sync(),
    rt("cudaEventSynchronize").sync(),
    rt("cudaStreamWaitEvent").stream(0).graph(EVENT_WAIT),
    rt("cudaEventRecord").stream(1).graph(EVENT_RECORD),
    rt("cudaEventRecordWithFlags").stream(1).graph(EVENT_RECORD),
    // graphs
    rt("cudaStreamBeginCapture").stream(0).graph(CAPTURE_BEGIN),
    rt("cudaStreamBeginCaptureToGraph").stream(0).graph(CAPTURE_BEGIN),
    rt("cudaStreamEndCapture").stream(0).graph(CAPTURE_END),
    rt("cudaGraphInstantiate"),
    rt("cudaGraphInstantiateWithFlags"),
    rt("cudaGraphInstantiateWithParams"),
    rt("cudaGraphExecUpdate"),
    rt("cudaGraphUpload").stream(1),
    rt("cudaGraphLaunch").stream(1),
    // CUDA driver: memory
    drv("cuMemAlloc").bytes(1),
    drv("cuMemAllocHost").bytes(1),
    drv("cuMemHostAlloc").bytes(1),
    drv("cuMemAllocManaged").bytes(1),
    drv("cuMemAllocPitch").area(2, 3),
    drv("cuMemAllocAsync").bytes(1).stream(2),
    drv("cuMemAllocFromPoolAsync").bytes(1).stream(3),
    drv("cuMemFree"),
    drv("cuMemFreeHost"),
    drv("cuMemFreeAsync").stream(1),
    drv("cuMemCreate").bytes(1),
    drv("cuMemRelease"),
    drv("cuMemMap").bytes(1),
    drv("cuMemUnmap").bytes(1),
    drv("cuMemHostRegister").bytes(1),
    drv("cuMemHostUnregister"),
    drv("cuMemPrefetchAsync").bytes(1),
    // copies and fills
    drv("cuMemcpy").bytes(2).goes(ANY),
    drv("cuMemcpyAsync").bytes(2).goes(ANY).stream(3),
    drv("cuMemcpyHtoD").bytes(2).goes(H2D),
    drv("cuMemcpyHtoDAsync").bytes(2).goes(H2D).stream(3),
    drv("cuMemcpyDtoH").bytes(2).goes(D2H),
    drv("cuMemcpyDtoHAsync").bytes(2).goes(D2H).stream(3),
    drv("cuMemcpyDtoD").bytes(2).goes(D2D),
    drv("cuMemcpyDtoDAsync").bytes(2).goes(D2D).stream(3),
    drv("cuMemcpyPeer").bytes(4).goes(D2D),
    drv("cuMemcpyPeerAsync").bytes(4).goes(D2D).stream(5),
    drv("cuMemcpyHtoA").bytes(3).goes(H2D),
    drv("cuMemcpyHtoAAsync").bytes(3).goes(H2D).stream(4),
    drv("cuMemcpyAtoH").bytes(3).goes(D2H),
    drv("cuMemcpyAtoHAsync").bytes(3).goes(D2H).stream(4),
    drv("cuMemcpyDtoA").bytes(3).goes(D2D),
    drv("cuMemcpyAtoD").bytes(3).goes(D2D),
    drv("cuMemcpyAtoA").bytes(4).goes(D2D),
    drv("cuMemcpy2D"),
    drv("cuMemcpy2DUnaligned"),
    drv("cuMemcpy2DAsync").stream(1),
    drv("cuMemcpy3D"),
    drv("cuMemcpy3DAsync").stream(1),
    drv("cuMemcpy3DPeer"),
    drv("cuMemcpy3DPeerAsync").stream(1),
    drv("cuMemcpyBatchAsync"),
    drv("cuMemsetD8").bytes(2),
    drv("cuMemsetD8Async").bytes(2).stream(3),
    drv("cuMemsetD16").bytes(2).elements(1),
    drv("cuMemsetD16Async").bytes(2).elements(1).stream(3),
    drv("cuMemsetD32").bytes(2).elements(2),
    drv("cuMemsetD32Async").bytes(2).elements(2).stream(3),
    drv("cuMemsetD2D8").area(3, 4),
    drv("cuMemsetD2D8Async").area(3, 4).stream(5),
    drv("cuMemsetD2D16").area(3, 4).elements(1),
    drv("cuMemsetD2D16Async").area(3, 4).elements(1).stream(5),
    drv("cuMemsetD2D32").area(3, 4).elements(2),
    drv("cuMemsetD2D32Async").area(3, 4).elements(2).stream(5),
    // launches
    drv("cuLaunchKernel").stream(8),
    drv("cuLaunchKernelEx").configured(0),
    drv("cuLaunchCooperativeKernel").stream(8),
    drv("cuLaunchCooperativeKernelMultiDevice"),
    drv("cuLaunchHostFunc").stream(0),
    drv("cuLaunch"),
    drv("cuLaunchGrid"),
    drv("cuLaunchGridAsync").stream(3),
    // waiting
    drv("cuStreamSynchronize").stream(0).sync(),
    drv("cuCtxSynchronize").sync(),
    drv("cuEventSynchronize").sync(),
    drv("cuStreamWaitEvent").stream(0).graph(EVENT_WAIT),
    drv("cuEventRecord").stream(1).graph(EVENT_RECORD),
    drv("cuEventRecordWithFlags").stream(1).graph(EVENT_RECORD),
    // graphs
    drv("cuStreamBeginCapture").stream(0).graph(CAPTURE_BEGIN),
    drv("cuStreamBeginCaptureToGraph").stream(0).graph(CAPTURE_BEGIN),
    drv("cuStreamEndCapture").stream(0).graph(CAPTURE_END),
    drv("cuGraphInstantiate"),
    drv("cuGraphInstantiateWithFlags"),
    drv("cuGraphInstantiateWithParams"),
    drv("cuGraphExecUpdate"),
    drv("cuGraphUpload").stream(1),
    drv("cuGraphLaunch").stream(1),
    // HIP: memory
    hip("hipMalloc").bytes(1),
    hip("hipExtMallocWithFlags").bytes(1),
    hip("hipHostMalloc").bytes(1),
    hip("hipHostAlloc").bytes(1),
    hip("hipMallocHost").bytes(1),
    hip("hipMallocManaged").bytes(1),
    hip("hipMallocPitch").area(2, 3),
    hip("hipMallocAsync").bytes(1).stream(2),
    hip("hipMallocFromPoolAsync").bytes(1).stream(3),
    hip("hipFree"),
    hip("hipHostFree"),
    hip("hipFreeHost"),
    hip("hipFreeAsync").stream(1),
    hip("hipHostRegister").bytes(1),
    hip("hipHostUnregister"),
    hip("hipMemPrefetchAsync").bytes(1),
    // copies and fills
    hip("hipMemcpy").bytes(2).kind(3),
    hip("hipMemcpyAsync").bytes(2).kind(3).stream(4),
    hip("hipMemcpyWithStream").bytes(2).kind(3).stream(4),
    hip("hipMemcpyHtoD").bytes(2).goes(H2D),
    hip("hipMemcpyHtoDAsync").bytes(2).goes(H2D).stream(3),
    hip("hipMemcpyDtoH").bytes(2).goes(D2H),
    hip("hipMemcpyDtoHAsync").bytes(2).goes(D2H).stream(3),
    hip("hipMemcpyDtoD").bytes(2).goes(D2D),
    hip("hipMemcpyDtoDAsync").bytes(2).goes(D2D).stream(3),
    hip("hipMemcpyPeer").bytes(4).goes(D2D),
    hip("hipMemcpyPeerAsync").bytes(4).goes(D2D).stream(5),
    hip("hipMemcpy2D").area(4, 5).kind(6),
    hip("hipMemcpy2DAsync").area(4, 5).kind(6).stream(7),
    hip("hipMemcpyToSymbol").bytes(2).kind(4),
    hip("hipMemcpyToSymbolAsync").bytes(2).kind(4).stream(5),
    hip("hipMemcpyFromSymbol").bytes(2).kind(4),
    hip("hipMemcpyFromSymbolAsync").bytes(2).kind(4).stream(5),
    hip("hipMemcpy3D"),
    hip("hipMemcpy3DAsync").stream(1),
    hip("hipMemset").bytes(2),
    hip("hipMemsetAsync").bytes(2).stream(3),
    hip("hipMemsetD8").bytes(2),
    hip("hipMemsetD8Async").bytes(2).stream(3),
    hip("hipMemsetD16").bytes(2).elements(1),
    hip("hipMemsetD16Async").bytes(2).elements(1).stream(3),
    hip("hipMemsetD32").bytes(2).elements(2),
    hip("hipMemsetD32Async").bytes(2).elements(2).stream(3),
    hip("hipMemset2D").area(3, 4),
    hip("hipMemset2DAsync").area(3, 4).stream(5),
    // launches
    hip("hipLaunchKernel").stream(7),
    hip("hipExtLaunchKernel").stream(7),
    hip("hipLaunchKernelExC").configured(0),
    hip("hipLaunchCooperativeKernel").stream(7),
    hip("hipModuleLaunchKernel").stream(8),
    hip("hipModuleLaunchCooperativeKernel").stream(8),
    hip("hipExtModuleLaunchKernel").stream(8),
    hip("hipDrvLaunchKernelEx").configured(0),
    hip("hipLaunchHostFunc").stream(0),
    // waiting
    hip("hipStreamSynchronize").stream(0).sync(),
    hip("hipDeviceSynchronize").sync(),
    hip("hipCtxSynchronize").sync(),
    hip("hipEventSynchronize").sync(),
    hip("hipStreamWaitEvent").stream(0).graph(EVENT_WAIT),
    hip("hipEventRecord").stream(1).graph(EVENT_RECORD),
    hip("hipEventRecordWithFlags").stream(1).graph(EVENT_RECORD),
    // graphs
    hip("hipStreamBeginCapture").stream(0).graph(CAPTURE_BEGIN),
    hip("hipStreamBeginCaptureToGraph").stream(0).graph(CAPTURE_BEGIN),
    hip("hipStreamEndCapture").stream(0).graph(CAPTURE_END),
    hip("hipGraphInstantiate"),
    hip("hipGraphInstantiateWithFlags"),
    hip("hipGraphInstantiateWithParams"),
    hip("hipGraphExecUpdate"),
    hip("hipGraphUpload").stream(1),
    hip("hipGraphLaunch").stream(1),
];

/// `RM_TALLY_SYNC` and `RM_TALLY_STREAM_BEHIND`.
const SYNC: u8 = 1;
const STREAM_BEHIND: u8 = 2;
const NO_HALF: u8 = 15;
const NO_BYTE: u8 = 0xff;
/// `RM_TALLY_CAPTURE_BEGIN` and `RM_TALLY_CAPTURE_END`.
const CAPTURE_BEGIN: u8 = 4;
const CAPTURE_END: u8 = 8;
/// `RM_TALLY_EVENT_RECORD` and `RM_TALLY_EVENT_WAIT`.
const EVENT_RECORD: u8 = 16;
const EVENT_WAIT: u8 = 32;

/// The cookie of a function's probe for the BPF programs; see tally.h.
pub(crate) fn cookie(index: usize) -> u64 {
    let Some(f) = FUNCTIONS.get(index) else { return 0 };
    let number = (index as u16).to_le_bytes();
    let flags = if f.sync { SYNC } else { 0 } | if f.configured { STREAM_BEHIND } else { 0 } | f.graph;
    let bytes = f.bytes.map_or(NO_BYTE, |(at, second, _)| at | second.unwrap_or(NO_HALF) << 4);
    let shift = f.bytes.map_or(0, |(.., shift)| shift);
    let kind = if let Kind::Argument(at) = f.kind { at } else { NO_HALF };
    let stream = f.stream.unwrap_or(NO_BYTE);
    u64::from_le_bytes([number[0], number[1], f.api as u8, flags, bytes, kind | shift << 4, stream, 0])
}

/// A copy's direction: `cudaMemcpyKind`; HIP's adds 1024 for a copy on the device by its engines.
pub(crate) fn copy_kind(value: i32) -> Option<&'static str> {
    Some(match value {
        0 => "host_to_host",
        1 => H2D,
        2 => D2H,
        3 | 1024 => D2D,
        4 => ANY,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::cuda::base_name;

    #[test]
    fn every_function_is_there_once_and_by_its_base_name() {
        let names: HashSet<_> = FUNCTIONS.iter().map(|f| f.name).collect();
        assert_eq!(names.len(), FUNCTIONS.len());
        assert!(FUNCTIONS.len() < usize::from(crate::tally::registry::SYMBOLS_FROM));
        for f in FUNCTIONS {
            let prefix = match f.api {
                Api::Runtime => "cuda",
                Api::Driver => "cu",
                Api::Hip => "hip",
            };
            assert!(f.name.starts_with(prefix) && base_name(f.name) == f.name, "{}", f.name);
        }
    }

    #[test]
    fn cookies_say_where_the_arguments_are() {
        let of = |name: &str| cookie(FUNCTIONS.iter().position(|f| f.name == name).unwrap()).to_le_bytes();
        assert_eq!(of("cudaMalloc"), [0, 0, 1, 0, 0xf1, 0x0f, 0xff, 0]);
        assert_eq!(of("cudaMemcpyAsync")[2..], [1, 0, 0xf2, 3, 4, 0]);
        assert_eq!(of("cuMemsetD2D32Async")[2..], [2, 0, 0x43, 0x2f, 5, 0]);
        assert_eq!(of("cudaStreamSynchronize")[2..], [1, SYNC, 0xff, 0x0f, 0, 0]);
        assert_eq!(of("cuEventRecordWithFlags")[2..], [2, EVENT_RECORD, 0xff, 0x0f, 1, 0]);
        assert_eq!(of("hipStreamWaitEvent")[2..], [3, EVENT_WAIT, 0xff, 0x0f, 0, 0]);
        assert_eq!(of("cuLaunchKernelEx")[2..], [2, STREAM_BEHIND, 0xff, 0x0f, 0, 0]);
    }
}
