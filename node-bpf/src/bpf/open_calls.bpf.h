/* The calls that have not returned, for user space to read at any time: an iterator over the tasks of the machine. */

struct seq_file;
struct bpf_iter_meta { struct seq_file *seq; } __attribute__((preserve_access_index));
struct bpf_iter__task {
  struct bpf_iter_meta *meta;
  struct task_struct *task;
} __attribute__((preserve_access_index));

SEC("iter/task")
int open_calls(struct bpf_iter__task *ctx) {
  struct task_struct *task = ctx->task;
  if (!task) return 0; /* the end */
  struct thread_state *state = thread_of(task);
  if (!state || !state->call.enter_ns || end_missed(state) || !may_see(task)) return 0;
  struct rm_open_call out = {.pid = task->tgid, .tid = task->pid, .call = state->call};
  barrier();
  /* It runs on meanwhile: what was copied may be of two calls. The one is over then, the other has just begun. */
  if (*(volatile __u64 *)&state->call.enter_ns != out.call.enter_ns) return 0;
  bpf_seq_write(ctx->meta->seq, &out, sizeof out);
  return 0;
}
