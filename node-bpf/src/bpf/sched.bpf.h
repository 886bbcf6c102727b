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
#define TASK_DEAD 0x80
#define PF_EXITING 4

static __always_inline long task_state(struct task_struct *task) {
  /* Read as they stand, like all that is read at every switch: the kernel knows the type, and a helper takes ten times as long. */
  if (bpf_core_field_exists(task->__state)) return task->__state;
  struct task_struct___old *old = (void *)task;
  return old->state;
}

/* Whether the CPU quota of its cgroup is why a thread that can run leaves its CPU: it, or before Linux 6.18 all of its
 * cgroup's run queue on that CPU, is throttled by the time of the switch (kernel/sched/fair.c). */
static __always_inline bool is_throttled(struct task_struct *task) {
  struct task_struct___throttled *new = (void *)task;
  if (bpf_core_field_exists(new->throttled)) return new->throttled;
  if (!bpf_core_field_exists(struct cfs_rq, throttle_count)) return false;
  struct cfs_rq *queue = task->se.cfs_rq;
  return queue && queue->throttle_count > 0;
}

/* What is kept when a thread leaves its CPU, which happens far more often than a row is made of it: only what cannot be
 * had when it comes back. */
static __always_inline void note_leaving(struct off_start *start, struct task_struct *prev, struct task_struct *next,
                                         __u32 state, bool voluntary, __u64 now) {
  start->wake_ns = 0;
  start->cpu = bpf_get_smp_processor_id();
  start->voluntary = voluntary;
  start->state = state;
  start->iowait = BPF_CORE_READ_BITFIELD(prev, in_iowait);
  start->throttled = !voluntary && is_throttled(prev);
  if (may_name(next)) {
    const __u64 *comm = (const void *)next->comm;
    start->next_pid = next->tgid;
    start->next_comm[0] = comm[0];
    start->next_comm[1] = comm[1];
  } else {
    start->next_pid = 0;
    __builtin_memcpy(start->next_comm, "(another user)\0", sizeof start->next_comm);
  }
  start->ts_ns = now;
}

/* Switches come with interrupts off, and nothing else counts these hits: no need for an atomic. */
static __always_inline void count_leaving(void) {
  struct rm_stats *stats = stats_of(RM_SLOT_OFFCPU);
  if (stats) stats->hits++;
}

static __always_inline void leaves_cpu(struct task_struct *prev, struct task_struct *next, bool preempt, __u64 *now) {
  __u32 pid = prev->tgid, tid = prev->pid;
  if (!pid) return;
  struct thread_state *thread = thread_of(prev);
  __u8 followed = thread ? thread->off.followed : 0;
  if (!followed && !bpf_map_lookup_elem(&tracked, &pid)) return;
  __u32 state = task_state(prev);
  if (state & TASK_DEAD) return; /* it does not come back, and its number is given to another */
  bool voluntary = !preempt && state != 0; /* 0: still runnable, so it was pushed off */
  if (voluntary && (state & TASK_INTERRUPTIBLE) && tid != pid && followed != FOLLOWED_CALLER) {
    /* Kernels before 6.2 may not find what is kept of a thread when it comes back, and leave this set. */
    if (thread) thread->off.ts_ns = 0;
    return;
  }
  if (!may_see(prev)) return;
  count_leaving();
  *now = bpf_ktime_get_ns();
  if (thread) {
    note_leaving(&thread->off, prev, next, state, voluntary, *now);
    return;
  }
  struct off_start start = {};
  note_leaving(&start, prev, next, state, voluntary, *now);
  if (bpf_map_update_elem(&off_starts, &tid, &start, BPF_ANY)) COUNT(RM_SLOT_OFFCPU, lost_map);
}

static __always_inline void emit_off_cpu(struct off_start *start, struct task_struct *next, __u64 now) {
  __u32 pid = next->tgid;
  if ((next->flags & PF_EXITING) && !bpf_map_lookup_elem(&tracked, &pid)) return; /* its process's end has been told */
  struct rm_offcpu *out = bpf_ringbuf_reserve(&events, sizeof *out, 0);
  if (!out) {
    COUNT(RM_SLOT_OFFCPU, lost_ring);
    return;
  }
  out->kind = RM_OFFCPU;
  out->cpu = start->cpu;
  out->start_ns = start->ts_ns;
  out->end_ns = now;
  out->pid = pid;
  out->tid = next->pid;
  out->cgroup_id = cgroup_of(next);
  out->next_pid = start->next_pid;
  out->voluntary = start->voluntary;
  __builtin_memcpy(out->next_comm, start->next_comm, sizeof out->next_comm);
  out->wake_ns = start->wake_ns;
  out->state = start->state;
  out->iowait = start->iowait;
  out->throttled = start->throttled;
  /* It has not run yet: its kernel stack still shows where it waited. Only taken for rows, so at no other cost. */
  __builtin_memset(out->stack, 0, sizeof out->stack);
  long bytes = 0;
  if (start->voluntary && bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_get_task_stack)) /* Linux 5.9 */
    bytes = bpf_get_task_stack(next, out->stack, sizeof out->stack, 0);
  out->stack_bytes = bytes > 0 ? bytes : 0;
  bpf_ringbuf_submit(out, wake_flags());
}

/* The stretch has ended. */
static __always_inline void was_off(struct off_start *start, struct task_struct *next, __u64 now) {
  if (!now) now = bpf_ktime_get_ns(); /* else it has just been read for who left */
  __u64 off_ns = now - start->ts_ns;
  if (off_ns < config.offcpu_min_ns) return;
  if (off_ns < tuning.offcpu_min_ns) COUNT(RM_SLOT_OFFCPU, shed);
  else emit_off_cpu(start, next, now);
}

static __always_inline void takes_cpu(struct task_struct *next, __u64 now) {
  __u32 pid = next->tgid, tid = next->pid;
  if (!pid) return;
  struct thread_state *thread = thread_of(next);
  if (thread && thread->off.ts_ns) {
    was_off(&thread->off, next, now);
    thread->off.ts_ns = 0;
    return;
  }
  /* Also when user space has made the thread's own meanwhile, and when the process has ended: nothing is left behind. */
  struct off_start *start = bpf_map_lookup_elem(&off_starts, &tid);
  if (!start) return;
  if (bpf_map_lookup_elem(&tracked, &pid)) was_off(start, next, now);
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
  __u64 now = 0;
  leaves_cpu(prev, next, preempt, &now);
  takes_cpu(next, now);
  return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next) {
  return MEASURED(RM_PROGRAM_SWITCH, switches(preempt, prev, next));
}

/* The calls that it is in will not return. `tid`: as it was when they began. */
static __always_inline void thread_ends(struct task_struct *task, __u32 tid) {
  struct thread_state *state = kept_of(&threads, task, tid);
  if (!state) return;
  tally_thread_ends(state, (__u64)task->tgid << 32 | tid);
  call_never_returns(state, task);
}

/* A thread ends: what maps keep of it by its number. */
static __always_inline void forget_thread(__u32 tid) {
  bpf_map_delete_elem(&reclaim_starts, &tid);
  end_burst(RM_MAJOR_FAULT, RM_HOST_FAULT, tid);
  end_burst(RM_UNTIMED_FAULT, RM_HOST_FAULT, tid);
  end_burst(RM_DIRECT_RECLAIM, RM_HOST_RECLAIM, tid);
  end_burst(RM_CGROUP_RECLAIM, RM_HOST_RECLAIM, tid);
#ifdef RM_BASIC
  bpf_map_delete_elem(&threads, &tid);
  bpf_map_delete_elem(&fault_starts, &tid);
  bpf_map_delete_elem(&verbs_calls, &tid);
#endif
}

/* Forgets a process; true for one of its threads only, however many come here at once: the last deletion tells. Whoever finds
 * it no child any more finds it not followed any more either. */
static __always_inline bool forget_process(__u32 pid) {
  struct rm_child *child = bpf_map_lookup_elem(&children, &pid);
  if (!child) return !bpf_map_delete_elem(&tracked, &pid);
  __u32 user = child->user;
  bpf_map_delete_elem(&tracked, &pid);
  if (bpf_map_delete_elem(&children, &pid)) return false;
  user_gives(user, RM_ROOM_CHILD);
  return true;
}

/* A followed process has become another user's: it is as if it had ended. */
static __noinline int leaves_us(struct task_struct *task, __u32 former_tid) {
  __u32 pid = task->tgid;
  thread_ends(task, former_tid);
  remove_kept(&threads, task, former_tid);
  if (forget_process(pid)) emit_process(RM_EXIT, pid);
  return 0;
}

/* A thread that is not the main one takes over its number here, when all others have ended. */
static __always_inline int process_exec(struct task_struct *task, __u32 former_tid) {
  __u32 pid = task->tgid;
  if (!wanted_task()) {
    if (only_own()) leaves_us(task, former_tid);
    return 0;
  }
  COUNT(RM_SLOT_PROCESS, hits);
  if (kin(pid)) emit_life(RM_LIFE_EXEC, task, 0);
  thread_ends(task, former_tid);
  remove_kept(&threads, task, former_tid);
  /* another program: what was known of it is void, but not whose child it is */
  bpf_map_delete_elem(&tracked, &pid);
  emit_process(RM_EXEC, pid);
  return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task, int former_tid) {
  return MEASURED(RM_PROGRAM_EXEC, process_exec(task, former_tid));
}

static __always_inline int process_exit(struct task_struct *task) {
  __u32 tid = task->pid, pid = task->tgid;
  /* Of threads that end at once, one may come here after the process's end was told. */
  thread_ends(task, tid);
  forget_thread(tid);
  __u32 *known = kin(pid);
  if (!known && !bpf_map_lookup_elem(&rooms, &pid)) return 0;
  bool oom = known && *known & RM_OOM;
  if (BPF_CORE_READ(task, signal, live.counter) > 0) return 0; /* other threads go on */
  if (!known) { /* its last program was not followed: what an earlier one has left is to be removed */
    emit_process(RM_EXIT, pid);
    return 0;
  }
  if (!forget_process(pid)) return 0; /* another one was quicker */
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
  if (!kin(pid) || !may_see(parent)) return 0;
  struct rm_child made = {.user = user_of_this()};
  if (!user_takes(made.user, RM_ROOM_CHILD)) HOST_COUNT(RM_HOST_LIFE, lost_map);
  else if (bpf_map_update_elem(&children, &new, &made, BPF_NOEXIST)) user_gives(made.user, RM_ROOM_CHILD);
  emit_life(RM_LIFE_FORK, child, 0);
  return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child) { return MEASURED(RM_PROGRAM_FORK, process_fork(parent, child)); }
