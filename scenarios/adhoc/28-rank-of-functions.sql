-- The functions of each job by time, ranked within the job.
-- ordered: yes
SELECT job_id, func, in_calls_ns, rank() OVER (PARTITION BY job_id ORDER BY in_calls_ns DESC) AS place
FROM (SELECT job_id, func, sum(duration_ns) AS in_calls_ns FROM collectives GROUP BY job_id, func) AS sums
ORDER BY job_id, place, func
