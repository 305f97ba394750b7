/* Products: columns rounded into on-chip memory, weight tiles through it, outputs out of it. */
#include "kernels/packed.h"
#include "kernels/product.h"
#include "run.h"

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

void run_matmul(struct executor *e, const struct packet *p) {
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

void run_swiglu(struct executor *e, const struct packet *p) {
    const struct tdm_tensor *t = p->tensors;
    struct product_job j = {
        .x = view(e, t), .out = view(e, &t[3]), .w = weight(e, &t[1]), .up = weight(e, &t[2]), .outputs = t[1].rows};
    run_product(e, p, &j);
}

bool room_for_matmul(const struct executor *e, const struct packet *p, struct fault *f) {
    const struct tdm_tensor *t = p->tensors;
    for (uint32_t i = 1, at = 0; i < p->head->tensors; i += 2) {
        const uint32_t rows = p->words[at], set = rows == TDM_ALL_ROWS ? p->head->params[1] : 0;
        f->operand = i;
        if (!product_room(e, p, &t[i], NULL, set, f)) {
            return false;
        }
        at += 1 + (rows == TDM_ALL_ROWS ? 0 : rows);
    }
    f->operand = 0;
    return true;
}

bool room_for_swiglu(const struct executor *e, const struct packet *p, struct fault *f) {
    return product_room(e, p, &p->tensors[1], &p->tensors[2], p->head->params[1], f);
}
