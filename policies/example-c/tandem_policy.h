/* The `placement` world of tandem:policy@1.0.0 by the canonical ABI, for C.
 *
 * Include it in the one C file of a policy and define the three functions that
 * are declared at its end. Build (any clang with the wasm32 target):
 *
 *   clang --target=wasm32-unknown-unknown -O2 -ffreestanding -nostdlib \
 *         -Wl,--no-entry -o core.wasm policy.c
 *   tandem policy build core.wasm --out policy.wasm
 */
#ifndef TANDEM_POLICY_H
#define TANDEM_POLICY_H

#include <stdint.h>

/* One checkpoint that the slot holds. */
typedef struct {
    uint32_t position; /* tokens that went into the state */
    uint32_t age;      /* requests since it was saved or last restored */
    uint32_t hits;     /* how often it was restored */
    uint64_t bytes;    /* size of the state */
} tandem_kept;

enum { TANDEM_MESSAGE = 0, TANDEM_USER = 1, TANDEM_LINE = 2, TANDEM_IMAGE = 3 };

/* A place in the prompt; ignore kinds that you do not know. */
typedef struct {
    uint32_t token;
    uint8_t kind;
} tandem_boundary;

typedef struct {
    uint32_t prompt;   /* N */
    uint32_t shared;   /* L */
    uint32_t restored; /* R */
    const tandem_kept *kept;
    uint32_t kept_count;
    uint32_t cap;
    uint64_t bytes_left;
    uint64_t checkpoint_bytes;
    uint64_t token_ns, pass_ns, save_ns;
    uint32_t pass_limit;
    uint32_t max_saves;
    const tandem_boundary *boundaries;
    uint32_t boundary_count;
} tandem_request;

/* Positions to save, most wanted first. */
typedef struct {
    uint32_t items[64];
    uint32_t count;
} tandem_positions;

static inline void tandem_save(tandem_positions *p, uint32_t position) {
    if (p->count < 64) p->items[p->count++] = position;
}

/* To be defined by the policy; see policies/wit/1.0.0 for their meaning. */
static void policy_place(const tandem_request *request, tandem_positions *positions);
static uint32_t policy_evict(const tandem_kept *kept, uint32_t count, uint32_t incoming);
static void policy_observe(uint32_t prompt, uint32_t shared, uint32_t restored, uint32_t answer,
                           const uint32_t *saved, uint32_t saved_count);

/* The host puts lists here before a call; the end of the call frees them all.
 * 4,096 boundaries of 8 bytes and some checkpoints fit many times. */
static _Alignas(16) unsigned char tandem_arena[128 * 1024];
static uint32_t tandem_arena_used;

__attribute__((export_name("cabi_realloc"))) void *cabi_realloc(void *old, uint32_t old_size,
                                                                uint32_t align, uint32_t size) {
    (void)old, (void)old_size; /* lists only ever arrive whole */
    uint32_t at = (tandem_arena_used + align - 1) & ~(align - 1);
    if (size > sizeof tandem_arena || at > sizeof tandem_arena - size) __builtin_trap();
    tandem_arena_used = at + size;
    return tandem_arena + at;
}

__attribute__((export_name("place"))) const uint32_t *tandem_export_place(
    uint32_t prompt, uint32_t shared, uint32_t restored, const tandem_kept *kept, uint32_t kept_count,
    uint32_t cap, uint64_t bytes_left, uint64_t checkpoint_bytes, uint64_t token_ns, uint64_t pass_ns,
    uint64_t save_ns, uint32_t pass_limit, uint32_t max_saves, const tandem_boundary *boundaries,
    uint32_t boundary_count) {
    static tandem_positions positions;
    static uint32_t answer[2];
    tandem_request request = {prompt,   shared,  restored,   kept,      kept_count,
                              cap,      bytes_left, checkpoint_bytes, token_ns, pass_ns,
                              save_ns,  pass_limit, max_saves, boundaries, boundary_count};
    positions.count = 0;
    policy_place(&request, &positions);
    answer[0] = (uint32_t)(uintptr_t)positions.items;
    answer[1] = positions.count;
    return answer;
}

__attribute__((export_name("cabi_post_place"))) void tandem_after_place(const uint32_t *answer) {
    (void)answer;
    tandem_arena_used = 0;
}

__attribute__((export_name("evict"))) uint32_t tandem_export_evict(const tandem_kept *kept, uint32_t count,
                                                                   uint32_t incoming) {
    uint32_t index = policy_evict(kept, count, incoming);
    tandem_arena_used = 0;
    return index;
}

__attribute__((export_name("observe"))) void tandem_export_observe(uint32_t prompt, uint32_t shared,
                                                                   uint32_t restored, uint32_t answer,
                                                                   const uint32_t *saved,
                                                                   uint32_t saved_count) {
    policy_observe(prompt, shared, restored, answer, saved, saved_count);
    tandem_arena_used = 0;
}

#endif
