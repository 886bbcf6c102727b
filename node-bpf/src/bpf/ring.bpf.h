/* When the reader of a ring is woken: it looks every now and then anyway, and a wake-up costs more than a record. */
#pragma once

/* Records in the first so many bytes after each multiple of the mark wake the reader. */
#define RM_WAKE_WITHIN 16384

/* Flags for a record, once reserved: wakes the reader where at least `mark` bytes wait (a power of two), and again each time
 * that as many more were written, not for each record of a reader that has no CPU. */
static __always_inline __u64 ring_wakes(void *ring, __u64 mark) {
  if (bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) < mark) return BPF_RB_NO_WAKEUP;
  return (bpf_ringbuf_query(ring, BPF_RB_PROD_POS) & (mark - 1)) < RM_WAKE_WITHIN ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}
