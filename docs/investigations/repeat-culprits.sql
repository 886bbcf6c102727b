-- Which hosts were culprits in most jobs?
-- :since time = 30d -- from when on
-- :until time = now -- up to when
SELECT culprit_node, count(DISTINCT job_id) AS jobs, count(*) AS times FROM findings
WHERE ts_ns >= :since AND ts_ns < :until AND culprit_node IS NOT NULL AND verdict NOT IN ('archive', 'repeat_culprit', 'tail_grown', 'tail_over')
GROUP BY culprit_node ORDER BY jobs DESC, culprit_node
