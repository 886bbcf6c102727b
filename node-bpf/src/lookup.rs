//! Programs and maps of a loaded object, by name, and the memory of embedded objects.

use libbpf_rs::{MapCore, MapHandle, Object, ProgramMut};

/// libelf reads words from it.
#[repr(align(8))]
pub(crate) struct Aligned<T: ?Sized>(pub(crate) T);

/// A program of the object.
pub(crate) fn program<'obj>(object: &'obj Object, name: &str) -> libbpf_rs::Result<ProgramMut<'obj>> {
    let found = object.progs_mut().find(|program| program.name() == name);
    found.ok_or_else(|| libbpf_rs::Error::from_raw_os_error(libc::ENOENT))
}

/// A map of the object, as a handle of its own.
pub(crate) fn map(object: &Object, name: &str) -> libbpf_rs::Result<MapHandle> {
    let map = object.maps().find(|map| map.name() == name);
    let map = map.ok_or_else(|| libbpf_rs::Error::from_raw_os_error(libc::ENOENT))?;
    MapHandle::try_from(&map)
}
