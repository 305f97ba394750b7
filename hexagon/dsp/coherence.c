#include "coherence.h"
#include "port/port.h"

static bool is_output(const struct packet *p, uint32_t i) {
    switch (p->head->op) {
    case TDM_MATMUL:
    case TDM_MATMUL_TILES: return i > 0 && i % 2 == 0;
    case TDM_DELTA_GATES: return i >= 4;
    case TDM_GATED_DELTA: return i >= 6;
    case TDM_CONV: return i >= 3 && !(i == 4 && p->head->params[1] != 0);
    case TDM_GATED_NORM:
    case TDM_ATTENTION:
    case TDM_SWIGLU:
    case TDM_SWIGLU_TILES: return i == 3;
    case TDM_EMBED:
    case TDM_L2_NORM:
    case TDM_COPY:
    case TDM_GATHER: return i == 1;
    default: return i == 2;
    }
}

bool written_by_dma(const struct packet *p, uint32_t i) {
    const bool tiles_by_dma = p->head->params[1] != 0;
    switch (p->head->op) {
    case TDM_SILU_MUL:
    case TDM_SIGMOID_MUL:
    case TDM_ADD:
    case TDM_CONV: return true;
    case TDM_COPY: return p->tensors[0].dtype == p->tensors[1].dtype;
    case TDM_GATED_DELTA: return i >= 7;
    case TDM_SWIGLU: return tiles_by_dma;
    case TDM_MATMUL: {
        uint32_t at = 0;
        for (uint32_t product = 2; product < i; product += 2) {
            at += 1 + (p->words[at] == TDM_ALL_ROWS ? 0 : p->words[at]);
        }
        return tiles_by_dma && p->words[at] == TDM_ALL_ROWS;
    }
    default: return false;
    }
}

typedef void maintenance(const void *memory, size_t bytes);

/* Calls `what` for the bytes of the first `rows` rows. */
static void each_run(const struct executor *e, const struct tdm_tensor *t, uint32_t rows, maintenance *what) {
    if (e->maps[t->map].read_only) {
        return; /* written by nobody on this side, and by the host before it was mapped */
    }
    const uint8_t *memory = tensor_memory(e, t);
    if (t->dtype & TDM_PACKED) {
        const uint32_t bytes = e->maps[t->map].bytes - t->offset;
        what(memory, bytes);
        return;
    }
    const size_t value = t->dtype == TDM_F32 ? 4 : 2, step = t->stride * value, width = t->width * value;
    if (step == width || rows == 1) {
        what(memory, step * (rows - 1) + width);
        return;
    }
    for (uint32_t r = 0; r < rows; r++) {
        what(memory + r * step, width);
    }
}

void see_inputs(const struct executor *e, const struct packet *p) {
    for (uint32_t i = 0; i < p->head->tensors; i++) {
        const struct tdm_tensor *t = &p->tensors[i];
        if (is_output(p, i)) {
            continue;
        }
        /* Of a KV cache only what is looked at. */
        const bool cells = p->head->op == TDM_ATTENTION && i > 0;
        const uint32_t columns = cells ? p->tensors[0].rows / p->head->params[0] : 0;
        each_run(e, t, cells ? p->head->params[2] + columns : t->rows, port_host_wrote);
    }
}

void settle_outputs(const struct executor *e, const struct packet *p) {
    for (uint32_t i = 0; i < p->head->tensors; i++) {
        if (!is_output(p, i)) {
            continue;
        }
        if (written_by_dma(p, i)) {
#ifndef NO_INVALIDATE
            each_run(e, &p->tensors[i], p->tensors[i].rows, port_invalidate);
#endif
        } else {
#ifndef NO_CLEAN
            each_run(e, &p->tensors[i], p->tensors[i].rows, port_clean);
#endif
        }
    }
}
