//! The rules that make plans, tried in this order by `plan.rs`. Each file explains why its rewrite
//! keeps the union contract, and steps aside (`Ok(None)`) where it would not.

pub(crate) mod aggregate;
mod branches;
mod correlated;
pub(crate) mod fetch;
pub(crate) mod parts;
pub(crate) mod per_node;
pub(crate) mod push;
pub(crate) mod rows;
pub(crate) mod semijoin;
pub(crate) mod values;

use crate::catalog::Table;
use crate::check::Question;

/// Tables with the stored columns that the question reads of each.
fn reads_of<'t>(question: &Question<'_>, tables: impl Iterator<Item = &'t Table>) -> Vec<(String, Vec<String>)> {
    tables
        .map(|table| {
            let read = question.reads.get(&table.name.to_ascii_lowercase());
            let is_read =
                |name: &str| read.is_some_and(|read| read.iter().any(|other| other.eq_ignore_ascii_case(name)));
            let columns = table.columns.iter().map(|column| column.name.clone()).filter(|name| is_read(name));
            (table.name.clone(), columns.collect())
        })
        .collect()
}
