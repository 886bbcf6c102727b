/* What a request waited for, across threads and processes: of each thread of a server, and of processes that it wakes or is
 * woken by, when it left its CPU, who woke it, and when it had one again. Kept in a ring that is overwritten; user space
 * reads it only for requests that become rows, and walks back from the answer by who woke whom (src/serving/path.rs).
 *
 * The kernel counts how often each thread has left a CPU. A thread that has left n times runs until it leaves for the time
 * n + 1: so its number and n name a stretch, and one that is missing is noticed. */

#define PF_KTHREAD 0x00200000
#define TASK_DEAD 0x80
#define TASK_INTERRUPTIBLE 1

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, RM_REQUEST_LOSSES);
  __type(key, __u32);
  __type(value, __u64);
} request_losses SEC(".maps");

/* Room for each server's. */
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 1024 * (1 + RM_MOST_PARTNERS));
  __type(key, __u32);
  __type(value, struct rm_followed);
} followed SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 16384);
  __type(key, __u32); /* thread */
  __type(value, struct rm_away);
} away SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(map_flags, BPF_F_MMAPABLE);
  __uint(max_entries, RM_STRETCHES);
  __type(key, __u32);
  __type(value, struct rm_stretch);
} stretches SEC(".maps");

/* How many there have been. */
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(map_flags, BPF_F_MMAPABLE);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, __u64);
} stretch_count SEC(".maps");

static __always_inline void lost(__u32 place) {
  __u64 *count = bpf_map_lookup_elem(&request_losses, &place);
  if (count) __sync_fetch_and_add(count, 1);
}

/* The system call that a thread is in; -1: none. */
#if defined(__TARGET_ARCH_x86)
static __always_inline int call_of(struct task_struct *task) {
  struct pt_regs *regs = (void *)bpf_task_pt_regs(task);
  return regs->orig_ax;
}
#else
struct pt_regs___all {
  __u64 regs[31];
  int syscallno;
} __attribute__((preserve_access_index));
static __always_inline int call_of(struct task_struct *task) {
  struct pt_regs___all *regs = (void *)bpf_task_pt_regs(task);
  return BPF_CORE_READ(regs, syscallno);
}
#endif

static __always_inline __u64 address_of(void *pointer) {
  __u64 address = 0;
  bpf_probe_read_kernel(&address, sizeof address, &pointer);
  return address;
}

/* Whether the current task does this itself, in a system call, and not an interrupt that came upon it. What a raw tracepoint is
 * passed lies on the stack that is in use (`bpf_trace_run1` and its kin). Interrupts have stacks of their own, but on x86 for
 * those that come upon a program's own code, which is in no system call then (arch/x86/include/asm/irq_stack.h). */
static __always_inline bool does_it_itself(void *passed, struct task_struct *current) {
  __u64 at = address_of(passed);
  return call_of(current) != -1 && at >= (__u64)current->stack && at < address_of((void *)bpf_task_pt_regs(current));
}

static __always_inline __u32 switches_of(struct task_struct *task) { return task->nvcsw + task->nivcsw; }

/* Whether the CPU quota of its cgroup is why it leaves its CPU, as in sched.bpf.h. */
static __always_inline bool is_held_back(struct task_struct *task) {
  struct task_struct___throttled *new = (void *)task;
  if (bpf_core_field_exists(new->throttled)) return BPF_CORE_READ(new, throttled);
  return bpf_core_field_exists(struct cfs_rq, throttle_count) && BPF_CORE_READ(task, se.cfs_rq, throttle_count) > 0;
}

static __always_inline void unfollow(__u32 pid) {
  struct rm_followed *known = bpf_map_lookup_elem(&followed, &pid);
  if (!known) return;
  __u32 server = known->server;
  struct rm_followed *root = bpf_map_lookup_elem(&followed, &server);
  if (!bpf_map_delete_elem(&followed, &pid) && root && server != pid) __sync_fetch_and_add(&root->partners, -1);
}

static __always_inline __u64 cgroup_number(struct task_struct *task) { return BPF_CORE_READ(task, cgroups, dfl_cgrp, kn, id); }

/* Of the same user, altogether, and in the same cgroup. */
static __always_inline bool are_alike(struct task_struct *one, struct task_struct *other) {
  const struct cred *a = BPF_CORE_READ(one, real_cred), *b = BPF_CORE_READ(other, real_cred);
  __u32 user = BPF_CORE_READ(a, uid.val);
  return BPF_CORE_READ(a, euid.val) == user && BPF_CORE_READ(a, suid.val) == user && BPF_CORE_READ(b, uid.val) == user &&
         BPF_CORE_READ(b, euid.val) == user && BPF_CORE_READ(b, suid.val) == user &&
         cgroup_number(one) == cgroup_number(other);
}

/* A process that `of`, which is `known`, wakes or is woken by. */
static __always_inline bool is_partner(struct rm_followed *known, struct task_struct *of, struct task_struct *task) {
  if (!known || known->away >= RM_MOST_STEPS_AWAY || BPF_CORE_READ(task, flags) & PF_KTHREAD || !are_alike(of, task)) return false;
  struct rm_followed made = {.server = known->server, .away = known->away + 1};
  struct rm_followed *root = bpf_map_lookup_elem(&followed, &made.server);
  if (!root || root->partners >= RM_MOST_PARTNERS) return false;
  __u32 pid = BPF_CORE_READ(task, tgid);
  if (bpf_map_update_elem(&followed, &pid, &made, BPF_NOEXIST)) return false;
  __sync_fetch_and_add(&root->partners, 1);
  return true;
}

static const struct rm_away on_a_cpu;

static __always_inline struct rm_away *away_of(__u32 tid) {
  struct rm_away *found = bpf_map_lookup_elem(&away, &tid);
  if (found) return found;
  if (bpf_map_update_elem(&away, &tid, &on_a_cpu, BPF_NOEXIST)) lost(RM_REQUEST_LOST_THREAD);
  return bpf_map_lookup_elem(&away, &tid);
}

/* Who has a CPU that another could use. */
static __always_inline void note_taker(struct rm_away *kept, struct task_struct *taker) {
  kept->taken_pid = taker->tgid;
  kept->taken_uid = taker->flags & PF_KTHREAD ? RM_EVERYBODY : BPF_CORE_READ(taker, real_cred, uid.val);
  __builtin_memcpy(kept->taken_comm, taker->comm, sizeof kept->taken_comm);
}

/* It has had a CPU again since `now`. */
static __always_inline void keep(struct rm_away *kept, struct task_struct *task, __u64 now) {
  __u32 zero = 0;
  __u64 *count = bpf_map_lookup_elem(&stretch_count, &zero);
  if (!count) return;
  __u64 number = __sync_fetch_and_add(count, 1);
  __u32 place = number & (RM_STRETCHES - 1);
  struct rm_stretch *out = bpf_map_lookup_elem(&stretches, &place);
  if (!out) return;
  __sync_lock_test_and_set(&out->number, 0);
  out->on_ns = now;
  out->away = *kept;
  out->pid = task->tgid;
  out->tid = task->pid;
  __builtin_memcpy(out->comm, task->comm, sizeof out->comm);
  __sync_lock_test_and_set(&out->number, number + 1);
}

static __always_inline void leaves(struct task_struct *task, struct task_struct *next, bool preempt, __u64 now) {
  long state = task->__state;
  if (state & TASK_DEAD) return;
  struct rm_away *kept = away_of(task->pid);
  if (!kept) return;
  __u32 switches = switches_of(task);
  __u64 ran_ns = task->se.sum_exec_runtime;
  /* One switch in a thousand is passed to no program on some kernels. How long it ran says when that was. */
  if (kept->off_ns && kept->switches + 1 == switches) keep(kept, task, now - (ran_ns - kept->ran_ns));
  if (kept->off_ns) kept->woken = RM_WOKEN_UNSEEN;
  kept->ran_ns = ran_ns;
  kept->switches = switches;
  kept->call = call_of(task);
  kept->left = preempt || !state ? RM_LEFT_RUNNABLE : state & TASK_INTERRUPTIBLE ? RM_LEFT_ASLEEP : RM_LEFT_UNINTERRUPTIBLE;
  kept->iowait = BPF_CORE_READ_BITFIELD(task, in_iowait);
  kept->throttled = kept->left == RM_LEFT_RUNNABLE && is_held_back(task);
  kept->taken_pid = 0;
  if (kept->left == RM_LEFT_RUNNABLE) note_taker(kept, next);
  kept->off_ns = now;
}

static __always_inline void comes_back(struct task_struct *task, struct task_struct *before, __u64 now) {
  __u32 tid = task->pid;
  struct rm_away *kept = bpf_map_lookup_elem(&away, &tid);
  if (!kept || !kept->off_ns) return;
  /* It may have left more often while its process was not followed. */
  if (kept->switches == switches_of(task)) {
    if (kept->left != RM_LEFT_RUNNABLE) note_taker(kept, before);
    keep(kept, task, now);
  }
  kept->off_ns = kept->wake_ns = 0;
  kept->woken = RM_WOKEN_UNSEEN;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(path_switches, bool preempt, struct task_struct *prev, struct task_struct *next) {
  __u32 from = prev->tgid, to = next->tgid;
  bool leaving = from && bpf_map_lookup_elem(&followed, &from), coming = to && bpf_map_lookup_elem(&followed, &to);
  if (!leaving && !coming) return 0;
  __u64 now = bpf_ktime_get_ns();
  if (leaving) leaves(prev, next, preempt, now);
  if (coming) comes_back(next, prev, now);
  return 0;
}

/* The last one before a thread has a CPU again is the one that counts: of a thread that is only about to sleep, it may be noted
 * before the thread is seen to leave. */
static __always_inline void note_waker(struct rm_away *kept, struct task_struct *waker, __u8 woken) {
  kept->waker_tid = waker->pid;
  kept->waker_switches = switches_of(waker);
  kept->woken = woken;
  kept->wake_ns = bpf_ktime_get_ns();
}

/* Runs where the waker runs. */
SEC("tp_btf/sched_waking")
int BPF_PROG(path_wakes, struct task_struct *task) {
  struct task_struct *waker = bpf_get_current_task_btf();
  __u32 pid = task->tgid, waker_pid = waker->tgid;
  struct rm_followed *woken = bpf_map_lookup_elem(&followed, &pid);
  struct rm_followed *waking = waker_pid ? bpf_map_lookup_elem(&followed, &waker_pid) : 0;
  if (!woken && !waking) return 0;
  __u8 by = RM_WOKEN_BY_INTERRUPT;
  if (waker->flags & PF_KTHREAD) {
    if (waker_pid) by = RM_WOKEN_BY_KERNEL;
  } else if (does_it_itself(ctx, waker)) {
    bool follows = waking || is_partner(woken, task, waker);
    by = follows ? RM_WOKEN_BY_THREAD : RM_WOKEN_BY_OTHER;
    if (!woken) is_partner(waking, waker, task);
  }
  if (!woken) return 0;
  __u32 tid = task->pid;
  struct rm_away *kept = bpf_map_lookup_elem(&away, &tid);
  if (kept) note_waker(kept, waker, by);
  return 0;
}

/* A new thread, or process: until its first switch it is as if it had slept. */
SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(path_begins, struct task_struct *task) {
  struct task_struct *maker = bpf_get_current_task_btf();
  __u32 pid = maker->tgid;
  struct rm_followed *making = bpf_map_lookup_elem(&followed, &pid);
  if (!making) return 0;
  if (task->tgid != pid && !is_partner(making, maker, task)) return 0;
  struct rm_away *kept = away_of(task->pid);
  if (!kept) return 0;
  kept->switches = switches_of(task);
  kept->ran_ns = 0;
  kept->call = -1;
  kept->left = RM_LEFT_ASLEEP;
  kept->iowait = kept->throttled = 0;
  note_waker(kept, maker, RM_WOKEN_AS_NEW);
  kept->off_ns = kept->wake_ns;
  return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(path_ends, struct task_struct *task) {
  __u32 tid = task->pid, pid = task->tgid;
  bpf_map_delete_elem(&away, &tid);
  if (BPF_CORE_READ(task, signal, live.counter) <= 0) unfollow(pid);
  return 0;
}
