/* The wire truth between the BPF programs and Rust: every record in the ring buffer, the attach cookie, the
 * configuration and the statistics. src/wire.rs mirrors it field by field; both sides assert the sizes. Little and
 * big endian hosts alike: records never leave the host in this form. */
#ifndef RANKMESH_WIRE_H
#define RANKMESH_WIRE_H

/* kind: first word of every record */
/* RM_FOUND: the first traced call of a process begins; user space is to read who it is while it lives. */
/* RM_MPI_BEGAN: MPI_Init has returned: user space is to see where its library keeps what. */
/* RM_COMM_BEGINS: a struct rm_call of the call that has made a communicator of MPI, about that one: its identity, rank and size,
 * its handle as the only argument. So its members are known before their first call on it. */
enum rm_kind {
  RM_CALL = 1,
  RM_OFFCPU = 2,
  RM_TCP = 3,
  RM_EXEC = 4,
  RM_EXIT = 5,
  RM_FOUND = 6,
  RM_MPI_BEGAN = 7,
  RM_COMM_BEGINS = 8
};

/* The attach cookie says all the programs need to know of a function, one byte each from the low end:
 * func (index of the function table in src/functions.rs, also its statistics slot), role, number of arguments to
 * record, index of the communicator argument (RM_NO_ARG: none), flags, the counter of its communicator that counts it,
 * index of the stream argument (RM_NO_ARG: none; of MPI, which has no streams, enum rm_makes or rm_groups, or of what makes a persistent collective the `func` of its
 * starts), index of the
 * argument with the address of what is made, or of gloo's functions the place of the tag (gloo.bpf.h). */
enum rm_role {
  RM_ROLE_CALL = 0,       /* a collective or point-to-point call: becomes a record */
  RM_ROLE_INIT_RANK = 1,  /* ncclCommInitRank[Config](comm*, nranks, id by value, rank) */
  RM_ROLE_INIT_SCALABLE = 2, /* ncclCommInitRankScalable(comm*, nranks, rank, nid, ids*, config) */
  RM_ROLE_INIT_ALL = 3,   /* ncclCommInitAll(comms*, ndev, devices*) */
  RM_ROLE_SPLIT = 4,      /* ncclCommSplit(comm, color, key, newcomm*, config) */
  RM_ROLE_DESTROY = 5,    /* ncclCommDestroy / ncclCommAbort (comm) */
  RM_ROLE_UNIQUE_ID = 6,  /* ncclGetUniqueId(id*): of use only inside ncclCommInitAll */
  RM_ROLE_MPI_INIT = 7,   /* MPI_Init / MPI_Init_thread: from here on sequence numbers are complete */
  RM_ROLE_GROUP_START = 9, /* ncclGroupStart: calls from here on only note what is wanted */
  RM_ROLE_GROUP_END = 10,  /* ncclGroupEnd: the outermost one starts it, and becomes a record */
  RM_ROLE_GLOO_CONNECT = 20, /* gloo::rendezvous::Context::connectFullMesh: a communicator, and the store that names it */
  RM_ROLE_GLOO_GONE = 21,    /* gloo::Context::~Context */
  RM_ROLE_CHILD = 8,      /* ncclCommShrink, ncclCommGrow: a new communicator, its address where the communicator argument says */
  RM_ROLE_MPI_MAKES = 11, /* a record, and a communicator or window of MPI: enum rm_makes says what it is known by (mpi.bpf.h) */
  RM_ROLE_MPI_FREE = 12,  /* a record, and the end of one; its handle is where the first argument points to */
  RM_ROLE_MPI_GROUP = 13, /* a group of MPI: enum rm_groups */
  RM_ROLE_MPI_BEGINS = 14, /* a record, and a request that MPI_Wait and its like wait for */
  RM_ROLE_MPI_PERSISTS = 15, /* a record, and a persistent collective */
  RM_ROLE_MPI_STARTS = 16, /* a record of each persistent collective that it starts, as of a nonblocking one */
  RM_ROLE_MPI_REQUEST_FREE = 17, /* no record: a persistent collective ends */
};
#define RM_NO_ARG 0xff
#define RM_WORLD_ARG 0xfe /* in place of the communicator's argument: it is MPI_COMM_WORLD */
/* cookie flags */
#define RM_COOKIE_GLOO 0x80 /* the argument is the address of gloo's options (gloo.bpf.h) */
#define RM_COOKIE_GLOO_VTABLE 1 /* with it: this gloo's Context begins with the address of its functions, not with its rank */
#define RM_COOKIE_HASH_MIX 1 /* this NCCL hashes ids with its mixing hash, not with DJB2a (src/nccl_hash.rs) */
#define RM_COOKIE_MPI 2
#define RM_COOKIE_RCCL 4 /* of MPI: its counts are words of 64 bits */
#define RM_COOKIE_INT_HANDLES 0x10 /* this MPI's handles are ints (MPICH and its kin), not addresses */
#define RM_COOKIE_UNNUMBERED 0x20 /* not every rank of the communicator makes it: it has no numbers */
#define RM_COOKIE_P2P 0x40 /* point-to-point: no position, and its rows may be shed under load (struct rm_tuning) */
#define RM_COOKIE_SPLIT_TEXT 8 /* this NCCL hashes a split's text (src/nccl_hash.rs); else without HASH_MIX it is unknown how */

#define RM_MAX_ARGS 12
#define RM_MAX_FUNCS 224
/* statistics slots behind those of the functions */
#define RM_SLOT_OFFCPU 220
#define RM_SLOT_TCP 221
#define RM_SLOT_PROCESS 222

/* rm_call.flags */
#define RM_HAVE_HASH 1
#define RM_HAVE_SEQ 2
#define RM_HAVE_RANK 4
#define RM_FROM_RCCL 8
#define RM_LARGE_COUNTS RM_FROM_RCCL /* of MPI: its counts are words of 64 bits */
#define RM_IN_GROUP 16
#define RM_CAPTURED 32      /* its stream was being captured into a graph */
#define RM_CAPTURE_KNOWN 64
/* its thread ended in it, then: `ret` says nothing (of the kernel's records; in the rings of shim/ring.h RM_DEVICE_TIMES) */
#define RM_NOT_RETURNED 128

/* rm_call.comm_seq where there is none. */
#define RM_NO_POSITION (~0ull)

struct rm_call {
  unsigned int kind;
  unsigned char func;
  unsigned char flags;
  unsigned short site_high;    /* bits 32 to 47 of where it returned to; 0 with site_low: not known */
  unsigned long long enter_ns; /* CLOCK_MONOTONIC */
  unsigned long long exit_ns;
  unsigned int pid, tid;
  unsigned long long cgroup_id;
  unsigned long long comm_hash; /* of MPI: relative to the job's MPI_COMM_WORLD (identity.h) */
  unsigned long long seq;
  unsigned long long comm_seq;
  int rank, nranks;
  int ret;
  unsigned int site_low;
  unsigned long long args[RM_MAX_ARGS];
};
/* The record of a call with few arguments (nearly all) ends with as many: what is not written costs no time and no room. */
#define RM_SHORT_ARGS 7
#define RM_SHORT_CALL (sizeof(struct rm_call) - (RM_MAX_ARGS - RM_SHORT_ARGS) * 8)

#define RM_STACK_DEPTH 12

struct rm_offcpu {
  unsigned int kind;
  unsigned int cpu;
  unsigned long long start_ns;
  unsigned long long end_ns;
  unsigned int pid, tid;
  unsigned long long cgroup_id;
  unsigned int next_pid; /* thread group of the task that took the CPU */
  unsigned int voluntary;
  char next_comm[16];
  unsigned long long wake_ns; /* when it was runnable again; 0: it had been all the time, or that was not seen */
  unsigned int state;         /* task state when it left the CPU */
  unsigned int stack_bytes;   /* how much of `stack` is filled; 0: not taken */
  unsigned int iowait;        /* 1: the kernel counts the wait as one for IO */
  unsigned int throttled;     /* 1: it could run, but the CPU quota of its cgroup was used up */
  unsigned long long stack[RM_STACK_DEPTH]; /* kernel return addresses, innermost first, of a voluntary stretch */
};

enum rm_tcp_event { RM_TCP_RETRANSMIT = 0, RM_TCP_SEND_RESET = 1, RM_TCP_RECEIVE_RESET = 2 };

struct rm_tcp {
  unsigned int kind;
  unsigned int state;
  unsigned long long ts_ns;
  unsigned long long cgroup_id;
  unsigned long long socket_inode;
  unsigned short family; /* 2 or 10 */
  unsigned short sport, dport; /* host order */
  unsigned short event; /* enum rm_tcp_event */
  unsigned int segs;
  unsigned int pad2;
  unsigned char saddr[16], daddr[16]; /* IPv4 in the first four bytes */
};

struct rm_process { /* RM_EXEC, RM_EXIT, RM_FOUND, RM_MPI_BEGAN */
  unsigned int kind;
  unsigned int pid;
  unsigned long long ts_ns;
};

/* One per statistics slot and CPU. */
struct rm_stats {
  unsigned long long hits;      /* outermost entries, after the cgroup filter */
  unsigned long long lost_ring; /* no room in the ring buffer */
  unsigned long long lost_map;  /* no room in a map: the call was not followed */
  unsigned long long unmatched; /* an entry whose return never came */
  unsigned long long shed;      /* not recorded because there was too much (struct rm_tuning) */
};

/* What the programs take: the slots, named in src/self_stats.rs, and one slot's numbers of one CPU. */
enum rm_program {
  RM_PROGRAM_CALL_ENTER,
  RM_PROGRAM_CALL_RETURN,
  RM_PROGRAM_CUDA_ENTER,
  RM_PROGRAM_CUDA_RETURN,
  RM_PROGRAM_SYMBOL_ENTER,
  RM_PROGRAM_SYMBOL_RETURN,
  RM_PROGRAM_SYMBOL_POINT,
  RM_PROGRAM_SWITCH,
  RM_PROGRAM_WAKEUP,
  RM_PROGRAM_EXEC,
  RM_PROGRAM_EXIT,
  RM_PROGRAM_FORK,
  RM_PROGRAM_TCP,
  RM_PROGRAM_BLOCK,
  RM_PROGRAM_MEMORY,
  RM_PROGRAM_VERBS,
  RM_PROGRAMS
};
struct rm_program_time {
  unsigned long long runs;
  unsigned long long measured; /* of these were measured … */
  unsigned long long measured_ns; /* … and took this together */
  unsigned long long skip;     /* runs until the next is measured */
};

#include "wire_host.h"

#define RM_EVERYBODY 0xffffffff /* no user has this number */

struct rm_config {
  unsigned long long cgroup_id;       /* 0: no filter; else also cgroup_array[0] holds the cgroup */
  unsigned long long offcpu_min_ns;   /* shorter stretches are not recorded */
  unsigned long long wake_bytes;      /* wake the reader when this much waits in the ring */
  unsigned int own_pid;               /* the agent itself is never recorded */
  unsigned int only_uid;              /* RM_EVERYBODY; else of nobody but this user (owner.bpf.h) */
  unsigned long long block_min_ns;    /* shorter block requests are not recorded */
  unsigned int queue_first;           /* 1: the tracepoints of block requests pass the queue before the request */
  unsigned int pad;
};

/* A call that has not returned. */
struct rm_inflight {
  unsigned long long enter_ns;
  unsigned long long sp;
  unsigned long long seq;
  unsigned long long comm_seq;
  unsigned long long hash; /* the communicator's; of the init calls: the id's */
  unsigned long long cgroup_id;
  unsigned char func, role, have_seq, have_hash;
  int rank;
  int nranks;
  unsigned int comm_flags; /* RM_HAVE_HASH, RM_HAVE_RANK: what is known of the communicator stands here */
  unsigned long long handle; /* the communicator's; 0: the call has none */
  unsigned long long args[RM_MAX_ARGS];
};
/* What the iterator `open_calls` writes of each thread that is in a call. */
struct rm_open_call {
  unsigned int pid, tid;
  struct rm_inflight call;
};
/* Maps that user space reads, too. */
/* `comms` */
struct rm_comm_key {
  unsigned int pid;
  unsigned int pad;
  unsigned long long handle;
};
struct rm_comm {
  unsigned long long hash;
  int rank, nranks;
  unsigned int flags;    /* RM_HAVE_HASH, RM_HAVE_RANK, RM_UNCOUNTED, RM_MET_EARLY */
  unsigned int children; /* NCCL's splits made of it */
};
#define RM_UNCOUNTED 256 /* there were calls before those that were seen: they have no numbers */
#define RM_MET_EARLY 512 /* the first call came before user space had told which handle is MPI_COMM_WORLD */

/* `mpi_processes`: what user space knows of a process's MPI library (src/mpi/): handles, and where the library keeps rank and
 * size of a communicator. Open MPI's handle is the address of a structure; MPICH's leads to an entry of a table. */
struct rm_mpi {
  unsigned long long world, self, none; /* handles; none: MPI_COMM_NULL */
  unsigned long long host;     /* names the host as MPI sees it: for communicators of the ranks of a host */
  unsigned long long builtin, direct, indirect; /* MPICH: its tables; of the last the address of the kind in its description */
  unsigned int entry_bytes;    /* MPICH: of an entry of these */
  unsigned int rank_at;        /* offset in the structure; 0: nothing is known of it */
  unsigned int size_at;        /* offset in the structure; of Open MPI, in the group */
  unsigned int group_at, remote_at; /* Open MPI: offsets of the pointers to the groups */
  unsigned int members_at, name_at; /* Open MPI: of the members in a group, of the name in a member; 0: not known */
  unsigned int pad;
};

/* What entries of maps are for that a user can make at will, and how many of each kind there are for all users together
 * (users.bpf.h, src/rooms.rs). */
enum rm_room_kind {
  RM_ROOM_PROCESS = 0, /* followed */
  RM_ROOM_CHILD = 1,   /* started by such a one */
  RM_ROOM_COMM = 2,
  RM_ROOM_PERSISTENT = 3,
  RM_ROOM_GROUP = 4,
  RM_ROOM_PENDING = 5, /* a process with communicators that are to come */
  RM_ROOM_BEGUN = 6,
  RM_ROOM_TALLY_0 = 7, /* of an epoch */
  RM_ROOM_TALLY_1 = 8,
  RM_ROOM_CONNECTION = 9, /* of a server whose requests are seen (requests.bpf.c) */
  RM_ROOM_STREAM = 10,    /* of an HTTP/2 connection, likewise */
  RM_ROOM_CALLER = 11,    /* a thread that makes calls that are requests, likewise */
  RM_ROOM_KINDS = 16   /* a power of two */
};
#define RM_MOST_PROCESSES 16384
#define RM_MOST_CHILDREN 16384
#define RM_MOST_COMMS 32768
#define RM_MOST_PERSISTENT 8192
#define RM_MOST_GROUPS 16384
#define RM_MOST_PENDING 2048
#define RM_MOST_BEGUN 16384
#define RM_MOST_TALLIES 65536
#define RM_MOST_CONNECTIONS 16384
#define RM_MOST_STREAMS 16384
#define RM_MOST_CALLERS 16384
/* Users that are told apart, with the two that are none; and who is counted for all further ones. */
#define RM_MOST_USERS 4096
#define RM_FURTHER_USERS 0xfffffffe

/* `rooms` */
struct rm_room {
  unsigned int user; /* as it was when the process was first seen: its entries are counted to it to the last */
  unsigned int held[RM_ROOM_KINDS];
};
/* `users`, `users_by_agent` */
struct rm_user {
  long long held[RM_ROOM_KINDS]; /* below 0 where one has counted what the other has removed */
};
/* `children` */
struct rm_child {
  unsigned int marks; /* as of `tracked` */
  unsigned int user;  /* to whom it is counted */
};

/* The value of `comms`; that of `learnt` is a struct rm_comm. */
#define RM_COUNTERS 96
struct rm_comm_entry {
  struct rm_comm info;
  unsigned long long counted_from_ns; /* no call on it was made before */
  unsigned long long position; /* collectives so far, over all functions */
  unsigned long long seqs[RM_COUNTERS]; /* calls so far, by the counter that the cookie names */
};

_Static_assert(sizeof(struct rm_open_call) == 176, "src/wire.rs reads 176 bytes");
_Static_assert(sizeof(struct rm_room) == 68 && sizeof(struct rm_user) == 128 && sizeof(struct rm_child) == 8,
               "src/rooms.rs reads and writes 68, 128 and 8 bytes");
_Static_assert(sizeof(struct rm_mpi) == 88, "src/wire.rs writes 88 bytes");
_Static_assert(sizeof(struct rm_comm_key) == 16 && sizeof(struct rm_comm) == 24, "src/wire.rs writes 16, reads 24 bytes");
_Static_assert(sizeof(struct rm_call) == 176 && RM_SHORT_CALL == 136, "src/wire.rs reads 176 or 136 bytes");
_Static_assert(sizeof(struct rm_offcpu) == 184, "src/wire.rs reads 184 bytes");
_Static_assert(sizeof(struct rm_tcp) == 80, "src/wire.rs reads 80 bytes");
_Static_assert(sizeof(struct rm_process) == 16, "src/wire.rs reads 16 bytes");
_Static_assert(sizeof(struct rm_program_time) == 32, "src/self_stats.rs reads 32 bytes");
_Static_assert(sizeof(struct rm_stats) == 40, "src/wire.rs reads 40 bytes");
_Static_assert(sizeof(struct rm_config) == 48, "src/wire.rs writes 48 bytes");

/* Marks in the maps `tracked` and `children`, key: process id. A byte for each mark, so that threads that set different ones
 * at the same moment need no atomic operation (kernels before 5.12 have only the addition). */
#define RM_MPI_STARTED_BYTE 1
#define RM_CALLED_BYTE 2
#define RM_OOM_BYTE 3
#define RM_TRACKED 1
#define RM_MPI_STARTED (1u << 8 * RM_MPI_STARTED_BYTE)
#define RM_CALLED (1u << 8 * RM_CALLED_BYTE)
#define RM_OOM (1u << 8 * RM_OOM_BYTE) /* chosen by the kernel to be killed for want of memory */
#define SET_MARK(marks, byte) (((volatile unsigned char *)(marks))[byte] = 1)

#endif
