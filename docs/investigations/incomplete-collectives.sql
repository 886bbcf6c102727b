-- Which collectives lack a rank?
-- At both ends of the span some lack ranks because their calls lie outside of it.
-- :since time = 1h -- from when on
-- :until time = now -- up to when
-- :job text = '' -- only this job; empty: all
SELECT comm_hash, func, seq, count(*) AS ranks FROM collectives WHERE ts_ns >= :since AND ts_ns < :until AND (:job = '' OR job_id = :job)
GROUP BY comm_hash, func, seq HAVING count(*) < max(nranks) ORDER BY seq
