/* Calls every function of linerate.h on two ranks, also with bad input.
 *
 *   calls JOB FOLDER RANK
 */
#define _GNU_SOURCE
#include "check.h"
#include <linerate.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 2, COUNT = 1000 };

/* An exchange whose values are files of a folder. */
static void path_of(char *path, size_t bytes, const char *folder, const char *key) {
    char *at;
    snprintf(path, bytes, "%s/%s", folder, key);
    for (at = path + strlen(folder) + 1; *at != 0; at++) {
        if (*at == '/') {
            *at = '_';
        }
    }
}

static int32_t put(void *user, const char *key, const void *value, uint64_t bytes, uint64_t limit) {
    char path[1024], other[1100];
    FILE *file;
    (void)limit;
    path_of(path, sizeof path, user, key);
    snprintf(other, sizeof other, "%s.%u", path, (unsigned)rank);
    file = fopen(other, "wb");
    if (file == NULL) {
        return -1;
    }
    if (fwrite(value, 1, (size_t)bytes, file) != bytes) {
        fclose(file);
        return -2;
    }
    fclose(file);
    return rename(other, path) == 0 ? 0 : -3;
}

static int32_t get(void *user, const char *key, void *value, uint64_t capacity, uint64_t *bytes,
                   uint64_t limit) {
    char path[1024];
    FILE *file;
    (void)limit;
    path_of(path, sizeof path, user, key);
    file = fopen(path, "rb");
    if (file == NULL) {
        return 1;
    }
    *bytes = fread(value, 1, (size_t)capacity, file);
    fclose(file);
    return 0;
}

static int32_t refuse(void *user, const char *key, void *value, uint64_t capacity, uint64_t *bytes,
                      uint64_t limit) {
    (void)user, (void)key, (void)value, (void)capacity, (void)bytes, (void)limit;
    return -7;
}

static int32_t accept(void *user, const char *key, const void *value, uint64_t bytes,
                      uint64_t limit) {
    (void)user, (void)key, (void)value, (void)bytes, (void)limit;
    return 0;
}

static int32_t lie(void *user, const char *key, void *value, uint64_t capacity, uint64_t *bytes,
                   uint64_t limit) {
    (void)user, (void)key, (void)value, (void)limit;
    *bytes = capacity + 1;
    return 0;
}

static linerate_call call_of(uint32_t collective, const void *input, void *output) {
    linerate_call call;
    memset(&call, 0, sizeof call);
    call.size = sizeof call;
    call.collective = collective;
    call.dtype = LINERATE_I32;
    call.count = COUNT;
    call.input = input;
    call.output = output;
    return call;
}

static void test_settings(void) {
    linerate_config config = 0;
    linerate_comm comm = 0;
    DONE(linerate_config_create(&config));
    DONE(linerate_config_set(config, "LINERATE_TCP_RAILS", "4"));
    DONE(linerate_config_set(config, "LINERATE_TCP_RAILS", NULL));
    INVALID(linerate_config_set(config, "LINERATE_TCP_RAILS", "many"));
    HOLDS(says("LINERATE_TCP_RAILS"));
    INVALID(linerate_config_set(config, "LINERATE_RAILS", "4"));
    HOLDS(says("LINERATE_TCP_RAILS"));
    INVALID(linerate_config_set(config, NULL, "4"));
    INVALID(linerate_config_set(config, "\xff", "4"));
    INVALID(linerate_config_create(NULL));
    INVALID(linerate_init(config, NULL));
    HANDLE(linerate_config_set(0, "LINERATE_TCP_RAILS", "4"));
    HANDLE(linerate_rank(config, &rank));
    HOLDS(says("is a handle of a config"));
    DONE(linerate_config_free(config));
    HANDLE(linerate_config_free(config));
    HOLDS(says("has been freed"));
    HANDLE(linerate_init(config, &comm));
    HOLDS(comm == 0);
}

static void test_texts(void) {
    char small[4];
    uint64_t needed = 0, count = 9;
    HANDLE(linerate_barrier(12345));
    HOLDS(linerate_last_error_cause() == LINERATE_ERROR_BAD_HANDLE);
    DONE(linerate_last_error_text(NULL, 0, &needed));
    DONE(linerate_last_error_text(small, sizeof small, NULL));
    HOLDS(needed > sizeof small && strlen(small) == 3);
    DONE(linerate_last_error_ranks(NULL, 0, &count));
    HOLDS(count == 0);
    HOLDS(strcmp(linerate_status_text(LINERATE_ERROR_TIMEOUT), "LINERATE_ERROR_TIMEOUT") == 0);
    HOLDS(strcmp(linerate_status_text(77), "unknown status") == 0);
    HOLDS(linerate_abi_version() == (LINERATE_ABI_MAJOR << 16 | LINERATE_ABI_MINOR));
}

static void test_zero(void) {
    DONE(linerate_config_free(0));
    DONE(linerate_destroy(0));
    DONE(linerate_memory_free(0));
    DONE(linerate_free(0));
    DONE(linerate_queue_free(0));
    DONE(linerate_fusion_free(0));
    DONE(linerate_partial_free(0));
    DONE(linerate_sparse_free(0));
    HANDLE(linerate_test(0));
    HANDLE(linerate_wait(0, 0));
    HANDLE(linerate_finalize(0));
    HANDLE(linerate_set_timeout(0, 1));
    HANDLE(linerate_failure(0));
    HANDLE(linerate_abort(0, "none"));
}

static void test_collectives(linerate_comm comm, int32_t *in, int32_t *out) {
    const uint64_t counts[RANKS] = {3, 5}, to[RANKS] = {2, 2}, from[RANKS] = {2, 2};
    int32_t i, other = 1 - (int32_t)rank;
    for (i = 0; i < RANKS * COUNT; i++) {
        in[i] = i + 10000 * (int32_t)rank;
    }
    DONE(linerate_all_reduce(in, out, COUNT, LINERATE_I32, LINERATE_SUM, comm));
    HOLDS(out[COUNT - 1] == 2 * (COUNT - 1) + 10000);
    DONE(linerate_reduce_scatter(in, out, COUNT, LINERATE_I32, LINERATE_MAX, comm));
    HOLDS(out[5] == 10005 + COUNT * (int32_t)rank);
    DONE(linerate_all_gather(in, out, COUNT, LINERATE_I32, comm));
    HOLDS(out[7] == 7 && out[COUNT + 7] == 10007);
    DONE(linerate_all_gather_v(in, out, counts, LINERATE_I32, comm));
    HOLDS(out[2] == 2 && out[3] == 10000 && out[7] == 10004);
    DONE(linerate_gather_v(in, rank == 1 ? out : NULL, counts, LINERATE_I32, 1, comm));
    HOLDS(rank == 0 || (out[2] == 2 && out[3] == 10000 && out[7] == 10004));
    DONE(linerate_scatter_v(rank == 1 ? in : NULL, out, counts, LINERATE_I32, 1, comm));
    HOLDS(out[2] == 10002 + 3 * (int32_t)rank);
    DONE(linerate_reduce_scatter_v(in, out, counts, LINERATE_I32, LINERATE_SUM, comm));
    HOLDS(out[2] == 10004 + 6 * (int32_t)rank);
    DONE(linerate_broadcast(rank == 1 ? in : NULL, out, COUNT, LINERATE_I32, 1, comm));
    HOLDS(out[4] == 10004);
    DONE(linerate_reduce(in, rank == 1 ? out : NULL, COUNT, LINERATE_I32, LINERATE_MIN, 1, comm));
    HOLDS(rank == 0 || out[6] == 6);
    DONE(linerate_gather(in, rank == 0 ? out : NULL, COUNT, LINERATE_I32, 0, comm));
    HOLDS(rank == 1 || out[COUNT + 1] == 10001);
    DONE(linerate_scatter(rank == 0 ? in : NULL, out, COUNT, LINERATE_I32, 0, comm));
    HOLDS(out[9] == 9 + COUNT * (int32_t)rank);
    DONE(linerate_all_to_all(in, out, COUNT, LINERATE_I32, comm));
    HOLDS(out[COUNT * other + 3] == 3 + 10000 * other + COUNT * (int32_t)rank);
    DONE(linerate_all_to_all_v(in, to, out, from, LINERATE_I32, comm));
    HOLDS(out[2 * other] == 10000 * other + 2 * (int32_t)rank);
    DONE(linerate_barrier(comm));
    if (rank == 0) {
        DONE(linerate_send(in, 4, LINERATE_I32, 1, comm));
        DONE(linerate_recv(out, 4, LINERATE_I32, 1, comm));
    } else {
        DONE(linerate_recv(out, 4, LINERATE_I32, 0, comm));
        DONE(linerate_send(in, 4, LINERATE_I32, 0, comm));
    }
    HOLDS(out[3] == 3 + 10000 * other);
}

static void test_bad_calls(linerate_comm comm, int32_t *in, int32_t *out) {
    char longer[sizeof(linerate_call) + 16];
    linerate_operation operation = 0;
    linerate_call call = call_of(LINERATE_ALL_REDUCE, in, out);
    INVALID(linerate_run(comm, NULL));
    call.size = 8;
    INVALID(linerate_run(comm, &call));
    HOLDS(says("sizeof(linerate_call)"));
    call = call_of(LINERATE_ALL_REDUCE, in, out);
    memset(longer, 0, sizeof longer);
    call.size = sizeof longer;
    memcpy(longer, &call, sizeof call);
    longer[sizeof call + 3] = 1;
    INVALID(linerate_run(comm, (const linerate_call *)(const void *)longer));
    HOLDS(says("does not know"));
    call = call_of(99, in, out);
    INVALID(linerate_run(comm, &call));
    call = call_of(LINERATE_ALL_REDUCE, in, out);
    call.dtype = 99;
    INVALID(linerate_run(comm, &call));
    HOLDS(says("type 99"));
    call.dtype = LINERATE_F32;
    call.op = LINERATE_BIT_XOR;
    INVALID(linerate_run(comm, &call));
    call.op = 99;
    INVALID(linerate_run(comm, &call));
    call = call_of(LINERATE_ALL_REDUCE, in, out);
    call.memory_kind = 1;
    INVALID(linerate_run(comm, &call));
    call = call_of(LINERATE_ALL_REDUCE, in, out);
    call.reserved = 1;
    INVALID(linerate_run(comm, &call));
    call = call_of(LINERATE_ALL_REDUCE, in, out);
    call.count = UINT64_MAX / 2;
    INVALID(linerate_run(comm, &call));
    call.count = UINT64_MAX / 8;
    INVALID(linerate_run(comm, &call));
    call = call_of(LINERATE_ALL_REDUCE, NULL, out);
    INVALID(linerate_run(comm, &call));
    call = call_of(LINERATE_ALL_REDUCE, in, NULL);
    INVALID(linerate_run(comm, &call));
    call = call_of(LINERATE_ALL_REDUCE, (const char *)in + 1, out);
    INVALID(linerate_run(comm, &call));
    HOLDS(says("not aligned"));
    call = call_of(LINERATE_ALL_REDUCE, in, in + 1);
    INVALID(linerate_run(comm, &call));
    HOLDS(says("overlap"));
    call = call_of(LINERATE_BROADCAST, in, out);
    call.root = RANKS;
    INVALID(linerate_run(comm, &call));
    call = call_of(LINERATE_ALL_GATHER_V, in, out);
    INVALID(linerate_run(comm, &call));
    HOLDS(says("receive_counts is NULL"));
    call = call_of(LINERATE_ALL_REDUCE, in, out);
    call.algorithm = "none such";
    INVALID(linerate_run(comm, &call));
    call.algorithm = NULL;
    INVALID(linerate_start(comm, &call, NULL));
    call.queue = comm;
    HANDLE(linerate_start(comm, &call, &operation));
    HOLDS(operation == 0);
    INVALID(linerate_all_reduce(in, out, 1, LINERATE_F32, LINERATE_PREMUL_SUM, comm));
    INVALID(linerate_send(in, 1, LINERATE_I32, RANKS, comm));
    INVALID(linerate_send(NULL, 1, LINERATE_I32, 0, comm));
    INVALID(linerate_group_run(comm, NULL, 1, 0));
}

static void test_started(linerate_comm comm, int32_t *in, int32_t *out) {
    linerate_operation operation = 0;
    linerate_transfer transfers[2];
    linerate_call call = call_of(LINERATE_ALL_REDUCE, in, out);
    int32_t status, tries = 0;
    call.timeout_ns = 20 * SECOND;
    DONE(linerate_start(comm, &call, &operation));
    do {
        status = linerate_test(operation);
    } while (status == LINERATE_IN_PROGRESS && tries++ < 100000000);
    DONE(status);
    DONE(linerate_wait(operation, 0));
    DONE(linerate_free(operation));
    HANDLE(linerate_test(operation));

    /* Rank 1 starts only once rank 0 has seen its operation under way. */
    if (rank == 0) {
        DONE(linerate_start(comm, &call, &operation));
        FAILS(LINERATE_IN_PROGRESS, linerate_wait(operation, 1000000));
        DONE(linerate_send(in, 1, LINERATE_I32, 1, comm));
    } else {
        DONE(linerate_recv(out, 1, LINERATE_I32, 0, comm));
        DONE(linerate_start(comm, &call, &operation));
    }
    DONE(linerate_barrier(comm));
    DONE(linerate_wait(operation, LINERATE_FOREVER));
    DONE(linerate_free(operation));

    memset(transfers, 0, sizeof transfers);
    transfers[0].size = transfers[1].size = sizeof transfers[0];
    transfers[0].peer = transfers[1].peer = 1 - rank;
    transfers[0].dtype = transfers[1].dtype = LINERATE_I32;
    transfers[0].count = transfers[1].count = COUNT;
    transfers[0].is_send = 1;
    transfers[0].address = in;
    transfers[1].address = out;
    in[0] = (int32_t)rank + 70;
    DONE(linerate_group_run(comm, transfers, 2, 20 * SECOND));
    HOLDS(out[0] == 71 - (int32_t)rank);
    DONE(linerate_group_start(comm, transfers, 2, 0, 0, 0, &operation));
    DONE(linerate_wait(operation, LINERATE_FOREVER));
    DONE(linerate_free(operation));
    transfers[1].size += 8;
    INVALID(linerate_group_run(comm, transfers, 2, 0));
}

static void test_tagged(linerate_comm comm, int32_t *in, int32_t *out) {
    linerate_operation sends[2] = {0, 0}, receive = 0;
    linerate_queue queue = 0;
    linerate_completion ended = {sizeof ended, 0, 0, 0};
    linerate_message message = {0};
    uint64_t count = 0;
    uint32_t source = 9, tag;
    message.size = sizeof message;
    message.dtype = LINERATE_I32;
    message.count = COUNT;
    for (tag = 0; tag < 2; tag++) {
        in[tag * COUNT] = (int32_t)(100 * tag + rank);
        message.address = in + tag * COUNT;
        message.peer = 1 - rank;
        message.tag = tag;
        message.is_send = 1;
        DONE(linerate_message_start(comm, &message, &sends[tag]));
    }
    /* The second message first, from any rank, into a queue. */
    DONE(linerate_queue_create(comm, &queue));
    message.is_send = 0;
    message.address = out;
    message.peer = LINERATE_ANY_RANK;
    message.queue = queue;
    message.user = 5;
    DONE(linerate_message_start(comm, &message, &receive));
    DONE(linerate_queue_wait(queue, &ended, 1, 20 * SECOND, &count));
    HOLDS(count == 1 && ended.user == 5 && ended.status == 0 && ended.source == 1 - rank);
    HOLDS(out[0] == 101 - (int32_t)rank);
    DONE(linerate_source(receive, &source));
    HOLDS(source == 1 - rank);
    FAILS(LINERATE_IN_PROGRESS, linerate_cancel_receive(receive));
    DONE(linerate_free(receive));
    DONE(linerate_queue_free(queue));
    /* One that is cancelled leaves its message to the next one, once that has come or not. */
    message.queue = 0;
    message.tag = 7;
    DONE(linerate_message_start(comm, &message, &receive));
    DONE(linerate_source(receive, &source));
    HOLDS(source == LINERATE_ANY_RANK);
    DONE(linerate_cancel_receive(receive));
    FAILS(LINERATE_ERROR_RECEIVE_CANCELLED, linerate_wait(receive, LINERATE_FOREVER));
    HOLDS(says("tag 7"));
    DONE(linerate_free(receive));
    message.tag = 0;
    message.peer = 1 - rank;
    DONE(linerate_message_start(comm, &message, &receive));
    DONE(linerate_wait(receive, LINERATE_FOREVER));
    HOLDS(out[0] == 1 - (int32_t)rank);
    DONE(linerate_free(receive));
    for (tag = 0; tag < 2; tag++) {
        DONE(linerate_wait(sends[tag], LINERATE_FOREVER));
        DONE(linerate_free(sends[tag]));
    }
    message.peer = RANKS;
    INVALID(linerate_message_start(comm, &message, &receive));
    HOLDS(says("rank 2 of 2"));
    message.is_send = 1;
    message.peer = LINERATE_ANY_RANK;
    INVALID(linerate_message_start(comm, &message, &receive));
    INVALID(linerate_message_start(comm, &message, NULL));
    INVALID(linerate_message_start(comm, NULL, &receive));
    HANDLE(linerate_cancel_receive(0));
    HANDLE(linerate_source(comm, &source));
}

static void test_registered(linerate_comm comm) {
    enum { BYTES = 1 << 16, CALLS = 1000 };
    char *own = malloc(BYTES);
    int32_t *part, i;
    int file;
    INVALID(linerate_register(comm, NULL, BYTES));
    INVALID(linerate_register(comm, own, 0));
    INVALID(linerate_register(comm, own, UINT64_MAX));
    DONE(linerate_register(comm, own, BYTES));
    INVALID(linerate_register(comm, own + 8, 8));
    HOLDS(says("registered"));
    part = (int32_t *)(void *)(own + 4096);
    for (i = 0; i < CALLS; i++) {
        part[0] = i;
        DONE(linerate_all_reduce(part, part, 16, LINERATE_I32, LINERATE_SUM, comm));
        HOLDS(part[0] == 2 * i);
    }
    INVALID(linerate_deregister(comm, own + 4096));
    DONE(linerate_deregister(comm, own));
    INVALID(linerate_deregister(comm, own));
    free(own);

    file = (int)syscall(SYS_memfd_create, "of the caller", 3u);
    HOLDS(file >= 0 && ftruncate(file, BYTES) == 0);
    own = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    HOLDS(own != MAP_FAILED);
    INVALID(linerate_register_memfd(comm, own, BYTES, -1, 0));
    INVALID(linerate_register_memfd(comm, own, BYTES, file, 4096));
    DONE(linerate_register_memfd(comm, own, BYTES, file, 0));
    close(file);
    part = (int32_t *)(void *)own;
    part[0] = 3;
    DONE(linerate_all_reduce(part, part, 16, LINERATE_I32, LINERATE_SUM, comm));
    HOLDS(part[0] == 6);
    DONE(linerate_barrier(comm));
    DONE(linerate_deregister(comm, own));
    munmap(own, BYTES);
}

static void test_queue(linerate_comm comm, int32_t *in, int32_t *out) {
    enum { OPERATIONS = 20 };
    linerate_completion ended[3];
    linerate_queue queue = 0;
    linerate_call call = call_of(LINERATE_ALL_REDUCE, in, out);
    uint64_t count = 9, seen = 0, running = 9, i;
    struct pollfd poller = {-1, POLLIN, 0};
    INVALID(linerate_queue_create(comm, NULL));
    DONE(linerate_queue_create(comm, &queue));
    DONE(linerate_queue_fd(queue, &poller.fd));
    memset(ended, 0, sizeof ended);
    INVALID(linerate_queue_wait(queue, ended, 3, 0, &count));
    ended[0].size = sizeof ended[0];
    INVALID(linerate_queue_wait(queue, ended, 0, 0, &count));
    INVALID(linerate_queue_wait(queue, ended, 3, 0, NULL));
    FAILS(LINERATE_IN_PROGRESS, linerate_queue_wait(queue, ended, 3, 0, &count));
    HOLDS(count == 0);
    call.queue = queue;
    call.count = 1;
    for (i = 0; i < OPERATIONS; i++) {
        call.input = in + i;
        call.output = out + i;
        call.user = i;
        DONE(linerate_start(comm, &call, NULL));
    }
    while (seen != (1u << OPERATIONS) - 1) {
        HOLDS(poll(&poller, 1, 20000) == 1);
        DONE(linerate_queue_wait(queue, ended, 3, SECOND, &count));
        HOLDS(count >= 1 && count <= 3);
        for (i = 0; i < count; i++) {
            DONE(ended[i].status);
            HOLDS(ended[i].size == sizeof ended[0] && (seen >> ended[i].user & 1) == 0);
            seen |= UINT64_C(1) << ended[i].user;
        }
    }
    DONE(linerate_queue_running(queue, &running));
    HOLDS(running == 0);
    DONE(linerate_queue_free(queue));
    HANDLE(linerate_queue_fd(queue, &poller.fd));
}

static void test_lists_and_batches(linerate_comm comm, int32_t *in, int32_t *out) {
    enum { CALLS = 5 };
    const uint64_t counts[RANKS] = {3, 5};
    const void *inputs[RANKS] = {in + 50, in};
    void *outputs[RANKS] = {out + 50, out};
    linerate_call call = call_of(LINERATE_ALL_GATHER_V, in, NULL), calls[CALLS];
    linerate_operation operation = 0;
    linerate_completion ended = {sizeof ended, 0, 0, 0};
    linerate_queue queue = 0;
    uint64_t number = 0;
    int32_t i;
    for (i = 0; i < 100; i++) {
        in[i] = i + 10000 * (int32_t)rank;
    }
    call.receive_counts = counts;
    call.outputs = outputs;
    DONE(linerate_run(comm, &call));
    HOLDS(out[52] == 2 && out[0] == 10000 && out[4] == 10004);
    call = call_of(LINERATE_REDUCE_SCATTER_V, NULL, out);
    call.receive_counts = counts;
    call.inputs = inputs;
    DONE(linerate_run(comm, &call));
    HOLDS(out[0] == (rank == 0 ? 10100 : 10000));
    call = call_of(LINERATE_ALL_TO_ALL_V, NULL, NULL);
    call.send_counts = rank == 0 ? counts : (const uint64_t[]){5, 5};
    call.receive_counts = rank == 0 ? (const uint64_t[]){3, 5} : (const uint64_t[]){5, 5};
    call.inputs = inputs;
    call.outputs = outputs;
    DONE(linerate_run(comm, &call));
    HOLDS(out[4] == (rank == 0 ? 10054 : 10004));
    call.input = in;
    INVALID(linerate_run(comm, &call));
    HOLDS(says("input and inputs"));
    call.input = NULL;
    call.receive_counts = NULL;
    INVALID(linerate_run(comm, &call));
    call = call_of(LINERATE_ALL_REDUCE, NULL, out);
    call.inputs = inputs;
    INVALID(linerate_run(comm, &call));
    /* A program of an earlier version has no lists. */
    call = call_of(LINERATE_BARRIER, NULL, NULL);
    call.size = (uint64_t)((char *)&call.inputs - (char *)&call);
    memset(&call.inputs, 0xff, sizeof call.inputs);
    DONE(linerate_run(comm, &call));

    for (i = 0; i < CALLS; i++) {
        calls[i] = call_of(i == 3 ? LINERATE_BARRIER : LINERATE_ALL_REDUCE, in + 10 * i, out + 10 * i);
        calls[i].count = (uint64_t)i + 1;
    }
    calls[3].input = calls[3].output = NULL;
    DONE(linerate_batch_run(comm, calls, CALLS, 20 * SECOND));
    HOLDS(out[0] == 10000 && out[44] == 10088);
    DONE(linerate_batch_start(comm, calls, CALLS, 0, 0, 0, &operation));
    DONE(linerate_wait(operation, LINERATE_FOREVER));
    DONE(linerate_free(operation));
    DONE(linerate_queue_create(comm, &queue));
    DONE(linerate_batch_start(comm, calls, CALLS, 0, queue, 6, NULL));
    DONE(linerate_queue_wait(queue, &ended, 1, 20 * SECOND, &number));
    HOLDS(number == 1 && ended.user == 6 && ended.status == LINERATE_DONE);
    DONE(linerate_batch_run(comm, NULL, 0, 0));
    INVALID(linerate_batch_run(comm, NULL, 1, 0));
    calls[1].queue = queue;
    INVALID(linerate_batch_run(comm, calls, CALLS, 0));
    HOLDS(says("call 1"));
    calls[1].queue = 0;
    calls[4].size -= 8;
    INVALID(linerate_batch_run(comm, calls, CALLS, 0));
    HOLDS(says("number 4"));
    INVALID(linerate_batch_start(comm, calls, 1, 0, 0, 0, NULL));
    DONE(linerate_queue_free(queue));
}

static void test_fusion(linerate_comm comm) {
    enum { TENSORS = 3 };
    const uint32_t plan[TENSORS] = {1, 1, 0}, empty[TENSORS] = {0, 0, 2};
    linerate_tensor tensors[TENSORS];
    linerate_fusion_options options = {0};
    linerate_step_report report = {0};
    linerate_flush_report flush = {0};
    linerate_completion ended = {sizeof ended, 0, 0, 0};
    linerate_fusion fusion = 0;
    linerate_queue queue = 0;
    uint64_t count = 0, i;
    uint32_t numbers[TENSORS];
    float *data = malloc(TENSORS * COUNT * sizeof *data);
    memset(tensors, 0, sizeof tensors);
    for (i = 0; i < TENSORS; i++) {
        tensors[i].size = sizeof tensors[i];
        tensors[i].count = COUNT;
        tensors[i].dtype = LINERATE_F32;
    }
    tensors[1].name = "the second";
    DONE(linerate_fusion_create(comm, tensors, TENSORS, NULL, &fusion));
    DONE(linerate_queue_create(comm, &queue));
    report.size = sizeof report;
    flush.size = sizeof flush;
    for (i = 0; i < TENSORS * COUNT; i++) {
        data[i] = (float)(i + rank);
    }
    for (i = 0; i < TENSORS; i++) {
        DONE(linerate_fusion_announce(fusion, rank == 0 ? i : TENSORS - 1 - i,
                                      data + COUNT * (rank == 0 ? i : TENSORS - 1 - i)));
    }
    INVALID(linerate_fusion_announce(fusion, 1, data));
    HOLDS(says("the second"));
    INVALID(linerate_fusion_announce(fusion, TENSORS, data));
    DONE(linerate_fusion_end(fusion));
    DONE(linerate_fusion_notify(fusion, queue, 3));
    INVALID(linerate_fusion_notify(fusion, queue, 4));
    DONE(linerate_queue_wait(queue, &ended, 1, 20 * SECOND, &count));
    HOLDS(count == 1 && ended.user == 3 && ended.status == LINERATE_DONE);
    DONE(linerate_fusion_wait(fusion, &report));
    HOLDS(data[2 * COUNT + 5] == 2 * (2 * COUNT + 5) + 1);
    HOLDS(report.bytes == TENSORS * COUNT * 4 && report.flushes_count >= 1 && report.step == 0);
    HOLDS(report.begin_ns <= report.done_ns && report.overlap >= 0 && report.overlap <= 1);
    for (i = 0, count = 0; i < report.flushes_count; i++) {
        DONE(linerate_fusion_flush(fusion, i, &flush, numbers, TENSORS));
        HOLDS(flush.dtype == LINERATE_F32 && numbers[0] < TENSORS);
        HOLDS(flush.start_ns <= flush.end_ns);
        count += flush.tensors_count;
    }
    HOLDS(count == TENSORS);
    INVALID(linerate_fusion_flush(fusion, i, &flush, NULL, 0));
    INVALID(linerate_fusion_wait(fusion, (linerate_step_report *)(void *)numbers));
    HANDLE(linerate_fusion_wait(queue, NULL));
    DONE(linerate_fusion_free(fusion));
    HANDLE(linerate_fusion_end(fusion));

    options.size = sizeof options;
    options.plan = plan;
    options.op = LINERATE_MAX;
    options.tensors_max = 2;
    options.buffers_count = 2;
    options.bytes_max = 1 << 20;
    options.age_max_ns = 1;
    DONE(linerate_fusion_create(comm, tensors, TENSORS, &options, &fusion));
    for (i = 0; i < TENSORS; i++) {
        data[COUNT * i] = (float)rank;
        DONE(linerate_fusion_announce(fusion, i, data + COUNT * i));
    }
    DONE(linerate_fusion_wait(fusion, &report));
    HOLDS(report.flushes_count == 2 && report.rounds_count == 0 && data[COUNT] == 1);
    DONE(linerate_fusion_flush(fusion, 0, NULL, numbers, 1));
    HOLDS(numbers[0] == 2);
    DONE(linerate_fusion_free(fusion));
    options.plan = empty;
    INVALID(linerate_fusion_create(comm, tensors, TENSORS, &options, &fusion));
    options.plan = NULL;
    options.op = 99;
    INVALID(linerate_fusion_create(comm, tensors, TENSORS, &options, &fusion));
    options.op = LINERATE_SUM;
    options.buffers_count = 1000;
    INVALID(linerate_fusion_create(comm, tensors, TENSORS, &options, &fusion));
    tensors[1].size = 8;
    INVALID(linerate_fusion_create(comm, tensors, TENSORS, NULL, &fusion));
    INVALID(linerate_fusion_create(comm, NULL, TENSORS, NULL, &fusion));
    INVALID(linerate_fusion_create(comm, tensors, 1, NULL, NULL));
    DONE(linerate_queue_free(queue));
    free(data);
}

struct visited {
    const float *update;
    double sum;
    uint64_t active;
    uint32_t times, last;
};

static void visit(void *user, const linerate_round_report *report) {
    struct visited *visited = user;
    visited->sum += visited->update[COUNT - 1];
    visited->times++;
    visited->last = report->is_last;
    visited->active = report->active[0];
}

static void test_partial(linerate_comm comm) {
    enum { STEPS = 4 };
    linerate_partial_options options = {0};
    linerate_round_report report = {0};
    linerate_completion ended = {sizeof ended, 0, 0, 0};
    linerate_partial partial = 0;
    linerate_queue queue = 0;
    uint64_t active = 0, staleness[2] = {0, 0}, number = 9, lag = 9, count = 0;
    struct visited visited = {0};
    float *gradient = malloc(COUNT * sizeof *gradient), *update = malloc(COUNT * sizeof *update);
    int32_t i, step, status;
    double sum = 0;
    for (i = 0; i < COUNT; i++) {
        gradient[i] = (float)rank + 1;
    }
    report.size = sizeof report;
    report.active = &active;
    report.staleness = staleness;
    report.staleness_capacity = 2;
    DONE(linerate_partial_create(comm, LINERATE_F32, COUNT, NULL, &partial));
    DONE(linerate_queue_create(comm, &queue));
    FAILS(LINERATE_IN_PROGRESS, linerate_partial_next(partial, update, NULL));
    /* From here on a round may begin without this rank, which then has a result to take. */
    DONE(linerate_barrier(comm));
    for (step = 0; step < STEPS; step++) {
        DONE(linerate_partial_submit(partial, gradient, &number));
        HOLDS(number == (uint64_t)step);
        if (step % 2 == 0) {
            DONE(linerate_partial_notify(partial, queue, 8));
            DONE(linerate_queue_wait(queue, &ended, 1, 20 * SECOND, &count));
            HOLDS(count == 1 && ended.user == 8 && ended.status == LINERATE_DONE);
            do {
                status = linerate_partial_try_next(partial, update, &report);
            } while (status == LINERATE_IN_PROGRESS);
            DONE(status);
        } else {
            DONE(linerate_partial_next(partial, update, &report));
        }
        sum += update[COUNT - 1];
        HOLDS(report.round == (uint64_t)step && report.rounds == 1 && report.divisor == RANKS);
        HOLDS(active >= 1 && active <= 3 && report.active_count >= 1 && report.staleness_count >= 1);
        HOLDS(report.generations >= 1 && report.included_count >= report.active_count);
    }
    DONE(linerate_partial_exchange(partial, gradient, update, NULL));
    sum += update[COUNT - 1];
    visited.update = update;
    DONE(linerate_partial_finish(partial, update, visit, &visited));
    HOLDS(visited.last == 1 && visited.times >= 1 && sum + visited.sum == (STEPS + 1) * 1.5);
    DONE(linerate_partial_lag(partial, &lag));
    HOLDS(lag == 0);
    DONE(linerate_partial_finish(partial, update, NULL, NULL));
    INVALID(linerate_partial_submit(partial, NULL, NULL));
    INVALID(linerate_partial_lag(partial, NULL));
    HANDLE(linerate_partial_submit(queue, gradient, NULL));
    DONE(linerate_partial_free(partial));
    HANDLE(linerate_partial_next(partial, update, NULL));

    options.size = sizeof options;
    options.policy = LINERATE_FULL;
    options.delivery = LINERATE_MERGED;
    options.divisor = LINERATE_BY_NOTHING;
    options.staleness_max = LINERATE_UNBOUNDED;
    options.rounds_in_flight = 2;
    options.limiter = 3;
    options.survive = 1;
    DONE(linerate_partial_create(comm, LINERATE_F32, COUNT, &options, &partial));
    DONE(linerate_partial_exchange(partial, gradient, gradient, &report));
    HOLDS(gradient[0] == 3 && active == 3 && report.is_full == 1 && report.divisor == 1);
    DONE(linerate_partial_finish(partial, update, NULL, NULL));
    DONE(linerate_partial_free(partial));
    options.delivery = LINERATE_ORDERED;
    INVALID(linerate_partial_create(comm, LINERATE_F32, COUNT, &options, &partial));
    HOLDS(says("staleness_max"));
    options.policy = 17;
    INVALID(linerate_partial_create(comm, LINERATE_F32, COUNT, &options, &partial));
    options.policy = LINERATE_QUORUM;
    options.quorum = RANKS + 1;
    options.staleness_max = 0;
    INVALID(linerate_partial_create(comm, LINERATE_F32, COUNT, &options, &partial));
    INVALID(linerate_partial_create(comm, 99, COUNT, NULL, &partial));
    INVALID(linerate_partial_create(comm, LINERATE_F32, COUNT, NULL, NULL));
    DONE(linerate_queue_free(queue));
    free(gradient);
    free(update);
}

static void test_sparse(linerate_comm comm) {
    enum { TENSORS = 2 };
    linerate_tensor tensors[TENSORS];
    linerate_sparse_options options = {0};
    linerate_sparse_report report = {0};
    linerate_completion ended = {sizeof ended, 0, 0, 0};
    linerate_sparse sparse = 0;
    linerate_queue queue = 0;
    float *gradient = calloc(TENSORS * COUNT, sizeof *gradient);
    float *weights = calloc(TENSORS * COUNT, sizeof *weights);
    const void *gradients[TENSORS] = {gradient, gradient + COUNT};
    void *outputs[TENSORS] = {weights, weights + COUNT}, *saved;
    float values[4] = {0}, *residual = NULL;
    uint64_t indices[4] = {0}, count = 0, bytes = 0;
    int32_t i, status;
    memset(tensors, 0, sizeof tensors);
    for (i = 0; i < TENSORS; i++) {
        tensors[i].size = sizeof tensors[i];
        tensors[i].count = COUNT;
        tensors[i].dtype = LINERATE_F32;
    }
    options.size = sizeof options;
    options.k = 2;
    report.size = sizeof report;
    gradient[3] = 1;
    gradient[COUNT + 7] = -10 - (float)rank;
    gradient[9] = 5;
    DONE(linerate_sparse_create(comm, tensors, TENSORS, &options, &sparse));
    INVALID(linerate_sparse_add_to(sparse, outputs, 1));
    DONE(linerate_sparse_run(sparse, gradients, &report));
    HOLDS(strcmp(report.algorithm, "oktopk") == 0 && report.k == 2 && report.steps == 1);
    HOLDS(report.selected_global == 2 && report.selected_local == 2 && report.is_dense == 0);
    HOLDS(report.bytes_sent > 0 && report.is_skipped == 0);
    DONE(linerate_sparse_entries(sparse, 1, indices, values, 4, &count));
    HOLDS(count == 1 && indices[0] == 7 && values[0] == -21);
    DONE(linerate_sparse_entries(sparse, 0, NULL, NULL, 0, &count));
    HOLDS(count == 1);
    DONE(linerate_sparse_picks(sparse, 0, indices, values, 4, &count));
    HOLDS(count == 1 && indices[0] == 9 && values[0] == 5);
    DONE(linerate_sparse_add_to(sparse, outputs, -1));
    HOLDS(weights[9] == -10 && weights[COUNT + 7] == 21 && weights[3] == 0);
    DONE(linerate_sparse_residual(sparse, 0, &residual));
    HOLDS(residual[3] == 1 && residual[9] == 0);
    DONE(linerate_sparse_scale(sparse, 2));
    HOLDS(residual[3] == 2);
    DONE(linerate_sparse_save(sparse, NULL, 0, &bytes));
    saved = malloc((size_t)bytes);
    DONE(linerate_sparse_save(sparse, saved, bytes, &bytes));
    DONE(linerate_sparse_reset(sparse));
    HOLDS(residual[3] == 0);
    DONE(linerate_sparse_load(sparse, saved, bytes, 0));
    HOLDS(residual[3] == 2);
    DONE(linerate_sparse_load(sparse, saved, bytes, 1));
    FAILS(LINERATE_ERROR_MALFORMED, linerate_sparse_load(sparse, saved, bytes - 1, 0));
    free(saved);

    DONE(linerate_queue_create(comm, &queue));
    DONE(linerate_sparse_start(sparse, gradients));
    INVALID(linerate_sparse_start(sparse, gradients));
    DONE(linerate_sparse_notify(sparse, queue, 11));
    DONE(linerate_queue_wait(queue, &ended, 1, 20 * SECOND, &count));
    HOLDS(count == 1 && ended.user == 11 && ended.status == LINERATE_DONE);
    do {
        status = linerate_sparse_test(sparse, &report);
    } while (status == LINERATE_IN_PROGRESS);
    DONE(status);
    HOLDS(report.steps == 2);
    INVALID(linerate_sparse_test(sparse, NULL));
    DONE(linerate_queue_free(queue));
    DONE(linerate_sparse_flush(sparse, &report));
    HOLDS(report.is_dense == 1);
    DONE(linerate_sparse_entries(sparse, 0, indices, values, 4, &count));
    HOLDS(count == 1 && indices[0] == 3 && values[0] == 6);

    gradient[0] = 0.0f / gradient[1];
    FAILS(LINERATE_ERROR_NOT_FINITE, linerate_sparse_run(sparse, gradients, NULL));
    gradient[0] = 0;
    INVALID(linerate_sparse_run(sparse, NULL, NULL));
    INVALID(linerate_sparse_entries(sparse, TENSORS, indices, values, 4, &count));
    INVALID(linerate_sparse_picks(sparse, TENSORS, indices, values, 4, &count));
    INVALID(linerate_sparse_residual(sparse, TENSORS, &residual));
    INVALID(linerate_sparse_entries(sparse, 0, indices, values, 4, NULL));
    DONE(linerate_sparse_free(sparse));
    HANDLE(linerate_sparse_reset(sparse));

    options.algorithm = "topka";
    options.k = 0;
    options.density = 0.5;
    options.values = LINERATE_BF16;
    options.indices = LINERATE_U64;
    options.is_average = options.is_per_tensor = options.is_sparcml = 1;
    options.not_finite = LINERATE_NOT_FINITE_SKIP;
    options.mode = LINERATE_THRESHOLD;
    options.regions = LINERATE_REGIONS_EQUAL;
    options.balance = LINERATE_BALANCE_ALWAYS;
    DONE(linerate_sparse_create(comm, tensors, TENSORS, &options, &sparse));
    DONE(linerate_sparse_run(sparse, gradients, &report));
    HOLDS(report.k == COUNT && strcmp(report.algorithm, "topka") == 0);
    DONE(linerate_sparse_free(sparse));
    options.k = 4;
    INVALID(linerate_sparse_create(comm, tensors, TENSORS, &options, &sparse));
    options.k = 0;
    options.algorithm = "topkb";
    INVALID(linerate_sparse_create(comm, tensors, TENSORS, &options, &sparse));
    HOLDS(says("oktopk"));
    options.algorithm = NULL;
    options.values = LINERATE_F64;
    INVALID(linerate_sparse_create(comm, tensors, TENSORS, &options, &sparse));
    options.values = options.mode = 3;
    INVALID(linerate_sparse_create(comm, tensors, TENSORS, &options, &sparse));
    tensors[1].dtype = LINERATE_F64;
    INVALID(linerate_sparse_create(comm, tensors, TENSORS, NULL, &sparse));
    INVALID(linerate_sparse_create(comm, tensors, 1, NULL, NULL));
    free(gradient);
    free(weights);
}

static void test_fork(linerate_comm comm) {
    int how = 0;
    pid_t child = fork();
    HOLDS(child >= 0);
    if (child == 0) {
        FAILS(LINERATE_ERROR_FORKED, linerate_barrier(comm));
        FAILS(LINERATE_ERROR_FORKED, linerate_failure(comm));
        DONE(linerate_destroy(comm));
        HANDLE(linerate_barrier(comm));
        _exit(0);
    }
    HOLDS(waitpid(child, &how, 0) == child && how == 0);
    DONE(linerate_barrier(comm));
}

static void test_groups(linerate_comm comm, char *folder) {
    const uint32_t members[RANKS] = {1, 0}, twice[RANKS] = {1, 1};
    linerate_exchange exchange = {sizeof(linerate_exchange), put, get, NULL};
    linerate_comm other = 0;
    uint32_t number = 9;
    exchange.user = folder;
    DONE(linerate_duplicate(comm, &other));
    DONE(linerate_barrier(other));
    DONE(linerate_finalize(other));
    HANDLE(linerate_barrier(other));
    DONE(linerate_split(comm, rank == 0 ? 7 : LINERATE_NO_COLOR, 0, &other));
    HOLDS((other != 0) == (rank == 0));
    DONE(linerate_destroy(other));
    INVALID(linerate_split(comm, -2, 0, &other));
    DONE(linerate_sibling(comm, members, RANKS, "pair", &exchange, &other));
    DONE(linerate_rank(other, &number));
    HOLDS(number == 1 - rank);
    DONE(linerate_finalize(other));
    INVALID(linerate_sibling(comm, twice, RANKS, "twins", &exchange, &other));
    INVALID(linerate_sibling(comm, NULL, RANKS, "none", &exchange, &other));
}

static void test_exchange(linerate_config config, char *folder) {
    linerate_exchange exchange = {sizeof(linerate_exchange), put, get, NULL};
    linerate_comm comm = 0;
    exchange.user = folder;
    DONE(linerate_init_by_exchange(rank, RANKS, "world", &exchange, config, &comm));
    DONE(linerate_barrier(comm));
    DONE(linerate_finalize(comm));
    exchange.get = NULL;
    INVALID(linerate_init_by_exchange(rank, RANKS, "no get", &exchange, config, &comm));
    exchange.put = accept;
    exchange.get = refuse;
    if (rank == 1) {
        FAILS(LINERATE_ERROR_BOOTSTRAP,
              linerate_init_by_exchange(1, RANKS, "fails", &exchange, config, &comm));
        HOLDS(says("-7"));
        exchange.get = lie;
        FAILS(LINERATE_ERROR_BOOTSTRAP,
              linerate_init_by_exchange(1, RANKS, "lies", &exchange, config, &comm));
    }
}

/* The end of a communicator: an abort, with its first cause, and what lives on. */
static void test_abort(linerate_comm comm, int32_t *data) {
    uint32_t ranks[4] = {9, 9, 9, 9};
    uint64_t count = 0;
    int32_t status;
    if (rank == 1) {
        DONE(linerate_abort(comm, "the loss is not a number"));
    }
    status = linerate_all_reduce(data, data, 4, LINERATE_I32, LINERATE_SUM, comm);
    HOLDS(status == LINERATE_ERROR_ABORTED || status == LINERATE_ERROR_COMMUNICATOR_FAILED);
    HOLDS(linerate_last_error_cause() == LINERATE_ERROR_ABORTED && says("not a number"));
    DONE(linerate_last_error_ranks(ranks, 4, &count));
    HOLDS(count == 1 && ranks[0] == 1 && ranks[1] == 9);
    FAILS(LINERATE_ERROR_ABORTED, linerate_failure(comm));
}

/* Predictions communicate with nobody. */
static void test_whatif(void) {
    enum { GRADIENTS = 161 };
    linerate_gradient gradients[GRADIENTS] = {{0}};
    linerate_step step = {0};
    linerate_whatif whatif = {0};
    linerate_prediction prediction = {0};
    linerate_fabric_call wanted = {0};
    linerate_fabric_times times = {0};
    char name[32];
    uint64_t count = 0, bytes = 0;
    uint32_t i;

    step.size = sizeof step;
    DONE(linerate_trace_load("resnet50", NULL, 0, &count, NULL));
    HOLDS(count == GRADIENTS);
    INVALID(linerate_trace_load("resnet50", gradients, GRADIENTS, NULL, &step));
    gradients[0].size = sizeof gradients[0];
    DONE(linerate_trace_load("resnet50", gradients, GRADIENTS, NULL, &step));
    for (i = 0; i < GRADIENTS; i++) {
        HOLDS(gradients[i].dtype == LINERATE_F32 && gradients[i].size == sizeof gradients[i]);
        bytes += gradients[i].bytes;
    }
    HOLDS(bytes == 102228128 && step.step_ms > 128 && step.step_ms < 129);
    INVALID(linerate_trace_load(NULL, NULL, 0, NULL, NULL));
    INVALID(linerate_trace_load("/nowhere", NULL, 0, NULL, NULL));

    whatif.size = sizeof whatif;
    prediction.size = sizeof prediction;
    INVALID(linerate_whatif_predict(&whatif, gradients, GRADIENTS, &step, &prediction));
    whatif.gpus = 64;
    whatif.gbit = 10;
    DONE(linerate_whatif_predict(&whatif, gradients, GRADIENTS, &step, &prediction));
    /* As published. */
    HOLDS(prediction.scaling_factor > 0.5396 && prediction.scaling_factor < 0.5398);
    HOLDS(prediction.low == prediction.scaling_factor && prediction.flushes_count == 12);
    HOLDS(prediction.limited_by == LINERATE_LIMITED_BY_WIRE);
    whatif.gpus_per_server = 8;
    whatif.algorithm = "hierarchical";
    whatif.wire_dtype = LINERATE_BF16;
    whatif.error_most = 1.5;
    DONE(linerate_whatif_predict(&whatif, gradients, GRADIENTS, &step, &prediction));
    HOLDS(prediction.scaling_factor > 0.7 && prediction.low < 0.7);
    DONE(linerate_whatif_predict(&whatif, NULL, 0, NULL, &prediction));
    HOLDS(prediction.scaling_factor == 1);
    whatif.algorithm = "no such";
    INVALID(linerate_whatif_predict(&whatif, gradients, GRADIENTS, &step, &prediction));
    whatif.algorithm = NULL;
    whatif.adds_compressed = 2;
    INVALID(linerate_whatif_predict(&whatif, gradients, GRADIENTS, &step, &prediction));
    whatif.adds_compressed = 0;
    gradients[3].wait_us = -1;
    INVALID(linerate_whatif_predict(&whatif, gradients, GRADIENTS, &step, &prediction));
    INVALID(linerate_whatif_predict(NULL, gradients, GRADIENTS, &step, &prediction));

    wanted.size = sizeof wanted;
    times.size = sizeof times;
    wanted.fabric = "100g";
    wanted.collective = LINERATE_ALL_REDUCE;
    wanted.ranks = 16;
    wanted.bytes = 64 << 20;
    DONE(linerate_fabric_run(&wanted, &times, name, sizeof name));
    HOLDS(strcmp(name, "ring") == 0 && times.messages > 0);
    /* 2 * 15 / 16 of the bytes at 12.5 GB/s take 10.07 ms. */
    HOLDS(times.ns > 10066329 && times.ns < 11000000 && times.nic_use > 0.9);
    wanted.fabric = "{\"nic_gbit\": 50}";
    wanted.algorithm = "tree";
    DONE(linerate_fabric_run(&wanted, NULL, name, 3));
    HOLDS(strcmp(name, "tr") == 0);
    wanted.fabric = "{\"gbit\": 50}";
    INVALID(linerate_fabric_run(&wanted, &times, name, sizeof name));
    wanted.fabric = NULL;
    INVALID(linerate_fabric_run(&wanted, &times, name, sizeof name));
}

int main(int arguments, char **argument) {
    linerate_config config = 0;
    linerate_comm comm = 0, again = 0;
    linerate_memory memory = 0;
    uint64_t bytes = 0;
    uint32_t number = 9;
    int32_t *in = malloc(RANKS * COUNT * sizeof *in), *out;
    void *address = NULL;
    if (arguments != 4 || in == NULL) {
        return 2;
    }
    rank = (uint32_t)atoi(argument[3]);
    test_texts();
    test_settings();
    test_zero();
    test_whatif();
    rank = (uint32_t)atoi(argument[3]);

    DONE(linerate_config_create(&config));
    DONE(linerate_config_set(config, "LINERATE_TIMEOUT", "20"));
    INVALID(linerate_init_by_name(rank, RANKS, NULL, config, &comm));
    FAILS(LINERATE_ERROR_BOOTSTRAP, linerate_init_by_name(RANKS, RANKS, "job", config, &comm));
    DONE(linerate_init_by_name(rank, RANKS, argument[1], config, &comm));
    DONE(linerate_rank(comm, &number));
    HOLDS(number == rank);
    DONE(linerate_ranks(comm, &number));
    HOLDS(number == RANKS);
    INVALID(linerate_ranks(comm, NULL));
    DONE(linerate_transport(comm, text, sizeof text, &bytes));
    HOLDS(strlen(text) + 1 == bytes);
    DONE(linerate_set_timeout(comm, 20 * SECOND));
    INVALID(linerate_set_timeout(comm, 0));

    bytes = RANKS * COUNT * sizeof *in;
    INVALID(linerate_alloc(comm, bytes, NULL, &address));
    INVALID(linerate_alloc(comm, bytes, &memory, NULL));
    INVALID(linerate_alloc(comm, UINT64_MAX, &memory, &address));
    DONE(linerate_alloc(comm, bytes, &memory, &address));
    out = address;
    HOLDS(out[COUNT] == 0);
    DONE(linerate_memory_bytes(memory, &bytes));
    HOLDS(bytes == RANKS * COUNT * sizeof *in);
    HANDLE(linerate_memory_bytes(comm, &bytes));

    test_collectives(comm, in, out);
    test_bad_calls(comm, in, out);
    test_started(comm, in, out);
    test_queue(comm, in, out);
    test_tagged(comm, in, out);
    test_registered(comm);
    test_lists_and_batches(comm, in, out);
    test_fusion(comm);
    test_partial(comm);
    test_sparse(comm);
    /* Under valgrind a child that ends so leaks what is its parent's. */
    if (getenv("CALLS_WITHOUT_FORK") == NULL) {
        test_fork(comm);
    }
    test_groups(comm, argument[2]);
    DONE(linerate_failure(comm));
    /* Its barrier is one for the abort, too, of which nothing on `comm` may hear too early. */
    test_exchange(config, argument[2]);
    DONE(linerate_config_free(config));
    test_abort(comm, in);
    DONE(linerate_rebuild(comm, &again));
    DONE(linerate_memory_free(memory));
    HANDLE(linerate_memory_free(memory));
    DONE(linerate_finalize(again));
    DONE(linerate_destroy(comm));
    HANDLE(linerate_destroy(comm));
    free(in);
    printf("rank %u has called everything\n", (unsigned)rank);
    return 0;
}
