//! Numbers for tracks, processes and collectives that come out the same in every run, so that files
//! of several nodes can be concatenated.

/// A number for these words: FNV-1a over the words and their lengths, its bits mixed by the
/// finaliser of MurmurHash3. Never 0.
pub(super) fn id(words: &[&str]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut eat = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    for word in words {
        (word.len() as u64).to_le_bytes().into_iter().chain(word.bytes()).for_each(&mut eat);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (hash ^ (hash >> 33)).max(1)
}

/// The number of a file's writer, for a file of these nodes and this span.
#[must_use]
pub fn sequence(nodes: &[String], since_ns: i64, until_ns: i64) -> u32 {
    let span = [since_ns.to_string(), until_ns.to_string()];
    let words: Vec<&str> = ["sequence"].into_iter().chain(nodes.iter().chain(&span).map(String::as_str)).collect();
    u32::try_from(id(&words) >> 32).unwrap_or(1).max(1)
}
