/* Programs that do nothing, to measure what a probe costs before it does anything. Loaded by src/measure.rs only. */
#include "kernel.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("uprobe.session")
int empty_session(struct pt_regs *ctx) { return 0; }
SEC("uprobe.multi")
int empty_enter_multi(struct pt_regs *ctx) { return 0; }
SEC("uretprobe.multi")
int empty_return_multi(struct pt_regs *ctx) { return 0; }
SEC("uprobe")
int empty_enter_single(struct pt_regs *ctx) { return 0; }
SEC("uretprobe")
int empty_return_single(struct pt_regs *ctx) { return 0; }
