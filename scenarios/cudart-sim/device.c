/* The device: streams, each a queue with a thread of its own, and graphs, which are lists of work that is kept. */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "device.h"

struct stream {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  struct list queue;
  uint64_t queued, done; /* pieces of work so far */
  struct graph *capture; /* what comes goes there */
  int started, ends;
  pthread_t worker;
  struct stream *next; /* in the list of all */
};

static struct stream default_stream = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream *all = &default_stream;

static void append(struct list *list, struct work *work) {
  work->next = NULL;
  if (!list->first) list->last = &list->first;
  *list->last = work;
  list->last = &work->next;
}

struct stream *device_stream(void *handle) {
  /* cudaStreamLegacy and cudaStreamPerThread are 1 and 2 */
  return (uintptr_t)handle <= 2 ? &default_stream : handle;
}

static void *serve(void *arg) {
  struct stream *stream = arg;
  pthread_mutex_lock(&stream->lock);
  for (;;) {
    while (!stream->queue.first && !stream->ends) pthread_cond_wait(&stream->changed, &stream->lock);
    struct work *work = stream->queue.first;
    if (!work) break;
    stream->queue.first = work->next;
    pthread_mutex_unlock(&stream->lock);
    work->run(work->arg);
    if (work->release) work->release(work->arg);
    free(work);
    pthread_mutex_lock(&stream->lock);
    stream->done++;
    pthread_cond_broadcast(&stream->changed);
  }
  pthread_mutex_unlock(&stream->lock);
  return NULL;
}

struct stream *device_stream_create(void) {
  struct stream *stream = calloc(1, sizeof *stream);
  if (!stream) return NULL;
  pthread_mutex_init(&stream->lock, NULL);
  pthread_cond_init(&stream->changed, NULL);
  pthread_mutex_lock(&all_lock);
  stream->next = all;
  all = stream;
  pthread_mutex_unlock(&all_lock);
  return stream;
}

void device_stream_destroy(struct stream *stream) {
  if (stream == &default_stream) return;
  pthread_mutex_lock(&all_lock);
  for (struct stream **at = &all; *at; at = &(*at)->next)
    if (*at == stream) {
      *at = stream->next;
      break;
    }
  pthread_mutex_unlock(&all_lock);
  pthread_mutex_lock(&stream->lock);
  int started = stream->started;
  stream->ends = 1;
  pthread_cond_broadcast(&stream->changed);
  pthread_mutex_unlock(&stream->lock);
  if (started) pthread_join(stream->worker, NULL);
  if (stream->capture) device_graph_drop(stream->capture);
  free(stream);
}

int device_enqueue(struct stream *stream, simcuda_run run, void *arg, simcuda_run release) {
  struct work *work = malloc(sizeof *work);
  if (!work) return 1;
  *work = (struct work){.run = run, .release = release, .arg = arg};
  int failed = 0;
  pthread_mutex_lock(&stream->lock);
  if (stream->capture) {
    append(&stream->capture->nodes, work);
  } else if (!stream->started && pthread_create(&stream->worker, NULL, serve, stream) != 0) {
    free(work);
    failed = 1;
  } else {
    stream->started = 1;
    append(&stream->queue, work);
    stream->queued++;
    pthread_cond_broadcast(&stream->changed);
  }
  pthread_mutex_unlock(&stream->lock);
  return failed;
}

/* For all that was queued before; what comes meanwhile is not waited for. */
void device_wait(struct stream *stream) {
  pthread_mutex_lock(&stream->lock);
  for (uint64_t until = stream->queued; stream->done < until;) pthread_cond_wait(&stream->changed, &stream->lock);
  pthread_mutex_unlock(&stream->lock);
}

int device_idle(struct stream *stream) {
  pthread_mutex_lock(&stream->lock);
  int idle = stream->done == stream->queued;
  pthread_mutex_unlock(&stream->lock);
  return idle;
}

void device_wait_all(void) {
  /* streams of other threads may go meanwhile: with the list locked they stay */
  pthread_mutex_lock(&all_lock);
  for (struct stream *stream = all; stream; stream = stream->next) device_wait(stream);
  pthread_mutex_unlock(&all_lock);
}

void device_wait_event(struct event *event, uint32_t until) {
  for (uint32_t done; (int32_t)((done = atomic_load(&event->done)) - until) < 0;)
    syscall(SYS_futex, &event->done, FUTEX_WAIT_PRIVATE, done, NULL, NULL, 0);
}

int device_capturing(struct stream *stream) {
  pthread_mutex_lock(&stream->lock);
  int capturing = stream->capture != NULL;
  pthread_mutex_unlock(&stream->lock);
  return capturing;
}

int device_capture_begin(struct stream *stream) {
  struct graph *graph = calloc(1, sizeof *graph);
  if (!graph) return 1;
  atomic_store(&graph->uses, 1);
  pthread_mutex_lock(&stream->lock);
  int busy = stream->capture != NULL;
  if (!busy) stream->capture = graph;
  pthread_mutex_unlock(&stream->lock);
  if (busy) free(graph);
  return busy;
}

struct graph *device_capture_end(struct stream *stream) {
  pthread_mutex_lock(&stream->lock);
  struct graph *graph = stream->capture;
  stream->capture = NULL;
  pthread_mutex_unlock(&stream->lock);
  return graph;
}

static void run_graph(void *arg) {
  struct graph *graph = arg;
  for (struct work *node = graph->nodes.first; node; node = node->next) node->run(node->arg);
}

static void drop_graph(void *arg) { device_graph_drop(arg); }

int device_launch(struct graph *graph, struct stream *stream) {
  atomic_fetch_add(&graph->uses, 1);
  if (device_enqueue(stream, run_graph, graph, drop_graph) == 0) return 0;
  device_graph_drop(graph);
  return 1;
}

void device_graph_drop(struct graph *graph) {
  if (atomic_fetch_sub(&graph->uses, 1) > 1) return;
  while (graph->nodes.first) {
    struct work *node = graph->nodes.first;
    graph->nodes.first = node->next;
    if (node->release) node->release(node->arg);
    free(node);
  }
  free(graph);
}
