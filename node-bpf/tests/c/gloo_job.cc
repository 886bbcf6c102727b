// A rank of a real gloo job over TCP: usage gloo_job DIRECTORY CALLS, with RANK and WORLD_SIZE in its environment. It waits for a
// line on its standard input, reduces CALLS times, checks each sum, waits for the end of its input, and prints how often it called.
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  int rank = atoi(getenv("RANK")), size = atoi(getenv("WORLD_SIZE")), calls = atoi(argv[2]);
  if (getchar() == EOF) return 3;
  gloo::transport::tcp::attr attr;
  attr.hostname = "127.0.0.1";
  auto device = gloo::transport::tcp::CreateDevice(attr);
  gloo::rendezvous::FileStore store(argv[1]);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  context->connectFullMesh(store, device);
  int made = 0;
  for (int i = 0; i < calls; i++) {
    float in[64], out[64];
    for (float &x : in) x = rank + i;
    gloo::AllreduceOptions options(context);
    options.setInput(in, 64);
    options.setOutput(out, 64);
    options.setTag(i);
    options.setReduceFunction(static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>));
    gloo::allreduce(options);
    made++;
    if (out[63] != size * i + size * (size - 1) / 2.0f) return 4;
  }
  while (getchar() != EOF) {
  }
  printf("%d\n", made);
}
