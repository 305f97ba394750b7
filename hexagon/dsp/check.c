#include "executor.h"
#include "kernels/conv.h"
#include "kernels/packed.h"
#include "kernels/tile.h"

/* Sizes beyond which no map reaches; keeps sums of products within 64 bits. */
#define MOST_ROWS (1u << 30)
#define MOST_WIDTH (1u << 24)

struct checker {
    const struct executor *e;
    const struct packet *p;
    struct fault *f;
};

static bool refuse(const struct checker *c, uint32_t status, uint32_t operand, uint64_t value, uint64_t limit) {
    c->f->status = status;
    c->f->operand = operand;
    c->f->value = value;
    c->f->limit = limit;
    return false;
}

static uint32_t value_bytes(uint32_t dtype) { return dtype == TDM_F32 ? 4 : 2; }

static uint64_t step_bytes(const struct tdm_tensor *t) { return (uint64_t)t->stride * value_bytes(t->dtype); }
static uint64_t row_bytes(const struct tdm_tensor *t) { return (uint64_t)t->width * value_bytes(t->dtype); }

/* Bytes from the first value to behind the last. */
static uint64_t tensor_bytes(const struct tdm_tensor *t) {
    if (t->dtype & TDM_PACKED) {
        return ((uint64_t)t->rows + 31) / 32 * packed_tile_bytes(t->dtype & ~TDM_PACKED, t->width);
    }
    return step_bytes(t) * (t->rows - 1) + row_bytes(t);
}

/* In a map, inside it, aligned; its type is not looked at. */
static bool bounds(const struct checker *c, uint32_t i) {
    const struct tdm_tensor *t = &c->p->tensors[i];
    if (t->map >= TDM_MAPS || c->e->maps[t->map].memory == NULL) {
        return refuse(c, TDM_E_MAP, i, t->map, TDM_MAPS);
    }
    if (t->rows == 0 || t->rows > MOST_ROWS || t->width == 0 || t->width > MOST_WIDTH || t->stride < t->width) {
        return refuse(c, TDM_E_SHAPE, i, t->rows, t->width);
    }
    uint32_t alignment = t->dtype & TDM_PACKED ? 128 : value_bytes(t->dtype);
    if (t->offset % alignment != 0) {
        return refuse(c, TDM_E_ALIGN, i, t->offset, alignment);
    }
    uint64_t end = t->offset + tensor_bytes(t);
    if (end > c->e->maps[t->map].bytes) {
        return refuse(c, TDM_E_BOUNDS, i, end, c->e->maps[t->map].bytes);
    }
    return true;
}

/* The operand is an f32 tensor; any shape where `rows` or `width` is 0. */
static bool is_f32(const struct checker *c, uint32_t i, uint64_t rows, uint64_t width) {
    const struct tdm_tensor *t = &c->p->tensors[i];
    if (t->dtype != TDM_F32) {
        return refuse(c, TDM_E_DTYPE, i, t->dtype, TDM_F32);
    }
    if (!bounds(c, i)) {
        return false;
    }
    if (rows != 0 && t->rows != rows) {
        return refuse(c, TDM_E_SHAPE, i, t->rows, rows);
    }
    if (width != 0 && t->width != width) {
        return refuse(c, TDM_E_SHAPE, i, t->width, width);
    }
    return true;
}

/* An f32 or f16 tensor of this shape. */
static bool is_cells(const struct checker *c, uint32_t i, uint64_t rows, uint64_t width) {
    const struct tdm_tensor *t = &c->p->tensors[i];
    if (t->dtype != TDM_F32 && t->dtype != TDM_F16) {
        return refuse(c, TDM_E_DTYPE, i, t->dtype, TDM_F16);
    }
    if (!bounds(c, i)) {
        return false;
    }
    if (t->rows != rows) {
        return refuse(c, TDM_E_SHAPE, i, t->rows, rows);
    }
    return t->width == width || refuse(c, TDM_E_SHAPE, i, t->width, width);
}

/* A packed weight of `width` inputs. */
static bool is_weight(const struct checker *c, uint32_t i, uint32_t width) {
    const struct tdm_tensor *t = &c->p->tensors[i];
    uint32_t block = packed_block(t->dtype & ~TDM_PACKED);
    if (!(t->dtype & TDM_PACKED) || block == 0) {
        return refuse(c, TDM_E_DTYPE, i, t->dtype, TDM_PACKED);
    }
    if (!bounds(c, i)) {
        return false;
    }
    if (t->width != width || t->stride != width || (block > 2 && width % block != 0)) {
        return refuse(c, TDM_E_SHAPE, i, t->width, width);
    }
    return true;
}

static bool operands(const struct checker *c, uint32_t need) {
    return c->p->head->tensors == need || refuse(c, TDM_E_OPERANDS, 0, c->p->head->tensors, need);
}

static bool words(const struct checker *c, uint32_t need) {
    return c->p->head->words == need || refuse(c, TDM_E_OPERANDS, 0, c->p->head->words, need);
}

static bool index_below(const struct checker *c, uint32_t operand, uint64_t value, uint64_t limit) {
    return value < limit || refuse(c, TDM_E_INDEX, operand, value, limit);
}

/* Parameter `i` divides `whole` and is not 0. */
static bool divides(const struct checker *c, uint32_t i, uint32_t whole) {
    uint32_t parts = c->p->head->params[i];
    return (parts != 0 && whole % parts == 0 && whole >= parts) || refuse(c, TDM_E_PARAM, i, parts, whole);
}

/* Where a view starts in its file. */
static uint64_t place(const struct checker *c, const struct tdm_tensor *t) {
    return c->e->maps[t->map].file_offset + t->offset;
}

static bool same_file(const struct checker *c, const struct tdm_tensor *a, const struct tdm_tensor *b) {
    return c->e->maps[a->map].file == c->e->maps[b->map].file;
}

/* Two views share a byte. Compared by place in their file, so that two maps of one window
 * hide nothing. Views that interleave with the same stride are told apart. */
static bool overlap(const struct checker *c, const struct tdm_tensor *a, const struct tdm_tensor *b) {
    uint64_t a0 = place(c, a), b0 = place(c, b);
    if (!same_file(c, a, b) || a0 >= b0 + tensor_bytes(b) || b0 >= a0 + tensor_bytes(a)) {
        return false;
    }
    if ((a->dtype | b->dtype) & TDM_PACKED || step_bytes(a) != step_bytes(b)) {
        return true;
    }
    uint64_t step = step_bytes(a), phase = (b0 % step + step - a0 % step) % step;
    return !(phase >= row_bytes(a) && phase + row_bytes(b) <= step);
}

static bool same(const struct checker *c, const struct tdm_tensor *a, const struct tdm_tensor *b) {
    return same_file(c, a, b) && place(c, a) == place(c, b) &&
           a->dtype == b->dtype && a->rows == b->rows && a->width == b->width && a->stride == b->stride;
}

/* Operand `out` may be written: it overlaps no other operand but those of `in_place` (a bit an
 * operand) that are the very same view. */
static bool writes(const struct checker *c, uint32_t out, uint64_t in_place) {
    const struct tdm_tensor *t = &c->p->tensors[out];
    if (c->e->maps[t->map].read_only) {
        return refuse(c, TDM_E_READ_ONLY, out, t->map, 0);
    }
    for (uint32_t i = 0; i < c->p->head->tensors; i++) {
        const struct tdm_tensor *other = &c->p->tensors[i];
        if (i == out || ((in_place >> i & 1) != 0 && same(c, t, other))) {
            continue;
        }
        if (overlap(c, t, other)) {
            return refuse(c, TDM_E_OVERLAP, out, i, 0);
        }
    }
    return true;
}

static bool row_op(const struct checker *c, uint32_t inputs, uint64_t in_place) {
    const struct tdm_tensor *x = c->p->tensors;
    if (!operands(c, inputs + 1) || !words(c, 0) || !is_f32(c, 0, 0, 0)) {
        return false;
    }
    for (uint32_t i = 1; i <= inputs; i++) {
        if (!is_f32(c, i, x->rows, x->width)) {
            return false;
        }
    }
    return writes(c, inputs, in_place);
}

static bool check_embed(const struct checker *c) {
    const struct tdm_tensor *t = c->p->tensors;
    if (!operands(c, 2) || !is_weight(c, 0, t[0].width) || !words(c, t[1].rows) ||
        !is_f32(c, 1, t[1].rows, t[0].width)) {
        return false;
    }
    for (uint32_t i = 0; i < t[1].rows; i++) {
        if (!index_below(c, 0, c->p->words[i], t[0].rows)) {
            return false;
        }
    }
    return writes(c, 1, 0);
}

static bool check_norm(const struct checker *c, bool gated) {
    const struct tdm_tensor *x = c->p->tensors;
    uint32_t weight = gated ? 2 : 1, out = weight + 1;
    if (!operands(c, out + 1) || !words(c, 0) || !is_f32(c, 0, 0, 0) || (gated && !is_f32(c, 1, x->rows, x->width))) {
        return false;
    }
    return is_f32(c, weight, 1, x->width) && is_f32(c, out, x->rows, x->width) && writes(c, out, gated ? 7 : 3);
}

/* The plan of a product. */
static bool plan(const struct checker *c) {
    const uint32_t *params = c->p->head->params;
    if (params[0] == 0) {
        return refuse(c, TDM_E_PARAM, 0, 0, 1);
    }
    return params[1] <= TDM_TILES || refuse(c, TDM_E_PARAM, 1, params[1], TDM_TILES);
}

static bool check_matmul(const struct checker *c) {
    const struct tdm_tensor *t = c->p->tensors;
    const uint32_t tensors = c->p->head->tensors, all = c->p->head->words;
    if (tensors < 3 || tensors % 2 == 0) {
        return refuse(c, TDM_E_OPERANDS, 0, tensors, 3);
    }
    if (!plan(c) || !is_f32(c, 0, 0, 0)) {
        return false;
    }
    uint32_t at = 0;
    for (uint32_t i = 1; i < tensors; i += 2) {
        if (!is_weight(c, i, t[0].width)) {
            return false;
        }
        if (at >= all) {
            return refuse(c, TDM_E_OPERANDS, i, all, (uint64_t)at + 1);
        }
        uint32_t outputs = c->p->words[at++];
        if (outputs == TDM_ALL_ROWS) {
            outputs = t[i].rows;
        } else {
            if (outputs == 0 || outputs > all - at) {
                return refuse(c, TDM_E_OPERANDS, i, all, (uint64_t)at + outputs);
            }
            for (uint32_t r = 0; r < outputs; r++) {
                if (!index_below(c, i, c->p->words[at + r], t[i].rows)) {
                    return false;
                }
            }
            at += outputs;
        }
        if (!is_f32(c, i + 1, t[0].rows, outputs)) {
            return false;
        }
    }
    if (!words(c, at)) {
        return false;
    }
    for (uint32_t i = 2; i < tensors; i += 2) {
        if (!writes(c, i, 0)) {
            return false;
        }
    }
    return true;
}

static bool check_swiglu(const struct checker *c, bool (*planned)(const struct checker *c)) {
    const struct tdm_tensor *t = c->p->tensors;
    if (!operands(c, 4) || !words(c, 0) || !is_f32(c, 0, 0, 0) || !planned(c) || !is_weight(c, 1, t[0].width) ||
        !is_weight(c, 2, t[0].width)) {
        return false;
    }
    if (t[1].rows != t[2].rows) {
        return refuse(c, TDM_E_SHAPE, 2, t[2].rows, t[1].rows);
    }
    return is_f32(c, 3, t[0].rows, t[1].rows) && writes(c, 3, 0);
}

/* The plan of a product in tiles. */
static bool plan_of_tiles(const struct checker *c) {
    const uint32_t *params = c->p->head->params, whole = tile_blocks(c->p->tensors[0].width);
    for (uint32_t i = 0; i < 2; i++) {
        if (params[i] == 0) {
            return refuse(c, TDM_E_PARAM, i, 0, 1);
        }
    }
    const bool part = params[2] < whole && params[2] != 0 && params[0] == 1 && params[1] == 1;
    if (params[2] != whole && !part) {
        return refuse(c, TDM_E_PARAM, 2, params[2], whole);
    }
    return params[3] <= !part || refuse(c, TDM_E_PARAM, 3, params[3], !part);
}

static bool check_matmul_tiles(const struct checker *c) {
    const struct tdm_tensor *t = c->p->tensors;
    const uint32_t tensors = c->p->head->tensors;
    if (tensors < 3 || tensors % 2 == 0) {
        return refuse(c, TDM_E_OPERANDS, 0, tensors, 3);
    }
    if (!words(c, 0) || !is_f32(c, 0, 0, 0) || !plan_of_tiles(c)) {
        return false;
    }
    for (uint32_t i = 1; i < tensors; i += 2) {
        if (!is_weight(c, i, t[0].width) || !is_f32(c, i + 1, t[0].rows, t[i].rows)) {
            return false;
        }
    }
    for (uint32_t i = 2; i < tensors; i += 2) {
        if (!writes(c, i, 0)) {
            return false;
        }
    }
    return true;
}

static bool check_rope(const struct checker *c) {
    const struct tdm_tensor *t = c->p->tensors;
    if (!operands(c, 3) || !words(c, 0) || !is_f32(c, 0, 0, 0) || !divides(c, 0, t[0].rows) ||
        !is_f32(c, 1, t[0].rows / c->p->head->params[0], 0)) {
        return false;
    }
    if (t[1].width % 2 != 0 || t[1].width > t[0].width) {
        return refuse(c, TDM_E_SHAPE, 1, t[1].width, t[0].width);
    }
    return is_f32(c, 2, t[0].rows, t[0].width) && writes(c, 2, 3);
}

static bool check_gather(const struct checker *c) {
    const struct tdm_tensor *t = c->p->tensors;
    if (!operands(c, 2) || !is_f32(c, 0, 0, 0) || !words(c, t[1].rows) || !is_f32(c, 1, t[1].rows, t[0].width)) {
        return false;
    }
    for (uint32_t i = 0; i < t[1].rows; i++) {
        if (!index_below(c, 0, c->p->words[i], t[0].rows)) {
            return false;
        }
    }
    return writes(c, 1, 0);
}

static bool check_attention(const struct checker *c) {
    const struct tdm_tensor *t = c->p->tensors;
    const uint32_t *params = c->p->head->params;
    if (!operands(c, 4) || !words(c, 0) || !is_f32(c, 0, 0, 0) || !divides(c, 0, t[0].rows) ||
        !divides(c, 1, params[0])) {
        return false;
    }
    uint64_t width = (uint64_t)params[1] * t[0].width, columns = t[0].rows / params[0];
    return is_cells(c, 1, t[1].rows, width) && is_cells(c, 2, t[1].rows, width) &&
           index_below(c, 1, params[2] + columns - 1, t[1].rows) && is_f32(c, 3, t[0].rows, t[0].width) &&
           writes(c, 3, 0);
}

/* States from operand `first` on, as wide as `state`; a word each, below `columns`. */
static bool check_states(const struct checker *c, uint32_t first, uint32_t state, uint32_t columns) {
    const struct tdm_tensor *t = c->p->tensors;
    if (!words(c, c->p->head->tensors - first)) {
        return false;
    }
    for (uint32_t i = first; i < c->p->head->tensors; i++) {
        if (!is_f32(c, i, t[state].rows, t[state].width) || !index_below(c, i, c->p->words[i - first], columns)) {
            return false;
        }
    }
    for (uint32_t i = first; i < c->p->head->tensors; i++) {
        if (!writes(c, i, 0)) {
            return false;
        }
    }
    return true;
}

static bool check_conv(const struct checker *c) {
    const struct tdm_tensor *t = c->p->tensors;
    const uint32_t tensors = c->p->head->tensors, biased = c->p->head->params[1];
    if (biased > 1) {
        return refuse(c, TDM_E_PARAM, 1, biased, 1);
    }
    if (tensors < 4 + biased) {
        return refuse(c, TDM_E_OPERANDS, 0, tensors, 4 + biased);
    }
    if (!is_f32(c, 0, 0, 0) || !is_f32(c, 2, t[0].width, 0)) {
        return false;
    }
    if (t[2].width < 2 || t[2].width > CONV_TAPS) {
        return refuse(c, TDM_E_SHAPE, 2, t[2].width, CONV_TAPS);
    }
    return is_f32(c, 1, t[2].width - 1, t[0].width) && is_f32(c, 3, t[0].rows, t[0].width) &&
           (!biased || is_f32(c, 4, 1, t[0].width)) && check_states(c, 4 + biased, 1, t[0].rows) && writes(c, 3, 0);
}

static bool check_delta_gates(const struct checker *c) {
    const struct tdm_tensor *t = c->p->tensors;
    if (!operands(c, 6) || !words(c, 0) || !is_f32(c, 0, 0, 0) || !is_f32(c, 1, t[0].rows, t[0].width) ||
        !is_f32(c, 2, 1, t[0].width) || !is_f32(c, 3, 1, t[0].width) || !is_f32(c, 4, t[0].rows, t[0].width) ||
        !is_f32(c, 5, t[0].rows, t[0].width)) {
        return false;
    }
    return writes(c, 4, 1) && writes(c, 5, 2);
}

static bool check_gated_delta(const struct checker *c) {
    const struct tdm_tensor *t = c->p->tensors;
    const uint32_t *params = c->p->head->params;
    const uint32_t heads = params[2], key_heads = params[3];
    if (c->p->head->tensors < 7) {
        return refuse(c, TDM_E_OPERANDS, 0, c->p->head->tensors, 7);
    }
    if (params[0] > 1) {
        return refuse(c, TDM_E_PARAM, 0, params[0], 1);
    }
    if (!is_f32(c, 0, 0, 0) || !is_f32(c, 1, t[0].rows, t[0].width) || !divides(c, 3, t[0].width) ||
        !divides(c, 3, heads) || !is_f32(c, 2, t[0].rows, 0) || !divides(c, 2, t[2].width) ||
        !is_f32(c, 3, t[0].rows, heads) || !is_f32(c, 4, t[0].rows, heads)) {
        return false;
    }
    uint64_t key_dim = t[0].width / key_heads, value_dim = t[2].width / heads;
    if (!is_f32(c, 5, heads * key_dim, value_dim)) {
        return false;
    }
    if (t[5].stride != t[5].width) {
        return refuse(c, TDM_E_SHAPE, 5, t[5].stride, t[5].width);
    }
    return index_below(c, 0, (uint64_t)params[1] + t[0].rows, 1ull << 31) && is_f32(c, 6, t[0].rows, t[2].width) &&
           check_states(c, 7, 5, t[0].rows) && writes(c, 6, 0);
}

bool check_packet(const struct executor *e, const struct packet *p, struct fault *fault) {
    const struct checker c = {e, p, fault};
    const struct tdm_tensor *t = p->tensors;
    switch (p->head->op) {
    case TDM_EMBED: return check_embed(&c);
    case TDM_RMS_NORM: return check_norm(&c, false);
    case TDM_GATED_NORM: return check_norm(&c, true);
    case TDM_L2_NORM: return row_op(&c, 1, 1) && divides(&c, 0, t->width);
    case TDM_MATMUL: return check_matmul(&c);
    case TDM_SWIGLU: return check_swiglu(&c, plan);
    case TDM_MATMUL_TILES: return check_matmul_tiles(&c);
    case TDM_SWIGLU_TILES: return check_swiglu(&c, plan_of_tiles);
    case TDM_SILU_MUL:
    case TDM_SIGMOID_MUL:
    case TDM_ADD: return row_op(&c, 2, 3);
    case TDM_ROPE: return check_rope(&c);
    case TDM_COPY:
        return operands(&c, 2) && words(&c, 0) && is_cells(&c, 0, t[0].rows, t[0].width) &&
               is_cells(&c, 1, t[0].rows, t[0].width) && writes(&c, 1, 0);
    case TDM_GATHER: return check_gather(&c);
    case TDM_ATTENTION: return check_attention(&c);
    case TDM_CONV: return check_conv(&c);
    case TDM_DELTA_GATES: return check_delta_gates(&c);
    case TDM_GATED_DELTA: return check_gated_delta(&c);
    default: return refuse(&c, TDM_E_OP, 0, p->head->op, TDM_SWIGLU_TILES);
    }
}
