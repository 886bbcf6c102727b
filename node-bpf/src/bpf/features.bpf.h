/* What the two capture objects do differently. `capture` uses what kernels have had since Linux 5.15: task storage, cookies
 * of probes, atomics that return the old value, and the current task as a pointer whose type the verifier knows.
 * `capture-basic` (RM_BASIC) is for Linux 5.8 to 5.14: it keeps what belongs to a thread in hash maps by thread number, reads
 * the cookie that the probe's stub has noted (stub.bpf.c), and gets along with plain additions. Which of them a kernel loads
 * is tried (src/loader.rs). */

#ifdef RM_BASIC

/* Something kept of threads, of `most` of them at once. Entries are made with a thread's first traced call (or by user
 * space) and removed when the thread ends (sched.bpf.h). Preallocated, as programs of probes and events have to have it. */
#define KEPT_OF_THREADS(name_, type_, most_)      \
  struct {                                        \
    __uint(type, BPF_MAP_TYPE_HASH);              \
    __uint(max_entries, most_);                   \
    __type(key, __u32);                           \
    __type(value, type_);                         \
  } name_ SEC(".maps")

static __always_inline void *kept_of(void *map, struct task_struct *task, __u32 tid) {
  return bpf_map_lookup_elem(map, &tid);
}

/* `task`: this_task(). */
static __always_inline void *kept_of_current(void *map, struct task_struct *task) {
  __u32 tid = bpf_get_current_pid_tgid();
  return bpf_map_lookup_elem(map, &tid);
}

/* `zero`: what a new entry holds. Fails when the map is full. */
static __always_inline void *made_for_this_thread(void *map, const void *zero) {
  __u32 tid = bpf_get_current_pid_tgid();
  bpf_map_update_elem(map, &tid, zero, BPF_NOEXIST); /* what is there already stays */
  return bpf_map_lookup_elem(map, &tid);
}

static __always_inline void remove_kept(void *map, struct task_struct *task, __u32 tid) { bpf_map_delete_elem(map, &tid); }

/* To the verifier a mere number: its fields are read by helpers. */
static __always_inline struct task_struct *this_task(void) { return (void *)bpf_get_current_task(); }

static __always_inline __u32 pid_of(struct task_struct *task) { return BPF_CORE_READ(task, tgid); }
static __always_inline __u32 tid_of(struct task_struct *task) { return BPF_CORE_READ(task, pid); }
static __always_inline __u64 cgroup_of(struct task_struct *task) { return BPF_CORE_READ(task, cgroups, dfl_cgrp, kn, id); }

#include "stub_maps.bpf.h"

static __always_inline __u64 cookie_of(struct pt_regs *ctx) {
  __u32 zero = 0;
  __u64 *cookie = bpf_map_lookup_elem(&probe_cookie, &zero);
  return cookie ? *cookie : 0;
}

/* Adds one, and says which number that was. False when another CPU added at the same moment: then all that is known is that
 * none is left out. (The counter went from `before` to `before + 1` by exactly one addition, so no other taker has that.) */
#define TAKE_NUMBER(counter, number)                              \
  ({                                                              \
    volatile __typeof__(*(counter)) *c_ = (counter);              \
    __typeof__(*(counter)) before_ = *c_, after_;                 \
    __sync_fetch_and_add(counter, 1);                             \
    after_ = *c_;                                                 \
    *(number) = before_;                                          \
    after_ == before_ + 1;                                        \
  })

/* Puts `new` where `old` was. Two that do so at once are not told apart: the later one stays. */
#define REPLACED(at, old, new) (*(volatile __typeof__(*(at)) *)(at) = (new), *(volatile __typeof__(*(at)) *)(at) == (new))

#else

#define KEPT_OF_THREADS(name_, type_, most_)      \
  struct {                                        \
    __uint(type, BPF_MAP_TYPE_TASK_STORAGE);      \
    __uint(map_flags, BPF_F_NO_PREALLOC);         \
    __type(key, int);                             \
    __type(value, type_);                         \
  } name_ SEC(".maps")

static __always_inline void *kept_of(void *map, struct task_struct *task, __u32 tid) {
  return bpf_task_storage_get(map, task, 0, 0);
}

static __always_inline void *kept_of_current(void *map, struct task_struct *task) {
  return bpf_task_storage_get(map, task, 0, 0);
}

/* Making it fails where user space has made it between the kernel's look and its making (EEXIST), or another map's at the same
 * moment (EAGAIN): then once more. New entries hold zeros. */
static __always_inline void *made_for_this_thread(void *map, const void *zero) {
  struct task_struct *task = bpf_get_current_task_btf();
  void *made = bpf_task_storage_get(map, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
  return made ? made : bpf_task_storage_get(map, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

static __always_inline void remove_kept(void *map, struct task_struct *task, __u32 tid) {
  bpf_task_storage_delete(map, task);
}

static __always_inline struct task_struct *this_task(void) { return bpf_get_current_task_btf(); }

static __always_inline __u32 pid_of(struct task_struct *task) { return task->tgid; }
static __always_inline __u32 tid_of(struct task_struct *task) { return task->pid; }
/* Read as it stands, as the kernel's own helper does it, which takes longer to be called. */
static __always_inline __u64 cgroup_of(struct task_struct *task) { return task->cgroups->dfl_cgrp->kn->id; }

static __always_inline __u64 cookie_of(struct pt_regs *ctx) { return bpf_get_attach_cookie(ctx); }

#define TAKE_NUMBER(counter, number)                      \
  ({                                                      \
    *(number) = __sync_fetch_and_add(counter, 1);         \
    true;                                                 \
  })
#define REPLACED(at, old, new) (__sync_val_compare_and_swap(at, old, new) == (old))

extern bool bpf_session_is_return(void) __ksym __weak;

#endif

/* The programs of a family of probes, one or two for each way of attaching (src/attach.rs). `enters` and `returns` see the
 * registers as `ctx`; a session's return is left out where `enters` is 1. */
#define SINGLE_PROGRAMS(family, enters, returns)     \
  SEC("uprobe")                                      \
  int family##_enter_single(struct pt_regs *ctx) {   \
    enters;                                          \
    return 0;                                        \
  }                                                  \
  SEC("uretprobe")                                   \
  int family##_return_single(struct pt_regs *ctx) { return returns; }

#ifdef RM_BASIC
#define PROBE_PROGRAMS SINGLE_PROGRAMS
#define POINT_PROGRAMS(family, happens) \
  SEC("uprobe")                         \
  int family##_single(struct pt_regs *ctx) { return happens; }
#else
#define PROBE_PROGRAMS(family, enters, returns)                                                            \
  SEC("uprobe.session")                                                                                    \
  int family##_session(struct pt_regs *ctx) { return bpf_session_is_return() ? (returns) : (enters); }     \
  SEC("uprobe.multi")                                                                                      \
  int family##_enter_multi(struct pt_regs *ctx) {                                                          \
    enters;                                                                                                \
    return 0;                                                                                              \
  }                                                                                                        \
  SEC("uretprobe.multi")                                                                                   \
  int family##_return_multi(struct pt_regs *ctx) { return returns; }                                       \
  SINGLE_PROGRAMS(family, enters, returns)

/* Places without a return: in every mode one program. */
#define POINT_PROGRAMS(family, happens)                                \
  SEC("uprobe.multi")                                                  \
  int family##_session(struct pt_regs *ctx) { return happens; }        \
  SEC("uprobe.multi")                                                  \
  int family##_multi(struct pt_regs *ctx) { return happens; }          \
  SEC("uprobe")                                                        \
  int family##_single(struct pt_regs *ctx) { return happens; }
#endif
