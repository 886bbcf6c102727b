//! Questions for a page: each is kept with its answer, so that the page can show both; the
//! coverages of the answers are merged.

use ask::Target;
use ask::args::TargetArgs;
use ask::rows::Rows;
use model::{Coverage, Question};
use query_planner::Value;
use report::html::Asked;

/// Rows of one answer that a page shows.
const SHOWN_ROWS: usize = 2_000;
/// Most rows of one answer.
const MOST_ROWS: usize = 200_000;

/// The target of a page's questions, and the questions so far.
pub struct Asking<'a> {
    pub(super) target: &'a Target,
    /// The common parts of the questions.
    common: Question,
    pub(super) timeout_ms: u64,
    pub(super) asked: Vec<Asked>,
    /// Coverage of the answers so far.
    pub coverage: Coverage,
}

/// An answer.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) rows: Vec<Vec<Value>>,
}

impl<'a> Asking<'a> {
    pub(super) fn of(target: &'a Target, args: &'a TargetArgs) -> Self {
        Self::with(target, args.question(String::new()))
    }

    /// A question with these common parts and the given SQL.
    pub fn with(target: &'a Target, common: Question) -> Self {
        Self { target, timeout_ms: common.timeout_ms, common, asked: Vec::new(), coverage: Coverage::default() }
    }

    /// Asks.
    ///
    /// # Errors
    /// As [`Target::query`]; there are more rows than a page is made of.
    pub(super) fn ask(&mut self, title: &str, sql: String) -> anyhow::Result<Found> {
        let question = Question { sql: sql.clone(), ..self.common.clone() };
        let Rows { columns, rows, coverage } =
            self.target.rows(question, MOST_ROWS, " for a page: give a shorter span")?;
        self.coverage.also(coverage);
        let columns = columns.into_iter().map(|column| column.name).collect();
        let title = match rows.len() {
            many if many > SHOWN_ROWS => format!("{title} (the first {SHOWN_ROWS} of {many} rows)"),
            _ => title.to_owned(),
        };
        self.asked.push(Asked { title, sql, columns, rows: rows.iter().take(SHOWN_ROWS).cloned().collect() });
        Ok(Found { rows })
    }

    /// Asks for a table that some stores may lack: then it has no rows.
    ///
    /// # Errors
    /// As [`Self::ask`], except for questions that these stores cannot answer.
    pub(super) fn try_ask(&mut self, title: &str, sql: String) -> anyhow::Result<Found> {
        match self.ask(title, sql.clone()) {
            Err(error) if ask::is_usage(&error) => {
                self.asked.push(Asked { title: format!("{title}: {error:#}"), sql, ..Asked::default() });
                Ok(Found::default())
            }
            asked => asked,
        }
    }
}
