/* The port to a POSIX system: qemu-hexagon's guest, and the host under the sanitizers. */
#define _GNU_SOURCE
#include "../port.h"
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "emulator.h"

/* --- threads that come late ---------------------------------------------------------------- */

static _Atomic uint64_t perturbation;

void emulator_perturb(uint64_t seed) { atomic_store(&perturbation, seed | 1); }

void emulator_linger(void) {
    uint64_t s = atomic_load_explicit(&perturbation, memory_order_relaxed);
    if (s == 0) {
        return;
    }
    /* Threads that lose each other's steps only make the moments more random. */
    s ^= s << 13;
    s ^= s >> 7;
    s ^= s << 17;
    atomic_store_explicit(&perturbation, s | 1, memory_order_relaxed);
    if (s >> 62 == 0) {
        usleep(s >> 32 & 255);
    } else if (s >> 62 == 1) {
        sched_yield();
    }
}

/* --- threads ------------------------------------------------------------------------------- */

struct port_thread {
    pthread_t thread;
    void (*body)(void *);
    void *context;
};

static void *enter(void *argument) {
    struct port_thread *t = argument;
    emulator_linger();
    t->body(t->context);
    return NULL;
}

struct port_thread *port_thread_start(void (*body)(void *), void *context) {
    struct port_thread *t = malloc(sizeof *t);
    if (t == NULL) {
        return NULL;
    }
    t->body = body;
    t->context = context;
    if (pthread_create(&t->thread, NULL, enter, t) != 0) {
        free(t);
        return NULL;
    }
    return t;
}

void port_thread_join(struct port_thread *t) {
    pthread_join(t->thread, NULL);
    free(t);
}

/* One lock for all sleepers: a word that changes before its sleeper holds the lock is seen, one
 * that changes after wakes it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

void port_wait(_Atomic uint32_t *word, uint32_t value) {
    emulator_linger();
    pthread_mutex_lock(&lock);
    if (atomic_load_explicit(word, memory_order_acquire) == value) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
}

void port_wake(void) {
    emulator_linger();
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* --- memory and power ---------------------------------------------------------------------- */

static void *vtcm;
static size_t vtcm_bytes;

void *port_vtcm(uint32_t bytes) {
    vtcm = aligned_alloc(4096, bytes);
    vtcm_bytes = vtcm == NULL ? 0 : bytes;
    return vtcm;
}

bool port_power(const struct tdm_power *votes) {
    emulator_linger();
    if (votes->clock == TDM_CORNER_OFF && vtcm != NULL) {
        memset(vtcm, EMULATOR_POISON, vtcm_bytes);
    }
    emulator_linger();
    return true;
}

/* Both sides see the same caches, and nobody else wants on-chip memory. */
bool port_before_batch(void) { return true; }
void port_after_batch(void) {}

/* Before and behind every map lies a page that nobody may touch: a kernel that leaves its map
 * dies here instead of reading a neighbour. */
#define GUARD 0x10000u

void *port_map(uint32_t file, uint64_t file_offset, uint32_t bytes, bool read_only) {
    if (file != 0) {
        return NULL;
    }
    int protection = read_only ? PROT_READ : PROT_READ | PROT_WRITE;
    uint8_t *room = mmap(NULL, (size_t)bytes + 2 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) {
        return NULL;
    }
    void *memory = mmap(room + GUARD, bytes, protection, MAP_SHARED | MAP_FIXED, EMULATOR_MEMORY, (off_t)file_offset);
    if (memory == MAP_FAILED) {
        munmap(room, (size_t)bytes + 2 * GUARD);
        return NULL;
    }
    return memory;
}

void port_unmap(void *memory, uint32_t bytes) { munmap((uint8_t *)memory - GUARD, (size_t)bytes + 2 * GUARD); }

#ifdef __hexagon__
/* qemu-hexagon counts what a thread runs and shows it in registers no hardware has; no
 * assembler has names for them. */
__asm__(".text\n"
        ".p2align 4\n"
        "count_instructions:\n"
        "    .word 0x6a15c000\n"
        "    jumpr r31\n"
        ".p2align 4\n"
        "count_vectors:\n"
        "    .word 0x6a16c000\n"
        "    jumpr r31\n");
uint32_t count_instructions(void);
uint32_t count_vectors(void);

void port_counters(uint64_t *instructions, uint64_t *vector_instructions) {
    *instructions = count_instructions();
    *vector_instructions = count_vectors();
}
#else
void port_counters(uint64_t *instructions, uint64_t *vector_instructions) {
    *instructions = *vector_instructions = 0;
}
#endif
