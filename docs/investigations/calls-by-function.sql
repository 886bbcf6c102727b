-- How many calls of each kind, and how many bytes?
-- :since time = 1h -- from when on
-- :until time = now -- up to when
-- :job text = '' -- only this job; empty: all
SELECT func, library, count(*) AS calls, sum(bytes) AS bytes FROM collectives
WHERE ts_ns >= :since AND ts_ns < :until AND (:job = '' OR job_id = :job) GROUP BY func, library ORDER BY func, library
