/* The wire truth of requests (requests.bpf.c): whom the programs follow, what they keep of a connection, and the record of a
 * request. src/serving/wire.rs mirrors it; both sides assert the sizes. */
#ifndef RANKMESH_REQUESTS_H
#define RANKMESH_REQUESTS_H

/* The ports that a process listens on which are told apart; of more, requests are those of any port. */
#define RM_SERVER_PORTS 8
/* rm_server.flags */
#define RM_SERVER_ANY 1      /* also what is not HTTP/1.x: a request is what comes after an answer */
#define RM_SERVER_UNIX 2     /* it listens on a Unix socket */
#define RM_SERVER_ALL_PORTS 4

/* The value of `servers`, key: process id. Written by user space, removed here when the process begins another program. */
struct rm_server {
  unsigned int flags;
  unsigned int count;
  unsigned short ports[RM_SERVER_PORTS];
  unsigned int user; /* to whom its connections are counted */
};

enum rm_protocol { RM_PROTOCOL_UNKNOWN = 0, RM_HTTP1 = 1, RM_HTTP2 = 2, RM_TLS = 3, RM_OTHER = 4 };

/* rm_request.flags */
#define RM_REQUEST_OPAQUE 1  /* not a request: a connection that is not looked into, once for each */
#define RM_REQUEST_ONE_THREAD 2 /* the thread that read it has sent all of the answer: its times are known */
#define RM_REQUEST_OTHER_THREAD 4
#define RM_REQUEST_TICKS 8   /* `ticks` is known */

#define RM_HEAD 128
#define RM_ANSWER 16

struct rm_request {
  unsigned int pid;
  unsigned int read_tid; /* thread that read its first bytes */
  unsigned int sent_tid; /* thread that sent the first bytes of the answer */
  unsigned int number;   /* on its connection, from 1 */
  unsigned long long connection; /* cookie of the socket */
  unsigned long long opened_ns;  /* when the connection was first seen */
  unsigned long long begin_ns;   /* CLOCK_MONOTONIC: the first bytes were read */
  unsigned long long first_ns;   /* the end of the first send after that; 0: none */
  unsigned long long last_ns;    /* the end of the last send */
  unsigned long long gap_ns;     /* the longest time from the end of a send to the end of the next */
  unsigned long long bytes_in, bytes_out;
  unsigned long long cpu_ns;       /* of the thread, up to the last send (RM_REQUEST_ONE_THREAD) */
  unsigned long long run_delay_ns; /* how long it could run and had no CPU, likewise */
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
  unsigned int pad;
};

enum rm_connection_state { RM_IDLE = 0, RM_READING = 1, RM_ANSWERING = 2, RM_IGNORED = 3 };

/* The value of `connections`, key: cookie of the socket. */
struct rm_connection {
  struct rm_request request; /* the one under way, or the last one */
  unsigned long long cpu_begin_ns, run_delay_begin_ns;
  unsigned int state;
  unsigned int user; /* to whom it is counted */
};

/* Places of `request_losses`. */
enum rm_request_loss { RM_REQUEST_LOST_RING = 0, RM_REQUEST_LOST_MAP = 1, RM_REQUEST_LOSSES = 2 };

_Static_assert(sizeof(struct rm_server) == 28, "src/serving/wire.rs writes 28 bytes");
_Static_assert(sizeof(struct rm_request) == 296, "src/serving/wire.rs reads 296 bytes");
_Static_assert(sizeof(struct rm_connection) == 320, "src/serving/wire.rs reads 320 bytes");

#endif
