/* Goes on when ranks die: those that live rebuild the communicator and repeat the step that failed.
 * Here the last rank kills itself in the middle.
 *
 *   cc elastic.c $(pkg-config --cflags --libs linerate) -o elastic
 *   linerate launch -n 3 -- ./elastic
 */
#define _POSIX_C_SOURCE 200809L
#include <linerate.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { STEPS = 10, COUNT = 1000 };

static void check(int32_t status, const char *what) {
    char text[1024];
    if (status == LINERATE_DONE) {
        return;
    }
    linerate_last_error_text(text, sizeof text, NULL);
    fprintf(stderr, "%s: %s: %s\n", what, linerate_status_text(status), text);
    exit(1);
}

/* One step of the training. The parameters change when it has succeeded, and else not at all. */
static int32_t train(linerate_comm comm, float *gradients, double *parameter) {
    uint64_t i;
    int32_t status;
    for (i = 0; i < COUNT; i++) {
        gradients[i] = 1;
    }
    status = linerate_all_reduce(gradients, gradients, COUNT, LINERATE_F32, LINERATE_SUM, comm);
    if (status == LINERATE_DONE) {
        *parameter += gradients[COUNT - 1];
    }
    return status;
}

int main(void) {
    linerate_comm comm = 0, rebuilt = 0;
    linerate_memory memory = 0;
    void *address = NULL;
    uint32_t rank = 0, ranks = 0, step = 0;
    double parameter = 0;

    check(linerate_init(0, &comm), "linerate_init");
    check(linerate_alloc(comm, COUNT * sizeof(float), &memory, &address), "linerate_alloc");
    check(linerate_rank(comm, &rank), "linerate_rank");
    check(linerate_ranks(comm, &ranks), "linerate_ranks");
    while (step < STEPS) {
        if (step == STEPS / 2 && ranks == 3 && rank == 2) {
            kill(getpid(), SIGKILL);
        }
        if (train(comm, address, &parameter) == LINERATE_DONE) {
            step++;
            continue;
        }
        /* Only a rank that died is a reason to go on without it. */
        if (linerate_failure(comm) != LINERATE_ERROR_PEER_FAILED) {
            check(linerate_failure(comm), "a step");
            return 1;
        }
        check(linerate_rebuild(comm, &rebuilt), "linerate_rebuild");
        check(linerate_memory_free(memory), "linerate_memory_free");
        check(linerate_destroy(comm), "linerate_destroy");
        comm = rebuilt;
        check(linerate_alloc(comm, COUNT * sizeof(float), &memory, &address), "linerate_alloc");
        check(linerate_rank(comm, &rank), "linerate_rank");
        check(linerate_ranks(comm, &ranks), "linerate_ranks");
    }
    printf("rank %u of %u: %g\n", (unsigned)rank, (unsigned)ranks, parameter);
    check(linerate_memory_free(memory), "linerate_memory_free");
    check(linerate_finalize(comm), "linerate_finalize");
    return 0;
}
