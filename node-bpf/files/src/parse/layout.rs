//! The offsets of rank, size and hash in NCCL's communicator structure (`struct ncclComm`): read
//! from the debug information of the library file that is in use, because they change with every
//! version and with the CUDA it was built for. The wheels carry DWARF; a stripped library has none,
//! and then nothing is guessed. `late` reads a process's memory with it.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use gimli::{
    AttributeValue, DebuggingInformationEntry, Dwarf, EndianSlice, Reader as _, RunTimeEndian, Unit, UnitOffset,
};
use object::read::ReadCache;
use object::{Object, ObjectSection};

/// `NCCL_MAGIC`: the value of `startMagic` in a communicator that is alive (2.20 and later).
pub(crate) const MAGIC: u64 = 0x0280_0280_0280_0280;

/// Debug information larger than this is not read.
const MOST_DEBUG_BYTES: u64 = 1 << 30;

/// Byte offsets in `struct ncclComm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CommLayout {
    /// `int rank`.
    pub(crate) rank: u64,
    /// `int nRanks`.
    pub(crate) nranks: u64,
    /// `uint64_t commHash`.
    pub(crate) hash: Option<u64>,
    /// `uint64_t startMagic`.
    pub(crate) magic: Option<u64>,
}

/// The layouts of the files seen so far, by build id: the same library in many containers is read
/// once.
#[derive(Debug, Default)]
pub(crate) struct Layouts {
    by_build: HashMap<Vec<u8>, Result<Arc<CommLayout>, String>>,
}

impl Layouts {
    /// The layout that a library file has; the error says why it cannot be known.
    pub(crate) fn of(&mut self, path: &Path) -> Result<Arc<CommLayout>, String> {
        let file = File::open(path).map_err(|e| e.to_string())?;
        let cache = ReadCache::new(file);
        let object = object::File::parse(&cache).map_err(|e| format!("not an ELF file: {e}"))?;
        let build_id = object.build_id().ok().flatten().map(<[u8]>::to_vec);
        let Some(build_id) = build_id else {
            return read(&object).map(Arc::new);
        };
        self.by_build.entry(build_id).or_insert_with(|| read(&object).map(Arc::new)).clone()
    }
}

type Slice<'a> = EndianSlice<'a, RunTimeEndian>;

fn read<'data>(object: &object::File<'data, &'data ReadCache<File>>) -> Result<CommLayout, String> {
    let endian = if object.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    let load = |id: gimli::SectionId| -> Result<Slice<'data>, String> {
        use gimli::SectionId::{DebugAbbrev, DebugAddr, DebugInfo, DebugLine, DebugLineStr, DebugStr, DebugStrOffsets};
        // the second row only because opening a unit looks at them
        let needed = matches!(id, DebugInfo | DebugAbbrev | DebugStr | DebugLineStr | DebugStrOffsets)
            || matches!(id, DebugLine | DebugAddr);
        let section = object.section_by_name(id.name()).filter(|_| needed);
        let bytes = match section {
            Some(section) if section.size() > MOST_DEBUG_BYTES => {
                return Err(format!("its {} is too large to be read", id.name()));
            }
            Some(section) => {
                let compressed =
                    section.compressed_file_range().is_ok_and(|r| r.format != object::CompressionFormat::None);
                if compressed {
                    return Err("its debug information is compressed".to_owned());
                }
                section.data().map_err(|e| format!("{}: {e}", id.name()))?
            }
            None => &[],
        };
        Ok(EndianSlice::new(bytes, endian))
    };
    if object.section_by_name(".debug_info").is_none() {
        return Err("it carries no debug information".to_owned());
    }
    let dwarf = Dwarf::load(load)?;
    let mut units = dwarf.units();
    while let Some(header) = units.next().map_err(damaged)? {
        let unit = dwarf.unit(header).map_err(damaged)?;
        if let Some(layout) = in_unit(&dwarf, &unit).map_err(damaged)? {
            return Ok(layout);
        }
    }
    Err("its debug information does not describe ncclComm".to_owned())
}

fn damaged(error: gimli::Error) -> String {
    format!("damaged debug information: {error}")
}

fn in_unit<'a>(dwarf: &Dwarf<Slice<'a>>, unit: &Unit<Slice<'a>>) -> gimli::Result<Option<CommLayout>> {
    // a plain loop over siblings: structures of C headers lie directly below the unit
    let mut entries = unit.entries();
    if entries.next_dfs()?.is_none() || entries.next_dfs()?.is_none() {
        return Ok(None);
    }
    loop {
        let Some(entry) = entries.current() else { return Ok(None) };
        let structure = matches!(entry.tag(), gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type);
        if structure
            && entry.attr_value(gimli::DW_AT_declaration)?.is_none()
            && is_named(dwarf, unit, entry, b"ncclComm")?
            && let Some(layout) = members(dwarf, unit, entry.offset())?
        {
            return Ok(Some(layout));
        }
        if entries.next_sibling()?.is_none() {
            return Ok(None);
        }
    }
}

fn is_named<'a>(
    dwarf: &Dwarf<Slice<'a>>,
    unit: &Unit<Slice<'a>>,
    entry: &DebuggingInformationEntry<'_, '_, Slice<'a>>,
    wanted: &[u8],
) -> gimli::Result<bool> {
    let Some(name) = entry.attr_value(gimli::DW_AT_name)? else { return Ok(false) };
    Ok(dwarf.attr_string(unit, name)?.slice() == wanted)
}

fn members<'a>(
    dwarf: &Dwarf<Slice<'a>>,
    unit: &Unit<Slice<'a>>,
    structure: UnitOffset,
) -> gimli::Result<Option<CommLayout>> {
    let mut tree = unit.entries_tree(Some(structure))?;
    let mut children = tree.root()?.children();
    let (mut rank, mut nranks, mut hash, mut magic) = (None, None, None, None);
    while let Some(child) = children.next()? {
        let member = child.entry();
        if member.tag() != gimli::DW_TAG_member {
            continue;
        }
        for (name, place) in
            [(&b"rank"[..], &mut rank), (b"nRanks", &mut nranks), (b"commHash", &mut hash), (b"startMagic", &mut magic)]
        {
            if is_named(dwarf, unit, member, name)? {
                *place = member.attr_value(gimli::DW_AT_data_member_location)?.and_then(offset);
            }
        }
    }
    Ok(rank.zip(nranks).map(|(rank, nranks)| CommLayout { rank, nranks, hash, magic }))
}

fn offset(value: AttributeValue<Slice<'_>>) -> Option<u64> {
    if let AttributeValue::Exprloc(expression) = &value {
        // DWARF 2: DW_OP_plus_uconst N
        let mut bytes = expression.0;
        return (bytes.read_u8().ok()? == gimli::DW_OP_plus_uconst.0).then(|| bytes.read_uleb128().ok()).flatten();
    }
    value.udata_value()
}
