//! Tests over whole questions: several in-memory stores, and one database with all their rows as
//! the oracle.

mod aggregates;
mod align;
mod answers;
mod corpus;
mod correlated;
mod generate;
mod generated;
mod mesh;
mod recorded;
mod robust;
mod semijoin;
mod strategies;
mod text;
mod values;
