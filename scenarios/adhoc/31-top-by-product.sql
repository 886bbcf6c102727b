-- The 20 calls with the most bytes times nanoseconds.
-- ordered: yes
SELECT ts_ns, pid, func, seq, bytes, duration_ns, bytes * duration_ns AS cost FROM collectives
ORDER BY cost DESC, ts_ns, pid LIMIT 20
