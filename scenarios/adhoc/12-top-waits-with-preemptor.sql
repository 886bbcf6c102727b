-- The 20 longest preemptions with whom they hit and who came instead.
-- ordered: yes
SELECT o.ts_ns, o.pid, o.tid, o.duration_ns, o.next_comm
FROM offcpu AS o WHERE o.reason = 'preempted'
ORDER BY o.duration_ns DESC, o.ts_ns, o.pid, o.tid LIMIT 20
