// A rank of a real gloo job over TCP: usage gloo_job DIRECTORY CALLS, with RANK and WORLD_SIZE in its environment. It waits
// for a line on its standard input, meets the others in a world and, if its number is even, in a group of the even ones; makes
// CALLS reductions in the world, and one of every other collective in both; and leaves one
// barrier by an exception. It prints a line with its numbers of calls, waits for the end of its input, and ends.
#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using Context = std::shared_ptr<gloo::rendezvous::Context>;
static const auto sum = static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>);

static Context meet(const std::string &name, gloo::rendezvous::Store &store, int rank, int size) {
  gloo::transport::tcp::attr attr;
  attr.hostname = "127.0.0.1";
  auto device = gloo::transport::tcp::CreateDevice(attr);
  gloo::rendezvous::PrefixStore named(name, store);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  context->connectFullMesh(named, device);
  return context;
}

static bool reduce_once(const Context &context, int number) {
  int rank = context->rank, size = context->size;
  float in[64], out[64];
  for (float &x : in) x = rank + number;
  gloo::AllreduceOptions options(context);
  options.setInput(in, 64);
  options.setOutput(out, 64);
  options.setTag(number);
  options.setReduceFunction(sum);
  gloo::allreduce(options);
  return out[63] == size * number + size * (size - 1) / 2.0f;
}

// One of every other collective.
static void others(const Context &context) {
  int size = context->size;
  std::vector<float> mine(8, context->rank), all(8 * size);
  gloo::AllgatherOptions allgather(context);
  allgather.setInput(mine.data(), 8);
  allgather.setOutput(all.data(), 8 * size);
  gloo::allgather(allgather);
  gloo::AllgathervOptions allgatherv(context);
  allgatherv.setInput(mine.data(), 8);
  allgatherv.setOutput(all.data(), std::vector<size_t>(size, 8));
  gloo::allgatherv(allgatherv);
  gloo::AlltoallOptions alltoall(context);
  std::vector<float> each(size, 1), theirs(size);
  alltoall.setInput(each.data(), size);
  alltoall.setOutput(theirs.data(), size);
  gloo::alltoall(alltoall);
  gloo::BroadcastOptions broadcast(context);
  broadcast.setOutput(mine.data(), 8);
  broadcast.setRoot(size - 1);
  gloo::broadcast(broadcast);
  gloo::GatherOptions gather(context);
  gather.setInput(mine.data(), 8);
  if (context->rank == 0) gather.setOutput(all.data(), 8 * size);
  gather.setRoot(0);
  gloo::gather(gather);
  gloo::ReduceOptions reduce(context);
  reduce.setInput(mine.data(), 8);
  reduce.setOutput(mine.data(), 8);
  reduce.setRoot(0);
  reduce.setReduceFunction(sum);
  gloo::reduce(reduce);
  gloo::ScatterOptions scatter(context);
  std::vector<float *> parts(size, mine.data());
  if (context->rank == 0) scatter.setInputs(parts, 8);
  scatter.setOutput(mine.data(), 8);
  scatter.setRoot(0);
  gloo::scatter(scatter);
  gloo::BarrierOptions barrier(context);
  gloo::barrier(barrier);
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  int rank = atoi(getenv("RANK")), size = atoi(getenv("WORLD_SIZE")), calls = atoi(argv[2]);
  if (getchar() == EOF) return 3;
  gloo::rendezvous::FileStore store(argv[1]);
  Context world = meet("world", store, rank, size);
  for (int i = 0; i < calls; i++) {
    if (!reduce_once(world, i)) return 4;
  }
  others(world);
  int in_group = 0;
  if (rank % 2 == 0) {
    Context even = meet("even", store, rank / 2, (size + 1) / 2);
    others(even);
    in_group = 8;
  }
  if (rank == 0) {
    // nobody else comes
    gloo::BarrierOptions barrier(world);
    barrier.setTag(99);
    barrier.setTimeout(std::chrono::milliseconds(50));
    try {
      gloo::barrier(barrier);
      return 5;
    } catch (const std::exception &) {
    }
  }
  printf("{\"world\": %d, \"even\": %d}\n", calls + 8, in_group);
  fflush(stdout);
  while (getchar() != EOF) {
  }
}
