/* When the reader of a ring is woken: it looks every now and then anyway, and a wake-up costs more than a record. */
#pragma once

/* Flags for a record, once reserved: wakes the reader where at least `mark` bytes wait, and again when as many more were
 * written, not for each record of a reader that has no CPU. `woke_at` is of this ring: the position of the last record that
 * woke its reader (two CPUs may both take theirs for the first beyond the mark). */
static __always_inline __u64 ring_wakes(void *ring, __u64 mark, volatile __u64 *woke_at) {
  if (bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) < mark) return BPF_RB_NO_WAKEUP;
  __u64 end = bpf_ringbuf_query(ring, BPF_RB_PROD_POS);
  if (end - *woke_at < mark) return BPF_RB_NO_WAKEUP;
  *woke_at = end;
  return BPF_RB_FORCE_WAKEUP;
}
