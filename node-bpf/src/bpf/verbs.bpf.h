/* Asynchronous events of InfiniBand and RoCE devices, as libibverbs tells a process of them: ibv_get_async_event(context,
 * event), which waits until there is one. What of the library's structures is read, and where that is from: src/verbs. */

struct verbs_call {
  __u64 context, event; /* its arguments; event 0: the thread is in no such call */
};
KEPT_OF_THREADS(verbs_calls, struct verbs_call, 4096);

static const struct verbs_call no_verbs_call;

/* 1 when its return is of no interest. */
static __always_inline int verbs_enter_run(struct pt_regs *ctx) {
  if (!wanted_task()) return 1;
  struct verbs_call *call = made_for_this_thread(&verbs_calls, &no_verbs_call);
  if (!call) {
    HOST_COUNT(RM_HOST_VERBS, lost_map);
    return 1;
  }
  call->context = PT_REGS_PARM1(ctx);
  call->event = PT_REGS_PARM2(ctx);
  return 0;
}

static __always_inline int verbs_return_run(struct pt_regs *ctx) {
  struct verbs_call *call = kept_of_current(&verbs_calls, this_task());
  if (!call || !call->event) return 0;
  __u64 context = call->context, event = call->event;
  call->event = 0;
  if ((int)PT_REGS_RC(ctx) != 0) return 0; /* there was none: the descriptor does not wait, or is closed */
  HOST_COUNT(RM_HOST_VERBS, hits);
  struct rm_verbs *out = bpf_ringbuf_reserve(&events, sizeof *out, 0);
  if (!out) {
    HOST_COUNT(RM_HOST_VERBS, lost_ring);
    return 0;
  }
  __u64 thread = bpf_get_current_pid_tgid(), device = 0;
  out->kind = RM_VERBS;
  out->ts_ns = bpf_ktime_get_ns();
  out->pid = thread >> 32;
  out->tid = thread;
  out->cgroup_id = bpf_get_current_cgroup_id();
  out->pad = 0;
  if (bpf_probe_read_user(&out->port, sizeof out->port, (const void *)event)) out->port = 0;
  if (bpf_probe_read_user(&out->type, sizeof out->type, (const void *)(event + RM_VERBS_EVENT_TYPE_AT))) out->type = ~0u;
  __builtin_memset(out->device, 0, sizeof out->device);
  if (!bpf_probe_read_user(&device, sizeof device, (const void *)context))
    bpf_probe_read_user(out->device, sizeof out->device - 1, (const void *)(device + RM_VERBS_DEVICE_NAME_AT));
  bpf_ringbuf_submit(out, wake_flags());
  return 0;
}

static __always_inline int verbs_enter(struct pt_regs *ctx) { return MEASURED(RM_PROGRAM_VERBS, verbs_enter_run(ctx)); }
static __always_inline int verbs_return(struct pt_regs *ctx) { return MEASURED(RM_PROGRAM_VERBS, verbs_return_run(ctx)); }

PROBE_PROGRAMS(verbs, verbs_enter(ctx), verbs_return(ctx))
