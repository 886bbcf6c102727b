//! No function and no operator that a question may use outlives the question: each of them with the
//! largest values, taken from SQLite's own list of functions, so that one that comes with a new
//! SQLite is tried, too.
//!
//! What is measured is the processor time of the thread, not the time that passes: other work on
//! the machine does not count. Every function is tried with every value, and with the pairs of
//! values that are the worst for some kind of function; that is what continuous integration runs,
//! in well under a minute on two cores. `EVERY_PAIR=1` tries all pairs, three times as many: to be
//! run when SQLite or a function of ours changes. `ONLY=json_` tries the statements with that in
//! them, `TIME_MS=700` gives each more time: what is stopped early while it reads its arguments may
//! be slow only after that.
//!
//! One process and one test: SQLite's allocator is replaced before the first database.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use query_planner::{Stop, memory};
use rusqlite::hooks::{AuthContext, Authorization};
use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode};

/// The longest value of a question.
const LONGEST: usize = 16 << 20;
/// The time a question has here, and what may be used beyond it.
const TIME: Duration = Duration::from_millis(25);
fn time() -> Duration {
    std::env::var("TIME_MS").map_or(TIME, |ms| Duration::from_millis(ms.parse().expect("a number")))
}
/// How much processor time beyond its deadline makes a question one that does not look at it: such
/// a function takes minutes with these values.
const BEYOND: Duration = Duration::from_secs(10);

enum Large {
    Text(Vec<u8>),
    Blob(Vec<u8>),
}

impl ToSql for Large {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Text(text) => ValueRef::Text(text),
            Self::Blob(blob) => ValueRef::Blob(blob),
        }))
    }
}

fn repeated(what: &[u8]) -> Vec<u8> {
    what.iter().copied().cycle().take(LONGEST / what.len() * what.len()).collect()
}

fn listed(open: &str, item: impl Fn(usize) -> String, close: &str) -> Vec<u8> {
    let mut out = String::with_capacity(LONGEST);
    out.push_str(open);
    for i in 0.. {
        let item = item(i);
        if out.len() + item.len() + close.len() + 1 > LONGEST {
            break;
        }
        if i > 0 {
            out.push(',');
        }
        out.push_str(&item);
    }
    out.push_str(close);
    out.into_bytes()
}

/// Values as long as they may be (or half, where something is sought in another), each the worst
/// for some kind of function.
fn values() -> BTreeMap<&'static str, Large> {
    let mut half = vec![b'a'; LONGEST / 2];
    half.push(b'b');
    let many: String = (0x100_u32..).filter_map(char::from_u32).take(1_000_000).collect();
    BTreeMap::from([
        ("letters", Large::Text(vec![b'a'; LONGEST])),
        ("half", Large::Text(half)),
        ("blob", Large::Blob(vec![0; LONGEST])),
        ("digits", Large::Text(repeated(b"1"))),
        ("formats", Large::Text(repeated(b"%q"))),
        ("fields", Large::Text(repeated(b"%%Y"))),
        ("pattern", Large::Text([b"%".as_slice(), &[b'a'; 490], b"b"].concat())),
        ("sets", Large::Text([b"*".as_slice(), &b"[a-zb-y]".repeat(60), b"!"].concat())),
        ("array", Large::Text(listed("[", |i| (i % 10).to_string(), "]"))),
        ("object", Large::Text(listed("{", |i| format!("\"{i:x}\":1"), "}"))),
        ("characters", Large::Text(many.into_bytes())),
        ("long characters", Large::Text(repeated("€".as_bytes()))),
    ])
}

/// Those of them that are tried as second arguments.
const SECOND: [&str; 4] = ["characters", "half", "object", "pattern"];

/// What is tried as the second argument with this first one. What is sought almost occurs in
/// `letters` everywhere (`instr`, `replace`, LIKE); sets of many characters are for `trim`;
/// documents for the functions of JSON.
fn seconds(first: &str) -> &'static [&'static str] {
    match first {
        _ if std::env::var_os("EVERY_PAIR").is_some() => &SECOND,
        "letters" => &["half", "pattern", "characters"],
        "half" | "blob" | "pattern" | "sets" => &["half"],
        "array" | "object" => &["object"],
        "digits" => &["pattern"],
        "long characters" => &["characters", "pattern"],
        _ => &["characters"],
    }
}

/// The processor time of this thread.
fn used() -> Duration {
    // SAFETY: the structure is filled by the call.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time);
        time
    };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A connection as questions have it, with the columns of one row of `t` to read.
fn connection() -> Connection {
    let mut conn = Connection::open_in_memory().expect("a database");
    conn.execute_batch("CREATE TABLE t(i); INSERT INTO t VALUES (1), (2), (3)").expect("a table");
    query_planner::harden(&mut conn).expect("hardened");
    conn
}

/// All functions with their kinds and numbers of arguments.
fn functions() -> Vec<(String, String, i32)> {
    let mut conn = connection();
    conn.authorizer(None::<fn(AuthContext<'_>) -> Authorization>).expect("no authorizer");
    let list = "SELECT DISTINCT name, type, narg FROM pragma_function_list ORDER BY 1, 2, 3";
    let mut list = conn.prepare(list).expect("a list");
    let list = list.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).expect("rows");
    list.collect::<Result<_, _>>().expect("rows")
}

/// Calls of a function with 1 to 2 different arguments: `?1`, and from the second on `?2`.
fn calls(name: &str, kind: &str, arity: i32) -> Vec<String> {
    let arities: Vec<usize> = match usize::try_from(arity) {
        Ok(arity) => vec![arity],
        Err(_) => vec![1, 2, 3, 4, 127],
    };
    let mut calls = Vec::new();
    for arity in arities {
        let args = |first: &str| (0..arity).map(|i| if i == 0 { first } else { "?2" }).collect::<Vec<_>>().join(", ");
        let args = args("?1");
        match kind {
            "s" => calls.push(format!("SELECT typeof({name}({args}))")),
            _ => {
                calls.push(format!("SELECT typeof({name}({args})) FROM t"));
                calls.push(format!("SELECT typeof({name}({args}) OVER (ORDER BY i)) FROM t"));
            }
        }
    }
    calls
}

const OPERATORS: &str =
    "|| + - * / % & | << >> = <> < <= > >= IS|IS NOT|LIKE|NOT LIKE|GLOB|IS DISTINCT FROM|AND|OR|-> ->>";

fn operators() -> Vec<String> {
    let binary = OPERATORS.split_whitespace().flat_map(|word| if word == "||" { vec!["||"] } else { vec![word] });
    let words = ["IS NOT", "NOT LIKE", "IS DISTINCT FROM", "LIKE", "GLOB", "AND", "OR", "IS"];
    let mut all: Vec<String> = binary
        .filter(|word| !word.chars().any(char::is_alphabetic))
        .chain(words)
        .map(|operator| format!("SELECT typeof(?1 {operator} ?2)"))
        .collect();
    for expression in [
        "-?1",
        "+?1",
        "~?1",
        "NOT ?1",
        "?1 IS NULL",
        "?1 COLLATE NOCASE = ?2",
        "?1 COLLATE RTRIM < ?2",
        "?1 IN (?2, ?2, ?1)",
        "?1 BETWEEN ?2 AND ?2",
        "CASE ?1 WHEN ?2 THEN 1 WHEN ?2 THEN 2 END",
        "CAST(?1 AS INTEGER)",
        "CAST(?1 AS REAL)",
        "CAST(?1 AS NUMERIC)",
        "CAST(?1 AS TEXT)",
        "CAST(?1 AS BLOB)",
        "?1 LIKE ?2 ESCAPE 'a'",
        "(?1, ?2) < (?2, ?1)",
        "?1 IN (SELECT ?2 FROM t)",
        "EXISTS (SELECT ?1 FROM t)",
    ] {
        all.push(format!("SELECT typeof({expression})"));
    }
    for select in [
        "SELECT count(*) FROM json_each(?1)",
        "SELECT count(*) FROM json_tree(?1)",
        "SELECT count(*) FROM json_each(?1, ?2)",
        "SELECT count(*) FROM jsonb_each(?1)",
        "SELECT count(*) FROM jsonb_tree(?1)",
        "SELECT DISTINCT typeof(x) FROM (SELECT ?1 || i AS x FROM t)",
        "SELECT count(*) FROM t GROUP BY substr(?1, i)",
        "SELECT i FROM t ORDER BY substr(?1, i) COLLATE NOCASE",
        "SELECT ?1 UNION SELECT ?2 UNION SELECT ?1 EXCEPT SELECT ?2",
    ] {
        all.push(select.to_owned());
    }
    all
}

/// What came of one try.
enum Tried {
    /// It is no question.
    Refused,
    Ended(Duration),
}

fn try_it(conn: &mut Connection, sql: &str, args: [&Large; 2]) -> Tried {
    let _cap = memory::cap(256 << 20);
    let began = used();
    let stop = Stop::at(Some(Instant::now() + time()));
    let looks = stop.clone();
    conn.progress_handler(1_000, Some(move || looks.is_over())).expect("a handler");
    let Ok(mut statement) = conn.prepare(sql) else { return Tried::Refused };
    let count = statement.parameter_count();
    let watched = stop.watch(conn);
    let ended = (|| {
        let bound = args.iter().take(count).enumerate();
        bound.into_iter().try_for_each(|(at, arg)| statement.raw_bind_parameter(at + 1, arg))?;
        let mut rows = statement.raw_query();
        while rows.next()?.is_some() {}
        Ok::<(), rusqlite::Error>(())
    })();
    let took = used() - began;
    drop(watched);
    if let Err(error) = ended {
        let is_stop =
            matches!(error.sqlite_error_code(), Some(ErrorCode::OperationInterrupted | ErrorCode::OutOfMemory));
        assert!(!is_stop || stop.is_over() || took < time(), "{sql}: {error}");
    }
    Tried::Ended(took)
}

#[test]
fn no_function_and_no_operator_outlives_its_question() {
    assert!(memory::install(), "this process has opened no database before");
    let values = values();
    let mut statements = operators();
    let functions = functions();
    for (name, kind, arity) in &functions {
        let name = format!("\"{name}\"");
        statements.extend(calls(&name, kind, *arity));
    }
    assert!(functions.iter().any(|(name, ..)| name == "instr") && statements.len() > 400, "{}", statements.len());
    // To look into a few of them.
    if let Some(only) = std::env::var_os("ONLY") {
        statements.retain(|sql| sql.contains(&*only.to_string_lossy()));
    }
    let next = std::sync::atomic::AtomicUsize::new(0);
    let worst = std::sync::Mutex::new(Vec::new());
    let tried = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut conn = connection();
                while let Some(sql) = statements.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    'values: for (first, one) in &values {
                        for second in seconds(first) {
                            let other = &values[second];
                            match try_it(&mut conn, sql, [one, other]) {
                                Tried::Refused => break 'values,
                                Tried::Ended(took) => {
                                    tried.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                                    let found = (took, sql.clone(), *first, *second);
                                    if took > time() + BEYOND / 8 {
                                        eprintln!("{found:?}");
                                        worst.lock().expect("no panic").push(found);
                                    }
                                }
                            }
                            if !sql.contains("?2") {
                                break;
                            }
                        }
                    }
                }
            });
        }
    });
    let mut worst = worst.into_inner().expect("no panic");
    worst.sort();
    let too_long: Vec<_> = worst.iter().filter(|(took, ..)| *took > time() + BEYOND).collect();
    eprintln!("{} tries of {} statements", tried.into_inner(), statements.len());
    assert!(too_long.is_empty(), "{too_long:#?}");
}
