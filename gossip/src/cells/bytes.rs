//! Values as the bytes that are sent, hashed and sealed.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::MAX_PAYLOAD_BYTES;

pub(crate) fn encoded<T: Serialize>(value: &T) -> Vec<u8> {
    // Nothing that is encoded here can fail to be: no foreign implementations, no unsized sequences.
    bincode::serde::encode_to_vec(value, bincode::config::standard()).unwrap_or_default()
}

/// The value that the bytes begin with, and what follows: a later version says more. `None` where they
/// begin with no such value.
pub(crate) fn decoded<T: DeserializeOwned>(bytes: &[u8]) -> Option<(T, &[u8])> {
    let config = bincode::config::standard().with_limit::<{ 4 * MAX_PAYLOAD_BYTES }>();
    let (value, read) = bincode::serde::decode_from_slice(bytes, config).ok()?;
    Some((value, bytes.get(read..)?))
}

/// What a later version says at the end of something that is sealed, bytes.
const MAX_LATER_BYTES: usize = 1 << 10;

/// Reads what was sealed as these bytes, and what a later version said in them besides. `None` where
/// what is read would not be said by the same bytes.
pub(crate) fn read_said<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<(T, Vec<u8>)> {
    let (value, later) = decoded::<T>(bytes)?;
    let is_whole = later.len() <= MAX_LATER_BYTES && [&encoded(&value), later].concat() == bytes;
    is_whole.then(|| (value, later.to_vec()))
}
