-- Everything that one process did in half a second, in order of time.
-- window: 0.5 s at 0.40
-- ordered: yes
SELECT ts_ns, 'call' AS what, func AS detail, duration_ns FROM collectives WHERE pid = 4003 AND ts_ns >= {since} AND ts_ns < {until}
UNION ALL
SELECT ts_ns, 'off', reason, duration_ns FROM offcpu WHERE pid = 4003 AND ts_ns >= {since} AND ts_ns < {until}
UNION ALL
SELECT ts_ns, 'io', op, duration_ns FROM block_io WHERE pid = 4003 AND ts_ns >= {since} AND ts_ns < {until}
UNION ALL
SELECT ts_ns, 'cuda', func, duration_ns FROM cuda_calls WHERE pid = 4003 AND ts_ns >= {since} AND ts_ns < {until}
ORDER BY 1, 2, 3, 4
