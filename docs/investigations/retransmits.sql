-- Which hosts sent segments again?
-- :since time = 1h -- from when on
-- :until time = now -- up to when
SELECT node, event, count(*) AS times FROM net_events WHERE ts_ns >= :since AND ts_ns < :until
GROUP BY node, event ORDER BY node, event
