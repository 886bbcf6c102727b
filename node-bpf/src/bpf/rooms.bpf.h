/* Whose entries are whose (users.bpf.h), by process: what each that is followed holds, and to which user it is counted. A
 * process that has ended holds its room until user space has removed its entries: nothing is free that is not. */

/* More of one kind are not made for one process. */
#define MOST_OF_PROCESS 1024

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, RM_MOST_PROCESSES);
  __type(key, __u32); /* process: every one that is followed, or was and its entries are not removed yet */
  __type(value, struct rm_room);
} rooms SEC(".maps");

static const struct rm_user new_user = {};

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
