-- Which communicators are there?
-- :since time = 1h -- from when on
-- :until time = now -- up to when
-- :job text = '' -- only this job; empty: all
SELECT comm_hash, max(nranks) AS nranks, count(*) AS calls, min(seq) AS first_seq, max(seq) AS last_seq
FROM collectives WHERE ts_ns >= :since AND ts_ns < :until AND (:job = '' OR job_id = :job) GROUP BY comm_hash ORDER BY comm_hash
