-- Who waited how long, and who came last?
-- Who waits least in a collective came last: its time in the call is the shortest. No clock is needed for that.
-- :since time = 1h -- from when on
-- :until time = now -- up to when
-- :job text = '' -- only this job; empty: all
SELECT rank, node, count(*) AS collectives, sum(wait_ns) AS wait_ns, sum(is_last) AS times_last
FROM (
    SELECT rank, node, duration_ns - min(duration_ns) OVER (PARTITION BY comm_hash, func, seq) AS wait_ns,
        row_number() OVER (PARTITION BY comm_hash, func, seq ORDER BY duration_ns, rank) = 1 AS is_last
    FROM collectives
    WHERE ts_ns >= :since AND ts_ns < :until AND (:job = '' OR job_id = :job)
        AND comm_hash IS NOT NULL AND seq IS NOT NULL AND rank IS NOT NULL AND duration_ns IS NOT NULL
)
GROUP BY rank, node ORDER BY rank
-- views: SELECT rank, node, collectives, wait_ns, times_last FROM waits_by_rank ORDER BY rank
