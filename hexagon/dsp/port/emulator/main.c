/* The DSP's program as a process: tandem-dsp WORKERS VTCM_BYTES [SEED]. */
#define _GNU_SOURCE
#include "../../executor.h"
#include "../port.h"
#include "emulator.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool receive(int from, void *to, size_t bytes) {
    for (size_t have = 0; have < bytes;) {
        ssize_t n = read(from, (uint8_t *)to + have, bytes - have);
        if (n == 0 || (n < 0 && errno != EINTR)) {
            return false;
        }
        have += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static bool send_all(int to, const void *from, size_t bytes) {
    for (size_t sent = 0; sent < bytes;) {
        ssize_t n = write(to, (const uint8_t *)from + sent, bytes - sent);
        if (n < 0 && errno != EINTR) {
            return false;
        }
        sent += n > 0 ? (size_t)n : 0;
    }
    return true;
}

/* The descriptor that the first byte carries; -1 where there is none. */
static int receive_descriptor(void) {
    char byte, control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t n;
    do {
        n = recvmsg(EMULATOR_SOCKET, &message, 0);
    } while (n < 0 && errno == EINTR);
    const struct cmsghdr *head = n == 1 ? CMSG_FIRSTHDR(&message) : NULL;
    if (head == NULL || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS ||
        head->cmsg_len != CMSG_LEN(sizeof(int))) {
        return -1;
    }
    int descriptor;
    memcpy(&descriptor, CMSG_DATA(head), sizeof descriptor);
    return descriptor;
}

static struct executor executor;
static int power_socket;

/* Votes are answered here, whatever the queue does. */
static void serve_power(void *context) {
    (void)context;
    struct tdm_power votes;
    struct tdm_power_reply reply;
    while (receive(power_socket, &votes, sizeof votes)) {
        executor_power(&executor, &votes, &reply);
        if (!send_all(power_socket, &reply, sizeof reply)) {
            return;
        }
    }
}

int main(int argc, char **argv) {
    unsigned long workers = argc >= 3 ? strtoul(argv[1], NULL, 10) : 0;
    unsigned long vtcm = argc >= 3 ? strtoul(argv[2], NULL, 10) : 0;
    if (argc > 4 || workers < 1 || workers > POOL_THREADS || vtcm < 65536 || vtcm > (1ul << 30) || vtcm % 4096 != 0) {
        fprintf(stderr, "usage: tandem-dsp WORKERS VTCM_BYTES [SEED], 1 to %d workers, VTCM of 64 KiB to 1 GiB in "
                        "pages, SEED for threads that come late at random; descriptor 0 is the shared memory, 1 the "
                        "socket, whose first byte carries the socket for power votes\n", POOL_THREADS);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    if (argc == 4) {
        emulator_perturb(strtoull(argv[3], NULL, 10));
    }
    power_socket = receive_descriptor();
    if (power_socket < 0) {
        fprintf(stderr, "tandem-dsp: no socket for power votes came with the first byte\n");
        return 1;
    }
    if (!executor_start(&executor, (uint32_t)workers, (uint32_t)vtcm)) {
        fprintf(stderr, "tandem-dsp: no memory for %lu bytes of VTCM\n", vtcm);
        return 1;
    }
    struct port_thread *power = port_thread_start(serve_power, NULL);
    if (power == NULL) {
        fprintf(stderr, "tandem-dsp: the system refused a thread for power votes\n");
        return 1;
    }
    struct tdm_request request;
    struct tdm_reply reply;
    bool goes_on = true;
    while (goes_on && receive(EMULATOR_SOCKET, &request, sizeof request)) {
        emulator_linger();
        goes_on = executor_answer(&executor, &request, &reply);
        emulator_linger();
        if (!send_all(EMULATOR_SOCKET, &reply, sizeof reply)) {
            break;
        }
    }
    shutdown(power_socket, SHUT_RDWR);
    port_thread_join(power);
    executor_stop(&executor);
    return 0;
}
