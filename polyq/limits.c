/* The limits of a machine, each measured by the plainest loop that reaches it. Vector extensions only, threads by
   pthreads; every function returns the seconds between the moment all threads are there and the moment all are done. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#if defined(__AVX512F__)
#define W 64
#elif defined(__AVX__)
#define W 32
#else
#define W 16
#endif
typedef float F __attribute__((vector_size(W)));
typedef int64_t I __attribute__((vector_size(W)));

enum { MAX_THREADS = 256 };

/* Give each thread a CPU of its own: a new thread often starts on that of its creator, and stays there for milliseconds,
   in which a limit of two threads would be that of one. */
#if defined(__linux__)
typedef cpu_set_t cpus;

static void get_cpus(cpus *set) {
  CPU_ZERO(set);
  pthread_getaffinity_np(pthread_self(), sizeof *set, set);
}

static void set_cpus(const cpus *set) { pthread_setaffinity_np(pthread_self(), sizeof *set, set); }

static void settle(const cpus *allowed, int thread) {
  int count = CPU_COUNT(allowed), wanted = count ? thread % count : 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, allowed) && wanted-- == 0) {
      cpus own;
      CPU_ZERO(&own);
      CPU_SET(cpu, &own);
      set_cpus(&own);
      return;
    }
}
#else
typedef int cpus;
static void get_cpus(cpus *set) { *set = 0; }
static void set_cpus(const cpus *set) { (void)set; }
static void settle(const cpus *allowed, int thread) { (void)allowed, (void)thread; }
#endif

struct job {
  void (*body)(struct job *job, int thread);
  const char *const *buffers;
  char *out;
  size_t bytes;
  long count;
  int threads, streams;
  double from[MAX_THREADS], to[MAX_THREADS];
  volatile float sink[MAX_THREADS];
  cpus allowed;
  int arrived;
};

struct worker { struct job *job; int thread; };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* all threads meet here; the count only grows, so one word serves every meeting */
static void meet(struct job *job, int meeting) {
  __atomic_add_fetch(&job->arrived, 1, __ATOMIC_ACQ_REL);
  for (int spins = 0; __atomic_load_n(&job->arrived, __ATOMIC_ACQUIRE) < meeting * job->threads; spins++)
    if (spins > 10000) sched_yield();
}

static void *work(void *argument) {
  struct worker *w = argument;
  settle(&w->job->allowed, w->thread);
  meet(w->job, 1);
  w->job->from[w->thread] = now();
  w->job->body(w->job, w->thread);
  w->job->to[w->thread] = now();
  return NULL;
}

static double run(struct job *job) {
  pthread_t ids[MAX_THREADS];
  struct worker workers[MAX_THREADS];
  if (job->threads > MAX_THREADS) job->threads = MAX_THREADS;
  get_cpus(&job->allowed);
  job->arrived = 0;
  for (int t = 0; t < job->threads; t++) workers[t] = (struct worker){job, t};
  for (int t = 1; t < job->threads; t++)
    if (pthread_create(&ids[t], NULL, work, &workers[t])) {
      __atomic_add_fetch(&job->arrived, job->threads, __ATOMIC_ACQ_REL);   /* let the others through, then give up */
      for (int u = 1; u < t; u++) pthread_join(ids[u], NULL);
      return -1.0;
    }
  work(&workers[0]);
  set_cpus(&job->allowed);
  double from = job->from[0], to = job->to[0];
  for (int t = 1; t < job->threads; t++) {
    pthread_join(ids[t], NULL);
    if (job->from[t] < from) from = job->from[t];
    if (job->to[t] > to) to = job->to[t];
  }
  return to - from;
}

/* each thread reads its contiguous part of each buffer as `streams` sequential streams side by side */
static void read_body(struct job *job, int thread) {
  size_t part = job->bytes / (size_t)job->threads, step = part / (size_t)job->streams / (4 * W) * (4 * W);
  I a = {0}, b = {0}, c = {0}, d = {0};
  for (long copy = 0; copy < job->count; copy++) {
    const char *p = job->buffers[copy] + (size_t)thread * (part / 64 * 64);
    for (size_t i = 0; i < step; i += 4 * W)
      for (int s = 0; s < job->streams; s++) {
        const I *v = (const I *)(p + (size_t)s * step + i);
        a ^= v[0];
        b ^= v[1];
        c ^= v[2];
        d ^= v[3];
      }
  }
  a ^= b ^ c ^ d;
  job->sink[thread] = (float)a[0];
}

double limit_read(const char *const *buffers, long count, size_t bytes, int threads, int streams) {
  struct job job = {.body = read_body, .buffers = buffers, .count = count, .bytes = bytes, .threads = threads, .streams = streams};
  return run(&job);
}

static inline void stream(I *to, I value) {
#if defined(__clang__)
  __builtin_nontemporal_store(value, to);
#elif defined(__AVX512F__)
  __builtin_ia32_movntdq512((long long __attribute__((vector_size(64))) *)to, (long long __attribute__((vector_size(64))))value);
#elif defined(__AVX__)
  __builtin_ia32_movntdq256((long long __attribute__((vector_size(32))) *)to, (long long __attribute__((vector_size(32))))value);
#elif defined(__SSE2__)
  __builtin_ia32_movntdq((long long __attribute__((vector_size(16))) *)to, (long long __attribute__((vector_size(16))))value);
#else
  *to = value;
#endif
}

static void copy_body(struct job *job, int thread) {
  size_t part = job->bytes / (size_t)job->threads / (2 * W) * (2 * W);
  const I *from = (const I *)(job->buffers[0] + (size_t)thread * part);
  I *to = (I *)(job->out + (size_t)thread * part);
  for (size_t i = 0; i < part / W; i += 2) {
    stream(to + i, from[i]);
    stream(to + i + 1, from[i + 1]);
  }
#if defined(__SSE2__)
  __builtin_ia32_sfence();
#endif
}

double limit_copy(char *out, const char *in, size_t bytes, int threads) {
  const char *buffers[1] = {in};
  struct job job = {.body = copy_body, .buffers = buffers, .out = out, .bytes = bytes, .threads = threads};
  return run(&job);
}

int limit_lanes(void) { return W / 4; }

#if defined(__x86_64__)
#define HIDE(v) __asm__("" : "+x"(v))
#elif defined(__aarch64__)
#define HIDE(v) __asm__("" : "+w"(v))
#else
#define HIDE(v) (void)v
#endif

/* ten chains: more than latency times throughput of any common core; hidden values, or equal chains would be merged */
static void fma_body(struct job *job, int thread) {
  F x = {0}, y = {0};
  x += 0.999f;
  y += 1e-3f;
  F a0 = y * 1, a1 = y * 2, a2 = y * 3, a3 = y * 4, a4 = y * 5, a5 = y * 6, a6 = y * 7, a7 = y * 8, a8 = y * 9, a9 = y * 10;
  HIDE(a0); HIDE(a1); HIDE(a2); HIDE(a3); HIDE(a4); HIDE(a5); HIDE(a6); HIDE(a7); HIDE(a8); HIDE(a9);
  for (long i = 0; i < job->count; i++) {
    a0 = a0 * x + y; a1 = a1 * x + y; a2 = a2 * x + y; a3 = a3 * x + y; a4 = a4 * x + y;
    a5 = a5 * x + y; a6 = a6 * x + y; a7 = a7 * x + y; a8 = a8 * x + y; a9 = a9 * x + y;
  }
  F s = a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7 + a8 + a9;
  job->sink[thread] = s[0];
}

double limit_fma(long steps, int threads) {
  struct job job = {.body = fma_body, .count = steps, .threads = threads};
  return run(&job);
}
