//! USDT points of an ELF file: the notes that `sys/sdt.h` leaves in `.note.stapsdt`. Form: the
//! SystemTap wiki, "User space probe implementation": a note of type 3 and owner "stapsdt" has the
//! point's address, that of the section `.stapsdt.base` at link time, that of a semaphore (0:
//! none), then provider, name and arguments as strings.

use object::{Object as _, ObjectSection};

use super::sections::Object;
use crate::question::Point;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Note {
    address: u64,
    base: u64,
    semaphore: u64,
    provider: String,
    name: String,
}

const NOTE_TYPE: u32 = 3;
const MOST_SHOWN: usize = 8;

/// Most places of one point.
const MOST_POINTS: usize = 1_024;

/// All places of a point.
pub(super) fn find(object: &Object<'_>, provider: &str, name: &str) -> Result<Vec<Point>, String> {
    if !object.file.is_little_endian() {
        return Err("its USDT points cannot be read: only those of little-endian files can".to_owned());
    }
    let notes = object.file.section_by_name(".note.stapsdt");
    let notes = notes.map(|section| section.data()).transpose().map_err(|error| error.to_string())?;
    let notes = parse(notes.unwrap_or_default());
    let wanted: Vec<&Note> = notes.iter().filter(|note| note.provider == provider && note.name == name).collect();
    if wanted.is_empty() {
        return Err(missing(&notes, provider, name));
    }
    // prelink may have moved the sections: the base shows by how much
    let base = object.file.section_by_name(".stapsdt.base").map(|section| section.address());
    if wanted.len() > MOST_POINTS {
        return Err(format!("it claims {} places of {provider}:{name}: no library has as many", wanted.len()));
    }
    let offset_of = |address| object.offset_of(address);
    wanted
        .iter()
        .map(|note| {
            let moved = base.map_or(0, |base| base.wrapping_sub(note.base));
            let file_offset = offset_of(note.address.wrapping_add(moved));
            let file_offset = file_offset.ok_or_else(|| format!("{provider}:{name} is not in the file"))?;
            let semaphore_offset = match note.semaphore {
                0 => 0,
                address => offset_of(address.wrapping_add(moved))
                    .ok_or_else(|| format!("the semaphore of {provider}:{name} is not in the file"))?,
            };
            Ok(Point { file_offset, semaphore_offset })
        })
        .collect()
}

fn missing(notes: &[Note], provider: &str, name: &str) -> String {
    let mut there: Vec<String> = notes.iter().map(|note| format!("{}:{}", note.provider, note.name)).collect();
    there.sort();
    there.dedup();
    if there.is_empty() {
        return format!("it has no USDT point {provider}:{name}, and no others: it was built without them");
    }
    let more = there.len().saturating_sub(MOST_SHOWN);
    there.truncate(MOST_SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("it has no USDT point {provider}:{name}; it has {}{more}", there.join(", "))
}

/// The complete notes; a torn section ends where it is torn.
fn parse(mut bytes: &[u8]) -> Vec<Note> {
    let mut notes = vec![];
    while let Some((note, rest)) = take_note(bytes) {
        notes.extend(note);
        bytes = rest;
    }
    notes
}

/// The first note (none inside when it is another's) and what follows it.
fn take_note(bytes: &[u8]) -> Option<(Option<Note>, &[u8])> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let (owner_bytes, content_bytes, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
    let padded = |n: usize| n.checked_next_multiple_of(4);
    let content_at = padded(owner_bytes)?.checked_add(12)?;
    let owner = bytes.get(12..12usize.checked_add(owner_bytes)?)?;
    let content = bytes.get(content_at..content_at.checked_add(content_bytes)?)?;
    let rest = bytes.get(content_at.checked_add(padded(content_bytes)?)?..).unwrap_or_default();
    Some(((kind == NOTE_TYPE && owner == b"stapsdt\0").then(|| content_of(content)).flatten(), rest))
}

fn content_of(content: &[u8]) -> Option<Note> {
    let address = |at: usize| Some(u64::from_le_bytes(content.get(at..at + 8)?.try_into().ok()?));
    let mut texts = content.get(24..)?.split(|&b| b == 0).map(|text| String::from_utf8_lossy(text).into_owned());
    Some(Note {
        address: address(0)?,
        base: address(8)?,
        semaphore: address(16)?,
        provider: texts.next()?,
        name: texts.next()?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn note(owner: &[u8], texts: &[u8]) -> Vec<u8> {
        let mut content: Vec<u8> = [0x1000u64, 0x2000, 0].map(u64::to_le_bytes).concat();
        content.extend(texts);
        let mut bytes = [owner.len() as u32, content.len() as u32, 3].map(u32::to_le_bytes).concat();
        for part in [owner, &content] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn notes_are_read_and_those_of_others_passed_over() {
        let mut bytes = note(b"other\0", b"x\0y\0\0");
        bytes.extend(note(b"stapsdt\0", b"prov\0point\0-4@%edi\0"));
        bytes.extend(note(b"stapsdt\0", b"prov\0second\0\0"));
        let notes = parse(&bytes);
        let names: Vec<_> = notes.iter().map(|n| (n.provider.as_str(), n.name.as_str(), n.address, n.base)).collect();
        assert_eq!(names, [("prov", "point", 0x1000, 0x2000), ("prov", "second", 0x1000, 0x2000)]);
        assert!(missing(&notes, "prov", "third").contains("prov:point, prov:second"));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200), keep in 0usize..60) {
            parse(&bytes);
            let complete = note(b"stapsdt\0", b"p\0n\0\0");
            prop_assert!(parse(&complete[..keep.min(complete.len())]).len() <= 1);
        }
    }
}
