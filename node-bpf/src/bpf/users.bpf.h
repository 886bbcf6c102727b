/* Whose entries our maps hold. The maps are everybody's who has processes here, and entries are made by what processes do:
 * so that one user's do not take the room of all, entries that a user can make at will are counted, and she holds at most
 * as many of a kind as all users together leave free. One alone has half, a second one a quarter, and the next finds room.
 *
 * Room is taken where an entry is made, never where one is used. Two count: the programs here, and user space
 * (src/rooms.rs), which cannot add to a map's value atomically, in a map of its own. What a user holds is the sum. */

/* What the programs have counted by user, and what user space has. Of RM_EVERYBODY: of all together. */
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, RM_MOST_USERS);
  __type(key, __u32);
  __type(value, struct rm_user);
} users SEC(".maps"), users_by_agent SEC(".maps");

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
    case RM_ROOM_CONNECTION: return RM_MOST_CONNECTIONS;
    case RM_ROOM_STREAM: return RM_MOST_STREAMS;
    case RM_ROOM_CALLER: return RM_MOST_CALLERS;
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
 * follow: for the verifier to look at once.) */
__noinline int user_takes(__u32 user, __u32 kind) {
  if (user_holds(user, kind) >= most_of_kind(kind) - user_holds(RM_EVERYBODY, kind)) return 0;
  user_adds(user, kind, 1);
  return 1;
}

__noinline int user_gives(__u32 user, __u32 kind) {
  user_adds(user, kind, -1);
  return 0;
}
