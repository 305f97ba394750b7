/* Requests in, replies out. One thread calls it; work is shared through the pool. Power votes
 * come from a thread of their own. */
#ifndef TANDEM_EXECUTOR_H
#define TANDEM_EXECUTOR_H

#include "include/packet.h"
#include "pool.h"
#include <stdbool.h>

/* A window of a shared file. */
struct map {
    uint8_t *memory; /* NULL: the number is free */
    uint64_t file_offset;
    uint32_t file;
    uint32_t bytes;
    bool read_only;
};

/* Whether a batch may run. */
enum power {
    POWER_RELEASED,
    POWER_HELD,
    POWER_RUNNING,  /* held, and a batch runs */
    POWER_CHANGING, /* votes are being set */
};

struct executor {
    struct pool pool;
    _Atomic uint32_t power; /* enum power */
    _Atomic bool unit;      /* votes are held for the matrix unit too */
    uint64_t batches;       /* run so far */
    struct map maps[TDM_MAPS];
    uint8_t *vtcm;
    uint32_t vtcm_bytes;
    /* The batch in hand, out of the other side's reach. */
    uint8_t batch[TDM_BATCH_BYTES] __attribute__((aligned(8)));
};

/* What is wrong with a request. */
struct fault {
    uint32_t status, op, operand;
    uint64_t value, limit;
};

/* False where there is no memory. `vtcm_bytes` of on-chip memory, a multiple of 4096. */
bool executor_start(struct executor *e, uint32_t workers, uint32_t vtcm_bytes);
void executor_stop(struct executor *e);

/* Answers one request; false after TDM_GOODBYE. */
bool executor_answer(struct executor *e, const struct tdm_request *request, struct tdm_reply *reply);

/* Sets votes, from another thread than executor_answer's. Refused while a batch runs: the
 * hardware would not wait for it to end, so whoever votes has to (the gate in daemon/src/power),
 * and here is seen whether it does. */
void executor_power(struct executor *e, const struct tdm_power *votes, struct tdm_power_reply *reply);

/* A packet of a batch: its parts, checked or about to be. */
struct packet {
    const struct tdm_packet *head;
    const struct tdm_tensor *tensors;
    const uint32_t *words;
};

/* check.c: everything that makes a packet safe to run: sizes, maps, bounds, shapes, overlaps,
 * indices (daemon/program/src/program.rs `Program::validate`). False and a fault otherwise. */
bool check_packet(const struct executor *e, const struct packet *p, struct fault *fault);

/* run.c: false and a fault where a checked packet needs more on-chip memory than there is. */
bool room_for_packet(const struct executor *e, const struct packet *p, struct fault *fault);

/* run.c: runs a packet that passed both. */
void run_packet(struct executor *e, const struct packet *p);

/* Memory of a checked tensor. */
static inline uint8_t *tensor_memory(const struct executor *e, const struct tdm_tensor *t) {
    return e->maps[t->map].memory + t->offset;
}

/* On-chip memory outside of products: an equal part a worker. */
static inline uint32_t worker_share(const struct executor *e) { return e->vtcm_bytes / e->pool.workers / 128 * 128; }
static inline uint8_t *worker_scratch(const struct executor *e, uint32_t worker) {
    return e->vtcm + (size_t)worker_share(e) * worker;
}

#endif
