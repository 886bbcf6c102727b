-- How far apart are steps, on each rank's own clock?
-- :since time = 1h -- from when on
-- :until time = now -- up to when
-- :job text = '' -- only this job; empty: all
SELECT rank, count(*) AS steps, avg(step_ns) AS mean_ns, max(step_ns) AS most_ns
FROM (
    SELECT rank, ts_ns - lag(ts_ns, 1, ts_ns) OVER (PARTITION BY rank ORDER BY ts_ns) AS step_ns FROM collectives
    WHERE ts_ns >= :since AND ts_ns < :until AND (:job = '' OR job_id = :job)
) AS steps
WHERE step_ns > 0 GROUP BY rank ORDER BY rank
