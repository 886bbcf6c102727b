-- Which process made which calls?
-- :since time = 1h -- from when on
-- :until time = now -- up to when
SELECT p.rank, count(*) AS calls FROM collectives c JOIN processes p ON c.node = p.node AND c.pid = p.pid
WHERE c.ts_ns >= :since AND c.ts_ns < :until GROUP BY p.rank ORDER BY p.rank
