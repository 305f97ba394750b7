/* The packet ABI between the host driver (hexagon/src) and the DSP.
 *
 * A request and its reply are messages of 64 bytes: on the phone they travel through
 * dspqueue, in emulation through a socket. Everything larger lies in memory both sides see.
 * The DSP has 32-bit addresses and a model may be larger, so memory is named by (map, offset):
 * TDM_MAP makes a window of a shared file known as a map, TDM_UNMAP forgets it. In emulation
 * there is one file, number 0; on the phone every buffer is a file, named by its descriptor.
 *
 * TDM_RUN names a batch: `count` packets one after the other in a map. The executor copies
 * the batch out, checks every packet of it, and only then runs the first.
 *
 *   batch   │ packet │ packet │ ...
 *   packet  │ tdm_packet (48) │ tdm_tensor (24) x tensors │ word (4) x words │
 *
 * Power votes go another way, past the queue, so that they are answered whatever it does: a
 * tdm_power and its tdm_power_reply (on the phone a call of its own, in emulation a socket of
 * its own). A session starts without votes, and without votes no batch is run.
 *
 * All values are little-endian. hexagon/src/abi.rs mirrors this file by hand; its tests read
 * this text and compare every TDM_ number and every TDM_FIELD line. (bindgen would need
 * libclang wherever the daemon is built; the check costs nothing and sees the same mistakes.)
 */
#ifndef TANDEM_PACKET_H
#define TANDEM_PACKET_H

#include <stddef.h>
#include <stdint.h>

#define TDM_MAGIC 0x4d444e54
/* Raised with every change of this file that the other side can notice. */
#define TDM_VERSION 4

/* Request kinds. */
#define TDM_HELLO 1    /* reply: value = worker threads, limit = bytes of on-chip memory */
#define TDM_MAP 2      /* map, file, file_offset, bytes, flags */
#define TDM_UNMAP 3    /* map */
#define TDM_RUN 4      /* map, offset, bytes, count; reply: value = batches run by the session so far,
                        * limit = bytes that DMA carried from or to memory for this one */
#define TDM_GOODBYE 5  /* reply, then the end of the session */

/* Request flags of TDM_MAP. */
#define TDM_READ_ONLY 1

/* Limits. */
#define TDM_MAPS 4096         /* map numbers are below */
#define TDM_MAP_BYTES 0x40000000 /* the largest map */
#define TDM_BATCH_BYTES 0x100000 /* the largest batch */
#define TDM_TENSORS 64        /* tensors of a packet, at most */
#define TDM_PAGE 0x10000      /* offsets and sizes of maps are multiples */

/* Statuses. `op`: index of the packet in its batch; `operand`: index of its tensor. */
#define TDM_OK 0
#define TDM_E_MAGIC 1      /* not a request; value = what stood there */
#define TDM_E_VERSION 2    /* value = the request's version, limit = the executor's */
#define TDM_E_KIND 3       /* value = the kind */
#define TDM_E_MAP 4        /* no such map; value = its number */
#define TDM_E_MAP_USED 5   /* TDM_MAP of a number in use; value = its number */
#define TDM_E_MAP_REFUSED 6 /* the system refused, or size or offset are no multiples; value = bytes */
#define TDM_E_BATCH 7      /* a batch outside its map, too large or misaligned; value = bytes, limit */
#define TDM_E_PACKET 8     /* a packet whose sizes do not add up; value = its bytes, limit = bytes left */
#define TDM_E_OP 9         /* no such op; value = its number */
#define TDM_E_OPERANDS 10  /* wrong number of tensors or words; value, limit = the number needed */
#define TDM_E_DTYPE 11     /* a type the operand cannot have; value = the type */
#define TDM_E_BOUNDS 12    /* a tensor outside its map; value = its end, limit = the map's bytes */
#define TDM_E_ALIGN 13     /* a tensor's offset; value = the offset, limit = the alignment */
#define TDM_E_READ_ONLY 14 /* an output in a read-only map; value = the map */
#define TDM_E_SHAPE 15     /* a shape that does not fit the others; value, limit = the size needed */
#define TDM_E_OVERLAP 16   /* an output over another operand; value = the other's index */
#define TDM_E_INDEX 17     /* an index out of range; value, limit */
#define TDM_E_PARAM 18     /* a parameter out of range; operand = its index, value */
#define TDM_E_SCRATCH 19   /* needs more on-chip memory than there is; value = bytes, limit */
#define TDM_E_NO_VOTES 20  /* a batch while power votes are not held */
#define TDM_E_BUSY 21      /* votes that change while a batch runs or others are being set */
#define TDM_E_POWER 22     /* the platform refused the votes */
#define TDM_E_UNIT 23      /* the platform did not give the matrix unit; the batch was not run */

/* How fast a clock is asked to run. */
#define TDM_CORNER_OFF 0 /* no vote. Of `clock`: everything is released, on-chip memory is lost */
#define TDM_CORNER_LOW 1
#define TDM_CORNER_NOMINAL 2
#define TDM_CORNER_MAX 3

/* Element types: ggml's numbers. A weight or table is TDM_PACKED (see kernels/packed.h). */
#define TDM_F32 0
#define TDM_F16 1
#define TDM_Q4_0 2
#define TDM_Q4_1 3
#define TDM_Q5_0 6
#define TDM_Q8_0 8
#define TDM_Q4_K 12
#define TDM_Q5_K 13
#define TDM_Q6_K 14
#define TDM_BF16 30
#define TDM_PACKED 0x100

/* Ops: tensors in order; params (f: bits of a float); words. Meanings: daemon/program/src/op.rs. */
#define TDM_EMBED 1       /* table(packed) out; scale f; ids */
#define TDM_RMS_NORM 2    /* x weight out; eps f */
#define TDM_L2_NORM 3     /* x out; groups, eps f, scale f */
#define TDM_MATMUL 4      /* x (weight(packed) out)..; columns, tiles; for each product: TDM_ALL_ROWS, or a count and rows */
#define TDM_SWIGLU 5      /* x gate(packed) up(packed) out; columns, tiles */
#define TDM_SILU_MUL 6    /* gate up out */
#define TDM_SIGMOID_MUL 7 /* x gate out */
#define TDM_ADD 8         /* a b out */
#define TDM_ROPE 9        /* x table out; heads */
#define TDM_COPY 10       /* x out */
#define TDM_GATHER 11     /* x out; -; rows */
#define TDM_ATTENTION 12  /* q k v out; heads, kv_heads, past, scale f */
#define TDM_CONV 13       /* x state kernel out [bias] to..; silu, bias there; after.. */
#define TDM_DELTA_GATES 14 /* alpha beta a dt decay beta_out */
#define TDM_GATED_DELTA 15 /* q k v decay beta state out to..; chunked, position, heads, key_heads; after.. */
#define TDM_GATED_NORM 16 /* x z weight out; eps f */
#define TDM_MATMUL_TILES 17 /* x (weight(packed) out)..; columns, rows, depth, dma */
#define TDM_SWIGLU_TILES 18 /* x gate(packed) up(packed) out; columns, rows, depth, dma */

/* Of a product: `columns` rounded in on-chip memory at once, from 1; `tiles` of 32 weight rows
 * in one DMA transfer, 0 to read the weights where they lie. */
#define TDM_TILES 64 /* the most in one transfer */

/* Of a product in tiles of 32 x 32 halves: blocks of 32 `columns` and of 32 weight `rows` in on-chip
 * memory at once, from 1; `depth` tiles along the width, all, or fewer with one block of each;
 * `dma`: packed weights through it (1) or read where they lie (0, always with fewer than all). */

#define TDM_ALL_ROWS 0xffffffff

struct tdm_request {
    uint32_t magic;
    uint32_t version;
    uint32_t kind;
    uint32_t map;
    uint64_t sequence; /* comes back in the reply */
    uint64_t file_offset;
    uint64_t bytes;
    uint32_t offset;
    uint32_t count;
    uint32_t flags;
    uint32_t file;
    uint32_t unused[2];
};

struct tdm_reply {
    uint32_t magic;
    uint32_t version;
    uint32_t status;
    uint32_t op;
    uint64_t sequence;
    uint64_t value;
    uint64_t limit;
    uint32_t operand;
    uint32_t unused;
    uint64_t instructions; /* counters of the emulator, 0 elsewhere */
    uint64_t vector_instructions;
};

struct tdm_tensor {
    uint32_t map;
    uint32_t offset; /* bytes */
    uint32_t dtype;
    uint32_t rows;
    uint32_t width;  /* values */
    uint32_t stride; /* values from row to row */
};

struct tdm_packet {
    uint32_t bytes; /* of the whole packet */
    uint32_t op;
    uint32_t tensors;
    uint32_t words;
    uint32_t params[8];
};

/* Votes, set together: daemon/program/src/power.rs. */
struct tdm_power {
    uint32_t magic;
    uint32_t version;
    uint32_t clock; /* TDM_CORNER_ */
    uint32_t bus;   /* TDM_CORNER_ */
    uint32_t ddr;   /* the rest: 0 or 1 */
    uint32_t hmx;
    uint32_t sleep;
    uint32_t unused;
};

struct tdm_power_reply {
    uint32_t magic;
    uint32_t version;
    uint32_t status;  /* TDM_OK: the votes hold */
    uint32_t operand; /* TDM_E_PARAM: the word of tdm_power at fault */
    uint64_t value;
    uint64_t limit;
};

#define TDM_FIELD(type, field, at) _Static_assert(offsetof(struct type, field) == (at), #type "." #field)
TDM_FIELD(tdm_request, magic, 0);
TDM_FIELD(tdm_request, version, 4);
TDM_FIELD(tdm_request, kind, 8);
TDM_FIELD(tdm_request, map, 12);
TDM_FIELD(tdm_request, sequence, 16);
TDM_FIELD(tdm_request, file_offset, 24);
TDM_FIELD(tdm_request, bytes, 32);
TDM_FIELD(tdm_request, offset, 40);
TDM_FIELD(tdm_request, count, 44);
TDM_FIELD(tdm_request, flags, 48);
TDM_FIELD(tdm_request, file, 52);
TDM_FIELD(tdm_reply, magic, 0);
TDM_FIELD(tdm_reply, version, 4);
TDM_FIELD(tdm_reply, status, 8);
TDM_FIELD(tdm_reply, op, 12);
TDM_FIELD(tdm_reply, sequence, 16);
TDM_FIELD(tdm_reply, value, 24);
TDM_FIELD(tdm_reply, limit, 32);
TDM_FIELD(tdm_reply, operand, 40);
TDM_FIELD(tdm_reply, instructions, 48);
TDM_FIELD(tdm_reply, vector_instructions, 56);
TDM_FIELD(tdm_tensor, map, 0);
TDM_FIELD(tdm_tensor, offset, 4);
TDM_FIELD(tdm_tensor, dtype, 8);
TDM_FIELD(tdm_tensor, rows, 12);
TDM_FIELD(tdm_tensor, width, 16);
TDM_FIELD(tdm_tensor, stride, 20);
TDM_FIELD(tdm_packet, bytes, 0);
TDM_FIELD(tdm_packet, op, 4);
TDM_FIELD(tdm_packet, tensors, 8);
TDM_FIELD(tdm_packet, words, 12);
TDM_FIELD(tdm_packet, params, 16);
TDM_FIELD(tdm_power, magic, 0);
TDM_FIELD(tdm_power, version, 4);
TDM_FIELD(tdm_power, clock, 8);
TDM_FIELD(tdm_power, bus, 12);
TDM_FIELD(tdm_power, ddr, 16);
TDM_FIELD(tdm_power, hmx, 20);
TDM_FIELD(tdm_power, sleep, 24);
TDM_FIELD(tdm_power_reply, magic, 0);
TDM_FIELD(tdm_power_reply, version, 4);
TDM_FIELD(tdm_power_reply, status, 8);
TDM_FIELD(tdm_power_reply, operand, 12);
TDM_FIELD(tdm_power_reply, value, 16);
TDM_FIELD(tdm_power_reply, limit, 24);
_Static_assert(sizeof(struct tdm_request) == 64, "request");
_Static_assert(sizeof(struct tdm_reply) == 64, "reply");
_Static_assert(sizeof(struct tdm_tensor) == 24, "tensor");
_Static_assert(sizeof(struct tdm_packet) == 48, "packet");
_Static_assert(sizeof(struct tdm_power) == 32, "power");
_Static_assert(sizeof(struct tdm_power_reply) == 32, "power reply");

#endif
