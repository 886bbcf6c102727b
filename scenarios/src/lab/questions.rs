//! Questions from a seed, over the two tables and the dictionary that every host of a lab serves:
//! aggregates, groups, top-k, joins within a node and across nodes, DISTINCT, subqueries, plain
//! rows, exact medians in two rounds.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::relay::HostId;

/// Keys of `t`, `u` and `d` are below this.
pub const KEYS: i64 = 20;

/// The hosts that a question asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Every member.
    All,
    /// Only these.
    Hosts(Vec<HostId>),
    /// Any one: the question only needs tables that are equal everywhere.
    AnyOne,
}

/// A question and the form of its answer.
#[derive(Debug, Clone)]
pub struct Drawn {
    /// The SQL.
    pub sql: String,
    /// Whether the order of its rows is fixed.
    pub ordered: bool,
    /// The hosts that it asks.
    pub scope: Scope,
}

/// Name of a host.
#[must_use]
pub fn name_of(host: HostId) -> String {
    format!("n{host}")
}

/// The schema of every host.
pub const SCHEMA: &str = "CREATE TABLE t(k INTEGER NOT NULL, v INTEGER NOT NULL, x REAL, s TEXT);
     CREATE INDEX t_k ON t(k);
     CREATE TABLE u(k INTEGER NOT NULL, w INTEGER, tag TEXT);
     CREATE TABLE d(id INTEGER PRIMARY KEY, name TEXT NOT NULL);";

/// Tables equal on every host.
pub const REPLICATED: &str = "d";

/// One host's rows as INSERT statements: another version has other rows.
#[must_use]
pub fn rows_of(host: HostId, version: usize, seed: u64) -> String {
    let mut rng = StdRng::seed_from_u64(seed ^ ((host as u64) << 32) ^ version as u64);
    let mut sql = String::new();
    // Every value of v belongs to one host and one version, so that no host's rows can be taken for
    // another's.
    let base = (host as i64 + 1) * 1_000_000 + version as i64 * 1_000;
    for row in 0..rng.random_range(20..60_i64) {
        let (k, v) = (rng.random_range(0..KEYS), base + row);
        // Sums of eighths are exact in any order.
        let x = if rng.random_bool(0.1) {
            "NULL".to_owned()
        } else {
            format!("{}", f64::from(rng.random_range(-400..400)) / 8.0)
        };
        let s = ["NULL", "'red'", "'green'", "'blue'", "''"][rng.random_range(0..5_usize)];
        sql.push_str(&format!("INSERT INTO t VALUES ({k}, {v}, {x}, {s});"));
    }
    for _ in 0..rng.random_range(0..15) {
        let (k, w) = (rng.random_range(0..KEYS), rng.random_range(0..100));
        let tag = ["NULL", "'a'", "'b'"][rng.random_range(0..3_usize)];
        sql.push_str(&format!("INSERT INTO u VALUES ({k}, {w}, {tag});"));
    }
    sql
}

/// The dictionary.
#[must_use]
pub fn dictionary() -> String {
    (0..KEYS).map(|id| format!("INSERT INTO d VALUES ({id}, 'key {}');", id % 7)).collect()
}

/// Draws a question to a lab of `hosts`.
pub fn draw(rng: &mut StdRng, hosts: usize) -> Drawn {
    let n = rng.random_range(0..100_i64);
    let k = rng.random_range(0..KEYS);
    let few = rng.random_range(1..12_i64);
    let mut scope = Scope::All;
    let (sql, ordered) = match rng.random_range(0..20) {
        0 => (format!("SELECT count(*), sum(v), min(v), max(v) FROM t WHERE k < {k}"), true),
        1 => ("SELECT k, count(*), sum(v), avg(x) FROM t GROUP BY k ORDER BY k".to_owned(), true),
        2 => {
            (format!("SELECT s, count(DISTINCT k), max(v) FROM t GROUP BY s HAVING count(*) > {few} ORDER BY 1"), true)
        }
        3 => (format!("SELECT v, k, s FROM t ORDER BY v DESC LIMIT {few} OFFSET {}", n % 5), true),
        4 => (format!("SELECT DISTINCT k, s FROM t WHERE v % {few} = 0"), false),
        5 => ("SELECT node, count(*), sum(v), total(x) FROM t GROUP BY node ORDER BY node".to_owned(), true),
        6 => (format!("SELECT node, v, s FROM t WHERE k = {k}"), false),
        7 => (format!("SELECT t.k, t.v, u.w FROM t JOIN u ON t.k = u.k AND t.node = u.node WHERE u.w < {n}"), false),
        8 => (format!("SELECT count(*), sum(u.w) FROM t JOIN u ON t.k = u.k WHERE t.v % 7 = {}", n % 7), true),
        9 => (
            "SELECT d.name, count(*), sum(t.v) FROM t JOIN d ON d.id = t.k GROUP BY d.name ORDER BY 1".to_owned(),
            true,
        ),
        10 => ("SELECT median(v), stddev(x), count(x) FROM t".to_owned(), true),
        11 => ("SELECT s, percentile(v, 90), median(x) FROM t GROUP BY s ORDER BY s".to_owned(), true),
        12 => (
            "WITH top AS (SELECT k, max(v) AS m FROM t GROUP BY k)
             SELECT count(*), sum(m) FROM top WHERE m > (SELECT avg(v) FROM t)"
                .to_owned(),
            true,
        ),
        13 => {
            let chosen: Vec<HostId> = (0..1 + rng.random_range(0..3)).map(|_| rng.random_range(0..hosts)).collect();
            let names: Vec<String> = chosen.iter().map(|host| format!("'{}'", name_of(*host))).collect();
            scope = Scope::Hosts(chosen);
            (format!("SELECT node, count(*), sum(v) FROM t WHERE node IN ({}) GROUP BY node", names.join(", ")), false)
        }
        14 => (format!("SELECT v FROM t WHERE k IN (SELECT k FROM u WHERE w > {n}) ORDER BY v LIMIT 10"), true),
        15 => {
            scope = Scope::AnyOne;
            (format!("SELECT id, name FROM d WHERE id <= {k} ORDER BY id"), true)
        }
        16 => (format!("SELECT k FROM t WHERE v % 11 = {} UNION SELECT k FROM u WHERE w > {n}", n % 11), false),
        17 => (
            format!("SELECT t.s, u.tag, count(*) FROM t LEFT JOIN u ON u.k = t.k WHERE t.k = {k} GROUP BY 1, 2"),
            false,
        ),
        18 => ("SELECT tag, count(*) FILTER (WHERE w > 50), total(w) FROM u GROUP BY tag ORDER BY 1".to_owned(), true),
        _ => ("SELECT count(*), sum(v) FROM t".to_owned(), true),
    };
    Drawn { sql, ordered, scope }
}
