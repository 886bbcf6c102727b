/* cudart-sim, inside: a device that runs queues of work. Its public face is cudart.c; nccl-sim puts collectives into the
 * queues through simcuda_enqueue, which it finds by name (dlsym), so that it works without this library, too. */
#ifndef CUDART_SIM_DEVICE_H
#define CUDART_SIM_DEVICE_H

#include <stdatomic.h>
#include <stdint.h>

/* What is done for a queued piece of work, and how its argument goes when it is no longer needed. */
typedef void (*simcuda_run)(void *arg);

/* A piece of work: in a stream's queue, or a node of a graph. */
struct work {
  simcuda_run run, release;
  void *arg;
  struct work *next;
};

struct list {
  struct work *first, **last;
};

struct graph {
  struct list nodes;
  _Atomic int uses; /* the graph, its executables, and launches under way */
};

struct event {
  _Atomic uint32_t recorded, done; /* futexes: how often recorded, and how far that is done */
};

struct stream;

struct stream *device_stream(void *handle); /* NULL is the default stream; none on a wrong handle */
struct stream *device_stream_create(void);
void device_stream_destroy(struct stream *stream);
int device_enqueue(struct stream *stream, simcuda_run run, void *arg, simcuda_run release); /* 0, or no memory */
void device_wait(struct stream *stream);
int device_idle(struct stream *stream);
void device_wait_all(void);
void device_wait_event(struct event *event, uint32_t until);
int device_capturing(struct stream *stream);
int device_capture_begin(struct stream *stream);
struct graph *device_capture_end(struct stream *stream);
int device_launch(struct graph *graph, struct stream *stream);
void device_graph_drop(struct graph *graph);

#endif
