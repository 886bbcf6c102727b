-- Lowest clock, highest temperature and mean power of each GPU, by ten minutes.
-- ordered: yes
-- tolerance: 1e-9
SELECT gpu, (ts_ns - {begin}) / 600000000000 AS part, min(sm_clock_mhz) AS lowest_mhz, max(temperature_c) AS hottest_c, avg(power_mw) / 1000 AS watts
FROM gpu_samples GROUP BY gpu, 2 ORDER BY gpu, 2
