/* Runs one generated module on data from a file, each buffer in an allocation of exactly its size.
   Usage: PROGRAM THREADS DATA RESULT [PARAMETER ...]; DATA is, for each buffer, its size in bytes (int64) and its bytes;
   RESULT receives all buffers after the call, likewise. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void region(void *argument, int thread, int threads);
typedef struct {
  void (*run)(region *body, void *argument, int threads);
  void *(*workspace)(size_t bytes);
  void *(*scratch)(size_t bytes);
} runtime;

int ENTRY(const runtime *runtime, void *const *buffers, const int64_t *params, int threads);

/* A second request takes the first one's memory back, as the real runtime may: a pointer that is kept is found out. */
static __thread void *workspace_memory, *scratch_memory;

static void *exactly(void **kept, size_t bytes) {
  free(*kept);
  if (posix_memalign(kept, 64, bytes)) exit(3);
  return *kept;
}
static void *workspace(size_t bytes) { return exactly(&workspace_memory, bytes); }
static void *scratch(size_t bytes) { return exactly(&scratch_memory, bytes); }

struct share { region *body; void *argument; int thread, threads; };

static void *work(void *p) {
  struct share *s = p;
  s->body(s->argument, s->thread, s->threads);
  if (s->thread) {
    free(scratch_memory);
    free(workspace_memory);
  }
  return NULL;
}

static void run(region *body, void *argument, int threads) {
  pthread_t ids[64];
  struct share shares[64];
  if (threads > 64) threads = 64;
  for (int t = 0; t < threads; t++) shares[t] = (struct share){body, argument, t, threads};
  for (int t = 1; t < threads; t++)
    if (pthread_create(&ids[t], NULL, work, &shares[t])) exit(3);
  work(&shares[0]);
  for (int t = 1; t < threads; t++) pthread_join(ids[t], NULL);
}

int main(int argc, char **argv) {
  void *buffers[64] = {0};
  int64_t sizes[64], params[64] = {0};
  int count = 0;
  FILE *data = fopen(argv[2], "rb"), *result = fopen(argv[3], "wb");
  if (!data || !result) return 3;
  for (int i = 4; i < argc; i++) params[i - 4] = atoll(argv[i]);
  while (count < 64 && fread(&sizes[count], 8, 1, data) == 1) {
    buffers[count] = malloc((size_t)sizes[count]);
    if (fread(buffers[count], 1, (size_t)sizes[count], data) != (size_t)sizes[count]) return 3;
    count++;
  }
  const runtime all = {run, workspace, scratch};
  int status = ENTRY(&all, buffers, params, atoi(argv[1]));
  for (int i = 0; i < count; i++) {
    fwrite(&sizes[i], 8, 1, result);
    fwrite(buffers[i], 1, (size_t)sizes[i], result);
    free(buffers[i]);
  }
  free(scratch_memory);
  free(workspace_memory);
  fclose(data);
  return fclose(result) || status;
}
