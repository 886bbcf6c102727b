/* What is known of communicators, by process and handle, and the numbers of their calls: the maps, and what a thread
 * remembers of them. nccl.bpf.h and mpi.bpf.h fill them in, calls.bpf.h counts. */

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, RM_MOST_COMMS);
  __type(key, struct rm_comm_key);
  __type(value, struct rm_comm_entry);
} comms SEC(".maps");

/* What user space has read of communicators that `comms` does not know all of (src/late.rs). */
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 16384);
  __type(key, struct rm_comm_key);
  __type(value, struct rm_comm);
} learnt SEC(".maps");

/* Communicators of a process whose handle was not there yet when their init returned: inside a group it comes with the
 * group's end, of a nonblocking one some time later. Where it will be written, and what is known of it. */
#define PENDING_COMMS 8
struct pending_comms {
  __u32 next, pad;
  struct {
    __u64 where;
    struct rm_comm info;
  } at[PENDING_COMMS];
};
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, RM_MOST_PENDING);
  __type(key, __u32);
  __type(value, struct pending_comms);
} pending SEC(".maps");

static const struct pending_comms none_pending;

/* Rises with every change of what handles mean: what threads remember of them is void then. */
static volatile __u64 comm_generation = 1;

static __always_inline void comms_change(void) { __sync_fetch_and_add(&comm_generation, 1); }

static const struct rm_comm no_comm;
static const struct rm_comm_entry new_entry = {.info = {.rank = -1, .nranks = -1}};

/* Makes the entry of a handle, with counters at 0, where there is room for it; `func` loses it where there is none. (Not
 * static: see `this_thread`.) */
__noinline int make_comm(__u32 pid, __u64 handle, __u32 func) {
  struct rm_comm_key key = {.pid = pid, .handle = handle};
  /* Is it there, the end of another one with this handle was not seen. */
  if (!bpf_map_update_elem(&comms, &key, &new_entry, BPF_EXIST)) return 1;
  if (!take_room(pid, RM_ROOM_COMM, func)) return 0;
  if (!bpf_map_update_elem(&comms, &key, &new_entry, BPF_NOEXIST)) return 1;
  give_room(pid, RM_ROOM_COMM);
  if (bpf_map_lookup_elem(&comms, &key)) return 1; /* another thread was quicker */
  COUNT(func, lost_map);
  return 0;
}

/* What is known of the communicator of this handle, which was made. */
static __always_inline void remember_comm(const struct rm_comm_key *key, const struct rm_comm *info) {
  struct rm_comm_entry *entry = bpf_map_lookup_elem(&comms, key);
  if (entry) {
    entry->info = *info;
    entry->counted_from_ns = bpf_ktime_get_ns();
  }
  comms_change();
}

/* The first call with a handle that is not known: is it one that was to come? (Not static: see `this_thread`.) */
__noinline int find_pending(__u32 pid, __u64 handle, __u32 func) {
  struct pending_comms *list = bpf_map_lookup_elem(&pending, &pid);
  if (!list) return 0;
  for (int i = 0; i < PENDING_COMMS; i++) {
    __u64 now = 0, where = list->at[i].where;
    if (!where) continue;
    if (bpf_probe_read_user(&now, sizeof now, (const void *)where) || now != handle) continue;
    struct rm_comm_key key = {.pid = pid, .handle = handle};
    struct rm_comm info = list->at[i].info;
    /* Of several threads that look at the same moment one makes the entry: a second one would begin to count anew. */
    if (!take_room(pid, RM_ROOM_COMM, func)) return 0;
    if (bpf_map_update_elem(&comms, &key, &new_entry, BPF_NOEXIST)) {
      give_room(pid, RM_ROOM_COMM);
      return 0;
    }
    list->at[i].where = 0;
    struct rm_comm_entry *entry = bpf_map_lookup_elem(&comms, &key);
    if (entry) {
      entry->info = info;
      /* When it came is not known: there may have been calls on it when some were missed. */
      entry->counted_from_ns = tuning.missed_until_ns ? 0 : bpf_ktime_get_ns();
    }
    comms_change();
    return entry != 0;
  }
  return 0;
}

static __always_inline void await_comm(__u32 pid, __u32 func, __u64 where, const struct rm_comm *info) {
  struct pending_comms *list = bpf_map_lookup_elem(&pending, &pid);
  if (!list) {
    if (!take_room(pid, RM_ROOM_PENDING, func)) return;
    if (bpf_map_update_elem(&pending, &pid, &none_pending, BPF_NOEXIST)) give_room(pid, RM_ROOM_PENDING);
    list = bpf_map_lookup_elem(&pending, &pid);
  }
  if (!list) return;
  __u32 slot;
  if (!TAKE_NUMBER(&list->next, &slot)) {
    COUNT(func, lost_map);
    return;
  }
  slot &= PENDING_COMMS - 1;
  list->at[slot].info = *info;
  list->at[slot].where = where;
}

#define KNOWN_ALL(flags) (!(~(flags) & (RM_HAVE_HASH | RM_HAVE_RANK)))
static __always_inline void remember_for_thread(struct known_comm *slot, __u64 handle, __u64 generation,
                                                const struct rm_comm *info) {
  slot->generation = 0;
  slot->handle = handle;
  slot->hash = info->hash;
  slot->rank = info->rank;
  slot->nranks = info->nranks;
  slot->generation = generation;
}

static __always_inline struct known_comm *known_comm(struct thread_state *state, __u64 handle) {
  return &state->comms[((__u32)(handle ^ handle >> 4) * 0x9e3779b1u) >> 30 & (KNOWN_COMMS - 1)];
}
