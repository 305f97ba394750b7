#include "pool.h"
#include "port/port.h"
#include <stddef.h>

#define NEXT(s) ((uint32_t)((s) & POOL_TASKS))
#define COUNT(s) ((uint32_t)((s) >> 20 & POOL_TASKS))
#define SEQUENCE(s) ((s) >> 40)

/* An index and the job it belongs to. */
struct taken {
    pool_task *task;
    void *context;
    uint32_t index, count;
};

/* A test puts a schedule between the look at a job and the taking of an index. */
#ifndef POOL_BETWEEN
#define POOL_BETWEEN(pool) ((void)0)
#endif

#ifndef POOL_TAKE
/* Takes the next index of the current job, if there is one. */
static bool take(struct pool *pool, struct taken *out) {
    uint64_t s = atomic_load_explicit(&pool->snapshot, memory_order_acquire);
    while (NEXT(s) < COUNT(s)) {
        POOL_BETWEEN(pool);
        if (atomic_compare_exchange_weak_explicit(&pool->snapshot, &s, s + 1, memory_order_acq_rel,
                                                  memory_order_acquire)) {
            /* The job cannot end, nor change, before this index has run. */
            *out = (struct taken){pool->task, pool->context, NEXT(s), COUNT(s)};
            return true;
        }
    }
    return false;
}

static void publish(struct pool *pool, uint32_t count) {
    uint64_t s = atomic_load_explicit(&pool->snapshot, memory_order_relaxed);
    uint64_t next = (SEQUENCE(s) + 1) << 40 | (uint64_t)count << 20;
    atomic_store_explicit(&pool->snapshot, next, memory_order_release);
}
#endif

static void work(struct pool *pool, uint32_t worker) {
    struct taken t;
    while (take(pool, &t)) {
        t.task(t.context, t.index, worker);
        uint32_t before = atomic_fetch_add_explicit(&pool->done, 1, memory_order_acq_rel);
        if (before + 1 == t.count && worker != 0) {
            port_wake();
        }
    }
}

static void body(void *context) {
    struct pool_worker *self = context;
    struct pool *pool = self->pool;
    for (;;) {
        uint32_t bell = atomic_load_explicit(&pool->doorbell, memory_order_acquire);
        if (atomic_load_explicit(&pool->stop, memory_order_acquire)) {
            return;
        }
        work(pool, self->number);
        port_wait(&pool->doorbell, bell);
    }
}

void pool_start(struct pool *pool, uint32_t workers) {
    atomic_init(&pool->snapshot, 0);
    atomic_init(&pool->done, 0);
    atomic_init(&pool->doorbell, 0);
    atomic_init(&pool->stop, false);
    pool->workers = 1;
    while (pool->workers < workers && pool->workers < POOL_THREADS) {
        struct pool_worker *w = &pool->worker[pool->workers];
        w->pool = pool;
        w->number = pool->workers;
        w->thread = port_thread_start(body, w);
        if (w->thread == NULL) {
            break;
        }
        pool->workers++;
    }
}

static void ring(struct pool *pool) {
    atomic_fetch_add_explicit(&pool->doorbell, 1, memory_order_acq_rel);
    port_wake();
}

void pool_stop(struct pool *pool) {
    atomic_store_explicit(&pool->stop, true, memory_order_release);
    ring(pool);
    for (uint32_t i = 1; i < pool->workers; i++) {
        port_thread_join(pool->worker[i].thread);
    }
    pool->workers = 1;
}

void pool_run(struct pool *pool, uint32_t count, pool_task *task, void *context) {
    if (count == 1 || pool->workers == 1) {
        for (uint32_t i = 0; i < count; i++) {
            task(context, i, 0);
        }
        return;
    }
    pool->task = task;
    pool->context = context;
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    publish(pool, count);
    ring(pool);
    work(pool, 0);
    for (;;) {
        uint32_t done = atomic_load_explicit(&pool->done, memory_order_acquire);
        if (done == count) {
            return;
        }
        port_wait(&pool->done, done);
    }
}
