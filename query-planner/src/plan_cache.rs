//! Plans of the questions asked last: a dashboard or `--watch` asks the same thing again and again,
//! and planning costs more than a small question's execution.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::api::AskOptions;
use crate::catalog::Catalog;
use crate::error::QueryError;
use crate::plan::{Fragment, Plan};
use crate::planner::{self, plan_for_one};
use parking_lot::Mutex;

/// Plans cached.
const MAX_PLANS: usize = 64;
/// Longer questions are planned each time.
const LONGEST_SQL_BYTES: usize = 16 << 10;

/// The plans of the last questions, newest first.
#[derive(Debug, Default)]
pub struct PlanCache {
    cached: Mutex<VecDeque<CachedPlan>>,
}

#[derive(Debug)]
struct CachedPlan {
    sql: String,
    options: AskOptions,
    /// Kept alive, so that the address cannot be another catalogue's.
    catalog: Arc<Catalog>,
    plan: Arc<Plan>,
}

impl PlanCache {
    /// The plan of `sql` against `catalog`. `understands`: which fragments a single node would
    /// answer by an executor of its own ([`plan_for_one`]).
    ///
    /// # Errors
    /// As [`crate::plan()`].
    pub fn plan(
        &self,
        sql: &str,
        catalog: &Arc<Catalog>,
        options: &AskOptions,
        understands: impl Fn(&Fragment) -> bool,
    ) -> Result<Arc<Plan>, QueryError> {
        if let Some(cached) = self.cached(sql, catalog, options) {
            return Ok(cached);
        }
        let plan = if options.single_node && !options.per_node {
            plan_for_one(sql, catalog, understands)?
        } else {
            planner::plan(sql, catalog, options)?
        };
        let plan = Arc::new(plan);
        if sql.len() <= LONGEST_SQL_BYTES {
            let entry = CachedPlan {
                sql: sql.to_owned(),
                options: options.clone(),
                catalog: Arc::clone(catalog),
                plan: Arc::clone(&plan),
            };
            let mut cached = self.cached.lock();
            cached.push_front(entry);
            cached.truncate(MAX_PLANS);
        }
        Ok(plan)
    }

    /// The plan of `sql` against `catalog` where it was made lately.
    pub fn cached(&self, sql: &str, catalog: &Arc<Catalog>, options: &AskOptions) -> Option<Arc<Plan>> {
        let mut cached = self.cached.lock();
        let same = |entry: &CachedPlan| {
            Arc::ptr_eq(&entry.catalog, catalog)
                && entry.sql == sql
                && (entry.options.per_node, entry.options.single_node) == (options.per_node, options.single_node)
        };
        let found = cached.iter().position(same)?;
        let entry = cached.remove(found)?;
        let plan = Arc::clone(&entry.plan);
        cached.push_front(entry);
        Some(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalog(sql: &str) -> Arc<Catalog> {
        let connection = rusqlite::Connection::open_in_memory().expect("memory");
        connection.execute_batch(sql).expect("valid SQL");
        Arc::new(Catalog::of(&connection, &[]).expect("a catalogue"))
    }

    #[test]
    fn a_plan_is_kept_for_its_catalogue_and_options() {
        let plans = PlanCache::default();
        let (one, other) = (catalog("CREATE TABLE t(x)"), catalog("CREATE TABLE t(x, y)"));
        let options = AskOptions::default();
        let first = plans.plan("SELECT * FROM t", &one, &options, |_| false).expect("a plan");
        assert!(Arc::ptr_eq(&first, &plans.plan("SELECT * FROM t", &one, &options, |_| false).expect("a plan")));
        let wider = plans.plan("SELECT * FROM t", &other, &options, |_| false).expect("a plan");
        assert_eq!((first.columns.len(), wider.columns.len()), (1, 2));
        let per_node = AskOptions { per_node: true, ..AskOptions::default() };
        assert!(!Arc::ptr_eq(&first, &plans.plan("SELECT * FROM t", &one, &per_node, |_| false).expect("a plan")));
    }

    #[test]
    fn only_the_newest_are_kept() {
        let plans = PlanCache::default();
        let catalog = catalog("CREATE TABLE t(x)");
        for number in 0..MAX_PLANS + 10 {
            plans
                .plan(&format!("SELECT {number} FROM t"), &catalog, &AskOptions::default(), |_| false)
                .expect("a plan");
        }
        assert_eq!(plans.cached.lock().len(), MAX_PLANS);
    }
}
