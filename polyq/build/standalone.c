
/* ---- the runtime of this file: a parallel loop makes its threads, and buffers live as long as a call ---- */
#include <pthread.h>
#include <stdlib.h>

enum { POLYQ_MOST_THREADS = 256 };

typedef struct {
  void (*body)(void *argument, int part, int parts);
  void *argument;
  int thread, threads;
} polyq_part;

static _Thread_local struct {
  void *memory;
  size_t bytes;
} polyq_buffers[2];
static _Thread_local int polyq_inside; /* of a parallel loop: one inside it runs serially */

static void *polyq_grow(int which, size_t bytes) {
  if (polyq_buffers[which].memory && polyq_buffers[which].bytes >= bytes) return polyq_buffers[which].memory;
  free(polyq_buffers[which].memory);
  polyq_buffers[which].memory = NULL;
  if (bytes > SIZE_MAX - 64) return NULL;
  bytes = bytes ? (bytes + 63) / 64 * 64 : 64;
  if (posix_memalign(&polyq_buffers[which].memory, 64, bytes)) polyq_buffers[which].memory = NULL;
  polyq_buffers[which].bytes = bytes;
  return polyq_buffers[which].memory;
}
static void *polyq_workspace(size_t bytes) { return polyq_grow(0, bytes); }
static void *polyq_scratch(size_t bytes) { return polyq_grow(1, bytes); }

static void polyq_free_buffers(void) {
  for (int which = 0; which < 2; which++) {
    free(polyq_buffers[which].memory);
    polyq_buffers[which].memory = NULL;
  }
}

static void *polyq_run_part(void *argument) {
  polyq_part *part = argument;
  polyq_inside = 1;
  part->body(part->argument, part->thread, part->threads);
  polyq_free_buffers();
  return NULL;
}

static void polyq_run(void (*body)(void *argument, int part, int parts), void *argument, int threads) {
  pthread_t id[POLYQ_MOST_THREADS];
  polyq_part part[POLYQ_MOST_THREADS];
  if (threads > POLYQ_MOST_THREADS) threads = POLYQ_MOST_THREADS;
  if (threads <= 1 || polyq_inside) {
    body(argument, 0, 1);
    return;
  }
  int made = 1;
  for (; made < threads; made++) {
    part[made] = (polyq_part){body, argument, made, threads};
    if (pthread_create(&id[made], NULL, polyq_run_part, &part[made])) break;
  }
  polyq_inside = 1;
  body(argument, 0, threads);
  for (int thread = made; thread < threads; thread++) body(argument, thread, threads); /* those that could not be made */
  polyq_inside = 0;
  for (int thread = 1; thread < made; thread++) pthread_join(id[thread], NULL);
}

static const polyq_runtime polyq_plain_runtime = {polyq_run, polyq_workspace, polyq_scratch};
