/* The DSP's program as a process: tandem-dsp WORKERS VTCM_BYTES. */
#include "../../executor.h"
#include "emulator.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static bool receive(void *to, size_t bytes) {
    for (size_t have = 0; have < bytes;) {
        ssize_t n = read(EMULATOR_SOCKET, (uint8_t *)to + have, bytes - have);
        if (n == 0 || (n < 0 && errno != EINTR)) {
            return false;
        }
        have += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static bool send_all(const void *from, size_t bytes) {
    for (size_t sent = 0; sent < bytes;) {
        ssize_t n = write(EMULATOR_SOCKET, (const uint8_t *)from + sent, bytes - sent);
        if (n < 0 && errno != EINTR) {
            return false;
        }
        sent += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static struct executor executor;

int main(int argc, char **argv) {
    unsigned long workers = argc == 3 ? strtoul(argv[1], NULL, 10) : 0;
    unsigned long vtcm = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
    if (workers < 1 || workers > POOL_THREADS || vtcm < 65536 || vtcm > (1ul << 30) || vtcm % 4096 != 0) {
        fprintf(stderr, "usage: tandem-dsp WORKERS VTCM_BYTES, 1 to %d workers, VTCM of 64 KiB to 1 GiB in pages; "
                        "descriptor 0 is the shared memory, 1 the socket\n", POOL_THREADS);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    if (!executor_start(&executor, (uint32_t)workers, (uint32_t)vtcm)) {
        fprintf(stderr, "tandem-dsp: no memory for %lu bytes of VTCM\n", vtcm);
        return 1;
    }
    struct tdm_request request;
    struct tdm_reply reply;
    bool goes_on = true;
    while (goes_on && receive(&request, sizeof request)) {
        goes_on = executor_answer(&executor, &request, &reply);
        if (!send_all(&reply, sizeof reply)) {
            break;
        }
    }
    executor_stop(&executor);
    return 0;
}
