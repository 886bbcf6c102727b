/* Programs that do nothing, to measure what a probe costs before it does anything, and those that do the least a record
 * takes. Loaded by src/measure.rs only. */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "wire.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
extern bool bpf_session_is_return(void) __ksym __weak;

SEC("uprobe.session")
int empty_session(struct pt_regs *ctx) { return 0; }
SEC("uprobe.multi")
int empty_enter_multi(struct pt_regs *ctx) { return 0; }
SEC("uretprobe.multi")
int empty_return_multi(struct pt_regs *ctx) { return 0; }
SEC("uprobe")
int empty_enter_single(struct pt_regs *ctx) { return 0; }
SEC("uretprobe")
int empty_return_single(struct pt_regs *ctx) { return 0; }

/* The least that a recorded call can do: both times, an argument that lies on the stack, kept with the task until the
 * return, and one record of the size of ours. Whose call, in which communicator, what number: nothing of it. */
struct kept {
  __u64 enter_ns, args[7];
};
struct {
  __uint(type, BPF_MAP_TYPE_TASK_STORAGE);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __type(key, int);
  __type(value, struct kept);
} threads SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, 4 << 20);
} records SEC(".maps");
/* How many found no room: a bare count, read by src/measure.rs. */
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, __u64);
} no_room SEC(".maps");

static __always_inline int least_enter(struct pt_regs *ctx) {
  struct kept *kept = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
  if (!kept) return 0;
  kept->args[0] = PT_REGS_PARM1(ctx);
  kept->args[1] = PT_REGS_PARM2(ctx);
  kept->args[2] = PT_REGS_PARM3(ctx);
  kept->args[3] = PT_REGS_PARM4(ctx);
  kept->args[4] = PT_REGS_PARM5(ctx);
  kept->args[5] = PT_REGS_PARM6(ctx);
  __u64 word = 0;
  bpf_probe_read_user(&word, sizeof word, (const void *)(PT_REGS_SP(ctx) + 8));
  kept->args[6] = word;
  kept->enter_ns = bpf_ktime_get_ns();
  return 0;
}

static __always_inline int least_return(struct pt_regs *ctx) {
  struct kept *kept = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, 0);
  if (!kept) return 0;
  struct rm_call *out = bpf_ringbuf_reserve(&records, RM_SHORT_CALL, 0);
  if (!out) {
    __u32 zero = 0;
    __u64 *lost = bpf_map_lookup_elem(&no_room, &zero);
    if (lost) __sync_fetch_and_add(lost, 1);
    return 0;
  }
  __builtin_memset(out, 0, RM_SHORT_CALL);
  out->enter_ns = kept->enter_ns;
  __builtin_memcpy(out->args, kept->args, sizeof kept->args);
  out->ret = (__s32)PT_REGS_RC(ctx);
  out->exit_ns = bpf_ktime_get_ns();
  bpf_ringbuf_submit(out, BPF_RB_NO_WAKEUP);
  return 0;
}

SEC("uprobe.session")
int least_session(struct pt_regs *ctx) { return bpf_session_is_return() ? least_return(ctx) : least_enter(ctx); }
SEC("uprobe.multi")
int least_enter_multi(struct pt_regs *ctx) { return least_enter(ctx); }
SEC("uretprobe.multi")
int least_return_multi(struct pt_regs *ctx) { return least_return(ctx); }
SEC("uprobe")
int least_enter_single(struct pt_regs *ctx) { return least_enter(ctx); }
SEC("uretprobe")
int least_return_single(struct pt_regs *ctx) { return least_return(ctx); }
