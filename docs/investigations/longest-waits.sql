-- Which ten waits were the longest?
-- :since time = 1h -- from when on
-- :until time = now -- up to when
-- :job text = '' -- only this job; empty: all
SELECT rank, seq, wait_ns
FROM (
    SELECT rank, seq, duration_ns - min(duration_ns) OVER (PARTITION BY comm_hash, func, seq) AS wait_ns
    FROM collectives
    WHERE ts_ns >= :since AND ts_ns < :until AND (:job = '' OR job_id = :job)
        AND comm_hash IS NOT NULL AND seq IS NOT NULL AND rank IS NOT NULL AND duration_ns IS NOT NULL
)
ORDER BY wait_ns DESC, seq, rank LIMIT 10
-- views: SELECT rank, seq, wait_ns FROM collective_lateness ORDER BY wait_ns DESC, seq, rank LIMIT 10
