/* Stands in for the phone's platform below port/sdk: QuRT, HAP and the queue's far end as a
 * POSIX process, started by the stand-in libcdsprpc.so: tandem-phone FAULTS.
 *
 * It ends itself with a message where the port does what the hardware would not forgive: touches
 * on-chip memory it does not hold, or answers before caches are written out.
 *
 * Faults, separated by commas: callbacks (a queue without them is refused), vtcm (there is none),
 * vtcm-busy (it is never given out), map (buffers are not mapped), votes (refused), lend (another
 * process asks for on-chip memory at every batch), die=N (at the N-th message). */
#define _GNU_SOURCE
#include "../../port/sdk/platform.h"
#include "../../include/packet.h"
#include "wire.h"
#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

int tandem_skel_handle_invoke(remote_handle64 handle, uint32_t scalars, remote_arg *arguments);

static const char *faults = "";

/* The number after `name=`, 1 for the name alone, 0 where it is not there. */
static long fault(const char *name) {
    size_t length = strlen(name);
    for (const char *at = faults; (at = strstr(at, name)) != NULL; at += length) {
        char before = at == faults ? ',' : at[-1], after = at[length];
        if (before == ',' && (after == ',' || after == 0)) {
            return 1;
        }
        if (before == ',' && after == '=') {
            return strtol(at + length + 1, NULL, 10);
        }
    }
    return 0;
}

static void die(const char *what) {
    fprintf(stderr, "phone: %s\n", what);
    _exit(3);
}

/* --- threads -------------------------------------------------------------------------------- */

static pthread_t threads[64];
static unsigned int thread_count;

struct start {
    void (*body)(void *);
    void *context;
};

static void *enter(void *argument) {
    struct start s = *(struct start *)argument;
    free(argument);
    s.body(s.context);
    return NULL;
}

/* Ends started threads as QuRT's do: by name, from the thread that asks. */
int qurt_thread_create(qurt_thread_t *thread, qurt_thread_attr_t *attributes, void (*body)(void *), void *context) {
    struct start *s = malloc(sizeof *s);
    if (attributes->stack_addr == NULL || attributes->stack_size < 4096 || thread_count >= 64 || s == NULL) {
        free(s);
        return -1;
    }
    *s = (struct start){body, context};
    if (pthread_create(&threads[thread_count], NULL, enter, s) != 0) {
        free(s);
        return -1;
    }
    *thread = ++thread_count;
    return QURT_EOK;
}

int qurt_thread_join(unsigned int thread, int *status) {
    *status = 0;
    return pthread_join(threads[thread - 1], NULL);
}

void qurt_thread_exit(int status) {
    (void)status;
    pthread_exit(NULL);
}

qurt_thread_t qurt_thread_get_id(void) { return 1; }
int qurt_thread_get_priority(qurt_thread_t thread) { return (int)thread + 100; }
int qurt_hvx_get_units(void) { return 2 << 8; }

int qurt_futex_wait(void *word, int value) {
    return (int)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

int qurt_futex_wake(void *word, int most) {
    return (int)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, most, NULL, NULL, 0);
}

/* --- on-chip memory ------------------------------------------------------------------------- */

#define VTCM_BYTES (8u << 20)

static uint8_t *vtcm;
static bool vtcm_held;
static int (*vtcm_wanted)(unsigned int, void *);

int compute_resource_attr_init(compute_res_attr_t *a) {
    memset(a, 0, sizeof *a);
    return 0;
}

int compute_resource_attr_set_serialize(compute_res_attr_t *a, unsigned char on) {
    (void)a;
    return on;
}

int compute_resource_attr_set_cache_mode(compute_res_attr_t *a, unsigned char on) {
    a->opaque[1] = on;
    return 0;
}

int compute_resource_attr_set_hmx_param(compute_res_attr_t *a, unsigned char on) {
    a->opaque[2] = on;
    return 0;
}

int compute_resource_attr_set_vtcm_param_v2(compute_res_attr_t *a, unsigned int bytes, unsigned int page,
                                            unsigned int least) {
    (void)page;
    a->opaque[0] = bytes;
    return least <= VTCM_BYTES ? 0 : -1;
}

int compute_resource_attr_set_release_callback(compute_res_attr_t *a, int (*callback)(unsigned int, void *), void *c) {
    (void)a;
    (void)c;
    vtcm_wanted = callback;
    return 0;
}

int compute_resource_attr_get_vtcm_ptr_v2(compute_res_attr_t *a, void **memory, unsigned int *bytes) {
    *memory = vtcm;
    *bytes = (unsigned int)a->opaque[0];
    return 0;
}

int compute_resource_query_VTCM(unsigned int application, unsigned int *bytes, struct compute_res_vtcm_page *layout,
                                unsigned int *free_bytes, struct compute_res_vtcm_page *free_layout) {
    (void)application;
    (void)layout;
    (void)free_bytes;
    (void)free_layout;
    *bytes = fault("vtcm") ? 0 : VTCM_BYTES;
    return 0;
}

unsigned int compute_resource_acquire(compute_res_attr_t *a, unsigned int timeout_us) {
    (void)timeout_us;
    if (a->opaque[0] > VTCM_BYTES || a->opaque[1] != 1 || fault("vtcm-busy")) {
        return 0;
    }
    vtcm = mmap(NULL, VTCM_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return vtcm == MAP_FAILED ? 0 : 7;
}

int compute_resource_release(unsigned int context) {
    munmap(vtcm, VTCM_BYTES);
    vtcm = NULL;
    return context == 7 ? 0 : -1;
}

/* Somebody else had it meanwhile: its contents are theirs. */
int compute_resource_acquire_cached(unsigned int context, unsigned int timeout_us) {
    (void)timeout_us;
    if (context != 7 || vtcm_held) {
        die("on-chip memory is taken twice");
    }
    mprotect(vtcm, VTCM_BYTES, PROT_READ | PROT_WRITE);
    memset(vtcm, 0xff, VTCM_BYTES);
    vtcm_held = true;
    return 0;
}

int compute_resource_release_cached(unsigned int context) {
    if (context != 7 || !vtcm_held) {
        die("on-chip memory is released twice");
    }
    mprotect(vtcm, VTCM_BYTES, PROT_NONE);
    vtcm_held = false;
    return 0;
}

int compute_resource_hmx_lock(unsigned int context) { return context == 7 ? 0 : -1; }
int compute_resource_hmx_unlock(unsigned int context) { return context == 7 ? 0 : -1; }

/* --- votes and caches ----------------------------------------------------------------------- */

static bool vectors_on, clocks_on;

int HAP_power_set(void *client, HAP_power_request_t *request) {
    (void)client;
    if (fault("votes") && request->type != HAP_power_set_apptype) {
        return AEE_EFAILED;
    }
    switch (request->type) {
    case HAP_power_set_HVX: vectors_on = request->hvx.power_up; return 0;
    case HAP_power_set_DCVS_v3: clocks_on = request->dcvs_v3.core_params.target_corner != 0; return 0;
    case HAP_power_set_apptype: return request->apptype == HAP_POWER_COMPUTE_CLIENT_CLASS ? 0 : AEE_EBADPARM;
    case HAP_power_set_HMX:
    case HAP_power_set_HMX_v2: return 0;
    default: return AEE_EUNSUPPORTED;
    }
}

static _Atomic bool dirty;

int qurt_mem_cache_clean(qurt_addr_t address, qurt_size_t bytes, int op, int type) {
    if (address == 0 && bytes == 0 && op == QURT_MEM_CACHE_FLUSH_INVALIDATE_ALL && type == QURT_MEM_DCACHE) {
        dirty = false;
    }
    return 0;
}

/* --- memory of both sides ------------------------------------------------------------------- */

#define FILES 4096

static struct {
    uint64_t number;
    int file;
} files[FILES];
static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER;
/* Calls that have been carried out. A message may name buffers of calls sent before it. */
static wire_calls calls_done;
static pthread_cond_t call_done = PTHREAD_COND_INITIALIZER;

static void wait_for_calls(wire_calls count) {
    pthread_mutex_lock(&files_lock);
    while (calls_done < count) {
        pthread_cond_wait(&call_done, &files_lock);
    }
    pthread_mutex_unlock(&files_lock);
}

/* The place of a buffer's name; -1 where it is not known. Name 0 finds a free place. */
static int find_file(uint64_t number) {
    for (int i = 0; i < FILES; i++) {
        if (files[i].number == number) {
            return i;
        }
    }
    return -1;
}

void *HAP_mmap2(void *address, size_t bytes, int protection, int flags, int file, long offset) {
    (void)address;
    (void)flags;
    pthread_mutex_lock(&files_lock);
    int at = find_file((uint64_t)file + 1), local = at < 0 ? -1 : files[at].file;
    pthread_mutex_unlock(&files_lock);
    if (local < 0 || offset != 0 || fault("map")) {
        return (void *)-1;
    }
    return mmap(NULL, bytes, protection, MAP_SHARED, local, 0);
}

int HAP_munmap2(void *address, size_t bytes) { return munmap(address, bytes); }

void *HAP_mmap(void *address, int bytes, int protection, int flags, int file, long offset) {
    return HAP_mmap2(address, (size_t)bytes, protection, flags, file, offset);
}

int HAP_munmap(void *address, int bytes) { return HAP_munmap2(address, (size_t)bytes); }

/* --- the queue ------------------------------------------------------------------------------ */

struct dspqueue {
    uint64_t number;
    int socket;
    dspqueue_callback_t packet;
    void *context;
    pthread_t caller;
    _Atomic bool closed;
};

static struct dspqueue queue = {.socket = -1};

/* Tells of every message once, and again until it has been read. */
static void *call_back(void *unused) {
    (void)unused;
    while (!queue.closed) {
        struct pollfd ready = {queue.socket, POLLIN, 0};
        if (poll(&ready, 1, 10) > 0) {
            queue.packet(&queue, 0, queue.context);
            usleep(200);
        }
    }
    return NULL;
}

AEEResult dspqueue_import(uint64_t id, dspqueue_callback_t packet, dspqueue_callback_t error, void *context,
                          dspqueue_t *out) {
    (void)error;
    if (queue.socket < 0 || queue.number != id) {
        return AEE_EFAILED;
    }
    if (packet == NULL && fault("callbacks")) {
        return AEE_EBADPARM;
    }
    queue.packet = packet;
    queue.context = context;
    queue.closed = false;
    if (packet != NULL && pthread_create(&queue.caller, NULL, call_back, NULL) != 0) {
        return AEE_ENOMEMORY;
    }
    *out = &queue;
    return 0;
}

AEEResult dspqueue_close(dspqueue_t q) {
    q->closed = true;
    if (q->packet != NULL) {
        pthread_join(q->caller, NULL);
    }
    close(q->socket);
    q->socket = -1;
    return 0;
}

AEEResult dspqueue_read_noblock(dspqueue_t q, uint32_t *flags, uint32_t most_buffers, uint32_t *buffers_read,
                                struct dspqueue_buffer *buffers, uint32_t most, uint32_t *bytes, uint8_t *message) {
    (void)flags;
    (void)most_buffers;
    (void)buffers;
    static long messages;
    wire_calls calls = 0;
    struct iovec parts[] = {{&calls, sizeof calls}, {message, most}};
    ssize_t got = recvmsg(q->socket, &(struct msghdr){.msg_iov = parts, .msg_iovlen = 2}, MSG_DONTWAIT);
    if (got < 0) {
        return errno == EAGAIN ? AEE_EWOULDBLOCK : AEE_EFAILED;
    }
    if (got < (ssize_t)sizeof calls) {
        return AEE_EFAILED;
    }
    got -= (ssize_t)sizeof calls;
    wait_for_calls(calls);
    if (++messages == fault("die")) {
        _exit(4);
    }
    struct tdm_request request;
    memcpy(&request, message, sizeof request);
    dirty = request.kind == TDM_RUN;
    if (request.kind == TDM_RUN && fault("lend")) {
        vtcm_wanted(7, NULL);
    }
    *buffers_read = 0;
    *bytes = (uint32_t)got;
    return 0;
}

AEEResult dspqueue_read(dspqueue_t q, uint32_t *flags, uint32_t most_buffers, uint32_t *buffers_read,
                        struct dspqueue_buffer *buffers, uint32_t most, uint32_t *bytes, uint8_t *message,
                        uint32_t timeout_us) {
    if (q->packet != NULL) {
        die("a queue with callbacks is waited on");
    }
    struct pollfd ready = {q->socket, POLLIN, 0};
    if (poll(&ready, 1, (int)(timeout_us / 1000)) == 0) {
        return AEE_EEXPIRED;
    }
    return dspqueue_read_noblock(q, flags, most_buffers, buffers_read, buffers, most, bytes, message);
}

AEEResult dspqueue_write(dspqueue_t q, uint32_t flags, uint32_t buffers_count, struct dspqueue_buffer *buffers,
                         uint32_t bytes, const uint8_t *message, uint32_t timeout_us) {
    (void)flags;
    (void)buffers_count;
    (void)buffers;
    (void)timeout_us;
    struct tdm_reply reply;
    memcpy(&reply, message, sizeof reply);
    if (reply.status == TDM_OK && dirty) {
        die("a batch is answered while caches hold what it wrote");
    }
    if (reply.status == TDM_OK && dirty && !(vectors_on && clocks_on)) {
        die("a batch ran without votes");
    }
    dirty = false;
    return send(q->socket, message, bytes, MSG_NOSIGNAL) == (ssize_t)bytes ? 0 : AEE_EFAILED;
}

/* --- calls ---------------------------------------------------------------------------------- */

static void invoke(const struct wire_call *call, struct wire_answer *answer) {
    uint32_t ins = call->scalars >> 16 & 0xff, outs = call->scalars >> 8 & 0xff;
    remote_arg arguments[4];
    memset(arguments, 0, sizeof arguments);
    uint32_t at = 0;
    static uint8_t in[WIRE_MOST];
    memcpy(in, call->in, sizeof in);
    for (uint32_t i = 0; i < ins && i < 2; i++) {
        arguments[i].buf.pv = in + at;
        arguments[i].buf.nLen = call->in_bytes[i];
        at += call->in_bytes[i];
    }
    if (outs == 1) {
        arguments[ins].buf.pv = answer->out;
        arguments[ins].buf.nLen = call->out_bytes;
    }
    if (call->scalars >> 4 & 0xf) {
        arguments[ins + outs].h64 = call->number;
    }
    answer->result = tandem_skel_handle_invoke(call->number, call->scalars, arguments);
    answer->handle = arguments[ins + outs].h64;
}

static void file(const struct wire_call *call, int local) {
    pthread_mutex_lock(&files_lock);
    int at = find_file(call->kind == WIRE_FILE ? 0 : call->number + 1);
    if (at < 0) {
        die("no such buffer, or too many");
    }
    if (call->kind == WIRE_FORGET) {
        close(files[at].file);
    }
    files[at].number = call->kind == WIRE_FILE ? call->number + 1 : 0;
    files[at].file = local;
    pthread_mutex_unlock(&files_lock);
}

int main(int argc, char **argv) {
    faults = argc > 1 ? argv[1] : "";
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    static struct wire_call call;
    int local;
    while (wire_receive(WIRE_CONTROL, &call, &local) > 0) {
        static struct wire_answer answer;
        memset(&answer, 0, sizeof answer);
        switch (call.kind) {
        case WIRE_INVOKE: invoke(&call, &answer); break;
        case WIRE_QUEUE:
            queue.socket = local;
            queue.number = call.number;
            break;
        default: file(&call, local); break;
        }
        pthread_mutex_lock(&files_lock);
        calls_done++;
        pthread_cond_broadcast(&call_done);
        pthread_mutex_unlock(&files_lock);
        if (call.kind == WIRE_INVOKE && send(WIRE_CONTROL, &answer, sizeof answer, MSG_NOSIGNAL) != (ssize_t)sizeof answer) {
            break;
        }
    }
    return 0;
}
