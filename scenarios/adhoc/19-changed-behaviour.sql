-- Ranks whose mean time in a function changed between the two halves of the time, most changed first.
-- ordered: yes
-- tolerance: 1e-9
WITH halves AS (
    SELECT rank, library, ts_ns >= {middle} AS late, avg(duration_ns) AS mean_ns
    FROM collectives GROUP BY rank, library, 3
)
SELECT a.rank, a.library, a.mean_ns AS before_ns, b.mean_ns AS after_ns, b.mean_ns / a.mean_ns AS ratio
FROM halves AS a JOIN halves AS b ON b.rank = a.rank AND b.library = a.library AND b.late > a.late
ORDER BY a.rank, a.library
