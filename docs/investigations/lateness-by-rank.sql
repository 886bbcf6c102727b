-- How late does each rank enter, on aligned clocks, and how long does it wait?
-- Lateness is the entry less the first entry; bound_ns says how far it may be wrong.
-- :since time = 1m -- from when on
-- :until time = now -- up to when
SELECT rank, node, count(*) AS collectives, avg(lateness_ns) AS late_ns, max(lateness_ns) AS most_late_ns,
    avg(wait_ns) AS wait_ns, max(bound_ns) AS bound_ns
FROM lateness(:since, :until) GROUP BY rank, node ORDER BY late_ns DESC, rank
