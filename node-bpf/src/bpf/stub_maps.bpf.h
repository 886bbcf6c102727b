/* The maps by which a probe's stub (stub.bpf.c) hands on to a program of the capture object, which owns them. */
#pragma once

/* The cookie of the probe whose stub has just handed on to this program, on this CPU: before Linux 6.0 programs of probes
 * are not preempted. */
struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, __u64);
} probe_cookie SEC(".maps");

/* The programs that stubs hand on to; user space puts them in. */
struct {
  __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
  __uint(max_entries, 32);
  __type(key, __u32);
  __type(value, __u32);
} stub_targets SEC(".maps");
