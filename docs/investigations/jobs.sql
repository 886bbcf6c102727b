-- Which jobs ran, on how many nodes, since when?
-- :since time = 1h -- from when on
-- :until time = now -- up to when
SELECT job_id, count(DISTINCT node) AS nodes, count(DISTINCT rank) AS ranks, min(ts_ns) AS first_ns,
    max(ts_ns + duration_ns) AS last_ns, count(*) AS calls
FROM collectives WHERE ts_ns >= :since AND ts_ns < :until AND job_id IS NOT NULL GROUP BY job_id ORDER BY job_id
-- views: SELECT job_id, nodes, ranks, first_ns, last_ns, calls FROM jobs ORDER BY job_id
