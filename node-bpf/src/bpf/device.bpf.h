/* What calls of CUDA and HIP say about collectives: that their stream is being captured into a graph, so that they do not
 * run now, and that a thread waits for the device, so that what it enqueued is not known to be over. Included before
 * calls.bpf.h and tally.bpf.h, which use it. */

/* How many captures of a process are under way. An entry exists from the process's first counted CUDA or HIP call on, where
 * it has a room (rooms.bpf.h). */
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, RM_MOST_PROCESSES);
  __type(key, __u32);
  __type(value, __u32);
} capturing SEC(".maps");

/* What goes into a graph: the stream on which a capture was begun, and each that has waited since for an event recorded on
 * one of its streams; and those events. A capture is named by that first stream and by when it began. It is over when its
 * first stream's entry is gone or names a later one, so that the others need not be looked for; they give way to new ones. */
struct device_handle {
  __u32 pid, pad;
  __u64 handle;
};
struct device_capture {
  __u64 first;
  __u64 begun_ns;
};
struct {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __uint(max_entries, 4096);
  __type(key, struct device_handle);
  __type(value, struct device_capture);
} captured_streams SEC(".maps"), captured_events SEC(".maps");

/* Threads in a synchronisation that follows a collective, and since when. User space reads it. */
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 16384);
  __type(key, __u64); /* process id << 32 | thread id */
  __type(value, __u64);
} waiting SEC(".maps");

/* Processes whose helper threads enqueue collectives (PyTorch's backward pass does), and in which round of the main thread's
 * synchronisations they last did. Rounds are counted for the whole host: a thread notes its process anew when any main thread
 * has synchronised since, which costs its calls no look-up. Processes that have a room. */
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, RM_MOST_PROCESSES);
  __type(key, __u32);
  __type(value, __u32);
} enqueued SEC(".maps");

static volatile __u32 round_now = 1;

static __noinline int note_enqueue(struct thread_state *thread) {
  __u64 ids = bpf_get_current_pid_tgid();
  __u32 pid = ids >> 32, round = round_now;
  if (!thread) return 0;
  thread->noted = round;
  if (pid != (__u32)ids && bpf_map_lookup_elem(&rooms, &pid)) bpf_map_update_elem(&enqueued, &pid, &round, BPF_ANY);
  return 0;
}

/* A collective that only enqueues has returned. */
static __always_inline void device_enqueues(struct thread_state *thread) {
  thread->after_collective = 1;
  if (thread->noted != round_now) note_enqueue(thread);
}

/* Whether a synchronisation that begins may have to wait for collectives: for the thread's own, or, on the main thread, for
 * those that other threads of the process have enqueued since its last one. Helper threads that wait for their copies know
 * nothing of collectives. */
static __always_inline bool device_follows_collective(struct thread_state *thread) {
  __u64 ids = bpf_get_current_pid_tgid();
  __u32 pid = ids >> 32;
  if (pid != (__u32)ids) return thread->after_collective;
  __u32 *last = bpf_map_lookup_elem(&enqueued, &pid);
  if (!last || *last <= thread->round) return thread->after_collective;
  TAKE_NUMBER(&round_now, &thread->round);
  return true;
}

/* Nobody has captured anything yet: then nobody is capturing. */
static volatile __u32 captured_ever;

/* Rises with every process that may be new in `capturing`: till then one that is not there need not be looked for. */
static volatile __u32 device_generation = 1;

/* The first counted call of a thread. */
static __always_inline void device_first_call(void) {
  __u32 pid = bpf_get_current_pid_tgid() >> 32, none = 0;
  if (!bpf_map_lookup_elem(&rooms, &pid)) return;
  bpf_map_update_elem(&capturing, &pid, &none, BPF_NOEXIST);
  __sync_fetch_and_add(&device_generation, 1);
}

static __always_inline void device_wait_begins(__u64 now) {
  __u64 thread = bpf_get_current_pid_tgid();
  bpf_map_update_elem(&waiting, &thread, &now, BPF_ANY);
}

static __always_inline void device_wait_ends(__u64 thread) { bpf_map_delete_elem(&waiting, &thread); }

static __always_inline struct device_capture *capture_of_stream(__u32 pid, __u64 stream) {
  struct device_handle key = {.pid = pid, .handle = stream};
  struct device_capture *capture = bpf_map_lookup_elem(&captured_streams, &key);
  if (!capture || capture->first == stream) return capture;
  key.handle = capture->first;
  struct device_capture *first = bpf_map_lookup_elem(&captured_streams, &key);
  return first && first->begun_ns == capture->begun_ns ? capture : 0;
}

/* cudaStreamBeginCapture and its kin have returned. The end of a capture ends it also where it fails. The driver's function
 * inside the runtime's comes first, and does all. */
static __noinline int device_captures(bool begins, __u64 stream, __u32 error) {
  struct device_handle key = {.pid = bpf_get_current_pid_tgid() >> 32, .handle = stream};
  __u32 pid = key.pid, *captures = bpf_map_lookup_elem(&capturing, &pid);
  if (!captures) return 0;
  struct device_capture *known = bpf_map_lookup_elem(&captured_streams, &key);
  bool under_way = known && known->first == stream && *captures;
  if (begins && !error && !under_way) {
    struct device_capture capture = {.first = stream, .begun_ns = bpf_ktime_get_ns()};
    if (bpf_map_update_elem(&captured_streams, &key, &capture, BPF_ANY)) return 0;
    captured_ever = 1;
    __sync_fetch_and_add(captures, 1);
  }
  if (!begins && under_way) {
    bpf_map_delete_elem(&captured_streams, &key);
    __sync_fetch_and_add(captures, -1);
  }
  return 0;
}

/* cudaEventRecord, cudaStreamWaitEvent and their kin have returned. */
static __noinline int device_event(bool waits, __u64 stream, __u64 event, __u32 error) {
  if (!captured_ever || error) return 0;
  __u32 pid = bpf_get_current_pid_tgid() >> 32;
  __u32 *captures = bpf_map_lookup_elem(&capturing, &pid);
  if (!captures || !*captures) return 0;
  struct device_handle key = {.pid = pid, .handle = event};
  if (!waits) {
    struct device_capture *capture = capture_of_stream(pid, stream);
    if (capture) {
      struct device_capture copy = *capture;
      bpf_map_update_elem(&captured_events, &key, &copy, BPF_ANY);
    } else {
      bpf_map_delete_elem(&captured_events, &key); /* it marks another place now */
    }
    return 0;
  }
  struct device_capture *capture = bpf_map_lookup_elem(&captured_events, &key);
  if (!capture || capture->first == stream) return 0;
  struct device_capture copy = *capture;
  key.handle = copy.first;
  struct device_capture *first = bpf_map_lookup_elem(&captured_streams, &key);
  if (!first || first->begun_ns != copy.begun_ns) return 0; /* an old event: that capture is over */
  key.handle = stream;
  bpf_map_update_elem(&captured_streams, &key, &copy, BPF_ANY);
  return 0;
}

/* Of a call whose stream is argument `stream_arg`, in a process that is capturing. One without a stream counts as captured. */
static __noinline int goes_into_graph(struct thread_state *thread, __u32 pid, __u32 stream_arg) {
  if (!thread || stream_arg >= RM_MAX_ARGS) return 1;
  return capture_of_stream(pid, thread->call.args[stream_arg]) != 0;
}

/* Flags of a call's record. */
static __always_inline __u8 device_capture_flags(struct thread_state *thread, __u32 pid, __u8 stream_arg) {
  if (thread->device_known && !captured_ever) return RM_CAPTURE_KNOWN;
  __u32 generation = device_generation;
  if (thread->no_device_as_of == generation) return 0;
  __u32 *captures = bpf_map_lookup_elem(&capturing, &pid);
  if (!captures) {
    thread->no_device_as_of = generation;
    return 0;
  }
  thread->device_known = 1;
  return RM_CAPTURE_KNOWN | (*captures && goes_into_graph(thread, pid, stream_arg) ? RM_CAPTURED : 0);
}
