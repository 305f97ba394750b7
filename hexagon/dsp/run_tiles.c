/* Products on the matrix unit: activations packed once into on-chip memory, weight tiles unpacked
 * beside them by all workers, multiplied by the one thread that holds the unit. */
#include "kernels/packed.h"
#include "kernels/tile.h"
#include "run.h"

/* Operands of a product: one weight, or SwiGLU's gate and up. */
struct weights {
    uint32_t count, outputs, width;
    uint32_t dtype[2];
    const uint8_t *memory[2];
    uint64_t bytes[2]; /* of 32 packed rows */
};

/* On-chip memory in a product, all but the last in whole tiles; hexagon/src/planner.rs counts the
 * same way:
 *
 *   scales │ results: columns x rows │ activations: columns x depth │ weights: rows x depth │ rooms
 *
 * `columns` and `rows` in blocks of 32, results and weights twice for SwiGLU. Where weights come by
 * DMA each worker has a room for 32 packed rows in use and 32 under way. */
struct tiles_job {
    struct view x, out;
    struct weights w;
    uint32_t most_columns, most_rows, depth; /* the plan's, in blocks and tiles */
    bool dma;
    uint32_t *scales;
    uint16_t *results, *activations, *tiles;
    uint8_t *rooms;
    uint64_t room;
    /* In hand: blocks of columns and of rows, and tiles along the sum. */
    uint32_t column, columns, row, rows, first, count;
    uint32_t each; /* packed blocks of a task */
};

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

static uint64_t largest_bytes(const struct weights *w) {
    return w->count == 2 && w->bytes[1] > w->bytes[0] ? w->bytes[1] : w->bytes[0];
}

/* Packs a pair of the columns in hand. */
static void pack_task(void *context, uint32_t index, uint32_t worker) {
    const struct tiles_job *j = context;
    (void)worker;
    const uint32_t at = j->column * TILE + index * 2, from = j->first * TILE;
    const uint32_t width = least(j->x.width - from, j->count * TILE);
    tile_pack(at < j->x.rows ? row(&j->x, at) + from : NULL, at + 1 < j->x.rows ? row(&j->x, at + 1) + from : NULL,
              width, index % (TILE / 2), j->activations + (size_t)(index / (TILE / 2)) * j->depth * TILE_HALVES);
}

/* Where packed block `unit` of those in hand lies: rows by rows, of each row's weights in turn. */
static const uint8_t *packed_at(const struct tiles_job *j, uint32_t unit) {
    const uint32_t k = unit % j->w.count;
    return j->w.memory[k] + j->w.bytes[k] * (j->row + unit / j->w.count);
}

static void unpack(const struct tiles_job *j, uint32_t unit, const uint8_t *packed) {
    tile_unpack(j->w.dtype[unit % j->w.count], packed, j->w.width, j->first, j->count,
                j->tiles + (size_t)unit * j->depth * TILE_HALVES);
}

static void fetch(const struct tiles_job *j, uint32_t unit, uint8_t *to) {
    const uint32_t bytes = (uint32_t)j->w.bytes[unit % j->w.count];
    carry(to, bytes, packed_at(j, unit), bytes, 1, bytes);
}

/* Unpacks some of the weights in hand, the next ones under way meanwhile. */
static void unpack_task(void *context, uint32_t index, uint32_t worker) {
    const struct tiles_job *j = context;
    const uint32_t first = index * j->each, end = least(j->rows * j->w.count, first + j->each);
    uint8_t *room = j->rooms + j->room * worker;
    if (j->dma) {
        fetch(j, first, room + first % 2 * (j->room / 2));
    }
    for (uint32_t unit = first; unit < end; unit++) {
        if (!j->dma) {
            unpack(j, unit, packed_at(j, unit));
            continue;
        }
        if (unit + 1 < end) {
            fetch(j, unit + 1, room + (unit + 1) % 2 * (j->room / 2));
        }
        port_dma_wait(unit + 1 < end ? 1 : 0);
        unpack(j, unit, room + unit % 2 * (j->room / 2));
    }
}

static uint16_t *result(const struct tiles_job *j, uint32_t column, uint32_t unit) {
    return j->results + ((size_t)column * j->rows * j->w.count + unit) * TILE_HALVES;
}

/* Stores a tile of results, for SwiGLU those of both weights as one. */
static void store_task(void *context, uint32_t index, uint32_t worker) {
    const struct tiles_job *j = context;
    (void)worker;
    const uint32_t block = index / j->rows, unit = index % j->rows * j->w.count;
    const uint16_t *y = result(j, block, unit), *up = y + TILE_HALVES;
    const uint32_t at = (j->row + index % j->rows) * TILE, left = j->w.outputs - at;
    const uint32_t first = (j->column + block) * TILE, columns = least(j->x.rows - first, TILE);
    for (uint32_t c = 0; c < columns; c++) {
        const int high = c % 2 ? 16 : 0;
        floats v = floats_of_halves(words_shr(words_load(y + tile_place(c / 2 * 2, 0)), high));
        if (j->w.count == 2) {
            const words other = words_load(up + tile_place(c / 2 * 2, 0));
            v = floats_mul(floats_silu(v), floats_of_halves(words_shr(other, high)));
        }
        floats_store_some(row(&j->out, first + c) + at, v, left);
    }
}

static void pack_all(struct executor *e, struct tiles_job *j) {
    pool_run(&e->pool, j->columns * TILE / 2, pack_task, j);
}

static void unpack_all(struct executor *e, struct tiles_job *j) {
    const uint32_t units = j->rows * j->w.count;
    j->each = (units + e->pool.workers - 1) / e->pool.workers;
    pool_run(&e->pool, (units + j->each - 1) / j->each, unpack_task, j);
}

/* The products of what is in hand, whole sums. */
static void multiply(const struct tiles_job *j) {
    for (uint32_t c = 0; c < j->columns; c++) {
        for (uint32_t unit = 0; unit < j->rows * j->w.count; unit++) {
            port_tiles_clear(j->scales);
            port_tiles_add(j->activations + (size_t)c * j->depth * TILE_HALVES,
                           j->tiles + (size_t)unit * j->depth * TILE_HALVES, j->depth);
            port_tiles_store(result(j, c, unit));
        }
    }
}

/* One block of columns with one of rows, of which on-chip memory holds a part of the sum at a time. */
static void multiply_in_parts(struct executor *e, struct tiles_job *j) {
    const struct weights all = j->w;
    const uint32_t whole = tile_blocks(all.width);
    for (uint32_t k = 0; k < all.count; k++) {
        port_tiles_clear(j->scales);
        j->w = (struct weights){1, all.outputs, all.width, {all.dtype[k]}, {all.memory[k]}, {all.bytes[k]}};
        for (j->first = 0; j->first < whole; j->first += j->count) {
            j->count = least(whole - j->first, j->depth);
            pack_all(e, j);
            unpack_all(e, j);
            port_tiles_add(j->activations, j->tiles, j->count);
        }
        port_tiles_store(j->results + (size_t)k * TILE_HALVES);
    }
    j->w = all;
}

static void run_tiles(struct executor *e, const struct packet *p, struct tiles_job *j) {
    const uint32_t columns = tile_blocks(j->x.rows), rows = tile_blocks(j->w.outputs), whole = tile_blocks(j->w.width);
    j->most_columns = least(p->head->params[0], columns);
    j->most_rows = least(p->head->params[1], rows);
    j->depth = p->head->params[2];
    j->dma = p->head->params[3] != 0;
    j->scales = (uint32_t *)e->vtcm;
    j->results = (uint16_t *)(e->vtcm + TILE_BYTES);
    j->activations = j->results + (size_t)j->most_columns * j->most_rows * j->w.count * TILE_HALVES;
    j->tiles = j->activations + (size_t)j->most_columns * j->depth * TILE_HALVES;
    j->rooms = (uint8_t *)(j->tiles + (size_t)j->most_rows * j->w.count * j->depth * TILE_HALVES);
    j->room = 2 * largest_bytes(&j->w);
    tile_scales(j->scales);
    for (j->column = 0; j->column < columns; j->column += j->columns) {
        j->columns = least(columns - j->column, j->most_columns);
        j->first = 0;
        j->count = j->depth;
        if (j->depth == whole) {
            pack_all(e, j);
        }
        for (j->row = 0; j->row < rows; j->row += j->rows) {
            j->rows = least(rows - j->row, j->most_rows);
            if (j->depth == whole) {
                unpack_all(e, j);
                multiply(j);
            } else {
                multiply_in_parts(e, j);
            }
            pool_run(&e->pool, j->columns * j->rows, store_task, j);
        }
    }
}

static struct weights weights(const struct executor *e, const struct tdm_tensor *a, const struct tdm_tensor *b) {
    struct weights w = {.count = b == NULL ? 1 : 2, .outputs = a->rows, .width = a->width};
    for (uint32_t k = 0; k < w.count; k++) {
        const struct tdm_tensor *t = k == 0 ? a : b;
        w.dtype[k] = t->dtype & ~TDM_PACKED;
        w.memory[k] = tensor_memory(e, t);
        w.bytes[k] = packed_tile_bytes(w.dtype[k], t->width);
    }
    return w;
}

static bool tiles_room(const struct executor *e, const struct packet *p, const struct weights *w, struct fault *f) {
    const uint32_t *params = p->head->params;
    const uint64_t columns = least(params[0], tile_blocks(p->tensors[0].rows));
    const uint64_t rows = (uint64_t)least(params[1], tile_blocks(w->outputs)) * w->count, depth = params[2];
    if (columns * (TILE / 2) > POOL_TASKS || columns * rows > POOL_TASKS) {
        return no_room(f, columns * (rows > TILE / 2 ? rows : TILE / 2), POOL_TASKS);
    }
    uint64_t bytes = (1 + columns * rows + (columns + rows) * depth) * TILE_BYTES;
    bytes += params[3] != 0 ? 2 * e->pool.workers * largest_bytes(w) : 0;
    return bytes <= e->vtcm_bytes || no_room(f, bytes, e->vtcm_bytes);
}

bool room_for_matmul_tiles(const struct executor *e, const struct packet *p, struct fault *f) {
    for (uint32_t i = 1; i < p->head->tensors; i += 2) {
        const struct weights w = weights(e, &p->tensors[i], NULL);
        f->operand = i;
        if (!tiles_room(e, p, &w, f)) {
            return false;
        }
    }
    f->operand = 0;
    return true;
}

bool room_for_swiglu_tiles(const struct executor *e, const struct packet *p, struct fault *f) {
    const struct weights w = weights(e, &p->tensors[1], &p->tensors[2]);
    return tiles_room(e, p, &w, f);
}

void run_matmul_tiles(struct executor *e, const struct packet *p) {
    const struct tdm_tensor *t = p->tensors;
    for (uint32_t i = 1; i < p->head->tensors; i += 2) {
        struct tiles_job j = {.x = view(e, t), .out = view(e, &t[i + 1]), .w = weights(e, &t[i], NULL)};
        run_tiles(e, p, &j);
    }
}

void run_swiglu_tiles(struct executor *e, const struct packet *p) {
    const struct tdm_tensor *t = p->tensors;
    struct tiles_job j = {.x = view(e, t), .out = view(e, &t[3]), .w = weights(e, &t[1], &t[2])};
    run_tiles(e, p, &j);
}
