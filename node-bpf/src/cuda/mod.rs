//! The CUDA runtime, the CUDA driver and HIP: which files they are and where their functions get
//! probes. `functions` lists the functions, `tally` counts the calls, `discovery` attaches.

pub(crate) mod functions;

use files::{Elf, Question};

use crate::symbols::Target;
use functions::{Api, FUNCTIONS};

/// The API that a file of this name holds. Wheels rename their copies
/// ("libcudart-e409450e.so.11.0").
pub(crate) fn api_of(file_name: &[u8]) -> Option<Api> {
    const NAMES: &[(&[u8], Api)] = &[
        (b"libcudart.so", Api::Runtime),
        (b"libcudart-", Api::Runtime),
        (b"libcuda.so", Api::Driver),
        (b"libamdhip64.so", Api::Hip),
        (b"libamdhip64-", Api::Hip),
    ];
    NAMES.iter().find(|(prefix, _)| file_name.starts_with(prefix)).map(|(_, api)| *api)
}

/// A symbol without its version suffixes: `cuMemcpyHtoDAsync_v2_ptsz` is a `cuMemcpyHtoDAsync`. The
/// suffixes name the default stream (`_ptsz`, `_ptds`: each thread's own) or a version of the
/// interface (`_v2`, `_v11040`).
pub(crate) fn base_name(symbol: &str) -> &str {
    let mut name = symbol;
    while let Some((rest, suffix)) = name.rsplit_once('_') {
        let version = suffix.strip_prefix('v').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
        if !version && suffix != "ptsz" && suffix != "ptds" {
            break;
        }
        name = rest;
    }
    name
}

/// What is asked of a file for its probes.
pub(crate) fn question(api: Api) -> Question {
    let prefix = if api == Api::Hip { "hip" } else { "cu" };
    Question::Exports { prefixes: vec![prefix.to_owned()] }
}

/// The probes for a file by what it exports: one for each address, whatever its names.
pub(crate) fn targets(elf: &Elf, api: Api) -> Vec<Target> {
    let mut found: Vec<Target> = vec![];
    for symbol in &elf.symbols {
        let base = base_name(&symbol.name);
        let function = FUNCTIONS.iter().position(|f| f.api == api && f.name == base);
        let (Some(index), Some(file_offset)) = (function, elf.file_offset(symbol.probe)) else { continue };
        if found.iter().all(|target| target.file_offset != file_offset) {
            let (symbol, cookie) = (symbol.name.clone().into(), functions::cookie(index));
            found.push(Target { symbol, file_offset, cookie, semaphore: 0 });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_a_function_are_that_function() {
        for (symbol, base) in [
            ("cudaMemcpyAsync_ptsz", "cudaMemcpyAsync"),
            ("cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyHtoDAsync"),
            ("cudaGraphInstantiate_v12000", "cudaGraphInstantiate"),
            ("cudaMalloc", "cudaMalloc"),
            ("hipMemcpy_spt", "hipMemcpy_spt"),
            ("cu_v", "cu_v"),
        ] {
            assert_eq!(base_name(symbol), base);
        }
    }

    #[test]
    fn libraries_by_name() {
        assert_eq!(api_of(b"libcudart.so.12"), Some(Api::Runtime));
        assert_eq!(api_of(b"libcudart-e409450e.so.11.0"), Some(Api::Runtime));
        assert_eq!(api_of(b"libcuda.so.1"), Some(Api::Driver));
        assert_eq!(api_of(b"libamdhip64.so.6"), Some(Api::Hip));
        assert_eq!(api_of(b"libcudadevrt.so"), None);
    }
}
