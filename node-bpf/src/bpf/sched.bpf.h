/* The scheduler's view of tracked processes: stretches off the CPU and who took it, plus exec and exit, which wake
 * discovery and free what the maps hold of a process.
 *
 * Of every thread: being pushed off, and waits that no signal ends (IO, page faults, locks of the kernel). Of the
 * threads that make the calls and of the main one also ordinary sleeps; helper threads do little else, and would bury
 * the rest. */

/* Of the threads of which nothing else is kept (thread.bpf.h): those that make no calls. */
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 32768);
  __type(key, __u32); /* thread */
  __type(value, struct off_start);
} off_starts SEC(".maps");

#define TASK_INTERRUPTIBLE 1

static __always_inline long task_state(struct task_struct *task) {
  /* Read as they stand, like all that is read at every switch: the kernel knows the type, and a helper takes ten times as long. */
  if (bpf_core_field_exists(task->__state)) return task->__state;
  struct task_struct___old *old = (void *)task;
  return old->state;
}

static __always_inline void note_leaving(struct off_start *start, struct task_struct *prev, struct task_struct *next,
                                         __u32 state, bool voluntary) {
  start->wake_ns = 0;
  start->cgroup_id = bpf_get_current_cgroup_id();
  start->cpu = bpf_get_smp_processor_id();
  start->voluntary = voluntary;
  start->state = state;
  start->iowait = BPF_CORE_READ_BITFIELD(prev, in_iowait);
  if (may_name(next)) {
    start->next_pid = next->tgid;
#pragma unroll
    for (int i = 0; i < 16; i++) start->next_comm[i] = next->comm[i];
  } else {
    start->next_pid = 0;
    __builtin_memcpy(start->next_comm, "(another user)\0", sizeof start->next_comm);
  }
  start->ts_ns = bpf_ktime_get_ns();
}

static __always_inline void leaves_cpu(struct task_struct *prev, struct task_struct *next, bool preempt) {
  __u32 pid = prev->tgid, tid = prev->pid;
  if (!pid) return;
  struct thread_state *thread = thread_of(prev);
  if (!(thread && thread->followed) && !is_followed(pid)) return;
  __u32 state = task_state(prev);
  bool voluntary = !preempt && state != 0; /* 0: still runnable, so it was pushed off */
  if (voluntary && (state & TASK_INTERRUPTIBLE) && tid != pid && !(thread && thread->followed == FOLLOWED_CALLER) &&
      !bpf_map_lookup_elem(&callers, &tid))
    return;
  if (!may_see(prev)) return;
  COUNT(RM_SLOT_OFFCPU, hits);
  if (thread) {
    note_leaving(&thread->off, prev, next, state, voluntary);
    return;
  }
  struct off_start start = {};
  note_leaving(&start, prev, next, state, voluntary);
  if (bpf_map_update_elem(&off_starts, &tid, &start, BPF_ANY)) COUNT(RM_SLOT_OFFCPU, lost_map);
}

static __always_inline void emit_off_cpu(struct off_start *start, struct task_struct *next, __u64 now) {
  struct rm_offcpu *out = bpf_ringbuf_reserve(&events, sizeof *out, 0);
  if (!out) {
    COUNT(RM_SLOT_OFFCPU, lost_ring);
    return;
  }
  out->kind = RM_OFFCPU;
  out->cpu = start->cpu;
  out->start_ns = start->ts_ns;
  out->end_ns = now;
  out->pid = next->tgid;
  out->tid = next->pid;
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
}

/* The stretch has ended. */
static __always_inline void was_off(struct off_start *start, struct task_struct *next) {
  __u64 now = bpf_ktime_get_ns();
  __u64 off_ns = now - start->ts_ns;
  if (off_ns < config.offcpu_min_ns) return;
  if (off_ns < tuning.offcpu_min_ns) COUNT(RM_SLOT_OFFCPU, shed);
  else emit_off_cpu(start, next, now);
}

static __always_inline void takes_cpu(struct task_struct *next) {
  __u32 pid = next->tgid, tid = next->pid;
  if (!pid) return;
  struct thread_state *thread = thread_of(next);
  if (thread && thread->off.ts_ns) {
    was_off(&thread->off, next);
    thread->off.ts_ns = 0;
    return;
  }
  if (thread || !bpf_map_lookup_elem(&tracked, &pid)) return;
  struct off_start *start = bpf_map_lookup_elem(&off_starts, &tid);
  if (!start) return;
  was_off(start, next);
  bpf_map_delete_elem(&off_starts, &tid);
}

/* From here on it only waits for a CPU. */
static __always_inline int wakes_up(struct task_struct *task) {
  struct thread_state *thread = thread_of(task);
  if (thread) {
    if (thread->off.ts_ns && thread->off.wake_ns == 0) thread->off.wake_ns = bpf_ktime_get_ns();
    return 0;
  }
  __u32 tid = task->pid;
  struct off_start *start = bpf_map_lookup_elem(&off_starts, &tid);
  if (start && start->wake_ns == 0) start->wake_ns = bpf_ktime_get_ns();
  return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *task) { return MEASURED(RM_PROGRAM_WAKEUP, wakes_up(task)); }

static __always_inline int switches(bool preempt, struct task_struct *prev, struct task_struct *next) {
  leaves_cpu(prev, next, preempt);
  takes_cpu(next);
  return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next) {
  return MEASURED(RM_PROGRAM_SWITCH, switches(preempt, prev, next));
}

/* The calls that it is in will not return. */
static __always_inline void thread_ends(struct task_struct *task) {
  struct thread_state *state = thread_of(task);
  if (!state) return;
  tally_thread_ends(state);
  if (state->call.enter_ns && state->call.role == RM_ROLE_CALL) COUNT(state->call.func, unmatched);
  state->call.enter_ns = 0;
}

/* A followed process has become another user's: it is as if it had ended. */
static __noinline int leaves_us(struct task_struct *task) {
  __u32 pid = task->tgid, tid = task->pid;
  thread_ends(task);
  bpf_task_storage_delete(&threads, task);
  bpf_map_delete_elem(&off_starts, &tid);
  bpf_map_delete_elem(&callers, &tid);
  if (!bpf_map_delete_elem(&tracked, &pid)) emit_process(RM_EXIT, pid);
  return 0;
}

static __always_inline int process_exec(struct task_struct *task) {
  __u32 pid = task->tgid;
  if (!wanted_task()) {
    if (only_own()) leaves_us(task);
    return 0;
  }
  COUNT(RM_SLOT_PROCESS, hits);
  __u32 *known = bpf_map_lookup_elem(&tracked, &pid);
  if (known) {
    emit_life(RM_LIFE_EXEC, task, 0);
    /* another program: what was known of it is void, but not whose child it is */
    if (*known & RM_CHILD) *known = RM_CHILD;
    else bpf_map_delete_elem(&tracked, &pid);
  }
  thread_ends(task);
  bpf_task_storage_delete(&threads, task);
  emit_process(RM_EXEC, pid);
  return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task) { return MEASURED(RM_PROGRAM_EXEC, process_exec(task)); }

static __always_inline int process_exit(struct task_struct *task) {
  __u32 tid = task->pid, pid = task->tgid;
  __u32 *known = bpf_map_lookup_elem(&tracked, &pid);
  if (!known) return 0;
  bool oom = *known & RM_OOM;
  thread_ends(task);
  bpf_map_delete_elem(&off_starts, &tid);
  bpf_map_delete_elem(&callers, &tid);
  forget_thread(tid);
  if (BPF_CORE_READ(task, signal, live.counter) > 0) return 0; /* other threads go on */
  bpf_map_delete_elem(&tracked, &pid);
  COUNT(RM_SLOT_PROCESS, hits);
  if (may_see(task)) emit_life(oom ? RM_LIFE_OOM_KILLED : RM_LIFE_EXIT, task, BPF_CORE_READ(task, exit_code));
  emit_process(RM_EXIT, pid);
  return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task) { return MEASURED(RM_PROGRAM_EXIT, process_exit(task)); }

static __always_inline int process_fork(struct task_struct *parent, struct task_struct *child) {
  __u32 pid = parent->tgid, new = child->tgid;
  if (child->pid != new) return 0; /* a thread */
  if (!bpf_map_lookup_elem(&tracked, &pid) || !may_see(parent)) return 0;
  __u32 value = RM_CHILD;
  if (bpf_map_update_elem(&tracked, &new, &value, BPF_ANY)) HOST_COUNT(RM_HOST_LIFE, lost_map);
  emit_life(RM_LIFE_FORK, child, 0);
  return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child) { return MEASURED(RM_PROGRAM_FORK, process_fork(parent, child)); }
