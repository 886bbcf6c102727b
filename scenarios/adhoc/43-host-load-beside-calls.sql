-- Pressure on the CPU beside the time of calls, second by second.
-- window: 60 s at 0.40
-- ordered: yes
-- tolerance: 1e-9
SELECT h.ts_ns, h.cpu_busy_pct, h.psi_cpu_some_us, c.calls, c.mean_ns
FROM (SELECT ts_ns, ts_ns / 1000000000 AS second, cpu_busy_pct, psi_cpu_some_us FROM host_samples) AS h
JOIN (SELECT ts_ns / 1000000000 AS second, count(*) AS calls, avg(duration_ns) AS mean_ns FROM collectives
      WHERE ts_ns >= {since} AND ts_ns < {until} GROUP BY 1) AS c ON c.second = h.second
ORDER BY h.ts_ns, h.psi_cpu_some_us, h.cpu_busy_pct
