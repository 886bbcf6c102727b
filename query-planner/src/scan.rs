//! What a fragment asks, as a value: the table, the filter, the keys and aggregates or the columns
//! and order, so that a node can answer it by an executor of its own (rollups, columns) instead of
//! SQLite.
//!
//! The value is read from the fragment's SQL, at the node. So it can never say anything else than
//! the SQL that `--explain` shows and that SQLite would run, nothing new travels, and a node of any
//! version may use it or not (docs/decisions/0005-typed-parts-are-read-from-sql.md). What is
//! not understood is no scan ([`Scan::of`] is `None`), and SQLite does it.

mod read;

use self::read::{Names, View, has_aggregate, source};
use crate::ast::{Output as AstOutput, Select, Source, conjuncts, parse_shallow_select, parse_view};
use crate::batch::Value;

/// A statement over one table.
#[derive(Debug, Clone, PartialEq)]
pub struct Scan {
    /// The table.
    pub table: String,
    /// Columns that the scan has beside the table's: those that a view computes.
    pub derived: Vec<Derived>,
    /// Conditions on columns, all of which must hold.
    pub filter: Vec<Condition>,
    /// Conditions without columns, all of which must hold.
    pub gates: Vec<Constant>,
    /// What is made of the rows.
    pub output: Output,
}

/// A column made of another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Derived {
    /// Its name in the scan, which no column has.
    pub name: String,
    /// The column it is made of.
    pub of: String,
    /// How.
    pub by: By,
}

/// How a column is made of another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum By {
    /// `upper(x)`
    Upper,
    /// `lower(x)`
    Lower,
    /// `CASE WHEN x IS NOT NULL THEN printf('%016x', x) END`
    Hex,
    /// Whatever else is made of one text column, as SQL over [`By::VALUE`]: SQLite works it out
    /// once for each different text.
    Sql {
        /// The expression. It cannot fail.
        sql: String,
        /// What it gives beside NULL: text, or integers.
        is_text: bool,
    },
}

impl By {
    /// The parameter that stands for the text.
    pub const VALUE: &'static str = ":mesh_text";

    /// Whether it gives text; integers otherwise.
    #[must_use]
    pub fn is_text(&self) -> bool {
        !matches!(self, By::Sql { is_text: false, .. })
    }
}

/// A column of a table, as far as scans tell columns apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Whether it holds text, collated by BINARY, and nothing else but NULL.
    pub is_text: bool,
}

/// A table's columns, in order; none for tables whose scans are of no interest.
pub type ColumnsOf<'c> = &'c dyn Fn(&str) -> Option<Vec<Column>>;

/// An expression without columns, as SQL; it may hold `:mesh_node` and `:mesh_now`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constant(pub String);

/// A condition on a column.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    /// The column.
    pub column: String,
    /// What it must be.
    pub test: Test,
}

/// A test of a value.
#[derive(Debug, Clone, PartialEq)]
pub enum Test {
    /// A comparison.
    Compare(Comparison, Constant),
    /// `[NOT] BETWEEN`.
    Between {
        /// NOT.
        not: bool,
        /// Lower bound.
        low: Constant,
        /// Upper bound.
        high: Constant,
    },
    /// `[NOT] IN (…)`.
    In {
        /// NOT.
        not: bool,
        /// The members.
        list: Vec<Constant>,
    },
}

/// A comparison operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `=`
    Equal,
    /// `<>`
    Unequal,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `IS`
    Is,
    /// `IS NOT`
    IsNot,
}

/// What is made of the rows.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Aggregates by group.
    Groups(Groups),
    /// The rows themselves.
    Rows(Rows),
}

/// Aggregates by group.
#[derive(Debug, Clone, PartialEq)]
pub struct Groups {
    /// Grouping values. Without any, all rows are one group.
    pub keys: Vec<Operand>,
    /// Whether there is a group where there is no row: without GROUP BY. (With one whose values are
    /// all constants there is none.)
    pub of_nothing: bool,
    /// Result columns.
    pub columns: Vec<GroupColumn>,
    /// ORDER BY: indices of result columns.
    pub order: Vec<Order<usize>>,
    /// LIMIT and OFFSET.
    pub limit: Option<(i64, i64)>,
}

/// A value of a row: an integer computed from a column, or the column itself.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// A column.
    Column(String),
    /// An integer.
    Integer(i64),
    /// Integer arithmetic: `+ - * / %`, where SQLite would stay in integers; NULL where it divides
    /// by 0.
    Arithmetic(Box<Operand>, char, Box<Operand>),
}

impl Operand {
    /// The columns in it.
    pub fn columns(&self) -> Vec<&str> {
        match self {
            Operand::Column(name) => vec![name],
            Operand::Integer(_) => Vec::new(),
            Operand::Arithmetic(a, _, b) => [a.columns(), b.columns()].concat(),
        }
    }
}

/// A result column of a grouped scan.
#[derive(Debug, Clone, PartialEq)]
pub enum GroupColumn {
    /// A grouping value, by its index.
    Key(usize),
    /// The same for all rows.
    Constant(Constant),
    /// An aggregate.
    Aggregate(Function, Option<Operand>),
}

/// An aggregate function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Function {
    /// `count(*)` without an argument, else `count(x)`.
    Count,
    /// `sum(x)`
    Sum,
    /// `total(x)`
    Total,
    /// `avg(x)`
    Avg,
    /// `min(x)`
    Min,
    /// `max(x)`
    Max,
    /// The partial state of sum, total and avg.
    SumState,
    /// The partial state of approx_quantile.
    SketchState,
    /// The partial state of median and its kin.
    RunsState,
    /// `approx_quantile(x, fraction)`
    Quantile(f64),
    /// `median`, `percentile`, `percentile_cont`, `percentile_disc`.
    Percentile {
        /// 0 to 1.
        fraction: f64,
        /// A value of the column instead of one between two.
        discrete: bool,
    },
}

/// Rows as they are.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows {
    /// Result columns.
    pub columns: Vec<RowColumn>,
    /// ORDER BY, by columns of the table.
    pub order: Vec<Order<String>>,
    /// LIMIT and OFFSET.
    pub limit: Option<(i64, i64)>,
}

/// A result column of rows.
#[derive(Debug, Clone, PartialEq)]
pub enum RowColumn {
    /// A column of the table.
    Column(String),
    /// The same for all rows.
    Constant(Constant),
}

/// An ORDER BY term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order<T> {
    /// What is sorted by.
    pub by: T,
    /// Descending.
    pub desc: bool,
    /// NULLs come first; SQLite's default is first when ascending.
    pub nulls_first: bool,
}

impl Scan {
    /// The scan that `sql` is. `columns` gives the columns of this node's tables.
    #[must_use]
    pub fn of(sql: &str, columns: ColumnsOf<'_>) -> Option<Scan> {
        Self::through_views(sql, columns, &|_| None)
    }

    /// As [`Scan::of`], also for a view that only picks, renames and derives columns of such a
    /// table and filters its rows. `view` gives a view's CREATE statement.
    #[must_use]
    pub fn through_views(sql: &str, columns: ColumnsOf<'_>, view: &dyn Fn(&str) -> Option<String>) -> Option<Scan> {
        let select = parse_shallow_select(sql).ok()?;
        let query = select.single()?;
        if query.distinct || query.having.is_some() || !query.windows.is_empty() {
            return None;
        }
        let from = query.from.as_ref().filter(|from| from.joins.is_empty())?;
        let (mut filter, mut gates) = (Vec::new(), Vec::new());
        let mut through = |select: &Select, alias: Option<String>, node: Option<String>| {
            let mut found = View::of(select, columns)?;
            (filter, gates) = (std::mem::take(&mut found.filter), std::mem::take(&mut found.gates));
            Some((found.table.clone(), Names::through(found, alias, node)))
        };
        let (table, names) = match source(&from.first) {
            Some((table, alias, node)) => match columns(&table) {
                Some(columns) => (table, Names::of(columns, alias, node)),
                None => through(&parse_view(&view(&table)?).ok()?, alias, node)?,
            },
            // An arm of a view (`rules/branches.rs`).
            None => match &from.first {
                Source::Select { select, alias } => through(select, alias.clone(), None)?,
                _ => return None,
            },
        };
        for condition in query.filter.as_ref().map(conjuncts).unwrap_or_default() {
            match names.constant(condition) {
                Some(constant) => gates.push(constant),
                None => filter.push(names.condition(condition)?),
            }
        }
        let is_grouped = !query.group_by.is_empty()
            || query.columns.iter().any(|output| matches!(output, AstOutput::Expr(expr, _) if has_aggregate(expr)));
        let output = if is_grouped {
            Output::Groups(names.groups(query, &select)?)
        } else {
            Output::Rows(names.rows(query, &select)?)
        };
        Some(Scan { table, derived: names.into_derived(), filter, gates, output })
    }

    /// All columns that the scan reads, each once.
    #[must_use]
    pub fn columns(&self) -> Vec<&str> {
        let mut all: Vec<&str> = self.filter.iter().map(|condition| condition.column.as_str()).collect();
        match &self.output {
            Output::Groups(groups) => {
                all.extend(groups.keys.iter().flat_map(Operand::columns));
                for column in &groups.columns {
                    if let GroupColumn::Aggregate(_, Some(operand)) = column {
                        all.extend(operand.columns());
                    }
                }
            }
            Output::Rows(rows) => {
                all.extend(rows.order.iter().map(|order| order.by.as_str()));
                for column in &rows.columns {
                    if let RowColumn::Column(name) = column {
                        all.push(name);
                    }
                }
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// The values of constants on a node.
///
/// # Errors
/// As SQLite's, when one fails (an overflow, say).
pub fn evaluate(
    conn: &rusqlite::Connection,
    constants: &[&Constant],
    node: &str,
    now_unix_ns: i64,
) -> rusqlite::Result<Vec<Value>> {
    constants
        .iter()
        .map(|Constant(sql)| {
            if let Ok(integer) = sql.parse() {
                return Ok(Value::Integer(integer));
            }
            let mut statement = conn.prepare_cached(&format!("SELECT {sql}"))?;
            crate::exec::bind(&mut statement, node, now_unix_ns)?;
            let mut rows = statement.raw_query();
            match rows.next()? {
                Some(row) => Ok(Value::from_sqlite(row.get_ref(0)?)),
                None => Ok(Value::Null),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(sql: &str) -> Option<Scan> {
        Scan::of(sql, &|table| {
            let columns = ["ts_ns", "rank", "func", "bytes"].iter();
            let column = |name: &&str| Column { name: (*name).to_owned(), is_text: *name == "func" };
            (table == "t").then(|| columns.map(column).collect())
        })
    }

    #[test]
    fn aggregates_and_their_partial_states() {
        let sql = "SELECT rank AS k0, mesh_sum(bytes) AS p0, count(*) AS p1, mesh_sketch(bytes) AS p2 FROM t \
                   WHERE ts_ns >= 5 AND 'x' = func GROUP BY 1";
        let scan = scan(sql).unwrap();
        assert_eq!(scan.columns(), ["bytes", "func", "rank", "ts_ns"]);
        let Output::Groups(groups) = scan.output else { panic!() };
        assert_eq!(groups.keys, [Operand::Column("rank".into())]);
        assert_eq!(groups.columns[0], GroupColumn::Key(0));
        assert_eq!(groups.columns[2], GroupColumn::Aggregate(Function::Count, None));
        assert_eq!(scan.filter[1].test, Test::Compare(Comparison::Equal, Constant("'x'".into())));
    }

    #[test]
    fn the_node_column_is_a_constant() {
        let sql = "SELECT node, rank, mesh_exact_sum(bytes) FROM (SELECT *, CAST(:mesh_node AS TEXT) AS node FROM t) AS t \
                   WHERE node IN ('a', 'b') AND t.rank = 3 GROUP BY node, rank ORDER BY 3 DESC LIMIT 5";
        let scan = scan(sql).unwrap();
        assert_eq!(scan.gates.len(), 1);
        assert!(scan.gates[0].0.contains(":mesh_node"), "{:?}", scan.gates);
        let Output::Groups(groups) = scan.output else { panic!() };
        assert_eq!(groups.order, [Order { by: 2, desc: true, nulls_first: false }]);
        assert_eq!(groups.limit, Some((5, 0)));
    }

    #[test]
    fn rows_and_top_k() {
        let Output::Rows(rows) =
            scan("SELECT * FROM t WHERE ts_ns BETWEEN 1 AND 2 ORDER BY bytes DESC LIMIT 3").unwrap().output
        else {
            panic!()
        };
        assert_eq!((rows.columns.len(), rows.order[0].by.as_str(), rows.limit), (4, "bytes", Some((3, 0))));
        assert!(scan("SELECT rank, 'a' FROM t").is_some());
    }

    #[test]
    fn an_expression_over_one_text_is_a_column_of_its_own() {
        let sql = "SELECT CASE func WHEN 'send' THEN 1 ELSE 0 END, count(*) FROM t WHERE func LIKE 'all%' AND bytes > 3 GROUP BY 1";
        let found = scan(sql).unwrap();
        let kinds: Vec<(&str, bool)> = found.derived.iter().map(|one| (one.of.as_str(), one.by.is_text())).collect();
        assert_eq!(kinds, [("func", false), ("func", false)]);
        assert_eq!(found.filter.len(), 2);
        let arm = "SELECT source AS k0, op AS k1, count(*) AS p0, mesh_sum(duration) AS p1 FROM (SELECT 3 AS source, \
                   CASE func WHEN 'send' THEN 1 ELSE 0 END AS op, CAST(0 AS INTEGER) AS duration FROM t AS x WHERE x.func LIKE 'a%') AS events \
                   WHERE events.op > 0 GROUP BY 1, 2";
        let Output::Groups(groups) = scan(arm).unwrap().output else { panic!() };
        assert_eq!((groups.keys.len(), groups.of_nothing), (1, false));
        assert_eq!(groups.columns[3], GroupColumn::Aggregate(Function::SumState, Some(Operand::Integer(0))));
        let Output::Groups(groups) = scan("SELECT 'a', count(*) FROM t GROUP BY 1").unwrap().output else { panic!() };
        assert_eq!((groups.keys.len(), groups.of_nothing), (0, false));
    }

    #[test]
    fn what_is_not_certain_is_left_to_sqlite() {
        for sql in [
            "SELECT rank, bytes, count(*) FROM t GROUP BY rank",
            "SELECT count(DISTINCT rank) FROM t",
            "SELECT count(*) FILTER (WHERE rank = 1) FROM t",
            "SELECT DISTINCT rank FROM t",
            "SELECT rank, count(*) FROM t GROUP BY rank HAVING count(*) > 1",
            "SELECT count(*) FROM t WHERE rank + 1 = 2",
            "SELECT count(*) FROM t WHERE rank = 1 OR rank = 2",
            "SELECT count(*) FROM t, t AS u",
            "SELECT count(*) FROM u",
            "SELECT count(*) FROM t WHERE rank = random()",
            "SELECT count(*) FROM t WHERE rank = (SELECT 1)",
            "SELECT count(*) FROM t WHERE rank = ?",
            "SELECT max(bytes, rank) + sum(bytes) FROM t",
            "SELECT rank COLLATE NOCASE, count(*) FROM t GROUP BY 1",
            "SELECT approx_quantile(bytes, 2) FROM t",
            "SELECT count(*) FROM t WHERE func = 'X' COLLATE NOCASE",
            "SELECT count(*) FROM t WHERE func COLLATE NOCASE = 'X'",
            "SELECT count(*) FROM t WHERE func || rank = 'X'",
            "SELECT count(*) FROM t WHERE func = 'X' OR rank = 1",
            "SELECT func LIKE 'a%' COLLATE NOCASE, count(*) FROM t GROUP BY 1",
            "SELECT json_extract(func, '$'), count(*) FROM t GROUP BY 1",
            "SELECT rank FROM t ORDER BY func COLLATE NOCASE LIMIT 1",
            "SELECT rowid FROM t",
            "WITH t AS (SELECT 1) SELECT * FROM t",
            "SELECT 1 FROM t UNION SELECT 2 FROM t",
            "nonsense",
        ] {
            assert_eq!(scan(sql), None, "{sql}");
        }
    }
}
