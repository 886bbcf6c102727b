use proptest::prelude::*;

use super::*;

fn fields(decoder: &mut Decoder, block: &[u8]) -> Option<Vec<(Name, String)>> {
    let mut all = vec![];
    decoder.decode(block, |name, value| all.push((name, String::from_utf8_lossy(value.bytes).into_owned())))?;
    all.retain(|(name, _)| *name != Name::Other);
    Some(all)
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

fn owned(fields: &[(Name, &str)]) -> Vec<(Name, String)> {
    fields.iter().map(|(name, text)| (*name, (*text).to_owned())).collect()
}

/// RFC 7541, appendix C.4 and C.6: with Huffman codes; the answers in a table of 256 bytes.
#[test]
fn the_examples_of_the_rfc() {
    let mut requests = Decoder::default();
    let index = owned(&[(Name::Method, "GET"), (Name::Path, "/")]);
    assert_eq!(fields(&mut requests, &bytes("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff")), Some(index.clone()));
    assert_eq!(fields(&mut requests, &bytes("8286 84be 5886 a8eb 1064 9cbf")), Some(index));
    let third = bytes("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf");
    assert_eq!(fields(&mut requests, &third), Some(owned(&[(Name::Method, "GET"), (Name::Path, "/index.html")])));
    assert_eq!((requests.kept(), requests.size), (3, 164));

    let mut answers = Decoder::default();
    // The size that the examples agree on outside of the blocks.
    let first = "3fe101 4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d \
                 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3";
    assert_eq!(fields(&mut answers, &bytes(first)), Some(owned(&[(Name::Status, "302")])));
    assert_eq!((answers.kept(), answers.size), (4, 222));
    assert_eq!(fields(&mut answers, &bytes("4883 640e ffc1 c0bf")), Some(owned(&[(Name::Status, "307")])));
    assert_eq!((answers.kept(), answers.size), (4, 222), "the oldest went");
}

#[test]
fn what_refers_to_a_block_that_is_missing_is_not_known_and_the_rest_is() {
    let path = |text: &str| {
        let mut block = vec![0x83, 0x44, text.len() as u8];
        block.extend_from_slice(text.as_bytes());
        block
    };
    let mut decoder = Decoder::default();
    fields(&mut decoder, &path("/a")).unwrap();
    assert_eq!(fields(&mut decoder, &[0x83, 62 | 0x80]), Some(owned(&[(Name::Method, "POST"), (Name::Path, "/a")])));
    decoder.forget();
    assert_eq!(fields(&mut decoder, &[0x83, 62 | 0x80]), Some(owned(&[(Name::Method, "POST")])), "no path");
    fields(&mut decoder, &path("/b")).unwrap();
    assert_eq!(
        fields(&mut decoder, &[62 | 0x80, 63 | 0x80]),
        Some(owned(&[(Name::Path, "/b")])),
        "not what was before"
    );
}

#[test]
fn what_is_no_block_is_refused() {
    for block in ["80", "44ff", "44ffffffff7f", "ffffffffff7f", "4481ff", "0085ffffffff"] {
        let mut decoder = Decoder::default();
        fields(&mut decoder, &[0x44, 1, b'/']).unwrap();
        assert_eq!((fields(&mut decoder, &bytes(block)), decoder.kept()), (None, 0), "{block}");
    }
}

#[test]
fn a_table_and_its_values_are_bounded() {
    let mut decoder = Decoder::default();
    // The size is said to be 2 MiB; then fields of nothing, and a path of 10,000 bytes.
    let mut block = bytes("3fe1ff7f");
    for _ in 0..10_000 {
        block.extend([0x44, 0]);
    }
    fields(&mut decoder, &block).unwrap();
    assert!(decoder.kept() <= MOST_SIZE / FIELD_SIZE, "{}", decoder.kept());
    let long = [&bytes("447f914d")[..], &[b'x'; 10_000]].concat();
    let mut said = None;
    decoder.decode(&long, |_, path| said = Some((path.bytes.len(), path.is_whole))).unwrap();
    assert_eq!(said, Some((MOST_VALUE, false)));
}

/// An encoder that adds all fields, and refers to them where it can.
struct Encoder {
    table: VecDeque<(Vec<u8>, Vec<u8>)>,
    most: usize,
}

impl Encoder {
    fn block(&mut self, fields: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
        let mut block = vec![];
        for (name, value) in fields {
            let at = self.table.iter().position(|(n, v)| (n, v) == (name, value));
            if let Some(at) = at {
                number(&mut block, 0x80, 7, at + 62);
                continue;
            }
            let of_name = self.table.iter().position(|(n, _)| n == name);
            number(&mut block, 0x40, 6, of_name.map_or(0, |at| at + 62));
            if of_name.is_none() {
                text(&mut block, name);
            }
            text(&mut block, value);
            self.table.push_front((name.clone(), value.clone()));
            let size = |table: &VecDeque<(Vec<u8>, Vec<u8>)>| -> usize {
                table.iter().map(|(n, v)| n.len() + v.len() + FIELD_SIZE).sum()
            };
            while size(&self.table) > self.most {
                self.table.pop_back();
            }
        }
        block
    }
}

fn number(block: &mut Vec<u8>, first: u8, bits: u32, number: usize) {
    let most = (1_usize << bits) - 1;
    if number < most {
        block.push(first | number as u8);
        return;
    }
    block.push(first | most as u8);
    let mut rest = number - most;
    while rest >= 128 {
        block.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    block.push(rest as u8);
}

fn text(block: &mut Vec<u8>, text: &[u8]) {
    if text.len().is_multiple_of(2) {
        number(block, 0, 7, text.len());
        block.extend_from_slice(text);
    } else {
        let coded = huffman::tests::encode(text);
        number(block, 0x80, 7, coded.len());
        block.extend(coded);
    }
}

type Blocks = Vec<(bool, Vec<(Vec<u8>, Vec<u8>)>)>;

fn blocks() -> impl Strategy<Value = Blocks> {
    let name = prop::sample::select(vec![&b":path"[..], b":status", b"grpc-status", b"x", b"long-name-of-a-field"]);
    let value = prop::sample::select(vec![&b"/a"[..], b"/b/cc", b"0", b"200", b"", b"a-value-that-takes-some-room"]);
    let field = (name, value).prop_map(|(name, value)| (name.to_vec(), value.to_vec()));
    prop::collection::vec((prop::bool::weighted(0.8), prop::collection::vec(field, 0..6)), 0..40)
}

proptest! {
    #[test]
    fn what_is_said_is_what_was_sent_whatever_is_missing(blocks in blocks(), most in 0_usize..400) {
        let mut encoder = Encoder { table: VecDeque::new(), most };
        let mut decoder = Decoder::default();
        let mut size = vec![];
        number(&mut size, 0x20, 5, most);
        let mut is_whole = true;
        let mut size_said = false;
        for (comes, fields) in blocks {
            let mut block = if size_said { vec![] } else { size.clone() };
            size_said = true;
            block.extend(encoder.block(&fields));
            if !comes {
                decoder.forget();
                is_whole = false;
                continue;
            }
            let mut said = vec![];
            decoder.decode(&block, |name, value| said.push((name, value.bytes.to_vec()))).unwrap();
            said.retain(|(name, _)| *name != Name::Other);
            let sent: Vec<(Name, Vec<u8>)> = fields
                .iter()
                .map(|(name, value)| (Name::of(name), value.clone()))
                .filter(|(name, _)| *name != Name::Other)
                .collect();
            if is_whole {
                prop_assert_eq!(&said, &sent);
            }
            // Else some are missing, and none is another.
            let mut rest = sent.iter();
            prop_assert!(said.iter().all(|field| rest.any(|sent| sent == field)), "{:?} of {:?}", said, sent);
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..8)) {
        let mut decoder = Decoder::default();
        for block in blocks {
            let _ = decoder.decode(&block, |_, _| ());
            prop_assert!(decoder.size <= decoder.most && decoder.kept() * FIELD_SIZE <= MOST_SIZE);
        }
    }
}
