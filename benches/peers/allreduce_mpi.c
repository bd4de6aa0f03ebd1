/* MPI_Allreduce of f32, sum, in place: what `linerate bench allreduce` does, over MPI.
 *
 * A time is that of the slowest rank of an iteration, each started after a barrier; printed is the median.
 * usage: allreduce_mpi BYTES...
 * prints per size, on rank 0: allreduce BYTES ITERATIONS MEDIAN_US
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROBES_SETTLING = 2, PROBES = 3, ITERATIONS_MIN = 10, ITERATIONS_MAX = 2000 };
/* Of one size: as long as ours takes. */
static const double TIMED_S = 0.5;

static int compare(const void *left, const void *right) {
  double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

static double once(float *buffer, int count) {
  MPI_Barrier(MPI_COMM_WORLD);
  double start = MPI_Wtime();
  MPI_Allreduce(MPI_IN_PLACE, buffer, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  return MPI_Wtime() - start;
}

/* As many iterations as fit; the same on all ranks, because the slowest one decides. */
static int iterations_of(float *buffer, int count) {
  double sum = 0, slowest = 0;
  for (int i = 0; i < PROBES_SETTLING + PROBES; i++) {
    double seconds = once(buffer, count);
    if (i >= PROBES_SETTLING) sum += seconds;
  }
  MPI_Allreduce(&sum, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  double fitting = slowest > 0 ? TIMED_S / (slowest / PROBES) : ITERATIONS_MAX;
  if (fitting < ITERATIONS_MIN) return ITERATIONS_MIN;
  return fitting > ITERATIONS_MAX ? ITERATIONS_MAX : (int)fitting;
}

static void measure(float *buffer, size_t bytes, int rank) {
  int count = (int)(bytes / sizeof(float));
  int iterations = iterations_of(buffer, count);
  double *times = malloc((size_t)iterations * sizeof *times);
  double *slowest = malloc((size_t)iterations * sizeof *slowest);
  if (!times || !slowest) MPI_Abort(MPI_COMM_WORLD, 1);
  for (int i = 0; i < iterations / 5; i++) once(buffer, count);
  for (int i = 0; i < iterations; i++) times[i] = once(buffer, count);
  MPI_Reduce(times, slowest, iterations, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    qsort(slowest, (size_t)iterations, sizeof *slowest, compare);
    printf("allreduce %zu %d %.3f\n", bytes, iterations, slowest[iterations / 2] * 1e6);
    fflush(stdout);
  }
  free(times);
  free(slowest);
}

int main(int argc, char **argv) {
  int rank;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  size_t largest = 4096;
  for (int i = 1; i < argc; i++) {
    size_t bytes = strtoull(argv[i], NULL, 10);
    if (bytes < sizeof(float) || bytes % sizeof(float) || bytes / sizeof(float) > 0x7fffffff) {
      if (rank == 0) fprintf(stderr, "allreduce_mpi: '%s' is not a multiple of 4 from 4 to 8 GiB\n", argv[i]);
      MPI_Abort(MPI_COMM_WORLD, 2);
    }
    if (bytes > largest) largest = bytes;
  }
  largest = (largest + 4095) / 4096 * 4096;
  float *buffer = aligned_alloc(4096, largest);
  if (!buffer) MPI_Abort(MPI_COMM_WORLD, 1);
  memset(buffer, 0, largest);
  for (int i = 1; i < argc; i++) measure(buffer, strtoull(argv[i], NULL, 10), rank);
  free(buffer);
  MPI_Finalize();
  return 0;
}
