/* A stand-in for the phone's libcdsprpc.so: the calls of FastRPC that hexagon/src/fastrpc makes,
 * on a process (platform.c) in place of the DSP. One session.
 *
 * What it runs and what goes wrong stands in the file `phone.conf` beside it, a word and its
 * value a line (several copies of this library in one process differ by that):
 *
 *   program FILE     the DSP's process            qemu FILE        what runs it, if anything
 *   arch 0x73        the DSP's version            faults LIST      platform.c's
 *   fail CALL=CODE   that call fails with CODE    refuse WHAT      see `refuses`
 */
#define _GNU_SOURCE
#include "wire.h"
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { EFAILED = 1, ENOMEMORY = 2, EEXPIRED = 0xc, EBADPARM = 0xe, EUNSUPPORTED = 0x14, ENOSUCHFILE = 0x45 };
#define DSP_EUNABLETOLOAD ((int)0x80000406)

extern char **environ;

typedef struct {
    void *pv;
    size_t nLen;
} remote_arg;

struct dspqueue {
    int socket, theirs;
};

static struct {
    char text[4096];
    pthread_mutex_t lock;
    bool unsigned_on;
    pid_t process;
    int control;
    wire_calls calls;
    pthread_t watcher;
    _Atomic bool closing;
    int (*notify)(void *, int, int, uint32_t);
    void *notify_context;
    struct dspqueue queue;
} phone = {.lock = PTHREAD_MUTEX_INITIALIZER, .control = -1, .queue = {-1, -1}};

__attribute__((constructor)) static void read_settings(void) {
    Dl_info own;
    char path[4096];
    if (dladdr((void *)&read_settings, &own) == 0 || strrchr(own.dli_fname, '/') == NULL) {
        return;
    }
    snprintf(path, sizeof path, "%.*s/phone.conf", (int)(strrchr(own.dli_fname, '/') - own.dli_fname), own.dli_fname);
    FILE *f = fopen(path, "re");
    if (f != NULL) {
        size_t got = fread(phone.text + 1, 1, sizeof phone.text - 2, f);
        phone.text[0] = '\n';
        phone.text[got + 1] = 0;
        fclose(f);
    }
}

/* The value of the setting, into `to`; false where there is none. */
static bool setting(const char *name, char *to, size_t room) {
    char key[64];
    snprintf(key, sizeof key, "\n%s ", name);
    const char *at = strstr(phone.text, key);
    if (at == NULL) {
        return false;
    }
    at += strlen(key);
    snprintf(to, room, "%.*s", (int)strcspn(at, "\n"), at);
    return true;
}

/* Code that this call shall fail with. */
static int fails(const char *call) {
    char key[64];
    snprintf(key, sizeof key, "\nfail %s=", call);
    const char *at = strstr(phone.text, key);
    return at == NULL ? 0 : (int)strtoul(at + strlen(key), NULL, 0);
}

/* unsigned: no unsigned PD; uri: no URIs made; version: the library's packets are of another
 * version; notice: nobody is told that the process died. */
static bool refuses(const char *what) {
    char key[64];
    snprintf(key, sizeof key, "\nrefuse %s\n", what);
    return strstr(phone.text, key) != NULL;
}

/* --- memory --------------------------------------------------------------------------------- */

#define BUFFERS 4096

static struct {
    void *memory;
    size_t bytes;
    int file;
    bool shown;
} buffers[BUFFERS];

static int find(const void *memory) {
    for (int i = 0; i < BUFFERS; i++) {
        if (buffers[i].memory == memory) {
            return i;
        }
    }
    return -1;
}

static void *allocate(int heap, uint32_t flags, size_t bytes) {
    if (heap != 25 || flags != 1 || fails("rpcmem_alloc")) {
        return NULL;
    }
    int file = memfd_create("tandem-phone", MFD_CLOEXEC);
    void *memory = MAP_FAILED;
    if (file >= 0 && ftruncate(file, (off_t)bytes) == 0) {
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    pthread_mutex_lock(&phone.lock);
    int at = memory == MAP_FAILED ? -1 : find(NULL);
    if (at >= 0) {
        buffers[at].memory = memory;
        buffers[at].bytes = bytes;
        buffers[at].file = file;
        buffers[at].shown = false;
    }
    pthread_mutex_unlock(&phone.lock);
    if (at < 0) {
        close(file);
        return NULL;
    }
    return memory;
}

/* Tests take functions away by name, so none calls another by name. */
EXPORT void *rpcmem_alloc2(int heap, uint32_t flags, size_t bytes) { return allocate(heap, flags, bytes); }

EXPORT void *rpcmem_alloc(int heap, uint32_t flags, int bytes) {
    return bytes < 0 ? NULL : allocate(heap, flags, (size_t)bytes);
}

EXPORT void rpcmem_free(void *memory) {
    pthread_mutex_lock(&phone.lock);
    int at = memory == NULL ? -1 : find(memory);
    if (at >= 0) {
        munmap(memory, buffers[at].bytes);
        close(buffers[at].file);
        buffers[at].memory = NULL;
    }
    pthread_mutex_unlock(&phone.lock);
}

EXPORT int rpcmem_to_fd(void *memory) {
    pthread_mutex_lock(&phone.lock);
    int at = find(memory), file = at < 0 ? -1 : buffers[at].file;
    pthread_mutex_unlock(&phone.lock);
    return file;
}

/* --- calls ---------------------------------------------------------------------------------- */

static int call(const struct wire_call *c, int file, struct wire_answer *answer) {
    pthread_mutex_lock(&phone.lock);
    int error = 0;
    /* As with a driver, only calls into the library wait for the DSP. */
    if (phone.control < 0 || wire_send(phone.control, c, file) != 0 ||
        (c->kind == WIRE_INVOKE && recv(phone.control, answer, sizeof *answer, 0) != (ssize_t)sizeof *answer)) {
        error = 0x68; /* connection reset */
    }
    phone.calls++;
    pthread_mutex_unlock(&phone.lock);
    return error;
}

EXPORT int fastrpc_mmap(int domain, int file, void *memory, int offset, size_t bytes, uint32_t flags) {
    struct wire_call c = {.kind = WIRE_FILE, .number = (uint64_t)file};
    struct wire_answer answer;
    (void)memory;
    if (domain != 3 || offset != 0 || bytes == 0 || flags != 3) {
        return EBADPARM;
    }
    int error = fails("fastrpc_mmap");
    return error != 0 ? error : call(&c, file, &answer);
}

EXPORT int fastrpc_munmap(int domain, int file, void *memory, size_t bytes) {
    struct wire_call c = {.kind = WIRE_FORGET, .number = (uint64_t)file};
    struct wire_answer answer;
    (void)memory;
    return domain != 3 || bytes == 0 ? EBADPARM : call(&c, -1, &answer);
}

struct capability {
    uint32_t domain, attribute, capability;
};

EXPORT int remote_handle_control(uint32_t request, void *data, uint32_t bytes) {
    struct capability *c = data;
    char arch[32];
    if (request != 2 || bytes != sizeof *c || c->domain != 3) {
        return EBADPARM;
    }
    switch (c->attribute) {
    case 0: c->capability = 1; break;
    case 1: c->capability = !refuses("unsigned"); break;
    case 6: c->capability = setting("arch", arch, sizeof arch) ? (uint32_t)strtoul(arch, NULL, 0) : 0x73; break;
    default: return EUNSUPPORTED;
    }
    return fails("remote_handle_control");
}

struct get_uri {
    char *domain_name;
    uint32_t domain_name_len, session_id;
    char *module_uri;
    uint32_t module_uri_len;
    char *uri;
    uint32_t uri_len;
};

struct notify {
    void *context;
    int domain;
    int (*fn)(void *, int, int, uint32_t);
};

EXPORT int remote_session_control(uint32_t request, void *data, uint32_t bytes) {
    switch (request) {
    case 2:
        if (bytes != 8 || ((int *)data)[0] != 3) {
            return EBADPARM;
        }
        phone.unsigned_on = ((int *)data)[1] == 1;
        return fails("unsigned");
    case 6:
        if (phone.control >= 0) {
            kill(phone.process, SIGKILL);
        }
        return bytes == 4 ? 0 : EBADPARM;
    case 11: {
        struct notify *n = data;
        if (bytes != sizeof *n || n->domain != 3) {
            return EBADPARM;
        }
        phone.notify = n->fn;
        phone.notify_context = n->context;
        return refuses("notice") ? EUNSUPPORTED : 0;
    }
    case 15: {
        struct get_uri *u = data;
        if (bytes != sizeof *u || u->session_id != 0 || refuses("uri")) {
            return EUNSUPPORTED;
        }
        int need = snprintf(u->uri, u->uri_len, "%.*s&_dom=%.*s&_session=0", (int)u->module_uri_len, u->module_uri,
                            (int)u->domain_name_len, u->domain_name);
        return need < (int)u->uri_len ? 0 : 0x4d;
    }
    default: return EUNSUPPORTED;
    }
}

/* The library has to be where FastRPC looks: a file in a folder that the environment names. */
static int find_library(const char *uri) {
    static const char scheme[] = "file:///";
    const char *folders = getenv("DSP_LIBRARY_PATH"), *name = uri + sizeof scheme - 1, *end = strchr(uri, '?');
    if (folders == NULL) {
        folders = getenv("ADSP_LIBRARY_PATH");
    }
    if (strncmp(uri, scheme, sizeof scheme - 1) != 0 || end == NULL || folders == NULL ||
        strncmp(end, "?tandem_skel_handle_invoke&_modver=1.0&_dom=cdsp", 48) != 0) {
        return EBADPARM;
    }
    for (; *folders != 0; folders += strcspn(folders, ";"), folders += *folders == ';') {
        char path[4096];
        snprintf(path, sizeof path, "%.*s/%.*s", (int)strcspn(folders, ";"), folders, (int)(end - name), name);
        FILE *f = fopen(path, "re");
        if (f != NULL) {
            fclose(f);
            return 0;
        }
    }
    return DSP_EUNABLETOLOAD;
}

static void *watch(void *unused) {
    (void)unused;
    int status;
    while (waitpid(phone.process, &status, 0) < 0 && errno == EINTR) {
    }
    if (!phone.closing && phone.notify != NULL && !refuses("notice")) {
        phone.notify(phone.notify_context, 3, 0, WIFSIGNALED(status) ? 2 : 3);
    }
    return NULL;
}

static int spawn(void) {
    char program[1024], qemu[1024], faults[256] = "";
    int pair[2];
    if (!setting("program", program, sizeof program) || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        return EFAILED;
    }
    setting("faults", faults, sizeof faults);
    bool emulated = setting("qemu", qemu, sizeof qemu);
    char *native[] = {program, faults, NULL};
    char *under_qemu[] = {qemu, "-cpu", "v73", program, faults, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pair[1], WIRE_CONTROL);
    int error = posix_spawn(&phone.process, emulated ? qemu : program, &actions, NULL,
                            emulated ? under_qemu : native, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(pair[1]);
    if (error != 0) {
        close(pair[0]);
        return EFAILED;
    }
    phone.control = pair[0];
    phone.calls = 0;
    phone.closing = false;
    if (pthread_create(&phone.watcher, NULL, watch, NULL) != 0) {
        abort();
    }
    return 0;
}

EXPORT int remote_handle64_open(const char *uri, uint64_t *handle) {
    int error = fails("remote_handle64_open");
    if (error == 0) {
        error = !phone.unsigned_on ? 0x81 : find_library(uri);
    }
    if (error == 0 && phone.control >= 0) {
        error = 0x20;
    }
    if (error != 0 || (error = spawn()) != 0) {
        return error;
    }
    struct wire_call c = {.kind = WIRE_INVOKE, .scalars = 0x00020001, .in_bytes = {4}};
    struct wire_answer answer;
    error = call(&c, -1, &answer);
    *handle = answer.handle;
    return error != 0 ? error : answer.result;
}

EXPORT int remote_handle64_invoke(uint64_t handle, uint32_t scalars, remote_arg *a) {
    struct wire_call c = {.kind = WIRE_INVOKE, .scalars = scalars, .number = handle};
    struct wire_answer answer;
    uint32_t method = scalars >> 24, ins = scalars >> 16 & 0xff, outs = scalars >> 8 & 0xff;
    char name[32];
    snprintf(name, sizeof name, "method%u", method);
    int error = fails(name);
    if (error != 0) {
        return error;
    }
    if (ins > 1 || outs > 1 || (ins == 1 && a[0].nLen > WIRE_MOST) || (outs == 1 && a[ins].nLen > WIRE_MOST)) {
        return EBADPARM;
    }
    if (ins == 1) {
        c.in_bytes[0] = (uint32_t)a[0].nLen;
        memcpy(c.in, a[0].pv, a[0].nLen);
    }
    if (method == 2 && refuses("version")) {
        c.in[8]++; /* tdm_start.version */
    }
    c.out_bytes = outs == 1 ? (uint32_t)a[ins].nLen : 0;
    error = call(&c, -1, &answer);
    if (error == 0 && answer.result == 0 && outs == 1) {
        memcpy(a[ins].pv, answer.out, a[ins].nLen);
    }
    return error != 0 ? error : answer.result;
}

EXPORT int remote_handle64_close(uint64_t handle) {
    struct wire_call c = {.kind = WIRE_INVOKE, .scalars = 0x01000010, .number = handle};
    struct wire_answer answer;
    phone.closing = true;
    int error = call(&c, -1, &answer);
    /* A process that does not answer is ended, as the kernel ends the DSP's. */
    kill(phone.process, SIGKILL);
    pthread_join(phone.watcher, NULL);
    pthread_mutex_lock(&phone.lock);
    close(phone.control);
    phone.control = -1;
    pthread_mutex_unlock(&phone.lock);
    return error;
}

EXPORT int remote_handle64_control(uint64_t handle, uint32_t request, void *data, uint32_t bytes) {
    (void)handle;
    (void)data;
    return request == 1 && bytes == 8 ? 0 : EUNSUPPORTED;
}

/* --- the queue ------------------------------------------------------------------------------ */

EXPORT int dspqueue_create(int domain, uint32_t flags, uint32_t request_bytes, uint32_t reply_bytes,
                           void (*packet)(struct dspqueue *, int, void *), void (*error)(struct dspqueue *, int, void *),
                           void *context, struct dspqueue **out) {
    (void)request_bytes;
    (void)reply_bytes;
    (void)error;
    (void)context;
    int pair[2];
    if (domain != 3 || flags != 0 || packet != NULL) {
        return EBADPARM;
    }
    if (fails("dspqueue_create")) {
        return fails("dspqueue_create");
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        return ENOMEMORY;
    }
    phone.queue = (struct dspqueue){pair[0], pair[1]};
    *out = &phone.queue;
    return 0;
}

EXPORT int dspqueue_export(struct dspqueue *q, uint64_t *id) {
    struct wire_call c = {.kind = WIRE_QUEUE, .number = 0x1234567890};
    struct wire_answer answer;
    int error = call(&c, q->theirs, &answer);
    close(q->theirs);
    q->theirs = -1;
    *id = c.number;
    return error;
}

EXPORT int dspqueue_close(struct dspqueue *q) {
    close(q->socket);
    if (q->theirs >= 0) {
        close(q->theirs);
    }
    *q = (struct dspqueue){-1, -1};
    return 0;
}

EXPORT int dspqueue_write(struct dspqueue *q, uint32_t flags, uint32_t buffer_count, void *list, uint32_t bytes,
                          const uint8_t *message, uint32_t timeout_us) {
    (void)flags;
    (void)buffer_count;
    (void)list;
    (void)timeout_us;
    int error = fails("dspqueue_write");
    if (error == 0) {
        /* Nobody may read any more: a queue in shared memory takes it all the same. */
        pthread_mutex_lock(&phone.lock);
        struct iovec parts[] = {{&phone.calls, sizeof phone.calls}, {(void *)message, bytes}};
        ssize_t sent = sendmsg(q->socket, &(struct msghdr){.msg_iov = parts, .msg_iovlen = 2}, MSG_NOSIGNAL);
        (void)sent;
        pthread_mutex_unlock(&phone.lock);
    }
    return error;
}

EXPORT int dspqueue_read(struct dspqueue *q, uint32_t *flags, uint32_t most_buffers, uint32_t *buffer_count, void *list,
                         uint32_t most, uint32_t *bytes, uint8_t *message, uint32_t timeout_us) {
    (void)flags;
    (void)most_buffers;
    (void)list;
    int error = fails("dspqueue_read");
    if (error != 0) {
        return error;
    }
    struct pollfd ready = {q->socket, POLLIN, 0};
    int got = poll(&ready, 1, (int)(timeout_us / 1000)) > 0 ? (int)recv(q->socket, message, most, 0) : -1;
    if (got <= 0) {
        if (got == 0) {
            usleep(timeout_us); /* a dead DSP says nothing */
        }
        return EEXPIRED;
    }
    *buffer_count = 0;
    *bytes = (uint32_t)got;
    return 0;
}
