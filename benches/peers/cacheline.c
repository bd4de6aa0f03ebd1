/* The round trip of one cache line between two cores: half of it is the limit of an exchange of eight bytes, because
 * both directions of an exchange go at the same time.
 *
 * Uses the first two cores it may run on. Many short repetitions, of which the best counts: one in which a thread lost
 * its core says nothing.
 * usage: cacheline
 * prints: cacheline ROUND_TRIP_NS
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { REPETITIONS = 200, ROUNDS = 2000 };
/* Repetitions end then, however few there were: where other programs want the cores, a round trip takes a time slice. */
static const double SECONDS_MAX = 2;

/* Two lines, 256 bytes apart, so that fetching one in advance does not fetch the other. */
struct Lines {
  _Atomic long there;
  char apart[256 - sizeof(long)];
  _Atomic long back;
};

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof set, &set)) perror("cacheline: sched_setaffinity");
}

_Noreturn static void answer(struct Lines *lines) {
  /* Its parent kills it. */
  for (long i = 1;; i++) {
    while (atomic_load_explicit(&lines->there, memory_order_acquire) != i) {}
    atomic_store_explicit(&lines->back, i, memory_order_release);
  }
}

static double ask(struct Lines *lines) {
  double best = 1e9, end = now() + SECONDS_MAX;
  long i = 1;
  for (int k = 0; k < REPETITIONS && (k == 0 || now() < end); k++) {
    double start = now();
    for (int round = 0; round < ROUNDS; round++, i++) {
      atomic_store_explicit(&lines->there, i, memory_order_release);
      while (atomic_load_explicit(&lines->back, memory_order_acquire) != i) {}
    }
    double seconds = (now() - start) / ROUNDS;
    if (seconds < best) best = seconds;
  }
  return best;
}

int main(void) {
  cpu_set_t set;
  int cores[2], found = 0;
  if (sched_getaffinity(0, sizeof set, &set)) {
    perror("cacheline: sched_getaffinity");
    return 1;
  }
  for (int core = 0; core < CPU_SETSIZE && found < 2; core++)
    if (CPU_ISSET(core, &set)) cores[found++] = core;
  if (found < 2) {
    fprintf(stderr, "cacheline: needs two cores, may use one\n");
    return 1;
  }
  struct Lines *lines = mmap(NULL, sizeof *lines, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (lines == MAP_FAILED) {
    perror("cacheline: mmap");
    return 1;
  }
  pid_t child = fork();
  if (child < 0) {
    perror("cacheline: fork");
    return 1;
  }
  if (child == 0) {
    pin(cores[1]);
    answer(lines);
  }
  pin(cores[0]);
  printf("cacheline %.1f\n", ask(lines) * 1e9);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  return 0;
}
