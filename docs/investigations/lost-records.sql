-- What could not be recorded?
-- What is missing here was not seen: an answer over such a time is of less than all.
-- :since time = 1d -- from when on
-- :until time = now -- up to when
SELECT node, * FROM capture_loss WHERE ts_ns >= :since AND ts_ns < :until ORDER BY ts_ns DESC LIMIT 1000
