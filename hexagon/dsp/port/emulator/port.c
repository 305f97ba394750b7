/* The port to a POSIX system: qemu-hexagon's guest, and the host under the sanitizers. */
#define _GNU_SOURCE
#include "../port.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
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
    if (s >> 60 == 0) {
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

/* Nobody else wants on-chip memory; coherence.c sees to the caches. */
bool port_before_batch(void) { return true; }
void port_after_batch(void) {}

/* Before and behind every view of a map lies a page that nobody may touch: a kernel that leaves
 * its map dies here instead of reading a neighbour. */
#define GUARD 0x10000u

static uint8_t *view(int file, uint64_t file_offset, uint32_t bytes, bool read_only) {
    int protection = read_only ? PROT_READ : PROT_READ | PROT_WRITE;
    const int anonymous = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    uint8_t *room = mmap(NULL, (size_t)bytes + 2 * GUARD, PROT_NONE, anonymous, -1, 0);
    if (room == MAP_FAILED) {
        return NULL;
    }
    void *memory = mmap(room + GUARD, bytes, protection, MAP_SHARED | MAP_FIXED, file, (off_t)file_offset);
    if (memory == MAP_FAILED) {
        munmap(room, (size_t)bytes + 2 * GUARD);
        return NULL;
    }
    return memory;
}

static void drop_view(uint8_t *memory, uint32_t bytes) { munmap(memory - GUARD, (size_t)bytes + 2 * GUARD); }

/* Caches are a file of their own, in the shared file's shape. The processor works on a view of
 * it, DMA and the host on the shared file: each sees what the other wrote only after port_clean
 * and port_invalidate, always, where the hardware's caches would show it by chance. Only memory
 * that nobody on this side writes is seen directly. Lines are exact to the byte: two writers of
 * one line are not modelled. */
struct window {
    uint8_t *processor, *memory;
    uint64_t file_offset;
    uint32_t bytes;
};

/* By the processor's address. Changed between batches only. */
static struct window windows[TDM_MAPS];
static uint32_t window_count;

static int cache_file(uint64_t end) {
    static int file = -1;
    static uint64_t size;
    if (file < 0) {
        file = memfd_create("tandem-cache", MFD_CLOEXEC);
    }
    if (file >= 0 && end > size) {
        if (ftruncate(file, (off_t)end) != 0) {
            return -1;
        }
        size = end;
    }
    return file;
}

/* The first window behind `address`. */
static uint32_t window_behind(const uint8_t *address) {
    uint32_t low = 0, high = window_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (windows[middle].processor <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The window that holds these bytes, or NULL. */
static const struct window *window_of(const void *address, size_t bytes) {
    uint32_t behind = window_behind(address);
    if (behind == 0) {
        return NULL;
    }
    const struct window *w = &windows[behind - 1];
    size_t at = (size_t)((const uint8_t *)address - w->processor);
    return at <= w->bytes && bytes <= w->bytes - at ? w : NULL;
}

void *port_map(uint32_t file, uint64_t file_offset, uint32_t bytes, bool read_only) {
    if (file != 0 || window_count == TDM_MAPS) {
        return NULL;
    }
    struct window w = {NULL, view(EMULATOR_MEMORY, file_offset, bytes, read_only), file_offset, bytes};
    if (w.memory == NULL) {
        return NULL;
    }
    w.processor = w.memory;
    if (!read_only) {
        int cache = cache_file(file_offset + bytes);
        w.processor = cache < 0 ? NULL : view(cache, file_offset, bytes, false);
        if (w.processor == NULL) {
            drop_view(w.memory, bytes);
            return NULL;
        }
    }
    uint32_t at = window_behind(w.processor);
    memmove(&windows[at + 1], &windows[at], (window_count - at) * sizeof w);
    windows[at] = w;
    window_count++;
    return w.processor;
}

void port_unmap(void *memory, uint32_t bytes) {
    uint32_t at = window_behind(memory) - 1;
    struct window w = windows[at];
    window_count--;
    memmove(&windows[at], &windows[at + 1], (window_count - at) * sizeof w);
    if (w.processor != w.memory) {
        /* The room is given back; where that is not possible it is only not used. */
        (void)fallocate(cache_file(0), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)w.file_offset, bytes);
        drop_view(w.processor, bytes);
    }
    drop_view(w.memory, bytes);
}

void port_clean(const void *memory, size_t bytes) {
    const struct window *w = window_of(memory, bytes);
    if (w != NULL && w->processor != w->memory) {
        memcpy(w->memory + ((const uint8_t *)memory - w->processor), memory, bytes);
    }
}

void port_invalidate(const void *memory, size_t bytes) {
    const struct window *w = window_of(memory, bytes);
    if (w != NULL && w->processor != w->memory) {
        size_t at = (size_t)((const uint8_t *)memory - w->processor);
        memcpy(w->processor + at, w->memory + at, bytes);
    }
}

void port_host_wrote(const void *memory, size_t bytes) { port_invalidate(memory, bytes); }

/* --- DMA ----------------------------------------------------------------------------------- */

#define ENGINE_DEPTH 16

/* Copies under way. They are done as late as possible: whoever forgets to wait is seen. */
static _Thread_local struct {
    struct port_copy copy[ENGINE_DEPTH];
    uint32_t first, count;
} engine;

static _Atomic uint64_t carried;

/* What DMA sees at the processor's address, for `bytes` from there on. */
static uint8_t *seen_by_dma(const void *address, size_t bytes, uint64_t *in_memory) {
    const uint8_t *a = address;
    if (vtcm != NULL && a >= (uint8_t *)vtcm && a <= (uint8_t *)vtcm + vtcm_bytes &&
        bytes <= (size_t)((uint8_t *)vtcm + vtcm_bytes - a)) {
        return (uint8_t *)address;
    }
    const struct window *w = window_of(address, bytes);
    if (w == NULL) {
        fprintf(stderr, "tandem-dsp: DMA of %zu bytes at %p, which is neither in a map nor on-chip memory\n", bytes,
                address);
        abort();
    }
    *in_memory += 1;
    return w->memory + (a - w->processor);
}

static void carry_oldest(void) {
    const struct port_copy *c = &engine.copy[engine.first];
    uint64_t in_memory = 0;
    const uint8_t *from = seen_by_dma(c->from, (size_t)c->from_stride * (c->rows - 1) + c->width, &in_memory);
    uint8_t *to = seen_by_dma(c->to, (size_t)c->to_stride * (c->rows - 1) + c->width, &in_memory);
    for (uint32_t r = 0; r < c->rows; r++) {
        memcpy(to + (size_t)r * c->to_stride, from + (size_t)r * c->from_stride, c->width);
    }
    atomic_fetch_add_explicit(&carried, in_memory * c->rows * c->width, memory_order_relaxed);
    engine.first = (engine.first + 1) % ENGINE_DEPTH;
    engine.count--;
}

void port_dma_wait(uint32_t left) {
    emulator_linger();
    while (engine.count > left) {
        carry_oldest();
    }
}

void port_dma_start(const struct port_copy *copy) {
    if (copy->rows == 0 || copy->width == 0) {
        return;
    }
    port_dma_wait(ENGINE_DEPTH - 1);
    engine.copy[(engine.first + engine.count++) % ENGINE_DEPTH] = *copy;
}

uint64_t port_dma_bytes(void) { return atomic_load_explicit(&carried, memory_order_relaxed); }

/* --- counters ------------------------------------------------------------------------------ */

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

/* The registers are 32 bits wide and start again after some seconds of work: one thread asks, and
 * what it is told goes on. More than 2^32 between two questions are not seen. */
void port_counters(uint64_t *instructions, uint64_t *vector_instructions) {
    static uint32_t last_instructions, last_vectors;
    static uint64_t all_instructions, all_vectors;
    uint32_t now = count_instructions(), vectors = count_vectors();
    all_instructions += now - last_instructions;
    all_vectors += vectors - last_vectors;
    last_instructions = now;
    last_vectors = vectors;
    *instructions = all_instructions;
    *vector_instructions = all_vectors;
}
#else
void port_counters(uint64_t *instructions, uint64_t *vector_instructions) {
    *instructions = *vector_instructions = 0;
}
#endif
