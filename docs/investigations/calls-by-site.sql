-- Where in the program are calls made, how often, and how long do they take?
-- :since time = 1h -- from when on
-- :until time = now -- up to when
-- :job text = '' -- only this job; empty: all
SELECT site, func, count(DISTINCT rank) AS ranks, count(*) AS calls, sum(bytes) AS bytes, avg(duration_ns) AS mean_ns, max(duration_ns) AS longest_ns
FROM collectives WHERE ts_ns >= :since AND ts_ns < :until AND (:job = '' OR job_id = :job) AND site IS NOT NULL
GROUP BY site, func ORDER BY sum(duration_ns) DESC, site, func
