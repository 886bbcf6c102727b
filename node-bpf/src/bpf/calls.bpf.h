/* Library calls: entry and return of every probed function, in three ways of attaching (session, multi, single).
 * Only the outermost call of a thread counts: ncclBcast calling ncclBroadcast is one call. An entry and its return are
 * matched by the stack pointer, which also tells nested calls (below it) from calls left by longjmp or an exception. */

/* How far the stack pointer has moved when a function has returned, and how many arguments come in registers. */
#if defined(__TARGET_ARCH_x86)
#define RETURN_SP_DELTA 8 /* the return address is popped */
#define STACK_ARGS_AT 8
#define REGISTER_ARGS 6
#else
#define RETURN_SP_DELTA 0
#define STACK_ARGS_AT 0
#define REGISTER_ARGS 8
#endif

static __always_inline void read_args(struct pt_regs *ctx, __u64 *args, __u32 nargs, __u64 first_on_stack) {
  args[0] = PT_REGS_PARM1(ctx);
  args[1] = PT_REGS_PARM2(ctx);
  args[2] = PT_REGS_PARM3(ctx);
  args[3] = PT_REGS_PARM4(ctx);
  args[4] = PT_REGS_PARM5(ctx);
  args[5] = PT_REGS_PARM6(ctx);
#if REGISTER_ARGS == 8
  args[6] = PT_REGS_PARM7(ctx);
  args[7] = PT_REGS_PARM8(ctx);
#endif
  if (nargs <= REGISTER_ARGS) return;
  args[REGISTER_ARGS] = first_on_stack;
  if (nargs == REGISTER_ARGS + 1) return;
  __u64 words[RM_MAX_ARGS - REGISTER_ARGS - 1] = {};
  __u32 bytes = (nargs - REGISTER_ARGS - 1) * 8;
  if (bytes > sizeof words) bytes = sizeof words;
  bpf_probe_read_user(words, bytes, (const void *)(PT_REGS_SP(ctx) + STACK_ARGS_AT + 8));
  __builtin_memcpy(&args[REGISTER_ARGS + 1], words, sizeof words);
}

/* Where a function was called, at its entry. */
static __always_inline __u64 caller_of(struct pt_regs *ctx) {
#if defined(__TARGET_ARCH_x86)
  __u64 site = 0;
  bpf_probe_read_user(&site, sizeof site, (const void *)PT_REGS_SP(ctx));
  return site;
#else
  return PT_REGS_RET(ctx);
#endif
}

/* Byte 3 of the cookie. The barrier keeps the compiler from testing it unshifted, which the verifier cannot follow. */
static __always_inline __u32 comm_arg_of(__u64 cookie) {
  __u32 comm_arg = (cookie >> 24) & 0xff;
  barrier_var(comm_arg);
  return comm_arg;
}

#include "gloo.bpf.h"

/* Which communicator the call is made on, and its numbers there: by function, and among all its collectives. Complete only when
 * the communicator's start was seen. */
static __always_inline void take_numbers(struct thread_state *state, __u32 pid, __u64 handle, __u64 flags, __u32 counter) {
  struct rm_inflight *call = &state->call;
  struct rm_comm_key key = {.pid = pid, .handle = handle};
  call->handle = handle;
  struct known_comm *remembered = known_comm(state, handle);
  __u64 generation = comm_generation;
  bool known = remembered->handle == handle && remembered->generation == generation;
  if (known) {
    call->hash = remembered->hash;
    call->rank = remembered->rank;
    call->nranks = remembered->nranks;
    call->comm_flags = RM_HAVE_HASH | RM_HAVE_RANK;
    if (flags & RM_COOKIE_UNNUMBERED) return;
  }
  struct rm_comm_entry *comm = bpf_map_lookup_elem(&comms, &key);
  if (!comm) {
    have_room(pid);
    if (flags & RM_COOKIE_GLOO) gloo_meet(pid, handle, flags, gloo_name_kept(handle, flags), call->func);
    else if (flags & RM_COOKIE_MPI) mpi_meet(pid, handle, flags);
    else if (known || !find_pending(pid, handle, call->func)) return;
    comm = bpf_map_lookup_elem(&comms, &key);
    if (!comm) return;
  }
  if ((flags & RM_COOKIE_MPI) && !KNOWN_ALL(comm->info.flags)) mpi_look_again(pid, handle, flags);
  bool counted = !(comm->info.flags & RM_UNCOUNTED) && comm->counted_from_ns >= tuning.missed_until_ns;
  if (!(flags & RM_COOKIE_UNNUMBERED) && counted && counter < RM_COUNTERS) {
    call->have_seq = TAKE_NUMBER(&comm->seqs[counter], &call->seq);
    if (!(flags & RM_COOKIE_P2P) && !TAKE_NUMBER(&comm->position, &call->comm_seq)) call->comm_seq = RM_NO_POSITION;
  }
  if (known) return;
  call->hash = comm->info.hash;
  call->rank = comm->info.rank;
  call->nranks = comm->info.nranks;
  call->comm_flags = comm->info.flags;
  if (KNOWN_ALL(comm->info.flags)) remember_for_thread(remembered, handle, generation, &comm->info);
}

/* The communicator among a call's arguments; 0: none. */
static __always_inline __u64 communicator_of(const struct rm_inflight *call, __u32 pid, __u64 cookie) {
  __u32 comm_arg = comm_arg_of(cookie);
  __u64 flags = cookie >> 32;
  if (comm_arg == RM_WORLD_ARG) {
    struct rm_mpi *mpi = bpf_map_lookup_elem(&mpi_processes, &pid);
    return flags & RM_COOKIE_INT_HANDLES ? MPICH_WORLD : mpi ? mpi->world : 0;
  }
  return comm_arg < RM_MAX_ARGS ? handle_of(call->args[comm_arg], flags) : 0;
}

/* Whether the end of a call was missed, or may have been: its probes were taken away meanwhile (src/budget.rs). */
static __always_inline bool end_missed(const struct thread_state *state) {
  const struct rm_inflight *call = &state->call;
  if (call->enter_ns >= tuning.missed_until_ns || state->cookie >> 32 & RM_COOKIE_GLOO) return false;
  return call->role == RM_ROLE_CALL || call->role == RM_ROLE_MPI_BEGINS;
}

/* Returns 1 when the return of this call is of no interest. */
static __always_inline int call_enter(struct pt_regs *ctx) {
  struct task_struct *task = this_task(); /* once: asking for it is a call */
  if (!wanted(task)) return 1;
  __u64 cookie = cookie_of(ctx);
  __u8 func = cookie, role = cookie >> 8, nargs = cookie >> 16;
  __u32 comm_arg = comm_arg_of(cookie);
  __u64 flags = cookie >> 32;
  __u64 sp = PT_REGS_SP(ctx);
  __u64 now = bpf_ktime_get_ns();
  if (func >= RM_MAX_FUNCS) return 1;
  /* Here, because reading users' memory waits for all reads before it, as the clock has just done. And to our stack: the
   * kernel checks what it copies from users into, which takes longer where that is a map. */
  __u64 first_on_stack = 0;
  if (nargs > REGISTER_ARGS)
    bpf_probe_read_user(&first_on_stack, sizeof first_on_stack, (const void *)(sp + STACK_ARGS_AT));

  struct thread_state *state = current_thread(task);
  if (!state) {
    if (role == RM_ROLE_UNIQUE_ID) return 1;
    state = new_thread();
    if (!state) {
      COUNT(func, hits);
      COUNT(func, lost_map);
      return 1;
    }
  }
  struct rm_inflight *call = &state->call;
  if (call->enter_ns && end_missed(state)) call->enter_ns = 0;
  if (call->enter_ns) {
    bool nested = sp < call->sp || (sp == call->sp && func != call->func);
    if (nested) {
      if (role == RM_ROLE_UNIQUE_ID && call->role == RM_ROLE_INIT_ALL) {
        call->args[3] = PT_REGS_PARM1(ctx);
        return 0;
      }
      return 1;
    }
    /* One file reached through two overlay mounts fires twice for one entry, at once. */
    if (sp == call->sp && now - call->enter_ns < 50000) return 1;
    COUNT(call->func, unmatched);
    call->enter_ns = 0;
  }
  if (role == RM_ROLE_UNIQUE_ID) return 1;
  if (role == RM_ROLE_MPI_STARTS || role == RM_ROLE_MPI_REQUEST_FREE) {
    if (mpi_of_requests(cookie, PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx), now, caller_of(ctx))) follow_once(state, true);
    return 1;
  }
  follow_once(state, true);
  COUNT(func, hits);
  state->cookie = cookie;
  call->sp = sp;
  call->func = func;
  call->role = role;
  call->have_seq = call->have_hash = 0;
  call->comm_flags = 0;
  call->seq = call->hash = call->handle = 0;
  call->comm_seq = RM_NO_POSITION;
  call->rank = call->nranks = -1;
  call->cgroup_id = cgroup_of(task);
  if (flags & RM_COOKIE_GLOO) gloo_options(ctx, call->args, cookie);
  else read_args(ctx, call->args, nargs, first_on_stack);
  __u64 handle = 0;
  switch (role) {
    case RM_ROLE_MPI_GROUP:
      if ((__u8)(cookie >> 48) == RM_GROUP_FREE) mpi_group_ends(state, pid_of(task));
      /* fall through */
    case RM_ROLE_CALL:
    case RM_ROLE_MPI_MAKES:
    case RM_ROLE_MPI_BEGINS:
    case RM_ROLE_MPI_PERSISTS:
      handle = communicator_of(call, pid_of(task), cookie);
      break;
    case RM_ROLE_MPI_FREE:
      handle = handle_at(call->args[0], flags);
      break;
    case RM_ROLE_INIT_RANK:
      /* The id is by value: on the stack (x86-64), where rank is the third register; behind x2, rank in w3 (aarch64). */
#if defined(__TARGET_ARCH_x86)
      call->have_hash = hash_id(sp + STACK_ARGS_AT, flags, &call->hash);
      call->rank = (__s32)call->args[2];
#else
      call->have_hash = hash_id(call->args[2], flags, &call->hash);
      call->rank = (__s32)call->args[3];
#endif
      break;
    case RM_ROLE_INIT_SCALABLE: /* the first id names the communicator */
      call->have_hash = hash_id(call->args[4], flags, &call->hash);
      call->rank = (__s32)call->args[2];
      break;
  }
  if (handle) take_numbers(state, pid_of(task), handle, flags, (__u8)(cookie >> 40));
  else if (role == RM_ROLE_CALL && state->begins_collectives && comm_arg == RM_NO_ARG && flags & RM_COOKIE_MPI &&
           (__u8)(cookie >> 48) != RM_NO_ARG)
    mpi_awaits(pid_of(task), (__u8)(cookie >> 48));
  if (flags & RM_COOKIE_RCCL) call->comm_flags |= RM_FROM_RCCL;
  barrier();
  call->enter_ns = now; /* user space reads along: it is a call from here on */
  return 0;
}

/* False when there is no handle. */
static __always_inline bool learn_comm(__u32 pid, __u32 func, __u64 where, const struct rm_comm *info) {
  struct rm_comm_key key = {.pid = pid};
  if (bpf_probe_read_user(&key.handle, sizeof key.handle, (const void *)where) || !key.handle) return false;
  bpf_map_delete_elem(&learnt, &key);
  if (make_comm(pid, key.handle, func)) remember_comm(&key, info);
  return true;
}

/* Loops are in functions of their own: inlined, the compiler may enter one in its middle, which kernels before 6.3
 * refuse ("back-edge"). */

/* The communicators of ncclCommInitAll, at most 32; the top bit of n says that the hash is known. (Not static: see
 * `this_thread`.) */
__noinline int learn_comms(__u32 pid, __u32 func, __u64 where, __u64 hash, __u32 n) {
  struct rm_comm info = {.hash = hash, .flags = RM_HAVE_RANK | (n >> 31 ? RM_HAVE_HASH : 0)};
  info.nranks = n & 0x7fffffff;
  for (int i = 0; i < 32; i++) {
    if (i >= info.nranks) break;
    info.rank = i;
    learn_comm(pid, func, where + i * 8, &info);
  }
  return 0;
}

/* How a call ended. `site`: where it returned to, which is where it was made; 0: it did not return. At the return it costs
 * nothing: the kernel has put the address back by then. */
struct call_end {
  __u64 now, site;
  __s32 ret;
  __u8 said;
};

/* Fills in the record of a call, but for the arguments that only long ones have. */
static __always_inline void write_call(struct rm_call *out, struct thread_state *state, struct task_struct *task,
                                       const struct call_end *end) {
  __u8 said = end->said;
  struct rm_inflight *call = &state->call;
  __u64 cookie = state->cookie, flags = cookie >> 32;
  __u32 pid = pid_of(task);
  said |= (call->have_seq ? RM_HAVE_SEQ : 0) | (flags & RM_COOKIE_RCCL ? RM_FROM_RCCL : 0);
  if (state->group_depth) said |= RM_IN_GROUP;
  if (!(flags & RM_COOKIE_NO_DEVICE)) said |= device_capture_flags(state, pid, (__u8)(cookie >> 48));
  out->kind = RM_CALL;
  out->func = call->func;
  out->site_high = end->site >> 32;
  out->site_low = end->site;
  out->enter_ns = call->enter_ns;
  out->exit_ns = end->now;
  out->pid = pid;
  out->tid = tid_of(task);
  out->cgroup_id = call->cgroup_id;
  out->comm_hash = call->hash;
  out->seq = call->seq;
  out->comm_seq = call->comm_seq;
  out->rank = call->rank;
  out->nranks = call->nranks;
  out->ret = end->ret;
  __builtin_memcpy(out->args, call->args, RM_SHORT_ARGS * sizeof out->args[0]);
  said |= call->comm_flags;
  if (!KNOWN_ALL(call->comm_flags) && !(flags & RM_COOKIE_NO_DEVICE) && call->handle) {
    struct rm_comm_key key = {.pid = pid, .handle = call->handle};
    __u64 generation = comm_generation;
    struct rm_comm_entry *entry = bpf_map_lookup_elem(&comms, &key);
    struct rm_comm *comm = bpf_map_lookup_elem(&learnt, &key);
    if (!comm && entry) comm = &entry->info;
    if (comm) {
      out->comm_hash = comm->hash;
      out->rank = comm->rank;
      out->nranks = comm->nranks;
      said |= comm->flags;
      if (KNOWN_ALL(comm->flags)) remember_for_thread(known_comm(state, key.handle), key.handle, generation, comm);
    }
  }
  out->flags = said;
}

/* `task`: the current one, whose state it is. */
static __always_inline void emit_call(struct thread_state *state, struct task_struct *task, const struct call_end *end) {
  struct rm_inflight *call = &state->call;
  __u64 cookie = state->cookie;
  if (tuning.shed_p2p && (cookie >> 32 & RM_COOKIE_P2P)) {
    COUNT(call->func, shed);
    return;
  }
  struct rm_call *out;
  if ((__u8)(cookie >> 16) <= RM_SHORT_ARGS) {
    out = bpf_ringbuf_reserve(&events, RM_SHORT_CALL, 0);
    if (!out) goto full;
    write_call(out, state, task, end);
    bpf_ringbuf_submit(out, wake_flags_now_and_then(&state->records));
    return;
  }
  out = bpf_ringbuf_reserve(&events, sizeof *out, 0);
  if (!out) goto full;
  write_call(out, state, task, end);
  __builtin_memcpy(out->args + RM_SHORT_ARGS, call->args + RM_SHORT_ARGS,
                   (RM_MAX_ARGS - RM_SHORT_ARGS) * sizeof out->args[0]);
  bpf_ringbuf_submit(out, wake_flags_now_and_then(&state->records));
  return;
full:
  COUNT(call->func, lost_ring);
}

/* Whether calls of a role become records of their own. */
#define MAKES_RECORD(role)                                                                                                  \
  ((role) == RM_ROLE_CALL || (role) == RM_ROLE_GROUP_END || (role) == RM_ROLE_MPI_INIT || (role) == RM_ROLE_MPI_MAKES ||    \
   (role) == RM_ROLE_MPI_FREE || (role) == RM_ROLE_MPI_BEGINS || (role) == RM_ROLE_MPI_PERSISTS)

/* Whether they may make entries of maps at their return. (Nonblocking collectives: only where the communicator is known.) */
#define MAKES_ENTRIES(role)                                                                                                 \
  ((role) == RM_ROLE_INIT_RANK || (role) == RM_ROLE_INIT_SCALABLE || (role) == RM_ROLE_INIT_ALL ||                          \
   (role) == RM_ROLE_SPLIT || (role) == RM_ROLE_CHILD || (role) == RM_ROLE_MPI_MAKES || (role) == RM_ROLE_MPI_PERSISTS ||   \
   (role) == RM_ROLE_MPI_GROUP)

/* The thread ends: the call that it is in will not return, nor will its group start what was called in it. */
static __always_inline void call_never_returns(struct thread_state *state, struct task_struct *task) {
  struct rm_inflight *call = &state->call;
  if (!call->enter_ns || end_missed(state)) return;
  if (call->role == RM_ROLE_GROUP_END) state->group_depth = 0;
  if (state->cookie >> 32 & RM_COOKIE_GLOO) {
    COUNT(call->func, unmatched); /* left by an exception, perhaps long ago */
  } else if (MAKES_RECORD(call->role)) {
    struct call_end end = {.now = bpf_ktime_get_ns(), .said = RM_NOT_RETURNED};
    emit_call(state, task, &end);
  }
  call->enter_ns = 0;
}

/* Of functions that an exception may leave, at one of their ends, where the stack pointer is what it was at the entry. */
static __always_inline int call_left(struct pt_regs *ctx) {
  struct task_struct *task = this_task();
  struct thread_state *state = current_thread(task);
  if (!state || !state->call.enter_ns || PT_REGS_SP(ctx) != state->call.sp || state->call.role != RM_ROLE_CALL) return 0;
  if (!(state->cookie >> 32 & RM_COOKIE_GLOO)) return 0;
  struct call_end end = {.now = bpf_ktime_get_ns(), .site = caller_of(ctx), .ret = 0};
  emit_call(state, task, &end);
  state->call.enter_ns = 0;
  return 0;
}

static __always_inline int call_return(struct pt_regs *ctx) {
  struct task_struct *task = this_task();
  struct thread_state *state = current_thread(task);
  if (!state || !state->call.enter_ns) return 0;
  struct rm_inflight *call = &state->call;
  /* One that it has jumped on to, instead of calling it, returns at the same place, at once before it, with the same. */
  if (PT_REGS_SP(ctx) != call->sp + RETURN_SP_DELTA) {
    if (call->role != RM_ROLE_INIT_ALL) return 0;
    __u64 inner = cookie_of(ctx);
    if ((__u8)(inner >> 8) == RM_ROLE_UNIQUE_ID) call->have_hash = hash_id(call->args[3], inner >> 32, &call->hash);
    return 0;
  }
  __u64 cookie = state->cookie, flags = cookie >> 32;
  __u64 now = bpf_ktime_get_ns();
  __s32 ret = (__s32)PT_REGS_RC(ctx);
  struct call_end end = {.now = now, .site = PT_REGS_IP(ctx), .ret = ret};
  __u32 pid = pid_of(task);
  struct rm_comm info = {.hash = call->hash, .rank = call->rank, .nranks = (__s32)call->args[1]};
  info.flags = RM_HAVE_RANK | (call->have_hash ? RM_HAVE_HASH : 0);
  bool emits = MAKES_RECORD(call->role);
  if (MAKES_ENTRIES(call->role)) have_room(pid);
  switch (call->role) {
    case RM_ROLE_CALL:
      if (!(flags & RM_COOKIE_MPI)) device_enqueues(state);
      /* What it waited for is said while it waits: it is the communicator's call, and this one is not. */
      else if (comm_arg_of(cookie) == RM_NO_ARG) call->comm_flags = call->hash = 0, call->comm_seq = RM_NO_POSITION;
      break;
    case RM_ROLE_INIT_RANK:
    case RM_ROLE_INIT_SCALABLE:
      /* 7: ncclInProgress */
      if (!learn_comm(pid, call->func, call->args[0], &info) && (ret == 0 || ret == 7))
        await_comm(pid, call->func, call->args[0], &info);
      break;
    case RM_ROLE_INIT_ALL:
      learn_comms(pid, call->func, call->args[0], call->hash, call->args[1] | (info.flags & RM_HAVE_HASH ? 1u << 31 : 0));
      break;
    case RM_ROLE_SPLIT: {
      struct rm_comm_key key = {.pid = pid, .handle = call->args[0]};
      struct rm_comm_entry *entry = bpf_map_lookup_elem(&comms, &key);
      if (!entry) break;
      struct rm_comm *parent = &entry->info;
      __u32 earlier;
      bool counted = TAKE_NUMBER(&parent->children, &earlier);
      __u32 child = earlier + 1;
      /* Rank and size follow from every rank's color and key: not to be had here. */
      info.rank = info.nranks = -1;
      info.flags = parent->flags & RM_HAVE_HASH;
      if (!counted) info.flags = 0; /* no hash rather than a wrong one */
      else if (flags & RM_COOKIE_HASH_MIX) info.hash = hash_split(parent->hash, child, (__u32)call->args[1]);
      else if (flags & RM_COOKIE_SPLIT_TEXT) info.hash = hash_split_text(parent->hash, (__u32)call->args[1]);
      else info.flags = 0;
      learn_comm(pid, call->func, call->args[3], &info);
      break;
    }
    case RM_ROLE_CHILD: {
      __u32 where = comm_arg_of(cookie);
      if (where < RM_MAX_ARGS) learn_comm(pid, call->func, call->args[where], &no_comm);
      break;
    }
    case RM_ROLE_DESTROY: {
      struct rm_comm_key key = {.pid = pid, .handle = call->args[0]};
      comm_ends(pid, key.handle);
      bpf_map_delete_elem(&learnt, &key);
      comms_change(); /* what is known may be of `learnt` alone */
      break;
    }
    case RM_ROLE_GROUP_START:
      if (ret == 0) state->group_depth++;
      break;
    case RM_ROLE_GROUP_END:
      emits = state->group_depth && --state->group_depth == 0;
      break;
    case RM_ROLE_MPI_INIT:
      if (ret == 0) {
        mark_process(pid, true);
        /* whoever has the call's record shall know what this brings */
        if (bpf_map_lookup_elem(&tracked, &pid)) emit_process(RM_MPI_BEGAN, pid);
      }
      break;
    case RM_ROLE_MPI_MAKES:
      if (ret == 0) mpi_made(pid, now, end.site);
      break;
    case RM_ROLE_MPI_FREE:
      comm_ends(pid, call->handle);
      break;
    case RM_ROLE_MPI_BEGINS:
      if (ret == 0) mpi_begins(pid);
      break;
    case RM_ROLE_MPI_PERSISTS:
      if (ret == 0) mpi_persists(pid, now, end.site);
      break;
    case RM_ROLE_MPI_GROUP:
      if (ret == 0 && (__u8)(cookie >> 48) != RM_GROUP_FREE) mpi_group(pid);
      break;
  }
  if (emits) emit_call(state, task, &end);
  call->enter_ns = 0;
  return 0;
}

static __always_inline int call_enters(struct pt_regs *ctx) { return MEASURED(RM_PROGRAM_CALL_ENTER, call_enter(ctx)); }
static __always_inline int call_returns(struct pt_regs *ctx) { return MEASURED(RM_PROGRAM_CALL_RETURN, call_return(ctx)); }

PROBE_PROGRAMS(call, call_enters(ctx), call_returns(ctx))

POINT_PROGRAMS(call_entry, (call_enters(ctx), 0))
POINT_PROGRAMS(call_exit, MEASURED(RM_PROGRAM_CALL_RETURN, call_left(ctx)))
POINT_PROGRAMS(call_change, gloo_change(ctx))
