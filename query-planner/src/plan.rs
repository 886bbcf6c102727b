//! What a plan is: plain values that travel and print. How one is made: `planner.rs`; how it runs:
//! `run.rs` (coordinator) and `exec.rs` (node).

use serde::{Deserialize, Serialize};

use crate::batch::Batch;
use crate::partial::{Combine, How};

/// How a question is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The rule that made it.
    pub strategy: Strategy,
    /// Result columns.
    pub columns: Vec<ColumnMeta>,
    /// What the nodes run.
    pub fragments: Vec<Fragment>,
    /// Fragments that wait for a second round, and for whose keys.
    pub reductions: Vec<Reduction>,
    /// What the coordinator makes of it.
    pub merge: Merge,
    /// Hints for the user.
    pub notes: Vec<String>,
    /// The same question in a form that works out nothing that SQLite itself might skip: run when a
    /// part of this plan fails in the SQL (an arm of EXCEPT from nothing overflows, say), so that
    /// SQLite decides whether that matters.
    pub lazily: Option<Box<Plan>>,
    /// The same question with some fragments' results as values, where those turn out to be few
    /// (`rules/values.rs`).
    pub with_values: Option<WithValues>,
}

/// A plan that needs the results of another plan's first fragments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithValues {
    /// The other plan's fragments that are asked for in the first round.
    pub first: Vec<usize>,
    /// What is made of them.
    pub sets: Vec<ValueSet>,
    /// What is asked in the second round: its fragments name the sets as tables.
    pub plan: Box<Plan>,
}

/// Values that a fragment reads as a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueSet {
    /// The table's name.
    pub name: String,
    /// The SELECT over merge tables that gives its rows.
    pub sql: String,
    /// Of each column the type name that stands for its affinity; empty for none.
    pub affinities: Vec<String>,
}

/// The five ways, from cheap to dear, and `--per-node`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Strategy {
    /// The SQL as it stands on each node, concatenated.
    PerNode,
    /// No table is read: the coordinator answers alone.
    Coordinator,
    /// The whole question goes to one node (single node, or replicated tables only).
    Push,
    /// Filtered, projected, cut rows.
    Rows,
    /// Partial aggregates by group.
    Aggregate,
    /// Subqueries planned on their own, joined at the coordinator.
    Parts,
    /// Needed columns and rows into the coordinator's SQLite.
    Fetch,
}

impl std::fmt::Display for Strategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Strategy::PerNode => "per-node",
            Strategy::Coordinator => "coordinator",
            Strategy::Push => "push",
            Strategy::Rows => "rows",
            Strategy::Aggregate => "aggregate",
            Strategy::Parts => "parts",
            Strategy::Fetch => "fetch",
        })
    }
}

/// One statement for nodes. It may have the parameters `:mesh_node` (the node's name) and
/// `:mesh_now` (the question's instant), bound by the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fragment {
    /// The table to name when there are too many rows.
    pub table: String,
    /// SELECT in SQLite's dialect.
    pub sql: String,
    /// Number of result columns.
    pub columns: u32,
    /// Tables and their columns that the SQL reads, so that a node can report what it lacks.
    pub reads: Vec<(String, Vec<String>)>,
    /// Whom it is for.
    pub targets: Targets,
    /// How rows of several nodes become those of one, where that makes them fewer. Nodes that run
    /// the fragment need not know it.
    #[serde(skip)]
    pub combine: Option<Combine>,
    /// What the columns are that are partial aggregates, by column; empty where none is. Nodes need
    /// not know it.
    #[serde(skip)]
    pub partials: Vec<Option<How>>,
}

impl Fragment {
    /// Whether a batch is rows of this fragment: as many columns, all of one length, and in those
    /// that are partial aggregates what such can be. It may come from a node of another version, or
    /// from a damaged one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, batch: &Batch) -> Result<(), String> {
        if batch.columns.len() != self.columns as usize {
            return Err(format!("rows of {} columns instead of {}", batch.columns.len(), self.columns));
        }
        if !batch.is_well_formed(self.columns as usize) {
            return Err(format!("a ragged batch of {} rows", batch.rows));
        }
        for (column, how) in batch.columns.iter().zip(&self.partials) {
            let Some(how) = how else { continue };
            column.iter().try_for_each(|value| how.check(value))?;
        }
        Ok(())
    }
}

/// A fragment that is asked for in a second round, only with the rows that those of other fragments
/// can need, which the first round brought; with all rows when those are too many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reduction {
    /// Index of the fragment that is reduced.
    pub fragment: usize,
    /// By what.
    pub by: ReductionBy,
}

/// How rows of other fragments say which rows are needed. None of these fragments is reduced
/// itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReductionBy {
    /// The rows that have what every row of a join with another fragment has.
    Driver(ReducedByDriver),
    /// The rows that match a row of other fragments.
    Rows(ReducedByRows),
}

/// What a fragment's rows have in common with those of another, the driver, with which they are
/// joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReducedByDriver {
    /// Index of the fragment that has the other rows.
    pub driver: usize,
    /// The fragment's column that is among the driver's keys, and the column with those in the
    /// driver's merge table.
    pub keys: Option<(String, String)>,
    /// Between what the fragment's columns lie.
    pub bounds: Vec<DriverBound>,
    /// The fragment's statement without a condition.
    pub select: String,
    /// The fragment's own condition.
    pub filter: Option<String>,
}

/// A comparison of a column with a value that is known once the driver's rows are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverBound {
    /// The column, as SQL.
    pub column: String,
    /// `<`, `<=`, `>` or `>=`.
    pub operator: String,
    /// The SELECT over the driver's merge table that gives the value.
    pub sql: String,
}

/// A fragment's statement over values of other fragments' rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReducedByRows {
    /// Indices of the fragments that have the rows.
    pub drivers: Vec<usize>,
    /// What is read of them: tables of `sql`.
    pub sets: Vec<ValueSet>,
    /// The statement in place of the fragment's own.
    pub sql: String,
    /// Index of the fragment that counts the rows that the fragment's own statement gives.
    pub counted: usize,
}

impl ReducedByDriver {
    /// The fragment's statement with these conditions, too.
    pub(crate) fn with(&self, conditions: &[String]) -> String {
        let own = self.filter.as_ref().map_or_else(String::new, |filter| format!("({filter}) AND "));
        format!("{} WHERE {own}{}", self.select, conditions.join(" AND "))
    }
}

impl Reduction {
    /// The fragments whose rows it needs.
    pub(crate) fn drivers(&self) -> &[usize] {
        match &self.by {
            ReductionBy::Driver(ReducedByDriver { driver, .. }) => std::slice::from_ref(driver),
            ReductionBy::Rows(ReducedByRows { drivers, .. }) => drivers,
        }
    }
}

/// What the coordinator does with the fragments' rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Merge {
    /// The rows of fragment 0 are the answer.
    Concat {
        /// Put the node's name before each row.
        with_node: bool,
    },
    /// Rows go into tables of an in-memory SQLite; one SELECT over them is the answer. It may have
    /// `:mesh_now`.
    Sql {
        /// Tables to make; table `i` takes the rows of fragment `i`.
        tables: Vec<MergeTable>,
        /// Further statements (views) to run before.
        setup: Vec<String>,
        /// The SELECT.
        sql: String,
    },
}

/// A table of the merge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeTable {
    /// Name.
    pub name: String,
    /// Every column; those with `filled` take the fragment's columns in order, the others stay
    /// NULL.
    pub columns: Vec<MergeColumn>,
}

/// A column of a merge table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeColumn {
    /// Name.
    pub name: String,
    /// Type name, standing for its affinity; empty for none.
    pub affinity: String,
    /// Collating sequence.
    pub collation: String,
    /// Whether a fragment's column goes here.
    pub filled: bool,
}

impl Plan {
    /// Whether rows go on to the user as nodes send them, and nothing is gathered.
    pub fn flows(&self) -> bool {
        matches!(self.merge, Merge::Concat { .. })
            && self.fragments.iter().all(|fragment| fragment.targets != Targets::AnyOne)
    }

    /// The only nodes whose rows can matter, when the question says so (`WHERE node IN (…)`).
    pub fn nodes(&self) -> Option<Vec<String>> {
        let mut all = Vec::new();
        for fragment in &self.fragments {
            match &fragment.targets {
                Targets::All => return None,
                Targets::Named(names) => all.extend(names.iter().cloned()),
                Targets::AnyOne => {}
            }
        }
        all.sort();
        all.dedup();
        (!all.is_empty()).then_some(all)
    }
}

/// Whom a task is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Targets {
    /// Every node the question asks.
    All,
    /// Those of the asked nodes whose names are listed. A name that no node has is no error: it has
    /// no rows. Asking more nodes than these is allowed (their answers are empty), only slower.
    Named(Vec<String>),
    /// Exactly one node, whichever is nearest (the coordinator itself if it has the data): the
    /// fragment reads only replicated tables. If that one fails another is to be tried.
    AnyOne,
}

/// A column of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnMeta {
    /// Name as SQLite would give it.
    pub name: String,
    /// Declared type when the column is a plain table column, else empty.
    pub decl_type: String,
}
