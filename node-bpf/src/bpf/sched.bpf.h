/* The scheduler's view of tracked processes: stretches off the CPU and who took it (being pushed off of all threads;
 * sleeping and waiting only of those that make the calls and of the main one, for helper threads do little else), plus exec and exit, which wake
 * discovery and free what the maps hold of a process. */

struct off_start {
  __u64 ts_ns;
  __u64 cgroup_id;
  __u32 cpu, voluntary, next_pid, pid;
  char next_comm[16];
};
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 32768);
  __type(key, __u32); /* thread */
  __type(value, struct off_start);
} off_starts SEC(".maps");

static __always_inline long task_state(struct task_struct *task) {
  if (bpf_core_field_exists(task->__state)) return BPF_CORE_READ(task, __state);
  struct task_struct___old *old = (void *)task;
  return BPF_CORE_READ(old, state);
}

static __always_inline void leaves_cpu(struct task_struct *prev, struct task_struct *next, bool preempt) {
  __u32 pid = prev->tgid, tid = prev->pid;
  if (!pid || !bpf_map_lookup_elem(&tracked, &pid)) return;
  bool voluntary = !preempt && task_state(prev) != 0; /* 0: still runnable, so it was pushed off */
  if (voluntary && tid != pid && !bpf_map_lookup_elem(&callers, &tid)) return;
  struct off_start start = {.ts_ns = bpf_ktime_get_ns(), .pid = pid, .next_pid = next->tgid, .voluntary = voluntary};
  start.cpu = bpf_get_smp_processor_id();
  start.cgroup_id = bpf_get_current_cgroup_id();
  BPF_CORE_READ_INTO(&start.next_comm, next, comm);
  COUNT(RM_SLOT_OFFCPU, hits);
  if (bpf_map_update_elem(&off_starts, &tid, &start, BPF_ANY)) COUNT(RM_SLOT_OFFCPU, lost_map);
}

static __always_inline void takes_cpu(struct task_struct *next) {
  __u32 pid = next->tgid, tid = next->pid;
  if (!pid || !bpf_map_lookup_elem(&tracked, &pid)) return;
  struct off_start *start = bpf_map_lookup_elem(&off_starts, &tid);
  if (!start) return;
  __u64 now = bpf_ktime_get_ns();
  if (now - start->ts_ns >= config.offcpu_min_ns) {
    struct rm_offcpu *out = bpf_ringbuf_reserve(&events, sizeof *out, 0);
    if (out) {
      out->kind = RM_OFFCPU;
      out->cpu = start->cpu;
      out->start_ns = start->ts_ns;
      out->end_ns = now;
      out->pid = pid;
      out->tid = tid;
      out->cgroup_id = start->cgroup_id;
      out->next_pid = start->next_pid;
      out->voluntary = start->voluntary;
      __builtin_memcpy(out->next_comm, start->next_comm, sizeof out->next_comm);
      bpf_ringbuf_submit(out, wake_flags());
    } else {
      COUNT(RM_SLOT_OFFCPU, lost_ring);
    }
  }
  bpf_map_delete_elem(&off_starts, &tid);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next) {
  leaves_cpu(prev, next, preempt);
  takes_cpu(next);
  return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task) {
  if (!wanted_task()) return 0;
  __u32 pid = task->tgid;
  COUNT(RM_SLOT_PROCESS, hits);
  bpf_map_delete_elem(&tracked, &pid); /* another program: what was known of it is void */
  emit_process(RM_EXEC, pid);
  return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task) {
  __u32 tid = task->pid, pid = task->tgid;
  if (!bpf_map_lookup_elem(&tracked, &pid)) return 0;
  __u64 thread = ((__u64)pid << 32) | tid;
  struct rm_inflight *call = bpf_map_lookup_elem(&inflights, &thread);
  if (call) {
    if (call->role == RM_ROLE_CALL) COUNT(call->func, unmatched);
    bpf_map_delete_elem(&inflights, &thread);
  }
  bpf_map_delete_elem(&off_starts, &tid);
  bpf_map_delete_elem(&callers, &tid);
  if (BPF_CORE_READ(task, signal, live.counter) > 0) return 0; /* other threads go on */
  bpf_map_delete_elem(&tracked, &pid);
  COUNT(RM_SLOT_PROCESS, hits);
  emit_process(RM_EXIT, pid);
  return 0;
}
