/* A placement policy in C: saves where this prompt parted from the last one, and
 * at the two line starts before it, in case the next one parts a little earlier. */
#include "tandem_policy.h"

static void policy_place(const tandem_request *request, tandem_positions *positions) {
    tandem_save(positions, request->shared);
    uint32_t lines = 0;
    for (uint32_t i = request->boundary_count; i-- > 0 && lines < 2;) {
        const tandem_boundary *b = &request->boundaries[i];
        if (b->kind <= TANDEM_LINE && b->token < request->shared) {
            tandem_save(positions, b->token);
            lines++;
        }
    }
}

/* The least recently used goes. */
static uint32_t policy_evict(const tandem_kept *kept, uint32_t count, uint32_t incoming) {
    (void)incoming;
    uint32_t oldest = 0;
    for (uint32_t i = 1; i < count; i++)
        if (kept[i].age > kept[oldest].age) oldest = i;
    return oldest;
}

static void policy_observe(uint32_t prompt, uint32_t shared, uint32_t restored, uint32_t answer,
                           const uint32_t *saved, uint32_t saved_count) {
    (void)prompt, (void)shared, (void)restored, (void)answer, (void)saved, (void)saved_count;
}
