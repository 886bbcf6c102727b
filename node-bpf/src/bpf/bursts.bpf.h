/* What memory costs a thread comes by the thousand: 500 pages a step that are read back from a swap file. Events as long as a
 * recorded stretch off the CPU make a record each. Shorter ones are summed up while they follow each other closely, and the
 * burst makes one record when the next begins, when its thread ends, or, when nothing follows, in user space
 * (src/signals/bursts.rs), which reads the map: nothing of it is lost but what finds no room in the map, and that is
 * counted. */

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 16384);
  __type(key, __u64);
  __type(value, struct rm_burst);
} bursts SEC(".maps");

static const struct rm_burst no_burst;

static __always_inline void emit_memory(__u32 event, __u32 slot, __u64 start_ns, __u64 sum_ns, __u32 pid, __u32 tid,
                                        __u64 cgroup_id, __u64 pages, __u32 count) {
  struct rm_memory *out = bpf_ringbuf_reserve(&events, sizeof *out, 0);
  if (!out) {
    struct rm_stats *s = bpf_map_lookup_elem(&host_stats, &slot);
    if (s) __sync_fetch_and_add(&s->lost_ring, count);
    return;
  }
  out->kind = RM_MEMORY;
  out->event = event;
  out->start_ns = start_ns;
  out->sum_ns = sum_ns;
  out->pid = pid;
  out->tid = tid;
  out->cgroup_id = cgroup_id;
  out->pages = pages;
  out->count = count;
  out->pad = 0;
  bpf_ringbuf_submit(out, wake_flags());
}

static __always_inline __u64 burst_key(__u32 event, __u32 tid) { return (__u64)event << 32 | tid; }

static __always_inline void emit_burst(__u32 event, __u32 slot, __u32 tid, struct rm_burst *burst) {
  emit_memory(event, slot, burst->start_ns, burst->sum_ns, burst->pid, tid, burst->cgroup_id, burst->pages, burst->count);
}

/* An event of the current thread; `end_ns` its end, 0 `start_ns`: how long it took is not known, and it is an instant. */
static __always_inline void memory_event(__u32 event, __u32 slot, __u64 start_ns, __u64 end_ns, __u64 pages) {
  __u64 thread = bpf_get_current_pid_tgid(), cgroup_id = bpf_get_current_cgroup_id();
  __u32 pid = thread >> 32, tid = thread;
  __u64 took_ns = start_ns ? end_ns - start_ns : 0;
  if (!start_ns) start_ns = end_ns;
  if (took_ns >= tuning.offcpu_min_ns) {
    emit_memory(event, slot, start_ns, took_ns, pid, tid, cgroup_id, pages, 1);
    return;
  }
  __u64 key = burst_key(event, tid);
  struct rm_burst *burst = bpf_map_lookup_elem(&bursts, &key);
  if (!burst) {
    if (bpf_map_update_elem(&bursts, &key, &no_burst, BPF_NOEXIST)) {
      HOST_COUNT(slot, lost_map);
      return;
    }
    burst = bpf_map_lookup_elem(&bursts, &key);
    if (!burst) return;
  }
  if (burst->count && (start_ns > burst->end_ns + RM_PAUSE_NS || end_ns > burst->start_ns + RM_BURST_NS)) {
    emit_burst(event, slot, tid, burst);
    burst->count = 0;
  }
  if (!burst->count) {
    burst->start_ns = start_ns;
    burst->sum_ns = burst->pages = 0;
    burst->pid = pid;
    burst->cgroup_id = cgroup_id;
  }
  burst->end_ns = end_ns;
  burst->sum_ns += took_ns;
  burst->pages += pages;
  burst->count++;
}

static __always_inline void end_burst(__u32 event, __u32 slot, __u32 tid) {
  __u64 key = burst_key(event, tid);
  struct rm_burst *burst = bpf_map_lookup_elem(&bursts, &key);
  if (!burst) return;
  if (burst->count) emit_burst(event, slot, tid, burst);
  bpf_map_delete_elem(&bursts, &key);
}
