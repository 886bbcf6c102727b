-- How late was one rank, second by second?
-- Shown best as lines.
-- :since time = 1m -- from when on
-- :until time = now -- up to when
-- :rank integer -- which
SELECT at_ns - at_ns % 1000000000 AS second_ns, count(*) AS collectives, avg(lateness_ns) / 1e6 AS late_ms,
    avg(wait_ns) / 1e6 AS waits_ms
FROM lateness(:since, :until) WHERE rank = :rank GROUP BY at_ns - at_ns % 1000000000 ORDER BY second_ns
