/* Requests that servers answer, seen at their sockets: what is received after an answer begins a request, what is sent after
 * that is its answer. An object apart from capture's, loaded while a followed process listens. Its programs are at tracepoints
 * (Linux 6.3), and return at once where the process is not followed. Only sockets that were accepted count. */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "wire.h"
#include "requests.h"
#include "users.bpf.h"
#include "path.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define SOCK_STREAM 1
#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6
#define SHUTDOWN_MASK 3
#define ECONNRESET 104
#define TCP_SYN_SENT 2
#define TCP_FIN_WAIT1 4
#define TCP_CLOSE 7
#define TCP_LAST_ACK 9
#define TCP_LISTEN 10
#define MSG_PEEK 2
#define MSG_TRUNC 0x20
#define MSG_ERRQUEUE 0x2000

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct unix_address { int len; };
struct unix_sock { struct unix_address *addr; };
struct icsk_ack_times { __u32 lrcvtime; };
struct inet_connection_sock { struct icsk_ack_times icsk_ack; };
struct tcp_sock {
  __u32 copied_seq; /* of the byte that is to be read next */
  __u32 rcv_nxt;    /* of that which is to come next */
  __u32 write_seq;  /* and to be sent next */
  __u64 bytes_received;
};
struct return_instance;
struct uprobe_task { struct return_instance *return_instances; };
struct task_struct___probed { struct uprobe_task *utask; };
struct vm_area_struct { unsigned long vm_start, vm_end; };

#pragma clang attribute pop

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, 1024 + RM_MOST_CHILDREN);
  __type(key, __u32);
  __type(value, struct rm_server);
} servers SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, RM_MOST_CONNECTIONS);
  __type(key, __u64); /* cookie of the socket: no other has it as long as the kernel runs */
  __type(value, struct rm_connection);
} connections SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, RM_RING);
} requests SEC(".maps");

static const struct rm_connection new_connection;

static __always_inline struct rm_server *server_of_this(void) {
  __u32 pid = bpf_get_current_pid_tgid() >> 32;
  return bpf_map_lookup_elem(&servers, &pid);
}

/* What a thread passed to the system call that it is in: where its bytes lie. */
enum rm_bytes_at { RM_BYTES_UNKNOWN, RM_BYTES_DIRECT, RM_BYTES_VECTOR, RM_BYTES_MESSAGE };

/* The call has to be one that moves bytes in this direction: io_uring moves them on a thread's way out of any other call. */
#if defined(__TARGET_ARCH_x86)
#define ENOSYS 38
static __always_inline __u32 bytes_at(struct pt_regs *regs, bool sent, __u64 *second) {
  *second = regs->si;
  if ((__s64)regs->ax != -ENOSYS) return RM_BYTES_UNKNOWN; /* it has ended: what it returns stands there */
  switch (regs->orig_ax) {
  case 0: case 45: return sent ? RM_BYTES_UNKNOWN : RM_BYTES_DIRECT; /* read, recvfrom */
  case 1: case 44: return sent ? RM_BYTES_DIRECT : RM_BYTES_UNKNOWN; /* write, sendto */
  case 19: return sent ? RM_BYTES_UNKNOWN : RM_BYTES_VECTOR;         /* readv */
  case 20: return sent ? RM_BYTES_VECTOR : RM_BYTES_UNKNOWN;         /* writev */
  case 47: return sent ? RM_BYTES_UNKNOWN : RM_BYTES_MESSAGE;        /* recvmsg */
  case 46: return sent ? RM_BYTES_MESSAGE : RM_BYTES_UNKNOWN;        /* sendmsg */
  }
  return RM_BYTES_UNKNOWN;
}
#else
static __always_inline __u32 bytes_at(struct pt_regs *regs, bool sent, __u64 *second) {
  struct pt_regs___all *all = (void *)regs;
  *second = BPF_CORE_READ(all, regs[1]);
  switch (BPF_CORE_READ(all, syscallno)) {
  case 63: case 207: return sent ? RM_BYTES_UNKNOWN : RM_BYTES_DIRECT;
  case 64: case 206: return sent ? RM_BYTES_DIRECT : RM_BYTES_UNKNOWN;
  case 65: return sent ? RM_BYTES_UNKNOWN : RM_BYTES_VECTOR;
  case 66: return sent ? RM_BYTES_VECTOR : RM_BYTES_UNKNOWN;
  case 212: return sent ? RM_BYTES_UNKNOWN : RM_BYTES_MESSAGE;
  case 211: return sent ? RM_BYTES_MESSAGE : RM_BYTES_UNKNOWN;
  }
  return RM_BYTES_UNKNOWN;
}
#endif

#define MESSAGE_VECTOR_AT 16 /* of msg_iov in struct user_msghdr */

struct rm_vector { __u64 at, bytes; };

/* Goes to the buffer that follows. `all`: bytes that the call has moved from there on. */
static __always_inline void next_buffer(struct rm_buffers *buffers, __u64 all) {
  struct rm_vector vector = {};
  if (!buffers->vector || bpf_probe_read_user(&vector, sizeof vector, (void *)buffers->vector)) {
    *buffers = (struct rm_buffers){.here = all};
    return;
  }
  buffers->vector += sizeof vector;
  buffers->at = vector.at;
  buffers->here = vector.bytes < all ? vector.bytes : all;
}

static __always_inline void buffers_of_this(struct rm_buffers *buffers, __u64 all, bool sent) {
  struct pt_regs *regs = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
  __u64 at = 0;
  __u32 how = bytes_at(regs, sent, &at);
  *buffers = (struct rm_buffers){.here = all};
  if (how == RM_BYTES_DIRECT) buffers->at = at;
  if (how == RM_BYTES_MESSAGE && bpf_probe_read_user(&at, sizeof at, (void *)(at + MESSAGE_VECTOR_AT))) return;
  if (how != RM_BYTES_MESSAGE && how != RM_BYTES_VECTOR) return;
  buffers->vector = at;
  next_buffer(buffers, all);
}

/* The address of the first byte that was received or sent; 0: not known. `bytes`: how many were moved, and then how many of
 * these lie there. */
static __always_inline __u64 buffer_of_this(__u32 *bytes, bool sent) {
  struct rm_buffers buffers;
  buffers_of_this(&buffers, *bytes, sent);
  *bytes = buffers.here;
  return buffers.at;
}

static __always_inline bool is_stream(struct sock *sk) { return BPF_CORE_READ(sk, sk_socket, type) == SOCK_STREAM; }

/* Whether the socket was made by accepting: it has the port, or the name, of one that listens. */
static __always_inline bool was_accepted(const struct rm_server *server, struct sock *sk) {
  __u16 family = BPF_CORE_READ(sk, __sk_common.skc_family);
  if (family == AF_UNIX) {
    struct unix_sock *of_unix = (void *)sk;
    return (server->flags & RM_SERVER_UNIX) && BPF_CORE_READ(of_unix, addr) != 0;
  }
  if (family != AF_INET && family != AF_INET6) return false;
  if (BPF_CORE_READ(sk, __sk_common.skc_state) == TCP_CLOSE) return false; /* nothing would tell its end */
  __u16 port = BPF_CORE_READ(sk, __sk_common.skc_num);
  for (int i = 0; i < RM_SERVER_PORTS; i++)
    if (i < server->count && server->ports[i] == port) return true;
  return server->flags & RM_SERVER_ALL_PORTS;
}

static __always_inline void emit(struct rm_connection *connection) {
  struct rm_request *out = bpf_ringbuf_reserve(&requests, sizeof *out, 0);
  if (!out) {
    lost(RM_REQUEST_LOST_RING);
    return;
  }
  __builtin_memcpy(out, &connection->request, sizeof *out);
  bpf_ringbuf_submit(out, BPF_RB_NO_WAKEUP); /* the ring is looked at again and again */
}

/* What is known of a connection that is first seen now. */
static __always_inline struct rm_connection *opened(struct sock *sk, __u64 key, __u64 now, __u32 user) {
  if (!user_takes(user, RM_ROOM_CONNECTION)) {
    lost(RM_REQUEST_LOST_MAP);
    return 0;
  }
  if (bpf_map_update_elem(&connections, &key, &new_connection, BPF_NOEXIST)) {
    user_gives(user, RM_ROOM_CONNECTION);
    struct rm_connection *found = bpf_map_lookup_elem(&connections, &key); /* another thread has been quicker */
    if (!found) lost(RM_REQUEST_LOST_MAP);
    return found;
  }
  struct rm_connection *made = bpf_map_lookup_elem(&connections, &key);
  if (!made) return 0;
  made->user = user;
  struct rm_request *request = &made->request;
  request->connection = key;
  request->opened_ns = now;
  request->family = BPF_CORE_READ(sk, __sk_common.skc_family);
  if (request->family == AF_UNIX) return made;
  request->port = BPF_CORE_READ(sk, __sk_common.skc_num);
  request->peer_port = __builtin_bswap16(BPF_CORE_READ(sk, __sk_common.skc_dport));
  if (request->family == AF_INET6) {
    struct sock___v6 *v6 = (void *)sk;
    BPF_CORE_READ_INTO(&request->peer, v6, __sk_common.skc_v6_daddr);
  } else {
    __u32 peer = BPF_CORE_READ(sk, __sk_common.skc_daddr);
    __builtin_memcpy(request->peer, &peer, sizeof peer);
  }
  return made;
}

#define FOUR(a, b, c, d) ((__u32)(a) | (__u32)(b) << 8 | (__u32)(c) << 16 | (__u32)(d) << 24)

/* What a connection speaks, by the first bytes of a request. */
static __always_inline __u16 protocol_of(const __u8 *head, __u32 bytes) {
  if (bytes < 4) return RM_OTHER;
  switch (FOUR(head[0], head[1], head[2], head[3])) {
  case FOUR('G', 'E', 'T', ' '):
  case FOUR('P', 'O', 'S', 'T'):
  case FOUR('P', 'U', 'T', ' '):
  case FOUR('H', 'E', 'A', 'D'):
  case FOUR('D', 'E', 'L', 'E'):
  case FOUR('P', 'A', 'T', 'C'):
  case FOUR('O', 'P', 'T', 'I'):
  case FOUR('T', 'R', 'A', 'C'):
  case FOUR('C', 'O', 'N', 'N'):
    return RM_HTTP1;
  case FOUR('P', 'R', 'I', ' '):
    return RM_HTTP2;
  }
  return head[0] == 0x16 && head[1] == 3 ? RM_TLS : RM_OTHER;
}

/* How long the bytes that are read now had lain there: the kernel notes in ticks when the last ones came. */
static __always_inline void note_ticks(struct rm_request *request, struct sock *sk) {
  struct inet_connection_sock *of_tcp = (void *)sk;
  if (request->family == AF_UNIX || !bpf_core_field_exists(of_tcp->icsk_ack.lrcvtime)) return;
  __u32 came = BPF_CORE_READ(of_tcp, icsk_ack.lrcvtime);
  request->jiffies = bpf_jiffies64();
  if (!came || (__s32)(request->jiffies - came) < 0) return;
  request->ticks = request->jiffies - came;
  request->flags |= RM_REQUEST_TICKS;
}

/* Whose request it is. */
static __always_inline void is_of_this(struct rm_request *request) {
  struct rm_server *server = server_of_this();
  request->pid = bpf_get_current_pid_tgid() >> 32;
  request->server = server && server->of ? server->of : request->pid;
}

static __always_inline void begins(struct rm_connection *connection, struct sock *sk, __u64 buffer, __u32 here, __u32 bytes,
                                   __u64 now) {
  struct rm_request *request = &connection->request;
  __u64 thread = bpf_get_current_pid_tgid();
  is_of_this(request);
  request->read_tid = thread;
  request->sent_tid = 0;
  request->number++;
  request->begin_ns = now;
  request->first_ns = request->last_ns = request->gap_ns = 0;
  request->bytes_in = bytes;
  request->bytes_out = 0;
  request->sends = 0;
  request->flags = 0;
  request->ticks = 0;
  request->cgroup_id = bpf_get_current_cgroup_id();
  request->answer[0] = 0;
  request->head_bytes = 0;
  __u32 copied = here < RM_HEAD ? here : RM_HEAD;
  if (request->protocol == RM_HTTP1 && buffer && copied && !bpf_probe_read_user(request->head, copied, (void *)buffer))
    request->head_bytes = copied;
  note_ticks(request, sk);
  connection->state = RM_READING;
}

#include "http2.bpf.h"

static __always_inline void is_not_looked_into(struct rm_connection *connection, __u64 now) {
  is_of_this(&connection->request);
  connection->request.begin_ns = now;
  connection->request.flags = RM_REQUEST_OPAQUE;
  connection->state = RM_IGNORED;
  emit(connection);
}

/* The first bytes of a connection, or of what follows an answer. */
static __always_inline int received_anew(const struct rm_server *server, struct rm_connection *connection, struct sock *sk,
                                         __u32 bytes, __u64 now, bool readable) {
  struct rm_request *request = &connection->request;
  __u32 here = bytes;
  __u64 buffer = readable ? buffer_of_this(&here, false) : 0;
  __u8 first[4] = {};
  if (buffer && here >= sizeof first) bpf_probe_read_user(first, sizeof first, (void *)buffer);
  __u16 protocol = protocol_of(first, here);
  /* Of a connection that is not said to be HTTP/2's streams yet: another thread sends the server's preface at this moment. */
  bool begins_http2 = protocol == RM_HTTP2 && request->protocol == RM_PROTOCOL_UNKNOWN;
  if (begins_http2 || request->protocol == RM_HTTP2) {
    http2_begins(server, connection, sk, bytes, now, false, readable);
    return 0;
  }
  if (request->protocol == RM_PROTOCOL_UNKNOWN) {
    request->protocol = protocol;
    connection->may_be_http2 = protocol == RM_OTHER && !is_seen_from_start(sk, bytes);
    if (connection->may_be_http2 && is_frame(buffer, here, false)) request->protocol = protocol = RM_HTTP2;
    bool looked_into = protocol == RM_HTTP1 || (protocol == RM_OTHER && (server->flags & RM_SERVER_ANY));
    if (!looked_into) {
      is_not_looked_into(connection, now);
      return 0;
    }
  } else if (request->protocol == RM_HTTP1 && protocol != RM_HTTP1 && here >= 4) {
    request->bytes_in += bytes; /* more of the one that is being answered */
    return 0;
  }
  if (connection->state == RM_ANSWERING) emit(connection);
  begins(connection, sk, buffer, here, bytes, now);
  return 0;
}

/* A connection is over. User space finds the streams that are left. */
static __always_inline void forgets(struct rm_connection *connection, __u64 key) {
  __u32 user = connection->user;
  bool is_http2 = connection->request.protocol == RM_HTTP2;
  /* First, so that who finds the connection finds its streams' position, too. */
  if (!bpf_map_delete_elem(&connections, &key)) user_gives(user, RM_ROOM_CONNECTION);
  if (is_http2) bpf_map_delete_elem(&http2, &key);
}

/* Whether the other end of a Unix socket is closed, of which a receive had nothing, or an error as the client had not read all.
 * (One into no room has nothing, too; and one whose client has said all, and may still be answered.) Of TCP the state tells. */
static __always_inline bool has_ended(struct sock *sk) {
  if (BPF_CORE_READ(sk, __sk_common.skc_family) != AF_UNIX) return false;
  return (BPF_CORE_READ(sk, sk_shutdown) & SHUTDOWN_MASK) == SHUTDOWN_MASK;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(on_receive, struct sock *sk, int got, int flags) {
  struct rm_server *server = server_of_this();
  if (!server || (got < 0 && got != -ECONNRESET) || flags & (MSG_PEEK | MSG_ERRQUEUE) || !is_stream(sk)) return 0;
  __u64 key = bpf_get_socket_cookie(sk);
  struct rm_connection *connection = bpf_map_lookup_elem(&connections, &key);
  if (got <= 0) { /* the client has closed */
    if (!connection) return 0;
    if (connection->state == RM_STREAMS && has_ended(sk)) {
      forgets(connection, key);
    } else if (connection->state == RM_ANSWERING && got == 0) {
      emit(connection);
      connection->state = RM_IDLE;
    }
    return 0;
  }
  __u64 now = bpf_ktime_get_ns();
  if (!connection) {
    if (!was_accepted(server, sk)) return 0;
    connection = opened(sk, key, now, server->user);
    if (!connection) return 0;
  }
  if (connection->state == RM_IGNORED) {
    connection->request.last_ns = now; /* a Unix socket that is silent is let go */
    return 0;
  }
  bool readable = !(flags & MSG_TRUNC); /* else the bytes are thrown away */
  if (connection->state == RM_STREAMS) {
    http2_moves(server, connection, sk, got, now, false, readable);
    return 0;
  }
  if (connection->state == RM_READING) {
    connection->request.bytes_in += got;
    return 0;
  }
  return received_anew(server, connection, sk, got, now, readable);
}

/* "HTTP/1.1 100 Continue" and its like are no answer; 101 is: what follows is another protocol's. */
static __always_inline bool is_interim(const __u8 *answer) {
  return answer[0] == 'H' && answer[4] == '/' && answer[9] == '1' && answer[11] != '1';
}

/* The first send of an answer has ended. False where it is not the answer yet. */
static __always_inline bool answers(struct rm_request *request, __u32 bytes, __u64 now) {
  __builtin_memset(request->answer, 0, sizeof request->answer);
  if (request->protocol == RM_HTTP1 && bytes >= RM_ANSWER) {
    __u64 buffer = buffer_of_this(&bytes, true);
    if (buffer && bytes >= RM_ANSWER) bpf_probe_read_user(request->answer, sizeof request->answer, (void *)buffer);
    if (is_interim(request->answer)) return false;
  }
  request->sent_tid = bpf_get_current_pid_tgid();
  request->first_switches = switches_of(bpf_get_current_task_btf());
  request->first_ns = now;
  return true;
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(on_send, struct sock *sk, int sent) {
  struct rm_server *server = server_of_this();
  if (sent <= 0 || !server || !is_stream(sk)) return 0;
  __u64 key = bpf_get_socket_cookie(sk), now = bpf_ktime_get_ns();
  struct rm_connection *connection = bpf_map_lookup_elem(&connections, &key);
  if (!connection) {
    if (!was_accepted(server, sk) || !is_server_preface(sent)) return 0;
    connection = opened(sk, key, now, server->user);
    if (!connection || (connection->state != RM_IDLE && connection->state != RM_STREAMS)) return 0;
    http2_begins(server, connection, sk, sent, now, true, true);
    return 0;
  }
  struct rm_request *request = &connection->request;
  if (connection->state == RM_STREAMS) {
    http2_moves(server, connection, sk, sent, now, true, true);
    return 0;
  }
  if (connection->state == RM_READING) {
    if (connection->may_be_http2) {
      __u32 here = sent;
      __u64 buffer = buffer_of_this(&here, true);
      connection->may_be_http2 = false;
      if (is_frame(buffer, here, true)) {
        request->protocol = RM_HTTP2;
        is_not_looked_into(connection, now);
        return 0;
      }
    }
    if (!answers(request, sent, now)) return 0;
    connection->state = RM_ANSWERING;
  } else if (connection->state != RM_ANSWERING) {
    return 0;
  } else if (now - request->last_ns > request->gap_ns) {
    request->gap_ns = now - request->last_ns;
  }
  request->last_ns = now;
  request->bytes_out += sent;
  request->sends++;
  request->last_tid = bpf_get_current_pid_tgid();
  request->last_switches = switches_of(bpf_get_current_task_btf());
  return 0;
}

/* Whether this task sends: what its call has moved is told when the call ends. A reset that comes while the socket is locked is
 * looked at by who has locked it. */
static __always_inline bool is_sending(void) {
  __u64 at = 0;
  return server_of_this() && bytes_at((void *)bpf_task_pt_regs(bpf_get_current_task_btf()), true, &at) != RM_BYTES_UNKNOWN;
}

/* A TCP connection is closed by us, or is gone. (Of Unix sockets user space finds the old ones, but for HTTP/2's whose client
 * closes.) */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_tcp_state, struct sock *sk, int before, int state) {
  if (state != TCP_FIN_WAIT1 && state != TCP_LAST_ACK && state != TCP_CLOSE) return 0;
  if (before == TCP_LISTEN || before == TCP_SYN_SENT) return 0;
  __u64 key = bpf_get_socket_cookie(sk);
  struct rm_connection *connection = bpf_map_lookup_elem(&connections, &key);
  if (!connection) return 0;
  if (connection->state == RM_READING || connection->state == RM_ANSWERING) emit(connection);
  if (state == TCP_CLOSE && !is_sending() && was_sent_unseen(connection, key, sk)) position_is_lost(connection);
  /* Of HTTP/2, answers may still be sent; user space finds the streams that are left (their connection has no entry). */
  if (connection->state != RM_STREAMS) connection->state = RM_IGNORED; /* what may still be read is no request */
  if (state == TCP_CLOSE) forgets(connection, key);
  return 0;
}

#include "request_calls.bpf.h"

SEC("tp_btf/sched_process_fork")
int BPF_PROG(server_forks, struct task_struct *parent, struct task_struct *child) {
  __u32 of = parent->tgid, pid = child->tgid;
  struct rm_server *server = bpf_map_lookup_elem(&servers, &of);
  if (!server || child->pid != pid) return 0;
  struct rm_server made = *server;
  if (!made.of) made.of = of;
  if (!user_takes(made.user, RM_ROOM_CHILD)) {
    lost(RM_REQUEST_LOST_MAP);
    return 0;
  }
  if (bpf_map_update_elem(&servers, &pid, &made, BPF_NOEXIST)) {
    user_gives(made.user, RM_ROOM_CHILD);
    lost(RM_REQUEST_LOST_MAP);
    return 0;
  }
  struct rm_followed threads = {.server = pid};
  bpf_map_update_elem(&followed, &pid, &threads, BPF_NOEXIST);
  return 0;
}

static __always_inline void forgets_server(__u32 pid) {
  struct rm_server *server = bpf_map_lookup_elem(&servers, &pid);
  if (!server) return;
  __u32 user = server->user, of = server->of;
  if (!bpf_map_delete_elem(&servers, &pid) && of) user_gives(user, RM_ROOM_CHILD);
}

/* Of what user space has found it sees the end itself, after it has read the ring. */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(server_ends, struct task_struct *task) {
  __u32 pid = task->tgid;
  struct rm_server *server = bpf_map_lookup_elem(&servers, &pid);
  if (server && server->of && BPF_CORE_READ(task, signal, live.counter) <= 0) forgets_server(pid);
  return 0;
}

/* Another program, perhaps another user's: user space looks at it anew. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(server_execs, struct task_struct *task, int former_tid) {
  __u32 pid = task->tgid, tid = former_tid;
  forgets_server(pid);
  unfollow(pid);
  bpf_map_delete_elem(&away, &tid); /* it has the process's number from here on */
  return 0;
}
