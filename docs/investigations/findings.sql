-- What was found, and who was named?
-- :since time = 7d -- from when on
-- :until time = now -- up to when
-- :job text = '' -- only this job; empty: all
SELECT verdict, culprit_node, rank, count(*) AS times FROM findings WHERE ts_ns >= :since AND ts_ns < :until AND (:job = '' OR job_id = :job)
GROUP BY verdict, culprit_node, rank ORDER BY verdict, coalesce(culprit_node, ''), rank
