//! Finds the interpreter in a process: its `_PyRuntime`, its version and with it the layout of its
//! structures.

use std::collections::HashSet;

use super::super::memory::Memory;
use super::super::modules::{Files, Mapping};
use super::super::types::StacksError;
use super::layout::{DEBUG_OFFSETS_BYTES, Layout, Version};

/// An interpreter in a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Interpreter {
    /// Address of `_PyRuntime`.
    pub runtime: u64,
    /// Address of the type of all code objects, where the file exports it.
    pub code_type: Option<u64>,
    /// Layout of its structures.
    pub layout: Layout,
}

/// The interpreter of a process; `None` where it has none.
pub(crate) fn find(pid: u32, mappings: &[Mapping], files: &mut Files) -> Result<Option<Interpreter>, StacksError> {
    let mut seen = HashSet::new();
    let likely = mappings.iter().filter(|mapping| mapping.path.contains("python"));
    let others = mappings.iter().filter(|mapping| !mapping.path.contains("python"));
    for mapping in likely.chain(others) {
        let Some(file) = mapping.file else { continue };
        if !seen.insert(file) {
            continue;
        }
        let facts = files.facts(pid, mapping);
        let Some((runtime, bias)) = facts.runtime.zip(facts.bias(mapping)) else { continue };
        let runtime = runtime.wrapping_add(bias);
        let memory = Memory::of(pid);
        let head = memory
            .read_up_to(runtime, DEBUG_OFFSETS_BYTES)
            .map_err(|errno| super::super::process::refused(pid, errno))?;
        let layout = match Layout::published(&head) {
            Some(layout) => layout,
            None => {
                let exported = facts.version.and_then(|address| memory.word(address.wrapping_add(bias)).ok());
                let version = exported
                    .and_then(Version::from_hex)
                    .or_else(|| Version::from_path(&mapping.path))
                    .or_else(|| mappings.iter().find_map(|mapping| Version::from_path(&mapping.path)));
                let Some(version) = version else {
                    let reason = format!("{} holds a CPython whose version is not to be found", mapping.path);
                    return Err(StacksError::NotReadable { pid, reason });
                };
                Layout::known(version).ok_or_else(|| StacksError::NotReadable {
                    pid,
                    reason: format!("{version} is not known; CPython 3.8 to 3.15 are"),
                })?
            }
        };
        if layout.version.unstable {
            let reason = format!("{} is a pre-release, whose structures are not known", layout.version);
            return Err(StacksError::NotReadable { pid, reason });
        }
        let code_type = facts.code_type.map(|address| address.wrapping_add(bias));
        return Ok(Some(Interpreter { runtime, code_type, layout }));
    }
    Ok(None)
}
