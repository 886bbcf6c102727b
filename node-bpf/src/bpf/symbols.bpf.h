/* Calls of any function, and USDT points, that the user asked for: counted, see tally.bpf.h. Which: src/symbol_probes. */

/* Hits of each attachment, whoever made them: user space takes it off where they are too many. */
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, RM_SYMBOL_ATTACHMENTS);
  __type(key, __u32);
  __type(value, __u64);
} symbol_hits SEC(".maps");

static __always_inline void symbol_hit(struct pt_regs *ctx) {
  __u32 attachment = cookie_of(ctx) >> 32;
  __u64 *hits = bpf_map_lookup_elem(&symbol_hits, &attachment);
  if (hits) __sync_fetch_and_add(hits, 1);
}

POINT_PROGRAMS(symbol_point, (symbol_hit(ctx), tally_point(ctx)))

/* They have no return probes, whose changed return address would stop an exception, or a jump, and end the program: their ends are
 * probed, where the stack pointer is what it was at the entry. */
POINT_PROGRAMS(symbol_entry, (symbol_hit(ctx), tally_enter(ctx, true), 0))
POINT_PROGRAMS(symbol_exit, (symbol_hit(ctx), tally_left(ctx, PT_REGS_SP(ctx), true)))
