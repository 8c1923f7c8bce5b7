/* The runtime of all kernels of a process: one thread pool, and buffers that belong to threads.
 *
 * The pool is fork/join. A job is cut into more parts than threads: each thread takes those of its own share from the
 * front, then what others have left from the back, so that a core that is slower, late or taken away holds up the job by
 * one part at most. The caller waits for parts, not for workers: one that comes late finds nothing to do.
 * Workers spin for about a millisecond, so that the layers of a network that follow each other
 * closely find them awake, and sleep afterwards; the caller spins half as long. A worker is woken away from the caller's
 * core, and a caller that fell asleep runs before the worker that wakes it. One caller at a time owns the pool, others
 * (and calls from inside a body) run serially.
 * The library is never unloaded: its workers stay in it.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef void (*polyq_body)(void *argument, int part, int parts);

typedef struct {
  void (*run)(polyq_body body, void *argument, int threads);
  void *(*workspace)(size_t bytes);
  void *(*scratch)(size_t bytes);
} polyq_runtime;

/* ---- waiting for a word to change ---- */

#if defined(__x86_64__) || defined(__i386__)
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ volatile("yield")
#else
#define PAUSE() ((void)0)
#endif

#ifdef __linux__
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>

/* Sleep unless *word differs from value already; may return early. */
static void sleep_while(_Atomic uint32_t *word, uint32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}
static void wake_all(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0); }
static void reset_sleep(void) {}

/* A thread that is woken often lands behind its waker on the same core, and moves away only after some milliseconds:
 * so a worker is kept off the waker's core until it runs. */
typedef struct {
  _Atomic pid_t thread;
  _Atomic int moved; /* whether `allowed` has to be given back */
  cpu_set_t allowed;
} place;

static void place_nowhere(place *p) { /* before the thread runs: the number may belong to a thread before a fork */
  atomic_store(&p->thread, 0);
  atomic_store(&p->moved, 0);
}
static void place_here(place *p) { atomic_store(&p->thread, (pid_t)syscall(SYS_gettid)); }
static void keep_away(place *p) {
  pid_t thread = atomic_load(&p->thread);
  int cpu = sched_getcpu();
  cpu_set_t others;
  if (!thread || cpu < 0 || cpu >= CPU_SETSIZE || sched_getaffinity(thread, sizeof p->allowed, &p->allowed)) return;
  others = p->allowed;
  CPU_CLR(cpu, &others);
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(thread, sizeof others, &others)) return;
  atomic_store(&p->moved, 1);
}
static void let_go(place *p) {
  if (atomic_load(&p->moved) && atomic_exchange(&p->moved, 0)) sched_setaffinity(0, sizeof p->allowed, &p->allowed);
}
#else
typedef int place;
static void place_nowhere(place *p) { (void)p; }
static void place_here(place *p) { (void)p; }
static void keep_away(place *p) { (void)p; }
static void let_go(place *p) { (void)p; }

static pthread_mutex_t sleep_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t sleep_cond = PTHREAD_COND_INITIALIZER;

static void sleep_while(_Atomic uint32_t *word, uint32_t value) {
  pthread_mutex_lock(&sleep_lock);
  if (atomic_load(word) == value) pthread_cond_wait(&sleep_cond, &sleep_lock);
  pthread_mutex_unlock(&sleep_lock);
}
static void wake_all(_Atomic uint32_t *word) {
  (void)word;
  pthread_mutex_lock(&sleep_lock);
  pthread_cond_broadcast(&sleep_cond);
  pthread_mutex_unlock(&sleep_lock);
}
static void reset_sleep(void) {
  pthread_mutex_init(&sleep_lock, NULL);
  pthread_cond_init(&sleep_cond, NULL);
}
#endif

static int64_t nanoseconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Spin until *word differs from value, at most for the given time. A pause lasts 5 to 140 cycles, depending on the CPU:
 * so the clock decides, not a count. */
static uint32_t spin_while(_Atomic uint32_t *word, uint32_t value, int64_t limit) {
  uint32_t now = atomic_load_explicit(word, memory_order_acquire);
  if (now != value) return now;
  int64_t end = nanoseconds() + limit;
  do {
    for (int i = 0; i < 64; i++) {
      now = atomic_load_explicit(word, memory_order_acquire);
      if (now != value) return now;
      PAUSE();
    }
  } while (nanoseconds() < end);
  return now;
}

/* ---- the pool ---- */

enum { MAX_WORKERS = 1023, PARTS_PER_THREAD = 8, WORKER_SPIN = 1000000, CALLER_SPIN = 500000, STACK_BYTES = 4 << 20, LINE = 64 };

typedef struct {
  _Atomic uint64_t share;    /* number of the job, the first part left, the end of those left */
  _Atomic uint32_t job;      /* number of the newest job that this worker takes part in */
  _Atomic uint32_t sleeps;   /* whether it may be asleep on `job` */
  uint32_t seen;             /* `job` when the worker was made */
  place place;               /* where it may run */
} __attribute__((aligned(LINE))) worker;

static struct {
  pthread_mutex_t owner;     /* held while a job runs, and while the process forks */
  uint32_t job;              /* grows by one for each job */
  _Atomic polyq_body body;   /* these four may be read late, by a worker that then finds no part of its job left */
  void *_Atomic argument;
  _Atomic int threads;       /* that take part in the job; the caller is thread 0 */
  _Atomic int parts;
  int workers;               /* that exist */
  int cores;                 /* that this process may use */
  _Atomic uint32_t undone __attribute__((aligned(LINE))); /* parts of the job that are not done */
  _Atomic uint32_t caller_sleeps;
  worker worker[MAX_WORKERS + 1]; /* by number of thread */
} pool = {.owner = PTHREAD_MUTEX_INITIALIZER};

static uint64_t share_of(uint32_t job, int first, int end) {
  return (uint64_t)job << 32 | (uint64_t)first << 16 | (uint64_t)end;
}

/* Take a part of the job from a thread's share, the first or the last; -1 if none is left. */
static int take(_Atomic uint64_t *share, uint32_t job, int from_front) {
  uint64_t now = atomic_load(share);
  for (;;) {
    int first = now >> 16 & 0xffff, end = now & 0xffff;
    if (now >> 32 != job || first == end) return -1;
    uint64_t next = from_front ? share_of(job, first + 1, end) : share_of(job, first, end - 1);
    if (atomic_compare_exchange_weak(share, &now, next)) return from_front ? first : end - 1;
  }
}

/* Run parts of the job until none is left to take; return whether this thread ended the last one. */
static int take_part(uint32_t job, int thread) {
  polyq_body body = pool.body;
  void *argument = pool.argument;
  int threads = pool.threads, parts = pool.parts, last = 0;
  for (int k = 0; k < threads; k++) {
    _Atomic uint64_t *share = &pool.worker[(thread + k) % threads].share;
    for (int part; (part = take(share, job, k == 0)) >= 0;) {
      body(argument, part, parts);
      last = atomic_fetch_sub(&pool.undone, 1) == 1;
    }
  }
  return last;
}

static void *work(void *argument) {
  int thread = (int)(intptr_t)argument;
  worker *self = &pool.worker[thread];
  uint32_t last = self->seen;
  int64_t spin = WORKER_SPIN;
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(0x1f80); /* rounding to nearest, denormals kept, whatever the thread that made this one uses */
#endif
  place_here(&self->place);
  for (;;) {
    uint32_t now = spin_while(&self->job, last, spin);
    while (now == last) {
      atomic_store(&self->sleeps, 1);
      sleep_while(&self->job, last);
      atomic_store(&self->sleeps, 0);
      now = atomic_load(&self->job);
    }
    last = now;
    let_go(&self->place); /* the job was counted after the worker was kept away, so this comes later too */
    spin = pool.threads <= pool.cores ? WORKER_SPIN : 0; /* with more threads than cores it would hold up the others */
    if (take_part(now, thread) && atomic_load(&pool.caller_sleeps)) {
      wake_all(&pool.undone);
      sched_yield(); /* the caller may have been put behind this thread */
    }
  }
  return NULL;
}

static void before_fork(void) { pthread_mutex_lock(&pool.owner); }
static void in_parent(void) { pthread_mutex_unlock(&pool.owner); }
static void in_child(void) { /* has no workers: forget them, and let the next job make new ones */
  pthread_mutex_init(&pool.owner, NULL);
  atomic_store(&pool.caller_sleeps, 0);
  pool.workers = 0;
  reset_sleep();
}

/* Make workers until there are `wanted`; return how many there are. */
static int make_workers(int wanted) {
  if (pool.workers >= wanted) return pool.workers;
  pthread_attr_t attributes;
  sigset_t all, before;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* workers inherit it: signals go to the threads of the program */
  while (pool.workers < wanted) {
    pthread_t id;
    int thread = pool.workers + 1;
    worker *w = &pool.worker[thread];
    w->seen = atomic_load(&w->job);
    atomic_store(&w->sleeps, 0);
    place_nowhere(&w->place);
    if (pthread_create(&id, &attributes, work, (void *)(intptr_t)thread)) break;
    pool.workers = thread;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  return pool.workers;
}

/* Wait for the parts that others run: they end about when the caller's last one does, so it spins first. */
static void join(int64_t spin) {
  uint32_t left;
  int64_t end = nanoseconds() + spin;
  while ((left = atomic_load_explicit(&pool.undone, memory_order_acquire))) {
    int64_t rest = end - nanoseconds();
    if (rest > 0) {
      spin_while(&pool.undone, left, rest);
      continue;
    }
    atomic_store(&pool.caller_sleeps, 1);
    if ((left = atomic_load(&pool.undone))) sleep_while(&pool.undone, left);
    atomic_store(&pool.caller_sleeps, 0);
  }
}

/* Lay out the parts of a new job; none of the one before is left, so nobody reads what it was. */
static uint32_t publish(polyq_body body, void *argument, int threads) {
  uint32_t job = ++pool.job;
  pool.body = body;
  pool.argument = argument;
  pool.threads = threads;
  pool.parts = threads * PARTS_PER_THREAD;
  atomic_store(&pool.undone, (uint32_t)pool.parts);
  for (int thread = 0; thread < threads; thread++) {
    int first = thread * PARTS_PER_THREAD;
    atomic_store(&pool.worker[thread].share, share_of(job, first, first + PARTS_PER_THREAD));
  }
  return job;
}

static void run(polyq_body body, void *argument, int threads) {
  if (threads > MAX_WORKERS + 1) threads = MAX_WORKERS + 1;
  if (threads <= 1 || pthread_mutex_trylock(&pool.owner)) {
    body(argument, 0, 1);
    return;
  }
  int workers = make_workers(threads - 1);
  if (threads > workers + 1) threads = workers + 1;
  if (threads <= 1) {
    pthread_mutex_unlock(&pool.owner);
    body(argument, 0, 1);
    return;
  }
  uint32_t job = publish(body, argument, threads);
  for (int thread = 1; thread < threads; thread++) {
    worker *w = &pool.worker[thread];
    if (atomic_load(&w->sleeps)) keep_away(&w->place);
    atomic_store(&w->job, job);
    if (atomic_load(&w->sleeps)) wake_all(&w->job);
  }
  take_part(job, 0);
  join(threads <= pool.cores ? CALLER_SPIN : 0);
  pthread_mutex_unlock(&pool.owner);
}

static int usable_cores(void) {
#ifdef __linux__
  cpu_set_t mine;
  if (sched_getaffinity(0, sizeof mine, &mine) == 0) return CPU_COUNT(&mine);
#endif
  long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? (int)online : 1;
}

/* ---- buffers of threads ---- */

typedef struct {
  void *memory;
  size_t bytes;
} buffer;

typedef struct {
  buffer workspace, scratch;
} buffers;

static pthread_key_t key;

static void free_buffers(void *value) {
  buffers *mine = value;
  free(mine->workspace.memory);
  free(mine->scratch.memory);
  free(mine);
}

static buffers *my_buffers(void) {
  buffers *mine = pthread_getspecific(key);
  if (mine == NULL && (mine = calloc(1, sizeof *mine)) != NULL && pthread_setspecific(key, mine)) {
    free(mine);
    mine = NULL;
  }
  return mine;
}

/* Grow only, and never copy: what lies in a buffer ends with the call. */
static void *grow(buffer *b, size_t bytes) {
  if (b->memory != NULL && bytes <= b->bytes) return b->memory;
  void *memory = NULL;
  if (bytes > SIZE_MAX - 64) return NULL;
  size_t rounded = (bytes + 63) / 64 * 64;
  free(b->memory);
  if (posix_memalign(&memory, 64, rounded ? rounded : 64)) memory = NULL;
  b->memory = memory;
  b->bytes = memory == NULL ? 0 : rounded;
  return memory;
}

static void *workspace(size_t bytes) {
  buffers *mine = my_buffers();
  return mine == NULL ? NULL : grow(&mine->workspace, bytes);
}

static void *scratch(size_t bytes) {
  buffers *mine = my_buffers();
  return mine == NULL ? NULL : grow(&mine->scratch, bytes);
}

const polyq_runtime polyq_shared_runtime = {run, workspace, scratch};

/* At load, once: a handler that is registered later could miss a fork. */
__attribute__((constructor)) static void start(void) {
  pool.cores = usable_cores();
  pthread_key_create(&key, free_buffers);
  pthread_atfork(before_fork, in_parent, in_child);
}
