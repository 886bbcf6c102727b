//! The Huffman code of HPACK (RFC 7541, appendix B), which is canonical: the lengths of the codes
//! say all.

/// Bits of each byte's code; the last is the end of a string, which no string may have.
const BITS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12,
    10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6,
    5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22,
    22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20,
    22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28,
    27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28,
    27, 27, 27, 27, 27, 26, 30,
];
const LONGEST: usize = 30;
const END: u16 = 256;

/// Of codes of a length: the first one, how many there are, and where their symbols begin.
#[derive(Debug, Clone, Copy)]
struct Codes {
    first: u32,
    count: u32,
    at: usize,
}

const CODES: [Codes; LONGEST + 1] = codes();
const SYMBOLS: [u16; 257] = symbols();

const fn codes() -> [Codes; LONGEST + 1] {
    let mut codes = [Codes { first: 0, count: 0, at: 0 }; LONGEST + 1];
    let mut symbol = 0;
    while symbol < BITS.len() {
        codes[BITS[symbol] as usize].count += 1;
        symbol += 1;
    }
    let mut bits = 1;
    while bits <= LONGEST {
        let before = codes[bits - 1];
        codes[bits].first = (before.first + before.count) << 1;
        codes[bits].at = before.at + before.count as usize;
        bits += 1;
    }
    codes
}

const fn symbols() -> [u16; 257] {
    let (mut symbols, mut at, mut bits) = ([0; 257], 0, 1);
    while bits <= LONGEST {
        let mut symbol = 0;
        while symbol < BITS.len() {
            if BITS[symbol] as usize == bits {
                symbols[at] = symbol as u16;
                at += 1;
            }
            symbol += 1;
        }
        bits += 1;
    }
    symbols
}

/// Passes each byte of a coded string to `take`. None where it is no such string.
pub(super) fn decode(coded: &[u8], mut take: impl FnMut(u8)) -> Option<()> {
    let (mut code, mut bits) = (0_u32, 0_usize);
    for byte in coded {
        for shift in (0..8).rev() {
            code = code << 1 | u32::from(byte >> shift & 1);
            bits += 1;
            let codes = CODES.get(bits)?;
            let at = code.wrapping_sub(codes.first);
            if at < codes.count {
                let symbol = *SYMBOLS.get(codes.at + at as usize)?;
                if symbol == END {
                    return None;
                }
                take(symbol as u8);
                (code, bits) = (0, 0);
            }
        }
    }
    // What is left are the first bits of the end's code, which are all ones; fewer than a byte.
    (bits < 8 && code == (1 << bits) - 1).then_some(())
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A string's code, by what the tables say of its bytes.
    pub(in crate::serving) fn encode(text: &[u8]) -> Vec<u8> {
        let mut all: Vec<bool> = vec![];
        for byte in text {
            let bits = usize::from(BITS[usize::from(*byte)]);
            let place = SYMBOLS.iter().position(|symbol| *symbol == u16::from(*byte)).unwrap();
            let code = CODES[bits].first + (place - CODES[bits].at) as u32;
            all.extend((0..bits).rev().map(|shift| code >> shift & 1 == 1));
        }
        let bits = |bits: &[bool]| (0..8).fold(0, |byte, at| byte << 1 | u8::from(*bits.get(at).unwrap_or(&true)));
        all.chunks(8).map(bits).collect()
    }

    fn decoded(coded: &[u8]) -> Option<Vec<u8>> {
        let mut text = vec![];
        decode(coded, |byte| text.push(byte)).map(|()| text)
    }

    #[test]
    fn the_examples_of_the_rfc() {
        let bytes = |hex: &str| -> Vec<u8> {
            (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
        };
        let text = |hex: &str| String::from_utf8(decoded(&bytes(hex)).unwrap()).unwrap();
        assert_eq!(text("f1e3c2e5f23a6ba0ab90f4ff"), "www.example.com");
        assert_eq!(text("a8eb10649cbf"), "no-cache");
        assert_eq!(text("d07abe941054d444a8200595040b8166e082a62d1bff"), "Mon, 21 Oct 2013 20:13:21 GMT");
        assert_eq!(decoded(&[0xff; 4]), None, "the end's code");
        assert_eq!(decoded(&[0x00]), None, "a byte and three zeros");
    }

    proptest! {
        #[test]
        fn what_was_coded_is_read(text in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(decoded(&encode(&text)), Some(text));
        }

        #[test]
        fn any_bytes_are_read_or_refused(coded in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some(text) = decoded(&coded) {
                prop_assert!(text.len() <= coded.len() * 8 / 5);
            }
        }
    }
}
