//! Tests of reading pickles: samples that CPython wrote, what is refused, and any bytes.

use super::*;
use proptest::prelude::*;
use serde_json::json;

/// `pickle.dumps({"entries": [{"process_group": ("0", "default_pg"), "collective_seq_id": 8,
/// "is_p2p": False, "time_created_ns": 1700000000000000000, "f": 0.5, "n": None}], "same":
/// [[1], [1]]})` with both `[1]` one list, by CPython 3.11, each protocol.
const SAMPLES: [&str; 3] = [
    "80027d7100285807000000656e747269657371015d71027d710328580d00000070726f636573735f67726f757071045801000000307105580a00000064656661756c745f706771068671075811000000636f6c6c6563746976655f7365715f696471084b08580600000069735f703270710989580f00000074696d655f637265617465645f6e73710a8a0800002a36fe9c9717580100000066710b473fe000000000000058010000006e710c4e7561580400000073616d65710d5d710e285d710f4b0161680f65752e",
    "80049599000000000000007d94288c07656e7472696573945d947d94288c0d70726f636573735f67726f7570948c0130948c0a64656661756c745f70679486948c11636f6c6c6563746976655f7365715f6964944b088c0669735f70327094898c0f74696d655f637265617465645f6e73948a0800002a36fe9c97178c016694473fe00000000000008c016e944e75618c0473616d65945d94285d944b0161680f65752e",
    "286470300a56656e74726965730a70310a286c70320a286470330a5670726f636573735f67726f75700a70340a2856300a70350a5664656661756c745f70670a70360a7470370a7356636f6c6c6563746976655f7365715f69640a70380a49380a735669735f7032700a70390a4930300a735674696d655f637265617465645f6e730a7031300a4c313730303030303030303030303030303030304c0a7356660a7031310a46302e350a73566e0a7031320a4e7361735673616d650a7031330a286c7031340a286c7031350a49310a61616731350a61732e",
];

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn plain_data_is_read_in_every_protocol() {
    for sample in SAMPLES {
        let value = read(&bytes(sample)).unwrap();
        assert_eq!(
            value,
            json!({
                "entries": [{
                    "process_group": ["0", "default_pg"], "collective_seq_id": 8, "is_p2p": false,
                    "time_created_ns": 1_700_000_000_000_000_000_i64, "f": 0.5, "n": null,
                }],
                "same": [[1], [1]],
            })
        );
    }
}

#[test]
fn nothing_is_run_but_typed_lists_are_lists() {
    let system = b"\x80\x02cposix\nsystem\nU\x02id\x85R.";
    assert_eq!(read(system), Err(PickleError::Code("posix.system".to_owned())));
    let list = b"\x80\x02ctorch.jit._pickle\nbuild_intlist\n]K\x07a\x85R.";
    assert_eq!(read(list), Ok(json!([7])));
    assert!(matches!(read(b"\x80\x02}}b."), Err(PickleError::Code(_))));
}

#[test]
fn what_unfolds_to_too_much_is_refused_at_once() {
    let mut deep = b"\x80\x02".to_vec();
    deep.extend(vec![b']'; 300_000]);
    deep.extend(vec![b'a'; 299_999]);
    deep.push(b'.');
    assert_eq!(read(&deep), Err(PickleError::Unfolds));
    // Each list contains the one before twice, forty times over.
    let mut doubling = b"\x80\x02]".to_vec();
    for place in 0..40u8 {
        doubling.extend([b'q', place, b'0', b']', b'(', b'h', place, b'h', place, b'e']);
    }
    doubling.push(b'.');
    assert_eq!(read(&doubling), Err(PickleError::Unfolds));
    // A list that contains itself.
    assert_eq!(read(b"\x80\x02]q\x00h\x00a."), Err(PickleError::Unfolds));
    assert_eq!(read(b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x0f."), Err(PickleError::Short(12)));
    assert!(matches!(read(b"\x80\x02"), Err(PickleError::Short(_))));
}

#[test]
fn millions_of_empty_lists_are_refused() {
    // values, places on the stack, names
    for filler in [b"]", b"2", b"\x94"] {
        let mut many = b"\x80\x02]".to_vec();
        many.extend(filler.repeat(MOST_VALUES + 2));
        many.push(b'.');
        let read = read(&many);
        assert_eq!(read.err(), Some(PickleError::TooMany), "{filler:?}");
    }
}

proptest! {
    #[test]
    fn what_was_written_is_read(
        numbers in proptest::collection::vec(any::<i64>(), 0..20),
        texts in proptest::collection::vec(any::<String>(), 0..5),
        real in -1e9f64..1e9,
    ) {
        let value = json!({"numbers": numbers, "texts": texts, "nested": [{"real": real}, null, true, []]});
        let mut bytes = vec![0x80, 2];
        write(&value, &mut bytes);
        bytes.push(b'.');
        prop_assert_eq!(read(&bytes), Ok(value));
    }

    #[test]
    fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = read(&bytes);
    }

    #[test]
    fn a_damaged_pickle_is_an_error_or_data(at in 0_usize..200, byte: u8) {
        for sample in SAMPLES {
            let mut damaged = bytes(sample);
            let place = at % damaged.len();
            damaged[place] = byte;
            let _ = read(&damaged);
            let _ = read(&damaged[..place]);
        }
    }
}
