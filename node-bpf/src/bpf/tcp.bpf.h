/* TCP retransmits and resets. They happen in softirq, so the current task is not the owner: the socket's inode number
 * is sent along and user space looks for it among the tracked processes. */

#define TCP_TIME_WAIT 6
#define TCP_NEW_SYN_RECV 12

static __always_inline struct cgroup *cgroup_of_socket(struct sock *sk) {
  if (bpf_core_field_exists(sk->sk_cgrp_data.cgroup)) return BPF_CORE_READ(sk, sk_cgrp_data.cgroup);
  struct sock_cgroup_data___old *old = (void *)__builtin_preserve_access_index(&sk->sk_cgrp_data);
  __u64 value = BPF_CORE_READ(old, val);
  return value & 3 ? 0 : (void *)value;
}

static __always_inline int tcp_event_run(__u32 event, struct sock *sk) {
  __u32 state = BPF_CORE_READ(sk, __sk_common.skc_state);
  /* these are smaller structures with the common beginning only: nobody's any more, or nobody's yet */
  bool whole = state != TCP_TIME_WAIT && state != TCP_NEW_SYN_RECV;
  struct cgroup *cgroup = whole ? cgroup_of_socket(sk) : 0;
  if (!wanted_cgroup((__u64)cgroup) || !may_see_socket(sk, whole)) return 0;
  COUNT(RM_SLOT_TCP, hits);
  struct rm_tcp *out = bpf_ringbuf_reserve(&events, sizeof *out, 0);
  if (!out) {
    COUNT(RM_SLOT_TCP, lost_ring);
    return 0;
  }
  out->kind = RM_TCP;
  out->ts_ns = bpf_ktime_get_ns();
  out->state = state;
  out->cgroup_id = cgroup ? BPF_CORE_READ(cgroup, kn, id) : 0;
  out->family = BPF_CORE_READ(sk, __sk_common.skc_family);
  out->sport = BPF_CORE_READ(sk, __sk_common.skc_num);
  out->dport = __builtin_bswap16(BPF_CORE_READ(sk, __sk_common.skc_dport));
  out->event = event;
  out->pad2 = 0;
  out->segs = 1;
  __builtin_memset(out->saddr, 0, sizeof out->saddr);
  __builtin_memset(out->daddr, 0, sizeof out->daddr);
  struct socket *socket = whole ? BPF_CORE_READ(sk, sk_socket) : 0;
  out->socket_inode = 0;
  if (socket) {
    struct socket_alloc *alloc = (void *)((char *)socket - bpf_core_field_offset(struct socket_alloc, socket));
    out->socket_inode = BPF_CORE_READ(alloc, vfs_inode.i_ino);
  }
  if (out->family == 10) {
    struct sock___v6 *v6 = (void *)sk;
    BPF_CORE_READ_INTO(&out->saddr, v6, __sk_common.skc_v6_rcv_saddr);
    BPF_CORE_READ_INTO(&out->daddr, v6, __sk_common.skc_v6_daddr);
  } else {
    __u32 source = BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr), target = BPF_CORE_READ(sk, __sk_common.skc_daddr);
    __builtin_memcpy(out->saddr, &source, 4);
    __builtin_memcpy(out->daddr, &target, 4);
  }
  bpf_ringbuf_submit(out, wake_flags());
  return 0;
}

static __always_inline int tcp_event(__u32 event, struct sock *sk) {
  return MEASURED(RM_PROGRAM_TCP, tcp_event_run(event, sk));
}

SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(on_retransmit, struct sock *sk, struct sk_buff *skb) { return tcp_event(RM_TCP_RETRANSMIT, sk); }

/* Without a socket (a segment to a port nobody listens on) there is no owner to tell. */
SEC("tp_btf/tcp_send_reset")
int BPF_PROG(on_send_reset, struct sock *sk) {
  if (!sk) return 0;
  return tcp_event(RM_TCP_SEND_RESET, sk);
}

SEC("tp_btf/tcp_receive_reset")
int BPF_PROG(on_receive_reset, struct sock *sk) { return tcp_event(RM_TCP_RECEIVE_RESET, sk); }
