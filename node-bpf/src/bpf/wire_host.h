/* The wire truth of the host's signals: block requests, memory, beginnings and ends of processes; and what user space
 * may turn while capture runs. Included by wire.h; src/host/wire.rs mirrors it. */
#ifndef RANKMESH_WIRE_HOST_H
#define RANKMESH_WIRE_HOST_H

enum rm_host_kind { RM_BLOCK = 16, RM_MEMORY = 17, RM_LIFE = 18, RM_VERBS = 19 };

struct rm_block {
  unsigned int kind;
  unsigned int op; /* low byte of the request's flags (enum req_op) */
  unsigned long long insert_ns; /* into the kernel's queue; 0: not seen */
  unsigned long long issue_ns;  /* to the device */
  unsigned long long end_ns;
  unsigned int pid, tid;
  unsigned long long cgroup_id;
  unsigned int major, minor;
  unsigned int bytes;
  int error; /* a negative errno (before Linux 5.16), else a blk_status_t */
  char disk[16];
};

enum rm_memory_event {
  RM_MAJOR_FAULT = 1,
  RM_DIRECT_RECLAIM = 2,
  RM_CGROUP_RECLAIM = 3,
  RM_OOM_KILL = 4,
  RM_UNTIMED_FAULT = 5, /* a major fault whose beginning was not seen */
};
struct rm_memory {
  unsigned int kind;
  unsigned int event;
  unsigned long long start_ns; /* of the first */
  unsigned long long sum_ns;   /* what all took together; 0: not known */
  unsigned int pid, tid;
  unsigned long long cgroup_id;
  unsigned long long pages; /* reclaimed */
  unsigned int count;       /* events in this record */
  unsigned int pad;
};

/* Short events of a thread that follow each other closely make one record (bursts.bpf.h). The key of the map `bursts`: the
 * event in the upper, the thread in the lower half. */
struct rm_burst {
  unsigned long long start_ns; /* of the first */
  unsigned long long end_ns;   /* of the last so far */
  unsigned long long sum_ns;
  unsigned long long pages;
  unsigned long long cgroup_id;
  unsigned int pid;
  unsigned int count; /* 0: none */
};
#define RM_BURST_NS 50000000 /* no burst is longer … */
#define RM_PAUSE_NS 10000000 /* … and none has a longer pause in it */

enum rm_life_event { RM_LIFE_FORK = 1, RM_LIFE_EXEC = 2, RM_LIFE_EXIT = 3, RM_LIFE_OOM_KILLED = 4 };
struct rm_life {
  unsigned int kind;
  unsigned int event;
  unsigned long long ts_ns;
  unsigned int pid, parent;
  unsigned long long cgroup_id;
  int exit_code; /* as wait(2) tells it: code << 8 | signal */
  unsigned int pad;
  char comm[16];
};

/* An asynchronous event of an InfiniBand or RoCE device (verbs.bpf.h, src/verbs). */
struct rm_verbs {
  unsigned int kind;
  unsigned int type; /* enum ibv_event_type */
  unsigned long long ts_ns;
  unsigned int pid, tid;
  unsigned long long cgroup_id;
  unsigned int port; /* of events of a port; else nonsense */
  unsigned int pad;
  char device[64];
};
/* in struct ibv_async_event, in struct ibv_device */
#define RM_VERBS_EVENT_TYPE_AT 8
#define RM_VERBS_DEVICE_NAME_AT 24

/* slots of the map host_stats (struct rm_stats) */
enum rm_host_slot {
  RM_HOST_BLOCK = 0,
  RM_HOST_FAULT = 1,
  RM_HOST_RECLAIM = 2,
  RM_HOST_OOM = 3,
  RM_HOST_LIFE = 4,
  RM_HOST_VERBS = 5,
  RM_HOST_SLOTS = 6,
};

/* The section .data.tuning: user space writes it whole. Thresholds never lie below those of rm_config. */
struct rm_tuning {
  unsigned long long offcpu_min_ns; /* shorter stretches are shed */
  unsigned long long block_min_ns;  /* shorter requests are shed */
  unsigned int shed_p2p;            /* 1: no rows of point-to-point calls */
  unsigned int pad;
  /* Calls of frequent functions were missed up to this time (kernel time; the largest number: they are being missed now; 0:
   * none were). */
  unsigned long long missed_until_ns;
};

_Static_assert(sizeof(struct rm_block) == 80, "src/host/wire.rs reads 80 bytes");
_Static_assert(sizeof(struct rm_memory) == 56, "src/signals/wire.rs reads 56 bytes");
_Static_assert(sizeof(struct rm_burst) == 48, "src/signals/bursts.rs reads 48 bytes");
_Static_assert(sizeof(struct rm_life) == 56, "src/host/wire.rs reads 56 bytes");
_Static_assert(sizeof(struct rm_verbs) == 104, "src/verbs/mod.rs reads 104 bytes");
_Static_assert(sizeof(struct rm_tuning) == 32, "src/host/wire.rs writes 32 bytes");

#endif
