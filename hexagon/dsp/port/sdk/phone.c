/* The port to the phone. Compiled for v73 to v81 in CI and run there against a stand-in for
 * the platform (test/phone/platform.c); not run on hardware. */
#include "../port.h"
#include "platform.h"
#include "sdk.h"
#include <stddef.h>
#include <string.h>

/* --- threads -------------------------------------------------------------------------------- */

/* The pool's, and the one that reads the queue. -fstack-usage shows 12 KiB for the deepest
 * kernel with its callers. */
#define THREADS 9
#define STACK_BYTES 0x8000

struct port_thread {
    qurt_thread_t thread;
    void (*body)(void *);
    void *context;
    _Atomic bool taken;
};

static struct port_thread threads[THREADS];
static uint8_t stacks[THREADS][STACK_BYTES] __attribute__((aligned(128)));

static void enter(void *context) {
    struct port_thread *t = context;
    t->body(t->context);
    qurt_thread_exit(QURT_EOK);
}

struct port_thread *port_thread_start(void (*body)(void *), void *context) {
    for (uint32_t i = 0; i < THREADS; i++) {
        struct port_thread *t = &threads[i];
        if (atomic_exchange(&t->taken, true)) {
            continue;
        }
        t->body = body;
        t->context = context;
        qurt_thread_attr_t attributes;
        qurt_thread_attr_init(&attributes);
        qurt_thread_attr_set_name(&attributes, "tandem");
        qurt_thread_attr_set_stack_addr(&attributes, stacks[i]);
        qurt_thread_attr_set_stack_size(&attributes, STACK_BYTES);
        qurt_thread_attr_set_priority(&attributes, (unsigned short)qurt_thread_get_priority(qurt_thread_get_id()));
        qurt_thread_attr_set_detachstate(&attributes, QURT_THREAD_ATTR_CREATE_JOINABLE);
        if (qurt_thread_create(&t->thread, &attributes, enter, t) == QURT_EOK) {
            return t;
        }
        atomic_store(&t->taken, false);
        return NULL;
    }
    return NULL;
}

void port_thread_join(struct port_thread *t) {
    int status;
    qurt_thread_join(t->thread, &status);
    atomic_store(&t->taken, false);
}

/* One word for all sleepers. A sleeper reads it before it looks at its own word; a waker changes
 * the other's word first: either the sleeper sees that change, or the kernel sees this one. */
static _Atomic uint32_t wakes;

void port_wait(_Atomic uint32_t *word, uint32_t value) {
    uint32_t seen = atomic_load(&wakes);
    if (atomic_load(word) == value) {
        qurt_futex_wait((void *)&wakes, (int)seen);
    }
}

void port_wake(void) {
    atomic_fetch_add(&wakes, 1);
    qurt_futex_wake((void *)&wakes, THREADS);
}

uint32_t sdk_vector_units(void) {
    uint32_t units = (uint32_t)qurt_hvx_get_units() >> 8 & 0xff;
    return units == 0 ? 1 : units;
}

/* --- on-chip memory ------------------------------------------------------------------------- */

/* A second is longer than any other client's turn. */
#define VTCM_TIMEOUT_US 1000000

static struct {
    unsigned int context; /* 0: none */
    bool held;            /* ours to touch: only while votes are held */
    _Atomic bool wanted;  /* another process waits for it */
} vtcm;

static int wanted(unsigned int context, void *unused) {
    (void)context;
    (void)unused;
    atomic_store(&vtcm.wanted, true);
    return 0;
}

uint32_t sdk_vtcm_bytes(void) {
    unsigned int bytes = 0;
    return HAP_compute_res_query_VTCM(0, &bytes, NULL, NULL, NULL) == 0 ? bytes : 0;
}

/* A right to it in the cached mode: the address stays, the memory is taken and lent with the
 * votes. In one page, and with the matrix unit, which v81 gives out together with it only. */
void *port_vtcm(uint32_t bytes) {
    compute_res_attr_t attributes;
    void *memory = NULL;
    unsigned int got = 0;
    if (HAP_compute_res_attr_init(&attributes) != 0 || HAP_compute_res_attr_set_serialize(&attributes, 0) != 0 ||
        HAP_compute_res_attr_set_cache_mode(&attributes, 1) != 0 ||
        HAP_compute_res_attr_set_vtcm_param_v2(&attributes, bytes, 0, bytes) != 0 ||
        HAP_compute_res_attr_set_release_callback(&attributes, wanted, NULL) != 0) {
        return NULL;
    }
    HAP_compute_res_attr_set_hmx_param(&attributes, 1);
    vtcm.context = HAP_compute_res_acquire(&attributes, VTCM_TIMEOUT_US);
    if (vtcm.context == 0) {
        return NULL;
    }
    if (HAP_compute_res_attr_get_vtcm_ptr_v2(&attributes, &memory, &got) != 0 || memory == NULL || got < bytes) {
        sdk_vtcm_return();
        return NULL;
    }
    return memory;
}

static bool take(void) {
    if (!vtcm.held && HAP_compute_res_acquire_cached(vtcm.context, VTCM_TIMEOUT_US) == 0) {
        vtcm.held = true;
    }
    return vtcm.held;
}

static void lend(void) {
    if (vtcm.held) {
        HAP_compute_res_release_cached(vtcm.context);
        vtcm.held = false;
    }
    atomic_store(&vtcm.wanted, false);
}

void sdk_vtcm_return(void) {
    if (vtcm.context != 0) {
        lend();
        HAP_compute_res_release(vtcm.context);
        vtcm.context = 0;
    }
}

#ifdef TANDEM_HMX /* without it kernels/hmx_soft.c stands in for the unit */
#include "../../kernels/tile.h"

bool port_tiles_begin(void) { return HAP_compute_res_hmx_lock(vtcm.context) == 0; }
void port_tiles_end(void) { HAP_compute_res_hmx_unlock(vtcm.context); }
#endif

/* --- memory of both sides ------------------------------------------------------------------- */

/* Maps are at most 1 GiB (TDM_MAP_BYTES) and the host keeps those of a session below 2 GiB
 * together, so v73's call with its signed size serves as well. */
void *port_map(uint32_t file, uint64_t file_offset, uint32_t bytes, bool read_only) {
    int protection = read_only ? HAP_PROT_READ : HAP_PROT_READ | HAP_PROT_WRITE;
    if (file_offset != 0) {
        return NULL; /* here every buffer is a file and is mapped whole */
    }
#if defined(__HEXAGON_ARCH__) && __HEXAGON_ARCH__ <= 73
    void *memory = HAP_mmap(NULL, (int)bytes, protection, 0, (int)file, 0);
#else
    void *memory = HAP_mmap2(NULL, bytes, protection, 0, (int)file, 0);
#endif
    return memory == (void *)-1 ? NULL : memory;
}

void port_unmap(void *memory, uint32_t bytes) {
#if defined(__HEXAGON_ARCH__) && __HEXAGON_ARCH__ <= 73
    HAP_munmap(memory, (int)bytes);
#else
    HAP_munmap2(memory, bytes);
#endif
}

/* Copies go through the caches here, not past them (user DMA is not used yet), so between packets
 * there is nothing to clean or to drop; port_after_batch does both for the host's sake. Dropping
 * lines after such a copy would lose what it wrote. */
void port_clean(const void *memory, size_t bytes) {
    (void)memory;
    (void)bytes;
}

void port_invalidate(const void *memory, size_t bytes) {
    (void)memory;
    (void)bytes;
}

void port_host_wrote(const void *memory, size_t bytes) {
    (void)memory;
    (void)bytes;
}

static _Atomic uint64_t carried;

void port_dma_start(const struct port_copy *c) {
    for (uint32_t row = 0; row < c->rows; row++) {
        memcpy((uint8_t *)c->to + (size_t)row * c->to_stride, (const uint8_t *)c->from + (size_t)row * c->from_stride,
               c->width);
    }
    atomic_fetch_add_explicit(&carried, (uint64_t)c->rows * c->width, memory_order_relaxed);
}

void port_dma_wait(uint32_t left) { (void)left; }

uint64_t port_dma_bytes(void) { return atomic_load_explicit(&carried, memory_order_relaxed); }

bool port_before_batch(void) { return take(); }

/* The DSP's second-level cache is not seen by the CPU and does not see what the CPU writes, so
 * it is written out and forgotten, all of it: tensors of a batch touch more than it holds. */
void port_after_batch(void) {
    qurt_mem_cache_clean(0, 0, QURT_MEM_CACHE_FLUSH_INVALIDATE_ALL, QURT_MEM_DCACHE);
    if (atomic_load(&vtcm.wanted)) {
        lend();
    }
}

/* --- votes ---------------------------------------------------------------------------------- */

/* What the platform counts our votes under. */
static int client;
static _Atomic bool powered;

bool sdk_powered(void) { return atomic_load(&powered); }

int sdk_enlist(void) {
    HAP_power_request_t request = {.type = HAP_power_set_apptype};
    request.apptype = HAP_POWER_COMPUTE_CLIENT_CLASS;
    return HAP_power_set(&client, &request);
}

static uint8_t corner(uint32_t asked) {
    static const uint8_t corners[] = {
        [TDM_CORNER_OFF] = HAP_DCVS_VCORNER_DISABLE,
        [TDM_CORNER_LOW] = HAP_DCVS_VCORNER_SVS2,
        [TDM_CORNER_NOMINAL] = HAP_DCVS_VCORNER_NOM,
        [TDM_CORNER_MAX] = HAP_DCVS_VCORNER_MAX,
    };
    return corners[asked];
}

/* Clocks, bus, sleep. Memory is kept in its fast mode by a bus vote that may not be lowered. */
static bool vote_clocks(const struct tdm_power *v) {
    HAP_power_request_t request = {.type = HAP_power_set_DCVS_v3};
    request.dcvs_v3.set_dcvs_enable = 1;
    request.dcvs_v3.dcvs_enable = 0;
    request.dcvs_v3.set_core_params = 1;
    request.dcvs_v3.core_params.target_corner = corner(v->clock);
    request.dcvs_v3.core_params.min_corner = corner(v->clock);
    request.dcvs_v3.core_params.max_corner = corner(v->clock);
    request.dcvs_v3.set_bus_params = 1;
    request.dcvs_v3.bus_params.target_corner = corner(v->bus);
    request.dcvs_v3.bus_params.min_corner = v->ddr ? corner(v->bus) : HAP_DCVS_VCORNER_DISABLE;
    request.dcvs_v3.bus_params.max_corner = corner(v->bus);
    request.dcvs_v3.set_sleep_disable = 1;
    request.dcvs_v3.sleep_disable = !v->sleep; /* 1: no low-power mode, 0: all of them */
    return HAP_power_set(&client, &request) == 0;
}

static bool vote_vectors(bool on) {
    HAP_power_request_t request = {.type = HAP_power_set_HVX};
    request.hvx.power_up = on;
    return HAP_power_set(&client, &request) == 0;
}

static bool vote_matrices(bool on) {
#if defined(__HEXAGON_ARCH__) && __HEXAGON_ARCH__ < 75
    HAP_power_request_t request = {.type = HAP_power_set_HMX};
    request.hmx.power_up = on;
#else
    HAP_power_request_t request = {.type = HAP_power_set_HMX_v2};
    request.hmx_v2.set_power = 1;
    request.hmx_v2.power_up = on;
    request.hmx_v2.set_clock = 1;
    request.hmx_v2.target_corner = on ? HAP_DCVS_EXP_VCORNER_MAX : HAP_DCVS_EXP_VCORNER_DISABLE;
    request.hmx_v2.min_corner = request.hmx_v2.target_corner;
    request.hmx_v2.max_corner = request.hmx_v2.target_corner;
    request.hmx_v2.perf_mode = HAP_CLK_PERF_HIGH;
#endif
    return HAP_power_set(&client, &request) == 0;
}

bool port_power(const struct tdm_power *votes) {
    bool on = votes->clock != TDM_CORNER_OFF;
    if (!on) {
        atomic_store(&powered, false);
        lend();
        /* All are let go of, whatever the platform says to one of them. */
        bool matrices = vote_matrices(false), vectors = vote_vectors(false);
        return vote_clocks(votes) && matrices && vectors;
    }
    if (!vote_clocks(votes) || !vote_vectors(true) || !vote_matrices(votes->hmx) || !take()) {
        /* What was granted of it would be held by nobody who knows. */
        port_power(&(struct tdm_power){.clock = TDM_CORNER_OFF, .sleep = 1});
        return false;
    }
    atomic_store(&powered, true);
    return true;
}

/* Nobody counts on hardware. */
void port_counters(uint64_t *instructions, uint64_t *vector_instructions) {
    *instructions = *vector_instructions = 0;
}
