/* Between the two halves of the stand-in for a phone: libcdsprpc.so's (cdsprpc.c), and the
 * process that stands for the DSP's (platform.c), which runs the phone's port and its library. */
#ifndef TANDEM_WIRE_H
#define TANDEM_WIRE_H

#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

/* Descriptor of the DSP's process: calls and answers, a message each. */
#define WIRE_CONTROL 0

#define WIRE_INVOKE 1 /* in bytes follow; answered with a result and out bytes. The others are not answered */
#define WIRE_FILE 2   /* a descriptor comes along: a buffer's, `number` its name */
#define WIRE_FORGET 3 /* that buffer's descriptor is closed */
#define WIRE_QUEUE 4  /* a descriptor comes along: the queue's socket, `number` its name */

#define WIRE_MOST 256 /* bytes in and out of a call */

struct wire_call {
    uint32_t kind;
    uint32_t scalars;
    uint64_t number;
    uint32_t in_bytes[2];
    uint32_t out_bytes;
    uint32_t unused;
    uint8_t in[WIRE_MOST];
};

/* In front of every message of the queue to the DSP: how many calls had been sent before it. */
typedef uint64_t wire_calls;

struct wire_answer {
    int32_t result;
    uint32_t unused;
    uint64_t handle;
    uint8_t out[WIRE_MOST];
};

/* Sends a call, with a descriptor where `file` is not negative. */
static inline int wire_send(int socket, const struct wire_call *call, int file) {
    struct iovec part = {(void *)call, sizeof *call};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (file >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        memset(&control, 0, sizeof control);
        control.head.cmsg_level = SOL_SOCKET;
        control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN(sizeof file);
        memcpy(CMSG_DATA(&control.head), &file, sizeof file);
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)sizeof *call ? 0 : -1;
}

/* Receives one; `*file` is -1 where none came along. Less than 1: the other side is gone. */
static inline int wire_receive(int socket, struct wire_call *call, int *file) {
    struct iovec part = {call, sizeof *call};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    *file = -1;
    ssize_t bytes = recvmsg(socket, &message, 0);
    struct cmsghdr *head = bytes > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (head != NULL && head->cmsg_type == SCM_RIGHTS) {
        memcpy(file, CMSG_DATA(head), sizeof *file);
    }
    return bytes == (ssize_t)sizeof *call;
}

#endif
