/* Calls of the CUDA runtime, the CUDA driver and HIP: counted, see tally.bpf.h. Which functions, and where their
 * arguments are: src/cuda/functions.rs. */

SEC("uprobe.session")
int cuda_session(struct pt_regs *ctx) {
  return bpf_session_is_return() ? tally_return(ctx, false) : tally_enter(ctx, false);
}

SEC("uprobe.multi")
int cuda_enter_multi(struct pt_regs *ctx) {
  tally_enter(ctx, false);
  return 0;
}
SEC("uretprobe.multi")
int cuda_return_multi(struct pt_regs *ctx) { return tally_return(ctx, false); }

SEC("uprobe")
int cuda_enter_single(struct pt_regs *ctx) {
  tally_enter(ctx, false);
  return 0;
}
SEC("uretprobe")
int cuda_return_single(struct pt_regs *ctx) { return tally_return(ctx, false); }
