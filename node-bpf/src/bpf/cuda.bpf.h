/* Calls of the CUDA runtime, the CUDA driver and HIP: counted, see tally.bpf.h. Which functions, and where their
 * arguments are: src/cuda/functions.rs. */

PROBE_PROGRAMS(cuda, tally_enter(ctx, false), tally_return(ctx, false))
