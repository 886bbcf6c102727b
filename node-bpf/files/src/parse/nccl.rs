//! Which build of NCCL or RCCL a file is.

use object::{Object as _, ObjectSection, ObjectSymbol};

use super::sections::Object;
use crate::question::NcclBuild;

/// Rodata beyond this is not searched for a version text.
const MOST_RODATA_BYTES: u64 = 256 << 20;
const WINDOW_BYTES: u64 = 1 << 20;

/// Identified by the `getHash` symbol where that was not stripped, else by the version text ("NCCL
/// version 2.27.5+cuda12.9"); the older style where neither is there.
pub(super) fn build(object: &Object<'_>) -> NcclBuild {
    for symbol in object.file.symbols() {
        match symbol.name() {
            Ok("_Z7getHashPKci") => return NcclBuild { mixes: false, splits_by_text: true },
            Ok("_ZL7getHashPKvm") => return NcclBuild { mixes: true, splits_by_text: false },
            _ => {}
        }
    }
    match version_text(object).as_deref().and_then(major_minor) {
        Some(version) if version >= (2, 26) => NcclBuild { mixes: true, splits_by_text: false },
        Some(version) => NcclBuild { mixes: false, splits_by_text: ((2, 18)..=(2, 22)).contains(&version) },
        None => NcclBuild::default(),
    }
}

/// The version alone ("2.27.5").
pub(super) fn version(object: &Object<'_>) -> Option<String> {
    let text = version_text(object)?;
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    Some(text[..end].trim_end_matches('.').to_owned())
}

fn version_text(object: &Object<'_>) -> Option<String> {
    let rodata = object.file.section_by_name(".rodata")?;
    let size = rodata.size().min(MOST_RODATA_BYTES);
    // windows overlap, so that a text across their border is found
    (0..size).step_by(WINDOW_BYTES as usize).find_map(|at| {
        let from = rodata.address().checked_add(at)?;
        version_in(rodata.data_range(from, (WINDOW_BYTES + 64).min(size - at)).ok()??)
    })
}

/// "2.27.5+cuda12.9" out of "…CCL version 2.27.5+cuda12.9…".
fn version_in(bytes: &[u8]) -> Option<String> {
    const MARK: &[u8] = b"CCL version ";
    let mut rest = bytes;
    while let Some(at) = rest.windows(MARK.len()).position(|window| window == MARK) {
        rest = &rest[at + MARK.len()..];
        let text: String = rest.iter().take(16).map(|&b| char::from(b)).take_while(|c| c.is_ascii_graphic()).collect();
        if major_minor(&text).is_some() {
            return Some(text);
        }
    }
    None
}

fn major_minor(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.').map(str::parse::<u32>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_text_among_others() {
        let text = version_in(b"CCL version %s\0NCCL version mismatch\0NCCL version 2.27.5+cuda12.9\0").unwrap();
        assert_eq!((text.as_str(), major_minor(&text)), ("2.27.5+cuda12.9", Some((2, 27))));
        assert_eq!(version_in(b"RCCL version 2.22.3").as_deref(), Some("2.22.3"));
        assert_eq!(version_in(b"NCCL version"), None);
    }
}
