-- Mean time of calls in seconds in which a GPU of the host was throttled, and in the others.
-- window: 120 s at 0.40
-- ordered: yes
-- tolerance: 1e-9
WITH throttled AS (
    SELECT ts_ns / 1000000000 AS second, count(*) AS gpus FROM gpu_samples
    WHERE throttle <> '' AND ts_ns >= {since} AND ts_ns < {until} GROUP BY 1
)
SELECT coalesce(t.gpus, 0) AS gpus, count(*) AS calls, avg(c.duration_ns) AS mean_ns
FROM collectives AS c LEFT JOIN throttled AS t ON t.second = c.ts_ns / 1000000000
WHERE c.ts_ns >= {since} AND c.ts_ns < {until} GROUP BY 1 ORDER BY 1
