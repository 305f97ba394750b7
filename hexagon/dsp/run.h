/* What the ops share that run.c and its neighbours hand out to the pool. */
#ifndef TANDEM_RUN_H
#define TANDEM_RUN_H

#include "executor.h"
#include "kernels/float.h"
#include "port/port.h"

/* A float tensor in hand. */
struct view {
    float *first;
    uint32_t stride, rows, width;
};

static inline struct view view(const struct executor *e, const struct tdm_tensor *t) {
    return (struct view){(float *)tensor_memory(e, t), t->stride, t->rows, t->width};
}

static inline float *row(const struct view *v, uint32_t r) { return v->first + (size_t)r * v->stride; }

static inline float param(const struct packet *p, int i) { return float_of_bits(p->head->params[i]); }

/* Vectors of this many values. */
static inline uint32_t tiles(uint32_t rows) { return (rows + LANES - 1) / LANES; }

static inline bool no_room(struct fault *f, uint64_t bytes, uint64_t limit) {
    f->status = TDM_E_SCRATCH;
    f->value = bytes;
    f->limit = limit;
    return false;
}

/* Starts a copy by DMA; strides and width in bytes. */
static inline void carry(void *to, uint32_t to_stride, const void *from, uint32_t from_stride, uint32_t rows,
                         uint32_t width) {
    const struct port_copy copy = {to, from, rows, width, to_stride, from_stride};
    port_dma_start(&copy);
}

/* run_product.c */
bool room_for_matmul(const struct executor *e, const struct packet *p, struct fault *f);
bool room_for_swiglu(const struct executor *e, const struct packet *p, struct fault *f);
void run_matmul(struct executor *e, const struct packet *p);
void run_swiglu(struct executor *e, const struct packet *p);

/* run_tiles.c: products on the matrix unit, which the caller holds. */
bool room_for_matmul_tiles(const struct executor *e, const struct packet *p, struct fault *f);
bool room_for_swiglu_tiles(const struct executor *e, const struct packet *p, struct fault *f);
void run_matmul_tiles(struct executor *e, const struct packet *p);
void run_swiglu_tiles(struct executor *e, const struct packet *p);

/* run_sequence.c: ops whose columns follow each other in time. */
bool room_for_attention(const struct executor *e, const struct packet *p, struct fault *f);
bool room_for_gated_delta(const struct executor *e, const struct packet *p, struct fault *f);
void run_attention(struct executor *e, const struct packet *p);
void run_conv(struct executor *e, const struct packet *p);
void run_gated_delta(struct executor *e, const struct packet *p);

#endif
