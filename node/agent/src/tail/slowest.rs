//! What makes the slowest requests of a service on one host slow, asked of its store.

use explain::tail::{self, Paths, Request, Slowest};
use model::Failure;
use model::cells::quoted;

use super::super::asking::Asking;

/// Ordinary requests are those of so long before; and a slow one that ended in a time began at most so
/// long before it.
const BEFORE_NS: i64 = 600_000_000_000;
/// Examples.
const EXAMPLES: usize = 1;

/// Whose slowest, and when.
#[derive(Debug, Clone)]
pub(crate) struct Slow {
    pub(crate) node: String,
    pub(crate) service: String,
    pub(crate) since_ns: i64,
    pub(crate) until_ns: i64,
    pub(crate) p99_ns: i64,
    /// Routes, programs and threads are asked for.
    pub(crate) with_names: bool,
}

impl Slow {
    fn conditions(&self, since_ns: i64, until_ns: i64) -> String {
        format!("ts_ns >= {since_ns} AND ts_ns < {until_ns} AND service = {}", quoted(&self.service))
    }

    /// The question for their rows, the slowest first: of those that ended in the time.
    pub(crate) fn sql(&self) -> String {
        let route = if self.with_names { tail::ROUTE } else { "''" };
        let began = self.conditions(self.since_ns.saturating_sub(BEFORE_NS), self.until_ns);
        let ended = format!("ts_ns + duration_ns >= {} AND ts_ns + duration_ns < {}", self.since_ns, self.until_ns);
        tail::slow_sql(&format!("{began} AND {ended}"), route, tail::slow_from_ns(self.p99_ns))
    }

    /// What they have more of than ordinary ones of the time before, where there are such: of a
    /// service whose requests are all slow, no others are ordinary.
    ///
    /// # Errors
    /// The host does not answer; in words.
    pub(crate) async fn slowest(&self, asking: Asking<'_>) -> Result<Slowest, Failure> {
        let from_ns = tail::slow_from_ns(self.p99_ns);
        let route = if self.with_names { tail::ROUTE } else { "''" };
        let of_span = self.conditions(self.since_ns, self.until_ns);
        let mut slow = self.requests(asking, self.sql()).await?;
        let before = self.conditions(self.since_ns.saturating_sub(BEFORE_NS), self.since_ns);
        let mut ordinary = self.requests(asking, tail::ordinary_sql(&before, route, from_ns)).await?;
        if tail::few_rows(slow.len(), ordinary.len()).is_some() {
            ordinary = self.requests(asking, tail::ordinary_sql(&of_span, route, from_ns)).await?;
        }
        if let Some(why) = tail::few_rows(slow.len(), ordinary.len()) {
            return Ok(Slowest::unknown(&why));
        }
        self.add_paths(asking, &mut slow).await?;
        self.add_paths(asking, &mut ordinary).await?;
        Ok(tail::slowest(from_ns, &slow, &ordinary, EXAMPLES))
    }

    async fn requests(&self, asking: Asking<'_>, sql: String) -> Result<Vec<Request>, Failure> {
        let (rows, _) = asking.rows(sql, std::slice::from_ref(&self.node)).await?;
        Ok(rows.iter().map(|row| tail::request(row)).collect())
    }

    async fn add_paths(&self, asking: Asking<'_>, requests: &mut [Request]) -> Result<(), Failure> {
        let names = if self.with_names { tail::NAMES } else { ["''"; 3] };
        let mut paths = Paths::default();
        for times in tail::path_times(requests) {
            let (rows, _) = asking.rows(tail::paths_sql(&times, names), std::slice::from_ref(&self.node)).await?;
            rows.iter().for_each(|row| paths.add(row));
        }
        paths.give(requests);
        Ok(())
    }
}
