/* Ops along the sequence: attention, convolution, delta rule. */
#include "kernels/attention.h"
#include "kernels/conv.h"
#include "kernels/delta.h"
#include "run.h"

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

void run_attention(struct executor *e, const struct packet *p) {
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

void run_conv(struct executor *e, const struct packet *p) {
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

void run_gated_delta(struct executor *e, const struct packet *p) {
    struct sequence_job j = {e, p};
    const uint32_t heads = p->head->params[2], value_dim = p->tensors[2].width / heads;
    const uint32_t slice = delta_slice(e, p->tensors[0].width / p->head->params[3], value_dim);
    pool_run(&e->pool, heads * ((value_dim + slice - 1) / slice), delta_task, &j);
}

/* Room for `bytes` of scratch a worker, and for so many tasks. */
static bool room(const struct executor *e, uint64_t bytes, uint64_t tasks, struct fault *f) {
    if (bytes > worker_share(e)) {
        return no_room(f, bytes, worker_share(e));
    }
    return tasks <= POOL_TASKS || no_room(f, tasks, POOL_TASKS);
}

bool room_for_attention(const struct executor *e, const struct packet *p, struct fault *f) {
    const struct tdm_tensor *q = p->tensors;
    const uint64_t positions = (uint64_t)p->head->params[2] + q->rows / p->head->params[0];
    return room(e, 4 * (positions + q->width), q->rows, f);
}

/* The least a slice needs, and the most tasks that slices make. */
bool room_for_gated_delta(const struct executor *e, const struct packet *p, struct fault *f) {
    const uint32_t *params = p->head->params;
    const uint32_t key_dim = p->tensors[0].width / params[3], value_dim = p->tensors[2].width / params[2];
    const uint64_t least = delta_floats(key_dim, value_dim < LANES ? value_dim : LANES);
    return room(e, 4 * least, (uint64_t)params[2] * (value_dim / LANES + 1), f);
}
