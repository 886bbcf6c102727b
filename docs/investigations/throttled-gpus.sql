-- Which GPUs were held down, and by what?
-- :since time = 1h -- from when on
-- :until time = now -- up to when
SELECT node, gpu, throttle, count(*) AS samples, min(sm_clock_mhz) AS least_mhz, max(sm_clock_mhz) AS most_mhz
FROM gpu_samples WHERE ts_ns >= :since AND ts_ns < :until AND throttle IS NOT NULL AND throttle <> ''
GROUP BY node, gpu, throttle ORDER BY samples DESC, node, gpu
