-- Processes that wait for disks and see retransmissions, but never reclaim memory.
-- ordered: no
SELECT pid FROM block_io INTERSECT SELECT pid FROM net_events EXCEPT SELECT pid FROM memory_events WHERE event = 'direct_reclaim'
