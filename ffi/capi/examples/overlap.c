/* Starts many all-reduces, computes while they run, and learns of their ends by poll().
 *
 *   cc overlap.c $(pkg-config --cflags --libs linerate) -o overlap
 *   linerate launch -n 2 -- ./overlap
 */
#define _POSIX_C_SOURCE 200809L
#include <linerate.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 16, COUNT = 1 << 14 };

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
    linerate_comm comm = 0;
    linerate_memory memory = 0;
    linerate_queue queue = 0;
    linerate_call call = {0};
    linerate_completion ended[LAYERS] = {{0}};
    struct pollfd poller = {-1, POLLIN, 0};
    uint32_t rank = 0, ranks = 0;
    uint64_t count = 0, done = 0, i;
    void *address = NULL;
    float *gradients;

    check(linerate_init(0, &comm), "linerate_init");
    check(linerate_rank(comm, &rank), "linerate_rank");
    check(linerate_ranks(comm, &ranks), "linerate_ranks");
    check(linerate_alloc(comm, LAYERS * COUNT * sizeof(float), &memory, &address),
          "linerate_alloc");
    check(linerate_queue_create(comm, &queue), "linerate_queue_create");
    /* From here on a thread of the library moves the operations. */
    check(linerate_queue_fd(queue, &poller.fd), "linerate_queue_fd");

    gradients = address;
    call.size = sizeof call;
    call.collective = LINERATE_ALL_REDUCE;
    call.dtype = LINERATE_F32;
    call.op = LINERATE_SUM;
    call.count = COUNT;
    call.queue = queue;
    for (call.user = 0; call.user < LAYERS; call.user++) {
        float *layer = gradients + call.user * COUNT;
        for (i = 0; i < COUNT; i++) {
            layer[i] = (float)call.user; /* The backward pass of this layer. */
        }
        call.input = layer;
        call.output = layer;
        check(linerate_start(comm, &call, NULL), "linerate_start");
    }

    ended[0].size = sizeof ended[0];
    while (done < LAYERS) {
        if (poll(&poller, 1, -1) < 0) {
            perror("poll");
            return 1;
        }
        check(linerate_queue_wait(queue, ended, LAYERS, 0, &count), "linerate_queue_wait");
        for (i = 0; i < count; i++) {
            check(ended[i].status, "an all-reduce");
        }
        done += count;
    }
    printf("rank %u of %u: %g\n", (unsigned)rank, (unsigned)ranks,
           gradients[LAYERS * COUNT - 1] / (LAYERS - 1));
    check(linerate_queue_free(queue), "linerate_queue_free");
    check(linerate_memory_free(memory), "linerate_memory_free");
    check(linerate_finalize(comm), "linerate_finalize");
    return 0;
}
