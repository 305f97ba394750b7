#include "executor.h"
#include "kernels/attention.h"
#include "kernels/conv.h"
#include "kernels/delta.h"
#include "kernels/packed.h"
#include "kernels/product.h"
#include "kernels/row.h"

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
    case TDM_SILU_MUL: row_silu_mul(row(&t[0], r), row(&t[1], r), row(&t[2], r), n); break;
    case TDM_SIGMOID_MUL: row_sigmoid_mul(row(&t[0], r), row(&t[1], r), row(&t[2], r), n); break;
    case TDM_ADD: row_add(row(&t[0], r), row(&t[1], r), row(&t[2], r), n); break;
    case TDM_ROPE:
        row_rope(row(&t[0], r), row(&t[1], r / p->head->params[0]), t[1].width / 2, row(&t[2], r), n);
        break;
    case TDM_GATHER: memcpy(row(&t[1], r), row(&t[0], p->words[r]), n * sizeof(float)); break;
    case TDM_DELTA_GATES:
        row_delta_gates(row(&t[0], r), row(&t[1], r), t[2].first, t[3].first, row(&t[4], r), row(&t[5], r), n);
        break;
    case TDM_COPY: {
        const struct tdm_tensor *from = &p->tensors[0], *to = &p->tensors[1];
        bool from_half = from->dtype == TDM_F16, to_half = to->dtype == TDM_F16;
        const uint8_t *x = tensor_memory(j->e, from) + (size_t)r * from->stride * (from_half ? 2 : 4);
        uint8_t *out = tensor_memory(j->e, to) + (size_t)r * to->stride * (to_half ? 2 : 4);
        if (from_half == to_half) {
            memcpy(out, x, (size_t)n * (to_half ? 2 : 4));
        } else if (to_half) {
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

/* Tasks of about this many values. */
#define ROW_TASK 4096

static void run_rows(struct executor *e, const struct packet *p, uint32_t rows) {
    struct rows_job j = {.p = p, .e = e, .rows = rows};
    for (uint32_t i = 0; i < p->head->tensors && i < 6; i++) {
        j.t[i] = view(e, &p->tensors[i]);
    }
    j.each = ROW_TASK / j.t[0].width + 1 + rows / POOL_TASKS;
    pool_run(&e->pool, (rows + j.each - 1) / j.each, some_rows, &j);
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

struct product_job {
    struct view x, out;
    struct weight w, up; /* `up.rows` is 0 but for the fused SwiGLU */
    const uint32_t *chosen; /* rows of the weight, or NULL */
    uint32_t outputs;
    enum act act;
    /* Columns first .. first + columns, rounded; and for `up`, where it rounds otherwise. */
    uint32_t first, columns;
    struct column *rounded, *rounded_up;
    uint8_t *memory;
    uint64_t each; /* bytes of a rounded column */
};

static void round_column(void *context, uint32_t index, uint32_t worker) {
    const struct product_job *j = context;
    (void)worker;
    j->rounded[index] = activation_round(j->act, row(&j->x, j->first + index), j->x.width, j->memory + j->each * index);
}

/* One tile of outputs for every column in hand. */
static void product_task(void *context, uint32_t tile, uint32_t worker) {
    const struct product_job *j = context;
    (void)worker;
    const uint32_t group = product_columns(j->w.dtype), up_group = j->up.rows ? product_columns(j->up.dtype) : group;
    const uint32_t most = group < up_group ? group : up_group, left = j->outputs - tile * LANES;
    for (uint32_t c = 0; c < j->columns; c += most) {
        uint32_t columns = j->columns - c < most ? j->columns - c : most;
        floats out[8], up[8];
        product_tile(j->w.dtype, j->w.memory + j->w.tile_bytes * tile, j->x.width, j->rounded + c, columns, out);
        if (j->up.rows) {
            product_tile(j->up.dtype, j->up.memory + j->up.tile_bytes * tile, j->x.width, j->rounded_up + c, columns, up);
        }
        for (uint32_t i = 0; i < columns; i++) {
            floats y = j->up.rows ? floats_mul(floats_silu(out[i]), up[i]) : out[i];
            floats_store_some(row(&j->out, j->first + c + i) + tile * LANES, y, left);
        }
    }
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

/* Columns that fit on-chip memory at once, rounded both ways where `b` differs from `a`. */
static uint32_t columns_at_once(const struct executor *e, uint32_t width, enum act a, enum act b, uint64_t *each) {
    *each = 2 * sizeof(struct column) + activation_bytes(a, width) + (a == b ? 0 : activation_bytes(b, width));
    uint64_t n = (activation_share(e) - 256) / *each;
    return n > POOL_TASKS ? POOL_TASKS : (uint32_t)n;
}

static uint32_t tiles(uint32_t rows) { return (rows + LANES - 1) / LANES; }

/* Room for a product with weights `a` and `b` (the same for a plain product). */
static bool product_room(const struct executor *e, const struct tdm_tensor *a, const struct tdm_tensor *b,
                         struct fault *f) {
    uint64_t each;
    enum act first = act_for(a->dtype & ~TDM_PACKED), second = act_for(b->dtype & ~TDM_PACKED);
    if (tiles(a->rows) > POOL_TASKS) {
        return no_room(f, tiles(a->rows), POOL_TASKS);
    }
    return columns_at_once(e, a->width, first, second, &each) > 0 || no_room(f, each, activation_share(e) - 256);
}

/* Runs `task` for every batch of columns. */
static void run_product(struct executor *e, struct product_job *j, pool_task *task, uint32_t tasks) {
    enum act act = act_for(j->w.dtype), up = j->up.rows ? act_for(j->up.dtype) : act;
    uint64_t each;
    const uint32_t n = j->x.rows, most = columns_at_once(e, j->x.width, act, up, &each);
    for (j->first = 0; j->first < n; j->first += j->columns) {
        j->columns = n - j->first < most ? n - j->first : most;
        struct column *columns = (struct column *)e->vtcm;
        uint8_t *memory = e->vtcm + (2 * j->columns * sizeof(struct column) + 127) / 128 * 128;
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
        run_product(e, &j, j.chosen ? chosen_task : product_task, j.chosen ? j.outputs : tiles(j.outputs));
    }
}

static void run_swiglu(struct executor *e, const struct packet *p) {
    const struct tdm_tensor *t = p->tensors;
    struct product_job j = {
        .x = view(e, t), .out = view(e, &t[3]), .w = weight(e, &t[1]), .up = weight(e, &t[2]), .outputs = t[1].rows};
    run_product(e, &j, product_task, tiles(j.outputs));
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

static void conv_task(void *context, uint32_t index, uint32_t worker) {
    const struct sequence_job *j = context;
    const struct packet *p = j->p;
    const uint32_t biased = p->head->params[1], first = index * LANES;
    const struct view x = view(j->e, &p->tensors[0]), state = view(j->e, &p->tensors[1]);
    const struct view kernel = view(j->e, &p->tensors[2]), out = view(j->e, &p->tensors[3]);
    (void)worker;
    struct conv c = {.x = x.first + first, .x_stride = x.stride,
                     .state = state.first + first, .state_stride = state.stride,
                     .kernel = row(&kernel, first), .kernel_stride = kernel.stride,
                     .taps = kernel.width, .silu = p->head->params[0], .columns = x.rows,
                     .out = out.first + first, .out_stride = out.stride};
    if (biased) {
        c.bias = view(j->e, &p->tensors[4]).first + first;
    }
    const uint32_t channels = x.width - first < LANES ? x.width - first : LANES;
    conv_channels(&c, channels);
    for (uint32_t i = 4 + biased; i < p->head->tensors; i++) {
        const struct view to = view(j->e, &p->tensors[i]);
        conv_state(&c, channels, p->words[i - 4 - biased], to.first + first, to.stride);
    }
}

static void run_conv(struct executor *e, const struct packet *p) {
    struct sequence_job j = {e, p};
    pool_run(&e->pool, tiles(p->tensors[0].width), conv_task, &j);
}

/* Floats of scratch a head needs: two states and what a chunk leaves. */
static uint64_t delta_floats(uint64_t key_dim, uint64_t value_dim) {
    return 2 * key_dim * value_dim + delta_scratch((uint32_t)value_dim);
}

static void save_states(const struct sequence_job *j, uint32_t t, const float *s, uint32_t first, uint32_t key_dim) {
    for (uint32_t i = 7; i < j->p->head->tensors; i++) {
        if (j->p->words[i - 7] != t) {
            continue;
        }
        const struct view to = view(j->e, &j->p->tensors[i]);
        for (uint32_t m = 0; m < key_dim; m++) {
            memcpy(row(&to, first + m), s + (size_t)m * to.width, to.width * sizeof(float));
        }
    }
}

static void delta_task(void *context, uint32_t index, uint32_t worker) {
    const struct sequence_job *j = context;
    const struct packet *p = j->p;
    const struct executor *e = j->e;
    const uint32_t heads = p->head->params[2], key_heads = p->head->params[3], key_head = index % key_heads;
    const struct view q = view(e, &p->tensors[0]), k = view(e, &p->tensors[1]), v = view(e, &p->tensors[2]);
    const struct view decay = view(e, &p->tensors[3]), beta = view(e, &p->tensors[4]);
    const struct view state = view(e, &p->tensors[5]), out = view(e, &p->tensors[6]);
    const uint32_t key_dim = q.width / key_heads, value_dim = v.width / heads, n = q.rows;
    const struct delta h = {.q = q.first + key_head * key_dim, .q_stride = q.stride,
                            .k = k.first + key_head * key_dim, .k_stride = k.stride,
                            .v = v.first + index * value_dim, .v_stride = v.stride,
                            .decay = decay.first + index, .decay_stride = decay.stride,
                            .beta = beta.first + index, .beta_stride = beta.stride,
                            .key_dim = key_dim, .value_dim = value_dim,
                            .out = out.first + index * value_dim, .out_stride = out.stride};
    const uint32_t first_row = index * key_dim;
    const size_t size = (size_t)key_dim * value_dim;
    float *s = (float *)worker_scratch(e, worker), *next = s + size, *rest = next + size;
    memcpy(s, row(&state, first_row), size * sizeof(float));
    if (p->head->params[0] == 0) {
        for (uint32_t t = 0; t < n; t++) {
            delta_token(&h, t, s, rest);
            save_states(j, t, s, first_row, key_dim);
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
                delta_chunk_state(&h, s, first, after - first, rest, row(&to, first_row), to.stride);
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
    pool_run(&e->pool, p->head->params[2], delta_task, &j);
}

bool room_for_packet(const struct executor *e, const struct packet *p, struct fault *f) {
    const struct tdm_tensor *t = p->tensors;
    const uint32_t *params = p->head->params;
    uint64_t bytes = 0, tasks = 0;
    switch (p->head->op) {
    case TDM_MATMUL:
        for (f->operand = 1; f->operand < p->head->tensors; f->operand += 2) {
            if (!product_room(e, &t[f->operand], &t[f->operand], f)) {
                return false;
            }
        }
        f->operand = 0;
        return true;
    case TDM_SWIGLU: return product_room(e, &t[1], &t[2], f);
    case TDM_ATTENTION:
        bytes = 4 * ((uint64_t)params[2] + t[0].rows / params[0] + t[0].width);
        tasks = t[0].rows;
        break;
    case TDM_GATED_DELTA:
        bytes = 4 * delta_floats(t[0].width / params[3], t[2].width / params[2]);
        tasks = params[2];
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
