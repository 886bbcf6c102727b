/* The Python frames of threads that run, walked in their own context, and the native stacks of those without Python, copied
 * there: read from outside, a stack changes while it is read.
 * A thread that is asked has a clock of its own (src/python_walks), which fires while it is on a CPU. An object apart from
 * capture's, loaded when stacks are first sampled. */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "python.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 4096);
  __type(key, __u32);
  __type(value, struct rm_py_asked);
} asked SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, 1 << 20);
} walks SEC(".maps");

static __always_inline long read_user(void *to, __u32 bytes, __u64 from) {
  return bpf_probe_read_user(to, bytes, (const void *)from);
}

/* All frames count, also those that stand for C between two of Python: who reads them leaves these out. So there is one path
 * through the loop, and the verifier goes through it once. What a version does not have is read at offset 0, and ignored. */
static __noinline int walk_frames(struct rm_py_walk *out, const struct rm_py_asked *how, __u64 next) {
  out->complete = 0;
  int i = 0;
  for (; i < RM_PY_FRAMES; i++) {
    if (!next) {
      out->complete = 1;
      break;
    }
    struct rm_py_frame *frame = &out->frames[i];
    __u64 previous = 0;
    frame->address = next;
    frame->instruction = 0;
    long failed = read_user(&frame->code, sizeof frame->code, next + how->code_at);
    failed |= read_user(&previous, sizeof previous, next + how->previous_at);
    /* Eight bytes in any case: kernels before 5.11 forget the bounds of a length that is kept on the stack. */
    failed |= read_user(&frame->instruction, 8, next + how->instruction_at);
    if (how->instruction_bytes == 4) frame->instruction = (__u32)frame->instruction;
    failed |= read_user(&frame->tlbc, sizeof frame->tlbc, next + how->tlbc_at);
    failed |= read_user(&frame->owner, sizeof frame->owner, next + how->owner_at);
    if (failed) break;
    next = previous;
  }
  out->count = i;
  return 0;
}

#if defined(__TARGET_ARCH_x86)
/* Who asked finds the functions, by the unwind tables of the thread's files. In a system call: the next time, then. */
static __always_inline int copy_stack(struct pt_regs *regs, struct rm_py_asked *how, __u32 tid) {
  if ((regs->cs & 3) != 3) return 0;
  struct rm_stack_copy *out = bpf_ringbuf_reserve(&walks, sizeof *out, 0);
  if (!out) return 0;
  __u64 sp = regs->sp;
  out->tid = tid;
  out->number = how->number;
  out->pad = 0;
  out->kind = RM_WALK_STACK;
  out->pc = regs->ip;
  out->sp = sp;
  out->fp = regs->bp;
  __u32 i = 0;
  for (; i < RM_STACK_PIECES; i++) {
    if (read_user(out->stack + i * RM_STACK_PIECE, RM_STACK_PIECE, sp + i * RM_STACK_PIECE)) break;
  }
  out->bytes = i * RM_STACK_PIECE;
  how->number = 0;
  bpf_ringbuf_submit(out, BPF_RB_FORCE_WAKEUP);
  return 0;
}
#else
/* Native stacks are unwound on x86-64 only. */
static __always_inline int copy_stack(struct pt_regs *regs, struct rm_py_asked *how, __u32 tid) { return 0; }
#endif

/* `ctx` begins with the thread's registers (struct bpf_perf_event_data). */
SEC("perf_event")
int walk_python(struct pt_regs *ctx) {
  __u32 tid = bpf_get_current_pid_tgid();
  struct rm_py_asked *how = bpf_map_lookup_elem(&asked, &tid);
  if (!how || !how->number) return 0;
  if (!how->state) return copy_stack(ctx, how, tid);
  __u64 next = 0;
  if (read_user(&next, sizeof next, how->state + how->frame_at)) return 0;
  if (how->inner_at >= 0 && next && read_user(&next, sizeof next, next + how->inner_at)) return 0;
  struct rm_py_walk *out = bpf_ringbuf_reserve(&walks, sizeof *out, 0);
  if (!out) return 0; /* the next time, then */
  out->tid = tid;
  out->number = how->number;
  out->kind = RM_WALK_FRAMES;
  walk_frames(out, how, next);
  how->number = 0;
  bpf_ringbuf_submit(out, BPF_RB_FORCE_WAKEUP);
  return 0;
}
