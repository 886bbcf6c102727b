-- How much of a rank's time lies outside of calls, by the function that follows?
-- window: 60 s at 0.70
-- ordered: yes
-- tolerance: 1e-9
SELECT job_id, func, count(*) AS calls, avg(before_ns) AS before_ns
FROM (
    SELECT job_id, func, ts_ns - lag(ts_ns + duration_ns) OVER (PARTITION BY pid, tid ORDER BY ts_ns) AS before_ns
    FROM collectives WHERE ts_ns >= {since} AND ts_ns < {until}
) AS own
WHERE before_ns >= 0 GROUP BY job_id, func ORDER BY job_id, func
