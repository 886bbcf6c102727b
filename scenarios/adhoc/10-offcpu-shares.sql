-- Why are ranks off the CPU? Shares of each reason, by process.
-- ordered: yes
-- tolerance: 1e-9
SELECT pid, reason, sum(duration_ns) AS off_ns,
    100.0 * sum(duration_ns) / sum(sum(duration_ns)) OVER (PARTITION BY pid) AS share
FROM offcpu GROUP BY pid, reason ORDER BY pid, off_ns DESC, reason
