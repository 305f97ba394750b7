/* The library's entry: FastRPC's calls, and the thread that answers the queue.
 *
 * FastRPC -> tandem_skel_handle_invoke -> open, start, power, stop, close   (include/methods.h)
 * dspqueue -> serve -> executor_answer                                      (include/packet.h)
 */
#include "../../executor.h"
#include "../../include/methods.h"
#include "../port.h"
#include "platform.h"
#include "sdk.h"
#include <string.h>

/* How long the thread waits for a message before it looks whether it shall stop. Longer while
 * nothing is voted for, so that waiting itself does not keep the DSP awake. */
#define WAIT_US 50000
#define RELAXED_US 500000
/* A reply finds room at once, or nobody reads any more. */
#define REPLY_US 1000000

/* FastRPC: `method` << 24 | buffers in << 16 | buffers out << 8 | handles in << 4 | handles out */
#define SCALARS(method, in, out, handles_in, handles_out) \
    ((uint32_t)(method) << 24 | (in) << 16 | (out) << 8 | (handles_in) << 4 | (handles_out))

/* The one session of this process on the DSP. */
static struct {
    struct executor executor;
    _Atomic bool open;
    bool started;
    dspqueue_t queue;
    bool called_back; /* the queue tells of messages by callback, and must not be waited on */
    struct port_thread *server;
    _Atomic bool stop;
    _Atomic uint32_t rung;
} session;

static void ring(void) {
    atomic_fetch_add(&session.rung, 1);
    port_wake();
}

static void on_packet(dspqueue_t queue, AEEResult error, void *context) {
    (void)queue;
    (void)error;
    (void)context;
    ring();
}

/* The next message, waited for; AEE_EEXPIRED where there is none yet. */
static int next(struct tdm_request *request, uint32_t *bytes) {
    uint32_t flags = 0, buffers = 0;
    if (!session.called_back) {
        return dspqueue_read(session.queue, &flags, 0, &buffers, NULL, sizeof *request, bytes, (uint8_t *)request,
                             sdk_powered() ? WAIT_US : RELAXED_US);
    }
    uint32_t rung = atomic_load(&session.rung);
    int error = dspqueue_read_noblock(session.queue, &flags, 0, &buffers, NULL, sizeof *request, bytes,
                                      (uint8_t *)request);
    if (error == AEE_EWOULDBLOCK) {
        port_wait(&session.rung, rung);
        return AEE_EEXPIRED;
    }
    return error;
}

static void serve(void *unused) {
    (void)unused;
    struct tdm_request request;
    struct tdm_reply reply;
    bool goes_on = true;
    while (goes_on && !atomic_load(&session.stop)) {
        uint32_t bytes = 0;
        int error = next(&request, &bytes);
        if (error == AEE_EEXPIRED) {
            continue;
        }
        if (error != 0) {
            return; /* the queue is gone, and with it the host */
        }
        if (bytes != sizeof request) {
            memset(&request, 0, sizeof request); /* answered as what it is: not a request */
        }
        goes_on = executor_answer(&session.executor, &request, &reply);
        if (dspqueue_write(session.queue, 0, 0, NULL, sizeof reply, (const uint8_t *)&reply, REPLY_US) != 0) {
            return;
        }
    }
}

static bool fail(struct tdm_started *out, uint32_t at, int code) {
    out->at = at;
    out->code = (uint32_t)code;
    return false;
}

static bool import(const struct tdm_start *in, struct tdm_started *out) {
    session.called_back = false;
    int error = dspqueue_import(in->queue, NULL, NULL, NULL, &session.queue);
    if (error == AEE_EBADPARM) {
        /* An older platform wants to be given callbacks. */
        session.called_back = true;
        error = dspqueue_import(in->queue, on_packet, on_packet, NULL, &session.queue);
    }
    return error == 0 || fail(out, TDM_AT_QUEUE, error);
}

static bool start(const struct tdm_start *in, struct tdm_started *out) {
    *out = (struct tdm_started){.version = TDM_VERSION};
#ifdef __HEXAGON_ARCH__
    out->arch = __HEXAGON_ARCH__;
#endif
#ifndef TANDEM_HVX_FLOAT
    out->exact = 1;
#endif
    if (in->version != TDM_VERSION) {
        return fail(out, TDM_AT_VERSION, TDM_VERSION);
    }
    if (session.started) {
        return fail(out, TDM_AT_STATE, 0);
    }
    int error = sdk_enlist();
    if (error != 0) {
        return fail(out, TDM_AT_CLASS, error);
    }
    uint32_t there = sdk_vtcm_bytes(), vtcm = in->vtcm_bytes == 0 ? there : in->vtcm_bytes;
    uint32_t workers = in->workers == 0 ? sdk_vector_units() : in->workers;
    workers = workers < POOL_THREADS ? workers : POOL_THREADS;
    if (vtcm < 0x10000 || vtcm % 4096 != 0 || !executor_start(&session.executor, workers, vtcm)) {
        return fail(out, TDM_AT_VTCM, (int)there);
    }
    atomic_store(&session.stop, false);
    if (!import(in, out)) {
        executor_stop(&session.executor);
        sdk_vtcm_return();
        return false;
    }
    session.server = port_thread_start(serve, NULL);
    if (session.server == NULL) {
        dspqueue_close(session.queue);
        executor_stop(&session.executor);
        sdk_vtcm_return();
        return fail(out, TDM_AT_THREAD, 0);
    }
    session.started = true;
    out->workers = session.executor.pool.workers;
    out->vtcm_bytes = vtcm;
    return true;
}

static void stop(void) {
    if (!session.started) {
        return;
    }
    atomic_store(&session.stop, true);
    ring();
    port_thread_join(session.server);
    dspqueue_close(session.queue);
    executor_stop(&session.executor);
    port_power(&(struct tdm_power){.clock = TDM_CORNER_OFF, .sleep = 1});
    sdk_vtcm_return();
    session.started = false;
}

static bool holds(const remote_arg *a, size_t bytes) { return a->buf.pv != NULL && a->buf.nLen == bytes; }

/* The platform's buffers may lie anywhere: copied in and out. */
static int call_start(remote_arg *a) {
    struct tdm_start in;
    struct tdm_started out;
    if (!holds(&a[0], sizeof in) || !holds(&a[1], sizeof out)) {
        return AEE_EBADPARM;
    }
    memcpy(&in, a[0].buf.pv, sizeof in);
    start(&in, &out);
    memcpy(a[1].buf.pv, &out, sizeof out);
    return AEE_SUCCESS;
}

static int call_power(remote_arg *a) {
    struct tdm_power in;
    struct tdm_power_reply out;
    if (!session.started || !holds(&a[0], sizeof in) || !holds(&a[1], sizeof out)) {
        return AEE_EBADPARM;
    }
    memcpy(&in, a[0].buf.pv, sizeof in);
    executor_power(&session.executor, &in, &out);
    memcpy(a[1].buf.pv, &out, sizeof out);
    return AEE_SUCCESS;
}

__attribute__((visibility("default"))) int tandem_skel_handle_invoke(remote_handle64 handle, uint32_t scalars,
                                                                     remote_arg *arguments);

int tandem_skel_handle_invoke(remote_handle64 handle, uint32_t scalars, remote_arg *arguments) {
    (void)handle;
    switch (scalars) {
    case SCALARS(TDM_METHOD_OPEN, 2, 0, 0, 1):
        if (atomic_exchange(&session.open, true)) {
            return AEE_EITEMBUSY;
        }
        arguments[2].h64 = 1;
        return AEE_SUCCESS;
    case SCALARS(TDM_METHOD_CLOSE, 0, 0, 1, 0):
        stop();
        atomic_store(&session.open, false);
        return AEE_SUCCESS;
    case SCALARS(TDM_METHOD_START, 1, 1, 0, 0): return call_start(arguments);
    case SCALARS(TDM_METHOD_STOP, 0, 0, 0, 0): stop(); return AEE_SUCCESS;
    case SCALARS(TDM_METHOD_POWER, 1, 1, 0, 0): return call_power(arguments);
    default: return AEE_EUNSUPPORTED;
    }
}
