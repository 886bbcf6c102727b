/* Requests to block devices, from the queue to the device to the end. A request is its maker's: the task that is current
 * when it is put into the queue or handed to the device, when that is a followed one. What the kernel writes back later
 * on its own, and what the block cgroup controller holds back first, is handed on by kernel threads and nobody's. */

struct block_start {
  __u64 insert_ns, issue_ns, cgroup_id;
  __u32 pid, tid, bytes, left;
};
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 16384);
  __type(key, __u64); /* the request's address */
  __type(value, struct block_start);
} block_starts SEC(".maps");

static __always_inline int block_begins(struct request *rq, bool issued) {
  __u64 key = (__u64)rq, now = bpf_ktime_get_ns();
  struct block_start *known = bpf_map_lookup_elem(&block_starts, &key);
  if (known && issued) { /* a kernel thread may be the one to hand it on */
    if (known->issue_ns == 0) known->issue_ns = now;
    return 0;
  }
  __u64 thread = bpf_get_current_pid_tgid();
  __u32 pid = thread >> 32;
  if (!pid || !kin(pid) || !may_see_this()) {
    if (known) bpf_map_delete_elem(&block_starts, &key); /* its end was not seen, and the address is used again */
    return 0;
  }
  struct block_start start = {.pid = pid, .tid = thread, .cgroup_id = bpf_get_current_cgroup_id()};
  if (issued) start.issue_ns = now;
  else start.insert_ns = now;
  start.bytes = start.left = BPF_CORE_READ(rq, __data_len);
  HOST_COUNT(RM_HOST_BLOCK, hits);
  if (bpf_map_update_elem(&block_starts, &key, &start, BPF_ANY)) HOST_COUNT(RM_HOST_BLOCK, lost_map);
  return 0;
}

/* Before Linux 5.11 these tracepoints pass the queue first. */
static __always_inline struct request *request_of(__u64 *ctx) {
  if (!config.queue_first) return (void *)ctx[0];
  __u64 second = 0;
  bpf_probe_read_kernel(&second, sizeof second, ctx + 1);
  return (void *)second;
}

SEC("tp_btf/block_rq_insert")
int on_block_insert(__u64 *ctx) { return MEASURED(RM_PROGRAM_BLOCK, block_begins(request_of(ctx), false)); }

SEC("tp_btf/block_rq_issue")
int on_block_issue(__u64 *ctx) { return MEASURED(RM_PROGRAM_BLOCK, block_begins(request_of(ctx), true)); }

/* It became a part of another one: it will not end by itself. */
SEC("tp_btf/block_rq_merge")
int on_block_merge(__u64 *ctx) {
  __u64 key = (__u64)request_of(ctx);
  bpf_map_delete_elem(&block_starts, &key);
  return 0;
}

static __always_inline int block_ends(struct request *rq, int error, unsigned int bytes) {
  __u64 key = (__u64)rq, now = bpf_ktime_get_ns();
  struct block_start *start = bpf_map_lookup_elem(&block_starts, &key);
  if (!start) return 0;
  if (!error && bytes < start->left) { /* a part of it */
    start->left -= bytes;
    return 0;
  }
  __u64 begin = start->issue_ns ? start->issue_ns : start->insert_ns;
  __u64 first = start->insert_ns ? start->insert_ns : begin;
  if (now - first < tuning.block_min_ns) {
    if (now - first >= config.block_min_ns) HOST_COUNT(RM_HOST_BLOCK, shed);
    bpf_map_delete_elem(&block_starts, &key);
    return 0;
  }
  struct rm_block *out = bpf_ringbuf_reserve(&events, sizeof *out, 0);
  if (!out) {
    HOST_COUNT(RM_HOST_BLOCK, lost_ring);
    bpf_map_delete_elem(&block_starts, &key);
    return 0;
  }
  out->kind = RM_BLOCK;
  out->op = BPF_CORE_READ(rq, cmd_flags) & 0xff;
  out->insert_ns = start->insert_ns;
  out->issue_ns = begin;
  out->end_ns = now;
  out->pid = start->pid;
  out->tid = start->tid;
  out->cgroup_id = start->cgroup_id;
  out->bytes = start->bytes;
  out->error = error;
  struct gendisk *disk;
  struct request___old *old = (void *)rq;
  if (bpf_core_field_exists(old->rq_disk)) disk = BPF_CORE_READ(old, rq_disk);
  else disk = BPF_CORE_READ(rq, q, disk);
  out->major = BPF_CORE_READ(disk, major);
  out->minor = BPF_CORE_READ(disk, first_minor);
  __builtin_memset(out->disk, 0, sizeof out->disk);
  bpf_probe_read_kernel(out->disk, sizeof out->disk - 1, __builtin_preserve_access_index(&disk->disk_name));
  bpf_ringbuf_submit(out, wake_flags());
  bpf_map_delete_elem(&block_starts, &key);
  return 0;
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(on_block_complete, struct request *rq, int error, unsigned int bytes) {
  return MEASURED(RM_PROGRAM_BLOCK, block_ends(rq, error, bytes));
}
