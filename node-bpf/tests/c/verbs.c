/* A stand-in for libibverbs (-DLIBRARY) by the library's own header, so that structures lie where they really do, and a rank
 * that waits for events of two devices, each in a thread of its own, as NCCL and UCX do.
 *
 * The rank raises its events when it has read a line, prints how many its threads were told of, and ends with its input. */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ibv_context *stand_in_open(const char *name);
void stand_in_raise(struct ibv_context *context, enum ibv_event_type type, int port);

#ifdef LIBRARY
/* Of each device: what is raised, in order. */
struct queue {
  pthread_mutex_t lock;
  pthread_cond_t more;
  struct ibv_async_event events[64];
  int raised, told;
};

struct ibv_context *stand_in_open(const char *name) {
  struct ibv_context *context = calloc(1, sizeof *context);
  struct queue *queue = calloc(1, sizeof *queue);
  context->device = calloc(1, sizeof *context->device);
  context->device->node_type = IBV_NODE_CA;
  strncpy(context->device->name, name, sizeof context->device->name - 1);
  pthread_mutex_init(&queue->lock, NULL);
  pthread_cond_init(&queue->more, NULL);
  context->abi_compat = queue;
  return context;
}

void stand_in_raise(struct ibv_context *context, enum ibv_event_type type, int port) {
  struct queue *queue = context->abi_compat;
  pthread_mutex_lock(&queue->lock);
  struct ibv_async_event *event = &queue->events[queue->raised++ % 64];
  event->event_type = type;
  if (port) event->element.port_num = port;
  else event->element.qp = (struct ibv_qp *)0x7fff12345678;
  pthread_cond_signal(&queue->more);
  pthread_mutex_unlock(&queue->lock);
}

int get_1_1(struct ibv_context *context, struct ibv_async_event *event) {
  struct queue *queue = context->abi_compat;
  pthread_mutex_lock(&queue->lock);
  while (queue->told == queue->raised) pthread_cond_wait(&queue->more, &queue->lock);
  *event = queue->events[queue->told++ % 64];
  pthread_mutex_unlock(&queue->lock);
  return event->event_type == IBV_EVENT_WQ_FATAL ? -1 : 0; /* the last one: no event */
}
/* As in the real one, an older version of the name leads to another function. */
int get_1_0(struct ibv_context *context, struct ibv_async_event *event) { return context && event ? -1 : -2; }
__asm__(".symver get_1_1, ibv_get_async_event@@IBVERBS_1.1");
__asm__(".symver get_1_0, ibv_get_async_event@IBVERBS_1.0");
#else
static int told[2];

static void *wait_for_events(void *argument) {
  struct ibv_context *context = argument;
  struct ibv_async_event event;
  int *count = &told[strcmp(context->device->name, "mlx5_0") != 0];
  while (!ibv_get_async_event(context, &event)) ++*count;
  return NULL;
}

int main(void) {
  struct ibv_context *devices[2] = {stand_in_open("mlx5_0"), stand_in_open("mlx5_bond_0")};
  pthread_t threads[2];
  char line[8];
  if (!fgets(line, sizeof line, stdin)) return 1;
  for (int i = 0; i < 2; i++)
    if (pthread_create(&threads[i], NULL, wait_for_events, devices[i])) return 1;
  stand_in_raise(devices[0], IBV_EVENT_PORT_ERR, 1);
  stand_in_raise(devices[0], IBV_EVENT_PORT_ACTIVE, 1);
  stand_in_raise(devices[1], IBV_EVENT_QP_FATAL, 0);
  stand_in_raise(devices[1], IBV_EVENT_DEVICE_FATAL, 0);
  for (int i = 0; i < 2; i++) stand_in_raise(devices[i], IBV_EVENT_WQ_FATAL, 0);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  printf("%d %d\n", told[0], told[1]);
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {}
  return 0;
}
#endif
