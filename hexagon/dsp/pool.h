/* Worker threads that share the tasks of one job at a time.
 *
 * A job is published as one 64-bit snapshot: its sequence number, its task count, the next
 * index to take. A worker takes an index by compare-and-swap of the whole snapshot, so an
 * index always belongs to the job the worker looked at. (A queue whose workers read index and
 * sequence apart can hand one task out twice: test/queue.c keeps that variant and shows it.)
 *
 *   bits 63..40 sequence │ 39..20 count │ 19..0 next index
 */
#ifndef TANDEM_POOL_H
#define TANDEM_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define POOL_THREADS 8
#define POOL_TASKS 0xfffff

typedef void pool_task(void *context, uint32_t index, uint32_t worker);

struct pool {
    _Atomic uint64_t snapshot;
    _Atomic uint32_t done;     /* tasks of the job that have ended */
    _Atomic uint32_t doorbell; /* changes with every job and at the stop */
    _Atomic bool stop;
    /* Written before a snapshot is published, read after an index of it was taken. */
    pool_task *task;
    void *context;
    uint32_t workers; /* the publishing thread is worker 0 */
    struct pool_worker {
        struct pool *pool;
        uint32_t number;
        struct port_thread *thread;
    } worker[POOL_THREADS];
};

/* Starts `workers` - 1 threads (fewer where the system refuses some). */
void pool_start(struct pool *pool, uint32_t workers);
void pool_stop(struct pool *pool);

/* Runs task(context, 0 .. count - 1, worker), each index once, and waits for all. */
void pool_run(struct pool *pool, uint32_t count, pool_task *task, void *context);

#endif
