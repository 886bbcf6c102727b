/* Whose entries our maps hold. The maps are everybody's who has processes here, and entries are made by what processes do:
 * so that one user's do not take the room of all, entries that a user can make at will are counted, and she holds at most
 * as many of a kind as all users together leave free. One alone has half, a second one a quarter, and the next finds room.
 *
 * Room is taken where an entry is made, never where one is used. Two count: the programs here, and user space
 * (src/rooms.rs), which cannot add to a map's value atomically, in a map of its own. What a user holds is the sum. A process
 * that has ended holds its room until user space has removed its entries: nothing is free that is not. */

/* More of one kind are not made for one process. */
#define MOST_OF_PROCESS 1024

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, RM_MOST_PROCESSES);
  __type(key, __u32); /* process: every one that is followed, or was and its entries are not removed yet */
  __type(value, struct rm_room);
} rooms SEC(".maps");

/* What the programs have counted by user, and what user space has. Of RM_EVERYBODY: of all together. */
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, RM_MOST_USERS);
  __type(key, __u32);
  __type(value, struct rm_user);
} users SEC(".maps"), users_by_agent SEC(".maps");

static const struct rm_user new_user = {};

/* Entries of a map whose entries are of this kind; src/rooms.rs says the same. */
static __always_inline __s64 most_of_kind(__u32 kind) {
  switch (kind) {
    case RM_ROOM_PROCESS: return RM_MOST_PROCESSES;
    case RM_ROOM_CHILD: return RM_MOST_CHILDREN;
    case RM_ROOM_COMM: return RM_MOST_COMMS;
    case RM_ROOM_PERSISTENT: return RM_MOST_PERSISTENT;
    case RM_ROOM_GROUP: return RM_MOST_GROUPS;
    case RM_ROOM_PENDING: return RM_MOST_PENDING;
    case RM_ROOM_BEGUN: return RM_MOST_BEGUN;
    case RM_ROOM_TALLY_0:
    case RM_ROOM_TALLY_1: return RM_MOST_TALLIES;
  }
  return 0;
}

static __always_inline __s64 *held_of(void *map, __u32 user, __u32 kind) {
  struct rm_user *found = bpf_map_lookup_elem(map, &user);
  barrier_var(kind); /* keeps the mask, which the verifier goes by */
  return found ? &found->held[kind & (RM_ROOM_KINDS - 1)] : 0;
}

static __always_inline __s64 user_holds(__u32 user, __u32 kind) {
  __s64 *here = held_of(&users, user, kind), *there = held_of(&users_by_agent, user, kind);
  return (here ? *here : 0) + (there ? *there : 0);
}

static __always_inline void user_adds(__u32 user, __u32 kind, __s64 n) {
  __s64 *hers = held_of(&users, user, kind), *all = held_of(&users, RM_EVERYBODY, kind);
  if (hers) __sync_fetch_and_add(hers, n);
  if (all) __sync_fetch_and_add(all, n);
}

/* Room for one more of a user's. CPUs that ask at the same moment may each get the last one. (Not static, as those that
 * follow: see `this_thread`.) */
__noinline int user_takes(__u32 user, __u32 kind) {
  if (user_holds(user, kind) >= most_of_kind(kind) - user_holds(RM_EVERYBODY, kind)) return 0;
  user_adds(user, kind, 1);
  return 1;
}

__noinline int user_gives(__u32 user, __u32 kind) {
  user_adds(user, kind, -1);
  return 0;
}

/* Levels of user namespaces that are looked at; the kernel allows one more. */
#define MOST_NAMESPACES 32

/* To whom the current process is counted: to its real user, or to who made the user namespace that it is in. (She can be as
 * many users within as the host lets her.) Whoever is one user too many is counted with others of this kind. */
__noinline __u32 user_of_this(void) {
  __u32 user = bpf_get_current_uid_gid();
  struct user_namespace *in = BPF_CORE_READ(this_task(), real_cred, user_ns);
  for (int i = 0; i < MOST_NAMESPACES; i++) {
    if (BPF_CORE_READ(in, level) <= 1) break;
    in = BPF_CORE_READ(in, parent);
  }
  if (BPF_CORE_READ(in, level) == 1) {
    __u32 owner = BPF_CORE_READ(in, owner.val);
    if (owner) user = owner; /* root's are made for others, by a service */
  }
  if (bpf_map_lookup_elem(&users, &user)) return user;
  bpf_map_update_elem(&users, &user, &new_user, BPF_NOEXIST);
  return bpf_map_lookup_elem(&users, &user) ? user : RM_FURTHER_USERS;
}

/* The room of the current process, made where it has none; false where its user may have no more processes. */
__noinline int have_room(__u32 pid) {
  if (bpf_map_lookup_elem(&rooms, &pid)) return 1;
  struct rm_room room = {.user = user_of_this()};
  if (!user_takes(room.user, RM_ROOM_PROCESS)) return 0;
  if (bpf_map_update_elem(&rooms, &pid, &room, BPF_NOEXIST)) user_gives(room.user, RM_ROOM_PROCESS); /* another thread was quicker */
  return bpf_map_lookup_elem(&rooms, &pid) != 0;
}

static __always_inline __u32 *held_by_process(struct rm_room *room, __u32 kind) {
  barrier_var(kind);
  return &room->held[kind & (RM_ROOM_KINDS - 1)];
}

/* Room for one more entry of a process that has a room. `func`: whose call makes it, and loses it where there is none. */
__noinline int take_room(__u32 pid, __u32 kind, __u32 func) {
  struct rm_room *room = bpf_map_lookup_elem(&rooms, &pid);
  if (room) {
    __u32 *held = held_by_process(room, kind);
    if (*held < MOST_OF_PROCESS && user_takes(room->user, kind)) {
      __sync_fetch_and_add(held, 1);
      return 1;
    }
  }
  COUNT(func, lost_map);
  return 0;
}

/* An entry of a process has been removed here. */
__noinline int give_room(__u32 pid, __u32 kind) {
  struct rm_room *room = bpf_map_lookup_elem(&rooms, &pid);
  if (!room) return 0;
  __u32 *held = held_by_process(room, kind);
  if (!*held) return 0;
  __sync_fetch_and_add(held, -1);
  user_gives(room->user, kind);
  return 0;
}
