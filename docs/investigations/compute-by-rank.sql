-- How long does each rank compute between collectives?
-- :since time = 1m -- from when on
-- :until time = now -- up to when
SELECT rank, node, count(own_ns) AS steps, median(own_ns) AS median_ns, max(own_ns) AS most_ns
FROM self_time(:since, :until) GROUP BY rank, node ORDER BY median_ns DESC, rank
