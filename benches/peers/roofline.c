/* The limit of an in-place allreduce of f32 sums when every rank maps every buffer: as many threads as cores, each of
 * which adds its part of all buffers and stores the sum to all of them. No messages, no flags, nothing but the bytes.
 *
 * The loops are the compiler's (-O3 -march=native). A time is the median of a thread's iterations, and that of the slowest
 * thread: an iteration in which a thread lost its core says nothing of memory.
 * usage: roofline RANKS THREADS BYTES...    (RANKS 2 or 4; 1: of a rank that adds one buffer to another, as rings do)
 * prints per size: roofline BYTES RANKS US
 * One set of pages per run, as a program that is compared with it has: how pages fall into a cache that others share is luck,
 * and of runs in turns the best of either side counts.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { RANKS_MAX = 4, THREADS_MAX = 64, ITERATIONS_MIN = 5, ITERATIONS_MAX = 2000 };
/* Bytes of one buffer that a run goes over: enough for a time without the start of the threads. */
static const size_t BYTES_PER_RUN = (size_t)512 << 20;

static float *buffers[RANKS_MAX];
static int ranks, threads, iterations;
static double *times[THREADS_MAX];
static size_t count;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *left, const void *right) {
  double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

static void add2(float *restrict a, float *restrict b, size_t n) {
  for (size_t i = 0; i < n; i++) {
    float sum = a[i] + b[i];
    a[i] = sum;
    b[i] = sum;
  }
}

static void add1(float *restrict a, const float *restrict b, size_t n) {
  for (size_t i = 0; i < n; i++) a[i] += b[i];
}

static void add4(float *restrict a, float *restrict b, float *restrict c, float *restrict d, size_t n) {
  for (size_t i = 0; i < n; i++) {
    float sum = ((a[i] + b[i]) + c[i]) + d[i];
    a[i] = sum;
    b[i] = sum;
    c[i] = sum;
    d[i] = sum;
  }
}

static void *part(void *argument) {
  size_t index = (size_t)argument;
  /* Whole cache lines, so that threads share none. */
  size_t lines = count / 16;
  size_t from = lines * index / (size_t)threads * 16;
  size_t to = lines * (index + 1) / (size_t)threads * 16;
  for (int k = 0; k < iterations; k++) {
    float *a = buffers[0] + from, *b = buffers[1] + from;
    double start = now();
    if (ranks == 1)
      add1(a, b, to - from);
    else if (ranks == 2)
      add2(a, b, to - from);
    else
      add4(a, b, buffers[2] + from, buffers[3] + from, to - from);
    /* The compiler must not join iterations. */
    __asm__ volatile("" ::: "memory");
    times[index][k] = now() - start;
  }
  return NULL;
}

static double run(size_t bytes) {
  int used = ranks == 1 ? 2 : ranks;
  for (int r = 0; r < used; r++) {
    buffers[r] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (buffers[r] == MAP_FAILED) {
      perror("roofline: mmap");
      exit(1);
    }
    memset(buffers[r], 0, bytes);
  }
  pthread_t others[THREADS_MAX];
  for (int t = 1; t < threads; t++)
    if (pthread_create(&others[t], NULL, part, (void *)(size_t)t)) {
      fprintf(stderr, "roofline: cannot start %d threads\n", threads);
      exit(1);
    }
  part((void *)0);
  for (int t = 1; t < threads; t++) pthread_join(others[t], NULL);
  for (int r = 0; r < used; r++) munmap(buffers[r], bytes);
  double seconds = 0;
  for (int t = 0; t < threads; t++) {
    qsort(times[t], (size_t)iterations, sizeof(double), compare);
    double median = times[t][iterations / 2];
    if (median > seconds) seconds = median;
  }
  return seconds;
}

int main(int argc, char **argv) {
  ranks = argc > 1 ? atoi(argv[1]) : 0;
  threads = argc > 2 ? atoi(argv[2]) : 0;
  if ((ranks != 1 && ranks != 2 && ranks != 4) || threads < 1 || threads > THREADS_MAX) {
    fprintf(stderr, "usage: roofline 1|2|4 THREADS(1 to %d) BYTES...\n", THREADS_MAX);
    return 2;
  }
  for (int t = 0; t < threads; t++)
    if (!(times[t] = malloc(ITERATIONS_MAX * sizeof(double)))) {
      perror("roofline: malloc");
      return 1;
    }
  for (int i = 3; i < argc; i++) {
    size_t bytes = strtoull(argv[i], NULL, 10);
    if (bytes < 4096 || bytes % 64) {
      fprintf(stderr, "roofline: '%s' is not a multiple of 64 from 4096\n", argv[i]);
      return 2;
    }
    count = bytes / sizeof(float);
    size_t fitting = BYTES_PER_RUN / bytes;
    iterations = fitting < ITERATIONS_MIN ? ITERATIONS_MIN : fitting > ITERATIONS_MAX ? ITERATIONS_MAX : (int)fitting;
    printf("roofline %zu %d %.3f\n", bytes, ranks, run(bytes) * 1e6);
    fflush(stdout);
  }
  return 0;
}
