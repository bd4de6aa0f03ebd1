/* What the programs of these tests check with. */
#include <linerate.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND 1000000000ull

static uint32_t rank;
static char text[4096];

static void expect(int32_t wanted, int32_t status, const char *what, int line) {
    if (status == wanted) {
        return;
    }
    linerate_last_error_text(text, sizeof text, NULL);
    fprintf(stderr, "line %d: rank %u: %s is %s, not %s; last error: %s\n", line,
            (unsigned)rank, what, linerate_status_text(status), linerate_status_text(wanted), text);
    exit(1);
}

static void hold(int is_so, const char *what, int line) {
    if (!is_so) {
        linerate_last_error_text(text, sizeof text, NULL);
        fprintf(stderr, "line %d: rank %u: not so: %s; last error: %s\n", line, (unsigned)rank,
                what, text);
        exit(1);
    }
}

#define DONE(call) expect(LINERATE_DONE, call, #call, __LINE__)
#define FAILS(status, call) expect(status, call, #call, __LINE__)
#define INVALID(call) FAILS(LINERATE_ERROR_INVALID_ARGUMENT, call)
#define HANDLE(call) FAILS(LINERATE_ERROR_BAD_HANDLE, call)
#define HOLDS(what) hold(what, #what, __LINE__)

static int says(const char *word) {
    DONE(linerate_last_error_text(text, sizeof text, NULL));
    return strstr(text, word) != NULL;
}
