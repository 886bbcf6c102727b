//! The files whose code a process has mapped, and which of their unwind tables are followed.

use std::time::Instant;

use framehop::x86_64::UnwinderX86_64;
use framehop::{ExplicitModuleSectionInfo, Module as UnwindModule, Unwinder};

use super::super::modules::{Files, Mapping, unwind_tables};
use super::super::process::user_of;
use super::super::tables::{Room, UnwindTables};
use super::NativeReader;
use super::symbols::KnownFunctions;

/// Mappings of code of one process.
const MOST_MODULES: usize = 4096;
/// Addresses whose unwind tables were looked over.
const MOST_LOOKED_OVER: usize = 65_536;

/// A file whose code is mapped.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) mapping: Mapping,
    end: u64,
    pub(super) bias: u64,
    pub(super) name: String,
    tables: Tables,
}

/// What is known of a module's unwind tables.
#[derive(Debug)]
enum Tables {
    /// It has none.
    None,
    /// They are there, with room for the index that was made of them.
    Read(UnwindTables, #[expect(dead_code, reason = "held until it is dropped")] Option<Room>),
    /// They are not read.
    Refused,
}

impl NativeReader {
    /// Takes the files that are mapped now.
    pub(super) fn take_modules(&mut self, mappings: &[Mapping], files: &mut Files) {
        self.unwinder = UnwinderX86_64::new();
        self.modules.clear();
        self.refused.clear();
        self.looked_over.clear();
        self.functions = KnownFunctions::default();
        self.mapped_at = Instant::now();
        self.probes = mappings.iter().find(|mapping| mapping.path == "[uprobes]").map(|m| (m.start, m.end));
        for mapping in mappings.iter().filter(|mapping| mapping.executable && mapping.file.is_some()) {
            if self.modules.len() >= MOST_MODULES {
                self.refused
                    .push((mapping.clone(), format!("it is not among the first {MOST_MODULES} mappings of code")));
                continue;
            }
            let facts = files.facts(self.pid, mapping);
            let Some(bias) = facts.bias(mapping) else {
                self.refused.extend(facts.refusal.as_ref().map(|refusal| (mapping.clone(), refusal.to_string())));
                continue;
            };
            let name = mapping.path.rsplit('/').next().unwrap_or_default().to_owned();
            let tables =
                unwind_tables(self.pid, mapping, &facts).and_then(|tables| self.take_tables(tables, mapping, bias));
            let tables = tables.unwrap_or_else(|why| {
                self.refused.push((mapping.clone(), why));
                Tables::Refused
            });
            self.modules.push(Module { mapping: mapping.clone(), end: mapping.end, bias, name, tables });
        }
        self.modules.sort_by_key(|module| module.mapping.start);
    }

    /// Hands a mapping's unwind tables to the unwinder.
    fn take_tables(&mut self, tables: Option<UnwindTables>, mapping: &Mapping, bias: u64) -> Result<Tables, String> {
        let Some(tables) = tables else { return Ok(Tables::None) };
        let room = match tables.made_index_bytes() {
            0 => None,
            bytes => Some(Room::take(user_of(self.pid).ok_or("its process ends")?, bytes)?),
        };
        let (index, index_at) = tables.index.clone().unzip();
        let sections = ExplicitModuleSectionInfo {
            base_svma: 0,
            eh_frame_svma: Some(tables.frames_at.clone()),
            eh_frame: Some(tables.frames.clone()),
            eh_frame_hdr_svma: index_at,
            eh_frame_hdr: index,
            ..ExplicitModuleSectionInfo::default()
        };
        self.unwinder.add_module(UnwindModule::new(String::new(), mapping.start..mapping.end, bias, sections));
        Ok(Tables::Read(tables, room))
    }

    /// Whether the unwind tables at an address may be followed.
    pub(super) fn may_follow(&mut self, address: u64) -> bool {
        if let Some(known) = self.looked_over.get(&address) {
            return *known;
        }
        let Some(index) = self.module_index(address) else { return false };
        let module = &self.modules[index];
        let may = match &module.tables {
            Tables::None => true,
            Tables::Refused => false,
            Tables::Read(tables, _) => tables.ends(address.wrapping_sub(module.bias)),
        };
        let is_known = |(mapping, _): &(Mapping, String)| mapping.start == module.mapping.start;
        if !may && !self.refused.iter().any(is_known) {
            self.refused.push((module.mapping.clone(), "its unwind tables are none that a compiler makes".to_owned()));
        }
        if self.looked_over.len() >= MOST_LOOKED_OVER {
            self.looked_over.clear();
        }
        self.looked_over.insert(address, may);
        may
    }

    pub(super) fn module_index(&self, address: u64) -> Option<usize> {
        let at = self.modules.partition_point(|module| module.mapping.start <= address).checked_sub(1)?;
        (address < self.modules[at].end).then_some(at)
    }

    pub(super) fn module(&self, address: u64) -> Option<&Module> {
        self.modules.get(self.module_index(address)?)
    }
}
