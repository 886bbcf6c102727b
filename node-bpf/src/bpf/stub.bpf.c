/* The program of one probe where the kernel gives probes no cookie (before Linux 5.15): it notes the cookie for the common
 * program and hands on to it. Loaded once for each probe, with that probe's numbers: src/stubs.rs. */
#include "kernel.h"
#include <bpf/bpf_helpers.h>

#include "stub_maps.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile struct {
  __u64 cookie;
  __u32 target; /* where in `stub_targets` the common program is */
  __u32 pad;
} stub SEC(".rodata.stub");

SEC("uprobe")
int hand_on(struct pt_regs *ctx) {
  __u32 zero = 0;
  __u64 *cookie = bpf_map_lookup_elem(&probe_cookie, &zero);
  if (!cookie) return 0;
  *cookie = stub.cookie;
  bpf_tail_call(ctx, &stub_targets, stub.target);
  return 0;
}
