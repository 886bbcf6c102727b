-- Time to enqueue and time in the synchronise call after it, by process.
-- window: 60 s at 0.40
-- ordered: yes
SELECT e.pid, e.calls, e.enqueue_ns, s.waits, s.wait_ns
FROM (SELECT pid, count(*) AS calls, sum(duration_ns) AS enqueue_ns FROM collectives
      WHERE ts_ns >= {since} AND ts_ns < {until} GROUP BY pid) AS e
JOIN (SELECT pid, count(*) AS waits, sum(duration_ns) AS wait_ns FROM cuda_calls
      WHERE kind = 'after_collective' AND ts_ns >= {since} AND ts_ns < {until} GROUP BY pid) AS s ON s.pid = e.pid
ORDER BY e.pid
