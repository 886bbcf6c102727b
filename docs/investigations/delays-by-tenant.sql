-- Who delays whom: who had the CPU while requests could run?
-- :since time = 1h -- from when on
-- :until time = now -- up to when
SELECT tenant AS delayed, node, ifnull(taken_by_tenant, '(has ended)') AS by_tenant, taken_by,
  sum(parts * stands_for) AS times, sum(duration_ns * stands_for) AS delayed_ns FROM request_stretches
WHERE ts_ns >= :since AND ts_ns < :until AND kind = 'ready' AND taken_by_pid IS NOT NULL
GROUP BY tenant, node, by_tenant, taken_by ORDER BY delayed_ns DESC, delayed, node, by_tenant, taken_by
