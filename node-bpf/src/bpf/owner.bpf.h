/* Whose processes are recorded. A recorder that runs as an ordinary user (with capabilities that a site gave the program)
 * records that user's own, and nothing of anybody else's: every program asks here before it notes anything. The
 * configuration is constant once loaded, so that where everybody is recorded the verifier leaves nothing of this in. */

#define PF_KTHREAD 0x00200000
#define SUID_DUMP_USER 1
#define DUMPABLE_BITS 3

/* Is it altogether that user's? As the kernel asks before one process may trace another (ptrace(2), "access mode
 * checking"): real, effective and saved user are the user, it has no capabilities but within a user namespace of the
 * user's own, and its memory may be dumped. So what a set-user-ID program does stays unseen, whoever started it. */
static __noinline int is_own_task(__u64 address) {
  struct task_struct *task = (void *)address;
  const struct cred *cred = BPF_CORE_READ(task, real_cred);
  __u32 user = config.only_uid;
  if (!cred || BPF_CORE_READ(cred, uid.val) != user || BPF_CORE_READ(cred, euid.val) != user ||
      BPF_CORE_READ(cred, suid.val) != user)
    return false;
  if (BPF_CORE_READ(cred, user_ns, level) == 0) {
    __u64 capabilities = ~0ull;
    bpf_probe_read_kernel(&capabilities, sizeof capabilities, __builtin_preserve_access_index(&cred->cap_permitted));
    if (capabilities) return false;
  }
  struct mm_struct *memory = BPF_CORE_READ(task, mm);
  if (!memory) return true; /* it is just ending */
  struct mm_struct___bitmap *newer = (void *)memory;
  __u64 flags = SUID_DUMP_USER;
  if (bpf_core_field_exists(memory->flags)) flags = BPF_CORE_READ(memory, flags);
  else if (bpf_core_field_exists(newer->flags))
    bpf_probe_read_kernel(&flags, sizeof flags, __builtin_preserve_access_index(&newer->flags));
  return (flags & DUMPABLE_BITS) == SUID_DUMP_USER;
}

static __always_inline bool only_own(void) { return config.only_uid != RM_EVERYBODY; }

static __always_inline bool may_see(struct task_struct *task) { return !only_own() || is_own_task((__u64)task); }

/* The same of the current task. */
static __always_inline bool may_see_this(void) {
  if (!only_own()) return true;
  if ((__u32)bpf_get_current_uid_gid() != config.only_uid) return false;
  return is_own_task((__u64)this_task());
}

/* A task's name and number: of kernel threads, which are nobody's, too. */
static __always_inline bool may_name(struct task_struct *task) {
  return !only_own() || BPF_CORE_READ(task, flags) & PF_KTHREAD || is_own_task((__u64)task);
}

static __always_inline bool may_see_socket(struct sock *sk, bool whole) {
  return !only_own() || (whole && BPF_CORE_READ(sk, sk_uid.val) == config.only_uid);
}
