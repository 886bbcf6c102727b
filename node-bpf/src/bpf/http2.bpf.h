/* HTTP/2 in plaintext whose connection is seen from its first byte (RFC 9113): the frames in what is received and sent are
 * walked, each stream is a request (an entry of `streams`), and of frames with headers the bytes go to user space, which
 * decodes them (src/serving/http2.rs). What bytes mean follows from all bytes before them: where some cannot be read the
 * connection is not looked into from there on. */

#define RM_FRAME_HEADER 9
#define RM_PREFACE 24
enum rm_frame_type {
  RM_FRAME_DATA = 0,
  RM_FRAME_HEADERS = 1,
  RM_FRAME_PRIORITY = 2,
  RM_FRAME_RESET = 3,
  RM_FRAME_SETTINGS = 4,
  RM_FRAME_PROMISE = 5,
  RM_FRAME_PING = 6,
  RM_FRAME_GOAWAY = 7,
  RM_FRAME_WINDOW = 8,
  RM_FRAME_CONTINUATION = 9,
};
#define RM_END_STREAM 1
#define RM_END_HEADERS 4
/* A call moves no more steps than this: an empty frame takes one, another one two, and one more for each buffer and each
 * piece. 64 KiB of the smallest frames, of nine bytes, take 7,282. */
#define RM_MOST_MOVES 16384

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, RM_MOST_CONNECTIONS);
  __type(key, __u64); /* as of `connections` */
  __type(value, struct rm_http2);
} http2 SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, RM_MOST_STREAMS);
  __type(key, struct rm_stream);
  __type(value, struct rm_connection); /* of one request: RM_READING, then RM_ANSWERING */
} streams SEC(".maps");

/* Records of streams, and pieces of their headers: a ring of their own, so that nobody's headers take the room of what is not
 * HTTP/2. */
struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, RM_HTTP2_RING);
} http2_ring SEC(".maps");

static const struct rm_http2 new_http2 = {.received = {.preface = RM_PREFACE}};

/* Whose bytes are looked at. */
struct rm_walk {
  __u64 key; /* of the connection */
  struct rm_connection *connection;
  struct rm_http2 *http2;
  struct rm_frames *frames; /* of one direction */
  struct sock *sk;
  __u64 now;
  bool sent;
};

static __always_inline struct rm_stream stream_of(struct rm_walk *walk) {
  return (struct rm_stream){.connection = walk->key, .number = walk->frames->stream};
}

/* A client's first HEADERS: a request begins. */
static __always_inline void stream_begins(struct rm_walk *walk) {
  struct rm_frames *frames = walk->frames;
  if (frames->stream <= frames->last_stream) return; /* trailers, or of one that is over */
  frames->last_stream = frames->stream;
  frames->no_room = true;
  struct rm_stream key = stream_of(walk);
  __u32 user = walk->connection->user;
  if (!user_takes(user, RM_ROOM_STREAM)) {
    lost(RM_REQUEST_LOST_MAP);
    return;
  }
  struct rm_connection *stream = 0;
  if (!bpf_map_update_elem(&streams, &key, walk->connection, BPF_NOEXIST)) stream = bpf_map_lookup_elem(&streams, &key);
  if (!stream) {
    user_gives(user, RM_ROOM_STREAM);
    lost(RM_REQUEST_LOST_MAP);
    return;
  }
  frames->no_room = false;
  begins(stream, walk->sk, 0, 0, 0, walk->now);
  stream->request.number = (frames->stream + 1) / 2;
}

/* Room for a stream's record. Half of the ring is left to pieces of headers: where one of these is missing, paths are not known
 * for as long as the connection lasts. */
static __always_inline struct rm_request *new_record(void) {
  if (bpf_ringbuf_query(&http2_ring, BPF_RB_AVAIL_DATA) > RM_HTTP2_RING / 2) return 0;
  return bpf_ringbuf_reserve(&http2_ring, sizeof(struct rm_request), 0);
}

/* A request is over. Two sides may end it at the same moment. */
static __always_inline void stream_ends(struct rm_walk *walk, __u32 flags) {
  struct rm_stream key = stream_of(walk);
  struct rm_connection *stream = bpf_map_lookup_elem(&streams, &key);
  if (!stream) return;
  __u32 user = stream->user;
  struct rm_request *out = new_record();
  if (out) {
    __builtin_memcpy(out, &stream->request, sizeof *out);
    out->flags |= flags;
  }
  bool ours = !bpf_map_delete_elem(&streams, &key);
  if (ours) user_gives(user, RM_ROOM_STREAM);
  if (!out) lost(RM_REQUEST_LOST_HTTP2);
  else if (ours) bpf_ringbuf_submit(out, BPF_RB_NO_WAKEUP);
  else bpf_ringbuf_discard(out, BPF_RB_NO_WAKEUP);
}

/* Bytes of a stream were moved. */
static __always_inline void stream_moves(struct rm_walk *walk, __u32 bytes) {
  struct rm_stream key = stream_of(walk);
  struct rm_connection *stream = bpf_map_lookup_elem(&streams, &key);
  if (!stream) return;
  struct rm_request *request = &stream->request;
  /* It may have ended at this moment, and its entry be another's. */
  if (request->connection != key.connection || request->number != (key.number + 1) / 2) return;
  if (!walk->sent) {
    request->bytes_in += bytes;
    return;
  }
  request->bytes_out += bytes;
  if (request->last_ns == walk->now) return; /* of the same send */
  __u32 thread = bpf_get_current_pid_tgid(), switches = switches_of(bpf_get_current_task_btf());
  if (stream->state == RM_READING) {
    request->sent_tid = thread;
    request->first_switches = switches;
    request->first_ns = walk->now;
    stream->state = RM_ANSWERING;
  } else if (walk->now - request->last_ns > request->gap_ns) {
    request->gap_ns = walk->now - request->last_ns;
  }
  request->last_ns = walk->now;
  request->sends++;
  request->last_tid = thread;
  request->last_switches = switches;
}

static __always_inline bool has_headers(const struct rm_frames *frames) {
  return frames->type == RM_FRAME_HEADERS || frames->type == RM_FRAME_CONTINUATION || frames->type == RM_FRAME_PROMISE;
}

/* Whether DATA, HEADERS or what continues these: what a request and its answer are made of. */
static __always_inline bool is_of_request(const struct rm_frames *frames) {
  return frames->type == RM_FRAME_DATA || (has_headers(frames) && frames->block_type == RM_FRAME_HEADERS);
}

/* Whether a frame of a type may be so long, and of such a stream. */
static __always_inline bool is_possible(__u32 type, __u32 length, __u32 stream, bool sent) {
  switch (type) {
  case RM_FRAME_DATA: return stream;
  case RM_FRAME_HEADERS: return sent ? stream : stream & 1;
  case RM_FRAME_PRIORITY: return length == 5;
  case RM_FRAME_RESET: return length == 4 && stream;
  case RM_FRAME_SETTINGS: return !stream && length % 6 == 0;
  case RM_FRAME_PROMISE: return sent && stream;
  case RM_FRAME_PING: return !stream && length == 8;
  case RM_FRAME_GOAWAY: return !stream && length >= 8;
  case RM_FRAME_WINDOW: return length == 4;
  case RM_FRAME_CONTINUATION: return false;
  }
  return length <= 1 << 14; /* of an extension: peers have not been asked for longer ones */
}

/* Whether a frame may come here: else these are no frames, or not all were seen. */
static __always_inline bool may_come(const struct rm_frames *frames, bool sent) {
  if (frames->in_block) return frames->type == RM_FRAME_CONTINUATION && frames->stream == frames->block_stream;
  return (frames->begun || frames->type == RM_FRAME_SETTINGS) && is_possible(frames->type, frames->length, frames->stream, sent);
}

/* Gives user space bytes of a frame with headers, which the piece holds. */
static __always_inline void emit_piece(struct rm_walk *walk, __u32 at, __u32 bytes) {
  struct rm_frames *frames = walk->frames;
  struct rm_piece *piece = &frames->piece;
  piece->number = frames->pieces++; /* one that is not handed over is missed by its number */
  frames->block_bytes += bytes + RM_PIECE_ITSELF;
  if (frames->block_bytes > RM_MOST_BLOCK) return;
  piece->connection = walk->key;
  piece->user = walk->connection->user;
  piece->stream = frames->stream;
  piece->frame_bytes = frames->length;
  piece->at = at;
  piece->type = frames->type;
  piece->flags = frames->flags;
  piece->sent = walk->sent;
  piece->no_room = frames->no_room;
  piece->bytes = bytes;
  barrier_var(bytes); /* keeps the comparison, which the verifier goes by */
  if (bytes > RM_PIECE) return;
  __u64 size = __builtin_offsetof(struct rm_piece, data) + bytes;
  if (bpf_ringbuf_output(&http2_ring, piece, size, BPF_RB_NO_WAKEUP)) lost(RM_REQUEST_LOST_HTTP2);
}

static __always_inline void frame_ends(struct rm_walk *walk) {
  struct rm_frames *frames = walk->frames;
  frames->header_bytes = 0;
  if (frames->type == RM_FRAME_DATA) frames->ends_stream = frames->flags & RM_END_STREAM;
  if (has_headers(frames)) {
    if (frames->type == RM_FRAME_HEADERS) frames->ends_stream = frames->flags & RM_END_STREAM;
    if (frames->type == RM_FRAME_PROMISE) frames->ends_stream = 0;
    frames->in_block = !(frames->flags & RM_END_HEADERS);
    if (frames->in_block) return;
  }
  if (is_of_request(frames) && frames->ends_stream && walk->sent) stream_ends(walk, 0);
}

/* A frame's header is there (and of RST_STREAM the code). */
static __always_inline void frame_begins(struct rm_walk *walk) {
  struct rm_frames *frames = walk->frames;
  const __u8 *h = frames->header;
  frames->length = frames->left = h[0] << 16 | h[1] << 8 | h[2];
  frames->type = h[3];
  frames->flags = h[4];
  frames->stream = (h[5] & 0x7f) << 24 | h[6] << 16 | h[7] << 8 | h[8];
  if (!may_come(frames, walk->sent)) {
    frames->lost = true;
    return;
  }
  frames->begun = 1;
  if (frames->type == RM_FRAME_RESET) {
    frames->left = 0;
    stream_ends(walk, walk->sent && (h[9] | h[10] | h[11] | h[12]) ? RM_REQUEST_RESET : 0);
  }
  if (has_headers(frames)) {
    if (!frames->in_block) {
      frames->block_stream = frames->stream;
      frames->block_type = frames->type;
      frames->no_room = 0;
      frames->block_bytes = 0;
      if (!walk->sent) stream_begins(walk);
    }
    if (!frames->left) emit_piece(walk, 0, 0);
  }
  if (is_of_request(frames)) stream_moves(walk, RM_FRAME_HEADER);
  if (!frames->left) frame_ends(walk);
}

static __always_inline void passes(struct rm_frames *frames, __u64 bytes) {
  if (frames->buffers.at) frames->buffers.at += bytes;
  frames->buffers.here -= bytes;
  frames->all -= bytes;
}

static __always_inline void reads_header(struct rm_walk *walk) {
  struct rm_frames *frames = walk->frames;
  __u32 have = frames->header_bytes;
  __u32 wanted = have >= RM_FRAME_HEADER ? RM_FRAME_HEADER + 4 : RM_FRAME_HEADER;
  if (have >= wanted) {
    frames->lost = true;
    return;
  }
  __u32 bytes = wanted - have;
  if (bytes > frames->buffers.here) bytes = frames->buffers.here;
  barrier_var(have);
  barrier_var(bytes);
  have &= 15;
  bytes &= 15;
  if (!frames->buffers.at || bpf_probe_read_user(frames->header + have, bytes, (void *)frames->buffers.at)) {
    frames->lost = true;
    return;
  }
  passes(frames, bytes);
  frames->header_bytes = have += bytes;
  if (have < wanted) return;
  if (have == RM_FRAME_HEADER && frames->header[3] == RM_FRAME_RESET) return; /* four bytes more */
  frame_begins(walk);
  if (frames->left) frames->in_payload = 1;
}

static __always_inline void reads_payload(struct rm_walk *walk) {
  struct rm_frames *frames = walk->frames;
  __u64 bytes = frames->left < frames->buffers.here ? frames->left : frames->buffers.here;
  if (has_headers(frames)) {
    if (bytes > RM_PIECE) bytes = RM_PIECE;
    __u32 copied = bytes;
    barrier_var(copied);
    if (copied > RM_PIECE) return;
    if (!frames->buffers.at || bpf_probe_read_user(frames->piece.data, copied, (void *)frames->buffers.at)) {
      frames->lost = true;
      return;
    }
    emit_piece(walk, frames->length - frames->left, copied);
  }
  if (is_of_request(frames)) stream_moves(walk, bytes);
  passes(frames, bytes);
  frames->left -= bytes;
  if (frames->left) return;
  frames->in_payload = 0;
  frame_ends(walk);
}

static long walks_on(__u64 at, struct rm_walk *walk) {
  struct rm_frames *frames = walk->frames;
  if (walk->http2->key != walk->key || walk->connection->request.connection != walk->key) return 1; /* it has closed */
  if (!frames->buffers.here) {
    next_buffer(&frames->buffers, frames->all);
  } else if (frames->preface) {
    __u64 bytes = frames->preface < frames->buffers.here ? frames->preface : frames->buffers.here;
    __u32 first = 0;
    if (frames->preface == RM_PREFACE && bytes >= sizeof first && frames->buffers.at) {
      bpf_probe_read_user(&first, sizeof first, (void *)frames->buffers.at);
      if (first != FOUR('P', 'R', 'I', ' ')) frames->lost = true; /* the connection was open before */
    }
    frames->preface -= bytes;
    passes(frames, bytes);
  } else if (frames->in_payload) {
    reads_payload(walk);
  } else {
    reads_header(walk);
  }
  return frames->lost || !frames->all;
}

/* The connection is not looked into from here on. User space knows its streams, which are lost: it is told before it can see
 * that the state is another. */
static __always_inline void position_is_lost(struct rm_connection *connection) {
  connection->request.flags = RM_REQUEST_OPAQUE | RM_REQUEST_POSITION_LOST;
  lost(RM_REQUEST_LOST_POSITION);
  emit(connection);
  barrier();
  connection->state = RM_IGNORED;
}

/* Whether all bytes of this direction were seen that TCP has moved since the last call. They were not where a process that is
 * not followed has moved some, or a call that passes no tracepoint (splice, TCP_ZEROCOPY_RECEIVE). A receive that comes to the
 * end takes one more, that of the FIN; and a sender may find the FIN behind its own bytes.
 *
 * The socket is not locked any more: where another thread has moved bytes since, its are taken for missed ones, and the position
 * is lost. Two threads that send on one connection at the same moment would mix their frames, so servers do not let them. */
static __always_inline bool has_come_whole(struct rm_frames *frames, struct sock *sk, __u32 bytes, bool sent) {
  if (BPF_CORE_READ(sk, __sk_common.skc_family) == AF_UNIX || BPF_CORE_READ(sk, sk_protocol) != IPPROTO_TCP) return true;
  struct tcp_sock *tcp = (void *)sk;
  __u32 now = sent ? BPF_CORE_READ(tcp, write_seq) : BPF_CORE_READ(tcp, copied_seq);
  __u32 moved = now - frames->sequence;
  bool is_first = !frames->has_sequence;
  frames->sequence = now;
  frames->has_sequence = true;
  return is_first || moved == bytes || moved == bytes + 1;
}

/* Whether bytes were sent that no call was seen to send: streams that are left may have been answered by these. (One more is the
 * FIN.) */
static __always_inline bool was_sent_unseen(struct rm_connection *connection, __u64 key, struct sock *sk) {
  struct rm_http2 *found = bpf_map_lookup_elem(&http2, &key);
  if (connection->state != RM_STREAMS || !found || found->key != key || !found->sent.has_sequence) return false;
  if (BPF_CORE_READ(sk, sk_protocol) != IPPROTO_TCP) return false;
  struct tcp_sock *tcp = (void *)sk;
  return BPF_CORE_READ(tcp, write_seq) - found->sent.sequence > 1;
}

/* Looks at what a call has moved. `readable`: its bytes lie in its buffers. */
static __always_inline void http2_moves(const struct rm_server *server, struct rm_connection *connection, struct sock *sk,
                                        __u32 bytes, __u64 now, bool sent, bool readable) {
  __u64 key = bpf_get_socket_cookie(sk);
  struct rm_http2 *found = bpf_map_lookup_elem(&http2, &key);
  if (!found || found->key != key) {
    position_is_lost(connection);
    return;
  }
  connection->request.last_ns = now;
  struct rm_walk walk = {.key = key, .connection = connection, .http2 = found, .sk = sk, .now = now, .sent = sent};
  walk.frames = sent ? &found->sent : &found->received;
  struct rm_frames *frames = walk.frames;
  if (found->received.lost || found->sent.lost) { /* another thread has said so, or is about to */
    connection->state = RM_IGNORED;
    return;
  }
  /* What the process did before it was followed, or while it was not, was not seen. */
  if (connection->request.opened_ns < server->since_ns || !has_come_whole(frames, sk, bytes, sent)) {
    frames->lost = true;
  } else {
    frames->all = bytes;
    frames->buffers = (struct rm_buffers){.here = bytes};
    if (readable) buffers_of_this(&frames->buffers, bytes, sent);
    bpf_loop(RM_MOST_MOVES, walks_on, &walk, 0);
    if (found->key != key || connection->request.connection != key) return; /* it has closed meanwhile */
    if (frames->all) frames->lost = true;
  }
  if (frames->lost) position_is_lost(connection);
}

/* A connection's first bytes are HTTP/2's preface, the client's or the server's; or both at the same moment. */
static __always_inline void http2_begins(const struct rm_server *server, struct rm_connection *connection, struct sock *sk,
                                         __u32 bytes, __u64 now, bool sent, bool readable) {
  __u64 key = bpf_get_socket_cookie(sk);
  if (connection->state == RM_IGNORED) return; /* its position was lost at this moment */
  connection->request.protocol = RM_HTTP2;
  is_of_this(&connection->request);
  connection->request.begin_ns = now;
  bpf_map_update_elem(&http2, &key, &new_http2, BPF_NOEXIST); /* where there is no room, it is missing in what follows */
  struct rm_http2 *made = bpf_map_lookup_elem(&http2, &key);
  if (made) made->key = key;
  connection->state = RM_STREAMS;
  http2_moves(server, connection, sk, bytes, now, sent, readable);
}

/* Whether what is sent now is a server's preface, a frame with settings: servers may send it before they receive anything. */
static __always_inline bool is_server_preface(__u32 bytes) {
  __u8 h[RM_FRAME_HEADER];
  __u64 buffer = buffer_of_this(&bytes, true);
  if (bytes < sizeof h || !buffer || bpf_probe_read_user(h, sizeof h, (void *)buffer)) return false;
  __u32 length = h[0] << 16 | h[1] << 8 | h[2];
  return length <= 1 << 10 && length % 6 == 0 && h[3] == RM_FRAME_SETTINGS && !(h[4] | h[5] | h[6] | h[7] | h[8]);
}

/* Whether bytes are most likely a frame's header: of a connection that was open before it was followed. An answer begins with
 * one, and what is received mostly does. */
static __always_inline bool looks_like_frame(const __u8 *h, bool sent) {
  __u32 length = h[0] << 16 | h[1] << 8 | h[2], type = h[3], flags = h[4];
  __u32 stream = h[5] << 24 | h[6] << 16 | h[7] << 8 | h[8];
  if (length > 1 << 14 || type > RM_FRAME_WINDOW || flags > 0x2d || stream >> 31) return false;
  if (type == RM_FRAME_HEADERS && !length) return false;
  if (type == RM_FRAME_DATA && (flags & ~9 || (!length && !(flags & RM_END_STREAM)))) return false;
  if (type == RM_FRAME_HEADERS && flags & ~0x2d) return false;
  return is_possible(type, length, stream, sent);
}

/* Whether all bytes that a TCP connection has received were those of this call, so that what it begins with is known. Of another
 * kind of socket nothing tells. */
static __always_inline bool is_seen_from_start(struct sock *sk, __u32 got) {
  struct tcp_sock *tcp = (void *)sk;
  if (BPF_CORE_READ(sk, __sk_common.skc_family) == AF_UNIX || BPF_CORE_READ(sk, sk_protocol) != IPPROTO_TCP) return false;
  __u32 waiting = BPF_CORE_READ(tcp, rcv_nxt) - BPF_CORE_READ(tcp, copied_seq);
  __u32 read = (__u32)BPF_CORE_READ(tcp, bytes_received) - waiting;
  return read == got || read == got - 1; /* the FIN */
}

static __always_inline bool is_frame(__u64 buffer, __u32 here, bool sent) {
  __u8 header[RM_FRAME_HEADER];
  return here >= sizeof header && buffer && !bpf_probe_read_user(header, sizeof header, (void *)buffer) &&
         looks_like_frame(header, sent);
}
