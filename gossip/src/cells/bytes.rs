//! Values as the bytes that are sent, hashed and sealed.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::MAX_PAYLOAD_BYTES;

pub(crate) fn encoded<T: Serialize>(value: &T) -> Vec<u8> {
    // Nothing that is encoded here can fail to be: no foreign implementations, no unsized sequences.
    bincode::serde::encode_to_vec(value, bincode::config::standard()).unwrap_or_default()
}

/// `None` where the bytes are no such value, or not all of them.
pub(crate) fn decoded<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let config = bincode::config::standard().with_limit::<{ 4 * MAX_PAYLOAD_BYTES }>();
    let (value, read) = bincode::serde::decode_from_slice(bytes, config).ok()?;
    (read == bytes.len()).then_some(value)
}
