//! The values that a [`Scan`] is made of.

/// A statement over one table, or over joined rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Scan {
    /// The table; empty where rows are joined.
    pub table: String,
    /// The rows, where they are not those of a table.
    pub joined: Option<Box<Joined>>,
    /// Columns that the scan has in addition to the table's: those that a view computes.
    pub derived: Vec<Derived>,
    /// Conditions on columns, all of which must hold.
    pub filter: Vec<Condition>,
    /// Conditions that are worked out row by row: a row for which one is 0 or NULL is left out.
    pub predicates: Vec<Operand>,
    /// Conditions without columns, all of which must hold.
    pub gates: Vec<Constant>,
    /// Where windows add columns: what is before them. All the rest is then about their rows.
    pub windowed: Option<Windowed>,
    /// What is made of the rows.
    pub output: Output,
}

/// Rows of several scans, joined from the first on.
#[derive(Debug, Clone, PartialEq)]
pub struct Joined {
    /// Where it begins.
    pub first: Side,
    /// What is joined to it, in this order.
    pub joins: Vec<Join>,
}

impl Joined {
    /// All columns of joined rows.
    pub fn columns(&self) -> impl Iterator<Item = &Column> {
        let sides = std::iter::once(&self.first).chain(self.joins.iter().map(|join| &join.side));
        let made = self.joins.iter().filter_map(|join| join.value.as_ref()).map(|(column, _)| column);
        sides.flat_map(|side| side.columns.iter().map(|column| &column.column)).chain(made)
    }
}

/// Where the rows of a side come from.
#[derive(Debug, Clone, PartialEq)]
pub enum SideRows {
    /// A scan: rows as they are, or groups.
    Scan(Box<Scan>),
    /// A SELECT that SQLite runs: over tables that are not columnar, or none. Whether its columns
    /// are of the expected kinds shows when it has run.
    Sql(String),
}

/// Rows that are joined.
#[derive(Debug, Clone, PartialEq)]
pub struct Side {
    /// Where they come from.
    pub rows: SideRows,
    /// What is needed of them.
    pub columns: Vec<SideColumn>,
}

/// A column of a side.
#[derive(Debug, Clone, PartialEq)]
pub struct SideColumn {
    /// Its name among all columns of the join, and the kind of its values.
    pub column: Column,
    /// Which result column of the side's scan it is.
    pub of: usize,
}

/// A side and which of its rows belong to a row of the sides before.
#[derive(Debug, Clone, PartialEq)]
pub struct Join {
    /// What becomes of a row.
    pub keeps: Keeps,
    /// The side.
    pub side: Side,
    /// What must be equal: an operand over the sides before, one over this side. NULL equals
    /// nothing.
    pub equal: Vec<(Operand, Operand)>,
    /// The bounds of a column of this side: all are about one column.
    pub bounds: Vec<Bound>,
    /// Conditions on both, worked out for each pair.
    pub residual: Vec<Operand>,
    /// Of [`Keeps::Value`]: the column, and what it is.
    pub value: Option<(Column, OfMatches)>,
}

/// What is made of the rows of a side that belong to a row before: integers.
#[derive(Debug, Clone, PartialEq)]
pub enum OfMatches {
    /// Whether there is one (EXISTS): 1 or 0.
    Exists,
    /// `count(*)` without an operand, else `count(x)`.
    Count(Option<Operand>),
    /// `min(x)`
    Least(Operand),
    /// `max(x)`
    Greatest(Operand),
}

impl OfMatches {
    /// What it is worked out from.
    pub fn operand(&self) -> Option<&Operand> {
        match self {
            Self::Exists | Self::Count(None) => None,
            Self::Count(Some(of)) | Self::Least(of) | Self::Greatest(of) => Some(of),
        }
    }
}

/// A bound of a column.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// The column.
    pub column: String,
    /// `<`, `<=`, `>` or `>=`.
    pub comparison: Comparison,
    /// What it is compared with: an operand over the sides before.
    pub with: Operand,
}

/// What a join makes of a row of the sides before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// A row for each row that belongs to it (JOIN).
    Matching,
    /// The same, and where there is none one with NULLs (LEFT JOIN).
    All,
    /// The row, where one belongs to it (EXISTS, IN).
    WithMatch,
    /// The row, where none belongs to it (NOT EXISTS).
    WithoutMatch,
    /// The row, where it is certain that none equals it (NOT IN): a NULL on either side equals
    /// perhaps.
    NotAmong,
    /// The row, with a value that is made of those that belong to it (a subquery that is a value).
    Value,
}

/// Rows with columns that windows add.
#[derive(Debug, Clone, PartialEq)]
pub struct Windowed {
    /// As [`Scan::filter`].
    pub filter: Vec<Condition>,
    /// As [`Scan::predicates`].
    pub predicates: Vec<Operand>,
    /// As [`Scan::gates`].
    pub gates: Vec<Constant>,
    /// The columns.
    pub calls: Vec<WindowCall>,
}

/// A column that a window adds.
#[derive(Debug, Clone, PartialEq)]
pub struct WindowCall {
    /// Its name in the scan, which no other column has, and the kind of its values.
    pub column: Column,
    /// How it is made.
    pub function: WindowFunction,
    /// Of which rows.
    pub window: Window,
}

/// The rows that a row is seen among.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    /// PARTITION BY
    pub partition: Vec<Operand>,
    /// ORDER BY
    pub order: Vec<Order<Operand>>,
}

/// A window function.
#[derive(Debug, Clone, PartialEq)]
pub enum WindowFunction {
    /// `row_number()`
    RowNumber,
    /// `ntile(n)`
    Tile(i64),
    /// `rank()`
    Rank,
    /// `dense_rank()`
    DenseRank,
    /// `lag(of, -by, otherwise)` or `lead(of, by, otherwise)`
    Shifted {
        /// The value.
        of: Operand,
        /// How many rows on it stands.
        by: i64,
        /// The value where there is no such row.
        otherwise: Operand,
    },
    /// `count`
    Count(Option<Operand>, Frame),
    /// `sum`
    Sum(Operand, Frame),
    /// `min`
    Least(Operand, Frame),
    /// `max`
    Greatest(Operand, Frame),
    /// `avg`: doubles.
    Mean(Operand, Frame),
    /// `percent_rank()`: doubles.
    PercentRank,
    /// `cume_dist()`: doubles.
    Cumulative,
}

impl WindowFunction {
    /// Whether it gives doubles.
    #[must_use]
    pub fn is_real(&self) -> bool {
        matches!(self, Self::Mean(..) | Self::PercentRank | Self::Cumulative)
    }
}

impl WindowFunction {
    /// What it is worked out from.
    fn operands(&self) -> Vec<&Operand> {
        match self {
            Self::RowNumber
            | Self::Tile(_)
            | Self::Rank
            | Self::DenseRank
            | Self::PercentRank
            | Self::Cumulative
            | Self::Count(None, _) => Vec::new(),
            Self::Shifted { of, otherwise, .. } => vec![of, otherwise],
            Self::Count(Some(of), _)
            | Self::Sum(of, _)
            | Self::Least(of, _)
            | Self::Greatest(of, _)
            | Self::Mean(of, _) => vec![of],
        }
    }
}

/// Which rows of its partition an aggregate sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// All.
    Whole,
    /// Those up to the row and those that are equal to it in order.
    Peers,
    /// Those up to the row.
    Rows,
    /// From so many rows after the row (before it where negative) to so many after it. Not for the
    /// least and the greatest.
    Between(i64, i64),
}

impl Windowed {
    /// The operands of conditions and windows.
    pub fn operands(&self) -> Vec<&Operand> {
        self.predicates.iter().chain(self.calls.iter().flat_map(WindowCall::operands)).collect()
    }
}

impl WindowCall {
    /// All that it is made of.
    pub fn operands(&self) -> impl Iterator<Item = &Operand> {
        let order = self.window.order.iter().map(|order| &order.by);
        self.function.operands().into_iter().chain(&self.window.partition).chain(order)
    }
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
        /// What it gives, if not NULL: text, or integers.
        is_text: bool,
    },
}

impl By {
    /// The parameter that stands for the text; in [`Groups::made`], for the integer.
    pub const VALUE: &'static str = ":mesh_text";

    /// Whether it gives text; integers otherwise.
    #[must_use]
    pub fn is_text(&self) -> bool {
        !matches!(self, By::Sql { is_text: false, .. })
    }
}

/// A column of a table, as far as scans distinguish columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Whether it has text, collated by BINARY, and nothing else but NULL.
    pub is_text: bool,
    /// Whether it has doubles and nothing else but NULL. Only what is made in memory does, and
    /// there as their bits.
    pub is_real: bool,
}

impl Column {
    /// One of integers.
    #[must_use]
    pub fn of_integers(name: String) -> Self {
        Self { name, is_text: false, is_real: false }
    }

    /// One of text, or of integers.
    #[must_use]
    pub fn of_text(name: String, is_text: bool) -> Self {
        Self { name, is_text, is_real: false }
    }
}

/// A table's columns, in order; none for tables whose scans are of no interest.
pub type ColumnsOf<'c> = &'c dyn Fn(&str) -> Option<Vec<Column>>;

/// Columns by name; none for those whose kind is not known.
pub type PlainColumns = Vec<(String, Option<Column>)>;

/// The columns of a table that is no columns, in order, each as what is in it by its declaration,
/// if it collates by BINARY; none for views and virtual tables.
pub type PlainColumnsOf<'c> = &'c dyn Fn(&str) -> Option<PlainColumns>;

/// An expression without columns, as SQL; it may have `:mesh_node` and `:mesh_now`.
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
    /// What integers of a grouping value stand for, by its index: of a CASE of texts the places in
    /// this list.
    pub named: Vec<(usize, Vec<String>)>,
    /// What is made of a grouping value, by its index, before groups are formed by it: SQL over
    /// [`By::VALUE`] that cannot fail. SQLite works it out once for each different integer.
    pub made: Vec<(usize, String)>,
    /// Result columns, then those that only the order needs.
    pub columns: Vec<GroupColumn>,
    /// How many of them are result columns.
    pub shown: usize,
    /// ORDER BY: indices of columns.
    pub order: Vec<Order<usize>>,
    /// LIMIT and OFFSET.
    pub limit: Option<(i64, i64)>,
}

/// A value of a row: a column as it is, or integers worked out by SQLite's rules for integers.
/// Where SQLite would use doubles (an overflow), the executor must give up. Truth is an integer,
/// too: 1, 0 or NULL, and any integer but 0 is true.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// A column. Within all the others: of integers.
    Column(String),
    /// A column of doubles.
    RealColumn(String),
    /// An integer.
    Integer(i64),
    /// A double. What it is part of is one, too ([`Operand::is_real`]), and stands alone as an
    /// argument of an aggregate.
    Real(f64),
    /// NULL.
    Null,
    /// `+ - * / % & |`; NULL where it divides by 0.
    Arithmetic(Box<Operand>, char, Box<Operand>),
    /// A comparison.
    Compare(Box<Operand>, Comparison, Box<Operand>),
    /// `AND`
    Both(Box<Operand>, Box<Operand>),
    /// `OR`
    Either(Box<Operand>, Box<Operand>),
    /// `NOT`
    Not(Box<Operand>),
    /// `IN (…)` of integers, in ascending order.
    Among(Box<Operand>, Vec<i64>),
    /// `CASE WHEN … THEN … ELSE … END`
    Case(Vec<(Operand, Operand)>, Box<Operand>),
    /// `coalesce`
    First(Vec<Operand>),
    /// `min` (false) and `max` (true) of several values.
    Extreme(bool, Vec<Operand>),
    /// `abs`
    Absolute(Box<Operand>),
}

impl Operand {
    /// The operands that it is made of.
    fn parts(&self) -> Vec<&Operand> {
        match self {
            Self::Column(_) | Self::RealColumn(_) | Self::Integer(_) | Self::Real(_) | Self::Null => Vec::new(),
            Self::Arithmetic(a, _, b) | Self::Compare(a, _, b) | Self::Both(a, b) | Self::Either(a, b) => vec![a, b],
            Self::Not(of) | Self::Among(of, _) | Self::Absolute(of) => vec![of],
            Self::Case(arms, otherwise) => {
                arms.iter().flat_map(|(when, then)| [when, then]).chain([otherwise.as_ref()]).collect()
            }
            Self::First(of) | Self::Extreme(_, of) => of.iter().collect(),
        }
    }

    /// Whether its values are doubles or NULL, and not integers.
    pub fn is_real(&self) -> bool {
        match self {
            Self::Real(_) | Self::RealColumn(_) => true,
            Self::Arithmetic(a, _, b) => a.is_real() || b.is_real(),
            Self::Case(arms, otherwise) => arms.iter().any(|(_, then)| then.is_real()) || otherwise.is_real(),
            _ => false,
        }
    }

    /// The columns in it.
    pub fn columns(&self) -> Vec<&str> {
        match self {
            Self::Column(name) | Self::RealColumn(name) => vec![name],
            other => other.parts().into_iter().flat_map(Operand::columns).collect(),
        }
    }

    /// How many operands it is made of, itself included.
    pub(super) fn size(&self) -> usize {
        1 + self.parts().into_iter().map(Operand::size).sum::<usize>()
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
    /// `count(DISTINCT x)`
    CountDistinct,
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

/// Rows, one for each of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows {
    /// Result columns.
    pub columns: Vec<RowColumn>,
    /// ORDER BY.
    pub order: Vec<Order<Operand>>,
    /// LIMIT and OFFSET.
    pub limit: Option<(i64, i64)>,
}

/// A result column of rows.
#[derive(Debug, Clone, PartialEq)]
pub enum RowColumn {
    /// A value of the row.
    Value(Operand),
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
