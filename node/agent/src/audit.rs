//! The audit: what this agent was asked, by whom and with what result, as rows of the trace store's
//! `audit` table, and log lines for what was refused. An agent that serves a file has no store to
//! write to, so it only logs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use model::OnBehalf;
use parking_lot::Mutex;
use record::unix_now_ns;
use store::{Audit, Source};

/// Rows a second of one who asks. Of further questions those are rows that cost at least twice as
/// much as any before them in that second, so that cheap ones hide no other; the rest are counted
/// in a row of hers.
const ROWS_PER_SECOND: i64 = 50;
/// Those who are told apart in a second. (Others' questions count as one's.)
const CALLERS: usize = 1_024;
/// What a row of an answer costs, as bytes, where these were not counted.
const ROW_BYTES: i64 = 32;
/// Characters kept of a question, and of a reason.
const MAX_QUESTION: usize = 2_000;
const MAX_REASON: usize = 500;
const SECOND_NS: i64 = 1_000_000_000;

/// Writes the audit.
#[derive(Debug)]
pub(super) struct Auditor {
    source: Arc<Source>,
    second: Mutex<Second>,
}

/// What was asked in the present second.
#[derive(Debug, Default)]
struct Second {
    number: i64,
    callers: HashMap<(&'static str, String), Asked>,
}

#[derive(Debug, Default)]
struct Asked {
    rows: i64,
    left_out: i64,
    most: i64,
}

/// One question that is being answered.
#[derive(Debug)]
pub(super) struct Asking {
    row: Audit,
    started: Instant,
}

/// The result of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Rows and bytes, where they were counted.
    Answered { rows: Option<u64>, bytes: Option<u64> },
    /// It was not allowed, wrong or over its budget.
    Refused(String),
    /// It was allowed and did not come to an end.
    Failed(String),
}

impl Asking {
    /// A question of `who` that has just come in.
    pub(super) fn new(via: &'static str, who: String, role: &'static str, kind: &'static str) -> Self {
        let row = Audit { ts_ns: unix_now_ns(), via, who, role, kind, ..Audit::default() };
        Self { row, started: Instant::now() }
    }

    /// Sets the kind of question.
    pub(super) fn role(mut self, role: &'static str) -> Self {
        self.row.role = role;
        self
    }

    /// Sets the process that asks.
    pub(super) fn pid(mut self, pid: Option<i32>) -> Self {
        self.row.pid = pid;
        self
    }

    /// Sets the SQL.
    pub(super) fn question(mut self, sql: &str) -> Self {
        self.row.question = Some(match self.row.question.take() {
            Some(number) => cut(&format!("{number} {sql}"), MAX_QUESTION),
            None => cut(sql, MAX_QUESTION),
        });
        self
    }

    /// Sets the client of a front end: the front end's number of the request goes before the
    /// question, as a comment.
    pub(super) fn on_behalf(mut self, of: Option<&OnBehalf>) -> Self {
        if let Some(of) = of {
            self.row.question = Some(format!("/* request {} of {} */", of.request_id, of.client));
        }
        self
    }
}

impl Auditor {
    pub(super) fn new(source: Arc<Source>) -> Self {
        Self { source, second: Mutex::default() }
    }

    /// Writes the row with the result.
    pub(super) fn done(&self, asking: Asking, outcome: Outcome) {
        let Asking { mut row, started } = asking;
        row.duration_ns = i64::try_from(started.elapsed().as_nanos()).unwrap_or(i64::MAX);
        let count = |number: Option<u64>| number.and_then(|number| i64::try_from(number).ok());
        match outcome {
            Outcome::Answered { rows, bytes } => {
                row.outcome = "answered";
                (row.rows, row.bytes) = (count(rows), count(bytes));
            }
            Outcome::Refused(reason) => {
                row.outcome = "refused";
                row.reason = Some(cut(&reason, MAX_REASON));
            }
            Outcome::Failed(reason) => {
                row.outcome = "failed";
                row.reason = Some(cut(&reason, MAX_REASON));
            }
        }
        for row in self.admitted(row) {
            if row.outcome == "refused" {
                // Escaped by the debug form: a question may contain anything.
                tracing::warn!(
                    via = row.via,
                    who = row.who,
                    role = row.role,
                    kind = row.kind,
                    question = ?row.question.as_deref().unwrap_or_default().chars().take(200).collect::<String>(),
                    reason = ?row.reason,
                    "refused"
                );
            }
            if let Source::Store(store) = self.source.as_ref() {
                store.ingest().audit(row);
            }
        }
    }

    /// The row, if of who asks there is room for it in this second; before it, a row for each of
    /// whom the second before left questions out, with their number.
    fn admitted(&self, row: Audit) -> Vec<Audit> {
        let number = row.ts_ns.div_euclid(SECOND_NS);
        let mut second = self.second.lock();
        let mut rows = Vec::new();
        if second.number != number {
            let over = std::mem::replace(&mut *second, Second { number, ..Second::default() });
            let left_out = over.callers.into_iter().filter(|(_, asked)| asked.left_out > 0);
            rows.extend(left_out.map(|((via, who), asked)| Audit {
                ts_ns: row.ts_ns,
                via,
                who,
                kind: "more",
                outcome: "answered",
                rows: Some(asked.left_out),
                ..Audit::default()
            }));
        }
        let mut key = (row.via, row.who.clone());
        if second.callers.len() >= CALLERS && !second.callers.contains_key(&key) {
            key = ("", String::new());
        }
        let asked = second.callers.entry(key).or_default();
        let cost = row.bytes.unwrap_or(0).max(row.rows.unwrap_or(0).saturating_mul(ROW_BYTES));
        if asked.rows < ROWS_PER_SECOND || cost / 2 >= asked.most.max(ROW_BYTES) {
            asked.rows += 1;
            asked.most = asked.most.max(cost);
            rows.push(row);
        } else {
            asked.left_out += 1;
        }
        rows
    }
}

fn cut(text: &str, most: usize) -> String {
    // There are never more characters than bytes: so in most cases nothing need be counted.
    if text.len() <= most { text.to_owned() } else { text.chars().take(most).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::{ServedDb, Store, StoreConfig};

    fn row(ts_ns: i64) -> Audit {
        Audit { ts_ns, kind: "query", ..Audit::default() }
    }

    #[test]
    fn a_flood_is_counted_in_one_row() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.db");
        rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE t(x)").unwrap();
        let auditor = Auditor::new(Arc::new(Source::Served(ServedDb::open(&path, Vec::new()).unwrap())));
        let of = |who: &str, bytes| Audit { who: who.to_owned(), bytes: Some(bytes), ..row(5 * SECOND_NS) };
        let kept: usize = (0..1_000).map(|_| auditor.admitted(of("flood", 100)).len()).sum();
        assert_eq!(kept, 50);
        // It hides nobody else's question, and none of hers that gets more.
        assert_eq!(auditor.admitted(of("other", 1)).len(), 1);
        assert_eq!((auditor.admitted(of("flood", 5_000)).len(), auditor.admitted(of("flood", 5_000)).len()), (1, 0));
        // Nor can rows be made without end by asking for ever more.
        let rising: usize = (0..100_000).map(|bytes| auditor.admitted(of("flood", bytes)).len()).sum();
        assert!(rising < 10, "{rising}");
        let next = auditor.admitted(row(6 * SECOND_NS));
        let more: Vec<_> = next.iter().map(|row| (row.kind, row.who.as_str())).collect();
        assert_eq!(more, [("more", "flood"), ("query", "")]);
        assert!(next[0].rows.is_some_and(|left_out| left_out > 950));
    }

    #[test]
    fn many_callers_are_told_apart_up_to_a_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.db");
        rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE t(x)").unwrap();
        let auditor = Auditor::new(Arc::new(Source::Served(ServedDb::open(&path, Vec::new()).unwrap())));
        for caller in 0..3 * CALLERS {
            auditor.admitted(Audit { who: caller.to_string(), ..row(5 * SECOND_NS) });
        }
        assert_eq!(auditor.second.lock().callers.len(), CALLERS + 1);
    }

    #[test]
    fn what_was_asked_is_a_row() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("s.db"), StoreConfig::default()).unwrap();
        let source = Arc::new(Source::Store(store));
        let auditor = Auditor::new(source.clone());
        let asking = Asking::new("socket", "uid 7".to_owned(), "reader", "query").question(&"x".repeat(9_999));
        auditor.done(asking, Outcome::Refused("not allowed".to_owned()));
        let Source::Store(store) = source.as_ref() else { unreachable!() };
        store.flush(std::time::Duration::from_secs(30)).unwrap();
        let read: (String, String, String, i64) = store
            .reader()
            .unwrap()
            .query_row("SELECT who, outcome, reason, length(question) FROM audit", [], |r| {
                Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?))
            })
            .unwrap();
        assert_eq!(read, ("uid 7".to_owned(), "refused".to_owned(), "not allowed".to_owned(), 2_000));
    }
}
