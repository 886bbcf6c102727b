//! How large what is asked may be: the user's SQL, and what travels to nodes.

/// Statements longer than this are refused: they cost more to plan than a question may.
pub const MAX_SQL_BYTES: usize = 1_000_000;
/// A node refuses fragments longer than this: a question with what planning adds to it.
pub(crate) const MAX_FRAGMENT_BYTES: usize = 2 * MAX_SQL_BYTES;
/// Keys beyond these are no filter: the fragment is shipped whole.
pub(crate) const MAX_KEYS: usize = 10_000;
/// Bytes that the keys of all fragments of a question may have together.
pub(crate) const MAX_KEY_BYTES: u64 = 1 << 20;
