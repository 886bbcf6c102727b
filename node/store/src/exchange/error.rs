//! Why an export or an import cannot be done.

use std::path::PathBuf;

use crate::StoreError;

/// An export or an import that cannot be done. Nothing is left at the new file's name.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The file to be read cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The new file is there already.
    #[error("{} exists; give --out a new file", .0.display())]
    Exists(PathBuf),
    /// The new file cannot be written.
    #[error("writing {}: {source}", path.display())]
    Write {
        /// The new file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// SQLite failed on one of the files.
    #[error("{}: {source}", path.display())]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// The ending of the new file's name is no form.
    #[error("{}: give --out a name that ends in .db, .csv or .parquet", .0.display())]
    Form(PathBuf),
    /// A table that the source does not have.
    #[error("{} has no table {table}; it has {}", db.display(), have.join(", "))]
    NoTable {
        /// The source.
        db: PathBuf,
        /// What was asked for.
        table: String,
        /// What there is.
        have: Vec<String>,
    },
    /// Several tables were wanted in a form that has one.
    #[error("a {form} file holds one table: give one --table, or --out a .db file for {n} tables")]
    OneTable {
        /// "csv" or "parquet".
        form: &'static str,
        /// How many were asked for.
        n: usize,
    },
    /// A value that does not fit the column's form.
    #[error(
        "{table}.{column} holds {found} in a column declared for {declared}: export it as .db or .csv, which keep any value"
    )]
    Value {
        /// Table.
        table: String,
        /// Column.
        column: String,
        /// What was found.
        found: &'static str,
        /// What fits the column's type.
        declared: &'static str,
    },
    /// The Parquet writer failed.
    #[error("writing {}: {source}", path.display())]
    Parquet {
        /// The new file.
        path: PathBuf,
        /// Its error.
        source: ::parquet::errors::ParquetError,
    },
    /// It is a trace store already.
    #[error("{} is a rankmesh trace store already: ask it with rankmesh query --db", .0.display())]
    Ours(PathBuf),
    /// Its form is not known.
    #[error(
        "{}: not a trace this version can import ({lacks}); known are Ingero's databases of schema v0.8 and v0.9. To ask \
         it as it is: rankmesh query --db, or rankmesh up --serve-db", file.display()
    )]
    Unknown {
        /// The recording.
        file: PathBuf,
        /// What was looked for and not found.
        lacks: String,
    },
    /// It has several nodes' rows, and a store has one node's.
    #[error("{} holds the rows of {}: say which with --node", file.display(), nodes.join(", "))]
    Nodes {
        /// The recording.
        file: PathBuf,
        /// Their names.
        nodes: Vec<String>,
    },
    /// The node asked for is not in it.
    #[error("{} has no rows of node {node}; it has {}", file.display(), nodes.join(", "))]
    NoNode {
        /// The recording.
        file: PathBuf,
        /// The name asked for.
        node: String,
        /// The names there are.
        nodes: Vec<String>,
    },
    /// A row that does not fit: the recording does not match its tables.
    #[error("{}: rows for {table} could not be taken: {source}", file.display())]
    Rows {
        /// The recording.
        file: PathBuf,
        /// The store's table.
        table: String,
        /// What SQLite said.
        source: rusqlite::Error,
    },
}

impl ExchangeError {
    /// Whether something else has to be asked for: another name, form, table or node.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        use ExchangeError::{Exists, Form, NoNode, NoTable, Nodes, OneTable, Ours};
        matches!(self, Exists(_) | Form(_) | NoTable { .. } | OneTable { .. } | Ours(_) | Nodes { .. } | NoNode { .. })
    }
}
