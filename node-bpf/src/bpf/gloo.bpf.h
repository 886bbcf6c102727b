/* gloo, alone and within PyTorch. Its collectives take one argument: the address of their options, a C++ object that begins
 * with the communicator (gloo::Context). A communicator comes to be in connectFullMesh(), with a store that its ranks use to
 * find each other; what names it there (the chain of the store's prefixes, the path of a file) is the same on all its ranks
 * and another than that of any other communicator of the job: the keys of two would overwrite each other.
 * Which words of the options mean what: src/gloo.rs. */

/* Enqueues nothing on a device, and has no entry in `learnt`. */
#define RM_COOKIE_NO_DEVICE (RM_COOKIE_MPI | RM_COOKIE_GLOO)

/* The arguments of a call: the options' words, with the bytes of a buffer of theirs as the second, the tag as the third, and
 * where the call returns to as the fourth (0: not on the stack). */
static __always_inline void gloo_options(struct pt_regs *ctx, __u64 *args, __u64 cookie) {
  __u64 options = PT_REGS_PARM1(ctx), returns_to = 0;
  __u64 words[RM_MAX_ARGS] = {};
  bpf_probe_read_user(words, sizeof words, (const void *)options);
  __u64 buffer = 0, bytes = 0, buffer_at = (__u8)(cookie >> 48);
  __u32 tag = 0;
  if (buffer_at != RM_NO_ARG) {
    /* transport::UnboundBuffer begins with its functions, its address and its size */
    bpf_probe_read_user(&buffer, sizeof buffer, (const void *)(options + buffer_at * 8));
    if (buffer) bpf_probe_read_user(&bytes, sizeof bytes, (const void *)(buffer + 16));
  }
  bpf_probe_read_user(&tag, sizeof tag, (const void *)(options + (cookie >> 56) * 4));
#if defined(__TARGET_ARCH_x86)
  bpf_probe_read_user(&returns_to, sizeof returns_to, (const void *)PT_REGS_SP(ctx));
#endif
  __builtin_memcpy(args, words, sizeof words);
  args[1] = bytes;
  args[2] = tag;
  args[3] = returns_to;
}

/* Rank and size of a communicator, out of its memory. */
static __always_inline bool gloo_read_rank(__u64 context, __u64 flags, __s32 *rank, __s32 *nranks) {
  __s32 numbers[2];
  __u64 at = context + (flags & RM_COOKIE_GLOO_VTABLE ? 8 : 0);
  if (bpf_probe_read_user(numbers, sizeof numbers, (const void *)at)) return false;
  if (numbers[0] < 0 || numbers[0] >= numbers[1] || numbers[1] > 1 << 20) return false;
  *rank = numbers[0];
  *nranks = numbers[1];
  return true;
}

#define FNV_BASIS 0xcbf29ce484222325ull
#define FNV_PRIME 0x00000100000001b3ull
/* Of a longer name the first so many bytes and its length count. */
#define GLOO_NAME 128
#define GLOO_PIECE 16
#define GLOO_STORES 12

/* The chain of stores: where the next one is, and the names so far. */
struct gloo_chain {
  __u64 at;
  __u64 hash;
  __u32 names;
  __u32 path; /* one of them is a file's */
};

/* Takes a name (its length and its bytes) into a hash (FNV-1a); 0 when it is none. (Not static: see `this_thread`.) */
__noinline __u64 gloo_hash_name(__u64 hash, __u64 text, __u64 length) {
  char piece[GLOO_PIECE] = {}; /* kernels before 6.3 refuse to read a variable number of bytes into a stack without values */
  if (!length) return 0;
  hash = (hash ^ length) * FNV_PRIME;
  for (int at = 0; at < GLOO_NAME; at += GLOO_PIECE) {
    if (at >= length) break;
    __u64 bytes = length - at;
    if (bytes > GLOO_PIECE) bytes = GLOO_PIECE;
    if (bpf_probe_read_user(piece, bytes, (const void *)(text + at))) return 0;
    for (int i = 0; i < GLOO_PIECE; i++) {
      if (i >= bytes) break;
      if ((__u8)piece[i] < ' ') return 0;
      hash = (hash ^ (__u8)piece[i]) * FNV_PRIME;
    }
  }
  return hash;
}

/* A std::string of libstdc++ among a store's first words: address, length, and then capacity or the text itself. Its word,
 * which is at most `GLOO_WORDS` - 4; 0: none. */
#define GLOO_WORDS 10
static __always_inline int gloo_string_at(const __u64 *words, __u64 at) {
  __u64 functions = 0, function = 0;
#pragma unroll
  for (int i = 1; i <= 4; i++)
    if (words[i] == at + (i + 2) * 8 && words[i + 1] < 16) return i;
  /* the address of an object with functions: what comes behind it need not belong to this one */
  if (!bpf_probe_read_user(&functions, sizeof functions, (const void *)words[1]) &&
      !bpf_probe_read_user(&function, sizeof function, (const void *)functions))
    return 0;
#pragma unroll
  for (int i = 1; i <= 4; i++) {
    if (words[i] > 1 << 16 && words[i + 1] > 15 && words[i + 1] <= words[i + 2] && words[i + 2] < 1 << 16) return i;
  }
  return 0;
}

/* One store: a name and the store that it is a prefix in (gloo's and PyTorch's PrefixStore), only another store (PyTorch's
 * GlooStore), or the last one. A path ends the chain; another name of the last one does not count: a server's address may be
 * another on its own host. */
static __noinline int gloo_add_store(struct gloo_chain *chain) {
  __u64 words[GLOO_WORDS], text = 0, length = 0, next = 0, inner = 0;
  if (!chain || bpf_probe_read_user(words, sizeof words, (const void *)chain->at)) return 0;
  switch (gloo_string_at(words, chain->at)) {
    case 0: next = words[1]; break;
    case 1: text = words[1]; length = words[2]; next = words[5]; break;
    case 2: text = words[2]; length = words[3]; next = words[6]; break;
    case 3: text = words[3]; length = words[4]; next = words[7]; break;
    case 4: text = words[4]; length = words[5]; next = words[8]; break;
  }
  bool last = bpf_probe_read_user(&inner, sizeof inner, (const void *)next) || inner < 1 << 16;
  char first = 0;
  if (text) bpf_probe_read_user(&first, 1, (const void *)text);
  if (text && (!last || first == '/')) {
    __u64 hash = gloo_hash_name(chain->hash, text, length);
    if (!hash) return 0;
    chain->hash = hash;
    chain->names++;
    if (first == '/') chain->path = 1;
  }
  chain->at = next;
  return !last && first != '/';
}

/* What the stores from this address on call a communicator; 0: nothing. The lowest bit says that this holds the path of a file.
 * (Not static: see `this_thread`.) */
__noinline __u64 gloo_name(__u64 store) {
  struct gloo_chain chain = {.at = store, .hash = FNV_BASIS};
  for (int i = 0; i < GLOO_STORES; i++)
    if (!gloo_add_store(&chain)) break;
  return chain.names ? (chain.hash & ~1ull) | (chain.path & 1) : 0;
}

/* The address of the store that names a communicator which is connected already: gloo's TCP keeps it since 2025, behind its
 * device, which the communicator has, too. 0: it is not kept. (Not static: see `this_thread`.) */
#define GLOO_TRANSPORT_WORDS 48
__noinline __u64 gloo_kept_store(__u64 numbers) {
  __u64 of_context[3], here = 0, next = 0; /* std::shared_ptr of the device, then that of the transport's communicator */
  if (bpf_probe_read_user(of_context, sizeof of_context, (const void *)(numbers + 16)) || !of_context[0]) return 0;
  __u64 at = 0, store = 0;
  for (int i = 3; i < GLOO_TRANSPORT_WORDS; i++) {
    if (bpf_probe_read_user(&next, sizeof next, (const void *)(of_context[2] + i * 8))) return 0;
    if (here == of_context[0] && next == of_context[1]) at = of_context[2] + (i + 1) * 8;
    here = next;
  }
  if (at) bpf_probe_read_user(&store, sizeof store, (const void *)at);
  return store;
}

/* What a communicator is called whose beginning was not seen; 0: nothing. */
static __always_inline __u64 gloo_name_kept(__u64 context, __u64 flags) {
  __u64 store = gloo_kept_store(context + (flags & RM_COOKIE_GLOO_VTABLE ? 8 : 0));
  return store ? gloo_name(store) : 0;
}

/* The first call in such a one: there were calls before. (Not static: see `this_thread`.) */
__noinline int gloo_meet(__u32 pid, __u64 context, __u64 flags, __u64 hash, __u32 func) {
  struct rm_comm_key key = {.pid = pid, .handle = context};
  struct rm_comm info = {.hash = hash, .flags = RM_HAVE_RANK | RM_UNCOUNTED};
  if (!gloo_read_rank(context, flags, &info.rank, &info.nranks)) return 0;
  if (info.hash) info.flags |= RM_HAVE_HASH;
  if (!take_room(pid, RM_ROOM_COMM, func)) return 0;
  /* Of several threads that look at the same moment one makes the entry. */
  if (bpf_map_update_elem(&comms, &key, &new_entry, BPF_NOEXIST)) {
    give_room(pid, RM_ROOM_COMM);
    return 0;
  }
  struct rm_comm_entry *entry = bpf_map_lookup_elem(&comms, &key);
  if (entry) entry->info = info;
  return 0;
}

/* A communicator begins or ends. (Neither is a call of ours: both may be left by an exception.) */
static __always_inline int gloo_change(struct pt_regs *ctx) {
  struct task_struct *task = this_task();
  if (!wanted(task)) return 0;
  __u64 cookie = cookie_of(ctx);
  if ((__u8)cookie >= RM_MAX_FUNCS) return 0;
  struct rm_comm_key key = {.pid = pid_of(task), .handle = PT_REGS_PARM1(ctx)};
  if ((__u8)(cookie >> 8) == RM_ROLE_GLOO_GONE) {
    comm_ends(key.pid, key.handle);
    return 0;
  }
  COUNT((__u8)cookie, hits);
  /* It is called with the address of a rendezvous::Context, which has functions; a Context without lies behind theirs. */
  if (!(cookie >> 32 & RM_COOKIE_GLOO_VTABLE)) key.handle += 8;
  struct rm_comm info = {};
  if (!gloo_read_rank(key.handle, cookie >> 32, &info.rank, &info.nranks)) return 0;
  info.flags = RM_HAVE_RANK;
  __u64 store = PT_REGS_PARM2(ctx);
  /* byte 2: the store comes by the address of a std::shared_ptr */
  if (cookie >> 16 & 1) bpf_probe_read_user(&store, sizeof store, (const void *)store);
  info.hash = gloo_name(store);
  if (info.hash) info.flags |= RM_HAVE_HASH;
  have_room(key.pid);
  if (make_comm(key.pid, key.handle, (__u8)cookie)) remember_comm(&key, &info);
  struct thread_state *state = current_thread(task);
  if (!state) state = new_thread();
  if (state) follow_once(state, true);
  return 0;
}
