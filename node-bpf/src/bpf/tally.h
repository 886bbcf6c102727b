/* The wire truth of counted calls (CUDA, HIP, --probe, --usdt): what the maps of tally.bpf.h hold and the record of a
 * single call. src/tally/wire.rs mirrors it; both sides assert the sizes. wire.h has the rest. */
#ifndef RANKMESH_TALLY_H
#define RANKMESH_TALLY_H

/* Functions of all counted libraries together; the number is given out by src/tally/registry.rs. */
#define RM_TALLY_FUNCS 2048

/* Attach cookie, one field after the other from the low end:
 * 16 bits function, 8 bits api (0: none, nested calls count each; else only the outermost call of an api on a thread),
 * 8 bits flags, 8 bits argument that holds the bytes (low half; the high half names a second factor), 8 bits kind
 * argument (low half) and shift of the bytes (high half), 8 bits stream argument. 15 in a half and 0xff in a byte: none. */
#define RM_TALLY_SYNC 1          /* waits for the device: a record of its own when it follows a collective */
#define RM_TALLY_CAPTURE_BEGIN 4 /* what follows on the stream goes into a graph … */
#define RM_TALLY_CAPTURE_END 8   /* … until here */
#define RM_TALLY_STREAM_BEHIND 2 /* the stream argument points to a launch configuration, whose stream is at 32 */
#define RM_TALLY_EVENT_RECORD 16 /* marks a place of its stream with the event that is its first argument … */
#define RM_TALLY_EVENT_WAIT 32   /* … and lets its stream wait for that of its second */
#define RM_TALLY_HANDS_OVER 64   /* an end at which another function is jumped to, which returns in its place */

/* Of functions and points that the user named, the upper half of the cookie is the number of the attachment: an index of
 * symbol_hits. */
#define RM_SYMBOL_ATTACHMENTS 4096

/* Durations fall into buckets: below 32 ns one each, then 32 to every power of two. Only those in use exist. */
struct rm_tally_key {
  unsigned int pid;
  unsigned short func;
  unsigned short bucket;
};

struct rm_tally {
  unsigned long long count;
  unsigned long long sum_ns;
  unsigned long long min_ns;
  unsigned long long max_ns;
  unsigned long long bytes;
  unsigned long long cgroup_id; /* of the first call */
};

/* Of every function, written by user space: which calls become records of their own. */
struct rm_tally_rule {
  unsigned long long row_min_ns; /* those of this duration or longer */
  unsigned long long rows_until; /* while rm_tally_func.rows is below this; urgent ones also after */
};

/* Counters of every function. */
struct rm_tally_func {
  unsigned long long rows;       /* records made */
  unsigned long long withheld;   /* long enough, but the budget of this second was spent */
  unsigned long long lost_ring;
  unsigned long long lost_map;
  unsigned long long unmatched;
};

/* The one entry of tally_control. */
#define RM_TALLY_BUDGETS 4
enum rm_tally_budget { RM_TALLY_SLOW_CUDA = 0, RM_TALLY_SYNCS = 1, RM_TALLY_SYMBOLS = 2, RM_TALLY_POINTS = 3 };
struct rm_tally_control {
  unsigned int epoch; /* 0 or 1: the map that is counted in */
  unsigned int most_rows[RM_TALLY_BUDGETS];
  unsigned int pad;
};

/* A call as a record of its own, in the ring buffer. */
#define RM_TALLY_ROW 64 /* kind; see enum rm_kind */
#define RM_TALLY_AFTER_COLLECTIVE 1
#define RM_TALLY_HAVE_BYTES 2
#define RM_TALLY_HAVE_KIND 4
#define RM_TALLY_HAVE_STREAM 8
#define RM_TALLY_NO_RETURN 16 /* what is returned is not known */
struct rm_tally_row {
  unsigned int kind;
  unsigned short func;
  unsigned short flags;
  unsigned long long enter_ns; /* CLOCK_MONOTONIC */
  unsigned long long exit_ns;
  unsigned int pid, tid;
  unsigned long long cgroup_id;
  unsigned long long bytes;
  unsigned long long stream;
  unsigned long long ret;
  int copy_kind;
  unsigned int pad;
};

_Static_assert(sizeof(struct rm_tally_key) == 8, "src/tally/wire.rs reads 8 bytes");
_Static_assert(sizeof(struct rm_tally) == 48, "src/tally/wire.rs reads 48 bytes");
_Static_assert(sizeof(struct rm_tally_func) == 40, "src/tally/wire.rs reads 40 bytes");
_Static_assert(sizeof(struct rm_tally_rule) == 16, "src/tally/wire.rs writes 16 bytes");
_Static_assert(sizeof(struct rm_tally_control) == 24, "src/tally/wire.rs writes 24 bytes");
_Static_assert(sizeof(struct rm_tally_row) == 72, "src/tally/wire.rs reads 72 bytes");

#endif
