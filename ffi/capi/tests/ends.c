/* Ends of programs and of operations: what each surviving rank is told.
 *
 *   ends SCENARIO, with RANK, WORLD_SIZE and LINERATE_JOB
 */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

enum { COUNT = 4000 };
static linerate_comm world;
static uint32_t ranks;

/* Both the status and the first cause, since a rank may hear of a failure before its call. */
static void fails_by(int32_t cause, int32_t status, int line) {
    if (status != cause && status != LINERATE_ERROR_COMMUNICATOR_FAILED) {
        expect(cause, status, "a call", line);
    }
    expect(cause, linerate_last_error_cause(), "its first cause", line);
}
#define FAILS_BY(cause, call) fails_by(cause, call, __LINE__)

/* The last error names this rank alone. */
static int names(uint32_t wanted) {
    uint32_t named[8];
    uint64_t count = 0;
    DONE(linerate_last_error_ranks(named, 8, &count));
    return count == 1 && named[0] == wanted;
}

static void test_mismatch(void) {
    static float in[COUNT], out[COUNT];
    linerate_comm apart[4];
    uint32_t i, type = rank == 1 ? LINERATE_I32 : LINERATE_F32;
    for (i = 0; i < 4; i++) {
        DONE(linerate_duplicate(world, &apart[i]));
    }
    FAILS_BY(LINERATE_ERROR_MISMATCH,
             linerate_all_reduce(in, out, 10 + rank, LINERATE_F32, LINERATE_SUM, apart[0]));
    HOLDS(says("rank 0") && says("rank 1") && says("11"));
    FAILS_BY(LINERATE_ERROR_MISMATCH, linerate_all_reduce(in, out, 10, type, LINERATE_SUM, apart[1]));
    HOLDS(says("i32") && says("f32"));
    FAILS_BY(LINERATE_ERROR_MISMATCH, linerate_broadcast(in, out, 10, LINERATE_F32, rank, apart[2]));
    FAILS_BY(LINERATE_ERROR_MISMATCH,
             rank == 0 ? linerate_all_gather(in, out, 10, LINERATE_F32, apart[3])
                       : linerate_all_to_all(in, out, 10, LINERATE_F32, apart[3]));
    /* A communicator that has failed stays so, and its relatives go on. */
    FAILS_BY(LINERATE_ERROR_MISMATCH, linerate_barrier(apart[3]));
    DONE(linerate_barrier(world));
    for (i = 0; i < 4; i++) {
        DONE(linerate_destroy(apart[i]));
    }
    DONE(linerate_finalize(world));
}

/* Rank 1 ends in the middle of the others' sums. */
static void test_end(const char *how, int32_t cause) {
    static float data[COUNT];
    linerate_fusion fusion = 0;
    linerate_tensor tensor = {sizeof tensor, NULL, COUNT, LINERATE_F32, 0};
    DONE(linerate_fusion_create(world, &tensor, 1, NULL, &fusion));
    DONE(linerate_barrier(world));
    if (rank == 1) {
        if (strcmp(how, "exit") == 0) {
            exit(0);
        }
        kill(getpid(), strcmp(how, "kill") == 0 ? SIGKILL : SIGSTOP);
    }
    DONE(linerate_fusion_announce(fusion, 0, data));
    FAILS_BY(cause, linerate_all_reduce(data + 1, data + 1, 100, LINERATE_F32, LINERATE_SUM, world));
    HOLDS(names(1));
    HOLDS(says("rank 1") || says("ranks 1") || says("rank(s) 1"));
    FAILS_BY(cause, linerate_barrier(world));
    FAILS(cause, linerate_failure(world));
    HOLDS(linerate_fusion_wait(fusion, NULL) < 0);
    DONE(linerate_fusion_free(fusion));
    DONE(linerate_destroy(world));
}

/* Operations go on whose queue was freed, and those whose handle was freed hold up nobody. */
static void test_freed(void) {
    enum { OPERATIONS = 40 };
    static float data[OPERATIONS][COUNT];
    linerate_call call = {0};
    linerate_queue queue = 0;
    linerate_operation operations[OPERATIONS];
    linerate_comm apart = 0;
    uint32_t i;
    DONE(linerate_duplicate(world, &apart));
    DONE(linerate_queue_create(apart, &queue));
    call.size = sizeof call;
    call.collective = LINERATE_ALL_REDUCE;
    call.dtype = LINERATE_F32;
    call.count = COUNT;
    call.queue = queue;
    for (i = 0; i < OPERATIONS; i++) {
        data[i][COUNT - 1] = 1;
        call.input = call.output = data[i];
        DONE(linerate_start(apart, &call, &operations[i]));
    }
    DONE(linerate_queue_free(queue));
    HANDLE(linerate_start(apart, &call, NULL));
    for (i = 0; i < OPERATIONS; i += 2) {
        DONE(linerate_free(operations[i]));
    }
    for (i = 1; i < OPERATIONS; i += 2) {
        DONE(linerate_wait(operations[i], LINERATE_FOREVER));
        HOLDS(data[i][COUNT - 1] == (float)ranks);
        DONE(linerate_free(operations[i]));
        HANDLE(linerate_wait(operations[i], 0));
    }
    DONE(linerate_destroy(apart));
    HANDLE(linerate_barrier(apart));
    DONE(linerate_finalize(world));
}

static void *sum_often(void *own) {
    float *data = own;
    int32_t i;
    for (i = 0; i < 200; i++) {
        data[0] = 1;
        DONE(linerate_all_reduce(data, data, 3, LINERATE_F32, LINERATE_SUM, world));
        HOLDS(data[0] == (float)ranks);
    }
    return NULL;
}

/* Threads that call the same collectives of one communicator: in whatever order, they are equal. */
static void test_threads(void) {
    static float data[4][16];
    pthread_t threads[4];
    uint32_t i;
    for (i = 0; i < 4; i++) {
        HOLDS(pthread_create(&threads[i], NULL, sum_often, data[i]) == 0);
    }
    for (i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    DONE(linerate_finalize(world));
}

static int32_t keep(void *user, const char *key, const void *value, uint64_t bytes, uint64_t limit) {
    (void)user, (void)key, (void)value, (void)bytes, (void)limit;
    return 0;
}

static int32_t find_nothing(void *user, const char *key, void *value, uint64_t capacity,
                            uint64_t *bytes, uint64_t limit) {
    (void)user, (void)key, (void)value, (void)capacity, (void)bytes;
    usleep(limit / 1000 < 1000 ? (useconds_t)(limit / 1000) : 1000);
    return 1;
}

/* An exchange in which the other rank never is. */
static void test_alone(void) {
    linerate_exchange exchange = {sizeof exchange, keep, find_nothing, NULL};
    linerate_comm comm = 0;
    FAILS(LINERATE_ERROR_BOOTSTRAP, linerate_init_by_exchange(rank, 2, "alone", &exchange, 0, &comm));
    HOLDS(comm == 0 && says(rank == 0 ? "[1]" : "rank 0"));
}

int main(int arguments, char **argument) {
    const char *scenario = arguments > 1 ? argument[1] : "";
    rank = (uint32_t)atoi(getenv("RANK"));
    if (strcmp(scenario, "alone") == 0) {
        test_alone();
        return 0;
    }
    DONE(linerate_init(0, &world));
    DONE(linerate_ranks(world, &ranks));
    if (strcmp(scenario, "mismatch") == 0) {
        test_mismatch();
    } else if (strcmp(scenario, "kill") == 0) {
        test_end(scenario, LINERATE_ERROR_PEER_FAILED);
    } else if (strcmp(scenario, "stop") == 0) {
        test_end(scenario, LINERATE_ERROR_TIMEOUT);
    } else if (strcmp(scenario, "exit") == 0) {
        test_end(scenario, LINERATE_ERROR_PEER_FAILED);
    } else if (strcmp(scenario, "freed") == 0) {
        test_freed();
    } else if (strcmp(scenario, "threads") == 0) {
        test_threads();
    } else {
        return 2;
    }
    return 0;
}
