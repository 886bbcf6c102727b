/* The communicators of MPI as the shim knows them: it asks the library, never another rank. Identities are made as
 * bpf/identity.h says, so that a communicator is the same one on hosts that are recorded by eBPF. Included by pmpi.c. */
#include "../bpf/identity.h"

/* Looked up by handle: lock-free; entries are made and ended under a lock. */
#define COMMS 1024
#define MOST_STEPS 64
#define ENDED 1ull /* no handle: an entry was here */
static struct comm {
  word handle;
  word hash; /* 0: none */
  int rank, nranks;
  int counted; /* its start was seen */
  word position, seqs[RM_RING_NAMES];
} comms[COMMS];

/* What tells a group from others, by handle; and how many communicators that have no position were made alike, by identity. */
#define GROUPS 1024
static struct group {
  word key, value;
} groups[GROUPS], alike[GROUPS];
/* A lock of our own: nothing but a libc is needed, whatever its age. It is held for
 * a few steps, and while the library is asked for a rank or a size. */
static int comms_lock;
static void lock_comms(void) {
  while (__atomic_exchange_n(&comms_lock, 1, __ATOMIC_ACQUIRE)) sched_yield();
}
static void unlock_comms(void) { __atomic_store_n(&comms_lock, 0, __ATOMIC_RELEASE); }

/* Handles of Open MPI are addresses, those of MPICH and its kin are ints. */
static int int_handles;
static word world, self_handle, no_comm;

static word handle_of(word argument) { return int_handles ? (unsigned int)argument : argument; }
static word handle_at(word where) {
  if (!where) return 0;
  return int_handles ? *(unsigned int *)where : *(word *)where;
}

static unsigned int first_step(word key) { return (unsigned int)(rm_mix(0, key) >> 32); }

static struct comm *comm_of(word handle) {
  for (unsigned int step = 0, at = first_step(handle); step < MOST_STEPS; step++) {
    struct comm *comm = &comms[(at + step) % COMMS];
    word found = __atomic_load_n(&comm->handle, __ATOMIC_ACQUIRE);
    if (found == handle) return comm;
    if (!found) return NULL;
  }
  return NULL;
}

/* Under the lock. NULL when there is no room. */
static struct comm *comm_make(word handle, word hash, int rank, int nranks, int counted) {
  struct comm *comm = comm_of(handle); /* its end was not seen */
  for (unsigned int step = 0, at = first_step(handle); !comm && step < MOST_STEPS; step++)
    if (comms[(at + step) % COMMS].handle <= ENDED) comm = &comms[(at + step) % COMMS];
  if (!comm) return NULL;
  __atomic_store_n(&comm->handle, ENDED, __ATOMIC_RELEASE);
  comm->hash = hash;
  comm->rank = rank;
  comm->nranks = nranks;
  comm->counted = counted;
  comm->position = 0;
  memset(comm->seqs, 0, sizeof comm->seqs);
  __atomic_store_n(&comm->handle, handle, __ATOMIC_RELEASE);
  return comm;
}

static struct group *group_entry(struct group *table, word key, int make) {
  struct group *free_one = NULL;
  for (unsigned int step = 0, at = first_step(key); step < MOST_STEPS; step++) {
    struct group *group = &table[(at + step) % GROUPS];
    if (group->key == key) return group;
    if (group->key <= ENDED && !free_one) free_one = group;
    if (!group->key) break;
  }
  if (!make || !free_one) return NULL;
  free_one->key = key;
  free_one->value = 0;
  return free_one;
}
static word group_known(word argument) {
  struct group *group = group_entry(groups, handle_of(argument), 0);
  return group ? group->value : 0;
}
static word count_alike(word identity) {
  struct group *group = group_entry(alike, identity, 1);
  return group ? group->value++ : 0;
}

/* The functions of the library that are asked. */
#define ASKED(X) \
  X(Comm_rank) X(Comm_size) X(Comm_group) X(Comm_remote_group) X(Group_size) X(Group_translate_ranks) X(Group_free) X(Cartdim_get) \
  X(Cart_get)
#define X(name) static function ask_##name;
ASKED(X)
#undef X

static void *library_symbol(const char *symbol) {
  void *found = dlsym ? dlsym(RTLD_DEFAULT, symbol) : NULL;
  return found ? found : found_in_libraries(symbol);
}
static int ask(function *asked, const char *symbol, word a, word b, word c, word d, word e) {
  function found = known_next_of(symbol, asked);
  return found ? found(a, b, c, d, e, 0, 0, 0, 0, 0, 0, 0) : -1;
}
#define ASK(name, a, b, c, d, e) ask(&ask_##name, "PMPI_" #name, (word)(a), (word)(b), (word)(c), (word)(d), (word)(e))

/* What MPICH and those made of it call themselves. They have one binary interface, and so the same handles. */
static const char *const kin[] = {"MPICH", "MVAPICH", "Intel(R) MPI", "ParaStation"};

/* Whether handles are those of MPICH. To ask the library about a handle that it does not have may end the program. */
static int is_mpich(void) {
  static function ask_version;
  static char text[16384]; /* MPI_MAX_LIBRARY_VERSION_STRING is 8,192 at most */
  int length = 0;
  Dl_info of;
  if (!ask(&ask_version, "PMPI_Get_library_version", (word)text, (word)&length, 0, 0, 0)) {
    text[sizeof text - 1] = 0;
    /* MPI's own interface (MPI 5) has other handles, whoever's library it is */
    int common = dladdr && dladdr((void *)ask_version, &of) && of.dli_fname && strstr(of.dli_fname, "libmpi_abi");
    for (unsigned int i = 0; i < sizeof kin / sizeof *kin && !common; i++)
      if (strstr(text, kin[i])) return 1;
  }
  for (char *c = text; *c; c++) /* a line that steers no terminal */
    if (*c < ' ' || *c > '~') *c = c - text < 60 ? ' ' : 0;
  char message[320];
  length = snprintf(message, sizeof message,
                    "rankmesh: calls of MPI are not recorded in this process: its library is neither Open MPI nor of MPICH's kin "
                    "(%.60s); an agent of root records them without this shim\n",
                    *text ? text : "it does not say its name");
  if (write(2, message, (size_t)length) < 0) return 0; /* nobody reads it */
  return 0;
}

/* False: it is left alone. */
static int look_at_library(void) {
  world = (word)library_symbol("ompi_mpi_comm_world");
  int_handles = !world;
  if (int_handles) {
    world = 0x44000000;
    self_handle = 0x44000001;
    no_comm = 0x04000000;
  } else {
    self_handle = (word)library_symbol("ompi_mpi_comm_self");
    no_comm = (word)library_symbol("ompi_mpi_comm_null");
  }
  return !int_handles || is_mpich();
}

static void ask_place(word handle, int *rank, int *nranks) {
  if (ASK(Comm_rank, handle, rank, 0, 0, 0) || ASK(Comm_size, handle, nranks, 0, 0, 0)) *rank = *nranks = -1;
}

/* MPI has begun: the communicators that are there. */
static void comms_begin(void) {
  int rank, nranks;
  lock_comms();
  ask_place(world, &rank, &nranks);
  comm_make(world, RM_WORLD, rank, nranks, 1);
  comm_make(self_handle, rank < 0 ? 0 : rm_mix(RM_SALT_SELF, (word)rank), 0, 1, 1);
  unlock_comms();
}

/* The communicator that a call names; one that is met for the first time was made with another job, or by a call unknown here.
 * Windows and files lie in the same table; of one that is not known the library is not asked: it takes communicators only. */
static struct comm *comm_named(word handle, int func) {
  struct comm *comm = comm_of(handle);
  if (comm || !handle || handle == no_comm) return comm;
  int rank = -1, nranks = -1;
  if (known[func].role == MAKES || is_comm(func)) ask_place(handle, &rank, &nranks);
  lock_comms();
  comm = comm_of(handle);
  if (!comm) comm = comm_make(handle, 0, rank, nranks, 0);
  unlock_comms();
  return comm;
}

/* A group by its first member, a rank of the world, and its size; ends it. 0: not to be had. */
static word group_of_ranks(word where) {
  word group = handle_at(where), of_world = 0, result = 0;
  int size = 0, zero = 0, first = -1;
  if (!ASK(Group_size, group, &size, 0, 0, 0) && size > 0 && !ASK(Comm_group, world, &of_world, 0, 0, 0)) {
    if (!ASK(Group_translate_ranks, group, 1, &zero, handle_at((word)&of_world), &first) && first >= 0)
      result = rm_mix(rm_mix(RM_SALT_GROUP, (word)first), (word)size);
    ASK(Group_free, &of_world, 0, 0, 0, 0);
  }
  ASK(Group_free, where, 0, 0, 0, 0);
  return result;
}

static word both_groups(word comm) {
  word local = 0, remote = 0;
  if (ASK(Comm_group, comm, &local, 0, 0, 0) || ASK(Comm_remote_group, comm, &remote, 0, 0, 0)) return 0;
  word a = group_of_ranks((word)&local), b = group_of_ranks((word)&remote);
  if (!a || !b) return 0;
  return a < b ? rm_mix(a, b) : rm_mix(b, a);
}

static word mix_list(word identity, const int *list, unsigned int n) {
  if (n > RM_MOST_LISTED) n = RM_MOST_LISTED;
  for (unsigned int i = 0; i < n; i += 16)
    for (unsigned int k = i; k < i + 16; k += 2)
      identity = rm_mix(identity, (word)(k < n ? (unsigned int)list[k] : 0) << 32 | (k + 1 < n ? (unsigned int)list[k + 1] : 0));
  return rm_mix(identity, n);
}

static word mix_text(word identity, const char *text) {
  char copy[RM_MOST_TEXT] = "";
  snprintf(copy, sizeof copy, "%s", text ? text : "");
  for (int i = 0; i < RM_MOST_TEXT / 8; i++) {
    word part;
    memcpy(&part, copy + i * 8, 8);
    identity = rm_mix(identity, part);
  }
  return identity;
}

/* The part of a grid that this rank is in when `kept` says which dimensions stay. */
static word grid_part(word comm, const int *kept) {
  int ndims = 0, dims[RM_MOST_DIMS], periods[RM_MOST_DIMS], at[RM_MOST_DIMS];
  if (ASK(Cartdim_get, comm, &ndims, 0, 0, 0) || ndims > RM_MOST_DIMS) return 0;
  if (ASK(Cart_get, comm, ndims, dims, periods, at)) return 0;
  word identity = RM_SALT_GROUP;
  for (int i = ndims - 1; i >= 0; i--)
    if (!kept[i]) identity = rm_mix(identity, (word)i << 32 | (unsigned int)at[i]);
  return identity;
}

static word host_identity(void) {
  char text[1024] = "", name[256] = "";
  ssize_t used = 0;
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    used = read(fd, text, 64);
    close(fd);
  }
  if (used < 0) used = 0;
  gethostname(name, sizeof name - 1);
  word hash = 0xcbf29ce484222325ull;
  for (ssize_t i = 0; i < used; i++) hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3ull;
  for (char *c = name; *c; c++) hash = (hash ^ (unsigned char)*c) * 0x100000001b3ull;
  return hash | 1;
}

/* The identity of the communicator `made` by a call on `parent` (NULL: on none). Under the lock. */
static word identity_of_made(int kind, const struct comm *parent, word position, const word *a, word made) {
  word named = parent ? parent->hash : 0, more;
  switch (kind) {
    case RM_MAKES_NAMELESS: return 0;
    case RM_MAKES_INTER:
      if (!(more = both_groups(made))) return 0;
      more = rm_mix(rm_mix(RM_SALT_INTER, more), (unsigned int)a[4]);
      return rm_mix(more, count_alike(more));
    case RM_MAKES_OF_GROUP:
      if (!(more = group_known(a[0]))) return 0;
      more = mix_text(rm_mix(RM_SALT_ALONE, more), (const char *)a[1]);
      return rm_mix(more, count_alike(more));
    case RM_MAKES_ALONE:
      if (!named || !(more = group_known(a[1]))) return 0;
      more = rm_mix(rm_mix(rm_mix(named, RM_SALT_ALONE), more), (unsigned int)a[2]);
      return rm_mix(more, count_alike(more));
  }
  if (!named || position == RM_NO_POSITION) return 0;
  word identity = rm_mix(named, position);
  switch (kind) {
    case RM_MAKES_BY_COLOUR: return rm_mix(identity, (unsigned int)a[1]);
    case RM_MAKES_BY_HOST: return (int)a[1] == (int_handles ? 1 : 0) ? rm_mix(identity, host_identity()) : 0;
    case RM_MAKES_BY_GROUP: return (more = group_known(a[1])) ? rm_mix(identity, more) : 0;
    case RM_MAKES_CART_PART: return (more = grid_part(parent->handle, (const int *)a[1])) ? rm_mix(identity, more) : 0;
  }
  return identity;
}

/* Says that the process is a member of what the call of a record has made. */
static void say_member(word hash, int rank, int nranks, const struct rm_call *maker, word made) {
  struct rm_call begin = {.kind = RM_COMM_BEGINS, .pid = maker->pid, .tid = maker->tid, .comm_seq = RM_NO_POSITION};
  begin.flags = RM_HAVE_SEQ | RM_HAVE_HASH | (rank >= 0 ? RM_HAVE_RANK : 0);
  begin.site_high = maker->site_high;
  begin.site_low = maker->site_low;
  begin.enter_ns = begin.exit_ns = maker->exit_ns;
  begin.comm_hash = hash;
  begin.rank = rank;
  begin.nranks = nranks;
  begin.args[0] = made;
  ring_write(&begin);
}

/* `maker`: the record of the call. */
static void comm_made(int func, const struct comm *parent, const struct rm_call *maker, const word *a, word made) {
  int kind = known[func].kind, rank = -1, nranks = -1;
  if (!made || made == no_comm) return;
  if (kind == RM_MAKES_COPY && parent) {
    rank = parent->rank;
    nranks = parent->nranks;
  } else if (is_comm(func)) {
    ask_place(made, &rank, &nranks);
  }
  lock_comms();
  word hash = identity_of_made(kind, parent, maker->comm_seq, a, made);
  comm_make(made, hash, rank, nranks, 1);
  unlock_comms();
  if (hash) say_member(hash, rank, nranks, maker, made);
}

static void comm_ends(struct comm *comm) {
  lock_comms();
  __atomic_store_n(&comm->handle, ENDED, __ATOMIC_RELEASE);
  unlock_comms();
}

static void group_made(int kind, const struct comm *comm, const word *a, word made) {
  word group = 0, other;
  lock_comms();
  if (kind == RM_GROUP_OF_COMM || kind == RM_GROUP_OF_REMOTE) {
    if (comm && comm->hash) group = rm_mix(rm_mix(RM_SALT_GROUP, (word)kind), comm->hash);
  } else if (kind == RM_GROUP_OF_SET) {
    group = mix_text(rm_mix(RM_SALT_GROUP, (word)kind), (const char *)a[1]);
  } else if ((group = group_known(a[0]))) {
    group = rm_mix(group, (word)kind);
    if (kind >= RM_GROUP_UNION) {
      other = group_known(a[1]);
      group = other ? rm_mix(group, other) : 0;
    } else {
      unsigned int n = (unsigned int)a[1];
      group = mix_list(group, (const int *)a[2], kind >= RM_GROUP_RANGE_INCL ? n * 3 : n);
    }
  }
  struct group *entry = made ? group_entry(groups, made, group != 0) : NULL;
  if (entry) {
    entry->value = group;
    if (!group) entry->key = ENDED;
  }
  unlock_comms();
}

static void group_ends(word handle) {
  lock_comms();
  struct group *entry = group_entry(groups, handle, 0);
  if (entry) entry->key = ENDED;
  unlock_comms();
}
