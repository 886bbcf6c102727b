//! The functions that stand in for SQLite's own, compared with those: any arguments, the same
//! answer or the same error.

use proptest::prelude::*;
use rusqlite::{Connection, params_from_iter};

use crate::batch::Value;
use crate::harden::bound;

/// A database with the functions as they are in questions, or as SQLite has them; both with the
/// bounds of questions.
fn database(ours: bool) -> Connection {
    let conn = Connection::open_in_memory().unwrap();
    bound(&conn).unwrap();
    if ours {
        crate::functions::register(&conn).unwrap();
    }
    conn
}

/// Pieces of text that make the odd cases: characters of one to four bytes, parts of such, zero
/// bytes, wildcards, digits.
const PIECES: [&[u8]; 30] = [
    b"a",
    b"b",
    b"ab",
    b"A",
    b"Z",
    b"z",
    b" ",
    b"%",
    b"_",
    b"*",
    b"?",
    b"[",
    b"]",
    b"^",
    b"-",
    b"\\",
    b"4",
    b"f",
    b"\0",
    "é".as_bytes(),
    "É".as_bytes(),
    "€".as_bytes(),
    "😀".as_bytes(),
    b"\xc3",
    b"\xa9",
    b"\x80",
    b"\xf0\x9f",
    b"\xff",
    b"\xed\xa0\x80",
    b"\xe0\x80\xaf",
];

fn bytes(pieces: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(PIECES.to_vec()), pieces).prop_map(|pieces| pieces.concat())
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        8 => bytes(0..12).prop_map(Value::Text),
        2 => bytes(0..4).prop_map(Value::Text),
        2 => bytes(0..8).prop_map(Value::Blob),
        1 => Just(Value::Null),
        1 => (-2_000_i64..2_000).prop_map(Value::Integer),
        1 => prop::sample::select(vec![1.5, -0.0, 1e300, 4.0, 0.1]).prop_map(Value::Real),
    ]
}

const CALLS: [(&str, usize); 18] = [
    ("instr(?1, ?2)", 2),
    ("instr(?1 || ?2 || ?1, ?2)", 2),
    ("replace(?1, ?2, ?3)", 3),
    ("replace(?1 || ?2 || ?1, ?2, ?3)", 3),
    ("trim(?1)", 1),
    ("ltrim(?1)", 1),
    ("rtrim(?1)", 1),
    ("trim(?1, ?2)", 2),
    ("ltrim(?1, ?2)", 2),
    ("rtrim(?1, ?2)", 2),
    ("unhex(?1)", 1),
    ("unhex(?1, ?2)", 2),
    ("?1 LIKE ?2", 2),
    ("?1 NOT LIKE ?2", 2),
    ("?1 LIKE ?2 ESCAPE ?3", 3),
    ("?1 GLOB ?2", 2),
    ("like(?2, ?1, '\\')", 2),
    ("instr(zeroblob(?1), ?2)", 2),
];

/// Type and bytes of the answer, or the error.
fn answer(conn: &Connection, call: &str, args: &[Value]) -> Result<(String, Value), String> {
    let sql = format!("SELECT typeof({call}), {call}");
    let mut statement = conn.prepare_cached(&sql).map_err(|error| error.to_string())?;
    let row = statement.query_row(params_from_iter(args), |row| Ok((row.get(0)?, Value::from_sqlite(row.get_ref(1)?))));
    row.map_err(|error| error.to_string())
}

thread_local! {
    static BOTH: (Connection, Connection) = (database(true), database(false));
}

fn same(call: &str, args: &[Value]) -> Result<(), TestCaseError> {
    BOTH.with(|(ours, stock)| {
        prop_assert_eq!(answer(ours, call, args), answer(stock, call, args), "{} of {:?}", call, args);
        Ok(())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn any_arguments_give_sqlites_answer(args in prop::collection::vec(value(), 3)) {
        for (call, count) in CALLS {
            same(call, &args[..count])?;
        }
    }

    /// Patterns that match: text with some of it made wildcards.
    #[test]
    fn patterns_match_as_sqlites_do(
        text in bytes(0..14),
        parts in prop::collection::vec((bytes(0..4), prop::sample::select(vec!["%", "_", "%_", "%%", "*", "?", "*?", "[a-z]", "[^a]", "[]]", "", "*[A-Zé]"])), 0..5),
    ) {
        let pattern: Vec<u8> = parts.iter().flat_map(|(bytes, wild)| [bytes.as_slice(), wild.as_bytes()].concat()).collect();
        let around: Vec<u8> = parts.iter().flat_map(|(bytes, _)| [bytes.as_slice(), text.as_slice()].concat()).collect();
        for text in [&text, &around] {
            let args = [Value::Text(text.clone()), Value::Text(pattern.clone()), Value::Text(b"\\".to_vec())];
            for call in ["?1 LIKE ?2", "?1 GLOB ?2", "?1 LIKE ?2 ESCAPE 'b'", "?1 LIKE ?2 ESCAPE '%'", "?1 LIKE ?2 ESCAPE '_'"] {
                same(call, &args[..2])?;
            }
            same("?1 LIKE ?2 ESCAPE ?3", &args)?;
        }
    }
}

#[test]
fn bounds_are_sqlites() {
    let big = Value::Integer(16 << 20);
    for (call, args) in [
        ("length(replace(printf('%.*c', ?1, 'a'), 'a', 'bb'))", vec![big.clone()]),
        ("length(replace(printf('%.*c', ?1, 'a'), 'a', ''))", vec![big.clone()]),
        ("length(replace(printf('%.*c', ?1, 'a'), 'aa', 'b'))", vec![big]),
        ("'a' LIKE printf('%.*c', ?1, '%')", vec![Value::Integer(500)]),
        ("'a' LIKE printf('%.*c', ?1, '%')", vec![Value::Integer(501)]),
        ("'a' GLOB printf('%.*c', ?1, '*')", vec![Value::Integer(501)]),
        ("instr(1, 2, 3)", vec![]),
        ("replace(1, 2)", vec![]),
        ("trim()", vec![]),
        ("unhex(1, 2, 3)", vec![]),
    ] {
        same(call, &args).unwrap();
    }
}

#[test]
fn patched_documents_are_sqlites() {
    let text = |text: &str| Value::Text(text.as_bytes().to_vec());
    let documents = [
        "{}",
        r#"{"a":1,"b":{"c":[2]}}"#,
        r#"{"a":null,"d":"x","b":{"c":null,"e":1}}"#,
        "[1,2]",
        "5",
        "{a:1}",
        "nonsense",
        "",
    ];
    let mut all: Vec<Value> = documents.map(text).to_vec();
    all.extend([
        Value::Null,
        Value::Integer(5),
        Value::Blob(vec![0x4c, 0x17, b'a', 0x13, b'1']),
        Value::Blob(vec![1, 2, 3]),
    ]);
    for one in &all {
        for other in &all {
            let args = [one.clone(), other.clone()];
            for call in [
                "json_patch(?1, ?2)",
                "jsonb_patch(?1, ?2)",
                "json_array(json_patch(?1, ?2))",
                "hex(json_array(jsonb_patch(?1, ?2)))",
            ] {
                same(call, &args).unwrap();
            }
        }
    }
    let long = "SELECT length(json_patch(a, a)) FROM (SELECT json_group_object(value, 1) AS a FROM generate)";
    let conn = database(true);
    conn.execute_batch("CREATE TABLE generate AS WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < 20000) SELECT value FROM n").unwrap();
    let refused = conn.query_row(long, [], |_| Ok(())).expect_err("two long documents");
    assert!(refused.to_string().contains("takes too long"), "{refused}");
}

/// `cargo test -p query-planner --release -- --ignored --nocapture usual_sizes`: what a call costs
/// compared with SQLite's own.
#[test]
#[ignore = "a measurement"]
fn calls_of_usual_sizes_cost_what_sqlites_do() {
    let calls = [
        "instr(x, 'reduce')",
        "instr(x, 'none')",
        "replace(x, 'all', 'ALL')",
        "replace(x, 'none', '')",
        "trim(x)",
        "rtrim(x, '_0123456789')",
        "x LIKE '%reduce%'",
        "x LIKE 'all_reduce%'",
        "x GLOB '*_12*'",
    ];
    for call in calls {
        let ns = |ours: bool| {
            let conn = database(ours);
            conn.execute_batch("CREATE TABLE t(x); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000) INSERT INTO t SELECT 'ncclDevKernel_all_reduce_sum_f32_' || i FROM n").unwrap();
            let sql = format!("SELECT count({call}) FROM t");
            let run = || {
                let began = std::time::Instant::now();
                conn.query_row(&sql, [], |_| Ok(())).unwrap();
                began.elapsed().as_nanos() / 200_000
            };
            (0..7).map(|_| run()).min().unwrap()
        };
        println!("{call}: {} ns a row, SQLite's own {} ns", ns(true), ns(false));
    }
}
