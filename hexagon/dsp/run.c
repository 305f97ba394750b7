/* Checked packets to kernels; here the ops that work row by row. */
#include "coherence.h"
#include "kernels/packed.h"
#include "kernels/product.h"
#include "kernels/row.h"
#include "run.h"

struct rows_job {
    const struct packet *p;
    struct view t[6];
    const struct executor *e;
    uint32_t rows, each; /* rows in all, and a task */
};

/* Row `r` of any row op. */
static void one_row(const struct rows_job *j, uint32_t r) {
    const struct packet *p = j->p;
    const struct view *t = j->t;
    const uint32_t n = t[0].width;
    switch (p->head->op) {
    case TDM_EMBED: {
        const struct tdm_tensor *table = &p->tensors[0];
        uint32_t dtype = table->dtype & ~TDM_PACKED, id = p->words[r];
        const uint8_t *tile = tensor_memory(j->e, table) + packed_tile_bytes(dtype, n) * (id / 32);
        packed_row(dtype, tile, id % 32, n, row(&t[1], r));
        row_scale(row(&t[1], r), param(p, 0), row(&t[1], r), n);
        break;
    }
    case TDM_RMS_NORM: row_rms_norm(row(&t[0], r), t[1].first, param(p, 0), row(&t[2], r), n); break;
    case TDM_L2_NORM: {
        uint32_t groups = p->head->params[0], part = n / groups;
        for (uint32_t g = 0; g < groups; g++) {
            row_l2_norm(row(&t[0], r) + g * part, param(p, 1), param(p, 2), row(&t[1], r) + g * part, part);
        }
        break;
    }
    case TDM_GATED_NORM:
        row_gated_norm(row(&t[0], r), row(&t[1], r), t[2].first, param(p, 0), row(&t[3], r), n);
        break;
    case TDM_ROPE:
        row_rope(row(&t[0], r), row(&t[1], r / p->head->params[0]), t[1].width / 2, row(&t[2], r), n);
        break;
    case TDM_GATHER: memcpy(row(&t[1], r), row(&t[0], p->words[r]), n * sizeof(float)); break;
    case TDM_DELTA_GATES:
        row_delta_gates(row(&t[0], r), row(&t[1], r), t[2].first, t[3].first, row(&t[4], r), row(&t[5], r), n);
        break;
    case TDM_COPY: {
        const struct tdm_tensor *from = &p->tensors[0], *to = &p->tensors[1];
        const uint8_t *x = tensor_memory(j->e, from) + (size_t)r * from->stride * (from->dtype == TDM_F16 ? 2 : 4);
        uint8_t *out = tensor_memory(j->e, to) + (size_t)r * to->stride * (to->dtype == TDM_F16 ? 2 : 4);
        if (to->dtype == TDM_F16) {
            row_narrow((const float *)x, (uint16_t *)out, n);
        } else {
            row_widen((const uint16_t *)x, (float *)out, n);
        }
        break;
    }
    default: break;
    }
}

static void some_rows(void *context, uint32_t index, uint32_t worker) {
    const struct rows_job *j = context;
    (void)worker;
    uint32_t first = index * j->each, end = j->rows - first < j->each ? j->rows : first + j->each;
    for (uint32_t r = first; r < end; r++) {
        one_row(j, r);
    }
}

/* --- ops of whole rows through DMA ----------------------------------------------------------- */

/* A copy that changes no type: memory to memory. States go this way when they are saved and
 * restored. */
static void copy_task(void *context, uint32_t index, uint32_t worker) {
    const struct rows_job *j = context;
    const struct tdm_tensor *from = &j->p->tensors[0], *to = &j->p->tensors[1];
    const uint32_t value = from->dtype == TDM_F16 ? 2 : 4, first = index * j->each;
    const uint32_t rows = j->rows - first < j->each ? j->rows - first : j->each;
    (void)worker;
    carry(tensor_memory(j->e, to) + (size_t)first * to->stride * value, to->stride * value,
          tensor_memory(j->e, from) + (size_t)first * from->stride * value, from->stride * value, rows,
          from->width * value);
    port_dma_wait(0);
}

/* Two inputs, one output, value by value: in pieces that fit a worker's scratch three times. */
static void binary_task(void *context, uint32_t index, uint32_t worker) {
    const struct rows_job *j = context;
    const struct view *a = &j->t[0], *b = &j->t[1], *out = &j->t[2];
    const uint32_t room = worker_share(j->e) / 3 / 128 * LANES, n = a->width;
    const uint32_t width = n < room ? n : room, rows = n < room ? room / n : 1;
    const uint32_t first = index * j->each, end = j->rows - first < j->each ? j->rows : first + j->each;
    float *x = (float *)worker_scratch(j->e, worker), *y = x + room, *z = y + room;
    for (uint32_t r = first; r < end; r += rows) {
        const uint32_t some = end - r < rows ? end - r : rows;
        for (uint32_t c = 0; c < n; c += width) {
            const uint32_t w = n - c < width ? n - c : width, bytes = w * 4;
            carry(x, bytes, row(a, r) + c, a->stride * 4, some, bytes);
            carry(y, bytes, row(b, r) + c, b->stride * 4, some, bytes);
            port_dma_wait(0);
            switch (j->p->head->op) {
            case TDM_SILU_MUL: row_silu_mul(x, y, z, some * w); break;
            case TDM_SIGMOID_MUL: row_sigmoid_mul(x, y, z, some * w); break;
            default: row_add(x, y, z, some * w); break;
            }
            carry(row(out, r) + c, out->stride * 4, z, bytes, some, bytes);
            port_dma_wait(0);
        }
    }
}

/* Tasks of about this many values. */
#define ROW_TASK 4096

static void run_rows(struct executor *e, const struct packet *p, uint32_t rows) {
    struct rows_job j = {.p = p, .e = e, .rows = rows};
    for (uint32_t i = 0; i < p->head->tensors && i < 6; i++) {
        j.t[i] = view(e, &p->tensors[i]);
    }
    j.each = ROW_TASK / j.t[0].width + 1 + rows / POOL_TASKS;
    pool_task *task = !written_by_dma(p, p->head->tensors - 1) ? some_rows
                      : p->head->op == TDM_COPY                ? copy_task
                                                               : binary_task;
    pool_run(&e->pool, (rows + j.each - 1) / j.each, task, &j);
}

bool room_for_packet(const struct executor *e, const struct packet *p, struct fault *f) {
    switch (p->head->op) {
    case TDM_MATMUL: return room_for_matmul(e, p, f);
    case TDM_SWIGLU: return room_for_swiglu(e, p, f);
    case TDM_MATMUL_TILES: return room_for_matmul_tiles(e, p, f);
    case TDM_SWIGLU_TILES: return room_for_swiglu_tiles(e, p, f);
    case TDM_ATTENTION: return room_for_attention(e, p, f);
    case TDM_GATED_DELTA: return room_for_gated_delta(e, p, f);
    default: return true;
    }
}

void run_packet(struct executor *e, const struct packet *p) {
    switch (p->head->op) {
    case TDM_MATMUL: run_matmul(e, p); break;
    case TDM_SWIGLU: run_swiglu(e, p); break;
    case TDM_MATMUL_TILES: run_matmul_tiles(e, p); break;
    case TDM_SWIGLU_TILES: run_swiglu_tiles(e, p); break;
    case TDM_ATTENTION: run_attention(e, p); break;
    case TDM_CONV: run_conv(e, p); break;
    case TDM_GATED_DELTA: run_gated_delta(e, p); break;
    case TDM_EMBED:
    case TDM_GATHER: run_rows(e, p, p->tensors[1].rows); break;
    default: run_rows(e, p, p->tensors[0].rows); break;
    }
}
