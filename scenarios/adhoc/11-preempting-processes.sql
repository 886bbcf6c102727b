-- The processes that took the CPU of ranks: how often, how long, and the longest time.
-- ordered: yes
SELECT next_comm, count(*) AS times, sum(run_delay_ns) AS delayed_ns, max(run_delay_ns) AS longest_ns
FROM offcpu WHERE voluntary = 0 GROUP BY next_comm ORDER BY delayed_ns DESC, next_comm
