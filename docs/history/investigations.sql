-- Twenty investigations. Each is asked of the mesh (rankmesh query), of the archive through `rankmesh query --archive`,
-- and of the archive in DuckDB and ClickHouse with the views of this folder; a test holds the answers together. What
-- follows `-- mesh:` is the question in SQLite's words where the engines' views have it shorter.

-- 1. Which jobs ran, on how many nodes, since when?
SELECT job_id, nodes, ranks, first_ns, last_ns, calls FROM jobs ORDER BY job_id
-- mesh:
SELECT job_id, count(DISTINCT node) AS nodes, count(DISTINCT rank) AS ranks, min(ts_ns) AS first_ns, max(ts_ns + duration_ns) AS last_ns, count(*) AS calls FROM collectives WHERE job_id IS NOT NULL GROUP BY job_id ORDER BY job_id

-- 2. Who waited how long, and who came last?
SELECT rank, node, collectives, wait_ns, times_last FROM waits_by_rank ORDER BY rank
-- mesh:
SELECT rank, node, count(*) AS collectives, sum(wait_ns) AS wait_ns, sum(is_last) AS times_last FROM (SELECT rank, node, duration_ns - min(duration_ns) OVER (PARTITION BY comm_hash, func, seq) AS wait_ns, row_number() OVER (PARTITION BY comm_hash, func, seq ORDER BY duration_ns, rank) = 1 AS is_last FROM collectives WHERE comm_hash IS NOT NULL AND seq IS NOT NULL AND rank IS NOT NULL AND duration_ns IS NOT NULL) GROUP BY rank, node ORDER BY rank

-- 3. Which ten waits were the longest?
SELECT rank, seq, wait_ns FROM collective_lateness ORDER BY wait_ns DESC, seq, rank LIMIT 10
-- mesh:
SELECT rank, seq, wait_ns FROM (SELECT rank, seq, duration_ns - min(duration_ns) OVER (PARTITION BY comm_hash, func, seq) AS wait_ns FROM collectives WHERE comm_hash IS NOT NULL AND seq IS NOT NULL AND rank IS NOT NULL AND duration_ns IS NOT NULL) ORDER BY wait_ns DESC, seq, rank LIMIT 10

-- 4. How many calls of each kind, and how many bytes?
SELECT func, library, count(*) AS calls, sum(bytes) AS bytes FROM collectives GROUP BY func, library ORDER BY func, library

-- 5. Which communicators are there?
SELECT comm_hash, max(nranks) AS nranks, count(*) AS calls, min(seq) AS first_seq, max(seq) AS last_seq FROM collectives GROUP BY comm_hash ORDER BY comm_hash

-- 6. How long do calls take, rank by rank?
SELECT rank, count(*) AS calls, avg(duration_ns) AS mean_ns, min(duration_ns) AS least_ns, max(duration_ns) AS most_ns FROM collectives GROUP BY rank ORDER BY rank

-- 7. How many calls came in each hour?
SELECT ts_ns - ts_ns % 3600000000000 AS hour_ns, count(*) AS calls FROM collectives GROUP BY ts_ns - ts_ns % 3600000000000 ORDER BY hour_ns

-- 8. Which collectives lack a rank?
SELECT comm_hash, func, seq, count(*) AS ranks FROM collectives GROUP BY comm_hash, func, seq HAVING count(*) < max(nranks) ORDER BY seq

-- 9. How far apart are steps, on each rank's own clock?
SELECT rank, count(*) AS steps, avg(step_ns) AS mean_ns, max(step_ns) AS most_ns FROM (SELECT rank, ts_ns - lag(ts_ns, 1, ts_ns) OVER (PARTITION BY rank ORDER BY ts_ns) AS step_ns FROM collectives) AS steps WHERE step_ns > 0 GROUP BY rank ORDER BY rank

-- 10. Which processes are a job's ranks?
SELECT node, pid, rank, local_rank, job_id FROM processes WHERE rank IS NOT NULL ORDER BY rank

-- 11. Which process made which calls?
SELECT p.rank, count(*) AS calls FROM collectives c JOIN processes p ON c.node = p.node AND c.pid = p.pid GROUP BY p.rank ORDER BY p.rank

-- 12. What took the CPU from ranks?
SELECT node, rank, next_comm, count(*) AS times, sum(duration_ns) AS taken_ns FROM offcpu WHERE rank IS NOT NULL AND voluntary = 0 GROUP BY node, rank, next_comm ORDER BY taken_ns DESC, node, rank, next_comm

-- 13. How long was each rank off the CPU, of its own will and not?
SELECT rank, voluntary, count(*) AS times, sum(duration_ns) AS off_ns FROM offcpu WHERE rank IS NOT NULL GROUP BY rank, voluntary ORDER BY rank, voluntary

-- 14. Who was off the CPU in the middle of the job, for a second and more in all?
SELECT node, rank, sum(duration_ns) AS off_ns FROM offcpu WHERE rank IS NOT NULL GROUP BY node, rank HAVING sum(duration_ns) >= 1000000000 ORDER BY node, rank

-- 15. Which hosts sent segments again?
SELECT node, event, count(*) AS times FROM net_events GROUP BY node, event ORDER BY node, event

-- 16. What do the second's sums say of each function?
SELECT source, func, sum("count") AS calls, sum(sum_ns) AS sum_ns, max(max_ns) AS most_ns FROM call_rollups GROUP BY source, func ORDER BY source, func

-- 17. Do sums and rows agree?
SELECT a.rank, a.calls, b.calls AS summed FROM (SELECT rank, count(*) AS calls FROM collectives GROUP BY rank) a JOIN (SELECT rank, sum("count") AS calls FROM call_rollups WHERE source IN ('nccl', 'rccl', 'mpi') GROUP BY rank) b ON a.rank = b.rank ORDER BY a.rank

-- 18. What was found, and who was named?
SELECT verdict, culprit_node, rank, count(*) AS times FROM findings GROUP BY verdict, culprit_node, rank ORDER BY verdict, coalesce(culprit_node, ''), rank

-- 19. Which hosts were culprits in most jobs?
SELECT culprit_node, count(DISTINCT job_id) AS jobs, count(*) AS times FROM findings WHERE culprit_node IS NOT NULL AND verdict NOT IN ('archive', 'repeat_culprit') GROUP BY culprit_node ORDER BY jobs DESC, culprit_node

-- 20. How busy were hosts, hour by hour?
SELECT node, count(*) AS samples, avg(cpu_busy_pct) AS busy_pct, max(load_1m) AS load FROM host_samples GROUP BY node ORDER BY node
