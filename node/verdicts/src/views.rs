//! The views `lateness` and `self_time`: the figures that verdicts are made of, one row for each
//! rank of each matched collective, for `rankmesh query`. Agents offer them next to the stores'
//! tables; docs/sql.md describes the columns. `synced_lateness` and `synced_self_time` are the same
//! where calls only enqueue and hosts wait in synchronise calls after them.
//!
//! They say in SQL what `digest/follow.rs`, `matching.rs` and `score.rs` compute: they are held
//! together by the tests of `show_sql`.

use query_planner::View;

/// The functions that make all ranks meet.
macro_rules! meets {
    () => {
        "func IN ('all_reduce', 'allreduce', 'all_gather', 'allgather', 'all_gather_v', 'allgather_v', 'allgatherv', \
         'all_gatherv', 'reduce_scatter', 'reduce_scatter_v', 'reduce_scatter_block', 'all_to_all', 'alltoall', \
         'all_to_all_v', 'alltoall_v', 'alltoallv', 'all_to_allv', 'alltoallw', 'all_to_all_w', 'barrier')"
    };
}
/// What is fetched of a span, of the nodes' own clocks.
macro_rules! in_span {
    () => {
        "(:in_span OR ts_ns >= :since - :slack AND ts_ns < :until + :slack)"
    };
}
/// Calls that can be distinguished; what was captured into a graph did not run then, and one in which
/// its rank died never returned.
macro_rules! numbered {
    () => {
        "captured IS NOT 1 AND duration_ns IS NOT NULL AND comm_hash IS NOT NULL AND seq IS NOT NULL AND rank IS NOT NULL"
    };
}
macro_rules! calls {
    () => {
        concat!(
            "SELECT comm_hash, func, seq, rank, node, pid, nranks, ts_ns, duration_ns, tier, cluster_ns(ts_ns) AS entry_ns, \
             clock_bound_ns(ts_ns) AS bound_ns FROM collectives WHERE ",
            numbered!(),
            " AND ",
            in_span!(),
            " AND ",
            meets!()
        )
    };
}
/// `waits` counts a process's synchronise calls from the last one back: calls of one number wait in
/// one. Of a communicator's the last is taken to wait, until that ends.
macro_rules! synced_calls {
    () => {
        concat!(
            "SELECT comm_hash, func, seq, rank, node, pid, nranks, ts_ns, synced_ns - ts_ns AS duration_ns, 1 AS tier, entry_ns, bound_ns \
             FROM (SELECT *, row_number() OVER (PARTITION BY node, pid, comm_hash, waits ORDER BY ts_ns DESC) AS nth \
             FROM (SELECT *, max(end_ns) OVER (PARTITION BY node, pid, waits) AS synced_ns \
             FROM (SELECT *, count(end_ns) OVER (PARTITION BY node, pid ORDER BY ts_ns DESC, end_ns IS NULL ROWS UNBOUNDED PRECEDING) AS waits \
             FROM (SELECT comm_hash, func, seq, rank, node, pid, nranks, ts_ns, NULL AS end_ns, cluster_ns(ts_ns) AS entry_ns, \
             clock_bound_ns(ts_ns) AS bound_ns FROM collectives WHERE tier = 0 AND ",
            numbered!(),
            " AND ",
            in_span!(),
            " AND ",
            meets!(),
            " UNION ALL SELECT NULL, NULL, NULL, NULL, node, pid, NULL, ts_ns, ts_ns + max(duration_ns, 0), NULL, NULL \
             FROM cuda_calls WHERE kind = 'after_collective' AND ",
            in_span!(),
            "))) WHERE end_ns IS NULL AND waits > 0) WHERE nth = 1"
        )
    };
}
/// A collective lies where its median entry lies (of an even number the later of the two in the
/// middle).
macro_rules! lateness {
    ($calls:ident!()) => {
        concat!(
            "SELECT comm_hash, func, seq, rank, node, pid, nranks, ranks, at_ns, ts_ns, entry_ns, duration_ns, tier, bound_ns, \
             entry_ns - first_ns AS lateness_ns, duration_ns - shortest_ns AS wait_ns \
             FROM (SELECT *, max(CASE WHEN place = known / 2 + 1 THEN ifnull(entry_ns, ts_ns) END) OVER met AS at_ns \
             FROM (SELECT *, count(*) OVER met AS ranks, min(entry_ns) OVER met AS first_ns, min(duration_ns) OVER met AS shortest_ns, \
             ifnull(nullif(count(entry_ns) OVER met, 0), count(*) OVER met) AS known, \
             row_number() OVER (PARTITION BY comm_hash, func, seq ORDER BY entry_ns IS NULL, entry_ns, ts_ns) AS place \
             FROM (",
            $calls!(),
            ") WINDOW met AS (PARTITION BY comm_hash, func, seq)) \
             WINDOW met AS (PARTITION BY comm_hash, func, seq)) \
             WHERE :in_span OR at_ns >= :since AND at_ns < :until"
        )
    };
}
/// Communication calls, with the end of each; those without a number keep a process busy, too.
macro_rules! plain {
    () => {
        concat!(
            "SELECT *, ts_ns + duration_ns AS end_ns, ifnull(seq IS NOT NULL AND ",
            meets!(),
            ", 0) AS counts FROM (SELECT comm_hash, func, seq, rank, node, pid, nranks, ts_ns, duration_ns, cluster_ns(ts_ns) AS entry_ns \
             FROM collectives WHERE captured IS NOT 1 AND duration_ns IS NOT NULL AND comm_hash IS NOT NULL AND rank IS NOT NULL AND ",
            in_span!(),
            ")"
        )
    };
}
/// The same with synchronise calls. Of the calls that one of them waits for, the last of a
/// communicator counts.
macro_rules! with_syncs {
    () => {
        concat!(
            "SELECT *, meets AND (waits = 0 OR tier > 0 OR nth = 1) AS counts \
             FROM (SELECT *, row_number() OVER (PARTITION BY node, pid, comm_hash, waits, meets AND tier = 0 ORDER BY ts_ns DESC) AS nth \
             FROM (SELECT *, count(syncs) OVER (PARTITION BY node, pid ORDER BY ts_ns DESC, syncs IS NULL ROWS UNBOUNDED PRECEDING) AS waits \
             FROM (SELECT comm_hash, func, seq, rank, node, pid, nranks, ts_ns, ts_ns + duration_ns AS end_ns, cluster_ns(ts_ns) AS entry_ns, \
             tier, NULL AS syncs, ifnull(seq IS NOT NULL AND ",
            meets!(),
            ", 0) AS meets FROM collectives WHERE captured IS NOT 1 AND duration_ns IS NOT NULL AND comm_hash IS NOT NULL AND rank IS NOT NULL AND ",
            in_span!(),
            " UNION ALL SELECT NULL, NULL, NULL, NULL, node, pid, NULL, ts_ns, ts_ns + max(duration_ns, 0), NULL, 0, 1, 0 \
             FROM cuda_calls WHERE kind = 'after_collective' AND ",
            in_span!(),
            ")))"
        )
    };
}
/// `outside_ns` runs up while a process is in no such call; between two calls of a communicator
/// whose numbers do not follow each other, `open` says that one is missing, and `gaps` runs up.
macro_rules! self_time {
    ($calls:ident!()) => {
        concat!(
            "SELECT comm_hash, func, seq, rank, node, pid, nranks, ts_ns, entry_ns, own_ns \
             FROM (SELECT *, CASE WHEN gaps = lag(gaps) OVER before THEN outside_ns - lag(outside_ns) OVER before END AS own_ns \
             FROM (SELECT *, sum(step_ns) OVER calls AS outside_ns, sum(open > 0) OVER calls AS gaps \
             FROM (SELECT *, ifnull(sum(ahead - gap) OVER (PARTITION BY node, pid ORDER BY ts_ns ROWS BETWEEN UNBOUNDED PRECEDING AND \
             1 PRECEDING), 0) AS open \
             FROM (SELECT *, ifnull(max(0, ts_ns - max(end_ns) OVER \
             (PARTITION BY node, pid ORDER BY ts_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)), 0) AS step_ns, \
             ifnull(seq <> 1 + lag(seq) OVER lane, 0) AS gap, ifnull(lead(seq) OVER lane <> 1 + seq, 0) AS ahead \
             FROM (",
            $calls!(),
            ") WINDOW lane AS (PARTITION BY node, pid, comm_hash, func, seq IS NULL ORDER BY ts_ns))) \
             WINDOW calls AS (PARTITION BY node, pid ORDER BY ts_ns ROWS UNBOUNDED PRECEDING)) \
             WINDOW before AS (PARTITION BY node, pid, comm_hash, counts ORDER BY ts_ns)) \
             WHERE counts AND (:in_span OR ifnull(entry_ns, ts_ns) >= :since AND ifnull(entry_ns, ts_ns) < :until)"
        )
    };
}
/// What agents offer besides the stores' tables.
pub const VIEWS: &[View] = &[
    View { name: "lateness", sql: lateness!(calls!()) },
    View { name: "synced_lateness", sql: lateness!(synced_calls!()) },
    View { name: "self_time", sql: self_time!(plain!()) },
    View { name: "synced_self_time", sql: self_time!(with_syncs!()) },
];

#[cfg(test)]
mod tests {
    use super::*;
    use observed::Coupling;

    #[test]
    fn the_views_take_the_calls_that_make_all_ranks_meet() {
        for view in VIEWS {
            let list = view.sql.split("func IN (").nth(1).and_then(|rest| rest.split(')').next()).unwrap();
            for name in list.split(',').map(|name| name.trim().trim_matches('\'')) {
                assert_eq!(Coupling::of(name), Coupling::All, "{name}");
            }
            assert_eq!(list.split(',').count(), 20, "as many as Coupling::of has");
        }
    }
}
