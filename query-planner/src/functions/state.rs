//! The aggregates that SQLite lacks or cannot merge: one table of them, and what they share. Each
//! has, in a file of its own, a [`Partial`] state (`moments`, `runs`, `quantile`, `distinct`,
//! `histogram`, `edges`) and its final form.
//!
//! A public function `f(x, …)` folds rows into the state and finishes it. Over several nodes, each
//! node folds its rows into the state by `mesh_…(x)` and ships it as a blob; the coordinator merges
//! the blobs and finishes them by `mesh_f_merge(state, …)`. Arguments behind the first (a fraction,
//! a number of buckets) are not part of the state, so `median(x)` and `percentile(x, 99)` ship one
//! state.
//!
//! With OVER a public function works over a window frame; frames that move need
//! [`Partial::remove`].
//!
//! A blob begins with the version, the kind of state, and flags: whether any row was seen (SQLite
//! checks a fraction only then), and what was wrong with a value, which fails the question at the
//! coordinator as it would on one store.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Result};

use super::fold::{Args, Fold, register};
use crate::batch::Value;

/// How an aggregate runs in two phases.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TwoPhase {
    /// As users call it.
    pub(crate) name: &'static str,
    /// What the node calls with the first [`TwoPhase::row_args`] arguments.
    pub(crate) state: &'static str,
    /// What the coordinator calls with the state and the other arguments.
    pub(crate) merge: &'static str,
    /// Arguments that are taken of each row.
    pub(crate) row_args: usize,
}

macro_rules! two_phase {
    ($($name:literal $state:literal $merge:literal $row_args:literal)*) => {
        /// All aggregates of this kind.
        pub(super) const TABLE: &[TwoPhase] =
            &[$(TwoPhase { name: $name, state: $state, merge: $merge, row_args: $row_args }),*];
    };
}

two_phase! {
    "stddev" "mesh_moments" "mesh_stddev_merge" 1
    "stddev_samp" "mesh_moments" "mesh_stddev_samp_merge" 1
    "stddev_pop" "mesh_moments" "mesh_stddev_pop_merge" 1
    "variance" "mesh_moments" "mesh_variance_merge" 1
    "var_samp" "mesh_moments" "mesh_var_samp_merge" 1
    "var_pop" "mesh_moments" "mesh_var_pop_merge" 1
    "median" "mesh_runs" "mesh_median_merge" 1
    "percentile" "mesh_runs" "mesh_percentile_merge" 1
    "percentile_cont" "mesh_runs" "mesh_percentile_cont_merge" 1
    "percentile_disc" "mesh_runs" "mesh_percentile_disc_merge" 1
    "mad" "mesh_runs" "mesh_mad_merge" 1
    "approx_quantile" "mesh_sketch" "mesh_approx_quantile_merge" 1
    "approx_count_distinct" "mesh_hashes" "mesh_approx_count_distinct_merge" 1
    "histogram" "mesh_buckets" "mesh_histogram_merge" 1
    "first" "mesh_first" "mesh_first_merge" 2
    "last" "mesh_last" "mesh_last_merge" 2
}

/// The two-phase form of an aggregate, by its lower-case name.
pub(crate) fn two_phase(name: &str) -> Option<&'static TwoPhase> {
    TABLE.iter().find(|entry| entry.name == name)
}

/// The aggregate that makes one state of many, for a state's name; None where there is no such
/// state.
pub(crate) fn combining(state: &str) -> Option<String> {
    TABLE.iter().any(|entry| entry.state == state).then(|| combine_name(state))
}

fn combine_name(state: &str) -> String {
    format!("{state}_combine")
}

/// Whether plans use this name between node and coordinator.
pub(super) fn is_internal(name: &str) -> bool {
    TABLE.iter().any(|entry| entry.state == name || entry.merge == name)
}

/// What is wrong with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Problem {
    NotNumeric,
    Infinite,
    /// More different values than a state may have.
    TooMany,
}

impl Problem {
    /// In SQLite's words, where its percentiles have some.
    fn message(self, function: &str) -> String {
        match self {
            Problem::NotNumeric => format!("input to {function}() is not numeric"),
            Problem::Infinite => format!("Inf input to {function}()"),
            Problem::TooMany => format!(
                "{function}() holds too many different values; narrow the question with WHERE, or ask for approx_quantile"
            ),
        }
    }
}

/// A state that can be shipped and merged. Merging is associative and commutative.
pub(super) trait Partial: Default + Clone + 'static {
    /// Tells the kinds of states apart.
    const KIND: u8;

    /// Take one row.
    fn add(&mut self, args: &Args<'_>) -> std::result::Result<(), Problem>;

    /// Take one row out again, for moving window frames; false when the state cannot.
    fn remove(&mut self, _: &Args<'_>) -> bool {
        false
    }

    fn merge(&mut self, other: Self) -> std::result::Result<(), Problem>;

    /// Memory outside the value itself, bytes: with what sorting takes for a moment.
    fn heap_bytes(&self) -> usize {
        0
    }

    fn write(&mut self, out: &mut Vec<u8>);

    /// None when the bytes are not such a state.
    fn read(bytes: &mut Reader<'_>) -> Option<Self>;
}

/// An aggregate over a state.
pub(super) trait Finish: Copy + 'static {
    type Partial: Partial;
    /// The meaning of the arguments after the first.
    type Parameter: Copy + 'static;
    /// What SQLite calls such an argument.
    const PARAMETER: &'static str = "fraction";

    /// The function as users call it.
    fn name(&self) -> &'static str;

    /// Read the arguments from `at` on.
    fn parameter(&self, args: &Args<'_>, at: usize) -> std::result::Result<Self::Parameter, String>;

    /// Whether two rows mean the same.
    fn is_same(a: Self::Parameter, b: Self::Parameter) -> bool;

    /// The result; no parameter when there was no row.
    fn finish(&self, state: Self::Partial, parameter: Option<Self::Parameter>) -> std::result::Result<Value, String>;
}

const VERSION: u8 = 1;
const SEEN: u8 = 1;
const NOT_NUMERIC: u8 = 2;
const INFINITE: u8 = 4;
const TOO_MANY: u8 = 8;

/// A state with its flags.
#[derive(Default)]
pub(super) struct Shipped<P> {
    pub(super) partial: P,
    seen: bool,
    problem: Option<Problem>,
}

impl<P: Partial> Shipped<P> {
    /// A valid state; `seen`: whether the group had rows.
    pub(super) fn complete(partial: P, seen: bool) -> Shipped<P> {
        Shipped { partial, seen, problem: None }
    }

    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        let problem = match self.problem {
            None => 0,
            Some(Problem::NotNumeric) => NOT_NUMERIC,
            Some(Problem::Infinite) => INFINITE,
            Some(Problem::TooMany) => TOO_MANY,
        };
        let mut out = vec![VERSION, P::KIND, (u8::from(self.seen) * SEEN) | problem];
        if self.problem.is_none() {
            self.partial.write(&mut out);
        }
        out
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> std::result::Result<Shipped<P>, String> {
        let damaged = || "a node shipped a damaged partial state".to_owned();
        let (head, body) = bytes.split_first_chunk::<3>().ok_or_else(damaged)?;
        let [version, kind, flags] = *head;
        if version != VERSION {
            return Err(format!("a node shipped a partial state of version {version}, this agent knows {VERSION}"));
        }
        let problem = match flags & !SEEN {
            0 => None,
            NOT_NUMERIC => Some(Problem::NotNumeric),
            INFINITE => Some(Problem::Infinite),
            TOO_MANY => Some(Problem::TooMany),
            _ => return Err(damaged()),
        };
        let mut reader = Reader(body);
        let partial = match problem {
            None => P::read(&mut reader),
            Some(_) => Some(P::default()),
        };
        let partial = partial.filter(|_| kind == P::KIND && reader.0.is_empty()).ok_or_else(damaged)?;
        Ok(Shipped { partial, seen: flags & SEEN != 0, problem })
    }
}

/// Register an aggregate: the function itself, and how the coordinator merges its states.
pub(super) fn define<F: Finish>(conn: &Connection, finish: F, arities: &[i32]) -> Result<()> {
    for arity in arities {
        register(conn, finish.name(), *arity, OnOneNode(finish))?;
    }
    define_merge(conn, finish, arities)
}

/// Register only how the coordinator merges: SQLite has the function itself.
pub(super) fn define_merge<F: Finish>(conn: &Connection, finish: F, arities: &[i32]) -> Result<()> {
    if let Some(entry) = two_phase(finish.name()) {
        let row_args = i32::try_from(entry.row_args).unwrap_or(1);
        for arity in arities {
            register(conn, entry.merge, *arity - row_args + 1, Merge(finish))?;
        }
    }
    Ok(())
}

/// Register how a node makes a state.
pub(super) fn define_state<P: Partial>(conn: &Connection, name: &str, arity: i32) -> Result<()> {
    register(conn, name, arity, Node(std::marker::PhantomData::<P>))?;
    register(conn, &combine_name(name), 1, Combine(std::marker::PhantomData::<P>))
}

/// Many states to one, on the way to the coordinator.
struct Combine<P>(std::marker::PhantomData<P>);

impl<P: Partial> Fold for Combine<P> {
    type State = Shipped<P>;

    fn step(&self, state: &mut Shipped<P>, args: &Args<'_>) -> std::result::Result<(), String> {
        let bytes = match args.value(0) {
            ValueRef::Null => return Ok(()),
            ValueRef::Blob(bytes) => bytes,
            _ => return Err("a node shipped no partial state".to_owned()),
        };
        let other = Shipped::<P>::from_bytes(bytes)?;
        state.seen |= other.seen;
        if state.problem.is_none() {
            state.problem = match other.problem {
                Some(problem) => Some(problem),
                None => state.partial.merge(other.partial).err(),
            };
        }
        Ok(())
    }

    fn finish(&self, state: Shipped<P>) -> std::result::Result<Value, String> {
        Ok(Value::Blob(state.into_bytes()))
    }

    fn heap_bytes(&self, state: &Shipped<P>) -> usize {
        state.partial.heap_bytes()
    }
}

struct Node<P>(std::marker::PhantomData<P>);

impl<P: Partial> Fold for Node<P> {
    type State = Shipped<P>;

    fn step(&self, state: &mut Shipped<P>, args: &Args<'_>) -> std::result::Result<(), String> {
        state.seen = true;
        if state.problem.is_none() {
            state.problem = state.partial.add(args).err();
        }
        Ok(())
    }

    fn finish(&self, state: Shipped<P>) -> std::result::Result<Value, String> {
        Ok(Value::Blob(state.into_bytes()))
    }

    fn heap_bytes(&self, state: &Shipped<P>) -> usize {
        state.partial.heap_bytes()
    }
}

/// A state on its way to the result, and the parameter once it is known.
pub(super) struct Finishing<F: Finish> {
    partial: F::Partial,
    parameter: Option<F::Parameter>,
}

impl<F: Finish> Default for Finishing<F> {
    fn default() -> Self {
        Finishing { partial: F::Partial::default(), parameter: None }
    }
}

impl<F: Finish> Finishing<F> {
    fn take_parameter(&mut self, function: F, args: &Args<'_>, at: usize) -> std::result::Result<(), String> {
        let parameter = function.parameter(args, at)?;
        match self.parameter {
            Some(before) if !F::is_same(before, parameter) => Err(format!(
                "the {} argument to {}() is not the same for all input rows",
                F::PARAMETER,
                function.name()
            )),
            Some(_) => Ok(()),
            None => {
                self.parameter = Some(parameter);
                Ok(())
            }
        }
    }
}

struct OnOneNode<F>(F);

impl<F: Finish> Fold for OnOneNode<F> {
    type State = Finishing<F>;

    fn step(&self, state: &mut Finishing<F>, args: &Args<'_>) -> std::result::Result<(), String> {
        let row_args = two_phase(self.0.name()).map_or(1, |entry| entry.row_args);
        state.take_parameter(self.0, args, row_args)?;
        state.partial.add(args).map_err(|problem| problem.message(self.0.name()))
    }

    fn finish(&self, state: Finishing<F>) -> std::result::Result<Value, String> {
        self.0.finish(state.partial, state.parameter)
    }

    fn heap_bytes(&self, state: &Finishing<F>) -> usize {
        state.partial.heap_bytes()
    }

    const WINDOW: bool = true;

    fn value(&self, state: &Finishing<F>) -> std::result::Result<Value, String> {
        self.0.finish(state.partial.clone(), state.parameter)
    }

    fn undo(&self, state: &mut Finishing<F>, args: &Args<'_>) -> std::result::Result<(), String> {
        if state.partial.remove(args) {
            return Ok(());
        }
        let name = self.0.name();
        Err(format!("{name}() cannot let rows go: let the window frame start at UNBOUNDED PRECEDING"))
    }
}

struct Merge<F>(F);

impl<F: Finish> Fold for Merge<F> {
    type State = Finishing<F>;

    fn step(&self, state: &mut Finishing<F>, args: &Args<'_>) -> std::result::Result<(), String> {
        let bytes = match args.value(0) {
            ValueRef::Null => return Ok(()),
            ValueRef::Blob(bytes) => bytes,
            _ => return Err("a node shipped no partial state".to_owned()),
        };
        let other = Shipped::<F::Partial>::from_bytes(bytes)?;
        if other.seen {
            state.take_parameter(self.0, args, 1)?;
        }
        let merged = match other.problem {
            Some(problem) => Err(problem),
            None => state.partial.merge(other.partial),
        };
        merged.map_err(|problem| problem.message(self.0.name()))
    }

    fn finish(&self, state: Finishing<F>) -> std::result::Result<Value, String> {
        self.0.finish(state.partial, state.parameter)
    }

    fn heap_bytes(&self, state: &Finishing<F>) -> usize {
        state.partial.heap_bytes()
    }
}

/// Bytes of a state, read from the front.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub(super) fn real(&mut self) -> Option<f64> {
        self.take::<8>().map(f64::from_le_bytes)
    }

    /// An unsigned number of seven bits a byte, the lowest first; the highest bit means that more
    /// follow.
    pub(super) fn varint(&mut self) -> Option<u128> {
        let mut value = 0u128;
        for shift in (0..128).step_by(7) {
            let byte = self.byte()?;
            let bits = u128::from(byte & 0x7f);
            if shift + 7 > 128 && bits >> (128 - shift) != 0 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    pub(super) fn varint_u64(&mut self) -> Option<u64> {
        u64::try_from(self.varint()?).ok()
    }
}

/// What [`Reader::varint`] reads.
pub(super) fn write_varint(out: &mut Vec<u8>, mut value: u128) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).unwrap_or_default() | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap_or_default());
}

/// Small for numbers near zero of either sign.
pub(super) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

/// What [`zigzag`] made.
pub(super) fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

/// A value for aggregates that take numbers only, as SQLite's percentiles do; None for NULL.
pub(super) fn finite(args: &Args<'_>, at: usize) -> std::result::Result<Option<f64>, Problem> {
    #[allow(clippy::cast_precision_loss)] // as sqlite3_value_double
    let value = match args.value(at) {
        ValueRef::Null => return Ok(None),
        ValueRef::Integer(value) => value as f64,
        ValueRef::Real(value) => value,
        _ => return Err(Problem::NotNumeric),
    };
    if value.is_finite() { Ok(Some(value)) } else { Err(Problem::Infinite) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varints_come_back(value in any::<u128>(), shift in 0u32..128) {
            let value = value >> shift;
            let mut bytes = Vec::new();
            write_varint(&mut bytes, value);
            let mut reader = Reader(&bytes);
            prop_assert_eq!(reader.varint(), Some(value));
            prop_assert!(reader.is_empty());
            prop_assert_eq!(Reader(&bytes[..bytes.len() - 1]).varint(), None);
        }

        #[test]
        fn zigzag_comes_back(value in any::<i64>()) {
            prop_assert_eq!(unzigzag(zigzag(value)), value);
        }
    }
}
