//! The views `lateness` and `self_time`: the figures that verdicts are made of, one row for each rank of each matched
//! collective, for `rankmesh query`. Agents offer them beside the stores' tables; docs/sql.md describes the columns.
//!
//! They say in SQL what `matching.rs` and `score.rs` compute: the two are held together by a test of `show_sql`.

use query_planner::View;

/// What agents offer beside the stores' tables.
pub const VIEWS: &[View] = &[View { name: "lateness", sql: LATENESS }, View { name: "self_time", sql: SELF_TIME }];

/// A collective lies where its median entry lies (of an even number the later of the two in the middle).
const LATENESS: &str = "\
SELECT comm_hash, func, seq, rank, node, pid, nranks, ranks, at_ns, ts_ns, entry_ns, duration_ns, tier, bound_ns,
       entry_ns - first_ns AS lateness_ns, duration_ns - shortest_ns AS wait_ns
FROM (SELECT *, max(CASE WHEN place = known / 2 + 1 THEN ifnull(entry_ns, ts_ns) END) OVER met AS at_ns
      FROM (SELECT *, count(*) OVER met AS ranks, min(entry_ns) OVER met AS first_ns, min(duration_ns) OVER met AS shortest_ns,
                   ifnull(nullif(count(entry_ns) OVER met, 0), count(*) OVER met) AS known,
                   row_number() OVER (PARTITION BY comm_hash, func, seq ORDER BY entry_ns IS NULL, entry_ns, ts_ns) AS place
            FROM (SELECT comm_hash, func, seq, rank, node, pid, nranks, ts_ns, duration_ns, tier,
                         cluster_ns(ts_ns) AS entry_ns, clock_bound_ns(ts_ns) AS bound_ns
                  FROM collectives
                  WHERE captured IS NOT 1 AND comm_hash IS NOT NULL AND seq IS NOT NULL AND rank IS NOT NULL
                    AND (:in_span OR ts_ns >= :since - :slack AND ts_ns < :until + :slack)
                    AND func IN ('all_reduce', 'allreduce', 'all_gather', 'allgather', 'all_gather_v', 'allgather_v', 'allgatherv',
                        'all_gatherv', 'reduce_scatter', 'reduce_scatter_v', 'reduce_scatter_block', 'all_to_all', 'alltoall',
                        'all_to_all_v', 'alltoall_v', 'alltoallv', 'all_to_allv', 'alltoallw', 'all_to_all_w', 'barrier'))
            WINDOW met AS (PARTITION BY comm_hash, func, seq))
      WINDOW met AS (PARTITION BY comm_hash, func, seq))
WHERE :in_span OR at_ns >= :since AND at_ns < :until";

/// `outside_ns` runs up while a process is in no communication call; `gaps` where a number is missing.
const SELF_TIME: &str = "\
SELECT comm_hash, func, seq, rank, node, pid, nranks, ts_ns, entry_ns, own_ns
FROM (SELECT *, CASE WHEN gaps = lag(gaps) OVER before THEN outside_ns - lag(outside_ns) OVER before END AS own_ns
      FROM (SELECT *, sum(step_ns) OVER calls AS outside_ns, sum(gap) OVER calls AS gaps
            FROM (SELECT *,
                         ifnull(max(0, ts_ns - max(ts_ns + duration_ns) OVER
                             (PARTITION BY node, pid ORDER BY ts_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)), 0) AS step_ns,
                         ifnull(seq <> 1 + lag(seq) OVER (PARTITION BY node, pid, comm_hash, func ORDER BY ts_ns), 0) AS gap
                  FROM (SELECT comm_hash, func, seq, rank, node, pid, nranks, ts_ns, duration_ns, cluster_ns(ts_ns) AS entry_ns,
                               func IN ('all_reduce', 'allreduce', 'all_gather', 'allgather', 'all_gather_v', 'allgather_v',
                                   'allgatherv', 'all_gatherv', 'reduce_scatter', 'reduce_scatter_v', 'reduce_scatter_block',
                                   'all_to_all', 'alltoall', 'all_to_all_v', 'alltoall_v', 'alltoallv', 'all_to_allv',
                                   'alltoallw', 'all_to_all_w', 'barrier') AS meets
                        FROM collectives
                        WHERE captured IS NOT 1 AND comm_hash IS NOT NULL AND seq IS NOT NULL AND rank IS NOT NULL
                          AND (:in_span OR ts_ns >= :since - :slack AND ts_ns < :until + :slack)))
            WINDOW calls AS (PARTITION BY node, pid ORDER BY ts_ns ROWS UNBOUNDED PRECEDING))
      WINDOW before AS (PARTITION BY node, pid, comm_hash, meets ORDER BY ts_ns))
WHERE meets AND (:in_span OR ifnull(entry_ns, ts_ns) >= :since AND ifnull(entry_ns, ts_ns) < :until)";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stragglers::observation::Coupling;

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
