//! Columnar history: rows of the frequent tables as compressed columns, a few thousand to 64 Ki
//! rows a segment, inside the store's SQLite file.
//!
//! Owns the segments: how a column is packed (`bits`, `encode`), what is held of a segment and
//! where (`segment`), what is kept of read ones (`cache`), how rows come in (`append`) and small
//! segments are joined (`compact`), what is summed up of a large one (`summary`), what is kept with
//! a connection (`with_connection`), how any SQL sees them (`vtab`), and how typed questions are
//! answered from them without SQLite (`scan`), also from columns that lie `elsewhere`. Does not own
//! which records become which rows (`rows`), nor when segments are dropped (`retention`). Why this
//! form: docs/decisions/0004-columnar-segments.md.

mod append;
mod bits;
mod cache;
mod compact;
mod elsewhere;
mod encode;
mod form;
mod pick;
mod scan;
mod segment;
#[cfg(test)]
mod tests;
mod vtab;
mod with_connection;

pub(crate) use append::{Appender, RowColumns, cells};
pub use cache::let_go_of_segments;
pub(crate) use compact::Compactor;
pub use elsewhere::{ARCHIVED_MODULE, ColumnsElsewhere, Part, PartColumn, PartValues, register_columns};
#[cfg(any(test, debug_assertions))]
pub use encode::values_read;
pub use form::OWN_TABLES;
pub(crate) use form::{COLUMNAR, is_columnar, make_all_columnar, make_columnar_again, make_plain};
pub use scan::{ColumnExecutor, understands};
pub(crate) use segment::{
    MOST_ROWS, MOST_SPAN_NS, Segment, SegmentError, compiles_ours, delete as delete_segment, drop, ends_first,
    integers, last as last_segment, oldest, span,
};
pub(crate) use vtab::register;

/// The tables and their columns are those of the virtual tables in the schema; this is their
/// module.
pub(crate) const MODULE: &std::ffi::CStr = query_planner::COLUMN_MODULE;

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Kind {
    /// 64-bit integers.
    Integer,
    /// Text, by a dictionary.
    Text,
    /// Bytes, by a dictionary. They come back as they are; conditions and aggregates on them are
    /// SQLite's.
    Blob,
}

impl Kind {
    /// Of a column that is declared so. Tables are strict, and nothing else is in those that are
    /// columnar.
    pub(crate) fn declared(decl_type: &str) -> Self {
        match () {
            () if decl_type.eq_ignore_ascii_case("TEXT") => Self::Text,
            () if decl_type.eq_ignore_ascii_case("BLOB") => Self::Blob,
            () => Self::Integer,
        }
    }
}

/// Give a strict table of any SQLite file, of INTEGER, TEXT and BLOB columns, the form of a store's
/// frequent tables: its rows become segments of `segment_rows` rows.
///
/// # Errors
/// What SQLite says; then the file is as it was.
pub fn make_columnar(conn: &mut rusqlite::Connection, table: &str, segment_rows: usize) -> rusqlite::Result<()> {
    register(conn)?;
    let tx = conn.transaction()?;
    if form::is_plain(&tx)? {
        tx.execute_batch(include_str!("segments.sql"))?;
    }
    form::move_rows(&tx, table, form::time_of(table), segment_rows.clamp(1, MOST_ROWS))?;
    tx.commit()
}
