//! Reading the calls that have not returned out of the kernel: an iterator over the machine's tasks
//! (`bpf/open_calls.bpf.h`), since a thread's current call is kept with the thread.

use std::io::Read;

use libbpf_rs::{Iter, Link, Object};
use parking_lot::Mutex;

use crate::attach;
use crate::gloo;
use crate::lookup;
use crate::wire::{OPEN_CALL_BYTES, RawInFlight};

/// The attached iterator.
#[derive(Debug)]
pub(crate) struct OpenCalls {
    link: Mutex<Link>,
}

impl OpenCalls {
    pub(crate) fn attach(object: &Object) -> libbpf_rs::Result<Self> {
        let link = lookup::program(object, attach::OPEN_CALLS)?.attach()?;
        Ok(OpenCalls { link: Mutex::new(link) })
    }

    /// The present ones; calls that begin or return meanwhile may be among them or not.
    pub(crate) fn read(&self, now_ns: u64) -> Vec<RawInFlight> {
        let iterator = Iter::new(&self.link.lock());
        let mut bytes = vec![];
        if let Err(error) = iterator.map_err(std::io::Error::other).and_then(|mut i| i.read_to_end(&mut bytes)) {
            tracing::warn!(%error, "cannot read the calls in flight");
        }
        let calls = bytes.chunks_exact(OPEN_CALL_BYTES).filter_map(|call| RawInFlight::parse(call, now_ns));
        calls.filter(|open| !gloo::left_by_exception(open)).collect()
    }
}
