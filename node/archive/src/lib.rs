//! Hours of trace stores as Parquet, in a directory or an S3-compatible bucket, that any engine
//! reads; and read back as the tables of one node. Also rows pushed into ClickHouse.
//!
//! Owns how an archive is laid out, what is written to it and when, and what it contains. Does not
//! own the rows (`store`), which nodes a question asks (`query`), nor the process that writes (the
//! binary). It knows no agent and no mesh.
//!
//! | module | owns |
//! |---|---|
//! | `clickhouse` | pushing rows into a ClickHouse server |
//! | `hour` | an hour of the calendar |
//! | `layout` | the names of the files in an archive |
//! | `manifest` | what an hour of a node contains and lacks |
//! | `units` | the units of columns |
//! | `place` | the directory or bucket: reading, listing, files that appear complete |
//! | `web` | HTTP: no redirects, answers of bounded length |
//! | `pass` | which hours of a store are due, and writing them |
//! | `holdings` | the contents of an archive, listed as far as it is asked for |
//! | `row_group` | columns of a Parquet file in memory |
//! | `live` | rows of a store that are not taken from the archive |
//! | `parts` | where a node's rows are, and what is missing from them |
//! | `columns` | archived rows as columns |
//! | `table` | archived and live rows as a virtual table |
//! | `history` | a node of an archive, as a source of rows |

pub mod clickhouse;
mod columns;
pub mod history;
pub mod holdings;
pub mod hour;
pub mod layout;
pub mod live;
pub mod manifest;
mod parts;
pub mod pass;
pub mod place;
mod row_group;
mod table;
mod units;
mod web;
