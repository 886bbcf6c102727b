/* The scheduler's view of tracked processes: stretches off the CPU and who took it, plus exec and exit, which wake
 * discovery and free what the maps hold of a process.
 *
 * Of every thread: being pushed off, and waits that no signal ends (IO, page faults, locks of the kernel). Of the
 * threads that make the calls and of the main one also ordinary sleeps; helper threads do little else, and would bury
 * the rest. */

struct off_start {
  __u64 ts_ns;
  __u64 wake_ns;
  __u64 cgroup_id;
  __u32 cpu, voluntary, next_pid, pid;
  __u32 state, iowait;
  char next_comm[16];
};
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 32768);
  __type(key, __u32); /* thread */
  __type(value, struct off_start);
} off_starts SEC(".maps");

#define TASK_INTERRUPTIBLE 1

static __always_inline long task_state(struct task_struct *task) {
  if (bpf_core_field_exists(task->__state)) return BPF_CORE_READ(task, __state);
  struct task_struct___old *old = (void *)task;
  return BPF_CORE_READ(old, state);
}

static __always_inline void leaves_cpu(struct task_struct *prev, struct task_struct *next, bool preempt) {
  __u32 pid = prev->tgid, tid = prev->pid;
  if (!pid || !is_followed(pid)) return;
  __u32 state = task_state(prev);
  bool voluntary = !preempt && state != 0; /* 0: still runnable, so it was pushed off */
  if (voluntary && (state & TASK_INTERRUPTIBLE) && tid != pid && !bpf_map_lookup_elem(&callers, &tid)) return;
  struct off_start start = {.ts_ns = bpf_ktime_get_ns(), .pid = pid, .next_pid = next->tgid, .voluntary = voluntary};
  start.state = state;
  start.iowait = BPF_CORE_READ_BITFIELD_PROBED(prev, in_iowait);
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
  __u64 off_ns = now - start->ts_ns;
  if (off_ns >= config.offcpu_min_ns && off_ns < tuning.offcpu_min_ns) {
    COUNT(RM_SLOT_OFFCPU, shed);
  } else if (off_ns >= config.offcpu_min_ns) {
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
      out->wake_ns = start->wake_ns;
      out->state = start->state;
      out->iowait = start->iowait;
      out->pad = 0;
      /* It has not run yet: its kernel stack still shows where it waited. Only taken for rows, so at no other cost. */
      __builtin_memset(out->stack, 0, sizeof out->stack);
      long bytes = start->voluntary ? bpf_get_task_stack(next, out->stack, sizeof out->stack, 0) : 0;
      out->stack_bytes = bytes > 0 ? bytes : 0;
      bpf_ringbuf_submit(out, wake_flags());
    } else {
      COUNT(RM_SLOT_OFFCPU, lost_ring);
    }
  }
  bpf_map_delete_elem(&off_starts, &tid);
}

/* From here on it only waits for a CPU. */
SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *task) {
  __u32 tid = task->pid;
  struct off_start *start = bpf_map_lookup_elem(&off_starts, &tid);
  if (start && start->wake_ns == 0) start->wake_ns = bpf_ktime_get_ns();
  return 0;
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
  __u32 *known = bpf_map_lookup_elem(&tracked, &pid);
  if (known) {
    emit_life(RM_LIFE_EXEC, task, 0);
    /* another program: what was known of it is void, but not whose child it is */
    if (*known & RM_CHILD) *known = RM_CHILD;
    else bpf_map_delete_elem(&tracked, &pid);
  }
  bpf_task_storage_delete(&tally_threads, task);
  emit_process(RM_EXEC, pid);
  return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task) {
  __u32 tid = task->pid, pid = task->tgid;
  __u32 *known = bpf_map_lookup_elem(&tracked, &pid);
  if (!known) return 0;
  bool oom = *known & RM_OOM;
  tally_thread_ends(task);
  __u64 thread = ((__u64)pid << 32) | tid;
  struct rm_inflight *call = bpf_map_lookup_elem(&inflights, &thread);
  if (call) {
    if (call->role == RM_ROLE_CALL) COUNT(call->func, unmatched);
    bpf_map_delete_elem(&inflights, &thread);
  }
  bpf_map_delete_elem(&off_starts, &tid);
  bpf_map_delete_elem(&callers, &tid);
  forget_thread(tid);
  if (BPF_CORE_READ(task, signal, live.counter) > 0) return 0; /* other threads go on */
  bpf_map_delete_elem(&tracked, &pid);
  COUNT(RM_SLOT_PROCESS, hits);
  emit_life(oom ? RM_LIFE_OOM_KILLED : RM_LIFE_EXIT, task, BPF_CORE_READ(task, exit_code));
  emit_process(RM_EXIT, pid);
  return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child) {
  __u32 pid = parent->tgid, new = child->tgid;
  if (child->pid != new) return 0; /* a thread */
  if (!bpf_map_lookup_elem(&tracked, &pid)) return 0;
  __u32 value = RM_CHILD;
  if (bpf_map_update_elem(&tracked, &new, &value, BPF_ANY)) HOST_COUNT(RM_HOST_LIFE, lost_map);
  emit_life(RM_LIFE_FORK, child, 0);
  return 0;
}
