/* Calls of any function, and USDT points, that the user asked for: counted, see tally.bpf.h. Which: src/symbol_probes. */

POINT_PROGRAMS(symbol_point, tally_point(ctx))

/* They have no return probes, whose changed return address would stop an exception, or a jump, and end the program: their ends are
 * probed, where the stack pointer is what it was at the entry. */
POINT_PROGRAMS(symbol_entry, (tally_enter(ctx, true), 0))
POINT_PROGRAMS(symbol_exit, tally_left(ctx, PT_REGS_SP(ctx), true))
