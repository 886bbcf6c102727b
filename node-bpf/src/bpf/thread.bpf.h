/* What is kept of a thread that makes probed calls, all in one piece, so that a probe looks for it once: the collective or
 * initialisation it is in (calls.bpf.h), its open counted calls (tally.bpf.h), and what need not be looked up again at each
 * call. Where kernels have task storage it is found by a pointer of the task: no hashing, and nobody else's cache lines. */

/* Calls on one thread that are open at once (one inside another). A power of two. */
#define TALLY_DEPTH 8

struct tally_open {
  __u64 enter_ns;
  __u64 sp;
  __u64 ip; /* tells a function that jumps on to another from one that is entered anew */
  union {
    __u64 bytes;
    __u64 event; /* of functions that have no bytes */
  };
  __u64 stream;
  __s32 kind;
  __u16 func;
  __u8 api, have;
};

/* Communicators of which a thread remembers all there is to know. A power of two. */
#define KNOWN_COMMS 4
struct known_comm {
  __u64 handle;
  __u64 generation; /* as of which it is true; 0: nothing is known */
  __u64 hash;
  __s32 rank, nranks;
};

/* When and how a thread left its CPU (sched.bpf.h). */
struct off_start {
  __u64 ts_ns;
  __u64 wake_ns;
  __u64 next_comm[2];
  __u32 cpu, next_pid;
  __u32 state;
  __u8 voluntary, iowait;
  __u8 followed; /* of thread_state, here because it is asked at every switch: FOLLOWED, the maps say so already */
  __u8 throttled;
};

struct thread_state {
  /* At the beginning, on the same cache line as the kernel's own word: nothing else is touched at a switch. */
  struct off_start off; /* ts_ns 0: it is on a CPU, or that is not of interest */
  struct rm_inflight call; /* enter_ns 0: in none */
  struct known_comm comms[KNOWN_COMMS];
  __u32 group_depth; /* how deep it is in ncclGroupStart */
  __u8 mpi_started;
  __u8 on_device;    /* it has called CUDA or HIP */
  __u8 device_known; /* its process has, and `capturing` knows it */
  __u8 after_collective;
  __u8 begins_collectives; /* it has called nonblocking ones of MPI */
  __u8 group_room; /* the process has room for one more count of communicators that are else alike (mpi.bpf.h) */
  __u8 pad[2];
  __u32 noted; /* device.bpf.h: that it enqueues was noted as of this round … */
  __u32 round; /* … and its last synchronisation began this one */
  __u32 depth;
  __u32 records;           /* of calls, so far */
  __u32 no_device_as_of;   /* device_generation when its process had made no counted call */
  __u64 cookie;            /* of `call` */
  struct tally_open open[TALLY_DEPTH];
};

_Static_assert(__builtin_offsetof(struct thread_state, off.followed) == 46, "src/wire.rs sets it");

/* Made with a thread's first traced call; of the main thread of a process that is followed before, by user space
 * (src/discovery.rs), so that its switches need no hash: ranks that wait in a call that began before make some 100,000 a
 * second. */
KEPT_OF_THREADS(threads, struct thread_state, 8192);

static const struct thread_state new_thread_state;

/* `task`: one that the kernel has passed to the program. */
static __always_inline struct thread_state *thread_of(struct task_struct *task) { return kept_of(&threads, task, task->pid); }

/* `task`: this_task(). */
static __always_inline struct thread_state *current_thread(struct task_struct *task) { return kept_of_current(&threads, task); }

/* For functions that the verifier looks at once, and not in each place that calls them: they are not static, and take numbers
 * alone. */
static __always_inline struct thread_state *this_thread(void) { return current_thread(this_task()); }

static __always_inline struct thread_state *new_thread(void) { return made_for_this_thread(&threads, &new_thread_state); }

/* off_start.followed: the process is followed, and of this thread also the sleeps. */
#define FOLLOWED 1
#define FOLLOWED_CALLER 2

/* Marks a process as followed, as one that has made a call and, when `mpi`, as one that has started MPI; returns what marks
 * it had. Other threads of it may do the same at this moment: each mark is a byte that is set in place. Of one for which there
 * is no room it says that it has called: nobody is to be told of it, and keep more of it. */
static __noinline __u32 mark_process(__u32 pid, bool mpi) {
  __u32 *known = bpf_map_lookup_elem(&tracked, &pid);
  if (!known) {
    if (!have_room(pid)) {
      COUNT(RM_SLOT_PROCESS, lost_map);
      return RM_CALLED;
    }
    __u32 marks = RM_TRACKED | RM_CALLED | (mpi ? RM_MPI_STARTED : 0);
    if (!bpf_map_update_elem(&tracked, &pid, &marks, BPF_NOEXIST)) return 0;
    known = bpf_map_lookup_elem(&tracked, &pid);
    if (!known) {
      COUNT(RM_SLOT_PROCESS, lost_map);
      return RM_CALLED;
    }
  }
  __u32 had = *known;
  SET_MARK(known, RM_CALLED_BYTE);
  if (mpi) SET_MARK(known, RM_MPI_STARTED_BYTE);
  return had;
}

/* The process of the current thread is followed from now on, and when `waits_too` the thread's sleeps are recorded. */
static __always_inline void follow_once(struct thread_state *state, bool waits_too) {
  __u8 wanted = waits_too ? FOLLOWED_CALLER : FOLLOWED;
  if (state->off.followed >= wanted) return;
  __u32 pid = bpf_get_current_pid_tgid() >> 32;
  if (!(mark_process(pid, false) & RM_CALLED)) emit_process(RM_FOUND, pid);
  state->off.followed = wanted;
}
