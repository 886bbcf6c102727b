-- Calls by the end of their name and what they reduce, NULL in words.
-- ordered: yes
SELECT substr(func, -6) AS ending, coalesce(reduce_op, 'no reduction') AS reduces, ifnull(root, -1) AS peer, count(*) AS calls
FROM collectives WHERE func GLOB '*_*' OR func IN ('send', 'recv') GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
