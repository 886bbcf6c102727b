-- Processes that call collectives and never wait for a disk (NOT IN).
-- ordered: yes
SELECT pid, count(*) AS calls FROM collectives
WHERE pid NOT IN (SELECT pid FROM block_io WHERE pid IS NOT NULL) GROUP BY pid ORDER BY pid
