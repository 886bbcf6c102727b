/* Requests that are calls of functions the user names (`rankmesh up --request`), or pairs of USDT points: from entry to return on
 * one thread. Which: src/serving/calls. Only the outermost call of a thread is a request, whichever of the functions it is of.
 *
 * Calls are followed by the stack pointer: what was entered lower on the stack is within the call, what is entered above it, or at
 * the same place, shows that the call was left by an exception or a jump. So does, on x86, that another return address lies where
 * the call's was. A thread that goes on on another stack (fibers) may come back: what it was in is lost, and has not failed.
 *
 * A file that is reached in two ways (two overlay mounts) has its probes twice, and both fire: the cookie has the number of the
 * attachment (upper half) and of the function or pair in it. */

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, RM_MOST_CALLERS);
  __type(key, __u32); /* thread */
  __type(value, struct rm_caller);
} callers SEC(".maps");

static const struct rm_caller new_caller;

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, RM_CALL_ATTACHMENTS);
  __type(key, __u32);
  __type(value, struct rm_attachment);
} attachments SEC(".maps");

static __always_inline struct rm_attachment *attachment_of(__u64 cookie) {
  __u32 at = (cookie >> 32) & (RM_CALL_ATTACHMENTS - 1);
  return bpf_map_lookup_elem(&attachments, &at);
}

static __always_inline void count_hit(struct pt_regs *ctx) {
  struct rm_attachment *attachment = attachment_of(bpf_get_attach_cookie(ctx));
  if (attachment) __sync_fetch_and_add(&attachment->hits, 1);
}

/* Whether the probes are still there that would see a call's end. */
static __always_inline bool is_attached(__u64 cookie) {
  struct rm_attachment *attachment = attachment_of(cookie);
  return attachment && attachment->number == cookie >> 32;
}

struct rm_stack {
  __u64 from, to;
};

static long note_stack(struct task_struct *task, struct vm_area_struct *vma, struct rm_stack *stack) {
  stack->from = vma->vm_start;
  stack->to = vma->vm_end;
  return 0;
}

/* Whether two places are in different mappings, so on different stacks; false where that is not known. */
static __always_inline bool on_other_stack(__u64 here, __u64 there) {
  struct rm_stack stack = {};
  if (bpf_find_vma(bpf_get_current_task_btf(), here, note_stack, &stack, 0) || !stack.to) return false;
  return there < stack.from || there >= stack.to;
}

#if defined(__TARGET_ARCH_x86)
/* The return address of the function that is entered; 0: not known. */
static __always_inline __u64 return_address(__u64 sp) {
  __u64 word = 0;
  bpf_probe_read_user(&word, sizeof word, (void *)sp);
  return word;
}
#else
static __always_inline __u64 return_address(__u64 sp) { return 0; }
#endif

/* Whether a return probe, of whomever, is armed on the current thread: then the kernel's own address lies where a return address
 * was. */
static __always_inline bool has_return_probes(void) {
  struct task_struct___probed *task = (void *)bpf_get_current_task();
  if (!bpf_core_field_exists(task->utask)) return true;
  struct uprobe_task *utask = BPF_CORE_READ(task, utask);
  return utask && BPF_CORE_READ(utask, return_instances) != 0;
}

/* Whether another return address lies where the call's was. */
static __always_inline bool is_overwritten(struct rm_begun *call) {
  __u64 word = return_address(call->sp);
  return word && call->word && word != call->word && !has_return_probes();
}

/* The same for a thread as long as it runs, and no socket's cookie. */
static __always_inline __u64 connection_of(struct task_struct *task) {
  return 1ull << 52 | (__u64)task->pid << 30 | (task->start_time >> 30 & ((1ull << 30) - 1));
}

/* A call is over: it has returned at `end_ns`, or was left (0). */
static __always_inline void call_ends(struct rm_caller *caller, struct rm_begun *call, __u64 end_ns) {
  struct rm_called *out = bpf_ringbuf_reserve(&requests, sizeof *out, 0);
  if (!out) {
    lost(RM_REQUEST_LOST_RING);
  } else {
    out->connection = caller->connection;
    out->begin_ns = call->begin_ns;
    out->end_ns = end_ns;
    out->cgroup_id = bpf_get_current_cgroup_id();
    out->cookie = call->cookie;
    out->pid = caller->pid;
    out->tid = caller->tid;
    out->number = call->number;
    out->switches = switches_of(bpf_get_current_task_btf());
    out->within = call->within;
    out->server = caller->server;
    bpf_ringbuf_submit(out, BPF_RB_NO_WAKEUP);
  }
  call->begin_ns = 0;
}

/* A call whose probes were taken off may have returned since: that is not seen any more. */
static __always_inline void lose_if_detached(struct rm_begun *call) {
  if (!call->begin_ns || is_attached(call->cookie)) return;
  call->begin_ns = 0;
  lost(RM_REQUEST_LOST_PROBES);
}

/* A call did not return, as it seems: where a thread changes its stacks, it may come back to it. */
static __always_inline void function_is_left(struct rm_caller *caller) {
  struct rm_begun *call = &caller->function;
  if (!caller->swaps) return call_ends(caller, call, 0);
  call->begin_ns = 0;
  lost(RM_REQUEST_LOST_STACK);
}

static __always_inline void leave_calls(struct rm_caller *caller) {
  lose_if_detached(&caller->function);
  lose_if_detached(&caller->pair);
  if (caller->function.begin_ns) function_is_left(caller);
  if (caller->pair.begin_ns) call_ends(caller, &caller->pair, 0);
}

/* What is kept of the current thread, made where there is nothing. */
static __always_inline struct rm_caller *caller_of(struct rm_server *server, struct task_struct *task) {
  __u32 tid = task->pid;
  __u64 connection = connection_of(task);
  struct rm_caller *known = bpf_map_lookup_elem(&callers, &tid);
  if (known) {
    if (known->connection != connection) { /* another thread's, whose end was not seen */
      leave_calls(known);
      known->connection = connection;
      known->number = 0;
      known->swaps = 0;
      known->function.cookie = 0;
      known->pid = task->tgid;
      known->server = server->of ? server->of : task->tgid;
    }
    return known;
  }
  __u32 user = server->user;
  if (!user_takes(user, RM_ROOM_CALLER)) {
    lost(RM_REQUEST_LOST_MAP);
    return 0;
  }
  if (bpf_map_update_elem(&callers, &tid, &new_caller, BPF_NOEXIST)) {
    user_gives(user, RM_ROOM_CALLER);
    lost(RM_REQUEST_LOST_MAP);
    return 0;
  }
  known = bpf_map_lookup_elem(&callers, &tid);
  if (!known) return 0;
  known->connection = connection;
  known->pid = task->tgid;
  known->server = server->of ? server->of : task->tgid;
  known->tid = tid;
  known->user = user;
  return known;
}

static __always_inline void call_begins(struct rm_caller *caller, struct rm_begun *call, struct pt_regs *ctx, __u64 word) {
  call->cookie = bpf_get_attach_cookie(ctx);
  call->sp = PT_REGS_SP(ctx);
  call->ip = PT_REGS_IP(ctx);
  call->word = word;
  call->number = ++caller->number;
  call->within = 0;
  call->begin_ns = bpf_ktime_get_ns();
}

static __always_inline int function_entered(struct pt_regs *ctx) {
  if (!is_attached(bpf_get_attach_cookie(ctx))) return 0; /* it is being taken off: the end would not be seen */
  struct rm_server *server = server_of_this();
  if (!server) return 0;
  struct rm_caller *caller = caller_of(server, bpf_get_current_task_btf());
  if (!caller) return 0;
  struct rm_begun *call = &caller->function;
  __u64 sp = PT_REGS_SP(ctx), ip = PT_REGS_IP(ctx), cookie = bpf_get_attach_cookie(ctx), word = return_address(sp);
  lose_if_detached(call);
  if (call->begin_ns && on_other_stack(sp, call->sp)) {
    call->begin_ns = 0;
    lost(RM_REQUEST_LOST_STACK);
  }
  if (call->begin_ns) {
    bool is_same_place = sp == call->sp && ip == call->ip;
    if (is_same_place && cookie >> 32 != call->cookie >> 32) return 0; /* the same entry, once more */
    bool is_left = sp > call->sp || is_same_place;
    if (sp < call->sp && is_overwritten(call)) is_left = true;
    if (!is_left) {
      call->within++;
      return 0;
    }
    function_is_left(caller);
  }
  call_begins(caller, call, ctx, word);
  return 0;
}

static __always_inline struct rm_caller *known_caller(void) {
  __u32 tid = bpf_get_current_pid_tgid();
  return bpf_map_lookup_elem(&callers, &tid);
}

/* `sp`: what the stack pointer was at the call's entry. */
static __always_inline int function_left(struct pt_regs *ctx, __u64 sp) {
  struct rm_caller *caller = known_caller();
  if (!caller) return 0;
  struct rm_begun *call = &caller->function;
  if (call->cookie >> 32 != bpf_get_attach_cookie(ctx) >> 32) return 0;
  if (!call->begin_ns || call->sp != sp) {
    /* A call returns that did not begin within the one that is open, or that was open before: the thread has changed stacks. */
    if (!call->begin_ns || sp > call->sp || !call->within) caller->swaps = 1;
    return 0;
  }
  /* Else a call returns here that was not seen to begin, and ours was left. */
  if (is_overwritten(call))
    function_is_left(caller);
  else
    call_ends(caller, call, bpf_ktime_get_ns());
  return 0;
}

/* A pair has no depth: that it begins again says that it was left. */
static __always_inline int pair_begins(struct pt_regs *ctx) {
  if (!is_attached(bpf_get_attach_cookie(ctx))) return 0;
  struct rm_server *server = server_of_this();
  if (!server) return 0;
  struct rm_caller *caller = caller_of(server, bpf_get_current_task_btf());
  if (!caller) return 0;
  struct rm_begun *call = &caller->pair;
  lose_if_detached(call);
  if (call->begin_ns) {
    if (call->cookie != bpf_get_attach_cookie(ctx)) {
      if (call->ip != PT_REGS_IP(ctx)) call->within++; /* else the same point, once more */
      return 0;
    }
    call_ends(caller, call, 0);
  }
  call_begins(caller, call, ctx, 0);
  return 0;
}

static __always_inline int pair_ends(struct pt_regs *ctx) {
  struct rm_caller *caller = known_caller();
  if (caller && caller->pair.begin_ns && caller->pair.cookie == bpf_get_attach_cookie(ctx))
    call_ends(caller, &caller->pair, bpf_ktime_get_ns());
  return 0;
}

/* For kernels with multi links, and for those before (Linux 6.6). */
#define CALL_PROGRAM(name, what)                            \
  SEC("uprobe.multi")                                       \
  int name##_multi(struct pt_regs *ctx) { return what; }    \
  SEC("uprobe")                                             \
  int name##_single(struct pt_regs *ctx) { return what; }

CALL_PROGRAM(function_entry, (count_hit(ctx), function_entered(ctx)))
CALL_PROGRAM(function_end, (count_hit(ctx), function_left(ctx, PT_REGS_SP(ctx))))
CALL_PROGRAM(pair_begin, (count_hit(ctx), pair_begins(ctx)))
CALL_PROGRAM(pair_end, (count_hit(ctx), pair_ends(ctx)))

/* A thread ends, or has begun another program: the call it is in has no answer. */
static __always_inline void caller_ends(__u32 tid) {
  struct rm_caller *caller = bpf_map_lookup_elem(&callers, &tid);
  if (!caller) return;
  __u32 user = caller->user;
  leave_calls(caller);
  if (!bpf_map_delete_elem(&callers, &tid)) user_gives(user, RM_ROOM_CALLER);
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(calls_end, struct task_struct *task) {
  caller_ends(task->pid);
  return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(calls_end_at_exec, struct task_struct *task, int former_tid) {
  caller_ends(former_tid);
  return 0;
}
