/* The communicators of MPI: what a handle means. Which rank of how many a process is in one is read where the library keeps
 * it; user space says where that is (src/mpi/structures.rs). Its identity is made by identity.h's rules when the call that
 * makes it returns, and forgotten with MPI_Comm_free. Windows of one-sided communication are known likewise: as copies of
 * the communicator that they are made of. */
#include "identity.h"

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, RM_MOST_PROCESSES); /* user space enters those that are followed */
  __type(key, __u32);
  __type(value, struct rm_mpi);
} mpi_processes SEC(".maps");

/* Groups by process and handle: what tells one from others. With `pad` 1, by an identity: how many communicators were made
 * without a position that have it so far. */
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, RM_MOST_GROUPS);
  __type(key, struct rm_comm_key);
  __type(value, __u64);
} mpi_groups SEC(".maps");

/* Grids: the dimensions of a cartesian communicator. There are no more of them than of communicators: each comes and goes with
 * one. */
struct mpi_grid {
  __u32 ndims;
  __u32 dims[RM_MOST_DIMS];
};
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, RM_MOST_COMMS);
  __type(key, struct rm_comm_key);
  __type(value, struct mpi_grid);
} mpi_grids SEC(".maps");

/* What collective began last, by process and request. */
struct mpi_begun {
  __u64 hash, comm_seq;
  __u64 at_ns;
  __s32 rank, nranks;
};
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, RM_MOST_BEGUN);
  __type(key, struct rm_comm_key);
  __type(value, struct mpi_begun);
} mpi_begun SEC(".maps");

/* Persistent collectives, by process and request. */
struct mpi_persistent {
  struct rm_comm info; /* what its starts are counted on */
  __u64 parent; /* handle of the communicator that it was made on */
  __u64 started, made_ns;
  __u64 args[RM_MAX_ARGS];
  __u8 func, said; /* of the records of its starts */
  __u8 pad[6];
};
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, RM_MOST_PERSISTENT);
  __type(key, struct rm_comm_key);
  __type(value, struct mpi_persistent);
} mpi_persistent SEC(".maps");

/* Communicators whose identity needs the library's structures and that were made before it is known where these lie, a moment
 * after the first MPI_Init with a library: what they are made of. They get it at a call on them. No
 * more than there are communicators, as of grids. */
struct mpi_unnamed {
  __u64 identity, parent;
  __u32 kind, word; /* of RM_MAKES_CART_PART: the kept dimensions, a bit each; of RM_MAKES_INTER: the tag */
};
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, RM_MOST_COMMS);
  __type(key, struct rm_comm_key);
  __type(value, struct mpi_unnamed);
} mpi_unnamed SEC(".maps");

/* Handles of MPICH and its kin. */
#define MPICH_WORLD 0x44000000u
#define MPICH_SELF 0x44000001u
#define MPICH_NO_COMM 0x04000000u
#define MPICH_SHARED 1 /* MPI_COMM_TYPE_SHARED; Open MPI's is 0 */
/* The values of windows begin with these bits. */
#define MPICH_NO_WINDOW 0x20000000u

#define MOST_RANKS (1 << 24)

/* An argument, or what one points to, as a handle. */
static __always_inline __u64 handle_of(__u64 word, __u64 flags) { return flags & RM_COOKIE_INT_HANDLES ? (__u32)word : word; }

static __always_inline __u64 handle_at(__u64 where, __u64 flags) {
  __u64 handle = 0;
  if (flags & RM_COOKIE_INT_HANDLES) {
    __u32 small = 0;
    bpf_probe_read_user(&small, sizeof small, (const void *)where);
    handle = small;
  } else {
    bpf_probe_read_user(&handle, sizeof handle, (const void *)where);
  }
  return handle;
}

static __always_inline __u64 user_word(__u64 where) {
  __u64 word = 0;
  bpf_probe_read_user(&word, sizeof word, (const void *)where);
  return word;
}

/* The structure behind a handle of MPICH's kind; 0: not to be had. Two bits of a handle say in which table it is, and its
 * structure begins with the handle. */
static __always_inline __u64 mpich_entry(__u64 table, __u64 index, const struct rm_mpi *mpi, __u32 handle) {
  __u32 there = 0;
  table += index * mpi->entry_bytes;
  return bpf_probe_read_user(&there, sizeof there, (const void *)table) || there != handle ? 0 : table;
}

static __always_inline __u64 mpich_in_block(const struct rm_mpi *mpi, __u32 before, __u32 handle) {
  __u64 index = handle & 0x3ffffff;
  return mpich_entry(user_word(user_word(mpi->indirect - before) + (index >> 12) * 8), index & 0xfff, mpi, handle);
}

static __always_inline __u64 mpich_structure(const struct rm_mpi *mpi, __u32 handle) {
  __u64 index = handle & 0x3ffffff, entry;
  switch (handle >> 30) {
    case 1: return mpich_entry(mpi->builtin, index, mpi, handle);
    case 2: return mpich_entry(mpi->direct, index, mpi, handle);
    case 3:
      /* The pointer to the blocks: up to MPICH 3, from 4 on, and since 4.2 or 4.3. */
      entry = mpich_in_block(mpi, 12, handle);
      if (!entry) entry = mpich_in_block(mpi, 20, handle);
      return entry ? entry : mpich_in_block(mpi, 24, handle);
  }
  return 0;
}

/* Which rank of how many the process is in a communicator, from the library's own structures. */
static __noinline int mpi_facts(const struct rm_mpi *mpi, __u64 handle, __u64 flags, struct rm_comm *info) {
  if (!mpi->rank_at) return 0;
  __u64 at = flags & RM_COOKIE_INT_HANDLES ? mpich_structure(mpi, handle) : handle;
  if (!at) return 0;
  __s32 rank = -1, size = 0;
  bpf_probe_read_user(&rank, sizeof rank, (const void *)(at + mpi->rank_at));
  if (mpi->group_at) at = user_word(at + mpi->group_at);
  bpf_probe_read_user(&size, sizeof size, (const void *)(at + mpi->size_at));
  if (rank < 0 || rank >= size || size > MOST_RANKS) return 0;
  info->rank = rank;
  info->nranks = size;
  info->flags |= RM_HAVE_RANK;
  return 1;
}

/* A group of Open MPI by its first member, which is a rank of the world, and its size; 0: not to be had. A member not used yet
 * is a number, its lowest bit 1, else the address of a structure; both have the rank in the upper half. */
static __always_inline __u64 group_of_ranks(const struct rm_mpi *mpi, __u64 group) {
  __u32 size = 0;
  if (bpf_probe_read_user(&size, sizeof size, (const void *)(group + mpi->size_at)) || !size) return 0;
  __u64 first = user_word(user_word(group + mpi->members_at));
  if (!first) return 0;
  if (!(first & 1)) first = user_word(first + mpi->name_at);
  return rm_mix(rm_mix(RM_SALT_GROUP, first >> 32), size);
}

static __always_inline __u64 both_groups(const struct rm_mpi *mpi, __u64 comm) {
  if (!mpi->name_at) return 0;
  __u64 a = group_of_ranks(mpi, user_word(comm + mpi->group_at));
  __u64 b = group_of_ranks(mpi, user_word(comm + mpi->remote_at));
  if (!a || !b) return 0;
  return a < b ? rm_mix(a, b) : rm_mix(b, a); /* the same on both sides */
}

/* Takes a piece of a list of numbers into an identity, 0 when it cannot be read. (Not static, as the next: see `this_thread`.) */
#define LISTED_PIECE 16
__noinline __u64 mix_piece(__u64 identity, __u64 where, __u32 n) {
  __u32 piece[LISTED_PIECE] = {};
  if (n > LISTED_PIECE) n = LISTED_PIECE;
  if (bpf_probe_read_user(piece, n * 4, (const void *)where)) return 0;
  for (int k = 0; k < LISTED_PIECE; k += 2) identity = rm_mix(identity, (__u64)piece[k] << 32 | piece[k + 1]);
  return identity;
}

/* Takes a list of numbers into an identity, 0 when it cannot be read. */
__noinline __u64 mix_list(__u64 identity, __u64 where, __u32 n) {
  if (n > RM_MOST_LISTED) n = RM_MOST_LISTED;
  for (__u32 i = 0; i < RM_MOST_LISTED; i += LISTED_PIECE) {
    if (i >= n) break;
    identity = mix_piece(identity, where + i * 4, n - i);
    if (!identity) return 0;
  }
  return rm_mix(identity, n);
}

/* Takes a text into an identity, in pieces: the kernel's stack has no room for all of it (src/stack_depth.rs). Behind the end there
 * are zeros, and the last byte is always one. */
#define TEXT_PIECE 16
__noinline __u64 mix_text(__u64 identity, __u64 where) {
  bool ended = false;
  for (int at = 0; at < RM_MOST_TEXT; at += TEXT_PIECE) {
    char piece[TEXT_PIECE + 8] = {};
    /* what is read ends with a zero: that of the text, or one more */
    if (!ended) {
      __u32 bytes = at + TEXT_PIECE < RM_MOST_TEXT ? TEXT_PIECE + 1 : TEXT_PIECE;
      long with_end = bpf_probe_read_user_str(piece, bytes, (const void *)(where + at));
      if (with_end <= 0) return 0;
      ended = with_end <= TEXT_PIECE;
    }
    for (int i = 0; i < TEXT_PIECE / 8; i++) {
      __u64 word;
      __builtin_memcpy(&word, piece + i * 8, 8);
      identity = rm_mix(identity, word);
    }
  }
  return identity;
}

/* What tells a group from others. */
__noinline int keep_group(__u32 pid, __u64 handle, __u64 value, __u32 func) {
  struct rm_comm_key key = {.pid = pid, .handle = handle};
  bool known = bpf_map_lookup_elem(&mpi_groups, &key);
  if (!known && !take_room(pid, RM_ROOM_GROUP, func)) return 0;
  if (!known && !bpf_map_update_elem(&mpi_groups, &key, &value, BPF_NOEXIST)) return 1;
  if (!known) give_room(pid, RM_ROOM_GROUP); /* another thread was quicker */
  bpf_map_update_elem(&mpi_groups, &key, &value, BPF_EXIST);
  return 1;
}

static __always_inline void forget_group(const struct rm_comm_key *key) {
  if (!bpf_map_delete_elem(&mpi_groups, key)) give_room(key->pid, RM_ROOM_GROUP);
}

static __always_inline __u64 group_known(__u32 pid, __u64 handle) {
  struct rm_comm_key key = {.pid = pid, .handle = handle};
  __u64 *group = bpf_map_lookup_elem(&mpi_groups, &key);
  return group ? *group : 0;
}

/* The how manieth of these it is, from 0. Whoever makes one takes the room before, further up: there is no stack left here. */
static __always_inline __u64 count_alike(struct thread_state *state, __u32 pid, __u64 identity) {
  struct rm_comm_key key = {.pid = pid, .pad = 1, .handle = identity};
  __u64 one = 1, number = 0, *count = bpf_map_lookup_elem(&mpi_groups, &key);
  if (count) {
    TAKE_NUMBER(count, &number);
    return number;
  }
  if (state->group_room && !bpf_map_update_elem(&mpi_groups, &key, &one, BPF_NOEXIST)) state->group_room = 0;
  return 0;
}

/* The dimensions that MPI_Cart_sub keeps, a bit each. (Not static, as the next: see `this_thread`.) */
__noinline __u32 kept_dimensions(__u32 pid, __u64 parent, __u64 where) {
  struct rm_comm_key key = {.pid = pid, .handle = parent};
  struct mpi_grid *grid = bpf_map_lookup_elem(&mpi_grids, &key);
  __u32 kept[RM_MOST_DIMS] = {}, ndims = grid ? grid->ndims : 0, bits = 0;
  if (ndims > RM_MOST_DIMS) return 0;
  if (ndims && bpf_probe_read_user(kept, ndims * 4, (const void *)where)) return 0;
  for (int i = 0; i < RM_MOST_DIMS; i++) bits |= !!kept[i] << i;
  return bits;
}

static const struct mpi_grid new_grid = {};

/* The part of a grid that its `rank` is in when all dimensions but those `kept` are dropped: the coordinates in these. Ranks are
 * numbered along the last dimension first. 0: not known. */
__noinline __u64 grid_part(__u32 pid, __u64 parent, __u64 made, __u32 rank, __u32 kept) {
  struct rm_comm_key key = {.pid = pid, .handle = parent};
  struct mpi_grid *grid = bpf_map_lookup_elem(&mpi_grids, &key);
  if (!grid) return 0;
  __u32 ndims = grid->ndims;
  if (ndims > RM_MOST_DIMS) return 0;
  __u64 identity = RM_SALT_GROUP;
  for (int i = RM_MOST_DIMS - 1; i >= 0; i--) {
    __u32 size = grid->dims[i];
    if (i >= ndims || !size) continue;
    if (!(kept >> i & 1)) identity = rm_mix(identity, (__u64)i << 32 | rank % size);
    rank /= size;
  }
  /* Filled in where it is kept: the kernel's stack has no room for it. */
  key.handle = made;
  bpf_map_update_elem(&mpi_grids, &key, &new_grid, BPF_ANY);
  struct mpi_grid *part = bpf_map_lookup_elem(&mpi_grids, &key);
  if (!part) return identity;
  __u32 next = 0;
  for (int i = 0; i < RM_MOST_DIMS; i++) {
    if (i >= ndims || !(kept >> i & 1)) continue;
    barrier_var(next); /* else the compiler adds it to the address in a way that the verifier refuses */
    part->dims[next & (RM_MOST_DIMS - 1)] = grid->dims[i];
    next++;
  }
  part->ndims = next;
  return identity;
}

static __noinline int grid_made(struct rm_inflight *call, __u32 pid, __u64 made) {
  struct rm_comm_key key = {.pid = pid, .handle = made};
  struct mpi_grid grid = {.ndims = call->args[1]};
  if (grid.ndims > RM_MOST_DIMS) return 0;
  if (grid.ndims && bpf_probe_read_user(grid.dims, grid.ndims * 4, (const void *)call->args[2])) return 0;
  bpf_map_update_elem(&mpi_grids, &key, &grid, BPF_ANY);
  return 0;
}

static __noinline int grid_copied(struct rm_inflight *call, __u32 pid, __u64 made) {
  struct rm_comm_key key = {.pid = pid, .handle = call->handle};
  struct mpi_grid *grid = bpf_map_lookup_elem(&mpi_grids, &key);
  if (!grid) return 0;
  struct mpi_grid copy = *grid;
  key.handle = made;
  bpf_map_update_elem(&mpi_grids, &key, &copy, BPF_ANY);
  return 0;
}

static __noinline __u64 inter_identity(const struct rm_mpi *mpi, struct thread_state *state, __u32 pid, __u64 made, __u32 tag) {
  __u64 groups = both_groups(mpi, made);
  if (!groups) return 0;
  __u64 identity = rm_mix(rm_mix(RM_SALT_INTER, groups), tag);
  return rm_mix(identity, count_alike(state, pid, identity));
}

/* The identity of what a call has made; 0: it has none. */
static __noinline __u64 identity_of_made(struct thread_state *state, __u32 pid, __u64 made, const struct rm_mpi *mpi) {
  struct rm_inflight *call = &state->call;
  __u64 cookie = state->cookie, flags = cookie >> 32, more;
  __u32 kind = (__u8)(cookie >> 48);
  bool named = call->comm_flags & RM_HAVE_HASH;
  __u64 identity = rm_mix(call->hash, call->comm_seq);
  switch (kind) {
    case RM_MAKES_NAMELESS: return 0;
    case RM_MAKES_INTER:
      return mpi && !(flags & RM_COOKIE_INT_HANDLES) ? inter_identity(mpi, state, pid, made, call->args[4]) : 0;
    case RM_MAKES_OF_GROUP:
      more = group_known(pid, handle_of(call->args[0], flags));
      if (more) more = mix_text(rm_mix(RM_SALT_ALONE, more), call->args[1]);
      if (!more) return 0;
      return rm_mix(more, count_alike(state, pid, more));
    case RM_MAKES_ALONE:
      more = group_known(pid, handle_of(call->args[1], flags));
      if (!more || !named) return 0;
      identity = rm_mix(rm_mix(rm_mix(call->hash, RM_SALT_ALONE), more), (__u32)call->args[2]);
      return rm_mix(identity, count_alike(state, pid, identity));
  }
  if (!named || call->comm_seq == RM_NO_POSITION) return 0;
  switch (kind) {
    case RM_MAKES_BY_COLOUR: return rm_mix(identity, (__u32)call->args[1]);
    case RM_MAKES_BY_HOST: {
      __u32 shared = flags & RM_COOKIE_INT_HANDLES ? MPICH_SHARED : 0;
      return mpi && mpi->host && (__u32)call->args[1] == shared ? rm_mix(identity, mpi->host) : 0;
    }
    case RM_MAKES_BY_GROUP:
      more = group_known(pid, handle_of(call->args[1], flags));
      return more ? rm_mix(identity, more) : 0;
    case RM_MAKES_CART_PART:
      if (!(call->comm_flags & RM_HAVE_RANK)) return 0;
      more = grid_part(pid, call->handle, made, call->rank, kept_dimensions(pid, call->handle, call->args[1]));
      return more ? rm_mix(identity, more) : 0;
  }
  return identity;
}

/* What has no identity yet: the library's structures were not known when the call began. */
static __noinline int keep_unnamed(struct thread_state *state, const struct rm_comm_key *key) {
  struct rm_inflight *call = &state->call;
  __u64 cookie = state->cookie;
  __u32 kind = (__u8)(cookie >> 48);
  struct mpi_unnamed unnamed = {.parent = call->handle, .kind = kind};
  if (kind == RM_MAKES_INTER && !(cookie >> 32 & RM_COOKIE_INT_HANDLES)) {
    unnamed.word = call->args[4];
  } else if (kind == RM_MAKES_CART_PART && call->comm_flags & RM_HAVE_HASH && call->comm_seq != RM_NO_POSITION) {
    unnamed.identity = rm_mix(call->hash, call->comm_seq);
    unnamed.word = kept_dimensions(key->pid, call->handle, call->args[1]);
  } else {
    return 0;
  }
  bpf_map_update_elem(&mpi_unnamed, key, &unnamed, BPF_ANY);
  return 0;
}

/* The identity of such a one, by what is known now; 0: still none. */
static __noinline __u64 name_late(const struct rm_mpi *mpi, struct thread_state *state, const struct rm_comm_key *key, __u64 flags) {
  struct mpi_unnamed *unnamed = bpf_map_lookup_elem(&mpi_unnamed, key);
  if (!unnamed) return 0;
  __u64 identity = 0;
  if (unnamed->kind == RM_MAKES_INTER) {
    state->group_room = take_room(key->pid, RM_ROOM_GROUP, state->call.func);
    identity = inter_identity(mpi, state, key->pid, key->handle, unnamed->word);
    if (state->group_room) give_room(key->pid, RM_ROOM_GROUP); /* it was not needed */
  } else {
    struct rm_comm parent = {};
    if (mpi_facts(mpi, unnamed->parent, flags, &parent))
      identity = grid_part(key->pid, unnamed->parent, key->handle, parent.rank, unnamed->word);
    if (identity) identity = rm_mix(unnamed->identity, identity);
  }
  if (identity) bpf_map_delete_elem(&mpi_unnamed, key);
  return identity;
}

/* A communicator, of whatever library, or a window ends: what is kept by its handle. */
__noinline int comm_ends(__u32 pid, __u64 handle) {
  struct rm_comm_key key = {.pid = pid, .handle = handle};
  if (bpf_map_delete_elem(&comms, &key)) return 0;
  bpf_map_delete_elem(&mpi_grids, &key);
  bpf_map_delete_elem(&mpi_unnamed, &key);
  give_room(pid, RM_ROOM_COMM);
  comms_change();
  return 0;
}

/* Says that the process is a member of what it has just made. */
static __always_inline void emit_begin(struct thread_state *state, __u64 handle, const struct rm_comm *info, __u64 now,
                                       __u64 site) {
  struct rm_inflight *call = &state->call;
  __u64 thread = bpf_get_current_pid_tgid();
  struct rm_call *out = bpf_ringbuf_reserve(&events, RM_SHORT_CALL, 0);
  if (!out) {
    COUNT(call->func, lost_ring);
    return;
  }
  out->kind = RM_COMM_BEGINS;
  out->func = call->func;
  out->flags = RM_HAVE_SEQ | (info->flags & (RM_HAVE_HASH | RM_HAVE_RANK));
  out->site_high = site >> 32;
  out->site_low = site;
  out->enter_ns = out->exit_ns = now;
  out->pid = thread >> 32;
  out->tid = thread;
  out->cgroup_id = call->cgroup_id;
  out->comm_hash = info->hash;
  out->seq = 0;
  out->comm_seq = RM_NO_POSITION;
  out->rank = info->rank;
  out->nranks = info->nranks;
  out->ret = 0;
  for (int i = 0; i < RM_SHORT_ARGS; i++) out->args[i] = i ? 0 : handle;
  bpf_ringbuf_submit(out, wake_flags_now_and_then(&state->records));
}

/* What is told apart by a count (identity.h). */
#define MAKES_COUNTED(kind) ((kind) == RM_MAKES_ALONE || (kind) == RM_MAKES_OF_GROUP || (kind) == RM_MAKES_INTER)

/* A call has returned that makes a communicator (or a window). (Not static, as those that follow: see `this_thread`.) */
__noinline int mpi_made(__u32 pid, __u64 now, __u64 site) {
  struct thread_state *state = this_thread();
  if (!state) return 0;
  struct rm_inflight *call = &state->call;
  __u64 cookie = state->cookie, flags = cookie >> 32;
  __u32 kind = (__u8)(cookie >> 48), where = cookie >> 56;
  if (where >= RM_MAX_ARGS) return 0;
  struct rm_comm_key key = {.pid = pid, .handle = handle_at(call->args[where], flags)};
  struct rm_mpi *mpi = bpf_map_lookup_elem(&mpi_processes, &pid);
  __u64 none = flags & RM_COOKIE_INT_HANDLES ? MPICH_NO_COMM : mpi ? mpi->none : 0;
  if (!key.handle || key.handle == none || key.handle == MPICH_NO_WINDOW) return 0;
  if (!make_comm(pid, key.handle, call->func)) return 0;
  struct rm_comm info = {.rank = -1, .nranks = -1};
  state->group_room = MAKES_COUNTED(kind) ? take_room(pid, RM_ROOM_GROUP, call->func) : 0;
  info.hash = identity_of_made(state, pid, key.handle, mpi);
  if (state->group_room) give_room(pid, RM_ROOM_GROUP); /* it was not needed */
  if (info.hash) info.flags = RM_HAVE_HASH;
  else keep_unnamed(state, &key);
  if (kind == RM_MAKES_COPY) {
    info.rank = call->rank;
    info.nranks = call->nranks;
    info.flags |= call->comm_flags & RM_HAVE_RANK;
    grid_copied(call, pid, key.handle);
  } else if (mpi) {
    mpi_facts(mpi, key.handle, flags, &info);
  }
  if (kind == RM_MAKES_CART) grid_made(call, pid, key.handle);
  remember_comm(&key, &info);
  if (info.hash) emit_begin(state, key.handle, &info, now, site);
  return 0;
}

static __always_inline void mpi_group_ends(struct thread_state *state, __u32 pid) {
  struct rm_comm_key key = {.pid = pid, .handle = handle_at(state->call.args[0], state->cookie >> 32)};
  forget_group(&key);
}

/* A group was made. */
__noinline int mpi_group(__u32 pid) {
  struct thread_state *state = this_thread();
  if (!state) return 0;
  struct rm_inflight *call = &state->call;
  __u64 cookie = state->cookie, flags = cookie >> 32, group = 0, other;
  __u32 kind = (__u8)(cookie >> 48), where = cookie >> 56;
  if (where >= RM_MAX_ARGS) return 0;
  if (kind == RM_GROUP_OF_COMM || kind == RM_GROUP_OF_REMOTE) {
    if (call->comm_flags & RM_HAVE_HASH) group = rm_mix(rm_mix(RM_SALT_GROUP, kind), call->hash);
  } else if (kind == RM_GROUP_OF_SET) {
    group = mix_text(rm_mix(RM_SALT_GROUP, kind), call->args[1]);
  } else {
    group = group_known(pid, handle_of(call->args[0], flags));
    if (group) group = rm_mix(group, kind);
    if (group && kind >= RM_GROUP_UNION) {
      other = group_known(pid, handle_of(call->args[1], flags));
      group = other ? rm_mix(group, other) : 0;
    } else if (group) {
      __u32 n = call->args[1];
      group = mix_list(group, call->args[2], kind >= RM_GROUP_RANGE_INCL ? n * 3 : n);
    }
  }
  struct rm_comm_key key = {.pid = pid, .handle = handle_at(call->args[where], flags)};
  if (!group || !key.handle) forget_group(&key);
  else keep_group(pid, key.handle, group, call->func);
  return 0;
}

enum mpi_predefined { MPI_NONE_OF_THEM, MPI_WORLD, MPI_SELF };
static __always_inline enum mpi_predefined predefined(const struct rm_mpi *mpi, __u64 handle, __u64 flags) {
  bool ints = flags & RM_COOKIE_INT_HANDLES;
  __u64 world = ints ? MPICH_WORLD : mpi ? mpi->world : 0, self = ints ? MPICH_SELF : mpi ? mpi->self : 0;
  if (world && handle == world) return MPI_WORLD;
  return self && handle == self ? MPI_SELF : MPI_NONE_OF_THEM;
}

/* What MPI_COMM_WORLD, MPI_COMM_SELF are, and what is read of others. False when nothing is known that was not before. */
static __noinline int mpi_learn(struct rm_mpi *mpi, __u64 handle, __u64 flags, struct rm_comm *info) {
  __u32 before = info->flags;
  if (mpi && !(info->flags & RM_HAVE_RANK)) mpi_facts(mpi, handle, flags, info);
  switch (predefined(mpi, handle, flags)) {
    case MPI_WORLD:
      info->hash = RM_WORLD;
      info->flags |= RM_HAVE_HASH;
      break;
    case MPI_SELF: {
      struct rm_comm of_world = {};
      __u64 world = flags & RM_COOKIE_INT_HANDLES ? MPICH_WORLD : mpi ? mpi->world : 0;
      if (mpi && mpi_facts(mpi, world, flags, &of_world)) {
        info->hash = rm_mix(RM_SALT_SELF, of_world.rank);
        info->flags |= RM_HAVE_HASH;
      }
      info->rank = 0;
      info->nranks = 1;
      info->flags |= RM_HAVE_RANK;
      break;
    }
    case MPI_NONE_OF_THEM:;
  }
  return info->flags != before;
}

/* A communicator that was met without having been seen made: all calls on it were seen only if it is a predefined one. Which one,
 * user space tells once it has read the library; until then its calls are counted. */
static __always_inline void settle_uncounted(const struct rm_mpi *mpi, __u64 handle, __u64 flags, struct rm_comm *info) {
  if (!(flags & RM_COOKIE_INT_HANDLES) && !(mpi && mpi->world)) {
    info->flags |= RM_MET_EARLY;
    return;
  }
  info->flags &= ~RM_MET_EARLY;
  /* Of others it was made before we came, or with another job. */
  if (predefined(mpi, handle, flags) == MPI_NONE_OF_THEM) info->flags |= RM_UNCOUNTED;
}

/* The first call with a handle. */
__noinline int mpi_meet(__u32 pid, __u64 handle, __u64 flags) {
  struct thread_state *state = this_thread();
  if (!state) return 0;
  struct rm_comm_key key = {.pid = pid, .handle = handle};
  struct rm_mpi *mpi = bpf_map_lookup_elem(&mpi_processes, &pid);
  struct rm_comm info = {.rank = -1, .nranks = -1};
  mpi_learn(mpi, handle, flags, &info);
  settle_uncounted(mpi, handle, flags, &info);
  if (!state->mpi_started) {
    __u32 *process = bpf_map_lookup_elem(&tracked, &pid);
    if (process && *process & RM_MPI_STARTED) state->mpi_started = 1;
    else info.flags |= RM_UNCOUNTED;
  }
  if (!take_room(pid, RM_ROOM_COMM, state->call.func)) return 0;
  /* Of several threads that look at the same moment one makes the entry: a second one would begin to count anew. */
  if (bpf_map_update_elem(&comms, &key, &new_entry, BPF_NOEXIST)) {
    give_room(pid, RM_ROOM_COMM);
    return 0;
  }
  struct rm_comm_entry *entry = bpf_map_lookup_elem(&comms, &key);
  if (entry) {
    entry->info = info;
    entry->counted_from_ns = BPF_CORE_READ(this_task(), group_leader, start_time);
  }
  return 0;
}

/* Something was not known of it when it was met. */
__noinline int mpi_look_again(__u32 pid, __u64 handle, __u64 flags) {
  struct thread_state *state = this_thread();
  if (!state) return 0;
  struct rm_comm_key key = {.pid = pid, .handle = handle};
  struct rm_comm_entry *entry = bpf_map_lookup_elem(&comms, &key);
  struct rm_mpi *mpi = bpf_map_lookup_elem(&mpi_processes, &pid);
  if (!mpi || !entry) return 0;
  struct rm_comm info = entry->info;
  if (info.flags & RM_MET_EARLY) settle_uncounted(mpi, handle, flags, &info);
  bool news = mpi_learn(mpi, handle, flags, &info) || info.flags != entry->info.flags;
  if (mpi->rank_at && !(info.flags & (RM_HAVE_HASH | RM_UNCOUNTED))) {
    info.hash = name_late(mpi, state, &key, flags);
    if (info.hash) {
      info.flags |= RM_HAVE_HASH;
      news = true;
      emit_begin(state, handle, &info, state->call.enter_ns, 0);
    }
  }
  if (news) entry->info = info;
  return 0;
}

/* A nonblocking collective has begun: what its request is for. Only where requests are addresses: Open MPI's are of collectives
 * or of messages for good, those of MPICH may be of a message the next time, which is not seen. */
__noinline int mpi_begins(__u32 pid) {
  struct thread_state *state = this_thread();
  if (!state) return 0;
  struct rm_inflight *call = &state->call;
  __u64 cookie = state->cookie, flags = cookie >> 32;
  __u32 where = cookie >> 56;
  if (where >= RM_MAX_ARGS || flags & RM_COOKIE_INT_HANDLES || !(call->comm_flags & RM_HAVE_HASH)) return 0;
  struct rm_comm_key key = {.pid = pid, .handle = handle_at(call->args[where], flags)};
  if (!key.handle) return 0;
  struct mpi_begun begun = {
      .hash = call->hash, .comm_seq = call->comm_seq, .at_ns = call->enter_ns, .rank = call->rank, .nranks = call->nranks};
  state->begins_collectives = 1;
  if (!bpf_map_update_elem(&mpi_begun, &key, &begun, BPF_EXIST)) return 0; /* most requests are used again and again */
  if (!take_room(pid, RM_ROOM_BEGUN, call->func)) return 0;
  if (bpf_map_update_elem(&mpi_begun, &key, &begun, BPF_NOEXIST)) give_room(pid, RM_ROOM_BEGUN);
  return 0;
}

/* Of several requests so many are looked at. */
#define MOST_REQUESTS 16

/* Bytes of a handle in the library's lists. */
static __always_inline __u32 handle_bytes(__u64 flags) { return flags & RM_COOKIE_INT_HANDLES ? 4 : 8; }

static const struct mpi_persistent new_persistent = {};

/* A persistent collective was made: making it is a collective of the communicator, and each start is a nonblocking one, `func`
 * in the cookie, on a communicator of its own: a copy, as starts have no place in the order of the other. */
__noinline int mpi_persists(__u32 pid, __u64 now, __u64 site) {
  struct thread_state *state = this_thread();
  if (!state) return 0;
  struct rm_inflight *call = &state->call;
  __u64 cookie = state->cookie, flags = cookie >> 32;
  __u32 where = cookie >> 56;
  if (where >= RM_MAX_ARGS || !(call->comm_flags & RM_HAVE_HASH) || call->comm_seq == RM_NO_POSITION) return 0;
  struct rm_comm_key key = {.pid = pid, .handle = handle_at(call->args[where], flags)};
  if (!key.handle) return 0;
  struct rm_comm info = {.hash = rm_mix(call->hash, call->comm_seq), .rank = call->rank, .nranks = call->nranks};
  info.flags = call->comm_flags & (RM_HAVE_HASH | RM_HAVE_RANK);
  bool again = bpf_map_lookup_elem(&mpi_persistent, &key); /* its end was not seen */
  if (!again && !take_room(pid, RM_ROOM_PERSISTENT, call->func)) return 0;
  /* Filled in where it is kept: the kernel's stack has no room for it. */
  bpf_map_update_elem(&mpi_persistent, &key, &new_persistent, BPF_ANY);
  struct mpi_persistent *made = bpf_map_lookup_elem(&mpi_persistent, &key);
  if (made) {
    made->info = info;
    made->parent = call->handle;
    made->started = 0;
    made->made_ns = now;
    made->func = cookie >> 48;
    made->said = call->comm_flags & RM_LARGE_COUNTS;
    __builtin_memcpy(made->args, call->args, sizeof made->args);
  } else {
    COUNT(call->func, lost_map);
  }
  state->begins_collectives = 1;
  emit_begin(state, key.handle, &info, now, site);
  return 0;
}

/* That of a request; 0: the request is for something else, or it is not known what for. */
static __always_inline struct mpi_persistent *persistent_of(const struct rm_comm_key *key) {
  struct mpi_persistent *of = key->handle ? bpf_map_lookup_elem(&mpi_persistent, key) : 0;
  return of && of->made_ns >= tuning.missed_until_ns ? of : 0;
}

static __always_inline void emit_start(struct thread_state *state, struct mpi_persistent *of, __u64 now, __u64 site) {
  __u64 thread = bpf_get_current_pid_tgid(), number = 0;
  bool counted = TAKE_NUMBER(&of->started, &number);
  COUNT(of->func, hits);
  struct rm_call *out = bpf_ringbuf_reserve(&events, sizeof *out, 0);
  if (!out) {
    COUNT(of->func, lost_ring);
    return;
  }
  out->kind = RM_CALL;
  out->func = of->func;
  out->flags = of->said | of->info.flags | (counted ? RM_HAVE_SEQ : 0);
  out->site_high = site >> 32;
  out->site_low = site;
  out->enter_ns = out->exit_ns = now;
  out->pid = thread >> 32;
  out->tid = thread;
  out->cgroup_id = cgroup_of(this_task());
  out->comm_hash = of->info.hash;
  out->seq = number;
  out->comm_seq = counted ? number : RM_NO_POSITION;
  out->rank = of->info.rank;
  out->nranks = of->info.nranks;
  out->ret = 0;
  __builtin_memcpy(out->args, of->args, sizeof out->args);
  bpf_ringbuf_submit(out, wake_flags_now_and_then(&state->records));
}

/* A persistent collective ends. */
static __always_inline void persistent_ends(const struct rm_comm_key *key) {
  if (!key->handle || bpf_map_delete_elem(&mpi_persistent, key)) return;
  give_room(key->pid, RM_ROOM_PERSISTENT);
}

/* One request of such a call; 1 when it starts a collective. */
__noinline int mpi_of_request(__u64 cookie, __u64 handle, __u64 now, __u64 site) {
  struct thread_state *state = this_thread();
  if (!state) return 0;
  struct rm_comm_key key = {.pid = bpf_get_current_pid_tgid() >> 32, .handle = handle};
  if ((__u8)(cookie >> 8) == RM_ROLE_MPI_REQUEST_FREE) {
    persistent_ends(&key);
    return 0;
  }
  struct mpi_persistent *of = persistent_of(&key);
  if (!of) return 0;
  if (!(of->info.flags & RM_HAVE_RANK)) { /* it was made before the library's structures were known */
    struct rm_mpi *mpi = bpf_map_lookup_elem(&mpi_processes, &key.pid);
    if (mpi) mpi_facts(mpi, of->parent, cookie >> 32, &of->info);
  }
  state->begins_collectives = 1;
  emit_start(state, of, now, site);
  return 1;
}

/* MPI_Start, MPI_Startall, MPI_Request_free: mostly of messages, of which nothing is kept. They return at once, so all is done at
 * the entry. `first`, `second`: their first two arguments. 0 when they start no collective. */
static __noinline int mpi_of_requests(__u64 cookie, __u64 first, __u64 second, __u64 now, __u64 site) {
  __u64 flags = cookie >> 32;
  bool many = (__u8)(cookie >> 48) == 1;
  __u32 n = many ? first : 1;
  __u64 at = many ? second : first;
  int started = 0;
  for (int i = 0; i < MOST_REQUESTS; i++) {
    if (i >= n) break;
    started |= mpi_of_request(cookie, handle_at(at + i * handle_bytes(flags), flags), now, site);
  }
  return started;
}

/* The request of a nonblocking collective, which has an entry, is waited for, and is another's then. */
__noinline int mpi_ends(__u32 pid, __u64 handle) {
  struct rm_comm_key key = {.pid = pid, .handle = handle};
  if (!bpf_map_delete_elem(&mpi_begun, &key)) give_room(pid, RM_ROOM_BEGUN);
  return 0;
}

/* A thread waits for requests: is one of the first of them a collective? `kind`: as src/functions/mpi.rs numbers them; of more
 * than one, argument 0 is their number, 1 the first. */
#define RM_REQUESTS_SOME 2 /* not all of them have ended when the call returns */
__noinline int mpi_awaits(__u32 pid, __u32 kind) {
  struct thread_state *state = this_thread();
  if (!state) return 0;
  struct rm_inflight *call = &state->call;
  __u64 flags = state->cookie >> 32;
  __u64 at = kind ? call->args[1] : call->args[0];
  __u32 n = kind ? call->args[0] : 1;
  bool named = false;
  for (int i = 0; i < MOST_REQUESTS; i++) {
    if (i >= n) break;
    struct rm_comm_key key = {.pid = pid, .handle = handle_at(at + i * handle_bytes(flags), flags)};
    struct mpi_persistent *of = named ? 0 : persistent_of(&key);
    if (of && of->started) { /* the last time; a nonblocking one may have had the request before */
      call->hash = of->info.hash;
      call->comm_seq = of->started - 1;
      call->rank = of->info.rank;
      call->nranks = of->info.nranks;
      call->comm_flags = of->info.flags;
      named = true;
    }
    struct mpi_begun *begun = key.handle ? bpf_map_lookup_elem(&mpi_begun, &key) : 0;
    if (begun && !named && begun->at_ns >= tuning.missed_until_ns) { /* else the request may be another's by now */
      call->hash = begun->hash;
      call->comm_seq = begun->comm_seq;
      call->rank = begun->rank;
      call->nranks = begun->nranks;
      call->comm_flags = RM_HAVE_HASH | (begun->rank >= 0 ? RM_HAVE_RANK : 0);
      named = true;
    }
    if (begun && kind != RM_REQUESTS_SOME) mpi_ends(pid, key.handle);
  }
  return 0;
}
