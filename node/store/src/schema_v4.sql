-- Version 4: CUDA and HIP calls are counted by what they do, and bytes with them.

-- NULL where the calls of a function do not say.
ALTER TABLE call_rollups ADD COLUMN bytes INTEGER;

-- The counted CUDA and HIP calls by what they do. Sum up one source at a time: the runtime calls the driver.
CREATE VIEW cuda_time AS
SELECT bucket_ns, source, func,
       CASE WHEN func LIKE '%Synchronize' THEN 'synchronize'
            WHEN func LIKE '%Launch%' THEN 'launch'
            WHEN func LIKE '%Memcpy%' THEN 'copy'
            WHEN func LIKE '%Memset%' THEN 'fill'
            WHEN func LIKE '%WaitEvent' OR func LIKE '%EventRecord%' THEN 'order'
            WHEN func LIKE '%Graph%' OR func LIKE '%Capture' THEN 'graph'
            ELSE 'memory' END AS class,
       pid, rank, cgroup_id, count, sum_ns, min_ns, max_ns, bytes
FROM call_rollups WHERE source IN ('cuda', 'cuda_driver', 'hip');
