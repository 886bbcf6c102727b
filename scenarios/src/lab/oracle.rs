//! SQLite's answers to questions over the rows of given hosts, in one database.

use std::collections::{BTreeSet, HashMap};

use query_planner::Value;
use rusqlite::Connection;

use super::questions::{SCHEMA, dictionary, name_of, rows_of};
use super::relay::HostId;
use crate::plain;

/// Databases cached: most questions are about one of a few sets of hosts.
const KEPT: usize = 32;

/// Hosts, each with the version of its rows.
pub type Union = Vec<(HostId, usize)>;

/// Has the rows of every host in every version.
pub struct Oracle {
    seed: u64,
    /// Databases with their sizes in bytes.
    kept: HashMap<Union, (Connection, u64)>,
}

impl Oracle {
    /// An oracle for the rows of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, kept: HashMap::new() }
    }

    /// Bytes of the cached databases, which are in memory: the oracle's own, not the hosts'.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.kept.values().map(|(_, bytes)| bytes).sum()
    }

    /// The rows that SQLite gives for `sql` over `union`.
    ///
    /// # Errors
    /// SQLite refuses the question.
    pub fn answer(&mut self, union: &Union, sql: &str) -> anyhow::Result<Vec<Vec<Value>>> {
        if !self.kept.contains_key(union) {
            if self.kept.len() >= KEPT {
                self.kept.clear();
            }
            self.kept.insert(union.clone(), database(union, self.seed)?);
        }
        Ok(plain::rows(&self.kept[union].0, sql)?)
    }
}

/// A database of these rows, and its size in bytes.
fn database(union: &Union, seed: u64) -> anyhow::Result<(Connection, u64)> {
    let mut conn = Connection::open_in_memory()?;
    conn.execute_batch(SCHEMA)?;
    conn.execute_batch("ALTER TABLE t ADD COLUMN node TEXT; ALTER TABLE u ADD COLUMN node TEXT; BEGIN;")?;
    conn.execute_batch(&dictionary())?;
    for (host, version) in union {
        conn.execute_batch(
            &rows_of(*host, *version, seed)
                .replace("INSERT INTO t ", "INSERT INTO t(k, v, x, s) ")
                .replace("INSERT INTO u ", "INSERT INTO u(k, w, tag) "),
        )?;
        for table in ["t", "u"] {
            conn.execute(&format!("UPDATE {table} SET node = ?1 WHERE node IS NULL"), [name_of(*host)])?;
        }
    }
    conn.execute_batch("COMMIT")?;
    let pages = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()";
    let bytes = conn.query_row(pages, [], |row| row.get::<_, i64>(0))?;
    query_planner::harden(&mut conn)?;
    Ok((conn, u64::try_from(bytes)?))
}

/// Whether two answers are the same: rows in order where the question fixes it, doubles up to the
/// order of additions.
#[must_use]
pub fn same(ours: &[Vec<Value>], oracle: &[Vec<Value>], ordered: bool) -> bool {
    let text = |rows: &[Vec<Value>]| {
        let mut rows: Vec<String> = rows.iter().map(|row| row.iter().map(form).collect::<Vec<_>>().join("|")).collect();
        if !ordered {
            rows.sort_unstable();
        }
        rows
    };
    text(ours) == text(oracle)
}

fn form(value: &Value) -> String {
    match value {
        Value::Real(x) if *x == 0.0 => "r0".to_owned(),
        Value::Real(x) => format!("r{x:.9e}"),
        Value::Text(text) => format!("'{}'", String::from_utf8_lossy(text)),
        other => format!("{other:?}"),
    }
}

/// Every way to choose one version a host, at most `limit` ways.
#[must_use]
pub fn unions(hosts: &BTreeSet<HostId>, versions: impl Fn(HostId) -> Vec<usize>, limit: usize) -> Vec<Union> {
    let mut ways: Vec<Union> = vec![Vec::new()];
    for host in hosts {
        let of_host = versions(*host);
        let mut longer = Vec::with_capacity(ways.len() * of_host.len());
        for way in &ways {
            for version in &of_host {
                let mut way = way.clone();
                way.push((*host, *version));
                longer.push(way);
            }
        }
        longer.truncate(limit);
        ways = longer;
    }
    ways
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oracle_sees_exactly_the_rows_of_its_hosts() {
        let mut oracle = Oracle::new(5);
        let mut count = |union: Union| {
            let rows = oracle.answer(&union, "SELECT node, count(*) FROM t GROUP BY node ORDER BY node").unwrap();
            rows.len()
        };
        assert_eq!(count(vec![(0, 0), (3, 0)]), 2);
        assert_eq!(count(vec![(0, 0)]), 1);
        assert_eq!(count(vec![]), 0);
        let versions: Vec<_> =
            [0, 1].map(|version| oracle.answer(&vec![(0, version)], "SELECT sum(v) FROM t").unwrap()).into();
        assert!(!same(&versions[0], &versions[1], true));
        assert!(oracle.bytes() >= 5 * 2 * 4096, "five databases of two tables and more: {}", oracle.bytes());
    }

    #[test]
    fn every_way_is_tried() {
        let ways = unions(&[1, 2].into(), |host| if host == 1 { vec![0] } else { vec![0, 1] }, 8);
        assert_eq!(ways, [vec![(1, 0), (2, 0)], vec![(1, 0), (2, 1)]]);
    }
}
