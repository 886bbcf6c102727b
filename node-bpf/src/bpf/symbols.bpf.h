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
