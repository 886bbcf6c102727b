-- Whose servers are here: how much do they answer, how fast, with what CPU?
-- :since time = 1h -- from when on
-- :until time = now -- up to when
WITH sums AS (
  SELECT tenant, service, count(DISTINCT node) AS hosts, sum(count) AS requests, sum(errors) AS failed,
    sum(bytes_in) AS bytes_in, sum(bytes_out) AS bytes_out,
    approx_quantile(sketch, 0.5) AS p50_ns, approx_quantile(sketch, 0.99) AS p99_ns
  FROM request_rollups WHERE bucket_ns >= :since AND bucket_ns < :until GROUP BY tenant, service),
times AS (
  SELECT tenant, service, sum(cpu_ns * stands_for) / sum(stands_for) AS cpu_ns_a_request,
    sum(run_delay_ns * stands_for) / sum(stands_for) AS without_cpu_ns_a_request
  FROM requests WHERE ts_ns >= :since AND ts_ns < :until AND cpu_ns IS NOT NULL GROUP BY tenant, service)
SELECT tenant, service, hosts, requests, failed, p50_ns, p99_ns, cpu_ns_a_request, without_cpu_ns_a_request,
  bytes_in, bytes_out
FROM sums LEFT JOIN times USING (tenant, service) ORDER BY requests DESC, tenant, service
