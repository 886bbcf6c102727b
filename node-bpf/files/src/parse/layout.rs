//! The offsets of rank, size and hash in NCCL's communicator structure (`struct ncclComm`): read
//! from the debug information of the library file that is in use, because they change with every
//! version and with the CUDA it was built for. The wheels carry DWARF; a stripped library has none,
//! and then nothing is guessed.

use gimli::{
    AttributeValue, DebuggingInformationEntry, Dwarf, EndianSlice, Reader as _, RunTimeEndian, Unit, UnitOffset,
};
use object::{Object as _, ObjectSection};

use super::sections::Object;
use crate::question::CommLayout;

/// No field of a structure lies beyond: that of NCCL 2.32 has two megabytes.
const MOST_OFFSET: u64 = 64 << 20;

type Slice<'a> = EndianSlice<'a, RunTimeEndian>;

/// The layout that the file describes; the error says why it cannot be known.
pub(super) fn read<'data>(object: &Object<'data>) -> Result<CommLayout, String> {
    let object = &object.file;
    let endian = if object.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    let load = |id: gimli::SectionId| -> Result<Slice<'data>, String> {
        use gimli::SectionId::{DebugAbbrev, DebugAddr, DebugInfo, DebugLine, DebugLineStr, DebugStr, DebugStrOffsets};
        // the second row only because opening a unit looks at them
        let needed = matches!(id, DebugInfo | DebugAbbrev | DebugStr | DebugLineStr | DebugStrOffsets)
            || matches!(id, DebugLine | DebugAddr);
        let section = object.section_by_name(id.name()).filter(|_| needed);
        let bytes = match section {
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
    let mut dwarf = Dwarf::load(load)?;
    // Units may share one table of abbreviations: it is read once, not once a unit.
    dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
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
    let within = |layout: &CommLayout| {
        let offsets = [Some(layout.rank), Some(layout.nranks), layout.hash, layout.magic];
        offsets.into_iter().flatten().all(|offset| offset < MOST_OFFSET)
    };
    Ok(rank.zip(nranks).map(|(rank, nranks)| CommLayout { rank, nranks, hash, magic }).filter(within))
}

fn offset(value: AttributeValue<Slice<'_>>) -> Option<u64> {
    if let AttributeValue::Exprloc(expression) = &value {
        // DWARF 2: DW_OP_plus_uconst N
        let mut bytes = expression.0;
        return (bytes.read_u8().ok()? == gimli::DW_OP_plus_uconst.0).then(|| bytes.read_uleb128().ok()).flatten();
    }
    value.udata_value()
}
