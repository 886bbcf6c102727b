-- Calls in a minute that are longer than all but one in a hundred, by process: one rank's fault, or everyone's?
-- window: 60 s at 0.70
-- ordered: yes
SELECT pid, count(*) AS calls
FROM (
    SELECT pid, percent_rank() OVER (PARTITION BY func ORDER BY duration_ns) AS part
    FROM collectives WHERE ts_ns >= {since} AND ts_ns < {until}
) AS placed
WHERE part > 0.99 GROUP BY pid ORDER BY pid
