-- Which processes are a job's ranks?
-- :job text = '' -- only this job; empty: all
SELECT node, pid, rank, local_rank, job_id FROM processes WHERE rank IS NOT NULL AND (:job = '' OR job_id = :job) ORDER BY rank
