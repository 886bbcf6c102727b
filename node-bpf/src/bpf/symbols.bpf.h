/* Calls of any function, and USDT points, that the user asked for: counted, see tally.bpf.h. Which: src/symbol_probes. */

SEC("uprobe.session")
int symbol_session(struct pt_regs *ctx) {
  return bpf_session_is_return() ? tally_return(ctx, true) : tally_enter(ctx, true);
}

SEC("uprobe.multi")
int symbol_enter_multi(struct pt_regs *ctx) {
  tally_enter(ctx, true);
  return 0;
}
SEC("uretprobe.multi")
int symbol_return_multi(struct pt_regs *ctx) { return tally_return(ctx, true); }

SEC("uprobe")
int symbol_enter_single(struct pt_regs *ctx) {
  tally_enter(ctx, true);
  return 0;
}
SEC("uretprobe")
int symbol_return_single(struct pt_regs *ctx) { return tally_return(ctx, true); }

/* Points: the same program in every mode. */
SEC("uprobe.multi")
int symbol_point_session(struct pt_regs *ctx) { return tally_point(ctx); }
SEC("uprobe.multi")
int symbol_point_multi(struct pt_regs *ctx) { return tally_point(ctx); }
SEC("uprobe")
int symbol_point_single(struct pt_regs *ctx) { return tally_point(ctx); }

/* Functions that an exception may leave have no return probe, whose changed return address would stop it: their ends are
 * probed, where the stack pointer is what it was at the entry. */
SEC("uprobe.multi")
int symbol_entry_session(struct pt_regs *ctx) {
  tally_enter(ctx, true);
  return 0;
}
SEC("uprobe.multi")
int symbol_entry_multi(struct pt_regs *ctx) {
  tally_enter(ctx, true);
  return 0;
}
SEC("uprobe")
int symbol_entry_single(struct pt_regs *ctx) {
  tally_enter(ctx, true);
  return 0;
}
SEC("uprobe.multi")
int symbol_exit_session(struct pt_regs *ctx) { return tally_left(ctx, PT_REGS_SP(ctx), true); }
SEC("uprobe.multi")
int symbol_exit_multi(struct pt_regs *ctx) { return tally_left(ctx, PT_REGS_SP(ctx), true); }
SEC("uprobe")
int symbol_exit_single(struct pt_regs *ctx) { return tally_left(ctx, PT_REGS_SP(ctx), true); }
