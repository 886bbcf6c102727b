-- How many calls came in each hour?
-- :since time = 1d -- from when on
-- :until time = now -- up to when
-- :job text = '' -- only this job; empty: all
SELECT ts_ns - ts_ns % 3600000000000 AS hour_ns, count(*) AS calls FROM collectives
WHERE ts_ns >= :since AND ts_ns < :until AND (:job = '' OR job_id = :job) GROUP BY ts_ns - ts_ns % 3600000000000 ORDER BY hour_ns
