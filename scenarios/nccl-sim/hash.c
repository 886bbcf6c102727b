/* The hash by which NCCL calls a communicator in its logs, as the version that we say we are computes it. Capture
 * computes the same from the arguments it sees, and reads it from here when it comes late. Definitions:
 * node-bpf/src/nccl_hash.rs. */
#include <stdio.h>
#include <string.h>
#include "sim.h"

static int minor_version(void) {
  int minor = 0;
  sscanf(NCCL_SIM_VERSION, "%*d.%d", &minor);
  return minor;
}

static uint64_t djb(const char *bytes, size_t n) {
  uint64_t hash = 5381;
  for (size_t i = 0; i < n; i++) hash = hash * 33 ^ (uint64_t)(int64_t)bytes[i];
  return hash;
}

struct mix { uint64_t a, b; };

static void mix_in(struct mix *m, const void *bytes, size_t n) {
  m->a ^= n;
  for (size_t at = 0; at < n; at += 8) {
    uint64_t word = 0;
    memcpy(&word, (const char *)bytes + at, n - at < 8 ? n - at : 8);
    m->a += m->b;
    m->b ^= m->a;
    m->a = (m->a ^ m->a >> 31) * 0x9de62bbc8cef3ce3ull;
    m->b = (m->b ^ m->b >> 32) * 0x485cd6311b599e79ull;
    m->a += word;
  }
}

static uint64_t mixed(const struct mix *m) {
  uint64_t h = (m->a ^ m->a >> 31) * 0xbac3bd562846de6bull + m->b;
  return (h ^ h >> 32) * 0x995a187a14e7b445ull;
}

uint64_t sim_id_hash(const ncclUniqueId *id) {
  if (minor_version() < 26) return djb(id->internal, sizeof id->internal);
  struct mix m = {1, 1};
  mix_in(&m, id->internal, sizeof id->internal);
  return mixed(&m);
}

uint64_t sim_split_hash(uint64_t parent, int child, int color) {
  if (minor_version() < 26) {
    ncclUniqueId text = {{0}};
    /* 2.23 to 2.25 do it in a way of their own, not known here: the number of the split stands for it */
    if (minor_version() <= 22) snprintf(text.internal, sizeof text.internal, "%016llx-%d", (unsigned long long)parent, color);
    else snprintf(text.internal, sizeof text.internal, "%016llx-%d-%d", (unsigned long long)parent, child, color);
    return djb(text.internal, sizeof text.internal);
  }
  struct mix m = {1, 1};
  mix_in(&m, &parent, sizeof parent);
  mix_in(&m, &child, sizeof child);
  mix_in(&m, &color, sizeof color);
  return mixed(&m);
}
