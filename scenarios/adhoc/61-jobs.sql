-- Jobs with their users, commands, calls and time.
-- ordered: yes
SELECT p.job_id, p.user, p.comm, count(DISTINCT p.pid) AS processes, sum(c.calls) AS calls, sum(c.in_calls_ns) AS in_calls_ns
FROM (SELECT DISTINCT job_id, user, comm, pid FROM processes) AS p
JOIN (SELECT pid, count(*) AS calls, sum(duration_ns) AS in_calls_ns FROM collectives GROUP BY pid) AS c ON c.pid = p.pid
GROUP BY p.job_id, p.user, p.comm ORDER BY p.job_id, p.user, p.comm
