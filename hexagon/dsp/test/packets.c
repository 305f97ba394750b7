/* Hostile requests and packets: each is answered with the error that names its fault, and none
 * touches memory it was not given. packets ROUNDS: so many random packets at the end.
 *
 * Every map has inaccessible pages around it (port/emulator/port.c), the sanitizers watch the
 * rest. Exit status 0: all answered as they should be. */
#define _GNU_SOURCE
#include "../executor.h"
#include "../port/emulator/emulator.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FILE_BYTES 0x100000
#define DATA 1      /* read and write: the file's first half */
#define WEIGHTS 2   /* read only: the third quarter */
#define ALIAS 3     /* the same window as DATA */
#define BATCH 4     /* the fourth quarter */
#define DATA_BYTES (FILE_BYTES / 2)
#define BATCH_AT (FILE_BYTES / 4 * 3)

static struct executor e;
static uint8_t *file;
static uint64_t sequence;
static int failures;

/* A packet under construction. */
struct made {
    struct tdm_packet head;
    struct tdm_tensor t[12];
    uint32_t words[16];
};

static struct tdm_reply answer(struct tdm_request r) {
    struct tdm_reply reply;
    r.sequence = ++sequence;
    executor_answer(&e, &r, &reply);
    if (reply.sequence != sequence || reply.magic != TDM_MAGIC) {
        printf("reply %llu does not belong to request %llu\n", (unsigned long long)reply.sequence,
               (unsigned long long)sequence);
        failures++;
    }
    return reply;
}

static struct tdm_request request(uint32_t kind) {
    return (struct tdm_request){.magic = TDM_MAGIC, .version = TDM_VERSION, .kind = kind};
}

static uint32_t lay_out(const struct made *m, uint8_t *to) {
    uint32_t tensors = m->head.tensors < 12 ? m->head.tensors : 12, words = m->head.words < 16 ? m->head.words : 16;
    memcpy(to, &m->head, sizeof m->head);
    memcpy(to + sizeof m->head, m->t, tensors * sizeof m->t[0]);
    memcpy(to + sizeof m->head + tensors * sizeof m->t[0], m->words, words * 4);
    return (uint32_t)(sizeof m->head + tensors * sizeof m->t[0] + words * 4);
}

static struct tdm_reply run_made(const struct made *m) {
    struct tdm_request r = request(TDM_RUN);
    r.map = BATCH;
    r.count = 1;
    r.bytes = lay_out(m, file + BATCH_AT);
    return answer(r);
}

static void expect(const char *what, struct tdm_reply reply, uint32_t status, uint32_t operand) {
    if (reply.status != status || reply.operand != operand) {
        printf("%s: status %u, operand %u; expected %u, %u (value %llu, limit %llu)\n", what, reply.status,
               reply.operand, status, operand, (unsigned long long)reply.value, (unsigned long long)reply.limit);
        failures++;
    }
}

static struct tdm_tensor tensor(uint32_t offset, uint32_t rows, uint32_t width) {
    return (struct tdm_tensor){DATA, offset, TDM_F32, rows, width, width};
}

static struct tdm_tensor packed(uint32_t dtype, uint32_t rows, uint32_t width) {
    return (struct tdm_tensor){WEIGHTS, 0, dtype | TDM_PACKED, rows, width, width};
}

static struct made make(uint32_t op, uint32_t tensors, uint32_t words) {
    struct made m = {.head = {.op = op, .tensors = tensors, .words = words}};
    m.head.bytes = (uint32_t)(sizeof m.head + tensors * sizeof m.t[0] + words * 4);
    return m;
}

static const uint32_t ONE = 0x3f800000;

/* A valid packet of each op; every tensor has a place of its own, 16 KiB apart. */
static struct made valid(uint32_t op) {
    struct made m;
#define AT(i) ((i)*0x4000u)
    switch (op) {
    case TDM_EMBED:
        m = make(op, 2, 3);
        m.t[0] = packed(TDM_Q4_0, 40, 64);
        m.t[1] = tensor(AT(1), 3, 64);
        m.words[1] = 39;
        break;
    case TDM_RMS_NORM:
        m = make(op, 3, 0);
        m.t[0] = tensor(AT(0), 4, 64);
        m.t[1] = tensor(AT(1), 1, 64);
        m.t[2] = tensor(AT(2), 4, 64);
        break;
    case TDM_L2_NORM:
        m = make(op, 2, 0);
        m.t[0] = tensor(AT(0), 4, 64);
        m.t[1] = tensor(AT(1), 4, 64);
        m.head.params[0] = 2;
        break;
    case TDM_MATMUL:
        m = make(op, 5, 5);
        m.head.params[0] = 3;
        m.head.params[1] = 1;
        m.t[0] = tensor(AT(0), 4, 256);
        m.t[1] = packed(TDM_Q6_K, 40, 256);
        m.t[2] = tensor(AT(1), 4, 40);
        m.t[3] = packed(TDM_F16, 40, 256);
        m.t[4] = tensor(AT(2), 4, 3);
        m.words[0] = TDM_ALL_ROWS;
        m.words[1] = 3;
        m.words[2] = 39;
        break;
    case TDM_SWIGLU:
        m = make(op, 4, 0);
        m.head.params[0] = 3;
        m.head.params[1] = 1;
        m.t[0] = tensor(AT(0), 4, 256);
        m.t[1] = packed(TDM_Q4_K, 40, 256);
        m.t[2] = packed(TDM_Q8_0, 40, 256);
        m.t[3] = tensor(AT(2), 4, 40);
        break;
    case TDM_MATMUL_TILES:
        m = make(op, 5, 0);
        m.head.params[0] = m.head.params[1] = m.head.params[3] = 1;
        m.head.params[2] = 8;
        m.t[0] = tensor(AT(0), 4, 256);
        m.t[1] = packed(TDM_Q6_K, 40, 256);
        m.t[2] = tensor(AT(1), 4, 40);
        m.t[3] = packed(TDM_Q4_0, 33, 256);
        m.t[4] = tensor(AT(2), 4, 33);
        break;
    case TDM_SWIGLU_TILES: /* sums in parts */
        m = make(op, 4, 0);
        m.head.params[0] = m.head.params[1] = 1;
        m.head.params[2] = 3;
        m.t[0] = tensor(AT(0), 4, 256);
        m.t[1] = packed(TDM_Q4_K, 40, 256);
        m.t[2] = packed(TDM_Q8_0, 40, 256);
        m.t[3] = tensor(AT(2), 4, 40);
        break;
    case TDM_SILU_MUL:
    case TDM_SIGMOID_MUL:
    case TDM_ADD:
        m = make(op, 3, 0);
        for (uint32_t i = 0; i < 3; i++) {
            m.t[i] = tensor(AT(i), 4, 50);
        }
        break;
    case TDM_ROPE:
        m = make(op, 3, 0);
        m.t[0] = tensor(AT(0), 8, 64);
        m.t[1] = tensor(AT(1), 4, 32);
        m.t[2] = tensor(AT(2), 8, 64);
        m.head.params[0] = 2;
        break;
    case TDM_COPY:
        m = make(op, 2, 0);
        m.t[0] = tensor(AT(0), 4, 64);
        m.t[1] = tensor(AT(1), 4, 64);
        m.t[1].dtype = TDM_F16;
        break;
    case TDM_GATHER:
        m = make(op, 2, 3);
        m.t[0] = tensor(AT(0), 4, 64);
        m.t[1] = tensor(AT(1), 3, 64);
        m.words[2] = 3;
        break;
    case TDM_ATTENTION:
        m = make(op, 4, 0);
        m.t[0] = tensor(AT(0), 8, 32);
        m.t[1] = tensor(AT(1), 9, 64);
        m.t[2] = tensor(AT(2), 9, 64);
        m.t[3] = tensor(AT(3), 8, 32);
        m.head.params[0] = 4;
        m.head.params[1] = 2;
        m.head.params[2] = 7;
        m.head.params[3] = ONE;
        break;
    case TDM_CONV:
        m = make(op, 7, 2);
        m.t[0] = tensor(AT(0), 5, 40);
        m.t[1] = tensor(AT(1), 3, 40);
        m.t[2] = tensor(AT(2), 40, 4);
        m.t[3] = tensor(AT(3), 5, 40);
        m.t[4] = tensor(AT(4), 1, 40);
        m.t[5] = tensor(AT(5), 3, 40);
        m.t[6] = tensor(AT(6), 3, 40);
        m.head.params[1] = 1;
        m.words[1] = 4;
        break;
    case TDM_DELTA_GATES:
        m = make(op, 6, 0);
        for (uint32_t i = 0; i < 6; i++) {
            m.t[i] = tensor(AT(i), i == 2 || i == 3 ? 1 : 4, 6);
        }
        break;
    case TDM_GATED_DELTA:
        m = make(op, 9, 2);
        m.t[0] = tensor(AT(0), 5, 32);
        m.t[1] = tensor(AT(1), 5, 32);
        m.t[2] = tensor(AT(2), 5, 80);
        m.t[3] = tensor(AT(3), 5, 4);
        m.t[4] = tensor(AT(4), 5, 4);
        for (uint32_t i = 5; i < 9; i++) {
            m.t[i] = i == 6 ? tensor(AT(i), 5, 80) : tensor(AT(i), 64, 20);
        }
        m.head.params[0] = 1;
        m.head.params[1] = 62;
        m.head.params[2] = 4;
        m.head.params[3] = 2;
        m.words[1] = 4;
        break;
    default:
        m = make(TDM_GATED_NORM, 4, 0);
        for (uint32_t i = 0; i < 4; i++) {
            m.t[i] = tensor(AT(i), i == 2 ? 1 : 4, 64);
        }
    }
    return m;
}

static void every_op_runs(void) {
    for (uint32_t op = TDM_EMBED; op <= TDM_SWIGLU_TILES; op++) {
        struct made m = valid(op);
        char what[40];
        snprintf(what, sizeof what, "op %u as it should be", op);
        expect(what, run_made(&m), TDM_OK, 0);
    }
}

static void lying_requests(void) {
    struct tdm_request r = request(TDM_HELLO);
    r.magic = 7;
    expect("no magic", answer(r), TDM_E_MAGIC, 0);
    r = request(TDM_HELLO);
    r.version = TDM_VERSION + 1;
    expect("another version", answer(r), TDM_E_VERSION, 0);
    expect("an unknown kind", answer(request(99)), TDM_E_KIND, 0);
    r = request(TDM_MAP);
    r.map = TDM_MAPS;
    expect("a map number too large", answer(r), TDM_E_MAP, 0);
    r.map = DATA;
    r.bytes = TDM_PAGE;
    expect("a map twice", answer(r), TDM_E_MAP_USED, 0);
    r.map = 9;
    r.bytes = TDM_PAGE + 1;
    expect("a map of half a page", answer(r), TDM_E_MAP_REFUSED, 0);
    r.bytes = 0;
    expect("a map of nothing", answer(r), TDM_E_MAP_REFUSED, 0);
    r.bytes = 1ull << 40;
    expect("a map larger than the DSP", answer(r), TDM_E_MAP_REFUSED, 0);
    r = request(TDM_UNMAP);
    r.map = 9;
    expect("unmapping what is no map", answer(r), TDM_E_MAP, 0);
    r.map = 0xffffffff;
    expect("unmapping far beyond", answer(r), TDM_E_MAP, 0);
    r = request(TDM_RUN);
    r.map = 9;
    expect("a batch in no map", answer(r), TDM_E_MAP, 0);
    r.map = BATCH;
    r.bytes = TDM_BATCH_BYTES + 1;
    expect("a batch too large", answer(r), TDM_E_BATCH, 0);
    r.bytes = 64;
    r.offset = FILE_BYTES / 4 - 60;
    expect("a batch over its map's end", answer(r), TDM_E_BATCH, 0);
    r.offset = 0xfffffffc;
    expect("a batch far beyond", answer(r), TDM_E_BATCH, 0);
    r.offset = 2;
    expect("a misaligned batch", answer(r), TDM_E_BATCH, 0);
    r.offset = 0;
    r.bytes = 20;
    r.count = 1;
    expect("half a packet", answer(r), TDM_E_PACKET, 0);
    struct made m = valid(TDM_ADD);
    r.bytes = lay_out(&m, file + BATCH_AT) + 4;
    expect("bytes behind the last packet", answer(r), TDM_E_BATCH, 0);
    r.bytes = 0;
    r.count = 0;
    expect("an empty batch", answer(r), TDM_OK, 0);
}

static uint32_t vote(uint32_t clock) {
    struct tdm_power votes = {.magic = TDM_MAGIC, .version = TDM_VERSION, .clock = clock, .bus = clock, .hmx = 1};
    struct tdm_power_reply reply;
    executor_power(&e, &votes, &reply);
    return reply.status;
}

static void expect_power(const char *what, struct tdm_power votes, uint32_t status, uint32_t operand) {
    struct tdm_power_reply reply;
    executor_power(&e, &votes, &reply);
    if (reply.magic != TDM_MAGIC || reply.status != status || reply.operand != operand) {
        printf("%s: status %u, operand %u; expected %u, %u\n", what, reply.status, reply.operand, status, operand);
        failures++;
    }
}

static bool vtcm_is_poisoned(void) {
    for (uint32_t i = 0; i < e.vtcm_bytes; i++) {
        if (e.vtcm[i] != EMULATOR_POISON) {
            return false;
        }
    }
    return true;
}

/* Without votes nothing runs; a release takes on-chip memory with it. */
static void votes_bite(void) {
    struct made m = valid(TDM_ADD);
    expect("a batch before any votes", run_made(&m), TDM_E_NO_VOTES, 0);
    const struct tdm_power good = {.magic = TDM_MAGIC, .version = TDM_VERSION, .clock = TDM_CORNER_MAX, .sleep = 1};
    struct tdm_power bad = good;
    bad.magic = 7;
    expect_power("votes without magic", bad, TDM_E_MAGIC, 0);
    bad = good;
    bad.version++;
    expect_power("votes of another version", bad, TDM_E_VERSION, 0);
    bad = good;
    bad.clock = TDM_CORNER_MAX + 1;
    expect_power("a clock beyond the highest", bad, TDM_E_PARAM, 2);
    bad = good;
    bad.sleep = 2;
    expect_power("sleep neither on nor off", bad, TDM_E_PARAM, 6);
    expect("a batch after refused votes", run_made(&m), TDM_E_NO_VOTES, 0);
    expect_power("votes", good, TDM_OK, 0);
    m = valid(TDM_SWIGLU);
    expect("a batch with votes", run_made(&m), TDM_OK, 0);
    atomic_store(&e.power, POWER_RUNNING);
    expect_power("votes while a batch runs", good, TDM_E_BUSY, 0);
    atomic_store(&e.power, POWER_HELD);
    bad = good;
    expect_power("votes without the matrix unit", bad, TDM_OK, 0);
    struct made tiles = valid(TDM_MATMUL_TILES);
    expect("tiles without its vote", run_made(&tiles), TDM_E_NO_VOTES, 0);
    bad.hmx = 1;
    expect_power("votes with it", bad, TDM_OK, 0);
    expect("tiles with its vote", run_made(&tiles), TDM_OK, 0);
    if (vtcm_is_poisoned()) {
        printf("on-chip memory holds nothing after a product\n");
        failures++;
    }
    if (vote(TDM_CORNER_OFF) != TDM_OK || !vtcm_is_poisoned()) {
        printf("a release leaves on-chip memory as it was\n");
        failures++;
    }
    expect("a batch after the release", run_made(&m), TDM_E_NO_VOTES, 0);
    if (vote(TDM_CORNER_MAX) != TDM_OK || !vtcm_is_poisoned()) {
        printf("on-chip memory comes back with the votes\n");
        failures++;
    }
}

/* A batch whose second packet is bad: nothing of it runs. */
static void a_refused_batch_runs_nothing(void) {
    struct made good = valid(TDM_ADD), bad = valid(TDM_ADD);
    bad.t[1].width = 51;
    float *a = (float *)(file + AT(0)), *out = (float *)(file + AT(2));
    a[0] = 3.0f;
    out[0] = 99.0f;
    uint32_t bytes = lay_out(&good, file + BATCH_AT);
    struct tdm_request r = request(TDM_RUN);
    r.map = BATCH;
    r.count = 2;
    r.bytes = bytes + lay_out(&bad, file + BATCH_AT + bytes);
    struct tdm_reply reply = answer(r);
    if (reply.op != 1 || out[0] != 99.0f) {
        printf("a batch with a bad second packet: op %u blamed, the first one %s\n", reply.op,
               out[0] == 99.0f ? "did not run" : "ran");
        failures++;
    }
    expect("a bad second packet", reply, TDM_E_SHAPE, 1);
}

static void lying_packets(void) {
    struct made m;
#define BAD(what, op, damage, status, operand) \
    m = valid(op);                             \
    damage;                                    \
    expect(what, run_made(&m), status, operand)
    BAD("an unknown op", TDM_ADD, m.head.op = 77, TDM_E_OP, 0);
    BAD("more bytes than there are", TDM_ADD, m.head.bytes += 4, TDM_E_PACKET, 0);
    BAD("tensors that are not there", TDM_ADD, m.head.tensors = 4, TDM_E_PACKET, 0);
    BAD("tensors beyond all bounds", TDM_ADD, m.head.tensors = 0xffffffff, TDM_E_OPERANDS, 0);
    BAD("words beyond all bounds", TDM_ADD, m.head.words = 0x40000000, TDM_E_PACKET, 0);
    BAD("a tensor too few", TDM_ADD, (m.head.tensors = 2, m.head.bytes -= 24), TDM_E_OPERANDS, 0);
    BAD("an unmapped tensor", TDM_ADD, m.t[1].map = 9, TDM_E_MAP, 1);
    BAD("a map number beyond all bounds", TDM_ADD, m.t[1].map = 0xffffffff, TDM_E_MAP, 1);
    BAD("a tensor over its map's end", TDM_ADD, m.t[0].offset = DATA_BYTES - 4 * 200 + 4, TDM_E_BOUNDS, 0);
    BAD("an offset that wraps", TDM_ADD, m.t[0].offset = 0xfffffffc, TDM_E_BOUNDS, 0);
    BAD("a stride that overflows", TDM_ADD, m.t[2].stride = 0xffffffff, TDM_E_BOUNDS, 2);
    BAD("a stride below the width", TDM_ADD, m.t[0].stride = 49, TDM_E_SHAPE, 0);
    BAD("no rows", TDM_ADD, m.t[0].rows = 0, TDM_E_SHAPE, 0);
    BAD("rows beyond all bounds", TDM_ADD, m.t[0].rows = 0xffffffff, TDM_E_SHAPE, 0);
    BAD("an odd offset", TDM_ADD, m.t[0].offset = 2, TDM_E_ALIGN, 0);
    BAD("a weight off its vectors", TDM_SWIGLU, m.t[1].offset = 64, TDM_E_ALIGN, 1);
    BAD("halves where floats belong", TDM_ADD, m.t[1].dtype = TDM_F16, TDM_E_DTYPE, 1);
    BAD("a weight that is not packed", TDM_SWIGLU, m.t[1].dtype = TDM_Q4_K, TDM_E_DTYPE, 1);
    BAD("a type nobody knows", TDM_SWIGLU, m.t[1].dtype = TDM_PACKED | 29, TDM_E_DTYPE, 1);
    BAD("a weight of half blocks", TDM_EMBED, (m.t[0].width = m.t[0].stride = 40), TDM_E_SHAPE, 0);
    BAD("more weight than the map has", TDM_SWIGLU, (m.t[2].rows = m.t[1].rows = 1u << 29), TDM_E_BOUNDS, 1);
    BAD("an output in a read-only map", TDM_ADD, m.t[2].map = WEIGHTS, TDM_E_READ_ONLY, 2);
    BAD("an output over half an input", TDM_ADD, m.t[2].offset = m.t[0].offset + 8, TDM_E_OVERLAP, 2);
    BAD("an output over an input through another map", TDM_ADD,
        (m.t[2].map = ALIAS, m.t[2].offset = m.t[0].offset + 8), TDM_E_OVERLAP, 2);
    BAD("its input as output", TDM_GATHER, m.t[1].offset = m.t[0].offset, TDM_E_OVERLAP, 1);
    BAD("in place", TDM_ADD, m.t[2] = m.t[0], TDM_OK, 0);
    BAD("in place through another map", TDM_ADD, (m.t[2] = m.t[0], m.t[2].map = ALIAS), TDM_OK, 0);
    BAD("two states in one place", TDM_CONV, m.t[6] = m.t[5], TDM_E_OVERLAP, 5);
    BAD("an id past the table", TDM_EMBED, m.words[1] = 40, TDM_E_INDEX, 0);
    BAD("a row past the input", TDM_GATHER, m.words[1] = 4, TDM_E_INDEX, 0);
    BAD("a chosen row past the weight", TDM_MATMUL, m.words[3] = 40, TDM_E_INDEX, 3);
    BAD("more chosen rows than words", TDM_MATMUL, m.words[1] = 1000, TDM_E_OPERANDS, 3);
    BAD("no chosen rows", TDM_MATMUL, m.words[1] = 0, TDM_E_OPERANDS, 3);
    BAD("no words for a product", TDM_MATMUL, (m.head.words = 1, m.head.bytes -= 16), TDM_E_OPERANDS, 3);
    BAD("a plan of no columns", TDM_MATMUL, m.head.params[0] = 0, TDM_E_PARAM, 0);
    BAD("a plan of transfers without end", TDM_SWIGLU, m.head.params[1] = 0xffffffff, TDM_E_PARAM, 1);
    BAD("a plan beyond on-chip memory", TDM_SWIGLU, m.head.params[1] = TDM_TILES, TDM_E_SCRATCH, 0);
    BAD("a plan beyond it for one product", TDM_MATMUL, m.head.params[1] = 3, TDM_E_SCRATCH, 1);
    BAD("a plan of more columns than there are", TDM_MATMUL, m.head.params[0] = 0xffffffff, TDM_OK, 0);
    BAD("weights read where they lie", TDM_SWIGLU, m.head.params[1] = 0, TDM_OK, 0);
    BAD("a plan of no rows", TDM_MATMUL_TILES, m.head.params[1] = 0, TDM_E_PARAM, 1);
    BAD("a plan of no depth", TDM_MATMUL_TILES, m.head.params[2] = 0, TDM_E_PARAM, 2);
    BAD("a plan deeper than the weight", TDM_MATMUL_TILES, m.head.params[2] = 9, TDM_E_PARAM, 2);
    BAD("sums in parts of several blocks", TDM_SWIGLU_TILES, m.head.params[1] = 2, TDM_E_PARAM, 2);
    BAD("parts by DMA", TDM_SWIGLU_TILES, m.head.params[3] = 1, TDM_E_PARAM, 3);
    BAD("a transfer neither on nor off", TDM_MATMUL_TILES, m.head.params[3] = 2, TDM_E_PARAM, 3);
    BAD("tiles beyond on-chip memory", TDM_MATMUL_TILES, m.head.params[1] = 2, TDM_E_SCRATCH, 1);
    BAD("tiles of more blocks than there are", TDM_MATMUL_TILES, m.head.params[0] = 0xffffffff, TDM_OK, 0);
    BAD("a tile's weight over its map's end", TDM_MATMUL_TILES, m.t[3].rows = 1u << 29, TDM_E_BOUNDS, 3);
    BAD("tiles over an input", TDM_SWIGLU_TILES, m.t[3].offset = m.t[0].offset + 8, TDM_E_OVERLAP, 3);
    BAD("groups of nothing", TDM_L2_NORM, m.head.params[0] = 0, TDM_E_PARAM, 0);
    BAD("heads of nothing", TDM_ROPE, m.head.params[0] = 0, TDM_E_PARAM, 0);
    BAD("an angle for half a pair", TDM_ROPE, (m.t[1].width = m.t[1].stride = 31), TDM_E_SHAPE, 1);
    BAD("a past beyond the cells", TDM_ATTENTION, m.head.params[2] = 8, TDM_E_INDEX, 1);
    BAD("a past that overflows", TDM_ATTENTION, m.head.params[2] = 0xffffffff, TDM_E_INDEX, 1);
    BAD("no KV heads", TDM_ATTENTION, m.head.params[1] = 0, TDM_E_PARAM, 1);
    BAD("more KV heads than heads", TDM_ATTENTION, m.head.params[1] = 8, TDM_E_PARAM, 1);
    BAD("a state after a column it lacks", TDM_CONV, m.words[0] = 5, TDM_E_INDEX, 5);
    BAD("one tap", TDM_CONV, (m.t[2].width = m.t[2].stride = 1), TDM_E_SHAPE, 2);
    BAD("no heads", TDM_GATED_DELTA, m.head.params[2] = 0, TDM_E_PARAM, 3);
    BAD("no key heads", TDM_GATED_DELTA, m.head.params[3] = 0, TDM_E_PARAM, 3);
    BAD("a position out of range", TDM_GATED_DELTA, m.head.params[1] = 0xffffffff, TDM_E_INDEX, 0);
    BAD("a state with gaps", TDM_GATED_DELTA, m.t[5].stride = 21, TDM_E_SHAPE, 5);
    BAD("its state as output", TDM_GATED_DELTA, m.t[8] = m.t[5], TDM_E_OVERLAP, 8);
}

/* More on-chip memory than there is (this session has 64 KiB). */
static void what_does_not_fit_is_refused(void) {
    struct made m = valid(TDM_ATTENTION);
    m.t[0] = tensor(AT(0), 1, 4);
    m.t[1] = tensor(AT(1), 16000, 4);
    m.t[2] = m.t[1];
    m.t[3] = tensor(0, 1, 4);
    m.t[0].offset = 16;
    m.head.params[0] = m.head.params[1] = 1;
    m.head.params[2] = 15999;
    expect("scores beyond on-chip memory", run_made(&m), TDM_E_SCRATCH, 0);
    m = valid(TDM_GATED_DELTA);
    m.t[0] = m.t[1] = tensor(AT(0), 1, 128);
    m.t[2] = tensor(AT(1), 1, 32);
    m.t[3] = m.t[4] = tensor(AT(2), 1, 1);
    m.t[5] = tensor(AT(3), 128, 32);
    m.t[6] = tensor(AT(5), 1, 32);
    m.head.tensors = 7;
    m.head.words = 0;
    m.head.bytes = sizeof m.head + 7 * 24;
    m.head.params[2] = m.head.params[3] = 1;
    expect("a state beyond on-chip memory", run_made(&m), TDM_E_SCRATCH, 0);
    m = valid(TDM_SWIGLU);
    m.t[0] = tensor(AT(0), 1, 65536);
    m.t[1] = m.t[2] = (struct tdm_tensor){DATA, 0x40000, TDM_Q8_0 | TDM_PACKED, 1, 65536, 65536};
    m.t[1].map = m.t[2].map = WEIGHTS;
    m.t[1].offset = m.t[2].offset = 0;
    m.t[3] = tensor(DATA_BYTES - 4, 1, 1);
    expect("a weight larger than its map", run_made(&m), TDM_E_BOUNDS, 1);
}

static uint64_t state = 0x9e3779b97f4a7c15ull;

static uint32_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16);
}

static uint32_t nasty(uint32_t old) {
    static const uint32_t edges[] = {0, 1, 2, 3, 31, 32, 33, 64, 255, 256, 0x7fff, 0xffff, 0x10000, 0x7ffff, 0x80000,
                                     0x3fffffff, 0x40000000, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
    switch (draw() % 4) {
    case 0: return edges[draw() % (sizeof edges / sizeof edges[0])];
    case 1: return old + draw() % 9 - 4;
    case 2: return old * (draw() % 5);
    default: return draw() % (FILE_BYTES / 2);
    }
}

/* Valid packets with one to four words replaced; most are refused, the others run. */
static void random_packets(int rounds) {
    unsigned long ran = 0;
    for (int i = 0; i < rounds; i++) {
        struct made m = valid(TDM_EMBED + draw() % TDM_SWIGLU_TILES);
        uint32_t words[sizeof m / 4], bytes = lay_out(&m, (uint8_t *)words), changes = 1 + draw() % 4;
        for (uint32_t c = 0; c < changes; c++) {
            uint32_t at = draw() % (bytes / 4);
            words[at] = nasty(words[at]);
        }
        memcpy(file + BATCH_AT, words, bytes);
        struct tdm_request r = request(TDM_RUN);
        r.map = BATCH;
        r.count = 1;
        r.bytes = bytes;
        ran += answer(r).status == TDM_OK;
    }
    fprintf(stderr, "%d random packets, %lu of them ran\n", rounds, ran);
    if (rounds > 100 && (ran == 0 || ran == (unsigned long)rounds)) {
        printf("the random packets are all alike: %lu of %d ran\n", ran, rounds);
        failures++;
    }
}

static void map_window(uint32_t map, uint64_t offset, uint64_t bytes, uint32_t flags) {
    struct tdm_request r = request(TDM_MAP);
    r.map = map;
    r.file_offset = offset;
    r.bytes = bytes;
    r.flags = flags;
    expect("a map", answer(r), TDM_OK, 0);
}

int main(int argc, char **argv) {
    int fd = memfd_create("packets", 0);
    if (fd < 0 || ftruncate(fd, FILE_BYTES) != 0 || dup2(fd, EMULATOR_MEMORY) < 0) {
        perror("memory");
        return 2;
    }
    file = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (file == MAP_FAILED || !executor_start(&e, 2, 65536)) {
        perror("executor");
        return 2;
    }
    map_window(DATA, 0, DATA_BYTES, 0);
    map_window(WEIGHTS, DATA_BYTES, FILE_BYTES / 4, TDM_READ_ONLY);
    map_window(ALIAS, 0, DATA_BYTES, 0);
    map_window(BATCH, BATCH_AT, FILE_BYTES / 4, 0);
    votes_bite();
    every_op_runs();
    lying_requests();
    a_refused_batch_runs_nothing();
    lying_packets();
    what_does_not_fit_is_refused();
    random_packets(argc > 1 ? atoi(argv[1]) : 20000);
    executor_stop(&e);
    return failures != 0;
}
