/* The capture object: maps, and one include per concern. Loaded and attached by src/loader.rs and src/attach.rs. */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "wire.h"
#include "ring.bpf.h"
#include "features.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* A section of its own, so that user space finds the configuration at offset 0. */
const volatile struct rm_config config SEC(".rodata.config");

/* What user space turns while capture runs. */
volatile struct rm_tuning tuning SEC(".data.tuning");

struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, 8 << 20); /* set by the loader */
} events SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, RM_MAX_FUNCS);
  __type(key, __u32);
  __type(value, struct rm_stats);
} stats SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_CGROUP_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, __u32);
} cgroup_array SEC(".maps");

/* Processes that are followed: key is the process id. Made here on the first traced call, by user space when a traced
 * library is found mapped; removed when the process ends. User space never writes what is there already: a look and a
 * writing of its own would undo what the programs mark in between. */
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, RM_MOST_PROCESSES); /* each of them has a room (rooms.bpf.h) */
  __type(key, __u32);
  __type(value, __u32);
} tracked SEC(".maps");

/* Processes that a followed one, or one of these, has started: of them alone only host.bpf.h's events are of interest. */
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, RM_MOST_CHILDREN);
  __type(key, __u32);
  __type(value, struct rm_child);
} children SEC(".maps");

static __always_inline struct rm_stats *stats_of(__u32 slot) { return bpf_map_lookup_elem(&stats, &slot); }

/* Programs may be preempted by others of the same CPU, so the counters add atomically. */
#define COUNT(slot, field)                              \
  do {                                                  \
    struct rm_stats *s_ = stats_of(slot);               \
    if (s_) __sync_fetch_and_add(&s_->field, 1);        \
  } while (0)

/* What our programs take, by slot (enum rm_program). Measured is one run of 64, at random distances, so that nothing that
 * repeats falls into step with it: the kernel's own measuring of every run costs more than most of the programs. */
struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, RM_PROGRAMS);
  __type(key, __u32);
  __type(value, struct rm_program_time);
} program_times SEC(".maps");

#define MEASURED(slot, run)                                                       \
  ({                                                                              \
    __u32 slot__ = slot;                                                          \
    __u64 begin__ = 0;                                                            \
    struct rm_program_time *t__ = bpf_map_lookup_elem(&program_times, &slot__);   \
    if (t__) {                                                                    \
      t__->runs++;                                                                \
      if (t__->skip) {                                                            \
        t__->skip--;                                                              \
      } else {                                                                    \
        t__->skip = bpf_get_prandom_u32() & 127;                                  \
        begin__ = bpf_ktime_get_ns();                                             \
      }                                                                           \
    }                                                                             \
    int result__ = run;                                                           \
    if (t__ && begin__) {                                                         \
      t__->measured++;                                                            \
      t__->measured_ns += bpf_ktime_get_ns() - begin__;                           \
    }                                                                             \
    result__;                                                                     \
  })

static volatile __u64 woke_at;

/* The reader looks every 200 ms anyway. */
static __always_inline __u64 wake_flags(void) { return ring_wakes(&events, config.wake_bytes, &woke_at); }

/* The same for what comes often: asks once in eight records of a thread, since asking costs as much as the record. */
static __always_inline __u64 wake_flags_now_and_then(__u32 *records) {
  return ++*records & 7 ? BPF_RB_NO_WAKEUP : wake_flags();
}

#include "owner.bpf.h"

/* Of the current task. */
static __always_inline bool wanted(struct task_struct *task) {
  if (pid_of(task) == config.own_pid) return false;
  if (!may_see_this()) return false;
  return config.cgroup_id == 0 || bpf_current_task_under_cgroup(&cgroup_array, 0) == 1;
}

static __always_inline bool wanted_task(void) { return wanted(this_task()); }

/* When a new program last woke the reader (kernel time); two CPUs may both take it for long ago. */
static volatile __u64 program_woke_ns;

/* Discovery is in a hurry; but where programs begin all the time, those of 20 ms wake it once. */
static __always_inline __u64 wake_flags_of_process(__u32 kind, __u64 now_ns) {
  if (kind == RM_EXEC) {
    if (now_ns - program_woke_ns < 20000000) return wake_flags();
    program_woke_ns = now_ns;
  }
  return BPF_RB_FORCE_WAKEUP;
}

static __always_inline void emit_process(__u32 kind, __u32 pid) {
  struct rm_process *out = bpf_ringbuf_reserve(&events, sizeof *out, 0);
  if (!out) {
    COUNT(RM_SLOT_PROCESS, lost_ring);
    return;
  }
  out->kind = kind;
  out->pid = pid;
  out->ts_ns = bpf_ktime_get_ns();
  bpf_ringbuf_submit(out, wake_flags_of_process(kind, out->ts_ns));
}

#include "users.bpf.h"
#include "rooms.bpf.h"
#include "thread.bpf.h"
#include "device.bpf.h"
#include "tally.bpf.h"
#include "cuda.bpf.h"
#include "symbols.bpf.h"
#include "comms.bpf.h"
#include "nccl.bpf.h"
#include "mpi.bpf.h"
#include "calls.bpf.h"
#include "host.bpf.h"
#include "bursts.bpf.h"
#include "tcp.bpf.h"
#include "block.bpf.h"
#include "memory.bpf.h"
#include "verbs.bpf.h"
#include "sched.bpf.h"
#include "open_calls.bpf.h"
