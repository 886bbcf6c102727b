//! Which tables a statement reads, and which of them a name in it can be of
//! (<https://www.postgresql.org/docs/current/queries-table-expressions.html>): a column's type is that
//! of the tables in the FROM of its SELECT, else of those around it.

use std::collections::HashMap;

use super::super::tokens::Token;
use super::Inferred;

/// The columns of tables, all in lower case, with their types; none where it declares none.
#[derive(Debug, Default)]
pub(in super::super) struct Columns(HashMap<String, HashMap<String, Option<Inferred>>>);

impl Columns {
    /// Tables with these columns, for tests.
    #[cfg(test)]
    pub(in super::super) fn of_tables(tables: &[&str], columns: &[(&str, &str)]) -> Self {
        let mut all = Self::default();
        let pairs = tables.iter().flat_map(|table| columns.iter().map(move |column| (table, column)));
        pairs.for_each(|(table, (name, declared))| all.add(table, name, declared));
        all
    }

    /// A column that a table has.
    pub(in super::super) fn add(&mut self, table: &str, name: &str, declared: &str) {
        let of_table = self.0.entry(table.to_ascii_lowercase()).or_default();
        of_table.insert(name.to_ascii_lowercase(), Inferred::named(declared));
    }

    /// The type of a column of these tables: none inside where none tells it or they differ, none
    /// where none of them has it.
    fn of<'t>(&self, tables: impl Iterator<Item = &'t Read>, name: &str) -> Option<Option<Inferred>> {
        let mut all = tables.filter_map(|read| self.0.get(&read.table)?.get(name));
        let first = *all.next()?;
        Some(first.filter(|kind| all.all(|other| *other == Some(*kind))))
    }
}

/// A table that is read, and the name that it has there.
#[derive(Debug)]
struct Read {
    table: String,
    name: String,
}

/// A SELECT, from a token up to another: the tables in its FROM.
#[derive(Debug, Default)]
struct Scope {
    from: usize,
    to: usize,
    reads: Vec<Read>,
    is_select: bool,
    /// A SELECT of its own is in its FROM.
    reads_select: bool,
    in_from: bool,
    /// A table comes next.
    expects: bool,
}

impl Scope {
    fn beginning(from: usize) -> Self {
        Self { from, ..Self::default() }
    }
}

/// The SELECTs of a statement: those inside others come before them.
#[derive(Debug)]
pub(super) struct Scopes(Vec<Scope>);

const AFTER_FROM: &[&str] = &["where", "group", "having", "order", "limit", "offset", "fetch", "window"];
/// Words behind a table that are no name of it.
const NO_NAMES: &[&str] = &[
    "on",
    "using",
    "join",
    "left",
    "right",
    "inner",
    "outer",
    "cross",
    "full",
    "natural",
    "union",
    "except",
    "intersect",
];

impl Scopes {
    pub(super) fn of(tokens: &[Token]) -> Self {
        let is_any =
            |at: usize, words: &[&str]| tokens.get(at).is_some_and(|token| words.iter().any(|word| token.is(word)));
        let name = |at: usize| tokens.get(at).and_then(Token::name).map(|name| name.to_ascii_lowercase());
        let (mut all, mut around, mut now) = (Vec::new(), Vec::new(), Scope::beginning(0));
        let mut at = 0;
        while at < tokens.len() {
            let expects = std::mem::take(&mut now.expects);
            if is_any(at, &["(", "["]) {
                now.reads_select |= expects;
                around.push(std::mem::replace(&mut now, Scope::beginning(at + 1)));
            } else if is_any(at, &[")", "]"]) {
                let outer = around.pop().unwrap_or_else(|| Scope::beginning(at + 1));
                all.push(Scope { to: at, ..std::mem::replace(&mut now, outer) });
            } else if is_any(at, &["union", "except", "intersect"]) {
                all.push(Scope { to: at, ..std::mem::replace(&mut now, Scope::beginning(at + 1)) });
            } else if is_any(at, &["select"]) {
                now.is_select = true;
            } else if is_any(at, &["from"]) {
                // (Not of `extract(hour FROM x)` and `IS DISTINCT FROM x`.)
                let begins = now.is_select && !(at > 0 && is_any(at - 1, &["distinct"]));
                (now.in_from, now.expects) = (now.in_from || begins, begins);
            } else if is_any(at, AFTER_FROM) {
                now.in_from = false;
            } else if now.in_from && is_any(at, &["join", ","]) {
                now.expects = true;
            } else if expects && let Some(mut table) = name(at) {
                while is_any(at + 1, &["."])
                    && let Some(of_schema) = name(at + 2)
                {
                    (table, at) = (of_schema, at + 2);
                }
                let has_as = is_any(at + 1, &["as"]);
                let is_free = |at: usize| !is_any(at, AFTER_FROM) && !is_any(at, NO_NAMES);
                let given = name(at + 1 + usize::from(has_as)).filter(|_| has_as || is_free(at + 1));
                let called = given.unwrap_or_else(|| table.clone());
                now.reads.push(Read { table, name: called });
            }
            at += 1;
        }
        let to = tokens.len();
        all.push(Scope { to, ..now });
        all.extend(around.into_iter().rev().map(|scope| Scope { to, ..scope }));
        Self(all)
    }

    /// The type of the column of this name at a token, where the SELECT around it reads tables alone;
    /// none where that has no such column, or something is read by another name than a table's.
    pub(super) fn kind_here(&self, columns: &Columns, table: Option<&str>, name: &str, at: usize) -> Option<Inferred> {
        let mut around = self.0.iter().filter(|scope| scope.is_select && (scope.from..scope.to).contains(&at));
        let scope = around.next().filter(|scope| !scope.reads_select)?;
        let is_it = |read: &&Read| table.is_none_or(|table| read.name == table);
        columns.of(scope.reads.iter().filter(is_it), name)?
    }

    /// The type of the column of this name, at a token: none inside where its tables do not tell, none
    /// where none that is read has it.
    pub(super) fn kind(
        &self,
        columns: &Columns,
        table: Option<&str>,
        name: &str,
        at: usize,
    ) -> Option<Option<Inferred>> {
        let is_it = |read: &&Read| table.is_none_or(|table| read.name == table);
        let around = self.0.iter().filter(|scope| (scope.from..scope.to).contains(&at));
        // What stands in none of the tables there comes through a WITH or a SELECT in a FROM.
        let anywhere = || columns.of(self.0.iter().flat_map(|scope| &scope.reads), name);
        around.into_iter().find_map(|scope| columns.of(scope.reads.iter().filter(is_it), name)).or_else(anywhere)
    }
}
