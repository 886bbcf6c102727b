-- From a recorded trace of Ingero (schema as of v0.8: integer ids; v0.9: text ids, node, rank, local_rank, world_size)
-- into our tables. `src` is the recording, `temp.picked` its events as one form has them. Each statement after a
-- line `--> TABLE` fills that table. Its operations: src.sources, src.ops; block requests count sectors of 512 bytes.
--> cuda_calls
INSERT INTO cuda_calls (ts_ns, duration_ns, pid, tid, rank, api, func, bytes, kind, stream, ret, cgroup_id)
SELECT timestamp, duration, pid, tid, rank, CASE source WHEN 1 THEN 'runtime' ELSE 'driver' END,
       CASE source * 100 + op
           WHEN 101 THEN 'cudaMalloc' WHEN 102 THEN 'cudaFree' WHEN 103 THEN 'cudaLaunchKernel'
           WHEN 104 THEN 'cudaMemcpy' WHEN 105 THEN 'cudaStreamSynchronize' WHEN 106 THEN 'cudaDeviceSynchronize'
           WHEN 107 THEN 'cudaMemcpyAsync' WHEN 108 THEN 'cudaMallocManaged'
           WHEN 401 THEN 'cuLaunchKernel' WHEN 402 THEN 'cuMemcpy' WHEN 403 THEN 'cuMemcpyAsync'
           WHEN 404 THEN 'cuCtxSynchronize' WHEN 405 THEN 'cuMemAlloc' ELSE 'cuMemAllocManaged' END,
       CASE WHEN source * 100 + op IN (101, 104, 107, 108, 402, 403, 405, 406) THEN arg0 END,
       CASE WHEN source = 1 AND op IN (4, 7) THEN
           CASE arg1 WHEN 0 THEN 'host_to_host' WHEN 1 THEN 'host_to_device' WHEN 2 THEN 'device_to_host'
               WHEN 3 THEN 'device_to_device' END
       END,
       NULL, ret_code, cgroup_id
FROM temp.picked WHERE (source = 1 AND op BETWEEN 1 AND 8) OR (source = 4 AND op BETWEEN 1 AND 6);
--> offcpu
INSERT INTO offcpu (ts_ns, duration_ns, pid, tid, rank, cgroup_id)
SELECT timestamp, duration, pid, tid, rank, cgroup_id FROM temp.picked WHERE source = 3 AND op = 1;
--> memory_events
INSERT INTO memory_events (ts_ns, event, pid, tid, rank, cgroup_id)
SELECT timestamp, 'oom_kill', pid, tid, rank, cgroup_id FROM temp.picked WHERE source = 3 AND op = 4;
--> process_events
INSERT INTO process_events (ts_ns, event, pid, comm, rank, cgroup_id)
SELECT timestamp, CASE op WHEN 5 THEN 'exec' WHEN 6 THEN 'exit' ELSE 'fork' END, e.pid, ifnull(p.name, 'unknown'), rank,
       cgroup_id
FROM temp.picked e LEFT JOIN src.process_names p ON p.pid = e.pid WHERE source = 3 AND op IN (5, 6, 7);
--> block_io
INSERT INTO block_io (ts_ns, duration_ns, pid, tid, rank, op, bytes, error, cgroup_id)
SELECT timestamp, duration, pid, tid, rank, CASE op WHEN 1 THEN 'read' WHEN 2 THEN 'write' ELSE 'discard' END,
       arg0 * 512, 0, cgroup_id
FROM temp.picked WHERE source = 5 AND op IN (1, 2, 3);
--> net_events
INSERT INTO net_events (ts_ns, event, pid, rank, cgroup_id)
SELECT timestamp, 'tcp_retransmit_skb', nullif(pid, 0), rank, cgroup_id FROM temp.picked WHERE source = 6 AND op = 1;
--> processes
INSERT INTO processes (pid, start_ns, seen_ns, exe, comm, rank, local_rank, world_size, container_id, cgroup_path, user,
                       pod, cgroup_id)
SELECT p.pid, 0, p.seen_at, 'unknown', p.name, e.rank, e.local_rank, e.world_size, nullif(m.container_id, ''),
       ifnull(nullif(m.cgroup_path, ''), 'unknown'), 'unknown', nullif(m.pod_name, ''), e.cgroup_id
FROM src.process_names p
LEFT JOIN (SELECT pid, max(rank) AS rank, max(local_rank) AS local_rank, max(world_size) AS world_size,
                  nullif(max(cgroup_id), 0) AS cgroup_id
           FROM temp.picked GROUP BY pid) e ON e.pid = p.pid
LEFT JOIN src.cgroup_metadata m ON m.cgroup_id = e.cgroup_id;
--> host_samples
INSERT INTO host_samples (ts_ns, cpu_busy_pct, load_1m, memory_available_bytes, swap_used_bytes)
SELECT timestamp, cpu_pct, load_avg, mem_avail * 1048576, swap_mb * 1048576 FROM src.system_snapshots;
--> sessions
INSERT INTO sessions (start_ns, alive_ns, stop_ns, version, boot_id, host, kernel)
SELECT started_at, max(started_at, stopped_at), nullif(stopped_at, 0), 'ingero ' || ingero_ver, 'unknown',
       (SELECT host FROM temp.recorded), kernel
FROM src.sessions;
--> capture_loss
INSERT INTO capture_loss (since_ns, ts_ns, probe, reason, lost)
SELECT a.bucket, a.bucket + 60000000000, ifnull(o.name, 'source ' || a.source || ' op ' || a.op), 'sampled',
       sum(a.count - a.stored)
FROM src.event_aggregates a LEFT JOIN src.ops o ON o.source_id = a.source AND o.op_id = a.op
WHERE a.count > a.stored GROUP BY a.bucket, a.source, a.op;
