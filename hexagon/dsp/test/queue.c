/* The pool's queue: every task of every job runs exactly once.
 *
 * Compiled with TORN, workers read the job and take the index apart, as a public backend did;
 * the first test then has to fail. Exit status 0: all ran once. 1: some did not, and which. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

struct pool;
static void between(struct pool *pool);
#define POOL_BETWEEN(pool) between(pool)

#ifdef TORN
#define POOL_TAKE
struct taken;
#include "../pool.h"
static _Atomic uint32_t torn_next, torn_count;
static _Bool take(struct pool *pool, struct taken *out);
static void publish(struct pool *pool, uint32_t count);
#endif

#include "../pool.c"

#ifdef TORN
static _Bool take(struct pool *pool, struct taken *out) {
    /* The job ... */
    uint32_t count = atomic_load(&torn_count);
    if (atomic_load(&torn_next) >= count) {
        return false;
    }
    *out = (struct taken){pool->task, pool->context, 0, count};
    POOL_BETWEEN(pool);
    /* ... and, apart from it, the index. */
    out->index = atomic_fetch_add(&torn_next, 1);
    return out->index < out->count;
}

static void publish(struct pool *pool, uint32_t count) {
    (void)pool;
    atomic_store(&torn_count, count);
    atomic_store(&torn_next, 0);
}
#endif

#define TASKS 5
#define WAIT_STEPS 20000000

static _Atomic int runs[2][TASKS];
/* What the schedule of the first test waits for. */
static _Atomic int parked, second_published, late_ended, hammering;
static _Thread_local int is_worker;

static void between(struct pool *pool) {
    (void)pool;
    if (atomic_load(&hammering)) {
        if (rand() % 3 == 0) {
            sched_yield();
        }
        return;
    }
    /* A worker that has looked at the first job takes its index once the second is there. */
    if (is_worker && atomic_exchange(&parked, 1) == 0) {
        while (!atomic_load(&second_published)) {
            sched_yield();
        }
    }
}

static void count_run(void *context, uint32_t index, uint32_t worker) {
    (void)worker;
    atomic_fetch_add(&((_Atomic int *)context)[index], 1);
}

/* As `count_run`; task 0, of the publisher, holds the job open until a worker has looked. */
static void first_job(void *context, uint32_t index, uint32_t worker) {
    if (worker == 0 && index == 0) {
        for (int i = 0; i < WAIT_STEPS && !atomic_load(&parked); i++) {
            sched_yield();
        }
    }
    count_run(context, index, worker);
}

/* As `count_run`; task 0 lets the parked worker go and waits until it has taken an index. */
static void second_job(void *context, uint32_t index, uint32_t worker) {
    if (worker == 0 && atomic_exchange(&second_published, 1) == 0) {
        for (int i = 0; i < WAIT_STEPS && !atomic_load(&late_ended); i++) {
            sched_yield();
        }
    }
    count_run(context, index, worker);
}

static void *worker_thread(void *context) {
    is_worker = 1;
    struct pool_worker *w = context;
    struct taken t;
    /* One look at the first job, as `work` does it. */
    while (!atomic_load(&parked) && !atomic_load(&second_published)) {
        if (take(w->pool, &t)) {
            t.task(t.context, t.index, w->number);
            atomic_fetch_add(&w->pool->done, 1);
            port_wake();
        }
    }
    atomic_store(&late_ended, 1);
    return NULL;
}

static int check(const char *what, _Atomic int *counts, int n) {
    int bad = 0;
    for (int i = 0; i < n; i++) {
        int times = atomic_load(&counts[i]);
        if (times != 1) {
            printf("%s: task %d ran %d times\n", what, i, times);
            bad = 1;
        }
    }
    return bad;
}

/* A worker looks at a job, sleeps until the next one is published, and only then takes. */
static int a_worker_that_wakes_late_takes_from_the_job_that_is_there(void) {
    struct pool pool = {0};
    struct pool_worker w = {&pool, 1, NULL};
    pthread_t thread;
    pool.workers = 2; /* one of ours, driven by the schedule */
    if (pthread_create(&thread, NULL, worker_thread, &w) != 0) {
        return 2;
    }
    pool_run(&pool, TASKS, first_job, runs[0]);
    pool_run(&pool, TASKS, second_job, runs[1]);
    atomic_store(&second_published, 1);
    pthread_join(thread, NULL);
    return check("first job", runs[0], TASKS) | check("second job", runs[1], TASKS);
}

static int many_jobs_of_every_size_run_each_task_once(int jobs) {
    static _Atomic int counts[300];
    struct pool pool;
    atomic_store(&hammering, 1);
    pool_start(&pool, 4);
    int bad = 0;
    for (int j = 0; j < jobs && !bad; j++) {
        int n = j % 7 == 0 ? 300 : j % 11;
        for (int i = 0; i < n; i++) {
            atomic_store(&counts[i], 0);
        }
        pool_run(&pool, (uint32_t)n, count_run, counts);
        bad = check("hammered", counts, n);
    }
    pool_stop(&pool);
    return bad;
}

int main(int argc, char **argv) {
    int bad = a_worker_that_wakes_late_takes_from_the_job_that_is_there();
#ifndef TORN
    bad |= many_jobs_of_every_size_run_each_task_once(argc > 1 ? atoi(argv[1]) : 3000);
#else
    (void)argc;
    (void)argv;
    (void)many_jobs_of_every_size_run_each_task_once;
#endif
    return bad;
}
