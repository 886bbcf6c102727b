/* How NCCL names its communicators: the hash of a unique id, and of a split. src/nccl_hash.rs says which version does which. */

/* NCCL's hash of a unique id up to 2.25: DJB2a (times 33, xor) over 128 signed chars (unsigned on aarch64). */
static __always_inline __u64 hash_djb(const char *id) {
  __u64 hash = 5381;
#pragma unroll
  for (int i = 0; i < 128; i++)
#if defined(__TARGET_ARCH_x86)
    hash = ((hash << 5) + hash) ^ (__u64)(__s64)(signed char)id[i];
#else
    hash = ((hash << 5) + hash) ^ (__u64)(__u8)id[i];
#endif
  return hash;
}

/* From 2.26: words mixed into two accumulators. mix_size starts a field, mix_word takes up to eight bytes of it. */
struct mix { __u64 a, b; };
static __always_inline void mix_word(struct mix *m, __u64 word) {
  m->a += m->b;
  m->b ^= m->a;
  m->a ^= m->a >> 31;
  m->a *= 0x9de62bbc8cef3ce3ull;
  m->b ^= m->b >> 32;
  m->b *= 0x485cd6311b599e79ull;
  m->a += word;
}
static __always_inline __u64 mix_digest(const struct mix *m) {
  __u64 h = m->a;
  h ^= h >> 31;
  h *= 0xbac3bd562846de6bull;
  h += m->b;
  h ^= h >> 32;
  h *= 0x995a187a14e7b445ull;
  return h;
}
static __always_inline __u64 hash_mix(const __u64 *id) {
  struct mix m = {1 ^ 128, 1};
#pragma unroll
  for (int i = 0; i < 16; i++) mix_word(&m, id[i]);
  return mix_digest(&m);
}
static __always_inline __u64 hash_split(__u64 parent, __u32 child, __u32 color) {
  struct mix m = {1, 1};
  m.a ^= 8;
  mix_word(&m, parent);
  m.a ^= 4;
  mix_word(&m, child);
  m.a ^= 4;
  mix_word(&m, color);
  return mix_digest(&m);
}

/* Up to 2.22: DJB2a over the text "%016lx-%d" of the parent's hash and the color, in 128 bytes filled up with zeros.
 * (Not static: see `this_thread`.) */
__noinline __u64 hash_split_text(__u64 parent, __u32 color) {
  __u64 hash = 5381;
  __u32 divisor = 1000000000;
  int written = 17;
  for (int shift = 60; shift >= 0; shift -= 4) {
    __u64 digit = (parent >> shift) & 15;
    hash = hash * 33 ^ (digit < 10 ? '0' + digit : 'a' - 10 + digit);
  }
  hash = hash * 33 ^ '-';
  for (int i = 0; i < 10; i++) {
    __u32 digit = color / divisor % 10;
    if (written > 17 || digit || i == 9) {
      hash = hash * 33 ^ ('0' + digit);
      written++;
    }
    divisor /= 10;
  }
  for (int i = 0; i < 128; i++) {
    if (i < 128 - written) hash *= 33;
  }
  return hash;
}

static __always_inline bool hash_id(__u64 user_address, __u64 flags, __u64 *hash) {
  __u64 id[16];
  if (bpf_probe_read_user(id, sizeof id, (const void *)user_address)) return false;
  *hash = flags & RM_COOKIE_HASH_MIX ? hash_mix(id) : hash_djb((const char *)id);
  return true;
}
