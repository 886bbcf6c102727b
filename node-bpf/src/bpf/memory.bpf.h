/* What memory costs a followed process: faults that had to read from a disk, reclaim in its own time, and being killed
 * for want of memory. */

/* When a thread's page fault began, of threads that have had a major one: the others' faults, nearly all there are, find
 * nothing here and go on. So the first major fault of a thread is one of unknown length. */
KEPT_OF_THREADS(fault_starts, __u64, 8192);

static const __u64 no_fault;

/* Most faults are over in a microsecond: this is not measured like other programs, since measuring takes as long as it. */
static __always_inline int fault_begins(void) {
  __u64 *start = kept_of_current(&fault_starts, this_task());
  if (start) *start = bpf_ktime_get_ns();
  return 0;
}

#if defined(__TARGET_ARCH_x86)
SEC("tp_btf/page_fault_user")
int BPF_PROG(on_user_fault) { return fault_begins(); }
SEC("tp_btf/page_fault_kernel")
int BPF_PROG(on_kernel_fault) { return fault_begins(); }
#else
/* The software event PERF_COUNT_SW_PAGE_FAULTS, each one; it comes when a fault begins. */
SEC("perf_event")
int on_fault(void *ctx) { return fault_begins(); }
#endif

/* The software event PERF_COUNT_SW_PAGE_FAULTS_MAJ, each one; it comes when the fault is over. */
static __always_inline int major_fault(void) {
  __u32 pid = bpf_get_current_pid_tgid() >> 32;
  if (!pid || !kin(pid) || !may_see_this()) return 0;
  HOST_COUNT(RM_HOST_FAULT, hits);
  __u64 now = bpf_ktime_get_ns(), start_ns = 0;
  __u64 *start = made_for_this_thread(&fault_starts, &no_fault);
  if (start) {
    start_ns = *start;
    *start = 0;
  }
  memory_event(start_ns ? RM_MAJOR_FAULT : RM_UNTIMED_FAULT, RM_HOST_FAULT, start_ns, now, 0);
  return 0;
}

SEC("perf_event")
int on_major_fault(void *ctx) { return MEASURED(RM_PROGRAM_MEMORY, major_fault()); }

static __always_inline int reclaim_begins(void) {
  __u64 thread = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns();
  __u32 pid = thread >> 32, tid = thread;
  if (!pid || !kin(pid) || !may_see_this()) return 0;
  HOST_COUNT(RM_HOST_RECLAIM, hits);
  if (bpf_map_update_elem(&reclaim_starts, &tid, &now, BPF_ANY)) HOST_COUNT(RM_HOST_RECLAIM, lost_map);
  return 0;
}

static __always_inline int reclaim_ends(__u32 event, __u64 pages) {
  __u32 tid = bpf_get_current_pid_tgid();
  __u64 *start = bpf_map_lookup_elem(&reclaim_starts, &tid);
  if (!start) return 0;
  memory_event(event, RM_HOST_RECLAIM, *start, bpf_ktime_get_ns(), pages);
  bpf_map_delete_elem(&reclaim_starts, &tid);
  return 0;
}

SEC("tp_btf/mm_vmscan_direct_reclaim_begin")
int BPF_PROG(on_reclaim_begin) { return MEASURED(RM_PROGRAM_MEMORY, reclaim_begins()); }
SEC("tp_btf/mm_vmscan_direct_reclaim_end")
int BPF_PROG(on_reclaim_end, unsigned long pages) {
  return MEASURED(RM_PROGRAM_MEMORY, reclaim_ends(RM_DIRECT_RECLAIM, pages));
}
SEC("tp_btf/mm_vmscan_memcg_reclaim_begin")
int BPF_PROG(on_cgroup_reclaim_begin) { return MEASURED(RM_PROGRAM_MEMORY, reclaim_begins()); }
SEC("tp_btf/mm_vmscan_memcg_reclaim_end")
int BPF_PROG(on_cgroup_reclaim_end, unsigned long pages) {
  return MEASURED(RM_PROGRAM_MEMORY, reclaim_ends(RM_CGROUP_RECLAIM, pages));
}

/* The argument is the task (Linux 6.8 and later) or its number: read as memory, so that the verifier takes it for a mere
 * number in both. The current task is whoever wanted memory. */
SEC("tp_btf/mark_victim")
int on_oom(__u64 *ctx) {
  __u64 argument = 0;
  bpf_probe_read_kernel(&argument, sizeof argument, ctx);
  __u32 pid = argument;
  struct task_struct *task = (void *)argument;
  if (argument >> 32) pid = BPF_CORE_READ(task, tgid);
  __u32 *known = kin(pid);
  /* a number alone leads to no task; only processes that may be seen are followed */
  if (!known || (argument >> 32 && !may_see(task))) return 0;
  SET_MARK(known, RM_OOM_BYTE);
  HOST_COUNT(RM_HOST_OOM, hits);
  __u64 cgroup_id = 0;
  if (argument >> 32) cgroup_id = BPF_CORE_READ(task, cgroups, dfl_cgrp, kn, id);
  emit_memory(RM_OOM_KILL, RM_HOST_OOM, bpf_ktime_get_ns(), 0, pid, 0, cgroup_id, 0, 1);
  return 0;
}
