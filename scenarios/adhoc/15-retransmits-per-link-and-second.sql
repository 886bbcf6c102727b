-- Segments sent again, by link and minute: the links with the most.
-- ordered: yes
SELECT saddr, daddr, ts_ns / 60000000000 AS minute, count(*) AS times, sum(segs) AS segments
FROM net_events WHERE event = 'tcp_retransmit_skb'
GROUP BY saddr, daddr, 3 ORDER BY segments DESC, saddr, daddr, minute LIMIT 40
