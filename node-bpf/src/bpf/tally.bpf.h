/* Calls that are too many to be recorded one by one: counted here, per process, function and duration, read out by user
 * space each second. A call becomes a record of its own when it is slow for its function, or a synchronisation that
 * follows a collective, within a budget. What is probed: cuda.bpf.h, symbols.bpf.h. The maps' contents: tally.h.
 *
 * Counting is exact: counts are added atomically in the current epoch's map; user space changes the epoch, waits until
 * no program still uses the other map, and empties it. */
#include "tally.h"

/* How far the stack pointer has moved when a function has returned, and how many arguments come in registers. */
#if defined(__TARGET_ARCH_x86)
#define TALLY_SP_DELTA 8
#define TALLY_STACK_AT 8
#define TALLY_IN_REGISTERS 6
#else
#define TALLY_SP_DELTA 0
#define TALLY_STACK_AT 0
#define TALLY_IN_REGISTERS 8
#endif

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, RM_MOST_TALLIES);
  __type(key, struct rm_tally_key);
  __type(value, struct rm_tally);
} tallies_0 SEC(".maps"), tallies_1 SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, RM_TALLY_FUNCS);
  __type(key, __u32);
  __type(value, struct rm_tally_func);
} tally_funcs SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, RM_TALLY_FUNCS);
  __type(key, __u32);
  __type(value, struct rm_tally_rule);
} tally_rules SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct rm_tally_control);
} tally_control SEC(".maps");

/* Records made in each epoch, per budget; user space sets those of the idle epoch to zero. */
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 2 * RM_TALLY_BUDGETS);
  __type(key, __u32);
  __type(value, __u64);
} tally_rows SEC(".maps");

#define TALLY_COUNT(func_, field)                                         \
  do {                                                                    \
    __u32 f_ = (func_);                                                   \
    struct rm_tally_func *s_ = bpf_map_lookup_elem(&tally_funcs, &f_);    \
    if (s_) __sync_fetch_and_add(&s_->field, 1);                          \
  } while (0)

/* The arguments that come in registers, by position: the context itself may be read at fixed places only. */
struct tally_args { __u64 in_register[8]; };
static __always_inline void tally_read_args(struct pt_regs *ctx, struct tally_args *args) {
  args->in_register[0] = PT_REGS_PARM1(ctx);
  args->in_register[1] = PT_REGS_PARM2(ctx);
  args->in_register[2] = PT_REGS_PARM3(ctx);
  args->in_register[3] = PT_REGS_PARM4(ctx);
  args->in_register[4] = PT_REGS_PARM5(ctx);
  args->in_register[5] = PT_REGS_PARM6(ctx);
#if TALLY_IN_REGISTERS == 8
  args->in_register[6] = PT_REGS_PARM7(ctx);
  args->in_register[7] = PT_REGS_PARM8(ctx);
#else
  args->in_register[6] = args->in_register[7] = 0;
#endif
}
static __always_inline __u64 tally_arg(const struct tally_args *args, __u64 sp, __u32 at) {
  if (at < TALLY_IN_REGISTERS) {
    barrier_var(at); /* keeps the mask, which the verifier goes by */
    return args->in_register[at & 7];
  }
  __u64 word = 0;
  bpf_probe_read_user(&word, sizeof word, (const void *)(sp + TALLY_STACK_AT + (at - TALLY_IN_REGISTERS) * 8));
  return word;
}

static __always_inline __u32 tally_bucket(__u64 ns) {
  if (ns < 32) return ns;
  __u32 log = 0;
  __u64 v = ns;
  if (v >> 32) { v >>= 32; log += 32; }
  if (v >> 16) { v >>= 16; log += 16; }
  if (v >> 8) { v >>= 8; log += 8; }
  if (v >> 4) { v >>= 4; log += 4; }
  if (v >> 2) { v >>= 2; log += 2; }
  if (v >> 1) log += 1;
  return (log - 4) * 32 + ((ns >> (log - 5)) & 31);
}

/* 1 when the return of this call is of no interest. */
static __always_inline int tally_enter_run(struct pt_regs *ctx, bool symbols) {
  struct task_struct *task = this_task(); /* once: asking for it is a call */
  if (!wanted(task)) return 1;
  __u64 cookie = cookie_of(ctx);
  __u16 func = cookie;
  __u8 api = cookie >> 16, flags = cookie >> 24;
  __u64 sp = PT_REGS_SP(ctx), ip = PT_REGS_IP(ctx);
  __u64 now = bpf_ktime_get_ns();
  struct thread_state *thread = current_thread(task);
  if (!thread) {
    thread = new_thread();
    if (!thread) {
      TALLY_COUNT(func, lost_map);
      return 1;
    }
  }
  follow_once(thread, symbols);
  if (!symbols && !thread->on_device) {
    device_first_call();
    thread->on_device = 1;
  }
  __u32 depth = thread->depth;
  /* What lies below us on the stack (or at the same place) has been left by a jump or an exception. */
  for (int i = 0; i < TALLY_DEPTH; i++) {
    if (!depth) break;
    struct tally_open *outer = &thread->open[(depth - 1) & (TALLY_DEPTH - 1)];
    if (sp < outer->sp || (sp == outer->sp && ip != outer->ip)) break;
    /* One file reached through two overlay mounts fires twice for one entry, at once. */
    if (sp == outer->sp && now - outer->enter_ns < 2000) return 1;
    TALLY_COUNT(outer->func, unmatched);
    depth--;
  }
  thread->depth = depth;
  if (!symbols) {
    for (int i = 0; i < TALLY_DEPTH; i++) {
      if (i >= depth) break;
      if (thread->open[i].api == api) return 1;
    }
  }
  if (depth >= TALLY_DEPTH) {
    TALLY_COUNT(func, lost_map);
    return 1;
  }
  struct tally_open *call = &thread->open[depth & (TALLY_DEPTH - 1)];
  call->sp = sp;
  call->ip = ip;
  call->func = func;
  call->api = api;
  __u8 have = 0;
  if (!symbols) {
    __u8 bytes_at = cookie >> 32, kind_at = cookie >> 40, stream_at = cookie >> 48;
    struct tally_args args;
    tally_read_args(ctx, &args);
    call->bytes = 0;
    if (bytes_at != 0xff) {
      __u64 bytes = tally_arg(&args, sp, bytes_at & 15);
      if (bytes_at >> 4 != 15) bytes *= tally_arg(&args, sp, bytes_at >> 4);
      call->bytes = bytes << (kind_at >> 4 & 7);
      have |= RM_TALLY_HAVE_BYTES;
    }
    if ((kind_at & 15) != 15) {
      call->kind = tally_arg(&args, sp, kind_at & 15);
      have |= RM_TALLY_HAVE_KIND;
    }
    if (stream_at != 0xff) {
      __u64 stream = tally_arg(&args, sp, stream_at & 15);
      if (flags & RM_TALLY_STREAM_BEHIND && bpf_probe_read_user(&stream, sizeof stream, (const void *)(stream + 32)))
        stream = 0;
      call->stream = stream;
      have |= RM_TALLY_HAVE_STREAM;
    }
    if (flags & RM_TALLY_EVENT_RECORD) call->event = args.in_register[0];
    if (flags & RM_TALLY_EVENT_WAIT) call->event = args.in_register[1];
  }
  if (!symbols && flags & RM_TALLY_SYNC) {
    /* the driver's inside the runtime's waits for the same */
    bool inside = depth && thread->open[(depth - 1) & (TALLY_DEPTH - 1)].have & RM_TALLY_AFTER_COLLECTIVE;
    if (inside || device_follows_collective(thread)) {
      have |= RM_TALLY_AFTER_COLLECTIVE;
      device_wait_begins(now);
    }
  }
  call->have = have;
  call->enter_ns = now;
  thread->depth = depth + 1;
  return 0;
}

static __always_inline void tally_min(__u64 *least, __u64 value) {
  for (int i = 0; i < 8; i++) {
    __u64 old = *(volatile __u64 *)least;
    if (old <= value || REPLACED(least, old, value)) return;
  }
}
static __always_inline void tally_max(__u64 *most, __u64 value) {
  for (int i = 0; i < 8; i++) {
    __u64 old = *(volatile __u64 *)most;
    if (old >= value || REPLACED(most, old, value)) return;
  }
}

/* `kind`: of the room that an epoch's entries take. User space gives it back when it has emptied the map. */
static __always_inline struct rm_tally *tally_of(void *map, const struct rm_tally_key *key, __u32 kind) {
  struct rm_tally *sum = bpf_map_lookup_elem(map, key);
  if (sum) return sum;
  struct rm_room *room = bpf_map_lookup_elem(&rooms, &key->pid);
  if (!room || !user_takes(room->user, kind)) return 0;
  struct rm_tally first = {.min_ns = ~0ull, .cgroup_id = bpf_get_current_cgroup_id()};
  if (bpf_map_update_elem(map, key, &first, BPF_NOEXIST)) user_gives(room->user, kind);
  return bpf_map_lookup_elem(map, key);
}

static __always_inline void tally_add(__u32 pid, __u32 func, __u64 duration, __u64 bytes, __u32 epoch) {
  struct rm_tally_key key = {.pid = pid, .func = func, .bucket = tally_bucket(duration)};
  struct rm_tally *sum = epoch ? tally_of(&tallies_1, &key, RM_ROOM_TALLY_1) : tally_of(&tallies_0, &key, RM_ROOM_TALLY_0);
  if (!sum) {
    TALLY_COUNT(func, lost_map);
    return;
  }
  __sync_fetch_and_add(&sum->count, 1);
  if (duration) __sync_fetch_and_add(&sum->sum_ns, duration); /* adding 0 is compiled to another atomic, of Linux 5.12 */
  if (bytes) __sync_fetch_and_add(&sum->bytes, bytes);
  if (duration < sum->min_ns) tally_min(&sum->min_ns, duration);
  if (duration > sum->max_ns) tally_max(&sum->max_ns, duration);
}

/* False when the function has had its share of this epoch's records. */
static __always_inline bool tally_in_share(const struct rm_tally_rule *rule, __u32 func) {
  struct rm_tally_func *counters = bpf_map_lookup_elem(&tally_funcs, &func);
  return counters && counters->rows < rule->rows_until;
}

/* False when this epoch's records of the budget are spent. A quarter of it is kept for the `urgent`. */
static __always_inline bool tally_may_record(const struct rm_tally_control *control, __u32 budget, bool urgent) {
  if (budget >= RM_TALLY_BUDGETS) return false;
  __u32 at = budget + (control->epoch ? RM_TALLY_BUDGETS : 0), most = control->most_rows[budget];
  __u64 *made = bpf_map_lookup_elem(&tally_rows, &at);
  if (!urgent) most -= most / 4;
  if (!made || *made >= most) return false;
  __u64 number;
  TAKE_NUMBER(made, &number);
  return number < most;
}

static __always_inline void tally_record(struct pt_regs *ctx, const struct tally_open *call, __u64 now) {
  struct rm_tally_row *out = bpf_ringbuf_reserve(&events, sizeof *out, 0);
  if (!out) {
    TALLY_COUNT(call->func, lost_ring);
    return;
  }
  __u64 thread = bpf_get_current_pid_tgid();
  out->kind = RM_TALLY_ROW;
  out->func = call->func;
  out->flags = call->have;
  out->enter_ns = call->enter_ns;
  out->exit_ns = now;
  out->pid = thread >> 32;
  out->tid = thread;
  out->cgroup_id = bpf_get_current_cgroup_id();
  out->bytes = call->bytes;
  out->stream = call->stream;
  out->ret = PT_REGS_RC(ctx);
  out->copy_kind = call->kind;
  out->pad = 0;
  bpf_ringbuf_submit(out, wake_flags());
  TALLY_COUNT(call->func, rows);
}

/* `sp`: what the stack pointer was at the call's entry. */
static __always_inline int tally_left_run(struct pt_regs *ctx, __u64 sp, bool symbols) {
  struct task_struct *task = this_task();
  struct thread_state *thread = current_thread(task);
  if (!thread) return 0;
  __u64 cookie = cookie_of(ctx);
  __u16 func = cookie;
  __u32 depth = thread->depth;
  struct tally_open *call = 0;
  for (int i = 0; i < TALLY_DEPTH; i++) {
    if (!depth) return 0;
    depth--;
    call = &thread->open[depth & (TALLY_DEPTH - 1)];
    if (call->sp == sp && call->func == func) break;
    call = 0;
  }
  if (!call) return 0;
  __u64 now = bpf_ktime_get_ns();
  for (int i = 0; i < TALLY_DEPTH; i++) { /* left by a jump to us */
    __u32 above = depth + 1 + i;
    if (above >= thread->depth) break;
    TALLY_COUNT(thread->open[above & (TALLY_DEPTH - 1)].func, unmatched);
  }
  thread->depth = depth;
  __u64 duration = now - call->enter_ns;
  __u32 zero = 0, index = func;
  struct rm_tally_control *control = bpf_map_lookup_elem(&tally_control, &zero);
  struct rm_tally_rule *rule = bpf_map_lookup_elem(&tally_rules, &index);
  if (!control || !rule) return 0;
  tally_add(pid_of(task), func, duration, call->have & RM_TALLY_HAVE_BYTES ? call->bytes : 0, control->epoch);
  bool after = !symbols && call->have & RM_TALLY_AFTER_COLLECTIVE;
  __u8 flags = cookie >> 24;
  if (symbols && flags & RM_TALLY_HANDS_OVER) call->have |= RM_TALLY_NO_RETURN;
  if (!symbols && flags & (RM_TALLY_CAPTURE_BEGIN | RM_TALLY_CAPTURE_END))
    device_captures(flags & RM_TALLY_CAPTURE_BEGIN, call->stream, PT_REGS_RC(ctx));
  if (!symbols && flags & (RM_TALLY_EVENT_RECORD | RM_TALLY_EVENT_WAIT))
    device_event(flags & RM_TALLY_EVENT_WAIT, call->stream, call->event, PT_REGS_RC(ctx));
  if (after) {
    device_wait_ends(bpf_get_current_pid_tgid());
    if (!depth) thread->after_collective = 0;
  }
  if (after && tally_may_record(control, RM_TALLY_SYNCS, true)) {
    tally_record(ctx, call, now);
  } else if (duration >= rule->row_min_ns) {
    bool urgent = duration >= 1000000 && duration >= 4 * rule->row_min_ns;
    __u32 budget = symbols ? RM_TALLY_SYMBOLS : RM_TALLY_SLOW_CUDA;
    if ((urgent || tally_in_share(rule, func)) && tally_may_record(control, budget, urgent)) tally_record(ctx, call, now);
    else TALLY_COUNT(func, withheld);
  }
  return 0;
}

static __always_inline int tally_enter(struct pt_regs *ctx, bool symbols) {
  __u32 slot = symbols ? RM_PROGRAM_SYMBOL_ENTER : RM_PROGRAM_CUDA_ENTER;
  return MEASURED(slot, tally_enter_run(ctx, symbols));
}

static __always_inline int tally_left(struct pt_regs *ctx, __u64 sp, bool symbols) {
  __u32 slot = symbols ? RM_PROGRAM_SYMBOL_RETURN : RM_PROGRAM_CUDA_RETURN;
  return MEASURED(slot, tally_left_run(ctx, sp, symbols));
}

static __always_inline int tally_return(struct pt_regs *ctx, bool symbols) {
  return tally_left(ctx, PT_REGS_SP(ctx) - TALLY_SP_DELTA, symbols);
}

/* A point inside a function: it has no return and no duration. */
static __always_inline int tally_point_run(struct pt_regs *ctx) {
  struct task_struct *task = this_task();
  if (!wanted(task)) return 0;
  struct thread_state *thread = current_thread(task);
  if (!thread) thread = new_thread();
  if (thread) follow_once(thread, true);
  __u64 now = bpf_ktime_get_ns();
  __u32 zero = 0;
  struct rm_tally_control *control = bpf_map_lookup_elem(&tally_control, &zero);
  if (!control) return 0;
  struct tally_open call = {.enter_ns = now, .func = cookie_of(ctx)};
  tally_add(pid_of(task), call.func, 0, 0, control->epoch);
  if (tally_may_record(control, RM_TALLY_POINTS, true)) tally_record(ctx, &call, now);
  else TALLY_COUNT(call.func, withheld);
  return 0;
}

static __always_inline int tally_point(struct pt_regs *ctx) {
  return MEASURED(RM_PROGRAM_SYMBOL_POINT, tally_point_run(ctx));
}

/* The open calls of a thread (process id << 32 | thread id) will not return. */
static __always_inline void tally_thread_ends(struct thread_state *thread, __u64 ids) {
  if (thread->on_device) device_wait_ends(ids);
  for (int i = 0; i < TALLY_DEPTH; i++) {
    if (i >= thread->depth) break;
    TALLY_COUNT(thread->open[i].func, unmatched);
  }
  thread->depth = 0;
}
