/* The wire truth of requests (requests.bpf.c): whom the programs follow, what they keep of a connection, and the record of a
 * request. src/serving/wire.rs mirrors it; both sides assert the sizes. */
#ifndef RANKMESH_REQUESTS_H
#define RANKMESH_REQUESTS_H

/* The ports that a process listens on which are told apart; of more, requests are those of any port. */
#define RM_SERVER_PORTS 8
/* rm_server.flags */
#define RM_SERVER_ANY 1      /* also what is not HTTP: a request is what comes after an answer */
#define RM_SERVER_UNIX 2     /* it listens on a Unix socket */
#define RM_SERVER_ALL_PORTS 4

/* The value of `servers`, key: process id. Written by user space, removed here when the process begins another program. What such
 * a process forks goes on serving (workers, a process for each connection): it has an entry from its first instruction on. */
struct rm_server {
  unsigned int flags;
  unsigned int count;
  unsigned short ports[RM_SERVER_PORTS];
  unsigned int user; /* to whom its connections are counted */
  unsigned int of;   /* the server that it was forked from, or whose child was; 0: user space has found it */
  unsigned long long since_ns; /* CLOCK_MONOTONIC: what it does is seen from then on, without a gap */
};

enum rm_protocol { RM_PROTOCOL_UNKNOWN = 0, RM_HTTP1 = 1, RM_HTTP2 = 2, RM_TLS = 3, RM_OTHER = 4 };

/* rm_request.flags */
#define RM_REQUEST_OPAQUE 1  /* not a request: a connection that is not looked into, once for each */
#define RM_REQUEST_POSITION_LOST 2 /* of these: an HTTP/2 connection that was looked into until now */
#define RM_REQUEST_RESET 4   /* of HTTP/2: the server reset the stream, with an error */
#define RM_REQUEST_TICKS 8   /* `ticks` is known */

#define RM_HEAD 128
#define RM_ANSWER 16

struct rm_request {
  unsigned int pid;
  unsigned int read_tid; /* thread that read its first bytes */
  unsigned int sent_tid; /* thread that sent the first bytes of the answer */
  unsigned int number;   /* on its connection, from 1; of HTTP/2 half the stream's, rounded up */
  unsigned long long connection; /* cookie of the socket */
  unsigned long long opened_ns;  /* when the connection was first seen */
  unsigned long long begin_ns;   /* CLOCK_MONOTONIC: the first bytes were read */
  unsigned long long first_ns;   /* the end of the first send after that; 0: none */
  unsigned long long last_ns;    /* the end of the last send */
  unsigned long long gap_ns;     /* the longest time from the end of a send to the end of the next */
  unsigned long long bytes_in, bytes_out;
  unsigned long long cgroup_id;
  unsigned int sends;
  unsigned int ticks;   /* of the kernel's clock that the bytes had lain unread */
  unsigned int jiffies; /* the lower half of that clock at `begin_ns` */
  unsigned int flags;
  unsigned short family; /* 1, 2, 10 */
  unsigned short port;   /* ours; 0 of Unix sockets */
  unsigned short peer_port;
  unsigned short protocol;
  unsigned char peer[16]; /* IPv4 in the first four bytes */
  unsigned char answer[RM_ANSWER]; /* the beginning of the answer */
  unsigned char head[RM_HEAD];     /* the beginning of the request */
  unsigned int head_bytes;
  unsigned int first_switches; /* how often `sent_tid` had left its CPU by then, as the kernel counts */
  unsigned int last_tid;       /* thread that sent the last bytes, and the same of it */
  unsigned int last_switches;
  unsigned int server;         /* `pid`, or the server that it is a child of */
  unsigned int pad;
};

enum rm_connection_state { RM_IDLE = 0, RM_READING = 1, RM_ANSWERING = 2, RM_IGNORED = 3, RM_STREAMS = 4 /* HTTP/2 */ };

/* The value of `connections`, key: cookie of the socket. */
struct rm_connection {
  struct rm_request request; /* the one under way, or the last one */
  unsigned int state;
  unsigned int user; /* to whom it is counted */
  unsigned int may_be_http2, pad; /* it was open before, and its first answer will tell */
};

/* Bytes of the ring of requests; and of that of HTTP/2, of which half is left to pieces of headers. */
#define RM_RING (4 << 20)
#define RM_HTTP2_RING (8 << 20)

/* The key of `streams`: of an HTTP/2 connection (http2.bpf.h). */
struct rm_stream {
  unsigned long long connection;
  unsigned int number, pad;
};

/* Of a frame with headers, so many bytes at most are in one record; of a header block so many in all, where each record counts
 * for some more: frames may be empty. */
#define RM_PIECE 192
#define RM_PIECE_ITSELF 40
#define RM_MOST_BLOCK (64 << 10)

/* A record of HTTP/2's ring, told from a struct rm_request by its length: bytes of a frame with headers, as they were moved. */
struct rm_piece {
  unsigned long long connection;
  unsigned int number;      /* in its direction on the connection, from 0: one that is missing is noticed */
  unsigned int stream;
  unsigned int frame_bytes; /* of the frame's payload */
  unsigned int at;          /* where in it the piece begins */
  unsigned char type, flags; /* of the frame */
  unsigned char sent;
  unsigned char no_room;    /* of the request that its block begins: there is no entry of it, and no record will follow */
  unsigned int user;        /* to whom the connection is counted */
  unsigned int bytes;       /* so many follow */
  unsigned char data[RM_PIECE];
};

/* Where the bytes lie that a call has moved, from some place on. */
struct rm_buffers {
  unsigned long long at;     /* the address of the next byte; 0: not known (sendfile, io_uring) */
  unsigned long long here;   /* bytes that lie there in a row */
  unsigned long long vector; /* the address of the `struct iovec` of those that follow; 0: there is none */
};

/* Where one direction of an HTTP/2 connection is. What a call has moved is here, too, and not on the stack: the verifier
 * would follow each byte. */
struct rm_frames {
  unsigned int preface;      /* bytes of the client's preface that are to come */
  unsigned int header_bytes; /* of the frame's header that have come; of RST_STREAM with the code */
  unsigned int left;         /* bytes of its payload that are to come */
  unsigned int length, stream;
  unsigned int type, flags;
  unsigned int begun;        /* the first frame has come */
  unsigned int sequence;     /* of TCP behind the last call's bytes */
  unsigned int has_sequence; /* there was a call */
  unsigned int in_payload;   /* the header is all there, and the payload not */
  unsigned int in_block;     /* only a CONTINUATION may come, of `block_stream` */
  unsigned int block_stream, block_bytes;
  unsigned int block_type;   /* of its first frame */
  unsigned int no_room;      /* of the request that it begins */
  unsigned int ends_stream;  /* the frame, or the one that it continues, ends its stream */
  unsigned int last_stream;  /* the highest number of a stream that has begun */
  unsigned int pieces;
  unsigned int lost;         /* its position */
  struct rm_buffers buffers;
  unsigned long long all;    /* bytes of the call that are still to be looked at */
  unsigned char header[32];
  struct rm_piece piece; /* the last one */
};

/* The value of `http2`, key: cookie of the socket. */
struct rm_http2 {
  unsigned long long key; /* the same: an entry that was let go may become another connection's while it is looked at */
  struct rm_frames received, sent;
};

/* Attachments of probes that see calls: the upper half of a cookie is an attachment's number, whose low bits are its place. */
#define RM_CALL_ATTACHMENTS 64
struct rm_attachment {
  unsigned long long hits;  /* of its probes, by whomever */
  unsigned int number, pad; /* that is there now; 0: none. Written by user space. */
};

/* A call, or a pair of points, that a thread is in (request_calls.bpf.h). */
struct rm_begun {
  unsigned long long begin_ns; /* 0: none */
  unsigned long long sp, ip;   /* at its entry */
  unsigned long long word;     /* the return address; 0: not known */
  unsigned long long cookie;   /* of the function, or pair */
  unsigned int number;
  unsigned int within;         /* calls of the functions that began since, deeper on the stack */
};

/* The value of `callers`, key: thread. */
struct rm_caller {
  unsigned long long connection; /* in its place: names the thread */
  unsigned int pid, tid;
  unsigned int number;           /* of the last call */
  unsigned int user;             /* to whom it is counted */
  unsigned int server;           /* `pid`, or the server that it is a child of */
  unsigned int swaps;            /* calls on it have returned in an order that one stack does not allow */
  struct rm_begun function, pair;
};

/* A record of the ring of requests, told from a struct rm_request by its length: a call that is over. */
struct rm_called {
  unsigned long long connection, begin_ns;
  unsigned long long end_ns; /* 0: it was left, or its thread has ended */
  unsigned long long cgroup_id;
  unsigned long long cookie;
  unsigned int pid, tid;
  unsigned int number;
  unsigned int switches;     /* how often the thread had left its CPU at its end */
  unsigned int within;
  unsigned int server;       /* `pid`, or the server that it is a child of */
};

/* Places of `request_losses`. */
enum rm_request_loss {
  RM_REQUEST_LOST_RING = 0, /* that of requests */
  RM_REQUEST_LOST_MAP = 1,
  RM_REQUEST_LOST_THREAD = 2,
  RM_REQUEST_LOST_POSITION = 3, /* connections */
  RM_REQUEST_LOST_HTTP2 = 4, /* in the ring of HTTP/2 */
  RM_REQUEST_LOST_STACK = 5, /* calls on a stack that their thread has left for another */
  RM_REQUEST_LOST_PROBES = 6, /* calls whose probes were taken off meanwhile */
  RM_REQUEST_LOSSES = 7
};

/* Processes of a server whose threads are followed beside its own: those that it wakes or is woken by, and theirs, so many
 * steps away from it. */
#define RM_MOST_PARTNERS 31
#define RM_MOST_STEPS_AWAY 3

/* The value of `followed`, key: process id. Of servers written by user space, of others here. */
struct rm_followed {
  unsigned int server;   /* the server that it is followed for; its own number: it is one */
  unsigned int away;     /* steps from it */
  unsigned int partners; /* of a server: how many are followed for it */
};

/* Who woke a thread. */
enum rm_woken {
  RM_WOKEN_UNSEEN = 0,
  RM_WOKEN_BY_THREAD = 1,  /* of a process that is followed */
  RM_WOKEN_BY_OTHER = 2,   /* a process that is not followed */
  RM_WOKEN_BY_INTERRUPT = 3, /* a timer, a device, a packet */
  RM_WOKEN_BY_KERNEL = 4,  /* a thread of the kernel's */
  RM_WOKEN_AS_NEW = 5,     /* a thread of a process that is followed made it */
};

/* How a thread left its CPU. */
enum rm_left { RM_LEFT_RUNNABLE = 0, RM_LEFT_ASLEEP = 1, RM_LEFT_UNINTERRUPTIBLE = 2 };

/* The value of `away`, key: thread id. */
struct rm_away {
  unsigned long long off_ns; /* when it left its CPU; 0: it is on one, or has not been seen to leave */
  unsigned long long wake_ns;
  unsigned long long ran_ns; /* how long it had run by then, altogether */
  unsigned int switches;     /* how often it had left a CPU then, as the kernel counts: tells whether one is missing */
  unsigned int waker_tid, waker_switches;
  int call;                  /* the system call that it is in; -1: none, so a page fault or an interrupt */
  unsigned char woken, left, iowait, throttled;
  unsigned int taken_pid; /* who had the CPU while it could run: took it, or had it last; 0: nobody, or it is not known */
  unsigned int taken_uid; /* whose that is, if it is no thread of the kernel's */
  char taken_comm[16];
};

/* An entry of `stretches`, a ring that is overwritten: a thread that was followed was off its CPU. */
#define RM_STRETCHES (1 << 18)
struct rm_stretch {
  unsigned long long number; /* of the stretch, from 1; written last, and 0 while the others are written */
  unsigned long long on_ns;  /* when it had a CPU again */
  struct rm_away away;
  unsigned int pid, tid;
  char comm[16];
};

_Static_assert(sizeof(struct rm_server) == 40, "src/serving/wire.rs writes 40 bytes");
_Static_assert(sizeof(struct rm_request) == 296, "src/serving/wire.rs reads 296 bytes");
_Static_assert(sizeof(struct rm_connection) == 312, "src/serving/wire.rs reads 312 bytes");
_Static_assert(sizeof(struct rm_stream) == 16, "src/serving/wire.rs reads 16 bytes");
_Static_assert(__builtin_offsetof(struct rm_piece, data) == 36 && sizeof(struct rm_piece) < sizeof(struct rm_request),
               "src/serving/wire.rs reads 36 bytes before the data, and tells the records by their lengths");
_Static_assert(sizeof(struct rm_called) == 64, "src/serving/wire.rs reads 64 bytes");
_Static_assert(sizeof(struct rm_attachment) == 16, "src/serving/calls/attachments.rs reads and writes 16 bytes");
_Static_assert(sizeof(struct rm_caller) == 128, "src/serving/wire.rs reads 128 bytes");
_Static_assert(sizeof(struct rm_followed) == 12, "src/serving/wire.rs writes 12 bytes");
_Static_assert(sizeof(struct rm_stretch) == 112, "src/serving/path.rs reads 112 bytes");

#endif
