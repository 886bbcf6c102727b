-- Is the network to blame? Mean time of collectives in seconds with and without retransmissions.
-- window: 300 s at 0.40
-- ordered: yes
-- tolerance: 1e-9
WITH bad AS (
    SELECT DISTINCT ts_ns / 1000000000 AS second FROM net_events
    WHERE event = 'tcp_retransmit_skb' AND ts_ns >= {since} AND ts_ns < {until}
)
SELECT bad.second IS NOT NULL AS retransmitted, count(*) AS calls, avg(c.duration_ns) AS mean_ns, max(c.duration_ns) AS longest_ns
FROM collectives AS c LEFT JOIN bad ON bad.second = c.ts_ns / 1000000000
WHERE c.ts_ns >= {since} AND c.ts_ns < {until}
GROUP BY 1 ORDER BY 1
