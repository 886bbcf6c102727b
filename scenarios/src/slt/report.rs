//! Counting what happened and printing it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use query_planner::Strategy;

/// The counts of a file, or of all.
#[derive(Debug, Default, Clone)]
pub struct Tally {
    /// Records that did what the file says.
    pub passed: u64,
    /// Of `passed`: equal as a set, in another of the orders that the SQL allows.
    pub order_free: u64,
    /// Answers that are neither the file's nor those of one SQLite over all rows.
    pub wrong: u64,
    /// Answers that are those of one SQLite over all rows, but not the file's.
    pub sqlite_differs: u64,
    /// Questions that were planned but failed where SQLite answers.
    pub failed: Reasons,
    /// Questions that SQLite answers and that were not planned.
    pub refused: Reasons,
    /// Those whose refusal is listed with its reason, in `refusals`.
    pub listed: Reasons,
    /// Queries dearer than their shape allows, by what was too dear.
    pub dear: Reasons,
    /// Answered queries by strategy.
    pub strategies: BTreeMap<Strategy, u64>,
    /// Rows that nodes sent.
    pub rows_shipped: u64,
    /// Bytes that nodes sent, before framing.
    pub bytes_shipped: u64,
    /// Tables that lay in column segments at the end of a file.
    pub columnar_tables: u64,
    /// Wall time.
    pub elapsed: Duration,
    /// Wrong, failed and too dear questions in full, as far as they are kept.
    pub details: Vec<String>,
}

/// How often each reason came up, with the first question that had it.
#[derive(Debug, Default, Clone)]
pub struct Reasons(BTreeMap<String, (u64, String)>);

impl Reasons {
    /// Count a reason. Names and numbers in it do not make it another reason.
    pub fn add(&mut self, reason: &str, place: &str, sql: &str) {
        let entry = self.0.entry(general(reason)).or_insert_with(|| (0, format!("{place}: {sql} -- {reason}")));
        entry.0 += 1;
    }

    /// How many in all.
    pub fn total(&self) -> u64 {
        self.0.values().map(|(count, _)| count).sum()
    }

    fn merge(&mut self, other: &Reasons) {
        for (reason, (count, first)) in &other.0 {
            self.0.entry(reason.clone()).or_insert_with(|| (0, first.clone())).0 += count;
        }
    }

    fn print(&self, out: &mut String, what: &str) {
        let mut reasons: Vec<_> = self.0.iter().collect();
        reasons.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
        for (reason, (count, first)) in reasons {
            let _ = writeln!(out, "  {what} {count}: {reason}\n    first {first}");
        }
    }
}

/// A reason without what stands in quotes and without numbers.
fn general(reason: &str) -> String {
    let mut out = String::new();
    let mut rest = reason.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\'' | '"' | '`' => {
                rest.by_ref().take_while(|other| *other != c).for_each(drop);
                out.push('…');
            }
            c if c.is_ascii_digit() => {
                while rest.next_if(char::is_ascii_digit).is_some() {}
                out.push('#');
            }
            c => out.push(c),
        }
    }
    out
}

impl Tally {
    /// Records that were run.
    pub fn records(&self) -> u64 {
        self.passed
            + self.wrong
            + self.sqlite_differs
            + self.failed.total()
            + self.refused.total()
            + self.listed.total()
    }

    /// Records that fail a run: wrong, failed, refused without a listed reason, and, where
    /// strategies are judged, too dear.
    pub fn bad(&self) -> u64 {
        self.wrong + self.failed.total() + self.refused.total() + self.dear.total()
    }

    /// Add another file's counts.
    pub fn merge(&mut self, other: &Tally) {
        self.passed += other.passed;
        self.order_free += other.order_free;
        self.wrong += other.wrong;
        self.sqlite_differs += other.sqlite_differs;
        self.failed.merge(&other.failed);
        self.refused.merge(&other.refused);
        self.listed.merge(&other.listed);
        self.dear.merge(&other.dear);
        for (strategy, count) in &other.strategies {
            *self.strategies.entry(*strategy).or_default() += count;
        }
        self.rows_shipped += other.rows_shipped;
        self.bytes_shipped += other.bytes_shipped;
        self.elapsed += other.elapsed;
        self.columnar_tables += other.columnar_tables;
    }

    /// One line of counts under a name.
    pub fn line(&self, name: &str) -> String {
        let strategies: Vec<String> =
            self.strategies.iter().map(|(strategy, count)| format!("{strategy} {count}")).collect();
        let mut line = format!(
            "{name}: passed {} wrong {} refused {} ({:.2} %) failed {} | {} | shipped {} rows {} bytes | {:.1} s",
            self.passed,
            self.wrong,
            self.refused.total(),
            share(self.refused.total(), self.records()),
            self.failed.total(),
            if strategies.is_empty() { "nothing asked".to_owned() } else { strategies.join(" ") },
            self.rows_shipped,
            self.bytes_shipped,
            self.elapsed.as_secs_f64(),
        );
        for (count, what) in [
            (self.columnar_tables, "tables in column segments"),
            (self.listed.total(), "refused as listed"),
            (self.sqlite_differs, "as SQLite but not as the file"),
            (self.order_free, "in another allowed order"),
            (self.dear.total(), "dearer than need be"),
        ] {
            if count > 0 {
                let _ = write!(line, " | {count} {what}");
            }
        }
        line
    }

    /// Reasons of what was refused, failed or too dear, most frequent first.
    pub fn reasons(&self) -> String {
        let mut out = String::new();
        self.refused.print(&mut out, "refused");
        self.listed.print(&mut out, "refused as listed");
        self.failed.print(&mut out, "failed");
        self.dear.print(&mut out, "too dear");
        out
    }
}

#[allow(clippy::cast_precision_loss)]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_grouped_without_names_and_numbers() {
        let mut reasons = Reasons::default();
        reasons.add("no column 'a12' in t7 at 300", "f:1", "SELECT a12");
        reasons.add("no column 'b' in t8 at 3", "f:2", "SELECT b");
        assert_eq!(reasons.total(), 2);
        let mut out = String::new();
        reasons.print(&mut out, "refused");
        assert_eq!(
            out,
            "  refused 2: no column … in t# at #\n    first f:1: SELECT a12 -- no column 'a12' in t7 at 300\n"
        );
    }

    #[test]
    fn tallies_add_up() {
        let mut all = Tally::default();
        let mut one = Tally { passed: 197, wrong: 1, ..Tally::default() };
        one.refused.add("windows", "f:1", "SELECT 1");
        one.strategies.insert(Strategy::Rows, 5);
        all.merge(&one);
        all.merge(&one);
        assert_eq!(all.records(), 398);
        assert!(all.line("total").starts_with("total: passed 394 wrong 2 refused 2 (0.50 %) failed 0 | rows 10"));
    }
}
