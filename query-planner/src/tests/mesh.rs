//! An in-memory mesh: N stores, the union as one store, and the comparison of what both answer.

use std::borrow::Cow;

use rusqlite::Connection;

use crate::{
    Answer, AskOptions, Budget, Catalog, Fanout, MergePool, NodeError, NodeStats, NodeTask, Plan, QueryError, Round,
    RoundAsk, RunError, Sink, Stop, Targets, Value, execute_task, harden, plan, run,
};

/// 2026-11-20 00:00:00 UTC.
pub(crate) const NOW_NS: i64 = 1_795_132_800_000_000_000;

pub(crate) struct Mesh {
    pub(crate) nodes: Vec<(String, Connection)>,
    pub(crate) union: Connection,
    pub(crate) catalog: Catalog,
    pub(crate) shipped_rows: u64,
    /// Whether nodes answer in pairs, whose rows are combined where they can be.
    pub(crate) in_pairs: bool,
}

impl Mesh {
    /// `schema` runs everywhere; `rows[i]` on node `i` and on the union. `replicated` tables are
    /// filled by the schema.
    pub(crate) fn new(schema: &str, replicated: &[&str], rows: &[&str]) -> Mesh {
        let union = Connection::open_in_memory().expect("open");
        crate::functions::register(&union).expect("functions");
        // Keys repeat between nodes, so the union of stores has none.
        union.execute_batch(&schema.replace("INTEGER PRIMARY KEY", "INTEGER")).expect("schema");
        let replicated: Vec<String> = replicated.iter().map(|name| (*name).to_owned()).collect();
        let mut nodes = Vec::new();
        let mut catalogs = Vec::new();
        for (i, rows) in rows.iter().enumerate() {
            let mut conn = Connection::open_in_memory().expect("open");
            conn.execute_batch(schema).expect("schema");
            conn.execute_batch(rows).expect("rows");
            union.execute_batch(rows).expect("rows");
            let name = format!("n{i}");
            catalogs.push((name.clone(), Catalog::of(&conn, &replicated).expect("catalog")));
            harden(&mut conn).expect("harden");
            nodes.push((name, conn));
        }
        let catalog = Catalog::union(&catalogs).expect("no conflicts");
        Mesh { nodes, union, catalog, shipped_rows: 0, in_pairs: false }
    }

    /// Stores of their own schemas; no oracle.
    pub(crate) fn of_stores(stores: &[&str]) -> Mesh {
        let mut nodes = Vec::new();
        let mut catalogs = Vec::new();
        for (i, sql) in stores.iter().enumerate() {
            let mut conn = Connection::open_in_memory().expect("open");
            conn.execute_batch(sql).expect("store");
            catalogs.push((format!("n{i}"), Catalog::of(&conn, &[]).expect("catalog")));
            harden(&mut conn).expect("harden");
            nodes.push((format!("n{i}"), conn));
        }
        let catalog = Catalog::union(&catalogs).expect("no conflicts");
        Mesh { nodes, union: Connection::open_in_memory().expect("open"), catalog, shipped_rows: 0, in_pairs: false }
    }

    /// The stores of a database whose rows are dealt to `count` nodes by `deal` (table, row
    /// number).
    pub(crate) fn dealt(union: Connection, count: usize, deal: &mut dyn FnMut() -> usize) -> Mesh {
        let schema: Vec<(String, String, String)> = union
            .prepare("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid")
            .expect("schema")
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .expect("schema")
            .collect::<Result<_, _>>()
            .expect("schema");
        let mut nodes: Vec<(String, Connection)> =
            (0..count).map(|i| (format!("n{i}"), Connection::open_in_memory().expect("open"))).collect();
        for (_, conn) in &nodes {
            schema.iter().for_each(|(_, _, sql)| conn.execute_batch(sql).expect("schema"));
        }
        for (_, table, _) in schema.iter().filter(|(kind, ..)| kind == "table") {
            let mut statement = union.prepare(&format!("SELECT * FROM \"{table}\"")).expect("table");
            let width = statement.column_count();
            let insert = format!("INSERT INTO \"{table}\" VALUES ({})", vec!["?"; width].join(", "));
            let mut rows = statement.query([]).expect("rows");
            while let Some(row) = rows.next().expect("row") {
                let values: Vec<Value> =
                    (0..width).map(|i| Value::from_sqlite(row.get_ref(i).expect("value"))).collect();
                nodes[deal() % count].1.execute(&insert, rusqlite::params_from_iter(values)).expect("insert");
            }
        }
        let catalog = Catalog::of(&nodes[0].1, &[]).expect("catalog");
        nodes.iter_mut().for_each(|(_, conn)| harden(conn).expect("harden"));
        Mesh { nodes, union, catalog, shipped_rows: 0, in_pairs: false }
    }

    pub(crate) fn plan(&self, sql: &str) -> Result<Plan, QueryError> {
        plan(sql, &self.catalog, &AskOptions::default())
    }

    pub(crate) fn ask(&mut self, sql: &str) -> Result<Answer, String> {
        let plan = self.plan(sql).map_err(|error| error.render(sql))?;
        self.run(&plan).map_err(|error| error.to_string())
    }

    pub(crate) fn run(&mut self, plan: &Plan) -> Result<Answer, RunError> {
        let first = crate::first_ask(plan, false, &Budget::default(), NOW_NS);
        let mut predicted = Predicted { mesh: &mut *self, first, at: None, asks: 0 };
        let outcome = run(plan, &mut predicted, &Budget::default(), NOW_NS, &Stop::default());
        assert!(predicted.first.is_some() || predicted.asks == 0, "nothing was to be asked for: {plan:?}");
        let answer = outcome?;
        self.shipped_rows = answer.node_stats.iter().map(|(_, stats)| stats.rows).sum();
        Ok(answer)
    }

    /// What one database says.
    pub(crate) fn oracle(&self, sql: &str) -> Result<Vec<Vec<Value>>, String> {
        let mut statement = self.union.prepare(sql).map_err(|error| error.to_string())?;
        let width = statement.column_count();
        let mut rows = statement.raw_query();
        let mut out = Vec::new();
        while let Some(row) = rows.next().map_err(|error| error.to_string())? {
            out.push((0..width).map(|i| Value::from_sqlite(row.get_ref(i).expect("in range"))).collect());
        }
        Ok(out)
    }

    /// Assert that mesh and union agree, in order where `ordered`.
    pub(crate) fn agrees(&mut self, sql: &str, ordered: bool) {
        self.in_pairs = true;
        self.agrees_as_it_is(sql, ordered);
        self.in_pairs = false;
        self.agrees_as_it_is(sql, ordered);
    }

    fn agrees_as_it_is(&mut self, sql: &str, ordered: bool) {
        let answer = self.ask(sql).unwrap_or_else(|error| panic!("{sql}\n{error}"));
        let oracle = self.oracle(sql).unwrap_or_else(|error| panic!("{sql}\n{error}"));
        let sort = |mut rows: Vec<Vec<Value>>| {
            if !ordered {
                rows.sort_by_key(|row| format!("{row:?}"));
            }
            rows
        };
        let plan = crate::explain(&self.plan(sql).expect("planned before"));
        assert_eq!(sort(answer.rows), sort(oracle), "{sql}\n{plan}");
    }
}

impl Mesh {
    /// Two nodes' rows at a time become one node's.
    fn ask_pairs(&mut self, task: &NodeTask, sink: Sink<'_>) -> Result<Vec<(String, NodeStats)>, RunError> {
        let mut all = Vec::new();
        for pair in self.nodes.chunks(2) {
            let mut batches = vec![Vec::new(); task.fragments.len()];
            for (name, conn) in pair {
                let stats = execute_task(conn, name, task, &mut |fragment, batch| {
                    batches[fragment].push(batch);
                    Ok(())
                });
                let stats = stats.map_err(|error| match error {
                    NodeError::Sql(message) => RunError::Sql(message),
                    other => RunError::Internal(other.to_string()),
                })?;
                all.push((name.clone(), stats));
            }
            for (at, (fragment, batches)) in task.fragments.iter().zip(batches).enumerate() {
                let combine = fragment.combine.as_ref().expect("all have it");
                let pool = MergePool::default();
                let combined = combine.combined(&batches, &pool, &Stop::default());
                let combined = combined.map_err(|error| RunError::Internal(error.to_string()))?;
                sink(&pair[0].0, at, Cow::Owned(combined))?;
            }
        }
        Ok(all)
    }
}

impl Fanout for Mesh {
    fn ask(
        &mut self,
        task: &NodeTask,
        targets: &Targets,
        sink: Sink<'_>,
    ) -> Result<Vec<(String, NodeStats)>, RunError> {
        if self.in_pairs && task.fragments.iter().all(|fragment| fragment.combine.is_some()) && *targets == Targets::All
        {
            return self.ask_pairs(task, sink);
        }
        let mut all = Vec::new();
        for (i, (name, conn)) in self.nodes.iter().enumerate() {
            let asked = match targets {
                Targets::All => true,
                Targets::Named(names) => names.contains(name),
                Targets::AnyOne => i == 0,
            };
            if !asked {
                continue;
            }
            let mut failed = None;
            let stats = execute_task(conn, name, task, &mut |fragment, batch| {
                sink(name, fragment, Cow::Owned(batch)).map_err(|error| {
                    let reason = error.to_string();
                    failed = Some(error);
                    NodeError::Stopped(reason)
                })
            });
            if let Some(error) = failed {
                return Err(error);
            }
            all.push((
                name.clone(),
                stats.map_err(|error| match error {
                    NodeError::Sql(message) => RunError::Sql(message),
                    other => RunError::Internal(other.to_string()),
                })?,
            ));
        }
        Ok(all)
    }
}

/// A mesh that is asked first for what was predicted.
struct Predicted<'m> {
    mesh: &'m mut Mesh,
    first: Option<RoundAsk>,
    at: Option<Round>,
    asks: usize,
}

impl Fanout for Predicted<'_> {
    fn round(&mut self, round: Round) {
        self.at = Some(round);
        Fanout::round(&mut *self.mesh, round);
    }

    fn ask(
        &mut self,
        task: &NodeTask,
        targets: &Targets,
        sink: Sink<'_>,
    ) -> Result<Vec<(String, NodeStats)>, RunError> {
        self.asks += 1;
        if self.asks == 1 {
            let first =
                self.first.as_ref().map(|first| (Some(first.round), format!("{:?}", first.task), &first.targets));
            assert_eq!(first, Some((self.at, format!("{task:?}"), targets)));
        }
        Fanout::ask(&mut *self.mesh, task, targets, sink)
    }
}
