//! Single probes on kernels that give a probe no cookie (before Linux 5.15): each probe has a small
//! program of its own, a stub, which stores that probe's cookie and goes on to the common program
//! by a tail call. The stub is `bpf/stub.bpf.c`; the place of the cookie, and the array of the
//! common programs, belong to the capture object (`bpf/features.bpf.h`).

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder, UprobeOpts};

use crate::lookup::{Aligned, map, program};
use crate::symbols::Target;

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/stub.bpf.o")));

const COOKIE_MAP: &str = "probe_cookie";
const TARGETS_MAP: &str = "stub_targets";

/// The names of the object's common programs; the position is the index in the array.
fn targets(object: &Object) -> Vec<(String, bool)> {
    let names = object.progs().map(|program| (program.name().to_string_lossy().into_owned(), program.autoload()));
    names.filter(|(name, _)| name.ends_with("_single")).collect()
}

/// Puts the common programs that are loaded where stubs find them.
pub(crate) fn fill_targets(object: &Object) -> libbpf_rs::Result<()> {
    let array = map(object, TARGETS_MAP)?;
    for (index, (name, loaded)) in (0u32..).zip(targets(object)) {
        if loaded {
            let descriptor = program(object, &name)?.as_fd().as_raw_fd();
            array.update(&index.to_ne_bytes(), &descriptor.to_ne_bytes(), MapFlags::ANY)?;
        }
    }
    Ok(())
}

/// Attaches a stub to a place, in one process or in all (-1), that goes on to the named program.
/// The link keeps all of it alive.
pub(crate) fn attach(
    object: &Object,
    common: &str,
    retprobe: bool,
    (pid, path): (i32, &Path),
    target: &Target,
) -> libbpf_rs::Result<Link> {
    let index = targets(object).iter().position(|(name, _)| name == common);
    let index = index.and_then(|index| u32::try_from(index).ok());
    let index = index.ok_or_else(|| libbpf_rs::Error::from_raw_os_error(libc::ENOENT))?;
    let mut open = ObjectBuilder::default().open_memory(&OBJECT.0)?;
    for mut of_stub in open.maps_mut() {
        let name = of_stub.name().to_string_lossy().into_owned();
        if [COOKIE_MAP, TARGETS_MAP].contains(&name.as_str()) {
            of_stub.reuse_fd(map(object, &name)?.as_fd())?;
        } else if name == ".rodata.stub" {
            of_stub.set_initial_value(&numbers(target.cookie, index))?;
        }
    }
    let stub = open.load()?;
    let (cookie, ref_ctr_offset) = (0, target.semaphore as usize);
    let opts = UprobeOpts { cookie, ref_ctr_offset, retprobe, ..UprobeOpts::default() };
    program(&stub, "hand_on")?.attach_uprobe_with_opts(pid, path, target.file_offset as usize, opts)
}

/// The constants of a stub, `stub` in `bpf/stub.bpf.c`.
fn numbers(cookie: u64, target: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&cookie.to_ne_bytes());
    bytes[8..12].copy_from_slice(&target.to_ne_bytes());
    bytes
}
