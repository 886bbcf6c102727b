-- How long do calls take, rank by rank?
-- :since time = 1h -- from when on
-- :until time = now -- up to when
-- :job text = '' -- only this job; empty: all
SELECT rank, count(*) AS calls, avg(duration_ns) AS mean_ns, min(duration_ns) AS least_ns, max(duration_ns) AS most_ns
FROM collectives WHERE ts_ns >= :since AND ts_ns < :until AND (:job = '' OR job_id = :job) GROUP BY rank ORDER BY rank
