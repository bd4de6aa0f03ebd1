/* What the C interface costs. Started on each rank by `linerate launch`; rank 0 prints the microseconds of
 * the best round.
 *
 *   speed run             one allreduce of 8 bytes
 *   speed queue           1000 allreduces of 64 bytes under way, into a queue
 *   speed communicators N 40 allreduces of 64 bytes on N communicators, into a queue with a descriptor
 *   speed batch BYTES     64 all-gathers of so many bytes a rank, as a batch
 *   speed single BYTES    64 all-gathers of so many bytes a rank, as operations of their own
 */
#define _POSIX_C_SOURCE 200809L
#include <linerate.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RUNS = 5000, IN_QUEUE = 1000, ON_MANY = 40, TENSORS = 64, ROUNDS = 100 };

static linerate_comm comm;
static uint32_t ranks;
static char *memory;

static void check(int32_t status, const char *what) {
    char text[1024];
    if (status == LINERATE_DONE) {
        return;
    }
    linerate_last_error_text(text, sizeof text, NULL);
    fprintf(stderr, "%s: %s: %s\n", what, linerate_status_text(status), text);
    exit(1);
}
#define DONE(call) check(call, #call)

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e6 * (double)time.tv_sec + 1e-3 * (double)time.tv_nsec;
}

static linerate_call call_of(uint32_t collective, uint64_t floats, char *input, char *output) {
    linerate_call call;
    memset(&call, 0, sizeof call);
    call.size = sizeof call;
    call.collective = collective;
    call.dtype = LINERATE_F32;
    call.count = floats;
    call.input = input;
    call.output = output;
    return call;
}

static void take(linerate_queue queue, uint64_t wanted) {
    linerate_completion ended[256];
    uint64_t count, i;
    ended[0].size = sizeof ended[0];
    while (wanted > 0) {
        DONE(linerate_queue_wait(queue, ended, 256, LINERATE_FOREVER, &count));
        for (i = 0; i < count; i++) {
            DONE(ended[i].status);
        }
        wanted -= count;
    }
}

static double run_one(void) {
    linerate_call call = call_of(LINERATE_ALL_REDUCE, 2, memory, memory);
    double begun = now();
    int32_t i;
    for (i = 0; i < RUNS; i++) {
        DONE(linerate_run(comm, &call));
    }
    return (now() - begun) / RUNS;
}

static double run_into(linerate_queue queue, const linerate_comm *comms, uint64_t many, uint64_t count) {
    double begun;
    uint64_t i;
    DONE(linerate_barrier(comm));
    begun = now();
    for (i = 0; i < count; i++) {
        char *place = memory + 64 * i;
        linerate_call call = call_of(LINERATE_ALL_REDUCE, 16, place, place);
        call.queue = queue;
        call.user = i;
        DONE(linerate_start(comms[i % many], &call, NULL));
    }
    take(queue, count);
    return now() - begun;
}

static double run_tensors(uint64_t bytes, int is_batch) {
    static linerate_call calls[TENSORS];
    static linerate_operation operations[TENSORS];
    char *output = memory + TENSORS * bytes;
    double begun, time;
    uint64_t i;
    for (i = 0; i < TENSORS; i++) {
        calls[i] = call_of(LINERATE_ALL_GATHER, bytes / 4, memory + i * bytes, output + i * bytes * ranks);
    }
    DONE(linerate_barrier(comm));
    begun = now();
    if (is_batch) {
        DONE(linerate_batch_run(comm, calls, TENSORS, 0));
        return now() - begun;
    }
    for (i = 0; i < TENSORS; i++) {
        DONE(linerate_start(comm, &calls[i], &operations[i]));
    }
    for (i = 0; i < TENSORS; i++) {
        DONE(linerate_wait(operations[i], LINERATE_FOREVER));
    }
    time = now() - begun;
    for (i = 0; i < TENSORS; i++) {
        DONE(linerate_free(operations[i]));
    }
    return time;
}

int main(int arguments, char **argument) {
    const char *mode = arguments > 1 ? argument[1] : "";
    uint64_t number = arguments > 2 ? strtoull(argument[2], NULL, 10) : 0, many = 1;
    linerate_comm comms[ON_MANY];
    linerate_memory handle = 0;
    linerate_queue queue = 0;
    double best = 1e300, time;
    uint32_t rank, i;
    void *address;
    int32_t file;

    DONE(linerate_init(0, &comm));
    DONE(linerate_rank(comm, &rank));
    DONE(linerate_ranks(comm, &ranks));
    DONE(linerate_alloc(comm, (IN_QUEUE + TENSORS * (number > ON_MANY ? number : 0)) * 64 * (ranks + 1), &handle, &address));
    memory = address;
    comms[0] = comm;
    DONE(linerate_queue_create(comm, &queue));
    if (strcmp(mode, "communicators") == 0 && number >= 1 && number <= ON_MANY) {
        DONE(linerate_queue_fd(queue, &file));
        for (many = 1; many < number; many++) {
            DONE(linerate_duplicate(comm, &comms[many]));
        }
    }
    for (i = 0; i < ROUNDS; i++) {
        if (strcmp(mode, "run") == 0) {
            time = run_one();
        } else if (strcmp(mode, "queue") == 0) {
            time = run_into(queue, comms, 1, IN_QUEUE);
        } else if (strcmp(mode, "communicators") == 0) {
            time = run_into(queue, comms, many, ON_MANY);
        } else if (strcmp(mode, "batch") == 0 || strcmp(mode, "single") == 0) {
            time = run_tensors(number, mode[0] == 'b');
        } else {
            fprintf(stderr, "usage: speed run | queue | communicators N | batch BYTES | single BYTES\n");
            return 2;
        }
        best = time < best ? time : best;
    }
    if (rank == 0) {
        printf("%.4f\n", best);
    }
    DONE(linerate_queue_free(queue));
    DONE(linerate_memory_free(handle));
    while (many-- > 1) {
        DONE(linerate_finalize(comms[many]));
    }
    DONE(linerate_finalize(comm));
    return 0;
}
