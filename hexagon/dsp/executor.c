#include "executor.h"
#include "coherence.h"
#include "kernels/tile.h"
#include "port/port.h"
#include <string.h>

bool executor_start(struct executor *e, uint32_t workers, uint32_t vtcm_bytes) {
    memset(e->maps, 0, sizeof e->maps);
    atomic_init(&e->power, POWER_RELEASED);
    atomic_init(&e->unit, false);
    e->batches = 0;
    e->vtcm_bytes = vtcm_bytes;
    e->vtcm = port_vtcm(vtcm_bytes);
    if (e->vtcm == NULL) {
        return false;
    }
    pool_start(&e->pool, workers);
    return true;
}

void executor_stop(struct executor *e) {
    pool_stop(&e->pool);
    for (uint32_t i = 0; i < TDM_MAPS; i++) {
        if (e->maps[i].memory != NULL) {
            port_unmap(e->maps[i].memory, e->maps[i].bytes);
        }
    }
}

static bool refuse(struct fault *f, uint32_t status, uint64_t value, uint64_t limit) {
    f->status = status;
    f->value = value;
    f->limit = limit;
    return false;
}

static bool map(struct executor *e, const struct tdm_request *r, struct fault *f) {
    if (r->map >= TDM_MAPS) {
        return refuse(f, TDM_E_MAP, r->map, TDM_MAPS);
    }
    struct map *m = &e->maps[r->map];
    if (m->memory != NULL) {
        return refuse(f, TDM_E_MAP_USED, r->map, 0);
    }
    if (r->bytes == 0 || r->bytes > TDM_MAP_BYTES || r->bytes % TDM_PAGE != 0 || r->file_offset % TDM_PAGE != 0) {
        return refuse(f, TDM_E_MAP_REFUSED, r->bytes, TDM_MAP_BYTES);
    }
    bool read_only = (r->flags & TDM_READ_ONLY) != 0;
    void *memory = port_map(r->file, r->file_offset, (uint32_t)r->bytes, read_only);
    if (memory == NULL) {
        return refuse(f, TDM_E_MAP_REFUSED, r->bytes, TDM_MAP_BYTES);
    }
    *m = (struct map){memory, r->file_offset, r->file, (uint32_t)r->bytes, read_only};
    return true;
}

static bool unmap(struct executor *e, const struct tdm_request *r, struct fault *f) {
    if (r->map >= TDM_MAPS || e->maps[r->map].memory == NULL) {
        return refuse(f, TDM_E_MAP, r->map, TDM_MAPS);
    }
    port_unmap(e->maps[r->map].memory, e->maps[r->map].bytes);
    e->maps[r->map] = (struct map){0};
    return true;
}

/* The packet at `at`; its sizes hold within the `left` bytes of the batch. */
static bool parse(const uint8_t *at, uint32_t left, struct packet *p, struct fault *f) {
    if (left < sizeof(struct tdm_packet)) {
        return refuse(f, TDM_E_PACKET, sizeof(struct tdm_packet), left);
    }
    p->head = (const struct tdm_packet *)at;
    if (p->head->tensors > TDM_TENSORS) {
        return refuse(f, TDM_E_OPERANDS, p->head->tensors, TDM_TENSORS);
    }
    uint64_t words_at = sizeof(struct tdm_packet) + (uint64_t)p->head->tensors * sizeof(struct tdm_tensor);
    if (p->head->bytes > left || words_at + 4ull * p->head->words != p->head->bytes) {
        return refuse(f, TDM_E_PACKET, p->head->bytes, left);
    }
    p->tensors = (const struct tdm_tensor *)(at + sizeof(struct tdm_packet));
    p->words = (const uint32_t *)(at + words_at);
    return true;
}

static bool run_batch(struct executor *e, const struct tdm_request *r, struct fault *f) {
    if (r->map >= TDM_MAPS || e->maps[r->map].memory == NULL) {
        return refuse(f, TDM_E_MAP, r->map, TDM_MAPS);
    }
    const struct map *m = &e->maps[r->map];
    if (r->bytes > TDM_BATCH_BYTES || r->offset % 4 != 0 || r->offset > m->bytes ||
        r->bytes > m->bytes - r->offset) {
        return refuse(f, TDM_E_BATCH, r->bytes, TDM_BATCH_BYTES);
    }
    /* Copied before it is looked at: the other side cannot change what was checked. */
    const uint32_t bytes = (uint32_t)r->bytes;
    port_host_wrote(m->memory + r->offset, bytes);
    memcpy(e->batch, m->memory + r->offset, bytes);
    struct packet p;
    uint32_t at = 0;
    bool unit = false;
    for (f->op = 0; f->op < r->count; f->op++, at += p.head->bytes) {
        if (!parse(e->batch + at, bytes - at, &p, f) || !check_packet(e, &p, f) || !room_for_packet(e, &p, f)) {
            return false;
        }
        unit |= p.head->op == TDM_MATMUL_TILES || p.head->op == TDM_SWIGLU_TILES;
    }
    if (at != bytes) {
        return refuse(f, TDM_E_BATCH, bytes, at);
    }
    if (unit && !atomic_load(&e->unit)) {
        return refuse(f, TDM_E_NO_VOTES, 0, 1);
    }
    if (unit && !port_tiles_begin()) {
        return refuse(f, TDM_E_UNIT, 0, 0);
    }
    /* Before anything of it runs: later it would undo what the batch wrote. */
    at = 0;
    for (uint32_t i = 0; i < r->count && parse(e->batch + at, bytes - at, &p, f); i++, at += p.head->bytes) {
        see_inputs(e, &p);
    }
    const uint64_t carried = port_dma_bytes();
    at = 0;
    for (f->op = 0; f->op < r->count && parse(e->batch + at, bytes - at, &p, f); f->op++, at += p.head->bytes) {
        run_packet(e, &p);
        settle_outputs(e, &p);
    }
    if (unit) {
        port_tiles_end();
    }
    f->value = ++e->batches;
    f->limit = port_dma_bytes() - carried;
    return true;
}

/* Runs a batch if votes are held, and sees to it that they stay until it has ended. */
static bool run(struct executor *e, const struct tdm_request *r, struct fault *f) {
    uint32_t power = POWER_HELD;
    if (!atomic_compare_exchange_strong_explicit(&e->power, &power, POWER_RUNNING, memory_order_acquire,
                                                 memory_order_relaxed)) {
        return refuse(f, TDM_E_NO_VOTES, power, POWER_HELD);
    }
    bool ran = port_before_batch() ? run_batch(e, r, f) : refuse(f, TDM_E_SCRATCH, e->vtcm_bytes, 0);
    port_after_batch();
    atomic_store_explicit(&e->power, POWER_HELD, memory_order_release);
    return ran;
}

/* Words of a tdm_power and the largest value each may have. */
static bool votes_valid(const struct tdm_power *v, struct tdm_power_reply *reply) {
    const uint32_t word[] = {v->clock, v->bus, v->ddr, v->hmx, v->sleep};
    const uint32_t most[] = {TDM_CORNER_MAX, TDM_CORNER_MAX, 1, 1, 1};
    for (uint32_t i = 0; i < 5; i++) {
        if (word[i] > most[i]) {
            reply->status = TDM_E_PARAM;
            reply->operand = i + 2;
            reply->value = word[i];
            reply->limit = most[i];
            return false;
        }
    }
    return true;
}

void executor_power(struct executor *e, const struct tdm_power *votes, struct tdm_power_reply *reply) {
    *reply = (struct tdm_power_reply){.magic = TDM_MAGIC, .version = TDM_VERSION};
    if (votes->magic != TDM_MAGIC) {
        reply->status = TDM_E_MAGIC;
        reply->value = votes->magic;
        reply->limit = TDM_MAGIC;
        return;
    }
    if (votes->version != TDM_VERSION) {
        reply->status = TDM_E_VERSION;
        reply->value = votes->version;
        reply->limit = TDM_VERSION;
        return;
    }
    if (!votes_valid(votes, reply)) {
        return;
    }
    uint32_t power = atomic_load_explicit(&e->power, memory_order_relaxed);
    do {
        if (power != POWER_RELEASED && power != POWER_HELD) {
            reply->status = TDM_E_BUSY;
            reply->value = power;
            return;
        }
    } while (!atomic_compare_exchange_weak_explicit(&e->power, &power, POWER_CHANGING, memory_order_acquire,
                                                    memory_order_relaxed));
    bool done = port_power(votes), held = done && votes->clock != TDM_CORNER_OFF;
    if (!done) {
        reply->status = TDM_E_POWER;
        reply->value = votes->clock;
    }
    atomic_store(&e->unit, held && votes->hmx != 0);
    atomic_store_explicit(&e->power, held ? POWER_HELD : POWER_RELEASED, memory_order_release);
}

bool executor_answer(struct executor *e, const struct tdm_request *r, struct tdm_reply *reply) {
    struct fault f = {0};
    uint64_t instructions, vectors;
    memset(reply, 0, sizeof *reply);
    port_counters(&reply->instructions, &reply->vector_instructions);
    bool goes_on = true;
    if (r->magic != TDM_MAGIC) {
        refuse(&f, TDM_E_MAGIC, r->magic, TDM_MAGIC);
    } else if (r->version != TDM_VERSION) {
        refuse(&f, TDM_E_VERSION, r->version, TDM_VERSION);
    } else {
        switch (r->kind) {
        case TDM_HELLO:
            f.value = e->pool.workers;
            f.limit = e->vtcm_bytes;
            break;
        case TDM_MAP: map(e, r, &f); break;
        case TDM_UNMAP: unmap(e, r, &f); break;
        case TDM_RUN: run(e, r, &f); break;
        case TDM_GOODBYE: goes_on = false; break;
        default: refuse(&f, TDM_E_KIND, r->kind, TDM_GOODBYE); break;
        }
    }
    port_counters(&instructions, &vectors);
    reply->magic = TDM_MAGIC;
    reply->version = TDM_VERSION;
    reply->status = f.status;
    reply->op = f.op;
    reply->sequence = r->sequence;
    reply->value = f.value;
    reply->limit = f.limit;
    reply->operand = f.operand;
    reply->instructions = instructions - reply->instructions;
    reply->vector_instructions = vectors - reply->vector_instructions;
    return goes_on;
}
