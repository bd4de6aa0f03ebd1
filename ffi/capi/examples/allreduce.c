/* Averages a vector over all ranks.
 *
 *   cc allreduce.c $(pkg-config --cflags --libs linerate) -o allreduce
 *   linerate launch -n 2 -- ./allreduce
 */
#include <linerate.h>
#include <stdio.h>
#include <stdlib.h>

static void check(int32_t status, const char *what) {
    char text[1024];
    if (status == LINERATE_DONE) {
        return;
    }
    linerate_last_error_text(text, sizeof text, NULL);
    fprintf(stderr, "%s: %s: %s\n", what, linerate_status_text(status), text);
    exit(1);
}

int main(void) {
    enum { COUNT = 1 << 20 };
    linerate_comm comm = 0;
    linerate_memory memory = 0;
    linerate_operation operation = 0;
    linerate_call call = {0};
    uint32_t rank = 0, ranks = 0;
    void *address = NULL;
    float *gradients;
    int i;

    /* From `linerate launch`, torchrun, mpirun or srun; settings from the environment. */
    check(linerate_init(0, &comm), "linerate_init");
    check(linerate_rank(comm, &rank), "linerate_rank");
    check(linerate_ranks(comm, &ranks), "linerate_ranks");

    /* Registered memory: other ranks read it where it lies. */
    check(linerate_alloc(comm, COUNT * sizeof(float), &memory, &address), "linerate_alloc");
    gradients = address;
    for (i = 0; i < COUNT; i++) {
        gradients[i] = (float)rank;
    }

    /* In place, as with ncclAllReduce. It returns when the result is there. */
    check(linerate_all_reduce(gradients, gradients, COUNT, LINERATE_F32, LINERATE_SUM, comm),
          "linerate_all_reduce");

    /* The struct has every option, and the operation goes on while this thread computes. */
    call.size = sizeof call;
    call.collective = LINERATE_ALL_REDUCE;
    call.dtype = LINERATE_F32;
    call.op = LINERATE_AVG;
    call.count = COUNT;
    call.input = gradients;
    call.output = gradients;
    check(linerate_start(comm, &call, &operation), "linerate_start");
    check(linerate_wait(operation, LINERATE_FOREVER), "linerate_wait");
    check(linerate_free(operation), "linerate_free");

    printf("rank %u of %u: %g\n", (unsigned)rank, (unsigned)ranks, gradients[COUNT - 1]);
    check(linerate_memory_free(memory), "linerate_memory_free");
    check(linerate_finalize(comm), "linerate_finalize");
    return 0;
}
