/* TCP retransmits. They happen in softirq, so the current task is not the owner: the socket's inode number is sent
 * along and user space looks for it among the tracked processes. */

static __noinline int wanted_cgroup(__u64 address) {
  struct cgroup *cgroup = (void *)address;
  if (config.cgroup_id == 0) return true;
  for (int depth = 0; depth < 24 && cgroup; depth++) {
    if (BPF_CORE_READ(cgroup, kn, id) == config.cgroup_id) return true;
    struct cgroup_subsys_state *parent = BPF_CORE_READ(cgroup, self.parent);
    if (!parent) return false;
    cgroup = BPF_CORE_READ(parent, cgroup);
  }
  return false;
}

SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(on_retransmit, struct sock *sk, struct sk_buff *skb) {
  struct cgroup *cgroup = BPF_CORE_READ(sk, sk_cgrp_data.cgroup);
  if (!wanted_cgroup((__u64)cgroup)) return 0;
  COUNT(RM_SLOT_TCP, hits);
  struct rm_tcp *out = bpf_ringbuf_reserve(&events, sizeof *out, 0);
  if (!out) {
    COUNT(RM_SLOT_TCP, lost_ring);
    return 0;
  }
  out->kind = RM_TCP;
  out->ts_ns = bpf_ktime_get_ns();
  out->state = BPF_CORE_READ(sk, __sk_common.skc_state);
  out->cgroup_id = cgroup ? BPF_CORE_READ(cgroup, kn, id) : 0;
  out->family = BPF_CORE_READ(sk, __sk_common.skc_family);
  out->sport = BPF_CORE_READ(sk, __sk_common.skc_num);
  out->dport = __builtin_bswap16(BPF_CORE_READ(sk, __sk_common.skc_dport));
  out->pad = 0;
  out->pad2 = 0;
  out->segs = 1;
  __builtin_memset(out->saddr, 0, sizeof out->saddr);
  __builtin_memset(out->daddr, 0, sizeof out->daddr);
  struct socket *socket = BPF_CORE_READ(sk, sk_socket);
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
