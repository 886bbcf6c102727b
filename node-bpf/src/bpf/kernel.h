/* The few kernel types that the programs touch, kept by hand: only the fields used, relocated at load (CO-RE) against
 * the running kernel's BTF. Field names and types: Linux uapi and include/linux headers. */
#ifndef RANKMESH_KERNEL_H
#define RANKMESH_KERNEL_H

#define __VMLINUX_H__ /* bpf_tracing.h: use the kernel's names of registers */

typedef signed char __s8;
typedef unsigned char __u8;
typedef short __s16;
typedef unsigned short __u16;
typedef int __s32;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;
#define true 1
#define false 0

enum {
  BPF_MAP_TYPE_HASH = 1,
  BPF_MAP_TYPE_ARRAY = 2,
  BPF_MAP_TYPE_PROG_ARRAY = 3,
  BPF_MAP_TYPE_PERCPU_ARRAY = 6,
  BPF_MAP_TYPE_CGROUP_ARRAY = 8,
  BPF_MAP_TYPE_LRU_HASH = 9,
  BPF_MAP_TYPE_RINGBUF = 27,
  BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum { BPF_ANY = 0, BPF_NOEXIST = 1, BPF_EXIST = 2 };
enum { BPF_F_NO_PREALLOC = 1, BPF_F_MMAPABLE = 1024, BPF_LOCAL_STORAGE_GET_F_CREATE = 1 };
/* which helpers the kernel has; of these only the one that is asked for */
enum bpf_func_id { BPF_FUNC_get_task_stack = 141 };
enum { BPF_RB_NO_WAKEUP = 1, BPF_RB_FORCE_WAKEUP = 2, BPF_RB_AVAIL_DATA = 0, BPF_RB_PROD_POS = 3 };

#if defined(__TARGET_ARCH_x86)
/* The register frame is ABI: no relocation. */
struct pt_regs {
  unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs;
struct user_pt_regs {
  __u64 regs[31];
  __u64 sp, pc, pstate;
};
#else
#error "argument passing is written for x86-64 and aarch64"
#endif

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct { int counter; } atomic_t;
struct signal_struct { atomic_t live; };
struct css_set;
typedef struct { __u32 val; } kuid_t;
struct user_namespace {
  int level;
  struct user_namespace *parent;
  kuid_t owner;
};
/* before Linux 6.3 two words of 32 bits, since then one of 64 */
struct capabilities { __u64 bits; };
struct cred {
  kuid_t uid, suid, euid;
  struct capabilities cap_permitted;
  struct user_namespace *user_ns;
};
struct mm_struct { unsigned long flags; };
/* from Linux 6.18 on */
struct mm_flags { unsigned long bits; };
struct mm_struct___bitmap { struct mm_flags flags; };
/* with CONFIG_CFS_BANDWIDTH */
struct cfs_rq { int throttle_count; };
struct sched_entity {
  struct cfs_rq *cfs_rq;
  __u64 sum_exec_runtime;
};
struct task_struct {
  void *stack;
  int pid, tgid;
  char comm[16];
  unsigned int __state;
  struct signal_struct *signal;
  unsigned in_iowait : 1;
  int exit_code;
  unsigned long nvcsw, nivcsw; /* how often it has left a CPU to wait, and pushed off it */
  struct task_struct *real_parent, *group_leader;
  __u64 start_time;
  struct css_set *cgroups;
  unsigned int flags;
  const struct cred *real_cred;
  struct mm_struct *mm;
  struct sched_entity se;
};
/* from Linux 6.18 on a throttled task is taken off its run queue by itself */
struct task_struct___throttled { bool throttled; };
/* before Linux 5.14 */
struct task_struct___old { long state; };

struct kernfs_node { __u64 id; };
struct cgroup;
struct cgroup_subsys_state {
  struct cgroup *cgroup;
  struct cgroup_subsys_state *parent;
};
struct cgroup {
  struct cgroup_subsys_state self;
  struct kernfs_node *kn;
};
struct css_set { struct cgroup *dfl_cgrp; };
struct sock_cgroup_data { struct cgroup *cgroup; };
/* before Linux 5.15: the cgroup, or, with one of the two lowest bits, something else */
struct sock_cgroup_data___old { __u64 val; };

struct in6_addr_raw { __u8 bytes[16]; };
struct sock_common {
  __u32 skc_daddr, skc_rcv_saddr;
  __u16 skc_dport, skc_num;
  unsigned short skc_family;
  volatile unsigned char skc_state;
};
struct inode { unsigned long i_ino; };
struct sock;
struct socket {
  short type;
  struct sock *sk;
};
struct socket_alloc { struct socket socket; struct inode vfs_inode; };
struct sock {
  struct sock_common __sk_common;
  struct socket *sk_socket;
  struct sock_cgroup_data sk_cgrp_data;
  kuid_t sk_uid;
  unsigned short sk_protocol;
  unsigned char sk_shutdown;
};
struct in6_addr;
struct sk_buff;

struct gendisk {
  int major, first_minor;
  char disk_name[32];
};
struct request_queue { struct gendisk *disk; };
struct request {
  struct request_queue *q;
  unsigned int cmd_flags;
  unsigned int __data_len;
};
/* before Linux 5.17 */
struct request___old { struct gendisk *rq_disk; };

#pragma clang attribute pop

/* The IPv6 addresses are read as 16 raw bytes at the relocated offset of the field. */
struct in6_addr { __u8 raw[16]; };
struct sock_common___v6 { struct in6_addr skc_v6_daddr, skc_v6_rcv_saddr; } __attribute__((preserve_access_index));
struct sock___v6 { struct sock_common___v6 __sk_common; } __attribute__((preserve_access_index));

#endif
