/* What the programs on the host's signals share: their counters, whom they are about, and the records of beginnings and
 * ends of processes. Included after calls.bpf.h. */

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, RM_HOST_SLOTS);
  __type(key, __u32);
  __type(value, struct rm_stats);
} host_stats SEC(".maps");

#define HOST_COUNT(slot_, field)                                            \
  do {                                                                      \
    __u32 slot__ = slot_;                                                   \
    struct rm_stats *s_ = bpf_map_lookup_elem(&host_stats, &slot__);        \
    if (s_) __sync_fetch_and_add(&s_->field, 1);                            \
  } while (0)

static __noinline int wanted_cgroup(__u64 address) {
  struct cgroup *cgroup = (void *)address;
  if (config.cgroup_id == 0) return true;
  for (int depth = 0; depth < 24 && cgroup; depth++) {
    if (BPF_CORE_READ(cgroup, kn, id) == config.cgroup_id) return true;
    struct cgroup_subsys_state *parent = BPF_CORE_READ(cgroup, self.parent);
    if (!parent) return false;
    cgroup = BPF_CORE_READ(parent, cgroup);
  }
  return false;
}


/* What is known of a process that is followed, or was started by one that is. */
static __always_inline __u32 *kin(__u32 pid) {
  __u32 *known = bpf_map_lookup_elem(&tracked, &pid);
  if (known) return known;
  struct rm_child *child = bpf_map_lookup_elem(&children, &pid);
  return child ? &child->marks : 0;
}

/* `task` is the current one, or a child it has just made. */
static __always_inline void emit_life(__u32 event, struct task_struct *task, int exit_code) {
  HOST_COUNT(RM_HOST_LIFE, hits);
  struct rm_life *out = bpf_ringbuf_reserve(&events, sizeof *out, 0);
  if (!out) {
    HOST_COUNT(RM_HOST_LIFE, lost_ring);
    return;
  }
  out->kind = RM_LIFE;
  out->event = event;
  out->ts_ns = bpf_ktime_get_ns();
  out->pid = task->tgid;
  out->parent = BPF_CORE_READ(task, real_parent, tgid);
  out->cgroup_id = bpf_get_current_cgroup_id();
  out->exit_code = exit_code;
  out->pad = 0;
  BPF_CORE_READ_INTO(&out->comm, task, comm);
  bpf_ringbuf_submit(out, wake_flags());
}

/* Direct reclaim under way, by thread (memory.bpf.h). */
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 4096);
  __type(key, __u32);
  __type(value, __u64);
} reclaim_starts SEC(".maps");
