//! Whether a plan was as cheap as the query's shape allows.
//!
//! A planner that fetches every table answers everything right, so right answers alone prove
//! little. The shape (`shape.rs`) says which strategies are allowed and how many rows may travel;
//! SQLite's authorizer says which columns a query reads, on the union for the user's SQL and on a
//! node for each part.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use query_planner::{Plan, Strategy};
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::{Connection, OpenFlags};

use super::deal::Dealer;
use super::shape::{Facts, Shape};
use super::transport::Answered;

/// Tables and the columns read of each, in lower case. A table of which only the existence of rows
/// matters has none.
pub type Reads = BTreeMap<String, BTreeSet<String>>;

/// Judges plans against shapes.
#[derive(Debug)]
pub struct RungCheck {
    /// The nodes' databases with the mesh's functions, to prepare parts on.
    nodes: Vec<Connection>,
}

impl RungCheck {
    /// A judge for one deal.
    ///
    /// # Errors
    /// A node's file cannot be opened.
    pub fn new(dealer: &Dealer) -> anyhow::Result<Self> {
        let nodes = dealer
            .nodes()
            .iter()
            .map(|node| {
                let mut conn = Connection::open_with_flags(&node.path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
                query_planner::harden(&mut conn)?;
                Ok(conn)
            })
            .collect::<rusqlite::Result<_>>()?;
        Ok(RungCheck { nodes })
    }

    /// What is too dear about an answer, or `None`.
    ///
    /// # Errors
    /// A part does not compile on a node.
    pub fn violation(
        &mut self,
        dealer: &mut Dealer,
        sql: &str,
        facts: &Facts,
        answered: &Answered,
    ) -> anyhow::Result<Option<String>> {
        if let Some(what) = too_dear(facts.shape, answered, dealer.nodes().len()) {
            return Ok(Some(what));
        }
        let unfiltered = answered.plan.as_ref().and_then(|plan| unfiltered(plan, facts, dealer));
        if let Some(table) = unfiltered {
            return Ok(Some(format!("fetches every row of {table}, of which the question says which")));
        }
        match &answered.plan {
            Some(plan) if facts.shape == Shape::General && !facts.natural => {
                self.surplus_column(dealer, sql, plan, &facts.joined_on)
            }
            _ => Ok(None),
        }
    }

    /// What a part reads, by the first node that has what it names.
    fn part_reads(&mut self, sql: &str) -> rusqlite::Result<Reads> {
        let mut outcome = Ok(Reads::new());
        for node in &mut self.nodes {
            outcome = reads(node, sql);
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    fn surplus_column(
        &mut self,
        dealer: &mut Dealer,
        sql: &str,
        plan: &Plan,
        joined_on: &[String],
    ) -> anyhow::Result<Option<String>> {
        let mut wanted = reads(dealer.union_mut(), sql)?;
        wanted.values_mut().for_each(|columns| columns.extend(joined_on.iter().cloned()));
        for fragment in &plan.fragments {
            for (table, columns) in self.part_reads(&fragment.sql)? {
                let allowed = wanted.get(&table);
                let surplus: Vec<&String> =
                    columns.iter().filter(|column| !allowed.is_some_and(|allowed| allowed.contains(*column))).collect();
                if !surplus.is_empty() {
                    return Ok(Some(format!("a part reads {surplus:?} of {table}, which the question does not")));
                }
            }
            let key = fragment.table.to_ascii_lowercase();
            // A part may ship `node` beside the columns, or one constant for a row of which nothing
            // else matters.
            let most = wanted.get(&key).map_or(0, BTreeSet::len).max(1) + usize::from(sql.contains("node"));
            if plan.strategy == Strategy::Fetch && fragment.columns as usize > most {
                return Ok(Some(format!("fetches {} columns of {key}, {most} are referenced", fragment.columns)));
            }
        }
        Ok(None)
    }
}

/// A table that is fetched whole although the question restricts it.
fn unfiltered<'p>(plan: &'p Plan, facts: &Facts, dealer: &Dealer) -> Option<&'p str> {
    plan.fragments
        .iter()
        .filter(|part| plan.strategy == Strategy::Fetch && !dealer.is_view(&part.table))
        .find(|part| facts.filtered.contains(&part.table.to_ascii_lowercase()) && !part.sql.contains(" WHERE "))
        .map(|part| part.table.as_str())
}

/// The dearest strategy a shape may take, and the most rows all nodes together may ship.
fn too_dear(shape: Shape, answered: &Answered, nodes: usize) -> Option<String> {
    let dearest = match shape {
        Shape::Constant => Strategy::Coordinator,
        Shape::Scan { .. } | Shape::Aggregate { .. } => Strategy::Aggregate,
        Shape::General => Strategy::Fetch,
    };
    if answered.strategy > dearest {
        return Some(format!("{} where {dearest} or cheaper was possible", answered.strategy));
    }
    let nodes = nodes as u64;
    let rows = answered.rows.len() as u64;
    let most = match shape {
        Shape::Constant => 0,
        Shape::Scan { cut: Some(cut), .. } => nodes * cut,
        // LIMIT with an expression: the answer's rows say nothing of how much was cut off.
        Shape::Scan { distinct, cut: None } if rows > 0 || !distinct => rows * if distinct { nodes } else { 1 },
        Shape::Aggregate { grouped: false, plain: true } => nodes,
        Shape::Aggregate { grouped: true, plain: true } => nodes * rows,
        _ => return None,
    };
    (answered.rows_shipped > most).then(|| format!("{} rows shipped, {most} suffice", answered.rows_shipped))
}

/// What a SELECT reads, says SQLite.
///
/// # Errors
/// The SQL does not compile.
pub fn reads(conn: &mut Connection, sql: &str) -> rusqlite::Result<Reads> {
    let seen: Arc<Mutex<Reads>> = Arc::default();
    let noted = Arc::clone(&seen);
    conn.authorizer(Some(move |context: AuthContext<'_>| {
        if let AuthAction::Read { table_name, column_name } = context.action {
            let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
            let columns = noted.entry(table_name.to_ascii_lowercase()).or_default();
            if !column_name.is_empty() {
                columns.insert(column_name.to_ascii_lowercase());
            }
        }
        Authorization::Allow
    }))?;
    let prepared = conn.prepare(sql).map(|_| ());
    conn.authorizer(None::<fn(AuthContext<'_>) -> Authorization>)?;
    prepared?;
    let reads = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(reads)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(strategy: Strategy, rows: usize, rows_shipped: u64) -> Answered {
        Answered { rows: vec![Vec::new(); rows], strategy, rows_shipped, bytes_shipped: 0, plan: None }
    }

    #[test]
    fn dear_strategies_are_told() {
        let aggregate = Shape::Aggregate { grouped: true, plain: true };
        assert!(too_dear(aggregate, &answered(Strategy::Fetch, 2, 2), 3).is_some());
        assert!(too_dear(aggregate, &answered(Strategy::Aggregate, 2, 6), 3).is_none());
        assert!(too_dear(aggregate, &answered(Strategy::Aggregate, 2, 7), 3).is_some());
        let scan = Shape::Scan { distinct: false, cut: Some(5) };
        assert!(too_dear(scan, &answered(Strategy::Rows, 5, 15), 3).is_none());
        assert!(too_dear(scan, &answered(Strategy::Rows, 5, 16), 3).is_some());
        assert!(too_dear(Shape::General, &answered(Strategy::Fetch, 0, 99), 3).is_none());
        assert!(too_dear(Shape::Constant, &answered(Strategy::Push, 1, 1), 3).is_some());
    }

    #[test]
    fn sqlite_says_what_is_read() {
        let mut conn = Connection::open_in_memory().unwrap();
        conn.execute_batch("CREATE TABLE t(a, b, c); CREATE TABLE u(a, b)").unwrap();
        let reads = reads(&mut conn, "SELECT t.A FROM T WHERE b IN (SELECT count(*) FROM u)").unwrap();
        let columns = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(reads, BTreeMap::from([("t".to_owned(), columns(&["a", "b"])), ("u".to_owned(), columns(&[]))]));
    }
}
