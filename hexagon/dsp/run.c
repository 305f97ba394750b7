#include "executor.h"
#include "coherence.h"
#include "kernels/attention.h"
#include "kernels/conv.h"
#include "kernels/delta.h"
#include "kernels/packed.h"
#include "kernels/product.h"
#include "kernels/row.h"
#include "port/port.h"

/* A float tensor in hand. */
struct view {
    float *first;
    uint32_t stride, rows, width;
};

static struct view view(const struct executor *e, const struct tdm_tensor *t) {
    return (struct view){(float *)tensor_memory(e, t), t->stride, t->rows, t->width};
}

static float *row(const struct view *v, uint32_t r) { return v->first + (size_t)r * v->stride; }

static float param(const struct packet *p, int i) { return float_of_bits(p->head->params[i]); }

static bool no_room(struct fault *f, uint64_t bytes, uint64_t limit) {
    f->status = TDM_E_SCRATCH;
    f->value = bytes;
    f->limit = limit;
    return false;
}

/* --- ops that work row by row ------------------------------------------------------------- */

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

static void carry(void *to, uint32_t to_stride, const void *from, uint32_t from_stride, uint32_t rows, uint32_t width) {
    const struct port_copy copy = {to, from, rows, width, to_stride, from_stride};
    port_dma_start(&copy);
}

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

/* --- products ------------------------------------------------------------------------------ */

struct weight {
    uint32_t dtype, rows;
    const uint8_t *memory;
    uint64_t tile_bytes;
};

static struct weight weight(const struct executor *e, const struct tdm_tensor *t) {
    uint32_t dtype = t->dtype & ~TDM_PACKED;
    return (struct weight){dtype, t->rows, tensor_memory(e, t), packed_tile_bytes(dtype, t->width)};
}

/* On-chip memory in a product: columns first, described and rounded; then a room for each
 * worker with two sets of weight tiles, one computed with and one under way, and the outputs of
 * one set. hexagon/src/planner.rs counts the same way. */
struct product_job {
    const struct executor *e;
    struct view x, out;
    struct weight w, up; /* `up.rows` is 0 but for the fused SwiGLU */
    const uint32_t *chosen; /* rows of the weight, or NULL */
    uint32_t outputs;
    enum act act;
    uint32_t most;  /* columns rounded at once */
    uint32_t set;   /* tiles of a set; 0: weights are read where they lie */
    uint32_t sets, sets_each; /* in all, and a task */
    /* Columns first .. first + columns, rounded; and for `up`, where it rounds otherwise. */
    uint32_t first, columns;
    struct column *rounded, *rounded_up;
    uint8_t *memory;
    uint64_t each; /* bytes of a rounded column */
    uint64_t rooms_at, room;
};

static uint32_t tiles(uint32_t rows) { return (rows + LANES - 1) / LANES; }

static uint64_t columns_bytes(uint32_t columns, uint32_t width, enum act a, enum act b) {
    uint64_t described = (2ull * columns * sizeof(struct column) + 127) / 128 * 128;
    return described + columns * (activation_bytes(a, width) + (a == b ? 0 : activation_bytes(b, width)));
}

/* `b_bytes` is 0 for a plain product. */
static uint64_t room_bytes(uint32_t columns, uint32_t set, uint64_t a_bytes, uint64_t b_bytes) {
    return 2 * set * (a_bytes + b_bytes) + (uint64_t)columns * set * LANES * sizeof(float);
}

static void round_column(void *context, uint32_t index, uint32_t worker) {
    const struct product_job *j = context;
    (void)worker;
    j->rounded[index] = activation_round(j->act, row(&j->x, j->first + index), j->x.width, j->memory + j->each * index);
}

/* One tile of outputs for every column in hand, to `out` with `stride` floats from column to
 * column. `left` outputs are wanted. */
static void product_of_tile(const struct product_job *j, const uint8_t *tile, const uint8_t *up_tile, float *out,
                            uint32_t stride, uint32_t left) {
    const uint32_t group = product_columns(j->w.dtype), up_group = j->up.rows ? product_columns(j->up.dtype) : group;
    const uint32_t most = group < up_group ? group : up_group;
    for (uint32_t c = 0; c < j->columns; c += most) {
        uint32_t columns = j->columns - c < most ? j->columns - c : most;
        floats y[8], up[8];
        product_tile(j->w.dtype, tile, j->x.width, j->rounded + c, columns, y);
        if (j->up.rows) {
            product_tile(j->up.dtype, up_tile, j->x.width, j->rounded_up + c, columns, up);
        }
        for (uint32_t i = 0; i < columns; i++) {
            floats v = j->up.rows ? floats_mul(floats_silu(y[i]), up[i]) : y[i];
            floats_store_some(out + (size_t)(c + i) * stride, v, left);
        }
    }
}

/* Weights read where they lie. */
static void product_in_place(void *context, uint32_t tile, uint32_t worker) {
    const struct product_job *j = context;
    (void)worker;
    product_of_tile(j, j->w.memory + j->w.tile_bytes * tile, j->up.rows ? j->up.memory + j->up.tile_bytes * tile : NULL,
                    row(&j->out, j->first) + tile * LANES, j->out.stride, j->outputs - tile * LANES);
}

/* Starts the transfers of a set of tiles; how many they are. */
static uint32_t fetch(const struct product_job *j, uint32_t set, uint8_t *to) {
    const uint32_t first = set * j->set, all = tiles(j->outputs), n = all - first < j->set ? all - first : j->set;
    const uint32_t bytes = (uint32_t)j->w.tile_bytes, up = (uint32_t)j->up.tile_bytes;
    carry(to, bytes, j->w.memory + j->w.tile_bytes * first, bytes, n, bytes);
    if (j->up.rows == 0) {
        return 1;
    }
    carry(to + j->w.tile_bytes * j->set, up, j->up.memory + j->up.tile_bytes * first, up, n, up);
    return 2;
}

/* Sets of tiles through on-chip memory: the next one is under way while one is computed with. */
static void product_by_sets(void *context, uint32_t index, uint32_t worker) {
    const struct product_job *j = context;
    const uint32_t first = index * j->sets_each, end = j->sets - first < j->sets_each ? j->sets : first + j->sets_each;
    const uint64_t bytes = (j->w.tile_bytes + (j->up.rows ? j->up.tile_bytes : 0)) * j->set;
    uint8_t *room = j->e->vtcm + j->rooms_at + j->room * worker;
    float *out = (float *)(room + 2 * bytes);
    const uint32_t stride = j->set * LANES;
    fetch(j, first, room + first % 2 * bytes);
    for (uint32_t s = first; s < end; s++) {
        const uint8_t *tile = room + s % 2 * bytes, *up = tile + j->w.tile_bytes * j->set;
        /* Behind it only the next set: this one is here, and the outputs before it are gone. */
        port_dma_wait(s + 1 < end ? fetch(j, s + 1, room + (s + 1) % 2 * bytes) : 0);
        const uint32_t at = s * stride, some = j->outputs - at < stride ? j->outputs - at : stride;
        for (uint32_t t = 0; t < tiles(some); t++) {
            product_of_tile(j, tile + j->w.tile_bytes * t, j->up.rows ? up + j->up.tile_bytes * t : NULL,
                            out + t * LANES, stride, LANES);
        }
        carry(row(&j->out, j->first) + at, j->out.stride * 4, out, stride * 4, j->columns, some * 4);
    }
    port_dma_wait(0);
}

/* Chosen rows, a task an output: a run of outputs from one tile is one product. */
static void chosen_task(void *context, uint32_t index, uint32_t worker) {
    const struct product_job *j = context;
    (void)worker;
    const uint32_t tile = j->chosen[index] / LANES, group = product_columns(j->w.dtype);
    if (index > 0 && j->chosen[index - 1] / LANES == tile) {
        return; /* done with the first of its run */
    }
    for (uint32_t c = 0; c < j->columns; c += group) {
        uint32_t columns = j->columns - c < group ? j->columns - c : group;
        floats out[8];
        product_tile(j->w.dtype, j->w.memory + j->w.tile_bytes * tile, j->x.width, j->rounded + c, columns, out);
        for (uint32_t i = 0; i < columns; i++) {
            float lanes[LANES] __attribute__((aligned(128)));
            floats_store(lanes, out[i]);
            for (uint32_t o = index; o < j->outputs && j->chosen[o] / LANES == tile; o++) {
                row(&j->out, j->first + c + i)[o] = lanes[j->chosen[o] % LANES];
            }
        }
    }
}

/* Rounds the columns in hand as `dtype` asks, to `memory`, and says so in `to`. */
static void round_all(struct executor *e, struct product_job *j, enum act act, struct column *to, uint8_t *memory) {
    j->act = act;
    j->rounded = to;
    j->memory = memory;
    j->each = activation_bytes(act, j->x.width);
    pool_run(&e->pool, j->columns, round_column, j);
}

/* Columns of `x` at once: those of the plan, but no more than there are. */
static uint32_t at_once(const struct packet *p) {
    return p->head->params[0] < p->tensors[0].rows ? p->head->params[0] : p->tensors[0].rows;
}

/* Room for the plan of a product with weight `a`, `set` tiles a transfer, fused with `b` unless
 * that is NULL. */
static bool product_room(const struct executor *e, const struct packet *p, const struct tdm_tensor *a,
                         const struct tdm_tensor *b, uint32_t set, struct fault *f) {
    const uint32_t dtype = a->dtype & ~TDM_PACKED, other = b ? b->dtype & ~TDM_PACKED : dtype;
    const uint32_t columns = at_once(p);
    if (tiles(a->rows) > POOL_TASKS || columns > POOL_TASKS) {
        return no_room(f, tiles(a->rows) > columns ? tiles(a->rows) : columns, POOL_TASKS);
    }
    uint64_t bytes = columns_bytes(columns, a->width, act_for(dtype), act_for(other));
    bytes += e->pool.workers * room_bytes(columns, set, packed_tile_bytes(dtype, a->width),
                                          b ? packed_tile_bytes(other, a->width) : 0);
    return bytes <= e->vtcm_bytes || no_room(f, bytes, e->vtcm_bytes);
}

/* Tasks a worker, so that one that comes late is waited for less. */
#define SHARE 4

static void run_product(struct executor *e, const struct packet *p, struct product_job *j) {
    const enum act act = act_for(j->w.dtype), up = j->up.rows ? act_for(j->up.dtype) : act;
    const uint32_t n = j->x.rows;
    pool_task *task = j->chosen ? chosen_task : product_in_place;
    uint32_t tasks = j->chosen ? j->outputs : tiles(j->outputs);
    j->e = e;
    j->most = at_once(p);
    j->set = j->chosen ? 0 : p->head->params[1];
    if (j->set > 0) {
        const uint32_t shares = SHARE * e->pool.workers;
        j->sets = (tasks + j->set - 1) / j->set;
        j->sets_each = (j->sets + shares - 1) / shares;
        tasks = (j->sets + j->sets_each - 1) / j->sets_each;
        task = product_by_sets;
        j->rooms_at = columns_bytes(j->most, j->x.width, act, up);
        j->room = room_bytes(j->most, j->set, j->w.tile_bytes, j->up.rows ? j->up.tile_bytes : 0);
    }
    for (j->first = 0; j->first < n; j->first += j->columns) {
        j->columns = n - j->first < j->most ? n - j->first : j->most;
        struct column *columns = (struct column *)e->vtcm;
        uint8_t *memory = e->vtcm + (2 * j->most * sizeof(struct column) + 127) / 128 * 128;
        j->rounded_up = columns;
        if (up != act) {
            j->rounded_up = columns + j->columns;
            round_all(e, j, up, columns + j->columns, memory + activation_bytes(act, j->x.width) * j->columns);
        }
        round_all(e, j, act, columns, memory);
        pool_run(&e->pool, tasks, task, j);
    }
}

static void run_matmul(struct executor *e, const struct packet *p) {
    const struct tdm_tensor *t = p->tensors;
    uint32_t at = 0;
    for (uint32_t i = 1; i < p->head->tensors; i += 2) {
        struct product_job j = {.x = view(e, t), .out = view(e, &t[i + 1]), .w = weight(e, &t[i])};
        uint32_t count = p->words[at++];
        j.outputs = t[i + 1].width;
        if (count != TDM_ALL_ROWS) {
            j.chosen = p->words + at;
            at += count;
        }
        run_product(e, p, &j);
    }
}

static void run_swiglu(struct executor *e, const struct packet *p) {
    const struct tdm_tensor *t = p->tensors;
    struct product_job j = {
        .x = view(e, t), .out = view(e, &t[3]), .w = weight(e, &t[1]), .up = weight(e, &t[2]), .outputs = t[1].rows};
    run_product(e, p, &j);
}

/* --- ops along the sequence ---------------------------------------------------------------- */

struct sequence_job {
    struct executor *e;
    const struct packet *p;
};

static struct cells cells_of(const struct executor *e, const struct tdm_tensor *t, uint32_t skip) {
    uint32_t half = t->dtype == TDM_F16, bytes = half ? 2 : 4;
    return (struct cells){tensor_memory(e, t) + (size_t)skip * bytes, t->stride * bytes, half};
}

static void attention_task(void *context, uint32_t index, uint32_t worker) {
    const struct sequence_job *j = context;
    const struct packet *p = j->p;
    const struct tdm_tensor *t = p->tensors;
    const uint32_t heads = p->head->params[0], kv_heads = p->head->params[1], past = p->head->params[2];
    const struct view q = view(j->e, &t[0]), out = view(j->e, &t[3]);
    const uint32_t head = index % heads, skip = head / (heads / kv_heads) * q.width;
    attention_head(row(&q, index), cells_of(j->e, &t[1], skip), cells_of(j->e, &t[2], skip), past + index / heads + 1,
                   q.width, param(p, 3), (float *)worker_scratch(j->e, worker), row(&out, index));
}

static void run_attention(struct executor *e, const struct packet *p) {
    struct sequence_job j = {e, p};
    pool_run(&e->pool, p->tensors[0].rows, attention_task, &j);
}

/* Input `t`, counted from the oldest of the state. */
static const float *conv_input(const struct view *state, const struct view *x, uint32_t t) {
    return t < state->rows ? row(state, t) : row(x, t - state->rows);
}

/* Up to 32 neighbouring channels: their columns come 2D, piece by piece, and go the same way. */
static void conv_task(void *context, uint32_t index, uint32_t worker) {
    const struct sequence_job *j = context;
    const struct packet *p = j->p;
    const uint32_t biased = p->head->params[1], first = index * LANES;
    const struct view x = view(j->e, &p->tensors[0]), state = view(j->e, &p->tensors[1]);
    const struct view kernel = view(j->e, &p->tensors[2]), out = view(j->e, &p->tensors[3]);
    const uint32_t channels = x.width - first < LANES ? x.width - first : LANES, bytes = channels * 4;
    const uint32_t kept = kernel.width - 1, row_bytes = LANES * 4;
    const uint32_t piece = (worker_share(j->e) / row_bytes - kept) / 2;
    /* The inputs before the piece, the piece, and its outputs; a row of 32 lanes each. */
    float *in = (float *)worker_scratch(j->e, worker), *columns = in + kept * LANES, *y = columns + piece * LANES;
    struct conv c = {.x = columns, .x_stride = LANES, .state = in, .state_stride = LANES,
                     .kernel = row(&kernel, first), .kernel_stride = kernel.stride,
                     .taps = kernel.width, .silu = p->head->params[0], .out = y, .out_stride = LANES};
    if (biased) {
        c.bias = view(j->e, &p->tensors[4]).first + first;
    }
    carry(in, row_bytes, state.first + first, state.stride * 4, kept, bytes);
    for (uint32_t t = 0; t < x.rows; t += c.columns) {
        c.columns = x.rows - t < piece ? x.rows - t : piece;
        carry(columns, row_bytes, row(&x, t) + first, x.stride * 4, c.columns, bytes);
        port_dma_wait(0);
        conv_channels(&c, channels);
        carry(row(&out, t) + first, out.stride * 4, y, row_bytes, c.columns, bytes);
        for (uint32_t k = 0; k < kept; k++) {
            memcpy(in + k * LANES, in + (size_t)(c.columns + k) * LANES, row_bytes);
        }
        port_dma_wait(0);
    }
    /* The state after a column: its last inputs, memory to memory. */
    for (uint32_t i = 4 + biased; i < p->head->tensors; i++) {
        const struct view to = view(j->e, &p->tensors[i]);
        for (uint32_t k = 0; k < kept; k++) {
            const float *input = conv_input(&state, &x, p->words[i - 4 - biased] + 1 + k);
            carry(row(&to, k) + first, to.stride * 4, input + first, x.stride * 4, 1, bytes);
        }
    }
    port_dma_wait(0);
}

static void run_conv(struct executor *e, const struct packet *p) {
    struct sequence_job j = {e, p};
    pool_run(&e->pool, tiles(p->tensors[0].width), conv_task, &j);
}

/* Floats of scratch a head needs: two states and what a chunk leaves. */
static uint64_t delta_floats(uint64_t key_dim, uint64_t value_dim) {
    return 2 * key_dim * value_dim + delta_scratch((uint32_t)value_dim);
}

/* Values of a head that one task takes: all where on-chip memory has room for its state twice,
 * else as many whole vectors as fit. Values do not see each other. 0 where nothing fits. */
static uint32_t delta_slice(const struct executor *e, uint32_t key_dim, uint32_t value_dim) {
    uint32_t slice = value_dim;
    while (slice > 0 && 4 * delta_floats(key_dim, slice) > worker_share(e)) {
        slice = (slice - 1) / LANES * LANES;
    }
    return slice;
}

/* A dense state of `width` values a row, to value `at` of the rows from `first` on. */
static void save_states(const struct sequence_job *j, uint32_t t, const float *s, uint32_t first, uint32_t key_dim,
                        uint32_t at, uint32_t width) {
    for (uint32_t i = 7; i < j->p->head->tensors; i++) {
        if (j->p->words[i - 7] != t) {
            continue;
        }
        const struct view to = view(j->e, &j->p->tensors[i]);
        carry(row(&to, first) + at, to.stride * 4, s, width * 4, key_dim, width * 4);
        port_dma_wait(0);
    }
}

static void delta_task(void *context, uint32_t index, uint32_t worker) {
    const struct sequence_job *j = context;
    const struct packet *p = j->p;
    const struct executor *e = j->e;
    const uint32_t heads = p->head->params[2], key_heads = p->head->params[3];
    const struct view q = view(e, &p->tensors[0]), k = view(e, &p->tensors[1]), v = view(e, &p->tensors[2]);
    const struct view decay = view(e, &p->tensors[3]), beta = view(e, &p->tensors[4]);
    const struct view state = view(e, &p->tensors[5]), out = view(e, &p->tensors[6]);
    const uint32_t key_dim = q.width / key_heads, whole_dim = v.width / heads, n = q.rows;
    const uint32_t slice = delta_slice(e, key_dim, whole_dim), slices = (whole_dim + slice - 1) / slice;
    const uint32_t head = index / slices, key_head = head % key_heads, at = index % slices * slice;
    const uint32_t value_dim = whole_dim - at < slice ? whole_dim - at : slice;
    const struct delta h = {.q = q.first + key_head * key_dim, .q_stride = q.stride,
                            .k = k.first + key_head * key_dim, .k_stride = k.stride,
                            .v = v.first + head * whole_dim + at, .v_stride = v.stride,
                            .decay = decay.first + head, .decay_stride = decay.stride,
                            .beta = beta.first + head, .beta_stride = beta.stride,
                            .key_dim = key_dim, .value_dim = value_dim,
                            .out = out.first + head * whole_dim + at, .out_stride = out.stride};
    const uint32_t first_row = head * key_dim;
    const size_t size = (size_t)key_dim * value_dim;
    float *s = (float *)worker_scratch(e, worker), *next = s + size, *rest = next + size;
    carry(s, value_dim * 4, row(&state, first_row) + at, state.stride * 4, key_dim, value_dim * 4);
    port_dma_wait(0);
    if (p->head->params[0] == 0) {
        for (uint32_t t = 0; t < n; t++) {
            delta_token(&h, t, s, rest);
            save_states(j, t, s, first_row, key_dim, at, value_dim);
        }
        return;
    }
    /* Chunks end on absolute multiples of 64, or with the columns. */
    uint32_t count;
    for (uint32_t first = 0; first < n; first += count) {
        count = DELTA_CHUNK - (p->head->params[1] + first) % DELTA_CHUNK;
        count = n - first < count ? n - first : count;
        delta_chunk(&h, s, first, count, rest);
        for (uint32_t i = 7; i < p->head->tensors; i++) {
            uint32_t after = p->words[i - 7];
            if (after >= first && after < first + count) {
                const struct view to = view(e, &p->tensors[i]);
                delta_chunk_state(&h, s, first, after - first, rest, next, value_dim);
                carry(row(&to, first_row) + at, to.stride * 4, next, value_dim * 4, key_dim, value_dim * 4);
                port_dma_wait(0);
            }
        }
        if (first + count < n) {
            delta_chunk_state(&h, s, first, count - 1, rest, next, value_dim);
            float *old = s;
            s = next;
            next = old;
        }
    }
}

static void run_gated_delta(struct executor *e, const struct packet *p) {
    struct sequence_job j = {e, p};
    const uint32_t heads = p->head->params[2], value_dim = p->tensors[2].width / heads;
    const uint32_t slice = delta_slice(e, p->tensors[0].width / p->head->params[3], value_dim);
    pool_run(&e->pool, heads * ((value_dim + slice - 1) / slice), delta_task, &j);
}

bool room_for_packet(const struct executor *e, const struct packet *p, struct fault *f) {
    const struct tdm_tensor *t = p->tensors;
    const uint32_t *params = p->head->params;
    uint64_t bytes = 0, tasks = 0;
    switch (p->head->op) {
    case TDM_MATMUL:
        for (uint32_t i = 1, at = 0; i < p->head->tensors; i += 2) {
            const uint32_t rows = p->words[at], set = rows == TDM_ALL_ROWS ? params[1] : 0;
            f->operand = i;
            if (!product_room(e, p, &t[i], NULL, set, f)) {
                return false;
            }
            at += 1 + (rows == TDM_ALL_ROWS ? 0 : rows);
        }
        f->operand = 0;
        return true;
    case TDM_SWIGLU: return product_room(e, p, &t[1], &t[2], params[1], f);
    case TDM_ATTENTION:
        bytes = 4 * ((uint64_t)params[2] + t[0].rows / params[0] + t[0].width);
        tasks = t[0].rows;
        break;
    case TDM_GATED_DELTA:
        /* The least a slice needs, and the most tasks that slices make. */
        bytes = 4 * delta_floats(t[0].width / params[3],
                                 t[2].width / params[2] < LANES ? t[2].width / params[2] : LANES);
        tasks = (uint64_t)params[2] * (t[2].width / params[2] / LANES + 1);
        break;
    default: break;
    }
    if (bytes > worker_share(e)) {
        return no_room(f, bytes, worker_share(e));
    }
    return tasks <= POOL_TASKS || no_room(f, tasks, POOL_TASKS);
}

void run_packet(struct executor *e, const struct packet *p) {
    switch (p->head->op) {
    case TDM_MATMUL: run_matmul(e, p); break;
    case TDM_SWIGLU: run_swiglu(e, p); break;
    case TDM_ATTENTION: run_attention(e, p); break;
    case TDM_CONV: run_conv(e, p); break;
    case TDM_GATED_DELTA: run_gated_delta(e, p); break;
    case TDM_EMBED:
    case TDM_GATHER: run_rows(e, p, p->tensors[1].rows); break;
    default: run_rows(e, p, p->tensors[0].rows); break;
    }
}
