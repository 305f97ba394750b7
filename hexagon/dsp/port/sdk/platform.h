/* What the phone's platform gives the library: QuRT, the HAP calls, FastRPC and its queue.
 *
 * Built with the vendor's SDK (TANDEM_SDK), these are the SDK's own headers. Built with the
 * open toolchain there are none, so the few calls we make are declared here with the same
 * names: everything an open build leaves undefined is declared in this file
 * (`cargo xtask hexagon` checks that), and nothing else differs between the two builds.
 *
 * The platform's compiler makes enumerations as small as their values allow: fields that are
 * enumerations there have a byte or two here. */
#ifndef TANDEM_PLATFORM_H
#define TANDEM_PLATFORM_H

#ifdef TANDEM_SDK

#include <AEEStdErr.h>
#include <HAP_compute_res.h>
#include <HAP_mem.h>
#include <HAP_power.h>
#include <dspqueue.h>
#include <qurt.h>
#include <remote.h>

#else

#include <stddef.h>
#include <stdint.h>

/* --- error codes (AEEStdErr.h) -------------------------------------------------------------- */

typedef int AEEResult;
#ifdef __hexagon__
#define AEE_EOFFSET ((int)0x80000400)
#else
#define AEE_EOFFSET 0
#endif
#define AEE_SUCCESS 0
#define AEE_EFAILED (AEE_EOFFSET + 0x01)
#define AEE_ENOMEMORY (AEE_EOFFSET + 0x02)
#define AEE_EEXPIRED (AEE_EOFFSET + 0x0c)
#define AEE_EBADPARM (AEE_EOFFSET + 0x0e)
#define AEE_EUNSUPPORTED (AEE_EOFFSET + 0x14)
#define AEE_EITEMBUSY (AEE_EOFFSET + 0x20)
#define AEE_EWOULDBLOCK 516

/* --- calls (remote.h) ----------------------------------------------------------------------- */

typedef uint64_t remote_handle64;
typedef struct {
    void *pv;
    size_t nLen;
} remote_buf;
typedef union {
    remote_buf buf;
    remote_handle64 h64;
} remote_arg;

/* --- queue (dspqueue.h) --------------------------------------------------------------------- */

typedef struct dspqueue *dspqueue_t;
typedef void (*dspqueue_callback_t)(dspqueue_t queue, AEEResult error, void *context);
struct dspqueue_buffer;

AEEResult dspqueue_import(uint64_t id, dspqueue_callback_t packet, dspqueue_callback_t error, void *context,
                          dspqueue_t *queue);
AEEResult dspqueue_close(dspqueue_t queue);
AEEResult dspqueue_read(dspqueue_t queue, uint32_t *flags, uint32_t most_buffers, uint32_t *buffers_read,
                        struct dspqueue_buffer *buffers, uint32_t most_bytes, uint32_t *bytes, uint8_t *message,
                        uint32_t timeout_us);
AEEResult dspqueue_read_noblock(dspqueue_t queue, uint32_t *flags, uint32_t most_buffers, uint32_t *buffers_read,
                                struct dspqueue_buffer *buffers, uint32_t most_bytes, uint32_t *bytes,
                                uint8_t *message);
AEEResult dspqueue_write(dspqueue_t queue, uint32_t flags, uint32_t buffers_count, struct dspqueue_buffer *buffers,
                         uint32_t bytes, const uint8_t *message, uint32_t timeout_us);

/* --- memory (HAP_mem.h) --------------------------------------------------------------------- */

#define HAP_PROT_READ 1
#define HAP_PROT_WRITE 2

void *HAP_mmap(void *address, int bytes, int protection, int flags, int file, long offset);
int HAP_munmap(void *address, int bytes);
void *HAP_mmap2(void *address, size_t bytes, int protection, int flags, int file, long offset);
int HAP_munmap2(void *address, size_t bytes);

/* --- on-chip memory and the matrix unit (HAP_compute_res.h) --------------------------------- */

/* Larger than the SDK's, which is opaque: the platform fills what it knows. */
typedef struct {
    uint64_t opaque[32];
} compute_res_attr_t;
struct compute_res_vtcm_page;

int compute_resource_attr_init(compute_res_attr_t *attributes);
int compute_resource_attr_set_serialize(compute_res_attr_t *attributes, unsigned char on);
int compute_resource_attr_set_cache_mode(compute_res_attr_t *attributes, unsigned char on);
int compute_resource_attr_set_hmx_param(compute_res_attr_t *attributes, unsigned char on);
int compute_resource_attr_set_vtcm_param_v2(compute_res_attr_t *attributes, unsigned int bytes, unsigned int least_page,
                                            unsigned int least_bytes);
int compute_resource_attr_set_release_callback(compute_res_attr_t *attributes, int (*callback)(unsigned int, void *),
                                               void *context);
int compute_resource_attr_get_vtcm_ptr_v2(compute_res_attr_t *attributes, void **memory, unsigned int *bytes);
int compute_resource_query_VTCM(unsigned int application, unsigned int *bytes, struct compute_res_vtcm_page *layout,
                                unsigned int *free_bytes, struct compute_res_vtcm_page *free_layout);
unsigned int compute_resource_acquire(compute_res_attr_t *attributes, unsigned int timeout_us);
int compute_resource_release(unsigned int context);
int compute_resource_acquire_cached(unsigned int context, unsigned int timeout_us);
int compute_resource_release_cached(unsigned int context);
int compute_resource_hmx_lock(unsigned int context);
int compute_resource_hmx_unlock(unsigned int context);

/* The SDK's names for them are functions of its header. */
#define HAP_compute_res_attr_init compute_resource_attr_init
#define HAP_compute_res_attr_set_serialize compute_resource_attr_set_serialize
#define HAP_compute_res_attr_set_cache_mode compute_resource_attr_set_cache_mode
#define HAP_compute_res_attr_set_hmx_param compute_resource_attr_set_hmx_param
#define HAP_compute_res_attr_set_vtcm_param_v2 compute_resource_attr_set_vtcm_param_v2
#define HAP_compute_res_attr_set_release_callback compute_resource_attr_set_release_callback
#define HAP_compute_res_attr_get_vtcm_ptr_v2 compute_resource_attr_get_vtcm_ptr_v2
#define HAP_compute_res_query_VTCM compute_resource_query_VTCM
#define HAP_compute_res_acquire compute_resource_acquire
#define HAP_compute_res_release compute_resource_release
#define HAP_compute_res_acquire_cached compute_resource_acquire_cached
#define HAP_compute_res_release_cached compute_resource_release_cached
#define HAP_compute_res_hmx_lock compute_resource_hmx_lock
#define HAP_compute_res_hmx_unlock compute_resource_hmx_unlock

/* --- votes (HAP_power.h) -------------------------------------------------------------------- */

#define HAP_power_set_HVX 2
#define HAP_power_set_apptype 3
#define HAP_power_set_DCVS_v3 12
#define HAP_power_set_HMX 13
#define HAP_power_set_HMX_v2 14
#define HAP_POWER_COMPUTE_CLIENT_CLASS 4
#define HAP_DCVS_VCORNER_DISABLE 0
#define HAP_DCVS_VCORNER_SVS2 1
#define HAP_DCVS_VCORNER_NOM 4
#define HAP_DCVS_VCORNER_MAX 255
#define HAP_DCVS_EXP_VCORNER_DISABLE 0
#define HAP_DCVS_EXP_VCORNER_MAX 0xffff
#define HAP_CLK_PERF_HIGH 0

typedef struct {
    uint8_t target_corner, min_corner, max_corner;
    uint32_t param1, param2, param3;
} HAP_core_params_t;

typedef struct {
    uint8_t set_dcvs_enable, dcvs_enable, dcvs_option, set_latency;
    uint32_t latency;
    uint8_t set_core_params;
    HAP_core_params_t core_params;
    uint8_t set_bus_params;
    HAP_core_params_t bus_params;
    uint8_t set_dcvs_v3_params;
    uint32_t dcvs_v3_params[6];
    uint8_t set_sleep_disable, sleep_disable;
} HAP_power_dcvs_v3_payload;

typedef struct {
    uint8_t set_power, power_up, set_clock, pick_default;
    uint16_t target_corner, min_corner, max_corner;
    uint8_t perf_mode;
    uint32_t freq_mhz, floor_freq_mhz, param1, param2, param3;
} HAP_power_hmx_payload_v2;

typedef struct {
    uint8_t power_up;
} HAP_power_hvx_payload;

typedef struct {
    uint8_t type;
    union {
        uint8_t apptype;
        HAP_power_dcvs_v3_payload dcvs_v3;
        HAP_power_hvx_payload hvx, hmx;
        HAP_power_hmx_payload_v2 hmx_v2;
        uint64_t largest[14];
    };
} HAP_power_request_t;

_Static_assert(sizeof(HAP_core_params_t) == 16, "corners");
_Static_assert(sizeof(HAP_power_dcvs_v3_payload) == 80, "DCVS");
_Static_assert(sizeof(HAP_power_hmx_payload_v2) == 32, "HMX");
_Static_assert(offsetof(HAP_power_request_t, dcvs_v3) == 8 && sizeof(HAP_power_request_t) == 120, "request");

int HAP_power_set(void *client, HAP_power_request_t *request);

/* --- threads and caches (qurt.h) ------------------------------------------------------------ */

typedef unsigned int qurt_thread_t;
typedef struct {
    char name[16];
    unsigned char tcb_partition, stid;
    unsigned short priority;
    unsigned char flags, bus_priority;
    unsigned short timetest_id;
    unsigned int stack_size;
    void *stack_addr;
    unsigned short detach_state;
    uint64_t later[4]; /* fields of later versions: zero means what it did before them */
} qurt_thread_attr_t;

#define QURT_EOK 0
#define QURT_THREAD_ATTR_CREATE_JOINABLE 1

static inline void qurt_thread_attr_init(qurt_thread_attr_t *a) {
    *a = (qurt_thread_attr_t){.priority = 254, .bus_priority = 255, .timetest_id = (unsigned short)-2};
}
static inline void qurt_thread_attr_set_name(qurt_thread_attr_t *a, const char *name) {
    for (int i = 0; i < 15 && name[i] != 0; i++) {
        a->name[i] = name[i];
    }
}
static inline void qurt_thread_attr_set_priority(qurt_thread_attr_t *a, unsigned short p) { a->priority = p; }
static inline void qurt_thread_attr_set_stack_size(qurt_thread_attr_t *a, unsigned int n) { a->stack_size = n; }
static inline void qurt_thread_attr_set_stack_addr(qurt_thread_attr_t *a, void *p) { a->stack_addr = p; }
static inline void qurt_thread_attr_set_detachstate(qurt_thread_attr_t *a, unsigned short s) { a->detach_state = s; }

int qurt_thread_create(qurt_thread_t *thread, qurt_thread_attr_t *attributes, void (*body)(void *), void *context);
int qurt_thread_join(unsigned int thread, int *status);
void qurt_thread_exit(int status);
qurt_thread_t qurt_thread_get_id(void);
int qurt_thread_get_priority(qurt_thread_t thread);
int qurt_futex_wait(void *word, int value);
int qurt_futex_wake(void *word, int most);
/* Bits 8 to 15: vector units of 128 bytes. */
int qurt_hvx_get_units(void);

typedef unsigned int qurt_addr_t;
typedef unsigned int qurt_size_t;
#define QURT_MEM_CACHE_FLUSH 0
#define QURT_MEM_CACHE_INVALIDATE 1
#define QURT_MEM_CACHE_FLUSH_INVALIDATE 2
#define QURT_MEM_CACHE_FLUSH_ALL 3
#define QURT_MEM_CACHE_FLUSH_INVALIDATE_ALL 4
#define QURT_MEM_DCACHE 1
/* `op` and `type` are enumerations: words in registers all the same. */
int qurt_mem_cache_clean(qurt_addr_t address, qurt_size_t bytes, int op, int type);

#endif

#endif
