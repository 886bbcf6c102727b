-- Do sums and rows agree?
-- Whole seconds of the span are compared; of the last, sums may not be written yet.
-- :since time = 1h -- from when on
-- :until time = now -- up to when
SELECT a.rank, a.calls, b.calls AS summed
FROM (
    SELECT rank, count(*) AS calls FROM collectives
    WHERE ts_ns - ts_ns % 1000000000 >= :since AND ts_ns - ts_ns % 1000000000 < :until GROUP BY rank
) a JOIN (
    SELECT rank, sum("count") AS calls FROM call_rollups
    WHERE bucket_ns >= :since AND bucket_ns < :until AND source IN ('nccl', 'rccl', 'mpi') GROUP BY rank
) b ON a.rank = b.rank
ORDER BY a.rank
