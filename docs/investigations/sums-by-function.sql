-- What do the seconds' sums say of each function?
-- :since time = 1h -- from when on
-- :until time = now -- up to when
SELECT source, func, sum("count") AS calls, sum(sum_ns) AS sum_ns, max(max_ns) AS most_ns FROM call_rollups
WHERE bucket_ns >= :since AND bucket_ns < :until GROUP BY source, func ORDER BY source, func
