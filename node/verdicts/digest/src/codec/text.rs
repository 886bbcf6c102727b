//! Bytes as text that gossip holds as it is.

/// Seven bits to a character: ASCII, so that gossip's strings hold it as it is.
#[must_use]
pub fn to_text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 8 / 7 + 1);
    let (mut held, mut bits) = (0u16, 0);
    for byte in bytes {
        held |= u16::from(*byte) << bits;
        bits += 8;
        while bits >= 7 {
            text.push(char::from((held & 0x7f) as u8));
            held >>= 7;
            bits -= 7;
        }
    }
    if bits > 0 {
        text.push(char::from((held & 0x7f) as u8));
    }
    text
}

/// The bytes of such a text; none where it is none.
#[must_use]
pub fn from_text(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 7 / 8);
    let (mut held, mut bits) = (0u16, 0);
    for byte in text.bytes() {
        if byte > 0x7f {
            return None;
        }
        held |= u16::from(byte) << bits;
        bits += 7;
        if bits >= 8 {
            bytes.push((held & 0xff) as u8);
            held >>= 8;
            bits -= 8;
        }
    }
    // What is left are the padding bits of the last character.
    (held == 0).then_some(bytes)
}
